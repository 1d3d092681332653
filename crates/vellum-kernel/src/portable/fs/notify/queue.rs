//! The queue of an instance: events in the order in which they happened.

use crate::errno::Errno;
use crate::fs::io::Sink;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use linux_raw_sys::general::{IN_IGNORED, IN_Q_OVERFLOW};

/// The size in bytes of a `struct inotify_event` without its name.
pub const HEADER: usize = 16;
/// The longest name of a directory entry.
const LONGEST_NAME: usize = 255;
/// The number of the watch that an overflow names.
const NO_WATCH: i32 = -1;
/// The events for which an empty queue keeps its memory.
const KEPT: usize = 64;

/// An event (`struct inotify_event`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The number of the watch.
    pub watch: i32,
    /// The event's bit, and flags.
    pub mask: u32,
    /// The number that the two events of a move have in common; 0 for other events.
    pub cookie: u32,
    /// The name of the file in the watched directory; empty if it is the watched inode itself.
    pub name: &'a [u8],
}

struct Queued {
    watch: i32,
    mask: u32,
    cookie: u32,
    name: Box<[u8]>,
}

impl Queued {
    /// Returns the length of the name as a program reads it: with a NUL, and aligned.
    fn name_room(&self) -> usize {
        if self.name.is_empty() { 0 } else { (self.name.len() + 1).next_multiple_of(HEADER) }
    }

    fn is_same(&self, event: &Event<'_>) -> bool {
        (self.watch, self.mask, &*self.name) == (event.watch, event.mask, event.name)
    }
}

/// A queue of events.
pub struct EventQueue {
    events: VecDeque<Queued>,
    /// The most events.
    most: usize,
    /// The size in bytes of all events, as programs read them.
    size: usize,
    /// The queue has an event that reports its overflow.
    has_overflow: bool,
}

