//! An array in frames: as long as it must be, without asking for more memory in one piece than a directory of frame numbers.

use core::marker::PhantomData;

use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::{Frames, OutOfMemory, Use, Zeroable};
use crate::platform::Platform;

/// `len` items, all zero at first. Must be given back by [`Paged::free`]: it has no frames to drop itself with.
#[must_use]
pub(super) struct Paged<T> {
    direct: *mut u8,
    /// The block that holds the number of each item block's first frame.
    directory: Pfn,
    len: u32,
    items: PhantomData<T>,
}

// SAFETY: it is an array of `T`, reached by shared references only.
unsafe impl<T: Sync> Sync for Paged<T> {}
// SAFETY: it is an array of `T`, and nothing in it belongs to a thread.
unsafe impl<T: Send> Send for Paged<T> {}

impl<T: Zeroable> Paged<T> {
    /// log2 of the frames of a block of items: one frame, or what one item needs.
    const ORDER: u8 = order_of(size_of::<T>() as u64);
    /// Items in a block.
    const PER_BLOCK: u32 = ((FRAME_SIZE << Self::ORDER) / size_of::<T>() as u64) as u32;

    /// # Errors
    /// There is not enough memory; nothing of it is taken then.
    pub(super) fn new<P: Platform>(frames: &Frames<'_, P>, len: u32) -> Result<Self, OutOfMemory> {
        Self::with_holes(frames, len, |_| true)
    }

    /// The same without the items of blocks that begin with one that this says is not `there`.
    ///
    /// # Errors
    /// As of [`Paged::new`].
    pub(super) fn with_holes<P: Platform>(
        frames: &Frames<'_, P>,
        len: u32,
        there: impl Fn(u32) -> bool,
    ) -> Result<Self, OutOfMemory> {
        let directory = frames.alloc(Self::directory_order(len), false, Use::Kernel)?;
        let direct = frames.platform().direct_map();
        let paged = Paged { direct, directory, len, items: PhantomData };
        for block in 0..Self::blocks(len) {
            let items = if there(block * Self::PER_BLOCK) {
                frames.alloc(Self::ORDER, true, Use::Kernel)
            } else {
                Ok(Pfn::NONE)
            };
            match items {
                // SAFETY: inside the directory, which was just allocated and which nobody else knows of.
                Ok(pfn) => unsafe { paged.entry(block).write(pfn.0) },
                Err(error) => {
                    // SAFETY: so many blocks are in the directory, and nobody else knows of it.
                    unsafe { paged.free_blocks(frames, block) };
                    return Err(error);
                }
            }
        }
        Ok(paged)
    }

    /// An item.
    ///
    /// # Panics
    /// If there is no such item.
    #[inline]
    pub(super) fn get(&self, index: u32) -> &T {
        assert!(index < self.len, "{index} is beyond the end of {}", self.len);
        // SAFETY: the entry was written by `new`, and none is written after that. The block is of zeros, which are a valid
        // `T`, large enough for the index in it, aligned to a frame, and nobody else's until `free` takes the array.
        unsafe {
            let pfn = Pfn(self.entry(index / Self::PER_BLOCK).read());
            assert!(pfn != Pfn::NONE, "{index} lies in a hole");
            let block = self.direct.wrapping_add(pfn.addr().0 as usize).cast::<T>();
            &*block.add((index % Self::PER_BLOCK) as usize)
        }
    }

    /// How many items there are.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Give the memory back. Items are not dropped.
    pub(super) fn free<P: Platform>(self, frames: &Frames<'_, P>) {
        // SAFETY: all blocks are in the directory, and whoever could reach an item had borrowed the array.
        unsafe { self.free_blocks(frames, Self::blocks(self.len)) };
    }

    /// # Safety
    /// The first `count` entries of the directory are written, and nobody uses their blocks any more.
    unsafe fn free_blocks<P: Platform>(&self, frames: &Frames<'_, P>, count: u32) {
        for block in 0..count {
            // SAFETY: by contract; a hole has no block.
            unsafe {
                if let Some(items) = Pfn(self.entry(block).read()).some() {
                    frames.free(items, 1 << Self::ORDER, false, Use::Kernel);
                }
            }
        }
        // SAFETY: allocated in `new`; its entries were read for the last time.
        unsafe { frames.free(self.directory, 1 << Self::directory_order(self.len), false, Use::Kernel) };
    }

    #[inline]
    fn entry(&self, block: u32) -> *mut u32 {
        self.direct.wrapping_add(self.directory.addr().0 as usize).cast::<u32>().wrapping_add(block as usize)
    }

    const fn blocks(len: u32) -> u32 {
        len.div_ceil(Self::PER_BLOCK)
    }

    const fn directory_order(len: u32) -> u8 {
        order_of(Self::blocks(len) as u64 * size_of::<u32>() as u64)
    }
}

/// log2 of the frames of the smallest block that holds so many bytes.
const fn order_of(bytes: u64) -> u8 {
    bytes.div_ceil(FRAME_SIZE).next_power_of_two().trailing_zeros() as u8
}
