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
mod pieces;

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use codec::Rooms;
use page::Page;
use pieces::{Piece, Pieces};

use super::paged::Paged;
use super::{ReadError, Slots, SwapDevice, Unreadable, WriteError};
use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::{Frames, OutOfMemory, Zeroable};
use crate::platform::Platform;

/// Slots whose records share a frame.
const RECORDS: u32 = 504;

/// Records of slots. Who may write or forget a slot is alone with its record; so all accesses are relaxed. Zeroed memory is
/// records of nothing.
#[repr(C)]
struct Records {
    /// Which of the words below are what fills a page. Of the others, 0 is nothing, and the rest pieces.
    repeated: [AtomicU64; RECORDS.div_ceil(64) as usize],
    words: [AtomicU64; RECORDS as usize],
}

// SAFETY: atomics only.
unsafe impl Zeroable for Records {}

const _: () = assert!(size_of::<Records>() as u64 == FRAME_SIZE);

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    Nothing,
    Repeated(u64),
    Piece(Piece),
}

/// The device.
#[must_use]
pub struct Compressed {
    records: Paged<Records>,
    rooms: Rooms,
    pieces: Pieces,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    repeated: AtomicU64,
    compressed: AtomicU64,
    plain: AtomicU64,
    bytes: AtomicU64,
    frames: AtomicU64,
}

/// What a [`Compressed`] holds: exact when nothing runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Pages that a word fills.
    pub repeated: u64,
    /// Pages that are compressed.
    pub compressed: u64,
    /// Pages that are kept as they are.
    pub plain: u64,
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
        let records = Paged::new(frames, len.div_ceil(RECORDS))?;
        match Rooms::new(frames) {
            Ok(rooms) => Ok(Compressed { records, rooms, pieces: Pieces::new(), counts: Counts::default() }),
            Err(error) => {
                records.free(frames);
                Err(error)
            }
        }
    }

    /// What it holds.
    pub fn contents(&self) -> Contents {
        let Counts { repeated, compressed, plain, bytes, frames } = &self.counts;
        let [repeated, compressed, plain, bytes, frames] =
            [repeated, compressed, plain, bytes, frames].map(|count| count.load(Relaxed));
        Contents { repeated, compressed, plain, bytes, frames }
    }

    /// Give the memory back, and all that it holds.
    pub fn free<P: Platform>(self, frames: &Frames<'_, P>) {
        let blocks = (0..self.records.len()).map(|block| block * RECORDS);
        for slots in blocks.map(|first| Slots { first, count: RECORDS.min(u32::MAX - first) }) {
            // SAFETY: nobody else has the device any more.
            unsafe { self.forget(frames, slots) };
        }
        self.records.free(frames);
        self.rooms.free(frames);
    }

    #[inline]
    fn record(&self, slot: u32) -> Record {
        let (records, at) = (self.records.get(slot / RECORDS), slot % RECORDS);
        let word = records.words[at as usize].load(Relaxed);
        if records.repeated[at as usize / 64].load(Relaxed) >> (at % 64) & 1 == 1 {
            Record::Repeated(word)
        } else if word == 0 {
            Record::Nothing
        } else {
            Record::Piece(Piece(word))
        }
    }

    #[inline]
    fn set_record(&self, slot: u32, record: Record) {
        let (records, at) = (self.records.get(slot / RECORDS), slot % RECORDS);
        let (word, repeated) = match record {
            Record::Nothing => (0, false),
            Record::Repeated(word) => (word, true),
            Record::Piece(piece) => (piece.0, false),
        };
        records.words[at as usize].store(word, Relaxed);
        let (set, bit) = (&records.repeated[at as usize / 64], 1 << (at % 64));
        // Its neighbours' are other CPUs'.
        if repeated {
            set.fetch_or(bit, Relaxed);
        } else if set.load(Relaxed) & bit != 0 {
            set.fetch_and(!bit, Relaxed);
        }
    }

    /// Find a piece for what a page becomes.
    #[cold]
    fn store<P: Platform>(&self, frames: &Frames<'_, P>, page: &Page) -> Result<Piece, OutOfMemory> {
        let keep = |bytes: &[u8]| {
            let (piece, taken) = self.pieces.allocate(frames, bytes.len())?;
            // SAFETY: the piece is in the machine's memory, long enough, and this caller's alone.
            unsafe { frames.at(piece.addr()).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            self.counts.frames.fetch_add(taken.into(), Relaxed);
            self.counts.bytes.fetch_add(bytes.len() as u64, Relaxed);
            Ok(piece)
        };
        let small = |bytes: &[u8]| (bytes.len() <= Pieces::WORTHWHILE).then(|| keep(bytes));
        match self.rooms.compress(frames.platform(), page, small) {
            Some(kept) => kept,
            None => keep(page.bytes()),
        }
    }

    fn kind_of(&self, piece: Piece) -> &AtomicU64 {
        if is_plain(piece) { &self.counts.plain } else { &self.counts.compressed }
    }

    /// # Safety
    /// Of [`SwapDevice::forget`].
    #[cold]
    unsafe fn drop_piece<P: Platform>(&self, frames: &Frames<'_, P>, piece: Piece) {
        self.kind_of(piece).fetch_sub(1, Relaxed);
        self.counts.bytes.fetch_sub(piece.len() as u64, Relaxed);
        // SAFETY: it was in a record, and the record's owner uses it no more.
        let given_back = unsafe { self.pieces.free(frames, piece) };
        self.counts.frames.fetch_sub(given_back.into(), Relaxed);
    }
}

