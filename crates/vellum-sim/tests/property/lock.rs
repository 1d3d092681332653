//! Locking, sealing, populating, guarding and pinning.

use std::collections::BTreeSet;
use std::ops::Range;

use vellum::arch::{Arch, Kind as EntryKind};
use vellum::space::{Access, Advise, AdviseError, FaultError, LockAll, LockError, SealError};
use vellum::vma::{Prot, VmaFlags};

use super::host::Host;
use super::model::SLOTS;
use super::op::Spot;
use super::plot::{Plot, Scene};
use super::presence::Presence;
use super::{expect, pieces};

impl Plot {
    /// `lock`.
    pub fn lock<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>, on_fault: bool) {
        let (addr, len) = self.bytes(&pages);
        let got = pieces::lock(on.space, addr, len, on_fault);
        let locked = self.model.count(pages.clone(), |page| page.kind.flags.contains(VmaFlags::LOCKED));
        let more = pages.end - pages.start - locked;
        if self.bounds.alone
            && (expect::locked(&self.model) + more) << self.bounds.page_shift > self.bounds.limits.locked
        {
            assert_eq!(got, Err(LockError::LockLimit));
        } else if !self.model.covers(pages.clone()) {
            assert_eq!(got, Err(LockError::NotMapped));
        } else if matches!(got, Err(LockError::TooManyVmas | LockError::NoMemory(_))) && self.may_fail(on, &pages) {
        } else {
            if on.reclaims {
                self.model.page_out(pages.clone());
            }
            self.model.each(pages.clone(), |page| {
                page.kind.flags |= VmaFlags::LOCKED;
                page.kind.flags.set(VmaFlags::ONFAULT, on_fault);
            });
            let expected =
                if on_fault { Ok(()) } else { self.populated(on, pages.clone(), None).map_err(LockError::Fault) };
            match got {
                Err(LockError::Fault(FaultError::NoMemory(_))) if on.tight => {}
                Err(LockError::Fault(FaultError::Poisoned(_))) if on.unreadable => {}
                got => assert_eq!(got, expected, "lock"),
            }
        }
        self.check(on, &pages);
    }

    /// All pages are faulted in, for this access or what suits them; until one can't be.
    fn populated<H: Host>(
        &mut self,
        on: &Scene<'_, '_, H>,
        pages: Range<u64>,
        asked: Option<Access>,
    ) -> Result<(), FaultError> {
        if on.uncertain() {
            // It may end anywhere. Neighbours of the VMA's ends may have come with it.
            self.model.blur_around(&pages);
        }
        let rules = on.rules(self.exact);
        let mut at = pages.start;
        while at < pages.end {
            let va = at << self.bounds.page_shift;
            let page = self.model.get(at).ok_or(FaultError::Unmapped(va))?;
            let suits = if page.kind.prot.contains(Prot::WRITE) { Access::Write } else { Access::Read };
            let access = asked.unwrap_or(suits);
            // Who is asked to read ahead wants memory that says that it is read.
            let says = asked != Some(Access::Read) || page.kind.prot.contains(Prot::READ);
            if !says || !expect::allowed(page.kind.prot, access) || page.presence == Presence::Guard {
                return Err(FaultError::Denied(va));
            }
            let write = access == Access::Write;
            if on.uncertain() {
                at = self.model.run_at(at).map_or(at + 1, |(run, _)| run.end);
            } else {
                self.model.touch(at, write, &rules);
                at = self.model.touched(at, write, &rules);
            }
        }
        Ok(())
    }

    /// `unlock`.
    pub fn unlock<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>) {
        let (addr, len) = self.bytes(&pages);
        match (on.space.unlock(addr, len), self.model.covers(pages.clone())) {
            (Ok(()), true) => self.model.each(pages.clone(), |page| page.kind.flags -= VmaFlags::LOCKS),
            (Err(LockError::NotMapped), false) => {}
            (Err(LockError::TooManyVmas | LockError::NoMemory(_)), true) if self.may_fail(on, &pages) => {}
            (got, all) => panic!("unlock answers {got:x?}; is all of it mapped: {all}"),
        }
        self.check(on, &pages);
    }

    /// `lock_all`; with no flags `unlock_all`. For who has all of the space.
    pub fn lock_all<H: Host>(&mut self, on: &Scene<'_, '_, H>, flags: LockAll) {
        let mut lock = VmaFlags::LOCKED;
        lock.set(VmaFlags::ONFAULT, flags.contains(LockAll::ONFAULT));
        let now = |model: &mut super::model::Model, lock: VmaFlags| {
            let set = |flags: &mut VmaFlags| *flags = (*flags - VmaFlags::LOCKS) | lock;
            model.each(0..u64::MAX, |page| set(&mut page.kind.flags));
        };
        if flags.is_empty() {
            on.space.unlock_all();
            self.model.future = VmaFlags::empty();
            now(&mut self.model, VmaFlags::empty());
            return self.query(on);
        }
        let too_much =
            flags.contains(LockAll::CURRENT) && self.model.len() << self.bounds.page_shift > self.bounds.limits.locked;
        let expected = if too_much { Err(LockError::LockLimit) } else { Ok(()) };
        assert_eq!(pieces::lock_all(on.space, flags), expected);
        if expected.is_ok() {
            self.model.future = if flags.contains(LockAll::FUTURE) { lock } else { VmaFlags::empty() };
            if flags.contains(LockAll::CURRENT) {
                if on.reclaims {
                    self.model.page_out(0..u64::MAX);
                }
                now(&mut self.model, lock);
                for (vma, _) in self.model.vmas(0..u64::MAX).into_iter().filter(|_| lock == VmaFlags::LOCKED) {
                    let _ = self.populated(on, vma, None);
                }
            }
        }
        self.query(on);
    }

    /// `seal`.
    pub fn seal<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>) {
        let (addr, len) = self.bytes(&pages);
        match (on.space.seal(addr, len), self.model.covers(pages.clone())) {
            (Ok(()), true) => self.model.each(pages.clone(), |page| page.kind.flags |= VmaFlags::SEALED),
            (Err(SealError::NotMapped), false) => {}
            (Err(SealError::TooManyVmas | SealError::NoMemory(_)), true) if self.may_fail(on, &pages) => {}
            (got, all) => panic!("seal answers {got:x?}; is all of it mapped: {all}"),
        }
        self.check(on, &pages);
    }

    /// `advise` to fault in.
    pub fn populate<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>, access: Access) {
        let (addr, len) = self.bytes(&pages);
        let advise = if access == Access::Write { Advise::PopulateWrite } else { Advise::PopulateRead };
        let got = pieces::advise(on.space, addr, len, advise);
        let same = match (got, self.populated(on, pages.clone(), Some(access))) {
            (Err(AdviseError::Fault(FaultError::NoMemory(_))), _) => on.tight,
            (Err(AdviseError::Fault(FaultError::Poisoned(_))), _) => on.unreadable,
            (Ok(()), expected) => expected.is_ok(),
            (Err(AdviseError::NotMapped), expected) => matches!(expected, Err(FaultError::Unmapped(_))),
            (Err(AdviseError::Inaccessible(_)), expected) => matches!(expected, Err(FaultError::Denied(_))),
            (Err(AdviseError::Fault(error)), expected) => Err(error) == expected,
            _ => false,
        };
        assert!(same, "{advise:?} answers {got:x?}");
        self.check(on, &pages);
    }

    /// `advise` to guard.
    pub fn install_guards<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>) {
        let (addr, len) = self.bytes(&pages);
        let got = pieces::advise(on.space, addr, len, Advise::GuardInstall);
        let locked = self.model.runs(pages.clone()).any(|(_, page)| page.kind.flags.contains(VmaFlags::LOCKED));
        match got {
            Err(AdviseError::Sealed(_)) => assert!(!expect::may_forget(&self.model, &pages)),
            Err(AdviseError::Locked(_)) => assert!(locked),
            Err(AdviseError::NoMemory(_)) if on.tight => self.look_for_guards(on, pages.clone()),
            got => {
                assert_eq!(got, self.taken(&pages));
                assert!(!locked && expect::may_forget(&self.model, &pages));
                self.model.forget(pages.clone(), Presence::Guard);
            }
        }
        self.check(on, &pages);
    }

    /// It ended halfway: each page holds what it held, or nothing, or is guarded.
    fn look_for_guards<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>) {
        let mut guards = BTreeSet::new();
        on.space.runs(self.bounds.range(&pages), |run| {
            if run.kind == EntryKind::Marker {
                let first = run.va >> on.space.arch().page_shift();
                guards.extend(first..first + run.len as u64);
            }
        });
        self.model.each_at(pages, |at, page| {
            on.look_again(at, page);
            if guards.contains(&at) {
                page.presence = Presence::Guard;
            }
        });
    }

    /// `advise` to guard no more.
    pub fn remove_guards<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>) {
        let (addr, len) = self.bytes(&pages);
        assert_eq!(pieces::advise(on.space, addr, len, Advise::GuardRemove), self.taken(&pages));
        let fresh = on.rules(self.exact).fresh();
        self.model.each(pages.clone(), |page| {
            if page.presence == Presence::Guard {
                page.presence = fresh;
            }
        });
        self.check(on, &pages);
    }

    /// The host reads or writes one of the words through a pin.
    pub fn pin<H: Host>(&mut self, on: &Scene<'_, '_, H>, spot: Spot, slot: usize, value: Option<u64>) {
        let Some(at) = self.page(spot) else { return };
        let va = (at << self.bounds.page_shift) + 8 * SLOTS[slot];
        let access = if value.is_some() { Access::Write } else { Access::Read };
        let expected = self.foresee(on, va, access);
        let got = on.space.pin(va, access);
        let done = self.judge(on, at, access, expected, got.as_ref().map(|_| ()).map_err(|error| *error));
        if let (Ok(pin), true) = (got, done) {
            let inside = 8 * SLOTS[slot] as usize;
            match value {
                Some(value) => {
                    assert_eq!(pin.write(inside, &value.to_ne_bytes()), 8);
                    self.model.each(at..at + 1, |page| page.contents.change(|words| words[slot] = value));
                }
                None => {
                    let mut word = [0; 8];
                    assert_eq!(pin.read(inside, &mut word), 8);
                    let word = u64::from_ne_bytes(word);
                    if let Some((could, page)) =
                        self.model.change(at, |page| page.contents.see(|words| words[slot] == word))
                    {
                        assert!(could, "page {at:#x}, pinned, holds {word:#x}: {page:x?}");
                    }
                }
            }
        }
        self.check(on, &(at..at + 1));
    }
}
