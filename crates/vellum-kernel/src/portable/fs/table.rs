//! Descriptors: small numbers for open files.
//!
//! The table is behind a lock of the kernel's. What is taken out of it is returned, to be dropped
//! after that lock: the last reference to an open file does more than to forget it.

use super::open::Open;
use crate::errno::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The most descriptors that there can be, whatever the limit says (`/proc/sys/fs/nr_open`).
pub const MOST: u32 = 1 << 20;

/// A descriptor.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Slot {
    pub open: Arc<Open>,
    /// `FD_CLOEXEC`.
    pub close_on_exec: bool,
}

/// A table of descriptors; cloned for `fork`, shared for threads.
#[derive(Default)]
pub struct Table {
    slots: Vec<Option<Slot>>,
    /// All below are taken.
    free: usize,
}

impl Table {
    /// # Errors
    /// `EBADF`.
    pub fn get(&self, number: u32) -> Result<&Arc<Open>, Errno> {
        self.slot(number).map(|slot| &slot.open)
    }

    /// # Errors
    /// `EBADF`.
    pub fn slot(&self, number: u32) -> Result<&Slot, Errno> {
        self.slots.get(number as usize).and_then(Option::as_ref).ok_or(Errno::EBADF)
    }

    /// The lowest free number from `lowest` on, below `limit` (`RLIMIT_NOFILE`).
    ///
    /// # Errors
    /// `EMFILE`: none is free. `EINVAL`: `lowest` is not below the limit. `ENOMEM`.
    pub fn add(&mut self, slot: Slot, lowest: u32, limit: u64) -> Result<u32, Errno> {
        let limit = limit.min(MOST.into()) as usize;
        let lowest = lowest as usize;
        if lowest >= limit {
            return Err(if lowest == 0 { Errno::EMFILE } else { Errno::EINVAL });
        }
        let from = lowest.max(self.free);
        let taken = self.slots.iter().skip(from).take_while(|slot| slot.is_some()).count();
        let at = from + taken;
        if at >= limit {
            return Err(Errno::EMFILE);
        }
        self.put(at, slot)?;
        if lowest <= self.free {
            self.free = at + 1;
        }
        Ok(at as u32)
    }

    fn put(&mut self, at: usize, slot: Slot) -> Result<Option<Slot>, Errno> {
        if at >= self.slots.len() {
            self.slots.try_reserve(at + 1 - self.slots.len())?;
            self.slots.resize(at + 1, None);
        }
        Ok(self.slots[at].replace(slot))
    }

    /// `dup3` without its check for equal numbers: `to` stands for the same as `from`; what it
    /// stood for before.
    ///
    /// # Errors
    /// `EBADF`: `from` is none, or `to` is not below the limit. `ENOMEM`.
    pub fn replace(&mut self, from: u32, to: u32, close_on_exec: bool, limit: u64) -> Result<Option<Slot>, Errno> {
        let open = self.get(from)?.clone();
        if u64::from(to) >= limit.min(MOST.into()) {
            return Err(Errno::EBADF);
        }
        self.put(to as usize, Slot { open, close_on_exec })
    }

