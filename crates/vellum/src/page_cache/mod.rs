//! Memory objects: what stands behind shared memory and files. A sparse array of pages with a size in bytes, which VMAs of
//! any number of spaces map and which the host reads and writes: shared anonymous memory, a file of a file system in memory,
//! a segment of System V shared memory.
//!
//! # Guarantee
//! An object lives as long as somebody has a handle ([`Object`]) or a VMA maps it; then all its memory is free. A page of
//! it holds one reference of the object's own, one for each [`ObjectPage`], and one for each entry that maps it (INV-2
//! holds for it as for any folio), so what was removed from the object lives until the last of them is gone.
//!
//! # Mechanism
//! - **No heap.** The object's head, and the nodes of its index, are frames, charged to a memcg.
//! - **One lock an object**, for its size and its index. Nothing is allocated or copied under it, and no other lock is taken but a
//!   cluster's of swap slots.
//! - **The size decides under that lock** whether a fault finds a page. [`Object::set_size`] writes
//!   the size there first. A fault that was ahead of it is still in the lock of its space's VMAs,
//!   which [`crate::space::discard`] takes as the writer before it looks: what such a fault has
//!   mapped is found and removed, and every later one knows the new size.
//! - **Large folios** need no other index: each slot names the frame of its own page, and a frame's descriptor knows the
//!   way to the head of its folio. They come where none of their pages is there yet, and leave page by page; their memory is free
//!   when the last has left.
//! - **Swap**: slots take the place of frames in the index, and the other way round. Nobody gets a page while it is decided which.
//!
//! | file | story |
//! |---|---|
//! | `index` | which pages there are: a radix tree of frames |
//! | `fill` | pages come |
//! | `remove` | pages go: truncation, holes, the end |
//! | `swap_out`, `swap_in` | pages go to swap devices, and come back |
//! | `mappers` | the spaces that map it |
//! | `owner` | from a folio to its object; the objects that have something on swap devices |
//! | `page` | a page in hand |
//! | `survey` | what an audit looks at |

mod fill;
mod index;
mod mappers;
mod owner;
mod page;
mod remove;
mod survey;
mod swap_in;
mod swap_out;
#[cfg(test)]
mod tests;

pub(crate) use owner::{names_object, page_of};
pub use page::ObjectPage;
pub use remove::Gone;
pub(crate) use survey::There;

pub(crate) use fill::Looked;

use core::mem::ManuallyDrop;
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use crate::addr::{FRAME_SHIFT, Pfn};
use crate::arch::Arch;
use crate::errno::Errno;
use crate::frame::TooManyReferences;
use crate::machine::Machine;
use crate::memcg::{MemcgId, Refused, may_be_refused};
use crate::platform::{Platform, SpaceId};
use crate::sync::{Gate, SpinGuard, SpinLock};
use crate::vma::{Backing, Sharing};
use index::Index;
use mappers::Mappers;

/// The largest size of an object, in bytes: what file offsets can say.
pub const MAX_SIZE: u64 = i64::MAX as u64;

/// Why an object did not get what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectError {
    /// The machine has no memory left.
    NoMemory(Refused),
    /// Beyond [`MAX_SIZE`].
    TooLarge,
    /// Shared VMAs map the object that may write to it.
    Busy,
    /// A swap device does not give back what it got.
    Lost,
    /// The folio has as many references and mappings as it may.
    TooManyReferences,
}

impl ObjectError {
    /// What Linux's calls on a file in memory answer.
    pub const fn errno(&self) -> Errno {
        match self {
            ObjectError::NoMemory(_) => Errno::ENOMEM,
            ObjectError::TooLarge => Errno::EFBIG,
            ObjectError::Busy => Errno::EBUSY,
            ObjectError::Lost => Errno::EIO,
            ObjectError::TooManyReferences => Errno::ENOMEM,
        }
    }
}

impl core::fmt::Display for ObjectError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ObjectError::NoMemory(why) => why.fmt(f),
            ObjectError::TooLarge => f.write_str("beyond the largest size of an object"),
            ObjectError::Busy => f.write_str("shared VMAs may write to the object"),
            ObjectError::Lost => f.write_str("what was swapped out is lost"),
            ObjectError::TooManyReferences => TooManyReferences.fmt(f),
        }
    }
}

impl core::error::Error for ObjectError {}

impl From<TooManyReferences> for ObjectError {
    fn from(_: TooManyReferences) -> Self {
        ObjectError::TooManyReferences
    }
}

