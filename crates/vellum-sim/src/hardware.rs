//! The hardware of both machines: memory, seats for CPUs, and a memory-management unit for each
//! CPU.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vellum::addr::{Pfn, PhysAddr};
use vellum::arch::{Attrs, Stale};
use vellum::platform::{CpuSet, Invalidation, MAX_CPUS, Platform, SpaceId};

use crate::arena::{Arena, Ram};
use crate::files::Files;
use crate::model::TlbModel;
use crate::program::Access;
use crate::rng::Rng;
use crate::schedule::Schedule;
use crate::seat::Seats;
use crate::stats::{Invalidations, Stats};
use crate::tlb::{Conflict, Tag, Tlb};
use crate::walker::{Found, Leaf, Miss, Silicon, Tables, WalkOptions, sets};

/// A simulated machine: a platform for the engine, and CPUs for programs.
pub trait Simulated: Platform<Arch: Silicon> + Sized {
    /// Returns its hardware.
    fn hardware(&self) -> &Hardware<Self::Arch>;

    /// True if the machine needs [`Simulated::before_use`] before every access.
    const STRICT: bool = false;

    /// Called when a program is about to access memory through a translation that it looked up some
    /// time ago. Other CPUs may run during this call.
    fn before_use(&self, _cpu: usize, _space: SpaceId, _va: u64, _pa: PhysAddr, _access: Access) {}

    /// Called when a CPU has loaded a space, or is about to unload it.
    fn switched(&self, _cpu: usize, _space: SpaceId, _loaded: bool) {}
}

/// The parts of a machine.
#[derive(Debug)]
pub struct Hardware<A> {
    arch: A,
    model: TlbModel,
    coalesces: u32,
    software_ad_bits: bool,
    /// True if a CPU has found conflicting translations since the last
    /// [`Hardware::take_conflicts`].
    conflicts: AtomicBool,
    arena: Arena,
    pub(crate) seats: Seats,
    mmus: Box<[Mmu]>,
    invalidations: Box<[Invalidations]>,
    nodes: Vec<usize>,
    files: Files,
}

/// The memory-management unit of one CPU, alone on its cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Mmu {
    /// The number of loaded spaces. An invalidation skips a CPU that has none.
    loaded: AtomicUsize,
    state: Mutex<MmuState>,
}

