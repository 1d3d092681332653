//! Advisory file locks: of byte ranges (`fcntl`) and of whole files (`flock`). Reads and writes
//! ignore them.
//!
//! A process's locks on a file are released when the process closes any descriptor of the file; the
//! locks of an open file description when the description is freed.

use crate::errno::Errno;
use crate::wait::Queue;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use spin::Mutex;

/// The owner of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A process, by its PID.
    Process(u32),
    /// An open file description, by its address.
    Open(usize),
}

/// A class of locks. A lock conflicts only with locks of its own class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Record locks: those of `fcntl`.
    Record,
    /// Locks on whole files: those of `flock`.
    Flock,
}

/// The key of a list of locks: a file's device and inode numbers, and the class.
pub type ListKey = ((u64, u64), Class);

/// A lock on a range of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Lock {
    pub owner: Owner,
    /// True for an exclusive (write) lock, false for a shared (read) lock.
    pub exclusive: bool,
    /// The bytes; an end of `u64::MAX` means the end of the file, wherever that will be.
    pub range: Range<u64>,
}

impl Lock {
    /// Returns true if both locks cannot be held at once.
    fn conflicts(&self, other: &Lock) -> bool {
        self.owner != other.owner
            && (self.exclusive || other.exclusive)
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

/// The locks of all files.
#[derive(Default)]
pub struct Locks {
    table: Mutex<Table>,
    /// The length of [`Table::owners`], so that closing a file takes no lock while it is 0.
    count: AtomicUsize,
    /// The tasks that wait for a lock.
    changed: Queue,
}

#[derive(Default)]
struct Table {
    locks: BTreeMap<ListKey, Vec<Lock>>,
    /// The lists in which an owner has locks, so that closing a file visits only that owner's.
    owners: BTreeSet<(Owner, ListKey)>,
    /// Waiting owners, each with the owner of a lock that it waits for.
    waits: Vec<(Owner, Owner)>,
}

impl Table {
    /// Returns the lock with the lowest offset of those that conflict with `wanted`.
    fn conflict(&self, key: &ListKey, wanted: &Lock) -> Option<&Lock> {
        self.locks.get(key)?.iter().filter(|lock| lock.conflicts(wanted)).min_by_key(|lock| lock.range.start)
    }

    /// Returns true if `from` waits for `target`, directly or through other owners, or is `target`.
    fn waits_for(&self, from: Owner, target: Owner) -> bool {
        let mut at = from;
        // An owner waits for at most one other owner, so after as many steps as there are waiting
        // owners the chain has ended or repeats.
        for _ in 0..=self.waits.len() {
            if at == target {
                return true;
            }
            match self.waits.iter().find(|(waiter, _)| *waiter == at) {
                Some((_, next)) => at = *next,
                None => return false,
            }
        }
        false
    }

    /// Releases a range of an owner's locks, which may split a lock or shorten it.
    fn remove(&mut self, key: &ListKey, owner: Owner, range: &Range<u64>) -> Result<(), Errno> {
        let Some(locks) = self.locks.get_mut(key) else { return Ok(()) };
        locks.try_reserve(1)?;
        let mut rest = None;
        locks.retain_mut(|lock| {
            let overlaps = lock.owner == owner && lock.range.start < range.end && range.start < lock.range.end;
            if !overlaps {
                return true;
            }
            let (before, after) = (lock.range.start < range.start, lock.range.end > range.end);
            if before && after {
                rest = Some(Lock { range: range.end..lock.range.end, ..lock.clone() });
            }
            match (before, after) {
                (true, _) => lock.range.end = range.start,
                (false, true) => lock.range.start = range.end,
                (false, false) => {}
            }
            before || after
        });
        locks.extend(rest);
        self.remove_empty(key, owner);
        Ok(())
    }

    /// Removes the list `key` if it is empty, and the owner's entry in [`Table::owners`] if none of
    /// the list's locks is the owner's.
    fn remove_empty(&mut self, key: &ListKey, owner: Owner) {
        let locks = self.locks.get(key).map_or(&[][..], Vec::as_slice);
        let (no_locks, no_own_locks) = (locks.is_empty(), locks.iter().all(|lock| lock.owner != owner));
        if no_locks {
            self.locks.remove(key);
        }
        if no_own_locks {
            self.owners.remove(&(owner, *key));
        }
    }

    /// Adds a lock, which replaces its owner's locks in the range, and merges it with the owner's
    /// adjacent locks.
    fn add(&mut self, key: &ListKey, mut new: Lock) -> Result<(), Errno> {
        self.remove(key, new.owner, &new.range)?;
        let locks = self.locks.entry(*key).or_default();
        if let Err(error) = locks.try_reserve(1) {
            self.remove_empty(key, new.owner);
            return Err(error.into());
        }
        // Merge adjacent locks of the same kind.
        locks.retain(|lock| {
            let alike = lock.owner == new.owner && lock.exclusive == new.exclusive;
            let adjacent = alike && (lock.range.end == new.range.start || lock.range.start == new.range.end);
            if adjacent {
                new.range = lock.range.start.min(new.range.start)..lock.range.end.max(new.range.end);
            }
            !adjacent
        });
        self.owners.insert((new.owner, *key));
        locks.push(new);
        Ok(())
    }
}

/// Removes an owner from the waiting owners when it is dropped.
struct WaitGuard<'a>(&'a Locks, Owner);

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.table.lock().waits.retain(|(waiter, _)| *waiter != self.1);
    }
}

