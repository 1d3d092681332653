//! Pipes: named (FIFOs) or not.
//!
//! A write of at most [`ATOMIC`] bytes is in one piece. Readers wait for bytes or for the last
//! writer to go; writers for room or for the last reader to go.

use super::bytes::Bytes;
use super::inode::{Change, File, Inode};
use super::io::{Sink, Source, in_pieces};
use super::meta::{Device, Kind, Meta};
use crate::errno::Errno;
use crate::wait::Queue;
use alloc::sync::Arc;
use core::any::Any;
use linux_raw_sys::general::{
    F_GETPIPE_SZ, F_SETPIPE_SZ, O_ACCMODE, O_NONBLOCK, O_RDONLY, O_RDWR, O_WRONLY, POLLERR, POLLHUP, POLLIN, POLLOUT,
    POLLRDNORM, POLLWRNORM,
};
use spin::Mutex;

/// `PIPE_BUF`.
pub const ATOMIC: usize = 4096;
/// What a pipe holds at first.
const CAPACITY: usize = 65536;
/// What a pipe may be made to hold (`/proc/sys/fs/pipe-max-size`).
const MOST: usize = 1 << 20;

/// A pipe.
pub struct Pipe {
    state: Mutex<State>,
    /// One queue for both ends: whatever happens concerns the other end, and its waits are for a
    /// condition.
    changed: Queue,
}

struct State {
    bytes: Bytes,
    capacity: usize,
    readers: u32,
    writers: u32,
    /// How often each end was opened: readers, writers. It never falls, so that an end which came
    /// and went is still known.
    opened: [u64; 2],
}

impl Default for Pipe {
    fn default() -> Self {
        let state = State { bytes: Bytes::default(), capacity: CAPACITY, readers: 0, writers: 0, opened: [0; 2] };
        Pipe { state: Mutex::new(state), changed: Queue::new() }
    }
}

/// One end of a pipe, or both.
struct End {
    pipe: Arc<Pipe>,
    reads: bool,
    writes: bool,
    /// How often the other end had been opened when this one was, if it was not open then. Decided
    /// under the lock under which this end was counted: whatever the other end does from then on,
    /// this one has met it or is going to see the count rise.
    alone: Option<u64>,
}

impl Pipe {
    /// Open it, as `flags` says.
    ///
    /// # Errors
    /// `ENXIO`: to write, not to wait, and nobody reads. `EINVAL`: neither to read nor to write.
    pub fn open(self: &Arc<Self>, flags: u32) -> Result<Arc<dyn File>, Errno> {
        let (reads, writes) = match flags & O_ACCMODE {
            O_RDONLY => (true, false),
            O_WRONLY => (false, true),
            O_RDWR => (true, true),
            _ => return Err(Errno::EINVAL),
        };
        let mut state = self.state.lock();
        if writes && !reads && flags & O_NONBLOCK != 0 && state.readers == 0 {
            return Err(Errno::ENXIO);
        }
        let there = if reads { state.writers } else { state.readers };
        let alone = (there == 0 && !(reads && writes)).then_some(state.opened[usize::from(reads)]);
        state.readers += u32::from(reads);
        state.writers += u32::from(writes);
        state.opened[0] += u64::from(reads);
        state.opened[1] += u64::from(writes);
        drop(state);
        self.changed.wake_all();
        Ok(Arc::new(End { pipe: self.clone(), reads, writes, alone }))
    }
}

impl End {
    /// Returns whether the other end has been open at any time since this one was opened.
    fn has_met(&self, state: &State) -> bool {
        self.alone.is_none_or(|before| state.opened[usize::from(self.reads)] > before)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut state = self.pipe.state.lock();
        state.readers -= u32::from(self.reads);
        state.writers -= u32::from(self.writes);
        if state.readers == 0 && state.writers == 0 {
            state.bytes = Bytes::default();
        }
        drop(state);
        self.pipe.changed.wake_all();
    }
}

