//! Several CPUs use the same pages: what one has stored, all see that hear of it, whatever is done around it.
//!
//! Every other page holds counters that all add to. Nobody may lose an addition, or read a counter that is behind what
//! somebody is known to have made of it: that is what a translation would show that is left of zeros, or of a page that was
//! moved. The pages in between are anybody's to forget, unmap and map anew, so that around the counters tables come and go,
//! folios lose pages and huge mappings are split. And any of them may be swapped out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use vellum::arch::Arch;
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::space::{Access, Advise, FaultError, Limits, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Fault, Program};

use super::dice::{Dice, derive};
use super::host::Host;
use super::setup::borders;
use super::swap;
use super::threads::{Leaky, Threads, together};
use super::walk::Space;
use super::watch::Case;

const RW: Prot = Prot::READ.union(Prot::WRITE);

/// How much.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub actors: usize,
    pub rounds: u64,
    pub steps: u64,
    /// Most pages.
    pub pages: u64,
}

/// A counter in memory, and what is known of it.
#[derive(Default)]
struct Counter {
    /// Additions that were begun: more it can't be.
    begun: AtomicU64,
    /// What it is known to have been: less it can't be any more.
    known: AtomicU64,
    /// Additions that were made.
    made: AtomicU64,
}

/// The pages, and who is at work on them.
struct Field<'f, 'm, H: Host> {
    host: &'f H,
    space: &'f Space<'m, H>,
    case: &'f Arc<Case>,
    base: u64,
    pages: u64,
    counters: Vec<Counter>,
    calm: bool,
}

/// Run a case.
pub fn run<H: Host>(host: &H, seed: u64, load: Load, threads: Threads, case: &Arc<Case>) {
    case.begin();
    let dice = &mut Dice::new(derive(seed, 7));
    let seat = host.seat(0);
    let machine = Machine::boot(host, Default::default()).expect("enough memory to boot");
    for order in 1..10 {
        machine.policy().set(order, dice.weighted(&[(60, Knob::Never), (30, Knob::Always), (10, Knob::Madvise)]));
    }
    let device = swap::Plan { disk: dice.percent(50), slots: 16 + dice.below(2000) as u32, priority: 0 };
    let plans = vec![device; dice.weighted(&[(20, 0), (80, 1)])];
    let devices = swap::Devices::new(&machine, seed, &plans);
    devices.attach(&machine, &plans);
    devices.fail(if dice.percent(30) { 10 } else { 0 }, 0);
    host.booted();
    let arch = *host.hardware().arch();
    let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).expect("memory");
    let space: Leaky<Space<'_, H>> = Leaky::new(space);
    // Sometimes nothing but the counters is touched, and a schedule has fewer places where it may switch in vain.
    let calm = dice.percent(40);
    let pages = 4 + dice.below(load.pages - 3);
    let border = (1 + dice.below(100)) << dice.one_of(&borders(&arch));
    drop(seat);
    for round in 0..load.rounds {
        let base = (border - dice.below(pages)) << arch.page_shift();
        let counters = (0..pages.div_ceil(2)).map(|_| Counter::default()).collect();
        let field = Field { host, space: &space, case, base, pages, counters, calm };
        {
            let _seat = host.seat(0);
            space.unmap(0, arch.user_end()).expect("nothing to split");
            field.map(0, pages);
        }
        let actor = |at: usize| {
            let (field, seed) = (&field, derive(seed, 100 * round + at as u64));
            move || field.act(at, &mut Dice::new(seed), load.steps)
        };
        together(threads, (0..load.actors).map(actor).collect());
        field.count();
    }
    let _seat = host.seat(0);
    space.end();
    assert!(machine.swaps().usage(host, 0).is_none_or(|usage| usage.used == 0), "slots are left");
    host.over();
}

