//! The contender that is the engine, on the memory of a simulated machine.
//!
//! All features are on: memcgs and their limits, LRU lists, statistics, zeroing of new folios. The
//! machine is booted once and serves all cases of a benchmark, so its memory is as fragmented by
//! earlier cases as a running machine's is.
//!
//! The code that runs is what a kernel would run, on real page tables and descriptors, whose
//! virtual addresses are physical ones plus an offset, as in a kernel's direct map. The figures
//! lack the entry by an exception or a system call, and the TLB instructions, which the simulated
//! machine only counts.

mod calls;
mod churn;
mod copy;
mod disk_file;
mod entries;
mod file;
mod fork;
mod lazy;
mod overhead;
mod swapped;
mod tails;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use vellum::addr::VirtRange;
use vellum::arch::X86_64;
use vellum::frame::HUGE_ORDER;
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::space::{Advise, Limits, MapFlags, MapRequest};
use vellum::stats::Counter;
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_linux::region::{EVICTING, LINE, evict_caches};
use vellum_linux::time::{Stopwatch, Time};
use vellum_linux::workload::case::{Case, Op, PAGE, TABLE_SPAN};
use vellum_linux::workload::files::{Contents, FileOp};
use vellum_linux::workload::shuffle::{SEED, shuffle};
use vellum_sim::{Access, Config, Cpu, Fast, Program};

use crate::bench::contender::{Column, Contender, Sample, Skip, Work};
use crate::bench::walker::{Tables, Variant, Walker};
pub use entries::Entries;
use file::Region;
pub use overhead::Overhead;
pub use tails::Contended;

/// An address space of the simulated machine.
pub type Space<'m> = AddressSpace<'m, Fast>;

/// The share of a region that stays free beside it, for page tables: one in this many.
const SPARE: u64 = 4;

const READ_WRITE: Prot = Prot::READ.union(Prot::WRITE);

/// The result of touching a region.
#[derive(Clone, Copy)]
pub struct Touched {
    /// The time, unless a neighbour shares it.
    time: Option<Time>,
    /// The page faults in the region.
    faults: u64,
}

/// A simulated machine with the engine, booted when it is first needed and kept until the program
/// ends.
#[derive(Clone)]
pub struct Engine {
    /// The most bytes of memory that the measured program uses at a time.
    bytes: u64,
    /// The most memory of other programs, in multiples of that.
    beside: u64,
    /// True if all pages of the program need memory of the machine once more: compressed, as
    /// swapped out, or as copies after a fork.
    twice: bool,
    booted: Rc<OnceCell<Booted>>,
}

struct Booted {
    /// The address spaces of a churn, and the case whose runs it comes before. The first field,
    /// because spaces must be dropped on a CPU.
    aged: RefCell<Option<(Case, Vec<Space<'static>>)>>,
    machine: &'static Machine<'static, Fast>,
    cpu: Cpu<'static, Fast>,
    /// True once the machine has a swap device.
    swap: Cell<bool>,
}

impl Engine {
    /// Returns an engine whose programs use at most `bytes` of memory at a time.
    pub fn of(bytes: u64) -> Engine {
        Engine { bytes, beside: 0, twice: false, booted: Rc::default() }
    }

    /// Returns this engine with memory for other programs, which use `beside` times as much.
    pub fn with_beside(self, beside: u64) -> Engine {
        Engine { beside, ..self }
    }

    /// Returns this engine with memory for all pages of the measured program once more.
    pub fn with_pages_twice(self) -> Engine {
        Engine { twice: true, ..self }
    }

    /// Returns the bytes that stay free beside the measured program's memory when other programs
    /// fill the machine: for page tables, and for the pages that are swapped out or copied.
    fn spare(&self) -> u64 {
        self.bytes / SPARE + if self.twice { self.bytes } else { 0 }
    }

    /// Returns a contender for the column of the engine, or of the engine with runs capped at one
    /// page.
    pub fn contender(&self, column: Column) -> impl Contender + use<> {
        ByRun { engine: self.clone(), column, contents: Contents::default() }
    }

    fn booted(&self) -> Result<&Booted, Skip> {
        if let Some(booted) = self.booted.get() {
            return Ok(booted);
        }
        // Give the machine more memory than programs use, by as much as a region has: large folios
        // need free contiguous blocks.
        let bytes = self.bytes * (2 + self.beside) + self.spare() + (128 << 20);
        let sim: &'static Fast = Box::leak(Box::new(simulate(1, bytes)?));
        let cpu = sim.cpu(0);
        let machine = Box::leak(Box::new(boot(sim)?));
        Ok(self.booted.get_or_init(|| Booted { machine, cpu, swap: Cell::new(false), aged: RefCell::default() }))
    }
}

impl Booted {
    fn space(&self, folio_kib: u32, memcg: MemcgId) -> Result<Space<'static>, Skip> {
        space(self.machine, folio_kib, memcg)
    }

