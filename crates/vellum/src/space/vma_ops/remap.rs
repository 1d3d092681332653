//! VMAs change their size or their place: `mremap`.
//!
//! To grow in place is to map what lies behind the VMA as the VMA is; the two then merge. To shrink
//! is to unmap. How VMAs move is said in [`super::relocate`].

use bitflags::bitflags;

use crate::addr::{VirtRange, align_up};
use crate::arch::{Arch, UserRange};
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::page_cache::{self, MAX_SIZE};
use crate::platform::Platform;
use crate::vma::{State, Vma, VmaFlags};

use super::{Populating, UnmapError, VmaOps};
use crate::space::ground::{Change, Excess, Vmas};

bitflags! {
    /// How to remap. The bits are Linux's.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RemapFlags: u8 {
        /// Elsewhere, if it can't grow where it is (`MREMAP_MAYMOVE`).
        const MAYMOVE = 1;
        /// To the address given; what is there is unmapped (`MREMAP_FIXED`). Together with
        /// [`RemapFlags::MAYMOVE`].
        const FIXED = 2;
        /// Elsewhere, and leave the VMA behind, empty (`MREMAP_DONTUNMAP`). Together with
        /// [`RemapFlags::MAYMOVE`].
        const DONTUNMAP = 4;
    }
}

/// What to remap.
#[derive(Clone, Copy, Debug)]
pub struct RemapRequest {
    /// Where it is.
    pub addr: u64,
    /// How many bytes of it; rounded up to whole pages. 0: map what shared memory begins there a
    /// second time.
    pub old_len: u64,
    /// How many bytes are to be mapped afterwards; rounded up to whole pages.
    pub new_len: u64,
    /// How.
    pub flags: RemapFlags,
    /// Where to, exactly or as a hint; of no meaning without [`RemapFlags::FIXED`] or
    /// [`RemapFlags::DONTUNMAP`].
    pub new_addr: u64,
}

/// Why nothing was remapped. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemapError {
    /// An address is not a multiple of the page size.
    Unaligned(u64),
    /// The new length is zero.
    ZeroLength,
    /// It reaches beyond the addresses that user mode has.
    OutOfRange,
    /// Flags that make no sense together, or not with these lengths.
    Flags(RemapFlags),
    /// The new addresses overlap the old.
    Overlap,
    /// Nothing is mapped here, or it is another VMA's.
    NotMapped(u64),
    /// This VMA is sealed.
    Sealed(VirtRange),
    /// Private memory can't be mapped a second time.
    NotShared(VirtRange),
    /// Below the lowest address that may be mapped.
    TooLow(u64),
    /// Beyond the largest size of the object behind the VMA.
    OffsetTooLarge,
    /// It can't grow where it is, or there is no free range of that size.
    NoRoom,
    /// VMAs would have to be split or added, and the space has as many as it may.
    TooManyVmas,
    /// More address space than the limit allows.
    AddressSpaceLimit,
    /// More private memory that may be written than the limit allows.
    DataLimit,
    /// More locked memory than the limit allows.
    LockLimit,
    /// More than the machine has, and not reserved otherwise.
    Overcommit,
    /// No memory for the engine's own structures.
    NoMemory(Refused),
}

impl RemapError {
    /// What Linux's `mremap` answers.
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
            RemapError::Unaligned(addr) => write!(f, "{addr:#x} is not a multiple of the page size"),
            RemapError::ZeroLength => f.write_str("the new length is zero"),
            RemapError::OutOfRange => f.write_str("beyond the addresses of user mode"),
            RemapError::Flags(flags) => write!(f, "{flags:?} make no sense here"),
            RemapError::Overlap => f.write_str("the new addresses overlap the old"),
            RemapError::NotMapped(addr) => write!(f, "there is nothing, or another VMA, at {addr:#x}"),
            RemapError::Sealed(range) => write!(f, "{range:?} is sealed"),
            RemapError::NotShared(range) => write!(f, "{range:?} is private"),
            RemapError::TooLow(addr) => write!(f, "{addr:#x} is below the lowest address that may be mapped"),
            RemapError::OffsetTooLarge => f.write_str("beyond the largest size of an object"),
            RemapError::NoRoom => f.write_str("no free range of that size"),
            RemapError::TooManyVmas => f.write_str("too many VMAs"),
            RemapError::AddressSpaceLimit => f.write_str("over the limit on address space"),
            RemapError::DataLimit => f.write_str("over the limit on data"),
            RemapError::LockLimit => f.write_str("over the limit on locked memory"),
            RemapError::Overcommit => f.write_str("more than the machine has"),
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
            UnmapError::TooManyVmas => RemapError::TooManyVmas,
            UnmapError::NoMemory(why) => RemapError::NoMemory(why),
        }
    }
}

