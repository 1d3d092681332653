//! The contents of files: where they are on the device, and room for them.
//!
//! A file gets its blocks when the page cache writes it (Linux: delayed allocation), as many
//! consecutive ones as can be had. They count as unwritten, and read as zeros, until their bytes
//! are on the device: so a file never shows what was there before, whenever the power is lost.

use super::{Ext4, number};
use crate::errno::Errno;
use crate::fs::pages::Shift;
use alloc::sync::Arc;
use core::ops::Range;
use rsext4::{BlockRun, PreallocationOptions, RangeOperation, ZeroRangeOptions};
use spin::{Mutex, RwLock};

/// The contents of a file, in use. The last use of a file without a name frees it.
pub struct Contents {
    fs: Arc<Ext4>,
    inode: u64,
    /// Held while blocks get bytes from the page cache, and while blocks are taken from the file.
    placing: Mutex<()>,
    last: Mutex<Last>,
    /// Held for reading while bytes are read, and for writing while they move in the file: a page
    /// has bytes of before a move, or of after it. Taken after `placing`.
    moving: RwLock<()>,
}

/// The number of runs of a file that are kept in memory.
const RUNS: usize = 16;

/// The runs and the size on the device that the crate found last for a file.
#[derive(Default)]
struct Last {
    /// The runs that were read last, with those that go on in others merged.
    runs: [Option<BlockRun>; RUNS],
    /// The index of the run to replace next.
    oldest: usize,
    /// The bytes on the device.
    used: Option<u64>,
    /// Grows with each change of the file's blocks, so that what was found before the change is not
    /// kept after it.
    changes: u64,
}

/// Where a part of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At this byte offset on the device.
    At(u64),
    /// Nowhere: it reads as zeros.
    Hole,
}

impl Last {
    /// Keeps a run.
    fn note(&mut self, found: BlockRun) {
        // Two extents of a file may be one run, as an extent has at most 128 MiB, and those of
        // several writes are not always merged.
        if let Some(run) = self.runs.iter_mut().flatten().find(|run| goes_on(run, &found)) {
            run.len += found.len;
        } else if let Some(run) = self.runs.iter_mut().flatten().find(|run| goes_on(&found, run)) {
            *run = BlockRun { len: found.len + run.len, ..found };
        } else {
            self.runs[self.oldest] = Some(found);
            self.oldest = (self.oldest + 1) % RUNS;
        }
    }
}

/// Returns whether `next` begins where `run` ends, in the file and on the device.
fn goes_on(run: &BlockRun, next: &BlockRun) -> bool {
    run.logical.checked_add(run.len) == Some(next.logical)
        && run.physical + u64::from(run.len) == next.physical
        && run.unwritten == next.unwritten
        && run.len.checked_add(next.len).is_some()
}

/// Returns the part of a run from block `from` on; `None` if the run does not have the block.
fn part_from(run: &BlockRun, from: u64) -> Option<BlockRun> {
    let skipped = u32::try_from(from).ok()?.checked_sub(run.logical).filter(|skipped| *skipped < run.len)?;
    let (logical, physical) = (run.logical + skipped, run.physical + u64::from(skipped));
    Some(BlockRun { logical, physical, len: run.len - skipped, ..*run })
}

impl Contents {
    /// Begins the use of a file's contents. At most one at a time exists for a file.
    pub fn new(fs: &Arc<Ext4>, inode: u64) -> Self {
        fs.lock().in_use.insert(inode, false);
        Contents { fs: fs.clone(), inode, placing: Mutex::default(), last: Mutex::default(), moving: RwLock::default() }
    }

    /// Returns the file system.
    pub fn fs(&self) -> &Arc<Ext4> {
        &self.fs
    }

    /// Returns the bytes of a block.
    pub fn block_size(&self) -> u64 {
        self.fs.block
    }

    /// Returns the bytes on the device that the file uses.
    pub fn used(&self) -> u64 {
        let (changes, used) = {
            let last = self.last.lock();
            (last.changes, last.used)
        };
        used.unwrap_or_else(|| {
            let Ok(info) = self.fs.with(|fs| fs.inode(number(self.inode)?)) else { return 0 };
            let used = info.blocks * 512;
            let mut last = self.last.lock();
            if last.changes == changes {
                last.used = Some(used);
            }
            used
        })
    }

