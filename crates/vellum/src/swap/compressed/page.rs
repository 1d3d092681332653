//! The contents of a page as words, and detection of same-filled pages.

use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::Frames;
use crate::platform::Platform;

/// The number of words in a page.
const WORDS: usize = FRAME_SIZE as usize / 8;
/// The number of words that one iteration of a loop compares or fills.
const CHUNK: usize = 16;

/// The contents of a page.
#[repr(C, align(4096))]
pub(super) struct Page([u64; WORDS]);

impl Page {
    /// Borrows the contents of a frame.
    ///
    /// # Safety
    /// The frame is the machine's, and nothing writes to it for `'a`.
    #[inline]
    pub(super) unsafe fn of<'a, P: Platform>(frames: &Frames<'_, P>, pfn: Pfn) -> &'a Page {
        // SAFETY: the direct map contains the machine's frames, aligned to their size; nothing
        // writes to the frame for `'a` (this contract).
        unsafe { frames.at(pfn.addr()).cast().as_ref() }
    }

    /// Borrows the contents of a frame for writing.
    ///
    /// # Safety
    /// The frame is the machine's, and the caller has exclusive access to it for `'a`.
    #[inline]
    pub(super) unsafe fn of_mut<'a, P: Platform>(frames: &Frames<'_, P>, pfn: Pfn) -> &'a mut Page {
        // SAFETY: the direct map contains the machine's frames, aligned to their size, and the
        // caller has exclusive access to the frame for `'a` (this contract).
        unsafe { frames.at(pfn.addr()).cast().as_mut() }
    }

    /// Returns the word that fills the page, if it is same-filled. Stops after the first chunk with
    /// another word.
    #[inline]
    pub(super) fn same_filled(&self) -> Option<u64> {
        let word = self.0[0];
        // x86 compares with memory and branches in one operation. AArch64 loads two words in one
        // operation and chains two comparisons, but compilers emit these only if the code compares
        // the pair as one number.
        let number = |[high, low]: [u64; 2]| u128::from(high) << 64 | u128::from(low);
        let same = |chunk: &[u64; CHUNK]| match cfg!(target_arch = "x86_64") {
            true => chunk.iter().all(|other| *other == word),
            false => chunk.as_chunks().0.iter().all(|pair| number(*pair) == number([word; 2])),
        };
        self.0.as_chunks().0.iter().all(same).then_some(word)
    }

    /// Fills the page with `word`.
    #[inline]
    pub(super) fn fill(&mut self, word: u64) {
        self.0.as_chunks_mut().0.iter_mut().for_each(|chunk| *chunk = [word; CHUNK]);
    }

    /// Returns the contents as bytes.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8; FRAME_SIZE as usize] {
        // SAFETY: both types have the same size, and words are valid bytes.
        unsafe { &*(&raw const self.0).cast() }
    }

    /// Returns the contents as bytes, for writing.
    #[inline]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8; FRAME_SIZE as usize] {
        // SAFETY: both types have the same size, and any bytes are valid words.
        unsafe { &mut *(&raw mut self.0).cast() }
    }
}
