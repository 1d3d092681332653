//! Checks that `memcpy` copies exactly the bytes asked for, for every length and alignment.

use super::lab::{Checked, Lab, expect};
use core::hint::black_box;

/// Twice the most bytes that one step of any `memcpy` copies, and more.
const MOST: usize = 70;
/// Twice the number of alignments within a word.
const PLACES: usize = 16;
/// The byte around the destination, which must not change.
const AROUND: u8 = 0xa5;

pub fn story(_: &Lab) -> Checked {
    let from: [u8; MOST + PLACES] = core::array::from_fn(|at| at as u8);
    for (source, target) in (0..PLACES * PLACES).map(|pair| (pair / PLACES, pair % PLACES)) {
        for bytes in 0..=MOST {
            let mut to = [AROUND; 2 * PLACES + MOST];
            let end = target + black_box(bytes);
            to[target..end].copy_from_slice(&from[source..source + bytes]);
            let right = to.iter().enumerate().all(|(at, byte)| match at.checked_sub(target) {
                Some(into) if into < bytes => *byte == (source + into) as u8,
                _ => *byte == AROUND,
            });
            expect("the copied bytes, and the bytes around them", right, true)?;
        }
    }
    Ok(())
}
