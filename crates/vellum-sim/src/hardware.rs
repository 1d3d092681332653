//! What both machines have: memory, seats for CPUs, and a memory-management unit for each CPU.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vellum::addr::{Pfn, PhysAddr};
use vellum::platform::{CpuSet, Invalidation, MAX_CPUS, Platform, SpaceId};

use crate::arena::{Arena, Ram};
use crate::model::TlbModel;
use crate::program::Access;
use crate::rng::Rng;
use crate::schedule::Schedule;
use crate::seat::Seats;
use crate::stats::{Asked, Stats};
use crate::tlb::{Conflict, Tag, Tlb};
use crate::walker::{Leaf, Manner, Miss, Silicon, Tables, allows, sets};

/// A simulated machine: a platform for the engine, and CPUs for programs.
pub trait Simulated: Platform + Sized {
    /// The format of its page tables.
    type Arch: Silicon;

    /// Its hardware.
    fn hardware(&self) -> &Hardware<Self::Arch>;

    /// Whether [`Simulated::before_use`] wants to hear of every access.
    const STRICT: bool = false;

    /// A program is about to reach memory through a translation that it found some time ago. Other CPUs may run meanwhile.
    fn before_use(&self, _cpu: usize, _space: SpaceId, _va: u64, _pa: PhysAddr, _access: Access) {}

    /// A space was loaded into a CPU, or is about to be dropped there.
    fn switched(&self, _cpu: usize, _space: SpaceId, _loaded: bool) {}
}

/// The parts of a machine.
#[derive(Debug)]
pub struct Hardware<A> {
    arch: A,
    model: TlbModel,
    coalesces: u32,
    leaves_records: bool,
    /// Whether some CPU has found a conflict.
    conflicts: AtomicBool,
    arena: Arena,
    pub(crate) seats: Seats,
    mmus: Box<[Mmu]>,
    asked: Box<[Asked]>,
    nodes: Vec<usize>,
}

/// One CPU's memory-management unit, alone on its cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Mmu {
    /// How many spaces are loaded: an invalidation passes by a CPU that has none.
    loaded: AtomicUsize,
    state: Mutex<MmuState>,
}

/// The lock around this is held during every walk and every access, so whoever takes it afterwards finds none under way;
/// but it is never held while another simulated CPU gets a turn.
#[derive(Debug)]
pub(crate) struct MmuState {
    pub tlb: Tlb,
    /// The spaces that this CPU may translate for, each with the number of programs that run in it here.
    pub spaces: Vec<(SpaceId, Pfn, usize)>,
    /// A translation that was looked up, but whose access has yet to happen.
    pub in_flight: Option<(Tag, Leaf)>,
    /// What decides where the architecture leaves a choice. Without it, a block is always held as one, and each page's accesses
    /// are recorded in its own entry.
    pub whims: Option<Rng>,
    /// Whether two translations of different sizes for one address are noticed, and the first that were.
    pub wary: bool,
    pub conflict: Option<Conflict>,
    stats: Stats,
}

impl<A: Silicon> Hardware<A> {
    pub(crate) fn new(
        arch: A,
        (cpus, nodes): (usize, Vec<usize>),
        ram: &Ram,
        model: TlbModel,
        schedule: Schedule,
        leaves_records: bool,
    ) -> io::Result<Self> {
        assert!((1..=MAX_CPUS).contains(&cpus), "a machine has 1 to {MAX_CPUS} CPUs, not {cpus}");
        let leaves = (1..=arch.levels()).filter(|level| arch.leaf_at(*level));
        let sizes: Vec<u32> =
            leaves.flat_map(|level| [0, arch.block_bits(level)].map(|bits| arch.level_shift(level) + bits)).collect();
        let mmu = || MmuState {
            tlb: Tlb::new(&model, arch.page_shift(), &sizes, arch.levels()),
            spaces: Vec::new(),
            in_flight: None,
            whims: None,
            wary: false,
            conflict: None,
            stats: Stats::default(),
        };
        Ok(Hardware {
            arch,
            leaves_records,
            conflicts: AtomicBool::new(false),
            coalesces: model.banks.iter().map(|bank| bank.coalesces).max().unwrap_or(0),
            arena: Arena::new(ram)?,
            seats: Seats::new(cpus, schedule),
            mmus: (0..cpus).map(|_| Mmu { loaded: AtomicUsize::new(0), state: Mutex::new(mmu()) }).collect(),
            asked: (0..cpus).map(|_| Asked::default()).collect(),
            model,
            nodes,
        })
    }

