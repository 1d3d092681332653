//! The entries of a directory: found by name, listed by position. A position never changes and is
//! never used again, so that a listing goes on where it was, whatever came and went meanwhile.

use super::node::Node;
use crate::errno::Errno;
use crate::fs::inode::FIRST;
use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::hash::BuildHasher;
use hashbrown::{DefaultHashBuilder, HashTable};

pub(super) struct Entries {
    /// Of the directory that this one is in; dangling for a root, or once removed.
    pub parent: Weak<Node>,
    /// Nothing can be added any more.
    pub removed: bool,
    /// Ascending by position; what was removed leaves a gap until there are too many.
    slots: Vec<Slot>,
    /// Positions, by the hash of the name.
    index: HashTable<u64>,
    hash: DefaultHashBuilder,
    next: u64,
}

struct Slot {
    position: u64,
    entry: Option<(Box<[u8]>, Arc<Node>)>,
}

fn at(slots: &[Slot], position: u64) -> Option<&(Box<[u8]>, Arc<Node>)> {
    let index = slots.binary_search_by_key(&position, |slot| slot.position).ok()?;
    slots[index].entry.as_ref()
}

impl Entries {
    pub fn new(parent: Weak<Node>) -> Self {
        let (slots, index) = (Vec::new(), HashTable::new());
        Entries { parent, removed: false, slots, index, hash: DefaultHashBuilder::default(), next: FIRST }
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    pub fn find(&self, name: &[u8]) -> Option<&Arc<Node>> {
        let same = |position: &u64| at(&self.slots, *position).is_some_and(|(own, _)| **own == *name);
        let position = self.index.find(self.hash.hash_one(name), same)?;
        at(&self.slots, *position).map(|(_, node)| node)
    }

    /// From now on nothing can be added; if there is nothing.
    pub fn close(&mut self) -> Result<(), Errno> {
        self.removed = self.len() == 0;
        if self.removed { Ok(()) } else { Err(Errno::ENOTEMPTY) }
    }

    /// Have memory for one more entry; what is added next can't fail.
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

    /// Add an entry, whose name is not there and comes from [`Entries::reserve`].
    pub fn add(&mut self, name: Box<[u8]>, node: Arc<Node>) {
        let position = self.next;
        self.next += 1;
        let hashed = self.hash.hash_one(&*name);
        self.slots.push(Slot { position, entry: Some((name, node)) });
        let (slots, hash) = (&self.slots, &self.hash);
        let rehash = |position: &u64| at(slots, *position).map_or(0, |(name, _)| hash.hash_one(&**name));
        self.index.insert_unique(hashed, position, rehash);
    }

    pub fn remove(&mut self, name: &[u8]) -> Option<Arc<Node>> {
        let hashed = self.hash.hash_one(name);
        let slots = &self.slots;
        let same = |position: &u64| at(slots, *position).is_some_and(|(own, _)| **own == *name);
        let (position, _) = self.index.find_entry(hashed, same).ok()?.remove();
        let index = self.slots.binary_search_by_key(&position, |slot| slot.position).ok()?;
        let entry = self.slots[index].entry.take();
        if self.slots.len() > 2 * self.index.len() + 16 {
            self.slots.retain(|slot| slot.entry.is_some());
        }
        entry.map(|(_, node)| node)
    }

    /// Let a name stand for another inode; for which it stood.
    pub fn replace(&mut self, name: &[u8], node: Arc<Node>) -> Option<Arc<Node>> {
        let same = |position: &u64| at(&self.slots, *position).is_some_and(|(own, _)| **own == *name);
        let position = *self.index.find(self.hash.hash_one(name), same)?;
        let index = self.slots.binary_search_by_key(&position, |slot| slot.position).ok()?;
        let (_, old) = self.slots[index].entry.as_mut()?;
        Some(core::mem::replace(old, node))
    }

    /// Entries from a position on, with theirs.
    pub fn starting(&self, position: u64) -> impl Iterator<Item = (u64, &[u8], &Arc<Node>)> {
        let first = self.slots.partition_point(|slot| slot.position < position);
        self.slots[first..].iter().filter_map(|slot| {
            let (name, node) = slot.entry.as_ref()?;
            Some((slot.position, &**name, node))
        })
    }
}
