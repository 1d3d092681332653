//! Folders of files that are made when they are read: fixed entries, and [`More`].

use super::inode::{Directory, Entry, FIRST, File, Inode, New, Space};
use super::meta::{Kind, Meta};
use super::text::PseudoFs;
use crate::errno::Errno;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use spin::Mutex;

/// What a folder has beside its fixed entries (`/proc`'s processes, a control group's children).
pub trait More: Send + Sync {
    /// An entry by its name.
    fn find(&self, name: &[u8]) -> Option<Arc<dyn Inode>>;

    /// Name entries as [`Directory::list`] does, with positions of its own that begin at zero.
    fn list(&self, from: u64, each: &mut dyn FnMut(Entry<'_>) -> bool);

    /// For who made it, to know it again.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// The folder's mode.
    fn mode(&self) -> u32 {
        0o555
    }

    /// `mkdir`.
    ///
    /// # Errors
    /// `EPERM`: not here; `EEXIST`, `ENOMEM`.
    fn make(&self, _name: &[u8], _mode: u32, _parent: Weak<Folder>) -> Result<Arc<dyn Inode>, Errno> {
        Err(Errno::EPERM)
    }

    /// `rmdir`.
    ///
    /// # Errors
    /// `EPERM`: not here; `ENOENT`, `EBUSY`.
    fn remove(&self, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::EPERM)
    }
}

/// The first position of what is from [`More`].
const MORE: u64 = 1 << 32;

type Fixed = (Box<[u8]>, Arc<dyn Inode>);

/// A folder: fixed entries, and more.
pub struct Folder {
    system: PseudoFs,
    meta: Meta,
    this: Weak<Folder>,
    parent: Option<Weak<Folder>>,
    fixed: Mutex<Vec<Fixed>>,
    more: Option<Box<dyn More>>,
}

impl Folder {
    /// An empty folder; without `parent` it is the root of a file system.
    pub fn new(system: PseudoFs, parent: Option<&Arc<Folder>>, more: Option<Box<dyn More>>) -> Arc<Folder> {
        Folder::below(system, parent.map(Arc::downgrade), more)
    }

    /// As [`Folder::new`], for what only has a weak reference.
    pub fn below(system: PseudoFs, parent: Option<Weak<Folder>>, more: Option<Box<dyn More>>) -> Arc<Folder> {
        Folder::numbered(system, None, parent, more)
    }

    /// As [`Folder::new`], with an inode number that is known before it is made: of 2³² or more, to
    /// be no other's.
    pub fn numbered(
        system: PseudoFs,
        number: Option<u64>,
        parent: Option<Weak<Folder>>,
        more: Option<Box<dyn More>>,
    ) -> Arc<Folder> {
        Arc::new_cyclic(|this| {
            let mut meta = system.meta(Kind::Directory, more.as_ref().map_or(0o555, |more| more.mode()));
            meta.links = 2;
            meta.inode = number.unwrap_or(meta.inode);
            Folder { system, meta, this: this.clone(), parent, fixed: Mutex::new(Vec::new()), more }
        })
    }

    /// What it has beside fixed entries.
    pub fn more(&self) -> Option<&dyn More> {
        self.more.as_deref()
    }

    /// Add a fixed entry.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&self, name: &str, inode: Arc<dyn Inode>) -> Result<(), Errno> {
        let mut fixed = self.fixed.lock();
        fixed.try_reserve(1)?;
        fixed.push((name.as_bytes().into(), inode));
        Ok(())
    }

    /// Add a folder in it.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add_folder(self: &Arc<Self>, name: &str) -> Result<Arc<Folder>, Errno> {
        self.add_folder_of(name, None)
    }

    /// Add a folder in it that has more than fixed entries.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add_folder_of(self: &Arc<Self>, name: &str, more: Option<Box<dyn More>>) -> Result<Arc<Folder>, Errno> {
        let folder = Folder::new(self.system, Some(self), more);
        self.add(name, folder.clone())?;
        Ok(folder)
    }

    /// A folder among the fixed entries.
    pub fn folder(&self, name: &str) -> Option<Arc<Folder>> {
        let fixed = self.fixed.lock();
        let (_, inode) = fixed.iter().find(|(own, _)| **own == *name.as_bytes())?;
        let folder = inode.as_any().downcast_ref::<Folder>()?;
        folder.this.upgrade()
    }

    /// The file system it is of.
    pub fn system(&self) -> PseudoFs {
        self.system
    }
}

impl Inode for Folder {
    fn meta(&self) -> Meta {
        self.system.with_owner(&self.meta)
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

impl Directory for Folder {
    fn find(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        let fixed = self.fixed.lock().iter().find(|(own, _)| **own == *name).map(|(_, inode)| inode.clone());
        fixed.or_else(|| self.more.as_ref()?.find(name)).ok_or(Errno::ENOENT)
    }

    fn parent(&self) -> Option<Arc<dyn Inode>> {
        self.parent.as_ref()?.upgrade().map(|parent| parent as Arc<dyn Inode>)
    }

    fn list(&self, from: u64, each: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<(), Errno> {
        // Fixed entries are added at the end, and stay.
        let mut index = from.saturating_sub(FIRST);
        while index < MORE {
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
        if let Some(more) = &self.more {
            let named = &mut |entry: Entry<'_>| each(Entry { next: MORE + entry.next, ..entry });
            more.list(from.saturating_sub(MORE), named);
        }
        Ok(())
    }

    fn make(&self, name: &[u8], new: &New<'_>) -> Result<Arc<dyn Inode>, Errno> {
        match &self.more {
            Some(more) if new.kind == Kind::Directory => more.make(name, new.mode, self.this.clone()),
            _ => Err(Errno::EPERM),
        }
    }

    fn remove(&self, name: &[u8], directory: bool) -> Result<(), Errno> {
        match &self.more {
            Some(more) if directory => more.remove(name),
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

    const SYSTEM: PseudoFs = PseudoFs { device: Device { major: 0, minor: 5 }, magic: 7, owner: None };

    #[test]
    fn owners() {
        let system = PseudoFs { owner: Some((|of| (of, of + 1), 5)), ..SYSTEM };
        let folder = Folder::new(system, None, None);
        let inner = folder.add_folder("inner").unwrap();
        let text = Text::read_only(SYSTEM, || Ok(vec![]));
        assert_eq!([inner.meta(), text.meta()].map(|meta| (meta.uid, meta.gid)), [(5, 6), (0, 0)]);
    }

    #[test]
    fn folders() {
        let root = Folder::new(SYSTEM, None, None);
        let inner = root.add_folder("inner").unwrap();
        root.add("text", Text::read_only(SYSTEM, || Ok(vec![]))).unwrap();
        assert!(inner.parent().unwrap().meta().inode == root.meta.inode && root.parent().is_none());
        let mut names = vec![];
        let mut at = FIRST;
        // One at a time.
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
