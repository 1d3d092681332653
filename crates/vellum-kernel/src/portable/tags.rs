//! Which address space's translations a TLB may keep while another space is loaded.
//!
//! Processors mark each translation with a number of the space that it belongs to: x86-64 calls it
//! process-context identifier, AArch64 and RISC-V address-space identifier. Here it is a tag. A
//! processor has a few and gives them to the spaces that it loads, the one that has waited longest
//! losing its own.
//!
//! A space that is not loaded hears nothing of shootdowns. Instead each one makes a new
//! [generation](Generations) of the space, and a processor that loads a space keeps what its TLB
//! has only if that is of the generation that there is now.
//!
//! Who invalidates first makes a new generation, then looks who has the space loaded, and has those
//! drop what they hold. Who loads a space first says so, then looks which generation there is. Both
//! in one order for all processors (`SeqCst`): so whoever is not seen to have the space loaded,
//! sees the new generation.

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// How many cells there are. Two spaces in one cell make each other's generations, and so drop more
/// than they have to.
const CELLS: usize = 1024;

/// The generations of all spaces.
pub struct Generations([AtomicU64; CELLS]);

impl Generations {
    /// All at their first.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; CELLS])
    }

    /// Entries of the space's tables have changed: makes a new generation, and says which.
    pub fn advance(&self, space: u64) -> u64 {
        self.0[space as usize % CELLS].fetch_add(1, SeqCst) + 1
    }

    /// The generation of a space.
    pub fn now(&self, space: u64) -> u64 {
        self.0[space as usize % CELLS].load(SeqCst)
    }
}

impl Default for Generations {
    fn default() -> Self {
        Self::new()
    }
}

/// What a processor holds under a tag: translations of this space, none older than this generation.
#[derive(Clone, Copy, Debug)]
struct Held {
    space: Option<u64>,
    generation: u64,
}

/// One processor's tags.
#[derive(Debug)]
pub struct Tags<const N: usize> {
    held: [Held; N],
    loaded: usize,
    next: usize,
}

impl<const N: usize> Tags<N> {
    /// None in use.
    pub const fn new() -> Self {
        Self { held: [Held { space: None, generation: 0 }; N], loaded: 0, next: 0 }
    }

    /// The processor loads a space that is of this generation: under which tag, and whether it may
    /// keep what it holds under it.
    pub fn load(&mut self, space: u64, generation: u64) -> (usize, bool) {
        let known = self.held.iter().position(|held| held.space == Some(space));
        self.loaded = known.unwrap_or_else(|| {
            let next = self.next;
            self.next = (next + 1) % N;
            next
        });
        let held = &mut self.held[self.loaded];
        let keep = known.is_some() && held.generation == generation;
        *held = Held { space: Some(space), generation };
        (self.loaded, keep)
    }

    /// Of the space, if it is the one loaded, the processor has dropped what a shootdown asked for
    /// that made this generation, or `all`.
    pub fn dropped(&mut self, space: u64, generation: u64, all: bool) {
        let held = &mut self.held[self.loaded];
        // Other changes may have come between, of which the processor has not heard yet.
        if held.space == Some(space) && (all || held.generation + 1 == generation) {
            held.generation = generation;
        }
    }
}

impl<const N: usize> Default for Tags<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const SPACES: usize = 5;
    const TAGS: usize = 3;

    /// A processor whose TLB fills with whatever the tables say.
    struct Cpu {
        tags: Tags<TAGS>,
        /// By tag and page: the oldest contents of the table of which it may hold a translation.
        tlb: [[u64; 2]; TAGS],
        loaded: Option<(u64, usize)>,
    }

    struct Lab {
        generations: Generations,
        cpus: Vec<Cpu>,
        /// Each space's two pages: how often each was changed.
        tables: [[u64; 2]; SPACES],
        kept: u32,
    }

    impl Lab {
        fn load(&mut self, cpu: usize, space: u64) {
            let cpu = &mut self.cpus[cpu];
            let (tag, keep) = cpu.tags.load(space, self.generations.now(space));
            if !keep {
                cpu.tlb[tag] = self.tables[space as usize];
            }
            self.kept += u32::from(keep);
            cpu.loaded = Some((space, tag));
            assert_eq!(cpu.tlb[tag], self.tables[space as usize], "a stale translation can be used");
        }

        /// Whoever has the space loaded drops what it holds of these pages.
        fn drop(&mut self, space: u64, generation: u64, pages: &[usize]) {
            for cpu in &mut self.cpus {
                if let Some((_, tag)) = cpu.loaded.filter(|(loaded, _)| *loaded == space) {
                    pages.iter().for_each(|page| cpu.tlb[tag][*page] = self.tables[space as usize][*page]);
                    cpu.tags.dropped(space, generation, pages.len() == 2);
                }
            }
        }

        fn change(&mut self, space: u64, pages: &[usize]) -> u64 {
            pages.iter().for_each(|page| self.tables[space as usize][*page] += 1);
            self.generations.advance(space)
        }
    }

    #[test]
    fn nobody_uses_a_stale_translation_and_some_are_kept() {
        for seed in 0..20 {
            let mut random = oorandom::Rand32::new(seed);
            let cpu = || Cpu { tags: Tags::new(), tlb: [[0; 2]; TAGS], loaded: None };
            let cpus = (0..3).map(|_| cpu()).collect();
            let mut lab = Lab { generations: Generations::new(), cpus, tables: [[0; 2]; SPACES], kept: 0 };
            for _ in 0..2000 {
                let space = u64::from(random.rand_range(0..SPACES as u32));
                let cpu = random.rand_range(0..3) as usize;
                match random.rand_range(0..8) {
                    0..4 => lab.load(cpu, space),
                    4 => {
                        let generation = lab.change(space, &[0, 1]);
                        lab.drop(space, generation, &[0, 1]);
                    }
                    5 => {
                        let page = [random.rand_range(0..2) as usize];
                        let generation = lab.change(space, &page);
                        lab.drop(space, generation, &page);
                    }
                    // Two changes, of which a processor hears in the other order, having loaded
                    // another space meanwhile.
                    _ => {
                        let (first, second) = (lab.change(space, &[0]), lab.change(space, &[1]));
                        lab.drop(space, second, &[1]);
                        lab.load(cpu, (space + 1) % SPACES as u64);
                        lab.drop(space, first, &[0]);
                    }
                }
            }
            assert!(lab.kept > 100, "kept {}", lab.kept);
        }
    }

    #[test]
    fn spaces_of_one_cell_make_each_other_drop_and_not_keep() {
        let generations = Generations::new();
        let (one, other) = (7, 7 + CELLS as u64);
        let mut tags = Tags::<2>::new();
        tags.load(one, generations.now(one));
        tags.load(other, generations.now(other));
        assert!(tags.load(one, generations.now(one)).1);
        generations.advance(other);
        assert!(!tags.load(one, generations.now(one)).1);
    }

    #[test]
    fn the_tag_that_waited_longest_goes_to_the_new_space() {
        let mut tags = Tags::<2>::new();
        assert_eq!(tags.load(1, 0), (0, false));
        assert_eq!(tags.load(2, 0), (1, false));
        assert_eq!(tags.load(3, 0), (0, false));
        assert_eq!(tags.load(2, 0), (1, true));
        assert!(!tags.load(1, 0).1, "it lost its tag");
    }
}
