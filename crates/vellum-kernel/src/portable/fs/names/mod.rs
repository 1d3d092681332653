//! Path names: the mount namespace, path lookup, and the system calls that take paths.
//!
//! | file | subject |
//! |---|---|
//! | `lookup` | path lookup, across symbolic links and mounts; one caller's [`View`] |
//! | `d_path` | from an inode back to its path: `getcwd`, `/proc/PID/maps` |
//! | `open` | `openat` |
//! | `link` | `mkdir`, `mknod`, `symlink`, `link`, `unlink`, `rmdir`, `rename` |
//! | `attributes` | `chmod`, `chown`, `utimensat`, and the checks of `truncate` |

mod attributes;
mod d_path;
mod link;
mod lookup;
mod open;

pub use d_path::MappedFile;
pub use lookup::{Found, LONGEST_PATH, View};

use super::inode::{Directory, File, Inode};
use super::meta::{Access, Device, Kind};
use crate::errno::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use spin::Mutex;

/// The rights to a directory that adding and removing its entries requires: write and search.
const ENTRY_CHANGE: Access = Access(3);

/// A mount namespace, with the drivers of device files.
#[derive(Default)]
pub struct Namespace {
    mounts: Mutex<Vec<Mounted>>,
    /// A bit for the inode number of each mount point: most inodes that a lookup finds are none.
    mounted_on: AtomicU64,
    devices: Mutex<Vec<((Kind, Device), Driver)>>,
}

/// Opens the device files of one number with the flags of `open`.
pub type Driver = Arc<dyn Fn(u32) -> Result<Arc<dyn File>, Errno> + Send + Sync>;

/// A mounted file system.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Mount {
    /// The mount point.
    pub on: Arc<dyn Inode>,
    pub root: Arc<dyn Inode>,
    /// The file system type, as in `/proc/mounts`.
    pub kind: &'static str,
    /// The source argument of `mount`.
    pub source: Arc<[u8]>,
    pub read_only: bool,
}

/// A mount with the identities of its inodes, which every lookup compares.
struct Mounted {
    mount: Mount,
    on: (u64, u64),
    root: (u64, u64),
}

/// Returns the bit of an inode in [`Namespace::mounted_on`].
fn bit((_, number): (u64, u64)) -> u64 {
    1 << (number % 64)
}

/// Returns the bits of all mount points.
fn bits(mounts: &[Mounted]) -> u64 {
    mounts.iter().fold(0, |bits, mounted| bits | bit(mounted.on))
}

/// Returns true if both are the same inode: of the same device, with the same number.
fn same_inode(one: &Arc<dyn Inode>, other: &Arc<dyn Inode>) -> bool {
    one.identity() == other.identity()
}

/// Returns a directory's operations.
///
/// # Errors
/// `ENOTDIR`.
fn directory(inode: &Arc<dyn Inode>) -> Result<&dyn Directory, Errno> {
    inode.directory().ok_or(Errno::ENOTDIR)
}

impl Namespace {
    /// Mounts a file system on a directory, which may be the root of another mount.
    ///
    /// # Errors
    /// `ENOTDIR`; `EBUSY`: the directory is a mount point already, or the mount would close a
    /// cycle; `ENOMEM`.
    pub fn mount(&self, mount: Mount) -> Result<(), Errno> {
        directory(&mount.on)?;
        directory(&mount.root)?;
        // A lookup that reaches the mount point goes on to the root, and to what is mounted on
        // that: it must never come back to the mount point.
        if same_inode(&self.follow_mounts(mount.root.clone()), &mount.on) {
            return Err(Errno::EBUSY);
        }
        let mut mounts = self.mounts.lock();
        let (on, root) = (mount.on.identity(), mount.root.identity());
        if mounts.iter().any(|other| other.on == on) {
            return Err(Errno::EBUSY);
        }
        mounts.try_reserve(1)?;
        mounts.push(Mounted { mount, on, root });
        self.mounted_on.store(bits(&mounts), Relaxed);
        Ok(())
    }

