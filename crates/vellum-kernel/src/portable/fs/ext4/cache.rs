//! The blocks of metadata that were read last. The crate reads the same ones again and again, and
//! leaves it to the layer below to keep them.
//!
//! Every write goes to the device at once. The contents of files, which the page cache writes past
//! the crate, are forgotten ([`Cache::forget`]).

use super::host::BlockDevice;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::ops::Range;
use spin::Mutex;

/// The number of sets: a block is kept in the one that its place on the device chooses.
const SETS: usize = 32;
/// The most blocks that a set keeps.
const WAYS: usize = 4;

/// The blocks that are kept of a device.
#[derive(Default)]
pub(super) struct Cache(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// The bytes of a block; 0 while nothing is kept, as it is not known.
    block: usize,
    sets: [Set; SETS],
}

/// The blocks that are kept of those for which it is the place.
#[derive(Default)]
struct Set {
    blocks: ArrayVec<Block, WAYS>,
    /// The index of the block to look at next for one to replace.
    hand: usize,
}

struct Block {
    /// The byte offset on the device; `None` if the bytes are no block's.
    at: Option<u64>,
    /// The block was read again since the hand came by.
    used: bool,
    bytes: Vec<u8>,
}

impl Block {
    /// Returns whether the block has bytes of a range of the device.
    fn meets(&self, range: &Range<u64>) -> bool {
        self.at.is_some_and(|at| at < range.end && range.start < at + self.bytes.len() as u64)
    }
}

impl Cache {
    /// Begins to keep blocks, of this many bytes.
    pub(super) fn start(&self, block: u64) {
        *self.0.lock() = Kept { block: block as usize, ..Kept::default() };
    }

    /// Reads from memory or from the device. Returns whether it succeeded.
    pub(super) fn read(&self, device: &dyn BlockDevice, at: u64, to: &mut [u8]) -> bool {
        let mut kept = self.0.lock();
        // Whatever is kept lies in one set: nothing that begins inside a block.
        if to.len() != kept.block || !at.is_multiple_of(kept.block as u64) {
            return device.read(at, to);
        }
        let set = kept.set(at);
        if let Some(block) = set.blocks.iter_mut().find(|block| block.at == Some(at)) {
            block.used = true;
            to.copy_from_slice(&block.bytes);
            return true;
        }
        let read = device.read(at, to);
        if read {
            set.keep(at, to);
        }
        read
    }

    /// Writes to the device, and to what is kept. Returns whether it succeeded.
    pub(super) fn write(&self, device: &dyn BlockDevice, at: u64, from: &[u8]) -> bool {
        let mut kept = self.0.lock();
        let range = at..at + from.len() as u64;
        let written = device.write(at, from);
        kept.each(&range, |block| {
            match block.at.and_then(|start| from.get(start.checked_sub(at)? as usize..)?.get(..block.bytes.len())) {
                Some(from) if written => block.bytes.copy_from_slice(from),
                // Nothing is known of a block that was written in part, or that could not be.
                _ => block.at = None,
            }
        });
        written
    }

    /// Forgets the blocks of a range: what the device has is not what the crate wrote there.
    pub(super) fn forget(&self, range: &Range<u64>) {
        self.0.lock().each(range, |block| block.at = None);
    }
}

impl Kept {
    /// Returns the set of the block at a byte offset.
    fn set(&mut self, at: u64) -> &mut Set {
        &mut self.sets[(at / self.block as u64) as usize % SETS]
    }

    /// Calls `act` with each block that is kept of a range.
    fn each(&mut self, range: &Range<u64>, mut act: impl FnMut(&mut Block)) {
        if self.block == 0 {
            return;
        }
        let block = self.block as u64;
        // Further blocks of the range have the same sets again.
        let end = range.end.min(range.start + SETS as u64 * block);
        for at in (range.start / block * block..end).step_by(self.block) {
            self.set(at).blocks.iter_mut().filter(|block| block.meets(range)).for_each(&mut act);
        }
    }
}