    /// Writes a byte in each page of the case's region at `range` through the simulated MMU, folio
    /// by folio in the order of the case's arm, and in each folio of the neighbours' in turn. The
    /// region's byte `at` lies at `offset(at)`.
    fn touch(
        &self,
        space: &Space<'_>,
        range: VirtRange,
        case: &Case,
        neighbours: &[(Space<'static>, VirtRange)],
        offset: impl Fn(u64) -> u64,
    ) -> Result<Touched, Skip> {
        let (order, folio) = (case.arm.order(case.folios()), case.folio_bytes());
        let part = |range: &VirtRange, offset: u64| VirtRange {
            start: range.start + offset,
            end: range.start + offset + folio,
        };
        if neighbours.is_empty() {
            let program = self.cpu.enter(space);
            let watch = Stopwatch::start();
            let faults = order.into_iter().map(|n| touch(&program, part(&range, offset(n * folio))));
            let faults = faults.sum::<Result<u64, Skip>>()?;
            return Ok(Touched { time: Some(watch.time()), faults });
        }
        let mut faults = 0;
        for n in order {
            faults += touch(&self.cpu.enter(space), part(&range, offset(n * folio)))?;
            for (neighbour, range) in neighbours {
                touch(&self.cpu.enter(neighbour), part(range, n * folio))?;
            }
        }
        Ok(Touched { time: None, faults })
    }

    /// Makes the neighbours of the case's region: spaces with a region of the same size.
    fn neighbours(&self, case: &Case, memcg: MemcgId) -> Result<Vec<(Space<'static>, VirtRange)>, Skip> {
        let neighbour = |_| {
            let space = self.space(case.folio_kib, memcg)?;
            let range = map(&space, case.bytes)?;
            Ok((space, range))
        };
        (0..case.arm.neighbours()).map(neighbour).collect()
    }
}

/// Makes a machine with this many CPUs and bytes of memory.
///
/// # Errors
/// There is too little free memory.
pub fn simulate(cpus: usize, memory: u64) -> Result<Fast, Skip> {
    vellum_linux::memory::check_available(memory)?;
    // Map the simulated memory by huge pages and make it resident, as a kernel's direct map is.
    let sim = Config::new(memory).cpus(cpus).prefault().host_huge_pages().fast();
    sim.map_err(|error| Skip::system("mmap", error))
}

/// Boots the engine. The thread must be one of the machine's CPUs.
///
/// # Errors
/// The boot failed.
pub fn boot(sim: &Fast) -> Result<Machine<'_, Fast>, Skip> {
    let machine = Machine::boot(sim, Default::default()).map_err(|error| Skip::system("boot", error))?;
    machine.policy().set_global(Knob::Always);
    Ok(machine)
}

/// Makes faults allocate folios of this size and no other.
pub fn folios_of(machine: &Machine<'_, Fast>, folio_kib: u32) {
    let wanted = (u64::from(folio_kib) << 10).ilog2() - PAGE.ilog2();
    for order in 1..=HUGE_ORDER {
        let knob = if u32::from(order) == wanted { Knob::Always } else { Knob::Never };
        machine.policy().set(order, knob);
    }
}

/// Makes an empty address space, and makes faults allocate folios of this size and no other.
///
/// # Errors
/// There is too little memory.
pub fn space<'m>(machine: &'m Machine<'m, Fast>, folio_kib: u32, memcg: MemcgId) -> Result<Space<'m>, Skip> {
    folios_of(machine, folio_kib);
    AddressSpace::new(machine, X86_64::four_levels(), memcg, Limits::default())
        .map_err(|error| Skip::system("new", error))
}

/// Maps `bytes`.
///
/// # Errors
/// The mapping failed.
pub fn map(space: &Space<'_>, bytes: u64) -> Result<VirtRange, Skip> {
    let request = MapRequest { addr: 0, len: bytes, prot: READ_WRITE, flags: MapFlags::NORESERVE };
    let start = space.map(request).map_err(|error| Skip::system("map", error))?;
    Ok(VirtRange { start, end: start + bytes })
}

/// Writes a byte in each page of `range`. Returns the number of page faults.
///
/// # Errors
/// A fault failed.
pub fn touch(program: &Program<'_, Fast, Space<'_>>, range: VirtRange) -> Result<u64, Skip> {
    let touched = program.touch(range, PAGE, Access::Write);
    touched.map(|touched| touched.faults).map_err(|error| Skip::system("touch", format!("{error:?}")))
}

/// Maps a touched region as the case asks. If each page of a 2 MiB folio should have its own PTE,
/// splits the huge PTEs, by changing one page's protection and restoring it, and then evicts them
/// from the caches; the benchmark of Linux does so, too.
///
/// # Errors
/// The protection can't be changed.
pub fn shape(
    space: &Space<'_>,
    program: &Program<'_, Fast, Space<'_>>,
    range: VirtRange,
    case: &Case,
) -> Result<(), Skip> {
    if case.folio_kib != 2048 || case.huge {
        return Ok(());
    }
    (range.start..range.end).step_by(TABLE_SPAN as usize).try_for_each(|start| split(space, start))?;
    let written = VirtRange { start: range.start, end: range.end.min(range.start + EVICTING) };
    let touched = program.touch(written, LINE, Access::Write);
    touched.map(drop).map_err(|error| Skip::system("touch", format!("{error:?}")))
}

/// Splits the huge PTE at an address.
fn split(space: &Space<'_>, start: u64) -> Result<(), Skip> {
    for prot in [Prot::READ, READ_WRITE] {
        space.protect(start + PAGE, PAGE, prot).map_err(|error| Skip::system("protect", error))?;
    }
    Ok(())
}

/// Unmaps `range`.
///
/// # Errors
/// The unmapping failed.
pub fn unmap(space: &Space<'_>, range: VirtRange) -> Result<(), Skip> {
    space.unmap(range.start, range.len()).map_err(|error| Skip::system("unmap", error))
}

/// The engine's counters as [`Counted::now`] read them.
#[derive(Clone, Copy)]
pub struct Counted {
    faults: u64,
    large: u64,
    splits: u64,
    flushes: u64,
    runs: u64,
}

impl Counted {
    /// Reads the counters.
    pub fn now(machine: &Machine<'_, Fast>) -> Counted {
        Counted {
            faults: machine.counter(Counter::Faults),
            large: machine.counter(Counter::LargeFolios),
            splits: machine.counter(Counter::HugeSplits),
            flushes: machine.counter(Counter::Flushes),
            runs: machine.counter(Counter::RunsCleared),
        }
    }

