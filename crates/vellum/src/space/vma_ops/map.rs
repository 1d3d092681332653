//! New mappings: `mmap`.

use bitflags::bitflags;

use crate::addr::{FRAME_SIZE, VirtRange, align_down, align_up};
use crate::arch::{Arch, BadRange, UserRange};
use crate::errno::Errno;
use crate::frame::policy::Advice;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::vma::{Direction, HUGETLB_SHIFT, Prot, State, Vma, VmaFlags};

use super::map_object::Source;
use super::{Populating, UnmapError, VmaOps};
use crate::space::ground::{Change, Excess, Vmas, Zap};

bitflags! {
    /// Flags of a mapping (Linux: `MAP_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MapFlags: u16 {
        /// Maps at exactly [`MapRequest::addr`], and unmaps what is there (`MAP_FIXED`).
        const FIXED = 1;
        /// Maps at exactly [`MapRequest::addr`], and fails if something is mapped there
        /// (`MAP_FIXED_NOREPLACE`).
        const FIXED_NOREPLACE = 2;
        /// Faults all pages in before the call returns (`MAP_POPULATE`). The call also succeeds if
        /// memory runs out before all pages are faulted in.
        const POPULATE = 4;
        /// Maps even more than memory and swap could hold (`MAP_NORESERVE`).
        const NORESERVE = 8;
        /// Maps a stack, which grows down on access (`MAP_GROWSDOWN`).
        const GROWSDOWN = 16;
        /// Locks the memory: it is faulted in at once, and not reclaimed (`MAP_LOCKED`).
        const LOCKED = 32;
        /// Writes go to the object, and every mapping of it sees them (`MAP_SHARED`). For anonymous
        /// memory the engine makes an object, which forked children share.
        const SHARED = 64;
        /// Makes a shared VMA that may never be written, not even after a later `protect` (Linux:
        /// the file is open for reading only).
        const READ_ONLY = 128;
        /// If the engine chooses the address, it is in the second gibibyte of addresses
        /// (`MAP_32BIT`).
        const LOW = 256;
        /// Faults nothing in: the caller faults the range in next
        /// ([`AddressSpace::begin_populate`](crate::space::AddressSpace::begin_populate)).
        const NO_POPULATE = 512;
        /// Maps anonymous memory whose pages reclaim may drop at any time
        /// ([`VmaFlags::DROPPABLE`], `MAP_DROPPABLE`). Excludes [`MapFlags::SHARED`],
        /// [`MapFlags::LOCKED`] and [`MapFlags::GROWSDOWN`].
        const DROPPABLE = 1024;
        /// Maps huge pages of the machine's pool (`MAP_HUGETLB`; [`HugePool`](crate::HugePool)).
        /// For [`AddressSpace::map`](crate::space::AddressSpace::map): an object of huge pages is
        /// mapped so in any case.
        const HUGETLB = 2048;
    }
}

/// The addresses that [`MapFlags::LOW`] selects.
const LOW_RANGE: VirtRange = VirtRange { start: 1 << 30, end: 2 << 30 };

/// A request to map memory. It does not name the backing (anonymous memory or a page-cache object),
/// which is passed beside it.
#[derive(Clone, Copy, Debug)]
pub struct MapRequest {
    /// The address: exact with [`MapFlags::FIXED`] or [`MapFlags::FIXED_NOREPLACE`], else a hint,
    /// which is tried first if it is not 0.
    pub addr: u64,
    /// The length in bytes; rounded up to whole pages.
    pub len: u64,
    /// The protection.
    pub prot: Prot,
    /// The flags.
    pub flags: MapFlags,
}

