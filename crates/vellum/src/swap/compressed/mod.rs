//! A swap device in memory (Linux: zram): pages compressed by lz4, and same-filled pages stored as
//! one word.
//!
//! | file | contents |
//! |---|---|
//! | `page` | detection of same-filled pages |
//! | `codec` | lz4 |
//! | `pool` | memory for compressed pages (Linux: zsmalloc) |
//!
//! Each slot has a *record*: 0 for an empty slot, the word that fills a same-filled page, or the
//! handle of a pool object with the compressed page. A page that does not become much smaller is
//! stored uncompressed in a frame. Same-filled pages take no memory and no lock.

mod codec;
mod page;
mod pool;

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use codec::Streams;
use page::Page;
use pool::{Allocated, Handle, Pool};

use super::paged::Paged;
use super::{ReadError, Slots, SwapDevice, Unreadable, WriteError};
use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::{Frames, OutOfMemory, Zeroable};
use crate::platform::Platform;

/// The number of slots whose records share a frame.
const RECORDS_PER_FRAME: u32 = 504;

/// The records of consecutive slots. The CPU that may write or forget a slot has exclusive access
/// to its record, so all accesses are relaxed. Zeroed memory is a valid value: records of empty
/// slots.
#[repr(C)]
struct Records {
    /// One bit for each element of `words`. It is set if the element is the word that fills a
    /// same-filled page. If it is clear, the element is 0 for an empty slot, or the [`Handle`] of a
    /// stored page.
    same_filled: [AtomicU64; RECORDS_PER_FRAME.div_ceil(64) as usize],
    /// The records.
    words: [AtomicU64; RECORDS_PER_FRAME as usize],
}

// SAFETY: it consists of atomic integers, for which 0 is valid.
unsafe impl Zeroable for Records {}

const _: () = assert!(size_of::<Records>() as u64 == FRAME_SIZE);

/// The records of up to 64 consecutive slots whose bits for same-filled pages are in one word.
struct RecordBatch<'a> {
    /// The first slot.
    first: u32,
    /// The slots' records.
    words: &'a [AtomicU64],
    /// The word with the slots' same-filled bits.
    same_filled: &'a AtomicU64,
    /// The position of the first slot's bit.
    shift: u32,
}

impl RecordBatch<'_> {
    /// Returns the same-filled bits of the slots; bit 0 is that of the first slot.
    #[inline]
    fn same_filled(&self) -> u64 {
        self.same_filled.load(Relaxed) >> self.shift & (!0 >> (64 - self.words.len()))
    }

    /// Sets the same-filled bits of the slots in `set`.
    #[inline]
    fn set_same_filled(&self, set: u64) {
        if set != 0 {
            // Atomic, because the word also has bits of other slots, which other CPUs may change at
            // the same time.
            self.same_filled.fetch_or(set << self.shift, Relaxed);
        }
    }

    /// Clears the same-filled bits of the slots in `set`.
    #[inline]
    fn clear_same_filled(&self, set: u64) {
        if set != 0 {
            self.same_filled.fetch_and(!(set << self.shift), Relaxed);
        }
    }
}

/// A compressed swap device in memory. It must be freed by [`Compressed::free`]; dropping it leaks
/// its memory.
#[must_use]
pub struct Compressed {
    /// The records of all slots: each gives the contents of a slot, or where they are.
    records: Paged<Records>,
    /// The CPUs' compression buffers.
    streams: Streams,
    /// The memory of pages that are not same-filled.
    pool: Pool,
    counts: StatCounters,
}

/// The counters that [`Compressed::stats`] returns as a [`CompressedStats`], which documents them.
#[derive(Default)]
struct StatCounters {
    same_filled: AtomicU64,
    compressed: AtomicU64,
    incompressible: AtomicU64,
    bytes: AtomicU64,
    frames: AtomicU64,
}

/// The contents of a [`Compressed`] (Linux: zram's `mm_stat`); exact when no CPU reads or writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompressedStats {
    /// The number of same-filled pages.
    pub same_filled: u64,
    /// The number of compressed pages.
    pub compressed: u64,
    /// The number of pages that are stored uncompressed (zram: huge pages).
    pub incompressible: u64,
    /// The number of bytes of all compressed and uncompressed pages, without what the pool wastes.
    pub bytes: u64,
    /// The number of frames that the pool uses for these pages.
    pub frames: u64,
}

