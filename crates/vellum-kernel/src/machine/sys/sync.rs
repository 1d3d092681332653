//! Implements the system calls on the page cache of files with a store: synchronisation, and advice
//! on reads.

use super::Answer;
use super::file::{object_of, open_of};
use super::pieces::by_pieces;
use crate::files::contents::{self, ObjectContents, Opener};
use crate::files::{block, ext4, writeback};
use crate::task::Thread;
use alloc::sync::Arc;
use core::ops::Range;
use core::pin::pin;
use linux_raw_sys::general as abi;
use vellum::addr::FRAME_SIZE;
use vellum::page_cache::Writeback;
use vellum::vma::Expected;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::tree::Node;
use vellum_kernel::fs::{Kind, Open};

/// Returns the contents of an open file, and the opener's state, if a store has the contents.
fn stored(open: &Open) -> Option<(&Arc<ObjectContents>, &Opener)> {
    contents::stored(&**open.file().ok()?.pages()?)
}

/// Has dirty pages of a file written, and waits as the pass demands.
///
/// # Errors
///
/// `ENOMEM`; `EINTR`: the thread is being killed.
async fn write_back(thread: &Arc<Thread>, contents: &ObjectContents, mut pass: Writeback) -> Result<(), Errno> {
    by_pieces(thread, || contents.write_back(&mut pass).map(|()| true)).await
}

/// Waits until the storage has what an open file has in memory of a range of bytes, if it is open
/// with `O_DIRECT`, for a direct read or write of them (Linux: `filemap_write_and_wait_range`).
///
/// # Errors
///
/// `ENOMEM`; `EINTR`: the thread is being killed.
pub async fn write_range(thread: &Arc<Thread>, open: &Open, at: u64, len: usize) -> Result<(), Errno> {
    if open.flags() & abi::O_DIRECT == 0 {
        return Ok(());
    }
    let pages = at / FRAME_SIZE..at.saturating_add(len as u64).div_ceil(FRAME_SIZE);
    write_pages(thread, open, pages).await
}

/// Waits until the storage has what an open file has in memory of a range of pages, if the file has
/// a storage.
///
/// # Errors
///
/// Those of [`write_range`].
pub async fn write_pages(thread: &Arc<Thread>, open: &Open, pages: Range<u64>) -> Result<(), Errno> {
    match stored(open) {
        Some((contents, _)) => write_back(thread, contents, Writeback::complete(pages)).await,
        None => Ok(()),
    }
}

/// Has all dirty pages written if the storage of an open file may else have no room for `len` bytes
/// that are about to be written to the file at offset `at`.
///
/// # Errors
///
/// `EINTR`: the thread is being killed.
pub async fn make_room(thread: &Arc<Thread>, open: &Open, at: u64, len: usize) -> Result<(), Errno> {
    if let Some((contents, _)) = stored(open)
        && contents.lacks_room(at..at.saturating_add(len as u64))
    {
        thread.killable(pin!(writeback::write_all())).await?;
        contents.all_written();
    }
    Ok(())
}

/// Implements `fsync` and `fdatasync`. Files in memory have nothing to write.
pub async fn fsync(thread: &Arc<Thread>, fd: u64) -> Answer {
    let open = open_of(thread, fd)?;
    if matches!(open.inode().kind(), Kind::Fifo | Kind::Char | Kind::Socket) {
        return Err(Errno::EINVAL);
    }
    let node = open.inode().as_any().downcast_ref::<Node>();
    match stored(&open) {
        Some((contents, opener)) => {
            write_back(thread, contents, Writeback::complete(0..u64::MAX)).await?;
            // The disk keeps the attributes before the call reports the error of a write.
            let kept = node.map_or(Ok(()), Node::write_attributes);
            contents.flush(opener).and(kept)?;
        }
        None => {
            if let Some(node) = node {
                node.write_attributes()?;
                node.tree().on_disk(|disk| disk.sync())?;
            }
        }
    }
    Ok(0)
}

/// Implements `sync` and `syncfs`: writes all files that have a store.
pub async fn all(thread: &Arc<Thread>) -> Answer {
    for contents in contents::all_stored() {
        // As on Linux, an error of one file does not keep the others from being written, and only
        // `fsync` reports it.
        if write_back(thread, &contents, Writeback::complete(0..u64::MAX)).await == Err(Errno::EINTR) {
            return Err(Errno::EINTR);
        }
        let _ = contents.keep_size();
    }
    let _ = ext4::sync_all();
    block::flush_all();
    Ok(0)
}

