//! An operation, on the engine and on the model. The engine must answer what the model expects, and an operation that
//! answers with an error must have left everything as it was.

use std::ops::Range;

use vellum::Machine;
use vellum::frame::policy::Advice;
use vellum::space::{
    Access, Advise, AdviseError, FaultError, MapError, MapFlags, MapRequest, ProtectError, UnmapError,
};
use vellum::vma::{AreaFlags, Prot};
use vellum_sim::{Fault, Program};

use super::expect::{self, Bounds, Where};
use super::host::Host;
use super::model::{Kind, Model, SLOTS};
use super::op::{Op, Place, Span, Spot, Window, advice_of};
use super::presence::{Presence, Rules};
use super::walk::{self, Space};

/// So many areas of the engine's own choosing are kept.
const ELSEWHERE: usize = 6;

/// What an actor has of a space.
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
}

impl<H: Host> Scene<'_, '_, H> {
    fn rules(&self, exact: bool) -> Rules {
        let pages = |set: u32| set >> vellum::arch::Arch::page_order(self.space.arch());
        let orders =
            [Advice::None, Advice::Huge, Advice::NoHuge].map(|a| pages(self.machine.policy().orders(a)));
        // A thousandth of memory, and a huge page at most.
        let zeros = (self.machine.frames().total() / 1024).max(1).ilog2().min(9);
        let zeros = zeros.saturating_sub(u32::from(vellum::arch::Arch::page_order(self.space.arch())));
        Rules { exact, orders, zeros }
    }
}

