//! Zeroes and copies the contents of frames, chunk by chunk.
//!
//! Between two chunks of 32 KiB the host may reschedule (INV-11), so a caller that passes more than
//! one chunk holds no spin lock.

use super::Frames;
use crate::addr::{FRAME_SIZE, Pfn};
use crate::platform::Platform;

/// The number of frames that are zeroed or copied between two calls of `resched`: 32 KiB (INV-11).
const CHUNK: u32 = 8;

impl<P: Platform> Frames<'_, P> {
    /// Returns whether memory is zeroed when it is freed, so that no data outlives its owner
    /// (Linux: `init_on_free`).
    pub fn zero_on_free(&self) -> bool {
        self.zero_on_free
    }

    /// Zeroes `count` frames. For more than [`CHUNK`] frames the caller holds no spin lock, since
    /// `resched` is called in between (INV-11).
    ///
    /// # Safety
    /// The frames belong to this machine and to the caller alone.
    #[inline]
    pub(crate) unsafe fn zero(&self, pfn: Pfn, count: u32) {
        self.for_each_chunk(count, |at, bytes| {
            // SAFETY: the direct map covers the machine's frames (contract of `Memory`), and these
            // belong to the caller alone (this contract).
            unsafe { self.platform.zero(self.at(pfn.add(at).addr()).as_ptr(), bytes) };
        });
    }

    /// Copies `count` frames that other CPUs may be writing to. For more than [`CHUNK`] frames the
    /// caller holds no spin lock (INV-11).
    ///
    /// # Safety
    /// `from` and `to` are each the first of `count` contiguous frames, and don't overlap. The
    /// frames at `from` are not freed during the copy. The frames at `to` belong to the caller
    /// alone.
    pub(crate) unsafe fn copy(&self, from: Pfn, to: Pfn, count: u32) {
        self.for_each_chunk(count, |at, bytes| {
            let [from, to] = [from, to].map(|pfn| self.at(pfn.add(at).addr()).as_ptr());
            // SAFETY: the caller keeps the frames at `from`, and owns those at `to` (this
            // contract). The direct map covers the machine's frames (contract of `Memory`). Other
            // CPUs that write to `from` during the copy use atomic accesses, as all accesses to the
            // contents of objects and VMAs do.
            unsafe { self.platform.copy(from, to, bytes) };
        });
    }

    /// Calls `f` for each chunk of `count` frames with the index of the chunk's first frame and the
    /// chunk's size in bytes. Calls `resched` between two chunks (INV-11).
    #[inline(always)]
    pub(super) fn for_each_chunk(&self, count: u32, f: impl Fn(u32, usize)) {
        let (mut at, mut left) = (0, count);
        while left > CHUNK {
            f(at, CHUNK as usize * FRAME_SIZE as usize);
            self.platform.resched();
            (at, left) = (at + CHUNK, left - CHUNK);
        }
        f(at, left as usize * FRAME_SIZE as usize);
    }
}
