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

use crate::addr::{VirtRange, align_down};
use crate::arch::{Arch, Attrs, BadRange, Kind, Marker, UserRange};
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::table::{Found, Run};
use crate::vma::{Vma, VmaFlags, Watcher};

use super::AddressSpace;
use crate::space::anon::Anon;
use crate::space::fault::{Access, FaultError, Outcome};
use crate::space::ground::{Change, Ptes};
use crate::space::protect::ProtectError;

/// Of what a watcher is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Who is to be told.
    pub by: Watcher,
    /// The page.
    pub page: u64,
    /// What somebody wanted with it.
    pub access: Access,
    /// Why he can't have it.
    pub what: Happening,
}

/// What happens to a page that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// It was touched, and is not there.
    Missing,
    /// It was to be written, and is protected.
    Write,
}

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

/// Whether writes to what is protected in a VMA are told at once.
pub(super) fn tells(vma: &Vma) -> bool {
    vma.flags & (VmaFlags::WRITES | VmaFlags::ASYNC) == VmaFlags::WRITES
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
        self.set_vmas(&mut change, range, |v| (v.watcher, v.flags) = (Some(by), now(v)))?;
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
            self.set_vmas(&mut change, part, nobody)?;
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
        let protected = self.protect_all(range, unmapped);
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

    fn told(&self, vma: &Vma, addr: u64, access: Access, what: Happening) -> Result<Outcome, FaultError> {
        match vma.watcher {
            Some(by) => {
                Err(FaultError::Watched(Watched { by, page: align_down(addr, self.page_shift()), access, what }))
            }
            None => Ok(Outcome::Again),
        }
    }

    /// Nothing is there but perhaps such a marker, and somebody watches for that; unless somebody else is about to put something there.
    #[cold]
    pub(super) fn tell_missing(&self, vma: &Vma, addr: u64, access: Access) -> Result<Outcome, FaultError> {
        let arch = &self.tables.arch;
        if let Found::Table(table) = self.tables.find(vma.range.tail(addr)) {
            let raw = table.get(addr);
            let kind = arch.kind(raw, table.level);
            table.release();
            if kind != Kind::None && !(kind == Kind::Marker && arch.marked(raw) == Some(Marker::Watched)) {
                return Ok(Outcome::Again);
            }
        }
        self.told(vma, addr, access, Happening::Missing)
    }

    /// Nothing is there but a marker that says that writes are watched for.
    #[cold]
    pub(super) fn touch_marker(&self, vma: &Vma, addr: u64, access: Access) -> Result<Outcome, FaultError> {
        if vma.flags.contains(VmaFlags::MISSING) {
            return self.tell_missing(vma, addr, access);
        }
        if access != Access::Write {
            return self.map_marked_zeros(vma, addr);
        }
        if tells(vma) {
            return self.told(vma, addr, Access::Write, Happening::Write);
        }
        let page = align_down(addr, self.page_shift());
        Ptes::of(self).each_run(vma.range.around(page, self.page_shift()), |table, run| {
            if run.kind == Kind::Marker && self.tables.arch.marked(run.raw) == Some(Marker::Watched) {
                table.erase(run);
            }
            false
        });
        Ok(Outcome::Again)
    }

    /// A page is there, is to be written, and is protected. `mapping`: what its entry maps.
    #[cold]
    pub(super) fn touch_watched(&self, vma: &Vma, addr: u64, mapping: UserRange) -> Result<Outcome, FaultError> {
        if tells(vma) {
            return self.told(vma, addr, Access::Write, Happening::Write);
        }
        if mapping.len() > 1 << self.page_shift() {
            return self.unshare_part(addr, mapping);
        }
        Ok(self.first_write(vma, addr))
    }

    /// The largest block around a page, of these orders, that holds nothing but such markers; the page alone, if none does.
    pub(super) fn marked_block(
        &self,
        window: UserRange,
        addr: u64,
        orders: u32,
        marker: Option<Marker>,
    ) -> (UserRange, u8) {
        let arch = &self.tables.arch;
        let mut found = (window.around(addr, arch.page_shift()), arch.page_order());
        if let Found::Table(table) = self.tables.find(window.tail(addr)) {
            let marked = |(block, _): &(UserRange, u8)| {
                block.start >= table.base
                    && block.end <= table.end()
                    && table.run(block.start, block.end).is_some_and(|run| self.is_marker(&run, *block, marker))
            };
            if table.level == 1
                && let Some(block) = self.tables.blocks(addr, window, orders).find(marked)
            {
                found = block;
            }
            table.release();
        }
        found
    }

    fn is_marker(&self, run: &Run, range: UserRange, marker: Option<Marker>) -> bool {
        let arch = &self.tables.arch;
        run.kind == Kind::Marker && arch.marked(run.raw) == marker && range == run.range(arch)
    }

    /// Write a run where nothing but such markers stands. `false`: something else does.
    pub(super) fn map_over_markers(&self, range: UserRange, run: &Run, marker: Option<Marker>) -> bool {
        let arch = &self.tables.arch;
        let Found::Table(table) = self.tables.find(range) else { return false };
        let old = table
            .run(range.start, range.end)
            .filter(|old| self.is_marker(old, range, marker) && old.level == run.level);
        if let Some(old) = &old {
            self.tables.tlb.before_filling(*range, arch.page_shift());
            table.replace(old, run);
        }
        table.release();
        old.is_some()
    }

    /// A read of untouched memory whose writes are watched for.
    fn map_marked_zeros(&self, vma: &Vma, addr: u64) -> Result<Outcome, FaultError> {
        let orders = self.zeros_orders(Anon::of(self).orders(vma));
        let (block, _) = self.marked_block(vma.range, addr, orders, Some(Marker::Watched));
        let zeros = self.zeros_run(vma, block, Attrs::WATCHED);
        match self.map_over_markers(block, &zeros, Some(Marker::Watched)) {
            true => Ok(Outcome::Mapped(*block)),
            false => Ok(Outcome::Again),
        }
    }
}
