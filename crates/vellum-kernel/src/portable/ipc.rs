//! System V's way to name things that processes share: by a key that they agree on, and then by a
//! number.

use crate::errno::Errno;
use crate::fs::FileCredentials;
use alloc::vec::Vec;
use linux_raw_sys::general::{CAP_IPC_OWNER, CAP_SYS_ADMIN};

/// The key of what is not to be found by a key (`IPC_PRIVATE`).
pub const PRIVATE: i32 = 0;
/// Make it, if there is none (`IPC_CREAT`).
pub const CREATE: u32 = 0o1000;
/// But only if there is none (`IPC_EXCL`).
pub const EXCLUSIVE: u32 = 0o2000;
/// To read it.
pub const READ: u32 = 4;
/// To write to it.
pub const WRITE: u32 = 2;

/// So many places there are at most; a number is that of a place, and how often one was given out
/// before.
const PLACES: u32 = 1 << 15;

/// Whose it is and who may do what with it (`struct ipc64_perm`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Rights {
    pub key: i32,
    pub uid: u32,
    pub gid: u32,
    /// Who made it.
    pub maker: [u32; 2],
    /// Rights, as a file's.
    pub mode: u32,
}

impl Rights {
    /// Asks for [`READ`] and [`WRITE`].
    ///
    /// # Errors
    /// `EACCES`.
    pub fn may(&self, who: &FileCredentials, want: u32) -> Result<(), Errno> {
        let shift = match () {
            () if who.uid == self.uid || who.uid == self.maker[0] => 6,
            () if who.in_group(self.gid) || who.in_group(self.maker[1]) => 3,
            () => 0,
        };
        let missing = want & 7 & !(self.mode >> shift);
        if missing == 0 || who.has(CAP_IPC_OWNER) { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Asks to change or remove it.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn owns(&self, who: &FileCredentials) -> Result<(), Errno> {
        let own = who.uid == self.uid || who.uid == self.maker[0] || who.has(CAP_SYS_ADMIN);
        if own { Ok(()) } else { Err(Errno::EPERM) }
    }
}

/// One of the things.
#[derive(Debug)]
#[allow(missing_docs)]
pub struct Named<T> {
    pub id: u32,
    pub rights: Rights,
    pub what: T,
}

/// All things of a kind.
#[derive(Debug)]
pub struct Things<T> {
    places: Vec<Option<Named<T>>>,
    given: u32,
    /// What number the next is to have, if its place is free; else one of a place behind.
    pub wanted: Option<u32>,
}

impl<T> Default for Things<T> {
    fn default() -> Self {
        Things { places: Vec::new(), given: 0, wanted: None }
    }
}

impl<T> Things<T> {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Named<T>> {
        self.places.iter().flatten()
    }

    /// All of them, to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Named<T>> {
        self.places.iter_mut().flatten()
    }

    /// What has this number.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn get(&mut self, id: u32) -> Result<&mut Named<T>, Errno> {
        let place = self.places.get_mut((id % PLACES) as usize).and_then(Option::as_mut);
        place.filter(|named| named.id == id).ok_or(Errno::EINVAL)
    }

    /// What is in this place, of those up to [`Things::highest`].
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn at(&mut self, place: u32) -> Result<&mut Named<T>, Errno> {
        self.places.get_mut(place as usize).and_then(Option::as_mut).ok_or(Errno::EINVAL)
    }

    /// The highest place that is taken, 0 if none is.
    pub fn highest(&self) -> usize {
        self.places.iter().rposition(Option::is_some).unwrap_or(0)
    }

