//! Anonymous pipes and FIFOs.
//!
//! A write of at most [`PIPE_BUF`] bytes is atomic. Readers wait for bytes or for the last writer
//! to close its end; writers wait for room or for the last reader to close its end.

pub mod limits;
mod splice;

pub use splice::{Lent, Reserved, pipe_of};

use super::bytes::Bytes;
use super::inode::{Change, File, Inode};
use super::io::{Sink, Source, in_pieces};
use super::meta::{Device, Kind, Meta};
use crate::errno::Errno;
use crate::wait::Queue;
use alloc::sync::Arc;
use core::any::Any;
use limits::{Pages, Rights};
use linux_raw_sys::general::{
    F_GETPIPE_SZ, F_SETPIPE_SZ, O_ACCMODE, O_NONBLOCK, O_RDONLY, O_RDWR, O_WRONLY, POLLERR, POLLHUP, POLLIN, POLLOUT,
    POLLRDNORM, POLLWRNORM,
};
use spin::Mutex;

/// The most bytes that are written atomically (pipe(7)), and the least capacity.
pub const PIPE_BUF: usize = 4096;
/// The capacity of a new pipe, in bytes.
const DEFAULT_CAPACITY: usize = 65536;

/// A pipe's buffer, and the counts of its open ends.
pub struct Pipe {
    state: Mutex<State>,
    /// The wait queue of both ends. A wake also reaches tasks of the same end, which check their
    /// condition again.
    changed: Queue,
}

struct State {
    bytes: Bytes,
    capacity: usize,
    /// The capacity as its user's limits count it. A FIFO's does not count.
    pages: Option<Pages>,
    readers: u32,
    writers: u32,
    /// The number of times that each end was opened: readers, writers. It never falls, so that an
    /// end that was opened and closed again still shows.
    opened: [u64; 2],
    /// True while a [`Lent`] has the bytes: no other reader takes them.
    is_lent: bool,
    /// The number of bytes that a [`Reserved`] still has room for: no other writer fills it.
    reserved: usize,
}

impl State {
    /// Returns the number of bytes that fit in.
    fn room(&self) -> usize {
        self.capacity.saturating_sub(self.bytes.len() + self.reserved)
    }
}

impl Default for Pipe {
    fn default() -> Self {
        Pipe::new(DEFAULT_CAPACITY, None)
    }
}

/// One end of a pipe, or both.
struct End {
    pipe: Arc<Pipe>,
    reads: bool,
    writes: bool,
    /// The value of `opened` for the other end when this end was opened; `None` if the other end
    /// was open then. It is read under the same lock acquisition that counts this end, so that any
    /// later open of the other end makes `opened` larger.
    peer_opens_before: Option<u64>,
}

impl Pipe {
    fn new(capacity: usize, pages: Option<Pages>) -> Self {
        let state = State {
            bytes: Bytes::default(),
            capacity,
            pages,
            readers: 0,
            writers: 0,
            opened: [0; 2],
            is_lent: false,
            reserved: 0,
        };
        Pipe { state: Mutex::new(state), changed: Queue::new() }
    }

    /// Sets the capacity to `size` bytes, rounded up to a power of two, and returns it.
    ///
    /// # Errors
    /// `EPERM`: the size, or the user's pages, exceed a limit that holds for a program of these
    /// rights. `EBUSY`: the pipe has more bytes. `EINVAL`: more than 2 GiB.
    fn set_capacity(&self, size: u64, rights: Rights) -> Result<u64, Errno> {
        let capacity = limits::round(size)?;
        let mut state = self.state.lock();
        let grows = capacity > state.capacity;
        if grows && !rights.may_be_large && capacity > limits::max_size() {
            return Err(Errno::EPERM);
        }
        if state.bytes.len() + state.reserved > capacity {
            return Err(Errno::EBUSY);
        }
        if let Some(pages) = &mut state.pages {
            let limited = grows && !rights.may_be_many;
            pages.change((capacity / PIPE_BUF) as u64, limited)?;
        }
        state.capacity = capacity;
        drop(state);
        self.changed.wake_all();
        Ok(capacity as u64)
    }

    /// Opens the ends that the access mode in `flags` names, and wakes tasks that wait for them.
    ///
    /// # Errors
    /// `ENXIO`: with `O_WRONLY | O_NONBLOCK`, if no reader is open. `EINVAL`: an invalid access
    /// mode.
    pub fn open(self: &Arc<Self>, flags: u32) -> Result<Arc<dyn File>, Errno> {
        self.open_end(flags, true)
    }

