//! File descriptor tables (Linux: `struct fdtable`).
//!
//! The caller protects a table with a lock. Removed entries are returned, so that the caller drops
//! them after it has unlocked the table: dropping the last reference to an open file description
//! closes the file, which takes other locks.

use super::open::Open;
use crate::errno::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The most descriptors of a table, whatever `RLIMIT_NOFILE` is (`/proc/sys/fs/nr_open`).
pub const NR_OPEN: u32 = 1 << 20;

/// The entry of a file descriptor.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Slot {
    pub open: Arc<Open>,
    /// `FD_CLOEXEC`.
    pub close_on_exec: bool,
}

/// A file descriptor table: copied by `fork`, shared by threads.
#[derive(Default)]
pub struct Table {
    slots: Vec<Option<Slot>>,
    /// No number below this is free.
    free: usize,
}

impl Table {
    /// Returns the open file description of a descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn get(&self, number: u32) -> Result<&Arc<Open>, Errno> {
        self.slot(number).map(|slot| &slot.open)
    }

    /// Returns the entry of a descriptor.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn slot(&self, number: u32) -> Result<&Slot, Errno> {
        self.slots.get(number as usize).and_then(Option::as_ref).ok_or(Errno::EBADF)
    }

    /// Adds an entry at the lowest free number from `lowest` on, below `limit` (`RLIMIT_NOFILE`),
    /// and returns the number.
    ///
    /// # Errors
    /// `EMFILE`: no number is free. `EINVAL`: `lowest` is not below the limit. `ENOMEM`.
    pub fn add(&mut self, slot: Slot, lowest: u32, limit: u64) -> Result<u32, Errno> {
        let limit = limit.min(NR_OPEN.into()) as usize;
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

    /// Makes `to` a duplicate of `from`, and returns the entry that `to` had before. Implements
    /// `dup3`, except its check that the numbers differ.
    ///
    /// # Errors
    /// `EBADF`: `from` is not open, or `to` is not below the limit. `ENOMEM`.
    pub fn replace(&mut self, from: u32, to: u32, close_on_exec: bool, limit: u64) -> Result<Option<Slot>, Errno> {
        let open = self.get(from)?.clone();
        if u64::from(to) >= limit.min(NR_OPEN.into()) {
            return Err(Errno::EBADF);
        }
        self.put(to as usize, Slot { open, close_on_exec })
    }

    /// Removes a descriptor, and returns its entry (`close`).
    ///
    /// # Errors
    /// `EBADF`.
    pub fn remove(&mut self, number: u32) -> Result<Slot, Errno> {
        let slot = self.slots.get_mut(number as usize).and_then(Option::take).ok_or(Errno::EBADF)?;
        self.free = self.free.min(number as usize);
        Ok(slot)
    }

    /// Sets or clears a descriptor's close-on-exec flag (`fcntl(F_SETFD)`).
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_close_on_exec(&mut self, number: u32, close_on_exec: bool) -> Result<(), Errno> {
        let slot = self.slots.get_mut(number as usize).and_then(Option::as_mut).ok_or(Errno::EBADF)?;
        slot.close_on_exec = close_on_exec;
        Ok(())
    }

    /// Returns the number of slots. No descriptor with this number or a larger one is open.
    pub fn room(&self) -> usize {
        self.slots.len()
    }

    /// Returns the first open descriptor from `from` on, with its entry.
    pub fn next(&self, from: u32) -> Option<(u32, &Slot)> {
        let taken = self.slots.iter().enumerate().skip(from as usize);
        taken.filter_map(|(number, slot)| Some((number as u32, slot.as_ref()?))).next()
    }

    /// Removes the first descriptor of a range (both ends included), and returns its entry; with
    /// `on_exec`, the first with the close-on-exec flag. Returns `None` once none is left.
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

    /// Sets the close-on-exec flag of all descriptors of a range, both ends included (`close_range`
    /// with `CLOSE_RANGE_CLOEXEC`).
    pub fn set_range_close_on_exec(&mut self, range: (u32, u32)) {
        let end = self.slots.len().min((range.1 as usize).saturating_add(1));
        let slots = self.slots.get_mut(range.0 as usize..end).unwrap_or_default();
        slots.iter_mut().flatten().for_each(|slot| slot.close_on_exec = true);
    }

    /// Returns a copy that shares the open file descriptions, for `fork`.
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
    fn a_new_descriptor_gets_the_lowest_free_number() {
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
    fn a_duplicate_shares_the_open_file_description_but_not_its_flag() {
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
    fn ranges_are_closed_or_marked_close_on_exec() {
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