impl Locks {
    fn update_count(&self, table: &Table) {
        self.count.store(table.owners.len(), Relaxed);
    }

    /// Returns true if there is any lock, without taking the table's lock.
    pub fn any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// Returns a lock that conflicts with `wanted` (`F_GETLK`).
    pub fn conflict(&self, key: &ListKey, wanted: &Lock) -> Option<Lock> {
        self.table.lock().conflict(key, wanted).cloned()
    }

    /// Takes a lock, which replaces its owner's locks in the range. Does not wait (`F_SETLK`).
    ///
    /// # Errors
    /// `EAGAIN`: another owner has a conflicting lock. `ENOMEM`.
    pub fn take(&self, key: &ListKey, wanted: &Lock) -> Result<(), Errno> {
        let mut table = self.table.lock();
        if table.conflict(key, wanted).is_some() {
            return Err(Errno::EAGAIN);
        }
        table.add(key, wanted.clone())?;
        self.update_count(&table);
        drop(table);
        // Wake the waiting owners: this may have made an exclusive lock shared, so that theirs fit.
        self.changed.wake_all();
        Ok(())
    }

    /// Waits until `wanted` conflicts with no lock, and takes it (`F_SETLKW`).
    ///
    /// # Errors
    /// `EDEADLK`: the owner of the conflicting lock waits for this owner, directly or through
    /// others. `ENOMEM`.
    pub async fn wait(&self, key: &ListKey, wanted: &Lock) -> Result<(), Errno> {
        let _waiting = WaitGuard(self, wanted.owner);
        loop {
            match self.take(key, wanted) {
                Err(Errno::EAGAIN) => {}
                other => return other,
            }
            // The condition only checks for a conflict, and the loop then takes the lock: `take`
            // wakes this queue, which a condition of the queue must not do.
            let blocked = || match self.update_blocker(key, wanted) {
                Ok(true) => None,
                other => Some(other),
            };
            self.changed.wait_until(blocked).await?;
        }
    }

    /// Records the owner of the first conflicting lock as the one that `wanted`'s owner waits for.
    /// Returns false if there is no conflict.
    fn update_blocker(&self, key: &ListKey, wanted: &Lock) -> Result<bool, Errno> {
        let mut table = self.table.lock();
        table.waits.retain(|(waiter, _)| *waiter != wanted.owner);
        let Some(blocker) = table.conflict(key, wanted).map(|lock| lock.owner) else { return Ok(false) };
        if table.waits_for(blocker, wanted.owner) {
            return Err(Errno::EDEADLK);
        }
        table.waits.try_reserve(1)?;
        table.waits.push((wanted.owner, blocker));
        Ok(true)
    }

    /// Releases an owner's locks in a range (`F_UNLCK`).
    ///
    /// # Errors
    /// `ENOMEM`: there is no memory to split a lock in two; nothing is released.
    pub fn release(&self, key: &ListKey, owner: Owner, range: &Range<u64>) -> Result<(), Errno> {
        if !self.any() {
            return Ok(());
        }
        let mut table = self.table.lock();
        table.remove(key, owner, range)?;
        self.update_count(&table);
        drop(table);
        self.changed.wake_all();
        Ok(())
    }

