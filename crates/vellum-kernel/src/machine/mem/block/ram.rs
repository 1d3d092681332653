//! A disk in memory (Linux: brd).

use super::{BlockDevice, Direction, Transfer};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::{copy_nonoverlapping, write_bytes};
use core::sync::atomic::AtomicU8;
use spin::Once;
use vellum::addr::FRAME_SIZE;
use vellum_kernel::errno::Errno;

/// The bytes of a block of a [`RamDisk`].
const BLOCK: usize = FRAME_SIZE as usize;

/// A block of a [`RamDisk`].
type Block = Box<[AtomicU8; BLOCK]>;

/// A disk in memory. It has memory for the blocks that were written; all others are zeros.
pub struct RamDisk(Vec<Once<Block>>);

impl RamDisk {
    /// Creates a disk of this many bytes.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(bytes: u64) -> Result<Self, Errno> {
        let count = usize::try_from(bytes).map_err(|_| Errno::ENOMEM)? / BLOCK;
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(count)?;
        blocks.resize_with(count, Once::new);
        Ok(RamDisk(blocks))
    }

    /// Calls `each` with the blocks that have bytes of the range, the offset of these in the block,
    /// their offset in the range, and their number, until it returns false. Returns whether it
    /// never did, and the range is on the disk.
    fn each(&self, at: u64, len: usize, mut each: impl FnMut(&Once<Block>, usize, usize, usize) -> bool) -> bool {
        let mut done = 0;
        while done < len {
            let at = at as usize + done;
            let part = (BLOCK - at % BLOCK).min(len - done);
            let Some(block) = self.0.get(at / BLOCK) else { return false };
            if !each(block, at % BLOCK, done, part) {
                return false;
            }
            done += part;
        }
        true
    }
}

impl BlockDevice for RamDisk {
    fn size(&self) -> u64 {
        (self.0.len() * BLOCK) as u64
    }

    unsafe fn transfer(&self, transfer: Transfer) -> bool {
        let Transfer { direction, at, memory, len } = transfer;
        self.each(at, len, |block, offset, done, part| {
            let memory = memory.wrapping_add(done);
            let at = |block: &Block| block.as_ptr().cast::<u8>().cast_mut().wrapping_add(offset);
            match direction {
                // SAFETY: `done + part` is at most `len`, for which the memory is valid, and
                // `offset + part` at most the size of a block, which belongs to the disk alone. Its
                // bytes are copied as by a device (this function's contract).
                Direction::Read => unsafe {
                    match block.get() {
                        Some(block) => copy_nonoverlapping(at(block), memory, part),
                        None => write_bytes(memory, 0, part),
                    }
                },
                Direction::Write => {
                    let Ok(block) = block.try_call_once(new_block) else { return false };
                    // SAFETY: as above. The block's bytes are atomics, so they may change.
                    unsafe { copy_nonoverlapping(memory, at(block), part) };
                }
            }
            true
        })
    }

    fn flush(&self) -> bool {
        true
    }

    fn is_memory(&self) -> bool {
        true
    }
}

/// Allocates a block.
///
/// # Errors
///
/// `ENOMEM`.
fn new_block() -> Result<Block, Errno> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(BLOCK)?;
    bytes.resize_with(BLOCK, || AtomicU8::new(0));
    bytes.into_boxed_slice().try_into().map_err(|_| Errno::ENOMEM)
}