/// The reason why a map failed. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The length is zero.
    ZeroLength,
    /// A fixed address is not a multiple of the page size.
    Unaligned(u64),
    /// The range reaches beyond the user half.
    OutOfRange,
    /// This address is below the lowest that may be mapped
    /// ([`Limits::lowest_fixed`](crate::space::Limits::lowest_fixed)).
    TooLow(u64),
    /// Something is mapped in this range ([`MapFlags::FIXED_NOREPLACE`]).
    Exists(VirtRange),
    /// There is no free range of that size.
    NoRoom,
    /// The limit on the number of VMAs would be exceeded.
    TooManyVmas,
    /// The limit on address space would be exceeded.
    AddressSpaceLimit,
    /// The limit on private writable memory would be exceeded.
    DataLimit,
    /// The memory is to be locked, and the limit on locked memory is 0.
    LockForbidden,
    /// This VMA would be replaced, and is sealed.
    SealedVma(VirtRange),
    /// The limit on locked memory would be exceeded.
    LockLimit,
    /// The request exceeds memory and swap together, and has no [`MapFlags::NORESERVE`].
    Overcommit,
    /// The pool of huge pages can't have as many pages as the request reserves, and the request has
    /// no [`MapFlags::NORESERVE`].
    NoHugePages,
    /// The offset in the object is not a multiple of the page size.
    UnalignedOffset(u64),
    /// The mapping would end beyond the largest size that a page-cache object can have.
    OffsetTooLarge,
    /// The object's pages have another size than the space's.
    PageSizeMismatch,
    /// A stack ([`MapFlags::GROWSDOWN`]) must be private anonymous memory.
    NotAStack,
    /// Droppable memory ([`MapFlags::DROPPABLE`]) must be private and anonymous, and can be neither
    /// locked nor a stack.
    NotDroppable,
    /// The protection permits writes, and the flags contain [`MapFlags::READ_ONLY`].
    Denied,
    /// The protection permits writes, and the object is sealed against new writable shared
    /// mappings.
    Sealed,
    /// The protection permits both writes and execution, which the space forbids
    /// (`Limits::exec_gain`).
    ExecGain,
    /// There is no memory for the engine's own structures, such as nodes of the VMA tree.
    NoMemory(Refused),
}

impl MapError {
    /// Returns the errno that Linux's `mmap` reports.
    pub const fn errno(&self) -> Errno {
        match self {
            MapError::ZeroLength
            | MapError::Unaligned(_)
            | MapError::UnalignedOffset(_)
            | MapError::PageSizeMismatch
            | MapError::NotAStack
            | MapError::NotDroppable => Errno::EINVAL,
            MapError::TooLow(_) | MapError::Sealed | MapError::SealedVma(_) | MapError::LockForbidden => Errno::EPERM,
            MapError::Denied | MapError::ExecGain => Errno::EACCES,
            MapError::OffsetTooLarge => Errno::EOVERFLOW,
            MapError::Exists(_) => Errno::EEXIST,
            MapError::LockLimit => Errno::EAGAIN,
            _ => Errno::ENOMEM,
        }
    }
}

