//! The page cache: page-cache objects (Linux: `struct address_space`), whose pages are mapped by
//! VMAs of any number of spaces, and read and written by the host.
//!
//! An [`Object`] is Linux's `struct address_space` and Mach's VM object: a sparse array of pages
//! with a size in bytes. It backs shared anonymous memory, a file of an in-memory file system
//! (Linux: shmem), or a System V shared memory segment.
//!
//! # Guarantee
//! An object lives as long as a handle ([`Object`]) or a VMA refers to it. When the last of these
//! references is dropped, all its memory is freed. A page of the object has one reference that the
//! object holds, one for each [`ObjectPage`], and one for each PTE that maps it (INV-2 holds as for
//! any folio). So a page that was removed from the object stays allocated until the last of these
//! references is dropped.
//!
//! # Mechanism
//! - **No heap.** The object's head and the nodes of its index are frames, charged to a memcg
//!   (INV-9).
//! - **One spin lock per object** protects its size, its index and the list of its mappers (Linux:
//!   the `i_pages` lock). Nothing is allocated or copied under it. The only lock taken under it is
//!   that of a cluster of swap slots (512 consecutive slots).
//! - **The size decides under the object's lock** whether a fault finds a page (INV-12).
//!   [`Object::set_size`] writes the size first. A fault that looked the page up before that still
//!   holds the lock of its space's VMAs for reading. Truncation ([`crate::space::unmap_removed`])
//!   then takes the lock of each space's VMAs for writing before it unmaps. So it finds and removes
//!   the PTEs of such a fault, and every later fault reads the new size.
//! - **Large folios** need no index of their own: each entry names the frame of its own page, and a
//!   tail's descriptor (that of any frame after the folio's first) leads to the folio's head. A
//!   large folio is inserted where none of its pages exists yet, and its pages are removed one by
//!   one; its memory is freed with the last of them.
//! - **Swap**: swap entries replace frames in the index, and frames replace swap entries. While the
//!   folio is written out no other CPU can take a reference to its pages (INV-16).
//!
//! | file | contents |
//! |---|---|
//! | `index` | the pages: a radix tree of frames and swap entries |
//! | `fill` | looks pages up and inserts them |
//! | `map` | finds the pages that a fault maps at once |
//! | `read` | has the host read pages from its storage |
//! | `read::readahead` | decides which pages to read before they are needed |
//! | `read::window` | decides which pages a fault reads with its own |
//! | `hugetlb` | objects of huge pages from the pool, and their reservations |
//! | `hold` | keeps pages from all users while the host moves their bytes |
//! | `write` | has the host write dirty pages to its storage |
//! | `overwrite` | takes whole pages that the host writes |
//! | `write::errors` | reports failed writes to each opener |
//! | `remove` | truncates, punches holes, frees all pages at the end |
//! | `evict` | takes folios out for reclaim |
//! | `collapse` | replaces small folios by a huge one |
//! | `swap_out`, `swap_in` | writes pages to swap devices, and reads them back |
//! | `refs` | references of handles and VMAs; writable shared mappings |
//! | `mappers` | the spaces that map the object |
//! | `mapping` | finds a folio's object; lists objects that may have swapped-out pages |
//! | `page` | a reference to a page |
//! | `survey` | walks the index for an audit, or to count pages |
//! | `error` | errors |

mod collapse;
mod error;
mod evict;
mod fill;
mod hold;
mod hugetlb;
mod index;
mod map;
mod mappers;
mod mapping;
mod overwrite;
mod page;
mod read;
mod refs;
mod remove;
mod survey;
mod swap_in;
mod swap_out;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use collapse::Collapses;
pub use error::ObjectError;
pub use evict::drop_clean;
pub(crate) use evict::drop_unused;
pub use hold::Held;
pub(crate) use map::AROUND_ORDER;
pub(crate) use mapping::{belongs_to_object, folio_index};
pub use overwrite::Overwrite;
pub use page::ObjectPage;
pub(crate) use read::Hints;
pub use read::{Readahead, finish_read};
pub(crate) use refs::{Orphans, get_backing, get_backing_in, put_backing};
pub(crate) use remove::remove_clean;
pub use remove::{RemovedPages, move_from};
pub(crate) use survey::{PageLocation, PageState};
pub(crate) use swap_in::ExistingPage;
pub(crate) use write::{WriteBatch, Writes};
pub use write::{WriteErrors, Writeback, finish_write, take_mapped_write};

pub(crate) use fill::{Inserts, Lookup, NotInserted, largest_order};
pub use hugetlb::Hugetlb;
pub(crate) use hugetlb::unreserve_huge;

