//! The swap device that is memory: pages compressed by lz4, or, where one word fills them, known by that word.
//!
//! | file | story |
//! |---|---|
//! | `page` | whether a word fills a page |
//! | `codec` | lz4 |
//! | `pieces` | memory in pieces, for what pages became |
//!
//! Of each slot there is a *record*: nothing, a word that fills the page, or the piece that holds what it became. A page that does
//! not become much smaller is kept in a frame as it is. Pages that a word fills take no memory and no lock.

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

/// Slots whose records share a frame.
const RECORDS_PER_FRAME: u32 = 504;

/// Records of slots. Who may write or forget a slot is alone with its record; so all accesses are relaxed. Zeroed memory is
/// records of nothing.
#[repr(C)]
struct Records {
    /// Which of the words below are what fills a page. Of the others, 0 is nothing, and the rest pieces.
    same_filled: [AtomicU64; RECORDS_PER_FRAME.div_ceil(64) as usize],
    words: [AtomicU64; RECORDS_PER_FRAME as usize],
}

// SAFETY: atomics only.
unsafe impl Zeroable for Records {}

const _: () = assert!(size_of::<Records>() as u64 == FRAME_SIZE);

/// The records of slots in a row that share a word of bits: up to 64.
struct RecordBatch<'a> {
    first: u32,
    words: &'a [AtomicU64],
    same_filled: &'a AtomicU64,
    /// Which bit of the word is the first slot's.
    shift: u32,
}

impl RecordBatch<'_> {
    /// Each slot of which a word fills the page has its bit set, counted from the first.
    #[inline]
    fn same_filled(&self) -> u64 {
        self.same_filled.load(Relaxed) >> self.shift & (!0 >> (64 - self.words.len()))
    }

    #[inline]
    fn set_same_filled(&self, set: u64) {
        if set != 0 {
            // The other bits are other slots', maybe other CPUs'.
            self.same_filled.fetch_or(set << self.shift, Relaxed);
        }
    }

    #[inline]
    fn clear_same_filled(&self, set: u64) {
        if set != 0 {
            self.same_filled.fetch_and(!(set << self.shift), Relaxed);
        }
    }
}

/// The device.
#[must_use]
pub struct Compressed {
    records: Paged<Records>,
    streams: Streams,
    pool: Pool,
    counts: StatCounters,
}

#[derive(Default)]
struct StatCounters {
    same_filled: AtomicU64,
    compressed: AtomicU64,
    incompressible: AtomicU64,
    bytes: AtomicU64,
    frames: AtomicU64,
}

/// What a [`Compressed`] holds: exact when nothing runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Pages that a word fills.
    pub same_filled: u64,
    /// Pages that are compressed.
    pub compressed: u64,
    /// Pages that are kept as they are.
    pub incompressible: u64,
    /// Bytes that the compressed ones and the plain ones became.
    pub bytes: u64,
    /// Frames that these take.
    pub frames: u64,
}

impl Compressed {
    /// With `len` slots, all empty. Eight bytes a slot and what each CPU needs to compress are taken here; what is written takes
    /// memory as it comes, and gives it back.
    ///
    /// # Errors
    /// There is not so much memory; nothing of it is taken then.
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

    /// What it holds.
    pub fn contents(&self) -> Contents {
        let StatCounters { same_filled, compressed, incompressible, bytes, frames } = &self.counts;
        let [same_filled, compressed, incompressible, bytes, frames] =
            [same_filled, compressed, incompressible, bytes, frames].map(|count| count.load(Relaxed));
        Contents { same_filled, compressed, incompressible, bytes, frames }
    }

    /// Give the memory back, and all that it holds.
    pub fn free<P: Platform>(self, frames: &Frames<'_, P>) {
        let blocks = (0..self.records.len()).map(|block| block * RECORDS_PER_FRAME);
        for slots in blocks.map(|first| Slots { first, count: RECORDS_PER_FRAME.min(u32::MAX - first) }) {
            // SAFETY: nobody else has the device any more.
            unsafe { self.forget(frames, slots) };
        }
        self.records.free(frames);
        self.streams.free(frames);
    }

