//! Pages as words: whether one word fills all of a page.

use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::Frames;
use crate::platform::Platform;

/// Words of a page.
const WORDS: usize = FRAME_SIZE as usize / 8;
/// Words that a turn of a loop deals with.
const CHUNK: usize = 16;

/// A page's contents.
#[repr(C, align(4096))]
pub(super) struct Page([u64; WORDS]);

impl Page {
    /// A frame's.
    ///
    /// # Safety
    /// The frame is the machine's, and nobody writes to it for `'a`.
    #[inline]
    pub(super) unsafe fn of<'a, P: Platform>(frames: &Frames<'_, P>, pfn: Pfn) -> &'a Page {
        // SAFETY: the direct map covers the machine's frames, aligned to their size; nobody writes, by contract.
        unsafe { frames.at(pfn.addr()).cast().as_ref() }
    }

    /// A frame's, to write to.
    ///
    /// # Safety
    /// The frame is the machine's, and the caller's alone for `'a`.
    #[inline]
    pub(super) unsafe fn of_mut<'a, P: Platform>(frames: &Frames<'_, P>, pfn: Pfn) -> &'a mut Page {
        // SAFETY: as above, and nobody else reads.
        unsafe { frames.at(pfn.addr()).cast().as_mut() }
    }

    /// The word that fills it, if one does. Reads no further than to the first stretch with another.
    #[inline]
    pub(super) fn same_filled(&self) -> Option<u64> {
        let word = self.0[0];
        // x86 compares with memory and jumps in one operation. AArch64 loads two words in one, and chains two comparisons, which
        // compilers make of a pair only if it is one number.
        let number = |[high, low]: [u64; 2]| u128::from(high) << 64 | u128::from(low);
        let same = |chunk: &[u64; CHUNK]| match cfg!(target_arch = "x86_64") {
            true => chunk.iter().all(|other| *other == word),
            false => chunk.as_chunks().0.iter().all(|pair| number(*pair) == number([word; 2])),
        };
        self.0.as_chunks().0.iter().all(same).then_some(word)
    }

    #[inline]
    pub(super) fn fill(&mut self, word: u64) {
        self.0.as_chunks_mut().0.iter_mut().for_each(|chunk| *chunk = [word; CHUNK]);
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8; FRAME_SIZE as usize] {
        // SAFETY: words are bytes, of the same number.
        unsafe { &*(&raw const self.0).cast() }
    }

    #[inline]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8; FRAME_SIZE as usize] {
        // SAFETY: as above; and any bytes are words.
        unsafe { &mut *(&raw mut self.0).cast() }
    }
}
