//! Names: what all paths have in common, which is mounts and devices; and one caller's [`View`] of
//! them.
//!
//! | file | story |
//! |---|---|
//! | `view` | from a path to an inode, across links and mounts |
//! | `back` | from an inode to a path |
//! | `open` | `openat` |
//! | `change` | making, linking, removing, renaming |
//! | `attributes` | mode, owner, times, size |

mod attributes;
mod back;
mod change;
mod open;
mod view;

pub use back::Mapped;
pub use view::{Found, LONGEST_PATH, View};

use super::inode::{Directory, File, Inode};
use super::meta::Device;
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
    /// What it was said to be mounted from.
    pub source: Arc<[u8]>,
    /// Whether nothing may be changed through it.
    pub read_only: bool,
}

fn same(one: &Arc<dyn Inode>, other: &Arc<dyn Inode>) -> bool {
    one.meta().identity() == other.meta().identity()
}

fn directory(inode: &Arc<dyn Inode>) -> Result<&dyn Directory, Errno> {
    inode.directory().ok_or(Errno::ENOTDIR)
}

impl Namespace {
    /// Put a file system on a directory, or over the one that is there.
    ///
    /// # Errors
    /// `ENOTDIR`; `EBUSY`: the directory has another one already, or leads back to itself;
    /// `ENOMEM`.
    pub fn mount(&self, mount: Mount) -> Result<(), Errno> {
        directory(&mount.on)?;
        directory(&mount.root)?;
        // Who comes to the directory goes on to the root, and on from there, but never back.
        if same(&self.mounted(mount.root.clone()), &mount.on) {
            return Err(Errno::EBUSY);
        }
        let mut mounts = self.mounts.lock();
        if mounts.iter().any(|other| same(&other.on, &mount.on)) {
            return Err(Errno::EBUSY);
        }
        mounts.try_reserve(1)?;
        mounts.push(mount);
        Ok(())
    }

    /// Take away the file system with this root that was mounted last.
    ///
    /// # Errors
    /// `EINVAL`: none has.
    pub fn unmount(&self, root: &Arc<dyn Inode>) -> Result<Mount, Errno> {
        let mut mounts = self.mounts.lock();
        let at = mounts.iter().rposition(|mount| same(&mount.root, root)).ok_or(Errno::EINVAL)?;
        Ok(mounts.remove(at))
    }

    /// Let the file system with this root be changed, or not.
    ///
    /// # Errors
    /// `EINVAL`: none is mounted.
    pub fn set_read_only(&self, root: &Arc<dyn Inode>, read_only: bool) -> Result<(), Errno> {
        let mut mounts = self.mounts.lock();
        mounts.iter_mut().rfind(|mount| same(&mount.root, root)).ok_or(Errno::EINVAL)?.read_only = read_only;
        Ok(())
    }

    /// Whether an inode of this device may be changed: unless the file system is mounted so that it
    /// may not, wherever.
    ///
    /// # Errors
    /// `EROFS`.
    pub fn may_change(&self, device: Device) -> Result<(), Errno> {
        let refuses = |mount: &Mount| mount.read_only && mount.root.meta().device == device;
        if self.mounts.lock().iter().any(refuses) { Err(Errno::EROFS) } else { Ok(()) }
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
}
