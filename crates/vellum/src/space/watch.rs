//! Somebody is told what happens to pages before it happens, and decides what comes of it (Linux: `userfaultfd`).
//!
//! A VMA may be watched for pages that are touched and not there ([`VmaFlags::MISSING`]), and for writes to pages that its watcher
//! has protected ([`VmaFlags::WRITES`]). Such a fault changes nothing and says who is to be told ([`FaultError::Watched`]); the host has
//! the thread wait, and when the watcher has supplied the page ([`super::supply`]) or given the right to write back, the access is tried
//! again. Or writes go on at once, and take the protection with them ([`VmaFlags::ASYNC`]): then [`super::scan`] tells what was written.
//!
//! A page is protected by its entry ([`Attrs::WATCHED`]), where it went by its swap entry, and where there is none by a marker. So
//! protecting is done by the run, outlives swapping and moving, and is exact to the page: what is protected and what is not are
//! different runs. A child is not watched, and has no protection.

use crate::addr::VirtRange;
use crate::arch::{Arch, Attrs, BadRange, Kind, Marker, UserRange};
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::vma::{Vma, VmaFlags, Watcher};

use super::AddressSpace;
use crate::space::ground::{Change, Ptes};
use crate::space::observe::Observe;
use crate::space::vma_ops::{ProtectError, VmaOps};

/// Why nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchError {
    /// The range is not in whole pages, or empty.
    Unaligned(VirtRange),
    /// The range reaches beyond the addresses of user mode.
    OutOfRange(VirtRange),
    /// Nothing is to be watched for, or writes are to go on that nobody watches for.
    Nothing,
    /// Not all of the range is mapped.
    NotMapped,
    /// This VMA can't be watched so: only private anonymous memory can, unless writes are to go on.
    Unwatchable(VirtRange),
    /// Somebody else watches this VMA.
    Taken(VirtRange),
    /// Not all of the range is watched for writes.
    NotWatched,
    /// VMAs would have to be split, and the space has as many as it may.
    TooManyVmas,
    /// No memory to split VMAs or huge mappings, or for tables of markers. Of what is to be protected, some may be.
    NoMemory(Refused),
}

impl WatchError {
    /// What Linux's requests to a `userfaultfd` answer.
    pub const fn errno(&self) -> Errno {
        match self {
            WatchError::Taken(_) => Errno::EBUSY,
            WatchError::NotWatched => Errno::ENOENT,
            WatchError::TooManyVmas | WatchError::NoMemory(_) => Errno::ENOMEM,
            _ => Errno::EINVAL,
        }
    }
}

