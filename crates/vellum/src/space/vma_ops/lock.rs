//! Memory locking: `mlock`, `munlock`, `mlockall` and `munlockall`.
//!
//! Locking a VMA faults its pages in at once, and keeps the reclaimer from reclaiming them. With
//! `ONFAULT`, only the program's accesses fault pages in. To find out whether a folio is locked,
//! the reclaimer checks the VMAs that map it.
//!
//! A folio that was faulted in before its VMA was locked stays on its LRU list until the reclaimer
//! finds it there and moves it to the list of unevictable folios. A folio that is faulted in later
//! goes to the unevictable list at once. Unlocking a VMA moves its folios back to the LRU lists. If
//! a locked VMA is unmapped without an unlock while another, unlocked VMA maps the same folio, the
//! folio stays on the unevictable list. The reclaimer scans that list when it finds nothing else to
//! reclaim.

use bitflags::bitflags;

use crate::addr::align_down;
use crate::arch::{BadRange, UserRange};
use crate::errno::Errno;
use crate::memcg::{LruList, Refused, may_be_refused};
use crate::platform::Platform;
use crate::vma::{Prot, Vma, VmaFlags};

use super::{Populating, ProtectError, VmaOps};
use crate::space::fault::{Access, FaultError};
use crate::space::ground::{Change, Ptes};

bitflags! {
    /// The flags of `mlockall`, with Linux's bits (`MCL_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct LockAll: u8 {
        /// Locks the present VMAs (`MCL_CURRENT`).
        const CURRENT = 1;
        /// Locks the VMAs that are mapped later (`MCL_FUTURE`).
        const FUTURE = 2;
        /// Faults nothing in (`MCL_ONFAULT`).
        const ONFAULT = 4;
    }
}

/// The reason why memory was not locked or unlocked. Nothing was changed, except after
/// [`LockError::Fault`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockError {
    /// The range ends beyond the last address.
    Overflow,
    /// The flags contain an unknown bit, or neither [`LockAll::CURRENT`] nor [`LockAll::FUTURE`].
    Flags(LockAll),
    /// The limit on locked memory is 0.
    Forbidden,
    /// Not all of the range is mapped.
    NotMapped,
    /// The limit on locked memory would be exceeded.
    LockLimit,
    /// The change splits VMAs, and the limit on their number would be exceeded.
    TooManyVmas,
    /// There is no memory to split VMAs or huge PTEs.
    NoMemory(Refused),
    /// The range is locked, but not all of it could be faulted in.
    Fault(FaultError),
}

impl LockError {
    /// Returns the errno that Linux's `mlock`, `munlock` and `mlockall` report.
    pub const fn errno(&self) -> Errno {
        match self {
            LockError::Overflow | LockError::Flags(_) => Errno::EINVAL,
            LockError::Forbidden => Errno::EPERM,
            LockError::Fault(FaultError::NoMemory(_)) => Errno::EAGAIN,
            _ => Errno::ENOMEM,
        }
    }
}