    /// Returns the share, 0 to 1, of a region touched and shaped between this moment and `later`
    /// that is not mapped as `case` asks. Counters give it: reading page tables and descriptors
    /// would bring them into the caches just before the measurement.
    pub fn fallback(&self, later: &Counted, case: &Case) -> f64 {
        let share = |folios: u64| folios as f64 / case.folios() as f64;
        let large = (later.large - self.large) / (1 + case.arm.neighbours() as u64);
        let small = if case.folio_kib == 4 { 0.0 } else { 1.0 - share(large) };
        let wanted = if case.folio_kib == 2048 && !case.huge { case.folios() } else { 0 };
        small.max(share(wanted.abs_diff(later.splits - self.splits)))
    }

    /// Returns the TLB flushes and cleared runs between this moment and `later`.
    fn work(&self, later: &Counted) -> Work {
        Work { flushes: later.flushes - self.flushes, runs: later.runs - self.runs }
    }
}

/// The engine as a contender.
struct ByRun {
    engine: Engine,
    column: Column,
    contents: Contents,
}

impl Contender for ByRun {
    fn column(&self) -> Column {
        self.column
    }

    /// Leaves out reads and writes of files with runs of one page: they change no PTE.
    fn does(&self, _: &Case, op: Op) -> bool {
        self.column == Column::Vellum || op.file().is_none_or(FileOp::is_mapped)
    }

    fn prepare(&mut self, case: &Case) -> Result<(), Skip> {
        self.engine.booted()?.age(case, self.engine.spare())
    }

