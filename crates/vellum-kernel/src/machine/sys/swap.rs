//! Implements `swapon` and `swapoff`.

use super::{Answer, path};
use crate::mem::swap::{self, Store};
use crate::task::Thread;
use linux_raw_sys::general::CAP_SYS_ADMIN;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Kind;

/// `SWAP_FLAG_PREFER`: the flags contain a priority.
const PREFER: u64 = 0x8000;
/// `SWAP_FLAG_PRIO_MASK`: the priority.
const PRIORITY: u64 = 0x7fff;
/// The `SWAP_FLAG_DISCARD` flags. Accepted without effect: the device frees unused space by itself.
const DISCARD: u64 = 0x70000;

/// Implements `swapon`.
pub fn on(thread: &Thread, name: u64, flags: u64) -> Answer {
    if flags & !(PREFER | PRIORITY | DISCARD) != 0 {
        return Err(Errno::EINVAL);
    }
    let priority = (flags & PREFER != 0).then_some((flags & PRIORITY) as i16);
    find(thread, name)?.on(priority).map(|()| 0)
}

/// Implements `swapoff`.
pub fn off(thread: &Thread, name: u64) -> Answer {
    find(thread, name)?.off().map(|()| 0)
}

/// Returns the swap device whose block special file is at the path `name`. Needs `CAP_SYS_ADMIN`.
fn find(thread: &Thread, name: u64) -> Result<&'static Store, Errno> {
    thread.credentials().needs(CAP_SYS_ADMIN)?;
    let meta = path::inode_at(thread, path::HERE, name, 0, 0)?.meta();
    swap::find(meta.special).filter(|_| meta.kind == Kind::Block).ok_or(Errno::EINVAL)
}
