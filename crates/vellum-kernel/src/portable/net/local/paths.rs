//! Finds sockets of `AF_UNIX` by their names.

use super::Endpoint;
use crate::errno::Errno;
use crate::fs::bytes::copy_of;
use crate::net::address::Name;
use alloc::format;
use alloc::sync::{Arc, Weak};
use hashbrown::HashMap;
use spin::Mutex;

/// The identity of a name.
#[derive(Clone, Hash, PartialEq, Eq)]
enum Key {
    Abstract(Arc<[u8]>),
    Inode(u64, u64),
}

/// The sockets with a name. An entry may be of a socket that is being closed.
static NAMES: Mutex<Option<HashMap<Key, Weak<Endpoint>>>> = Mutex::new(None);

fn key_of(name: &Name) -> Option<Key> {
    match name {
        Name::Abstract(name) => Some(Key::Abstract(name.clone())),
        Name::Path(_, Some(inode)) => {
            let (device, number) = inode.identity();
            Some(Key::Inode(device, number))
        }
        _ => None,
    }
}

/// Gives a socket a name, if no other has it. Without a name, gives it an abstract one that no
/// other has (autobind). Returns the name.
///
/// # Errors
/// `EADDRINUSE`; `EINVAL`: a path that was not looked up; `ENOSPC`: no abstract name is left;
/// `ENOMEM`.
pub(super) fn insert(name: &Name, socket: &Weak<Endpoint>) -> Result<Name, Errno> {
    if !matches!(name, Name::Unnamed) {
        return insert_named(name, socket).map(|()| name.clone());
    }
    for number in 0..1 << 20 {
        let name = Name::Abstract(copy_of(format!("{number:05x}").as_bytes())?.into());
        match insert_named(&name, socket) {
            Err(Errno::EADDRINUSE) => {}
            inserted => return inserted.map(|()| name),
        }
    }
    Err(Errno::ENOSPC)
}

fn insert_named(name: &Name, socket: &Weak<Endpoint>) -> Result<(), Errno> {
    let key = key_of(name).ok_or(Errno::EINVAL)?;
    let mut names = NAMES.lock();
    let names = names.get_or_insert_default();
    names.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    if names.get(&key).is_some_and(|other| other.strong_count() > 0) {
        return Err(Errno::EADDRINUSE);
    }
    names.insert(key, socket.clone());
    Ok(())
}

/// Removes the name of a socket that is being closed.
pub(super) fn remove(name: &Name, socket: *const Endpoint) {
    let Some(key) = key_of(name) else { return };
    let mut names = NAMES.lock();
    if let Some(names) = names.as_mut()
        && names.get(&key).is_some_and(|named| named.as_ptr() == socket)
    {
        names.remove(&key);
    }
}

/// Returns the socket with a name.
///
/// # Errors
/// `ECONNREFUSED`: there is none.
pub(super) fn find(name: &Name) -> Result<Arc<Endpoint>, Errno> {
    let key = key_of(name).ok_or(Errno::ECONNREFUSED)?;
    let names = NAMES.lock();
    names.as_ref().and_then(|names| names.get(&key)?.upgrade()).ok_or(Errno::ECONNREFUSED)
}
