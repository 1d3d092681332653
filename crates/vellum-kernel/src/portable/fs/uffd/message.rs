//! The layout of a userfaultfd's messages (`struct uffd_msg`).

use crate::errno::Errno;
use core::mem::offset_of;
use linux_raw_sys::general::{
    UFFD_EVENT_FORK, UFFD_EVENT_PAGEFAULT, UFFD_EVENT_REMAP, UFFD_EVENT_REMOVE, UFFD_EVENT_UNMAP, uffd_msg,
};

/// The size of a message, in bytes.
pub const MESSAGE_SIZE: usize = size_of::<uffd_msg>();

/// A page fault, as `UFFD_EVENT_PAGEFAULT` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The address of the faulting page; with `UFFD_FEATURE_EXACT_ADDRESS` that of the access.
    pub address: u64,
    /// Flags: `UFFD_PAGEFAULT_FLAG_WRITE` and others.
    pub flags: u64,
    /// The faulting thread's TID with `UFFD_FEATURE_THREAD_ID`, and otherwise 0.
    pub thread: u32,
}

/// A change of the address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<F> {
    /// A child was forked, whose memory this userfaultfd is for.
    Fork(F),
    /// `mremap` has moved memory.
    Remap {
        /// The old address.
        from: u64,
        /// The new address.
        to: u64,
        /// The old length, in bytes.
        len: u64,
    },
    /// The contents of memory are about to be dropped.
    Remove {
        /// The first address.
        start: u64,
        /// The end.
        end: u64,
    },
    /// Memory was unmapped.
    Unmap {
        /// The first address.
        start: u64,
        /// The end.
        end: u64,
    },
}

impl Fault {
    /// Returns the message.
    pub(super) fn message(&self) -> [u8; MESSAGE_SIZE] {
        message(UFFD_EVENT_PAGEFAULT, [self.flags, self.address, self.thread.into()])
    }
}

impl<F> Event<F> {
    /// Returns whether the event is that exactly this range was unmapped.
    pub fn is_unmap_of(&self, first: u64, behind: u64) -> bool {
        matches!(self, Event::Unmap { start, end } if *start == first && *end == behind)
    }

    /// Returns the message. `open` gives the reader a descriptor of a forked userfaultfd.
    ///
    /// # Errors
    /// Those of `open`.
    pub(super) fn message(&self, open: impl Fn(&F) -> Result<u32, Errno>) -> Result<[u8; MESSAGE_SIZE], Errno> {
        Ok(match self {
            Event::Fork(forked) => message(UFFD_EVENT_FORK, [open(forked)?.into(), 0, 0]),
            Event::Remap { from, to, len } => message(UFFD_EVENT_REMAP, [*from, *to, *len]),
            Event::Remove { start, end } => message(UFFD_EVENT_REMOVE, [*start, *end, 0]),
            Event::Unmap { start, end } => message(UFFD_EVENT_UNMAP, [*start, *end, 0]),
        })
    }
}

/// Returns a message with these words after its header.
fn message(event: u32, words: [u64; 3]) -> [u8; MESSAGE_SIZE] {
    let mut bytes = [0; MESSAGE_SIZE];
    bytes[offset_of!(uffd_msg, event)] = event as u8;
    let places = bytes[offset_of!(uffd_msg, arg)..].chunks_exact_mut(8);
    places.zip(words).for_each(|(place, word)| place.copy_from_slice(&word.to_le_bytes()));
    bytes
}
