//! Making, linking, removing and renaming by path.

use super::{Found, View, directory, same};
use crate::errno::Errno;
use crate::fs::inode::{Inode, New};
use crate::fs::meta::{Access, Device, Kind, MODE, Meta, SET_GID, STICKY};
use alloc::sync::Arc;
use linux_raw_sys::general::CAP_MKNOD;

impl View<'_> {
    pub(super) fn inode_in<'n>(
        &self,
        parent: &Meta,
        kind: Kind,
        mode: u32,
        special: Device,
        target: &'n [u8],
    ) -> New<'n> {
        let inherits = parent.mode & SET_GID != 0;
        let (gid, mode) = match (inherits, kind) {
            (true, Kind::Directory) => (parent.gid, mode | SET_GID),
            (true, _) => (parent.gid, mode),
            (false, _) => (self.who.gid, mode),
        };
        New { kind, mode: mode & MODE, uid: self.who.uid, gid, special, target }
    }

    pub(super) fn make_found(
        &self,
        found: &Found,
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
        self.names.may_change(meta.device)?;
        self.who.may(&meta, Access(3))?;
        directory(&found.parent)?.make(&found.name, &self.inode_in(&meta, kind, mode, special, target))
    }

    /// `mkdirat`, `mknodat`, `symlinkat`: make an inode. Device files are for root alone.
    ///
    /// # Errors
    /// As these.
    pub fn make(&self, path: &[u8], kind: Kind, mode: u32, special: Device, target: &[u8]) -> Result<(), Errno> {
        if matches!(kind, Kind::Char | Kind::Block) && !self.who.has(CAP_MKNOD) {
            return Err(Errno::EPERM);
        }
        if kind == Kind::Link && target.is_empty() {
            return Err(Errno::ENOENT);
        }
        self.make_found(&self.find(path, false)?, kind, mode, special, target).map(drop)
    }

    /// `linkat`: another name for an inode, which the caller has found.
    ///
    /// # Errors
    /// As `linkat`.
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
        self.names.may_change(meta.device)?;
        self.who.may(&meta, Access(3))?;
        directory(&found.parent)?.link(&found.name, inode)
    }

    /// Whether an entry of a directory may be removed.
    fn may_remove(&self, parent: &Meta, entry: &Meta) -> Result<(), Errno> {
        self.names.may_change(parent.device)?;
        self.who.may(parent, Access(3))?;
        let sticky = parent.mode & STICKY != 0;
        if sticky && !self.who.owns(parent) && !self.who.owns(entry) { Err(Errno::EPERM) } else { Ok(()) }
    }

    fn is_mount(&self, inode: &Arc<dyn Inode>) -> bool {
        self.names.mounts.lock().iter().any(|mount| same(&mount.root, inode))
    }

    /// `unlinkat`, with `AT_REMOVEDIR` if `is_directory`.
    ///
    /// # Errors
    /// As `unlinkat`.
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
        self.may_remove(&found.parent.meta(), &inode.meta())?;
        if self.is_mount(&inode) {
            return Err(Errno::EBUSY);
        }
        if !is_directory && found.must_be_directory {
            return Err(Errno::EISDIR);
        }
        directory(&found.parent)?.remove(&found.name, is_directory)
    }

    /// `renameat2`, to a path of another view, which differs in `current` at most.
    ///
    /// # Errors
    /// As `renameat2`.
    pub fn rename(&self, path: &[u8], to: &View<'_>, to_path: &[u8], flags: u32) -> Result<(), Errno> {
        let (from, to) = (self.find(path, false)?, to.find(to_path, false)?);
        if from.name.is_empty() || to.name.is_empty() {
            return Err(Errno::EBUSY);
        }
        let moved = from.inode.ok_or(Errno::ENOENT)?;
        let (parent, to_parent) = (from.parent.meta(), to.parent.meta());
        if parent.device != to_parent.device {
            return Err(Errno::EXDEV);
        }
        self.may_remove(&parent, &moved.meta())?;
        match &to.inode {
            Some(old) => self.may_remove(&to_parent, &old.meta())?,
            None => self.who.may(&to_parent, Access(3))?,
        }
        if (from.must_be_directory || to.must_be_directory) && moved.directory().is_none() {
            return Err(Errno::ENOTDIR);
        }
        if self.is_mount(&moved) || to.inode.as_ref().is_some_and(|old| self.is_mount(old)) {
            return Err(Errno::EBUSY);
        }
        directory(&from.parent)?.rename(&from.name, &*to.parent, &to.name, flags)
    }
}
