//! Operations on VMAs: `mmap`, `munmap`, `mremap`, `mprotect`, `madvise`, `mlock`, `mseal` and
//! `msync`.
//!
//! An operation first claims its range ([`Change`](super::ground::Change)): until it ends, no other
//! operation that changes VMAs works there. Operations whose ranges overlap run in the order in
//! which they arrived (INV-18). The operation takes the VMA lock, which protects the VMA tree of
//! the space, for writing, checks that it can succeed, and reserves all memory that it may need.
//! Where faults must fail or wait, it sets the state of the VMAs ([`State`](crate::vma::State)).
//! Then it releases the VMA lock, changes the page tables while operations on other ranges go on,
//! and takes the VMA lock again to finish.
//!
//! Most advice (`madvise`) that changes no VMA claims no range. It holds the VMA lock for reading,
//! as faults do, and so runs while faults go on.
//!
//! | file | operation |
//! |---|---|
//! | `map` | `mmap` |
//! | `map_object` | `mmap` of a page-cache object; finds the object at an address |
//! | `unmap` | `munmap`, and exit |
//! | `remap` | `mremap`: checks, growing, shrinking |
//! | `relocate` | `mremap`: moves VMAs and their PTEs |
//! | `protect` | `mprotect`; sets the protection and flags of VMAs for other operations too |
//! | `advise` | the kinds of advice, and the errors of `madvise` |
//! | `madvise` | `madvise`, in pieces between which the caller may do other work |
//! | `guard` | `MADV_GUARD_INSTALL` and `MADV_GUARD_REMOVE` |
//! | `populate` | faults a range in, in pieces between which the caller may do other work |
//! | `lock` | `mlock`, `munlock`, `mlockall`, `munlockall` |
//! | `seal` | `mseal` |
//! | `truncate` | unmaps pages that were removed from a page-cache object; `MADV_REMOVE` |
//! | `sync` | `msync` |

mod advise;
mod guard;
mod lock;
mod madvise;
mod map;
mod map_object;
mod populate;
mod protect;
mod relocate;
mod remap;
mod seal;
mod sync;
mod truncate;
mod unmap;

pub use advise::{Advise, AdviseError};
pub use lock::{LockAll, LockError};
pub use madvise::Advising;
pub use map::{MapError, MapFlags, MapRequest};
pub use map_object::SharedKey;
pub use populate::Populating;
pub use protect::{NewProt, ProtectError};
pub use remap::{RemapError, RemapFlags, RemapRequest};
pub use seal::SealError;
pub use sync::SyncError;
pub use unmap::UnmapError;

use core::ops::Range;

use crate::addr::VirtRange;
use crate::arch::{Arch, UserRange};
use crate::machine::Machine;
use crate::page_cache::{Object, ObjectError};
use crate::platform::Platform;
use crate::space::fault::FaultError;
use crate::space::ground::handle;
use crate::table::PageTables;

use super::AddressSpace;

handle! {
    /// A reference to an address space that has the operations on its VMAs as methods.
    pub(super) struct VmaOps
}

handle! {
    /// A reference to an address space that has the operations of `madvise` as methods.
    struct Madvise
}

impl<'m, P: Platform> AddressSpace<'m, P> {
    /// Maps anonymous memory, and returns its address. With [`MapFlags::SHARED`], a new page-cache
    /// object backs the memory.
    ///
    /// # Errors
    /// See [`MapError`]: nothing was changed.
    pub fn map(&self, request: MapRequest) -> Result<u64, MapError> {
        VmaOps::of(self).map(request)
    }

    /// Maps a page-cache object from the byte `offset` on, and returns the address. With
    /// [`MapFlags::SHARED`], writes go to the object; without, to private copies. Pages beyond the
    /// object's end can be mapped; an access to them succeeds once the object has grown.
    ///
    /// # Errors
    /// See [`MapError`]: nothing was changed.
    pub fn map_object(&self, request: MapRequest, object: &Object<'m, P>, offset: u64) -> Result<u64, MapError> {
        VmaOps::of(self).map_object(request, object, offset)
    }

    /// Returns the page-cache object that is mapped at `addr`, and the byte offset in it that
    /// `addr` maps; `None` if no object is mapped at `addr`.
    pub fn object_at(&self, addr: u64) -> Option<(Object<'m, P>, u64)> {
        VmaOps::of(self).object_at(addr)
    }

