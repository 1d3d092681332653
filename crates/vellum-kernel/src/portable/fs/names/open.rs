//! Implements `openat`.

use super::{ENTRY_CHANGE, View, directory};
use crate::errno::Errno;
use crate::fs::inode::{File, Inode};
use crate::fs::meta::{Access, Device, Kind};
use crate::fs::open::{Name, Open};
use crate::fs::write_access::Writing;
use alloc::sync::Arc;
use linux_raw_sys::general::{
    IN_MODIFY, IN_OPEN, O_ACCMODE, O_CREAT, O_DIRECT, O_DIRECTORY, O_EXCL, O_NOATIME, O_NOFOLLOW, O_PATH, O_RDONLY,
    O_TMPFILE, O_TRUNC, O_WRONLY,
};

impl View<'_> {
    /// Implements `openat`. A new file gets `mode`, from which the caller has removed the umask.
    /// The caller waits for the other end of a FIFO ([`Open::wait_until_connected`]).
    ///
    /// # Errors
    /// Those of `openat`.
    pub fn open(&self, path: &[u8], flags: u32, mode: u32) -> Result<Open, Errno> {
        if flags & O_PATH != 0 {
            return self.open_path(path, flags);
        }
        if flags & O_TMPFILE == O_TMPFILE {
            return self.open_tmpfile(path, flags, mode);
        }
        let create = flags & O_CREAT != 0;
        if create && flags & O_DIRECTORY != 0 {
            return Err(Errno::EINVAL);
        }
        let exclusive = create && flags & O_EXCL != 0;
        loop {
            let found = self.find(path, flags & O_NOFOLLOW == 0 && !exclusive)?;
            let name = if found.name.is_empty() {
                None
            } else {
                Some(Name::Entry { directory: found.parent.clone(), name: (&*found.name).into() })
            };
            let Some(inode) = found.inode.clone() else {
                if !create {
                    return Err(Errno::ENOENT);
                }
                if found.must_be_directory {
                    return Err(Errno::EISDIR);
                }
                match self.make_at(&found, Kind::Regular, mode, Device::default(), &[]) {
                    // Another thread has created the file since the lookup.
                    Err(Errno::EEXIST) if !exclusive => continue,
                    Err(error) => return Err(error),
                    // The creator's access is not checked against the new file's mode.
                    Ok(inode) => return self.opened(inode, flags & !O_TRUNC, name),
                }
            };
            if exclusive {
                return Err(Errno::EEXIST);
            }
            return self.open_inode(inode, flags, name);
        }
    }

    /// Opens an existing inode. `name`: the name by which it was found.
    ///
    /// # Errors
    /// Those of `openat`.
    pub fn open_inode(&self, inode: Arc<dyn Inode>, flags: u32, name: Option<Name>) -> Result<Open, Errno> {
        let meta = inode.meta();
        let writes = flags & O_ACCMODE != O_RDONLY || flags & O_TRUNC != 0;
        match meta.kind {
            Kind::Link => return Err(Errno::ELOOP),
            Kind::Directory if writes || flags & O_CREAT != 0 => return Err(Errno::EISDIR),
            Kind::Directory => {}
            _ if flags & O_DIRECTORY != 0 => return Err(Errno::ENOTDIR),
            _ => {}
        }
        // The access time records reads for the owner: only the owner may turn that off.
        if flags & O_NOATIME != 0 && !self.cred.owns(&meta) {
            return Err(Errno::EPERM);
        }
        if flags & O_ACCMODE != O_WRONLY {
            self.cred.may(meta.rights(), Access::READ)?;
        }
        if writes {
            // Writes to a device or a FIFO change nothing in the file system.
            if meta.kind == Kind::Regular {
                self.names.check_writable(meta.device)?;
            }
            self.cred.may(meta.rights(), Access::WRITE)?;
        }
        self.opened(inode, flags, name)
    }

    /// Opens an inode, for which the caller has checked the permissions. Truncates it first, with
    /// `O_TRUNC`.
    ///
    /// # Errors
    /// `ETXTBSY`: a program runs from the inode. `EINVAL`: `O_DIRECT`, of a file that has no direct
    /// reads and writes. Those of [`Inode::truncate`], and of opening it.
    fn opened(&self, inode: Arc<dyn Inode>, flags: u32, name: Option<Name>) -> Result<Open, Errno> {
        let (writes, truncates) = (flags & O_ACCMODE != O_RDONLY, flags & O_TRUNC != 0);
        let mut writing = if writes || truncates { Writing::begin(&inode)? } else { None };
        let file = self.file(&inode, flags)?;
        if flags & O_DIRECT != 0 && !file.as_ref().is_some_and(|file| file.permits_direct()) {
            return Err(Errno::EINVAL);
        }
        if truncates && inode.kind() == Kind::Regular {
            inode.truncate(0)?;
        }
        writing = writing.filter(|_| writes);
        let open = Open::new(inode, file, flags, name).with_write_access(writing);
        open.notify(IN_OPEN);
        if truncates {
            open.notify(IN_MODIFY);
        }
        Ok(open)
    }

    /// Returns the file that handles reads and writes: a device's driver, or what the inode opens.
    /// Returns `None` for a directory.
    ///
    /// # Errors
    /// `ENXIO`: no driver, or a FIFO without readers; the inode's own.
    fn file(&self, inode: &Arc<dyn Inode>, flags: u32) -> Result<Option<Arc<dyn File>>, Errno> {
        let meta = inode.meta();
        match meta.kind {
            Kind::Directory => Ok(None),
            Kind::Char | Kind::Block if let Some(open) = self.names.driver((meta.kind, meta.special)) => {
                open(flags).map(Some)
            }
            _ => inode.clone().open(flags).map(Some),
        }
    }

    /// Opens with `O_PATH`: for the name only.
    fn open_path(&self, path: &[u8], flags: u32) -> Result<Open, Errno> {
        let found = self.find(path, flags & O_NOFOLLOW == 0)?;
        let inode = found.inode.ok_or(Errno::ENOENT)?;
        if flags & O_DIRECTORY != 0 && inode.directory().is_none() {
            return Err(Errno::ENOTDIR);
        }
        let entry = !found.name.is_empty();
        let name = entry.then(|| Name::Entry { directory: found.parent, name: found.name.into() });
        Ok(Open::new(inode, None, flags & (O_PATH | O_DIRECTORY | O_NOFOLLOW), name))
    }

    /// Opens with `O_TMPFILE`: creates a regular file without a name in the directory `path`.
    fn open_tmpfile(&self, path: &[u8], flags: u32, mode: u32) -> Result<Open, Errno> {
        if flags & O_ACCMODE == O_RDONLY {
            return Err(Errno::EINVAL);
        }
        let parent = self.get(path, true)?;
        self.names.check_writable(parent.meta().device)?;
        self.cred.may(parent.rights(), ENTRY_CHANGE)?;
        let new = self.new_inode_in(&parent.meta(), Kind::Regular, mode, Device::default(), &[]);
        let inode = directory(&parent)?.make_tmpfile(&new)?;
        self.opened(inode, flags & !(O_TMPFILE | O_TRUNC), None)
    }
}
