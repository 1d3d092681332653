//! `swapon` and `swapoff`.

use super::{Answer, path};
use crate::mem::swap::{self, Store};
use crate::task::Thread;
use linux_raw_sys::general::CAP_SYS_ADMIN;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Kind;

/// A priority is given.
const PREFER: u64 = 0x8000;
/// It.
const PRIORITY: u64 = 0x7fff;
/// What is to be forgotten by the device, and when: ours forgets by itself.
const DISCARD: u64 = 0x70000;

/// `swapon`.
pub fn on(thread: &Thread, name: u64, flags: u64) -> Answer {
    if flags & !(PREFER | PRIORITY | DISCARD) != 0 {
        return Err(Errno::EINVAL);
    }
    let priority = (flags & PREFER != 0).then_some((flags & PRIORITY) as i16);
    find(thread, name)?.on(priority).map(|()| 0)
}

/// `swapoff`.
pub fn off(thread: &Thread, name: u64) -> Answer {
    find(thread, name)?.off().map(|()| 0)
}

/// What has its file at a path.
fn find(thread: &Thread, name: u64) -> Result<&'static Store, Errno> {
    thread.credentials().needs(CAP_SYS_ADMIN)?;
    let meta = path::inode_at(thread, path::HERE, name, 0, 0)?.meta();
    swap::find(meta.special).filter(|_| meta.kind == Kind::Block).ok_or(Errno::EINVAL)
}
