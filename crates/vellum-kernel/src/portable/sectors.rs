//! Transfers of whole sectors to and from buffers that need not be contiguous in physical memory.

use core::ops::Range;

/// The unit of a disk's transfers, in bytes.
pub const SECTOR: usize = 512;

/// A part of a buffer: its offset and length, in whole sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Contiguous sectors.
    Whole(Range<usize>),
    /// A sector that is not contiguous itself: its bytes go through another buffer.
    InPieces(Range<usize>),
}

/// Returns the parts of a buffer of `len` bytes, a multiple of a sector. `contiguous` returns the
/// number of bytes from an offset on that are contiguous, at least 1.
pub fn parts(len: usize, contiguous: impl Fn(usize) -> usize) -> impl Iterator<Item = Part> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let start = at;
        if start + SECTOR > len {
            return None;
        }
        let whole = contiguous(start).min(len - start) / SECTOR * SECTOR;
        at += whole.max(SECTOR);
        Some(if whole > 0 { Part::Whole(start..at) } else { Part::InPieces(start..at) })
    })
}

#[cfg(test)]
mod tests {
    use super::Part::{InPieces, Whole};
    use super::*;
    use std::vec::Vec;

    /// Returns the parts of a buffer whose first byte is the `first`th of a page, with no two
    /// contiguous pages.
    fn of_pages(first: usize, len: usize) -> Vec<Part> {
        parts(len, |at| 4096 - (first + at) % 4096).collect()
    }

    /// A sector that lies in two pages is a part of its own.
    #[test]
    fn parts_are_whole_sectors() {
        assert_eq!(of_pages(0, 8192), [Whole(0..4096), Whole(4096..8192)]);
        assert_eq!(of_pages(16, 4096), [Whole(0..3584), InPieces(3584..4096)]);
        assert_eq!(of_pages(4000, 1536), [InPieces(0..512), Whole(512..1536)]);
        assert_eq!(parts(1536, |_| usize::MAX).collect::<Vec<_>>(), [Whole(0..1536)]);
    }
}
