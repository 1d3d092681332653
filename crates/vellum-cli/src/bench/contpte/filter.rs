//! The accesses that a trace leaves out, and their reconstruction for a TLB model.
//!
//! One *filter* for instruction fetches and one for data each hold the most recently used pages; an
//! access to one of these pages is not in the trace. A TLB with LRU replacement holds all of them
//! if each of its sets has at least as many entries as a filter holds pages. The omitted accesses
//! are then hits of the first level, whose only effect is to keep their pages recent.
//!
//! A record names the page that left the filter. Its last use was before that of the pages that
//! stay, and after that of all pages that left earlier. So a [`Mirror`] repeats an access to a page
//! when the page leaves: the TLB model then has the pages that left in the order of their last
//! uses. Before each recorded access it also repeats accesses to those pages that stay and that the
//! TLB could otherwise evict soon. The replay has exactly the misses of the complete trace.

use vellum_sim::Access;

use super::trace::{MOST, Record};

/// The number of filters: one for instruction fetches, one for data.
const SIDES: usize = 2;

fn side(access: Access) -> usize {
    usize::from(access != Access::Execute)
}

/// The filter of a trace's writer.
pub struct Filter {
    size: usize,
    slots: [[Slot; MOST]; SIDES],
    now: u64,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    page: u64,
    used: u64,
    stored: bool,
}

impl Filter {
    /// Returns a filter that holds `size` pages for fetches, and as many for data.
    pub fn new(size: usize) -> Filter {
        Filter { size, slots: Default::default(), now: 0 }
    }

    /// Returns the record to write for an access, or `None` if the filter holds the page.
    pub fn access(&mut self, page: u64, access: Access) -> Option<Record> {
        self.now += 1;
        let slots = &mut self.slots[side(access)][..self.size];
        let stores = access == Access::Write;
        if let Some(slot) = slots.iter().position(|slot| slot.used > 0 && slot.page == page) {
            slots[slot].used = self.now;
            let first = stores && !slots[slot].stored;
            slots[slot].stored |= stores;
            return first.then_some(Record::Dirty { slot });
        }
        let slot = (0..slots.len()).min_by_key(|&slot| slots[slot].used)?;
        slots[slot] = Slot { page, used: self.now, stored: stores };
        Some(Record::Access { slot, page, access })
    }
}

/// The contents of a trace's filter, for a replay on a TLB model.
pub struct Mirror {
    /// The number of accesses of one side (fetches or data) after which an access to each page that
    /// stays in the filter is repeated, so that no TLB evicts the page: the ways of the smallest
    /// TLB set, less the filter's pages.
    slack: u64,
    size: usize,
    pages: [[Mirrored; MOST]; SIDES],
    now: [u64; SIDES],
}

#[derive(Clone, Copy, Default)]
struct Mirrored {
    page: Option<u64>,
    used: u64,
}

impl Mirror {
    /// Returns a mirror of filters of `size` pages, for a TLB whose smallest set has `ways` entries
    /// for fetches and as many for data. Returns `None` if such a TLB may not hold the filter's
    /// pages.
    pub fn new(size: usize, ways: usize) -> Option<Mirror> {
        let slack = ways.checked_sub(size)? as u64;
        Some(Mirror { slack, size, pages: Default::default(), now: [0; SIDES] })
    }

    /// Applies the record of an access to `page`, which takes slot `slot` of the filter, whose
    /// present page leaves. Calls `make` for each access that the replay has to do, in order: the
    /// repeated ones, then the recorded one.
    ///
    /// # Errors
    /// Returns the error of `make`.
    pub fn insert<E>(
        &mut self,
        slot: usize,
        page: u64,
        access: Access,
        mut make: impl FnMut(u64, Access) -> Result<(), E>,
    ) -> Result<(), E> {
        let side = side(access);
        let again = if side == 0 { Access::Execute } else { Access::Read };
        if let Some(left) = self.pages[side][slot].page {
            self.now[side] += 1;
            make(left, again)?;
        }
        for other in (0..self.size).filter(|&other| other != slot) {
            let held = &mut self.pages[side][other];
            if let Some(page) = held.page
                && self.now[side] - held.used >= self.slack
            {
                self.now[side] += 1;
                held.used = self.now[side];
                make(page, again)?;
            }
        }
        self.now[side] += 1;
        self.pages[side][slot] = Mirrored { page: Some(page), used: self.now[side] };
        make(page, access)
    }

