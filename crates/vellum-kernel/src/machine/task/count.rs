//! How many threads there are, in all and of each user, those counted that have ended but for their parents.

use crate::mem::machine;
use crate::mem::payer::Shared;
use alloc::collections::BTreeMap;
use vellum_kernel::errno::Errno;

/// How many each user has.
static USERS: Shared<BTreeMap<u32, u64>> = Shared::new(BTreeMap::new());

/// How many there may be in all: no more than 1/32 as many as pages of memory, as on Linux.
pub fn most() -> u64 {
    (machine().frames().total() / 32).clamp(64, 1 << 22)
}

/// One that is counted, until it is dropped.
#[derive(Debug)]
pub struct Counted {
    user: u32,
}

impl Counted {
    /// One more of a user who may have `limit`.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: there are too many, in all or of the user.
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

    /// It is another user's from now on, whatever that one's limit.
    pub fn belongs_to(&mut self, user: u32) {
        let mut users = USERS.lock();
        forget(&mut users, self.user);
        *users.entry(user).or_insert(0) += 1;
        self.user = user;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        forget(&mut USERS.lock(), self.user);
    }
}

fn forget(users: &mut BTreeMap<u32, u64>, user: u32) {
    let Some(count) = users.get_mut(&user) else { return };
    *count -= 1;
    if *count == 0 {
        users.remove(&user);
    }
}