impl EventQueue {
    /// Creates an empty queue for at most `most` events.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(most: usize) -> Result<Self, Errno> {
        let mut events = VecDeque::new();
        events.try_reserve(2)?;
        Ok(EventQueue { events, most, size: 0, has_overflow: false })
    }

    /// Returns true if there is no event.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns the size in bytes of all events, as programs read them.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Adds an event, unless it is the same as the last one. If the queue is full, or there is no
    /// memory, the event is lost, and the queue has one event that reports this. Returns true if
    /// the queue has one event more.
    pub fn push(&mut self, event: &Event<'_>) -> bool {
        if self.events.len() >= self.most {
            return self.overflow();
        }
        if let Some(last) = self.events.back()
            && last.mask & IN_IGNORED == 0
            && last.is_same(event)
        {
            return false;
        }
        let mut name = Vec::new();
        // Behind the event there is still room for one that reports an overflow.
        if self.events.try_reserve(2).is_err() || name.try_reserve_exact(event.name.len()).is_err() {
            return self.overflow();
        }
        name.extend_from_slice(event.name);
        let Event { watch, mask, cookie, .. } = *event;
        self.add(Queued { watch, mask, cookie, name: name.into_boxed_slice() });
        true
    }

    /// Adds the event that reports an overflow, unless there is one.
    fn overflow(&mut self) -> bool {
        let is_first = !self.has_overflow && self.events.len() < self.events.capacity();
        if is_first {
            self.has_overflow = true;
            self.add(Queued { watch: NO_WATCH, mask: IN_Q_OVERFLOW, cookie: 0, name: Box::default() });
        }
        is_first
    }

    fn add(&mut self, queued: Queued) {
        self.size += HEADER + queued.name_room();
        self.events.push_back(queued);
    }

    /// Moves as many events as fit to `to`. Returns the number of bytes.
    ///
    /// # Errors
    /// `EAGAIN`: there is no event. `EINVAL`: the first event does not fit. `EFAULT`.
    pub fn read(&mut self, to: &mut dyn Sink) -> Result<usize, Errno> {
        let mut done = 0;
        while let Some(first) = self.events.front() {
            let len = HEADER + first.name_room();
            if to.room() < len {
                return if done > 0 { Ok(done) } else { Err(Errno::EINVAL) };
            }
            let mut bytes = [0; HEADER + (LONGEST_NAME + 1).next_multiple_of(HEADER)];
            let words = [first.watch as u32, first.mask, first.cookie, first.name_room() as u32];
            for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
                place.copy_from_slice(&word.to_le_bytes());
            }
            bytes[HEADER..][..first.name.len()].copy_from_slice(&first.name);
            match to.put(&bytes[..len]) {
                Ok(put) if put == len => {}
                _ if done > 0 => return Ok(done),
                put => return put.and(Err(Errno::EFAULT)),
            }
            done += len;
            self.size -= len;
            self.has_overflow &= first.mask & IN_Q_OVERFLOW == 0;
            self.events.pop_front();
        }
        if self.events.capacity() > KEPT {
            self.events.shrink_to(KEPT);
        }
        if done > 0 { Ok(done) } else { Err(Errno::EAGAIN) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux_raw_sys::general::{IN_CREATE, IN_MODIFY};
    use std::vec;

    fn event(watch: i32, mask: u32, name: &[u8]) -> Event<'_> {
        Event { watch, mask, cookie: 0, name }
    }

    fn read(queue: &mut EventQueue, len: usize) -> Result<vec::Vec<u8>, Errno> {
        let mut bytes = vec![0xff; len];
        queue.read(&mut &mut bytes[..]).map(|count| bytes[..count].to_vec())
    }

    #[test]
    fn events_are_read_whole_with_their_names_aligned() {
        let mut queue = EventQueue::new(10).unwrap();
        assert!(queue.push(&Event { watch: 1, mask: IN_CREATE, cookie: 9, name: b"sixteen letters!" }));
        assert!(queue.push(&event(2, IN_MODIFY, b"")));
        assert_eq!(queue.size(), 16 + 32 + 16);
        assert_eq!(read(&mut queue, 47), Err(Errno::EINVAL));
        let first = read(&mut queue, 63).unwrap();
        assert_eq!(first[..16], [1, 0, 0, 0, 0, 1, 0, 0, 9, 0, 0, 0, 32, 0, 0, 0]);
        assert_eq!((&first[16..32], &first[32..]), (&b"sixteen letters!"[..], &[0; 16][..]));
        assert_eq!(read(&mut queue, 100).unwrap(), [2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((read(&mut queue, 100), queue.size()), (Err(Errno::EAGAIN), 0));
    }

    #[test]
    fn an_event_like_the_last_one_is_not_added() {
        let mut queue = EventQueue::new(10).unwrap();
        let added = [
            event(1, IN_MODIFY, b""),
            event(1, IN_MODIFY, b""),
            event(1, IN_MODIFY, b"a"),
            event(2, IN_MODIFY, b"a"),
            event(2, IN_CREATE, b"a"),
            event(1, IN_MODIFY, b""),
            event(1, IN_IGNORED, b""),
            event(1, IN_IGNORED, b""),
        ];
        assert_eq!(added.map(|event| queue.push(&event)), [true, false, true, true, true, true, true, true]);
    }

    #[test]
    fn an_overflow_is_reported_once_until_it_is_read() {
        let mut queue = EventQueue::new(2).unwrap();
        let push = |queue: &mut EventQueue, watch| queue.push(&event(watch, IN_MODIFY, b""));
        assert_eq!([1, 2, 3, 4].map(|watch| push(&mut queue, watch)), [true, true, true, false]);
        let bytes = read(&mut queue, 1000).unwrap();
        assert_eq!((bytes.len(), &bytes[32..40]), (48, &[0xff, 0xff, 0xff, 0xff, 0, 0x40, 0, 0][..]));
        assert_eq!([5, 6, 7, 8].map(|watch| push(&mut queue, watch)), [true, true, true, false]);
    }
}
