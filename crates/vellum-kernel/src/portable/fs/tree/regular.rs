//! Regular files: reads, writes, holes, seals.

use super::node::{Body, Node};
use crate::errno::Errno;
use crate::fs::inode::{File, Inode, Mappable};
use crate::fs::io::{Limited, Sink, Source};
use crate::fs::pages::{Pages, Shift};
use crate::fs::write_access::WriteAccess;
use crate::sleeplock::SleepLock;
use alloc::sync::Arc;
use core::any::Any;
use core::ops::Range;
use linux_raw_sys::general::{
    F_ADD_SEALS, F_GET_SEALS, F_SEAL_EXEC, F_SEAL_FUTURE_WRITE, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE,
    FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE,
};
use spin::Mutex;

/// The most bytes that one call of `write` takes. `Open` calls again for the rest; other threads
/// get their turn between the calls.
const WRITE_CHUNK: usize = 64 << 10;
/// The size of the aligned range that a write announces to the page cache, as far as the write
/// reaches, and for which the page cache may then allocate one folio. So the text of a program that
/// is copied into a tmpfs becomes physically contiguous, and few faults map it.
const EXPECTED: u64 = 64 << 10;
/// The size of the aligned range that one step of `fallocate` allocates. It is the size of the
/// largest folio. Other threads get their turn between the steps.
const FALLOCATE_CHUNK: u64 = 2 << 20;
const PUNCH: u32 = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
const ALL_SEALS: u32 = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_FUTURE_WRITE | F_SEAL_EXEC;

/// The contents of a regular file.
pub(super) struct Regular {
    pub pages: Arc<dyn Pages>,
    /// `F_SEAL_*`: the operations that are no longer permitted. Writes and size changes hold this
    /// lock, so that no seal is added while they run.
    seals: Mutex<u32>,
    /// Serializes writes that take several calls.
    write_lock: SleepLock,
    /// Open files that may write, or programs that run from the file.
    pub write_access: WriteAccess,
}

impl Regular {
    pub fn new(pages: Arc<dyn Pages>) -> Self {
        Regular {
            pages,
            seals: Mutex::new(F_SEAL_SEAL),
            write_lock: SleepLock::default(),
            write_access: WriteAccess::default(),
        }
    }
}

impl Node {
    fn regular(&self) -> Result<&Regular, Errno> {
        if let Body::Regular(regular) = &self.body { Ok(regular) } else { Err(Errno::EINVAL) }
    }

    /// Permits adding seals to a new file, which begins with `F_SEAL_SEAL` set.
    pub(super) fn allow_seals(&self) {
        if let Ok(regular) = self.regular() {
            *regular.seals.lock() = 0;
        }
    }

    /// Sets the size.
    ///
    /// # Errors
    /// `EINVAL`: not a regular file; `EPERM`: sealed; those of [`Pages::set_size`].
    pub(super) fn set_size(&self, size: u64) -> Result<(), Errno> {
        let regular = self.regular()?;
        let seals = regular.seals.lock();
        let old = regular.pages.size();
        if size < old && *seals & F_SEAL_SHRINK != 0 || size > old && *seals & F_SEAL_GROW != 0 {
            return Err(Errno::EPERM);
        }
        regular.pages.set_size(size)?;
        self.touch_modified();
        Ok(())
    }

    /// Writes to `pages`, which are the file's own or an opener's, at an offset, or at the end of
    /// the file, by `write`: [`Pages::write`] or [`Pages::write_direct`]. Returns the number of
    /// bytes written, at most [`WRITE_CHUNK`], and the offset behind the last of them.
    fn write_chunk(
        &self,
        pages: &dyn Pages,
        at: Option<u64>,
        from: &mut dyn Source,
        write: impl FnOnce(&dyn Pages, u64, &mut dyn Source) -> Result<usize, Errno>,
    ) -> Result<(usize, u64), Errno> {
        let regular = self.regular()?;
        let seals = regular.seals.lock();
        let size = pages.size();
        let at = at.unwrap_or(size);
        let mut most = WRITE_CHUNK;
        if from.left() == 0 {
            return Ok((0, at));
        }
        if *seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE) != 0 {
            return Err(Errno::EPERM);
        }
        if *seals & F_SEAL_GROW != 0 && at.saturating_add(from.left() as u64) > size {
            if at >= size {
                return Err(Errno::EPERM);
            }
            most = most.min((size - at) as usize);
        }
        if at.is_multiple_of(EXPECTED) {
            pages.expect_write(at..at.saturating_add(EXPECTED.min(from.left() as u64)));
        }
        let count = write(pages, at, &mut Limited(from, most))?;
        self.touch_modified();
        Ok((count, at + count as u64))
    }

    /// Adds seals (`F_ADD_SEALS`).
    ///
    /// # Errors
    /// `EINVAL`; `EPERM`: `F_SEAL_SEAL` is set; `EBUSY`: a shared mapping may write to the file.
    fn seal(&self, add: u64) -> Result<(), Errno> {
        let regular = self.regular()?;
        let mut seals = regular.seals.lock();
        let add = u32::try_from(add).ok().filter(|add| add & !ALL_SEALS == 0).ok_or(Errno::EINVAL)?;
        if *seals & F_SEAL_SEAL != 0 {
            return Err(Errno::EPERM);
        }
        if add & F_SEAL_WRITE & !*seals != 0 {
            regular.pages.deny_shared_write()?;
        }
        *seals |= add;
        Ok(())
    }
}

