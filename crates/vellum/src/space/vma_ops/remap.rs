//! Remapping: `mremap` grows, shrinks or moves VMAs.
//!
//! To grow a VMA in place, a new VMA with the same attributes is inserted behind it, and the two
//! are merged. To shrink a VMA, its end is unmapped. [`super::relocate`] moves VMAs.

use bitflags::bitflags;

use crate::addr::{VirtRange, align_up};
use crate::arch::{Arch, UserRange};
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::page_cache::{self, MAX_SIZE};
use crate::platform::Platform;
use crate::vma::{HUGETLB_SHIFT, State, Vma, VmaFlags};

use super::{Populating, UnmapError, VmaOps};
use crate::space::ground::{Change, Excess, Vmas};

bitflags! {
    /// Flags of a remap (Linux: `MREMAP_*`). The bits are Linux's.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RemapFlags: u8 {
        /// Moves the mapping if it can't grow in place (`MREMAP_MAYMOVE`).
        const MAYMOVE = 1;
        /// Moves the mapping to [`RemapRequest::new_addr`], and unmaps what is there
        /// (`MREMAP_FIXED`). Requires [`RemapFlags::MAYMOVE`].
        const FIXED = 2;
        /// Moves the pages, and keeps the old VMA without pages (`MREMAP_DONTUNMAP`). Requires
        /// [`RemapFlags::MAYMOVE`].
        const DONTUNMAP = 4;
    }
}

/// A request to remap memory.
#[derive(Clone, Copy, Debug)]
pub struct RemapRequest {
    /// The old address.
    pub addr: u64,
    /// The old length in bytes; rounded up to whole pages. 0 maps the shared memory that begins at
    /// `addr` a second time.
    pub old_len: u64,
    /// The new length in bytes; rounded up to whole pages.
    pub new_len: u64,
    /// The flags.
    pub flags: RemapFlags,
    /// The new address: exact with [`RemapFlags::FIXED`], a hint with [`RemapFlags::DONTUNMAP`]
    /// alone. Ignored without either flag.
    pub new_addr: u64,
}

/// The reason why a remap failed. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemapError {
    /// An address is not a multiple of the page size.
    Unaligned(u64),
    /// The new length is zero.
    ZeroLength,
    /// The old or the new range reaches beyond the user half.
    OutOfRange,
    /// The flags contradict each other, or don't fit the lengths.
    Flags(RemapFlags),
    /// The new range overlaps the old.
    Overlap,
    /// At this address of the old range nothing is mapped, or a different VMA than at the old
    /// range's start.
    NotMapped(u64),
    /// This VMA is sealed.
    Sealed(VirtRange),
    /// This VMA is private, and private memory can't be mapped a second time.
    NotShared(VirtRange),
    /// This address is below the lowest that may be mapped
    /// ([`Limits::lowest_fixed`](crate::space::Limits::lowest_fixed)).
    TooLow(u64),
    /// The new range would end beyond the largest size of an object.
    OffsetTooLarge,
    /// The mapping can't grow in place and may not move, or there is no free range of that size.
    NoRoom,
    /// The remap splits or adds VMAs, and the limit on their number would be exceeded.
    TooManyVmas,
    /// The limit on address space would be exceeded.
    AddressSpaceLimit,
    /// The limit on private writable memory would be exceeded.
    DataLimit,
    /// The limit on locked memory would be exceeded.
    LockLimit,
    /// The growth exceeds memory and swap together, and the VMA has no [`VmaFlags::NORESERVE`].
    Overcommit,
    /// There is no memory for the engine's own structures.
    NoMemory(Refused),
}

impl RemapError {
    /// Returns the errno that Linux's `mremap` reports.
    pub const fn errno(&self) -> Errno {
        match self {
            RemapError::Unaligned(_)
            | RemapError::ZeroLength
            | RemapError::OutOfRange
            | RemapError::Flags(_)
            | RemapError::Overlap
            | RemapError::NotShared(_)
            | RemapError::OffsetTooLarge => Errno::EINVAL,
            RemapError::NotMapped(_) => Errno::EFAULT,
            RemapError::TooLow(_) | RemapError::Sealed(_) => Errno::EPERM,
            RemapError::LockLimit => Errno::EAGAIN,
            _ => Errno::ENOMEM,
        }
    }
}

