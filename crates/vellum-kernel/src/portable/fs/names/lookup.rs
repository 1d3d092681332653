//! Path lookup (Linux: `namei`): from a path to an inode, across symbolic links and mounts.

use super::{Namespace, directory, same_inode};
use crate::errno::Errno;
use crate::fs::inode::Inode;
use crate::fs::meta::{Access, FileCredentials, Kind};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// `PATH_MAX`: the longest path, with its NUL.
pub const LONGEST_PATH: usize = 4096;
/// `NAME_MAX`.
const LONGEST_NAME: usize = 255;
/// The most symbolic links that one lookup follows.
const MAX_LINKS: u32 = 40;

/// The result of a path lookup.
pub struct Found {
    /// The directory in which the last component was looked up.
    pub parent: Arc<dyn Inode>,
    /// The last component; empty if the path ends in `.` or `..`, or is `/`.
    pub name: Vec<u8>,
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
    pub fn find(&self, path: &[u8], follow: bool) -> Result<Found, Errno> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() >= LONGEST_PATH {
            return Err(Errno::ENAMETOOLONG);
        }
        let mut at = if path[0] == b'/' { self.root.clone() } else { self.current.clone() };
        // A stack of the components that remain, the next one on top.
        let mut pending: Vec<Vec<u8>> = Vec::new();
        let mut slash = push(&mut pending, path)?;
        let mut links = 0;
        loop {
            let Some(name) = pending.pop() else {
                directory(&at)?;
                let inode = Some(at.clone());
                return Ok(Found { parent: at, name: Vec::new(), inode, must_be_directory: true });
            };
            let here = directory(&at)?;
            self.cred.may(&at.meta(), Access::EXECUTE)?;
            if name.len() > LONGEST_NAME {
                return Err(Errno::ENAMETOOLONG);
            }
            if name == b"." {
                continue;
            }
            if name == b".." {
                if !same_inode(&at, self.root) {
                    at = self.names.parent_of(&at);
                }
                continue;
            }
            let last = pending.is_empty();
            let inode = match here.find(&name) {
                Ok(inode) => self.names.follow_mounts(inode),
                Err(Errno::ENOENT) if last => {
                    return Ok(Found { parent: at, name, inode: None, must_be_directory: slash });
                }
                Err(error) => return Err(error),
            };
            if inode.kind() == Kind::Link && (!last || follow || slash) {
                links += 1;
                if links > MAX_LINKS {
                    return Err(Errno::ELOOP);
                }
                if let Some(jumped) = inode.jump() {
                    if last {
                        return Ok(Found { parent: at, name, inode: Some(jumped), must_be_directory: slash });
                    }
                    at = jumped;
                    continue;
                }
                let target = inode.target()?;
                if target.is_empty() {
                    return Err(Errno::ENOENT);
                }
                if target[0] == b'/' {
                    at = self.root.clone();
                }
                slash |= push(&mut pending, &target)? && last;
                continue;
            }
            if last {
                if slash && inode.directory().is_none() {
                    return Err(Errno::ENOTDIR);
                }
                return Ok(Found { parent: at, name, inode: Some(inode), must_be_directory: slash });
            }
            at = inode;
        }
    }

    /// Looks up the inode of a path that must exist.
    ///
    /// # Errors
    /// Those of [`View::find`]; `ENOENT`.
    pub fn get(&self, path: &[u8], follow: bool) -> Result<Arc<dyn Inode>, Errno> {
        self.find(path, follow)?.inode.ok_or(Errno::ENOENT)
    }
}

/// Pushes the components of a path onto the stack of a lookup. Returns true if the path ends with a
/// slash.
fn push(pending: &mut Vec<Vec<u8>>, path: &[u8]) -> Result<bool, Errno> {
    for name in path.rsplit(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        let mut copy = Vec::new();
        copy.try_reserve_exact(name.len())?;
        copy.extend_from_slice(name);
        pending.try_reserve(1)?;
        pending.push(copy);
    }
    Ok(path.last() == Some(&b'/'))
}