use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

use crate::addr::{FRAME_SHIFT, Pfn};
use crate::arch::Arch;
use crate::frame::HUGE_ORDER;
use crate::frame::policy::ShmemFolios;
use crate::machine::{DirtyTally, Machine};
use crate::memcg::{DirtyChange, MemcgId, Refused};
use crate::platform::Platform;
use crate::stats::{Counter, SpaceCounter};
use crate::sync::{Gate, SpinGuard, SpinLock};
use crate::vma::Backing;
use hugetlb::Reservations;
use index::Index;
use mappers::Mappers;
use write::ErrorRecord;

/// The largest size of an object in bytes, as a file offset can express it (Linux:
/// `MAX_LFS_FILESIZE`).
pub const MAX_SIZE: u64 = i64::MAX as u64;

/// The state that an object's lock protects.
struct LockedState {
    /// The size in bytes.
    size: u64,
    /// The first page that is on hold ([`Held`]); `u64::MAX` if none is.
    held_from: u64,
    /// The pages, in memory or swapped out.
    index: Index,
    /// The huge pages that the pool keeps for the object.
    reserved: Reservations,
    /// The spaces that map the object.
    mappers: Mappers,
}

/// The head of an object, at the start of a frame of its own. The list of the spaces that map the
/// object begins after the head in the same frame.
struct Head {
    /// References: one for each handle and each VMA.
    refs: AtomicU64,
    /// The number of shared VMAs that may write (Linux: `i_mmap_writable`), and [`DENIED`].
    writers: AtomicU64,
    /// The next object on a list of [`Orphans`] (objects without references that are to be freed).
    next: AtomicU32,
    /// True while the object is on the machine's list of those that may have swapped-out pages
    /// (Linux: `shmem_swaplist`). The list's lock protects the field and its links.
    listed: AtomicBool,
    /// The previous and the next object on the machine's list of objects that may have swapped-out
    /// pages.
    links: [AtomicU32; 2],
    /// The memcg to which the head and the index are charged.
    memcg: MemcgId,
    /// log2 of the number of frames of a page.
    page_order: u8,
    /// The settings that decide the sizes of folios, if there is no store ([`ShmemFolios`]).
    folios: AtomicU8,
    /// log2 of the number of frames of the largest folio that the object has had.
    largest_folio: AtomicU8,
    /// Where changed pages go, if the host's storage has the contents of missing pages.
    store: Option<Changes>,
    /// The page at which the last read that failed ended; `u64::MAX` if none has.
    failed_read: AtomicU64,
    /// The time at which a fault last let a program write to a page through a shared mapping, in
    /// nanoseconds; 0 if none has, or if the host knows ([`take_mapped_write`]).
    mapped_write: AtomicU64,
    /// The record of writes that failed.
    write_errors: ErrorRecord,
    /// The object's number, unique on the machine.
    serial: u64,
    /// The host's name for the object.
    tag: u64,
    /// A fault closes this gate if its page was paged out again too often before the fault could
    /// look it up. While the gate is closed, no page of the object is paged out, so the fault
    /// proceeds (INV-21).
    gate: Gate,
    state: SpinLock<LockedState>,
}

/// Bit of `Head::writers`: no writable shared VMA may be created any more.
const DENIED: u64 = 1 << 63;

/// A handle to a page-cache object, which holds a reference. Any CPU may clone or drop it. Dropping
/// the last reference frees all pages and calls `resched` in between, so no spin lock may be held
/// then.
pub struct Object<'m, P: Platform> {
    machine: &'m Machine<'m, P>,
    /// The frame of the object's head.
    at: Pfn,
}

/// Where the changed pages of an object with a store go ([`Object::with_store`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// To the host's storage: [`write_back`](crate::space::write_back) and reclaim have the host
    /// write them ([`Storage::write`](crate::platform::Storage::write)).
    ToStore,
    /// They stay in memory, or go to swap, as the pages of an object without a store do. The
    /// storage is never written, so that a host can lay files that programs may change over a
    /// storage that is read-only.
    InMemory,
}

/// The number of an object's pages that exist, by location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// The pages in memory, those under writeback or being read included.
    pub resident: u64,
    /// The pages on swap devices.
    pub swapped: u64,
    /// The pages that differ from the host's storage.
    pub dirty: u64,
    /// The pages that the host is writing to its storage. They may be dirty again.
    pub writing: u64,
}