    /// `close`.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn remove(&mut self, number: u32) -> Result<Slot, Errno> {
        let slot = self.slots.get_mut(number as usize).and_then(Option::take).ok_or(Errno::EBADF)?;
        self.free = self.free.min(number as usize);
        Ok(slot)
    }

    /// `fcntl(F_SETFD)`.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_close_on_exec(&mut self, number: u32, close_on_exec: bool) -> Result<(), Errno> {
        let slot = self.slots.get_mut(number as usize).and_then(Option::as_mut).ok_or(Errno::EBADF)?;
        slot.close_on_exec = close_on_exec;
        Ok(())
    }

    /// How many descriptors there is room for.
    pub fn room(&self) -> usize {
        self.slots.len()
    }

    /// The first descriptor from a number on: to close ranges, for `execve`, and for
    /// `/proc/PID/fd`.
    pub fn next(&self, from: u32) -> Option<(u32, &Slot)> {
        let taken = self.slots.iter().enumerate().skip(from as usize);
        taken.filter_map(|(number, slot)| Some((number as u32, slot.as_ref()?))).next()
    }

    /// Take out the first one of a range (both ends included); `execve` wants only those to close.
    /// Repeat until none is left.
    pub fn remove_next(&mut self, range: (u32, u32), on_exec: bool) -> Option<Slot> {
        let mut from = range.0;
        loop {
            let (number, slot) = self.next(from)?;
            if number > range.1 {
                return None;
            }
            if slot.close_on_exec || !on_exec {
                return self.remove(number).ok();
            }
            from = number + 1;
        }
    }

    /// `close_range` with `CLOSE_RANGE_CLOEXEC`.
    pub fn set_range_close_on_exec(&mut self, range: (u32, u32)) {
        let end = self.slots.len().min((range.1 as usize).saturating_add(1));
        let slots = self.slots.get_mut(range.0 as usize..end).unwrap_or_default();
        slots.iter_mut().flatten().for_each(|slot| slot.close_on_exec = true);
    }

    /// A copy, for `fork`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn copy(&self) -> Result<Table, Errno> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(self.slots.len())?;
        slots.extend_from_slice(&self.slots);
        Ok(Table { slots, free: self.free })
    }
}

#[cfg(test)]
mod tests {
    use super::super::device;
    use super::*;

    fn slot(close_on_exec: bool) -> Slot {
        Slot { open: device::open(Arc::new(device::Null), 0), close_on_exec }
    }

    #[test]
    fn the_lowest_number() {
        let mut table = Table::default();
        for expected in 0..5 {
            assert_eq!(table.add(slot(false), 0, 100), Ok(expected));
        }
        assert!(table.remove(1).is_ok() && table.remove(3).is_ok());
        assert_eq!(table.remove(3).err(), Some(Errno::EBADF));
        assert_eq!(table.add(slot(false), 2, 100), Ok(3));
        assert_eq!(table.add(slot(false), 10, 100), Ok(10));
        assert_eq!(table.add(slot(false), 0, 100), Ok(1));
        assert_eq!(table.add(slot(false), 0, 100), Ok(5));
        assert_eq!(table.add(slot(false), 0, 6), Err(Errno::EMFILE));
        assert_eq!(table.add(slot(false), 6, 6), Err(Errno::EINVAL));
    }

    #[test]
    fn duplicates() {
        let mut table = Table::default();
        table.add(slot(true), 0, 100).unwrap();
        assert!(table.replace(0, 7, false, 100).unwrap().is_none());
        assert!(Arc::ptr_eq(table.get(0).unwrap(), table.get(7).unwrap()));
        assert!(!table.slot(7).unwrap().close_on_exec);
        assert!(table.replace(7, 0, true, 100).unwrap().is_some());
        assert_eq!(table.replace(1, 0, true, 100).err(), Some(Errno::EBADF));
        assert_eq!(table.replace(0, 100, true, 100).err(), Some(Errno::EBADF));
        let copy = table.copy().unwrap();
        table.remove(7).unwrap();
        assert!(copy.get(7).is_ok());
    }

    #[test]
    fn ranges() {
        let mut table = Table::default();
        for number in 0..10 {
            table.add(slot(number % 2 == 0), 0, 100).unwrap();
        }
        let mut count = 0;
        while table.remove_next((0, u32::MAX), true).is_some() {
            count += 1;
        }
        assert_eq!(count, 5);
        table.set_range_close_on_exec((5, u32::MAX));
        assert!(table.slot(5).unwrap().close_on_exec && !table.slot(3).unwrap().close_on_exec);
        while table.remove_next((3, 7), false).is_some() {}
        assert!(table.get(1).is_ok() && table.get(3).is_err() && table.get(9).is_ok());
        assert_eq!(table.next(2).unwrap().0, 9);
        assert_eq!(table.add(slot(false), 0, 100), Ok(0));
    }
}
