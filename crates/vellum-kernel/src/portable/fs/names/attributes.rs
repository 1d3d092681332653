//! `chmod`, `chown`, `utimensat` and `truncate`: the permission checks, and the changes of mode
//! bits that these calls imply.

use super::View;
use crate::errno::Errno;
use crate::fs::inode::{Change, Inode};
use crate::fs::meta::{Access, Kind, MODE, SET_GID, SET_UID, Time};
use linux_raw_sys::general::{CAP_CHOWN, CAP_FSETID};

/// `S_IXGRP`.
const GROUP_EXECUTE: u32 = 0o010;

impl View<'_> {
    /// Implements `fchmodat`. Drops `S_ISGID` if the caller neither is in the inode's group nor has
    /// `CAP_FSETID`.
    ///
    /// # Errors
    /// `EPERM`, `EROFS`, `EOPNOTSUPP` (a symbolic link).
    pub fn set_mode(&self, inode: &dyn Inode, mode: u32) -> Result<(), Errno> {
        let meta = inode.meta();
        if meta.kind == Kind::Link {
            return Err(Errno::EOPNOTSUPP);
        }
        self.names.check_writable(meta.device)?;
        if !self.cred.owns(&meta) {
            return Err(Errno::EPERM);
        }
        let foreign = !self.cred.has(CAP_FSETID) && !self.cred.in_group(meta.gid);
        let mode = mode & MODE & if foreign { !SET_GID } else { MODE };
        inode.change(&Change { mode: Some(mode), ..Change::default() })
    }

    /// Implements `fchownat`: `None` leaves an ID as it is. Drops `S_ISUID`, and `S_ISGID` of a
    /// group-executable file, so that a program does not run with its new owner's privileges.
    ///
    /// # Errors
    /// `EPERM`, `EROFS`.
    pub fn set_owner(&self, inode: &dyn Inode, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        let meta = inode.meta();
        let own_groups =
            uid.is_none_or(|uid| uid == meta.uid) && gid.is_none_or(|gid| self.cred.in_group(gid) || gid == meta.gid);
        let changes = uid.is_some() || gid.is_some();
        self.names.check_writable(meta.device)?;
        if changes && !self.cred.has(CAP_CHOWN) && !(self.cred.uid == meta.uid && own_groups) {
            return Err(Errno::EPERM);
        }
        let mut mode = meta.mode;
        if changes && meta.kind != Kind::Directory {
            mode &= !SET_UID;
            if mode & GROUP_EXECUTE != 0 {
                mode &= !SET_GID;
            }
        }
        let mode = (mode != meta.mode).then_some(mode);
        inode.change(&Change { mode, uid, gid, ..Change::default() })
    }

    /// Implements `utimensat`: sets the times of access and modification; `None` leaves a time as
    /// it is. `now`: both times are the present time. Then a caller that does not own the inode
    /// needs write permission; without `now`, such a caller is refused.
    ///
    /// # Errors
    /// `EPERM`, `EACCES`, `EROFS`.
    pub fn set_times(
        &self,
        inode: &dyn Inode,
        accessed: Option<Time>,
        modified: Option<Time>,
        now: bool,
    ) -> Result<(), Errno> {
        let meta = inode.meta();
        self.names.check_writable(meta.device)?;
        if !self.cred.owns(&meta) {
            if !now {
                return Err(Errno::EPERM);
            }
            self.cred.may(meta.rights(), Access::WRITE)?;
        }
        inode.change(&Change { accessed, modified, ..Change::default() })
    }

    /// Checks that `truncate` is permitted on an inode.
    ///
    /// # Errors
    /// `EISDIR`, `EINVAL` (not a regular file), `EACCES`, `EROFS`.
    pub fn may_truncate(&self, inode: &dyn Inode) -> Result<(), Errno> {
        let meta = inode.meta();
        match meta.kind {
            Kind::Regular => {}
            Kind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        self.names.check_writable(meta.device)?;
        self.cred.may(meta.rights(), Access::WRITE)
    }
}
