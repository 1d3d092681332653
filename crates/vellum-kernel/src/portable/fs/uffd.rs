//! The messages of a userfaultfd: faults whose threads wait until the program resolves them, and
//! events, whose threads wait until the program has read them.
//!
//! A read returns faults first, and then events, each kind in the order of arrival and each message
//! once. A fault whose thread no longer waits is not returned. Both kinds take memory only while a
//! thread waits, and a thread waits for one message at a time.

mod message;

pub use message::{Event, Fault, MESSAGE_SIZE};

use super::io::Sink;
use crate::errno::Errno;
use crate::wait::Queue;
use alloc::collections::VecDeque;
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use spin::Mutex;

struct Pending<T> {
    number: u64,
    message: T,
    /// True once a read has returned the message, or while one is about to.
    reported: bool,
}

struct State<F> {
    last_number: u64,
    /// The pending faults, in ascending order of their numbers.
    faults: VecDeque<Pending<Fault>>,
    /// The events that no read has returned, in ascending order of their numbers.
    events: VecDeque<Pending<Event<F>>>,
    /// True once the userfaultfd is being closed: no thread waits any more.
    is_closed: bool,
}

/// The messages for the program, and the threads that wait for it. `F` is a forked userfaultfd.
pub struct Messages<F> {
    state: Mutex<State<F>>,
    /// The number of changes of the address space that the program has not been notified of yet.
    changes: AtomicUsize,
    /// The wait queue of the program's threads that read or poll the userfaultfd.
    pub readers: Queue,
    /// The wait queue of the faulting threads, and of those that wait for a read of their event.
    waiting: Queue,
}

impl<F> Default for Messages<F> {
    fn default() -> Self {
        let state = State { last_number: 0, faults: VecDeque::new(), events: VecDeque::new(), is_closed: false };
        Messages {
            state: Mutex::new(state),
            changes: AtomicUsize::new(0),
            readers: Queue::new(),
            waiting: Queue::new(),
        }
    }
}

/// The next message, as a read takes it.
enum Next<F> {
    Fault(u64, Fault),
    Event(u64, Event<F>),
}

