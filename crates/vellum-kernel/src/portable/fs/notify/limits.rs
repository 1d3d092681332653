//! The settings of `/proc/sys/fs/inotify`, and what each user has of instances and watches.

use crate::errno::Errno;
use alloc::collections::BTreeMap;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use spin::Mutex;

/// The most events in the queue of an instance that is created from now on (`max_queued_events`).
pub static MAX_QUEUED_EVENTS: AtomicU32 = AtomicU32::new(16384);
/// The most instances of a user (`max_user_instances`).
pub static MAX_USER_INSTANCES: AtomicU32 = AtomicU32::new(128);
/// The most watches of a user (`max_user_watches`).
pub static MAX_USER_WATCHES: AtomicU32 = AtomicU32::new(8192);

/// The kinds of objects whose number is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    /// An instance.
    Instance,
    /// A watch.
    Watch,
}

/// The numbers of instances and watches by user. A user without either has no entry.
static USERS: Mutex<BTreeMap<u32, [u32; 2]>> = Mutex::new(BTreeMap::new());

/// One instance or watch of a user, counted until this is dropped.
pub struct Counted {
    user: u32,
    kind: Limited,
}

impl Counted {
    /// Counts one more for a user.
    ///
    /// # Errors
    /// The user has the most that the setting permits. `EMFILE`: of instances. `ENOSPC`: of
    /// watches.
    pub fn new(user: u32, kind: Limited) -> Result<Self, Errno> {
        let (most, error) = match kind {
            Limited::Instance => (&MAX_USER_INSTANCES, Errno::EMFILE),
            Limited::Watch => (&MAX_USER_WATCHES, Errno::ENOSPC),
        };
        let mut users = USERS.lock();
        let present = users.get(&user).map_or(0, |counts| counts[kind as usize]);
        if present >= most.load(Relaxed) {
            return Err(error);
        }
        users.entry(user).or_default()[kind as usize] += 1;
        Ok(Counted { user, kind })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut users = USERS.lock();
        if let Some(counts) = users.get_mut(&self.user) {
            counts[self.kind as usize] -= 1;
            if *counts == [0; 2] {
                users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_no_more_than_the_setting_permits() {
        let user = 70_001;
        let all: std::vec::Vec<_> = (0..128).map(|_| Counted::new(user, Limited::Instance).unwrap()).collect();
        assert_eq!(Counted::new(user, Limited::Instance).err(), Some(Errno::EMFILE));
        assert!(Counted::new(user + 1, Limited::Instance).is_ok());
        assert!(Counted::new(user, Limited::Watch).is_ok());
        drop(all);
        assert!(!USERS.lock().contains_key(&user));
        assert!(Counted::new(user, Limited::Instance).is_ok());
    }
}
