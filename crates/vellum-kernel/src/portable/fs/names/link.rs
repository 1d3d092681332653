//! Creating, linking, removing and renaming by path.

use super::{ENTRY_CHANGE, Found, View, directory, same_inode};
use crate::errno::Errno;
use crate::fs::inode::{Inode, NewInode};
use crate::fs::meta::{Device, Kind, MODE, Meta, SET_GID, STICKY};
use crate::fs::notify::hooks;
use alloc::sync::Arc;
use linux_raw_sys::general::{CAP_MKNOD, RENAME_EXCHANGE, RENAME_NOREPLACE};

impl View<'_> {
    /// Returns the description of an inode to create in a directory, with the caller as its owner.
    /// A directory with `S_ISGID` passes on its group, and to directories the bit too.
    pub(super) fn new_inode_in<'n>(
        &self,
        parent: &Meta,
        kind: Kind,
        mode: u32,
        special: Device,
        target: &'n [u8],
    ) -> NewInode<'n> {
        let inherits = parent.mode & SET_GID != 0;
        let (gid, mode) = match (inherits, kind) {
            (true, Kind::Directory) => (parent.gid, mode | SET_GID),
            (true, _) => (parent.gid, mode),
            (false, _) => (self.cred.gid, mode),
        };
        NewInode { kind, mode: mode & MODE, uid: self.cred.uid, gid, special, target }
    }

    /// Creates an inode under a name that a lookup did not find.
    ///
    /// # Errors
    /// `EEXIST`, `ENOENT`, `EROFS`, `EACCES`; those of
    /// [`Directory::make`](crate::fs::Directory::make).
    pub(super) fn make_at(
        &self,
        found: &Found<'_>,
        kind: Kind,
        mode: u32,
        special: Device,
        target: &[u8],
    ) -> Result<Arc<dyn Inode>, Errno> {
        if found.inode.is_some() {
            return Err(Errno::EEXIST);
        }
        if found.must_be_directory && kind != Kind::Directory {
            return Err(Errno::ENOENT);
        }
        let meta = found.parent.meta();
        self.names.check_writable(meta.device)?;
        self.cred.may(meta.rights(), ENTRY_CHANGE)?;
        let new = self.new_inode_in(&meta, kind, mode, special, target);
        let made = directory(&found.parent)?.make(&found.name, &new)?;
        hooks::created((&found.parent, &found.name), kind == Kind::Directory);
        Ok(made)
    }

    /// Implements `mkdirat`, `mknodat` and `symlinkat`. Device files require `CAP_MKNOD`.
    ///
    /// # Errors
    /// Those of these system calls.
    pub fn make(&self, path: &[u8], kind: Kind, mode: u32, special: Device, target: &[u8]) -> Result<(), Errno> {
        if matches!(kind, Kind::Char | Kind::Block) && !self.cred.has(CAP_MKNOD) {
            return Err(Errno::EPERM);
        }
        if kind == Kind::Link && target.is_empty() {
            return Err(Errno::ENOENT);
        }
        self.make_at(&self.find(path, false)?, kind, mode, special, target).map(drop)
    }

    /// Implements `linkat`: adds a name for `inode`, which the caller has looked up.
    ///
    /// # Errors
    /// Those of `linkat`.
    pub fn link(&self, inode: &Arc<dyn Inode>, path: &[u8]) -> Result<(), Errno> {
        let found = self.find(path, false)?;
        if found.inode.is_some() {
            return Err(Errno::EEXIST);
        }
        if found.must_be_directory {
            return Err(Errno::ENOENT);
        }
        let meta = found.parent.meta();
        if meta.device != inode.meta().device {
            return Err(Errno::EXDEV);
        }
        self.names.check_writable(meta.device)?;
        self.cred.may(meta.rights(), ENTRY_CHANGE)?;
        directory(&found.parent)?.link(&found.name, inode)?;
        hooks::linked(inode, (&found.parent, &found.name));
        Ok(())
    }

    /// Checks that the caller may remove an entry of a directory.
    ///
    /// # Errors
    /// `EROFS`; `EACCES`; `EPERM`: the directory is sticky, and the caller owns neither the
    /// directory nor the entry's inode.
    fn check_remove(&self, parent: &Meta, entry: &Meta) -> Result<(), Errno> {
        self.names.check_writable(parent.device)?;
        self.cred.may(parent.rights(), ENTRY_CHANGE)?;
        let sticky = parent.mode & STICKY != 0;
        if sticky && !self.cred.owns(parent) && !self.cred.owns(entry) { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// Returns true if the inode is the root of a mount. A lookup never ends at a mount point, but
    /// at the root mounted on it.
    fn is_mount_root(&self, inode: &Arc<dyn Inode>) -> bool {
        self.names.mounted_at(inode).is_some()
    }

    /// Implements `unlinkat`, with `AT_REMOVEDIR` if `is_directory`.
    ///
    /// # Errors
    /// Those of `unlinkat`.
    pub fn remove(&self, path: &[u8], is_directory: bool) -> Result<(), Errno> {
        let found = self.find(path, false)?;
        let inode = found.inode.ok_or(Errno::ENOENT)?;
        if found.name.is_empty() {
            let last = path.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty());
            return Err(match (is_directory, last) {
                (false, _) => Errno::EISDIR,
                (true, Some(b".")) => Errno::EINVAL,
                (true, Some(b"..")) => Errno::ENOTEMPTY,
                (true, _) => Errno::EBUSY,
            });
        }
        self.check_remove(&found.parent.meta(), &inode.meta())?;
        if self.is_mount_root(&inode) {
            return Err(Errno::EBUSY);
        }
        if !is_directory && found.must_be_directory {
            return Err(Errno::EISDIR);
        }
        directory(&found.parent)?.remove(&found.name, is_directory)?;
        hooks::removed(inode, (&found.parent, &found.name));
        Ok(())
    }

    /// Implements `renameat2`. The new path is looked up in the view `to`, which may differ from
    /// this view only in `current`.
    ///
    /// # Errors
    /// Those of `renameat2`.
    pub fn rename(&self, path: &[u8], to: &View<'_>, to_path: &[u8], flags: u32) -> Result<(), Errno> {
        if !matches!(flags, 0 | RENAME_NOREPLACE | RENAME_EXCHANGE) {
            return Err(Errno::EINVAL);
        }
        let (from, to) = (self.find(path, false)?, to.find(to_path, false)?);
        if from.name.is_empty() || to.name.is_empty() {
            return Err(Errno::EBUSY);
        }
        let moved = from.inode.ok_or(Errno::ENOENT)?;
        let (parent, to_parent) = (from.parent.meta(), to.parent.meta());
        if parent.device != to_parent.device {
            return Err(Errno::EXDEV);
        }
        self.check_remove(&parent, &moved.meta())?;
        match &to.inode {
            Some(old) => self.check_remove(&to_parent, &old.meta())?,
            None => self.cred.may(to_parent.rights(), ENTRY_CHANGE)?,
        }
        if (from.must_be_directory || to.must_be_directory) && moved.directory().is_none() {
            return Err(Errno::ENOTDIR);
        }
        if self.is_mount_root(&moved) || to.inode.as_ref().is_some_and(|old| self.is_mount_root(old)) {
            return Err(Errno::EBUSY);
        }
        directory(&from.parent)?.rename(&from.name, &*to.parent, &to.name, flags)?;
        let (old, new) = ((&from.parent, &*from.name), (&to.parent, &*to.name));
        match to.inode {
            _ if !hooks::any() => {}
            // Two names of one file: nothing was moved.
            Some(other) if same_inode(&other, &moved) => {}
            Some(other) if flags & RENAME_EXCHANGE != 0 => {
                hooks::moved(&moved, old, new, None);
                hooks::moved(&other, new, old, None);
            }
            replaced => hooks::moved(&moved, old, new, replaced),
        }
        Ok(())
    }
}
