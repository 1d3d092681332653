//! Long operations, a piece after the other: advice about a range, and faulting it in.
//!
//! Such an operation is begun: all that concerns the range as a whole is checked then, and changed.
//! The value that says what is left is handed to the operation's second part again and again, until
//! nothing is left. That part asks the caller after each step, which is about as long as what the
//! engine does between two calls of [`resched`](crate::platform::Cpus::resched), whether to go on.
//! When it returns it is in no lock and claims no range: a host that can't switch tasks inside the
//! engine runs others then, which may change the space. What an operation answers and what it leaves
//! when it fails does not depend on how many pieces there were; [`AddressSpace::advise`] and its kin
//! do it all in one.
//!
//! After an error the value says what is left from the failure on. A caller that has dealt with the
//! cause (it reclaimed memory, or userfaultfd supplied a page) may go on with the value.

use crate::arch::{Arch, BadRange, UserRange};
use crate::platform::Platform;
use crate::vma::{Vma, VmaFlags};

use super::AddressSpace;
use crate::space::advise::{Advise, AdviseError};
use crate::space::fault::{Access, Fault, FaultError};
use crate::space::ground::{More, Rest};
use crate::space::reclaim::Pageout;
use crate::space::thp::{CollapseError, Thp};

/// Advice that was begun ([`AddressSpace::begin_advice`]), and what is left of it.
#[derive(Clone, Copy, Debug)]
pub struct Advising {
    rest: Rest,
    advice: Advise,
    /// The range goes on beyond the user half, where nothing can be mapped.
    beyond: bool,
    /// Why the last block that could not be collapsed was not.
    failed: Option<CollapseError>,
}

impl Advising {
    /// Returns what the operation answers when nothing is left.
    fn answer(&self) -> Result<(), AdviseError> {
        match self.failed {
            _ if self.rest.holes => Err(AdviseError::NotMapped),
            Some(error) => Err(AdviseError::Collapse(error)),
            None if self.beyond => Err(AdviseError::NotMapped),
            None => Ok(()),
        }
    }
}

/// Memory that is to be faulted in, and what is left of it.
#[derive(Clone, Copy, Debug)]
pub struct Populating {
    pub(super) left: UserRange,
    /// VMAs that are not locked are faulted in too.
    pub(super) unlocked: bool,
    /// The end of the part that the last VMA has of the range.
    part_end: u64,
}

impl Populating {
    /// All of a range is left.
    pub(super) fn all(range: UserRange, unlocked: bool) -> Self {
        Populating { left: range, unlocked, part_end: range.start }
    }

