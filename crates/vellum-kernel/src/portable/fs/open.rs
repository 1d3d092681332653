//! Open file descriptions (Linux: `struct file`): an inode, the flags of `open`, and an offset. The
//! description decides whether a call waits.
//!
//! The kernel drops a call's future to interrupt the call, for example for a signal. The call may
//! have transferred a part of its bytes by then; the sink or the source has their number.

use super::inode::{FIRST, File, Inode};
use super::io::{Limited, Sink, Source, Waits};
use super::lock::{Locks, Owner};
use super::meta::Kind;
use super::notify::hooks;
use super::write_access::Writing;
use crate::errno::Errno;
use crate::sleeplock::{SleepLock, SleepLockGuard};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use linux_raw_sys::general::{
    IN_CLOSE_NOWRITE, IN_CLOSE_WRITE, O_ACCMODE, O_APPEND, O_CLOEXEC, O_CREAT, O_DIRECT, O_EXCL, O_NOATIME, O_NOCTTY,
    O_NONBLOCK, O_PATH, O_RDONLY, O_TRUNC, O_WRONLY, POLLERR, POLLIN, POLLNVAL, POLLOUT, POLLRDNORM, POLLWRNORM,
    SEEK_CUR, SEEK_DATA, SEEK_END, SEEK_HOLE, SEEK_SET,
};
use spin::{Mutex, Once};

/// The flags that `fcntl(F_SETFL)` changes.
const SETFL_FLAGS: u32 = O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME;
/// The flags that matter only to `open` itself; they are not kept.
const CREATION_FLAGS: u32 = O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_CLOEXEC;
/// The most bytes that one `getdents64` returns.
const DIRENT_BUFFER: usize = 16 << 10;
/// The most bytes that are read before other tasks may run.
const READ_CHUNK: usize = 64 << 10;
/// The most bytes that one [`File::write`] gets; it may write fewer.
const WRITE_CHUNK: usize = 64 << 10;

/// An open file description.
pub struct Open {
    inode: Arc<dyn Inode>,
    /// `None` for a directory, and with `O_PATH`.
    file: Option<Arc<dyn File>>,
    flags: AtomicU32,
    offset: Mutex<u64>,
    /// Serializes the calls that use the offset (Linux: `f_pos_lock`).
    offset_lock: SleepLock,
    name: Option<Name>,
    /// The table of the file locks that this description owns; set when it first takes one.
    locks: Once<Arc<Locks>>,
    /// The write access of a description through which a regular file may be written.
    _writing: Option<Writing>,
}

/// The name of an open file.
#[allow(missing_docs)]
pub enum Name {
    /// The directory entry through which the file was opened (Linux: a dentry).
    Entry { directory: Arc<dyn Inode>, name: Arc<[u8]> },
    /// The name that `/proc` shows for a file without a directory entry.
    Shown(Arc<[u8]>),
}

impl Open {
    /// Creates an open file description with the flags of `open` and offset 0. `file` is `None`
    /// only for directories and with `O_PATH`.
    pub fn new(inode: Arc<dyn Inode>, file: Option<Arc<dyn File>>, flags: u32, name: Option<Name>) -> Open {
        Open {
            inode,
            file,
            flags: AtomicU32::new(flags & !CREATION_FLAGS),
            offset: Mutex::new(0),
            offset_lock: SleepLock::default(),
            name,
            locks: Once::new(),
            _writing: None,
        }
    }

    /// Keeps a write access until the description is dropped.
    pub fn with_write_access(mut self, writing: Option<Writing>) -> Open {
        self._writing = writing;
        self
    }

    /// Returns this open file description as an owner of locks in `locks`. Dropping the description
    /// releases its locks.
    pub fn lock_owner(&self, locks: &Arc<Locks>) -> Owner {
        self.locks.call_once(|| locks.clone());
        Owner::Open(core::ptr::from_ref(self).addr())
    }

    /// Returns the inode that was opened.
    pub fn inode(&self) -> &Arc<dyn Inode> {
        &self.inode
    }

    /// Returns the offset of the next read or write.
    pub fn offset(&self) -> u64 {
        *self.offset.lock()
    }

