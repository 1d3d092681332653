//! Open file descriptions: what descriptors stand for. An inode, how it was opened, and an offset;
//! here is decided whether a call waits.
//!
//! A call that is given up (its future dropped, as for a signal) may have done a part: the sink or
//! source knows how much.

use super::inode::{FIRST, File, Inode};
use super::io::{Part, Sink, Source};
use super::lock::{Locks, Owner};
use super::meta::Kind;
use crate::errno::Errno;
use crate::turns::{Turn, Turns};
use crate::wait::give_way;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use linux_raw_sys::general::{
    O_ACCMODE, O_APPEND, O_CLOEXEC, O_CREAT, O_DIRECT, O_EXCL, O_NOATIME, O_NOCTTY, O_NONBLOCK, O_PATH, O_RDONLY,
    O_TRUNC, O_WRONLY, POLLERR, POLLIN, POLLNVAL, POLLOUT, POLLRDNORM, POLLWRNORM, SEEK_CUR, SEEK_DATA, SEEK_END,
    SEEK_HOLE, SEEK_SET,
};
use spin::{Mutex, Once};

/// What `fcntl(F_SETFL)` changes.
const CHANGEABLE: u32 = O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME;
/// What is of no interest once a file is open.
const AT_ONCE: u32 = O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_CLOEXEC;
/// The most bytes of entries that are gathered at once.
const GATHERED: usize = 16 << 10;
/// As many bytes are read at once; then others go first.
const PIECE: usize = 16 << 10;
/// As many bytes are a file's to write at once, or fewer.
const OFFERED: usize = 64 << 10;

/// An open file description.
pub struct Open {
    inode: Arc<dyn Inode>,
    /// None for a directory, and for what is only named (`O_PATH`).
    file: Option<Arc<dyn File>>,
    flags: AtomicU32,
    offset: Mutex<u64>,
    /// At the offset, one call after the other (Linux: `f_pos_lock`).
    turns: Turns,
    name: Option<Name>,
    /// Where it has locks, if it ever had any.
    locks: Once<Arc<Locks>>,
}

/// What an open file is called.
#[allow(missing_docs)]
pub enum Name {
    /// By an entry of a directory, through which it was opened.
    Entry { directory: Arc<dyn Inode>, name: Arc<[u8]> },
    /// It never had an entry; as `/proc` shows it.
    Shown(Arc<[u8]>),
}

impl Open {
    /// With the flags of `open`. `file` may be missing for directories and with `O_PATH` only.
    pub fn new(inode: Arc<dyn Inode>, file: Option<Arc<dyn File>>, flags: u32, name: Option<Name>) -> Open {
        Open {
            inode,
            file,
            flags: AtomicU32::new(flags & !AT_ONCE),
            offset: Mutex::new(0),
            turns: Turns::default(),
            name,
            locks: Once::new(),
        }
    }

    /// It, as an owner of locks, which it gives up when it goes.
    pub fn owner(&self, locks: &Arc<Locks>) -> Owner {
        self.locks.call_once(|| locks.clone());
        Owner::Open(core::ptr::from_ref(self).addr())
    }

    /// What was opened.
    pub fn inode(&self) -> &Arc<dyn Inode> {
        &self.inode
    }

    /// Where the next read or write begins.
    pub fn offset(&self) -> u64 {
        *self.offset.lock()
    }

    /// What it is called, if it has a name.
    pub fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    /// As `fcntl(F_GETFL)` says.
    pub fn flags(&self) -> u32 {
        self.flags.load(Relaxed)
    }

    /// `fcntl(F_SETFL)`.
    pub fn set_flags(&self, flags: u32) {
        self.flags.store(self.flags() & !CHANGEABLE | flags & CHANGEABLE, Relaxed);
    }

    /// What reads and writes go to.
    ///
    /// # Errors
    /// `EISDIR`; `EBADF`: it is only named.
    pub fn file(&self) -> Result<&Arc<dyn File>, Errno> {
        match &self.file {
            Some(file) => Ok(file),
            None if self.flags() & O_PATH != 0 => Err(Errno::EBADF),
            None => Err(Errno::EISDIR),
        }
    }

    /// The file, to read from it.
    ///
    /// # Errors
    /// `EBADF`, `EISDIR`.
    pub fn readable(&self) -> Result<&Arc<dyn File>, Errno> {
        if self.flags() & O_ACCMODE == O_WRONLY { Err(Errno::EBADF) } else { self.file() }
    }

