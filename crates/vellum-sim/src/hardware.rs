//! What both machines have: memory, seats for CPUs, and a memory-management unit for each CPU.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vellum::addr::{Pfn, PhysAddr};
use vellum::arch::{Attrs, Stale};
use vellum::platform::{CpuSet, Invalidation, MAX_CPUS, Platform, SpaceId};

use crate::arena::{Arena, Ram};
use crate::model::TlbModel;
use crate::program::Access;
use crate::rng::Rng;
use crate::schedule::Schedule;
use crate::seat::Seats;
use crate::stats::{Asked, Stats};
use crate::tlb::{Conflict, Tag, Tlb};
use crate::walker::{Found, Leaf, Manner, Miss, Silicon, Tables, sets};

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
        let tlb = || {
            let mut tlb = Tlb::new(&model, arch.page_shift(), &sizes, arch.levels());
            if matches!(arch.tlb_rules().not_present, Stale::Bounded | Stale::UntilInvalidated) {
                tlb.hold_absent(arch.page_shift(), arch.levels());
            }
            tlb
        };
        let mmu = || MmuState {
            tlb: tlb(),
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

    /// What [`vellum::platform::Tlb::invalidate_local`] promises.
    pub(crate) fn invalidate_local(&self, what: &Invalidation<'_>) {
        fence(Ordering::SeqCst);
        let me = self.seats.current();
        self.mmu(me).tlb.invalidate(what);
        self.asked[me].count_local();
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
        if !self.conflicts.load(Ordering::Relaxed) || !self.conflicts.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        let of = |cpu: usize| self.mmu(cpu).conflict.take().map(|conflict| (cpu, conflict));
        (0..self.mmus.len()).filter_map(of).collect()
    }

    /// For how long a translation in a TLB that does not do for an access makes it fault.
    fn held(&self, leaf: Leaf, access: Access) -> Stale {
        let rules = self.arch.tlb_rules();
        if !leaf.attrs.contains(access.needs()) {
            rules.denied
        } else if !self.leaves_records {
            Stale::NotCached
        } else if !leaf.attrs.contains(Attrs::ACCESSED) {
            rules.not_accessed
        } else {
            rules.not_dirty
        }
    }

    /// Whether a TLB may hold a leaf at which a walk for an access ended in a fault.
    fn may_hold(&self, leaf: Leaf, access: Access) -> bool {
        let accessed = leaf.attrs.contains(Attrs::ACCESSED) || self.arch.tlb_rules().not_accessed != Stale::NotCached;
        accessed && self.held(leaf, access).lasts()
    }

    /// A fault was delivered on this CPU.
    pub(crate) fn count_fault(&self, cpu: usize) {
        self.mmu(cpu).stats.faults += 1;
    }
}

/// An access that ended in a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Faulted;

impl MmuState {
    /// The translation that this CPU uses for an access: a cached one if it will do, however stale,
    /// else what a walk finds. What the CPU holds makes it fault, too, as long as the architecture
    /// lets it ([`vellum::arch::stale`]).
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
                match hardware.held(leaf, access) {
                    // Accessed or dirty is yet to be set, in the entry as it is in memory now.
                    Stale::NotCached => {}
                    Stale::UntilInvalidated => return Err(Faulted),
                    // The processor may make sure before it reports the fault.
                    Stale::UntilFault | Stale::Bounded => {
                        if self.whims.as_mut().is_some_and(|rng| rng.percent(25)) {
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

    /// Walk, from the deepest table that is known, and cache what is found, or that nothing is.
    pub fn walk<A: Silicon>(
        &mut self,
        hardware: &Hardware<A>,
        (space, root): (SpaceId, Pfn),
        va: u64,
        access: Access,
    ) -> Result<Leaf, Faulted> {
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
        let walked = tables.walk(start, va, access, manner, reads, |level, table| {
            tlb.insert_pointer(space, va, level, arch.level_shift(level), table);
        });
        match walked {
            Ok(found) => Ok(self.insert(hardware, space, va, found, access, limit)),
            Err(Miss::Absent { shift }) => {
                self.insert_absent(hardware, space, va, shift);
                Err(Faulted)
            }
            Err(Miss::Denied(found) | Miss::Unrecorded(found)) => {
                if hardware.may_hold(found.leaf, access) && self.holds_fault() {
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
        if self.wary && self.conflict.is_none() {
            self.conflict = self.tlb.conflict(space, va, found.leaf);
            if self.conflict.is_some() {
                hardware.conflicts.store(true, Ordering::Relaxed);
            }
        }
        self.tlb.insert(space, va, found, access, limit.max(found.leaf.shift))
    }

    /// An entry that is not present was read: hold that, if the architecture lets it.
    fn insert_absent<A: Silicon>(&mut self, hardware: &Hardware<A>, space: SpaceId, va: u64, shift: u32) {
        let left = match hardware.arch.tlb_rules().not_present {
            Stale::NotCached | Stale::UntilFault => return,
            Stale::Bounded => Some(self.whims.as_mut().map_or(1, |rng| 1 + rng.below(4) as u32)),
            Stale::UntilInvalidated => None,
        };
        if self.holds_fault() {
            self.tlb.insert_absent(space, va, shift, left);
        }
    }

    /// Whether what made an access fault is held, where it may be: always, where nothing is left to
    /// chance.
    fn holds_fault(&mut self) -> bool {
        self.whims.as_mut().is_none_or(|rng| rng.percent(75))
    }
}
