//! The engine on the strict machine: programs see what a model of plain arrays predicts, no rule is
//! broken, nothing leaks.
//!
//! These tests show that the strict machine reports no false violations; the engine's own
//! properties are tested by operation.

use vellum::addr::VirtRange;
use vellum::arch::{Aarch64, Riscv64, X86_64};
use vellum::frame::policy::Knob;
use vellum::memcg::{MemcgId, Refused};
use vellum::space::{Advise, FaultError, Limits, MapFlags, MapRequest, RemapFlags, RemapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Fault, Hostility, Refusal, Silicon, Strict, Strictness};

/// Below the end of the smallest user half, Sv39's.
const BASE: u64 = 0x20_0000_0000;
/// Three page tables and a bit, with pages of 4 KiB.
const PAGES: usize = 3 * 512 + 40;

type Space<'m, A> = AddressSpace<'m, Strict<A>>;

fn space<'m, A: Silicon>(machine: &'m Machine<'m, Strict<A>>, arch: A) -> Space<'m, A> {
    AddressSpace::new(machine, arch, MemcgId::ROOT, Limits::default()).unwrap()
}

const PAGE: u64 = 4096;

/// For each page its protection and its first byte; `None` if it is not mapped.
type Model = Vec<Option<(Prot, u8)>>;

struct Dice(oorandom::Rand64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0.rand_range(0..end as u64) as usize
    }

    /// Returns mostly short ranges, sometimes whole page tables.
    fn range(&mut self) -> std::ops::Range<usize> {
        let longest = [3, 20, 700, PAGES][self.below(4)];
        let start = self.below(PAGES);
        let start = if self.below(3) == 0 { start / 512 * 512 } else { start };
        start..(start + 1 + self.below(longest)).min(PAGES)
    }

    fn prot(&mut self) -> Prot {
        [Prot::READ | Prot::WRITE, Prot::READ | Prot::WRITE, Prot::READ, Prot::empty()][self.below(4)]
    }
}

fn step<A: Silicon>(dice: &mut Dice, sim: &Strict<A>, space: &Space<'_, A>, model: &mut Model) {
    let pages = dice.range();
    let shift = space.arch().page_shift();
    let (addr, len) = (BASE + ((pages.start as u64) << shift), (pages.len() as u64) << shift);
    let all = model[pages.clone()].iter().all(Option::is_some);
    match dice.below(13) {
        12 => {
            sim.label("remap");
            let to = dice.below(PAGES - pages.len() + 1);
            let there = to..to + pages.len();
            if model[pages.start].is_none() || pages.start < there.end && there.start < pages.end {
                return;
            }
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            let new_addr = BASE + ((to as u64) << shift);
            let request = RemapRequest { addr, old_len: len, new_len: len, flags, new_addr };
            assert_eq!(space.remap(request), Ok(new_addr));
            let moved: Vec<_> = model[pages].iter_mut().map(Option::take).collect();
            // Holes have no destination: the pages there stay.
            model[there].iter_mut().zip(moved).filter(|(_, new)| new.is_some()).for_each(|(old, new)| *old = new);
        }
        0 | 1 => {
            sim.label("map");
            let prot = dice.prot();
            let flags = MapFlags::FIXED | MapFlags::NORESERVE;
            assert_eq!(space.map(MapRequest { addr, len, prot, flags }), Ok(addr));
            model[pages].fill(Some((prot, 0)));
        }
        2 => {
            sim.label("unmap");
            space.unmap(addr, len).unwrap();
            model[pages].fill(None);
        }
        3 if all => {
            sim.label("protect");
            let prot = dice.prot();
            space.protect(addr, len, prot).unwrap();
            model[pages].iter_mut().flatten().for_each(|page| page.0 = prot);
        }
        4 if all => {
            sim.label("forget");
            space.advise(addr, len, Advise::DontNeed).unwrap();
            model[pages].iter_mut().flatten().for_each(|page| page.1 = 0);
        }
        _ => {
            sim.label("a program");
            let other = sim.cpu(1 + dice.below(2));
            let program = other.enter(space);
            for page in pages.step_by(1 + dice.below(5)) {
                let va = BASE + ((page as u64) << shift);
                let value = dice.below(256) as u8;
                let write = dice.below(2) == 0;
                let done = if write { program.store(va, value).map(|()| value) } else { program.load(va) };
                let expected = match &mut model[page] {
                    None => Err(Fault::Handler(FaultError::Unmapped(va))),
                    Some((prot, _)) if prot.is_empty() || write && !prot.contains(Prot::WRITE) => {
                        Err(Fault::Handler(FaultError::Denied(va)))
                    }
                    Some((_, held)) => {
                        if write {
                            *held = value;
                        }
                        Ok(*held)
                    }
                };
                assert_eq!(done, expected, "page {page}, write: {write}");
            }
        }
    }
}

