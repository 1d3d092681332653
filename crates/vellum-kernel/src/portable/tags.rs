//! TLB tags: which address spaces' translations a TLB may keep while another space is loaded.
//!
//! Processors tag each translation with a number for its address space: a process-context
//! identifier (PCID) on x86-64, an address-space identifier (ASID) on AArch64 and RISC-V. A CPU has
//! a few tags, and gives them to the spaces that it loads; a new space takes the tag that was
//! assigned longest ago.
//!
//! A CPU is not notified of shootdowns of a space that it has not loaded. Instead each shootdown
//! begins a new [generation](Generations) of the space (Linux: `tlb_gen`), and a CPU that loads the
//! space keeps what its TLB has only if that is of the current generation.
//!
//! The invalidating CPU first begins a new generation, then reads which CPUs have the space loaded,
//! and has those invalidate. A loading CPU first publishes that it has the space loaded, then reads
//! the generation. All CPUs see these accesses in one order (`SeqCst`). So if the invalidating CPU
//! does not yet see that a CPU has the space loaded, that CPU reads the new generation afterwards.

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The number of generation counters. Spaces whose IDs are equal modulo this number share a
/// counter: a shootdown of one makes the other's cached translations count as stale, too.
const COUNTERS: usize = 1024;

/// The generations of all spaces.
pub struct Generations([AtomicU64; COUNTERS]);

impl Generations {
    /// Returns the counters, all at generation 0.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; COUNTERS])
    }

    /// Begins a new generation of a space after a change of its PTEs, and returns it.
    pub fn advance(&self, space: u64) -> u64 {
        self.0[space as usize % COUNTERS].fetch_add(1, SeqCst) + 1
    }

    /// Returns the current generation of a space.
    pub fn current(&self, space: u64) -> u64 {
        self.0[space as usize % COUNTERS].load(SeqCst)
    }
}

impl Default for Generations {
    fn default() -> Self {
        Self::new()
    }
}

/// The translations that a CPU's TLB may hold under a tag: those of `space`, none older than
/// `generation`.
#[derive(Clone, Copy, Debug)]
struct Cached {
    space: Option<u64>,
    generation: u64,
}

/// The tag under which a CPU loads a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The index of the tag.
    pub tag: usize,
    /// True if the translations that the TLB has under the tag are up to date.
    pub keep: bool,
}

/// A CPU's TLB tags.
#[derive(Debug)]
pub struct Tags<const N: usize> {
    cached: [Cached; N],
    loaded: usize,
    next: usize,
}

impl<const N: usize> Tags<N> {
    /// Creates the tags, none of them assigned.
    pub const fn new() -> Self {
        Self { cached: [Cached { space: None, generation: 0 }; N], loaded: 0, next: 0 }
    }

    /// Assigns a tag to `space`, unless it has one, and records that the CPU loads the space.
    /// `generation` is the space's current one, read after the CPU published that it loads the
    /// space.
    pub fn load(&mut self, space: u64, generation: u64) -> Loaded {
        let known = self.cached.iter().position(|cached| cached.space == Some(space));
        self.loaded = known.unwrap_or_else(|| {
            let next = self.next;
            self.next = (next + 1) % N;
            next
        });
        let cached = &mut self.cached[self.loaded];
        let keep = known.is_some() && cached.generation == generation;
        *cached = Cached { space: Some(space), generation };
        Loaded { tag: self.loaded, keep }
    }

    /// Records that the CPU has carried out the invalidation of the shootdown that began
    /// `generation`, or has invalidated `all` translations of `space`. Has no effect unless the
    /// space is loaded.
    pub fn invalidated(&mut self, space: u64, generation: u64, all: bool) {
        let cached = &mut self.cached[self.loaded];
        // If the generation was advanced by more than one, the CPU still has to carry out another
        // shootdown, so its TLB is not up to date.
        if cached.space == Some(space) && (all || cached.generation + 1 == generation) {
            cached.generation = generation;
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

    /// A CPU with a TLB that caches whatever the page tables contain.
    struct Cpu {
        tags: Tags<TAGS>,
        /// By tag and page: the oldest version of the PTE that the TLB may have cached.
        tlb: [[u64; 2]; TAGS],
        loaded: Option<(u64, usize)>,
    }

    struct Lab {
        generations: Generations,
        cpus: Vec<Cpu>,
        /// Each space's two PTEs: the number of changes of each.
        tables: [[u64; 2]; SPACES],
        kept: u32,
    }

    impl Lab {
        fn load(&mut self, cpu: usize, space: u64) {
            let cpu = &mut self.cpus[cpu];
            let Loaded { tag, keep } = cpu.tags.load(space, self.generations.current(space));
            if !keep {
                cpu.tlb[tag] = self.tables[space as usize];
            }
            self.kept += u32::from(keep);
            cpu.loaded = Some((space, tag));
            assert_eq!(cpu.tlb[tag], self.tables[space as usize], "a stale translation can be used");
        }

        /// Has the CPUs that have the space loaded invalidate these pages.
        fn invalidate(&mut self, space: u64, generation: u64, pages: &[usize]) {
            for cpu in &mut self.cpus {
                if let Some((_, tag)) = cpu.loaded.filter(|(loaded, _)| *loaded == space) {
                    pages.iter().for_each(|page| cpu.tlb[tag][*page] = self.tables[space as usize][*page]);
                    cpu.tags.invalidated(space, generation, pages.len() == 2);
                }
            }
        }

        fn change(&mut self, space: u64, pages: &[usize]) -> u64 {
            pages.iter().for_each(|page| self.tables[space as usize][*page] += 1);
            self.generations.advance(space)
        }
    }

    #[test]
    fn no_stale_translation_is_used_and_some_are_kept() {
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
                        lab.invalidate(space, generation, &[0, 1]);
                    }
                    5 => {
                        let page = [random.rand_range(0..2) as usize];
                        let generation = lab.change(space, &page);
                        lab.invalidate(space, generation, &page);
                    }
                    // A CPU is notified of two changes in reverse order, and has loaded another
                    // space in between.
                    _ => {
                        let (first, second) = (lab.change(space, &[0]), lab.change(space, &[1]));
                        lab.invalidate(space, second, &[1]);
                        lab.load(cpu, (space + 1) % SPACES as u64);
                        lab.invalidate(space, first, &[0]);
                    }
                }
            }
            assert!(lab.kept > 100, "kept {}", lab.kept);
        }
    }

    #[test]
    fn spaces_that_share_a_counter_invalidate_each_other() {
        let generations = Generations::new();
        let (one, other) = (7, 7 + COUNTERS as u64);
        let mut tags = Tags::<2>::new();
        tags.load(one, generations.current(one));
        tags.load(other, generations.current(other));
        assert!(tags.load(one, generations.current(one)).keep);
        generations.advance(other);
        assert!(!tags.load(one, generations.current(one)).keep);
    }

    #[test]
    fn a_new_space_takes_the_tag_assigned_longest_ago() {
        let mut tags = Tags::<2>::new();
        assert_eq!(tags.load(1, 0), Loaded { tag: 0, keep: false });
        assert_eq!(tags.load(2, 0), Loaded { tag: 1, keep: false });
        assert_eq!(tags.load(3, 0), Loaded { tag: 0, keep: false });
        assert_eq!(tags.load(2, 0), Loaded { tag: 1, keep: true });
        assert!(!tags.load(1, 0).keep, "its tag was reassigned");
    }
}