impl Set {
    /// Keeps a block, unless memory is short.
    fn keep(&mut self, at: u64, bytes: &[u8]) {
        let mut copy = Vec::new();
        if !self.blocks.is_full() && copy.try_reserve_exact(bytes.len()).is_ok() {
            copy.extend_from_slice(bytes);
            self.blocks.push(Block { at: Some(at), used: false, bytes: copy });
            return;
        }
        // Every block is passed over at most once.
        for _ in 0..2 * self.blocks.len() {
            self.hand = (self.hand + 1) % self.blocks.len();
            let block = &mut self.blocks[self.hand];
            if block.at.is_some() && block.used {
                block.used = false;
                continue;
            }
            block.bytes.copy_from_slice(bytes);
            block.at = Some(at);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
    use std::vec;

    const BLOCK: usize = 1024;
    /// More blocks than are kept.
    const SIZE: usize = 4 * SETS * WAYS * BLOCK;

    struct Device {
        bytes: std::sync::Mutex<Vec<u8>>,
        reads: AtomicU64,
        fails: AtomicBool,
    }

    impl Device {
        fn new() -> Self {
            Device { bytes: vec![0; SIZE].into(), reads: 0.into(), fails: false.into() }
        }
    }

    impl BlockDevice for Device {
        fn size(&self) -> u64 {
            SIZE as u64
        }

        fn read(&self, at: u64, to: &mut [u8]) -> bool {
            self.reads.fetch_add(1, Relaxed);
            to.copy_from_slice(&self.bytes.lock().unwrap()[at as usize..][..to.len()]);
            true
        }

        fn write(&self, at: u64, from: &[u8]) -> bool {
            // A write that fails may have written a part.
            let (fails, mut bytes) = (self.fails.load(Relaxed), self.bytes.lock().unwrap());
            let from = if fails { &from[..from.len() / 2] } else { from };
            bytes[at as usize..][..from.len()].copy_from_slice(from);
            !fails
        }

        fn flush(&self) -> bool {
            true
        }
    }

    /// A read returns what the device has, whatever was read, written, or written past the cache
    /// before, and in whichever pieces.
    #[test]
    fn what_is_read_is_on_the_device() {
        let (device, cache) = (Device::new(), Cache::default());
        cache.start(BLOCK as u64);
        let (state, mut bytes) = (Cell::new(1u64), vec![0; 4 * BLOCK]);
        let below = |end: usize| {
            state.set(state.get().wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
            (state.get() >> 33) as usize % end
        };
        for step in 0..50_000 {
            let unit = if below(4) == 0 { BLOCK / 2 } else { BLOCK };
            let len = unit * (1 + below(4));
            // Some blocks are wanted often.
            let at = below(if below(2) == 0 { 16 * BLOCK } else { SIZE } - len) / unit * unit;
            let (at, part) = (at as u64, &mut bytes[..len]);
            device.fails.store(below(16) == 0, Relaxed);
            match below(8) {
                0..5 => {
                    assert!(cache.read(&device, at, part));
                    assert!(*part == device.bytes.lock().unwrap()[at as usize..][..len], "step {step}");
                }
                5..7 => {
                    part.fill(below(256) as u8);
                    cache.write(&device, at, part);
                }
                _ => {
                    part.fill(below(256) as u8);
                    device.write(at, part);
                    cache.forget(&(at..at + len as u64));
                }
            }
        }
    }

    /// A block that is read again and again stays in memory beside many that are read once.
    #[test]
    fn a_used_block_stays() {
        let (device, cache) = (Device::new(), Cache::default());
        cache.start(BLOCK as u64);
        let mut bytes = vec![0; BLOCK];
        for at in (BLOCK..SIZE).step_by(BLOCK) {
            assert!(cache.read(&device, 0, &mut bytes) && cache.read(&device, at as u64, &mut bytes));
        }
        assert_eq!(device.reads.load(Relaxed), SIZE as u64 / BLOCK as u64);
    }
}
