//! Path lookup (Linux: `namei`): from a path to an inode, across symbolic links and mounts.

use super::{Namespace, directory, same_inode};
use crate::errno::Errno;
use crate::fs::bytes::copy_of;
use crate::fs::inode::Inode;
use crate::fs::meta::{Access, FileCredentials, Kind};
use alloc::borrow::Cow;
use alloc::sync::Arc;
use core::ops::Range;

/// `PATH_MAX`: the longest path, with its NUL.
pub const LONGEST_PATH: usize = 4096;
/// `NAME_MAX`.
const LONGEST_NAME: usize = 255;
/// The most symbolic links that one lookup follows.
const MAX_LINKS: u32 = 40;

/// The result of the lookup of a path, of which it has the last component.
pub struct Found<'p> {
    /// The directory in which the last component was looked up.
    pub parent: Arc<dyn Inode>,
    /// The last component; empty if the path ends in `.` or `..`, or is `/`.
    pub name: Cow<'p, [u8]>,
    /// The inode of that name, across mounts and, if requested, symbolic links; `None` if the
    /// directory has no such entry.
    pub inode: Option<Arc<dyn Inode>>,
    /// The path ends with a slash: only a directory may have this name.
    pub must_be_directory: bool,
}

/// One caller's view of the file system: its root and working directory, and its credentials.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct View<'a> {
    pub names: &'a Namespace,
    pub root: &'a Arc<dyn Inode>,
    /// The directory where relative paths begin: the working directory, or a descriptor's.
    pub current: &'a Arc<dyn Inode>,
    pub cred: &'a FileCredentials,
}

impl View<'_> {
    /// Looks up a path. `follow`: if the last component is a symbolic link, it is followed. A last
    /// component that does not exist is no error.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES`, `ELOOP`, `ENAMETOOLONG`, `ENOMEM`.
    pub fn find<'p>(&self, path: &'p [u8], follow: bool) -> Result<Found<'p>, Errno> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() >= LONGEST_PATH {
            return Err(Errno::ENAMETOOLONG);
        }
        let mut at = self.start(path).clone();
        // The path; after a symbolic link the link's target, and what follows it in the path.
        let mut text = Cow::Borrowed(path);
        let mut done = 0;
        let mut links = 0;
        loop {
            let Some(range) = component(&text, done) else {
                directory(&at)?;
                let inode = Some(at.clone());
                return Ok(Found { parent: at, name: Cow::Borrowed(&[]), inode, must_be_directory: true });
            };
            let name = &text[range.clone()];
            let rest = &text[range.end..];
            let here = directory(&at)?;
            self.cred.may(at.rights(), Access::EXECUTE)?;
            if name.len() > LONGEST_NAME {
                return Err(Errno::ENAMETOOLONG);
            }
            done = range.end;
            if name == b"." {
                continue;
            }
            if name == b".." {
                if !same_inode(&at, self.root) {
                    at = self.names.parent_of(&at);
                }
                continue;
            }
            let last = rest.iter().all(|byte| *byte == b'/');
            let slash = last && !rest.is_empty();
            let inode = match here.find(name) {
                Ok(inode) => Some(self.names.follow_mounts(inode)),
                Err(Errno::ENOENT) if last => None,
                Err(error) => return Err(error),
            };
            match inode {
                Some(inode) if (!last || follow || slash) && inode.kind() == Kind::Link => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::ELOOP);
                    }
                    if let Some(jumped) = inode.jump() {
                        if last {
                            let name = owned_by(&text, range)?;
                            return Ok(Found { parent: at, name, inode: Some(jumped), must_be_directory: slash });
                        }
                        at = jumped;
                        continue;
                    }
                    let mut target = inode.target()?;
                    if target.is_empty() {
                        return Err(Errno::ENOENT);
                    }
                    if target[0] == b'/' {
                        at = self.root.clone();
                    }
                    target.try_reserve_exact(rest.len())?;
                    target.extend_from_slice(rest);
                    (text, done) = (Cow::Owned(target), 0);
                }
                Some(inode) if !last => at = inode,
                inode => {
                    if slash && inode.as_ref().is_some_and(|inode| inode.directory().is_none()) {
                        return Err(Errno::ENOTDIR);
                    }
                    let name = owned_by(&text, range)?;
                    return Ok(Found { parent: at, name, inode, must_be_directory: slash });
                }
            }
        }
    }

    /// Returns the directory where the lookup of a path begins.
    fn start(&self, path: &[u8]) -> &Arc<dyn Inode> {
        if path.starts_with(b"/") { self.root } else { self.current }
    }

    /// Looks up the inode of a path that must exist.
    ///
    /// # Errors
    /// Those of [`View::find`]; `ENOENT`.
    pub fn get(&self, path: &[u8], follow: bool) -> Result<Arc<dyn Inode>, Errno> {
        self.find(path, follow)?.inode.ok_or(Errno::ENOENT)
    }
}

/// Returns the range of the first component of a path from a byte on; `None` if there are only
/// slashes.
fn component(text: &[u8], from: usize) -> Option<Range<usize>> {
    let start = from + text[from..].iter().position(|byte| *byte != b'/')?;
    Some(start..start + to_slash(&text[start..]))
}

/// Returns the number of bytes before the first slash, word by word: components are short, and
/// each lookup has several.
fn to_slash(text: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = 0x80 * ONES;
    let (words, rest) = text.as_chunks();
    for (nth, word) in words.iter().enumerate() {
        // A byte is zero if a slash was there. The borrow of a zero byte reaches only bytes above
        // it, so the lowest bit that is left is right.
        let word = u64::from_le_bytes(*word) ^ (ONES * b'/' as u64);
        let zero = word.wrapping_sub(ONES) & !word & HIGH;
        if zero != 0 {
            return 8 * nth + zero.trailing_zeros() as usize / 8;
        }
    }
    let length = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
    8 * words.len() + length
}

/// Returns a part of a text that may live as long as the path that it came from.
fn owned_by<'p>(text: &Cow<'p, [u8]>, range: Range<usize>) -> Result<Cow<'p, [u8]>, Errno> {
    Ok(match text {
        Cow::Borrowed(path) => Cow::Borrowed(&path[range]),
        Cow::Owned(text) => Cow::Owned(copy_of(&text[range])?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_ends_before_the_first_slash() {
        let text = *b"0\xaf\x2e23456789abcdefgh";
        for at in 0..=text.len() {
            for len in at..=text.len() {
                let mut text = text;
                text[at..len].fill(b'/');
                assert_eq!(to_slash(&text[..len]), at);
            }
        }
        assert_eq!((component(b"//usr//lib/", 0), component(b"//usr//lib/", 5)), (Some(2..5), Some(7..10)));
        assert_eq!(component(b"//usr//lib/", 10), None);
    }
}
