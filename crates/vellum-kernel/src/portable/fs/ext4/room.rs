//! Room for what programs write and the page cache keeps for now.
//!
//! Bytes that a program writes usually get their blocks when the page cache writes them out, many
//! at a time. They are promised room meanwhile. Once the promises could exceed what is free, the
//! kernel has all dirty pages written, and then bytes get their blocks at once, until much is free
//! again (Linux: `ext4_nonda_switch`). So a program's write fails on a full disk, and not the
//! writeback after it. Stores to mapped holes are not promised room: if the disk is full, their
//! writeback fails, and `msync` reports it.

use super::Ext4;
use crate::errno::Errno;

/// The bytes that stay free for the nodes of extent trees, of which the writeback of blocks without
/// contents may need more.
const FOR_TREES: u64 = 64 << 10;
/// The free bytes, beside those promised, with which a file system is not nearly full: more than
/// several CPUs write at the same time.
const MUCH: u64 = 2 << 20;

/// The room of a file system.
#[derive(Default)]
pub(super) struct Room {
    /// The most bytes that have no blocks yet, of those that programs have written.
    promised: u64,
    /// Nothing is promised: the file system is nearly full.
    is_tight: bool,
}

impl Room {
    /// Returns whether `bytes` more may be promised, with `free` free bytes, and at most `later`
    /// bytes that are not on the disk yet.
    fn can_promise(&self, bytes: u64, later: u64, free: u64) -> bool {
        let (others, spare) = if self.is_tight { (later, 4 * MUCH) } else { (self.promised.min(later), MUCH) };
        free > others.saturating_add(bytes).saturating_add(spare)
    }
}

impl Ext4 {
    /// Returns whether there is room for bytes that a program writes, without all dirty pages being
    /// written first: the file system is not nearly full, or is known to be.
    pub fn has_room(&self, bytes: u64, later: u64) -> bool {
        let state = self.lock();
        state.room.is_tight || state.room.can_promise(bytes, later, state.free(self.block))
    }

    /// Learns that the pages were written for which room was promised.
    pub fn all_written(&self) {
        self.lock().room = Room { promised: 0, is_tight: true };
    }

    /// Promises room for bytes. Returns false if they need their blocks at once.
    pub(super) fn promise(&self, bytes: u64, later: u64) -> bool {
        let mut state = self.lock();
        let can_promise = state.room.can_promise(bytes, later, state.free(self.block));
        if can_promise {
            // The disk has got blocks for all promised bytes but `later` of them, at most.
            let promised = if state.room.is_tight { 0 } else { state.room.promised.min(later) };
            state.room = Room { promised: promised + bytes, is_tight: false };
        }
        can_promise
    }

    /// Returns whether the blocks of some bytes may be allocated.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(super) fn may_take(&self, bytes: u64) -> Result<(), Errno> {
        let free = self.lock().free(self.block);
        if free < bytes.saturating_add(FOR_TREES) { Err(Errno::ENOSPC) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promised bytes count as taken as long as pages that are not on the disk may have them.
    #[test]
    fn promises_count_until_they_are_kept() {
        let room = Room { promised: 10 * MUCH, is_tight: false };
        assert!(!room.can_promise(MUCH, 10 * MUCH, 12 * MUCH));
        assert!(room.can_promise(MUCH, 9 * MUCH, 12 * MUCH));
        assert!(room.can_promise(MUCH, 10 * MUCH, 12 * MUCH + 1));
    }

    /// A file system that was nearly full promises nothing before much more is free, and then
    /// counts all dirty pages.
    #[test]
    fn a_full_disk_promises_nothing() {
        let room = Room { promised: 0, is_tight: true };
        assert!(!room.can_promise(MUCH, 0, 5 * MUCH));
        assert!(room.can_promise(MUCH, 0, 5 * MUCH + 1));
        assert!(!room.can_promise(MUCH, 1, 5 * MUCH + 1));
    }
}
