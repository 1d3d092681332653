//! Memory that is to stay: `mlock` and its kin.
//!
//! A locked VMA is faulted in at once, and its memory is not to be reclaimed; or, `ONFAULT`, only
//! the latter. Who reclaims asks the VMA. So what was faulted in before stays on its LRU list until
//! somebody looks at it there; then, and what is faulted in later at once, it goes to the list of
//! what is not to be looked at. Unlocking brings it back from there. (What nobody has locked any
//! more for another reason is found there when nothing else can be reclaimed.)

use bitflags::bitflags;

use crate::addr::align_down;
use crate::arch::{Arch, BadRange, UserRange};
use crate::errno::Errno;
use crate::memcg::{LruList, Refused, may_be_refused};
use crate::platform::Platform;
use crate::vma::{Prot, Vma, VmaFlags};

use super::{Populating, ProtectError, VmaOps};
use crate::space::fault::{Access, FaultError};
use crate::space::ground::{Change, Ptes};

bitflags! {
    /// Which VMAs to lock, and how. The bits are Linux's.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct LockAll: u8 {
        /// Those that there are (`MCL_CURRENT`).
        const CURRENT = 1;
        /// Those that will be mapped (`MCL_FUTURE`).
        const FUTURE = 2;
        /// Fault nothing in for that (`MCL_ONFAULT`).
        const ONFAULT = 4;
    }
}

/// Why memory was not locked, or unlocked. Nothing was changed, unless something else is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockError {
    /// The end is beyond the last address.
    Overflow,
    /// Flags that make no sense.
    Flags(LockAll),
    /// No memory may be locked at all.
    Forbidden,
    /// Not all of the range is mapped.
    NotMapped,
    /// More locked memory than the limit allows.
    LockLimit,
    /// VMAs would have to be split, and the space has as many as it may.
    TooManyVmas,
    /// VMAs or huge mappings would have to be split, and there is no memory for that.
    NoMemory(Refused),
    /// It is locked, but not all of it could be faulted in.
    Fault(FaultError),
}

impl LockError {
    /// What Linux's `mlock`, `munlock` and `mlockall` answer.
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
            LockError::Overflow => f.write_str("beyond the last address"),
            LockError::Flags(flags) => write!(f, "{flags:?} make no sense"),
            LockError::Forbidden => f.write_str("no memory may be locked"),
            LockError::NotMapped => f.write_str("not all of the range is mapped"),
            LockError::LockLimit => f.write_str("over the limit on locked memory"),
            LockError::TooManyVmas => f.write_str("too many VMAs"),
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

/// What locking makes of a VMA.
fn with_lock(flags: VmaFlags, lock: VmaFlags) -> VmaFlags {
    (flags - VmaFlags::LOCKED_MASK) | lock
}

impl<P: Platform, A: Arch> VmaOps<'_, '_, P, A> {
    /// Implements [`AddressSpace::lock`].
    pub(super) fn lock(self, addr: u64, len: u64, on_fault: bool) -> Result<(), LockError> {
        let mut rest = self.begin_lock(addr, len, on_fault)?;
        self.populate_some(&mut rest, || true).map(|_| ()).map_err(LockError::Fault)
    }

    /// Implements [`AddressSpace::begin_lock`].
    pub(super) fn begin_lock(self, addr: u64, len: u64, on_fault: bool) -> Result<Populating, LockError> {
        let limit = self.space.limits().locked;
        if limit == 0 {
            return Err(LockError::Forbidden);
        }
        let range = self.pages_of(addr, len).map_err(|error| if len > limit { LockError::LockLimit } else { error })?;
        let mut lock = VmaFlags::LOCKED;
        lock.set(VmaFlags::ONFAULT, on_fault);
        let mut change = Change::begin(self.space, range);
        let vmas = change.vmas();
        let is_locked = |vma: &&Vma| vma.flags.contains(VmaFlags::LOCKED);
        let there = |vma: &Vma| vma.range.intersect(&range).len();
        let locked = vmas.overlapping(self.platform(), range).filter(is_locked).map(there).sum::<u64>();
        if (vmas.locked - locked).saturating_add(range.len()) > vmas.limits.locked {
            return Err(LockError::LockLimit);
        }
        self.set_vmas(&mut change, range, |v| v.flags = with_lock(v.flags, lock))?;
        drop(change);
        Ok(Populating::all(range, false))
    }

    /// Implements [`AddressSpace::unlock`].
    pub(super) fn unlock(self, addr: u64, len: u64) -> Result<(), LockError> {
        let range = self.pages_of(addr, len)?;
        let mut change = Change::begin(self.space, range);
        if self.set_vmas(&mut change, range, |v| v.flags -= VmaFlags::LOCKED_MASK)? {
            change.unlock();
            self.make_evictable(range);
        }
        Ok(())
    }

    /// Implements [`AddressSpace::lock_all`].
    pub(super) fn lock_all(self, flags: LockAll) -> Result<(), LockError> {
        self.begin_lock_all(flags).map(|rest| self.populate_all(rest))
    }

    /// Implements [`AddressSpace::begin_lock_all`].
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
            vmas.each(self.machine(), all, |v| v.flags = with_lock(v.flags, lock));
            vmas.account_all(self.machine(), all, 1);
        }
        drop(change);
        let now = if flags.contains(LockAll::CURRENT) { all } else { UserRange::default() };
        Ok(Populating::all(now, false))
    }

    /// Implements [`AddressSpace::unlock_all`].
    pub(super) fn unlock_all(self) {
        let all = UserRange::all(self.arch());
        let mut change = Change::begin(self.space, all);
        let vmas = change.vmas();
        vmas.def_flags = VmaFlags::empty();
        let some = vmas.locked > 0;
        vmas.account_all(self.machine(), all, -1);
        vmas.each(self.machine(), all, |v| v.flags -= VmaFlags::LOCKED_MASK);
        vmas.account_all(self.machine(), all, 1);
        if some {
            change.unlock();
            self.make_evictable(all);
        }
    }

    /// What a range has may be reclaimed again, unless who wants to finds it locked elsewhere.
    fn make_evictable(self, range: UserRange) {
        let machine = self.machine();
        Ptes::of(self.space).each_run(range, |_, run| {
            for (head, frame) in Ptes::of(self.space).folios_of(run) {
                if LruList::of(frame) == Some(LruList::Unevictable) {
                    let list = LruList::evictable(frame);
                    machine.memcgs().relist(machine.frames(), head, Some(LruList::Unevictable), list);
                }
            }
            false
        });
    }

    /// The pages that a range touches.
    fn pages_of(self, addr: u64, len: u64) -> Result<UserRange, LockError> {
        let start = align_down(addr, self.page_shift());
        let len = len.checked_add(addr - start).ok_or(LockError::Overflow)?;
        UserRange::new(self.arch(), start, len).map_err(|bad| match bad {
            BadRange::Beyond(_) => LockError::NotMapped,
            BadRange::Unaligned(_) | BadRange::Overflow => LockError::Overflow,
        })
    }
}

impl Vma {
    /// The access that brings all that there is to be brought ahead: private memory that may be
    /// written has its own.
    pub(super) fn populated_by(&self) -> Access {
        if self.prot.contains(Prot::WRITE) && !self.backing.is_shared() { Access::Write } else { Access::Read }
    }
}
