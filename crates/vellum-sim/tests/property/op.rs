//! Operations, and how they are chosen. An operation holds all that chance decided about it and nothing that depends on
//! what came before, so that a failing series can be shortened by leaving some out.

use std::ops::Range;

use vellum::arch::Attrs;
use vellum::frame::policy::{Advice, Knob};
use vellum::space::{Access, Advise, LockAll, MapFlags, RemapFlags};
use vellum::vma::{Prot, VmaFlags};

use super::dice::Dice;
use super::model::{Kind, SLOTS};

/// Where to map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Anywhere,
    Hint(u64),
    Fixed(u64),
    NoReplace(u64),
}

/// Where an operation goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// This page.
    At(u64),
    /// A page of one of the VMAs whose place the engine chose: the how-manieth, and how far inside. (Modulo what there is.)
    Elsewhere(u64, u64),
}

/// Pages in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub at: Spot,
    pub pages: u64,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    Map {
        place: Place,
        pages: u64,
        prot: Prot,
        flags: MapFlags,
    },
    Unmap(Span),
    Protect(Span, Prot),
    /// To so many pages; and to this page, if that is asked for.
    Remap {
        from: Span,
        pages: u64,
        flags: RemapFlags,
        to: u64,
    },
    Advise(Span, Advise),
    /// Locked, so that nothing comes before it is touched or all of it at once.
    Lock(Span, bool),
    Unlock(Span),
    /// With no flags, unlocked.
    LockAll(LockAll),
    Seal(Span),
    /// The host's use of the word at one of [`SLOTS`]: what it writes, or nothing.
    Pin(Spot, usize, Option<u64>),
    /// A program's load of the word at one of [`SLOTS`].
    Load(Spot, usize),
    Store(Spot, usize, u64),
    /// Every page of a span is stored to, or loaded.
    Touch(Span, bool),
    Execute(Spot),
    /// A fault that no program had: as spurious as faults can be.
    Fault(Spot, Access),
    Resident(Span),
    /// What hardware has recorded is asked for and forgotten: this of it.
    Recorded(Span, Attrs),
    /// From now on somebody asks for writes there, or nobody.
    Watch(Span, bool),
    /// He asks.
    Written(Span),
    /// So many pages (of 4 KiB) are reclaimed, from all memcgs or the space's.
    Reclaim {
        all: bool,
        pages: u64,
    },
    /// Swap devices are emptied of the space, one after the other.
    SwapOff,
    /// All questions about the whole space.
    Query,
    /// The space ends, and a new one takes its place.
    Exec,
    /// The space has a child, in which something happens that this number decides; then the child ends, or (if the space is the
    /// actor's own, and the answer is yes) takes its place.
    Fork(u64, bool),
    /// Another folio size is allowed, or not.
    Policy(u8, Knob),
}

/// An operation, and in which of an actor's plots.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub plot: usize,
    pub op: Op,
}

/// Addresses of a plot, in pages.
#[derive(Clone, Debug)]
pub struct Window {
    pub pages: Range<u64>,
    /// Whether stacks may be mapped here.
    pub stacks: bool,
    /// Pages of the largest folios.
    pub grain: u64,
}

/// What kinds of operations are chosen from.
#[derive(Clone, Debug)]
pub struct Choice {
    /// For each plot its windows.
    pub plots: Vec<Vec<Window>>,
    /// Whether the plot's space is the actor's own to end.
    pub own: Vec<bool>,
    /// Whether nobody else has a plot in the plot's space.
    pub whole: Vec<bool>,
    /// Whether the sizes of folios change meanwhile.
    pub policy: bool,
    /// Whether memory is freed lazily.
    pub frees: bool,
    /// Whether it is reclaimed.
    pub reclaims: bool,
    /// Pages of 4 KiB in a page of these tables, as an order.
    pub page_order: u8,
}

