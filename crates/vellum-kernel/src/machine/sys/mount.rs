//! Implements `mount` and `umount2`.

use super::{Answer, program};
use crate::files::kinds::Mounting;
use crate::files::{self, kinds, mount, writeback};
use crate::task::Thread;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::names::LONGEST_PATH;

/// The flags of mount propagation. There is one mount namespace, so they have no effect.
const PROPAGATION: u32 = abi::MS_SHARED | abi::MS_PRIVATE | abi::MS_SLAVE | abi::MS_UNBINDABLE;

fn string(thread: &Thread, at: u64) -> Result<Vec<u8>, Errno> {
    if at == 0 { Ok(Vec::new()) } else { program::read_string(&thread.memory(), at, LONGEST_PATH) }
}

/// Implements `mount`: mounts a file system by its type, or remounts one read-only or writable.
pub async fn mount(thread: &Arc<Thread>, [source, on, kind, flags, options, _]: [u64; 6]) -> Answer {
    let own = thread.credentials();
    own.needs(abi::CAP_SYS_ADMIN)?;
    let on = program::read_string(&thread.memory(), on, LONGEST_PATH)?;
    let flags = flags as u32;
    let read_only = flags & abi::MS_RDONLY != 0;
    // The device has all that programs wrote to its file before it is mounted.
    if flags & (abi::MS_REMOUNT | PROPAGATION) == 0 && string(thread, kind)? == b"ext4" {
        writeback::write_all().await;
    }
    files::view(&thread.files(), &own.file_credentials(), abi::AT_FDCWD, on.first() == Some(&b'/'), |view| {
        if flags & abi::MS_REMOUNT != 0 {
            return view.names.set_read_only(&view.get(&on, true)?, read_only);
        }
        if flags & PROPAGATION != 0 {
            return view.get(&on, true).map(drop);
        }
        if flags & (abi::MS_BIND | abi::MS_MOVE) != 0 {
            return Err(Errno::EINVAL);
        }
        let (source, kind, options) = (string(thread, source)?, string(thread, kind)?, string(thread, options)?);
        kinds::mount(&view, &Mounting { source: &source, on: &on, kind: &kind, options: &options, read_only })
    })?;
    Ok(0)
}

/// Implements `umount2`.
pub async fn unmount(thread: &Arc<Thread>, on: u64, flags: u64) -> Answer {
    let flags = flags as u32;
    let known = abi::MNT_FORCE | abi::MNT_DETACH | abi::UMOUNT_NOFOLLOW;
    if flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    let own = thread.credentials();
    own.needs(abi::CAP_SYS_ADMIN)?;
    let on = program::read_string(&thread.memory(), on, LONGEST_PATH)?;
    let (follow, anyway) = (flags & abi::UMOUNT_NOFOLLOW == 0, flags & abi::MNT_DETACH != 0);
    let root =
        files::view(&thread.files(), &own.file_credentials(), abi::AT_FDCWD, on.first() == Some(&b'/'), |view| {
            mount::unmount(&view, &on, follow, anyway)
        })?;
    if let Some(root) = root {
        mount::end(root).await?;
    }
    Ok(0)
}
