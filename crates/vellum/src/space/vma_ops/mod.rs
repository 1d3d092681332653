//! Operations on VMAs: what `mmap`, `munmap`, `mremap`, `mprotect`, `madvise`, `mlock`, `mseal` and
//! `msync` do.
//!
//! An operation claims its range ([`Change`](super::ground::Change), INV-18), locks the VMAs for
//! writing, checks that it can succeed, and reserves all memory that it may need. Then it marks the
//! VMAs, unlocks them, changes the page tables beside everything else, and locks the VMAs again to
//! finish. `madvise` that changes no VMAs runs beside faults instead.
//!
//! | file | operation |
//! |---|---|
//! | `map` | `mmap` |
//! | `map_object` | `mmap` of a page-cache object, and finding the object at an address |
//! | `unmap` | `munmap`, and exit |
//! | `remap` | `mremap`: checks, growing, shrinking |
//! | `relocate` | `mremap`: moving VMAs and their PTEs |
//! | `protect` | `mprotect`, and setting the flags of VMAs for others |
//! | `advise` | the kinds of `madvise`, and its errors |
//! | `madvise` | `madvise`, piece by piece |
//! | `guard` | `MADV_GUARD_INSTALL` and `MADV_GUARD_REMOVE` |
//! | `populate` | faulting in a range, piece by piece |
//! | `lock` | `mlock`, `munlock`, `mlockall`, `munlockall` |
//! | `seal` | `mseal` |
//! | `truncate` | unmapping pages that an object has lost, and `MADV_REMOVE` |
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
pub use protect::ProtectError;
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
use crate::vma::Prot;

use super::AddressSpace;

handle! {
    /// Operations on the VMAs of a space.
    pub(super) struct VmaOps
}