#[derive(Clone, Copy)]
enum Form {
    Map,
    Anywhere,
    Unmap,
    Protect,
    Remap,
    Lock,
    Unlock,
    LockAll,
    Seal,
    Pin,
    Forget,
    Advice,
    PageOut,
    Free,
    Reclaim,
    Collapse,
    SwapOff,
    Load,
    Store,
    Touch,
    Execute,
    Fault,
    Resident,
    Recorded,
    Watch,
    Written,
    Query,
    Exec,
    Fork,
    Policy,
}

const FORMS: [(u64, Form); 30] = [
    (120, Form::Map),
    (20, Form::Anywhere),
    (70, Form::Unmap),
    (80, Form::Protect),
    (60, Form::Remap),
    (20, Form::Lock),
    (20, Form::Unlock),
    (3, Form::LockAll),
    (1, Form::Seal),
    (20, Form::Pin),
    (60, Form::Forget),
    (30, Form::Advice),
    (40, Form::PageOut),
    (40, Form::Free),
    (12, Form::Reclaim),
    (15, Form::Collapse),
    (2, Form::SwapOff),
    (230, Form::Load),
    (260, Form::Store),
    (40, Form::Touch),
    (20, Form::Execute),
    (20, Form::Fault),
    (30, Form::Resident),
    (30, Form::Recorded),
    (15, Form::Watch),
    (30, Form::Written),
    (15, Form::Query),
    (2, Form::Exec),
    (8, Form::Fork),
    (5, Form::Policy),
];

const RW: Prot = Prot::READ.union(Prot::WRITE);
const PROTS: [(u64, Prot); 7] = [
    (55, RW),
    (15, Prot::READ),
    (10, Prot::empty()),
    (5, Prot::READ.union(Prot::EXEC)),
    (5, Prot::all()),
    (5, Prot::WRITE),
    (5, Prot::EXEC),
];

const ADVICE: [(u64, Advise); 12] = [
    (25, Advise::Huge),
    (25, Advise::NoHuge),
    (8, Advise::DontFork),
    (17, Advise::DoFork),
    (8, Advise::WipeOnFork),
    (17, Advise::KeepOnFork),
    (15, Advise::PopulateRead),
    (15, Advise::PopulateWrite),
    (15, Advise::GuardInstall),
    (15, Advise::GuardRemove),
    (10, Advise::Cold),
    (15, Advise::WillNeed),
];

impl Choice {
    /// The next operation.
    pub fn step(&self, dice: &mut Dice) -> Step {
        let plot = dice.below(self.plots.len() as u64) as usize;
        Step { plot, op: self.op(dice, plot) }
    }

    /// All of each plot's first window is mapped, and large folios are asked for.
    pub fn use_all(&self) -> Vec<Step> {
        let ops = |(plot, windows): (usize, &Vec<Window>)| {
            let Range { start, end } = windows[0].pages;
            let all = Span { at: Spot::At(start), pages: end - start };
            let map = Op::Map { place: Place::Fixed(start), pages: all.pages, prot: RW, flags: MapFlags::NORESERVE };
            [map, Op::Advise(all, Advise::Huge)].map(|op| Step { plot, op })
        };
        self.plots.iter().enumerate().flat_map(ops).collect()
    }

