//! A reference to pages, through which the host reads and writes them.
//!
//! The reference keeps the page's memory from being freed. The page may still be removed from its
//! object, and programs may write to it at any time.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use crate::addr::{FRAME_SHIFT, Pfn};
use crate::frame::TooManyReferences;
use crate::machine::Machine;
use crate::platform::Platform;

/// A reference to a page of an object or of a space, or to consecutive pages in consecutive frames
/// of one folio (Linux: a folio reference, or `pin_user_pages`). No lock is held, so its owner may
/// sleep and take page faults.
pub struct ObjectPage<'m, P: Platform> {
    machine: &'m Machine<'m, P>,
    /// The first frame.
    pfn: Pfn,
    /// The number of frames.
    count: u32,
}

impl<'m, P: Platform> ObjectPage<'m, P> {
    /// Takes a reference to the folio that has `count` frames from `pfn` on.
    ///
    /// # Errors
    /// Fails with [`TooManyReferences`] if the folio has the largest number of references.
    ///
    /// # Safety
    /// The frames are those of pages that are in the index of an object whose lock is held, or
    /// mapped by a page table whose lock is held.
    pub(crate) unsafe fn get(machine: &'m Machine<'m, P>, pfn: Pfn, count: u32) -> Result<Self, TooManyReferences> {
        let frames = machine.frames();
        let (head, frame) = frames.head(pfn);
        frames.get_counts_checked(head, frame, 1, 0)?;
        Ok(ObjectPage { machine, pfn, count })
    }

    /// Returns the first frame.
    pub fn pfn(&self) -> Pfn {
        self.pfn
    }

    /// Returns the size of the pages in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        (self.count as usize) << FRAME_SHIFT
    }

    /// Returns the address of the first byte in the direct map, for a host that copies
    /// between it and user memory. It is valid for reads and writes of [`ObjectPage::len`] bytes
    /// while this reference exists. Programs and other CPUs may write there at any time. After it
    /// wrote there, the host calls [`ObjectPage::written`].
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.machine.frames().at(self.pfn.addr())
    }

    /// Returns the bytes, for a host that copies between them and user memory. Programs and other
    /// CPUs may write to them at any time. After it wrote to them, the host calls
    /// [`ObjectPage::written`].
    pub fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: the bytes are in the pages, which this reference keeps and the direct map
        // contains, and are accessed as atomics.
        unsafe { core::slice::from_raw_parts(self.as_ptr().as_ptr().cast(), self.len()) }
    }

    /// Notes that the host has written to the pages, so that programs may execute what it wrote
    /// (Linux: `flush_dcache_folio`). Makes no page dirty ([`Object::mark_dirty`]).
    ///
    /// [`Object::mark_dirty`]: crate::page_cache::Object::mark_dirty
    #[inline]
    pub fn written(&self) {
        self.machine.frames().head(self.pfn).1.note_icache_stale();
    }

    /// Copies from the pages at offset `from` to `to`, up to the end of the pages. Returns the
    /// number of bytes copied.
    pub fn read(&self, from: usize, to: &mut [u8]) -> usize {
        let count = to.len().min(self.len().saturating_sub(from));
        let mut at = 0;
        while at < count {
            let chunk = to[at..count].first_chunk_mut::<8>().filter(|_| (from + at).is_multiple_of(8));
            match chunk {
                Some(chunk) => {
                    *chunk = self.word(from + at).load(Relaxed).to_ne_bytes();
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

    /// Copies `from` to the pages at offset `to`, up to the end of the pages, and does what
    /// [`ObjectPage::written`] does. Returns the number of bytes copied.
    pub fn write(&self, to: usize, from: &[u8]) -> usize {
        let count = from.len().min(self.len().saturating_sub(to));
        let mut at = 0;
        while at < count {
            let chunk = from[at..count].first_chunk::<8>().filter(|_| (to + at).is_multiple_of(8));
            match chunk {
                Some(chunk) => {
                    self.word(to + at).store(u64::from_ne_bytes(*chunk), Relaxed);
                    at += 8;
                }
                None => {
                    self.byte(to + at).store(from[at], Relaxed);
                    at += 1;
                }
            }
        }
        self.written();
        count
    }

    /// Zeroes `count` bytes at offset `from`, up to the end of the pages, and does what
    /// [`ObjectPage::written`] does.
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
        self.written();
    }

    /// Copies the whole page to another one.
    ///
    /// # Safety
    /// `to` has as many frames, which belong to the caller alone.
    pub(crate) unsafe fn copy_to(&self, to: Pfn) {
        // SAFETY: this reference keeps the page, and `to` belongs to the caller alone (this
        // contract).
        unsafe { self.machine.frames().copy(self.pfn, to, self.count) }
    }

    /// Returns the aligned word at an offset. User memory is accessed as atomics, because programs
    /// write to it at any time. Accesses of mixed sizes may tear, as on every machine; the engine
    /// draws no conclusion from the contents.
    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= self.len());
        // SAFETY: the word is aligned and inside the pages, which this reference keeps and the
        // direct map contains.
        unsafe { self.as_ptr().add(at).cast().as_ref() }
    }

    /// Returns the byte at an offset.
    #[inline]
    fn byte(&self, at: usize) -> &AtomicU8 {
        debug_assert!(at < self.len());
        // SAFETY: the byte is inside the pages, which this reference keeps and the direct map
        // contains.
        unsafe { self.as_ptr().add(at).cast().as_ref() }
    }
}

impl<P: Platform> Drop for ObjectPage<'_, P> {
    /// Drops the reference. Frees the folio if that was the folio's last reference.
    fn drop(&mut self) {
        let (head, _) = self.machine.frames().head(self.pfn);
        self.machine.put_folio(head, 1, 0);
    }
}
