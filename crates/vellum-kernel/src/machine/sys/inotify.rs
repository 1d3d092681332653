//! Implements `inotify`: events of files and directories.

use super::path::{HERE, inode_at};
use super::{Answer, file};
use crate::task::Thread;
use linux_raw_sys::general as abi;
use vellum_kernel::credentials::id_index;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::meta::Access;
use vellum_kernel::fs::notify::watch::Instance;
use vellum_kernel::fs::{Open, device};

/// The flags of a request that concern the path.
const OF_PATH: u32 = abi::IN_ONLYDIR | abi::IN_DONT_FOLLOW;
/// The flags of a request that concern the watch.
const OF_WATCH: u32 = abi::IN_EXCL_UNLINK | abi::IN_MASK_CREATE | abi::IN_MASK_ADD | abi::IN_ONESHOT;
/// The bits that a request may have, though they have no effect.
const REPORTED: u32 = abi::IN_UNMOUNT | abi::IN_Q_OVERFLOW | abi::IN_IGNORED | abi::IN_ISDIR;

/// Implements `inotify_init1`, and `inotify_init` without `flags`.
pub fn init(thread: &Thread, flags: u64) -> Answer {
    let flags = flags as u32;
    if flags & !(abi::IN_CLOEXEC | abi::IN_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let instance = Instance::new(thread.credentials().uids[id_index::EFFECTIVE])?;
    file::add(thread, device::open(instance, abi::O_RDONLY | flags & abi::O_NONBLOCK), flags)
}

fn instance_of(open: &Open) -> Result<&Instance, Errno> {
    open.file()?.as_any().downcast_ref().ok_or(Errno::EINVAL)
}

/// Implements `inotify_add_watch`.
pub fn add_watch(thread: &Thread, fd: u64, path: u64, mask: u64) -> Answer {
    let mask = mask as u32;
    if mask == 0 || mask & !(abi::IN_ALL_EVENTS | OF_PATH | OF_WATCH | REPORTED) != 0 {
        return Err(Errno::EINVAL);
    }
    let open = file::open_of(thread, fd)?;
    if mask & abi::IN_MASK_ADD != 0 && mask & abi::IN_MASK_CREATE != 0 {
        return Err(Errno::EINVAL);
    }
    let instance = instance_of(&open)?;
    let inode = inode_at(thread, HERE, path, u64::from(mask & abi::IN_DONT_FOLLOW), abi::IN_DONT_FOLLOW)?;
    let meta = inode.meta();
    if mask & abi::IN_ONLYDIR != 0 && inode.directory().is_none() {
        return Err(Errno::ENOTDIR);
    }
    thread.credentials().file_credentials().may(meta.rights(), Access::READ)?;
    // File systems of the kernel report no events; a watch of their files waits for ever.
    let watches = inode.watches(true).cloned().unwrap_or_default();
    instance.add(&watches, [meta.inode, meta.device.number()], mask).map(|number| number as u64)
}

/// Implements `inotify_rm_watch`.
pub fn remove_watch(thread: &Thread, fd: u64, number: u64) -> Answer {
    let open = file::open_of(thread, fd)?;
    instance_of(&open)?.remove(number as i32).map(|()| 0)
}