/// An open regular file.
pub struct OpenRegular {
    node: Arc<Node>,
    /// The pages as this opener sees them ([`Pages::open`]).
    pages: Arc<dyn Pages>,
}

impl OpenRegular {
    pub(super) fn open(node: &Arc<Node>, regular: &Regular) -> Result<Arc<Self>, Errno> {
        let pages = match regular.pages.open()? {
            Some(own) => own,
            None => regular.pages.clone(),
        };
        Ok(Arc::new(OpenRegular { node: node.clone(), pages }))
    }
}

impl File for OpenRegular {
    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        let count = self.pages.read(at, to)?;
        self.node.touch_accessed();
        Ok(count)
    }

    fn write(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        self.node
            .write_chunk(&*self.pages, Some(at), from, |pages, at, from| pages.write(at, from))
            .map(|(count, _)| count)
    }

    fn append(&self, from: &mut dyn Source) -> Result<(usize, u64), Errno> {
        self.node.write_chunk(&*self.pages, None, from, |pages, at, from| pages.write(at, from))
    }

    fn permits_direct(&self) -> bool {
        true
    }

    fn read_direct(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        let count = self.pages.read_direct(at, to)?;
        self.node.touch_accessed();
        Ok(count)
    }

    fn write_direct(&self, at: Option<u64>, from: &mut dyn Source) -> Result<(usize, u64), Errno> {
        self.node.write_chunk(&*self.pages, at, from, |pages, at, from| pages.write_direct(at, from))
    }

    fn seekable(&self) -> bool {
        true
    }

    fn write_lock(&self) -> Option<&SleepLock> {
        self.node.regular().ok().map(|regular| &regular.write_lock)
    }

    fn unread(&self, at: u64) -> Result<u64, Errno> {
        Ok(self.pages.size().saturating_sub(at))
    }

    fn mappable(&self) -> Mappable {
        self.node.touch_accessed();
        Mappable::Pages(self.pages.clone())
    }

    fn pages(&self) -> Option<&Arc<dyn Pages>> {
        Some(&self.pages)
    }

    fn allocate(&self, mode: u32, bytes: Range<u64>, done: u64) -> Result<u64, Errno> {
        let regular = self.node.regular()?;
        let mut end = bytes.end;
        let seals = regular.seals.lock();
        let size = self.pages.size();
        // As on Linux, files in memory have no such mode.
        let zeroes = mode & FALLOC_FL_ZERO_RANGE != 0 && self.node.fs.disk.is_some();
        match if zeroes { mode & !FALLOC_FL_ZERO_RANGE } else { mode } {
            FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE if !zeroes => {
                let shift = if mode == FALLOC_FL_INSERT_RANGE { Shift::Insert } else { Shift::Collapse };
                if !self.pages.shift(bytes.clone(), shift)? {
                    return Ok(0);
                }
            }
            PUNCH if !zeroes => {
                if *seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE) != 0 {
                    return Err(Errno::EPERM);
                }
                self.pages.punch(bytes.clone())?;
            }
            kept @ (0 | FALLOC_FL_KEEP_SIZE) => {
                let grows = kept == 0 && bytes.end > size;
                if grows && *seals & F_SEAL_GROW != 0 {
                    return Err(Errno::EPERM);
                }
                let space = self.node.space();
                if done == 0 && (bytes.end - bytes.start).div_ceil(space.block_size()) > space.pages {
                    return Err(Errno::ENOSPC);
                }
                // Behind the end are zeros. The page with the end stays in memory for the growth.
                if zeroes && done == 0 && bytes.start < size {
                    self.pages.punch(bytes.start..bytes.end.min(size))?;
                }
                let from = bytes.start + done;
                end = end.min((from / FALLOCATE_CHUNK + 1) * FALLOCATE_CHUNK);
                self.pages.allocate(from..end)?;
                if grows && end == bytes.end {
                    self.pages.set_size(bytes.end)?;
                }
            }
            _ => return Err(Errno::EOPNOTSUPP),
        }
        self.node.touch_modified();
        Ok(end - bytes.start)
    }

    fn seek(&self, at: u64, hole: bool) -> Result<u64, Errno> {
        let pages = &self.pages;
        let size = pages.size();
        if at >= size {
            return Err(Errno::ENXIO);
        }
        if hole {
            return Ok(pages.next_hole(at).min(size));
        }
        pages.next_data(at).filter(|&at| at < size).ok_or(Errno::ENXIO)
    }

    fn control(&self, command: u32, argument: u64) -> Result<u64, Errno> {
        match command {
            F_GET_SEALS => Ok((*self.node.regular()?.seals.lock()).into()),
            F_ADD_SEALS => self.node.seal(argument).map(|()| 0),
            _ => Err(Errno::EINVAL),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
