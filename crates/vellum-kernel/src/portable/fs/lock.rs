//! Locks on files: of ranges (`fcntl`) and of the whole (`flock`). They keep nobody from reading or
//! writing; they tell those who ask.
//!
//! A lock is had by a process, and goes with the first descriptor of the file that the process
//! closes; or by an open file description, and goes with that.

use crate::errno::Errno;
use crate::wait::Queue;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use spin::Mutex;

/// Who has a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A process, by its number.
    Process(u32),
    /// An open file description, by its address.
    Open(usize),
}

/// Which locks know of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// `fcntl`.
    Record,
    /// `flock`.
    Whole,
}

/// What is locked: a file (its device and inode) for a class.
pub type Subject = ((u64, u64), Class);

/// A lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Lock {
    pub owner: Owner,
    /// Nobody else has a lock on it, and not only none of these.
    pub exclusive: bool,
    /// Up to `u64::MAX`: to the end, however far that is.
    pub range: Range<u64>,
}

impl Lock {
    fn conflicts(&self, other: &Lock) -> bool {
        self.owner != other.owner
            && (self.exclusive || other.exclusive)
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }
}

/// All locks there are.
#[derive(Default)]
pub struct Locks {
    table: Mutex<Table>,
    /// Whether there are any: how many owners have locks of how many subjects; so that whoever
    /// closes a file need not look.
    count: AtomicUsize,
    changed: Queue,
}

#[derive(Default)]
struct Table {
    locks: BTreeMap<Subject, Vec<Lock>>,
    /// Who has some of what: so that whoever closes one file of many looks at its own locks only.
    owners: BTreeSet<(Owner, Subject)>,
    /// Who waits for whom.
    waits: Vec<(Owner, Owner)>,
}

impl Table {
    fn conflict(&self, subject: &Subject, wanted: &Lock) -> Option<&Lock> {
        self.locks.get(subject)?.iter().find(|lock| lock.conflicts(wanted))
    }

    /// Whether someone waits, over others perhaps, for `target`.
    fn leads(&self, from: Owner, target: Owner) -> bool {
        let mut at = from;
        // Nobody waits for more than one, so the way ends, or has gone round after as many steps.
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

    /// Takes a range out of what an owner has.
    fn remove(&mut self, subject: &Subject, owner: Owner, range: &Range<u64>) -> Result<(), Errno> {
        let Some(locks) = self.locks.get_mut(subject) else { return Ok(()) };
        locks.try_reserve(1)?;
        let mut rest = None;
        locks.retain_mut(|lock| {
            let touches = lock.owner == owner && lock.range.start < range.end && range.start < lock.range.end;
            if !touches {
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
        self.tidy(subject, owner);
        Ok(())
    }

    /// An owner has fewer locks of a subject, or none any more.
    fn tidy(&mut self, subject: &Subject, owner: Owner) {
        let locks = self.locks.get(subject).map_or(&[][..], Vec::as_slice);
        let (none, none_of_its) = (locks.is_empty(), locks.iter().all(|lock| lock.owner != owner));
        if none {
            self.locks.remove(subject);
        }
        if none_of_its {
            self.owners.remove(&(owner, *subject));
        }
    }

    fn add(&mut self, subject: &Subject, mut new: Lock) -> Result<(), Errno> {
        self.remove(subject, new.owner, &new.range)?;
        let locks = self.locks.entry(*subject).or_default();
        if let Err(error) = locks.try_reserve(1) {
            self.tidy(subject, new.owner);
            return Err(error.into());
        }
        // What continues it becomes part of it.
        locks.retain(|lock| {
            let alike = lock.owner == new.owner && lock.exclusive == new.exclusive;
            let touches = alike && (lock.range.end == new.range.start || lock.range.start == new.range.end);
            if touches {
                new.range = lock.range.start.min(new.range.start)..lock.range.end.max(new.range.end);
            }
            !touches
        });
        self.owners.insert((new.owner, *subject));
        locks.push(new);
        Ok(())
    }
}

/// Says that an owner waits, for as long as this lives.
struct Waiting<'a>(&'a Locks, Owner);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.table.lock().waits.retain(|(waiter, _)| *waiter != self.1);
    }
}

impl Locks {
    fn changed(&self, table: &Table) {
        self.count.store(table.owners.len(), Relaxed);
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.count.load(Relaxed) != 0
    }

    /// The lock that keeps one from having this one.
    pub fn conflict(&self, subject: &Subject, wanted: &Lock) -> Option<Lock> {
        self.table.lock().conflict(subject, wanted).cloned()
    }