/// Whether a piece holds a page as it is. (What is compressed is never as long.)
fn is_plain(piece: Piece) -> bool {
    piece.len() == FRAME_SIZE as usize
}

impl<P: Platform> SwapDevice<P> for Compressed {
    unsafe fn write(&self, frames: &Frames<'_, P>, slots: Slots, from: Pfn) -> Result<(), WriteError> {
        // SAFETY: the caller may write the slots, so it may forget them.
        unsafe { self.forget(frames, slots) };
        let mut repeated = 0;
        for i in 0..slots.count {
            // SAFETY: by contract.
            let page = unsafe { Page::of(frames, from.add(i)) };
            let record = match page.repeated() {
                Some(word) => {
                    repeated += 1;
                    Record::Repeated(word)
                }
                None => match self.store(frames, page) {
                    Ok(piece) => {
                        self.kind_of(piece).fetch_add(1, Relaxed);
                        Record::Piece(piece)
                    }
                    Err(OutOfMemory) => {
                        self.counts.repeated.fetch_add(repeated, Relaxed);
                        // SAFETY: as above.
                        unsafe { self.forget(frames, slots) };
                        return Err(WriteError::NoMemory);
                    }
                },
            };
            self.set_record(slots.first + i, record);
        }
        self.counts.repeated.fetch_add(repeated, Relaxed);
        Ok(())
    }

    unsafe fn read(&self, frames: &Frames<'_, P>, slots: Slots, to: Pfn) -> Result<(), ReadError> {
        for i in 0..slots.count {
            // SAFETY: by contract.
            let page = unsafe { Page::of_mut(frames, to.add(i)) };
            let fails = |reason| Err(ReadError { slot: slots.first + i, reason });
            match self.record(slots.first + i) {
                Record::Nothing => return fails(Unreadable::Empty),
                Record::Repeated(word) => page.fill(word),
                Record::Piece(piece) => {
                    // SAFETY: `store` wrote so many bytes there, and nobody forgets the slot meanwhile.
                    let bytes = unsafe { core::slice::from_raw_parts(frames.at(piece.addr()).as_ptr(), piece.len()) };
                    if is_plain(piece) {
                        page.bytes_mut().copy_from_slice(bytes);
                    } else if !codec::decompress(bytes, page) {
                        return fails(Unreadable::Damaged);
                    }
                }
            }
        }
        Ok(())
    }

    unsafe fn forget(&self, frames: &Frames<'_, P>, slots: Slots) {
        let mut repeated = 0;
        for slot in slots.first..slots.first + slots.count {
            match self.record(slot) {
                Record::Nothing => continue,
                Record::Repeated(_) => repeated += 1,
                // SAFETY: by contract.
                Record::Piece(piece) => unsafe { self.drop_piece(frames, piece) },
            }
            self.set_record(slot, Record::Nothing);
        }
        if repeated > 0 {
            self.counts.repeated.fetch_sub(repeated, Relaxed);
        }
    }
}
