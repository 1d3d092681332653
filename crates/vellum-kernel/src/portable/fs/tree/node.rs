//! Inodes: attributes, creation, and the operations that all kinds have in common.

use super::disk;
use super::entries::{Child, Entries, Size};
use super::regular::{OpenRegular, Regular};
use super::{Capacity, Tree};
use crate::errno::Errno;
use crate::fs::bytes::copy_of;
use crate::fs::inode::{Change, Directory, File, Inode, NewInode, Space};
use crate::fs::meta::{Device, Kind, MODE, Meta, Rights, Time};
use crate::fs::notify::watch::Watches;
use crate::fs::pipe::Pipe;
use crate::fs::write_access::WriteAccess;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use linux_raw_sys::general::{IN_DELETE_SELF, IN_ISDIR, IN_UNMOUNT};
use spin::{Mutex, MutexGuard, Once};

/// The longest target of a symbolic link, without a NUL.
const LONGEST_TARGET: usize = 4095;
/// The bytes that each entry adds to a directory's `st_size` (Linux: `BOGO_DIRENT_SIZE`).
const ENTRY_SIZE: u64 = 20;

/// An inode.
pub struct Node {
    pub(super) fs: Arc<Tree>,
    pub(super) this: Weak<Node>,
    pub(super) number: u64,
    special: Device,
    pub(super) attributes: Mutex<Attributes>,
    pub(super) body: Body,
    /// The inode's watches, once it has had one.
    watches: Once<Arc<Watches>>,
}

/// The attributes that change over an inode's life.
pub(super) struct Attributes {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    /// The inode has no name, but `linkat` may give it one (Linux: `I_LINKABLE`).
    pub linkable: bool,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
    born: Time,
    /// The disk does not have the times yet.
    pub dirty: bool,
    /// The inode itself, if it stays in memory without a name there.
    pub stays: Option<Arc<Node>>,
}

/// The contents of an inode, by its kind.
pub(super) enum Body {
    Directory(Mutex<Entries>),
    Regular(Regular),
    Link(Box<[u8]>),
    Fifo(Arc<Pipe>),
    /// An inode without contents of its own, such as a device or a socket.
    Other(Kind),
}

/// Returns a new empty directory, which is not in `parent`'s entries yet.
pub(super) fn directory(fs: &Arc<Tree>, new: &NewInode<'_>, parent: Option<&Arc<Node>>) -> Arc<Node> {
    let parent = parent.map_or(Weak::new(), Arc::downgrade);
    with_body(fs, new, Body::Directory(Mutex::new(Entries::new(parent, Size::Entries))))
}

/// Returns the inode `number` of the tree's disk, from memory or from the disk. `at` is the
/// directory and the name by which it was found; `None` for the root directory.
///
/// # Errors
/// `EIO`, `ENOMEM`.
pub(super) fn load(fs: &Arc<Tree>, number: u64, at: Option<(&Arc<Node>, &[u8])>) -> Result<Arc<Node>, Errno> {
    let disk = fs.disk.as_ref().ok_or(Errno::EIO)?;
    // The lock makes sure that an inode with two names is in memory once.
    let mut kept = fs.kept.lock();
    if let Some(node) = kept.get(&number).and_then(Weak::upgrade) {
        return Ok(node);
    }
    let found = disk.inode(number, at.map(|(directory, name)| (directory.number, name)))?;
    let body = match found.kind {
        Kind::Directory => {
            let parent = at.map_or(Weak::new(), |(parent, _)| Arc::downgrade(parent));
            Body::Directory(Mutex::new(Entries::new(parent, Size::OnDisk(found.size))))
        }
        Kind::Regular => Body::Regular(Regular::new(fs.host.kept_pages(number, found.size)?)),
        Kind::Link => Body::Link(disk.target(number)?),
        Kind::Fifo => Body::Fifo(Arc::default()),
        kind => Body::Other(kind),
    };
    let attributes = Attributes {
        mode: found.mode & MODE,
        uid: found.uid,
        gid: found.gid,
        links: found.links,
        linkable: false,
        accessed: found.accessed,
        modified: found.modified,
        changed: found.changed,
        born: found.born,
        dirty: false,
        stays: None,
    };
    let node = Node::new(fs, number, found.special, attributes, body);
    kept.insert(number, Arc::downgrade(&node));
    Ok(node)
}

