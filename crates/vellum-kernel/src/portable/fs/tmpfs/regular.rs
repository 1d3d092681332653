//! Regular files: reads, writes, holes, seals.

use super::node::{Body, Node};
use crate::errno::Errno;
use crate::fs::inode::{File, Mappable};
use crate::fs::io::{Limited, Sink, Source};
use crate::fs::pages::Pages;
use crate::sleeplock::SleepLock;
use alloc::sync::Arc;
use core::any::Any;
use core::ops::Range;
use linux_raw_sys::general::{
    F_ADD_SEALS, F_GET_SEALS, F_SEAL_EXEC, F_SEAL_FUTURE_WRITE, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE,
    FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE,
};
use spin::Mutex;

/// As much is written at once; then others go first.
const PIECE: usize = 16 << 10;
/// A write gets its memory in pieces of this size as well, in one folio if policy
/// allows: so a program's text is contiguous.
const AHEAD: u64 = 64 << 10;
/// `fallocate` allocates as much at once; then others go first. No folio is larger.
const ALLOCATED: u64 = 2 << 20;
const PUNCH: u32 = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
const ALL_SEALS: u32 = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_FUTURE_WRITE | F_SEAL_EXEC;

pub(super) struct Regular {
    pub pages: Arc<dyn Pages>,
    /// Held by who writes or changes the size; what may not be done any more (`F_SEAL_*`).
    seals: Mutex<u32>,
    /// One write after the other.
    write_lock: SleepLock,
}

impl Regular {
    pub fn new(pages: Arc<dyn Pages>) -> Self {
        Regular { pages, seals: Mutex::new(F_SEAL_SEAL), write_lock: SleepLock::default() }
    }
}

impl Node {
    fn regular(&self) -> Result<&Regular, Errno> {
        if let Body::Regular(regular) = &self.body { Ok(regular) } else { Err(Errno::EINVAL) }
    }

    /// Seals may be added.
    pub(super) fn allow_seals(&self) {
        if let Ok(regular) = self.regular() {
            *regular.seals.lock() = 0;
        }
    }

    pub(super) fn set_size(&self, size: u64) -> Result<(), Errno> {
        let regular = self.regular()?;
        let seals = regular.seals.lock();
        let old = regular.pages.size();
        if size < old && *seals & F_SEAL_SHRINK != 0 || size > old && *seals & F_SEAL_GROW != 0 {
            return Err(Errno::EPERM);
        }
        regular.pages.set_size(size)?;
        self.modified();
        Ok(())
    }

    /// Write at an offset, or at the end; where it began, and how many bytes.
    fn put(&self, at: Option<u64>, from: &mut dyn Source) -> Result<(u64, usize), Errno> {
        let regular = self.regular()?;
        let seals = regular.seals.lock();
        let size = regular.pages.size();
        let at = at.unwrap_or(size);
        let mut most = PIECE;
        if from.left() == 0 {
            return Ok((at, 0));
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
        if at.is_multiple_of(AHEAD) && from.left() as u64 >= AHEAD {
            regular.pages.expect_write(at..at.saturating_add(AHEAD));
        }
        let count = regular.pages.write(at, &mut Limited(from, most))?;
        self.modified();
        Ok((at, count))
    }

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

impl File for Node {
    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        let count = self.regular()?.pages.read(at, to)?;
        self.accessed();
        Ok(count)
    }

    fn write(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        self.put(Some(at), from).map(|(_, count)| count)
    }

    fn append(&self, from: &mut dyn Source) -> Result<(usize, u64), Errno> {
        self.put(None, from).map(|(at, count)| (count, at + count as u64))
    }

    fn seekable(&self) -> bool {
        true
    }

    fn write_lock(&self) -> Option<&SleepLock> {
        self.regular().ok().map(|regular| &regular.write_lock)
    }

    fn unread(&self, at: u64) -> Result<u64, Errno> {
        Ok(self.regular()?.pages.size().saturating_sub(at))
    }

    fn mappable(&self) -> Mappable {
        self.accessed();
        self.regular().map_or(Mappable::No, |regular| Mappable::Pages(regular.pages.clone()))
    }

    fn allocate(&self, mode: u32, bytes: Range<u64>, done: u64) -> Result<u64, Errno> {
        let regular = self.regular()?;
        let mut end = bytes.end;
        let seals = regular.seals.lock();
        let size = regular.pages.size();
        match mode {
            PUNCH => {
                if *seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE) != 0 {
                    return Err(Errno::EPERM);
                }
                regular.pages.punch(bytes.clone())?;
            }
            0 | FALLOC_FL_KEEP_SIZE => {
                let grows = mode == 0 && bytes.end > size;
                if grows && *seals & F_SEAL_GROW != 0 {
                    return Err(Errno::EPERM);
                }
                if done == 0 && (bytes.end - bytes.start).div_ceil(4096) > self.fs.host.space().0 {
                    return Err(Errno::ENOSPC);
                }
                let from = bytes.start + done;
                end = end.min((from / ALLOCATED + 1) * ALLOCATED);
                regular.pages.allocate(from..end)?;
                if grows && end == bytes.end {
                    regular.pages.set_size(bytes.end)?;
                }
            }
            _ => return Err(Errno::EOPNOTSUPP),
        }
        self.modified();
        Ok(end - bytes.start)
    }

    fn seek(&self, at: u64, hole: bool) -> Result<u64, Errno> {
        let pages = &self.regular()?.pages;
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
            F_GET_SEALS => Ok((*self.regular()?.seals.lock()).into()),
            F_ADD_SEALS => self.seal(argument).map(|()| 0),
            _ => Err(Errno::EINVAL),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