may_be_refused!(ObjectError);

/// What an object's lock protects.
struct Contents {
    size: u64,
    index: Index,
    mappers: Mappers,
}

/// What an object's own frame begins with.
struct Head {
    /// Handles and VMAs.
    refs: AtomicU64,
    /// Shared VMAs that may write, and [`DENIED`].
    writers: AtomicU64,
    /// The next of the objects that wait to be freed.
    next: AtomicU32,
    /// Whether it is among those that may have something on swap devices; then, before and after which.
    listed: AtomicBool,
    links: [AtomicU32; 2],
    memcg: MemcgId,
    page_order: u8,
    serial: u64,
    tag: u64,
    /// Closed by what has brought a page back too often that went again before it was looked at:
    /// nothing goes meanwhile.
    gate: Gate,
    contents: SpinLock<Contents>,
}

/// In `Head::writers`: no shared VMA may write any more.
const DENIED: u64 = 1 << 63;

/// A handle to an object. Cloned and dropped freely, from any CPU; must not be dropped for the last time while a lock is held
/// that frees of memory must not be under (freeing gives way to others in between).
pub struct Object<'m, P: Platform> {
    machine: &'m Machine<'m, P>,
    at: Pfn,
}

impl<'m, P: Platform> Object<'m, P> {
    /// An empty object of `size` bytes, all of it holes, whose own structures are charged to `memcg`. Its pages are those of
    /// `arch`; only spaces with such pages can map it. `tag` is the host's, to know the object again in a VMA.
    ///
    /// # Errors
    /// No memory, or the memcg may not have it, or the size is beyond [`MAX_SIZE`].
    pub fn new(
        machine: &'m Machine<'m, P>,
        arch: &impl Arch,
        memcg: MemcgId,
        tag: u64,
        size: u64,
    ) -> Result<Self, ObjectError> {
        if size > MAX_SIZE {
            return Err(ObjectError::TooLarge);
        }
        let _pinned = machine.memcgs().pinned(memcg).ok_or(Refused::OutOfMemory)?;
        let frames = machine.frames();
        let (at, _) = machine.memcgs().alloc(frames, memcg, 0, false)?;
        // SAFETY: just allocated, and freed with the object; the head is written below.
        let mappers = unsafe { Mappers::new(frames, at) };
        let head = Head {
            refs: AtomicU64::new(1),
            writers: AtomicU64::new(0),
            next: AtomicU32::new(Pfn::NONE.0),
            listed: AtomicBool::new(false),
            links: [const { AtomicU32::new(Pfn::NONE.0) }; 2],
            memcg,
            page_order: arch.page_order(),
            serial: machine.next_serial(),
            tag,
            gate: Gate::default(),
            contents: SpinLock::new(Contents { size, index: Index::new(), mappers }),
        };
        // SAFETY: a frame of its own, in the direct map, large enough (as `mappers` asserts) and
        // aligned.
        unsafe { frames.at(at.addr()).cast::<Head>().write(head) };
        owner::mark(frames.frame(at));
        Ok(Object { machine, at })
    }