/// Returns a new inode, which is in no directory yet. Its link count is 1, or 2 for a directory.
/// `parent` is the parent of a new directory; other kinds ignore it.
///
/// # Errors
/// `ENAMETOOLONG`, `ENOMEM`.
pub(super) fn make(fs: &Arc<Tree>, new: &NewInode<'_>, parent: Option<&Arc<Node>>) -> Result<Arc<Node>, Errno> {
    let body = match new.kind {
        Kind::Directory => return Ok(directory(fs, new, parent)),
        Kind::Regular => Body::Regular(Regular::new(fs.host.pages()?)),
        Kind::Link if new.target.len() > LONGEST_TARGET => return Err(Errno::ENAMETOOLONG),
        Kind::Link => Body::Link(copy_of(new.target)?.into_boxed_slice()),
        Kind::Fifo => Body::Fifo(Arc::default()),
        kind => Body::Other(kind),
    };
    Ok(with_body(fs, new, body))
}

/// Returns a new inode with this body.
fn with_body(fs: &Arc<Tree>, new: &NewInode<'_>, body: Body) -> Arc<Node> {
    let now = fs.host.now();
    let attributes = Attributes {
        mode: new.mode & MODE,
        uid: new.uid,
        gid: new.gid,
        links: if new.kind == Kind::Directory { 2 } else { 1 },
        linkable: false,
        accessed: now,
        modified: now,
        changed: now,
        born: now,
        dirty: false,
        stays: None,
    };
    Node::new(fs, fs.new_number(), new.special, attributes, body)
}

impl Node {
    fn new(fs: &Arc<Tree>, number: u64, special: Device, attributes: Attributes, body: Body) -> Arc<Node> {
        let (fs, attributes) = (fs.clone(), Mutex::new(attributes));
        Arc::new_cyclic(|this| Node { fs, this: this.clone(), number, special, attributes, body, watches: Once::new() })
    }

