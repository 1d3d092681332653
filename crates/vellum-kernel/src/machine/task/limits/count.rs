//! Counts threads, in all and by user. A thread counts until it has ended, the last one of a
//! process until the parent has reaped the process.

use crate::mem::machine;
use crate::mem::payer::Shared;
use alloc::collections::BTreeMap;
use vellum_kernel::errno::Errno;

/// The number of threads of each user.
static USERS: Shared<BTreeMap<u32, u64>> = Shared::new(BTreeMap::new());

/// Returns the largest number of threads in all: 1/32 of the number of memory pages, as on Linux.
pub fn most() -> u64 {
    (machine().frames().total() / 32).clamp(64, 1 << 22)
}

/// Guard. Counts as a thread of its user until dropped.
#[derive(Debug)]
pub struct Counted {
    user: u32,
}

impl Counted {
    /// Counts one more thread of a user whose limit is `limit`.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: the limit of all threads or of the user's threads is reached.
    pub fn new(user: u32, limit: u64) -> Result<Self, Errno> {
        let mut users = USERS.lock();
        let all: u64 = users.values().sum();
        let own = users.get(&user).copied().unwrap_or(0);
        if all >= most() || own >= limit {
            return Err(Errno::EAGAIN);
        }
        users.insert(user, own + 1);
        Ok(Self { user })
    }

    /// Moves the count to another user, regardless of that user's limit.
    pub fn belongs_to(&mut self, user: u32) {
        let mut users = USERS.lock();
        uncount(&mut users, self.user);
        *users.entry(user).or_insert(0) += 1;
        self.user = user;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        uncount(&mut USERS.lock(), self.user);
    }
}

/// Takes one thread from a user's count.
fn uncount(users: &mut BTreeMap<u32, u64>, user: u32) {
    let Some(count) = users.get_mut(&user) else { return };
    *count -= 1;
    if *count == 0 {
        users.remove(&user);
    }
}
