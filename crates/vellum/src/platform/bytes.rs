//! Copies bytes of pages from and to a host's own memory, and zeroes them.
//!
//! x86-64 has instructions for that (Intel optimization manual, "Enhanced REP MOVSB and STOSB
//! Operation"). Elsewhere the bytes are accessed word by word.

use core::sync::atomic::AtomicU8;

#[cfg(target_arch = "x86_64")]
use repeated as means;
#[cfg(not(target_arch = "x86_64"))]
use words as means;

/// Bytes of pages, which programs and other CPUs may write to at any time.
pub type PageBytes = [AtomicU8];

/// Copies bytes of a page, as many as `to` has room for, and returns their number.
pub fn load(from: &PageBytes, to: &mut [u8]) -> usize {
    let count = from.len().min(to.len());
    means::load(&from[..count], &mut to[..count]);
    count
}

/// Copies bytes to a page, as many as it has room for, and returns their number.
pub fn store(to: &PageBytes, from: &[u8]) -> usize {
    let count = from.len().min(to.len());
    means::store(&to[..count], &from[..count]);
    count
}

/// Zeroes bytes of a page.
pub fn clear(bytes: &PageBytes) {
    means::clear(bytes);
}

/// String instructions, which tolerate other CPUs' accesses.
#[cfg(target_arch = "x86_64")]
mod repeated {
    use super::PageBytes;
    use core::arch::asm;

    pub fn load(from: &PageBytes, to: &mut [u8]) {
        // SAFETY: both have so many bytes, and `to` is borrowed alone.
        unsafe { copy(from.as_ptr().cast(), to.as_mut_ptr(), to.len()) };
    }

    pub fn store(to: &PageBytes, from: &[u8]) {
        // SAFETY: both have so many bytes, and atomics may be written through shared borrows.
        unsafe { copy(from.as_ptr(), to.as_ptr().cast_mut().cast(), from.len()) };
    }

    /// Copies bytes.
    ///
    /// # Safety
    /// The ranges satisfy the contract of `ptr::copy_nonoverlapping`, except that other CPUs may
    /// access what is in a page.
    unsafe fn copy(from: *const u8, to: *mut u8, count: usize) {
        // SAFETY: this function's contract; the direction flag is clear, as the ABI demands.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") count => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags),
            );
        }
    }

    pub fn clear(bytes: &PageBytes) {
        // SAFETY: there are so many bytes, and atomics may be written through shared borrows; the
        // direction flag is clear, as the ABI demands.
        unsafe {
            asm!(
                "rep stosb",
                inout("rcx") bytes.len() => _,
                inout("rdi") bytes.as_ptr() => _,
                in("al") 0u8,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Atomic accesses of words, and of the bytes at both ends.
#[cfg(any(test, not(target_arch = "x86_64")))]
mod words {
    use super::PageBytes;
    use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

    pub fn load(from: &PageBytes, to: &mut [u8]) {
        let (head, words, tail) = parts(from);
        let (first, rest) = to.split_at_mut(head.len());
        let (middle, last) = rest.split_at_mut(8 * words.len());
        let bytes = |to: &mut [u8], from: &[AtomicU8]| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.load(Relaxed));
        };
        bytes(first, head);
        let pieces = middle.chunks_exact_mut(8).zip(words);
        pieces.for_each(|(to, word)| to.copy_from_slice(&word.load(Relaxed).to_ne_bytes()));
        bytes(last, tail);
    }

    pub fn store(to: &PageBytes, from: &[u8]) {
        let (head, words, tail) = parts(to);
        let (first, rest) = from.split_at(head.len());
        let (middle, last) = rest.split_at(8 * words.len());
        let bytes = |to: &[AtomicU8], from: &[u8]| {
            to.iter().zip(from).for_each(|(to, from)| to.store(*from, Relaxed));
        };
        bytes(head, first);
        let pieces = words.iter().zip(middle.as_chunks().0);
        pieces.for_each(|(word, from)| word.store(u64::from_ne_bytes(*from), Relaxed));
        bytes(tail, last);
    }

    pub fn clear(bytes: &PageBytes) {
        let (head, words, tail) = parts(bytes);
        head.iter().chain(tail).for_each(|byte| byte.store(0, Relaxed));
        words.iter().for_each(|word| word.store(0, Relaxed));
    }

    fn parts(bytes: &PageBytes) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
        // SAFETY: eight atomic bytes at an aligned address are an atomic word: both may change at
        // any time, and have no invalid values.
        unsafe { bytes.align_to() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;
    use std::vec::Vec;

    fn page(bytes: impl Iterator<Item = u8>) -> Vec<AtomicU8> {
        bytes.map(AtomicU8::new).collect()
    }

    /// Ways to load, to store and to clear.
    type Means = (fn(&PageBytes, &mut [u8]), fn(&PageBytes, &[u8]), fn(&PageBytes));

    #[test]
    fn bytes_are_copied_and_zeroed_at_any_offset() {
        let all: [Means; 2] = [(means::load, means::store, means::clear), (words::load, words::store, words::clear)];
        for (load, store, clear) in all {
            for (start, len) in [(0, 0), (0, 40), (3, 1), (3, 29), (7, 9), (8, 16)] {
                let bytes = page(1..=64);
                let mut copy = [0xff; 41];
                load(&bytes[start..start + len], &mut copy[..len]);
                let expected: Vec<u8> = (start + 1..=start + len).map(|byte| byte as u8).collect();
                assert_eq!((&copy[..len], copy[len]), (&expected[..], 0xff));
                let other = page([0; 64].into_iter());
                store(&other[start..start + len], &expected);
                clear(&bytes[start..start + len]);
                for at in 0..64 {
                    let own = at as u8 + 1;
                    let expected = if (start..start + len).contains(&at) { (0, own) } else { (own, 0) };
                    assert_eq!((bytes[at].load(Relaxed), other[at].load(Relaxed)), expected, "{at}");
                }
            }
        }
    }

    #[test]
    fn the_shorter_side_decides() {
        let bytes = page(1..=8);
        let mut copy = [0; 12];
        assert_eq!((load(&bytes, &mut copy), load(&bytes, &mut copy[..3])), (8, 3));
        assert_eq!((store(&bytes, &[9; 12]), store(&bytes, &[7; 2])), (8, 2));
        let now: Vec<u8> = bytes.iter().map(|byte| byte.load(Relaxed)).collect();
        assert_eq!(now, [7, 7, 9, 9, 9, 9, 9, 9]);
    }
}
