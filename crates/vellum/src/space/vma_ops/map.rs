//! New VMAs: `mmap`.

use bitflags::bitflags;

use crate::addr::{FRAME_SIZE, VirtRange, align_down, align_up};
use crate::arch::{Arch, BadRange, UserRange};
use crate::errno::Errno;
use crate::frame::policy::Advice;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::vma::{Direction, Prot, State, Vma, VmaFlags};

use super::map_object::Source;
use super::{Populating, UnmapError, VmaOps};
use crate::space::ground::{Change, Excess, Vmas, Zap};

bitflags! {
    /// How to map.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MapFlags: u16 {
        /// Exactly at the address given; what is there is unmapped (`MAP_FIXED`).
        const FIXED = 1;
        /// Exactly at the address given, or not at all (`MAP_FIXED_NOREPLACE`).
        const FIXED_NOREPLACE = 2;
        /// Fault everything in at once (`MAP_POPULATE`). Memory running out meanwhile is no error.
        const POPULATE = 4;
        /// Even if the machine could not hold it (`MAP_NORESERVE`).
        const NORESERVE = 8;
        /// A stack (`MAP_GROWSDOWN`).
        const GROWSDOWN = 16;
        /// Not to be reclaimed, and faulted in at once (`MAP_LOCKED`).
        const LOCKED = 32;
        /// What is written is written to what stands behind the VMA, for all to see (`MAP_SHARED`);
        /// of anonymous memory, an object that is made for it and that forks share.
        const SHARED = 64;
        /// A shared VMA that may never be written, not even by a later `protect` (Linux: the file
        /// is open for reading only).
        const READ_ONLY = 128;
        /// Where the engine chooses: in the second gibibyte of addresses (`MAP_32BIT`).
        const LOW = 256;
        /// Faults nothing in: the caller does that next ([`AddressSpace::begin_populate`]).
        const NO_POPULATE = 512;
    }
}

/// The addresses that [`MapFlags::LOW`] means.
const LOW: VirtRange = VirtRange { start: 1 << 30, end: 2 << 30 };

/// What to map, besides what stands behind it.
#[derive(Clone, Copy, Debug)]
pub struct MapRequest {
    /// Where: exactly, or as a hint, which is tried first if it is not 0.
    pub addr: u64,
    /// Bytes; rounded up to whole pages.
    pub len: u64,
    /// What may be done with it.
    pub prot: Prot,
    /// How.
    pub flags: MapFlags,
}

/// Why nothing was mapped. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The length is zero.
    ZeroLength,
    /// A fixed address is not a multiple of the page size.
    Unaligned(u64),
    /// It reaches beyond the addresses that user mode has.
    OutOfRange,
    /// Below the lowest address that may be mapped.
    TooLow(u64),
    /// Something is mapped in this range, and may not be replaced.
    Exists(VirtRange),
    /// No free range of that size.
    NoRoom,
    /// The space has as many VMAs as it may.
    TooManyVmas,
    /// More address space than the limit allows.
    AddressSpaceLimit,
    /// More private memory that may be written than the limit allows.
    DataLimit,
    /// It is to be locked, and no memory may be locked at all.
    LockForbidden,
    /// Something is mapped in this range, and it is sealed.
    SealedVma(VirtRange),
    /// More locked memory than the limit allows.
    LockLimit,
    /// More than the machine has, swap included, and not [`MapFlags::NORESERVE`].
    Overcommit,
    /// The object's address is not a multiple of the page size.
    UnalignedOffset(u64),
    /// The object has no such addresses.
    OffsetTooLarge,
    /// The object's pages are not the space's.
    PageSizeMismatch,
    /// A stack ([`MapFlags::GROWSDOWN`]) is private anonymous memory.
    NotAStack,
    /// It is to be written, and [`MapFlags::READ_ONLY`].
    Denied,
    /// It is to be written, and the object allows no shared writing any more.
    Sealed,
    /// It is to be written and executed, which the space forbids (`Limits::exec_gain`).
    ExecGain,
    /// No memory for the engine's own structures.
    NoMemory(Refused),
}

