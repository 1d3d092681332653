//! An array of any length that is stored in single frames. Its largest contiguous allocation is a
//! directory with the numbers of these frames.

use core::marker::PhantomData;

use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::{Frames, OutOfMemory, Use, Zeroable};
use crate::platform::Platform;

/// An array of `len` items, all zero at first. It must be freed by [`Paged::free`]: it has no
/// reference to the frame allocator, so dropping it leaks its memory.
#[must_use]
pub(super) struct Paged<T> {
    /// The base of the direct map.
    direct: *mut u8,
    /// The first frame of the directory. The directory has the number of the first frame of each
    /// block of items.
    directory: Pfn,
    /// The number of items.
    len: u32,
    items: PhantomData<T>,
}

// SAFETY: it is an array of `T`, and a shared reference to the array gives only shared references
// to its items.
unsafe impl<T: Sync> Sync for Paged<T> {}
// SAFETY: it owns its `T`s, which may be sent, and its other fields are plain addresses and numbers
// that any thread may use.
unsafe impl<T: Send> Send for Paged<T> {}

impl<T: Zeroable> Paged<T> {
    /// log2 of the number of frames in a block of items: one frame, or as many as one item needs.
    const ORDER: u8 = order_of(size_of::<T>() as u64);
    /// The number of items in a block.
    const PER_BLOCK: u32 = ((FRAME_SIZE << Self::ORDER) / size_of::<T>() as u64) as u32;

    /// Allocates an array of `len` items.
    ///
    /// # Errors
    /// [`OutOfMemory`]: there is not enough memory, and none stays allocated.
    pub(super) fn new<P: Platform>(frames: &Frames<'_, P>, len: u32) -> Result<Self, OutOfMemory> {
        Self::with_holes(frames, len, |_| true)
    }

    /// Allocates an array of `len` items, without those blocks for whose first item `is_needed`
    /// returns false. These are holes: no item in them can be accessed.
    ///
    /// # Errors
    /// As for [`Paged::new`].
    pub(super) fn with_holes<P: Platform>(
        frames: &Frames<'_, P>,
        len: u32,
        is_needed: impl Fn(u32) -> bool,
    ) -> Result<Self, OutOfMemory> {
        let directory = frames.alloc(Self::directory_order(len), false, Use::Kernel)?;
        let direct = frames.platform().direct_map();
        let paged = Paged { direct, directory, len, items: PhantomData };
        for block in 0..Self::blocks(len) {
            let items = if is_needed(block * Self::PER_BLOCK) {
                frames.alloc(Self::ORDER, true, Use::Kernel)
            } else {
                Ok(Pfn::NONE)
            };
            match items {
                // SAFETY: the entry is inside the directory, which was just allocated and to which
                // nothing else refers.
                Ok(pfn) => unsafe { paged.entry(block).write(pfn.0) },
                Err(error) => {
                    // SAFETY: the entries before `block` are written, and nothing else refers to
                    // their blocks.
                    unsafe { paged.free_blocks(frames, block) };
                    return Err(error);
                }
            }
        }
        Ok(paged)
    }

    /// Returns an item.
    ///
    /// # Panics
    /// If `index` is past the end or in a hole.
    #[inline]
    pub(super) fn get(&self, index: u32) -> &T {
        assert!(index < self.len, "index {index} is past the end of an array of {} items", self.len);
        // SAFETY: `with_holes` wrote the directory entry, which does not change any more. Its block
        // was zeroed, and zeros are a valid `T`. The block has room for this index and is aligned
        // to a frame, and nothing else uses it until `free` takes the array.
        unsafe {
            let pfn = Pfn(self.entry(index / Self::PER_BLOCK).read());
            assert!(pfn != Pfn::NONE, "index {index} is in a hole of the array");
            let block = self.direct.wrapping_add(pfn.addr().0 as usize).cast::<T>();
            &*block.add((index % Self::PER_BLOCK) as usize)
        }
    }

    /// Returns the number of items.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Frees the memory. Items are not dropped.
    pub(super) fn free<P: Platform>(self, frames: &Frames<'_, P>) {
        // SAFETY: all blocks are in the directory, and no borrow of an item outlives the array.
        unsafe { self.free_blocks(frames, Self::blocks(self.len)) };
    }

    /// Frees the first `count` blocks of items, and the directory.
    ///
    /// # Safety
    /// The first `count` entries of the directory are written, and nothing uses their blocks any
    /// more.
    unsafe fn free_blocks<P: Platform>(&self, frames: &Frames<'_, P>, count: u32) {
        for block in 0..count {
            // SAFETY: by this function's contract the directory entry has been written, and nothing
            // uses the block that it names. An entry that is `Pfn::NONE` names no block.
            unsafe {
                if let Some(items) = Pfn(self.entry(block).read()).some() {
                    frames.free(items, 1 << Self::ORDER, false, Use::Kernel);
                }
            }
        }
        // SAFETY: `with_holes` allocated the directory, whose entries were read for the last time
        // above.
        unsafe { frames.free(self.directory, 1 << Self::directory_order(self.len), false, Use::Kernel) };
    }

    /// Returns the address of a directory entry.
    #[inline]
    fn entry(&self, block: u32) -> *mut u32 {
        self.direct.wrapping_add(self.directory.addr().0 as usize).cast::<u32>().wrapping_add(block as usize)
    }

    /// Returns the number of blocks of an array of `len` items.
    const fn blocks(len: u32) -> u32 {
        len.div_ceil(Self::PER_BLOCK)
    }

    /// Returns the order of the directory of an array of `len` items.
    const fn directory_order(len: u32) -> u8 {
        order_of(Self::blocks(len) as u64 * size_of::<u32>() as u64)
    }
}

/// Returns the order of the smallest block of frames that holds `bytes` bytes.
const fn order_of(bytes: u64) -> u8 {
    bytes.div_ceil(FRAME_SIZE).next_power_of_two().trailing_zeros() as u8
}
