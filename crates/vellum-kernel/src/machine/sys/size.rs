//! Implements the system calls that set the size of a file, or give and take its storage:
//! `truncate`, `fallocate`.

use super::Answer;
use super::file::{object_of, open_of};
use super::path::{HERE, named_at, view};
use super::pieces::{by_pieces, may_go_on};
use super::transfer::may_resize;
use crate::files::contents::{self, Held};
use crate::mem::Object;
use crate::task::Thread;
use alloc::sync::Arc;
use core::pin::pin;
use linux_raw_sys::general as abi;
use vellum::addr::FRAME_SIZE;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::write_access::Writing;
use vellum_kernel::fs::{File, Kind, Pages};

/// Implements `ftruncate`.
pub async fn ftruncate(thread: &Arc<Thread>, fd: u64, size: u64) -> Answer {
    let open = open_of(thread, fd)?;
    if size > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    let file = open.writable().map_err(|_| Errno::EINVAL)?;
    if open.inode().kind() != Kind::Regular {
        return Err(Errno::EINVAL);
    }
    may_resize(thread, &**open.inode(), size)?;
    resize(thread, &**file, size, || open.truncate(size)).await?;
    open.notify(abi::IN_MODIFY);
    Ok(0)
}

/// Implements `truncate`.
pub async fn truncate(thread: &Arc<Thread>, name: u64, size: u64) -> Answer {
    if size > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    let named = named_at(thread, HERE, name, 0, 0)?;
    let inode = &named.inode;
    view(thread, |view| view.may_truncate(&**inode))?;
    may_resize(thread, &**inode, size)?;
    let _writing = Writing::begin(inode)?;
    let file = inode.clone().open(abi::O_WRONLY)?;
    resize(thread, &*file, size, || inode.truncate(size)).await?;
    named.notify(abi::IN_MODIFY);
    Ok(0)
}

/// Sets the size of a regular file by `set`, while nothing else writes to the file. The storage of
/// a file that becomes smaller is prepared first.
///
/// # Errors
///
/// Those of `set`; `EIO`, `ENOMEM`. `EINTR`: the thread is being killed.
async fn resize(
    thread: &Arc<Thread>,
    file: &dyn File,
    size: u64,
    set: impl FnOnce() -> Result<(), Errno>,
) -> Result<(), Errno> {
    let _guard = match file.write_lock() {
        Some(lock) => Some(thread.killable(pin!(lock.lock())).await?),
        None => None,
    };
    if let Some((contents, _)) = file.pages().and_then(|pages| contents::stored(&**pages))
        && size < contents.size()
    {
        by_pieces(thread, || contents.begin_cut(size).map(|()| true)).await?;
        contents.end_cut(size).await;
    }
    set()
}

/// Implements `fallocate`.
pub async fn fallocate(thread: &Arc<Thread>, fd: u64, mode: u64, offset: u64, len: u64) -> Answer {
    const KEEPS_SIZE: u64 = 1;
    const SHIFTS: u64 = (abi::FALLOC_FL_COLLAPSE_RANGE | abi::FALLOC_FL_INSERT_RANGE) as u64;
    let open = open_of(thread, fd)?;
    open.writable()?;
    if mode & (KEEPS_SIZE | SHIFTS) == 0 {
        may_resize(thread, &**open.inode(), offset.saturating_add(len))?;
    }
    // The file's write lock is held across the pieces, so that no write comes between them.
    let _guard = thread.killable(open.lock_writes()).await?;
    let mut done = 0;
    let mut allocate = || open.allocate(mode as u32, offset as i64, len as i64, &mut done);
    if mode & SHIFTS != 0
        && let Some(object) = object_of(&open)
    {
        shift(thread, &object, offset / FRAME_SIZE, allocate).await?;
        open.notify(abi::IN_MODIFY);
        return Ok(0);
    }
    let piece = || {
        while !allocate()? {
            if !may_go_on(thread) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    by_pieces(thread, piece).await?;
    open.notify(abi::IN_MODIFY);
    Ok(0)
}

/// Calls `allocate` until it has moved the bytes of a file from page `first` on, whose object this
/// is: until no page that loses its bytes is in memory. Programs wait for these pages meanwhile.
///
/// # Errors
///
/// Those of `allocate`, and of [`Held::new`]. `EINTR`: the thread is being killed.
async fn shift(
    thread: &Arc<Thread>,
    object: &Object,
    first: u64,
    mut allocate: impl FnMut() -> Result<bool, Errno>,
) -> Result<(), Errno> {
    let mut held = None;
    loop {
        let mut is_done = false;
        let piece = || {
            is_done = allocate()?;
            Ok(true)
        };
        by_pieces(thread, piece).await?;
        if is_done {
            return Ok(());
        }
        // The call is known to be right.
        let pages = match &mut held {
            Some(pages) => pages,
            none => none.insert(Held::new(object, first)?),
        };
        thread.killable(pin!(pages.empty())).await?;
    }
}
