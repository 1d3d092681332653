//! `madvise`, in pieces between which the caller may do other work.
//!
//! [`Madvise::begin_advice`] checks everything that concerns the range as a whole, and makes the
//! changes that may fail. It returns an [`Advising`], which records what is left of the range. The
//! caller passes the [`Advising`] to [`Madvise::advise_some`] until nothing is left. `advise_some`
//! calls a callback of the caller after each step, and returns when the callback returns false.
//! Then it holds no lock and claims no range: a host that can't switch tasks inside the engine runs
//! other tasks at that point, and these may change the space. The result and what a failure leaves
//! don't depend on the number of pieces; [`Madvise::advise`] does all in one call.
//!
//! After an error the [`Advising`] records what is left from the failure on. The caller may remove
//! the cause (reclaim memory, or let a userfaultfd supply the page) and pass the same [`Advising`]
//! again.

use crate::addr::align_down;
use crate::arch::{BadRange, Marker, UserRange};
use crate::frame::policy::Advice;
use crate::memcg::Refused;
use crate::page_cache::{Hugetlb, Object, Readahead};
use crate::platform::Platform;
use crate::vma::{Expected, HUGETLB_SHIFT, Prot, State, Vma, VmaFlags};

use super::protect::Holes;
use super::{Advise, AdviseError, Madvise, VmaOps};
use crate::space::fault::{Access, Fault, FaultError, SwapIn};
use crate::space::ground::{Change, Keep, More, Pieces, Rest, Zap};
use crate::space::reclaim::Pageout;
use crate::space::thp::{CollapseError, Thp};

/// An advice in progress
/// ([`AddressSpace::begin_advice`](crate::space::AddressSpace::begin_advice)), and what is left of
/// its range.
#[derive(Clone, Copy, Debug)]
pub struct Advising {
    rest: Rest,
    advice: Advise,
    /// True if the range reaches beyond the user half, where nothing can be mapped.
    beyond_user_half: bool,
    /// The error of the last block that could not be collapsed into a huge page (`MADV_COLLAPSE`).
    collapse_error: Option<CollapseError>,
}

impl Advising {
    /// Returns the result of the operation, once nothing is left.
    fn result(&self) -> Result<(), AdviseError> {
        match self.collapse_error {
            _ if self.rest.holes => Err(AdviseError::NotMapped),
            Some(error) => Err(AdviseError::Collapse(error)),
            None if self.beyond_user_half => Err(AdviseError::NotMapped),
            None => Ok(()),
        }
    }
}

impl<P: Platform> Madvise<'_, '_, P> {
    /// Implements [`AddressSpace::advise`](crate::space::AddressSpace::advise).
    pub(super) fn advise(self, addr: u64, len: u64, advice: Advise) -> Result<(), AdviseError> {
        let mut rest = self.begin_advice(addr, len, advice)?;
        self.advise_some(&mut rest, || true).map(|_| ())
    }

    /// Implements [`AddressSpace::begin_advice`](crate::space::AddressSpace::begin_advice).
    pub(super) fn begin_advice(self, addr: u64, len: u64, advice: Advise) -> Result<Advising, AdviseError> {
        let (range, beyond_user_half) = match UserRange::new(self.arch(), addr, len) {
            Ok(range) => (range, false),
            Err(BadRange::Unaligned(addr)) => return Err(AdviseError::Unaligned(addr)),
            Err(BadRange::Overflow) => return Err(AdviseError::Overflow),
            // The part beyond the user half counts as a hole; the advice applies to the part below.
            Err(BadRange::Beyond(part)) => (part, true),
        };
        let range = self.in_huge_pages(range, advice)?;
        let mut begun = Advising { rest: Rest::all(range), advice, beyond_user_half, collapse_error: None };
        if range.is_empty() {
            return Ok(begun);
        }
        if advice.drops_contents() {
            VmaOps::of(self.space).check_may_drop_contents(range)?;
        }
        // Checks and splits that may fail come first, so that a failure changes nothing.
        let fully_mapped = match advice {
            Advise::DontNeed | Advise::DontNeedLocked => {
                self.split_edges_beside_faults(range)?;
                true
            }
            Advise::Free => self.check_vmas(range, true, true)?,
            Advise::WipeOnFork => self.check_vmas(range, false, true)?,
            Advise::KeepOnFork | Advise::DoDump => self.check_not_droppable(range)?,
            Advise::Cold | Advise::PageOut | Advise::GuardInstall => self.check_vmas(range, true, false)?,
            Advise::WillNeed => self.check_vmas(range, false, false)?,
            _ => true,
        };
        begun.rest.holes = !fully_mapped;
        Ok(begun)
    }

