//! Directories of pseudo file systems (`/proc`, `/sys`, cgroup2): fixed entries, and
//! [`DynamicEntries`].

use super::inode::{Directory, Entry, FIRST, File, Inode, NewInode, Space};
use super::meta::{Kind, Meta};
use super::text::PseudoFs;
use crate::errno::Errno;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use spin::Mutex;

/// The entries that a directory has beside its fixed ones, such as the processes in `/proc`, and
/// the children of a cgroup.
pub trait DynamicEntries: Send + Sync {
    /// Looks up an entry.
    fn find(&self, name: &[u8]) -> Option<Arc<dyn Inode>>;

    /// Lists entries as [`Directory::list`] does, but with positions that begin at zero.
    fn list(&self, from: u64, each: &mut dyn FnMut(Entry<'_>) -> bool);

    /// Returns the value for a downcast by the code that created it.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// Returns the directory's mode.
    fn mode(&self) -> u32 {
        0o555
    }

    /// Implements `mkdir`. `parent`: the directory that has these entries.
    ///
    /// # Errors
    /// `EPERM`: not supported; `EEXIST`, `ENOMEM`.
    fn make(&self, _name: &[u8], _mode: u32, _parent: Weak<PseudoDirectory>) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::EPERM)
    }

    /// Implements `rmdir`.
    ///
    /// # Errors
    /// `EPERM`: not supported; `ENOENT`, `EBUSY`.
    fn remove(&self, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }
}

/// The directory position of the first dynamic entry.
const FIRST_DYNAMIC: u64 = 1 << 32;

/// A fixed entry: name and inode.
type Fixed = (Box<[u8]>, Arc<dyn Inode>);

/// A directory of a pseudo file system.
pub struct PseudoDirectory {
    system: PseudoFs,
    meta: Meta,
    this: Weak<PseudoDirectory>,
    parent: Option<Weak<PseudoDirectory>>,
    fixed: Mutex<Vec<Fixed>>,
    dynamic: Option<Box<dyn DynamicEntries>>,
}

impl PseudoDirectory {
    /// Returns a directory without fixed entries. Without `parent` it is the root of a file system.
    pub fn new(
        system: PseudoFs,
        parent: Option<&Arc<PseudoDirectory>>,
        dynamic: Option<Box<dyn DynamicEntries>>,
    ) -> Arc<PseudoDirectory> {
        PseudoDirectory::with_weak_parent(system, parent.map(Arc::downgrade), dynamic)
    }

    /// Returns a directory without fixed entries. Without `parent` it is the root of a file system.
    /// Unlike [`PseudoDirectory::new`], takes a weak reference to the parent.
    pub fn with_weak_parent(
        system: PseudoFs,
        parent: Option<Weak<PseudoDirectory>>,
        dynamic: Option<Box<dyn DynamicEntries>>,
    ) -> Arc<PseudoDirectory> {
        Arc::new_cyclic(|this| {
            let mut meta = system.meta(Kind::Directory, dynamic.as_ref().map_or(0o555, |dynamic| dynamic.mode()));
            meta.links = 2;
            let system = PseudoFs { number: None, ..system };
            PseudoDirectory { system, meta, this: this.clone(), parent, fixed: Mutex::new(Vec::new()), dynamic }
        })
    }

    /// Returns the dynamic entries.
    pub fn dynamic(&self) -> Option<&dyn DynamicEntries> {
        self.dynamic.as_deref()
    }

    /// Adds a fixed entry.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&self, name: &str, inode: Arc<dyn Inode>) -> Result<(), Errno> {
        let mut fixed = self.fixed.lock();
        fixed.try_reserve(1)?;
        fixed.push((name.as_bytes().into(), inode));
        Ok(())
    }

    /// Adds a subdirectory to the fixed entries.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add_directory(self: &Arc<Self>, name: &str) -> Result<Arc<PseudoDirectory>, Errno> {
        self.add_directory_with(name, None)
    }

    /// Adds a subdirectory with dynamic entries to the fixed entries.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add_directory_with(
        self: &Arc<Self>,
        name: &str,
        dynamic: Option<Box<dyn DynamicEntries>>,
    ) -> Result<Arc<PseudoDirectory>, Errno> {
        let directory = PseudoDirectory::new(self.system, Some(self), dynamic);
        self.add(name, directory.clone())?;
        Ok(directory)
    }

    /// Returns a subdirectory among the fixed entries, or `None` if there is none of this name.
    pub fn subdirectory(&self, name: &str) -> Option<Arc<PseudoDirectory>> {
        let fixed = self.fixed.lock();
        let (_, inode) = fixed.iter().find(|(own, _)| **own == *name.as_bytes())?;
        let directory = inode.as_any().downcast_ref::<PseudoDirectory>()?;
        directory.this.upgrade()
    }

    /// Returns the file system.
    pub fn system(&self) -> PseudoFs {
        self.system
    }
}

