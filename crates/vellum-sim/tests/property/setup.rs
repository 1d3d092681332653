//! What a seed stands for: a machine, spaces on it, actors and their plots.

use std::ops::Range;

use vellum::addr::PhysAddr;
use vellum::arch::{Aarch64, Arch, Riscv64, X86_64};
use vellum::frame::policy::Knob;
use vellum::frame::{HUGE_ORDER, LARGEST_FOLIO};
use vellum::platform::Region;
use vellum::space::Limits;
use vellum_sim::{Config, Silicon, TlbModel};

use super::dice::{Dice, derive};
use super::op::{Choice, Step, Window};
use super::swap;

/// What to draw from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// How many actors, at least and at most.
    pub actors: (u64, u64),
    /// Rounds, between which everything is counted.
    pub rounds: usize,
    /// Operations of an actor in a round.
    pub steps: usize,
    /// Most pages of a plot's window.
    pub pages: u64,
    /// How often, in a hundred, memory is small.
    pub tight: u64,
    /// How many allocations in a hundred fail for no reason, if memory is small (and the machine can).
    pub fail: u8,
    /// The largest order of folios: if it is above a huge page's, windows have room for them, and memory for many.
    pub largest: u8,
}

/// A family of formats, of which each case draws one.
pub trait Family: Silicon {
    /// Whether some of its CPUs leave accessed and dirty to software.
    const LEAVES_RECORDS: bool = true;

    fn draw(dice: &mut Dice) -> Self;
}

impl Family for X86_64 {
    const LEAVES_RECORDS: bool = false;

    fn draw(dice: &mut Dice) -> Self {
        dice.one_of(&[X86_64::four_levels(), X86_64::five_levels()])
    }
}

impl Family for Aarch64 {
    fn draw(dice: &mut Dice) -> Self {
        let arch =
            dice.weighted(&[(3, Aarch64::granule_4k()), (1, Aarch64::granule_16k()), (1, Aarch64::granule_64k())]);
        let arch = if dice.percent(30) { arch.wide() } else { arch };
        if dice.percent(25) { arch.with_bbm2() } else { arch }
    }
}

impl Family for Riscv64 {
    fn draw(dice: &mut Dice) -> Self {
        let arch = dice.one_of(&[Riscv64::sv39(), Riscv64::sv48(), Riscv64::sv57()]);
        let arch = if dice.percent(75) { arch.with_napot() } else { arch };
        let arch = if dice.percent(30) { arch.with_rsw60t59b() } else { arch };
        if dice.percent(50) { arch.with_vvptc() } else { arch }
    }
}

/// The sizes, as log2 of pages, of what tables of some levels translate: the largest that leaves room for a hundred and more.
pub fn borders(arch: &impl Arch) -> Vec<u32> {
    (1..u32::from(arch.levels())).map(|level| level * arch.index_bits()).filter(|size| *size <= unit(arch)).collect()
}

/// log2 of one part in 256 of all pages.
fn unit(arch: &impl Arch) -> u32 {
    arch.user_end().ilog2() - arch.page_shift() - 8
}

/// A knob for all orders, and one for each.
pub type Knobs = [Knob; LARGEST_FOLIO as usize + 1];

/// One case.
#[derive(Clone, Debug)]
pub struct Setup<A> {
    pub seed: u64,
    pub plan: Plan,
    pub config: Config<A>,
    pub arch: A,
    pub cpus: usize,
    pub actors: usize,
    /// Shared spaces: the number of the group of each, 0 for the root.
    pub spaces: Vec<usize>,
    /// memcgs: the number of the parent of each, and the limit in pages.
    pub memcgs: Vec<(usize, u64)>,
    /// Whether each actor has a space of its own besides.
    pub private: bool,
    pub limits: Limits,
    pub tight: bool,
    pub zero_on_free: bool,
    /// The machine-wide knob, and those of orders from 1 on.
    pub knobs: Knobs,
    /// Whether policy changes meanwhile.
    pub policy: bool,
    /// Entries that a run may have.
    pub cap: usize,
    /// Devices to swap to.
    pub swap: Vec<swap::Plan>,
    /// How many of their writes and reads fail, in a hundred.
    pub broken: (u8, u8),
    /// Whether memory is reclaimed.
    pub reclaims: bool,
    /// By actor.
    pub choices: Vec<Choice>,
}

