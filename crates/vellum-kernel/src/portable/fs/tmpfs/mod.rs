//! The file system in memory.
//!
//! # Locks
//! `renaming` of the file system comes first: who holds two directories' locks holds it, so their
//! order does not matter. Then a directory's entries, then an inode's attributes. A regular file's
//! `writing` is outside of attributes, and of the locks of its contents. Times and contents come
//! from the kernel ([`Host`]).
//!
//! | file | story |
//! |---|---|
//! | `node` | inodes and what is true of all of them |
//! | `entries` | the entries of a directory, by name and by position |
//! | `directory` | making, linking, removing, renaming |
//! | `regular` | reads, writes, holes, seals |

mod directory;
mod entries;
mod node;
mod regular;
#[cfg(test)]
mod tests;

use super::inode::New;
use super::meta::{Device, Kind, Time};
use super::pages::Pages;
use crate::errno::Errno;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
pub use node::Node;
use spin::Mutex;

/// What a file system in memory needs of the kernel.
pub trait Host: Send + Sync {
    /// The time of day.
    fn now(&self) -> Time;

    /// Contents for a new regular file, empty.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn pages(&self) -> Result<Arc<dyn Pages>, Errno>;

    /// How many pages of 4096 bytes there may be, and how many of these are free.
    fn space(&self) -> (u64, u64);
}

/// A file system in memory.
pub struct Tmpfs {
    device: Device,
    host: Arc<dyn Host>,
    next: AtomicU64,
    renaming: Mutex<()>,
}

impl Tmpfs {
    /// A new one with an empty root of mode `mode`, which is returned; `minor` is the minor number
    /// of its device, which tells it from others.
    pub fn root(host: Arc<dyn Host>, minor: u32, mode: u32) -> Arc<Node> {
        let fs = Tmpfs { device: Device { major: 0, minor }, host, next: AtomicU64::new(1), renaming: Mutex::new(()) };
        let new = New { kind: Kind::Directory, mode, uid: 0, gid: 0, special: Device::default(), target: &[] };
        // A directory has no contents that could be refused.
        node::directory(&Arc::new(fs), &new, None)
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Relaxed)
    }
}

/// `memfd_create`: a file of the file system that `beside` is of, without a name; with `sealable`,
/// seals may be added.
///
/// # Errors
/// `ENOMEM`.
pub fn memfd(beside: &Node, uid: u32, gid: u32, sealable: bool) -> Result<Arc<Node>, Errno> {
    let new = New { kind: Kind::Regular, mode: 0o777, uid, gid, special: Device::default(), target: &[] };
    let node = node::make(&beside.fs, &new, None)?;
    node.unnamed(false);
    if sealable {
        node.allow_seals();
    }
    Ok(node)
}
