//! The file state of a process: its descriptors, where its relative paths begin, and its umask
//! (Linux: `files_struct` and `fs_struct`).

use super::names::{Namespace, View};
use super::{FileCredentials, Inode, Open, Table};
use crate::errno::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general::AT_FDCWD;
use spin::Mutex;

/// A process's files: shared by its threads, copied for its children.
pub struct Files {
    /// The descriptors.
    pub table: Mutex<Table>,
    /// The directory where relative paths begin.
    pub current: Mutex<Arc<dyn Inode>>,
    /// The permissions that are taken off the mode of new files.
    pub umask: AtomicU32,
}

impl Files {
    /// Returns files with these descriptors, whose relative paths begin at `current`.
    pub fn new(table: Table, current: Arc<dyn Inode>, umask: u32) -> Self {
        Self { table: Mutex::new(table), current: Mutex::new(current), umask: AtomicU32::new(umask) }
    }

    /// Returns a child's copy.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn copy(&self) -> Result<Self, Errno> {
        let umask = self.umask.load(Ordering::Relaxed);
        let table = self.table.lock().copy()?;
        Ok(Self::new(table, self.current.lock().clone(), umask))
    }

    /// Returns the open file that a descriptor stands for.
    ///
    /// # Errors
    ///
    /// `EBADF`.
    pub fn open(&self, number: u64) -> Result<Arc<Open>, Errno> {
        let number = u32::try_from(number).map_err(|_| Errno::EBADF)?;
        self.table.lock().get(number).cloned()
    }

    /// Calls `look` with the names as seen from the directory of descriptor `at`, from the current
    /// one (`AT_FDCWD`), or from `root` for an `absolute` path.
    ///
    /// # Errors
    ///
    /// `EBADF`, `ENOTDIR`, and those of `look`.
    pub fn view<T>(
        &self,
        (names, root): (&Namespace, &Arc<dyn Inode>),
        who: &FileCredentials,
        at: i32,
        absolute: bool,
        look: impl FnOnce(View) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let current = match at {
            _ if absolute => root.clone(),
            AT_FDCWD => self.current.lock().clone(),
            _ => {
                let open = self.open(u64::from(at as u32))?;
                if open.inode().directory().is_none() {
                    return Err(Errno::ENOTDIR);
                }
                open.inode().clone()
            }
        };
        look(View { names, root, current: &current, who })
    }

    /// Returns the current directory's path.
    ///
    /// # Errors
    ///
    /// `ENOENT`: it was removed.
    pub fn current_path(&self, names: &Namespace, root: &Arc<dyn Inode>) -> Result<Vec<u8>, Errno> {
        let current = self.current.lock().clone();
        names.path_of(&current, root).ok_or(Errno::ENOENT)
    }
}
