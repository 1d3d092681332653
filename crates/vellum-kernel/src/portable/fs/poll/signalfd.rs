//! Descriptors for signals (`signalfd`), without the signals themselves, which are the kernel's.
//!
//! A descriptor reports signals of the process that reads or polls it: a child that inherits one
//! gets its own. So a process lists the descriptors on which its threads wait, and a signal that is
//! sent to it wakes those of its list that want it.

use crate::errno::Errno;
use crate::wait::Queue;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use spin::Mutex;

/// A signalfd: the signals that it reports, and the tasks that wait for one.
pub struct SignalFd {
    mask: AtomicU64,
    /// The tasks that wait for a signal.
    pub arrived: Queue,
    /// The number of the process that listed the descriptor last.
    listed_by: AtomicU32,
}

impl SignalFd {
    /// Creates a descriptor that reports the signals of `mask`: bit 0 is signal 1.
    pub fn new(mask: u64) -> Arc<Self> {
        Arc::new(SignalFd { mask: AtomicU64::new(mask), arrived: Queue::new(), listed_by: AtomicU32::new(0) })
    }

    /// Returns the signals that it reports.
    pub fn mask(&self) -> u64 {
        self.mask.load(SeqCst)
    }

    /// Changes the signals that it reports. A task that waits looks for them.
    pub fn set_mask(&self, mask: u64) {
        self.mask.store(mask, SeqCst);
        self.arrived.wake_all();
    }
}

/// The descriptors on which threads of a process have waited.
#[derive(Default)]
pub struct SignalFds {
    list: Mutex<Vec<Weak<SignalFd>>>,
}

impl SignalFds {
    /// Adds a descriptor, unless it is listed, for the process with the number `process`, whose
    /// list this is. Signals that are sent from now on wake the tasks that wait on the descriptor.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&self, descriptor: &Arc<SignalFd>, process: u32) -> Result<(), Errno> {
        if descriptor.listed_by.load(Relaxed) == process {
            return Ok(());
        }
        let mut list = self.list.lock();
        if !list.iter().any(|listed| Weak::as_ptr(listed) == Arc::as_ptr(descriptor)) {
            if list.len() == list.capacity() {
                list.retain(|listed| listed.strong_count() > 0);
            }
            list.try_reserve(1)?;
            list.push(Arc::downgrade(descriptor));
        }
        drop(list);
        descriptor.listed_by.store(process, Relaxed);
        Ok(())
    }

    /// Wakes the tasks that wait for this signal. The caller has made it pending.
    pub fn wake(&self, signal: u32) {
        let mut next = 0;
        loop {
            let list = self.list.lock();
            let wants = |listed: &Weak<SignalFd>| {
                listed.upgrade().filter(|descriptor| descriptor.mask() >> (signal - 1) & 1 != 0)
            };
            let rest = list.iter().enumerate().skip(next);
            let Some((at, descriptor)) = { rest }.find_map(|(at, listed)| Some((at, wants(listed)?))) else { return };
            drop(list);
            next = at + 1;
            // A waker may run code that lists a descriptor.
            descriptor.arrived.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Count;

    #[test]
    fn a_signal_wakes_the_descriptors_of_its_process_that_want_it() {
        let (one, other) = (SignalFds::default(), SignalFds::default());
        let descriptor = SignalFd::new(1 << 9 | 1 << 63);
        let (count, waker) = Count::new();
        let woken = |list: &SignalFds, signal| {
            let before = count.woken();
            let number = descriptor.arrived.add(waker.clone()).unwrap();
            list.wake(signal);
            descriptor.arrived.remove(number);
            count.woken() - before
        };
        assert_eq!(woken(&one, 10), 0);
        one.add(&descriptor, 7).unwrap();
        one.add(&descriptor, 7).unwrap();
        assert_eq!([10, 64, 9, 11].map(|signal| woken(&one, signal)), [1, 1, 0, 0]);
        assert_eq!(woken(&other, 10), 0);
        // Both processes use it in turn, and each lists it once.
        for process in [8, 7, 8] {
            if process == 8 { other.add(&descriptor, 8) } else { one.add(&descriptor, 7) }.unwrap();
        }
        assert_eq!([one.list.lock().len(), other.list.lock().len()], [1, 1]);
        assert_eq!([woken(&one, 10), woken(&other, 10)], [1, 1]);
        descriptor.set_mask(1 << 8);
        assert_eq!([woken(&one, 10), woken(&one, 9)], [0, 1]);
    }

    #[test]
    fn closed_descriptors_leave_the_list_when_it_would_grow() {
        let list = SignalFds::default();
        for _ in 0..100 {
            list.add(&SignalFd::new(1), 1).unwrap();
        }
        assert!(list.list.lock().capacity() <= 8);
    }

    #[test]
    fn a_new_mask_wakes_the_tasks_that_wait() {
        let descriptor = SignalFd::new(1);
        let (count, waker) = Count::new();
        descriptor.arrived.add(waker);
        descriptor.set_mask(2);
        assert_eq!((count.woken(), descriptor.mask()), (1, 2));
    }
}
