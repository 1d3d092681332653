//! Passes bytes from pipe to pipe, and between a pipe and another file (`splice`, `tee`).
//!
//! A write of a pipe's bytes to another file may wait, and may take fewer bytes than it gets. Until
//! it ends the bytes are lent: they stay in the pipe, and other readers wait. A read into a pipe
//! reserves its room first, so that other writers leave no byte without a place.

use super::super::inode::File;
use super::super::io::{Sink, Source, in_pieces};
use super::{End, Pipe, State};
use crate::errno::Errno;
use alloc::sync::Arc;
use spin::MutexGuard;

/// The most bytes that one call passes on, so that work under a pipe's lock is bounded.
const MOST: usize = 1 << 20;

/// Returns the pipe of which `file` is an end.
pub fn pipe_of(file: &dyn File) -> Option<&Arc<Pipe>> {
    file.as_any().downcast_ref::<End>().map(|end| &end.pipe)
}

/// The bytes of a pipe while another file is written with them.
pub struct Lent<'a> {
    pipe: &'a Pipe,
    /// The number of bytes that the writer took.
    taken: usize,
    most: usize,
}

/// Room in a pipe while it is filled from another file.
pub struct Reserved<'a> {
    pipe: &'a Pipe,
    left: usize,
}

impl Pipe {
    /// Waits until the pipe has bytes that no call is taking, or until no writer is left.
    pub async fn wait_for_bytes(&self) {
        let has_bytes = |state: &State| !state.is_lent && (!state.bytes.is_empty() || state.writers == 0);
        self.changed.wait_until(|| has_bytes(&self.state.lock()).then_some(())).await;
    }

    /// Waits until the pipe has room, or until no reader is left.
    pub async fn wait_for_room(&self) {
        let has_room = |state: &State| state.room() > 0 || state.readers == 0;
        self.changed.wait_until(|| has_room(&self.state.lock()).then_some(())).await;
    }

    /// Locks two different pipes, in the order of their addresses.
    fn lock_both<'a>(&'a self, other: &'a Pipe) -> [MutexGuard<'a, State>; 2] {
        if core::ptr::from_ref(self) < core::ptr::from_ref(other) {
            let first = self.state.lock();
            [first, other.state.lock()]
        } else {
            let second = other.state.lock();
            [self.state.lock(), second]
        }
    }

    /// Moves up to `most` bytes to another pipe; copies them if `keeps` is true. Returns their
    /// number, which is 0 only if no writer is left.
    ///
    /// # Errors
    /// `EINVAL`: the pipes are one. `EPIPE`: no reader is left. `EAGAIN`: there is no byte, or no
    /// room. `ENOMEM`: no byte was moved.
    pub fn pass(&self, to: &Pipe, most: usize, keeps: bool) -> Result<usize, Errno> {
        if core::ptr::eq(self, to) {
            return Err(Errno::EINVAL);
        }
        let [mut source, mut target] = self.lock_both(to);
        if target.readers == 0 {
            return Err(Errno::EPIPE);
        }
        if source.is_lent {
            return Err(Errno::EAGAIN);
        }
        if source.bytes.is_empty() {
            return if source.writers == 0 { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        let most = most.min(target.room()).min(MOST);
        if most == 0 {
            return Err(Errno::EAGAIN);
        }
        let passed =
            if keeps { copy(&source, &mut target, most) } else { target.bytes.move_from(&mut source.bytes, most) };
        drop((source, target));
        self.changed.wake_all();
        to.changed.wake_all();
        passed
    }

    /// Lends up to `most` bytes to a write; `None` at the end of the bytes, without a writer.
    ///
    /// # Errors
    /// `EAGAIN`: there is no byte, or all are lent.
    pub fn lend(&self, most: usize) -> Result<Option<Lent<'_>>, Errno> {
        let mut state = self.state.lock();
        if state.is_lent || state.bytes.is_empty() && state.writers > 0 {
            return Err(Errno::EAGAIN);
        }
        let most = most.min(state.bytes.len()).min(MOST);
        if most == 0 {
            return Ok(None);
        }
        state.is_lent = true;
        Ok(Some(Lent { pipe: self, taken: 0, most }))
    }

    /// Reserves room for up to `most` bytes.
    ///
    /// # Errors
    /// `EPIPE`: no reader is left. `EAGAIN`: there is no room.
    pub fn reserve(&self, most: usize) -> Result<Reserved<'_>, Errno> {
        let mut state = self.state.lock();
        if state.readers == 0 {
            return Err(Errno::EPIPE);
        }
        let left = most.min(state.room()).min(MOST);
        if left == 0 {
            return Err(Errno::EAGAIN);
        }
        state.reserved += left;
        Ok(Reserved { pipe: self, left })
    }
}

/// Copies the first bytes of a pipe, at most `most`, to another that has room for them.
fn copy(from: &State, to: &mut State, most: usize) -> Result<usize, Errno> {
    let (most, mut done) = (most.min(from.bytes.len()), 0);
    in_pieces(|| {
        let Some(piece) = from.bytes.pieces(done).next().filter(|_| done < most) else { return Ok((0, false)) };
        let room = to.bytes.room()?;
        let count = piece.len().min(room.len()).min(most - done);
        room[..count].copy_from_slice(&piece[..count]);
        to.bytes.add(count);
        done += count;
        Ok((count, true))
    })
}

