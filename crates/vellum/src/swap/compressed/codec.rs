//! lz4, a page at a time, in rooms that were there before.
//!
//! Compressing needs a table of where four bytes were seen last, and room for what it writes while nobody knows how little that
//! will be. Each CPU has both, behind a lock: so nothing is allocated while memory is short, and no stack has to be large.

use core::mem::MaybeUninit;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

use super::page::Page;
use crate::addr::FRAME_SIZE;
use crate::frame::{Frames, OutOfMemory, Zeroable};
use crate::platform::Platform;
use crate::swap::paged::Paged;
use crate::sync::SpinLock;

/// What a page may become at worst.
const MAX_OUTPUT: usize = get_maximum_output_size(FRAME_SIZE as usize);

/// As it is at first; from here it is copied to where it is used, which is larger than some stacks.
static EMPTY_TABLE: CompressTable = CompressTable::small();

/// A CPU's room.
#[repr(align(128))]
struct Stream(SpinLock<StreamState>);

struct StreamState {
    table: MaybeUninit<CompressTable>,
    output: [u8; MAX_OUTPUT],
}

// SAFETY: a lock, bytes, and memory without a value; aligned to 128 bytes.
unsafe impl Zeroable for Stream {}

/// All CPUs' rooms.
pub(super) struct Streams(Paged<Stream>);

impl Streams {
    pub(super) fn new<P: Platform>(frames: &Frames<'_, P>) -> Result<Self, OutOfMemory> {
        let streams = Paged::<Stream>::new(frames, frames.platform().count() as u32)?;
        for cpu in 0..streams.len() {
            let mut stream = streams.get(cpu).0.lock(frames.platform());
            // SAFETY: one table's bytes, which own nothing, from a table that nobody changes.
            unsafe { stream.table.as_mut_ptr().copy_from_nonoverlapping(&raw const EMPTY_TABLE, 1) };
        }
        Ok(Streams(streams))
    }

    pub(super) fn free<P: Platform>(self, frames: &Frames<'_, P>) {
        self.0.free(frames);
    }

    /// Hand what a page becomes to `keep`. No other task of this CPU runs meanwhile.
    pub(super) fn compress<P: Platform, R>(&self, platform: &P, page: &Page, keep: impl FnOnce(&[u8]) -> R) -> R {
        let mut stream = self.0.get(platform.current() as u32).0.lock(platform);
        let StreamState { table, output } = &mut *stream;
        // SAFETY: `new` put one there.
        let table = unsafe { table.assume_init_mut() };
        match compress_into_with_table(page.bytes(), output, table) {
            Ok(len) => keep(&output[..len]),
            // The output is as long as it may have to be; if it weren't, a page is always as good as what it becomes.
            Err(_) => keep(page.bytes()),
        }
    }
}

/// Whether `bytes` made a whole page.
pub(super) fn decompress(bytes: &[u8], page: &mut Page) -> bool {
    matches!(decompress_into(bytes, page.bytes_mut()), Ok(len) if len == FRAME_SIZE as usize)
}

// If the crate's feature `alloc` were on, the table would be a pointer to the heap.
const _: () = assert!(size_of::<CompressTable>() > FRAME_SIZE as usize);