    /// The file, to write to it.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn writable(&self) -> Result<&Arc<dyn File>, Errno> {
        if self.flags() & O_ACCMODE == O_RDONLY {
            return Err(Errno::EBADF);
        }
        self.file()
    }

    /// Wait until an attempt doesn't answer `EAGAIN`, unless it is not to wait.
    async fn attempt<T>(&self, file: &dyn File, attempt: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
        Self::attempt_or_wait(file, self.flags() & O_NONBLOCK == 0, attempt).await
    }

    async fn attempt_or_wait<T>(
        file: &dyn File,
        waits: bool,
        mut attempt: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match file.queue() {
            Some(queue) if waits => {
                let attempt = || match attempt() {
                    Err(Errno::EAGAIN) => None,
                    result => Some(result),
                };
                queue.wait_until(attempt).await
            }
            _ => attempt(),
        }
    }

    /// An `open` returns only when this does: a FIFO's other end is there.
    pub async fn connect(&self) {
        if let Some(file) = &self.file
            && let Some(queue) = file.queue()
            && self.flags() & O_NONBLOCK == 0
        {
            queue.wait_until(|| file.connected().then_some(())).await;
        }
    }

    /// Whether what it does takes its time but never waits for an event, so that no signal but a
    /// deadly one is to end it.
    pub fn is_always_ready(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.queue().is_none())
    }

    /// `read`: at the offset, which moves on.
    ///
    /// # Errors
    /// `EBADF`, `EISDIR`, `EAGAIN`, `EFAULT`; the file's own.
    pub async fn read(&self, to: &mut dyn Sink) -> Result<usize, Errno> {
        let file = self.readable()?;
        if !file.seekable() {
            return self.read_all(&**file, to, |to| file.read(0, to)).await;
        }
        let _turn = self.turns.take().await;
        let read = |to: &mut dyn Sink| {
            let mut offset = self.offset.lock();
            let count = file.read(*offset, to)?;
            *offset += count as u64;
            Ok(count)
        };
        self.read_all(&**file, to, read).await
    }

    /// `write`: at the offset, which moves on, or at the end. No other write to the file comes in
    /// between.
    ///
    /// # Errors
    /// `EBADF`, `EAGAIN`, `EFAULT`, `EPIPE`; the file's own.
    pub async fn write(&self, from: &mut dyn Source) -> Result<usize, Errno> {
        let file = self.writable()?;
        if !file.seekable() {
            return self.write_all(&**file, from, |from| file.write(0, from)).await;
        }
        let _turn = self.turns.take().await;
        let write = |from: &mut dyn Source| {
            let mut offset = self.offset.lock();
            let count;
            if self.flags() & O_APPEND != 0 {
                (count, *offset) = file.append(from)?;
            } else {
                count = file.write(*offset, from)?;
                *offset += count as u64;
            }
            Ok(count)
        };
        self.write_all(&**file, from, write).await
    }

    /// `pread`.
    ///
    /// # Errors
    /// As [`Open::read`], and `ESPIPE`.
    pub async fn read_at(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        let file = self.readable()?;
        if !file.seekable() {
            return Err(Errno::ESPIPE);
        }
        let mut at = at;
        let read = |to: &mut dyn Sink| {
            let count = file.read(at, to)?;
            at += count as u64;
            Ok(count)
        };
        self.read_all(&**file, to, read).await
    }

    /// `pwrite`. With `O_APPEND` it writes at the end nevertheless, as Linux does.
    ///
    /// # Errors
    /// As [`Open::write`], and `ESPIPE`.
    pub async fn write_at(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        let file = self.writable()?;
        if !file.seekable() {
            return Err(Errno::ESPIPE);
        }
        let mut at = at;
        let write = |from: &mut dyn Source| {
            if self.flags() & O_APPEND != 0 {
                return file.append(from).map(|(count, _)| count);
            }
            let count = file.write(at, from)?;
            at += count as u64;
            Ok(count)
        };
        self.write_all(&**file, from, write).await
    }

    /// Reads from a pipe whose flags say nothing about waiting (`vmsplice`).
    ///
    /// # Errors
    /// As [`Open::read`].
    pub async fn take_some(&self, to: &mut dyn Sink, waits: bool) -> Result<usize, Errno> {
        let file = self.readable()?;
        Self::attempt_or_wait(&**file, waits, || file.read(0, to)).await
    }

    /// Writes as much to a pipe as there is room for, which is some if it `waits` (`vmsplice`).
    ///
    /// # Errors
    /// As [`Open::write`].
    pub async fn give_some(&self, from: &mut dyn Source, waits: bool) -> Result<usize, Errno> {
        let file = self.writable()?;
        Self::attempt_or_wait(&**file, waits, || file.write(0, from)).await
    }

    /// Reads until a piece is not full or an error comes, which does not count if something was
    /// read. Only for the first piece it waits.
    async fn read_all(
        &self,
        file: &dyn File,
        to: &mut dyn Sink,
        mut read: impl FnMut(&mut dyn Sink) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let mut done = self.attempt(file, || read(&mut Part(&mut *to, PIECE))).await?;
        let mut last = done;
        while last == PIECE && to.room() > 0 {
            give_way().await;
            let Ok(count) = read(&mut Part(&mut *to, PIECE)) else { break };
            last = count;
            done += count;
        }
        Ok(done)
    }

    /// Writes until all is written or an error comes, which does not count if something was
    /// written.
    async fn write_all(
        &self,
        file: &dyn File,
        from: &mut dyn Source,
        mut write: impl FnMut(&mut dyn Source) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let _turn = self.turn().await;
        let mut done = 0;
        loop {
            match self.attempt(file, || write(&mut Part(&mut *from, OFFERED))).await {
                Ok(count) => done += count,
                Err(error) => return if done > 0 { Ok(done) } else { Err(error) },
            }
            if from.left() == 0 {
                return Ok(done);
            }
            give_way().await;
        }
    }

    /// `lseek`.
    ///
    /// # Errors
    /// `ESPIPE`, `EINVAL`, `ENXIO`, `EOVERFLOW`.
    pub fn seek(&self, offset: i64, whence: u32) -> Result<u64, Errno> {
        if self.file.as_ref().is_some_and(|file| !file.seekable()) {
            return Err(Errno::ESPIPE);
        }
        if self.flags() & O_PATH != 0 {
            return Err(Errno::EBADF);
        }
        let mut current = self.offset.lock();
        let base = match whence {
            SEEK_SET => 0,
            SEEK_CUR => *current,
            SEEK_END => self.inode.meta().size,
            SEEK_DATA | SEEK_HOLE => {
                let at = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
                *current = self.file()?.seek(at, whence == SEEK_HOLE)?;
                return Ok(*current);
            }
            _ => return Err(Errno::EINVAL),
        };
        let to = (base as i64).checked_add(offset).ok_or(Errno::EOVERFLOW)?;
        *current = u64::try_from(to).map_err(|_| Errno::EINVAL)?;
        Ok(*current)
    }

    /// How many bytes can be read from here on without waiting (`FIONREAD`).
    ///
    /// # Errors
    /// `ENOTTY`: it doesn't know. `EBADF`.
    pub fn unread(&self) -> Result<u64, Errno> {
        self.file()?.unread(*self.offset.lock())
    }

    /// `getdents64`: entries from the offset on, as many as there is room for.
    ///
    /// # Errors
    /// `ENOTDIR`; `EINVAL`: no room for one; `EFAULT`, `ENOMEM`.
    pub fn entries(&self, to: &mut dyn Sink) -> Result<usize, Errno> {
        let directory = self.inode.directory().ok_or(Errno::ENOTDIR)?;
        let mut offset = self.offset.lock();
        let room = to.room().min(GATHERED);
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(room)?;
        let (mut position, mut full) = (*offset, false);
        let mut add = |name: &[u8], inode: u64, kind: Kind, next: u64| {
            let length = (19 + name.len() + 1).next_multiple_of(8);
            full |= bytes.len() + length > room;
            if !full {
                let end = bytes.len() + length;
                bytes.extend_from_slice(&inode.to_le_bytes());
                bytes.extend_from_slice(&next.to_le_bytes());
                bytes.extend_from_slice(&(length as u16).to_le_bytes());
                bytes.push(kind as u8);
                bytes.extend_from_slice(name);
                bytes.resize(end, 0);
                position = next;
            }
            !full
        };
        let own = self.inode.meta().inode;
        let mut more = true;
        if *offset < 1 {
            more = add(b".", own, Kind::Directory, 1);
        }
        if more && *offset < FIRST {
            let parent = directory.parent().map_or(own, |parent| parent.meta().inode);
            more = add(b"..", parent, Kind::Directory, FIRST);
        }
        if more {
            directory.list((*offset).max(FIRST), &mut |entry| add(entry.name, entry.inode, entry.kind, entry.next))?;
        }
        if bytes.is_empty() {
            return if full { Err(Errno::EINVAL) } else { Ok(0) };
        }
        if to.put(&bytes)? < bytes.len() {
            return Err(Errno::EFAULT);
        }
        *offset = position;
        Ok(bytes.len())
    }

    /// What can be done without waiting: `POLLIN` and its kin.
    pub fn ready(&self) -> u32 {
        match &self.file {
            Some(file) if self.flags() & O_NONBLOCK == 0 && file.poll_requires_nonblock() => POLLERR,
            Some(file) => file.ready(),
            None if self.flags() & O_PATH != 0 => POLLNVAL,
            None => POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM,
        }
    }

    /// `ftruncate`.
    ///
    /// # Errors
    /// `EINVAL`: not open for writing, or no regular file; the inode's own.
    pub fn truncate(&self, size: u64) -> Result<(), Errno> {
        if self.flags() & O_PATH != 0 {
            return Err(Errno::EBADF);
        }
        self.writable().map_err(|_| Errno::EINVAL)?;
        self.inode.truncate(size)
    }

    /// Waits for the file's turn, if it has its bytes written by one call after the other.
    pub async fn turn(&self) -> Option<Turn<'_>> {
        match self.file.as_ref().and_then(|file| file.turns()) {
            Some(turns) => Some(turns.take().await),
            None => None,
        }
    }

    /// `fallocate`: the next piece of it. `done` is how many bytes are dealt with, 0 at first.
    /// Returns whether that was all.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL`, `EFBIG`; the file's own.
    pub fn allocate(&self, mode: u32, offset: i64, length: i64, done: &mut u64) -> Result<bool, Errno> {
        let file = self.writable()?;
        let start = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
        if length <= 0 {
            return Err(Errno::EINVAL);
        }
        let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
        *done = file.allocate(mode, start..end as u64, *done)?;
        Ok(*done >= end as u64 - start)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(locks) = self.locks.get() {
            locks.release_all(Owner::Open(core::ptr::from_ref(self).addr()), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pipe::Nameless;
    use super::*;
    use crate::testing::{Count, block_on};
    use core::pin::pin;
    use core::task::Context;
    use std::thread;
    use std::vec;

    fn pipe(flags: u32) -> (Open, Open) {
        let (inode, read, write) = Nameless::new(1, 0, 0).unwrap();
        (
            Open::new(inode.clone(), Some(read), O_RDONLY | flags, None),
            Open::new(inode, Some(write), O_WRONLY | flags, None),
        )
    }

    /// More than a pipe holds, from one thread to another; the futures may run on any CPU.
    #[test]
    fn both_ends_wait() {
        fn any_cpu<T: Send>(future: T) -> T {
            future
        }
        let (from, to) = pipe(0);
        let sent: vec::Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
        let expected = sent.clone();
        let writer = thread::spawn(move || block_on(any_cpu(to.write(&mut &sent[..]))));
        let mut got = vec![];
        loop {
            let mut piece = [0; 10_000];
            let count = block_on(any_cpu(from.read(&mut &mut piece[..]))).unwrap();
            got.extend_from_slice(&piece[..count]);
            if count == 0 {
                break;
            }
        }
        assert_eq!(writer.join().unwrap(), Ok(1_000_000));
        assert!(got == expected);
    }

    #[test]
    fn not_to_wait() {
        let (from, to) = pipe(O_NONBLOCK);
        assert_eq!(block_on(from.read(&mut &mut [0][..])), Err(Errno::EAGAIN));
        assert_eq!(block_on(to.write(&mut &vec![0; 100_000][..])), Ok(65536));
        assert_eq!(block_on(to.write(&mut &[0][..])), Err(Errno::EAGAIN));
        assert_eq!(from.seek(0, SEEK_SET), Err(Errno::ESPIPE));
        assert_eq!(block_on(from.read_at(0, &mut &mut [0][..])), Err(Errno::ESPIPE));
    }

    /// A wait that is given up leaves what it has done with the source, and nothing in the line.
    #[test]
    fn a_write_given_up() {
        let (from, to) = pipe(0);
        let bytes = vec![0; 100_000];
        let mut source = &bytes[..];
        {
            let mut write = pin!(to.write(&mut source));
            let (_, waker) = Count::new();
            // To write what fits, to give way, and to find the pipe full.
            for _ in 0..2 {
                assert!(write.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            }
            assert_eq!(from.file().unwrap().queue().unwrap().waiting(), 1);
        }
        assert_eq!(source.len(), 100_000 - 65536);
        assert_eq!(from.file().unwrap().queue().unwrap().waiting(), 0);
    }

    #[test]
    fn flags() {
        let (from, _to) = pipe(0);
        from.set_flags(O_NONBLOCK | O_WRONLY | O_CREAT);
        assert_eq!(from.flags(), O_NONBLOCK);
        assert_eq!(block_on(from.read(&mut &mut [0][..])), Err(Errno::EAGAIN));
    }
}
