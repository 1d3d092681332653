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
use core::ptr;
use hashbrown::{DefaultHashBuilder, HashTable};

/// A directory's entries.
pub(super) struct Entries {
    /// The parent directory; dangling for a root, and for a removed directory.
    pub parent: Weak<Node>,
    /// The directory was removed: nothing can be added (Linux: `S_DEAD`).
    pub removed: bool,
    /// All entries are here; false for a directory on a disk that was not read yet.
    pub complete: bool,
    /// The directory's size, which does not depend on which entries are here.
    pub size: Size,
    /// The slots, in ascending order of their positions. A removed entry leaves an empty slot;
    /// [`Entries::remove`] drops the empty slots when there are many.
    slots: Vec<Slot>,
    /// A hash table from an entry's name to its index in `slots`.
    index: HashTable<usize>,
    hash: DefaultHashBuilder,
    next_position: u64,
}

/// The source of a directory's size.
#[derive(Clone, Copy)]
pub(super) enum Size {
    /// The number of its entries, all of which are in memory alone.
    Entries,
    /// The disk, which had this size.
    OnDisk(u64),
    /// The disk, which was changed since.
    Changed,
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

/// Returns whether the slot with this index has an entry of this name.
fn has_name(slots: &[Slot], index: usize, name: &[u8]) -> bool {
    let entry = slots.get(index).and_then(|slot| slot.entry.as_ref());
    entry.is_some_and(|(own, _)| is_same(own, name))
}

/// Compares names. Most are short, so that a call of `memcmp` would take longer.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    // The last bytes may be compared twice.
    if a.len() < 4 {
        a.iter().eq(b)
    } else if a.len() < 8 {
        a.first_chunk::<4>() == b.first_chunk() && a.last_chunk::<4>() == b.last_chunk()
    } else {
        let (words, others) = (a.as_chunks::<8>().0, b.as_chunks::<8>().0);
        words.iter().zip(others).all(|(a, b)| a == b) && a.last_chunk::<8>() == b.last_chunk()
    }
}

/// Returns the hash of the name in the slot with this index.
fn hash_at(slots: &[Slot], hash: &DefaultHashBuilder, index: usize) -> u64 {
    let entry = slots.get(index).and_then(|slot| slot.entry.as_ref());
    entry.map_or(0, |(name, _)| hash.hash_one(&**name))
}

impl Entries {
    /// Returns a directory without entries: a new one, or one on a disk that is to be read.
    pub fn new(parent: Weak<Node>, size: Size) -> Self {
        let (slots, index) = (Vec::new(), HashTable::new());
        Entries {
            parent,
            removed: false,
            complete: matches!(size, Size::Entries),
            size,
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
        self.slots[self.slot_of(name)?].entry.as_ref().map(|(_, child)| child)
    }

    /// Returns the name of a directory that is in memory.
    pub fn name_of(&self, child: &Node) -> Option<&[u8]> {
        let is_child = |entry: &Child| matches!(entry, Child::InMemory(node) if ptr::eq(&**node, child));
        let mut entries = self.slots.iter().filter_map(|slot| slot.entry.as_ref());
        entries.find(|(_, entry)| is_child(entry)).map(|(name, _)| &**name)
    }

    /// Returns the index of the slot with an entry's name.
    fn slot_of(&self, name: &[u8]) -> Option<usize> {
        self.index.find(self.hash.hash_one(name), |&index| has_name(&self.slots, index, name)).copied()
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
        self.index.try_reserve(1, |&index| hash_at(slots, hash, index)).map_err(|_| Errno::ENOMEM)?;
        Ok(copy.into_boxed_slice())
    }

    /// Adds an entry. `name` comes from [`Entries::reserve`], and no entry has it.
    pub fn add(&mut self, name: Box<[u8]>, child: Child) {
        let position = self.next_position;
        self.next_position += 1;
        let hashed = self.hash.hash_one(&*name);
        self.slots.push(Slot { position, entry: Some((name, child)) });
        let (slots, hash) = (&self.slots, &self.hash);
        self.index.insert_unique(hashed, slots.len() - 1, |&index| hash_at(slots, hash, index));
    }

    /// Removes an entry, and returns its inode.
    pub fn remove(&mut self, name: &[u8]) -> Option<Child> {
        let (slots, hash) = (&self.slots, self.hash.hash_one(name));
        let found = self.index.find_entry(hash, |&index| has_name(slots, index, name)).ok()?;
        let (index, _) = found.remove();
        let entry = self.slots[index].entry.take();
        if self.slots.len() > 2 * self.index.len() + 16 {
            self.drop_empty_slots();
        }
        entry.map(|(_, child)| child)
    }

    /// Drops the empty slots; the table, which has room, gets the indices of the others anew.
    fn drop_empty_slots(&mut self) {
        self.slots.retain(|slot| slot.entry.is_some());
        self.index.clear();
        let (slots, hash) = (&self.slots, &self.hash);
        for index in 0..slots.len() {
            self.index.insert_unique(hash_at(slots, hash, index), index, |&other| hash_at(slots, hash, other));
        }
    }

    /// Removes all entries, of which only a part could be read from the disk.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.index.clear();
    }

    /// Sets the inode of an existing entry, and returns the former one.
    pub fn replace(&mut self, name: &[u8], child: Child) -> Option<Child> {
        let index = self.slot_of(name)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_if_all_bytes_are() {
        let name = b"abcdefghijklmnopqrst";
        for len in 0..=name.len() {
            assert!(is_same(&name[..len], &name.to_vec()[..len]));
            assert!(!is_same(&name[..len], &name[..len.saturating_sub(1)]) || len == 0);
            for at in 0..len {
                let mut other = *name;
                other[at] ^= 0x20;
                assert!(!is_same(&name[..len], &other[..len]), "{at} of {len}");
            }
        }
    }
}