/// The state of a memory-management unit. Every walk and every access holds the lock around it, so
/// a thread that takes the lock finds none under way. The lock is never held while another
/// simulated CPU gets a turn.
#[derive(Debug)]
pub(crate) struct MmuState {
    pub tlb: Tlb,
    /// The spaces that this CPU may translate for, each with its root page table, and with the
    /// number of programs that run in the space on this CPU.
    pub spaces: Vec<(SpaceId, Pfn, usize)>,
    /// A translation that was looked up, whose access has yet to happen.
    pub in_flight: Option<(Tag, Leaf)>,
    /// Draws at random where the architecture leaves the CPU a choice. With `None`, a cont block is
    /// always cached as one entry, and accessed and dirty are set in the entry of the accessed
    /// page.
    pub choices: Option<Rng>,
    /// True if this CPU looks for two cached translations of one address that disagree. `conflict`
    /// is the first such pair.
    pub detects_conflicts: bool,
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
        software_ad_bits: bool,
    ) -> io::Result<Self> {
        assert!((1..=MAX_CPUS).contains(&cpus), "a machine has 1 to {MAX_CPUS} CPUs, not {cpus}");
        let leaves = (1..=arch.levels()).filter(|level| arch.leaf_at(*level));
        let sizes: Vec<u32> =
            leaves.flat_map(|level| [0, arch.cont_bits(level)].map(|bits| arch.level_shift(level) + bits)).collect();
        let tlb = || {
            let mut tlb = Tlb::new(&model, arch.page_shift(), &sizes, arch.levels());
            if matches!(arch.tlb_rules().not_present, Stale::Bounded | Stale::UntilInvalidated) {
                tlb.cache_absent(arch.page_shift(), arch.levels());
            }
            tlb
        };
        let mmu = || MmuState {
            tlb: tlb(),
            spaces: Vec::new(),
            in_flight: None,
            choices: None,
            detects_conflicts: false,
            conflict: None,
            stats: Stats::default(),
        };
        Ok(Hardware {
            arch,
            software_ad_bits,
            conflicts: AtomicBool::new(false),
            coalesces: model.banks.iter().map(|bank| bank.coalesces).max().unwrap_or(0),
            arena: Arena::new(ram)?,
            seats: Seats::new(cpus, schedule),
            mmus: (0..cpus).map(|_| Mmu { loaded: AtomicUsize::new(0), state: Mutex::new(mmu()) }).collect(),
            invalidations: (0..cpus).map(|_| Invalidations::default()).collect(),
            model,
            nodes,
            files: Files::new(0),
        })
    }

    /// Returns the format of its page tables.
    pub fn arch(&self) -> &A {
        &self.arch
    }

    /// Returns its memory.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Returns its files.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Returns the NUMA node of a CPU.
    pub(crate) fn node(&self, cpu: usize) -> usize {
        self.nodes.get(cpu).copied().unwrap_or(0)
    }

    /// Returns the model of its TLBs.
    pub fn tlb_model(&self) -> &TlbModel {
        &self.model
    }

    /// Returns the counters of one CPU.
    pub fn cpu_stats(&self, cpu: usize) -> Stats {
        let mut stats = self.mmu(cpu).stats;
        stats += self.invalidations[cpu].stats();
        stats
    }

    /// Returns the counters of all CPUs.
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        (0..self.mmus.len()).for_each(|cpu| sum += self.cpu_stats(cpu));
        sum
    }

    /// Resets all counters. No CPU may be at work.
    pub fn reset_stats(&self) {
        for (cpu, invalidations) in self.invalidations.iter().enumerate() {
            self.mmu(cpu).stats = Stats::default();
            invalidations.reset();
        }
    }

    pub(crate) fn mmu(&self, cpu: usize) -> MutexGuard<'_, MmuState> {
        // Ignore the poisoning: a test that panicked inside an access left the caches in a valid
        // state.
        self.mmus[cpu].state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads a space into a CPU: from now on the CPU's page walker may walk the space's page tables
    /// at any time.
    pub(crate) fn load(&self, cpu: usize, space: SpaceId, root: Pfn) {
        self.mmus[cpu].loaded.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `invalidate`: either `invalidate` finds that a space is loaded
        // here, or the walks of this CPU see all writes that preceded `invalidate`.
        fence(Ordering::SeqCst);
        let mut mmu = self.mmu(cpu);
        match mmu.spaces.iter_mut().find(|(s, ..)| *s == space) {
            Some((_, _, programs)) => *programs += 1,
            None => mmu.spaces.push((space, root, 1)),
        }
    }

    /// Undoes one `load`. Returns true if it was the last one for this space; then the CPU has
    /// dropped all that it had cached of the space.
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

    /// Returns whether a CPU has the space loaded.
    pub(crate) fn loaded_anywhere(&self, space: SpaceId) -> bool {
        (0..self.mmus.len()).any(|cpu| self.loaded_on(space, cpu))
    }

    /// Returns whether this CPU has the space loaded.
    pub(crate) fn loaded_on(&self, space: SpaceId, cpu: usize) -> bool {
        self.mmus[cpu].loaded.load(Ordering::Relaxed) != 0 && self.mmu(cpu).spaces.iter().any(|(s, ..)| *s == space)
    }

    /// Implements [`vellum::platform::Tlb::invalidate`]. `between` runs before each CPU's
    /// invalidation, where other CPUs may get a turn.
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
            // Taking the lock waits for walks and accesses under way; `in_flight` shows an access
            // that outlives the lock.
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
        self.invalidations[me].count(what.ranges.len().max(1) as u64, pages, ipis);
    }

    /// Implements [`vellum::platform::Tlb::invalidate_local`].
    pub(crate) fn invalidate_local(&self, what: &Invalidation<'_>) {
        fence(Ordering::SeqCst);
        let me = self.seats.current();
        self.mmu(me).tlb.invalidate(what);
        self.invalidations[me].count_local();
    }

    /// Makes all CPUs draw at random where the architecture leaves them a choice (if `choices` is
    /// set), and look for conflicting translations (if `detects_conflicts` is set).
    pub(crate) fn provoke(&self, seed: u64, choices: bool, detects_conflicts: bool) {
        for cpu in 0..self.mmus.len() {
            let mut mmu = self.mmu(cpu);
            mmu.choices = choices.then(|| Rng::new(seed ^ (cpu as u64) << 32));
            mmu.detects_conflicts = detects_conflicts;
        }
    }

    /// Returns the conflicts since the last call, each with its CPU.
    pub(crate) fn take_conflicts(&self) -> Vec<(usize, Conflict)> {
        if !self.conflicts.load(Ordering::Relaxed) || !self.conflicts.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        let of = |cpu: usize| self.mmu(cpu).conflict.take().map(|conflict| (cpu, conflict));
        (0..self.mmus.len()).filter_map(of).collect()
    }

    /// Returns for how long a TLB may keep a translation that does not permit an access, and so
    /// make the access fault.
    fn cached_for(&self, leaf: Leaf, access: Access) -> Stale {
        let rules = self.arch.tlb_rules();
        if !leaf.attrs.contains(access.needs()) {
            rules.denied
        } else if !self.software_ad_bits {
            Stale::NotCached
        } else if !leaf.attrs.contains(Attrs::ACCESSED) {
            rules.not_accessed
        } else {
            rules.not_dirty
        }
    }

    /// Returns whether a TLB may cache a leaf at which a walk for an access ended in a fault.
    fn may_cache_fault(&self, leaf: Leaf, access: Access) -> bool {
        let accessed = leaf.attrs.contains(Attrs::ACCESSED) || self.arch.tlb_rules().not_accessed != Stale::NotCached;
        accessed && self.cached_for(leaf, access).lasts()
    }

    /// Counts a fault that was delivered on this CPU.
    pub(crate) fn count_fault(&self, cpu: usize) {
        self.mmu(cpu).stats.faults += 1;
    }
}