    /// Returns the key that identifies the byte of shared memory at `addr`, for example for a
    /// futex. Every space that maps the byte gets the same key. Returns `None` if the memory at
    /// `addr` is private (Linux: `FUTEX_PRIVATE_FLAG`).
    pub fn shared_key(&self, addr: u64) -> Option<SharedKey> {
        VmaOps::of(self).shared_key(addr)
    }

    /// Unmaps `len` bytes from `addr` on. When this returns, no CPU reaches what was mapped there,
    /// and the memory and the addresses are free.
    ///
    /// # Errors
    /// See [`UnmapError`]: nothing was changed.
    pub fn unmap(&self, addr: u64, len: u64) -> Result<(), UnmapError> {
        VmaOps::of(self).unmap(addr, len)
    }

    /// Unmaps everything, sealed VMAs too: for a host whose last process in the space has exited
    /// while another reference to the space remains. When this returns, the memory is free.
    /// Allocates nothing, so it can't fail.
    pub fn unmap_all(&self) {
        VmaOps::of(self).unmap_all()
    }

    /// Grows, shrinks or moves a mapping, and returns the address that it has afterwards. With
    /// [`RemapFlags::FIXED`] and an unchanged length, moves all VMAs of the old range, and keeps
    /// the holes between them.
    ///
    /// # Errors
    /// See [`RemapError`]: nothing was changed.
    pub fn remap(&self, request: RemapRequest) -> Result<u64, RemapError> {
        VmaOps::of(self).remap(request)
    }

    /// Sets the protection of `len` bytes from `addr` on to `new`: a [`Prot`](crate::vma::Prot),
    /// whose protection key is ignored, as each VMA keeps its own (`mprotect`), or a function that
    /// chooses protection and key (`pkey_mprotect`). When this returns, no CPU can use a right that
    /// the change took away, or an old key. A page-table format without protection keys ignores
    /// them.
    ///
    /// # Errors
    /// See [`ProtectError`]: nothing was changed. (If the range has a hole, Linux changes the VMAs
    /// before it.)
    pub fn protect(&self, addr: u64, len: u64, new: impl NewProt) -> Result<(), ProtectError> {
        VmaOps::of(self).protect(addr, len, new)
    }

    /// Applies `advice` to `len` bytes from `addr` on (`madvise`).
    ///
    /// # Errors
    /// See [`AdviseError`].
    pub fn advise(&self, addr: u64, len: u64, advice: Advise) -> Result<(), AdviseError> {
        Madvise::of(self).advise(addr, len, advice)
    }

    /// Begins to apply `advice` to a range: checks everything that concerns the range as a whole.
    /// The caller continues with [`AddressSpace::advise_some`].
    ///
    /// # Errors
    /// See [`AdviseError`].
    pub fn begin_advice(&self, addr: u64, len: u64, advice: Advise) -> Result<Advising, AdviseError> {
        Madvise::of(self).begin_advice(addr, len, advice)
    }

    /// Continues to apply the advice `begun` ([`AddressSpace::begin_advice`]). Takes at least one
    /// step, and calls `more` after each. Stops when `more` returns false or nothing of the range
    /// is left, and returns true if nothing is left. Advice that only changes VMAs takes one step.
    ///
    /// # Errors
    /// See [`AdviseError`]. `begun` then has the rest of the range, from the failure on, and may be
    /// passed again.
    pub fn advise_some(&self, begun: &mut Advising, more: impl FnMut() -> bool) -> Result<bool, AdviseError> {
        Madvise::of(self).advise_some(begun, more)
    }

    /// Begins to fault in `len` bytes from `addr` on, for example a range that was mapped with
    /// [`MapFlags::NO_POPULATE`]. Faults in the locked VMAs, except those with `ONFAULT`; with
    /// `unlocked`, faults in all VMAs. The caller continues with [`AddressSpace::populate_some`].
    ///
    /// Linux skips VMAs that can't be faulted in. A caller that wants that calls
    /// [`Populating::skip_vma`] after each error.
    pub fn begin_populate(&self, addr: u64, len: u64, unlocked: bool) -> Populating {
        VmaOps::of(self).begin_populate(addr, len, unlocked)
    }

