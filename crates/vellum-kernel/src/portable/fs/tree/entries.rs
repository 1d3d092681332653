//! A directory's entries: found by name, listed by position. A position never changes and is never
//! reused, so that `getdents64` resumes correctly while entries are added and removed.

use super::node::Node;
use crate::errno::Errno;
use crate::fs::inode::FIRST;
use crate::fs::inode::Inode;
use crate::fs::meta::Kind;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::hash::BuildHasher;
use hashbrown::{DefaultHashBuilder, HashTable};

/// A directory's entries.
pub(super) struct Entries {
    /// The parent directory; dangling for a root, and for a removed directory.
    pub parent: Weak<Node>,
    /// The directory was removed: nothing can be added (Linux: `S_DEAD`).
    pub removed: bool,
    /// All entries are here; false for a directory on a disk that was not read yet.
    pub complete: bool,
    /// The slots, in ascending order of their positions. A removed entry leaves an empty slot;
    /// [`Entries::remove`] drops the empty slots when there are many.
    slots: Vec<Slot>,
    /// A hash table from an entry's name to its position.
    index: HashTable<u64>,
    hash: DefaultHashBuilder,
    next_position: u64,
}

/// The inode of an entry.
pub(super) enum Child {
    InMemory(Arc<Node>),
    /// The inode was not looked up yet.
    OnDisk {
        number: u64,
        kind: Kind,
    },
}

impl Child {
    /// Returns the inode's number and kind.
    pub fn identity(&self) -> (u64, Kind) {
        match self {
            Child::InMemory(node) => (node.number, node.kind()),
            Child::OnDisk { number, kind } => (*number, *kind),
        }
    }
}

/// A position, and its entry until that is removed.
struct Slot {
    position: u64,
    entry: Option<(Box<[u8]>, Child)>,
}

/// Returns the name and inode of the entry at a position.
fn at(slots: &[Slot], position: u64) -> Option<&(Box<[u8]>, Child)> {
    let index = slots.binary_search_by_key(&position, |slot| slot.position).ok()?;
    slots[index].entry.as_ref()
}

impl Entries {
    pub fn new(parent: Weak<Node>, complete: bool) -> Self {
        let (slots, index) = (Vec::new(), HashTable::new());
        Entries {
            parent,
            removed: false,
            complete,
            slots,
            index,
            hash: DefaultHashBuilder::default(),
            next_position: FIRST,
        }
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns the inode of an entry.
    pub fn find(&self, name: &[u8]) -> Option<&Child> {
        let same = |position: &u64| at(&self.slots, *position).is_some_and(|(own, _)| **own == *name);
        let position = self.index.find(self.hash.hash_one(name), same)?;
        at(&self.slots, *position).map(|(_, child)| child)
    }

    /// Marks an empty directory as removed, so that nothing can be added.
    ///
    /// # Errors
    /// `ENOTEMPTY`.
    pub fn close(&mut self) -> Result<(), Errno> {
        self.removed = self.len() == 0;
        if self.removed { Ok(()) } else { Err(Errno::ENOTEMPTY) }
    }

    /// Allocates all that one more entry takes, so that the next [`Entries::add`] cannot fail.
    /// Returns a copy of the name for it.
    ///
    /// # Errors
    /// `ENOENT`: the directory was removed; `ENOMEM`.
    pub fn reserve(&mut self, name: &[u8]) -> Result<Box<[u8]>, Errno> {
        if self.removed {
            return Err(Errno::ENOENT);
        }
        let mut copy = Vec::new();
        copy.try_reserve_exact(name.len())?;
        copy.extend_from_slice(name);
        self.slots.try_reserve(1)?;
        let (slots, hash) = (&self.slots, &self.hash);
        let rehash = |position: &u64| at(slots, *position).map_or(0, |(name, _)| hash.hash_one(&**name));
        self.index.try_reserve(1, rehash).map_err(|_| Errno::ENOMEM)?;
        Ok(copy.into_boxed_slice())
    }

    /// Adds an entry. `name` comes from [`Entries::reserve`], and no entry has it.
    pub fn add(&mut self, name: Box<[u8]>, child: Child) {
        let position = self.next_position;
        self.next_position += 1;
        let hashed = self.hash.hash_one(&*name);
        self.slots.push(Slot { position, entry: Some((name, child)) });
        let (slots, hash) = (&self.slots, &self.hash);
        let rehash = |position: &u64| at(slots, *position).map_or(0, |(name, _)| hash.hash_one(&**name));
        self.index.insert_unique(hashed, position, rehash);
    }

    /// Removes an entry, and returns its inode.
    pub fn remove(&mut self, name: &[u8]) -> Option<Child> {
        let hashed = self.hash.hash_one(name);
        let slots = &self.slots;
        let same = |position: &u64| at(slots, *position).is_some_and(|(own, _)| **own == *name);
        let (position, _) = self.index.find_entry(hashed, same).ok()?.remove();
        let index = self.slots.binary_search_by_key(&position, |slot| slot.position).ok()?;
        let entry = self.slots[index].entry.take();
        if self.slots.len() > 2 * self.index.len() + 16 {
            self.slots.retain(|slot| slot.entry.is_some());
        }
        entry.map(|(_, child)| child)
    }

    /// Removes all entries, of which only a part could be read from the disk.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.index.clear();
    }

    /// Sets the inode of an existing entry, and returns the former one.
    pub fn replace(&mut self, name: &[u8], child: Child) -> Option<Child> {
        let same = |position: &u64| at(&self.slots, *position).is_some_and(|(own, _)| **own == *name);
        let position = *self.index.find(self.hash.hash_one(name), same)?;
        let index = self.slots.binary_search_by_key(&position, |slot| slot.position).ok()?;
        let (_, old) = self.slots[index].entry.as_mut()?;
        Some(core::mem::replace(old, child))
    }

    /// Iterates over position, name and inode of the entries from a position on.
    pub fn iter_from(&self, position: u64) -> impl Iterator<Item = (u64, &[u8], &Child)> {
        let first = self.slots.partition_point(|slot| slot.position < position);
        self.slots[first..].iter().filter_map(|slot| {
            let (name, child) = slot.entry.as_ref()?;
            Some((slot.position, &**name, child))
        })
    }
}
