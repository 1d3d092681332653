//! Checks that `memcpy` and `memset` write exactly the bytes asked for, for every length and
//! alignment.

use super::lab::{Checked, Lab, expect};
use core::hint::black_box;

/// The most bytes that one step of any of them moves, and more.
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
            let written = target..target + black_box(bytes);
            let is_right = |to: &[u8], expected: &dyn Fn(usize) -> u8| {
                let expected = |at| if written.contains(&at) { expected(at - target) } else { AROUND };
                to.iter().enumerate().all(|(at, byte)| *byte == expected(at))
            };
            to[written.clone()].copy_from_slice(&from[source..source + bytes]);
            expect("the copied bytes, and the bytes around them", is_right(&to, &|at| (source + at) as u8), true)?;
            to[written.clone()].fill(black_box(source as u8));
            expect("the filled bytes, and the bytes around them", is_right(&to, &|_| source as u8), true)?;
        }
    }
    Ok(())
}