    /// Checks the VMAs of huge pages of the pool in a range. Returns the range, for advice that
    /// drops contents without the part of a huge page at its end (Linux:
    /// `madvise_dontneed_free_valid_vma`).
    ///
    /// # Errors
    /// [`AdviseError::NotPrivate`]: the advice is for other memory. [`AdviseError::Unaligned`]: the
    /// range begins in the middle of a huge page.
    fn in_huge_pages(self, range: UserRange, advice: Advise) -> Result<UserRange, AdviseError> {
        let vmas = self.space.read();
        let mut whole = range;
        for vma in vmas.overlapping(self.platform(), range).filter(|vma| vma.is_hugetlb()) {
            match advice {
                Advise::Free
                | Advise::Huge
                | Advise::WipeOnFork
                | Advise::Cold
                | Advise::PageOut
                | Advise::Collapse
                | Advise::Poison
                | Advise::GuardInstall => return Err(AdviseError::NotPrivate(*vma.range)),
                Advise::DontNeed | Advise::DontNeedLocked if vma.splits_huge_at(range.start) => {
                    return Err(AdviseError::Unaligned(range.start));
                }
                Advise::DontNeed | Advise::DontNeedLocked if vma.splits_huge_at(range.end) => {
                    whole = range.head(align_down(range.end, HUGETLB_SHIFT));
                }
                _ => {}
            }
        }
        Ok(whole)
    }

    /// Reserves the pages again that the owner of a reservation has dropped from `range`, as far as
    /// the pool has pages.
    fn reserve_dropped(self, range: UserRange) {
        let vmas = self.space.read();
        for vma in vmas.overlapping(self.platform(), range).filter(|vma| vma.is_hugetlb()) {
            let part = vma.range.intersect(&range);
            let page = |addr: u64| vma.backing.offset(addr) >> HUGETLB_SHIFT;
            // SAFETY: the VMAs are locked, so that this one keeps its reference to the object.
            let object = unsafe { Object::of_backing(self.machine(), &vma.backing) };
            if !vma.backing.is_shared() {
                Hugetlb(&object).reserve_again(page(part.start)..page(part.end), self.space.id());
            }
        }
    }