/// A request whose numbers make sense.
#[derive(Clone, Copy)]
pub(in crate::space) struct Wanted {
    /// The old addresses.
    pub(in crate::space) old: UserRange,
    /// If the request names addresses behind those, which are no user addresses: the answer where
    /// something is mapped at the first one.
    beyond: Option<RemapError>,
    /// The new length.
    len: u64,
    pub(in crate::space) flags: RemapFlags,
    to: u64,
}

impl Wanted {
    /// Whether it is to be elsewhere afterwards, whatever room there is.
    fn moves(&self) -> bool {
        self.flags.intersects(RemapFlags::FIXED | RemapFlags::DONTUNMAP)
    }

    fn grows(&self) -> bool {
        self.len > self.old.len()
    }

    /// The part of the old addresses that still is what it was afterwards.
    pub(super) fn kept(&self) -> UserRange {
        self.old.head(self.old.start + self.len)
    }
}

/// What is to be done.
#[derive(Clone, Copy)]
enum Plan {
    /// Nothing, but to unmap what is too much.
    Shrink,
    /// Map this as the VMA before it is.
    Grow(Vma),
    /// Move to these addresses.
    Move(UserRange),
}

impl<'m, P: Platform, A: Arch> VmaOps<'_, 'm, P, A> {
    /// Implements [`AddressSpace::remap`].
    pub(super) fn remap(self, request: RemapRequest) -> Result<u64, RemapError> {
        let wanted = self.checked_request(&request)?;
        // Of no length, it is about the page.
        let page = UserRange::all(self.arch()).around(wanted.old.start, self.page_shift());
        let mut plan = Plan::Shrink;
        let change = Change::begin_both(self.space, |vmas| {
            let old = if wanted.old.is_empty() { page } else { wanted.old };
            if vmas.claims.is_changing(&old) {
                // What is there may soon be something else.
                return Ok([old, UserRange::default()]);
            }
            plan = self.plan(vmas, &wanted)?;
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
                let kept = wanted.kept();
                if wanted.old.end > kept.end {
                    self.unmap(kept.end, wanted.old.end - kept.end)?;
                }
                return Ok(wanted.old.start);
            }
            Plan::Grow(part) => {
                self.grow(change, &part)?;
                (wanted.old.start, part.range)
            }
            Plan::Move(to) => {
                self.move_vmas(change, &wanted, to)?;
                (to.start, to.tail(to.start + wanted.kept().len()))
            }
        };
        self.populate_all(Populating::all(grown, false));
        Ok(start)
    }

    /// What can be said without a look at what is mapped.
    fn checked_request(self, request: &RemapRequest) -> Result<Wanted, RemapError> {
        let (shift, end) = (self.page_shift(), self.arch().user_end());
        let unaligned = |addr: u64| addr & ((1 << shift) - 1) != 0;
        let RemapRequest { addr, flags, new_addr, .. } = *request;
        if flags.bits() & !RemapFlags::all().bits() != 0 {
            return Err(RemapError::Flags(flags));
        }
        if unaligned(addr) {
            return Err(RemapError::Unaligned(addr));
        }
        let len = align_up(request.new_len, shift).filter(|len| *len <= end).ok_or(RemapError::OutOfRange)?;
        if len == 0 {
            return Err(RemapError::ZeroLength);
        }
        let old_len = align_up(request.old_len, shift).ok_or(RemapError::OutOfRange)?;
        let whole = VirtRange::new(addr, old_len);
        let old = self.user_part(whole.unwrap_or(VirtRange { start: addr, end: u64::MAX }));
        let beyond = match whole {
            Some(whole) if old == whole => None,
            _ if len <= old_len => Some(RemapError::OutOfRange),
            _ => Some(RemapError::NotMapped(old.end)),
        };
        let mut wanted = Wanted { old, beyond, len, flags, to: new_addr };
        if wanted.moves() {
            if !flags.contains(RemapFlags::MAYMOVE) || flags.contains(RemapFlags::DONTUNMAP) && old_len != len {
                return Err(RemapError::Flags(flags));
            }
            if unaligned(new_addr) {
                return Err(RemapError::Unaligned(new_addr));
            }
            if new_addr > end - len {
                return Err(RemapError::OutOfRange);
            }
            let new = VirtRange { start: new_addr, end: new_addr + len };
            if whole.is_some_and(|whole| whole.overlaps(&new)) {
                return Err(RemapError::Overlap);
            }
            if flags.contains(RemapFlags::FIXED) && new.contains(addr) {
                // What is to be mapped a second time would be unmapped first.
                return Err(RemapError::NotMapped(addr));
            }
        }
        if beyond.is_some() && old.is_empty() {
            return Err(RemapError::NotMapped(addr));
        }
        if beyond.is_some() && flags.contains(RemapFlags::FIXED) && old_len == len {
            // What lies beyond is a hole, and stays one at the new addresses.
            (wanted.beyond, wanted.len) = (None, old.len());
        }
        Ok(wanted)
    }

    /// What to do, if nobody is at work on the old addresses.
    fn plan(self, vmas: &Vmas, wanted: &Wanted) -> Result<Plan, RemapError> {
        let old = wanted.old;
        let vma = *vmas.find(old.start).ok_or(RemapError::NotMapped(old.start))?;
        if vma.flags.contains(VmaFlags::SEALED) {
            return Err(RemapError::Sealed(*vma.range));
        }
        if let Some(error) = wanted.beyond {
            return Err(error);
        }
        if !wanted.moves() && !wanted.grows() {
            return Ok(Plan::Shrink);
        }
        if old.is_empty() && !vma.backing.is_shared() {
            return Err(RemapError::NotShared(*vma.range));
        }
        let several = wanted.flags.contains(RemapFlags::FIXED) && old.len() == wanted.len;
        if !several && wanted.kept().end > vma.range.end {
            return Err(RemapError::NotMapped(vma.range.end));
        }
        if wanted.grows() {
            let more = wanted.len - old.len();
            let end = vma.backing.offset(old.start).checked_add(wanted.len);
            if !vma.backing.is_anonymous() && end.is_none_or(|end| end > MAX_SIZE) {
                return Err(RemapError::OffsetTooLarge);
            }
            vmas.allow(&vma, more, 0)?;
            if self.overcommits(&vma, more) {
                return Err(RemapError::Overcommit);
            }
        }
        if !wanted.moves() {
            let behind = VirtRange { start: old.end, end: old.start + wanted.len };
            let part = UserRange::all(self.arch()).part(behind);
            let free = part.filter(|part| vmas.first(*part).is_none_or(|v| v.state == State::Dying));
            if !old.is_empty()
                && old.end == vma.range.end
                && let Some(range) = free
            {
                return Ok(Plan::Grow(Vma { range, ..vma }));
            }
            if !wanted.flags.contains(RemapFlags::MAYMOVE) {
                return Err(RemapError::NoRoom);
            }
        }
        let to = self.target(vmas, wanted)?;
        let platform = self.platform();
        if let Some(sealed) = vmas.sealed(platform, old).or_else(|| vmas.sealed(platform, to)) {
            return Err(RemapError::Sealed(sealed));
        }
        if wanted.flags.contains(RemapFlags::DONTUNMAP) {
            let replaced = vmas.overlapping(platform, to).map(|v| v.range.intersect(&to).len()).sum();
            vmas.allow(&Vma { flags: vma.flags - VmaFlags::LOCKED_MASK, ..vma }, wanted.len, replaced)?;
        }
        Ok(Plan::Move(to))
    }

    fn target(self, vmas: &Vmas, wanted: &Wanted) -> Result<UserRange, RemapError> {
        if wanted.flags.contains(RemapFlags::FIXED) {
            return match wanted.to < vmas.limits.lowest {
                true => Err(RemapError::TooLow(wanted.to)),
                false => Ok(self.user_part(VirtRange { start: wanted.to, end: wanted.to + wanted.len })),
            };
        }
        let hint = if wanted.flags.contains(RemapFlags::DONTUNMAP) { wanted.to } else { 0 };
        let table = self.arch().level_shift(2);
        if hint == 0
            && wanted.old.len() >> table != 0
            && let Ok(room) = self.find_free_range(vmas, 0, wanted.len + (1 << table))
        {
            // As far into a table of pages as it is now, so that tables can move as they are.
            let start = room.start + (wanted.old.start & ((1 << table) - 1));
            return Ok(room.tail(start).head(start + wanted.len));
        }
        self.find_free_range(vmas, hint, wanted.len).map_err(|_| RemapError::NoRoom)
    }

    /// Map what lies behind a VMA as the VMA is.
    fn grow(self, mut change: Change<'_, 'm, P, A>, part: &Vma) -> Result<(), RemapError> {
        let vmas = change.vmas();
        if vmas.tree.len() > vmas.limits.vmas {
            return Err(RemapError::TooManyVmas);
        }
        vmas.reserve(self.machine(), self.space.memcg(), 1)?;
        let inserted = vmas.tree.insert(*part);
        debug_assert!(inserted.is_ok(), "there is room and a node");
        page_cache::get_backing(self.machine(), &part.backing, self.space.id());
        vmas.account(part, part.range, 1);
        Ok(())
    }
}