    /// Returns what [`Contents::run`] does, from memory if the run was read last.
    fn run_to_read(&self, from: u64) -> Result<Option<BlockRun>, Errno> {
        let last = self.last.lock();
        let changes = last.changes;
        if let Some(run) = last.runs.iter().flatten().find_map(|run| part_from(run, from)) {
            return Ok(Some(run));
        }
        drop(last);
        let found = self.whole_run(from)?;
        let mut last = self.last.lock();
        if let Some(found) = found
            && last.changes == changes
        {
            last.note(found);
        }
        Ok(found.map(|run| part_from(&run, from).unwrap_or(run)))
    }

    /// Does a change of the file's blocks.
    fn change<T>(&self, change: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let _placing = self.placing.lock();
        self.forget_places(change)
    }

    /// Does a change of the file's blocks. The caller holds `placing`.
    fn forget_places<T>(&self, change: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let changed = change();
        let mut last = self.last.lock();
        *last = Last { changes: last.changes + 1, ..Last::default() };
        changed
    }

    /// Returns the run that has block `from`, or else the next.
    fn whole_run(&self, from: u64) -> Result<Option<BlockRun>, Errno> {
        let Ok(from) = u32::try_from(from) else { return Ok(None) };
        self.fs.with(|fs| fs.find_run(number(self.inode)?, from))
    }

    /// Returns the first run of blocks from block `from` on, without what lies before that.
    fn run(&self, from: u64) -> Result<Option<BlockRun>, Errno> {
        Ok(self.whole_run(from)?.map(|run| part_from(&run, from).unwrap_or(run)))
    }

    /// Calls `each` with the parts of the file that make up `bytes`, in their order, and the place
    /// of each, until it returns an offset before the end of its part: the one that it has reached.
    /// Returns the offset that was reached; it is before the end, too, if the crate can't read
    /// where the next part is.
    pub fn read(&self, bytes: Range<u64>, each: &mut dyn FnMut(Place, Range<u64>) -> u64) -> u64 {
        let _moving = self.moving.read();
        let mut at = bytes.start;
        while at < bytes.end {
            let Ok((place, part)) = self.find_place(at..bytes.end) else { return at };
            let reached = each(place, part.clone());
            if reached < part.end {
                return reached;
            }
            at = part.end;
        }
        bytes.end
    }

    /// Reads as [`Contents::read`] does, while no block is taken from the file: what it reads is
    /// the file's, even if the file is truncated meanwhile.
    pub fn read_direct(&self, bytes: Range<u64>, each: &mut dyn FnMut(Place, Range<u64>) -> u64) -> u64 {
        let _placing = self.placing.lock();
        self.read(bytes, each)
    }

    /// Returns the first part of `bytes`, and its place, to read it. The page cache has their
    /// pages, as pages that are being read, so that none of the bytes moves ([`Contents::shift`]).
    ///
    /// # Errors
    /// Those of the crate: it can't read where the part is.
    pub fn place(&self, bytes: Range<u64>) -> Result<(Place, Range<u64>), Errno> {
        let _moving = self.moving.read();
        self.find_place(bytes)
    }

    /// Does what [`Contents::place`] does. The caller holds `moving`.
    fn find_place(&self, bytes: Range<u64>) -> Result<(Place, Range<u64>), Errno> {
        let block = self.fs.block;
        let run = self.run_to_read(bytes.start / block)?;
        let (start, end) = run.map_or((u64::MAX, u64::MAX), |run| {
            (u64::from(run.logical) * block, (u64::from(run.logical) + u64::from(run.len)) * block)
        });
        let (place, end) = match run {
            Some(run) if start <= bytes.start && run.unwritten => (Place::Hole, end),
            Some(run) if start <= bytes.start => (Place::At(run.physical * block + (bytes.start - start)), end),
            _ => (Place::Hole, start),
        };
        Ok((place, bytes.start..end.min(bytes.end)))
    }

    /// Finds room for `bytes` of the file. Returns the offset on the device to which the first part
    /// is to be written, and that part: whole blocks, at the end of `bytes` up to a block more,
    /// which get zeros. `bytes.start` is a multiple of the size of a block. Once the parts were
    /// written, the file is told ([`Contents::written`]); until then it has the same bytes as
    /// before, and the caller keeps the blocks from being taken from it.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, `EROFS`, `EIO`, of the crate.
    pub fn room_for(&self, bytes: Range<u64>) -> Result<(u64, Range<u64>), Errno> {
        let _placing = self.placing.lock();
        self.find_room(bytes)
    }

