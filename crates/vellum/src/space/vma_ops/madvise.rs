//! `madvise`, piece by piece.
//!
//! The operation begins with a check of everything that concerns the range as a whole, and with the
//! changes that may fail ([`Madvise::begin_advice`]). It returns a value that records what is left,
//! which the caller passes to the second part again and again ([`Madvise::advise_some`]). That part
//! asks the caller after each step whether to go on. When it returns it holds no lock and claims no
//! range: a host that can't switch tasks inside the engine runs other tasks then, which may change
//! the space. The result and what a failure leaves don't depend on the number of pieces;
//! [`Madvise::advise`] does all in one.
//!
//! After an error the value records what is left from the failure on. A caller that has removed the
//! cause (it reclaimed memory, or a userfaultfd supplied a page) may go on with the value.

use crate::arch::{Arch, BadRange, UserRange};
use crate::frame::policy::Advice;
use crate::memcg::Refused;
use crate::platform::Platform;
use crate::vma::{Prot, State, Vma, VmaFlags};

use super::protect::Holes;
use super::{Advise, AdviseError, Madvise, VmaOps};
use crate::space::fault::{Access, Fault, FaultError, SwapIn};
use crate::space::ground::{Change, Keep, More, Pieces, Rest, Zap};
use crate::space::reclaim::Pageout;
use crate::space::thp::{CollapseError, Thp};

/// Advice that was begun (`AddressSpace::begin_advice`), and what is left of it.
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

impl<P: Platform, A: Arch> Madvise<'_, '_, P, A> {
    /// Implements [`AddressSpace::advise`].
    pub(super) fn advise(self, addr: u64, len: u64, advice: Advise) -> Result<(), AdviseError> {
        let mut rest = self.begin_advice(addr, len, advice)?;
        self.advise_some(&mut rest, || true).map(|_| ())
    }

    /// Implements [`AddressSpace::begin_advice`].
    pub(super) fn begin_advice(self, addr: u64, len: u64, advice: Advise) -> Result<Advising, AdviseError> {
        let (range, beyond) = match UserRange::new(self.arch(), addr, len) {
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
            VmaOps::of(self.space).check_sealed(range)?;
        }
        // The checks and splits that may fail come first, so that a failure changes nothing.
        let all = match advice {
            Advise::DontNeed | Advise::DontNeedLocked => {
                self.split_edges_beside_faults(range)?;
                true
            }
            Advise::Free => self.check_vmas(range, true, true)?,
            Advise::WipeOnFork => self.check_vmas(range, false, true)?,
            Advise::Cold | Advise::PageOut | Advise::GuardInstall => self.check_vmas(range, true, false)?,
            Advise::ReadPattern | Advise::WillNeed => self.check_vmas(range, false, false)?,
            _ => true,
        };
        begun.rest.holes = !all;
        Ok(begun)
    }

    /// Implements [`AddressSpace::advise_some`].
    pub(super) fn advise_some(self, begun: &mut Advising, mut more: impl FnMut() -> bool) -> Result<bool, AdviseError> {
        let more: More<'_> = &mut more;
        let rest = &mut begun.rest;
        if !rest.left.is_empty() {
            match begun.advice {
                Advise::DontNeed => self.dont_need(rest, false, more)?,
                Advise::DontNeedLocked => self.dont_need(rest, true, more)?,
                Advise::WillNeed => self.will_need(rest, more),
                Advise::Cold => Pageout::of(self.space).deactivate(rest, more),
                Advise::PageOut => Pageout::of(self.space).pageout_range(rest, more),
                Advise::Free => Pageout::of(self.space).mark_lazyfree(rest, more),
                Advise::Collapse => {
                    Thp::of(self.space).collapse(rest, &mut begun.failed, more).map_err(AdviseError::Collapse)?;
                }
                Advise::PopulateRead => self.populate_for_advice(rest, Access::Read, more)?,
                Advise::PopulateWrite => self.populate_for_advice(rest, Access::Write, more)?,
                Advise::GuardInstall => self.install_guards(rest, more)?,
                Advise::GuardRemove => self.remove_guards(rest, more)?,
                _ => {
                    rest.holes |= !self.set_advice(rest.left, begun.advice)?;
                    rest.end();
                }
            }
        }
        if !rest.left.is_empty() {
            return Ok(false);
        }
        begun.answer().map(|()| true)
    }

