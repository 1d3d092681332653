//! `swapon` and `swapoff`.

use super::{Answer, path};
use crate::mem::swap;
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
    find(thread, name)?;
    let priority = if flags & PREFER != 0 { (flags & PRIORITY) as i16 } else { swap::USUAL };
    swap::on(priority).map(|()| 0)
}

/// `swapoff`.
pub fn off(thread: &Thread, name: u64) -> Answer {
    find(thread, name)?;
    swap::off().map(|()| 0)
}

/// A path is that of the device.
fn find(thread: &Thread, name: u64) -> Result<(), Errno> {
    thread.credentials().needs(CAP_SYS_ADMIN)?;
    let meta = path::inode_at(thread, path::HERE, name, 0, 0)?.meta();
    if meta.kind == Kind::Block && meta.special == swap::NUMBER { Ok(()) } else { Err(Errno::EINVAL) }
}
