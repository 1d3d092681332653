//! tmpfs: the file system in memory. Times and pages come from the kernel ([`Host`]).
//!
//! # Lock order
//! 1. `Tmpfs::renaming`. A thread that locks two directories holds `renaming`, so it may lock the
//!    two in either order (Linux: `s_vfs_rename_mutex`).
//! 2. A directory's entries.
//! 3. An inode's attributes.
//!
//! A thread takes the lock of a regular file's `seals` before that of its attributes, and before
//! those of its pages.
//!
//! | file | subject |
//! |---|---|
//! | `node` | inodes: what all kinds have in common |
//! | `entries` | a directory's entries, by name and by position |
//! | `directory` | creating, linking, removing, renaming |
//! | `regular` | regular files: reads, writes, holes, seals |

mod directory;
mod entries;
mod node;
mod regular;
#[cfg(test)]
mod tests;

use super::inode::NewInode;
use super::meta::{Device, Kind, Time};
use super::pages::Pages;
use crate::errno::Errno;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
pub use node::Node;
use spin::Mutex;

/// The services of the kernel that a tmpfs uses.
pub trait Host: Send + Sync {
    /// Returns the time of day.
    fn now(&self) -> Time;

    /// Returns pages for a new regular file: no pages, of size 0.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn pages(&self) -> Result<Arc<dyn Pages>, Errno>;

    /// Returns the capacity.
    fn space(&self) -> Capacity;
}

/// A tmpfs's capacity, in pages of 4096 bytes.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Capacity {
    pub total: u64,
    pub free: u64,
}

/// A tmpfs instance.
pub struct Tmpfs {
    device: Device,
    host: Arc<dyn Host>,
    next_inode: AtomicU64,
    renaming: Mutex<()>,
}

impl Tmpfs {
    /// Creates a tmpfs, and returns its empty root directory of mode `mode`. `minor`: the minor
    /// number of its device, which no other file system has.
    pub fn root(host: Arc<dyn Host>, minor: u32, mode: u32) -> Arc<Node> {
        let fs =
            Tmpfs { device: Device { major: 0, minor }, host, next_inode: AtomicU64::new(1), renaming: Mutex::new(()) };
        let new = NewInode { kind: Kind::Directory, mode, uid: 0, gid: 0, special: Device::default(), target: &[] };
        node::directory(&Arc::new(fs), &new, None)
    }

    /// Returns an unused inode number.
    fn new_number(&self) -> u64 {
        self.next_inode.fetch_add(1, Relaxed)
    }
}

/// Implements `memfd_create`: creates a regular file without a name in the file system of `beside`.
/// `sealable`: seals may be added (`MFD_ALLOW_SEALING`).
///
/// # Errors
/// `ENOMEM`.
pub fn memfd(beside: &Node, uid: u32, gid: u32, sealable: bool) -> Result<Arc<Node>, Errno> {
    let new = NewInode { kind: Kind::Regular, mode: 0o777, uid, gid, special: Device::default(), target: &[] };
    let node = node::make(&beside.fs, &new, None)?;
    node.clear_links(false);
    if sealable {
        node.allow_seals();
    }
    Ok(node)
}
