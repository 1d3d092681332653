//! The limits of pipes in `/proc/sys/fs`, and the pages of each user's pipes.

use crate::errno::Errno;
use alloc::collections::BTreeMap;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use spin::Mutex;

/// The most bytes that an unprivileged program gives a pipe (`pipe-max-size`).
pub static MAX_SIZE: AtomicU64 = AtomicU64::new(1 << 20);
/// The pages of a user's pipes from which on new ones are small; 0: no limit
/// (`pipe-user-pages-soft`).
pub static USER_PAGES_SOFT: AtomicU64 = AtomicU64::new(16384);
/// The most pages of a user's pipes; 0: no limit (`pipe-user-pages-hard`).
pub static USER_PAGES_HARD: AtomicU64 = AtomicU64::new(0);

/// The most bytes of any pipe.
const LARGEST: u64 = 1 << 31;
/// The least bytes of a pipe.
const SMALLEST: u64 = super::PIPE_BUF as u64;
/// The pages of a new pipe of a user over the soft limit.
const FEW: u64 = 2;

/// The rights of a program that creates or resizes a pipe.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rights {
    /// `pipe-max-size` does not hold (`CAP_SYS_RESOURCE`).
    pub may_be_large: bool,
    /// The limits of the user's pages do not hold (`CAP_SYS_RESOURCE`, `CAP_SYS_ADMIN`).
    pub may_be_many: bool,
}

/// Returns the capacity of a pipe for a size in bytes: the next power of two, at least a page.
///
/// # Errors
/// `EINVAL`: more than 2 GiB.
pub fn round(size: u64) -> Result<usize, Errno> {
    if size > LARGEST { Err(Errno::EINVAL) } else { Ok(size.max(SMALLEST).next_power_of_two() as usize) }
}

/// Returns `pipe-max-size`.
pub fn max_size() -> usize {
    MAX_SIZE.load(Relaxed) as usize
}

/// The pages of pipes by user. A user without pipes has no entry.
static USERS: Mutex<BTreeMap<u32, u64>> = Mutex::new(BTreeMap::new());

/// The pages of one pipe, counted until this is dropped.
pub struct Pages {
    user: u32,
    count: u64,
}

/// Returns true if a number of pages exceeds a limit.
fn exceeds(pages: u64, limit: &AtomicU64) -> bool {
    let limit = limit.load(Relaxed);
    limit != 0 && pages > limit
}

impl Pages {
    /// Counts `wanted` pages for a new pipe of a user, or fewer if that exceeds the soft limit.
    ///
    /// # Errors
    /// `ENFILE`: that exceeds the hard limit.
    pub fn new(user: u32, wanted: u64, rights: Rights) -> Result<Self, Errno> {
        let mut users = USERS.lock();
        let present = users.get(&user).copied().unwrap_or(0);
        let is_limited = !rights.may_be_many;
        let count = if is_limited && exceeds(present + wanted, &USER_PAGES_SOFT) { FEW } else { wanted };
        if is_limited && exceeds(present + count, &USER_PAGES_HARD) {
            return Err(Errno::ENFILE);
        }
        users.insert(user, present + count);
        Ok(Pages { user, count })
    }

    /// Returns the number of pages.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Changes the number of pages. With `is_limited` the user's limits hold.
    ///
    /// # Errors
    /// `EPERM`: that exceeds a limit; nothing has changed.
    pub fn change(&mut self, count: u64, is_limited: bool) -> Result<(), Errno> {
        let mut users = USERS.lock();
        let all = users.entry(self.user).or_default();
        let next = *all - self.count + count;
        if is_limited && (exceeds(next, &USER_PAGES_SOFT) || exceeds(next, &USER_PAGES_HARD)) {
            return Err(Errno::EPERM);
        }
        (*all, self.count) = (next, count);
        Ok(())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let mut users = USERS.lock();
        if let Some(all) = users.get_mut(&self.user) {
            *all -= self.count;
            if *all == 0 {
                users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_over_the_soft_limit_are_small_and_do_not_grow() {
        let (user, other) = (70_100, Rights { may_be_many: true, ..Rights::default() });
        let mut large = Pages::new(user, 16384, Rights::default()).unwrap();
        let mut small = Pages::new(user, 16, Rights::default()).unwrap();
        assert_eq!((large.count(), small.count()), (16384, FEW));
        assert_eq!(small.change(3, true), Err(Errno::EPERM));
        assert_eq!(small.change(1, false), Ok(()));
        assert_eq!(Pages::new(user, 16, other).unwrap().count(), 16);
        assert_eq!(Pages::new(user + 1, 16, Rights::default()).unwrap().count(), 16);
        assert_eq!(large.change(16383, true), Ok(()), "as many as the limit permits");
        drop((large, small));
        assert!(!USERS.lock().contains_key(&user));
    }

    #[test]
    fn sizes_are_powers_of_two_of_at_least_a_page() {
        assert_eq!([0, 1, 4097, 1 << 31].map(round), [Ok(4096), Ok(4096), Ok(8192), Ok(1 << 31)]);
        assert_eq!(round((1 << 31) + 1), Err(Errno::EINVAL));
    }
}