    /// Returns the page in a slot of the data filter.
    pub fn data(&self, slot: usize) -> Option<u64> {
        self.pages[1][slot].page
    }

    /// Removes pages whose mapping changed. The mirror no longer repeats accesses to them.
    pub fn remove(&mut self, pages: std::ops::Range<u64>) {
        for held in self.pages.iter_mut().flatten() {
            held.page = held.page.filter(|page| !pages.contains(page));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TLB of one set with LRU replacement.
    struct Lru {
        ways: usize,
        /// The least recently used page first.
        pages: Vec<u64>,
        missed: Vec<u64>,
    }

    impl Lru {
        fn new(ways: usize) -> Lru {
            Lru { ways, pages: Vec::new(), missed: Vec::new() }
        }

        fn access(&mut self, page: u64) {
            match self.pages.iter().position(|&held| held == page) {
                Some(at) => drop(self.pages.remove(at)),
                None => self.missed.push(page),
            }
            self.pages.push(page);
            if self.pages.len() > self.ways {
                self.pages.remove(0);
            }
        }
    }

    /// Accesses that mostly return to recent pages, as those of programs.
    fn accesses(seed: u64) -> Vec<(u64, Access)> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut recent = [0u64; 6];
        (0..5000)
            .map(|_| {
                let at = random.usize(..recent.len());
                if random.u8(..3) == 0 {
                    recent[at] = random.u64(..12);
                }
                (recent[at], [Access::Execute, Access::Read, Access::Write][random.usize(..3)])
            })
            .collect()
    }

    #[test]
    fn a_tlb_misses_the_same_with_any_filter() {
        for (seed, size, ways) in
            (0..20).flat_map(|seed| [(1, 1), (1, 4), (2, 2), (3, 4), (4, 4), (4, 9)].map(|(s, w)| (seed, s, w)))
        {
            let (mut whole, mut spared) = ([Lru::new(ways), Lru::new(ways)], [Lru::new(ways), Lru::new(ways)]);
            let mut filter = Filter::new(size);
            let mut mirror = Mirror::new(size, ways).unwrap();
            for (page, access) in accesses(seed) {
                whole[side(access)].access(page);
                if let Some(Record::Access { slot, page, access }) = filter.access(page, access) {
                    let made = mirror.insert(slot, page, access, |page, access| {
                        spared[side(access)].access(page);
                        Ok::<_, ()>(())
                    });
                    made.unwrap();
                }
            }
            for side in 0..SIDES {
                assert!(whole[side].missed.len() > 50);
                assert_eq!(whole[side].missed, spared[side].missed, "seed {seed}, a filter of {size}, {ways} ways");
            }
        }
    }

    #[test]
    fn a_tlb_smaller_than_the_filter_is_refused() {
        assert!(Mirror::new(5, 4).is_none());
    }

    #[test]
    fn the_first_store_to_a_page_is_recorded_once() {
        let mut filter = Filter::new(2);
        let mut records = |page, access| filter.access(page, access).is_some();
        assert!(records(7, Access::Read));
        assert!(records(7, Access::Write), "it is dirty now");
        assert!(!records(7, Access::Write));
        assert!(records(8, Access::Write));
        assert!(!records(8, Access::Read) && !records(8, Access::Write));
        assert!(records(7, Access::Execute), "fetches have a filter of their own");
    }
}