impl core::fmt::Display for RemapError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            RemapError::Unaligned(addr) => write!(f, "address {addr:#x} is not a multiple of the page size: align it"),
            RemapError::ZeroLength => f.write_str("the new length is zero: pass at least one byte"),
            RemapError::OutOfRange => f.write_str("the range reaches beyond the user half: shorten or move it"),
            RemapError::Flags(flags) => write!(
                f,
                "invalid mremap flags {flags:?}: FIXED and DONTUNMAP need MAYMOVE, DONTUNMAP an unchanged length"
            ),
            RemapError::Overlap => f.write_str("the new range overlaps the old: pass another address"),
            RemapError::NotMapped(addr) => {
                write!(f, "nothing, or another VMA, is mapped at {addr:#x}: pass a range of one VMA")
            }
            RemapError::Sealed(range) => write!(f, "the VMA {range:?} is sealed: it can't be remapped"),
            RemapError::NotShared(range) => write!(f, "the VMA {range:?} is private: it can't be mapped a second time"),
            RemapError::TooLow(addr) => {
                write!(f, "address {addr:#x} is below the lowest that may be mapped: pass a higher one")
            }
            RemapError::OffsetTooLarge => f.write_str("the range ends beyond the largest size of an object"),
            RemapError::NoRoom => {
                f.write_str("there is no room to grow in place, or no free range: pass MAYMOVE, or unmap something")
            }
            RemapError::TooManyVmas => f.write_str("too many VMAs: raise the limit, or unmap some"),
            RemapError::AddressSpaceLimit => f.write_str("the request exceeds the limit on address space: raise it"),
            RemapError::DataLimit => f.write_str("the request exceeds the limit on data: raise it"),
            RemapError::LockLimit => f.write_str("the request exceeds the limit on locked memory: raise it"),
            RemapError::Overcommit => f.write_str("the growth exceeds memory and swap together: grow by less"),
            RemapError::NoMemory(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for RemapError {}

may_be_refused!(RemapError);

impl From<Excess> for RemapError {
    fn from(excess: Excess) -> Self {
        match excess {
            Excess::AddressSpace => RemapError::AddressSpaceLimit,
            Excess::Data => RemapError::DataLimit,
            Excess::Locked => RemapError::LockLimit,
        }
    }
}

impl From<UnmapError> for RemapError {
    fn from(error: UnmapError) -> Self {
        match error {
            UnmapError::Unaligned(addr) => RemapError::Unaligned(addr),
            UnmapError::ZeroLength => RemapError::ZeroLength,
            UnmapError::OutOfRange => RemapError::OutOfRange,
            UnmapError::Sealed(range) => RemapError::Sealed(range),
            UnmapError::CutsHuge(at) => RemapError::Unaligned(at),
            UnmapError::TooManyVmas => RemapError::TooManyVmas,
            UnmapError::NoMemory(why) => RemapError::NoMemory(why),
        }
    }
}

/// A request that has passed [`VmaOps::check_request`].
#[derive(Clone, Copy)]
pub(in crate::space) struct CheckedRequest {
    /// The part of the old range that lies in the user half.
    pub(in crate::space) old: UserRange,
    /// The error to return if a VMA is mapped at the start of the old range. `None` unless the old
    /// range reaches beyond the user half.
    beyond_error: Option<RemapError>,
    /// The new length in bytes, in whole pages.
    new_len: u64,
    /// The flags.
    pub(in crate::space) flags: RemapFlags,
    /// The new address, or a hint for it: see [`RemapRequest::new_addr`].
    new_addr: u64,
}

impl CheckedRequest {
    /// Returns true if the mapping moves even where it could grow in place.
    fn must_move(&self) -> bool {
        self.flags.intersects(RemapFlags::FIXED | RemapFlags::DONTUNMAP)
    }

    /// Returns true if the mapping becomes longer.
    fn grows(&self) -> bool {
        self.new_len > self.old.len()
    }

    /// Returns the part of the old range that the mapping keeps: all of it, unless it shrinks.
    pub(super) fn retained(&self) -> UserRange {
        self.old.head(self.old.start + self.new_len)
    }
}

/// The way in which a remap is done.
#[derive(Clone, Copy)]
enum Plan {
    /// Unmaps the end of the old range, if the mapping becomes shorter.
    Shrink,
    /// Inserts this VMA behind the old range.
    Grow(Vma),
    /// Moves the VMAs to these addresses.
    Move(UserRange),
}

impl<'m, P: Platform> VmaOps<'_, 'm, P> {
    /// Implements [`AddressSpace::remap`](crate::space::AddressSpace::remap).
    pub(super) fn remap(self, request: RemapRequest) -> Result<u64, RemapError> {
        let request = self.check_request(&self.in_huge_pages(request)?)?;
        // The page at the old address: what the remap claims if the old range is empty.
        let page = UserRange::all(self.arch()).around(request.old.start, self.page_shift());
        let mut plan = Plan::Shrink;
        let change = Change::begin_both(self.space, |vmas| {
            let old = if request.old.is_empty() { page } else { request.old };
            if vmas.claims.is_changing(&old) {
                // Another change is at work on the old range, and may replace its VMAs. When it has
                // ended, this closure is called again and makes the plan.
                return Ok([old, UserRange::default()]);
            }
            plan = self.plan(vmas, &request)?;
            let new = match plan {
                Plan::Shrink => UserRange::default(),
                Plan::Grow(part) => part.range,
                Plan::Move(to) => to,
            };
            Ok::<_, RemapError>([old, new])
        })?;
        let (start, grown) = match plan {
            Plan::Shrink => {
                drop(change);
                let retained = request.retained();
                if request.old.end > retained.end {
                    self.unmap(retained.end, request.old.end - retained.end)?;
                }
                return Ok(request.old.start);
            }
            Plan::Grow(part) => {
                self.grow(change, &part)?;
                (request.old.start, part.range)
            }
            Plan::Move(to) => {
                self.move_vmas(change, &request, to)?;
                (to.start, to.tail(to.start + request.retained().len()))
            }
        };
        self.populate_all(Populating::all(grown, false));
        Ok(start)
    }

    /// Rounds the lengths of a request up to huge pages of the pool, if it is for a VMA of them.
    ///
    /// # Errors
    /// [`RemapError::Unaligned`].
    fn in_huge_pages(self, mut request: RemapRequest) -> Result<RemapRequest, RemapError> {
        if self.space.read().find(request.addr).is_none_or(|vma| !vma.is_hugetlb()) {
            return Ok(request);
        }
        let round = |len: u64| align_up(len, HUGETLB_SHIFT).ok_or(RemapError::OutOfRange);
        (request.old_len, request.new_len) = (round(request.old_len)?, round(request.new_len)?);
        let addrs = [request.addr, if request.flags.contains(RemapFlags::FIXED) { request.new_addr } else { 0 }];
        match addrs.into_iter().find(|addr| addr & ((1 << HUGETLB_SHIFT) - 1) != 0) {
            Some(addr) => Err(RemapError::Unaligned(addr)),
            None => Ok(request),
        }
    }

    /// Checks the parts of a request that don't depend on the VMAs, and rounds its lengths.
    ///
    /// # Errors
    /// See [`RemapError`].
    fn check_request(self, request: &RemapRequest) -> Result<CheckedRequest, RemapError> {
        let (shift, end) = (self.page_shift(), self.arch().user_end());
        let unaligned = |addr: u64| addr & ((1 << shift) - 1) != 0;
        let RemapRequest { addr, flags, new_addr, .. } = *request;
        if flags.bits() & !RemapFlags::all().bits() != 0 {
            return Err(RemapError::Flags(flags));
        }
        if unaligned(addr) {
            return Err(RemapError::Unaligned(addr));
        }
        let new_len = align_up(request.new_len, shift).filter(|len| *len <= end).ok_or(RemapError::OutOfRange)?;
        if new_len == 0 {
            return Err(RemapError::ZeroLength);
        }
        let old_len = align_up(request.old_len, shift).ok_or(RemapError::OutOfRange)?;
        let whole = VirtRange::new(addr, old_len);
        let old = self.user_part(whole.unwrap_or(VirtRange { start: addr, end: u64::MAX }));
        let beyond_error = match whole {
            Some(whole) if old == whole => None,
            _ if new_len <= old_len => Some(RemapError::OutOfRange),
            _ => Some(RemapError::NotMapped(old.end)),
        };
        let mut checked = CheckedRequest { old, beyond_error, new_len, flags, new_addr };
        if checked.must_move() {
            if !flags.contains(RemapFlags::MAYMOVE) || flags.contains(RemapFlags::DONTUNMAP) && old_len != new_len {
                return Err(RemapError::Flags(flags));
            }
            if unaligned(new_addr) {
                return Err(RemapError::Unaligned(new_addr));
            }
            if new_addr > end - new_len {
                return Err(RemapError::OutOfRange);
            }
            let new_range = VirtRange { start: new_addr, end: new_addr + new_len };
            if whole.is_some_and(|whole| whole.overlaps(&new_range)) {
                return Err(RemapError::Overlap);
            }
            if flags.contains(RemapFlags::FIXED) && new_range.contains(addr) {
                // Linux unmaps the new range first, then finds nothing at the old address, and so
                // reports this error.
                return Err(RemapError::NotMapped(addr));
            }
        }
        if beyond_error.is_some() && old.is_empty() {
            return Err(RemapError::NotMapped(addr));
        }
        if beyond_error.is_some() && flags.contains(RemapFlags::FIXED) && old_len == new_len {
            // No VMA lies beyond the user half, so only the part of the old range below its end
            // moves. The rest is a hole, and remains one at the new addresses.
            (checked.beyond_error, checked.new_len) = (None, old.len());
        }
        Ok(checked)
    }

    /// Returns the plan for a request, checked against the VMAs and the limits. The caller makes
    /// sure that no other change is at work on the old range.
    ///
    /// # Errors
    /// See [`RemapError`].
    fn plan(self, vmas: &Vmas, request: &CheckedRequest) -> Result<Plan, RemapError> {
        let old = request.old;
        let vma = *vmas.find(old.start).ok_or(RemapError::NotMapped(old.start))?;
        if vma.flags.contains(VmaFlags::SEALED) {
            return Err(RemapError::Sealed(*vma.range));
        }
        if let Some(error) = request.beyond_error {
            return Err(error);
        }
        if vma.is_hugetlb() && request.flags.contains(RemapFlags::DONTUNMAP) {
            return Err(RemapError::Flags(request.flags));
        }
        if vma.is_hugetlb() && request.grows() {
            // Linux: `VM_DONTEXPAND`.
            return Err(RemapError::Flags(request.flags));
        }
        if !request.must_move() && !request.grows() {
            return Ok(Plan::Shrink);
        }
        if old.is_empty() && !vma.backing.is_shared() {
            return Err(RemapError::NotShared(*vma.range));
        }
        let may_span_vmas = request.flags.contains(RemapFlags::FIXED) && old.len() == request.new_len;
        if !may_span_vmas && request.retained().end > vma.range.end {
            return Err(RemapError::NotMapped(vma.range.end));
        }
        if request.grows() {
            let growth = request.new_len - old.len();
            let end = vma.backing.offset(old.start).checked_add(request.new_len);
            if !vma.backing.is_anonymous() && end.is_none_or(|end| end > MAX_SIZE) {
                return Err(RemapError::OffsetTooLarge);
            }
            vmas.allow(&vma, growth, 0)?;
            if self.overcommits(&vma, growth) {
                return Err(RemapError::Overcommit);
            }
        }
        if !request.must_move() {
            let growth_range = VirtRange { start: old.end, end: old.start + request.new_len };
            let in_user_half = UserRange::all(self.arch()).part(growth_range);
            let free = in_user_half.filter(|part| vmas.first(*part).is_none_or(|v| v.state == State::Dying));
            if !old.is_empty()
                && old.end == vma.range.end
                && let Some(range) = free
            {
                return Ok(Plan::Grow(Vma { range, ..vma }));
            }
            if !request.flags.contains(RemapFlags::MAYMOVE) {
                return Err(RemapError::NoRoom);
            }
        }
        let to = self.new_range(vmas, request)?;
        let platform = self.platform();
        let cut = |vma: &Vma| {
            let moves_by = to.start.wrapping_sub(old.start) & ((1 << HUGETLB_SHIFT) - 1);
            vma.cut_huge(old).or((vma.is_hugetlb() && moves_by != 0).then_some(to.start))
        };
        let cut = vmas.overlapping(platform, old).find_map(cut);
        if let Some(at) = cut.or_else(|| vmas.overlapping(platform, to).find_map(|vma| vma.cut_huge(to))) {
            return Err(RemapError::Unaligned(at));
        }
        if let Some(sealed) = vmas.sealed(platform, old).or_else(|| vmas.sealed(platform, to)) {
            return Err(RemapError::Sealed(sealed));
        }
        if request.flags.contains(RemapFlags::DONTUNMAP) {
            let replaced = vmas.overlapping(platform, to).map(|v| v.range.intersect(&to).len()).sum();
            vmas.allow(&Vma { flags: vma.flags - VmaFlags::LOCKED_MASK, ..vma }, request.new_len, replaced)?;
        }
        Ok(Plan::Move(to))
    }

    /// Returns the new range of a mapping that moves.
    ///
    /// # Errors
    /// [`RemapError::TooLow`], [`RemapError::NoRoom`].
    fn new_range(self, vmas: &Vmas, request: &CheckedRequest) -> Result<UserRange, RemapError> {
        if request.flags.contains(RemapFlags::FIXED) {
            return match request.new_addr < vmas.limits.lowest_fixed {
                true => Err(RemapError::TooLow(request.new_addr)),
                false => {
                    Ok(self.user_part(VirtRange { start: request.new_addr, end: request.new_addr + request.new_len }))
                }
            };
        }
        let hint = if request.flags.contains(RemapFlags::DONTUNMAP) { request.new_addr } else { 0 };
        let table_shift = self.arch().level_shift(2);
        if hint == 0
            && request.old.len() >> table_shift != 0
            && let Ok(free) = self.find_free_range(vmas, 0, request.new_len + (1 << table_shift))
        {
            // The new range begins at the same offset in a level-1 page table as the old one, so
            // that whole page tables can be moved instead of single PTEs.
            let start = free.start + (request.old.start & ((1 << table_shift) - 1));
            return Ok(free.tail(start).head(start + request.new_len));
        }
        self.find_free_range(vmas, hint, request.new_len).map_err(|_| RemapError::NoRoom)
    }

    /// Inserts `part`, the VMA that a growing mapping gets behind its old range.
    ///
    /// # Errors
    /// [`RemapError::TooManyVmas`], [`RemapError::NoMemory`]: nothing was changed.
    fn grow(self, mut change: Change<'_, 'm, P>, part: &Vma) -> Result<(), RemapError> {
        let vmas = change.vmas();
        if vmas.tree.len() > vmas.limits.vmas {
            return Err(RemapError::TooManyVmas);
        }
        vmas.reserve(self.machine(), self.space.memcg(), 1)?;
        let inserted = vmas.tree.insert(*part);
        debug_assert!(inserted.is_ok(), "the range is free and a node is reserved");
        page_cache::get_backing(self.machine(), &part.backing, self.space.id());
        vmas.account(part, part.range, 1);
        Ok(())
    }
}
