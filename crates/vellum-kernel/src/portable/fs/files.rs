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

/// A process's file state: shared by its threads, copied for its children.
pub struct Files {
    /// The descriptors.
    pub table: Mutex<Table>,
    /// The working directory.
    pub current: Mutex<Arc<dyn Inode>>,
    /// The permissions that are taken off the mode of new files.
    pub umask: AtomicU32,
}

impl Files {
    /// Returns the file state with these descriptors and the working directory `current`.
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

    /// Returns the open file description of a descriptor.
    ///
    /// # Errors
    ///
    /// `EBADF`.
    pub fn open(&self, number: u64) -> Result<Arc<Open>, Errno> {
        let number = u32::try_from(number).map_err(|_| Errno::EBADF)?;
        self.table.lock().get(number).cloned()
    }

    /// Calls `look` with the view in which a path argument is looked up: relative to the directory
    /// of the descriptor `at`, to the working directory (`AT_FDCWD`), or to `root` if the path is
    /// `absolute`. `cred`: the caller's rights.
    ///
    /// # Errors
    ///
    /// `EBADF`, `ENOTDIR`, and those of `look`.
    pub fn view<T>(
        &self,
        (names, root): (&Namespace, &Arc<dyn Inode>),
        cred: &FileCredentials,
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
        look(View { names, root, current: &current, cred })
    }

    /// Returns the working directory's path.
    ///
    /// # Errors
    ///
    /// `ENOENT`: it was removed.
    pub fn current_path(&self, names: &Namespace, root: &Arc<dyn Inode>) -> Result<Vec<u8>, Errno> {
        let current = self.current.lock().clone();
        names.path_of(&current, root).ok_or(Errno::ENOENT)
    }
}
