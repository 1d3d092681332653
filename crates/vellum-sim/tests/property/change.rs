//! Operations that change VMAs, or what is in them.

use std::ops::Range;

use vellum::addr::FRAME_SHIFT;
use vellum::frame::HUGE_ORDER;
use vellum::frame::policy::Advice;
use vellum::space::FaultError;
use vellum::space::{Access, Advise, AdviseError, MapError, MapFlags, MapRequest, ProtectError, UnmapError};
use vellum::swap::DEVICES;
use vellum::vma::{Prot, VmaFlags};

use super::expect::{self, Where};
use super::host::Host;
use super::model::{Kind, Page};
use super::op::{Place, Span, Spot, advised};
use super::pieces;
use super::plot::{Plot, Scene};

/// So many VMAs of the engine's own choosing are kept.
pub const ELSEWHERE: usize = 6;

impl Plot {
    /// `map`.
    pub fn map<H: Host>(&mut self, on: &Scene<'_, '_, H>, place: Place, pages: u64, prot: Prot, flags: MapFlags) {
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
        let got = on.space.map(MapRequest { addr, len, prot, flags: flags | how });
        // Nothing in particular, if it was to go anywhere: page 0 may be another's.
        let asked = if place == Place::Anywhere { 0..0 } else { page..page + pages };
        match (got, expected) {
            (Ok(addr), Ok(to)) => {
                let start = addr >> self.bounds.page_shift;
                if let Where::Page(wanted) = to {
                    assert_eq!(start, wanted, "mapped at page {start:#x} and not at {wanted:#x}");
                }
                self.mapped(on, start..start + pages, prot, flags);
            }
            (Err(error), Err(wanted)) if error == wanted => self.check(on, &asked),
            (Err(MapError::NoMemory(_)), Ok(_)) if self.may_fail(on, &asked) => self.check(on, &asked),
            (Err(MapError::SealedVma(_)), Err(MapError::SealedVma(_))) if !self.bounds.alone => self.check(on, &asked),
            // How many VMAs the others have is not known here.
            (Err(MapError::TooManyVmas), Ok(_) | Err(MapError::Overcommit | MapError::SealedVma(_)))
                if !self.bounds.alone && self.few() =>
            {
                self.check(on, &asked)
            }
            (got, expected) => panic!("map answers {got:x?}, not {expected:x?}"),
        }
    }