/// An access that ended in a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Faulted;

impl MmuState {
    /// Returns the translation that this CPU uses for an access: a cached one if it permits the
    /// access, however stale, else the result of a walk. A cached entry that does not permit the
    /// access makes it fault, for as long as the architecture allows ([`vellum::arch::stale`]).
    pub fn translate<A: Silicon>(
        &mut self,
        hardware: &Hardware<A>,
        of: (SpaceId, Pfn),
        va: u64,
        access: Access,
    ) -> Result<Leaf, Faulted> {
        let found = self.try_translate(hardware, of, va, access);
        if found.is_err() && hardware.arch.tlb_rules().denied == Stale::UntilFault {
            self.tlb.forget(of.0, va);
        }
        found
    }

    fn try_translate<A: Silicon>(
        &mut self,
        hardware: &Hardware<A>,
        (space, root): (SpaceId, Pfn),
        va: u64,
        access: Access,
    ) -> Result<Leaf, Faulted> {
        if self.tlb.is_absent(space, va) {
            return Err(Faulted);
        }
        match self.tlb.lookup(space, va, access) {
            Some((leaf, tier)) => {
                self.stats.count_hit(access, tier);
                if leaf.attrs.contains(access.needs() | sets(access)) {
                    return Ok(leaf);
                }
                match hardware.cached_for(leaf, access) {
                    // Accessed or dirty is yet to be set; the walk does that in the entry as it is
                    // in memory now.
                    Stale::NotCached => {}
                    Stale::UntilInvalidated => return Err(Faulted),
                    // The processor may read the entry again before it reports the fault.
                    Stale::UntilFault | Stale::Bounded => {
                        if self.choices.as_mut().is_some_and(|rng| rng.percent(25)) {
                            return Err(Faulted);
                        }
                        self.tlb.forget(space, va);
                    }
                }
            }
            None => self.stats.count_miss(access),
        }
        self.walk(hardware, (space, root), va, access)
    }

    /// Walks from the deepest page table whose pointer is cached. Caches the translation, or, where
    /// the architecture allows it, the entry that caused a fault.
    pub fn walk<A: Silicon>(
        &mut self,
        hardware: &Hardware<A>,
        (space, root): (SpaceId, Pfn),
        va: u64,
        access: Access,
    ) -> Result<Leaf, Faulted> {
        let arch = &hardware.arch;
        self.stats.walks += 1;
        let software_ad_bits = hardware.software_ad_bits;
        let mut options = WalkOptions { coalesces: hardware.coalesces, ad_entry: None, software_ad_bits };
        let mut limit = u32::MAX;
        if let Some(rng) = &mut self.choices {
            options.ad_entry = rng.percent(75).then(|| rng.below(usize::MAX));
            if rng.percent(25) {
                limit = 0;
            }
        }
        let start = self.tlb.start(space, va, |level| arch.level_shift(level)).unwrap_or((root, arch.levels()));
        let (tlb, reads) = (&mut self.tlb, &mut self.stats.walk_reads);
        let tables = Tables { arena: &hardware.arena, arch };
        let walked = tables.walk(start, va, access, options, reads, |level, table| {
            tlb.insert_pointer(space, va, level, arch.level_shift(level), table);
        });
        match walked {
            Ok(found) => Ok(self.insert(hardware, space, va, found, access, limit)),
            Err(Miss::Absent { shift }) => {
                self.insert_absent(hardware, space, va, shift);
                Err(Faulted)
            }
            Err(Miss::Denied(found) | Miss::AdFault(found)) => {
                if hardware.may_cache_fault(found.leaf, access) && self.caches_fault() {
                    self.insert(hardware, space, va, found, access, limit);
                }
                Err(Faulted)
            }
        }
    }

    fn insert<A: Silicon>(
        &mut self,
        hardware: &Hardware<A>,
        space: SpaceId,
        va: u64,
        found: Found,
        access: Access,
        limit: u32,
    ) -> Leaf {
        if self.detects_conflicts && self.conflict.is_none() {
            self.conflict = self.tlb.conflict(space, va, found.leaf);
            if self.conflict.is_some() {
                hardware.conflicts.store(true, Ordering::Relaxed);
            }
        }
        self.tlb.insert(space, va, found, access, limit.max(found.leaf.shift))
    }

    /// Caches that an entry is not present, if the architecture allows it.
    fn insert_absent<A: Silicon>(&mut self, hardware: &Hardware<A>, space: SpaceId, va: u64, shift: u32) {
        let left = match hardware.arch.tlb_rules().not_present {
            Stale::NotCached | Stale::UntilFault => return,
            Stale::Bounded => Some(self.choices.as_mut().map_or(1, |rng| 1 + rng.below(4) as u32)),
            Stale::UntilInvalidated => None,
        };
        if self.caches_fault() {
            self.tlb.insert_absent(space, va, shift, left);
        }
    }

    /// Returns whether this CPU caches an entry that caused a fault, in a case where the
    /// architecture permits that. Without `choices` the result is always true.
    fn caches_fault(&mut self) -> bool {
        self.choices.as_mut().is_none_or(|rng| rng.percent(75))
    }
}