    /// The records of some slots.
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

    /// Keep what a page becomes.
    #[cold]
    fn store<P: Platform>(&self, frames: &Frames<'_, P>, page: &Page) -> Result<Handle, OutOfMemory> {
        let keep = |bytes: &[u8]| {
            let Allocated { handle, frames: taken } = self.pool.allocate(frames, bytes.len())?;
            // SAFETY: the piece is in the machine's memory, long enough, and this caller's alone.
            unsafe { frames.at(handle.addr()).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            self.counts.frames.fetch_add(taken.into(), Relaxed);
            self.counts.bytes.fetch_add(bytes.len() as u64, Relaxed);
            self.kind_of(handle).fetch_add(1, Relaxed);
            Ok(handle)
        };
        let small = |bytes: &[u8]| (bytes.len() <= Pool::MAX_USEFUL_LEN).then(|| keep(bytes));
        match self.streams.compress(frames.platform(), page, small) {
            Some(kept) => kept,
            None => keep(page.bytes()),
        }
    }

    fn kind_of(&self, handle: Handle) -> &AtomicU64 {
        if is_incompressible(handle) { &self.counts.incompressible } else { &self.counts.compressed }
    }

    /// # Safety
    /// Of [`SwapDevice::forget`].
    #[cold]
    unsafe fn free_handle<P: Platform>(&self, frames: &Frames<'_, P>, handle: Handle) {
        self.kind_of(handle).fetch_sub(1, Relaxed);
        self.counts.bytes.fetch_sub(handle.len() as u64, Relaxed);
        // SAFETY: it was in a record, and the record's owner uses it no more.
        let given_back = unsafe { self.pool.free(frames, handle) };
        self.counts.frames.fetch_sub(given_back.into(), Relaxed);
    }
}

/// Whether a piece holds a page as it is. (What is compressed is never as long.)
fn is_incompressible(handle: Handle) -> bool {
    handle.len() == FRAME_SIZE as usize
}

impl<P: Platform> SwapDevice<P> for Compressed {
    unsafe fn write(&self, frames: &Frames<'_, P>, slots: Slots, from: Pfn) -> Result<(), WriteError> {
        // SAFETY: the caller may write the slots, so it may forget them.
        unsafe { self.forget(frames, slots) };
        for batch in self.batches(slots) {
            let mut same_filled = 0;
            let pages = from.add(batch.first - slots.first);
            let result = (0..).zip(batch.words).try_for_each(|(i, record)| {
                // SAFETY: by contract.
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
                // SAFETY: as above.
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
                // SAFETY: by contract.
                let page = unsafe { Page::of_mut(frames, pages.add(i)) };
                let fails = |reason| Err(ReadError { slot: batch.first + i, reason });
                match record.load(Relaxed) {
                    word if same_filled >> i & 1 == 1 => page.fill(word),
                    0 => return fails(Unreadable::Empty),
                    // SAFETY: the slot is not forgotten meanwhile.
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
                        // SAFETY: by contract.
                        unsafe { self.free_handle(frames, Handle(word)) };
                    }
                }
            }
            batch.clear_same_filled(same_filled);
            self.counts.same_filled.fetch_sub(same_filled.count_ones().into(), Relaxed);
        }
    }
}

/// Make a page of what is in a piece; whether that could be done.
///
/// # Safety
/// The piece is in use, and stays so meanwhile.
#[cold]
unsafe fn load<P: Platform>(frames: &Frames<'_, P>, handle: Handle, page: &mut Page) -> bool {
    // SAFETY: `store` wrote so many bytes there, and nobody else has the piece.
    let bytes = unsafe { core::slice::from_raw_parts(frames.at(handle.addr()).as_ptr(), handle.len()) };
    if is_incompressible(handle) {
        page.bytes_mut().copy_from_slice(bytes);
        return true;
    }
    codec::decompress(bytes, page)
}
