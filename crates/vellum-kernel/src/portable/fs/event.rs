//! Event counters (`eventfd`).
//!
//! Unlike on Linux, a write waits only while the counter is at its maximum. If the counter is
//! lower, but the sum would exceed the maximum, the write does not wait: it fails, with `EAGAIN`
//! under `O_NONBLOCK` and otherwise with `EINVAL`.

use super::inode::File;
use super::io::{Sink, Source};
use crate::errno::Errno;
use crate::wait::Queue;
use core::any::Any;
use linux_raw_sys::general::{POLLERR, POLLIN, POLLOUT};
use spin::Mutex;

/// An event counter. Its maximum is `u64::MAX - 1`.
pub struct Event {
    count: Mutex<u64>,
    /// True if a read takes 1 off the counter instead of setting it to 0 (`EFD_SEMAPHORE`).
    semaphore: bool,
    /// The wait queue of readers and writers, woken when the counter changes.
    changed: Queue,
}

impl Event {
    /// Returns a counter with the value `count`.
    pub const fn new(count: u32, semaphore: bool) -> Event {
        Event { count: Mutex::new(count as u64), semaphore, changed: Queue::new() }
    }
}

impl File for Event {
    fn ignores_seeks(&self) -> bool {
        true
    }

    fn read(&self, _at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        if to.room() < 8 {
            return Err(Errno::EINVAL);
        }
        let mut count = self.count.lock();
        let taken = if self.semaphore { (*count).min(1) } else { *count };
        if taken == 0 {
            return Err(Errno::EAGAIN);
        }
        if to.put(&taken.to_le_bytes())? < 8 {
            return Err(Errno::EFAULT);
        }
        *count -= taken;
        drop(count);
        self.changed.wake_all();
        Ok(8)
    }

    fn write(&self, _at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        if from.left() < 8 {
            return Err(Errno::EINVAL);
        }
        let mut count = self.count.lock();
        if *count == u64::MAX - 1 {
            return Err(Errno::EAGAIN);
        }
        let mut bytes = [0; 8];
        if from.take(&mut bytes)? < 8 {
            return Err(Errno::EFAULT);
        }
        let added = u64::from_le_bytes(bytes);
        if added == u64::MAX {
            return Err(Errno::EINVAL);
        }
        let sum = count.checked_add(added).filter(|&sum| sum < u64::MAX);
        *count = sum.ok_or(Errno::EAGAIN)?;
        drop(count);
        self.changed.wake_all();
        Ok(8)
    }

    fn ready(&self) -> u32 {
        match *self.count.lock() {
            0 => POLLOUT,
            u64::MAX => POLLERR,
            count if count == u64::MAX - 1 => POLLIN,
            _ => POLLIN | POLLOUT,
        }
    }

    fn queue(&self) -> Option<&Queue> {
        Some(&self.changed)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(event: &Event) -> Result<u64, Errno> {
        let mut bytes = [0; 8];
        event.read(0, &mut &mut bytes[..]).map(|_| u64::from_le_bytes(bytes))
    }

    fn write(event: &Event, value: u64) -> Result<usize, Errno> {
        event.write(0, &mut &value.to_le_bytes()[..])
    }

    #[test]
    fn reads_take_the_count_or_one_of_a_semaphore() {
        let event = Event::new(2, false);
        assert_eq!((write(&event, 3), read(&event), read(&event)), (Ok(8), Ok(5), Err(Errno::EAGAIN)));
        assert_eq!(write(&event, u64::MAX), Err(Errno::EINVAL));
        assert_eq!((write(&event, u64::MAX - 1), event.ready()), (Ok(8), POLLIN));
        assert_eq!(write(&event, 1), Err(Errno::EAGAIN));
        let semaphore = Event::new(2, true);
        assert_eq!((read(&semaphore), read(&semaphore), read(&semaphore)), (Ok(1), Ok(1), Err(Errno::EAGAIN)));
    }
}