impl core::fmt::Display for LockError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LockError::Overflow => f.write_str("the range ends beyond the last address: shorten it"),
            LockError::Flags(flags) => write!(f, "invalid mlockall flags {flags:?}: pass CURRENT, FUTURE or both"),
            LockError::Forbidden => f.write_str("the limit on locked memory is 0: raise it"),
            LockError::NotMapped => f.write_str("not all of the range is mapped: pass a mapped range"),
            LockError::LockLimit => {
                f.write_str("the range exceeds the limit on locked memory: raise it, or unlock other memory")
            }
            LockError::TooManyVmas => f.write_str("too many VMAs: raise the limit, or unmap some"),
            LockError::NoMemory(why) => why.fmt(f),
            LockError::Fault(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for LockError {}

may_be_refused!(LockError, Fault);

impl From<ProtectError> for LockError {
    fn from(error: ProtectError) -> Self {
        match error {
            ProtectError::NotMapped => LockError::NotMapped,
            ProtectError::TooManyVmas => LockError::TooManyVmas,
            ProtectError::NoMemory(why) => LockError::NoMemory(why),
            _ => LockError::NoMemory(Refused::OutOfMemory),
        }
    }
}

/// Returns the flags of a VMA with its `mlock` flags replaced by `lock`. Droppable memory and
/// huge pages of the pool are never locked: their flags stay as they are.
fn with_lock_flags(flags: VmaFlags, lock: VmaFlags) -> VmaFlags {
    if flags.intersects(VmaFlags::DROPPABLE | VmaFlags::HUGETLB) {
        flags
    } else {
        (flags - VmaFlags::LOCKED_MASK) | lock
    }
}

impl<P: Platform> VmaOps<'_, '_, P> {
    /// Implements [`AddressSpace::lock`](crate::space::AddressSpace::lock).
    pub(super) fn lock(self, addr: u64, len: u64, on_fault: bool) -> Result<(), LockError> {
        let mut rest = self.begin_lock(addr, len, on_fault)?;
        self.populate_some(&mut rest, || true).map(|_| ()).map_err(LockError::Fault)
    }

    /// Implements [`AddressSpace::begin_lock`](crate::space::AddressSpace::begin_lock).
    pub(super) fn begin_lock(self, addr: u64, len: u64, on_fault: bool) -> Result<Populating, LockError> {
        let limit = self.space.limits().locked;
        if limit == 0 {
            return Err(LockError::Forbidden);
        }
        let range =
            self.page_range(addr, len).map_err(|error| if len > limit { LockError::LockLimit } else { error })?;
        let mut lock = VmaFlags::LOCKED;
        lock.set(VmaFlags::ONFAULT, on_fault);
        let mut change = Change::begin(self.space, range);
        let vmas = change.vmas();
        let is_locked = |vma: &&Vma| vma.flags.contains(VmaFlags::LOCKED);
        let bytes_in_range = |vma: &Vma| vma.range.intersect(&range).len();
        let locked_already =
            vmas.overlapping(self.platform(), range).filter(is_locked).map(bytes_in_range).sum::<u64>();
        if (vmas.locked - locked_already).saturating_add(range.len()) > vmas.limits.locked {
            return Err(LockError::LockLimit);
        }
        self.set_vmas(&mut change, range, |v| v.flags = with_lock_flags(v.flags, lock))?;
        drop(change);
        Ok(Populating::all(range, false))
    }

    /// Implements [`AddressSpace::unlock`](crate::space::AddressSpace::unlock).
    pub(super) fn unlock(self, addr: u64, len: u64) -> Result<(), LockError> {
        let range = self.page_range(addr, len)?;
        let mut change = Change::begin(self.space, range);
        if self.set_vmas(&mut change, range, |v| v.flags -= VmaFlags::LOCKED_MASK)? {
            change.unlock();
            self.make_evictable(range);
        }
        Ok(())
    }

    /// Implements [`AddressSpace::lock_all`](crate::space::AddressSpace::lock_all).
    pub(super) fn lock_all(self, flags: LockAll) -> Result<(), LockError> {
        self.begin_lock_all(flags).map(|rest| self.populate_all(rest))
    }

    /// Implements [`AddressSpace::begin_lock_all`](crate::space::AddressSpace::begin_lock_all).
    pub(super) fn begin_lock_all(self, flags: LockAll) -> Result<Populating, LockError> {
        if !flags.intersects(LockAll::CURRENT | LockAll::FUTURE) || flags.bits() & !LockAll::all().bits() != 0 {
            return Err(LockError::Flags(flags));
        }
        let all = UserRange::all(self.arch());
        let mut lock = VmaFlags::LOCKED;
        lock.set(VmaFlags::ONFAULT, flags.contains(LockAll::ONFAULT));
        let mut change = Change::begin(self.space, all);
        let vmas = change.vmas();
        if vmas.limits.locked == 0 {
            return Err(LockError::Forbidden);
        }
        if flags.contains(LockAll::CURRENT) && vmas.mapped > vmas.limits.locked {
            return Err(LockError::LockLimit);
        }
        vmas.def_flags = if flags.contains(LockAll::FUTURE) { lock } else { VmaFlags::empty() };
        if flags.contains(LockAll::CURRENT) {
            vmas.account_all(self.machine(), all, -1);
            vmas.each(self.machine(), all, |v| v.flags = with_lock_flags(v.flags, lock));
            vmas.account_all(self.machine(), all, 1);
        }
        drop(change);
        let to_populate = if flags.contains(LockAll::CURRENT) { all } else { UserRange::default() };
        Ok(Populating::all(to_populate, false))
    }

    /// Implements [`AddressSpace::unlock_all`](crate::space::AddressSpace::unlock_all).
    pub(super) fn unlock_all(self) {
        let all = UserRange::all(self.arch());
        let mut change = Change::begin(self.space, all);
        let vmas = change.vmas();
        vmas.def_flags = VmaFlags::empty();
        let has_locked_vmas = vmas.locked > 0;
        vmas.account_all(self.machine(), all, -1);
        vmas.each(self.machine(), all, |v| v.flags -= VmaFlags::LOCKED_MASK);
        vmas.account_all(self.machine(), all, 1);
        if has_locked_vmas {
            change.unlock();
            self.make_evictable(all);
        }
    }

    /// Moves the folios that `range` maps from the unevictable list back to the LRU lists. This
    /// includes folios that another locked VMA maps; the reclaimer moves such a folio back when it
    /// finds that VMA.
    fn make_evictable(self, range: UserRange) {
        let machine = self.machine();
        Ptes::of(self.space).each_run(range, |_, run| {
            for (head, frame) in Ptes::of(self.space).folios_of(run) {
                if LruList::of(frame) == Some(LruList::Unevictable) {
                    let list = LruList::evictable(frame);
                    machine.lru().relist(head, Some(LruList::Unevictable), list);
                }
            }
            false
        });
    }

    /// Returns the whole pages that overlap the `len` bytes from `addr` on.
    ///
    /// # Errors
    /// [`LockError::NotMapped`]: the pages reach beyond the user half. [`LockError::Overflow`]:
    /// they end beyond the last address.
    fn page_range(self, addr: u64, len: u64) -> Result<UserRange, LockError> {
        let start = align_down(addr, self.page_shift());
        let len = len.checked_add(addr - start).ok_or(LockError::Overflow)?;
        UserRange::new(self.arch(), start, len).map_err(|bad| match bad {
            BadRange::Beyond(_) => LockError::NotMapped,
            BadRange::Unaligned(_) | BadRange::Overflow => LockError::Overflow,
        })
    }
}

impl Vma {
    /// Returns the kind of access that faults this VMA in ahead of use: a write for writable
    /// private memory, so that its private pages are allocated; otherwise a read.
    pub(super) fn populate_access(&self) -> Access {
        if self.prot.contains(Prot::WRITE) && !self.backing.is_shared() { Access::Write } else { Access::Read }
    }
}