impl Plot {
    /// Do it, and look at what came of it.
    pub fn apply<H: Host>(&mut self, on: &Scene<'_, '_, H>, op: Op) {
        match op {
            Op::Map {
                place,
                pages,
                prot,
                flags,
            } => self.map(on, place, pages, prot, flags),
            Op::Unmap(span) => self.unmap(on, span),
            Op::Protect(span, prot) => self.on_pages(span, |plot, pages| plot.protect(on, pages, prot)),
            Op::Advise(span, advise) => self.on_pages(span, |plot, pages| plot.advise(on, pages, advise)),
            Op::Load(spot, slot) => self.program(on, spot, slot, Access::Read, 0),
            Op::Store(spot, slot, value) => self.program(on, spot, slot, Access::Write, value),
            Op::Execute(spot) => self.program(on, spot, 0, Access::Exec, 0),
            Op::Touch(span, write) => self.on_pages(span, |plot, pages| plot.touch(on, pages, write)),
            Op::Fault(spot, access) => self.fault(on, spot, access),
            Op::Resident(span) => self.on_pages(span, |plot, pages| plot.check(on, &pages)),
            Op::Query => self.query(on),
            Op::Policy(0, knob) => on.machine.policy().set_global(knob),
            Op::Policy(order, knob) => on.machine.policy().set(order, knob),
            // Whoever owns the space does that.
            Op::Exec => {}
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

    fn page(&self, spot: Spot) -> Option<u64> {
        match spot {
            Spot::At(page) => Some(page),
            Spot::Elsewhere(nth, inside) => self.area(nth).map(|a| a.start + inside % (a.end - a.start)),
        }
    }

    pub fn bytes(&self, pages: &Range<u64>) -> (u64, u64) {
        let range = self.bounds.range(pages);
        (range.start, range.len())
    }

    fn map<H: Host>(&mut self, on: &Scene<'_, '_, H>, place: Place, pages: u64, prot: Prot, flags: MapFlags) {
        if matches!(place, Place::Anywhere | Place::Hint(_)) && self.elsewhere.len() >= ELSEWHERE {
            self.unmap_whole(on, 0);
        }
        let expected = expect::map(&self.model, &self.bounds, place, pages, prot, flags);
        let (page, how) = match place {
            Place::Anywhere => (0, MapFlags::empty()),
            Place::Hint(page) => (page, MapFlags::empty()),
            Place::Fixed(page) => (page, MapFlags::FIXED),
            Place::NoReplace(page) => (page, MapFlags::FIXED_NOREPLACE),
        };
        let (addr, len) = self.bytes(&(page..page + pages));
        let got = on.space.map(MapRequest {
            addr,
            len,
            prot,
            flags: flags | how,
        });
        let page = page..page + pages;
        match (got, expected) {
            (Ok(addr), Ok(to)) => {
                let start = addr >> self.bounds.page_shift;
                if let Where::Page(wanted) = to {
                    assert_eq!(start, wanted, "mapped at page {start:#x} and not at {wanted:#x}");
                }
                self.mapped(on, start..start + pages, prot, flags);
            }
            (Err(error), Err(wanted)) if error == wanted => self.check(on, &page),
            (Err(MapError::OutOfMemory), Ok(_)) if self.may_fail(on, &page) => self.check(on, &page),
            // How many areas the others have is not known here.
            (Err(MapError::TooManyAreas), Ok(_)) if !self.bounds.alone && self.few() => self.check(on, &page),
            (got, expected) => panic!("map answers {got:x?}, not {expected:x?}"),
        }
    }

    fn mapped<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>, prot: Prot, flags: MapFlags) {
        let range = self.bounds.range(&pages);
        assert!(
            range.start >= self.bounds.limits.lowest && range.end <= self.bounds.user_end,
            "mapped at {range:?}"
        );
        if !self.is_mine(&pages) {
            assert!(
                self.model.areas(pages.clone()).is_empty(),
                "the engine chose {range:?}, where something is"
            );
            self.elsewhere.push(pages.clone());
        }
        let rules = on.rules(self.exact);
        let mut kind = Kind {
            prot,
            flags: AreaFlags::empty(),
            advice: Advice::None,
        };
        kind.flags
            .set(AreaFlags::GROWSDOWN, flags.contains(MapFlags::GROWSDOWN));
        kind.flags
            .set(AreaFlags::LOCKED, flags.contains(MapFlags::LOCKED));
        kind.flags
            .set(AreaFlags::NORESERVE, flags.contains(MapFlags::NORESERVE));
        self.model.map(pages.clone(), kind, rules.fresh());
        let write = prot.contains(Prot::WRITE);
        if flags.intersects(MapFlags::POPULATE | MapFlags::LOCKED) && !prot.is_empty() {
            if on.tight {
                // It ends silently where memory does. Neighbours of the area's ends may have come with it.
                self.model.blur(pages.start.saturating_sub(512)..pages.end + 512);
            } else {
                pages
                    .clone()
                    .for_each(|page| self.model.touch(page, write, &rules));
            }
        }
        self.check(on, &pages);
    }

    fn unmap<H: Host>(&mut self, on: &Scene<'_, '_, H>, span: Span) {
        match span.at {
            // In part it could be taken by another actor, and then this one would not know what belongs to whom.
            Spot::Elsewhere(nth, _) if !self.elsewhere.is_empty() => {
                self.unmap_whole(on, nth as usize % self.elsewhere.len());
            }
            Spot::Elsewhere(..) => {}
            Spot::At(start) => drop(self.unmap_pages(on, start..start + span.pages)),
        }
    }

    fn unmap_whole<H: Host>(&mut self, on: &Scene<'_, '_, H>, nth: usize) {
        if self.unmap_pages(on, self.elsewhere[nth].clone()) {
            self.elsewhere.swap_remove(nth);
        }
    }

    fn unmap_pages<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>) -> bool {
        let (addr, len) = self.bytes(&pages);
        let got = on.space.unmap(addr, len);
        match got {
            Ok(()) => self.model.unmap(pages.clone()),
            Err(UnmapError::TooManyAreas | UnmapError::OutOfMemory) if self.may_fail(on, &pages) => {}
            Err(_) => panic!("unmap answers {got:x?}"),
        }
        // Addresses outside of the windows are anybody's as soon as they are free.
        if got.is_err() || self.bounds.alone || self.is_mine(&pages) {
            self.check(on, &pages);
        }
        got.is_ok()
    }

    /// Whether these pages lie in one of the plot's windows.
    fn is_mine(&self, pages: &Range<u64>) -> bool {
        self.windows
            .iter()
            .any(|w| w.pages.start <= pages.start && pages.end <= w.pages.end)
    }