    /// The next operation on this plot.
    pub fn op(&self, dice: &mut Dice, plot: usize) -> Op {
        let windows = &self.plots[plot];
        let window = &windows[dice.below(windows.len() as u64) as usize];
        let span = |dice: &mut Dice| span(dice, window);
        let spot = |dice: &mut Dice| spot(dice, window);
        match dice.weighted(&FORMS) {
            Form::Map => map(dice, window, self.page_order),
            Form::Anywhere => anywhere(dice, window, self.page_order),
            Form::Unmap => Op::Unmap(span(dice)),
            Form::Protect => Op::Protect(span(dice), dice.weighted(&PROTS)),
            Form::Remap => remap(dice, window),
            Form::Lock => Op::Lock(span(dice), dice.percent(30)),
            Form::Unlock => Op::Unlock(span(dice)),
            Form::LockAll if self.whole[plot] => {
                let some = [LockAll::CURRENT, LockAll::FUTURE, LockAll::FUTURE | LockAll::ONFAULT, LockAll::all()];
                Op::LockAll(if dice.percent(60) { LockAll::empty() } else { dice.one_of(&some) })
            }
            Form::Seal => Op::Seal(span(dice)),
            Form::Pin => Op::Pin(spot(dice), slot(dice), if dice.percent(50) { Some(dice.any() | 1) } else { None }),
            Form::Forget if dice.percent(10) => Op::Advise(span(dice), Advise::DontNeedLocked),
            Form::Forget => Op::Advise(span(dice), Advise::DontNeed),
            Form::Advice => Op::Advise(span(dice), dice.weighted(&ADVICE)),
            Form::Free if self.frees => Op::Advise(span(dice), Advise::Free),
            Form::Reclaim if self.reclaims => {
                let most = dice.weighted(&[(40, 16), (30, 300), (30, 5000)]);
                Op::Reclaim { all: dice.percent(50), pages: 1 + dice.below(most) }
            }
            Form::PageOut | Form::Free | Form::Reclaim => Op::Advise(span(dice), Advise::PageOut),
            Form::Collapse => Op::Advise(span(dice), Advise::Collapse),
            Form::SwapOff => Op::SwapOff,
            Form::Load => Op::Load(spot(dice), slot(dice)),
            // Never 0: that would look like a page that nobody wrote to.
            Form::Store => Op::Store(spot(dice), slot(dice), dice.any() | 1),
            Form::Touch => Op::Touch(span(dice), dice.percent(60)),
            Form::Execute => Op::Execute(spot(dice)),
            Form::Fault => Op::Fault(spot(dice), dice.one_of(&[Access::Read, Access::Write, Access::Exec])),
            Form::Resident => Op::Resident(span(dice)),
            Form::Recorded => {
                let what = dice.weighted(&[(50, Attrs::HARDWARE), (25, Attrs::ACCESSED), (25, Attrs::DIRTY)]);
                Op::Recorded(span(dice), what)
            }
            Form::Watch => Op::Watch(span(dice), dice.percent(75)),
            Form::Written => Op::Written(span(dice)),
            Form::Fork => Op::Fork(dice.any(), dice.percent(50)),
            Form::Exec if self.own[plot] => Op::Exec,
            Form::Policy if self.policy => {
                let knobs = [Knob::Never, Knob::Inherit, Knob::Madvise, Knob::Always];
                // 0 is the knob for all of them.
                Op::Policy(dice.below(10) as u8, dice.one_of(&knobs))
            }
            Form::Query | Form::LockAll | Form::Exec | Form::Policy => Op::Query,
        }
    }
}

fn slot(dice: &mut Dice) -> usize {
    dice.below(SLOTS.len() as u64) as usize
}

fn map(dice: &mut Dice, window: &Window, page_order: u8) -> Op {
    let Span { at, pages } = span(dice, window);
    let Spot::At(page) = at else {
        return anywhere(dice, window, page_order);
    };
    let place = dice.weighted(&[(60, Place::Fixed(page)), (20, Place::NoReplace(page)), (20, Place::Hint(page))]);
    Op::Map { place, pages, prot: dice.weighted(&PROTS), flags: flags(dice, window.stacks) }
}

/// Returns an operation that maps a VMA of at most 1,100 frames, or 40 pages if those are more: the
/// space may lock all of its VMAs in memory.
fn anywhere(dice: &mut Dice, window: &Window, page_order: u8) -> Op {
    let most: u64 = dice.weighted(&[(70, 40), (20, 300), (10, 1100)]);
    let pages = 1 + dice.below((most >> page_order).max(40));
    Op::Map { place: Place::Anywhere, pages, prot: dice.weighted(&PROTS), flags: flags(dice, window.stacks) }
}