    fn mapped<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>, prot: Prot, flags: MapFlags) {
        let range = self.bounds.range(&pages);
        assert!(range.start >= self.bounds.limits.lowest && range.end <= self.bounds.user_end, "mapped at {range:?}");
        if !self.is_mine(&pages) {
            assert!(self.model.vmas(pages.clone()).is_empty(), "the engine chose {range:?}, where something is");
            self.elsewhere.push(pages.clone());
        }
        let rules = on.rules(self.exact);
        let mut kind = Kind { prot, flags: VmaFlags::empty(), advice: Advice::None, moved: 0 };
        kind.flags.set(VmaFlags::GROWSDOWN, flags.contains(MapFlags::GROWSDOWN));
        kind.flags.set(VmaFlags::LOCKED, flags.contains(MapFlags::LOCKED));
        kind.flags.set(VmaFlags::NORESERVE, flags.contains(MapFlags::NORESERVE));
        kind.flags |= self.model.future;
        self.model.map(pages.clone(), kind, rules.fresh());
        let brought = match kind.flags & VmaFlags::LOCKS {
            VmaFlags::LOCKED => true,
            _ => flags.contains(MapFlags::POPULATE),
        };
        let write = prot.contains(Prot::WRITE);
        if brought && !prot.is_empty() {
            if on.tight {
                // It ends silently where memory does. Neighbours of the VMA's ends may have come with it.
                self.model.blur_around(&pages);
            } else {
                self.model.touch_all(pages.clone(), write, &rules);
            }
        }
        self.check(on, &pages);
    }

    /// `unmap`.
    pub fn unmap<H: Host>(&mut self, on: &Scene<'_, '_, H>, span: Span) {
        match span.at {
            // In part it could be taken by another actor, and then this one would not know what belongs to whom.
            Spot::Elsewhere(nth, _) if !self.elsewhere.is_empty() => {
                self.unmap_whole(on, nth as usize % self.elsewhere.len());
            }
            Spot::Elsewhere(..) => {}
            Spot::At(start) => drop(self.unmap_pages(on, start..start + span.pages)),
        }
    }

    pub fn unmap_whole<H: Host>(&mut self, on: &Scene<'_, '_, H>, nth: usize) {
        if self.unmap_pages(on, self.elsewhere[nth].clone()) {
            self.elsewhere.swap_remove(nth);
        }
    }

    fn unmap_pages<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>) -> bool {
        let (addr, len) = self.bytes(&pages);
        let got = on.space.unmap(addr, len);
        match got {
            Ok(()) => {
                assert!(expect::sealed(&self.model, &pages).is_none(), "unmapped what is sealed");
                self.model.unmap(pages.clone());
            }
            Err(UnmapError::Sealed(_)) if expect::sealed(&self.model, &pages).is_some() => {}
            Err(UnmapError::TooManyVmas | UnmapError::NoMemory(_)) if self.may_fail(on, &pages) => {}
            Err(_) => panic!("unmap answers {got:x?}"),
        }
        // Addresses outside of the windows are anybody's as soon as they are free.
        if got.is_err() || self.bounds.alone || self.is_mine(&pages) {
            self.check(on, &pages);
        }
        got.is_ok()
    }

    /// Whether these pages lie in one of the plot's windows.
    pub fn is_mine(&self, pages: &Range<u64>) -> bool {
        self.windows.iter().any(|w| w.pages.start <= pages.start && pages.end <= w.pages.end)
    }

    /// `protect`.
    pub fn protect<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>, prot: Prot) {
        let (addr, len) = self.bytes(&pages);
        let connected = pages.start..self.model.hole(pages.clone()).unwrap_or(pages.end);
        let sealed = expect::sealed(&self.model, &connected).is_some();
        let too_much = expect::too_much_data(&self.model, &self.bounds, &pages, prot);
        match (on.space.protect(addr, len, prot), self.model.covers(pages.clone())) {
            (Err(ProtectError::Sealed(_)), _) if sealed => {}
            (Ok(()), true) if !too_much && !sealed => {
                self.model.each(pages.clone(), |page| page.kind.prot = prot);
            }
            (Err(ProtectError::DataLimit), true) if too_much => {}
            (Err(ProtectError::NotMapped | ProtectError::DataLimit), false) => {}
            (Err(ProtectError::TooManyVmas | ProtectError::NoMemory(_)), true) if self.may_fail(on, &pages) => {}
            (got, all) => panic!("protect answers {got:x?}; is all of it mapped: {all}"),
        }
        self.check(on, &pages);
    }

    /// `advise`.
    pub fn advise<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>, advise: Advise) {
        let (addr, len) = self.bytes(&pages);
        match advise {
            Advise::PopulateRead => return self.populate(on, pages, Access::Read),
            Advise::PopulateWrite => return self.populate(on, pages, Access::Write),
            Advise::Collapse => return self.collapse(on, pages),
            Advise::GuardInstall => return self.install_guards(on, pages),
            Advise::GuardRemove => return self.remove_guards(on, pages),
            _ => {}
        }
        let got = pieces::advise(on.space, addr, len, advise);
        if matches!(advise, Advise::PageOut | Advise::Cold | Advise::WillNeed) {
            return self.hinted(on, pages, got, advise);
        }
        if advise == Advise::Free {
            return self.freed(on, pages, got);
        }
        if matches!(advise, Advise::DontNeed | Advise::DontNeedLocked) {
            return self.forgotten(on, pages, got, advise == Advise::DontNeedLocked);
        }
        let forgets = matches!(advise, Advise::DontFork | Advise::WipeOnFork);
        if forgets && !expect::may_forget(&self.model, &pages) {
            assert!(matches!(got, Err(AdviseError::Sealed(_))), "{advise:?} answers {got:x?}");
            return self.check(on, &pages);
        }
        let set = |kind: &mut Kind| *kind = advised(kind, advise).expect("an advice about VMAs");
        match got {
            Err(AdviseError::TooManyVmas | AdviseError::NoMemory(_)) if self.may_fail(on, &pages) => {}
            got => {
                assert_eq!(got, self.taken(&pages), "{advise:?}");
                self.model.each(pages.clone(), |page| set(&mut page.kind));
            }
        }
        self.check(on, &pages);
    }

    /// Returns what advice answers that was taken for what is mapped of these pages.
    pub fn taken(&self, pages: &Range<u64>) -> Result<(), AdviseError> {
        if self.model.covers(pages.clone()) { Ok(()) } else { Err(AdviseError::NotMapped) }
    }

    fn freed<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>, got: Result<(), AdviseError>) {
        let locked = self.model.runs(pages.clone()).any(|(_, page)| page.kind.flags.contains(VmaFlags::LOCKED));
        let may = expect::may_forget(&self.model, &pages);
        match got {
            Err(AdviseError::Sealed(_)) => assert!(!may),
            Err(AdviseError::Locked(_)) => assert!(locked),
            got => {
                assert_eq!(got, self.taken(&pages));
                assert!(may && !locked);
                self.model.free(pages.clone());
            }
        }
        self.check(on, &pages);
    }

    /// An advice that changes nothing but where contents are, and what hardware has recorded.
    fn hinted<H: Host>(
        &mut self,
        on: &Scene<'_, '_, H>,
        pages: Range<u64>,
        got: Result<(), AdviseError>,
        advise: Advise,
    ) {
        let locked = advise != Advise::WillNeed
            && self.model.runs(pages.clone()).any(|(_, page)| page.kind.flags.contains(VmaFlags::LOCKED));
        match got {
            Err(AdviseError::Locked(_)) => assert!(locked, "no VMA is locked"),
            got => {
                assert_eq!(got, self.taken(&pages));
                assert!(!locked);
                match advise {
                    Advise::PageOut => self.model.page_out(pages.clone()),
                    Advise::Cold => self.model.cool(pages.clone()),
                    _ => {}
                }
            }
        }
        self.check(on, &pages);
    }

    /// `advise(Collapse)`, for each whole block. No contents change, and what was done is all the space's own.
    fn collapse<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>) {
        let len = 1 << (HUGE_ORDER as u32 + FRAME_SHIFT - self.bounds.page_shift);
        for start in (pages.start.next_multiple_of(len)..pages.end).step_by(len as usize) {
            let block = start..start + len;
            if block.end > pages.end {
                break;
            }
            let (addr, bytes) = self.bytes(&block);
            // A block that is not of one VMA is none.
            let whole = self.model.in_one_vma(block.clone());
            match pieces::advise(on.space, addr, bytes, Advise::Collapse) {
                Ok(()) if whole => {
                    let no_huge = |(_, page): (Range<u64>, &Page)| page.kind.advice == Advice::NoHuge;
                    assert!(!self.model.runs(block.clone()).any(no_huge), "collapsed what may not be");
                    self.model.own(block.clone());
                }
                Ok(()) => assert!(self.model.covers(block.clone())),
                Err(AdviseError::NotMapped) => assert!(!self.model.covers(block.clone())),
                Err(AdviseError::Collapse(_)) => {}
                got => panic!("advise answers {got:x?}"),
            }
            self.check(on, &block);
        }
    }

    /// `swap_off`, of all devices. Others may open one that is closed here, but nobody else swaps out what is here.
    pub fn swap_off<H: Host>(&mut self, on: &Scene<'_, '_, H>) {
        for device in 0..DEVICES as u8 {
            let swaps = on.machine.swaps();
            if swaps.close(on.host, device).is_err() {
                break;
            }
            let got = on.space.swap_off(device);
            assert_eq!(swaps.open(on.host, device), Ok(()));
            match got {
                Ok(()) => {}
                Err(FaultError::Poisoned(_)) if on.unreadable => return,
                Err(FaultError::NoMemory(_)) if on.tight => return,
                got => panic!("swap_off answers {got:x?}"),
            }
        }
        self.model.swap_in();
        self.query(on);
    }

    fn forgotten<H: Host>(
        &mut self,
        on: &Scene<'_, '_, H>,
        pages: Range<u64>,
        got: Result<(), AdviseError>,
        locked: bool,
    ) {
        if !expect::may_forget(&self.model, &pages) {
            assert!(matches!(got, Err(AdviseError::Sealed(_))), "{got:x?}");
            return self.check(on, &pages);
        }
        let (expected, emptied) = expect::dont_need(&self.model, &self.bounds, &pages, locked);
        let same = match (got, expected) {
            // Another actor's pages may be part of the same VMA.
            (Err(AdviseError::Locked(_)), Err(AdviseError::Locked(_))) if !self.bounds.alone => true,
            _ => got == expected,
        };
        if same {
            let fresh = on.rules(self.exact).fresh();
            self.model.forget(emptied, fresh);
        } else if matches!(got, Err(AdviseError::NoMemory(_))) && on.tight {
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
        self.model.each_at(pages, |at, page| on.look_again(at, page));
    }
}