    /// Opens ends as [`Pipe::open`] does. The end of a pipe that is no FIFO waits for no other end,
    /// as when `/dev/fd` names it.
    fn open_end(self: &Arc<Self>, flags: u32, is_fifo: bool) -> Result<Arc<dyn File>, Errno> {
        let (reads, writes) = match flags & O_ACCMODE {
            O_RDONLY => (true, false),
            O_WRONLY => (false, true),
            O_RDWR => (true, true),
            _ => return Err(Errno::EINVAL),
        };
        let mut state = self.state.lock();
        if is_fifo && writes && !reads && flags & O_NONBLOCK != 0 && state.readers == 0 {
            return Err(Errno::ENXIO);
        }
        let peers = if reads { state.writers } else { state.readers };
        let waits = is_fifo && peers == 0 && !(reads && writes);
        let peer_opens_before = waits.then_some(state.opened[usize::from(reads)]);
        state.readers += u32::from(reads);
        state.writers += u32::from(writes);
        state.opened[0] += u64::from(reads);
        state.opened[1] += u64::from(writes);
        drop(state);
        self.changed.wake_all();
        Ok(Arc::new(End { pipe: self.clone(), reads, writes, peer_opens_before }))
    }
}

impl End {
    /// Returns true if the other end has been open at any time since this one was opened.
    fn has_met_peer(&self, state: &State) -> bool {
        self.peer_opens_before.is_none_or(|before| state.opened[usize::from(self.reads)] > before)
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
        if state.is_lent {
            return Err(Errno::EAGAIN);
        }
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
        let room = state.room();
        if room == 0 || wanted <= PIPE_BUF && room < wanted {
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
            // A reader that has had no writer yet sees no hangup.
            ready |= if state.writers == 0 && self.has_met_peer(&state) { POLLHUP } else { 0 };
        }
        if self.writes {
            ready |= if state.room() >= PIPE_BUF { POLLOUT | POLLWRNORM } else { 0 };
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
        self.has_met_peer(&self.pipe.state.lock())
    }

    fn control(&self, command: u32, argument: u64) -> Result<u64, Errno> {
        match command {
            F_GETPIPE_SZ => Ok(self.pipe.state.lock().capacity as u64),
            F_SETPIPE_SZ => self.pipe.set_capacity(argument, Rights::default()),
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

/// Implements `F_SETPIPE_SZ`, for a program of these rights.
///
/// # Errors
/// `EBADF`: the file is no pipe. `EPERM`: a limit is exceeded. `EBUSY`: the pipe has more bytes.
/// `EINVAL`: more than 2 GiB.
pub fn set_size(file: &dyn File, size: u64, rights: Rights) -> Result<u64, Errno> {
    let end = file.as_any().downcast_ref::<End>().ok_or(Errno::EBADF)?;
    end.pipe.set_capacity(size, rights)
}

/// The inode of an anonymous pipe.
pub struct AnonymousPipe {
    pipe: Arc<Pipe>,
    meta: Mutex<Meta>,
}

/// A new anonymous pipe.
pub struct NewPipe {
    /// Its inode.
    pub inode: Arc<AnonymousPipe>,
    /// Its read end.
    pub reader: Arc<dyn File>,
    /// Its write end.
    pub writer: Arc<dyn File>,
}

impl AnonymousPipe {
    /// Creates a pipe with this inode number and owner, who is a user with these rights. The pipe
    /// is small if the user's pipes have the pages that `pipe-user-pages-soft` permits.
    ///
    /// # Errors
    /// `ENFILE`: the user has the pages that `pipe-user-pages-hard` permits.
    pub fn create(inode: u64, (uid, gid): (u32, u32), rights: Rights) -> Result<NewPipe, Errno> {
        let most = if rights.may_be_large { usize::MAX } else { limits::max_size() };
        let capacity = DEFAULT_CAPACITY.min(most);
        let pages = Pages::new(uid, (capacity / PIPE_BUF) as u64, rights)?;
        let pipe = Arc::new(Pipe::new(pages.count() as usize * PIPE_BUF, Some(pages)));
        let (reader, writer) = (pipe.open_end(O_RDONLY, false)?, pipe.open_end(O_WRONLY, false)?);
        let mut meta = Meta::new(Device { major: 0, minor: 10 }, inode, Kind::Fifo, 0o600);
        (meta.uid, meta.gid) = (uid, gid);
        Ok(NewPipe { inode: Arc::new(AnonymousPipe { pipe, meta: Mutex::new(meta) }), reader, writer })
    }
}

impl Inode for AnonymousPipe {
    fn meta(&self) -> Meta {
        self.meta.lock().clone()
    }

    fn change(&self, change: &Change) -> Result<(), Errno> {
        change.apply(&mut self.meta.lock());
        Ok(())
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<Arc<dyn File>, Errno> {
        self.pipe.open_end(flags, false)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::io::testing::FaultsAfter;
    use super::*;
    use std::vec;

    fn pipe() -> (Arc<dyn File>, Arc<dyn File>) {
        let NewPipe { reader, writer, .. } = AnonymousPipe::create(1, (0, 0), Rights::default()).unwrap();
        (reader, writer)
    }

    fn read(from: &Arc<dyn File>, count: usize) -> Result<vec::Vec<u8>, Errno> {
        let mut bytes = vec![0; count];
        let count = from.read(0, &mut &mut bytes[..])?;
        bytes.truncate(count);
        Ok(bytes)
    }

    #[test]
    fn bytes_come_out_in_order_and_a_fault_loses_none() {
        let (from, to) = pipe();
        assert_eq!(read(&from, 1), Err(Errno::EAGAIN));
        assert_eq!(from.ready(), 0);
        assert_eq!(to.write(0, &mut &b"hello"[..]), Ok(5));
        assert_eq!(from.ready(), POLLIN | POLLRDNORM);
        assert_eq!((from.unread(0), to.unread(0)), (Ok(5), Ok(5)));
        assert_eq!(read(&from, 3).unwrap(), b"hel");
        assert_eq!(from.unread(0), Ok(2));
        assert_eq!(from.read(0, &mut FaultsAfter(&mut [0; 2][..], 0)), Err(Errno::EFAULT), "nothing is lost");
        assert_eq!(read(&from, 9).unwrap(), b"lo");
        assert_eq!(
            (to.read(0, &mut &mut [0][..]), from.write(0, &mut &b"x"[..])),
            (Err(Errno::EBADF), Err(Errno::EBADF))
        );
    }

    #[test]
    fn readers_see_the_end_and_writers_epipe_after_the_other_end_closes() {
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
    fn writes_up_to_pipe_buf_are_atomic() {
        let (from, to) = pipe();
        let bytes = vec![7; DEFAULT_CAPACITY + 1];
        assert_eq!(to.write(0, &mut &bytes[..]), Ok(DEFAULT_CAPACITY));
        assert_eq!(to.write(0, &mut &bytes[..]), Err(Errno::EAGAIN));
        read(&from, PIPE_BUF - 1).unwrap();
        assert_eq!(to.ready(), 0);
        assert_eq!(to.write(0, &mut &bytes[..PIPE_BUF]), Err(Errno::EAGAIN), "up to PIPE_BUF bytes, all or none");
        assert_eq!(
            to.write(0, &mut &bytes[..PIPE_BUF + 1]),
            Ok(PIPE_BUF - 1),
            "more than PIPE_BUF bytes may be written in part"
        );
    }

    #[test]
    fn f_setpipe_sz_rounds_up_and_keeps_the_contents() {
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
        assert!(from.connected(), "the writer was open in between");
        assert!(fifo.open(O_RDWR).unwrap().connected());
    }

    #[test]
    fn an_anonymous_pipe_opens_though_the_other_end_is_closed() {
        let NewPipe { inode, reader, writer } = AnonymousPipe::create(1, (0, 0), Rights::default()).unwrap();
        writer.write(0, &mut &b"x"[..]).unwrap();
        drop(writer);
        let again = inode.clone().open(O_RDONLY).unwrap();
        assert!(again.connected());
        assert_eq!((read(&again, 9).unwrap(), read(&again, 9).unwrap()), (vec![b'x'], vec![]));
        drop((reader, again));
        assert!(inode.open(O_WRONLY | O_NONBLOCK).unwrap().connected());
    }

    #[test]
    fn a_fifo_opens_though_the_other_end_closes_before_the_opener_checks() {
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