/// Implements `syncfs`.
pub async fn syncfs(thread: &Arc<Thread>, fd: u64) -> Answer {
    open_of(thread, fd)?;
    all(thread).await
}

/// Implements `sync_file_range`.
pub async fn range(thread: &Arc<Thread>, fd: u64, offset: u64, len: u64, flags: u64) -> Answer {
    const WAITS: u32 = abi::SYNC_FILE_RANGE_WAIT_BEFORE | abi::SYNC_FILE_RANGE_WAIT_AFTER;
    let open = open_of(thread, fd)?;
    let end = (offset as i64).checked_add(len as i64).filter(|end| *end >= offset as i64);
    let (Some(end), 0, true) = (end, flags as u32 & !(WAITS | abi::SYNC_FILE_RANGE_WRITE), offset as i64 >= 0) else {
        return Err(Errno::EINVAL);
    };
    match open.inode().kind() {
        Kind::Regular | Kind::Block | Kind::Directory | Kind::Link => {}
        _ => return Err(Errno::ESPIPE),
    }
    if let Some((contents, _)) = stored(&open)
        && flags != 0
    {
        let pages = offset / FRAME_SIZE..if len == 0 { u64::MAX } else { (end as u64).div_ceil(FRAME_SIZE) };
        // A pass that waits also starts the writes of what is dirty.
        let waits = flags as u32 & WAITS != 0;
        let pass = if waits { Writeback::complete(pages) } else { Writeback::start(pages) };
        write_back(thread, contents, pass).await?;
    }
    Ok(0)
}

/// Implements `msync` with `MS_SYNC`, of which the engine has checked the range: writes the shared
/// mappings of files in it.
pub async fn mapped(thread: &Arc<Thread>, addr: u64, end: u64) -> Result<(), Errno> {
    let mut at = addr;
    while at < end {
        let mut found = None;
        let memory = thread.memory();
        memory.engine.vmas(at, |vma| {
            let is_over = vma.range.start >= end;
            if !is_over && vma.backing.is_shared() {
                let start = vma.range.start.max(at);
                let last = vma.range.end.min(end);
                let first = vma.backing.offset(start) / FRAME_SIZE;
                found = Some((vma.backing.tag(), first..first + (last - start) / FRAME_SIZE, last));
            }
            !is_over && found.is_none()
        });
        let Some((tag, pages, next)) = found else { return Ok(()) };
        at = next;
        if let Some(contents) = contents::find_stored(tag) {
            write_back(thread, &contents, Writeback::complete(pages)).await?;
            contents.flush_mapped()?;
        }
    }
    Ok(())
}

/// Implements `fadvise64`. Advice on files in memory has no effect.
pub async fn advise(thread: &Arc<Thread>, fd: u64, offset: u64, len: u64, advice: u64) -> Answer {
    let open = open_of(thread, fd)?;
    if open.flags() & abi::O_PATH != 0 {
        return Err(Errno::EBADF);
    }
    match open.inode().kind() {
        Kind::Fifo => return Err(Errno::ESPIPE),
        _ if (len as i64) < 0 || advice > 5 => return Err(Errno::EINVAL),
        _ => {}
    }
    let Some((contents, opener)) = stored(&open) else { return Ok(0) };
    let end = if len == 0 { u64::MAX } else { offset.saturating_add(len) };
    match advice as u32 {
        abi::POSIX_FADV_NORMAL => contents.expect(opener, Expected::Unknown),
        abi::POSIX_FADV_SEQUENTIAL => contents.expect(opener, Expected::Sequential),
        abi::POSIX_FADV_RANDOM => contents.expect(opener, Expected::Random),
        abi::POSIX_FADV_WILLNEED => contents.will_need(offset..end)?,
        abi::POSIX_FADV_DONTNEED => {
            let whole = offset.div_ceil(FRAME_SIZE)..end / FRAME_SIZE;
            write_back(thread, contents, Writeback::start(whole.clone())).await?;
            contents.drop_clean(whole);
        }
        _ => {}
    }
    Ok(0)
}

/// Implements `readahead`.
pub fn readahead(thread: &Thread, fd: u64, offset: u64, len: u64) -> Answer {
    let open = open_of(thread, fd)?;
    let kind = open.inode().kind();
    if kind == Kind::Directory && open.flags() & abi::O_PATH == 0 {
        return Err(Errno::EINVAL);
    }
    open.readable()?;
    match stored(&open) {
        Some((contents, _)) => contents.will_need(offset..offset.saturating_add(len)).map(|()| 0),
        None if object_of(&open).is_some() => Ok(0),
        None => Err(Errno::EINVAL),
    }
}
