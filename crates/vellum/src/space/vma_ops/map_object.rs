//! Mappings of page-cache objects, and look-ups of the object at an address.
//!
//! The PTEs of a shared VMA map the object's own pages, with the VMA's protection. They are
//! *exclusive*: a write needs no copy, and changes the mapped page. A private VMA maps the object's
//! pages read-only; the first write to a page allocates a private copy, which is anonymous memory
//! from then on. A fault on either kind of VMA looks the page up in the object while it holds the
//! VMA lock for reading. Truncation takes that lock for writing, and so finds all PTEs that such
//! faults have written ([`crate::page_cache`]).

use crate::arch::Arch;
use crate::memcg::Refused;
use crate::page_cache::{Hugetlb, MAX_SIZE, Object, ObjectError};
use crate::platform::Platform;
use crate::vma::{Backing, HUGETLB_SHIFT, Prot, Sharing};

use super::{MapError, MapFlags, MapRequest, VmaOps};

/// The backing of a VMA whose address is not chosen yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// The backing. [`Source::at`] sets its `delta` (object offset minus address).
    backing: Backing,
    /// The byte offset in the object at which the VMA begins.
    offset: u64,
    /// True if the object's pages are huge pages of the machine's pool.
    pub(super) is_huge: bool,
}

impl Source {
    /// The backing of private anonymous memory.
    pub(in crate::space) const ANONYMOUS: Source = Source { backing: Backing::ANONYMOUS, offset: 0, is_huge: false };

    /// Returns the backing of a VMA that begins at `start`.
    pub(super) fn at(&self, start: u64) -> Backing {
        match self.backing.is_anonymous() {
            true => self.backing,
            false => Backing { delta: self.offset.wrapping_sub(start), ..self.backing },
        }
    }
}

/// The key of a byte of shared memory, the same in every space that maps it (for a futex). It
/// consists of the object's number, which is never used again, and the offset in the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedKey {
    /// The object: see [`Object::serial`].
    pub object: u64,
    /// The byte offset in the object.
    pub offset: u64,
}

impl<'s, 'm, P: Platform> VmaOps<'s, 'm, P> {
    /// Implements [`AddressSpace::map_object`](crate::space::AddressSpace::map_object).
    pub(super) fn map_object(self, request: MapRequest, object: &Object<'m, P>, offset: u64) -> Result<u64, MapError> {
        let (shift, is_huge) = (object.page_shift(), Hugetlb(object).has_pages());
        let len = self.checked_len(&request, shift)?;
        if shift != if is_huge { self.arch().level_shift(2) } else { self.page_shift() } {
            return Err(MapError::PageSizeMismatch);
        }
        if offset & ((1 << shift) - 1) != 0 {
            return Err(MapError::UnalignedOffset(offset));
        }
        if offset.checked_add(len).is_none_or(|end| end > MAX_SIZE) {
            return Err(MapError::OffsetTooLarge);
        }
        if request.flags.contains(MapFlags::GROWSDOWN) {
            return Err(MapError::NotAStack);
        }
        if request.flags.contains(MapFlags::DROPPABLE) {
            return Err(MapError::NotDroppable);
        }
        let writes = request.prot.contains(Prot::WRITE);
        let sharing = match request.flags {
            flags if !flags.contains(MapFlags::SHARED) => Sharing::Private,
            flags if flags.contains(MapFlags::READ_ONLY) && writes => return Err(MapError::Denied),
            flags if flags.contains(MapFlags::READ_ONLY) => Sharing::ReadOnly,
            _ if object.map_writable() => Sharing::Shared,
            _ if writes => return Err(MapError::Sealed),
            _ => Sharing::ReadOnly,
        };
        let backing = object.new_backing(sharing, self.space.id(), self.space.memcg())?;
        let reserves = match sharing {
            _ if !is_huge || request.flags.contains(MapFlags::NORESERVE) => Ok(0),
            Sharing::Private if !request.flags.contains(MapFlags::HUGETLB) => Ok(0),
            _ => {
                let owner = (sharing == Sharing::Private).then_some(self.space.id());
                Hugetlb(object).reserve(offset >> shift..(offset + len) >> shift, owner)
            }
        };
        let reserved = match reserves {
            Ok(reserved) => reserved,
            Err(error) => {
                object.cancel_backing(&backing, self.space.id());
                return Err(error.into());
            }
        };
        let mapped = self.map_with_source(request, Source { backing, offset, is_huge });
        if mapped.is_err() {
            if reserved != 0 {
                Hugetlb(object).unreserve(offset >> shift..(offset + len) >> shift, None);
            }
            object.cancel_backing(&backing, self.space.id());
        }
        mapped
    }

    /// Maps shared anonymous memory, or huge pages of the pool: makes a page-cache object of the
    /// request's length and maps it. When this returns, only the new VMA has a reference to the
    /// object.
    pub(super) fn map_shared(self, request: MapRequest) -> Result<u64, MapError> {
        let machine = self.machine();
        if request.flags.contains(MapFlags::HUGETLB) {
            let len = self.checked_len(&request, HUGETLB_SHIFT)?;
            let object = Hugetlb::new_object(machine, self.tables().memcg(), 0, len)?;
            return self.map_object(request, &object, 0);
        }
        let len = self.checked_len(&request, self.page_shift())?;
        if !request.flags.contains(MapFlags::NORESERVE) && self.exceeds_memory_and_swap(len) {
            return Err(MapError::Overcommit);
        }
        let object = Object::new(machine, self.arch(), self.tables().memcg(), 0, len)?;
        self.map_object(request, &object, 0)
    }

    /// Implements [`AddressSpace::object_at`](crate::space::AddressSpace::object_at).
    pub(super) fn object_at(self, addr: u64) -> Option<(Object<'m, P>, u64)> {
        let vmas = self.space.read();
        let vma = vmas.find(addr).filter(|vma| !vma.backing.is_anonymous())?;
        // SAFETY: the VMA maps an object, and keeps its reference to it as long as `vmas` holds the
        // VMA lock.
        let object = unsafe { Object::of_backing(self.machine(), &vma.backing) };
        Some(((*object).clone(), vma.backing.offset(addr)))
    }

    /// Implements [`AddressSpace::shared_key`](crate::space::AddressSpace::shared_key).
    pub(super) fn shared_key(self, addr: u64) -> Option<SharedKey> {
        let vmas = self.space.read();
        let vma = vmas.find(addr).filter(|vma| vma.backing.is_shared())?;
        // SAFETY: a shared VMA maps an object, and keeps its reference to it as long as `vmas`
        // holds the VMA lock.
        let object = unsafe { Object::of_backing(self.machine(), &vma.backing) };
        Some(SharedKey { object: object.serial(), offset: vma.backing.offset(addr) })
    }
}

impl From<ObjectError> for MapError {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::NoMemory(why) => MapError::NoMemory(why),
            ObjectError::TooLarge => MapError::OffsetTooLarge,
            ObjectError::NoHugePage => MapError::NoHugePages,
            ObjectError::Busy
            | ObjectError::InUse
            | ObjectError::Lost
            | ObjectError::NotWritten
            | ObjectError::TooManyReferences
            | ObjectError::Pending(_) => MapError::NoMemory(Refused::OutOfMemory),
        }
    }
}