    /// Gives the file its bytes from `bytes.start` to `reached`, which were written to where
    /// [`Contents::room_for`] said, and at least that size, but no more than `bytes.end`.
    ///
    /// # Errors
    /// `EROFS`, `EIO`, of the crate. The file has the same bytes as before.
    pub fn written(&self, bytes: Range<u64>, reached: u64) -> Result<(), Errno> {
        self.change(|| self.finish_write(bytes, reached))
    }

    /// Has `bytes` of the file written, while no block is taken from it: calls `each` with the
    /// parts of which they consist ([`Contents::room_for`]), in their order, until it returns an
    /// offset before the end of its part: the one that it has reached.
    ///
    /// Returns the offset that was reached, in whole blocks, which lies behind the end if all was
    /// written. The file has the bytes before it.
    ///
    /// # Errors
    /// Those of [`Contents::room_for`] for the first part. The file has the same bytes as before.
    pub fn write(&self, bytes: Range<u64>, each: &mut dyn FnMut(u64, Range<u64>) -> u64) -> Result<u64, Errno> {
        let _placing = self.placing.lock();
        let mut reached = bytes.start;
        while reached < bytes.end {
            let (to, part) = match self.find_room(reached..bytes.end) {
                Ok(found) => found,
                Err(error) if reached == bytes.start => return Err(error),
                Err(_) => break,
            };
            reached = each(to, part.clone());
            if reached < part.end {
                break;
            }
        }
        reached = reached / self.fs.block * self.fs.block;
        self.forget_places(|| self.finish_write(bytes, reached))?;
        Ok(reached)
    }

    /// Does what [`Contents::room_for`] does. The caller holds `placing`.
    fn find_room(&self, bytes: Range<u64>) -> Result<(u64, Range<u64>), Errno> {
        let block = self.fs.block;
        let (first, end) = (bytes.start / block, bytes.end.div_ceil(block));
        if end > u64::from(u32::MAX) {
            return Err(Errno::EFBIG);
        }
        let find = || self.run(first).map(|run| run.filter(|run| u64::from(run.logical) == first));
        let run = match find()? {
            Some(run) => run,
            None => {
                // As many consecutive blocks as can be had.
                let (at, len) = (first * block, (end - first) * block);
                let keep_size = PreallocationOptions::KEEP_SIZE;
                let allocate = || self.fs.with(|fs| fs.preallocate_inode(number(self.inode)?, at, len, keep_size));
                self.forget_places(allocate)?;
                find()?.ok_or(Errno::EIO)?
            }
        };
        let part = first * block..(first + u64::from(run.len)).min(end) * block;
        let to = run.physical * block;
        self.fs.cache.forget(&(to..to + (part.end - part.start)));
        Ok((to, part))
    }

    /// Does what [`Contents::written`] does. The caller holds `placing`, and has the places
    /// forgotten.
    fn finish_write(&self, bytes: Range<u64>, reached: u64) -> Result<(), Errno> {
        let block = self.fs.block;
        let (first, end) = (bytes.start / block, reached / block);
        if first >= end {
            return Ok(());
        }
        let (size, count) = (bytes.end.min(end * block), (end - first) as u32);
        self.fs.with(|fs| fs.finish_write(number(self.inode)?, first as u32, count, size))
    }

    /// Sets the file's size. Blocks behind a smaller size are freed: nothing writes to them any
    /// more.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, `EROFS`, `EIO`.
    pub fn set_size(&self, size: u64) -> Result<(), Errno> {
        self.change(|| self.truncate(size))
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.fs.with(|fs| fs.truncate_inode(number(self.inode)?, size))
    }

    /// Reserves blocks for the holes of a range, which read as zeros. The size stays.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, `EROFS`, `EIO`.
    pub fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno> {
        let (len, keep_size) = (bytes.end - bytes.start, PreallocationOptions::KEEP_SIZE);
        self.change(|| self.fs.with(|fs| fs.preallocate_inode(number(self.inode)?, bytes.start, len, keep_size)))
    }

    /// Returns whether there is room for bytes that a program writes, without all dirty pages being
    /// written first.
    pub fn has_room(&self, bytes: Range<u64>, later: u64) -> bool {
        self.fs.has_room(bytes.end - bytes.start, later) || self.has_blocks(&bytes)
    }

