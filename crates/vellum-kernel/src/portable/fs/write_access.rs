//! Write access to regular files, and its denial (Linux: `i_writecount`): a file is either open for
//! writing or run as a program, never both.

use super::inode::Inode;
use crate::errno::Errno;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// An inode's count: above zero it counts [`Writing`]s, below zero [`WriteDenial`]s.
#[derive(Default)]
pub struct WriteAccess(AtomicI64);

impl WriteAccess {
    /// Adds `by` unless the count has the other sign.
    fn add(&self, by: i64) -> Result<(), Errno> {
        let added = |count: i64| (count.signum() != -by).then_some(count + by);
        self.0.fetch_update(Relaxed, Relaxed, added).map(drop).map_err(|_| Errno::ETXTBSY)
    }
}

/// A write access to an inode. No program can be started from the inode before it is dropped.
pub struct Writing(Arc<dyn Inode>);

impl Writing {
    /// Begins a write access. Returns `None` for an inode without a count, from which no program
    /// runs.
    ///
    /// # Errors
    /// `ETXTBSY`: a program runs from the inode.
    pub fn begin(inode: &Arc<dyn Inode>) -> Result<Option<Writing>, Errno> {
        let Some(access) = inode.write_access() else { return Ok(None) };
        access.add(1)?;
        Ok(Some(Writing(inode.clone())))
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.write_access().into_iter().for_each(|access| _ = access.0.fetch_sub(1, Relaxed));
    }
}

/// A program's denial of write access to the inode from which it runs. The inode can't be opened
/// for writing before all denials are dropped.
pub struct WriteDenial(Arc<dyn Inode>);

impl WriteDenial {
    /// Denies write access. Returns `None` for an inode without a count.
    ///
    /// # Errors
    /// `ETXTBSY`: the inode is open for writing.
    pub fn begin(inode: &Arc<dyn Inode>) -> Result<Option<WriteDenial>, Errno> {
        let Some(access) = inode.write_access() else { return Ok(None) };
        access.add(-1)?;
        Ok(Some(WriteDenial(inode.clone())))
    }

    /// Returns the inode.
    pub fn inode(&self) -> &Arc<dyn Inode> {
        &self.0
    }
}

impl Clone for WriteDenial {
    fn clone(&self) -> Self {
        self.0.write_access().into_iter().for_each(|access| _ = access.0.fetch_sub(1, Relaxed));
        WriteDenial(self.0.clone())
    }
}

impl Drop for WriteDenial {
    fn drop(&mut self) {
        self.0.write_access().into_iter().for_each(|access| _ = access.0.fetch_add(1, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::meta::Device;
    use crate::fs::names::{Namespace, View};
    use crate::fs::tree::Tree;
    use crate::fs::{FileCredentials, Kind};
    use crate::testing::Machine;
    use linux_raw_sys::general::{O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};

    #[test]
    fn a_file_is_either_open_for_writing_or_run() {
        let root: Arc<dyn Inode> = Tree::root(Arc::new(Machine), 1, 0o755);
        let (names, cred) = (Namespace::default(), FileCredentials::root());
        let view = View { names: &names, root: &root, current: &root, cred: &cred };
        view.make(b"program", Kind::Regular, 0o755, Device::default(), &[]).unwrap();
        let inode = view.get(b"program", true).unwrap();
        inode.truncate(5).unwrap();
        let open = |flags| view.open(b"program", flags, 0);

        let writers = [open(O_WRONLY).unwrap(), open(O_RDWR).unwrap()];
        assert_eq!(WriteDenial::begin(&inode).err(), Some(Errno::ETXTBSY));
        drop(writers);
        let reader = open(O_RDONLY).unwrap();
        let denial = WriteDenial::begin(&inode).unwrap().unwrap();
        let child = denial.clone();
        drop(denial);
        for flags in [O_WRONLY, O_RDWR, O_TRUNC] {
            assert_eq!(open(flags).err(), Some(Errno::ETXTBSY));
        }
        assert_eq!(inode.meta().size, 5, "an open that fails truncates nothing");
        drop((child, reader));
        let truncated = open(O_TRUNC).unwrap();
        assert_eq!(inode.meta().size, 0);
        assert!(WriteDenial::begin(&inode).is_ok(), "the file is open for reading only: {}", truncated.flags());
    }
}