    fn protect<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>, prot: Prot) {
        let (addr, len) = self.bytes(&pages);
        match (
            on.space.protect(addr, len, prot),
            self.model.covers(pages.clone()),
        ) {
            (Ok(()), true) => self
                .model
                .iter_mut(pages.clone())
                .for_each(|(_, page)| page.kind.prot = prot),
            (Err(ProtectError::NotMapped), false) => {}
            (Err(ProtectError::TooManyAreas | ProtectError::OutOfMemory), true)
                if self.may_fail(on, &pages) => {}
            (got, all) => panic!("protect answers {got:x?}; is all of it mapped: {all}"),
        }
        self.check(on, &pages);
    }

    fn advise<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>, advise: Advise) {
        let (addr, len) = self.bytes(&pages);
        let got = on.space.advise(addr, len, advise);
        let Some(advice) = advice_of(advise) else {
            return self.forgotten(on, pages, got);
        };
        match (got, self.model.covers(pages.clone())) {
            (Ok(()), true) => self
                .model
                .iter_mut(pages.clone())
                .for_each(|(_, page)| page.kind.advice = advice),
            (Err(AdviseError::NotMapped), false) => {}
            (Err(AdviseError::TooManyAreas | AdviseError::OutOfMemory), true)
                if self.may_fail(on, &pages) => {}
            (got, all) => panic!("advise answers {got:x?}; is all of it mapped: {all}"),
        }
        self.check(on, &pages);
    }

    fn forgotten<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>, got: Result<(), AdviseError>) {
        let (expected, emptied) = expect::dont_need(&self.model, &self.bounds, &pages);
        let same = match (got, expected) {
            // Another actor's pages may be part of the same area.
            (Err(AdviseError::Locked(_)), Err(AdviseError::Locked(_))) if !self.bounds.alone => true,
            _ => got == expected,
        };
        if same {
            let fresh = on.rules(self.exact).fresh();
            self.model.forget(emptied, fresh);
        } else if got == Err(AdviseError::OutOfMemory) && on.tight {
            if !self.bounds.alone {
                // Another actor's fault may have put a huge mapping across an end again, in the middle of it all.
                self.look_again(on, pages.clone());
            }
        } else {
            panic!("advise answers {got:x?}, not {expected:x?}");
        }
        self.check(on, &pages);
    }

    /// Each page holds either what it held or nothing: find out which.
    fn look_again<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>) {
        for (at, page) in self.model.iter_mut(pages) {
            let found = walk::find(on.host, on.space, at)
                .map(|pa| walk::words(on.host, pa))
                .unwrap_or_default();
            assert!(
                found == page.words || found == [0; SLOTS.len()],
                "page {at:#x} holds {found:x?}"
            );
            (page.words, page.presence) = (found, Presence::Unknown);
        }
    }

    /// Whether an operation that would split areas at the ends of these pages may fail for want of something.
    fn may_fail<H: Host>(&self, on: &Scene<'_, '_, H>, pages: &Range<u64>) -> bool {
        let (areas, cuts) = if self.few() {
            expect::cuts(&self.model, pages)
        } else {
            (0, 0)
        };
        on.tight || self.few() && (!self.bounds.alone || areas + cuts >= self.bounds.limits.areas)
    }

    /// Whether the limit on areas is one that may be met.
    fn few(&self) -> bool {
        self.bounds.limits.areas < 10_000
    }

    /// What an access to this page should answer. If a stack grows for it, it has grown.
    fn foresee(&mut self, on: &Scene<'_, '_, impl Host>, va: u64, access: Access) -> Result<(), FaultError> {
        let page = va >> self.bounds.page_shift;
        if self.model.get(page).is_none() {
            let (new, kind) =
                expect::growth(&self.model, &self.bounds, page).ok_or(FaultError::Unmapped(va))?;
            self.model.map(new, kind, on.rules(self.exact).fresh());
        }
        let kind = self.model.get(page).map(|page| page.kind);
        if kind.is_some_and(|k| expect::allowed(k.prot, access)) {
            Ok(())
        } else {
            Err(FaultError::Denied(va))
        }
    }

    /// Compare an access with what was foreseen; whether it took place.
    fn judge<H: Host>(
        &mut self,
        on: &Scene<'_, '_, H>,
        page: u64,
        access: Access,
        expected: Result<(), FaultError>,
        got: Result<(), FaultError>,
    ) -> bool {
        match (got, expected) {
            (Ok(()), Ok(())) => self
                .model
                .touch(page, access == Access::Write, &on.rules(self.exact)),
            (Err(got), Err(expected)) if got == expected => {}
            // Zeros that were to make place for memory that there was none of are gone.
            (Err(FaultError::OutOfMemory | FaultError::OverLimit(_)), Ok(())) if on.tight => {
                self.model.blur(page..page + 1);
            }
            _ => panic!("{access:?} of page {page:#x} answers {got:x?}, not {expected:x?}"),
        }
        got.is_ok()
    }

    fn program<H: Host>(
        &mut self,
        on: &Scene<'_, '_, H>,
        spot: Spot,
        slot: usize,
        access: Access,
        value: u64,
    ) {
        let (Some(page), Some(program)) = (self.page(spot), on.program) else {
            return;
        };
        let va = (page << self.bounds.page_shift) + 8 * SLOTS[slot];
        let expected = self.foresee(on, va, access);
        let got = match access {
            Access::Read => program.load_u64(va),
            Access::Write => program.store_u64(va, value).map(|()| value),
            Access::Exec => program.execute(va).map(u64::from),
        };
        let held = self.model.get(page).map(|p| p.words[slot]);
        let took_place = self.judge(on, page, access, expected, got.map(|_| ()).map_err(|f| cause(f)));
        if !took_place {
            return self.check(on, &(page..page + 1));
        }
        match (access, self.model.get_mut(page)) {
            (Access::Write, Some(page)) => page.words[slot] = value,
            (Access::Read, _) => assert_eq!(got.ok(), held, "page {page:#x}, word {}", SLOTS[slot]),
            _ => assert_eq!(got.ok(), held.map(|word| word & 0xff), "page {page:#x}, executed"),
        }
        let near = if self.bounds.alone {
            page.saturating_sub(4)..page + 12
        } else {
            page..page + 1
        };
        self.check(on, &near);
    }

    fn touch<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>, write: bool) {
        let Some(program) = on.program else { return };
        let access = if write { Access::Write } else { Access::Read };
        if on.tight {
            // Where memory ends has to be known.
            for page in pages {
                let value = 0x0101 * page | 1;
                self.program(on, Spot::At(page), 0, access, value);
            }
            return;
        }
        let range = self.bounds.range(&pages);
        let hardware = if write {
            vellum_sim::Access::Write
        } else {
            vellum_sim::Access::Read
        };
        let got = program.touch(range, 1 << self.bounds.page_shift, hardware);
        let rules = on.rules(self.exact);
        let mut expected = Ok(());
        for page in pages.clone() {
            expected = self.foresee(on, page << self.bounds.page_shift, access);
            if expected.is_err() {
                break;
            }
            self.model.touch(page, write, &rules);
            if let (true, Some(page)) = (write, self.model.get_mut(page)) {
                page.words[0] = page.words[0] & !0xff | 1;
            }
        }
        assert_eq!(
            got.map(|_| ()).map_err(|f| cause(f)),
            expected,
            "a touch of {range:?}, write: {write}"
        );
        self.check(on, &pages);
    }

    fn fault<H: Host>(&mut self, on: &Scene<'_, '_, H>, spot: Spot, access: Access) {
        let Some(page) = self.page(spot) else { return };
        let va = (page << self.bounds.page_shift) + 123;
        let expected = self.foresee(on, va, access);
        self.judge(on, page, access, expected, on.space.fault(va, access));
        self.check(on, &(page..page + 1));
    }
}

fn cause(fault: Fault<FaultError>) -> FaultError {
    match fault {
        Fault::Handler(error) => error,
        other => panic!("{other:x?}"),
    }
}