    /// Returns the file's name, if it has one.
    pub fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    /// Reports an event of the file to the watches of its directory and to its own (`inotify`).
    #[inline]
    pub fn notify(&self, event: u32) {
        if hooks::any() {
            self.notify_watches(event);
        }
    }

    #[cold]
    fn notify_watches(&self, event: u32) {
        hooks::event(&self.inode, self.entry(), event);
    }

    /// Returns the directory entry through which the file was opened.
    pub fn entry(&self) -> Option<hooks::Entry<'_>> {
        match &self.name {
            Some(Name::Entry { directory, name }) => Some((directory, name)),
            _ => None,
        }
    }

    /// Returns the flags, as `fcntl(F_GETFL)` does.
    pub fn flags(&self) -> u32 {
        self.flags.load(Relaxed)
    }

    /// Changes the flags that `fcntl(F_SETFL)` may change, and ignores the others.
    pub fn set_flags(&self, flags: u32) {
        self.flags.store(self.flags() & !SETFL_FLAGS | flags & SETFL_FLAGS, Relaxed);
    }

    /// Returns the file that implements reads and writes.
    ///
    /// # Errors
    /// `EISDIR`; `EBADF`: opened with `O_PATH`.
    pub fn file(&self) -> Result<&Arc<dyn File>, Errno> {
        match &self.file {
            Some(file) => Ok(file),
            None if self.flags() & O_PATH != 0 => Err(Errno::EBADF),
            None => Err(Errno::EISDIR),
        }
    }

    /// Returns the file, to read from it.
    ///
    /// # Errors
    /// `EBADF`: not open for reading. `EISDIR`.
    pub fn readable(&self) -> Result<&Arc<dyn File>, Errno> {
        if self.flags() & O_ACCMODE == O_WRONLY { Err(Errno::EBADF) } else { self.file() }
    }

    /// Returns the file, to write to it.
    ///
    /// # Errors
    /// `EBADF`: not open for writing.
    pub fn writable(&self) -> Result<&Arc<dyn File>, Errno> {
        if self.flags() & O_ACCMODE == O_RDONLY {
            return Err(Errno::EBADF);
        }
        self.file()
    }

    /// Reads some bytes of the file at an offset, past the page cache with `O_DIRECT`.
    fn read_chunk(&self, file: &dyn File, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        if self.flags() & O_DIRECT != 0 { file.read_direct(at, to) } else { file.read(at, to) }
    }

    /// Writes some bytes to the file at an offset, or at the end with `O_APPEND`, past the page
    /// cache with `O_DIRECT`. Returns their number, and the offset behind the last of them.
    fn write_chunk(&self, file: &dyn File, at: u64, from: &mut dyn Source) -> Result<(usize, u64), Errno> {
        match (self.flags() & O_APPEND == 0).then_some(at) {
            at if self.flags() & O_DIRECT != 0 => file.write_direct(at, from),
            Some(at) => file.write(at, from).map(|count| (count, at + count as u64)),
            None => file.append(from),
        }
    }

    /// Calls `attempt` until it returns something other than `EAGAIN`, and waits at the file's wait
    /// queue in between. With `O_NONBLOCK` calls it once.
    async fn retry_unless_nonblocking<T>(
        &self,
        file: &dyn File,
        attempt: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        Self::retry_if(file, self.flags() & O_NONBLOCK == 0, attempt).await
    }

    /// If `waits` is true and the file has a wait queue, calls `attempt` until it returns something
    /// other than `EAGAIN`. Otherwise calls `attempt` once.
    async fn retry_if<T>(
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

    /// Waits until the other end of a FIFO has been opened, unless the flags have `O_NONBLOCK`.
    /// Returns at once for other files. `open` returns after this.
    pub async fn wait_until_connected(&self) {
        if let Some(file) = &self.file
            && let Some(queue) = file.queue()
            && self.flags() & O_NONBLOCK == 0
        {
            queue.wait_until(|| file.connected().then_some(())).await;
        }
    }

    /// Returns true if reads and writes of this file never wait for an event. Such a call may take
    /// time, but only a fatal signal interrupts it.
    pub fn is_always_ready(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.queue().is_none())
    }

    /// Implements `read`: reads at the offset and advances it.
    ///
    /// # Errors
    /// `EBADF`, `EISDIR`, `EAGAIN`, `EFAULT`, and those of [`File::read`].
    pub async fn read(&self, to: &mut dyn Sink, waits: &impl Waits) -> Result<usize, Errno> {
        let file = self.readable()?;
        if !file.seekable() {
            return self.read_all(&**file, to, waits, |to| file.read(0, to)).await;
        }
        let _guard = self.offset_lock.lock().await;
        let read = |to: &mut dyn Sink| {
            let mut offset = self.offset.lock();
            let count = self.read_chunk(&**file, *offset, to)?;
            *offset += count as u64;
            Ok(count)
        };
        self.read_all(&**file, to, waits, read).await
    }

    /// Implements `write`: writes at the offset, or at the end with `O_APPEND`, and advances the
    /// offset. No other write to the file comes in between if the file has a write lock
    /// ([`File::write_lock`]).
    ///
    /// # Errors
    /// `EBADF`, `EAGAIN`, `EFAULT`, `EPIPE`, and those of [`File::write`].
    pub async fn write(&self, from: &mut dyn Source, waits: &impl Waits) -> Result<usize, Errno> {
        let file = self.writable()?;
        if !file.seekable() {
            return self.write_all(&**file, from, waits, |from| file.write(0, from)).await;
        }
        let _guard = self.offset_lock.lock().await;
        let write = |from: &mut dyn Source| {
            let mut offset = self.offset.lock();
            let count;
            (count, *offset) = self.write_chunk(&**file, *offset, from)?;
            Ok(count)
        };
        self.write_all(&**file, from, waits, write).await
    }

    /// Checks that the file has offsets, which comes before the check for what it is open.
    ///
    /// # Errors
    /// `ESPIPE`.
    fn has_offsets(&self) -> Result<(), Errno> {
        if self.file.as_ref().is_some_and(|file| !file.seekable()) { Err(Errno::ESPIPE) } else { Ok(()) }
    }

    /// Implements `pread`.
    ///
    /// # Errors
    /// Those of [`Open::read`], and `ESPIPE`.
    pub async fn read_at(&self, at: u64, to: &mut dyn Sink, waits: &impl Waits) -> Result<usize, Errno> {
        self.has_offsets()?;
        let file = self.readable()?;
        let mut at = at;
        let read = |to: &mut dyn Sink| {
            let count = self.read_chunk(&**file, at, to)?;
            at += count as u64;
            Ok(count)
        };
        self.read_all(&**file, to, waits, read).await
    }

    /// Implements `pwrite`. With `O_APPEND` it ignores `at` and writes at the end, as Linux does.
    ///
    /// # Errors
    /// Those of [`Open::write`], and `ESPIPE`.
    pub async fn write_at(&self, at: u64, from: &mut dyn Source, waits: &impl Waits) -> Result<usize, Errno> {
        self.has_offsets()?;
        let file = self.writable()?;
        let mut at = at;
        let write = |from: &mut dyn Source| {
            let count;
            (count, at) = self.write_chunk(&**file, at, from)?;
            Ok(count)
        };
        self.write_all(&**file, from, waits, write).await
    }

    /// Reads the bytes that a pipe holds, for `vmsplice`. At an empty pipe it waits for bytes if
    /// `waits`, and otherwise fails with `EAGAIN`; `O_NONBLOCK` plays no part.
    ///
    /// # Errors
    /// Those of [`Open::read`].
    pub async fn read_available(&self, to: &mut dyn Sink, waits: bool) -> Result<usize, Errno> {
        let file = self.readable()?;
        Self::retry_if(&**file, waits, || file.read(0, to)).await
    }

    /// Writes as many bytes as a pipe has room for, for `vmsplice`. At a full pipe it waits for
    /// room if `waits`, and otherwise fails with `EAGAIN`; `O_NONBLOCK` plays no part.
    ///
    /// # Errors
    /// Those of [`Open::write`].
    pub async fn write_available(&self, from: &mut dyn Source, waits: bool) -> Result<usize, Errno> {
        let file = self.writable()?;
        Self::retry_if(&**file, waits, || file.write(0, from)).await
    }

    /// Reads chunk by chunk until a chunk is not full or fails for a reason for which the task does
    /// not wait, and returns the number of bytes. Only the first chunk waits for bytes, and only
    /// its error is returned.
    async fn read_all(
        &self,
        file: &dyn File,
        to: &mut dyn Sink,
        waits: &impl Waits,
        mut read: impl FnMut(&mut dyn Sink) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        loop {
            let wanted = to.room().min(READ_CHUNK);
            let mut attempt = || read(&mut Limited(&mut *to, READ_CHUNK));
            let result = if done == 0 { self.retry_unless_nonblocking(file, attempt).await } else { attempt() };
            let is_full = result.is_ok_and(|count| count == wanted);
            done += result.unwrap_or(0);
            if to.room() == 0 || !is_full && !waits.wait().await {
                return if done > 0 { Ok(done) } else { result };
            }
            waits.pause().await;
        }
    }

    /// Writes chunk by chunk until all is written or one fails for a reason for which the task does
    /// not wait, and returns the number of bytes. An error is returned only if nothing was written.
    async fn write_all(
        &self,
        file: &dyn File,
        from: &mut dyn Source,
        waits: &impl Waits,
        mut write: impl FnMut(&mut dyn Source) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let _guard = self.lock_writes().await;
        let mut done = 0;
        loop {
            match self.retry_unless_nonblocking(file, || write(&mut Limited(&mut *from, WRITE_CHUNK))).await {
                Ok(count) => done += count,
                Err(_) if waits.wait().await => {}
                Err(error) => return if done > 0 { Ok(done) } else { Err(error) },
            }
            if from.left() == 0 {
                return Ok(done);
            }
            waits.pause().await;
        }
    }

    /// Implements `lseek`, and returns the new offset.
    ///
    /// # Errors
    /// `ESPIPE`, `EBADF`, `EINVAL`, `ENXIO`, `EOVERFLOW`, and those of [`File::seek`].
    pub fn seek(&self, offset: i64, whence: u32) -> Result<u64, Errno> {
        if self.flags() & O_PATH != 0 {
            return Err(Errno::EBADF);
        }
        if whence > SEEK_HOLE {
            return Err(Errno::EINVAL);
        }
        let mut current = self.offset.lock();
        if self.file.as_ref().is_some_and(|file| file.ignores_seeks()) {
            *current = 0;
            return Ok(0);
        }
        self.has_offsets()?;
        let base = match whence {
            SEEK_SET => 0,
            SEEK_CUR => *current,
            SEEK_END => match self.file.as_ref().and_then(|file| file.end()) {
                Some(end) => end,
                None => self.inode.meta().size,
            },
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

    /// Returns the number of bytes that can be read at the offset without waiting (`FIONREAD`).
    ///
    /// # Errors
    /// `ENOTTY`: the file does not support this. `EBADF`, `EISDIR`.
    pub fn unread(&self) -> Result<u64, Errno> {
        self.file()?.unread(*self.offset.lock())
    }

    /// Implements `getdents64`: writes as many entries to `to` as fit, advances the offset behind
    /// them, and returns the number of bytes.
    ///
    /// # Errors
    /// `ENOTDIR`; `EINVAL`: the next entry does not fit; `EFAULT`, `ENOMEM`.
    pub fn entries(&self, to: &mut dyn Sink) -> Result<usize, Errno> {
        let directory = self.inode.directory().ok_or(Errno::ENOTDIR)?;
        let mut offset = self.offset.lock();
        let room = to.room().min(DIRENT_BUFFER);
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

    /// Returns the ready events (`POLLIN` and others).
    pub fn ready(&self) -> u32 {
        match &self.file {
            Some(file) if self.flags() & O_NONBLOCK == 0 && file.poll_requires_nonblock() => POLLERR,
            Some(file) => file.ready(),
            None if self.flags() & O_PATH != 0 => POLLNVAL,
            None => POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM,
        }
    }

    /// Implements `ftruncate`.
    ///
    /// # Errors
    /// `EBADF`: opened with `O_PATH`. `EINVAL`: not open for writing, or not a regular file. Those
    /// of [`Inode::truncate`].
    pub fn truncate(&self, size: u64) -> Result<(), Errno> {
        if self.flags() & O_PATH != 0 {
            return Err(Errno::EBADF);
        }
        self.writable().map_err(|_| Errno::EINVAL)?;
        self.inode.truncate(size)
    }

    /// Waits for the right to write to the file, if the file serializes its writers
    /// ([`File::write_lock`]).
    pub async fn lock_writes(&self) -> Option<SleepLockGuard<'_>> {
        match self.file.as_ref().and_then(|file| file.write_lock()) {
            Some(lock) => Some(lock.lock().await),
            None => None,
        }
    }

    /// Implements one step of `fallocate`. `done` is the number of bytes that earlier steps
    /// processed, 0 at first, and is advanced. Returns true after the last step.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL`, `EFBIG`, and those of [`File::allocate`].
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
        if hooks::any() && self.flags() & O_PATH == 0 {
            self.notify_watches(if self.flags() & O_ACCMODE == O_RDONLY { IN_CLOSE_NOWRITE } else { IN_CLOSE_WRITE });
        }
        if let Some(locks) = self.locks.get() {
            locks.release_all(Owner::Open(core::ptr::from_ref(self).addr()), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::io::NeverWaits;
    use super::super::pipe::{AnonymousPipe, NewPipe};
    use super::*;
    use crate::testing::{Count, block_on};
    use core::pin::pin;
    use core::task::Context;
    use std::thread;
    use std::vec;

    fn pipe(flags: u32) -> (Open, Open) {
        let NewPipe { inode, reader, writer } = AnonymousPipe::create(1, (0, 0), Default::default()).unwrap();
        (
            Open::new(inode.clone(), Some(reader), O_RDONLY | flags, None),
            Open::new(inode, Some(writer), O_WRONLY | flags, None),
        )
    }

    /// Sends more than a pipe holds from one thread to another; the futures may run on any CPU.
    #[test]
    fn a_reader_waits_for_bytes_and_a_writer_for_room() {
        fn any_cpu<T: Send>(future: T) -> T {
            future
        }
        let (from, to) = pipe(0);
        let sent: vec::Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
        let expected = sent.clone();
        let writer = thread::spawn(move || block_on(any_cpu(to.write(&mut &sent[..], &NeverWaits))));
        let mut got = vec![];
        loop {
            let mut piece = [0; 10_000];
            let count = block_on(any_cpu(from.read(&mut &mut piece[..], &NeverWaits))).unwrap();
            got.extend_from_slice(&piece[..count]);
            if count == 0 {
                break;
            }
        }
        assert_eq!(writer.join().unwrap(), Ok(1_000_000));
        assert!(got == expected);
    }

    #[test]
    fn nonblocking_calls_return_eagain_or_a_part() {
        let (from, to) = pipe(O_NONBLOCK);
        assert_eq!(block_on(from.read(&mut &mut [0][..], &NeverWaits)), Err(Errno::EAGAIN));
        assert_eq!(block_on(to.write(&mut &vec![0; 100_000][..], &NeverWaits)), Ok(65536));
        assert_eq!(block_on(to.write(&mut &[0][..], &NeverWaits)), Err(Errno::EAGAIN));
        assert_eq!(from.seek(0, SEEK_SET), Err(Errno::ESPIPE));
        assert_eq!(block_on(from.read_at(0, &mut &mut [0][..], &NeverWaits)), Err(Errno::ESPIPE));
        assert_eq!(block_on(to.read_at(0, &mut &mut [0][..], &NeverWaits)), Err(Errno::ESPIPE));
    }

    #[test]
    fn a_dropped_write_has_taken_what_it_wrote_and_leaves_the_wait_queue() {
        let (from, to) = pipe(0);
        let bytes = vec![0; 100_000];
        let mut source = &bytes[..];
        {
            let mut write = pin!(to.write(&mut source, &NeverWaits));
            let (_, waker) = Count::new();
            // The first poll writes what fits and yields, the second finds the pipe full.
            for _ in 0..2 {
                assert!(write.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            }
            assert_eq!(from.file().unwrap().queue().unwrap().waiting(), 1);
        }
        assert_eq!(source.len(), 100_000 - 65536);
        assert_eq!(from.file().unwrap().queue().unwrap().waiting(), 0);
    }

    #[test]
    fn f_setfl_changes_only_its_flags() {
        let (from, _to) = pipe(0);
        from.set_flags(O_NONBLOCK | O_WRONLY | O_CREAT);
        assert_eq!(from.flags(), O_NONBLOCK);
        assert_eq!(block_on(from.read(&mut &mut [0][..], &NeverWaits)), Err(Errno::EAGAIN));
    }
}