    /// Passes over the rest of the VMA of which a page could not be faulted in: for a caller for
    /// which that is no error.
    pub fn pass_over(&mut self) {
        self.left = self.left.tail(self.part_end.max(self.left.start));
    }
}

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Takes advice about a range.
    ///
    /// # Errors
    /// See [`AdviseError`].
    pub fn advise(&self, addr: u64, len: u64, advice: Advise) -> Result<(), AdviseError> {
        let mut rest = self.begin_advice(addr, len, advice)?;
        self.advise_some(&mut rest, || true).map(|_| ())
    }

    /// Begins to take advice about a range, which [`AddressSpace::advise_some`] goes on with: checks
    /// what must hold for all of the range.
    ///
    /// # Errors
    /// See [`AdviseError`].
    pub fn begin_advice(&self, addr: u64, len: u64, advice: Advise) -> Result<Advising, AdviseError> {
        let (range, beyond) = match UserRange::new(&self.tables.arch, addr, len) {
            Ok(range) => (range, false),
            Err(BadRange::Unaligned(addr)) => return Err(AdviseError::Unaligned(addr)),
            Err(BadRange::Overflow) => return Err(AdviseError::Overflow),
            // The user half ends in a hole that can't be mapped.
            Err(BadRange::Beyond(part)) => (part, true),
        };
        let mut begun = Advising { rest: Rest::all(range), advice, beyond, failed: None };
        if range.is_empty() {
            return Ok(begun);
        }
        if advice.forgets() {
            self.may_forget(range)?;
        }
        // The checks and splits that may fail come first, so that a failure changes nothing.
        let all = match advice {
            Advise::DontNeed | Advise::DontNeedLocked => {
                self.split_beside_faults(range)?;
                true
            }
            Advise::Free => self.all(range, true, true)?,
            Advise::WipeOnFork => self.all(range, false, true)?,
            Advise::Cold | Advise::PageOut | Advise::GuardInstall => self.all(range, true, false)?,
            Advise::Reading | Advise::WillNeed => self.all(range, false, false)?,
            _ => true,
        };
        begun.rest.holes = !all;
        Ok(begun)
    }

    /// Goes on with advice as long as `more`, which it asks between steps, says so, or until nothing
    /// is left; returns whether nothing is left. Advice that changes nothing but VMAs takes one
    /// step. At least one step is done.
    ///
    /// # Errors
    /// See [`AdviseError`].
    pub fn advise_some(&self, begun: &mut Advising, mut more: impl FnMut() -> bool) -> Result<bool, AdviseError> {
        let more: More<'_> = &mut more;
        let rest = &mut begun.rest;
        if !rest.left.is_empty() {
            match begun.advice {
                Advise::DontNeed => self.dont_need(rest, false, more)?,
                Advise::DontNeedLocked => self.dont_need(rest, true, more)?,
                Advise::WillNeed => self.will_need(rest, more),
                Advise::Cold => Pageout::of(self).cool(rest, more),
                Advise::PageOut => Pageout::of(self).pageout_range(rest, more),
                Advise::Free => Pageout::of(self).mark_lazyfree(rest, more),
                Advise::Collapse => {
                    Thp::of(self).collapse(rest, &mut begun.failed, more).map_err(AdviseError::Collapse)?;
                }
                Advise::PopulateRead => self.populate_all(rest, Access::Read, more)?,
                Advise::PopulateWrite => self.populate_all(rest, Access::Write, more)?,
                Advise::GuardInstall => self.install_guards(rest, more)?,
                Advise::GuardRemove => self.remove_guards(rest, more)?,
                _ => {
                    rest.holes |= !self.change_vmas(rest.left, begun.advice)?;
                    rest.end();
                }
            }
        }
        if !rest.left.is_empty() {
            return Ok(false);
        }
        begun.answer().map(|()| true)
    }

    /// Begins to fault in what was just mapped with [`MapFlags::LATER`](super::MapFlags::LATER): of
    /// `len` bytes from `addr` on, what is locked and may not come later, or, with `unlocked`, all.
    /// [`AddressSpace::populate_some`] goes on; Linux passes over what can't be faulted in then
    /// ([`Populating::pass_over`]).
    pub fn begin_populate(&self, addr: u64, len: u64, unlocked: bool) -> Populating {
        let range = match UserRange::new(&self.tables.arch, addr, len) {
            Ok(part) | Err(BadRange::Beyond(part)) => part,
            Err(BadRange::Unaligned(_) | BadRange::Overflow) => UserRange::default(),
        };
        Populating::all(range, unlocked)
    }

    /// Faults in what is left as long as `more`, which it asks between two faults, says so, or until
    /// nothing is left; returns whether nothing is left. Private memory that may be written gets its
    /// own pages.
    ///
    /// # Errors
    /// See [`FaultError`].
    pub fn populate_some(&self, rest: &mut Populating, mut more: impl FnMut() -> bool) -> Result<bool, FaultError> {
        while !rest.left.is_empty()
            && let Some(vma) = self.next_to_populate(rest)
        {
            let part = vma.range.intersect(&rest.left);
            rest.left = rest.left.tail(part.start);
            rest.part_end = part.end;
            while rest.left.start < part.end {
                let (mapped, _) = Fault::of(self).fault_in(rest.left.start, vma.populated_by())?;
                rest.left = rest.left.tail(mapped.end);
                self.tables.platform().resched();
                if !more() {
                    return Ok(rest.left.is_empty());
                }
            }
        }
        Ok(true)
    }

    /// Returns the first VMA of which something is left to be faulted in; without one, nothing is
    /// left from then on.
    fn next_to_populate(&self, rest: &mut Populating) -> Option<Vma> {
        let vmas = self.read();
        let wanted = |vma: &Vma| rest.unlocked || vma.flags & VmaFlags::LOCKS == VmaFlags::LOCKED;
        let next = vmas.overlapping(self.tables.platform(), rest.left).find(|vma| wanted(vma)).copied();
        if next.is_none() {
            rest.left = UserRange::default();
        }
        next
    }

    /// Faults in all that is left, as far as that is possible.
    pub(super) fn populate(&self, mut rest: Populating) {
        while self.populate_some(&mut rest, || true).is_err() {
            rest.pass_over();
        }
    }
}