/// Within the window, or to wherever the engine likes.
fn remap(dice: &mut Dice, window: &Window) -> Op {
    let from = span(dice, window);
    let room = |page: u64| window.pages.end - page;
    let flags = dice.weighted(&[
        (15, RemapFlags::empty()),
        (25, RemapFlags::MAYMOVE),
        (40, RemapFlags::MAYMOVE | RemapFlags::FIXED),
        (10, RemapFlags::MAYMOVE | RemapFlags::DONTUNMAP),
        (10, RemapFlags::all()),
    ]);
    // A neighbour's plot may begin where the window ends, so nothing may grow across that, in place or elsewhere.
    let most = if let Spot::At(page) = from.at { room(page) } else { from.pages + 50 };
    let other = dice.weighted(&[(50, from.pages + 4), (30, from.pages + 64), (20, most)]);
    let mut pages = if dice.percent(50) { from.pages } else { 1 + dice.below(other.min(most)) };
    if flags.contains(RemapFlags::DONTUNMAP) {
        pages = from.pages;
    }
    let mut to = 0;
    if flags.contains(RemapFlags::FIXED) {
        pages = pages.min(window.pages.end - window.pages.start);
        let places = window.pages.start..window.pages.end - pages + 1;
        to = dice.within(places.clone());
        // Often as far into a table as it was.
        if let Spot::At(page) = from.at
            && places.contains(&(to & !511 | page & 511))
            && dice.percent(60)
        {
            to = to & !511 | page & 511;
        }
    }
    Op::Remap { from, pages, flags, to }
}

fn flags(dice: &mut Dice, stacks: bool) -> MapFlags {
    let mut flags = MapFlags::empty();
    flags.set(MapFlags::POPULATE, dice.percent(15));
    flags.set(MapFlags::NORESERVE, dice.percent(15));
    flags.set(MapFlags::LOCKED, dice.percent(6));
    flags.set(MapFlags::GROWSDOWN, stacks && dice.percent(10));
    flags
}

/// A page, often one of few, so that pages are come back to.
fn spot(dice: &mut Dice, window: &Window) -> Spot {
    let pages = &window.pages;
    let len = pages.end - pages.start;
    match dice.below(20) {
        0 => Spot::Elsewhere(dice.below(8), dice.below(512)),
        1..=6 => Spot::At(pages.start + dice.below(len.min(24)) * (len / len.min(24))),
        7..=9 => Spot::At(dice.one_of(&[pages.start, pages.end - 1])),
        _ => Spot::At(dice.within(pages.clone())),
    }
}

/// Mostly a few pages, sometimes all; ends that fit tables and large folios more often than chance would have it.
fn span(dice: &mut Dice, window: &Window) -> Span {
    let all = &window.pages;
    let len = all.end - all.start;
    let some = window.grain + 8;
    let most = dice.weighted(&[(30, 1), (35, 16), (17, 128), (8, some), (6, 2 * some), (4, u64::MAX)]).min(len);
    let pages = if most == len && dice.percent(50) { len } else { 1 + dice.below(most) };
    if dice.percent(4) {
        return Span { at: Spot::Elsewhere(dice.below(8), dice.below(512)), pages: pages.min(300) };
    }
    let start = dice.within(all.start..all.end - pages + 1);
    let grain = dice.weighted(&[(55, 1), (15, 4), (15, 16), (15, window.grain)]);
    let start = (start / grain * grain).max(all.start);
    let pages = if dice.percent(50) { pages } else { pages.next_multiple_of(grain) };
    Span { at: Spot::At(start), pages: pages.min(all.end - start) }
}

/// What a VMA says after an advice, if it is one about VMAs.
pub fn advised(kind: &Kind, advise: Advise) -> Option<Kind> {
    let flags = |flag: VmaFlags, on: bool| {
        let mut flags = kind.flags;
        flags.set(flag, on);
        Kind { flags, ..*kind }
    };
    Some(match advise {
        Advise::Huge => Kind { advice: Advice::Huge, ..*kind },
        Advise::NoHuge => Kind { advice: Advice::NoHuge, ..*kind },
        Advise::DontFork => flags(VmaFlags::DONTFORK, true),
        Advise::DoFork => flags(VmaFlags::DONTFORK, false),
        Advise::WipeOnFork => flags(VmaFlags::WIPEONFORK, true),
        Advise::KeepOnFork => flags(VmaFlags::WIPEONFORK, false),
        _ => return None,
    })
}