    /// The format of its page tables.
    pub fn arch(&self) -> &A {
        &self.arch
    }

    /// Its memory.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The node of a CPU.
    pub(crate) fn node(&self, cpu: usize) -> usize {
        self.nodes.get(cpu).copied().unwrap_or(0)
    }

    /// What its TLBs are like.
    pub fn tlb_model(&self) -> &TlbModel {
        &self.model
    }

    /// What one CPU's hardware did.
    pub fn cpu_stats(&self, cpu: usize) -> Stats {
        let mut stats = self.mmu(cpu).stats;
        stats += self.asked[cpu].stats();
        stats
    }

    /// What the hardware did.
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        (0..self.mmus.len()).for_each(|cpu| sum += self.cpu_stats(cpu));
        sum
    }

    /// Count from zero again. No CPU may be at work.
    pub fn reset_stats(&self) {
        for (cpu, asked) in self.asked.iter().enumerate() {
            self.mmu(cpu).stats = Stats::default();
            asked.reset();
        }
    }

    pub(crate) fn mmu(&self, cpu: usize) -> MutexGuard<'_, MmuState> {
        // A test that failed inside an access leaves the caches as they were, which is as good as any state.
        self.mmus[cpu].state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Load a space into a CPU: from now on its walker may walk there at any time.
    pub(crate) fn load(&self, cpu: usize, space: SpaceId, root: Pfn) {
        self.mmus[cpu].loaded.fetch_add(1, Ordering::SeqCst);
        // The other half is in `invalidate`: either that one sees that something is loaded here, or the walks of this CPU
        // see what was written before it looked.
        fence(Ordering::SeqCst);
        let mut mmu = self.mmu(cpu);
        match mmu.spaces.iter_mut().find(|(s, ..)| *s == space) {
            Some((_, _, programs)) => *programs += 1,
            None => mmu.spaces.push((space, root, 1)),
        }
    }

    /// Undo one `load`. With the last one for this space, the CPU forgets all about it: then the answer is true.
    pub(crate) fn unload(&self, cpu: usize, space: SpaceId) -> bool {
        let mut mmu = self.mmu(cpu);
        let mut last = false;
        if let Some(at) = mmu.spaces.iter().position(|(s, ..)| *s == space) {
            mmu.spaces[at].2 -= 1;
            last = mmu.spaces[at].2 == 0;
            if last {
                mmu.spaces.remove(at);
                mmu.tlb.forget_space(space);
            }
        }
        self.mmus[cpu].loaded.fetch_sub(1, Ordering::Release);
        last
    }

    /// Whether some CPU has the space loaded.
    pub(crate) fn loaded_anywhere(&self, space: SpaceId) -> bool {
        (0..self.mmus.len()).any(|cpu| self.loaded_on(space, cpu))
    }

    /// Whether this CPU has the space loaded.
    pub(crate) fn loaded_on(&self, space: SpaceId, cpu: usize) -> bool {
        self.mmus[cpu].loaded.load(Ordering::Relaxed) != 0 && self.mmu(cpu).spaces.iter().any(|(s, ..)| *s == space)
    }

    /// What [`vellum::platform::Tlb::invalidate`] promises. `between` runs before each CPU's turn, and whenever this has to
    /// wait for an access under way there.
    pub(crate) fn invalidate(&self, what: &Invalidation<'_>, cpus: &CpuSet, between: impl Fn()) {
        fence(Ordering::SeqCst);
        let me = self.seats.current();
        let mut ipis = 0;
        for (cpu, mmu) in self.mmus.iter().enumerate() {
            if !cpus.contains(cpu) {
                continue;
            }
            ipis += u64::from(cpu != me);
            between();
            if mmu.loaded.load(Ordering::SeqCst) == 0 {
                continue;
            }
            // Taking the lock waits for walks and accesses under way; one that lingers says so.
            loop {
                let mut state = self.mmu(cpu);
                state.tlb.invalidate(what);
                if state.in_flight.is_none_or(|(tag, _)| !tag.reached_by(what)) {
                    break;
                }
                drop(state);
                self.seats.schedule().relax();
            }
        }
        let pages = what.ranges.iter().map(|r| r.len().div_ceil(1 << what.stride_shift)).sum();
        self.asked[me].count(what.ranges.len().max(1) as u64, pages, ipis);
    }

    /// From now on do what the architecture allows rather than what is usual; notice translations that conflict.
    pub(crate) fn provoke(&self, seed: u64, whims: bool, wary: bool) {
        for cpu in 0..self.mmus.len() {
            let mut mmu = self.mmu(cpu);
            mmu.whims = whims.then(|| Rng::new(seed ^ (cpu as u64) << 32));
            mmu.wary = wary;
        }
    }

    /// The conflicts since this was last asked, each with its CPU.
    pub(crate) fn take_conflicts(&self) -> Vec<(usize, Conflict)> {
        if !self.conflicts.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        let of = |cpu: usize| self.mmu(cpu).conflict.take().map(|conflict| (cpu, conflict));
        (0..self.mmus.len()).filter_map(of).collect()
    }

    /// A fault was delivered on this CPU.
    pub(crate) fn count_fault(&self, cpu: usize) {
        self.mmu(cpu).stats.faults += 1;
    }
}