impl Compressed {
    /// Creates a device of `len` slots, all empty. It allocates about eight bytes per slot and each
    /// CPU's compression buffers. A page takes memory when it is written, and the memory is freed
    /// when its slot is forgotten.
    ///
    /// # Errors
    /// [`OutOfMemory`]: there is not enough memory, and none stays allocated.
    pub fn new<P: Platform>(frames: &Frames<'_, P>, len: u32) -> Result<Self, OutOfMemory> {
        let records = Paged::new(frames, len.div_ceil(RECORDS_PER_FRAME))?;
        match Streams::new(frames) {
            Ok(streams) => Ok(Compressed { records, streams, pool: Pool::new(), counts: StatCounters::default() }),
            Err(error) => {
                records.free(frames);
                Err(error)
            }
        }
    }

    /// Returns the number of stored pages and the memory that they take.
    pub fn stats(&self) -> CompressedStats {
        let StatCounters { same_filled, compressed, incompressible, bytes, frames } = &self.counts;
        let [same_filled, compressed, incompressible, bytes, frames] =
            [same_filled, compressed, incompressible, bytes, frames].map(|count| count.load(Relaxed));
        CompressedStats { same_filled, compressed, incompressible, bytes, frames }
    }

    /// Frees the device's memory and everything stored in it.
    pub fn free<P: Platform>(self, frames: &Frames<'_, P>) {
        let blocks = (0..self.records.len()).map(|block| block * RECORDS_PER_FRAME);
        for slots in blocks.map(|first| Slots { first, count: RECORDS_PER_FRAME.min(u32::MAX - first) }) {
            // SAFETY: `self` is taken by value, so nothing else uses the device.
            unsafe { self.forget(frames, slots) };
        }
        self.records.free(frames);
        self.streams.free(frames);
    }

    /// Returns the records of `slots` in batches.
    #[inline]
    fn batches(&self, slots: Slots) -> impl Iterator<Item = RecordBatch<'_>> {
        let (mut slot, end) = (slots.first, slots.first + slots.count);
        core::iter::from_fn(move || {
            if slot == end {
                return None;
            }
            let (records, at, shift) =
                (self.records.get(slot / RECORDS_PER_FRAME), slot % RECORDS_PER_FRAME, slot % RECORDS_PER_FRAME % 64);
            let count = (64 - shift).min(RECORDS_PER_FRAME - at).min(end - slot);
            let words = &records.words[at as usize..(at + count) as usize];
            let batch = RecordBatch { first: slot, words, same_filled: &records.same_filled[at as usize / 64], shift };
            slot += count;
            Some(batch)
        })
    }

    /// Stores a page that is not same-filled, compressed if that makes it small enough. Returns the
    /// handle.
    ///
    /// # Errors
    /// [`OutOfMemory`]; nothing is stored.
    #[cold]
    fn store<P: Platform>(&self, frames: &Frames<'_, P>, page: &Page) -> Result<Handle, OutOfMemory> {
        let store_bytes = |bytes: &[u8]| {
            let Allocated { handle, frames: taken } = self.pool.allocate(frames, bytes.len())?;
            // SAFETY: the pool object is in the machine's memory and has room for `bytes`, and only
            // this CPU has its handle.
            unsafe { frames.at(handle.addr()).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            self.counts.frames.fetch_add(taken.into(), Relaxed);
            self.counts.bytes.fetch_add(bytes.len() as u64, Relaxed);
            self.kind_of(handle).fetch_add(1, Relaxed);
            Ok(handle)
        };
        let store_if_small = |bytes: &[u8]| (bytes.len() <= Pool::MAX_USEFUL_LEN).then(|| store_bytes(bytes));
        match self.streams.compress(frames.platform(), page, store_if_small) {
            Some(result) => result,
            None => store_bytes(page.bytes()),
        }
    }

    /// Returns the counter for the kind of a stored page: compressed or incompressible.
    fn kind_of(&self, handle: Handle) -> &AtomicU64 {
        if is_incompressible(handle) { &self.counts.incompressible } else { &self.counts.compressed }
    }

    /// Frees the pool object of a stored page.
    ///
    /// # Safety
    /// As for [`SwapDevice::forget`].
    #[cold]
    unsafe fn free_handle<P: Platform>(&self, frames: &Frames<'_, P>, handle: Handle) {
        self.kind_of(handle).fetch_sub(1, Relaxed);
        self.counts.bytes.fetch_sub(handle.len() as u64, Relaxed);
        // SAFETY: the handle was in a record, from which the caller has removed it.
        let freed = unsafe { self.pool.free(frames, handle) };
        self.counts.frames.fetch_sub(freed.into(), Relaxed);
    }
}

