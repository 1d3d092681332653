//! Faults that wait until somebody has dealt with them, who is told of each (`userfaultfd`): in the
//! order of their coming, as long as whoever faulted still waits.

use super::io::Sink;
use crate::errno::Errno;
use crate::wait::Queue;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem::offset_of;
use core::ops::Range;
use linux_raw_sys::general::{UFFD_EVENT_PAGEFAULT, uffd_msg, uffd_msg__bindgen_ty_1__bindgen_ty_1 as Pagefault};
use spin::Mutex;

/// What a message is long.
pub const MESSAGE: usize = size_of::<uffd_msg>();
const FLAGS: usize = offset_of!(uffd_msg, arg) + offset_of!(Pagefault, flags);
const ADDRESS: usize = offset_of!(uffd_msg, arg) + offset_of!(Pagefault, address);
const THREAD: usize = offset_of!(uffd_msg, arg) + offset_of!(Pagefault, feat);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub address: u64,
    /// `UFFD_PAGEFAULT_FLAG_WRITE` and its kin.
    pub flags: u64,
    /// To which thread, if that is told.
    pub thread: u32,
}

impl Fault {
    fn message(&self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[offset_of!(uffd_msg, event)] = UFFD_EVENT_PAGEFAULT as u8;
        bytes[FLAGS..][..8].copy_from_slice(&self.flags.to_le_bytes());
        bytes[ADDRESS..][..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[THREAD..][..4].copy_from_slice(&self.thread.to_le_bytes());
        bytes
    }
}

struct Waiting {
    number: u64,
    fault: Fault,
    told: bool,
}

/// Faults that wait.
#[derive(Default)]
pub struct Faults {
    waiting: Mutex<(u64, VecDeque<Waiting>)>,
    /// Who is told waits here.
    pub told: Queue,
    /// Who faulted waits here.
    done: Queue,
}

impl Faults {
    /// A fault is to wait. Its number.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&self, fault: Fault) -> Result<u64, Errno> {
        let mut waiting = self.waiting.lock();
        waiting.1.try_reserve(1)?;
        waiting.0 += 1;
        let number = waiting.0;
        waiting.1.push_back(Waiting { number, fault, told: false });
        drop(waiting);
        self.told.wake_all();
        Ok(number)
    }

    /// It doesn't wait any more.
    pub fn remove(&self, number: u64) {
        self.waiting.lock().1.retain(|waiting| waiting.number != number);
    }

    /// Wait until a fault has been dealt with.
    pub async fn dealt_with(&self, number: u64) {
        let gone = || !self.waiting.lock().1.iter().any(|waiting| waiting.number == number);
        self.done.wait_until(|| gone().then_some(())).await;
    }

    /// What these addresses lack has been dealt with.
    pub fn wake(&self, addresses: Range<u64>) {
        self.waiting.lock().1.retain(|waiting| !addresses.contains(&waiting.fault.address));
        self.done.wake_all();
    }

    /// Whether there is something to tell.
    pub fn is_ready(&self) -> bool {
        self.waiting.lock().1.iter().any(|waiting| !waiting.told)
    }

