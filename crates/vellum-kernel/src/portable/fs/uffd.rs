//! The pending faults of a userfaultfd. A read of the userfaultfd returns each fault once, in the
//! order of arrival, except faults whose thread no longer waits.

use super::io::Sink;
use crate::errno::Errno;
use crate::wait::Queue;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem::offset_of;
use core::ops::Range;
use linux_raw_sys::general::{UFFD_EVENT_PAGEFAULT, uffd_msg, uffd_msg__bindgen_ty_1__bindgen_ty_1 as Pagefault};
use spin::Mutex;

/// The size of a message, in bytes.
pub const MESSAGE_SIZE: usize = size_of::<uffd_msg>();
const FLAGS_OFFSET: usize = offset_of!(uffd_msg, arg) + offset_of!(Pagefault, flags);
const ADDRESS_OFFSET: usize = offset_of!(uffd_msg, arg) + offset_of!(Pagefault, address);
const THREAD_OFFSET: usize = offset_of!(uffd_msg, arg) + offset_of!(Pagefault, feat);

/// A page fault, as `UFFD_EVENT_PAGEFAULT` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The address of the faulting page.
    pub address: u64,
    /// Flags: `UFFD_PAGEFAULT_FLAG_WRITE` and others.
    pub flags: u64,
    /// The faulting thread's TID with `UFFD_FEATURE_THREAD_ID`, and otherwise 0.
    pub thread: u32,
}

impl Fault {
    fn message(&self) -> [u8; MESSAGE_SIZE] {
        let mut bytes = [0; MESSAGE_SIZE];
        bytes[offset_of!(uffd_msg, event)] = UFFD_EVENT_PAGEFAULT as u8;
        bytes[FLAGS_OFFSET..][..8].copy_from_slice(&self.flags.to_le_bytes());
        bytes[ADDRESS_OFFSET..][..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[THREAD_OFFSET..][..4].copy_from_slice(&self.thread.to_le_bytes());
        bytes
    }
}

struct Pending {
    number: u64,
    fault: Fault,
    /// True once a read has returned the fault.
    reported: bool,
}

#[derive(Default)]
struct State {
    last_number: u64,
    /// The pending faults, in ascending order of their numbers.
    faults: VecDeque<Pending>,
}

/// The faults whose threads wait for the program to resolve them.
#[derive(Default)]
pub struct PendingFaults {
    state: Mutex<State>,
    /// The wait queue of the program's threads that read or poll the userfaultfd.
    pub readers: Queue,
    /// The wait queue of the faulting threads.
    faulting: Queue,
}

impl PendingFaults {
    /// Adds a fault, wakes the readers, and returns the fault's number.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&self, fault: Fault) -> Result<u64, Errno> {
        let mut state = self.state.lock();
        state.faults.try_reserve(1)?;
        state.last_number += 1;
        let number = state.last_number;
        state.faults.push_back(Pending { number, fault, reported: false });
        drop(state);
        self.readers.wake_all();
        Ok(number)
    }

    /// Removes a fault whose thread waits no longer.
    pub fn remove(&self, number: u64) {
        self.state.lock().faults.retain(|pending| pending.number != number);
    }

    /// Waits until [`PendingFaults::wake`] has removed a fault.
    pub async fn wait_until_resolved(&self, number: u64) {
        let is_resolved = || !self.state.lock().faults.iter().any(|pending| pending.number == number);
        self.faulting.wait_until(|| is_resolved().then_some(())).await;
    }

    /// Removes the faults at these addresses, and wakes their threads (`UFFDIO_WAKE`).
    pub fn wake(&self, addresses: Range<u64>) {
        self.state.lock().faults.retain(|pending| !addresses.contains(&pending.fault.address));
        self.faulting.wake_all();
    }

    /// Returns true if a read would return a fault.
    pub fn is_ready(&self) -> bool {
        self.state.lock().faults.iter().any(|pending| !pending.reported)
    }