    /// The object behind a VMA, without a reference of its own.
    ///
    /// # Safety
    /// The VMA has an object and keeps it meanwhile: its space's VMAs are locked, or its range is claimed.
    #[inline]
    pub(crate) unsafe fn behind(machine: &'m Machine<'m, P>, backing: &Backing) -> ManuallyDrop<Self> {
        ManuallyDrop::new(Object { machine, at: backing.object })
    }

    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: this handle holds a reference, or, made by `behind`, somebody does for it.
        unsafe { head(self.machine, self.at) }
    }

    #[inline]
    fn lock(&self) -> SpinGuard<'_, Contents, P> {
        self.head().contents.lock(self.machine.platform())
    }

    /// Its machine.
    pub(crate) fn machine(&self) -> &'m Machine<'m, P> {
        self.machine
    }

    /// What the host calls it.
    pub fn tag(&self) -> u64 {
        self.head().tag
    }

    /// Its number on this machine, never used again: with a page's number, the key of what waits there (a futex).
    pub fn serial(&self) -> u64 {
        self.head().serial
    }

    /// The memcg that pays for its structures.
    pub fn memcg(&self) -> MemcgId {
        self.head().memcg
    }

    /// log2 of the bytes of a page.
    #[inline]
    pub fn page_shift(&self) -> u32 {
        self.head().page_order as u32 + FRAME_SHIFT
    }

    /// log2 of the frames of a page.
    pub(crate) fn page_order(&self) -> u8 {
        self.head().page_order
    }

    /// Its size in bytes. What lies beyond can't be mapped.
    pub fn size(&self) -> u64 {
        self.lock().size
    }

    /// Returns the number of pages in memory and the number on swap devices, both of one moment: a
    /// page that is swapped out or in meanwhile is in exactly one of them.
    pub fn extent(&self) -> [u64; 2] {
        let contents = self.lock();
        [contents.index.here(), contents.index.away()]
    }

    /// How many pages there are in memory.
    pub fn resident(&self) -> u64 {
        let [resident, _] = self.extent();
        resident
    }

    /// How many pages there are on swap devices.
    pub fn swapped(&self) -> u64 {
        let [_, swapped] = self.extent();
        swapped
    }

    /// Whether this is the object behind a VMA.
    pub(crate) fn is_behind(&self, backing: &Backing) -> bool {
        backing.object == self.at
    }

    /// Returns the backing of a VMA that is about to come, with a reference and counted among
    /// those of its space. `memcg` pays for that. Of a writer, which was
    /// [admitted](Object::admit_writer).
    ///
    /// # Errors
    /// As of [`Object::map`]; the writer is no longer admitted.
    pub(crate) fn lend(&self, sharing: Sharing, space: SpaceId, memcg: MemcgId) -> Result<Backing, Refused> {
        let backing = Backing { object: self.at, sharing, delta: 0, tag: self.tag() };
        if let Err(why) = self.map(space, memcg) {
            self.head().dismiss(sharing);
            return Err(why);
        }
        Ok(backing)
    }

    /// Counts one more VMA of a space, which has a reference from now on. `memcg` pays for that.
    ///
    /// # Errors
    /// No memory, or the memcg may not have it.
    fn map(&self, space: SpaceId, memcg: MemcgId) -> Result<(), Refused> {
        let (memcgs, frames) = (self.machine.memcgs(), self.machine.frames());
        let mut spare = None;
        while !self.lock().mappers.add(frames, space, &mut spare) {
            spare = Some(memcgs.alloc(frames, memcg, 0, false)?.0);
        }
        if let Some(row) = spare {
            // SAFETY: just allocated, and not used.
            unsafe { memcgs.free(frames, row, 0, false) };
        }
        self.head().refs.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Returns the first space from this number on that maps the object.
    pub(crate) fn next_mapper(&self, from: SpaceId) -> Option<SpaceId> {
        self.next_mapping(from).map(|(space, _)| space)
    }

    /// The same, and how many VMAs of that space map it.
    fn next_mapping(&self, from: SpaceId) -> Option<(SpaceId, u64)> {
        self.lock().mappers.next(self.machine.frames(), from)
    }

    /// The VMA did not come.
    pub(crate) fn take_back(&self, backing: &Backing, space: SpaceId) {
        let mut orphans = Orphans::default();
        release(self.machine, backing, space, &mut orphans);
        orphans.free(self.machine);
    }

    /// A shared VMA that may write is about to come: whether it may. It is counted if so.
    pub(crate) fn admit_writer(&self) -> bool {
        let admit = |writers: u64| (writers & DENIED == 0).then_some(writers + 1);
        self.head().writers.fetch_update(AcqRel, Acquire, admit).is_ok()
    }

    /// From now on no shared VMA may write to the object (Linux: `F_SEAL_WRITE`).
    ///
    /// # Errors
    /// [`ObjectError::Busy`]: some may already.
    pub fn deny_shared_write(&self) -> Result<(), ObjectError> {
        match self.head().writers.compare_exchange(0, DENIED, AcqRel, Acquire) {
            Ok(_) | Err(DENIED) => Ok(()),
            Err(_) => Err(ObjectError::Busy),
        }
    }
}

impl<P: Platform> Clone for Object<'_, P> {
    fn clone(&self) -> Self {
        self.head().refs.fetch_add(1, Relaxed);
        Object { machine: self.machine, at: self.at }
    }
}

impl<P: Platform> Drop for Object<'_, P> {
    fn drop(&mut self) {
        if let Some(last) = put(self.machine, self.at) {
            last.free(self.machine);
        }
    }
}

impl<P: Platform> PartialEq for Object<'_, P> {
    /// Whether the two are handles to one object.
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at && core::ptr::eq(self.machine, other.machine)
    }
}