    /// Faults in what is left in `rest`. Calls `more` after each fault, and stops when `more`
    /// returns false or nothing is left. Returns true if nothing is left. Faults private writable
    /// memory in by write accesses.
    ///
    /// # Errors
    /// See [`FaultError`]. `rest` then begins at the page that could not be faulted in.
    pub fn populate_some(&self, rest: &mut Populating, more: impl FnMut() -> bool) -> Result<bool, FaultError> {
        VmaOps::of(self).populate_some(rest, more)
    }

    /// Locks all pages of a range, and faults them in (`mlock`); with `on_fault`, faults none in
    /// (`mlock2` with `MLOCK_ONFAULT`).
    ///
    /// # Errors
    /// See [`LockError`]. (If the range has a hole, Linux locks the VMAs before it.)
    pub fn lock(&self, addr: u64, len: u64, on_fault: bool) -> Result<(), LockError> {
        VmaOps::of(self).lock(addr, len, on_fault)
    }

    /// Locks all pages of a range as [`AddressSpace::lock`] does, but faults none in: the caller
    /// faults them in next ([`AddressSpace::populate_some`]).
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn begin_lock(&self, addr: u64, len: u64, on_fault: bool) -> Result<Populating, LockError> {
        VmaOps::of(self).begin_lock(addr, len, on_fault)
    }

    /// Unlocks all pages of a range (`munlock`).
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn unlock(&self, addr: u64, len: u64) -> Result<(), LockError> {
        VmaOps::of(self).unlock(addr, len)
    }

    /// Locks the present VMAs, the future VMAs, or both (`mlockall`). Replaces what an earlier call
    /// has set for future VMAs. A page that can't be faulted in is no error.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn lock_all(&self, flags: LockAll) -> Result<(), LockError> {
        VmaOps::of(self).lock_all(flags)
    }

    /// Locks VMAs as [`AddressSpace::lock_all`] does, but faults nothing in: the caller faults them
    /// in next ([`AddressSpace::populate_some`]), and skips VMAs that can't be faulted in.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn begin_lock_all(&self, flags: LockAll) -> Result<Populating, LockError> {
        VmaOps::of(self).begin_lock_all(flags)
    }

    /// Unlocks all VMAs, and lets later mappings begin unlocked (`munlockall`).
    pub fn unlock_all(&self) {
        VmaOps::of(self).unlock_all()
    }

    /// Seals the VMAs of a range for the rest of the space's life (`mseal`). The copies in a forked
    /// child are sealed too.
    ///
    /// # Errors
    /// See [`SealError`]: nothing was changed.
    pub fn seal(&self, addr: u64, len: u64) -> Result<(), SealError> {
        VmaOps::of(self).seal(addr, len)
    }

    /// Removes the contents of shared memory in a range for every space that maps it
    /// (`MADV_REMOVE`). Calls `punch` with each object and the byte range of it to remove. `punch`
    /// must punch the hole ([`Object::punch_hole`]), and unmap the pages from all spaces, this one
    /// too ([`unmap_removed`](crate::space::unmap_removed)). No lock is held during the call.
    ///
    /// # Errors
    /// [`AdviseError::NotMapped`]: some of the range is not mapped; as on Linux, the contents of
    /// every VMA in it were removed. [`AdviseError::Locked`], [`AdviseError::NoObject`],
    /// [`AdviseError::Denied`]: a VMA is locked, has no object, or may not be written; the contents
    /// of the VMAs before it were removed. [`AdviseError::Fault`]: `punch` failed.
    pub fn remove(
        &self,
        addr: u64,
        len: u64,
        punch: impl FnMut(&Object<'m, P>, Range<u64>) -> Result<(), ObjectError>,
    ) -> Result<(), AdviseError> {
        VmaOps::of(self).remove(addr, len, punch)
    }

    /// Synchronizes a range with the objects that it maps (`msync`). A write to shared memory is in
    /// its object at once, so this only checks the range. `invalidate` is `MS_INVALIDATE`. The host
    /// checks the other flags.
    ///
    /// # Errors
    /// See [`SyncError`].
    pub fn sync(&self, addr: u64, len: u64, invalidate: bool) -> Result<(), SyncError> {
        VmaOps::of(self).sync(addr, len, invalidate)
    }
}
