//! Bitmaps of frames, in the order of their numbers: what is set in any order is read in ascending
//! order, with neighbours joined.

use super::FrameRange;

/// The number of bits in a word.
pub(super) const WORD_BITS: u32 = u64::BITS;
/// The most ranges in a word.
pub(super) const RANGES_PER_WORD: usize = 1 << 5;

/// Sets `count` bits from bit `at` on, and returns true; or changes nothing and returns false if
/// one of them is set already.
#[inline(always)]
pub(super) fn set_bits(bitmap: &mut [u64], at: u32, count: u32) -> bool {
    let (index, bit) = ((at / WORD_BITS) as usize, at % WORD_BITS);
    if count > WORD_BITS - bit {
        return set_many_bits(&mut bitmap[index..], bit, count);
    }
    let mask = !0 >> (WORD_BITS - count) << bit;
    let is_new = bitmap[index] & mask == 0;
    if is_new {
        bitmap[index] |= mask;
    }
    is_new
}

/// Does the work of [`set_bits`] for bits in several words, of which the first has bit `at`.
fn set_many_bits(bitmap: &mut [u64], at: u32, count: u32) -> bool {
    let (end, words) = (at + count, &mut bitmap[..(at + count).div_ceil(WORD_BITS) as usize]);
    let mask = |index: usize| {
        let before = index as u32 * WORD_BITS;
        let (from, to) = (at.saturating_sub(before), (end - before).min(WORD_BITS));
        !0 >> (WORD_BITS - (to - from)) << from
    };
    let is_new = words.iter().enumerate().all(|(index, word)| word & mask(index) == 0);
    if is_new {
        words.iter_mut().enumerate().for_each(|(index, word)| *word |= mask(index));
    }
    is_new
}

/// Writes the ranges of the set bits of `words`, in ascending order, to `list`, behind its first
/// `used` ranges. A bit is `1 << shift` frames, those of bit 0 of the first word from `first` on. A
/// range that begins where the last one of the list ends extends that one. Returns the number of
/// ranges in the list.
#[inline]
pub(super) fn push_ranges(words: &[u64], first: u32, shift: u32, list: &mut [FrameRange], mut used: usize) -> usize {
    for (index, word) in words.iter().enumerate() {
        let (mut bits, mut pfn) = (*word, first + ((index as u32 * WORD_BITS) << shift));
        while bits != 0 {
            let zeros = bits.trailing_zeros();
            let ones = (bits >> zeros).trailing_ones();
            let frames = ones << shift;
            pfn += zeros << shift;
            match list[..used].last_mut() {
                Some(last) if last.pfn + last.frames == pfn => last.frames += frames,
                _ => {
                    list[used] = FrameRange { pfn, frames };
                    used += 1;
                }
            }
            pfn += frames;
            // A shift by all 64 bits would not be a shift.
            bits = bits >> zeros >> (ones - 1) >> 1;
        }
    }
    used
}