/// Returns true if a pool object holds an uncompressed page. (A compressed page is always shorter.)
fn is_incompressible(handle: Handle) -> bool {
    handle.len() == FRAME_SIZE as usize
}

impl<P: Platform> SwapDevice<P> for Compressed {
    unsafe fn write(&self, frames: &Frames<'_, P>, slots: Slots, from: Pfn) -> Result<(), WriteError> {
        // SAFETY: nothing else reads, writes or forgets the slots during the call (contract of
        // `write`).
        unsafe { self.forget(frames, slots) };
        for batch in self.batches(slots) {
            let mut same_filled = 0;
            let pages = from.add(batch.first - slots.first);
            let result = (0..).zip(batch.words).try_for_each(|(i, record)| {
                // SAFETY: the frames are the machine's, and nothing writes to them during the call
                // (contract of `write`).
                let page = unsafe { Page::of(frames, pages.add(i)) };
                let word = match page.same_filled() {
                    Some(word) => {
                        same_filled |= 1 << i;
                        word
                    }
                    None => self.store(frames, page)?.0,
                };
                record.store(word, Relaxed);
                frames.platform().resched();
                Ok(())
            });
            batch.set_same_filled(same_filled);
            self.counts.same_filled.fetch_add(same_filled.count_ones().into(), Relaxed);
            if let Err(OutOfMemory) = result {
                // SAFETY: nothing else reads, writes or forgets the slots during the call (contract
                // of `write`).
                unsafe { self.forget(frames, slots) };
                return Err(WriteError::NoMemory);
            }
        }
        Ok(())
    }

    unsafe fn read(&self, frames: &Frames<'_, P>, slots: Slots, to: Pfn) -> Result<(), ReadError> {
        for batch in self.batches(slots) {
            let same_filled = batch.same_filled();
            let pages = to.add(batch.first - slots.first);
            for (i, record) in (0..).zip(batch.words) {
                // SAFETY: the caller has exclusive access to the frames (contract of `read`).
                let page = unsafe { Page::of_mut(frames, pages.add(i)) };
                let fails = |reason| Err(ReadError { slot: batch.first + i, reason });
                match record.load(Relaxed) {
                    word if same_filled >> i & 1 == 1 => page.fill(word),
                    0 => return fails(Unreadable::Empty),
                    // SAFETY: the handle is in the slot's record, and nothing forgets the slot
                    // during the call (contract of `read`).
                    handle if unsafe { load(frames, Handle(handle), page) } => {}
                    _ => return fails(Unreadable::Damaged),
                }
                frames.platform().resched();
            }
        }
        Ok(())
    }

    unsafe fn forget(&self, frames: &Frames<'_, P>, slots: Slots) {
        for batch in self.batches(slots) {
            let same_filled = batch.same_filled();
            for (i, record) in batch.words.iter().enumerate() {
                let word = record.load(Relaxed);
                if word != 0 {
                    record.store(0, Relaxed);
                    if same_filled >> i & 1 == 0 {
                        // SAFETY: nothing else reads, writes or forgets the slot (contract of
                        // `forget`), and the handle is no longer in its record.
                        unsafe { self.free_handle(frames, Handle(word)) };
                    }
                }
            }
            batch.clear_same_filled(same_filled);
            self.counts.same_filled.fetch_sub(same_filled.count_ones().into(), Relaxed);
        }
    }
}

/// Decompresses a stored page into `page`. Returns false if the stored data is damaged.
///
/// # Safety
/// The handle is that of a stored page, which is not freed during the call.
#[cold]
unsafe fn load<P: Platform>(frames: &Frames<'_, P>, handle: Handle, page: &mut Page) -> bool {
    // SAFETY: `store` wrote this many bytes there, and nothing writes to them until the handle is
    // freed.
    let bytes = unsafe { core::slice::from_raw_parts(frames.at(handle.addr()).as_ptr(), handle.len()) };
    if is_incompressible(handle) {
        page.bytes_mut().copy_from_slice(bytes);
        return true;
    }
    codec::decompress(bytes, page)
}
