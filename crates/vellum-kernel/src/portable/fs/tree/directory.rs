//! Directory operations: creating, linking, removing and renaming entries.

use super::entries::{Child, Entries};
use super::node::{self, Node};
use crate::errno::Errno;
use crate::fs::bytes::copy_of;
use crate::fs::inode::{Directory, Entry, Inode, NewInode};
use crate::fs::meta::Kind;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::mem;
use linux_raw_sys::general::{RENAME_EXCHANGE, RENAME_NOREPLACE};
use spin::MutexGuard;

/// The locked entries of a rename's one or two directories.
struct Pair<'a> {
    from: MutexGuard<'a, Entries>,
    /// The entries of the target directory; `None` if it is the source directory.
    to: Option<MutexGuard<'a, Entries>>,
}

impl Pair<'_> {
    fn to(&mut self) -> &mut Entries {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
}

impl Node {
    /// Returns true if this inode is `other`, or a directory below it. The caller holds `renaming`.
    fn is_within(&self, other: &Node) -> bool {
        let mut at = self.this.upgrade();
        while let Some(node) = at {
            if node.number == other.number {
                return true;
            }
            at = node.entries().and_then(|entries| entries.lock().parent.upgrade());
        }
        false
    }

    /// Checks that a rename may replace the inode `old` by this one. If both are directories and
    /// `old` is empty, marks `old` as removed, so that nothing is created in it from now on. The
    /// caller holds all locks of the rename.
    ///
    /// # Errors
    /// `ENOTDIR`, `EISDIR`, `ENOTEMPTY`.
    fn begin_replace(&self, old: &Node) -> Result<(), Errno> {
        match (self.is_directory(), old.entries()) {
            (true, None) => Err(Errno::ENOTDIR),
            (false, Some(_)) => Err(Errno::EISDIR),
            (true, Some(_)) => old.lock_entries()?.close(),
            (false, None) => Ok(()),
        }
    }

    /// Permits again that entries are added to a directory whose removal failed on the disk.
    fn reopen(&self) {
        if let Some(entries) = self.entries() {
            entries.lock().removed = false;
        }
    }

    /// Takes one off the link count, for a name that was removed. A directory has only one name, so
    /// it is also marked as removed.
    fn drop_link(&self) {
        self.count_link(false);
        if self.fs.is_over_disk && !self.is_directory() {
            // Its other names on the disk lead to what the disk has, so the inode, which may have
            // changed, stays in memory for them.
            let mut attributes = self.attributes.lock();
            attributes.stays = self.this.upgrade().filter(|_| attributes.links > 0);
        }
        if let Some(entries) = self.entries() {
            let mut entries = entries.lock();
            entries.removed = true;
            entries.parent = Weak::new();
            self.attributes.lock().links = 0;
        }
    }

    /// Completes the move of `moved` from this directory to `to`. If `moved` is a directory, `to`
    /// becomes its parent, and its link (`..`) is counted for `to` instead of for this directory.
    fn finish_move(&self, moved: &Node, to: &Node) {
        if let Some(entries) = moved.entries() {
            entries.lock().parent = to.this.clone();
            if self.number != to.number {
                self.count_link(false);
                to.count_link(true);
            }
        }
        moved.attributes.lock().changed = self.fs.host.now();
    }
}

impl Node {
    /// Renames an entry. Returns false, with nothing changed, if another thread created an entry
    /// with the new name after this function found none. The caller then retries.
    ///
    /// # Errors
    /// Those of `renameat2`.
    fn try_rename(&self, name: &[u8], to: &Node, to_name: &[u8], flags: u32) -> Result<bool, Errno> {
        let exchange = flags == RENAME_EXCHANGE;
        let renaming = self.fs.renaming.lock();
        let moved = self.child(&mut *self.lock_entries()?, name)?.ok_or(Errno::ENOENT)?;
        let old = to.child(&mut *to.lock_entries()?, to_name)?;
        if moved.is_directory() && to.is_within(&moved) {
            return Err(Errno::EINVAL);
        }
        if let Some(old) = &old
            && old.is_directory()
            && self.is_within(old)
        {
            return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY });
        }
        let from_entries = self.lock_entries()?;
        let to_entries = if self.number == to.number { None } else { Some(to.lock_entries()?) };
        let mut pair = Pair { from: from_entries, to: to_entries };
        // `renaming` excludes removals, but an entry may have been created since `to` was searched.
        if old.is_none() && pair.to().find(to_name).is_some() {
            return Ok(false);
        }
        let on_disk = || self.fs.on_disk(|disk| disk.rename((self.number, name), (to.number, to_name), exchange));
        let replaced = match &old {
            Some(_) if flags & RENAME_NOREPLACE != 0 => return Err(Errno::EEXIST),
            None if exchange => return Err(Errno::ENOENT),
            Some(old) if Arc::ptr_eq(old, &moved) => return Ok(true),
            Some(old) if exchange => {
                on_disk()?;
                pair.to().replace(to_name, Child::InMemory(moved.clone()));
                pair.from.replace(name, Child::InMemory(old.clone()));
                None
            }
            Some(old) => {
                moved.begin_replace(old)?;
                on_disk().inspect_err(|_| old.reopen())?;
                pair.to().replace(to_name, Child::InMemory(moved.clone()));
                pair.from.remove(name);
                Some(old)
            }
            None => {
                let copy = pair.to().reserve(to_name)?;
                on_disk()?;
                pair.from.remove(name);
                pair.to().add(copy, Child::InMemory(moved.clone()));
                None
            }
        };
        drop(pair);
        self.finish_move(&moved, to);
        if exchange && let Some(old) = &old {
            to.finish_move(old, self);
        }
        if let Some(replaced) = replaced {
            replaced.drop_link();
            if replaced.is_directory() {
                to.count_link(false);
            }
        }
        self.touch_modified();
        to.touch_modified();
        drop(renaming);
        // These may be the last references: they are dropped with no lock held.
        mem::drop((moved, old));
        Ok(true)
    }
}

