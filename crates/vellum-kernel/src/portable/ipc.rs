//! System V IPC objects (such as shared memory segments): processes find them by a key that they
//! agree on, and then by an ID.

use crate::errno::Errno;
use crate::fs::FileCredentials;
use alloc::vec::Vec;
use linux_raw_sys::general::{CAP_IPC_OWNER, CAP_SYS_ADMIN};

/// The key that creates an object which only its ID finds (`IPC_PRIVATE`).
pub const PRIVATE: i32 = 0;
/// Creates the object if none has the key (`IPC_CREAT`).
pub const CREATE: u32 = 0o1000;
/// Fails if an object has the key already (`IPC_EXCL`).
pub const EXCLUSIVE: u32 = 0o2000;
/// Access for reading.
pub const READ: u32 = 4;
/// Access for writing.
pub const WRITE: u32 = 2;

/// The most objects of a table (Linux: `IPCMNI`). An ID is `index + MAX_OBJECTS * generation`, so
/// that an index yields another ID when it is reused.
const MAX_OBJECTS: u32 = 1 << 15;

/// An object's key, owner and access rights (Linux: `struct ipc64_perm`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct IpcPerm {
    pub key: i32,
    pub uid: u32,
    pub gid: u32,
    /// The user and the group of the creator.
    pub creator: [u32; 2],
    /// The access rights, as a file's mode.
    pub mode: u32,
}

impl IpcPerm {
    /// Checks that `cred` permits the access `wanted`: [`READ`], [`WRITE`], 1 (execute), or a sum
    /// of them.
    ///
    /// # Errors
    /// `EACCES`.
    pub fn check_access(&self, cred: &FileCredentials, wanted: u32) -> Result<(), Errno> {
        let shift = match () {
            () if cred.uid == self.uid || cred.uid == self.creator[0] => 6,
            () if cred.in_group(self.gid) || cred.in_group(self.creator[1]) => 3,
            () => 0,
        };
        let missing = wanted & 7 & !(self.mode >> shift);
        if missing == 0 || cred.has(CAP_IPC_OWNER) { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Checks for the right to change or remove the object.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn check_owner(&self, cred: &FileCredentials) -> Result<(), Errno> {
        let own = cred.uid == self.uid || cred.uid == self.creator[0] || cred.has(CAP_SYS_ADMIN);
        if own { Ok(()) } else { Err(Errno::EPERM) }
    }
}

/// An IPC object.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct IpcObject<T> {
    pub id: u32,
    pub perm: IpcPerm,
    pub data: T,
}

/// All IPC objects of a kind (Linux: `struct ipc_ids`).
#[derive(Debug)]
pub struct IpcTable<T> {
    slots: Vec<Option<IpcObject<T>>>,
    generation: u32,
    /// The ID that the next object gets if its index is free; otherwise the object gets the next
    /// free index after it.
    pub next_id: Option<u32>,
}

impl<T> Default for IpcTable<T> {
    fn default() -> Self {
        IpcTable { slots: Vec::new(), generation: 0, next_id: None }
    }
}

impl<T> IpcTable<T> {
    /// Iterates over all objects.
    pub fn iter(&self) -> impl Iterator<Item = &IpcObject<T>> {
        self.slots.iter().flatten()
    }

    /// Iterates over all objects, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut IpcObject<T>> {
        self.slots.iter_mut().flatten()
    }