impl MapError {
    /// What Linux's `mmap` answers.
    pub const fn errno(&self) -> Errno {
        match self {
            MapError::ZeroLength
            | MapError::Unaligned(_)
            | MapError::UnalignedOffset(_)
            | MapError::PageSizeMismatch
            | MapError::NotAStack => Errno::EINVAL,
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
            MapError::ZeroLength => f.write_str("the length is zero"),
            MapError::Unaligned(addr) => write!(f, "{addr:#x} is not a multiple of the page size"),
            MapError::OutOfRange => f.write_str("beyond the addresses of user mode"),
            MapError::TooLow(addr) => write!(f, "{addr:#x} is below the lowest address that may be mapped"),
            MapError::Exists(range) => write!(f, "something is mapped in {range:?}"),
            MapError::NoRoom => f.write_str("no free range of that size"),
            MapError::TooManyVmas => f.write_str("too many VMAs"),
            MapError::AddressSpaceLimit => f.write_str("over the limit on address space"),
            MapError::DataLimit => f.write_str("over the limit on data"),
            MapError::LockForbidden => f.write_str("no memory may be locked"),
            MapError::SealedVma(range) => write!(f, "{range:?} is sealed"),
            MapError::LockLimit => f.write_str("over the limit on locked memory"),
            MapError::Overcommit => f.write_str("more than the machine has"),
            MapError::UnalignedOffset(offset) => write!(f, "offset {offset:#x} is not a multiple of the page size"),
            MapError::OffsetTooLarge => f.write_str("beyond the largest size of an object"),
            MapError::PageSizeMismatch => f.write_str("the object has pages of another size"),
            MapError::NotAStack => f.write_str("a stack is private anonymous memory"),
            MapError::Denied => f.write_str("it may not be written"),
            MapError::Sealed => f.write_str("it may not be written any more"),
            MapError::ExecGain => f.write_str("it may not be both written and executed"),
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

/// A request, and what is to stand behind the VMA.
struct Request {
    request: MapRequest,
    source: Source,
}

impl core::ops::Deref for Request {
    type Target = MapRequest;

    fn deref(&self) -> &MapRequest {
        &self.request
    }
}

impl<'s, P: Platform, A: Arch> VmaOps<'s, '_, P, A> {
    /// Implements [`AddressSpace::map`].
    pub(super) fn map(self, request: MapRequest) -> Result<u64, MapError> {
        if request.flags.contains(MapFlags::SHARED) {
            return self.map_shared(request);
        }
        self.map_source(request, Source::ANONYMOUS)
    }

    /// How much of the address space a request takes.
    pub(super) fn checked_len(self, request: &MapRequest) -> Result<u64, MapError> {
        if request.len == 0 {
            return Err(MapError::ZeroLength);
        }
        let len = align_up(request.len, self.page_shift()).ok_or(MapError::OutOfRange)?;
        if len > self.arch().user_end() {
            return Err(MapError::OutOfRange);
        }
        Ok(len)
    }

    /// Map this; the VMA takes over the caller's reference to the object, if there is one and
    /// nothing fails.
    pub(super) fn map_source(self, request: MapRequest, source: Source) -> Result<u64, MapError> {
        let len = self.checked_len(&request)?;
        let request = Request { request, source };
        let range = if request.flags.intersects(MapFlags::FIXED | MapFlags::FIXED_NOREPLACE) {
            let range = self.fixed_range(request.addr, len)?;
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

    fn fixed_range(self, addr: u64, len: u64) -> Result<UserRange, MapError> {
        UserRange::new(self.arch(), addr, len).map_err(|bad| match bad {
            // Linux looks first whether the end is in range.
            BadRange::Unaligned(addr) if addr <= self.arch().user_end() - len => MapError::Unaligned(addr),
            _ => MapError::OutOfRange,
        })
    }

    fn map_anywhere(self, hint: u64, len: u64, request: &Request) -> Result<UserRange, MapError> {
        let choose = |vmas: &Vmas| match request.flags.contains(MapFlags::LOW) {
            true => self.find_free_range_in(vmas, hint, len, self.user_part(LOW)),
            false => self.find_free_range(vmas, hint, len),
        };
        let mut vmas = self.space.write();
        let range = choose(&vmas)?;
        if !vmas.claims.must_wait(&range, None) {
            self.check(&vmas, range, 0, request)?;
            vmas.reserve(self.machine(), self.space.memcg(), 1)?;
            self.add(&mut vmas, range, request);
            vmas.merge(self.machine(), range);
            vmas.trim(self.machine());
            return Ok(range);
        }
        // A hole in a range that is being unmapped: it is free when the rest is.
        drop(vmas);
        let mut change =
            Change::begin_both(self.space, |vmas| Ok::<_, MapError>([choose(vmas)?, UserRange::default()]))?;
        let range = change.range();
        let vmas = change.vmas();
        self.check(vmas, range, 0, request)?;
        vmas.reserve(self.machine(), self.space.memcg(), 1)?;
        self.add(vmas, range, request);
        Ok(range)
    }

    /// At the hint, if it is free; else as high as possible, large VMAs where huge pages fit.
    pub(super) fn find_free_range(self, vmas: &Vmas, hint: u64, len: u64) -> Result<UserRange, MapError> {
        let all = UserRange::all(self.arch()).tail(vmas.limits.lowest);
        self.find_free_range_in(vmas, hint, len, all)
    }

    fn find_free_range_in(self, vmas: &Vmas, hint: u64, len: u64, window: UserRange) -> Result<UserRange, MapError> {
        let shift = self.page_shift();
        let room = |from: u64, end: u64, align: u32| {
            let room = window.tail(from).head(end);
            vmas.tree.find_gap(len, align, *room, Direction::TopDown).map(|start| room.tail(start).head(start + len))
        };
        let hint = align_down(hint, shift);
        if hint != 0 {
            let hint = hint.max(window.start);
            if let Some(end) = hint.checked_add(len).filter(|end| *end <= window.end)
                && let Some(range) = room(hint, end, shift)
            {
                return Ok(range);
            }
        }
        let huge = self.arch().level_shift(2);
        let base = vmas.limits.mmap_base.min(window.end);
        let aligned = if len >> huge != 0 { room(window.start, base, huge) } else { None };
        aligned
            .or_else(|| room(window.start, base, shift))
            .or_else(|| room(window.start, window.end, shift))
            .ok_or(MapError::NoRoom)
    }

    fn map_fixed(self, range: UserRange, request: &Request) -> Result<(), MapError> {
        let mut change = Change::begin(self.space, range);
        let vmas = change.vmas();
        if range.start < vmas.limits.lowest {
            return Err(MapError::TooLow(range.start));
        }
        if request.flags.contains(MapFlags::FIXED_NOREPLACE)
            && let Some(vma) = vmas.first(range)
        {
            return Err(MapError::Exists(*vma.range.intersect(&range)));
        }
        let platform = self.platform();
        let replaced: u64 = vmas.overlapping(platform, range).map(|v| v.range.intersect(&range).len()).sum();
        self.check(vmas, range, replaced, request)?;
        if replaced == 0 {
            vmas.reserve(self.machine(), self.space.memcg(), 1)?;
            self.add(vmas, range, request);
            return Ok(());
        }
        // What is there goes, and there is no moment at which the addresses are free: its VMAs hold
        // the place, and the first becomes the new one, so that nothing needs to be allocated then.
        let new = new_vma(range, request, vmas.def_flags);
        self.begin_unmap(&mut change, range, State::Locked, Some(&new)).map_err(|error| match error {
            UnmapError::Sealed(range) => MapError::SealedVma(range),
            UnmapError::NoMemory(why) => MapError::NoMemory(why),
            _ => MapError::NoMemory(Refused::OutOfMemory),
        })?;
        Zap::of(self.space).all(range);
        let vmas = change.vmas();
        let first = vmas.first(range).map_or(range, |v| v.range);
        vmas.remove(self.machine(), range.tail(first.end));
        vmas.replace(self.machine(), first.start, new);
        Ok(())
    }

    fn add(self, vmas: &mut Vmas, range: UserRange, request: &Request) {
        let vma = new_vma(range, request, vmas.def_flags);
        let inserted = vmas.tree.insert(vma);
        debug_assert!(inserted.is_ok(), "room was found and a node reserved");
        vmas.account(&vma, range, 1);
    }

    /// Whether the limits allow `range` to be mapped, `replaced` bytes of it being mapped now.
    fn check(self, vmas: &Vmas, range: UserRange, replaced: u64, request: &Request) -> Result<(), MapError> {
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

    /// Whether `len` bytes used as `kind` is are a promise that the machine could not keep.
    pub(super) fn overcommits(self, kind: &Vma, len: u64) -> bool {
        let promised =
            kind.prot.contains(Prot::WRITE) && !kind.flags.contains(VmaFlags::NORESERVE) && !kind.backing.is_shared();
        promised && self.exceeds_machine(len)
    }

    /// Whether so many bytes are more than there is memory and swap.
    pub(super) fn exceeds_machine(self, len: u64) -> bool {
        let (machine, pages) = (self.machine(), len / FRAME_SIZE);
        let memory = machine.frames().total();
        pages > memory && pages > memory + machine.swaps().total_slots(machine.platform())
    }
}

fn new_vma(range: UserRange, request: &Request, future: VmaFlags) -> Vma {
    let mut flags = VmaFlags::empty();
    flags.set(VmaFlags::GROWSDOWN, request.flags.contains(MapFlags::GROWSDOWN));
    flags.set(VmaFlags::LOCKED, request.flags.contains(MapFlags::LOCKED));
    flags |= future;
    flags.set(VmaFlags::NORESERVE, request.flags.contains(MapFlags::NORESERVE));
    let backing = request.source.at(range.start);
    Vma { range, prot: request.prot, flags, uffd: None, advice: Advice::None, backing, state: State::Live }
}