    /// Returns the tree to which the inode belongs.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.fs
    }

    /// Returns the entries of a directory as far as they are in memory, or `None` for other kinds.
    pub(super) fn entries(&self) -> Option<&Mutex<Entries>> {
        if let Body::Directory(entries) = &self.body { Some(entries) } else { None }
    }

    /// Locks the entries of a directory, all of which are then in memory.
    ///
    /// # Errors
    /// `ENOTDIR`; `EIO`, `ENOMEM`: they can't be read from the disk.
    pub(super) fn lock_entries(&self) -> Result<MutexGuard<'_, Entries>, Errno> {
        let mut entries = self.entries().ok_or(Errno::ENOTDIR)?.lock();
        if let (false, Some(disk)) = (entries.complete, &self.fs.disk) {
            let read = disk.list(self.number, &mut |name, number, kind| {
                let copy = entries.reserve(name)?;
                entries.add(copy, Child::OnDisk { number, kind });
                Ok(())
            });
            read.inspect_err(|_| entries.clear())?;
            entries.complete = true;
        }
        Ok(entries)
    }

    /// Returns the inode of an entry, which comes from the disk at its first lookup; `None`: there
    /// is no such entry.
    ///
    /// # Errors
    /// `EIO`, `ENOMEM`.
    pub(super) fn child(&self, entries: &mut Entries, name: &[u8]) -> Result<Option<Arc<Node>>, Errno> {
        let number = match entries.find(name) {
            None => return Ok(None),
            Some(Child::InMemory(node)) => return Ok(Some(node.clone())),
            Some(Child::OnDisk { number, .. }) => *number,
        };
        let this = self.this.upgrade().ok_or(Errno::ENOENT)?;
        let node = load(&self.fs, number, Some((&this, name)))?;
        entries.replace(name, Child::InMemory(node.clone()));
        Ok(Some(node))
    }

    /// Has the disk keep the attributes, if they changed in memory alone.
    ///
    /// # Errors
    /// `EIO`, `ENOSPC`.
    pub fn write_attributes(&self) -> Result<(), Errno> {
        let mut attributes = self.lock_attributes();
        if attributes.dirty && attributes.links > 0 {
            match self.fs.on_disk(|disk| disk.set(self.number, &attributes.to_keep())) {
                // A file system that is mounted read-only keeps no times of reads.
                Ok(()) | Err(Errno::EROFS) => {}
                error => return error,
            }
        }
        attributes.dirty = false;
        Ok(())
    }

    pub(super) fn is_directory(&self) -> bool {
        self.entries().is_some()
    }

    /// Sets the link count of an inode without a name to zero. `linkable`: `linkat` may give it a
    /// name.
    pub(super) fn clear_links(&self, linkable: bool) {
        let mut attributes = self.attributes.lock();
        attributes.links = 0;
        attributes.linkable = linkable;
    }

    /// Locks the attributes. They have the time of the last write through a mapping then.
    fn lock_attributes(&self) -> MutexGuard<'_, Attributes> {
        let mut attributes = self.attributes.lock();
        if let Body::Regular(regular) = &self.body
            && let Some(age) = regular.pages.take_mapped_write()
        {
            let at = self.fs.host.now().before(age);
            attributes.modified = attributes.modified.max(at);
            attributes.changed = attributes.changed.max(at);
            attributes.dirty = self.fs.disk.is_some();
        }
        attributes
    }

    /// Returns the size of this directory. If the disk can't say it, it is that of the entries.
    fn directory_size(&self, entries: &Mutex<Entries>) -> u64 {
        let mut entries = entries.lock();
        if let (Size::Changed, Some(disk)) = (entries.size, &self.fs.disk)
            && let Ok(kept) = disk.inode(self.number, None)
        {
            entries.size = Size::OnDisk(kept.size);
        }
        match entries.size {
            Size::OnDisk(size) => size,
            Size::Entries | Size::Changed => entries.len() as u64 * ENTRY_SIZE,
        }
    }

    /// Records that the contents were changed now.
    pub(super) fn touch_modified(&self) {
        if let (Some(entries), Some(_)) = (self.entries(), self.fs.kept_by()) {
            entries.lock().size = Size::Changed;
        }
        let now = self.fs.host.now();
        let mut attributes = self.attributes.lock();
        (attributes.modified, attributes.changed) = (now, now);
        attributes.dirty = self.fs.disk.is_some();
    }

    /// Records a read under the rule of `relatime`: the access time changes only if it is not later
    /// than the last change, or a day old.
    pub(super) fn touch_accessed(&self) {
        let now = self.fs.host.now();
        let mut attributes = self.attributes.lock();
        let last = attributes.accessed;
        if last <= attributes.modified || last <= attributes.changed || now.seconds - last.seconds >= 86400 {
            attributes.accessed = now;
            attributes.dirty = self.fs.disk.is_some();
        }
    }

    /// Adds one to the link count, or takes one off.
    pub(super) fn count_link(&self, more: bool) {
        let now = self.fs.host.now();
        let mut attributes = self.attributes.lock();
        attributes.links = if more { attributes.links + 1 } else { attributes.links.saturating_sub(1) };
        attributes.changed = now;
    }
}

impl Attributes {
    fn to_keep(&self) -> disk::Attributes {
        let Attributes { mode, uid, gid, accessed, modified, .. } = *self;
        disk::Attributes { mode, uid, gid, accessed, modified }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(watches) = self.watches.get() {
            // An inode that still has a name ends with its file system.
            let is_directory = matches!(self.body, Body::Directory(_));
            let unmounted = if is_directory { IN_UNMOUNT | IN_ISDIR } else { IN_UNMOUNT };
            watches.end(if self.attributes.get_mut().links == 0 { IN_DELETE_SELF } else { unmounted });
        }
        if self.fs.disk.is_some() {
            // Another thread may have found the inode on the disk meanwhile.
            let mut kept = self.fs.kept.lock();
            if kept.get(&self.number).is_some_and(|node| node.strong_count() == 0) {
                kept.remove(&self.number);
            }
            drop(kept);
            if let Some(disk) = self.fs.kept_by()
                && self.attributes.lock().links == 0
            {
                disk.forget(self.number);
            }
        }
    }
}

