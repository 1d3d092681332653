//! What a trace leaves out, and how a cache of translations is told of it all the same.
//!
//! For fetches, and for data apart, a *filter* holds the pages used last, a few; an access to one
//! of them is not in the trace. A cache that replaces the least recently used entry, in sets of at
//! least as many entries, has all of them. So what was left out are hits of the first tier. They
//! matter for one thing only: they keep their pages young.
//!
//! A record names the page that left the filter. That page was used longer ago than those that
//! stay, and later than all that had left before. So a [`Mirror`] has it used once more when it
//! leaves, which puts all that left in their true order; and has those that stay used before a
//! cache could take them for old. No miss is added and none is lost.

use vellum_sim::Access;

use super::trace::{MOST, Record};

/// Fetches, or data.
const SIDES: usize = 2;

fn side(access: Access) -> usize {
    usize::from(access != Access::Execute)
}

/// The filter of one who makes a trace.
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
    /// One that holds so many pages of each kind.
    pub fn new(size: usize) -> Filter {
        Filter { size, slots: Default::default(), now: 0 }
    }

    /// What is to be recorded of an access.
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

/// What the filter of a trace holds, for one who replays it on a cache.
pub struct Mirror {
    /// So many accesses of one side may follow on an access to a page before a cache could have
    /// forgotten that page.
    patience: u64,
    size: usize,
    held: [[Held; MOST]; SIDES],
    now: [u64; SIDES],
}

#[derive(Clone, Copy, Default)]
struct Held {
    page: Option<u64>,
    used: u64,
}

impl Mirror {
    /// For a trace whose filters hold `size` pages, and a cache whose smallest set has `ways`
    /// entries for each side. `None`: such a cache could not spare what the trace leaves out.
    pub fn new(size: usize, ways: usize) -> Option<Mirror> {
        let patience = ways.checked_sub(size)? as u64;
        Some(Mirror { patience, size, held: Default::default(), now: [0; SIDES] })
    }

    /// A page takes a slot: tells of each access that has to be made, in order; the last is the one
    /// recorded.
    pub fn enter<E>(
        &mut self,
        slot: usize,
        page: u64,
        access: Access,
        mut make: impl FnMut(u64, Access) -> Result<(), E>,
    ) -> Result<(), E> {
        let side = side(access);
        let again = if side == 0 { Access::Execute } else { Access::Read };
        if let Some(left) = self.held[side][slot].page {
            self.now[side] += 1;
            make(left, again)?;
        }
        for other in (0..self.size).filter(|&other| other != slot) {
            let held = &mut self.held[side][other];
            if let Some(page) = held.page
                && self.now[side] - held.used >= self.patience
            {
                self.now[side] += 1;
                held.used = self.now[side];
                make(page, again)?;
            }
        }
        self.now[side] += 1;
        self.held[side][slot] = Held { page: Some(page), used: self.now[side] };
        make(page, access)
    }

    /// The page in a slot of the data's filter.
    pub fn data(&self, slot: usize) -> Option<u64> {
        self.held[1][slot].page
    }

    /// These pages are not what they were: they are not used again unless the trace says so.
    pub fn forget(&mut self, pages: std::ops::Range<u64>) {
        for held in self.held.iter_mut().flatten() {
            held.page = held.page.filter(|page| !pages.contains(page));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache of one set: the least recently used goes.
    struct Lru {
        ways: usize,
        /// From the oldest on.
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

    /// Pages that are mostly returned to soon, as programs do.
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
    fn a_cache_misses_the_same_whatever_the_filter_left_out() {
        for (seed, size, ways) in
            (0..20).flat_map(|seed| [(1, 1), (1, 4), (2, 2), (3, 4), (4, 4), (4, 9)].map(|(s, w)| (seed, s, w)))
        {
            let (mut whole, mut spared) = ([Lru::new(ways), Lru::new(ways)], [Lru::new(ways), Lru::new(ways)]);
            let mut filter = Filter::new(size);
            let mut mirror = Mirror::new(size, ways).unwrap();
            for (page, access) in accesses(seed) {
                whole[side(access)].access(page);
                if let Some(Record::Access { slot, page, access }) = filter.access(page, access) {
                    let made = mirror.enter(slot, page, access, |page, access| {
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
    fn a_cache_smaller_than_the_filter_is_refused() {
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