fn run<A: Silicon>(arch: A, seed: u64, hostility: Hostility, knob: Knob, steps: usize) {
    let strictness = Strictness::new(seed).hostility(hostility);
    let memory = (48 << 20) << arch.page_order();
    let sim = Config::with_arch(arch, memory).cpus(3).strict(strictness).unwrap();
    let _cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    machine.policy().set_global(knob);
    sim.baseline();
    let space = space(&machine, arch);
    let mut model: Model = vec![None; PAGES];
    let mut dice = Dice(oorandom::Rand64::new(seed as u128));
    // A program that stays in the space keeps its CPU's hardware at work all the time.
    let resident = sim.cpu(2);
    let program = resident.enter(&space);
    {
        let _me = sim.cpu(0);
        for _ in 0..steps {
            step(&mut dice, &sim, &space, &mut model);
        }
    }
    drop(program);
    {
        let _me = sim.cpu(0);
        sim.label("exit");
        drop(space);
    }
    sim.finish();
}

#[test]
fn programs_agree_with_the_model() {
    for seed in 0..8 {
        run(X86_64::four_levels(), seed, Hostility::USUAL, Knob::Never, 60);
        run(X86_64::five_levels(), seed, Hostility::WORST, Knob::Always, 60);
    }
}

#[test]
fn programs_agree_with_the_model_on_other_architectures() {
    for seed in 0..3 {
        run(Aarch64::granule_4k(), seed, Hostility::WORST, Knob::Always, 40);
        run(Aarch64::granule_16k(), seed, Hostility::WORST, Knob::Always, 30);
        run(Aarch64::granule_64k(), seed, Hostility::WORST, Knob::Always, 20);
        run(Riscv64::sv39(), seed, Hostility::WORST, Knob::Always, 40);
        run(Riscv64::sv57(), seed, Hostility::USUAL, Knob::Never, 40);
    }
}

#[test]
fn failed_allocations_change_nothing() {
    let sim = Config::new(48 << 20).strict(Strictness::new(1)).unwrap();
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    let space = space(&machine, X86_64::four_levels());
    let range = VirtRange::new(BASE, 8 * PAGE).unwrap();
    let request = MapRequest { addr: BASE, len: range.len(), prot: Prot::READ | Prot::WRITE, flags: MapFlags::FIXED };
    assert_eq!(space.map(request), Ok(BASE));
    let program = cpu.enter(&space);
    let mut failures = 0;
    for n in 1.. {
        sim.refuse(Refusal::Nth(n));
        let done = program.store(BASE + PAGE, 9);
        let (asked, refused) = sim.allocations();
        if done.is_ok() {
            assert!(refused == 0 && asked < n, "it succeeds when nothing is refused: {asked} asked");
            break;
        }
        assert_eq!(done, Err(Fault::Handler(FaultError::NoMemory(Refused::OutOfMemory))));
        failures += 1;
    }
    // A folio, and three page tables.
    assert_eq!(failures, 4);
    sim.refuse(Refusal::Never);
    assert_eq!(program.load(BASE + PAGE), Ok(9));
}

#[test]
#[cfg(feature = "shuttle")]
fn schedules_of_faults_and_unmaps() {
    use vellum_sim::Schedule;
    let run = || {
        let strictness = Strictness::new(3).schedule(Schedule::Shuttle);
        let sim = Config::new(8 << 20).cpus(3).strict(strictness).unwrap();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        sim.baseline();
        let space = space(&machine, X86_64::four_levels());
        let request = MapRequest {
            addr: BASE,
            len: 4 * PAGE,
            prot: Prot::READ | Prot::WRITE,
            flags: MapFlags::FIXED | MapFlags::NORESERVE,
        };
        space.map(request).unwrap();
        drop(boot);
        let program = |n: u64| {
            let cpu = sim.cpu(n as usize);
            let program = cpu.enter(&space);
            for page in 0..2 {
                let va = BASE + page * PAGE + 8 * n;
                program.store_u64(va, n).unwrap();
                assert!([0, n].contains(&program.load_u64(va).unwrap()));
            }
        };
        shuttle::thread::scope(|s| {
            s.spawn(|| program(1));
            s.spawn(|| program(2));
            let _cpu = sim.cpu(0);
            space.advise(BASE, PAGE, Advise::DontNeed).unwrap();
            space.advise(BASE, 4 * PAGE, Advise::DontNeed).unwrap();
        });
        let _cpu = sim.cpu(0);
        drop(space);
        sim.finish();
    };
    shuttle::check_random(run, 100);
    shuttle::check_pct(run, 100, 3);
}