impl File for End {
    fn read(&self, _at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        if !self.reads {
            return Err(Errno::EBADF);
        }
        if to.room() == 0 {
            return Ok(0);
        }
        let mut state = self.pipe.state.lock();
        if state.bytes.is_empty() {
            return if state.writers == 0 { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        let done = in_pieces(|| {
            let first = state.bytes.first();
            if first.is_empty() || to.room() == 0 {
                return Ok((0, false));
            }
            let put = to.put(first)?;
            state.bytes.drop_first(put);
            Ok((put, true))
        });
        drop(state);
        self.pipe.changed.wake_all();
        done
    }

    fn write(&self, _at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        if !self.writes {
            return Err(Errno::EBADF);
        }
        let wanted = from.left();
        if wanted == 0 {
            return Ok(0);
        }
        let mut state = self.pipe.state.lock();
        if state.readers == 0 {
            return Err(Errno::EPIPE);
        }
        let room = state.capacity.saturating_sub(state.bytes.len());
        if room == 0 || wanted <= ATOMIC && room < wanted {
            return Err(Errno::EAGAIN);
        }
        let mut room = room.min(wanted);
        let done = in_pieces(|| {
            if room == 0 {
                return Ok((0, false));
            }
            let place = state.bytes.room()?;
            let count = room.min(place.len());
            let taken = from.take(&mut place[..count]);
            let added = taken.unwrap_or(0);
            state.bytes.add(added);
            room -= added;
            taken.map(|taken| (taken, true))
        });
        drop(state);
        self.pipe.changed.wake_all();
        done
    }

    fn ready(&self) -> u32 {
        let state = self.pipe.state.lock();
        let mut ready = 0;
        if self.reads {
            ready |= if state.bytes.is_empty() { 0 } else { POLLIN | POLLRDNORM };
            // Not before a writer has come.
            ready |= if state.writers == 0 && self.has_met(&state) { POLLHUP } else { 0 };
        }
        if self.writes {
            let room = state.capacity.saturating_sub(state.bytes.len());
            ready |= if room >= ATOMIC { POLLOUT | POLLWRNORM } else { 0 };
            ready |= if state.readers == 0 { POLLERR } else { 0 };
        }
        ready
    }

    fn queue(&self) -> Option<&Queue> {
        Some(&self.pipe.changed)
    }

    fn unread(&self, _at: u64) -> Result<u64, Errno> {
        Ok(self.pipe.state.lock().bytes.len() as u64)
    }

    fn connected(&self) -> bool {
        self.has_met(&self.pipe.state.lock())
    }

    fn control(&self, command: u32, argument: u64) -> Result<u64, Errno> {
        let mut state = self.pipe.state.lock();
        match command {
            F_GETPIPE_SZ => Ok(state.capacity as u64),
            F_SETPIPE_SZ => {
                if argument > MOST as u64 {
                    return Err(Errno::EPERM);
                }
                let capacity = (argument as usize).max(ATOMIC).next_power_of_two();
                if state.bytes.len() > capacity {
                    return Err(Errno::EBUSY);
                }
                state.capacity = capacity;
                drop(state);
                self.pipe.changed.wake_all();
                Ok(capacity as u64)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn allocate(&self, _mode: u32, _bytes: core::ops::Range<u64>, _done: u64) -> Result<u64, Errno> {
        Err(Errno::ESPIPE)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The inode of a pipe without a name.
pub struct Nameless {
    pipe: Arc<Pipe>,
    meta: Mutex<Meta>,
}

impl Nameless {
    /// A pipe with this inode number, and its two ends, to read and to write.
    ///
    /// # Errors
    /// None that a new pipe has.
    #[allow(clippy::type_complexity)]
    pub fn new(inode: u64, uid: u32, gid: u32) -> Result<(Arc<Nameless>, Arc<dyn File>, Arc<dyn File>), Errno> {
        let pipe = Arc::new(Pipe::default());
        let (read, write) = (pipe.open(O_RDONLY)?, pipe.open(O_WRONLY)?);
        let mut meta = Meta::new(Device { major: 0, minor: 10 }, inode, Kind::Fifo, 0o600);
        (meta.uid, meta.gid) = (uid, gid);
        Ok((Arc::new(Nameless { pipe, meta: Mutex::new(meta) }), read, write))
    }
}

impl Inode for Nameless {
    fn meta(&self) -> Meta {
        self.meta.lock().clone()
    }

    fn change(&self, change: &Change) -> Result<(), Errno> {
        let mut meta = self.meta.lock();
        meta.mode = change.mode.unwrap_or(meta.mode);
        meta.uid = change.uid.unwrap_or(meta.uid);
        meta.gid = change.gid.unwrap_or(meta.gid);
        Ok(())
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<Arc<dyn File>, Errno> {
        self.pipe.open(flags)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::io::testing::Ends;
    use super::*;
    use std::vec;

    fn pipe() -> (Arc<dyn File>, Arc<dyn File>) {
        let (_, read, write) = Nameless::new(1, 0, 0).unwrap();
        (read, write)
    }

    fn read(from: &Arc<dyn File>, count: usize) -> Result<vec::Vec<u8>, Errno> {
        let mut bytes = vec![0; count];
        let count = from.read(0, &mut &mut bytes[..])?;
        bytes.truncate(count);
        Ok(bytes)
    }

    #[test]
    fn first_in_first_out() {
        let (from, to) = pipe();
        assert_eq!(read(&from, 1), Err(Errno::EAGAIN));
        assert_eq!(from.ready(), 0);
        assert_eq!(to.write(0, &mut &b"hello"[..]), Ok(5));
        assert_eq!(from.ready(), POLLIN | POLLRDNORM);
        assert_eq!((from.unread(0), to.unread(0)), (Ok(5), Ok(5)));
        assert_eq!(read(&from, 3).unwrap(), b"hel");
        assert_eq!(from.unread(0), Ok(2));
        assert_eq!(from.read(0, &mut Ends(&mut [0; 2][..], 0)), Err(Errno::EFAULT), "nothing is lost");
        assert_eq!(read(&from, 9).unwrap(), b"lo");
        assert_eq!(
            (to.read(0, &mut &mut [0][..]), from.write(0, &mut &b"x"[..])),
            (Err(Errno::EBADF), Err(Errno::EBADF))
        );
    }

    #[test]
    fn the_other_end_goes() {
        let (from, to) = pipe();
        to.write(0, &mut &b"x"[..]).unwrap();
        drop(to);
        assert_eq!(from.ready(), POLLIN | POLLRDNORM | POLLHUP);
        assert_eq!((read(&from, 9).unwrap(), read(&from, 9).unwrap()), (vec![b'x'], vec![]));
        let (from, to) = pipe();
        drop(from);
        assert_eq!(to.write(0, &mut &b"x"[..]), Err(Errno::EPIPE));
        assert!(to.ready() & POLLERR != 0);
    }

    #[test]
    fn small_writes_are_whole() {
        let (from, to) = pipe();
        let bytes = vec![7; CAPACITY + 1];
        assert_eq!(to.write(0, &mut &bytes[..]), Ok(CAPACITY));
        assert_eq!(to.write(0, &mut &bytes[..]), Err(Errno::EAGAIN));
        read(&from, ATOMIC - 1).unwrap();
        assert_eq!(to.ready(), 0);
        assert_eq!(to.write(0, &mut &bytes[..ATOMIC]), Err(Errno::EAGAIN), "not in parts");
        assert_eq!(to.write(0, &mut &bytes[..ATOMIC + 1]), Ok(ATOMIC - 1), "this may be in parts");
    }

    #[test]
    fn its_size() {
        let (from, to) = pipe();
        assert_eq!(from.control(F_GETPIPE_SZ, 0), Ok(65536));
        assert_eq!(from.control(F_SETPIPE_SZ, 5000), Ok(8192));
        to.write(0, &mut &vec![0; 8192][..]).unwrap();
        assert_eq!(from.control(F_SETPIPE_SZ, 1), Err(Errno::EBUSY));
        assert_eq!(from.control(F_SETPIPE_SZ, 1 << 21), Err(Errno::EPERM));
    }

    #[test]
    fn a_fifo_waits_for_the_other_end() {
        let fifo = Arc::new(Pipe::default());
        assert_eq!(fifo.open(O_WRONLY | O_NONBLOCK).err(), Some(Errno::ENXIO));
        let from = fifo.open(O_RDONLY).unwrap();
        assert!(!from.connected());
        let to = fifo.open(O_WRONLY).unwrap();
        assert!(from.connected() && to.connected());
        drop(to);
        assert!(from.connected(), "it was there");
        assert!(fifo.open(O_RDWR).unwrap().connected());
    }

    #[test]
    fn a_fifo_opens_though_the_other_end_closes_before_the_opener_looks() {
        for (mine, other) in [(O_RDONLY, O_WRONLY), (O_WRONLY, O_RDONLY)] {
            let fifo = Arc::new(Pipe::default());
            let first = fifo.open(other).unwrap();
            let second = fifo.open(mine).unwrap();
            drop(first);
            assert!(second.connected(), "flags {mine}");
        }
    }

    #[test]
    fn a_reader_that_has_met_no_writer_sees_no_hangup() {
        let fifo = Arc::new(Pipe::default());
        drop((fifo.open(O_RDONLY).unwrap(), fifo.open(O_WRONLY).unwrap()));
        let from = fifo.open(O_RDONLY | O_NONBLOCK).unwrap();
        assert_eq!(from.ready(), 0);
        drop(fifo.open(O_WRONLY).unwrap());
        assert_eq!(from.ready(), POLLHUP);
    }
}
