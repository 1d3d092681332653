//! Names: what all paths have in common, which is mounts and devices; and one caller's [`View`] of them.
//!
//! | file | story |
//! |---|---|
//! | `view` | from a path to an inode, across links and mounts |
//! | `open` | `openat` |
//! | `change` | making, linking, removing, renaming |
//! | `attributes` | mode, owner, times, size |

mod attributes;
mod change;
mod open;
mod view;

pub use view::{Found, LONGEST_PATH, View};

use super::inode::{Directory, FIRST, File, Inode};
use super::meta::{Device, Kind};
use super::open::Open;
use crate::errno::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use spin::Mutex;

/// What all paths have in common: mounts, and devices.
#[derive(Default)]
pub struct Namespace {
    mounts: Mutex<Vec<Mount>>,
    devices: Mutex<Vec<(Device, Arc<dyn File>)>>,
}

/// A file system on a directory of another.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Mount {
    pub on: Arc<dyn Inode>,
    pub root: Arc<dyn Inode>,
    /// As `/proc/mounts` names them.
    pub kind: &'static str,
}

fn same(one: &Arc<dyn Inode>, other: &Arc<dyn Inode>) -> bool {
    one.meta().identity() == other.meta().identity()
}

fn directory(inode: &Arc<dyn Inode>) -> Result<&dyn Directory, Errno> {
    inode.directory().ok_or(Errno::ENOTDIR)
}

impl Namespace {
    /// Put a file system on a directory.
    ///
    /// # Errors
    /// `ENOTDIR`, `EBUSY`: there is one; `ENOMEM`.
    pub fn mount(&self, on: Arc<dyn Inode>, root: Arc<dyn Inode>, kind: &'static str) -> Result<(), Errno> {
        directory(&on)?;
        directory(&root)?;
        let mut mounts = self.mounts.lock();
        if mounts.iter().any(|mount| same(&mount.on, &on)) {
            return Err(Errno::EBUSY);
        }
        mounts.try_reserve(1)?;
        mounts.push(Mount { on, root, kind });
        Ok(())
    }

    /// Have a device file of this number mean this.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add_device(&self, device: Device, file: Arc<dyn File>) -> Result<(), Errno> {
        let mut devices = self.devices.lock();
        devices.try_reserve(1)?;
        devices.push((device, file));
        Ok(())
    }

    /// All mounts, the oldest first.
    pub fn mounts(&self) -> Vec<Mount> {
        self.mounts.lock().clone()
    }

    /// What is mounted there, or else the directory itself.
    fn mounted(&self, mut inode: Arc<dyn Inode>) -> Arc<dyn Inode> {
        loop {
            let mounts = self.mounts.lock();
            if mounts.is_empty() {
                return inode;
            }
            let identity = inode.meta().identity();
            match mounts.iter().find(|mount| mount.on.meta().identity() == identity) {
                Some(mount) => inode = mount.root.clone(),
                None => return inode,
            }
        }
    }

    /// The directory above, across mounts; itself at the very top.
    fn above(&self, inode: &Arc<dyn Inode>) -> Arc<dyn Inode> {
        let mut at = inode.clone();
        loop {
            if let Some(parent) = at.directory().and_then(|directory| directory.parent()) {
                return self.mounted(parent);
            }
            let under = self.mounts.lock().iter().find(|mount| same(&mount.root, &at)).map(|mount| mount.on.clone());
            match under {
                Some(on) => at = on,
                None => return at,
            }
        }
    }

    /// The absolute path of a directory, as seen from `root`; none if it is not below it (any more).
    pub fn path_of(&self, inode: &Arc<dyn Inode>, root: &Arc<dyn Inode>) -> Option<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = inode.clone();
        while !same(&at, root) {
            let above = self.above(&at);
            if same(&above, &at) {
                return None;
            }
            // The name is that of the directory underneath, if it is a mount's root.
            let mounts = self.mounts.lock();
            let mut named = &at;
            while let Some(mount) = mounts.iter().find(|mount| same(&mount.root, named)) {
                named = &mount.on;
            }
            let number = named.meta().inode;
            drop(mounts);
            let mut name = None;
            let listed = above.directory()?.list(FIRST, &mut |entry| {
                if entry.inode == number && entry.kind == Kind::Directory {
                    name = Some(entry.name.to_vec());
                }
                name.is_none()
            });
            listed.ok()?;
            names.push(name?);
            at = above;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Some(path)
    }

    /// The path of an open file, as `/proc` shows it: with ` (deleted)` if the name means something else by now.
    pub fn path_of_open(&self, open: &Open, root: &Arc<dyn Inode>) -> Option<Vec<u8>> {
        let Some(name) = open.name() else {
            return if open.inode().directory().is_some() { self.path_of(open.inode(), root) } else { None };
        };
        let mut path = self.path_of(&name.directory, root).unwrap_or_default();
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(&name.name);
        let there = name.directory.directory().and_then(|directory| directory.find(&name.name).ok());
        if !there.is_some_and(|there| same(&there, open.inode())) {
            path.extend_from_slice(b" (deleted)");
        }
        Some(path)
    }
}