    /// Takes a lock, instead of what its owner has there.
    ///
    /// # Errors
    /// `EAGAIN`: another has one. `ENOMEM`.
    pub fn take(&self, subject: &Subject, wanted: &Lock) -> Result<(), Errno> {
        let mut table = self.table.lock();
        if table.conflict(subject, wanted).is_some() {
            return Err(Errno::EAGAIN);
        }
        table.add(subject, wanted.clone())?;
        self.changed(&table);
        drop(table);
        // It may be less than what its owner had.
        self.changed.wake_all();
        Ok(())
    }

    /// The same, waiting until it may.
    ///
    /// # Errors
    /// `EDEADLK`: those who would be waited for wait for this owner. `ENOMEM`.
    pub async fn wait(&self, subject: &Subject, wanted: &Lock) -> Result<(), Errno> {
        let _waiting = Waiting(self, wanted.owner);
        loop {
            match self.take(subject, wanted) {
                Err(Errno::EAGAIN) => {}
                other => return other,
            }
            // To take a lock wakes the queue, which a condition must not do at its own: so it only
            // says when to try.
            let in_the_way = || match self.stand_in_line(subject, wanted) {
                Ok(true) => None,
                other => Some(other),
            };
            self.changed.wait_until(in_the_way).await?;
        }
    }

    /// Says whom the owner waits for; whether for anybody.
    fn stand_in_line(&self, subject: &Subject, wanted: &Lock) -> Result<bool, Errno> {
        let mut table = self.table.lock();
        table.waits.retain(|(waiter, _)| *waiter != wanted.owner);
        let Some(blocker) = table.conflict(subject, wanted).map(|lock| lock.owner) else { return Ok(false) };
        if table.leads(blocker, wanted.owner) {
            return Err(Errno::EDEADLK);
        }
        table.waits.try_reserve(1)?;
        table.waits.push((wanted.owner, blocker));
        Ok(true)
    }

    /// Gives up what an owner has of a range.
    ///
    /// # Errors
    /// `ENOMEM`: a lock would be left in two pieces.
    pub fn release(&self, subject: &Subject, owner: Owner, range: &Range<u64>) -> Result<(), Errno> {
        if !self.any() {
            return Ok(());
        }
        let mut table = self.table.lock();
        table.remove(subject, owner, range)?;
        self.changed(&table);
        drop(table);
        self.changed.wake_all();
        Ok(())
    }

    /// Gives up all that an owner has, of one file or of all.
    pub fn release_all(&self, owner: Owner, file: Option<(u64, u64)>) {
        if !self.any() {
            return;
        }
        let (first, last) = file.map_or(((0, 0), (u64::MAX, u64::MAX)), |file| (file, file));
        let its = (owner, (first, Class::Record))..=(owner, (last, Class::Whole));
        let mut table = self.table.lock();
        let before = table.owners.len();
        while let Some((_, subject)) = table.owners.range(its.clone()).next().copied() {
            if let Some(locks) = table.locks.get_mut(&subject) {
                locks.retain(|lock| lock.owner != owner);
            }
            table.tidy(&subject, owner);
        }
        let released = table.owners.len() < before;
        self.changed(&table);
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

    const FILE: Subject = ((1, 2), Class::Record);
    const OTHER: Subject = ((1, 3), Class::Record);
    const WHOLE: Range<u64> = 0..u64::MAX;

    fn lock(owner: u32, exclusive: bool, range: Range<u64>) -> Lock {
        Lock { owner: Owner::Process(owner), exclusive, range }
    }

    #[test]
    fn who_keeps_whom_out() {
        let locks = Locks::default();
        locks.take(&FILE, &lock(1, false, 0..10)).unwrap();
        locks.take(&FILE, &lock(2, false, 5..15)).unwrap();
        assert_eq!(locks.take(&FILE, &lock(2, true, 9..10)), Err(Errno::EAGAIN));
        locks.take(&FILE, &lock(2, true, 10..15)).unwrap();
        assert_eq!(locks.conflict(&FILE, &lock(1, false, 0..u64::MAX)), Some(lock(2, true, 10..15)));
        // Other files, and other kinds of locks, are others.
        locks.take(&OTHER, &lock(3, true, WHOLE)).unwrap();
        locks.take(&((1, 2), Class::Whole), &lock(3, true, WHOLE)).unwrap();
    }

    /// Against a byte map: what each owner has is what it took last and did not give up.
    #[test]
    fn ranges_split_and_join() {
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
                    assert!(!own.iter().any(|one| own.iter().any(|other| joins(one, other))), "in two pieces");
                }
            }
        }
    }

    #[test]
    fn to_wait_and_to_give_up() {
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
    fn who_waits_for_itself_is_told() {
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
        // The first has given up: there is no circle any more.
        let second = lock(2, true, 0..1);
        let mut wait = pin!(locks.wait(&FILE, &second));
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
}