impl MmuState {
    /// The translation that this CPU uses for an access: a cached one if it will do, however stale, else what a walk finds.
    pub fn translate<A: Silicon>(
        &mut self,
        hardware: &Hardware<A>,
        (space, root): (SpaceId, Pfn),
        va: u64,
        access: Access,
    ) -> Result<Leaf, Miss> {
        match self.tlb.lookup(space, va, access) {
            Some((leaf, tier)) => {
                self.stats.count_hit(access, tier);
                if leaf.attrs.contains(access.needs() | sets(access)) {
                    return Ok(leaf);
                }
                // Dirty is yet to be set, in the entry as it is in memory now; or the access is not allowed, and then
                // the processor forgets the translation and makes sure.
                if allows(leaf.attrs, access).is_err() {
                    self.tlb.forget(space, va);
                }
            }
            None => self.stats.count_miss(access),
        }
        self.walk(hardware, (space, root), va, access)
    }

    /// Walk, from the deepest table that is known, and cache what is found.
    pub fn walk<A: Silicon>(
        &mut self,
        hardware: &Hardware<A>,
        (space, root): (SpaceId, Pfn),
        va: u64,
        access: Access,
    ) -> Result<Leaf, Miss> {
        let arch = &hardware.arch;
        self.stats.walks += 1;
        let leaves_records = hardware.leaves_records;
        let mut manner = Manner { coalesces: hardware.coalesces, records_in: None, leaves_records };
        let mut limit = u32::MAX;
        if let Some(rng) = &mut self.whims {
            manner.records_in = rng.percent(75).then(|| rng.below(usize::MAX));
            if rng.percent(25) {
                limit = 0;
            }
        }
        let start = self.tlb.start(space, va, |level| arch.level_shift(level)).unwrap_or((root, arch.levels()));
        let (tlb, reads) = (&mut self.tlb, &mut self.stats.walk_reads);
        let tables = Tables { arena: &hardware.arena, arch };
        let found = tables.walk(start, va, access, manner, reads, |level, table| {
            tlb.insert_pointer(space, va, level, arch.level_shift(level), table);
        })?;
        if self.wary && self.conflict.is_none() {
            self.conflict = self.tlb.conflict(space, va, found.leaf);
            if self.conflict.is_some() {
                hardware.conflicts.store(true, Ordering::Relaxed);
            }
        }
        Ok(self.tlb.insert(space, va, found, access, limit.max(found.leaf.shift)))
    }
}
