//! Mode, owner, times and size: who may change them, and what goes with it.

use super::View;
use crate::errno::Errno;
use crate::fs::inode::{Change, Inode};
use crate::fs::meta::{Access, Kind, MODE, SET_GID, SET_UID, Time};
use linux_raw_sys::general::{CAP_CHOWN, CAP_FSETID};

/// Executable by its group.
const GROUP_EXECUTES: u32 = 0o010;

impl View<'_> {
    /// `fchmodat`.
    ///
    /// # Errors
    /// `EPERM`, `EOPNOTSUPP` (a link).
    pub fn set_mode(&self, inode: &dyn Inode, mode: u32) -> Result<(), Errno> {
        let meta = inode.meta();
        if meta.kind == Kind::Link {
            return Err(Errno::EOPNOTSUPP);
        }
        self.names.may_change(meta.device)?;
        if !self.who.owns(&meta) {
            return Err(Errno::EPERM);
        }
        let foreign = !self.who.has(CAP_FSETID) && !self.who.in_group(meta.gid);
        let mode = mode & MODE & if foreign { !SET_GID } else { MODE };
        inode.change(&Change { mode: Some(mode), ..Change::default() })
    }

    /// `fchownat`; what is `None` stays. A program does not stay privileged for its new owner.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn set_owner(&self, inode: &dyn Inode, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        let meta = inode.meta();
        let keeps =
            uid.is_none_or(|uid| uid == meta.uid) && gid.is_none_or(|gid| self.who.in_group(gid) || gid == meta.gid);
        let touches = uid.is_some() || gid.is_some();
        self.names.may_change(meta.device)?;
        if touches && !self.who.has(CAP_CHOWN) && !(self.who.uid == meta.uid && keeps) {
            return Err(Errno::EPERM);
        }
        let mut mode = meta.mode;
        if touches && meta.kind != Kind::Directory {
            mode &= !SET_UID;
            if mode & GROUP_EXECUTES != 0 {
                mode &= !SET_GID;
            }
        }
        let mode = (mode != meta.mode).then_some(mode);
        inode.change(&Change { mode, uid, gid, ..Change::default() })
    }

    /// `utimensat`: times of access and modification; what is `None` stays. `now` says that both
    /// are the present, which who may write may set too.
    ///
    /// # Errors
    /// `EPERM`, `EACCES`.
    pub fn set_times(
        &self,
        inode: &dyn Inode,
        accessed: Option<Time>,
        modified: Option<Time>,
        now: bool,
    ) -> Result<(), Errno> {
        let meta = inode.meta();
        self.names.may_change(meta.device)?;
        if !self.who.owns(&meta) {
            if !now {
                return Err(Errno::EPERM);
            }
            self.who.may(&meta, Access::WRITE)?;
        }
        inode.change(&Change { accessed, modified, ..Change::default() })
    }

    /// Whether what a path led to may be truncated.
    ///
    /// # Errors
    /// `EISDIR`, `EINVAL` (no regular file), `EACCES`, `EROFS`.
    pub fn may_truncate(&self, inode: &dyn Inode) -> Result<(), Errno> {
        let meta = inode.meta();
        match meta.kind {
            Kind::Regular => {}
            Kind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        self.names.may_change(meta.device)?;
        self.who.may(&meta, Access::WRITE)
    }
}