impl<F: Clone> Messages<F> {
    /// Adds a fault, wakes the readers, and returns the fault's number.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&self, fault: Fault) -> Result<u64, Errno> {
        let number = self.state.lock().push(|state| &mut state.faults, fault)?;
        self.readers.wake_all();
        Ok(number)
    }

    /// Adds an event, wakes the readers, and returns the event's number.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add_event(&self, event: Event<F>) -> Result<u64, Errno> {
        let number = self.state.lock().push(|state| &mut state.events, event)?;
        self.readers.wake_all();
        Ok(number)
    }

    /// Removes a fault or an event whose thread waits no longer.
    pub fn remove(&self, number: u64) {
        let mut state = self.state.lock();
        state.faults.retain(|pending| pending.number != number);
        let at = state.events.iter().position(|pending| pending.number == number);
        let removed = at.and_then(|at| state.events.remove(at));
        // A forked userfaultfd is dropped without the lock.
        drop(state);
        drop(removed);
    }

    /// Waits until [`Messages::wake`] has removed a fault, or a read has returned an event, or the
    /// userfaultfd is closed.
    pub async fn wait_until_gone(&self, number: u64) {
        let is_gone = || {
            let state = self.state.lock();
            let is_pending = state.faults.iter().any(|pending| pending.number == number)
                || state.events.iter().any(|pending| pending.number == number);
            state.is_closed || !is_pending
        };
        self.waiting.wait_until(|| is_gone().then_some(())).await;
    }

    /// Removes the faults at these addresses, and wakes their threads (`UFFDIO_WAKE`).
    pub fn wake(&self, addresses: Range<u64>) {
        self.state.lock().faults.retain(|pending| !addresses.contains(&pending.message.address));
        self.waiting.wake_all();
    }

    /// Ends the waits of all threads, for good.
    pub fn close(&self) {
        self.state.lock().is_closed = true;
        self.waiting.wake_all();
        self.readers.wake_all();
    }

    /// Begins a change of the address space of which an event will notify the program. Until
    /// [`Messages::end_change`], the program may not fill pages, because it does not know yet at
    /// which addresses they are.
    pub fn begin_change(&self) {
        self.changes.fetch_add(1, SeqCst);
    }

    /// Ends a change: the program has read its event, or there is none.
    pub fn end_change(&self) {
        self.changes.fetch_sub(1, SeqCst);
    }

    /// Returns true while the address space changes without the program's knowledge (Linux:
    /// `mmap_changing`).
    pub fn is_changing(&self) -> bool {
        self.changes.load(SeqCst) > 0
    }

    /// Returns true if a read would return a message.
    pub fn is_ready(&self) -> bool {
        let state = self.state.lock();
        state.faults.iter().any(|pending| !pending.reported) || state.events.iter().any(|pending| !pending.reported)
    }

    /// Returns the number of faults that no read has returned, and of all pending faults.
    pub fn counts(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.faults.iter().filter(|pending| !pending.reported).count(), state.faults.len())
    }

    /// Writes messages to `to`, as many as fit, and returns the number of bytes. `open` gives the
    /// reader a descriptor of a forked userfaultfd, and returns its number.
    ///
    /// # Errors
    /// `EINVAL`: not even one message fits. `EAGAIN`: there is no message. `EFAULT`, `ENOMEM`;
    /// those of `open`. The message stays.
    pub fn read(&self, to: &mut dyn Sink, open: impl Fn(&F) -> Result<u32, Errno>) -> Result<usize, Errno> {
        if to.room() < MESSAGE_SIZE {
            return Err(Errno::EINVAL);
        }
        let mut count = 0;
        while to.room() >= MESSAGE_SIZE
            && let Some(next) = self.take_next()
        {
            let written = next.bytes(&open).and_then(|bytes| match to.put(&bytes)? {
                MESSAGE_SIZE => Ok(()),
                _ => Err(Errno::EFAULT),
            });
            self.finish(&next, written.is_ok());
            match written {
                Ok(()) => count += MESSAGE_SIZE,
                Err(_) if count > 0 => break,
                Err(error) => return Err(error),
            }
        }
        if count == 0 { Err(Errno::EAGAIN) } else { Ok(count) }
    }

    /// Returns the next message that no read has returned, and marks it as reported.
    fn take_next(&self) -> Option<Next<F>> {
        let mut state = self.state.lock();
        if let Some(fault) = state.faults.iter_mut().find(|pending| !pending.reported) {
            fault.reported = true;
            return Some(Next::Fault(fault.number, fault.message));
        }
        let event = state.events.iter_mut().find(|pending| !pending.reported)?;
        event.reported = true;
        Some(Next::Event(event.number, event.message.clone()))
    }

    /// Ends the read of a message. An event that was written lets its thread go on. A message that
    /// was not written is returned by the next read.
    fn finish(&self, message: &Next<F>, was_written: bool) {
        if !was_written {
            let mut state = self.state.lock();
            let State { faults, events, .. } = &mut *state;
            match *message {
                Next::Fault(number, _) => {
                    faults.iter_mut().filter(|of| of.number == number).for_each(|of| of.reported = false);
                }
                Next::Event(number, _) => {
                    events.iter_mut().filter(|of| of.number == number).for_each(|of| of.reported = false);
                }
            }
            drop(state);
            // Another reader may sleep because, until now, the message counted as reported.
            self.readers.wake_all();
        } else if let Next::Event(number, _) = *message {
            self.remove(number);
            self.waiting.wake_all();
        }
    }
}

impl<F> State<F> {
    /// Adds a message to a list, and returns its number.
    fn push<T>(&mut self, list: impl Fn(&mut Self) -> &mut VecDeque<Pending<T>>, message: T) -> Result<u64, Errno> {
        let number = self.last_number + 1;
        let list = list(self);
        list.try_reserve(1)?;
        list.push_back(Pending { number, message, reported: false });
        self.last_number = number;
        Ok(number)
    }
}