    /// Sees to it that there is room for bytes which the page cache gets, and which are written
    /// after at most `later` other bytes: at once if the file system is nearly full, so that the
    /// program's write fails, and not the writeback.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, `EROFS`, `EIO`.
    pub fn reserve(&self, bytes: Range<u64>, later: u64) -> Result<(), Errno> {
        if self.fs.promise(bytes.end - bytes.start, later) || self.has_blocks(&bytes) {
            return Ok(());
        }
        let block = self.fs.block;
        let whole = bytes.start / block * block..bytes.end.next_multiple_of(block);
        self.fs.may_take(whole.end - whole.start)?;
        self.allocate(whole)
    }

    /// Returns whether some bytes have their blocks.
    fn has_blocks(&self, bytes: &Range<u64>) -> bool {
        let block = self.fs.block;
        let mut at = bytes.start / block;
        while at < bytes.end.div_ceil(block) {
            match self.run_to_read(at) {
                Ok(Some(run)) if u64::from(run.logical) <= at => at = u64::from(run.logical) + u64::from(run.len),
                _ => return false,
            }
        }
        true
    }

    /// Moves the bytes behind the start of a range by its length, all at once, also if the power is
    /// lost. While no byte of the file can be read, asks `is_unused` before the move whether the
    /// page cache has none of the bytes that move, and calls `moved` after it. Returns false, with
    /// nothing changed, if `is_unused` does.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, `EROFS`, `EIO`, `EOPNOTSUPP`.
    pub fn shift(
        &self,
        bytes: Range<u64>,
        shift: Shift,
        is_unused: impl FnOnce() -> bool,
        moved: impl FnOnce(),
    ) -> Result<bool, Errno> {
        let what = match shift {
            Shift::Collapse => RangeOperation::Collapse,
            Shift::Insert => RangeOperation::Insert,
        };
        let len = bytes.end - bytes.start;
        let _placing = self.placing.lock();
        let _moving = self.moving.write();
        if !is_unused() {
            return Ok(false);
        }
        self.forget_places(|| self.fs.with(|fs| fs.operate_inode_range(number(self.inode)?, bytes.start, len, what)))?;
        moved();
        Ok(true)
    }

    /// Gives the file at least this size: that of the page cache, whose last pages may have been
    /// punched out before they were written.
    ///
    /// # Errors
    /// `EROFS`, `EIO`.
    pub fn grow(&self, size: u64) -> Result<(), Errno> {
        // The size is compared and set at once: a write that ends in between would be cut off.
        let _placing = self.placing.lock();
        match self.fs.with(|fs| fs.inode(number(self.inode)?))?.size < size {
            true => self.forget_places(|| self.truncate(size)),
            false => Ok(()),
        }
    }

    /// Frees the blocks of a range of whole pages. Nothing writes to them any more.
    ///
    /// # Errors
    /// `ENOSPC`, `EROFS`, `EIO`.
    pub fn punch(&self, bytes: Range<u64>) -> Result<(), Errno> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.change(|| self.free(&bytes))
    }

    /// Implements [`Contents::punch`].
    fn free(&self, bytes: &Range<u64>) -> Result<(), Errno> {
        let operate = |bytes: Range<u64>, what| {
            let len = bytes.end - bytes.start;
            self.fs.with(|fs| fs.operate_inode_range(number(self.inode)?, bytes.start, len, what))
        };
        // The crate can't split an extent for a hole if the node with it is full, but can make
        // blocks unwritten, which read as zeros. Of these it can free all but those inside of an
        // extent.
        match operate(bytes.clone(), RangeOperation::PunchHole) {
            Err(Errno::EUCLEAN) => {}
            punched => return punched,
        }
        operate(bytes.clone(), RangeOperation::Zero(ZeroRangeOptions::KEEP_SIZE))?;
        let block = self.fs.block;
        let (mut at, end) = (bytes.start / block, bytes.end / block);
        while let Some(run) = self.run(at)?.filter(|run| u64::from(run.logical) < end) {
            let first = u64::from(run.logical);
            at = (first + u64::from(run.len)).min(end);
            let _ = operate(first * block..at * block, RangeOperation::PunchHole);
        }
        Ok(())
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        let mut state = self.fs.lock();
        if state.in_use.remove(&self.inode) == Some(true) {
            let _ = number(self.inode).and_then(|number| state.mounted.reap_unlinked_inode(number));
        }
    }
}