    /// Implements [`AddressSpace::advise_some`](crate::space::AddressSpace::advise_some).
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
                    Thp::of(self.space)
                        .collapse(rest, &mut begun.collapse_error, more)
                        .map_err(AdviseError::Collapse)?;
                }
                Advise::PopulateRead => self.populate_for_advice(rest, Access::Read, more)?,
                Advise::PopulateWrite => self.populate_for_advice(rest, Access::Write, more)?,
                Advise::GuardInstall => self.install_markers(rest, Marker::Guard, more)?,
                Advise::Poison => self.install_markers(rest, Marker::Poison, more)?,
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
        begun.result().map(|()| true)
    }

    /// Applies advice that only changes VMAs. Returns true if all of `range` is mapped.
    ///
    /// # Errors
    /// Those of [`VmaOps::set_vmas_checked`]; nothing was changed.
    fn set_advice(self, range: UserRange, advice: Advise) -> Result<bool, AdviseError> {
        let set: fn(&mut Vma) = match advice {
            Advise::DontFork => |v| v.flags |= VmaFlags::DONTFORK,
            Advise::DoFork => |v| v.flags -= VmaFlags::DONTFORK,
            Advise::WipeOnFork => |v| v.flags |= VmaFlags::WIPEONFORK,
            Advise::KeepOnFork => |v| v.flags -= VmaFlags::WIPEONFORK,
            Advise::DontDump => |v| v.flags |= VmaFlags::DONTDUMP,
            Advise::DoDump => |v| v.flags -= VmaFlags::DONTDUMP,
            Advise::Mergeable => |v| {
                let can_merge = !v.backing.is_shared() && !v.flags.intersects(VmaFlags::DROPPABLE | VmaFlags::HUGETLB);
                v.flags.set(VmaFlags::MERGEABLE, can_merge);
            },
            Advise::Unmergeable => |v| v.flags -= VmaFlags::MERGEABLE,
            Advise::Huge => |v| v.advice = Advice::Huge,
            Advise::NoHuge => |v| v.advice = Advice::NoHuge,
            Advise::Reads(Expected::Unknown) => |v| v.flags -= VmaFlags::READ_MASK,
            Advise::Reads(Expected::Sequential) => |v| v.flags = (v.flags - VmaFlags::READ_MASK) | VmaFlags::SEQ_READ,
            Advise::Reads(Expected::Random) => |v| v.flags = (v.flags - VmaFlags::READ_MASK) | VmaFlags::RAND_READ,
            Advise::Name(number) => return self.set_vmas(range, |v| v.name = number),
            _ => return Ok(true),
        };
        self.set_vmas(range, set)
    }

    /// Changes the VMAs of a range. Returns true if all of it is mapped.
    ///
    /// # Errors
    /// Those of [`VmaOps::set_vmas_checked`]; nothing was changed.
    fn set_vmas(self, range: UserRange, set: impl Fn(&mut Vma)) -> Result<bool, AdviseError> {
        Ok(VmaOps::of(self.space)
            .set_vmas_checked(&mut Change::begin(self.space, range), range, Holes::Skip, |_| Ok(()), set)?
            .covered)
    }

    /// Returns true if all of `range` is mapped. Locks the VMAs for reading.
    ///
    /// # Errors
    /// With `need_unlocked`, [`AdviseError::Locked`] if a VMA is locked (`mlock`). With
    /// `need_private`, [`AdviseError::NotPrivate`] if a VMA is not private anonymous memory.
    pub(super) fn check_vmas(
        self,
        range: UserRange,
        need_unlocked: bool,
        need_private: bool,
    ) -> Result<bool, AdviseError> {
        let vmas = self.space.read();
        for vma in vmas.overlapping(self.platform(), range).filter(|vma| vma.state != State::Dying) {
            if need_unlocked && vma.flags.contains(VmaFlags::LOCKED) {
                return Err(AdviseError::Locked(*vma.range));
            }
            if need_private && !vma.backing.is_anonymous() {
                return Err(AdviseError::NotPrivate(*vma.range));
            }
        }
        Ok(vmas.covers(self.platform(), range))
    }

    /// Returns true if all of `range` is mapped.
    ///
    /// # Errors
    /// [`AdviseError::Droppable`] if a VMA is droppable.
    fn check_not_droppable(self, range: UserRange) -> Result<bool, AdviseError> {
        let vmas = self.space.read();
        let is_droppable = |vma: &&Vma| vma.flags.contains(VmaFlags::DROPPABLE) && vma.state != State::Dying;
        match vmas.overlapping(self.platform(), range).find(is_droppable) {
            Some(vma) => Err(AdviseError::Droppable(*vma.range)),
            None => Ok(vmas.covers(self.platform(), range)),
        }
    }

    /// Zaps what is left in `rest`, except what outlives the contents ([`Keep::contents_of`]),
    /// until `more` returns false. Faults go on while this runs. Looks the VMAs up again after each
    /// piece.
    ///
    /// # Errors
    /// [`AdviseError::Locked`] at the first locked VMA (`mlock`), unless `locked_too`.
    /// [`AdviseError::NoMemory`] if a huge PTE could not be split. The range before the failure is
    /// zapped.
    fn dont_need(self, rest: &mut Rest, locked_too: bool, more: More<'_>) -> Result<(), AdviseError> {
        self.space.peak.note(&self.tables().slots);
        let mut gather = self.space.gather(rest.left);
        let mut huge = UserRange::default();
        Pieces::of(self.space).each_vma(rest, more, |vma, part| {
            if vma.is_hugetlb() {
                huge = if huge.is_empty() { part } else { vma.range.tail(huge.start).head(part.end) };
            }
            if vma.flags.contains(VmaFlags::LOCKED) && !locked_too {
                return Err(AdviseError::Locked(*vma.range));
            }
            Ok(Zap::of(self.space).piece(part, Keep::contents_of(vma), &mut gather)?)
        })?;
        drop(gather);
        if !huge.is_empty() {
            self.reserve_dropped(huge);
        }
        Ok(())
    }

    /// Splits the huge PTEs that cross an end of `range`, which is not empty. Takes the VMA lock
    /// for reading, so faults go on while this runs. If another change is at work on a VMA at an
    /// end of `range` ([`State::Locked`]), claims `range` instead ([`Change`]), which waits until
    /// that change has ended.
    ///
    /// # Errors
    /// [`Refused`] if there is no memory for a page table.
    fn split_edges_beside_faults(self, range: UserRange) -> Result<(), Refused> {
        let vmas = self.space.read();
        let is_locked_at = |at| vmas.tree.find(at).is_some_and(|v| v.state == State::Locked);
        if !is_locked_at(range.start) && !is_locked_at(range.end - 1) {
            return self.tables().split_edges(range);
        }
        drop(vmas);
        let _claim = Change::claim_unlocked(self.space, range);
        self.tables().split_edges(range)
    }

    /// Faults in what is left in `rest` for `access` (`MADV_POPULATE_READ`, `MADV_POPULATE_WRITE`).
    ///
    /// # Errors
    /// [`AdviseError::NotMapped`] at the first hole, [`AdviseError::Inaccessible`] at the first VMA
    /// that forbids the access, [`AdviseError::Fault`] at the first page that could not be faulted
    /// in. The range before the failure is faulted in.
    fn populate_for_advice(self, rest: &mut Rest, access: Access, more: More<'_>) -> Result<(), AdviseError> {
        let mut go_on = true;
        while go_on && !rest.left.is_empty() {
            let Some(vma) = self.space.read().find(rest.left.start).copied() else {
                return Err(AdviseError::NotMapped);
            };
            // As on Linux, the protection of the VMA decides: `MADV_POPULATE_READ` fails for a
            // write-only VMA, although hardware lets a program read it.
            if !vma.prot.contains(if access == Access::Write { Prot::WRITE } else { Prot::READ }) {
                return Err(AdviseError::Inaccessible(*vma.range));
            }
            let end = vma.range.end.min(rest.left.end);
            while go_on && rest.left.start < end {
                match Fault::of(self.space).fault_in(rest.left.start, access) {
                    Ok((mapped, _)) => rest.left = rest.left.tail(mapped.end),
                    Err(FaultError::Unmapped(_)) => return Err(AdviseError::NotMapped),
                    Err(error) => return Err(AdviseError::Fault(error)),
                }
                self.platform().resched();
                go_on = more();
            }
        }
        Ok(())
    }

    /// Swaps in the pages of `rest` that are on swap devices, as far as there is memory and the
    /// devices can read them, and begins to read pages of files, until `more` returns false
    /// (`MADV_WILLNEED`).
    fn will_need(self, rest: &mut Rest, more: More<'_>) {
        Pieces::of(self.space).each_table(rest, more, |part| {
            let vmas = self.space.read();
            for vma in vmas.overlapping(self.platform(), part).filter(|vma| !vma.backing.is_anonymous()) {
                let part = vma.range.intersect(&part);
                let page = |addr: u64| vma.backing.offset(addr) >> self.page_shift();
                // SAFETY: the VMAs are locked, so that this one keeps its reference to the object.
                let object = unsafe { Object::of_backing(self.machine(), &vma.backing) };
                let _ =
                    object.read_ahead(&mut Readahead::new(0), page(part.start)..page(part.end), self.tables().memcg());
            }
            drop(vmas);
            // While this claims the range, no other operation unmaps or moves its VMAs.
            let _claim = Change::claim_unlocked(self.space, part);
            // Advice is a hint: a page that is not swapped in now is swapped in by a fault. If
            // memory is refused for one page, there is none for the following pages either, and the
            // visit ends.
            !matches!(SwapIn::of(self.space).swap_in_range(part, |_| true), Err(FaultError::NoMemory(_)))
        });
    }
}
