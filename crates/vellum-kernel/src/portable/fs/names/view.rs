//! From a path to an inode, across links and mounts.

use super::{Namespace, directory, same};
use crate::errno::Errno;
use crate::fs::inode::Inode;
use crate::fs::meta::{Access, FileCredentials, Kind};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The longest path, with its NUL.
pub const LONGEST_PATH: usize = 4096;
/// The longest name in a path.
const LONGEST_NAME: usize = 255;
/// How many links may be followed on one way.
const LINKS: u32 = 40;

/// Where a path leads.
pub struct Found {
    /// The directory of the last name.
    pub parent: Arc<dyn Inode>,
    /// The last name; empty if the path ends in `.`, `..` or `/` alone.
    pub name: Vec<u8>,
    /// What has that name, links followed if asked for; with what is mounted there.
    pub inode: Option<Arc<dyn Inode>>,
    /// Only a directory will do: a slash followed.
    pub must_be_directory: bool,
}

/// One caller's view: from where paths go, and with whose rights.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct View<'a> {
    pub names: &'a Namespace,
    pub root: &'a Arc<dyn Inode>,
    /// Where relative paths begin: the working directory, or that of a descriptor.
    pub current: &'a Arc<dyn Inode>,
    pub who: &'a FileCredentials,
}

impl View<'_> {
    /// Go along a path, up to its last name; if that is a link, follow it if `follow` says so.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES`, `ELOOP`, `ENAMETOOLONG`, `ENOMEM`. That the last name is
    /// missing is none.
    pub fn find(&self, path: &[u8], follow: bool) -> Result<Found, Errno> {
        if path.is_empty() {
            return Err(Errno::ENOENT);
        }
        if path.len() >= LONGEST_PATH {
            return Err(Errno::ENAMETOOLONG);
        }
        let mut at = if path[0] == b'/' { self.root.clone() } else { self.current.clone() };
        // What is still to go, the next name last.
        let mut ahead: Vec<Vec<u8>> = Vec::new();
        let mut slash = push(&mut ahead, path)?;
        let mut links = 0;
        loop {
            let Some(name) = ahead.pop() else {
                directory(&at)?;
                let inode = Some(at.clone());
                return Ok(Found { parent: at, name: Vec::new(), inode, must_be_directory: true });
            };
            let here = directory(&at)?;
            self.who.may(&at.meta(), Access::EXECUTE)?;
            if name.len() > LONGEST_NAME {
                return Err(Errno::ENAMETOOLONG);
            }
            if name == b"." {
                continue;
            }
            if name == b".." {
                if !same(&at, self.root) {
                    at = self.names.above(&at);
                }
                continue;
            }
            let last = ahead.is_empty();
            let inode = match here.find(&name) {
                Ok(inode) => self.names.mounted(inode),
                Err(Errno::ENOENT) if last => {
                    return Ok(Found { parent: at, name, inode: None, must_be_directory: slash });
                }
                Err(error) => return Err(error),
            };
            if inode.meta().kind == Kind::Link && (!last || follow || slash) {
                links += 1;
                if links > LINKS {
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
                slash |= push(&mut ahead, &target)? && last;
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

    /// What a path leads to.
    ///
    /// # Errors
    /// As [`View::find`]; `ENOENT`.
    pub fn get(&self, path: &[u8], follow: bool) -> Result<Arc<dyn Inode>, Errno> {
        self.find(path, follow)?.inode.ok_or(Errno::ENOENT)
    }
}

/// Put the names of a path on the stack of those ahead; whether it ends with a slash (or is nothing
/// else).
fn push(ahead: &mut Vec<Vec<u8>>, path: &[u8]) -> Result<bool, Errno> {
    for name in path.rsplit(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        let mut copy = Vec::new();
        copy.try_reserve_exact(name.len())?;
        copy.extend_from_slice(name);
        ahead.try_reserve(1)?;
        ahead.push(copy);
    }
    Ok(path.last() == Some(&b'/'))
}