    /// The number of what a key stands for, or of something new; `flags` are rights and [`CREATE`]
    /// and [`EXCLUSIVE`]. `fits` says whether what there is will do, `make` makes something else.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `EACCES`, `ENOSPC` (there are `most`), `ENOMEM`; what `fits` and `make`
    /// say.
    pub fn find_or_make(
        &mut self,
        key: i32,
        flags: u32,
        who: &FileCredentials,
        most: u64,
        fits: impl FnOnce(&T) -> Result<(), Errno>,
        make: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<u32, Errno> {
        let found = self.iter().find(|named| key != PRIVATE && named.rights.key == key);
        if let Some(named) = found {
            if flags & CREATE != 0 && flags & EXCLUSIVE != 0 {
                return Err(Errno::EEXIST);
            }
            fits(&named.what)?;
            // All that is asked for by any of the three digits.
            named.rights.may(who, flags >> 6 | flags >> 3 | flags)?;
            return Ok(named.id);
        }
        if key != PRIVATE && flags & CREATE == 0 {
            return Err(Errno::ENOENT);
        }
        if self.iter().count() as u64 >= most.min(PLACES.into()) {
            return Err(Errno::ENOSPC);
        }
        let what = make()?;
        let first = self.wanted.map_or(0, |wanted| (wanted % PLACES) as usize);
        let free = self.places.iter().skip(first).position(Option::is_none);
        let place = free.map_or(first.max(self.places.len()), |free| first + free);
        if place >= PLACES as usize {
            return Err(Errno::ENOSPC);
        }
        let more = (place + 1).saturating_sub(self.places.len());
        self.places.try_reserve(more)?;
        self.places.extend((0..more).map(|_| None));
        let given = match self.wanted.take() {
            Some(wanted) => wanted / PLACES,
            None => {
                self.given += 1;
                (self.given - 1) % (i32::MAX as u32 / PLACES)
            }
        };
        let id = given * PLACES + place as u32;
        let rights = Rights { key, uid: who.uid, gid: who.gid, maker: [who.uid, who.gid], mode: flags & 0o777 };
        self.places[place] = Some(Named { id, rights, what });
        Ok(id)
    }

    /// Forgets those that `keep` does not want.
    pub fn retain(&mut self, mut keep: impl FnMut(&Named<T>) -> bool) {
        for place in &mut self.places {
            place.take_if(|named| !keep(named));
        }
        if self.iter().next().is_none() {
            // Memory that the program pays for that made the last room.
            self.places = Vec::new();
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

    fn get(things: &mut Things<u32>, key: i32, flags: u32, who: &FileCredentials) -> Result<u32, Errno> {
        things.find_or_make(key, flags, who, 3, |_| Ok(()), || Ok(1))
    }

    #[test]
    fn keys_and_numbers() {
        let (mut things, one) = (Things::default(), user(1));
        assert_eq!(get(&mut things, 7, 0o600, &one), Err(Errno::ENOENT));
        let id = get(&mut things, 7, CREATE | 0o600, &one).unwrap();
        assert_eq!(get(&mut things, 7, CREATE, &one), Ok(id));
        assert_eq!(get(&mut things, 7, CREATE | EXCLUSIVE, &one), Err(Errno::EEXIST));
        let private = get(&mut things, PRIVATE, 0, &one).unwrap();
        assert_ne!(get(&mut things, PRIVATE, 0, &one), Ok(private));
        assert_eq!(get(&mut things, 8, CREATE, &one), Err(Errno::ENOSPC));
        things.retain(|named| named.id != id);
        assert_eq!(things.get(id).map(|named| named.what), Err(Errno::EINVAL));
        // The place is taken again, by another number.
        let other = get(&mut things, 7, CREATE, &one).unwrap();
        assert_ne!(other, id);
        assert_eq!((other % PLACES, things.highest()), (id % PLACES, 2));
    }

    #[test]
    fn a_number_of_ones_choice() {
        let (mut things, one) = (Things::default(), user(1));
        let wanted = 7 * PLACES + 5;
        let mut make = |key| {
            things.wanted = Some(wanted);
            get(&mut things, key, CREATE, &one)
        };
        assert_eq!((make(1), make(2)), (Ok(wanted), Ok(wanted + 1)));
        assert_eq!((get(&mut things, 3, CREATE, &one), things.highest()), (Ok(0), 6));
        assert_eq!(things.get(wanted).map(|named| named.rights.key), Ok(1));
    }

    #[test]
    fn rights() {
        let (mut things, one, other) = (Things::default(), user(1), user(2));
        let id = get(&mut things, 7, CREATE | 0o640, &one).unwrap();
        assert_eq!(get(&mut things, 7, 0o400, &other), Err(Errno::EACCES));
        assert_eq!(get(&mut things, 7, 0, &other), Ok(id));
        let rights = things.get(id).unwrap().rights;
        assert!(rights.may(&one, READ | WRITE).is_ok() && rights.owns(&one).is_ok());
        assert_eq!(rights.owns(&other), Err(Errno::EPERM));
        let mut member = user(2);
        member.groups = Arc::new(alloc::vec![1]);
        assert!(rights.may(&member, READ).is_ok());
        assert_eq!(rights.may(&member, WRITE), Err(Errno::EACCES));
        assert!(rights.may(&FileCredentials::root(), READ | WRITE).is_ok());
    }
}