    /// Tell what was not told yet, as many messages as there is room for.
    ///
    /// # Errors
    /// `EINVAL`: no room for one. `EAGAIN`: there is none. `EFAULT`, `ENOMEM`.
    pub fn read(&self, to: &mut dyn Sink) -> Result<usize, Errno> {
        let room = to.room() / MESSAGE;
        if room == 0 {
            return Err(Errno::EINVAL);
        }
        let mut found = Vec::new();
        {
            let mut waiting = self.waiting.lock();
            found.try_reserve_exact(room.min(waiting.1.len()))?;
            let untold = waiting.1.iter_mut().filter(|waiting| !waiting.told).take(room);
            untold.for_each(|waiting| {
                waiting.told = true;
                found.push((waiting.number, waiting.fault));
            });
        }
        for (n, (number, fault)) in found.iter().enumerate() {
            match to.put(&fault.message()) {
                Ok(MESSAGE) => {}
                result => {
                    // They are the next one's to hear of.
                    let mut waiting = self.waiting.lock();
                    waiting.1.iter_mut().filter(|waiting| waiting.number >= *number).for_each(|waiting| {
                        waiting.told &= !found[n..].iter().any(|(number, _)| *number == waiting.number);
                    });
                    drop(waiting);
                    // A reader that found them told may sleep.
                    self.told.wake_all();
                    return if n > 0 { Ok(n * MESSAGE) } else { result.and(Err(Errno::EFAULT)) };
                }
            }
        }
        if found.is_empty() { Err(Errno::EAGAIN) } else { Ok(found.len() * MESSAGE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Count;
    use core::future::Future;
    use core::pin::pin;
    use core::task::Context;

    fn read(faults: &Faults, room: usize) -> Result<std::vec::Vec<Fault>, Errno> {
        let mut bytes = std::vec![0; room];
        let count = faults.read(&mut &mut bytes[..])?;
        let told = bytes[..count].chunks(32).map(|bytes| {
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            assert_eq!(word(0), 0x12, "a fault, as the man page has it");
            Fault { flags: word(8), address: word(16), thread: word(24) as u32 }
        });
        Ok(told.collect())
    }

    fn fault(address: u64) -> Fault {
        Fault { address, flags: 1, thread: 7 }
    }

    #[test]
    fn each_fault_is_told_once_while_it_waits() {
        let faults = Faults::default();
        assert_eq!((read(&faults, MESSAGE), faults.is_ready()), (Err(Errno::EAGAIN), false));
        assert_eq!(read(&faults, MESSAGE - 1), Err(Errno::EINVAL));
        let numbers = [1, 2, 3, 4].map(|address| faults.add(fault(address)).unwrap());
        faults.remove(numbers[1]);
        assert_eq!(read(&faults, MESSAGE + 1), Ok(std::vec![fault(1)]));
        faults.wake(3..4);
        assert!(faults.is_ready());
        assert_eq!(read(&faults, 10 * MESSAGE), Ok(std::vec![fault(4)]));
        assert!(!faults.is_ready());
    }

    #[test]
    fn who_faulted_waits_until_woken() {
        let faults = Faults::default();
        let number = faults.add(fault(0x1000)).unwrap();
        let (woken, waker) = Count::new();
        let mut waits = pin!(faults.dealt_with(number));
        let mut poll = || waits.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        assert!(!poll());
        faults.wake(0..0x1000);
        assert!(!poll());
        let before = woken.woken();
        faults.wake(0x1000..0x2000);
        assert!(woken.woken() > before && poll());
    }

    #[test]
    fn what_could_not_be_told_is_told_later() {
        let faults = Faults::default();
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
        assert_eq!(read(&faults, 2 * MESSAGE), Ok(std::vec![fault(1), fault(2)]));
    }

    #[test]
    fn a_reader_that_sleeps_beside_a_failed_one_is_woken() {
        /// Has a second reader find nothing untold, and then fails.
        struct Meanwhile<'a>(&'a mut (dyn FnMut() + Send));
        impl Sink for Meanwhile<'_> {
            fn room(&self) -> usize {
                MESSAGE
            }
            fn put(&mut self, _: &[u8]) -> Result<usize, Errno> {
                (self.0)();
                Err(Errno::EFAULT)
            }
        }
        let faults = Faults::default();
        faults.add(fault(1)).unwrap();
        let (woken, waker) = Count::new();
        let mut second = pin!(faults.told.wait_until(|| read(&faults, MESSAGE).ok()));
        let mut sleeps = || assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(faults.read(&mut Meanwhile(&mut sleeps)), Err(Errno::EFAULT));
        assert_eq!(woken.woken(), 1);
        let told = second.as_mut().poll(&mut Context::from_waker(&waker));
        assert_eq!(told, core::task::Poll::Ready(std::vec![fault(1)]));
    }
}