impl<'m, P: Platform> Object<'m, P> {
    /// Creates an object of `size` bytes without any page, and charges its own structures to
    /// `memcg`. It has pages of `arch`'s size, and only spaces with such pages can map it. `tag` is
    /// the host's name for the object, by which the host recognises the object that a VMA maps.
    ///
    /// # Errors
    /// [`ObjectError::NoMemory`]: there is no memory, or `memcg` is at its limit or was removed.
    /// [`ObjectError::TooLarge`]: the size is beyond [`MAX_SIZE`].
    pub fn new(
        machine: &'m Machine<'m, P>,
        arch: &impl Arch,
        memcg: MemcgId,
        tag: u64,
        size: u64,
    ) -> Result<Self, ObjectError> {
        Self::create(machine, arch.page_order(), memcg, (tag, size), None)
    }

    /// Creates an object as [`Object::new`] does, for a file whose contents the host's storage has:
    /// a missing page within `size` is read from there
    /// ([`Storage::read`](crate::platform::Storage::read)), and reclaim drops clean pages. Pages
    /// that programs write to through shared VMAs are dirty, and so are those that the host marks
    /// ([`Object::mark_dirty`]). `changes` says where reclaim puts these.
    ///
    /// # Errors
    /// As for [`Object::new`].
    pub fn with_store(
        machine: &'m Machine<'m, P>,
        arch: &impl Arch,
        memcg: MemcgId,
        tag: u64,
        size: u64,
        changes: Changes,
    ) -> Result<Self, ObjectError> {
        Self::create(machine, arch.page_order(), memcg, (tag, size), Some(changes))
    }

    /// Implements [`Object::new`], [`Object::with_store`] and [`Hugetlb::new_object`].
    fn create(
        machine: &'m Machine<'m, P>,
        page_order: u8,
        memcg: MemcgId,
        (tag, size): (u64, u64),
        store: Option<Changes>,
    ) -> Result<Self, ObjectError> {
        if size > MAX_SIZE {
            return Err(ObjectError::TooLarge);
        }
        let _pinned = machine.memcgs().pinned(memcg).ok_or(Refused::OutOfMemory)?;
        let frames = machine.frames();
        let (at, _) = machine.memcgs().alloc(frames, memcg, 0, false)?;
        // SAFETY: the frame was just allocated and is freed only with the object. The list does not
        // use the bytes of the head, which is written below.
        let mappers = unsafe { Mappers::new(frames, at) };
        let head = Head {
            refs: AtomicU64::new(1),
            writers: AtomicU64::new(0),
            next: AtomicU32::new(Pfn::NONE.0),
            listed: AtomicBool::new(false),
            links: [const { AtomicU32::new(Pfn::NONE.0) }; 2],
            memcg,
            page_order,
            folios: AtomicU8::new(ShmemFolios::default().encode()),
            largest_folio: AtomicU8::new(page_order),
            store,
            failed_read: AtomicU64::new(u64::MAX),
            mapped_write: AtomicU64::new(0),
            write_errors: ErrorRecord::default(),
            serial: machine.next_serial(),
            tag,
            gate: Gate::default(),
            state: SpinLock::new(LockedState {
                size,
                held_from: u64::MAX,
                index: Index::new(),
                reserved: Reservations::NONE,
                mappers,
            }),
        };
        // SAFETY: the head is written to a frame that the object alone has. The direct map contains
        // the frame, which is aligned and large enough (as `mappers` asserts).
        unsafe { frames.at(at.addr()).cast::<Head>().write(head) };
        mapping::publish_head(frames.frame(at));
        Ok(Object { machine, at })
    }

    /// Sets the settings that decide the sizes of folios that are inserted from now on. No effect
    /// on an object with a store.
    pub fn set_folios(&self, folios: ShmemFolios) {
        self.head().folios.store(folios.encode(), Relaxed);
    }

    /// Returns the object that a VMA maps, without taking a reference.
    ///
    /// # Safety
    /// The VMA maps an object, and keeps its reference to the object while the result is used: the
    /// caller holds the lock of the space's VMAs, or a claim of the VMA's range (the exclusive
    /// right to change it).
    #[inline]
    pub(crate) unsafe fn of_backing(machine: &'m Machine<'m, P>, backing: &Backing) -> ManuallyDrop<Self> {
        ManuallyDrop::new(Object { machine, at: backing.object })
    }