impl Lent<'_> {
    /// Takes the first `count` bytes, which were written, out of the pipe.
    pub fn finish(self, count: usize) {
        let mut state = self.pipe.state.lock();
        let mut left = count.min(self.most);
        while left > 0 {
            let part = left.min(state.bytes.first().len());
            state.bytes.drop_first(part);
            left -= part;
        }
    }
}

impl Source for Lent<'_> {
    fn left(&self) -> usize {
        self.most - self.taken
    }

    fn take(&mut self, to: &mut [u8]) -> Result<usize, Errno> {
        let state = self.pipe.state.lock();
        let (most, mut done) = (to.len().min(self.left()), 0);
        for piece in state.bytes.pieces(self.taken) {
            let count = piece.len().min(most - done);
            to[done..done + count].copy_from_slice(&piece[..count]);
            done += count;
            if done == most {
                break;
            }
        }
        self.taken += done;
        Ok(done)
    }

    fn give_back(&mut self, count: usize) {
        self.taken -= count;
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.pipe.state.lock().is_lent = false;
        self.pipe.changed.wake_all();
    }
}

impl Sink for Reserved<'_> {
    fn room(&self) -> usize {
        self.left
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut bytes = &bytes[..bytes.len().min(self.left)];
        let mut state = self.pipe.state.lock();
        let put = in_pieces(|| {
            if bytes.is_empty() {
                return Ok((0, false));
            }
            let room = state.bytes.room()?;
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            state.bytes.add(count);
            bytes = &bytes[count..];
            Ok((count, true))
        });
        let count = put.unwrap_or(0);
        state.reserved -= count;
        self.left -= count;
        put
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.pipe.state.lock().reserved -= self.left;
        self.pipe.changed.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AnonymousPipe, NewPipe};
    use super::*;
    use linux_raw_sys::general::{POLLIN, POLLOUT};
    use std::vec;

    fn ends() -> (Arc<dyn File>, Arc<dyn File>) {
        let NewPipe { reader, writer, .. } = AnonymousPipe::create(1, (0, 0), Default::default()).unwrap();
        (reader, writer)
    }

    #[test]
    fn lent_bytes_stay_until_they_are_written() {
        let (from, to) = ends();
        to.write(0, &mut &b"hello"[..]).unwrap();
        let pipe = pipe_of(&*from).unwrap();
        let mut lent = pipe.lend(4).unwrap().unwrap();
        let mut bytes = [0; 9];
        assert_eq!((lent.left(), lent.take(&mut bytes)), (4, Ok(4)));
        assert_eq!(&bytes[..4], b"hell");
        assert_eq!(from.read(0, &mut &mut bytes[..]), Err(Errno::EAGAIN), "no other reader takes them");
        assert_eq!(pipe.lend(1).err(), Some(Errno::EAGAIN));
        assert!(from.ready() & POLLIN != 0);
        to.write(0, &mut &b"!"[..]).unwrap();
        lent.finish(2);
        let lent = pipe.lend(9).unwrap().unwrap();
        assert_eq!(lent.left(), 4);
        drop(lent);
        assert_eq!(from.read(0, &mut &mut bytes[..]), Ok(4));
        assert_eq!(&bytes[..4], b"llo!");
        drop(to);
        assert!(pipe.lend(1).unwrap().is_none());
    }

    #[test]
    fn reserved_room_is_filled_by_no_other_writer() {
        let (from, to) = ends();
        let pipe = pipe_of(&*to).unwrap();
        let mut room = pipe.reserve(60_000).unwrap();
        assert_eq!(to.write(0, &mut &vec![1; 9000][..]), Ok(65_536 - 60_000));
        assert_eq!((to.ready() & POLLOUT, pipe.reserve(1).err()), (0, Some(Errno::EAGAIN)));
        assert_eq!((room.put(&vec![2; 70_000]), room.room()), (Ok(60_000), 0));
        assert_eq!(from.unread(0), Ok(65_536));
        drop(room);
        from.read(0, &mut &mut vec![0; 5000][..]).unwrap();
        drop(pipe.reserve(9000).unwrap());
        assert!(to.ready() & POLLOUT != 0, "room that was not filled is free again");
        drop(from);
        assert_eq!(pipe.reserve(1).err(), Some(Errno::EPIPE));
    }

    #[test]
    fn bytes_pass_from_pipe_to_pipe() {
        let ((from, source), (target, to)) = (ends(), ends());
        let (one, two) = (pipe_of(&*from).unwrap(), pipe_of(&*to).unwrap());
        assert_eq!((one.pass(one, 9, false), one.pass(two, 9, false)), (Err(Errno::EINVAL), Err(Errno::EAGAIN)));
        source.write(0, &mut &b"hello"[..]).unwrap();
        assert_eq!((one.pass(two, 4, true), one.pass(two, 9, false)), (Ok(4), Ok(5)));
        let mut bytes = [0; 20];
        assert_eq!(target.read(0, &mut &mut bytes[..]), Ok(9));
        assert_eq!(&bytes[..9], b"hellhello");
        drop(source);
        assert_eq!(one.pass(two, 9, false), Ok(0));
        drop(target);
        assert_eq!(one.pass(two, 9, false), Err(Errno::EPIPE));
    }
}