    /// Removes the newest mount with this root, and returns it.
    ///
    /// # Errors
    /// `EINVAL`: not the root of a mount.
    pub fn unmount(&self, root: &Arc<dyn Inode>) -> Result<Mount, Errno> {
        let mut mounts = self.mounts.lock();
        let root = root.identity();
        let at = mounts.iter().rposition(|mounted| mounted.root == root).ok_or(Errno::EINVAL)?;
        let removed = mounts.remove(at).mount;
        self.mounted_on.store(bits(&mounts), Relaxed);
        Ok(removed)
    }

    /// Sets whether the newest mount with this root is read-only.
    ///
    /// # Errors
    /// `EINVAL`: not the root of a mount.
    pub fn set_read_only(&self, root: &Arc<dyn Inode>, read_only: bool) -> Result<(), Errno> {
        let mut mounts = self.mounts.lock();
        let root = root.identity();
        let found = mounts.iter_mut().rfind(|mounted| mounted.root == root).ok_or(Errno::EINVAL)?;
        found.mount.read_only = read_only;
        Ok(())
    }

    /// Checks that the inodes of a file system may be changed: that no mount of it is read-only.
    ///
    /// # Errors
    /// `EROFS`.
    pub fn check_writable(&self, device: Device) -> Result<(), Errno> {
        let refuses = |mounted: &Mounted| mounted.mount.read_only && mounted.root.0 == device.number();
        if self.mounts.lock().iter().any(refuses) { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// Registers the driver for device files of this kind, [`Kind::Char`] or [`Kind::Block`], with
    /// this number.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add_driver(&self, kind: Kind, device: Device, driver: Driver) -> Result<(), Errno> {
        let mut devices = self.devices.lock();
        devices.try_reserve(1)?;
        devices.push(((kind, device), driver));
        Ok(())
    }

    /// Registers the file that all openers of a character device get.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add_device(&self, device: Device, file: Arc<dyn File>) -> Result<(), Errno> {
        self.add_driver(Kind::Char, device, Arc::new(move |_| Ok(file.clone())))
    }

    /// Returns the driver for device files of this kind and number.
    fn driver(&self, device: (Kind, Device)) -> Option<Driver> {
        let devices = self.devices.lock();
        devices.iter().find(|(number, _)| *number == device).map(|(_, driver)| driver.clone())
    }

    /// Returns all mounts, the oldest first.
    pub fn mounts(&self) -> Vec<Mount> {
        self.mounts.lock().iter().map(|mounted| mounted.mount.clone()).collect()
    }

    /// Returns the root of the topmost mount on a directory, or the inode itself if nothing is
    /// mounted on it (Linux: `follow_down`).
    #[inline]
    fn follow_mounts(&self, mut inode: Arc<dyn Inode>) -> Arc<dyn Inode> {
        loop {
            let identity = inode.identity();
            if self.mounted_on.load(Relaxed) & bit(identity) == 0 {
                return inode;
            }
            let mounts = self.mounts.lock();
            match mounts.iter().find(|mounted| mounted.on == identity) {
                Some(mounted) => inode = mounted.mount.root.clone(),
                None => return inode,
            }
        }
    }

    /// Returns the mount point of the oldest mount with this root.
    fn mounted_at(&self, root: &Arc<dyn Inode>) -> Option<Arc<dyn Inode>> {
        let root = root.identity();
        self.mounts.lock().iter().find(|mounted| mounted.root == root).map(|mounted| mounted.mount.on.clone())
    }

    /// Returns the parent directory, across mounts; the topmost root is its own parent.
    fn parent_of(&self, inode: &Arc<dyn Inode>) -> Arc<dyn Inode> {
        let mut at = inode.clone();
        loop {
            if let Some(parent) = at.directory().and_then(|directory| directory.parent()) {
                return self.follow_mounts(parent);
            }
            match self.mounted_at(&at) {
                Some(on) => at = on,
                None => return at,
            }
        }
    }
}
