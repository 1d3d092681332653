//! A plot: its model, and an operation on the engine and on the model. The engine must answer what the model expects, and an
//! operation that answers with an error must have left everything as it was.

use std::ops::Range;

use vellum::Machine;
use vellum::frame::policy::Advice;
use vellum::memcg::MemcgId;
use vellum::reclaim::{Part, reclaim};
use vellum::space::Access;
use vellum::space::Spaces;
use vellum::vma::VmaFlags;
use vellum_sim::Program;

use super::contents::{NOTHING, Words};
use super::expect::{self, Bounds};
use super::host::Host;
use super::model::{Model, Page};
use super::op::{Op, Span, Spot, Window};
use super::presence::{Presence, Rules};
use super::swap::Glass;
use super::threads::Leaky;
use super::walk::{self, Space};

/// What an actor has of a space.
#[derive(Clone)]
pub struct Plot {
    pub model: Model,
    pub windows: Vec<Window>,
    pub bounds: Bounds,
    /// VMAs whose place the engine chose.
    pub elsewhere: Vec<Range<u64>>,
    /// Whether presence can be foretold.
    pub exact: bool,
}

/// Where an operation takes place.
pub struct Scene<'s, 'm, H: Host> {
    pub host: &'s H,
    pub machine: &'m Machine<'m, H>,
    pub space: &'s Space<'m, H>,
    /// None if the space is not loaded on this CPU.
    pub program: Option<&'s Program<'s, H, Space<'m, H>>>,
    /// Whether memory may run out.
    pub tight: bool,
    /// Whether swap devices may fail to read.
    pub unreadable: bool,
    pub glass: Glass,
    /// Whether anybody reclaims memory.
    pub reclaims: bool,
    /// The spaces that all actors have, and the one that this is a child of.
    pub shared: &'s [Leaky<Space<'m, H>>],
    pub parent: Option<&'s Space<'m, H>>,
}

/// The spaces that reclaim may go through.
struct Shown<'a, 's, 'm, H: Host>(&'a Scene<'s, 'm, H>);

impl<'m, H: Host> Spaces<'m, H, H::Arch> for Shown<'_, '_, 'm, H> {
    fn each(&self, visit: &mut dyn FnMut(&Space<'m, H>)) {
        let on = self.0;
        let mut shown = Vec::new();
        for space in on.shared.iter().map(|space| &**space).chain(on.parent).chain([on.space]) {
            if !shown.contains(&space.id()) {
                shown.push(space.id());
                visit(space);
            }
        }
    }
}

impl<H: Host> Scene<'_, '_, H> {
    /// What decides now which pages a fault brings.
    pub fn rules(&self, exact: bool) -> Rules {
        let pages = |set: u32| set >> vellum::arch::Arch::page_order(self.space.arch());
        let orders = [Advice::None, Advice::Huge, Advice::NoHuge].map(|a| pages(self.machine.policy().orders(a)));
        // A thousandth of memory, from the largest page of any format to a huge page.
        let zeros = (self.machine.frames().total() / 1024).max(1).ilog2().clamp(4, 9);
        let zeros = zeros.saturating_sub(u32::from(vellum::arch::Arch::page_order(self.space.arch())));
        Rules { exact, orders, zeros }
    }
}

impl<H: Host> Scene<'_, '_, H> {
    /// Whether bringing several pages may end anywhere.
    pub fn uncertain(&self) -> bool {
        self.tight || self.unreadable
    }

    /// Whether what is in this page may be out of reach for now.
    pub fn may_be_lost(&self, page: Option<&Page>) -> bool {
        let away = |page: &Page| matches!(page.presence, Presence::Away | Presence::Unknown) || self.may_be_away(page);
        self.unreadable && page.is_some_and(away)
    }

    /// Whether what was in memory when the space last had to do with it may have been reclaimed since.
    pub fn may_be_away(&self, page: &Page) -> bool {
        self.reclaims && !page.kind.flags.contains(VmaFlags::LOCKED)
    }

    /// It was forgotten, or not: find out which, or else take it for either.
    pub fn look_again(&self, at: u64, page: &mut Page) {
        match self.reclaims {
            true => {
                page.contents.or_nothing();
                page.know_nothing_but_guards();
            }
            false => page.look_again(at, walk::find(self.host, self.space, at), |at| walk::words(self.host, at)),
        }
    }

    /// Memory is reclaimed, from a memcg or from all.
    fn reclaim(&self, all: bool, pages: u64) {
        let memcg = if all { MemcgId::ROOT } else { self.space.memcg() };
        // Of some node, or of all.
        let node = Some(pages as usize % (self.machine.frames().nodes() + 1));
        let node = node.filter(|node| *node < self.machine.frames().nodes());
        let freed = reclaim::<H, H::Arch>(self.machine, &Shown(self), Part { memcg, node }, pages);
        assert!(freed.is_ok(), "{freed:?}");
    }