impl<'m, H: Host> Field<'_, 'm, H> {
    fn at(&self, page: u64) -> u64 {
        self.base + (page << self.space.arch().page_shift())
    }

    fn map(&self, page: u64, pages: u64) {
        let (addr, len) = (self.at(page), self.at(pages) - self.base);
        let mapped = self.space.map(MapRequest { addr, len, prot: RW, flags: MapFlags::FIXED });
        assert_eq!(mapped, Ok(addr));
    }

    fn act(&self, at: usize, dice: &mut Dice, steps: u64) {
        let cpu = self.host.seat(at);
        let program = cpu.enter(self.space);
        if dice.percent(50) {
            // Translations of zeros, all over the place.
            (0..self.counters.len() as u64).for_each(|at| self.read(&program, 2 * at));
        }
        for _ in 0..steps {
            self.case.step();
            let page = dice.below(self.counters.len() as u64) * 2;
            match dice.below(if self.calm { 75 } else { 100 }) {
                0..=39 => self.add(&program, page),
                40..=74 => self.read(&program, page),
                75..=81 => self.between(&program, dice),
                other => self.around(dice, other),
            }
        }
    }

    fn add(&self, program: &Program<'_, H, Space<'m, H>>, page: u64) {
        let counter = &self.counters[page as usize / 2];
        let most = counter.begun.fetch_add(1, SeqCst);
        match program.add_u64(self.at(page), 1) {
            Ok(before) => {
                let now = counter.begun.load(SeqCst);
                assert!(before < now, "page {page} counts {before}, and only {most} to {now} additions were begun");
                counter.known.fetch_max(before + 1, SeqCst);
                counter.made.fetch_add(1, SeqCst);
            }
            // Somebody has made it readable only.
            Err(Fault::Handler(FaultError::Denied(_))) => {}
            Err(other) => panic!("page {page}: {other:x?}"),
        }
    }

    fn read(&self, program: &Program<'_, H, Space<'m, H>>, page: u64) {
        let counter = &self.counters[page as usize / 2];
        let least = counter.known.load(SeqCst);
        let read = program.load_u64(self.at(page)).expect("a counter may always be read");
        let most = counter.begun.load(SeqCst);
        assert!((least..=most).contains(&read), "page {page} counts {read}, and not {least} to {most}");
    }

    /// Something with one of the pages between, or a part of them.
    fn between(&self, program: &Program<'_, H, Space<'m, H>>, dice: &mut Dice) {
        let page = dice.below(self.pages / 2) * 2 + 1;
        let page_len = self.at(1) - self.base;
        match dice.below(5) {
            // Somebody may take it away, or make it readable only.
            0 | 1 => drop(program.store_u64(self.at(page), 1)),
            2 => drop(self.space.advise(self.at(page), page_len, Advise::DontNeed)),
            3 => self.space.unmap(self.at(page), page_len).expect("memory for a node"),
            _ => self.map(page, 1),
        }
    }

    /// Something that changes no contents, with pages of both kinds.
    fn around(&self, dice: &mut Dice, which: u64) {
        let start = dice.below(self.pages);
        let len = self.at(1 + dice.below(self.pages - start)) - self.base;
        let addr = self.at(start);
        // Where a page between is not mapped, these fail, and change nothing.
        match which {
            82..=86 => drop(self.space.protect(addr, len, RW)),
            87 => drop(self.space.protect(addr, len, Prot::READ)),
            88 => drop(self.space.protect(addr, len, RW | Prot::EXEC)),
            89..=91 => drop(self.space.advise(addr, len, dice.one_of(&[Advise::Huge, Advise::NoHuge]))),
            92..=93 => drop(self.space.fault(addr, Access::Read)),
            94..=97 => drop(self.space.advise(addr, len, Advise::PageOut)),
            _ => {
                let mut resident = vec![false; self.pages as usize];
                let _ = self.space.resident(addr, len, &mut resident);
            }
        }
    }

    /// Nothing runs: every addition was made once.
    fn count(&self) {
        let cpu = self.host.seat(0);
        let program = cpu.enter(self.space);
        for (at, counter) in self.counters.iter().enumerate() {
            let page = at as u64 * 2;
            assert_eq!(program.load_u64(self.at(page)), Ok(counter.made.load(SeqCst)), "page {page}");
        }
    }
}
