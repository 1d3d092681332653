//! lz4 compression of single pages, with per-CPU buffers (Linux: zram's `zcomp_strm`).
//!
//! Compression needs a hash table and room for the largest possible output. Each CPU has both,
//! allocated in advance and protected by a lock. So nothing is allocated while memory is short, and
//! no large stack is needed.

use core::mem::MaybeUninit;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

use super::page::Page;
use crate::addr::FRAME_SIZE;
use crate::frame::{Frames, OutOfMemory, Zeroable};
use crate::platform::Platform;
use crate::swap::paged::Paged;
use crate::sync::SpinLock;

/// The maximum size of a compressed page, in bytes.
const MAX_OUTPUT: usize = get_maximum_output_size(FRAME_SIZE as usize);

/// The initial hash table of each CPU. It is copied from this static, because a table on the stack
/// might overflow the stack.
static EMPTY_TABLE: CompressTable = CompressTable::small();

/// A CPU's compression buffers, behind a lock.
#[repr(align(128))]
struct Stream(SpinLock<StreamState>);

/// A CPU's hash table and output buffer.
struct StreamState {
    table: MaybeUninit<CompressTable>,
    output: [u8; MAX_OUTPUT],
}

// SAFETY: zero is valid for all fields: an unlocked lock, bytes, and a table that may be
// uninitialised.
unsafe impl Zeroable for Stream {}

/// The buffers of all CPUs.
pub(super) struct Streams(Paged<Stream>);

impl Streams {
    /// Allocates and initialises the buffers.
    ///
    /// # Errors
    /// [`OutOfMemory`]: there is not enough memory, and none stays allocated.
    pub(super) fn new<P: Platform>(frames: &Frames<'_, P>) -> Result<Self, OutOfMemory> {
        let streams = Paged::<Stream>::new(frames, frames.platform().count() as u32)?;
        for cpu in 0..streams.len() {
            let mut stream = streams.get(cpu).0.lock(frames.platform());
            // SAFETY: copies the bytes of one table, which owns nothing, from a table that never
            // changes.
            unsafe { stream.table.as_mut_ptr().copy_from_nonoverlapping(&raw const EMPTY_TABLE, 1) };
        }
        Ok(Streams(streams))
    }

    /// Frees the buffers.
    pub(super) fn free<P: Platform>(self, frames: &Frames<'_, P>) {
        self.0.free(frames);
    }

    /// Compresses a page into the current CPU's buffer, passes the output to `use_output`, and
    /// returns the result of `use_output`. Until that returns, the buffer is locked and preemption
    /// is disabled.
    pub(super) fn compress<P: Platform, R>(&self, platform: &P, page: &Page, use_output: impl FnOnce(&[u8]) -> R) -> R {
        let mut stream = self.0.get(platform.current() as u32).0.lock(platform);
        let StreamState { table, output } = &mut *stream;
        // SAFETY: `new` initialised the table.
        let table = unsafe { table.assume_init_mut() };
        match compress_into_with_table(page.bytes(), output, table) {
            Ok(len) => use_output(&output[..len]),
            // The buffer has room for any output, so compression does not fail. If it did, the
            // uncompressed page would be a correct output, since its length marks it as
            // uncompressed.
            Err(_) => use_output(page.bytes()),
        }
    }
}

/// Decompresses `bytes` into a page. Returns true if the result is exactly one page.
pub(super) fn decompress(bytes: &[u8], page: &mut Page) -> bool {
    matches!(decompress_into(bytes, page.bytes_mut()), Ok(len) if len == FRAME_SIZE as usize)
}

// With the feature `alloc` of `lz4_flex` the table would be a pointer to the heap, and the copies
// in `new` would share it. This assertion fails then.
const _: () = assert!(size_of::<CompressTable>() > FRAME_SIZE as usize);