handle! {
    /// Advice about ranges of a space.
    struct Madvise
}

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Maps anonymous memory, and returns its address. With [`MapFlags::SHARED`], a page-cache
    /// object is made for it.
    ///
    /// # Errors
    /// See [`MapError`]: nothing was changed.
    pub fn map(&self, request: MapRequest) -> Result<u64, MapError> {
        VmaOps::of(self).map(request)
    }

    /// Maps an object from `offset` on, and returns the address. With [`MapFlags::SHARED`], writes
    /// go to the object; without, to private copies. Pages beyond the object's end can be mapped,
    /// and accessed once the object has grown.
    ///
    /// # Errors
    /// See [`MapError`]: nothing was changed.
    pub fn map_object(&self, request: MapRequest, object: &Object<'m, P>, offset: u64) -> Result<u64, MapError> {
        VmaOps::of(self).map_object(request, object, offset)
    }

    /// Returns the object that is mapped at `addr`, and the offset of that byte in it.
    pub fn object_at(&self, addr: u64) -> Option<(Object<'m, P>, u64)> {
        VmaOps::of(self).object_at(addr)
    }

    /// Returns the key of a byte of shared memory, which is the same in every space that maps it;
    /// `None` if the memory at `addr` is private (for a futex: `FUTEX_PRIVATE_FLAG`).
    pub fn shared_key(&self, addr: u64) -> Option<SharedKey> {
        VmaOps::of(self).shared_key(addr)
    }

    /// Unmaps everything in a range. When it returns, no CPU reaches what was mapped there, the
    /// memory is free, and so are the addresses.
    ///
    /// # Errors
    /// See [`UnmapError`]: nothing was changed.
    pub fn unmap(&self, addr: u64, len: u64) -> Result<(), UnmapError> {
        VmaOps::of(self).unmap(addr, len)
    }

    /// Unmaps everything, sealed VMAs too: for a host whose last process in the space has exited
    /// while another reference to the space remains. When it returns, the memory is free. Needs no
    /// memory.
    pub fn unmap_all(&self) {
        VmaOps::of(self).unmap_all()
    }

    /// Grows, shrinks or moves a mapping, and returns its address now. With [`RemapFlags::FIXED`]
    /// and unchanged length, all VMAs of the old addresses move, and holes between them are kept.
    ///
    /// # Errors
    /// See [`RemapError`]: nothing was changed.
    pub fn remap(&self, request: RemapRequest) -> Result<u64, RemapError> {
        VmaOps::of(self).remap(request)
    }

    /// Changes the protection of a range.
    ///
    /// # Errors
    /// See [`ProtectError`]: nothing was changed. (Linux changes what lies before a hole.)
    pub fn protect(&self, addr: u64, len: u64, prot: Prot) -> Result<(), ProtectError> {
        VmaOps::of(self).protect(addr, len, prot)
    }

    /// Takes advice about a range (`madvise`).
    ///
    /// # Errors
    /// See [`AdviseError`].
    pub fn advise(&self, addr: u64, len: u64, advice: Advise) -> Result<(), AdviseError> {
        Madvise::of(self).advise(addr, len, advice)
    }

    /// Begins to take advice about a range: checks everything that concerns the range as a whole.
    /// [`AddressSpace::advise_some`] goes on.
    ///
    /// # Errors
    /// See [`AdviseError`].
    pub fn begin_advice(&self, addr: u64, len: u64, advice: Advise) -> Result<Advising, AdviseError> {
        Madvise::of(self).begin_advice(addr, len, advice)
    }

    /// Goes on with advice until `more`, which is called after each step, returns false, or nothing
    /// is left. Returns whether nothing is left. Advice that only changes VMAs takes one step. At
    /// least one step is done.
    ///
    /// # Errors
    /// See [`AdviseError`].
    pub fn advise_some(&self, begun: &mut Advising, more: impl FnMut() -> bool) -> Result<bool, AdviseError> {
        Madvise::of(self).advise_some(begun, more)
    }

    /// Begins to fault in what was just mapped with [`MapFlags::NO_POPULATE`]: of `len` bytes from
    /// `addr` on, the locked VMAs that are not `ONFAULT`, or all with `unlocked`.
    /// [`AddressSpace::populate_some`] goes on; Linux skips VMAs that can't be faulted in
    /// ([`Populating::skip_vma`]).
    pub fn begin_populate(&self, addr: u64, len: u64, unlocked: bool) -> Populating {
        VmaOps::of(self).begin_populate(addr, len, unlocked)
    }

    /// Faults in what is left until `more`, which is called after each fault, returns false, or
    /// nothing is left. Returns whether nothing is left. Writable private memory is faulted in for
    /// writing.
    ///
    /// # Errors
    /// See [`FaultError`].
    pub fn populate_some(&self, rest: &mut Populating, more: impl FnMut() -> bool) -> Result<bool, FaultError> {
        VmaOps::of(self).populate_some(rest, more)
    }

    /// Locks all pages of a range, and faults them in (`mlock`; with `on_fault`, `mlock2` with
    /// `MLOCK_ONFAULT`).
    ///
    /// # Errors
    /// See [`LockError`]. (Linux locks what lies before a hole.)
    pub fn lock(&self, addr: u64, len: u64, on_fault: bool) -> Result<(), LockError> {
        VmaOps::of(self).lock(addr, len, on_fault)
    }

    /// Locks all pages of a range as [`AddressSpace::lock`], but faults none in: the caller does
    /// that next ([`AddressSpace::populate_some`]).
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

    /// Locks present or future VMAs of the whole space (`mlockall`). Replaces what an earlier call
    /// has set. Pages that can't be faulted in are no error.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn lock_all(&self, flags: LockAll) -> Result<(), LockError> {
        VmaOps::of(self).lock_all(flags)
    }

    /// Locks VMAs as [`AddressSpace::lock_all`], but faults nothing in: the caller does that next
    /// ([`AddressSpace::populate_some`]), and skips what can't be faulted in.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn begin_lock_all(&self, flags: LockAll) -> Result<Populating, LockError> {
        VmaOps::of(self).begin_lock_all(flags)
    }

    /// Unlocks all VMAs, and stops locking new ones (`munlockall`).
    pub fn unlock_all(&self) {
        VmaOps::of(self).unlock_all()
    }

    /// Seals the VMAs of a range for the rest of the space's life (`mseal`). A forked child's are
    /// sealed too.
    ///
    /// # Errors
    /// See [`SealError`]: nothing was changed.
    pub fn seal(&self, addr: u64, len: u64) -> Result<(), SealError> {
        VmaOps::of(self).seal(addr, len)
    }

    /// Removes the contents of shared memory in a range for every space that maps it
    /// (`MADV_REMOVE`). Calls `punch` with each object and the bytes of it that go; `punch` makes
    /// the hole ([`Object::punch_hole`]), and unmaps the pages from all spaces (`unmap_removed`),
    /// this one too. No lock is held during the call.
    ///
    /// # Errors
    /// Some of the range is not mapped; or a VMA is locked, has no object, or may not be written.
    /// VMAs before it are done, as in Linux. Or `punch` fails.
    pub fn remove(
        &self,
        addr: u64,
        len: u64,
        punch: impl FnMut(&Object<'m, P>, Range<u64>) -> Result<(), ObjectError>,
    ) -> Result<(), AdviseError> {
        VmaOps::of(self).remove(addr, len, punch)
    }

    /// Synchronizes a range with the objects behind it (`msync`): they have what was written
    /// already, so this only checks. `invalidate` is `MS_INVALIDATE`. The host checks the other
    /// flags.
    ///
    /// # Errors
    /// See [`SyncError`].
    pub fn sync(&self, addr: u64, len: u64, invalidate: bool) -> Result<(), SyncError> {
        VmaOps::of(self).sync(addr, len, invalidate)
    }
}
