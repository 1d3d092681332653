//! The contents of files: where they are on the device, and room for them.
//!
//! A file gets its blocks when the page cache writes it (Linux: delayed allocation), as many
//! consecutive ones as can be had. They count as unwritten, and read as zeros, until their bytes
//! are on the device: so a file never shows what was there before, whenever the power is lost.

use super::{Ext4, number};
use crate::errno::Errno;
use alloc::sync::Arc;
use core::ops::Range;
use rsext4::{BlockRun, Ext4ErrorKind, PreallocationOptions, RangeOperation, ZeroRangeOptions};
use spin::Mutex;

/// The contents of a file, in use. The last use of a file without a name frees it.
pub struct Contents {
    fs: Arc<Ext4>,
    inode: u64,
    /// Held while blocks get bytes from the page cache, and while blocks are taken from the file.
    placing: Mutex<()>,
}

/// Where a part of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At this byte offset on the device.
    At(u64),
    /// Nowhere: it reads as zeros.
    Hole,
}

impl Contents {
    /// Begins the use of a file's contents. At most one at a time exists for a file.
    pub fn new(fs: &Arc<Ext4>, inode: u64) -> Arc<Self> {
        fs.state.lock().in_use.insert(inode, false);
        Arc::new(Contents { fs: fs.clone(), inode, placing: Mutex::default() })
    }

    /// Returns the inode's number.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns the file system.
    pub fn fs(&self) -> &Arc<Ext4> {
        &self.fs
    }

    /// Returns the bytes on the device that the file uses.
    pub fn used(&self) -> u64 {
        self.fs.with(|fs| fs.inode(number(self.inode)?)).map_or(0, |info| info.blocks * 512)
    }

    /// Returns the first run of blocks from block `from` on.
    fn run(&self, from: u64) -> Result<Option<BlockRun>, Errno> {
        let Ok(from) = u32::try_from(from) else { return Ok(None) };
        self.fs.with(|fs| fs.find_run(number(self.inode)?, from))
    }