    /// Writes the messages of faults not reported yet to `to`, as many as fit, and returns the
    /// number of bytes.
    ///
    /// # Errors
    /// `EINVAL`: not even one message fits. `EAGAIN`: no fault to report. `EFAULT`, `ENOMEM`.
    pub fn read(&self, to: &mut dyn Sink) -> Result<usize, Errno> {
        let room = to.room() / MESSAGE_SIZE;
        if room == 0 {
            return Err(Errno::EINVAL);
        }
        let mut found = Vec::new();
        {
            let mut state = self.state.lock();
            found.try_reserve_exact(room.min(state.faults.len()))?;
            let unreported = state.faults.iter_mut().filter(|pending| !pending.reported).take(room);
            unreported.for_each(|pending| {
                pending.reported = true;
                found.push((pending.number, pending.fault));
            });
        }
        for (n, (number, fault)) in found.iter().enumerate() {
            match to.put(&fault.message()) {
                Ok(MESSAGE_SIZE) => {}
                result => {
                    // The next read returns the faults whose messages could not be written.
                    let mut state = self.state.lock();
                    state.faults.iter_mut().filter(|pending| pending.number >= *number).for_each(|pending| {
                        pending.reported &= !found[n..].iter().any(|(number, _)| *number == pending.number);
                    });
                    drop(state);
                    // Another reader may sleep because, until now, these faults counted as
                    // reported.
                    self.readers.wake_all();
                    return if n > 0 { Ok(n * MESSAGE_SIZE) } else { result.and(Err(Errno::EFAULT)) };
                }
            }
        }
        if found.is_empty() { Err(Errno::EAGAIN) } else { Ok(found.len() * MESSAGE_SIZE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Count;
    use core::future::Future;
    use core::pin::pin;
    use core::task::Context;

    fn read(faults: &PendingFaults, room: usize) -> Result<std::vec::Vec<Fault>, Errno> {
        let mut bytes = std::vec![0; room];
        let count = faults.read(&mut &mut bytes[..])?;
        let reported = bytes[..count].chunks(32).map(|bytes| {
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            assert_eq!(word(0), 0x12, "UFFD_EVENT_PAGEFAULT of userfaultfd(2)");
            Fault { flags: word(8), address: word(16), thread: word(24) as u32 }
        });
        Ok(reported.collect())
    }

    fn fault(address: u64) -> Fault {
        Fault { address, flags: 1, thread: 7 }
    }

    #[test]
    fn each_pending_fault_is_reported_once() {
        let faults = PendingFaults::default();
        assert_eq!((read(&faults, MESSAGE_SIZE), faults.is_ready()), (Err(Errno::EAGAIN), false));
        assert_eq!(read(&faults, MESSAGE_SIZE - 1), Err(Errno::EINVAL));
        let numbers = [1, 2, 3, 4].map(|address| faults.add(fault(address)).unwrap());
        faults.remove(numbers[1]);
        assert_eq!(read(&faults, MESSAGE_SIZE + 1), Ok(std::vec![fault(1)]));
        faults.wake(3..4);
        assert!(faults.is_ready());
        assert_eq!(read(&faults, 10 * MESSAGE_SIZE), Ok(std::vec![fault(4)]));
        assert!(!faults.is_ready());
    }

    #[test]
    fn a_faulting_thread_waits_until_its_address_is_woken() {
        let faults = PendingFaults::default();
        let number = faults.add(fault(0x1000)).unwrap();
        let (woken, waker) = Count::new();
        let mut waits = pin!(faults.wait_until_resolved(number));
        let mut poll = || waits.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        assert!(!poll());
        faults.wake(0..0x1000);
        assert!(!poll());
        let before = woken.woken();
        faults.wake(0x1000..0x2000);
        assert!(woken.woken() > before && poll());
    }

    #[test]
    fn a_fault_whose_message_could_not_be_written_is_reported_later() {
        let faults = PendingFaults::default();
        (1..3).for_each(|address| _ = faults.add(fault(address)).unwrap());
        struct Refuses;
        impl Sink for Refuses {
            fn room(&self) -> usize {
                100
            }
            fn put(&mut self, _: &[u8]) -> Result<usize, Errno> {
                Err(Errno::EFAULT)
            }
        }
        assert_eq!(faults.read(&mut Refuses), Err(Errno::EFAULT));
        assert_eq!(read(&faults, 2 * MESSAGE_SIZE), Ok(std::vec![fault(1), fault(2)]));
    }

    #[test]
    fn a_failed_read_wakes_a_reader_that_found_nothing_to_report() {
        /// Lets a second reader find nothing to report, and then fails.
        struct Meanwhile<'a>(&'a mut (dyn FnMut() + Send));
        impl Sink for Meanwhile<'_> {
            fn room(&self) -> usize {
                MESSAGE_SIZE
            }
            fn put(&mut self, _: &[u8]) -> Result<usize, Errno> {
                (self.0)();
                Err(Errno::EFAULT)
            }
        }
        let faults = PendingFaults::default();
        faults.add(fault(1)).unwrap();
        let (woken, waker) = Count::new();
        let mut second = pin!(faults.readers.wait_until(|| read(&faults, MESSAGE_SIZE).ok()));
        let mut sleeps = || assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(faults.read(&mut Meanwhile(&mut sleeps)), Err(Errno::EFAULT));
        assert_eq!(woken.woken(), 1);
        let reported = second.as_mut().poll(&mut Context::from_waker(&waker));
        assert_eq!(reported, core::task::Poll::Ready(std::vec![fault(1)]));
    }
}