impl core::fmt::Display for MapError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            MapError::ZeroLength => f.write_str("the length is zero: pass at least one byte"),
            MapError::Unaligned(addr) => write!(f, "address {addr:#x} is not a multiple of the page size: align it"),
            MapError::OutOfRange => f.write_str("the range reaches beyond the user half: shorten or move it"),
            MapError::TooLow(addr) => {
                write!(f, "address {addr:#x} is below the lowest that may be mapped: pass a higher one")
            }
            MapError::Exists(range) => {
                write!(f, "something is mapped in {range:?}: unmap it, or pass FIXED to replace it")
            }
            MapError::NoRoom => f.write_str("there is no free range of that size: unmap something"),
            MapError::TooManyVmas => f.write_str("too many VMAs: raise the limit, or unmap some"),
            MapError::AddressSpaceLimit => f.write_str("the request exceeds the limit on address space: raise it"),
            MapError::DataLimit => f.write_str("the request exceeds the limit on data: raise it"),
            MapError::LockForbidden => f.write_str("the limit on locked memory is 0: raise it"),
            MapError::SealedVma(range) => write!(f, "the VMA {range:?} is sealed: it can't be replaced"),
            MapError::LockLimit => f.write_str("the request exceeds the limit on locked memory: raise it"),
            MapError::Overcommit => f.write_str("the request exceeds memory and swap together: pass NORESERVE"),
            MapError::NoHugePages => f.write_str("the pool of huge pages is too small: raise vm.nr_hugepages"),
            MapError::UnalignedOffset(offset) => {
                write!(f, "offset {offset:#x} is not a multiple of the page size: align it")
            }
            MapError::OffsetTooLarge => f.write_str("the range ends beyond the largest size of an object"),
            MapError::PageSizeMismatch => f.write_str("the object's pages have another size than the space's"),
            MapError::NotAStack => f.write_str("a stack must be private anonymous memory"),
            MapError::NotDroppable => {
                f.write_str("droppable memory must be private and anonymous, and neither locked nor a stack")
            }
            MapError::Denied => f.write_str("a READ_ONLY mapping can't be writable"),
            MapError::Sealed => f.write_str("the object is sealed against writable shared mappings"),
            MapError::ExecGain => f.write_str("this space forbids mappings that are both writable and executable"),
            MapError::NoMemory(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for MapError {}

impl From<Excess> for MapError {
    fn from(excess: Excess) -> Self {
        match excess {
            Excess::AddressSpace => MapError::AddressSpaceLimit,
            Excess::Data => MapError::DataLimit,
            Excess::Locked => MapError::LockLimit,
        }
    }
}

may_be_refused!(MapError);

/// A request together with the backing of the VMA to be made.
struct RequestWithSource {
    request: MapRequest,
    source: Source,
}

impl core::ops::Deref for RequestWithSource {
    type Target = MapRequest;

    fn deref(&self) -> &MapRequest {
        &self.request
    }
}

impl<'s, P: Platform> VmaOps<'s, '_, P> {
    /// Implements [`AddressSpace::map`](crate::space::AddressSpace::map).
    pub(super) fn map(self, request: MapRequest) -> Result<u64, MapError> {
        let excluded = MapFlags::SHARED | MapFlags::LOCKED | MapFlags::GROWSDOWN;
        if request.flags.contains(MapFlags::DROPPABLE) && request.flags.intersects(excluded) {
            return Err(MapError::NotDroppable);
        }
        if request.flags.intersects(MapFlags::SHARED | MapFlags::HUGETLB) {
            return self.map_shared(request);
        }
        self.map_with_source(request, Source::ANONYMOUS)
    }

    /// Returns the length of a request, rounded up to whole pages of `1 << shift` bytes.
    ///
    /// # Errors
    /// [`MapError::ZeroLength`], [`MapError::OutOfRange`].
    pub(super) fn checked_len(self, request: &MapRequest, shift: u32) -> Result<u64, MapError> {
        if request.len == 0 {
            return Err(MapError::ZeroLength);
        }
        let len = align_up(request.len, shift).ok_or(MapError::OutOfRange)?;
        if len > self.arch().user_end() {
            return Err(MapError::OutOfRange);
        }
        Ok(len)
    }

    /// Maps `source` (anonymous memory, or a page-cache object from an offset on) as `request`
    /// says, and returns the address. Then faults the memory in if it is locked or
    /// [`MapFlags::POPULATE`] is set, unless [`MapFlags::NO_POPULATE`] is set too. If `source` has
    /// an object, the caller's reference to the object passes to the VMA.
    ///
    /// # Errors
    /// See [`MapError`]; the caller still has its reference to the object.
    pub(super) fn map_with_source(self, request: MapRequest, source: Source) -> Result<u64, MapError> {
        let shift = if source.is_huge { HUGETLB_SHIFT } else { self.page_shift() };
        let len = self.checked_len(&request, shift)?;
        let request = RequestWithSource { request, source };
        let range = if request.flags.intersects(MapFlags::FIXED | MapFlags::FIXED_NOREPLACE) {
            let range = self.fixed_range(request.addr, len)?;
            if request.addr & ((1 << shift) - 1) != 0 {
                return Err(MapError::Unaligned(request.addr));
            }
            self.map_fixed(range, &request)?;
            range
        } else {
            self.map_anywhere(request.addr, len, &request)?
        };
        if !request.flags.contains(MapFlags::NO_POPULATE) {
            self.populate_all(Populating::all(range, request.flags.contains(MapFlags::POPULATE)));
        }
        Ok(range.start)
    }

    /// Returns the range of a request for an exact address.
    ///
    /// # Errors
    /// [`MapError::Unaligned`], [`MapError::OutOfRange`].
    fn fixed_range(self, addr: u64, len: u64) -> Result<UserRange, MapError> {
        UserRange::new(self.arch(), addr, len).map_err(|bad| match bad {
            // As on Linux, an end beyond the user half is reported rather than a bad alignment.
            BadRange::Unaligned(addr) if addr <= self.arch().user_end() - len => MapError::Unaligned(addr),
            _ => MapError::OutOfRange,
        })
    }

    /// Maps `len` bytes at `hint` if they are free there, else at another free range, and returns
    /// the range. Claims the range ([`Change`]) only if another change has claimed a part of it or
    /// waits to. Otherwise one hold of the VMA lock is enough.
    ///
    /// # Errors
    /// See [`MapError`]: nothing was changed.
    fn map_anywhere(self, hint: u64, len: u64, request: &RequestWithSource) -> Result<UserRange, MapError> {
        let window = |low: bool| UserRange::all(self.arch()).part(LOW_RANGE).filter(|_| low);
        let choose = |vmas: &Vmas| match request.flags.contains(MapFlags::LOW) {
            low if request.source.is_huge => self.find_free_range_in(vmas, (hint, HUGETLB_SHIFT), len, window(low)),
            low => self.find_free_range_in(vmas, (hint, self.page_shift()), len, window(low)),
        };
        let mut vmas = self.space.write();
        let range = choose(&vmas)?;
        if !vmas.claims.must_wait(&range, None) {
            self.check_limits(&vmas, range, 0, request)?;
            vmas.reserve(self.machine(), self.space.memcg(), 1)?;
            self.insert_vma(&mut vmas, range, request);
            vmas.merge(self.machine(), range);
            vmas.trim(self.machine());
            return Ok(range);
        }
        // Another change has claimed a part of the range, or waits to: for example an unmap of a
        // larger range in which this range is a hole. The claim waits until that change has ended.
        drop(vmas);
        let mut change =
            Change::begin_both(self.space, |vmas| Ok::<_, MapError>([choose(vmas)?, UserRange::default()]))?;
        let range = change.range();
        let vmas = change.vmas();
        self.check_limits(vmas, range, 0, request)?;
        vmas.reserve(self.machine(), self.space.memcg(), 1)?;
        self.insert_vma(vmas, range, request);
        Ok(range)
    }

    /// Returns a free range of `len` bytes: at `hint` if the range there is free, else as high as
    /// possible below `mmap_base`, else as high as possible. A range of at least a huge page is
    /// aligned to huge pages if there is room for that.
    ///
    /// # Errors
    /// [`MapError::NoRoom`].
    pub(super) fn find_free_range(self, vmas: &Vmas, hint: u64, len: u64) -> Result<UserRange, MapError> {
        self.find_free_range_in(vmas, (hint, self.page_shift()), len, None)
    }

    /// Returns a free range of `len` bytes in `window`, or anywhere without one, chosen as
    /// [`VmaOps::find_free_range`] does, and aligned to pages of `1 << shift` bytes.
    ///
    /// # Errors
    /// [`MapError::NoRoom`].
    fn find_free_range_in(
        self,
        vmas: &Vmas,
        (hint, shift): (u64, u32),
        len: u64,
        window: Option<UserRange>,
    ) -> Result<UserRange, MapError> {
        let window = window.unwrap_or_else(|| UserRange::all(self.arch()).tail(vmas.limits.lowest));
        let find_gap = |from: u64, end: u64, align: u32| {
            let part = window.tail(from).head(end);
            vmas.tree.find_gap(len, align, *part, Direction::TopDown).map(|start| part.tail(start).head(start + len))
        };
        let hint = align_down(hint, self.page_shift());
        if hint != 0 {
            let hint = align_up(hint.max(window.start), shift).unwrap_or(window.end);
            if let Some(end) = hint.checked_add(len).filter(|end| *end <= window.end)
                && let Some(range) = find_gap(hint, end, shift)
            {
                return Ok(range);
            }
        }
        let huge_shift = self.arch().level_shift(2);
        let base = vmas.limits.mmap_base.min(window.end);
        let aligned = if len >> huge_shift != 0 { find_gap(window.start, base, huge_shift) } else { None };
        aligned
            .or_else(|| find_gap(window.start, base, shift))
            .or_else(|| find_gap(window.start, window.end, shift))
            .ok_or(MapError::NoRoom)
    }

    /// Maps exactly `range`, and replaces what is mapped there unless [`MapFlags::FIXED_NOREPLACE`]
    /// is set.
    ///
    /// # Errors
    /// See [`MapError`]: nothing was changed.
    fn map_fixed(self, range: UserRange, request: &RequestWithSource) -> Result<(), MapError> {
        let mut change = Change::begin(self.space, range);
        let vmas = change.vmas();
        if range.start < vmas.limits.lowest_fixed {
            return Err(MapError::TooLow(range.start));
        }
        if request.flags.contains(MapFlags::FIXED_NOREPLACE)
            && let Some(vma) = vmas.first(range)
        {
            return Err(MapError::Exists(*vma.range.intersect(&range)));
        }
        let platform = self.platform();
        let replaced: u64 = vmas.overlapping(platform, range).map(|v| v.range.intersect(&range).len()).sum();
        self.check_limits(vmas, range, replaced, request)?;
        if replaced == 0 {
            vmas.reserve(self.machine(), self.space.memcg(), 1)?;
            self.insert_vma(vmas, range, request);
            return Ok(());
        }
        // The addresses must not become free between the zap and the insertion of the new VMA, or
        // another `mmap` could take them. So the old VMAs stay in the tree, locked
        // ([`State::Locked`]), until their memory is zapped. Then the new VMA takes the place of
        // the first old one, so that nothing needs to be allocated after the zap.
        let new = new_vma(range, request, vmas.def_flags);
        self.begin_unmap(&mut change, range, State::Locked, Some(&new)).map_err(|error| match error {
            UnmapError::Sealed(range) => MapError::SealedVma(range),
            UnmapError::NoMemory(why) => MapError::NoMemory(why),
            UnmapError::CutsHuge(at) => MapError::Unaligned(at),
            _ => MapError::NoMemory(Refused::OutOfMemory),
        })?;
        Zap::of(self.space).all(range);
        let vmas = change.vmas();
        self.unreserve_huge(vmas, range);
        let first = vmas.first(range).map_or(range, |v| v.range);
        vmas.remove(self.machine(), range.tail(first.end));
        vmas.replace(self.machine(), first.start, new);
        Ok(())
    }

    /// Inserts the VMA of `request` at `range`, and counts it against the limits. The caller has
    /// found the range free, and has reserved a node of the VMA tree.
    fn insert_vma(self, vmas: &mut Vmas, range: UserRange, request: &RequestWithSource) {
        let vma = new_vma(range, request, vmas.def_flags);
        let inserted = vmas.tree.insert(vma);
        debug_assert!(inserted.is_ok(), "the range is free and a node is reserved");
        vmas.account(&vma, range, 1);
    }

    /// Checks that the limits allow `range` to be mapped. `replaced` is the number of its bytes
    /// that are mapped now, and that the new mapping replaces.
    ///
    /// # Errors
    /// The limit that would be exceeded, or [`MapError::ExecGain`].
    fn check_limits(
        self,
        vmas: &Vmas,
        range: UserRange,
        replaced: u64,
        request: &RequestWithSource,
    ) -> Result<(), MapError> {
        if vmas.tree.len() > vmas.limits.vmas {
            return Err(MapError::TooManyVmas);
        }
        if request.flags.contains(MapFlags::LOCKED) && vmas.limits.locked == 0 {
            return Err(MapError::LockForbidden);
        }
        if !vmas.limits.exec_gain && request.prot.contains(Prot::WRITE | Prot::EXEC) {
            return Err(MapError::ExecGain);
        }
        let vma = new_vma(range, request, vmas.def_flags);
        vmas.allow(&vma, range.len(), replaced)?;
        if self.overcommits(&vma, range.len()) { Err(MapError::Overcommit) } else { Ok(()) }
    }

    /// Returns true if `len` bytes of memory with the attributes of `kind` must be refused as
    /// overcommit: private writable memory without [`VmaFlags::NORESERVE`] that exceeds memory and
    /// swap together.
    pub(super) fn overcommits(self, kind: &Vma, len: u64) -> bool {
        let is_accountable = !kind.is_hugetlb()
            && kind.prot.contains(Prot::WRITE)
            && !kind.flags.contains(VmaFlags::NORESERVE)
            && !kind.backing.is_shared();
        is_accountable && self.exceeds_memory_and_swap(len)
    }

    /// Returns true if `len` bytes are more than the machine's memory and swap together.
    pub(super) fn exceeds_memory_and_swap(self, len: u64) -> bool {
        let (machine, pages) = (self.machine(), len / FRAME_SIZE);
        let memory = machine.frames().total();
        pages > memory && pages > memory + machine.swaps().total_slots(machine.platform())
    }
}

/// Returns the VMA of `request` at `range`. `def_flags` are the flags that `mlockall` has set for
/// new VMAs.
fn new_vma(range: UserRange, request: &RequestWithSource, def_flags: VmaFlags) -> Vma {
    let mut flags = VmaFlags::empty();
    flags.set(VmaFlags::GROWSDOWN, request.flags.contains(MapFlags::GROWSDOWN));
    flags.set(VmaFlags::LOCKED, request.flags.contains(MapFlags::LOCKED));
    flags |= def_flags;
    flags.set(VmaFlags::NORESERVE, request.flags.contains(MapFlags::NORESERVE));
    if request.flags.contains(MapFlags::DROPPABLE) {
        flags |= VmaFlags::DROPPABLE | VmaFlags::DROPPED;
        flags -= VmaFlags::LOCKED_MASK;
    }
    if request.source.is_huge {
        flags |= VmaFlags::HUGETLB;
        flags -= VmaFlags::LOCKED_MASK;
    }
    let backing = request.source.at(range.start);
    Vma { range, prot: request.prot, flags, uffd: None, advice: Advice::None, name: 0, backing, state: State::Live }
}