    /// Calls `each` with the parts of the file that make up `bytes`, in their order, and the place
    /// of each.
    ///
    /// # Errors
    /// `EIO`; those of `each`.
    pub fn read(
        &self,
        bytes: Range<u64>,
        each: &mut dyn FnMut(Place, Range<u64>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let block = self.fs.block;
        let mut at = bytes.start;
        while at < bytes.end {
            let Some(run) = self.run(at / block)? else { return each(Place::Hole, at..bytes.end) };
            let start = (u64::from(run.logical) * block).max(at);
            if start > at {
                let end = start.min(bytes.end);
                each(Place::Hole, at..end)?;
                at = end;
                continue;
            }
            let end = (u64::from(run.logical) + u64::from(run.len)) * block;
            let place = match run.unwritten {
                true => Place::Hole,
                false => Place::At(run.physical * block + (at - u64::from(run.logical) * block)),
            };
            let part = at..end.min(bytes.end);
            at = part.end;
            each(place, part)?;
        }
        Ok(())
    }

    /// Has `bytes` of the file written: finds room for them, and calls `each` with the parts of
    /// which they consist, in their order, and the offset on the device to which it is to write
    /// each. A part is whole blocks: at the end of `bytes` up to a block more, which get zeros.
    /// Then the file has at least the size `bytes.end`. `bytes.start` is a multiple of the size of
    /// a page.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, `EROFS`, `EIO`; those of `each`. The file is as it was, but for blocks
    /// that had been written before.
    pub fn write(
        &self,
        bytes: Range<u64>,
        each: &mut dyn FnMut(u64, Range<u64>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let block = self.fs.block;
        let blocks = bytes.start / block..bytes.end.div_ceil(block);
        let (Ok(first), Ok(_)) = (u32::try_from(blocks.start), u32::try_from(blocks.end)) else {
            return Err(Errno::EFBIG);
        };
        let count = (blocks.end - blocks.start) as u32;
        let _placing = self.placing.lock();
        let has_hole = self.for_runs(&blocks, &mut |_| Ok(()))?;
        if has_hole {
            let (at, len) = (blocks.start * block, u64::from(count) * block);
            let keep_size = PreallocationOptions::KEEP_SIZE;
            self.fs.with(|fs| fs.preallocate_inode(number(self.inode)?, at, len, keep_size))?;
        }
        let has_hole = self.for_runs(&blocks, &mut |run| {
            let start = u64::from(run.logical) * block;
            each(run.physical * block, start..start + u64::from(run.len) * block)
        })?;
        if has_hole {
            return Err(Errno::EIO);
        }
        self.fs.with(|fs| fs.finish_write(number(self.inode)?, first, count, bytes.end))
    }

    /// Calls `each` with the runs of some blocks, as far as they reach into `blocks`. Returns
    /// whether there is a hole.
    fn for_runs(
        &self,
        blocks: &Range<u64>,
        each: &mut dyn FnMut(BlockRun) -> Result<(), Errno>,
    ) -> Result<bool, Errno> {
        let (mut at, mut has_hole) = (blocks.start, false);
        while at < blocks.end {
            let Some(run) = self.run(at)?.filter(|run| u64::from(run.logical) < blocks.end) else { return Ok(true) };
            has_hole |= u64::from(run.logical) > at;
            let end = (u64::from(run.logical) + u64::from(run.len)).min(blocks.end);
            at = end;
            each(BlockRun { len: (end - u64::from(run.logical)) as u32, ..run })?;
        }
        Ok(has_hole)
    }

    /// Sets the file's size. Blocks behind a smaller size are freed: nothing writes to them any
    /// more.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, `EROFS`, `EIO`.
    pub fn set_size(&self, size: u64) -> Result<(), Errno> {
        let _placing = self.placing.lock();
        self.fs.with(|fs| fs.truncate_inode(number(self.inode)?, size))
    }

    /// Reserves blocks for the holes of a range, which read as zeros. The size stays.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, `EROFS`, `EIO`.
    pub fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno> {
        let (len, keep_size) = (bytes.end - bytes.start, PreallocationOptions::KEEP_SIZE);
        self.fs.with(|fs| fs.preallocate_inode(number(self.inode)?, bytes.start, len, keep_size))
    }

    /// Gives the file at least this size: that of the page cache, whose last pages may have been
    /// punched out before they were written.
    ///
    /// # Errors
    /// `EROFS`, `EIO`.
    pub fn grow(&self, size: u64) -> Result<(), Errno> {
        let _placing = self.placing.lock();
        self.fs.with(|fs| match fs.inode(number(self.inode)?)?.size < size {
            true => fs.truncate_inode(number(self.inode)?, size),
            false => Ok(()),
        })
    }

    /// Frees the blocks of a range of whole pages. Nothing writes to them any more.
    ///
    /// # Errors
    /// `ENOSPC`, `EROFS`, `EIO`.
    pub fn punch(&self, bytes: Range<u64>) -> Result<(), Errno> {
        let _placing = self.placing.lock();
        let len = bytes.end.saturating_sub(bytes.start);
        if len == 0 {
            return Ok(());
        }
        self.fs.with(|fs| {
            let mut operate = |what| fs.operate_inode_range(number(self.inode)?, bytes.start, len, what);
            match operate(RangeOperation::PunchHole) {
                // The crate can't split an extent for a hole if its node of the tree is full. It
                // can to make blocks unwritten, after which they are extents of their own.
                Err(error) if error.kind() == Ext4ErrorKind::Corrupted => {
                    operate(RangeOperation::Zero(ZeroRangeOptions::KEEP_SIZE))?;
                    operate(RangeOperation::PunchHole)
                }
                punched => punched,
            }
        })
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        let mut state = self.fs.state.lock();
        if state.in_use.remove(&self.inode) == Some(true) {
            let _ = number(self.inode).and_then(|number| state.mounted.reap_unlinked_inode(number));
        }
    }
}