impl<A: Family> Setup<A> {
    pub fn new(seed: u64, plan: Plan) -> Self {
        let dice = &mut Dice::new(derive(seed, 0));
        let actors = dice.within(plan.actors.0..plan.actors.1 + 1) as usize;
        let alone = actors == 1;
        let tight = dice.percent(plan.tight);
        let arch = A::draw(dice);
        // As many bytes, whatever a page has.
        let plan = Plan { pages: (plan.pages >> arch.page_order()).max(60), ..plan };
        let cpus = actors + dice.below(2) as usize;
        let spaces = 1 + dice.below(if alone { 2 } else { 3 });
        let window = plan.pages << arch.page_order();
        let memory = match plan.largest {
            0..=HUGE_ORDER => memory(dice, tight, window, window * actors as u64 * spaces),
            _ => vec![Region {
                base: PhysAddr(2 << 20),
                len: if tight { 128 << 20 } else { 1 << 30 },
                zeroed: true,
                node: 0,
            }],
        };
        let (memory, nodes) = nodes(&mut Dice::new(derive(seed, 1)), memory, cpus);
        let memcgs = memcgs(dice, tight);
        let pick = |dice: &mut Dice| dice.below(memcgs.len() as u64 + 1) as usize;
        let spaces: Vec<usize> = (0..spaces).map(|_| pick(dice)).collect();
        let private = !alone && dice.percent(40);
        let plots: Vec<Vec<Vec<Window>>> = (0..actors).map(|_| Vec::new()).collect();
        let mut plots = spaces.iter().fold(plots, |mut plots, _| {
            let windows = windows(dice, &arch, actors, &plan);
            plots.iter_mut().zip(windows).for_each(|(plots, windows)| plots.push(windows));
            plots
        });
        if private {
            plots.iter_mut().for_each(|plots| plots.push(windows(dice, &arch, 1, &plan).remove(0)));
        }
        let limits = limits(dice, alone, plan.pages, &plots, arch.page_shift());
        let knobs = knobs(dice, plan.largest);
        let policy = alone && dice.percent(25);
        let (frees, reclaims) = (dice.percent(50), dice.percent(50));
        let own = |n: usize| (0..n).map(|plot| plot >= spaces.len()).collect();
        let whole = |own: &Vec<bool>| own.iter().map(|own| alone || *own).collect();
        let choices = plots.into_iter().map(|plots| {
            let own: Vec<bool> = own(plots.len());
            Choice { whole: whole(&own), own, plots, policy, frees, reclaims, page_order: arch.page_order() }
        });
        let choices = choices.collect();
        let swap = devices(dice, arch.page_order(), memory.iter().map(|region| region.len).sum());
        let percent = |dice: &mut Dice| dice.weighted(&[(70, 0), (20, 5), (10, 40)]);
        let broken = (percent(dice), percent(dice));
        let tlb = dice.one_of(&[0, 1, 2]);
        let mut config = Config::with_arch(arch, 0).regions(memory).cpus(cpus).cpu_nodes(nodes);
        if A::LEAVES_RECORDS && dice.percent(35) {
            config = config.leaves_records();
        }
        Setup {
            seed,
            plan,
            config: config.tlb([TlbModel::SMALL, TlbModel::GENERIC, TlbModel::NONE][tlb].clone()),
            arch,
            cpus,
            actors,
            spaces,
            memcgs,
            private,
            limits,
            tight,
            zero_on_free: dice.percent(30),
            knobs,
            policy,
            cap: dice.weighted(&[(80, usize::MAX), (8, 1), (6, 3), (6, 16)]),
            swap,
            broken,
            reclaims,
            choices,
        }
    }