impl Directory for Node {
    fn find(&self, name: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
        let found = self.child(&mut *self.lock_entries()?, name)?;
        found.map(|node| node as Arc<dyn Inode>).ok_or(Errno::ENOENT)
    }

    fn parent(&self) -> Option<Arc<dyn Inode>> {
        self.entries()?.lock().parent.upgrade().map(|parent| parent as Arc<dyn Inode>)
    }

    fn list(&self, from: u64, each: &mut dyn FnMut(Entry<'_>) -> bool) -> Result<(), Errno> {
        let entries = self.lock_entries()?;
        if entries.removed {
            return Err(Errno::ENOENT);
        }
        for (position, name, child) in entries.iter_from(from) {
            let (inode, kind) = child.identity();
            if !each(Entry { name, inode, kind, next: position + 1 }) {
                break;
            }
        }
        drop(entries);
        self.touch_accessed();
        Ok(())
    }

    fn name_of(&self, child: &Arc<dyn Inode>) -> Option<Vec<u8>> {
        let child = child.as_any().downcast_ref::<Node>()?;
        copy_of(self.lock_entries().ok()?.name_of(child)?).ok()
    }

    fn make(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<dyn Inode>, Errno> {
        let this = self.this.upgrade().ok_or(Errno::ENOENT)?;
        let mut entries = self.lock_entries()?;
        if entries.find(name).is_some() {
            return Err(Errno::EEXIST);
        }
        let copy = entries.reserve(name)?;
        let made = match self.fs.kept_by() {
            None => {
                let made = node::make(&self.fs, new, Some(&this))?;
                entries.add(copy, Child::InMemory(made.clone()));
                Ok(made)
            }
            Some(disk) => {
                let number = disk.make(self.number, name, new)?;
                entries.add(copy, Child::OnDisk { number, kind: new.kind });
                // Without memory for the inode, the file exists all the same.
                self.child(&mut entries, name).and_then(|made| made.ok_or(Errno::ENOENT))
            }
        };
        drop(entries);
        if new.kind == Kind::Directory {
            self.count_link(true);
        }
        self.touch_modified();
        Ok(made?)
    }

    fn make_tmpfile(&self, new: &NewInode<'_>) -> Result<Arc<dyn Inode>, Errno> {
        if self.fs.kept_by().is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        let made = node::make(&self.fs, new, None)?;
        made.clear_links(true);
        Ok(made)
    }

    fn link(&self, name: &[u8], inode: &Arc<dyn Inode>) -> Result<(), Errno> {
        let node = inode.as_any().downcast_ref::<Node>().and_then(|node| node.this.upgrade()).ok_or(Errno::EXDEV)?;
        if !Arc::ptr_eq(&node.fs, &self.fs) {
            return Err(Errno::EXDEV);
        }
        if node.is_directory() {
            return Err(Errno::EPERM);
        }
        let mut entries = self.lock_entries()?;
        if entries.find(name).is_some() {
            return Err(Errno::EEXIST);
        }
        let copy = entries.reserve(name)?;
        {
            let now = self.fs.host.now();
            let mut attributes = node.attributes.lock();
            if attributes.links == 0 && !attributes.linkable {
                return Err(Errno::ENOENT);
            }
            let links = attributes.links.checked_add(1).ok_or(Errno::EMLINK)?;
            self.fs.on_disk(|disk| disk.link(self.number, name, node.number))?;
            attributes.links = links;
            attributes.linkable = false;
            attributes.changed = now;
        }
        entries.add(copy, Child::InMemory(node));
        drop(entries);
        self.touch_modified();
        Ok(())
    }

    fn remove(&self, name: &[u8], directory: bool) -> Result<(), Errno> {
        // `renaming` permits locking a second directory, the one to remove, while its parent is
        // locked.
        let renaming = self.fs.renaming.lock();
        let mut entries = self.lock_entries()?;
        let node = self.child(&mut entries, name)?.ok_or(Errno::ENOENT)?;
        match (node.is_directory(), directory) {
            (false, true) => return Err(Errno::ENOTDIR),
            (true, false) => return Err(Errno::EISDIR),
            (true, true) => node.lock_entries()?.close()?,
            (false, false) => {}
        }
        self.fs.on_disk(|disk| disk.remove(self.number, name, directory)).inspect_err(|_| node.reopen())?;
        entries.remove(name);
        drop(entries);
        node.drop_link();
        if directory {
            self.count_link(false);
        }
        self.touch_modified();
        drop(renaming);
        // This may be the last reference, which frees the contents: it is dropped with no lock
        // held.
        drop(node);
        Ok(())
    }

    fn rename(&self, name: &[u8], to: &dyn Inode, to_name: &[u8], flags: u32) -> Result<(), Errno> {
        let to = to.as_any().downcast_ref::<Node>().filter(|to| Arc::ptr_eq(&to.fs, &self.fs)).ok_or(Errno::EXDEV)?;
        while !self.try_rename(name, to, to_name, flags)? {}
        Ok(())
    }
}
