//! The names that a program gives its memory (`PR_SET_VMA_ANON_NAME`), by the numbers that its VMAs
//! have.
//!
//! Numbers are not used again, so a VMA never has another program's words. A name whose number no
//! VMA has is forgotten when the table would grow.

use crate::errno::Errno;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The longest name in bytes, with its NUL.
pub const LONGEST_NAME: usize = 80;
/// The number of names before unused ones are looked for the first time.
const BEFORE_CLEANUP: usize = 64;

/// Returns true if memory may have this name: it is printable, and without characters that have a
/// meaning in `/proc/PID/maps` or to a shell.
pub fn is_valid(name: &[u8]) -> bool {
    name.iter().all(|byte| (b' '..=b'~').contains(byte) && !b"\\`$[]".contains(byte))
}

/// The names of an address space.
#[derive(Default)]
pub struct VmaNames {
    names: BTreeMap<u32, Arc<[u8]>>,
    /// The last number given out.
    last: u32,
    /// The number of names at which unused ones are looked for.
    full: usize,
}

impl VmaNames {
    /// Returns the number of a name, a new one if it has none. `in_use` calls its argument with the
    /// numbers that VMAs have.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn number(&mut self, name: &[u8], in_use: impl FnOnce(&mut dyn FnMut(u32))) -> Result<u32, Errno> {
        if let Some((number, _)) = self.names.iter().find(|(_, known)| ***known == *name) {
            return Ok(*number);
        }
        if self.names.len() >= self.full.max(BEFORE_CLEANUP) {
            let mut used = BTreeMap::new();
            in_use(&mut |number| {
                if let Some(name) = self.names.get(&number) {
                    used.insert(number, name.clone());
                }
            });
            self.full = 2 * used.len();
            self.names = used;
        }
        let number = self.last.checked_add(1).ok_or(Errno::ENOMEM)?;
        self.names.insert(number, copy(name)?);
        self.last = number;
        Ok(number)
    }

    /// Returns a name.
    pub fn get(&self, number: u32) -> Option<Arc<[u8]>> {
        self.names.get(&number).cloned()
    }

    /// Returns the names for the copy of the space.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn copy(&self) -> Result<Self, Errno> {
        Ok(VmaNames { names: self.names.clone(), last: self.last, full: self.full })
    }
}

fn copy(name: &[u8]) -> Result<Arc<[u8]>, Errno> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(name.len())?;
    copy.extend_from_slice(name);
    Ok(copy.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn a_name_has_one_number_until_no_memory_has_it() {
        let mut names = VmaNames::default();
        let none = |_: &mut dyn FnMut(u32)| ();
        assert_eq!(
            [names.number(b"a", none), names.number(b"b", none), names.number(b"a", none)],
            [Ok(1), Ok(2), Ok(1)]
        );
        for i in 0..1000 {
            let number = names.number(format!("{i}").as_bytes(), |used| used(2)).unwrap();
            assert_eq!(names.get(number).unwrap()[..], *format!("{i}").as_bytes());
            assert!(names.names.len() <= BEFORE_CLEANUP);
        }
        assert_eq!((names.get(1), names.get(2).as_deref()), (None, Some(&b"b"[..])));
        assert_eq!(names.copy().unwrap().get(2).as_deref(), Some(&b"b"[..]));
    }

    #[test]
    fn names_are_printable_and_without_brackets() {
        assert!(is_valid(b"a name: it's ~fine") && is_valid(b""));
        for wrong in [&b"[a"[..], b"]", b"$x", b"`", b"a\\", b"\n", b"\x7f", "ä".as_bytes()] {
            assert!(!is_valid(wrong), "{wrong:?}");
        }
    }
}