    /// Releases all locks of an owner, on `file` (its device and inode numbers) or on all files.
    pub fn release_all(&self, owner: Owner, file: Option<(u64, u64)>) {
        if !self.any() {
            return;
        }
        let (first, last) = file.map_or(((0, 0), (u64::MAX, u64::MAX)), |file| (file, file));
        let its = (owner, (first, Class::Record))..=(owner, (last, Class::Flock));
        let mut table = self.table.lock();
        let before = table.owners.len();
        while let Some((_, key)) = table.owners.range(its.clone()).next().copied() {
            if let Some(locks) = table.locks.get_mut(&key) {
                locks.retain(|lock| lock.owner != owner);
            }
            table.remove_empty(&key, owner);
        }
        let released = table.owners.len() < before;
        self.update_count(&table);
        drop(table);
        if released {
            self.changed.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Count, block_on};
    use core::pin::pin;
    use core::task::{Context, Poll};
    use std::vec;

    const FILE: ListKey = ((1, 2), Class::Record);
    const OTHER: ListKey = ((1, 3), Class::Record);
    const WHOLE: Range<u64> = 0..u64::MAX;

    fn lock(owner: u32, exclusive: bool, range: Range<u64>) -> Lock {
        Lock { owner: Owner::Process(owner), exclusive, range }
    }

    #[test]
    fn exclusive_locks_conflict_and_shared_ones_do_not() {
        let locks = Locks::default();
        locks.take(&FILE, &lock(1, false, 0..10)).unwrap();
        locks.take(&FILE, &lock(2, false, 5..15)).unwrap();
        assert_eq!(locks.take(&FILE, &lock(2, true, 9..10)), Err(Errno::EAGAIN));
        locks.take(&FILE, &lock(2, true, 10..15)).unwrap();
        assert_eq!(locks.conflict(&FILE, &lock(1, false, 0..u64::MAX)), Some(lock(2, true, 10..15)));
        // Locks of other files and other classes don't conflict.
        locks.take(&OTHER, &lock(3, true, WHOLE)).unwrap();
        locks.take(&((1, 2), Class::Flock), &lock(3, true, WHOLE)).unwrap();
    }

    /// Compares random operations with a map of the bytes.
    #[test]
    fn ranges_are_split_and_merged() {
        let mut random = oorandom::Rand32::new(7);
        for _ in 0..300 {
            let locks = Locks::default();
            let mut model = [[None::<bool>; 16]; 2];
            for _ in 0..40 {
                let owner = random.rand_range(0..2);
                let start = random.rand_range(0..15);
                let end = random.rand_range(start + 1..17);
                let (range, exclusive) = (u64::from(start)..u64::from(end), random.rand_range(0..2) == 0);
                let own = start as usize..end as usize;
                if random.rand_range(0..8) == 0 {
                    locks.release_all(Owner::Process(owner), (start > 7).then_some(FILE.0));
                    model[owner as usize] = [None; 16];
                } else if random.rand_range(0..3) == 0 {
                    locks.release(&FILE, Owner::Process(owner), &range).unwrap();
                    model[owner as usize][own].fill(None);
                } else {
                    let theirs = &model[1 - owner as usize][own.clone()];
                    let free = !theirs.iter().flatten().any(|other| *other || exclusive);
                    let taken = locks.take(&FILE, &lock(owner, exclusive, range));
                    assert_eq!(taken.is_ok(), free);
                    if free {
                        model[owner as usize][own].fill(Some(exclusive));
                    }
                }
                let table = locks.table.lock();
                for owner in 0..2 {
                    let mut found = [None; 16];
                    let own = table.locks.get(&FILE).into_iter().flatten();
                    let own: vec::Vec<_> = own.filter(|lock| lock.owner == Owner::Process(owner)).collect();
                    for lock in &own {
                        for byte in lock.range.clone() {
                            assert!(found[byte as usize].replace(lock.exclusive).is_none(), "two locks on one byte");
                        }
                    }
                    assert_eq!(found, model[owner as usize]);
                    assert_eq!(table.owners.contains(&(Owner::Process(owner), FILE)), !own.is_empty());
                    let joins = |one: &&Lock, other: &&Lock| {
                        one.range.end == other.range.start && one.exclusive == other.exclusive
                    };
                    assert!(
                        !own.iter().any(|one| own.iter().any(|other| joins(one, other))),
                        "adjacent locks are not merged"
                    );
                }
            }
        }
    }

    #[test]
    fn a_waiter_gets_the_lock_once_the_conflicting_range_is_released() {
        let locks = Locks::default();
        locks.take(&FILE, &lock(1, true, 0..10)).unwrap();
        let wanted = lock(2, true, 5..6);
        let (woken, waker) = Count::new();
        let mut wait = pin!(locks.wait(&FILE, &wanted));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        locks.release(&FILE, Owner::Process(1), &(0..5)).unwrap();
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        locks.release_all(Owner::Process(1), Some(FILE.0));
        assert!(woken.woken() > 0);
        assert_eq!(wait.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(())));
        locks.release_all(Owner::Process(2), None);
        assert_eq!((locks.count.load(Relaxed), locks.changed.waiting()), (0, 0));
    }

    #[test]
    fn a_wait_that_would_close_a_cycle_is_refused() {
        let locks = Locks::default();
        locks.take(&FILE, &lock(1, true, WHOLE)).unwrap();
        locks.take(&OTHER, &lock(2, true, WHOLE)).unwrap();
        let first = lock(1, true, 0..1);
        let (_, waker) = Count::new();
        {
            let mut wait = pin!(locks.wait(&OTHER, &first));
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(block_on(locks.wait(&FILE, &lock(2, true, 0..1))), Err(Errno::EDEADLK));
        }
        // The first wait was dropped, so there is no cycle any more.
        let second = lock(2, true, 0..1);
        let mut wait = pin!(locks.wait(&FILE, &second));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
}