impl<F> Next<F> {
    /// Returns the message as the program reads it.
    fn bytes(&self, open: impl Fn(&F) -> Result<u32, Errno>) -> Result<[u8; MESSAGE_SIZE], Errno> {
        match self {
            Next::Fault(_, fault) => Ok(fault.message()),
            Next::Event(_, event) => event.message(open),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Count;
    use core::future::Future;
    use core::pin::pin;
    use core::task::Context;

    fn read(faults: &Messages<u32>, room: usize) -> Result<std::vec::Vec<Fault>, Errno> {
        let mut bytes = std::vec![0; room];
        let count = faults.read(&mut &mut bytes[..], |fd| Ok(*fd))?;
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
        let faults = Messages::<u32>::default();
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
        let faults = Messages::<u32>::default();
        let number = faults.add(fault(0x1000)).unwrap();
        let (woken, waker) = Count::new();
        let mut waits = pin!(faults.wait_until_gone(number));
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
        let faults = Messages::<u32>::default();
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
        assert_eq!(faults.read(&mut Refuses, |fd| Ok(*fd)), Err(Errno::EFAULT));
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
        let faults = Messages::<u32>::default();
        faults.add(fault(1)).unwrap();
        let (woken, waker) = Count::new();
        let mut second = pin!(faults.readers.wait_until(|| read(&faults, MESSAGE_SIZE).ok()));
        let mut sleeps = || assert!(second.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(faults.read(&mut Meanwhile(&mut sleeps), |fd| Ok(*fd)), Err(Errno::EFAULT));
        assert_eq!(woken.woken(), 1);
        let reported = second.as_mut().poll(&mut Context::from_waker(&waker));
        assert_eq!(reported, core::task::Poll::Ready(std::vec![fault(1)]));
    }

    /// Returns the words of the next message.
    fn read_words(messages: &Messages<u32>) -> Result<[u64; 4], Errno> {
        let mut bytes = [0; MESSAGE_SIZE];
        messages.read(&mut &mut bytes[..], |fd| Ok(*fd))?;
        Ok(core::array::from_fn(|at| u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().unwrap())))
    }

    #[test]
    fn events_follow_faults_and_have_the_layout_of_the_manual() {
        let messages = Messages::default();
        let events = [
            Event::Fork(5),
            Event::Remap { from: 1, to: 2, len: 3 },
            Event::Remove { start: 4, end: 6 },
            Event::Unmap { start: 7, end: 8 },
        ];
        events.into_iter().for_each(|event| _ = messages.add_event(event).unwrap());
        messages.add(fault(9)).unwrap();
        let words = [[0x12, 1, 9, 7], [0x13, 5, 0, 0], [0x14, 1, 2, 3], [0x15, 4, 6, 0], [0x16, 7, 8, 0]];
        words.iter().for_each(|words| assert_eq!(read_words(&messages), Ok(*words)));
        assert_eq!((read_words(&messages), messages.counts()), (Err(Errno::EAGAIN), (0, 1)));
    }

    #[test]
    fn a_thread_waits_until_its_event_is_read_or_the_file_is_closed() {
        let messages = Messages::default();
        let numbers = [1, 2].map(|start| messages.add_event(Event::Remove { start, end: 9 }).unwrap());
        let (woken, waker) = Count::new();
        let mut waits = numbers.map(|number| std::boxed::Box::pin(messages.wait_until_gone(number)));
        let mut poll = |at: usize| waits[at].as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        assert_eq!([poll(0), poll(1)], [false; 2]);
        read_words(&messages).unwrap();
        assert!(woken.woken() > 0);
        assert_eq!([poll(0), poll(1)], [true, false]);
        messages.close();
        assert!(poll(1));
    }

    #[test]
    fn an_event_stays_if_the_reader_gets_no_descriptor() {
        let messages = Messages::default();
        messages.add_event(Event::Fork(5)).unwrap();
        let mut bytes = [0; MESSAGE_SIZE];
        let refused = messages.read(&mut &mut bytes[..], |_| Err(Errno::EMFILE));
        assert_eq!((refused, messages.is_ready()), (Err(Errno::EMFILE), true));
        assert_eq!(read_words(&messages), Ok([0x13, 5, 0, 0]));
    }

    #[test]
    fn changes_are_counted() {
        let messages = Messages::<u32>::default();
        (0..2).for_each(|_| messages.begin_change());
        messages.end_change();
        assert!(messages.is_changing());
        messages.end_change();
        assert!(!messages.is_changing());
    }
}
