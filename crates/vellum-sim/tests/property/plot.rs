//! A plot: its model, and an operation on the engine and on the model. The engine must answer what the model expects, and an
//! operation that answers with an error must have left everything as it was.

use std::ops::Range;

use vellum::Machine;
use vellum::frame::policy::Advice;
use vellum::space::Access;
use vellum_sim::Program;

use super::expect::{self, Bounds};
use super::host::Host;
use super::model::{Model, Page, SLOTS};
use super::op::{Op, Span, Spot, Window};
use super::presence::{Presence, Rules};
use super::swap::Glass;
use super::walk::{self, Space};

/// What an actor has of a space.
#[derive(Clone)]
pub struct Plot {
    pub model: Model,
    pub windows: Vec<Window>,
    pub bounds: Bounds,
    /// Areas whose place the engine chose.
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
        self.unreadable && page.is_some_and(|page| matches!(page.presence, Presence::Away | Presence::Unknown))
    }

    /// What a page holds, and whether it is swapped out. None: nobody can tell, because the device fails.
    pub fn words(&self, page: u64) -> Option<([u64; SLOTS.len()], bool)> {
        match walk::find(self.host, self.space, page) {
            walk::Place::Nowhere => Some(([0; SLOTS.len()], false)),
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
            Op::SwapOff => self.swap_off(on),
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
                Spot::Elsewhere(nth, _) => (start + span.pages).min(self.area(nth).map_or(start, |a| a.end)),
            };
            act(self, start..end);
        }
    }

    fn area(&self, nth: u64) -> Option<&Range<u64>> {
        self.elsewhere.get(nth as usize % self.elsewhere.len().max(1))
    }

    /// Which page that is, if there is one.
    pub fn page(&self, spot: Spot) -> Option<u64> {
        match spot {
            Spot::At(page) => Some(page),
            Spot::Elsewhere(nth, inside) => self.area(nth).map(|a| a.start + inside % (a.end - a.start)),
        }
    }

    pub fn bytes(&self, pages: &Range<u64>) -> (u64, u64) {
        let range = self.bounds.range(pages);
        (range.start, range.len())
    }

    /// Whether an operation that would split areas at the ends of these pages may fail for want of something.
    pub fn may_fail<H: Host>(&self, on: &Scene<'_, '_, H>, pages: &Range<u64>) -> bool {
        let (areas, cuts) = if self.few() { expect::cuts(&self.model, pages) } else { (0, 0) };
        on.tight || self.few() && (!self.bounds.alone || areas + cuts >= self.bounds.limits.areas)
    }

    /// Whether the limit on areas is one that may be met.
    pub fn few(&self) -> bool {
        self.bounds.limits.areas < 10_000
    }
}