impl Inode for PseudoDirectory {
    fn meta(&self) -> Meta {
        self.system.with_owner(&self.meta)
    }

    fn identity(&self) -> (u64, u64) {
        self.meta.identity()
    }

    fn kind(&self) -> Kind {
        self.meta.kind
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<Arc<dyn File>, Errno> {
        Err(Errno::EISDIR)
    }

    fn directory(&self) -> Option<&dyn Directory> {
        Some(self)
    }

    fn space(&self) -> Space {
        self.system.space()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Directory for PseudoDirectory {
    fn find(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        let fixed = self.fixed.lock().iter().find(|(own, _)| **own == *name).map(|(_, inode)| inode.clone());
        fixed.or_else(|| self.dynamic.as_ref()?.find(name)).ok_or(Errno::ENOENT)
    }

    fn parent(&self) -> Option<Arc<dyn Inode>> {
        self.parent.as_ref()?.upgrade().map(|parent| parent as Arc<dyn Inode>)
    }

    fn list(&self, from: u64, each: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<(), Errno> {
        // Fixed entries are added at the end and never removed, so that an index stays valid.
        let mut index = from.saturating_sub(FIRST);
        while index < FIRST_DYNAMIC {
            let Some((name, inode)) =
                self.fixed.lock().get(index as usize).map(|(name, inode)| (name.clone(), inode.meta()))
            else {
                break;
            };
            index += 1;
            if !each(Entry { name: &name, inode: inode.inode, kind: inode.kind, next: FIRST + index }) {
                return Ok(());
            }
        }
        if let Some(dynamic) = &self.dynamic {
            let named = &mut |entry: Entry<'_>| each(Entry { next: FIRST_DYNAMIC + entry.next, ..entry });
            dynamic.list(from.saturating_sub(FIRST_DYNAMIC), named);
        }
        Ok(())
    }

    fn make(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<dyn Inode>, Errno> {
        match &self.dynamic {
            Some(dynamic) if new.kind == Kind::Directory => dynamic.make(name, new.mode, self.this.clone()),
            _ => Err(Errno::EPERM),
        }
    }

    fn remove(&self, name: &[u8], directory: bool) -> Result<(), Errno> {
        match &self.dynamic {
            Some(dynamic) if directory => dynamic.remove(name),
            _ => Err(Errno::EPERM),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::meta::Device;
    use crate::fs::text::Text;
    use std::vec;

    const SYSTEM: PseudoFs = PseudoFs { device: Device { major: 0, minor: 5 }, magic: 7, owner: None, number: None };

    #[test]
    fn owners_come_from_the_file_system() {
        let system = PseudoFs { owner: Some((|of| (of, of + 1), 5)), ..SYSTEM };
        let directory = PseudoDirectory::new(system, None, None);
        let inner = directory.add_directory("inner").unwrap();
        let text = Text::read_only(SYSTEM, || Ok(vec![]));
        assert_eq!([inner.meta(), text.meta()].map(|meta| (meta.uid, meta.gid)), [(5, 6), (0, 0)]);
    }

    #[test]
    fn listings_resume_after_each_entry() {
        let root = PseudoDirectory::new(SYSTEM, None, None);
        let inner = root.add_directory("inner").unwrap();
        root.add("text", Text::read_only(SYSTEM, || Ok(vec![]))).unwrap();
        assert!(inner.parent().unwrap().meta().inode == root.meta.inode && root.parent().is_none());
        let mut names = vec![];
        let mut at = FIRST;
        // One entry per call.
        loop {
            let before = at;
            root.list(at, &mut |entry| {
                names.push(entry.name.to_vec());
                at = entry.next;
                false
            })
            .unwrap();
            if at == before {
                break;
            }
        }
        assert_eq!(names, [b"inner".to_vec(), b"text".to_vec()]);
        assert!(root.find(b"text").is_ok() && root.find(b"none").is_err());
    }
}