    /// What a page holds, and whether it is swapped out. None: nobody can tell, because the device fails.
    pub fn words(&self, page: u64) -> Option<(Words, bool)> {
        match walk::find(self.host, self.space, page) {
            walk::Place::Nowhere => Some((NOTHING, false)),
            walk::Place::Memory(at) => Some((walk::words(self.host, at), false)),
            walk::Place::Swap(slots) => match self.glass.words(self.host, self.machine, slots) {
                Ok(words) => Some((words, true)),
                Err(_) if self.unreadable => None,
                Err(error) => panic!("page {page:#x}: {error}"),
            },
        }
    }
}

impl Plot {
    /// Do it, and look at what came of it.
    pub fn apply<H: Host>(&mut self, on: &Scene<'_, '_, H>, op: Op) {
        match op {
            Op::Map { place, pages, prot, flags } => self.map(on, place, pages, prot, flags),
            Op::Unmap(span) => self.unmap(on, span),
            Op::Protect(span, prot) => self.on_pages(span, |plot, pages| plot.protect(on, pages, prot)),
            Op::Remap { from, pages, flags, to } => self.remap(on, from, pages, flags, to),
            Op::Advise(span, advise) => self.on_pages(span, |plot, pages| plot.advise(on, pages, advise)),
            Op::Lock(span, late) => self.on_pages(span, |plot, pages| plot.lock(on, pages, late)),
            Op::Unlock(span) => self.on_pages(span, |plot, pages| plot.unlock(on, pages)),
            Op::LockAll(flags) => self.lock_all(on, flags),
            Op::Seal(span) => self.on_pages(span, |plot, pages| plot.seal(on, pages)),
            Op::Pin(spot, slot, value) => self.pin(on, spot, slot, value),
            Op::Load(spot, slot) => self.program(on, spot, slot, Access::Read, 0),
            Op::Store(spot, slot, value) => self.program(on, spot, slot, Access::Write, value),
            Op::Execute(spot) => self.program(on, spot, 0, Access::Exec, 0),
            Op::Touch(span, write) => self.on_pages(span, |plot, pages| plot.touch(on, pages, write)),
            Op::Fault(spot, access) => self.fault(on, spot, access),
            Op::Resident(span) => self.on_pages(span, |plot, pages| plot.check(on, &pages)),
            Op::Recorded(span, what) => self.on_pages(span, |plot, pages| plot.recorded(on, pages, what)),
            Op::Watch(span, watched) => self.on_pages(span, |plot, pages| plot.watch(on, pages, watched)),
            Op::Written(span) => self.on_pages(span, |plot, pages| plot.written(on, pages)),
            Op::SwapOff => self.swap_off(on),
            Op::Reclaim { all, pages } => on.reclaim(all, pages),
            Op::Query => self.query(on),
            Op::Policy(0, knob) => on.machine.policy().set_global(knob),
            Op::Policy(order, knob) => on.machine.policy().set(order, knob),
            // Whoever owns the space does that.
            Op::Exec | Op::Fork(..) => {}
        }
    }

    fn on_pages(&mut self, span: Span, act: impl FnOnce(&mut Self, Range<u64>)) {
        if let Some(start) = self.page(span.at) {
            let end = match span.at {
                Spot::At(_) => start + span.pages,
                Spot::Elsewhere(nth, _) => (start + span.pages).min(self.vma(nth).map_or(start, |a| a.end)),
            };
            act(self, start..end);
        }
    }

    fn vma(&self, nth: u64) -> Option<&Range<u64>> {
        self.elsewhere.get(nth as usize % self.elsewhere.len().max(1))
    }

    /// Which page that is, if there is one.
    pub fn page(&self, spot: Spot) -> Option<u64> {
        match spot {
            Spot::At(page) => Some(page),
            Spot::Elsewhere(nth, inside) => self.vma(nth).map(|a| a.start + inside % (a.end - a.start)),
        }
    }

    pub fn bytes(&self, pages: &Range<u64>) -> (u64, u64) {
        let range = self.bounds.range(pages);
        (range.start, range.len())
    }

    /// Whether an operation that would split VMAs at the ends of these pages may fail for want of something.
    pub fn may_fail<H: Host>(&self, on: &Scene<'_, '_, H>, pages: &Range<u64>) -> bool {
        let (vmas, cuts) = if self.few() { expect::cuts(&self.model, pages) } else { (0, 0) };
        on.tight || self.few() && (!self.bounds.alone || vmas + cuts >= self.bounds.limits.vmas)
    }

    /// Whether the limit on VMAs is one that may be met.
    pub fn few(&self) -> bool {
        self.bounds.limits.vmas < 10_000
    }
}