impl Inode for Node {
    fn identity(&self) -> (u64, u64) {
        (self.fs.device.number(), self.number)
    }

    fn rights(&self) -> Rights {
        let attributes = self.attributes.lock();
        Rights { kind: self.kind(), mode: attributes.mode, uid: attributes.uid, gid: attributes.gid }
    }

    fn kind(&self) -> Kind {
        match &self.body {
            Body::Directory(_) => Kind::Directory,
            Body::Regular(_) => Kind::Regular,
            Body::Link(_) => Kind::Link,
            Body::Fifo(_) => Kind::Fifo,
            Body::Other(kind) => *kind,
        }
    }

    fn meta(&self) -> Meta {
        let (size, used) = match &self.body {
            Body::Directory(entries) => (self.directory_size(entries), 0),
            Body::Regular(regular) => (regular.pages.size(), regular.pages.resident()),
            Body::Link(target) => (target.len() as u64, 0),
            Body::Fifo(_) | Body::Other(_) => (0, 0),
        };
        let attributes = self.lock_attributes();
        Meta {
            device: self.fs.device,
            inode: self.number,
            kind: self.kind(),
            mode: attributes.mode,
            links: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            special: self.special,
            size,
            used,
            accessed: attributes.accessed,
            modified: attributes.modified,
            changed: attributes.changed,
            born: attributes.born,
        }
    }

    fn change(&self, change: &Change) -> Result<(), Errno> {
        let now = self.fs.host.now();
        let mut attributes = self.lock_attributes();
        let to_keep = disk::Attributes {
            mode: change.mode.unwrap_or(attributes.mode) & MODE,
            uid: change.uid.unwrap_or(attributes.uid),
            gid: change.gid.unwrap_or(attributes.gid),
            accessed: change.accessed.unwrap_or(attributes.accessed),
            modified: change.modified.unwrap_or(attributes.modified),
        };
        self.fs.on_disk(|disk| disk.set(self.number, &to_keep))?;
        let disk::Attributes { mode, uid, gid, accessed, modified } = to_keep;
        let attributes = &mut *attributes;
        (attributes.mode, attributes.uid, attributes.gid) = (mode, uid, gid);
        (attributes.accessed, attributes.modified, attributes.changed) = (accessed, modified, now);
        attributes.dirty = false;
        Ok(())
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<Arc<dyn File>, Errno> {
        match &self.body {
            Body::Regular(regular) => OpenRegular::open(&self, regular).map(|open| open as Arc<dyn File>),
            Body::Fifo(pipe) => pipe.open(flags),
            Body::Directory(_) => Err(Errno::EISDIR),
            Body::Link(_) => Err(Errno::ELOOP),
            Body::Other(_) => Err(Errno::ENXIO),
        }
    }

    fn directory(&self) -> Option<&dyn Directory> {
        self.is_directory().then_some(self)
    }

    fn target(&self) -> Result<Vec<u8>, Errno> {
        if let Body::Link(target) = &self.body { copy_of(target) } else { Err(Errno::EINVAL) }
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.set_size(size)
    }

    fn direct_alignment(&self) -> Option<u32> {
        let Body::Regular(regular) = &self.body else { return None };
        regular.pages.direct_alignment().map(|alignment| alignment as u32)
    }

    fn write_access(&self) -> Option<&WriteAccess> {
        if let Body::Regular(regular) = &self.body { Some(&regular.write_access) } else { None }
    }

    fn space(&self) -> Space {
        if let Some(disk) = &self.fs.disk {
            return disk.space();
        }
        let Capacity { total, free } = self.fs.host.space();
        let (magic, block) = self.fs.host.kind();
        Space { magic, block, pages: total, free_pages: free, inodes: total, free_inodes: free }
    }

    fn watches(&self, create: bool) -> Option<&Arc<Watches>> {
        if create { Some(self.watches.call_once(Arc::default)) } else { self.watches.get() }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
