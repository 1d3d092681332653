//! What readers of files are tested with.

use fastrand::Rng;

/// A text, with some bytes changed, gone or added.
pub fn mutated(text: &[u8], random: &mut Rng) -> Vec<u8> {
    const ADDED: &[u8] = b"0123456789-.eE\"'[]{},:= \n#\\\xff";
    let mut bytes = text.to_vec();
    for _ in 0..random.usize(1..4) {
        let at = random.usize(..=bytes.len());
        match random.u8(..4) {
            0 if at < bytes.len() => bytes[at] = random.u8(..),
            1 => drop(bytes.drain(at..(at + random.usize(..20)).min(bytes.len()))),
            // A number that is as large as can be.
            2 => {
                let digit = |byte: &u8| byte.is_ascii_digit();
                let start = at + bytes[at..].iter().position(digit).unwrap_or(0);
                let len = bytes[start..].iter().take_while(|byte| digit(byte)).count();
                bytes.splice(start..start + len, *b"9223372036854775807");
            }
            _ => bytes.insert(at, *random.choice(ADDED).unwrap_or(&b'0')),
        }
    }
    bytes
}