impl core::fmt::Display for WatchError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            WatchError::Unaligned(range) => write!(f, "{range:?} is empty or not in whole pages"),
            WatchError::OutOfRange(range) => write!(f, "{range:?} reaches beyond the addresses of user mode"),
            WatchError::Nothing => f.write_str("nothing to watch for"),
            WatchError::NotMapped => f.write_str("not all of the range is mapped"),
            WatchError::Unwatchable(range) => write!(f, "{range:?} can't be watched so"),
            WatchError::Taken(range) => write!(f, "somebody else watches {range:?}"),
            WatchError::NotWatched => f.write_str("not all of the range is watched for writes"),
            WatchError::TooManyVmas => f.write_str("too many VMAs"),
            WatchError::NoMemory(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for WatchError {}

may_be_refused!(WatchError);

impl From<ProtectError> for WatchError {
    fn from(error: ProtectError) -> Self {
        match error {
            ProtectError::NotMapped => WatchError::NotMapped,
            ProtectError::TooManyVmas => WatchError::TooManyVmas,
            ProtectError::NoMemory(why) => WatchError::NoMemory(why),
            _ => WatchError::NoMemory(Refused::OutOfMemory),
        }
    }
}

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// From now on `by` is told of what happens in a range: of `what`, some of [`VmaFlags::WATCHES`], instead of what he was told of before.
    ///
    /// # Errors
    /// See [`WatchError`]: nothing was changed.
    pub fn watch(&self, range: VirtRange, by: Watcher, what: VmaFlags) -> Result<(), WatchError> {
        let range = self.whole_pages(range)?;
        let what = what & VmaFlags::WATCHES;
        if what.is_empty() || what.contains(VmaFlags::ASYNC) && !what.contains(VmaFlags::WRITES) {
            return Err(WatchError::Nothing);
        }
        let mut change = Change::begin(self, range);
        let vmas = change.vmas();
        if !vmas.covers(self.tables.platform(), range) {
            return Err(WatchError::NotMapped);
        }
        let waits = what.contains(VmaFlags::MISSING) || !what.contains(VmaFlags::ASYNC);
        for vma in vmas.overlapping(self.tables.platform(), range) {
            if waits && !vma.backing.is_anonymous() {
                return Err(WatchError::Unwatchable(*vma.range));
            }
            if vma.watcher.is_some_and(|watcher| watcher != by) {
                return Err(WatchError::Taken(*vma.range));
            }
        }
        let now = |v: &Vma| (v.flags - VmaFlags::WATCHES) | what;
        VmaOps::of(self).set_vmas(&mut change, range, |v| (v.watcher, v.flags) = (Some(by), now(v)))?;
        if !what.contains(VmaFlags::WRITES) {
            change.unlock();
            self.forget_marks(range);
        }
        Ok(())
    }

    /// From now on `by` is told of nothing in a range, and what he has protected there is so no more.
    ///
    /// # Errors
    /// See [`WatchError`]: what lies before the VMA that could not be split is done. No VMA needs to be if the range is all of the space.
    pub fn unwatch(&self, range: VirtRange, by: Watcher) -> Result<(), WatchError> {
        let range = self.whole_pages(range)?;
        let mut change = Change::begin(self, range);
        let mut rest = range;
        loop {
            let vma = change.vmas().overlapping(self.tables.platform(), rest).find(|v| v.watcher == Some(by)).copied();
            let Some(vma) = vma else { return Ok(()) };
            let part = vma.range.intersect(&rest);
            let nobody = |v: &mut Vma| (v.watcher, v.flags) = (None, v.flags - VmaFlags::WATCHES);
            VmaOps::of(self).set_vmas(&mut change, part, nobody)?;
            change.unlock();
            self.forget_marks(part);
            rest = rest.tail(part.end);
        }
    }

    /// Protect every page of a range that is watched for writes, and (if `unmapped`) those where there is none yet. When this returns
    /// whoever writes there faults.
    ///
    /// # Errors
    /// See [`WatchError`].
    pub fn write_protect(&self, range: VirtRange, unmapped: bool) -> Result<(), WatchError> {
        let range = self.whole_pages(range)?;
        let change = self.change_watched(range)?;
        let protected = Observe::of(self).write_protect_all(range, unmapped);
        drop(change);
        Ok(protected?)
    }

    /// Let every page of a range that is watched for writes be written again.
    ///
    /// # Errors
    /// See [`WatchError`].
    pub fn write_unprotect(&self, range: VirtRange) -> Result<(), WatchError> {
        let range = self.whole_pages(range)?;
        let _change = self.change_watched(range)?;
        self.tables.split_edges(range)?;
        self.forget_marks(range);
        Ok(())
    }

    /// Begin to change a range that is watched for writes.
    fn change_watched(&self, range: UserRange) -> Result<Change<'_, 'm, P, A>, WatchError> {
        let mut change = Change::begin(self, range);
        let vmas = change.vmas();
        let watched = vmas.overlapping(self.tables.platform(), range).all(|v| v.flags.contains(VmaFlags::WRITES));
        if !watched || !vmas.covers(self.tables.platform(), range) {
            return Err(WatchError::NotWatched);
        }
        change.unlock();
        Ok(change)
    }

    fn whole_pages(&self, range: VirtRange) -> Result<UserRange, WatchError> {
        match UserRange::exact(&self.tables.arch, range) {
            Ok(exact) if !exact.is_empty() => Ok(exact),
            Err(BadRange::Beyond(_)) => Err(WatchError::OutOfRange(range)),
            _ => Err(WatchError::Unaligned(range)),
        }
    }

    /// Nothing in a range is protected any more. The range is claimed, and no huge mapping that is reaches across its ends.
    fn forget_marks(&self, range: UserRange) {
        let arch = &self.tables.arch;
        Ptes::of(self).each_run(range, |table, run| {
            match run.kind {
                Kind::Leaf if run.attrs(arch).contains(Attrs::WATCHED) => {
                    // What the VMA allows, the next write finds out, for all of the run.
                    let attrs = run.attrs(arch) - Attrs::WATCHED;
                    table.rewrite(run, arch.leaf(arch.leaf_addr(run.raw, run.level), attrs, run.level));
                }
                Kind::Swap => Ptes::of(self).set_swap_attrs(table, run, arch.swapped(run.raw).attrs - Attrs::WATCHED),
                Kind::Marker if arch.marked(run.raw) == Some(Marker::Watched) => table.erase(run),
                _ => {}
            }
            false
        });
    }
}