    /// Returns the object with this ID.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn get(&mut self, id: u32) -> Result<&mut IpcObject<T>, Errno> {
        let slot = self.slots.get_mut((id % MAX_OBJECTS) as usize).and_then(Option::as_mut);
        slot.filter(|object| object.id == id).ok_or(Errno::EINVAL)
    }

    /// Returns the object at this index, up to [`IpcTable::max_index`].
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn get_by_index(&mut self, index: u32) -> Result<&mut IpcObject<T>, Errno> {
        self.slots.get_mut(index as usize).and_then(Option::as_mut).ok_or(Errno::EINVAL)
    }

    /// Returns the highest index in use, or 0 if none is.
    pub fn max_index(&self) -> usize {
        self.slots.iter().rposition(Option::is_some).unwrap_or(0)
    }

    /// Returns the ID of the object with this key, or of a new object. `flags` are the wanted
    /// rights, as a mode, with [`CREATE`] and [`EXCLUSIVE`]. `fits` checks that the caller can use
    /// an existing object; `create` makes a new one.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `EACCES`, `ENOSPC` (there are `max` objects), `ENOMEM`; those of `fits`
    /// and `create`.
    pub fn get_or_create(
        &mut self,
        key: i32,
        flags: u32,
        cred: &FileCredentials,
        max: u64,
        fits: impl FnOnce(&T) -> Result<(), Errno>,
        create: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<u32, Errno> {
        let found = self.iter().find(|object| key != PRIVATE && object.perm.key == key);
        if let Some(object) = found {
            if flags & CREATE != 0 && flags & EXCLUSIVE != 0 {
                return Err(Errno::EEXIST);
            }
            fits(&object.data)?;
            // Require all rights that any of the three octal digits of `flags` names (Linux:
            // `ipcperms`).
            object.perm.check_access(cred, flags >> 6 | flags >> 3 | flags)?;
            return Ok(object.id);
        }
        if key != PRIVATE && flags & CREATE == 0 {
            return Err(Errno::ENOENT);
        }
        if self.iter().count() as u64 >= max.min(MAX_OBJECTS.into()) {
            return Err(Errno::ENOSPC);
        }
        let data = create()?;
        let first = self.next_id.map_or(0, |next_id| (next_id % MAX_OBJECTS) as usize);
        let free = self.slots.iter().skip(first).position(Option::is_none);
        let index = free.map_or(first.max(self.slots.len()), |free| first + free);
        if index >= MAX_OBJECTS as usize {
            return Err(Errno::ENOSPC);
        }
        let more = (index + 1).saturating_sub(self.slots.len());
        self.slots.try_reserve(more)?;
        self.slots.extend((0..more).map(|_| None));
        let generation = match self.next_id.take() {
            Some(next_id) => next_id / MAX_OBJECTS,
            None => {
                self.generation += 1;
                (self.generation - 1) % (i32::MAX as u32 / MAX_OBJECTS)
            }
        };
        let id = generation * MAX_OBJECTS + index as u32;
        let perm = IpcPerm { key, uid: cred.uid, gid: cred.gid, creator: [cred.uid, cred.gid], mode: flags & 0o777 };
        self.slots[index] = Some(IpcObject { id, perm, data });
        Ok(id)
    }

    /// Removes the objects for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&IpcObject<T>) -> bool) {
        for slot in &mut self.slots {
            slot.take_if(|object| !keep(object));
        }
        if self.iter().next().is_none() {
            // Free the empty table: its memory is charged to the program that made it grow.
            self.slots = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;

    fn user(uid: u32) -> FileCredentials {
        FileCredentials { uid, gid: uid, groups: Arc::default(), caps: 0 }
    }

    fn get(table: &mut IpcTable<u32>, key: i32, flags: u32, cred: &FileCredentials) -> Result<u32, Errno> {
        table.get_or_create(key, flags, cred, 3, |_| Ok(()), || Ok(1))
    }

    #[test]
    fn an_object_is_found_by_key_and_by_id() {
        let (mut table, one) = (IpcTable::default(), user(1));
        assert_eq!(get(&mut table, 7, 0o600, &one), Err(Errno::ENOENT));
        let id = get(&mut table, 7, CREATE | 0o600, &one).unwrap();
        assert_eq!(get(&mut table, 7, CREATE, &one), Ok(id));
        assert_eq!(get(&mut table, 7, CREATE | EXCLUSIVE, &one), Err(Errno::EEXIST));
        let private = get(&mut table, PRIVATE, 0, &one).unwrap();
        assert_ne!(get(&mut table, PRIVATE, 0, &one), Ok(private));
        assert_eq!(get(&mut table, 8, CREATE, &one), Err(Errno::ENOSPC));
        table.retain(|object| object.id != id);
        assert_eq!(table.get(id).map(|object| object.data), Err(Errno::EINVAL));
        // The index is reused, with another ID.
        let other = get(&mut table, 7, CREATE, &one).unwrap();
        assert_ne!(other, id);
        assert_eq!((other % MAX_OBJECTS, table.max_index()), (id % MAX_OBJECTS, 2));
    }

    #[test]
    fn a_requested_id_is_used_or_the_next_free_index() {
        let (mut table, one) = (IpcTable::default(), user(1));
        let next_id = 7 * MAX_OBJECTS + 5;
        let mut create = |key| {
            table.next_id = Some(next_id);
            get(&mut table, key, CREATE, &one)
        };
        assert_eq!((create(1), create(2)), (Ok(next_id), Ok(next_id + 1)));
        assert_eq!((get(&mut table, 3, CREATE, &one), table.max_index()), (Ok(0), 6));
        assert_eq!(table.get(next_id).map(|object| object.perm.key), Ok(1));
    }

    #[test]
    fn access_follows_mode_and_owner() {
        let (mut table, one, other) = (IpcTable::default(), user(1), user(2));
        let id = get(&mut table, 7, CREATE | 0o640, &one).unwrap();
        assert_eq!(get(&mut table, 7, 0o400, &other), Err(Errno::EACCES));
        assert_eq!(get(&mut table, 7, 0, &other), Ok(id));
        let perm = table.get(id).unwrap().perm;
        assert!(perm.check_access(&one, READ | WRITE).is_ok() && perm.check_owner(&one).is_ok());
        assert_eq!(perm.check_owner(&other), Err(Errno::EPERM));
        let mut member = user(2);
        member.groups = Arc::new(alloc::vec![1]);
        assert!(perm.check_access(&member, READ).is_ok());
        assert_eq!(perm.check_access(&member, WRITE), Err(Errno::EACCES));
        assert!(perm.check_access(&FileCredentials::root(), READ | WRITE).is_ok());
    }
}
