//! `memcpy` copies so many bytes from anywhere to anywhere, and no others.

use super::lab::{Checked, Lab, expect};
use core::hint::black_box;

/// More bytes than a step of any `memcpy` takes at once, twice.
const MOST: usize = 70;
/// Places to which a word may be aligned, twice.
const PLACES: usize = 16;
/// The byte that stands around the copy.
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
            expect("bytes that were copied, and those around them", right, true)?;
        }
    }
    Ok(())
}
