//! Programs use memory, and faults happen.

use std::ops::Range;

use vellum::space::{Access, FaultError};
use vellum_sim::Fault;

use super::expect;
use super::host::Host;
use super::model::SLOTS;
use super::op::Spot;
use super::plot::{Plot, Scene};
use super::presence::Presence;

impl Plot {
    /// What an access to this page should answer. If a stack grows for it, it has grown.
    pub fn foresee(&mut self, on: &Scene<'_, '_, impl Host>, va: u64, access: Access) -> Result<(), FaultError> {
        let page = va >> self.bounds.page_shift;
        if self.model.get(page).is_none() {
            let (new, kind) = expect::growth(&self.model, &self.bounds, page).ok_or(FaultError::Unmapped(va))?;
            self.model.map(new, kind, on.rules(self.exact).fresh());
        }
        let page = self.model.get(page);
        if page.is_some_and(|p| expect::allowed(p.kind.prot, access) && p.presence != Presence::Guard) {
            Ok(())
        } else {
            Err(FaultError::Denied(va))
        }
    }

    /// Compare an access with what was foreseen; whether it took place.
    pub fn judge<H: Host>(
        &mut self,
        on: &Scene<'_, '_, H>,
        page: u64,
        access: Access,
        expected: Result<(), FaultError>,
        got: Result<(), FaultError>,
    ) -> bool {
        match (got, expected) {
            (Ok(()), Ok(())) => self.model.touch(page, access == Access::Write, &on.rules(self.exact)),
            (Err(got), Err(expected)) if got == expected => {}
            (Err(FaultError::Poisoned(at)), Ok(())) if on.may_be_lost(self.model.get(page)) => {
                assert_eq!(at >> self.bounds.page_shift, page, "another page is lost");
            }
            // Zeros that were to make place for memory that there was none of are gone.
            (Err(FaultError::NoMemory(_)), Ok(())) if on.tight => {
                self.model.blur(page..page + 1);
            }
            _ => panic!("{access:?} of page {page:#x} answers {got:x?}, not {expected:x?}"),
        }
        got.is_ok()
    }

    /// A program loads, stores or executes one of the words.
    pub fn program<H: Host>(&mut self, on: &Scene<'_, '_, H>, spot: Spot, slot: usize, access: Access, value: u64) {
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
        let took_place = self.judge(on, page, access, expected, got.map(|_| ()).map_err(cause));
        if !took_place {
            return self.check(on, &(page..page + 1));
        }
        self.record(on, page..page + 1, access == Access::Write);
        if let Ok(got) = got
            && let Some((could, held)) = self.model.change(page, |held| match access {
                Access::Write => {
                    held.contents.change(|words| words[slot] = value);
                    true
                }
                Access::Read => held.contents.see(|words| words[slot] == got),
                Access::Exec => held.contents.see(|words| words[slot] & 0xff == got),
            })
        {
            assert!(could, "page {page:#x}, word {}, {access:?}: {got:#x}, not {held:x?}", SLOTS[slot]);
        }
        let near = if self.bounds.alone { page.saturating_sub(4)..page + 12 } else { page..page + 1 };
        self.check(on, &near);
    }

    /// What programs did is known to hardware, as long as nobody else asks it to forget that.
    fn record<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>, write: bool) {
        if write {
            self.model.each(pages.clone(), |page| page.untold = true);
        }
        if !on.reclaims {
            self.model.record(pages, write);
        }
    }

    /// A program touches each page.
    pub fn touch<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>, write: bool) {
        let Some(program) = on.program else { return };
        let access = if write { Access::Write } else { Access::Read };
        if on.uncertain() {
            // Where it ends has to be known.
            for page in pages {
                let value = (0x0101 * page) | 1;
                self.program(on, Spot::At(page), 0, access, value);
            }
            return;
        }
        let range = self.bounds.range(&pages);
        let hardware = if write { vellum_sim::Access::Write } else { vellum_sim::Access::Read };
        let got = program.touch(range, 1 << self.bounds.page_shift, hardware);
        let rules = on.rules(self.exact);
        let mut expected = Ok(());
        let mut page = pages.start;
        while page < pages.end {
            expected = self.foresee(on, page << self.bounds.page_shift, access);
            if expected.is_err() {
                break;
            }
            self.model.touch(page, write, &rules);
            let alike = page..self.model.touched(page, write, &rules).min(pages.end);
            page = alike.end;
            self.record(on, alike.clone(), write);
            if write {
                self.model.each(alike, |page| page.contents.change(|words| words[0] = words[0] & !0xff | 1));
            }
        }
        assert_eq!(got.map(|_| ()).map_err(cause), expected, "a touch of {range:?}, write: {write}");
        self.check(on, &pages);
    }

    /// A fault that no program had.
    pub fn fault<H: Host>(&mut self, on: &Scene<'_, '_, H>, spot: Spot, access: Access) {
        let Some(page) = self.page(spot) else { return };
        let va = (page << self.bounds.page_shift) + 123;
        let expected = self.foresee(on, va, access);
        self.judge(on, page, access, expected, on.space.fault(va, access).map(|_| ()));
        self.check(on, &(page..page + 1));
    }
}

fn cause(fault: Fault<FaultError>) -> FaultError {
    match fault {
        Fault::Handler(error) => error,
        other => panic!("{other:x?}"),
    }
}