impl<P: Platform> core::fmt::Debug for Object<'_, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "object {} ({:#x})", self.serial(), self.tag())
    }
}

/// # Safety
/// `at` is an object's frame, and somebody holds a reference for as long as the result is used.
#[inline]
unsafe fn head<'a, P: Platform>(machine: &'a Machine<'_, P>, at: Pfn) -> &'a Head {
    // SAFETY: `Object::new` wrote a `Head` there, which stays until the last reference is gone; it is only shared.
    unsafe { machine.frames().at(at.addr()).cast::<Head>().as_ref() }
}

/// Another VMA of a space that has one with this backing has it too: a copy of one that holds its
/// reference.
pub(crate) fn hold<P: Platform>(machine: &Machine<'_, P>, backing: &Backing, space: SpaceId) {
    let counted = lend_to(machine, backing, space, MemcgId::ROOT);
    debug_assert!(counted.is_ok(), "the space has a VMA with this backing");
}

/// A VMA of a space has this backing: a copy of one that holds its reference, of any space.
/// `memcg` pays for what that takes.
///
/// # Errors
/// As of [`Object::map`].
pub(crate) fn lend_to<P: Platform>(
    machine: &Machine<'_, P>,
    backing: &Backing,
    space: SpaceId,
    memcg: MemcgId,
) -> Result<(), Refused> {
    if backing.is_anonymous() {
        return Ok(());
    }
    // SAFETY: the VMA that this one is a copy of, or the handle that it was made from, holds a reference.
    let object = unsafe { Object::behind(machine, backing) };
    object.map(space, memcg)?;
    if backing.sharing == Sharing::Shared {
        object.head().writers.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// A VMA of a space with this backing is gone. If it was the last that knew the object, the
/// object joins those that wait to be freed.
pub(crate) fn release<P: Platform>(machine: &Machine<'_, P>, backing: &Backing, space: SpaceId, orphans: &mut Orphans) {
    if backing.is_anonymous() {
        return;
    }
    // SAFETY: the VMA's reference is dropped only below.
    let head = unsafe { head(machine, backing.object) };
    head.dismiss(backing.sharing);
    let row = head.contents.lock(machine.platform()).mappers.remove(machine.frames(), space);
    if let Some(row) = row {
        // SAFETY: the list has it no more.
        unsafe { machine.memcgs().free(machine.frames(), row, 0, false) };
    }
    if let Some(last) = put(machine, backing.object) {
        // SAFETY: nobody else knows the object any more, and it is freed later.
        unsafe { self::head(machine, last.0) }.next.store(orphans.0.0, Relaxed);
        orphans.0 = last.0;
    }
}

impl Head {
    /// A VMA is gone, or did not come: if it could write, it is not counted any more.
    fn dismiss(&self, sharing: Sharing) {
        if sharing == Sharing::Shared {
            self.writers.fetch_sub(1, AcqRel);
        }
    }
}

/// An object whose last reference is gone, and which is the holder's to free.
#[must_use = "it leaks unless it is freed"]
struct Last(Pfn);

/// Drop a reference.
fn put<P: Platform>(machine: &Machine<'_, P>, at: Pfn) -> Option<Last> {
    // SAFETY: the reference that is dropped here.
    let before = unsafe { head(machine, at) }.refs.fetch_sub(1, AcqRel);
    debug_assert!(before > 0);
    (before == 1).then_some(Last(at))
}

impl Last {
    fn free<P: Platform>(self, machine: &Machine<'_, P>) {
        remove::end(machine, self.0);
        owner::unlist(machine, self.0);
        let frames = machine.frames();
        // SAFETY: nobody knows the object any more, its index is empty, and nothing in the head needs to be dropped.
        unsafe { machine.memcgs().free(frames, self.0, 0, false) };
    }
}

/// Objects that went with their last VMA while its space was locked, and are freed when it no longer is.
#[must_use = "they leak unless they are freed"]
#[derive(Debug)]
pub(crate) struct Orphans(Pfn);

impl Default for Orphans {
    fn default() -> Self {
        Orphans(Pfn::NONE)
    }
}

impl Orphans {
    /// With no lock held.
    pub(crate) fn free<P: Platform>(mut self, machine: &Machine<'_, P>) {
        while let Some(at) = self.0.some() {
            // SAFETY: on this list alone, and freed only below.
            self.0 = Pfn(unsafe { head(machine, at) }.next.load(Relaxed));
            Last(at).free(machine);
        }
    }
}
