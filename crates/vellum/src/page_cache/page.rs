//! A page in hand: it can't go away, though it may be removed from its object, and others may write to it.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use crate::addr::{FRAME_SHIFT, Pfn};
use crate::frame::TooManyReferences;
use crate::machine::Machine;
use crate::platform::Platform;

/// A reference to a page of an object or of a space. No lock is held: who has it may sleep, and fault.
pub struct ObjectPage<'m, P: Platform> {
    machine: &'m Machine<'m, P>,
    pfn: Pfn,
    shift: u32,
}

impl<'m, P: Platform> ObjectPage<'m, P> {
    /// Takes a reference to a page.
    ///
    /// # Errors
    /// [`TooManyReferences`]: the folio has as many as it may.
    ///
    /// # Safety
    /// `pfn` is a page of `1 << shift` bytes in the index of an object that is locked, or mapped by a table that is.
    pub(crate) unsafe fn get(machine: &'m Machine<'m, P>, pfn: Pfn, shift: u32) -> Result<Self, TooManyReferences> {
        let frames = machine.frames();
        let (head, frame) = frames.head(pfn);
        frames.share_counts(head, frame, 1, 0)?;
        Ok(ObjectPage { machine, pfn, shift })
    }

    /// Its first frame.
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// How many bytes it has.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        1 << self.shift
    }

    /// Its first byte, in the engine's address space, for a host that copies between it and user memory. Valid for reads and
    /// writes of [`ObjectPage::len`] bytes while this exists. Programs and other CPUs may be writing there.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.machine.frames().at(self.pfn.addr())
    }

    /// Copy from the page, from this byte on; as many bytes as there is room for and the page has.
    pub fn read(&self, from: usize, to: &mut [u8]) -> usize {
        let count = to.len().min(self.len().saturating_sub(from));
        let mut at = 0;
        while at < count {
            let eight = to[at..count].first_chunk_mut::<8>().filter(|_| (from + at).is_multiple_of(8));
            match eight {
                Some(eight) => {
                    *eight = self.word(from + at).load(Relaxed).to_ne_bytes();
                    at += 8;
                }
                None => {
                    to[at] = self.byte(from + at).load(Relaxed);
                    at += 1;
                }
            }
        }
        count
    }

    /// Copy into the page, from this byte on; as many bytes as are given and the page has room for.
    pub fn write(&self, to: usize, from: &[u8]) -> usize {
        let count = from.len().min(self.len().saturating_sub(to));
        let mut at = 0;
        while at < count {
            let eight = from[at..count].first_chunk::<8>().filter(|_| (to + at).is_multiple_of(8));
            match eight {
                Some(eight) => {
                    self.word(to + at).store(u64::from_ne_bytes(*eight), Relaxed);
                    at += 8;
                }
                None => {
                    self.byte(to + at).store(from[at], Relaxed);
                    at += 1;
                }
            }
        }
        count
    }

    /// Overwrite a part with zeros: from this byte on, as many as the page has.
    pub fn zero(&self, from: usize, count: usize) {
        let end = from.saturating_add(count).min(self.len());
        let mut at = from;
        while at < end {
            if at.is_multiple_of(8) && end - at >= 8 {
                self.word(at).store(0, Relaxed);
                at += 8;
            } else {
                self.byte(at).store(0, Relaxed);
                at += 1;
            }
        }
    }

    /// Copy all of it to a page that is nobody else's.
    ///
    /// # Safety
    /// `to` is a page of the same size that only the caller knows.
    pub(crate) unsafe fn copy_to(&self, to: Pfn) {
        // SAFETY: this reference keeps the page; the caller vouches for the other.
        unsafe { self.machine.frames().copy(self.pfn, to, 1 << (self.shift - FRAME_SHIFT)) }
    }

    /// Words and bytes of user memory are atomics, because programs write to them at any time. A mix of sizes tears, as it
    /// does on every machine, and nothing is concluded from what is read.
    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= self.len());
        // SAFETY: in the page, which this reference keeps, and which the direct map has; aligned.
        unsafe { self.as_ptr().add(at).cast().as_ref() }
    }

    #[inline]
    fn byte(&self, at: usize) -> &AtomicU8 {
        debug_assert!(at < self.len());
        // SAFETY: in the page, which this reference keeps, and which the direct map has.
        unsafe { self.as_ptr().add(at).cast().as_ref() }
    }
}

impl<P: Platform> Drop for ObjectPage<'_, P> {
    fn drop(&mut self) {
        let (head, _) = self.machine.frames().head(self.pfn);
        self.machine.put_folio(head, 1, 0);
    }
}