    /// All that each actor does.
    pub fn steps(&self) -> Vec<Vec<Step>> {
        let script = |(actor, choice): (usize, &Choice)| {
            let dice = &mut Dice::new(derive(self.seed, 1000 + actor as u64));
            let first = if self.plan.largest > HUGE_ORDER { choice.use_all() } else { Vec::new() };
            let rest = self.plan.rounds * self.plan.steps - first.len();
            first.into_iter().chain((0..rest).map(|_| choice.step(dice))).collect()
        };
        self.choices.iter().enumerate().map(script).collect()
    }

    /// Whether faults never bring more than the page that was touched.
    pub fn small(&self) -> bool {
        let none = |knob: &Knob| matches!(knob, Knob::Never | Knob::Inherit);
        let all = |knob: &Knob| *knob == Knob::Never || *knob == Knob::Inherit && none(&self.knobs[0]);
        !self.policy && self.knobs[1..].iter().all(all)
    }
}

/// Memory for so many pages in windows of that size, or not quite; in one piece or two, zeroed or full of junk.
fn memory(dice: &mut Dice, tight: bool, window: u64, pages: u64) -> Vec<Region> {
    let bytes = if tight {
        (4 << 20) + dice.below(pages * 2048)
    } else if window >= 1000 && dice.percent(4) {
        // Only a machine as large as this has a huge page of zeros.
        (2 << 30) + (64 << 20)
    } else {
        // Large folios of which one page is left keep all of their memory.
        (if window < 512 { 6 << 20 } else { 32 << 20 }) + pages * 4096 * 6
    };
    let junk = bytes < 64 << 20 && dice.percent(20);
    let region = |base: u64, len: u64| Region { base: PhysAddr(base), len, zeroed: !junk, node: 0 };
    let base = dice.one_of(&[2 << 20, 1 << 20, 0x1000, (6 << 20) + 0x5000]);
    if dice.percent(70) {
        return vec![region(base, bytes)];
    }
    let first = bytes / 8 + dice.below(bytes / 4);
    let hole = dice.one_of(&[0x1000, 1 << 20, 40 << 20]);
    vec![region(base, first), region((base + first + hole) & !0xfff, bytes)]
}

/// Whose memory it is, and whose CPUs: sometimes that of several nodes. Then one piece may be cut in two.
fn nodes(dice: &mut Dice, mut memory: Vec<Region>, cpus: usize) -> (Vec<Region>, Vec<usize>) {
    let nodes = dice.weighted(&[(60, 1), (30, 2), (10, 3)]);
    let end = memory[0].base.0 + memory[0].len;
    let at = (memory[0].base.0 + memory[0].len / 4 + dice.below(memory[0].len / 4)) & !0xfff;
    if nodes > 1 && memory.len() == 1 {
        // The engine's own structures are in the larger part.
        memory[0].len = at - memory[0].base.0;
        memory.push(Region { base: PhysAddr(at), len: end - at, ..memory[0] });
    }
    memory.iter_mut().for_each(|region| region.node = dice.below(nodes as u64) as usize);
    (memory, (0..cpus).map(|_| dice.below(nodes as u64) as usize).collect())
}

/// Up to three memcgs, below the root or below each other.
fn memcgs(dice: &mut Dice, tight: bool) -> Vec<(usize, u64)> {
    let memcgs = dice.below(4) as usize;
    let limit = |dice: &mut Dice| {
        if tight && dice.percent(60) { 50 + dice.below(1500) } else { u64::MAX }
    };
    (0..memcgs).map(|at| (dice.below(at as u64 + 1) as usize, limit(dice))).collect()
}

/// Up to three devices, of which some are soon full. Their counts take a quarter of memory at most.
fn devices(dice: &mut Dice, page_order: u8, memory: u64) -> Vec<swap::Plan> {
    /// Bytes of memory for each slot. (The least memory that there is has room for the most slots, of pages of 4 KiB.)
    const BYTES: u64 = 208;
    let most = ((memory / BYTES) >> page_order << page_order) as u32;
    let device = |dice: &mut Dice| swap::Plan {
        disk: dice.percent(50),
        slots: most.min(dice.weighted(&[(20, 60), (30, 700), (50, 20_000)]) << page_order),
        priority: dice.below(2) as i16,
    };
    let devices = dice.weighted(&[(15, 0), (45, 1), (25, 2), (15, 3)]);
    (0..devices).map(|_| device(dice)).collect()
}