    fn run(&mut self, case: &Case, op: Op) -> Result<Sample, Skip> {
        let booted = self.engine.booted()?;
        let mut space = booted.space(case.folio_kib, MemcgId::ROOT)?;
        if self.column == Column::Page {
            space.cap_runs(1);
        }
        if let Some(op) = op.file() {
            return disk_file::measure(booted, &space, &self.contents, case, op);
        }
        let region = match op.calls() {
            Some(calls) => Region::anonymous(calls::map_for(&space, case.bytes, calls)?),
            None if case.mapping.is_file() => Region::of_file(booted, &space, case)?,
            None => Region::anonymous(map(&space, case.bytes)?),
        };
        let range = region.range;
        booted.compact(case);
        let before = Counted::now(booted.machine);
        let neighbours = booted.neighbours(case, MemcgId::ROOT)?;
        let offset = |at| op.calls().map_or(at, |calls| calls.offset(at));
        let touched = booted.touch(&space, range, case, &neighbours, offset)?;
        shape(&space, &booted.cpu.enter(&space), range, case)?;
        let Touched { time: touch, faults } = region.finish_touch(booted, &space, case, touched)?;
        let between = Counted::now(booted.machine);
        let fallback = match case.mapping.is_file() {
            true => file::small_share(case, faults),
            false => before.fallback(&between, case),
        };
        if let Some((data, reads)) = op.data().zip(op.reads()) {
            if !booted.swap.replace(true) {
                // Twice as large as the region, as on Linux: a folio needs contiguous slots.
                swapped::attach(booted.machine, 2 * case.bytes)?;
            }
            let swapped = swapped::measure(booted, &space, range, data, reads)?;
            return Ok(Sample { touch, fallback, ..swapped });
        }
        if let Some(rewrites) = op.rewrites() {
            let reclaimed = lazy::measure(booted, &space, range, rewrites)?;
            return Ok(Sample { touch, fallback, ..reclaimed });
        }
        if let Op::ForkWrite(writes) = op {
            evict_caches()?;
            let forked = fork::measure(booted, &space, range, case, writes)?;
            return Ok(Sample { touch, fallback, ..forked });
        }
        if let Some(calls) = op.calls() {
            let called = calls::measure(booted, &space, range, case.bytes, calls)?;
            return Ok(Sample { touch, fallback, ..called });
        }
        let (op, after) = timed(booted, space, range, op)?;
        Ok(Sample { touch, op, fallback, work: Some(between.work(&after)), ..Sample::default() })
    }
}

/// Times the operation, with nothing of it in the caches. Returns its time, and the counters right
/// after it, before the address space is torn down. The simulated CPU has the address space loaded,
/// so that each flush has a target, except at exit, which comes after the last CPU has unloaded it.
fn timed(booted: &Booted, space: Space<'_>, range: VirtRange, op: Op) -> Result<(Time, Counted), Skip> {
    let of = |watch: Stopwatch| (watch.time(), Counted::now(booted.machine));
    evict_caches()?;
    if op == Op::Exit {
        let watch = Stopwatch::start();
        drop(space);
        return Ok(of(watch));
    }
    let _program = booted.cpu.enter(&space);
    let watch = Stopwatch::start();
    if op == Op::Fork {
        let child = space.fork();
        let timed = of(watch);
        return child.map(|_| timed).map_err(|error| Skip::system("fork", error));
    }
    let done = match op {
        Op::Dontneed => space.advise(range.start, range.len(), Advise::DontNeed).map_err(|e| Skip::system("advise", e)),
        Op::Protect => space.protect(range.start, range.len(), Prot::READ).map_err(|e| Skip::system("protect", e)),
        _ => unmap(&space, range),
    };
    let timed = of(watch);
    done.map(|()| timed)
}

impl Walker for Engine {
    fn walk(&mut self, span: u64, variant: Variant, progress: &mut dyn FnMut(f64)) -> Result<Tables, Skip> {
        let booted = self.booted()?;
        let space = booted.space(4, MemcgId::ROOT)?;
        let range = map(&space, span)?;
        let start_kb = space.stats().tables >> 10;
        let (mut peak_kb, steps) = (start_kb, span / TABLE_SPAN);
        let mut random = SEED;
        let mut pieces: Vec<u64> = (0..TABLE_SPAN / variant.piece).collect();
        for step in 0..steps {
            let at = range.start + step * TABLE_SPAN;
            touch(&booted.cpu.enter(&space), VirtRange { start: at, end: at + TABLE_SPAN })?;
            peak_kb = peak_kb.max(space.stats().tables >> 10);
            shuffle(&mut pieces, &mut random);
            for piece in &pieces {
                space
                    .advise(at + piece * variant.piece, variant.piece, Advise::DontNeed)
                    .map_err(|error| Skip::system("advise", error))?;
            }
            if step % 64 == 0 {
                progress(step as f64 / steps as f64);
            }
        }
        let end_kb = space.stats().tables >> 10;
        Ok(Tables { end_kb, peak_kb, start_kb })
    }
}