    /// Takes advice that nothing but VMAs depend on; returns whether all of `range` is mapped.
    fn set_advice(self, range: UserRange, advice: Advise) -> Result<bool, AdviseError> {
        let set: fn(&mut Vma) = match advice {
            Advise::DontFork => |v| v.flags |= VmaFlags::DONTFORK,
            Advise::DoFork => |v| v.flags -= VmaFlags::DONTFORK,
            Advise::WipeOnFork => |v| v.flags |= VmaFlags::WIPEONFORK,
            Advise::KeepOnFork => |v| v.flags -= VmaFlags::WIPEONFORK,
            Advise::DontDump => |v| v.flags |= VmaFlags::DONTDUMP,
            Advise::DoDump => |v| v.flags -= VmaFlags::DONTDUMP,
            Advise::Huge => |v| v.advice = Advice::Huge,
            Advise::NoHuge => |v| v.advice = Advice::NoHuge,
            _ => return Ok(true),
        };
        Ok(VmaOps::of(self.space)
            .set_vmas_if(&mut Change::begin(self.space, range), range, Holes::Passed, |_| Ok(()), set)?
            .covered)
    }

    /// Returns whether all of a range is mapped.
    ///
    /// # Errors
    /// If that is asked: a VMA there is locked, or is something else than private anonymous memory.
    pub(super) fn check_vmas(self, range: UserRange, unlocked: bool, private: bool) -> Result<bool, AdviseError> {
        let vmas = self.space.read();
        for vma in vmas.overlapping(self.platform(), range).filter(|vma| vma.state != State::Dying) {
            if unlocked && vma.flags.contains(VmaFlags::LOCKED) {
                return Err(AdviseError::Locked(*vma.range));
            }
            if private && !vma.backing.is_anonymous() {
                return Err(AdviseError::NotPrivate(*vma.range));
            }
        }
        Ok(vmas.covers(self.platform(), range))
    }

    /// Side by side with faults; between preemption points it looks again what is there.
    fn dont_need(self, rest: &mut Rest, locked: bool, more: More<'_>) -> Result<(), AdviseError> {
        self.space.peak.note(&self.tables().slots);
        let mut gather = self.space.gather(rest.left);
        Pieces::of(self.space).each_vma(rest, more, |vma, part| {
            if vma.flags.contains(VmaFlags::LOCKED) && !locked {
                return Err(AdviseError::Locked(*vma.range));
            }
            Ok(Zap::of(self.space).piece(part, Keep::Guards, &mut gather)?)
        })
    }

    /// Splits huge mappings that reach across an end of `range`, which is not empty, as a reader of
    /// the VMAs, once the VMAs there are not held.
    fn split_edges_beside_faults(self, range: UserRange) -> Result<(), Refused> {
        let vmas = self.space.read();
        let held = |at| vmas.tree.find(at).is_some_and(|v| v.state == State::Locked);
        if !held(range.start) && !held(range.end - 1) {
            return self.tables().split_edges(range);
        }
        drop(vmas);
        let _turn = Change::claim_unlocked(self.space, range);
        self.tables().split_edges(range)
    }

    fn populate_for_advice(self, rest: &mut Rest, access: Access, more: More<'_>) -> Result<(), AdviseError> {
        let mut wanted = true;
        while wanted && !rest.left.is_empty() {
            let Some(vma) = self.space.read().find(rest.left.start).copied() else {
                return Err(AdviseError::NotMapped);
            };
            // As Linux does, by what the VMA says, though what may be written can be read.
            if !vma.prot.contains(if access == Access::Write { Prot::WRITE } else { Prot::READ }) {
                return Err(AdviseError::Inaccessible(*vma.range));
            }
            let end = vma.range.end.min(rest.left.end);
            while wanted && rest.left.start < end {
                match Fault::of(self.space).fault_in(rest.left.start, access) {
                    Ok((mapped, _)) => rest.left = rest.left.tail(mapped.end),
                    Err(FaultError::Unmapped(_)) => return Err(AdviseError::NotMapped),
                    Err(error) => return Err(AdviseError::Fault(error)),
                }
                self.platform().resched();
                wanted = more();
            }
        }
        Ok(())
    }

    /// What a range has on swap devices comes back, as far as there is memory for it and they give
    /// it back (`MADV_WILLNEED`).
    fn will_need(self, rest: &mut Rest, more: More<'_>) {
        Pieces::of(self.space).each_table(rest, more, |part| {
            // No VMA goes or moves meanwhile.
            let _turn = Change::claim_unlocked(self.space, part);
            // What does not come now comes when a program touches it: that is no matter of a hint.
            // Where memory is refused for one page, there is none for those behind it either.
            !matches!(SwapIn::of(self.space).swap_in_range(part, |_| true), Err(FaultError::NoMemory(_)))
        });
    }
}