/// For each actor the windows of its plot in one space. Those of several actors are side by side, at pages where no table
/// begins, around a border of tables of some level; and each has one far from all others for stacks, which would grow into
/// a neighbour's plot.
fn windows(dice: &mut Dice, arch: &impl Arch, actors: usize, plan: &Plan) -> Vec<Vec<Window>> {
    let pages = plan.pages;
    let lengths: Vec<u64> = (0..actors).map(|_| 40 + dice.below(pages - 39)).collect();
    let total: u64 = lengths.iter().sum();
    let border = (1 + dice.below(100)) << dice.one_of(&borders(arch));
    let mut at = border.saturating_sub(dice.below(total)).max(16);
    // Sometimes whole tables, so that a table may hold nothing but huge mappings.
    let grain = match plan.largest {
        0..=HUGE_ORDER if pages >= 512 && dice.percent(25) => 512,
        0..=HUGE_ORDER => 1,
        largest => 1 << (largest - arch.page_order()),
    };
    at = at.next_multiple_of(grain);
    let mut windows = Vec::new();
    for (actor, len) in lengths.into_iter().enumerate() {
        let len = len.next_multiple_of(grain);
        let far = (110 + 4 * actor as u64) << unit(arch);
        let largest = 1 << (plan.largest.max(arch.page_order()) - arch.page_order());
        let mut plot = vec![Window { pages: at..at + len, stacks: actors == 1, grain: largest }];
        if actors > 1 || dice.percent(20) {
            plot.push(Window { pages: far..far + 40 + dice.below(pages / 2), stacks: true, grain: largest });
        }
        windows.push(plot);
        at += len;
    }
    windows
}

fn limits(dice: &mut Dice, alone: bool, pages: u64, plots: &[Vec<Vec<Window>>], shift: u32) -> Limits {
    let mut limits = Limits::default();
    if dice.percent(15) {
        limits.vmas = 6 + dice.below(50) as usize;
    }
    if dice.percent(30) {
        limits.stack = (1 + dice.below(600)) << shift;
    }
    if alone {
        let some = |dice: &mut Dice, percent: u64| {
            if dice.percent(percent) { (dice.below(pages) + 20) << shift } else { u64::MAX }
        };
        limits.address_space = some(dice, 10);
        limits.data = some(dice, 10);
        limits.locked = some(dice, 30);
        if dice.percent(50) {
            // So that what may go anywhere goes into the holes of a window.
            let Range { start, end } = plots[0][0][0].pages.clone();
            limits.mmap_base = (start + dice.below((end - start) * 2)) << shift;
        }
    }
    limits
}

fn knobs(dice: &mut Dice, largest: u8) -> Knobs {
    let (mut knobs, huge) = ([Knob::Never; _], usize::from(HUGE_ORDER));
    if largest > HUGE_ORDER {
        let large = &mut knobs[huge..=usize::from(largest)];
        large.iter_mut().filter(|_| dice.percent(50)).for_each(|knob| *knob = Knob::Always);
        knobs[usize::from(largest)] = dice.one_of(&[Knob::Always, Knob::Madvise]);
        return knobs;
    }
    match dice.below(10) {
        0..=2 => {}
        3 => knobs[1 + dice.below(9) as usize] = Knob::Always,
        4 => knobs[huge] = Knob::Always,
        5..=7 => knobs[1..=huge].iter_mut().filter(|_| dice.percent(40)).for_each(|knob| *knob = Knob::Always),
        8 => (knobs[0], knobs[huge]) = (Knob::Madvise, Knob::Inherit),
        _ => {
            let all = [Knob::Never, Knob::Inherit, Knob::Madvise, Knob::Always];
            knobs[..=huge].fill_with(|| dice.one_of(&all));
        }
    }
    knobs
}