    /// Returns the object's head.
    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: this handle holds a reference, or the VMA from which `of_backing` made it does.
        unsafe { head(self.machine, self.at) }
    }

    /// Takes the object's spin lock.
    #[inline]
    fn lock(&self) -> SpinGuard<'_, LockedState, P> {
        self.head().state.lock(self.machine.platform())
    }

    /// Returns the machine.
    pub(crate) fn machine(&self) -> &'m Machine<'m, P> {
        self.machine
    }

    /// Returns the host's name for the object.
    pub fn tag(&self) -> u64 {
        self.head().tag
    }

    /// Returns the object's number on this machine, which is never reused. With a page number it is
    /// the key of a shared futex.
    pub fn serial(&self) -> u64 {
        self.head().serial
    }

    /// Returns the memcg to which the object's structures are charged.
    pub fn memcg(&self) -> MemcgId {
        self.head().memcg
    }

    /// Returns log2 of the size of a page in bytes.
    #[inline]
    pub fn page_shift(&self) -> u32 {
        self.head().page_order as u32 + FRAME_SHIFT
    }

    /// Returns log2 of the number of frames of a page.
    pub(crate) fn page_order(&self) -> u8 {
        self.head().page_order
    }

    /// Returns the size in bytes (Linux: `i_size`). Pages beyond it can't be mapped.
    pub fn size(&self) -> u64 {
        self.lock().size
    }

    /// Returns the numbers of pages in memory and on swap devices, read under one hold of the lock:
    /// a page that is concurrently swapped out or in is counted in exactly one of them.
    pub fn page_counts(&self) -> PageCounts {
        let state = self.lock();
        let index = &state.index;
        PageCounts {
            resident: index.resident(),
            swapped: index.swapped(),
            dirty: index.dirty(),
            writing: index.writing(),
        }
    }

    /// Returns the number of pages in memory.
    pub fn resident(&self) -> u64 {
        self.page_counts().resident
    }

    /// Returns the number of pages on swap devices.
    pub fn swapped(&self) -> u64 {
        self.page_counts().swapped
    }

    /// Returns the counter of a space that has the object's mapped pages.
    pub(crate) fn space_counter(&self) -> SpaceCounter {
        match self.head().store {
            _ if self.page_order() == HUGE_ORDER => SpaceCounter::Hugetlb,
            Some(_) => SpaceCounter::File,
            None => SpaceCounter::Shmem,
        }
    }

    /// Returns whether a VMA with this backing maps this object.
    pub(crate) fn backs(&self, backing: &Backing) -> bool {
        backing.object == self.at
    }
}

impl Head {
    /// Returns true if a page comes from the host's storage when it is missing. Pages beyond the
    /// end have no contents there.
    fn is_stored(&self, state: &LockedState, page: u64) -> bool {
        self.store.is_some() && page < state.size.div_ceil(1 << (u32::from(self.page_order) + FRAME_SHIFT))
    }

    /// Returns the counter of the machine that has the object's pages in memory.
    fn pages_counter(&self) -> Counter {
        match self.store {
            _ if self.page_order == HUGE_ORDER => Counter::HugetlbPages,
            Some(_) => Counter::FilePages,
            None => Counter::ShmemPages,
        }
    }

    /// Returns the counter of the object's huge folios.
    fn huge_counter(&self) -> Counter {
        if self.store.is_some() { Counter::FileHugePages } else { Counter::ShmemHugePages }
    }

    /// Begins to count pages of the object with this change. Pages that stay in memory while they
    /// are dirty do not count: no writeback will make them clean.
    fn tally<'a, 'm, P: Platform>(&self, machine: &'a Machine<'m, P>, change: DirtyChange) -> DirtyTally<'a, 'm, P> {
        DirtyTally::new(machine, self.writes_to_store().then_some(self.page_order), change)
    }

    /// Returns true if the host's storage takes the object's changed pages.
    fn writes_to_store(&self) -> bool {
        self.store == Some(Changes::ToStore)
    }
}

impl<P: Platform> PartialEq for Object<'_, P> {
    /// Returns whether both are handles to one object.
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at && core::ptr::eq(self.machine, other.machine)
    }
}

impl<P: Platform> core::fmt::Debug for Object<'_, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "object {} ({:#x})", self.serial(), self.tag())
    }
}

/// Returns the head in a frame.
///
/// # Safety
/// `at` is an object's frame, and a reference exists for as long as the result is used.
#[inline]
unsafe fn head<'a, P: Platform>(machine: &'a Machine<'_, P>, at: Pfn) -> &'a Head {
    // SAFETY: `Object::new` wrote a `Head` to the frame. It stays until the last reference is
    // dropped, and nothing borrows it mutably.
    unsafe { machine.frames().at(at.addr()).cast::<Head>().as_ref() }
}
