//! Mutates inputs of text parsers and of binary parsers.

use fastrand::Rng;

/// Bytes with a meaning in the parsed texts.
const ADDED: &[u8] = b"0123456789-+.eExKMGT\"'[]{},:=/ \n\0#\\\xff";
/// Values near limits of number types.
const NEAR: [u64; 10] = [0, 1, 0x7f, 0xfff, 0x1000, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_f000, 1 << 63, u64::MAX];

/// Returns `bytes` with one to four changes; some take a piece of `other`.
pub fn mutated(bytes: &[u8], other: &[u8], random: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..random.usize(1..5) {
        let at = random.usize(..=bytes.len());
        let end = (at + random.usize(..20)).min(bytes.len());
        match random.u8(..9) {
            0 if at < bytes.len() => bytes[at] = random.u8(..),
            1 => drop(bytes.drain(at..end)),
            2 => largest_number(&mut bytes, at),
            3 => word(&mut bytes, at, random),
            4 => {
                let piece = bytes[at..end].to_vec();
                let to = random.usize(..=bytes.len());
                bytes.splice(to..to, piece);
            }
            5 => {
                let from = random.usize(..=other.len());
                let piece = &other[from..(from + random.usize(..64)).min(other.len())];
                bytes.splice(at..end, piece.iter().copied());
            }
            6 if random.u8(..4) == 0 => bytes.truncate(at),
            7 if at < bytes.len() => bytes[at] ^= 1 << random.u8(..8),
            _ => bytes.insert(at, ADDED[random.usize(..ADDED.len())]),
        }
    }
    bytes
}

/// Replaces the next decimal number by the largest `i64`.
fn largest_number(bytes: &mut Vec<u8>, at: usize) {
    let digit = |byte: &u8| byte.is_ascii_digit();
    let start = at + bytes[at..].iter().position(digit).unwrap_or(0);
    let len = bytes[start..].iter().take_while(|byte| digit(byte)).count();
    bytes.splice(start..start + len, *b"9223372036854775807");
}

/// Writes a word near a limit, of two, four or eight bytes of either order, at a multiple of its
/// size.
fn word(bytes: &mut [u8], at: usize, random: &mut Rng) {
    let size = [2, 4, 8][random.usize(..3)];
    let word = NEAR[random.usize(..NEAR.len())].wrapping_sub(random.u64(..2));
    let (little, big) = (word.to_le_bytes(), word.to_be_bytes());
    let word = if random.bool() { &little[..size] } else { &big[8 - size..] };
    if let Some(place) = bytes.get_mut(at / size * size..).and_then(|rest| rest.get_mut(..size)) {
        place.copy_from_slice(word);
    }
}
