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

/// The records of slots in a row that share a word of bits: up to 64.
struct Group<'a> {
    first: u32,
    words: &'a [AtomicU64],
    repeated: &'a AtomicU64,
    /// Which bit of the word is the first slot's.
    shift: u32,
}

impl Group<'_> {
    /// Each slot of which a word fills the page has its bit set, counted from the first.
    #[inline]
    fn repeated(&self) -> u64 {
        self.repeated.load(Relaxed) >> self.shift & (!0 >> (64 - self.words.len()))
    }

    #[inline]
    fn set_repeated(&self, set: u64) {
        if set != 0 {
            // The other bits are other slots', maybe other CPUs'.
            self.repeated.fetch_or(set << self.shift, Relaxed);
        }
    }

    #[inline]
    fn clear_repeated(&self, set: u64) {
        if set != 0 {
            self.repeated.fetch_and(!(set << self.shift), Relaxed);
        }
    }
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

    /// The records of some slots.
    #[inline]
    fn groups(&self, slots: Slots) -> impl Iterator<Item = Group<'_>> {
        let (mut slot, end) = (slots.first, slots.first + slots.count);
        core::iter::from_fn(move || {
            if slot == end {
                return None;
            }
            let (records, at, shift) = (self.records.get(slot / RECORDS), slot % RECORDS, slot % RECORDS % 64);
            let count = (64 - shift).min(RECORDS - at).min(end - slot);
            let words = &records.words[at as usize..(at + count) as usize];
            let group = Group { first: slot, words, repeated: &records.repeated[at as usize / 64], shift };
            slot += count;
            Some(group)
        })
    }

    /// Keep what a page becomes.
    #[cold]
    fn store<P: Platform>(&self, frames: &Frames<'_, P>, page: &Page) -> Result<Piece, OutOfMemory> {
        let keep = |bytes: &[u8]| {
            let (piece, taken) = self.pieces.allocate(frames, bytes.len())?;
            // SAFETY: the piece is in the machine's memory, long enough, and this caller's alone.
            unsafe { frames.at(piece.addr()).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            self.counts.frames.fetch_add(taken.into(), Relaxed);
            self.counts.bytes.fetch_add(bytes.len() as u64, Relaxed);
            self.kind_of(piece).fetch_add(1, Relaxed);
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
        for group in self.groups(slots) {
            let mut repeated = 0;
            let pages = from.add(group.first - slots.first);
            let result = (0..).zip(group.words).try_for_each(|(i, record)| {
                // SAFETY: by contract.
                let page = unsafe { Page::of(frames, pages.add(i)) };
                let word = match page.repeated() {
                    Some(word) => {
                        repeated |= 1 << i;
                        word
                    }
                    None => self.store(frames, page)?.0,
                };
                record.store(word, Relaxed);
                frames.platform().resched();
                Ok(())
            });
            group.set_repeated(repeated);
            self.counts.repeated.fetch_add(repeated.count_ones().into(), Relaxed);
            if let Err(OutOfMemory) = result {
                // SAFETY: as above.
                unsafe { self.forget(frames, slots) };
                return Err(WriteError::NoMemory);
            }
        }
        Ok(())
    }

    unsafe fn read(&self, frames: &Frames<'_, P>, slots: Slots, to: Pfn) -> Result<(), ReadError> {
        for group in self.groups(slots) {
            let repeated = group.repeated();
            let pages = to.add(group.first - slots.first);
            for (i, record) in (0..).zip(group.words) {
                // SAFETY: by contract.
                let page = unsafe { Page::of_mut(frames, pages.add(i)) };
                let fails = |reason| Err(ReadError { slot: group.first + i, reason });
                match record.load(Relaxed) {
                    word if repeated >> i & 1 == 1 => page.fill(word),
                    0 => return fails(Unreadable::Empty),
                    // SAFETY: the slot is not forgotten meanwhile.
                    piece if unsafe { restore(frames, Piece(piece), page) } => {}
                    _ => return fails(Unreadable::Damaged),
                }
                frames.platform().resched();
            }
        }
        Ok(())
    }

    unsafe fn forget(&self, frames: &Frames<'_, P>, slots: Slots) {
        for group in self.groups(slots) {
            let repeated = group.repeated();
            for (i, record) in group.words.iter().enumerate() {
                let word = record.load(Relaxed);
                if word != 0 {
                    record.store(0, Relaxed);
                    if repeated >> i & 1 == 0 {
                        // SAFETY: by contract.
                        unsafe { self.drop_piece(frames, Piece(word)) };
                    }
                }
            }
            group.clear_repeated(repeated);
            self.counts.repeated.fetch_sub(repeated.count_ones().into(), Relaxed);
        }
    }
}

/// Make a page of what is in a piece; whether that could be done.
///
/// # Safety
/// The piece is in use, and stays so meanwhile.
#[cold]
unsafe fn restore<P: Platform>(frames: &Frames<'_, P>, piece: Piece, page: &mut Page) -> bool {
    // SAFETY: `store` wrote so many bytes there, and nobody else has the piece.
    let bytes = unsafe { core::slice::from_raw_parts(frames.at(piece.addr()).as_ptr(), piece.len()) };
    if is_plain(piece) {
        page.bytes_mut().copy_from_slice(bytes);
        return true;
    }
    codec::decompress(bytes, page)
}
