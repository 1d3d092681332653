//! Unmounts file systems and lists the mount table.

use super::{ext4, from_root, writeback};
use crate::mem::now_ns;
use crate::mem::space::UserSpace;
use crate::task::process as processes;
use crate::task::time;
use alloc::string::String;
use alloc::sync::Arc;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Inode;
use vellum_kernel::fs::meta::Device;
use vellum_kernel::fs::names::{Mount, View};

/// Returns true if a file system is busy: a process has its current directory or an open file
/// there, or another file system is mounted on it.
fn is_used(view: &View, device: Device) -> bool {
    let of = |inode: &Arc<dyn Inode>| inode.meta().device == device;
    view.names.mounts().iter().any(|mount| of(&mount.on))
        || processes::all().any(|process| {
            if process.memory.lock().as_ref().is_some_and(|memory| maps(memory.space(), device)) {
                return true;
            }
            let Some(files) = process.files.lock().clone() else { return false };
            let current = files.current.lock().clone();
            let table = files.table.lock();
            let mut open = core::iter::successors(table.next(0), |(number, _)| table.next(number + 1));
            of(&current) || open.any(|(_, slot)| of(slot.open.inode()))
        })
}

/// Returns true if a program has a file of a file system mapped.
fn maps(memory: &UserSpace, device: Device) -> bool {
    let mut found = false;
    memory.engine.vmas(0, |vma| {
        found |= memory.mapped(vma.backing.tag()).is_some_and(|file| file.device == device);
        !found
    });
    found
}

/// Unmounts the file system mounted on a directory. Returns its root, for the caller to end its use
/// ([`end`]). With `anyway` (`MNT_DETACH`), a busy one is detached and stays alive for its users:
/// `None`.
///
/// # Errors
///
/// `EINVAL`: nothing is mounted there. `EBUSY`.
pub fn unmount(view: &View, path: &[u8], follow: bool, anyway: bool) -> Result<Option<Arc<dyn Inode>>, Errno> {
    let root = view.get(path, follow)?;
    let is_used = is_used(view, root.meta().device);
    if is_used && !anyway {
        return Err(Errno::EBUSY);
    }
    view.names.unmount(&root)?;
    Ok((!is_used).then_some(root))
}

/// The time for which the end of a file system waits for files without names, which requests for
/// their pages and ending processes keep, in nanoseconds; and the time between two attempts.
const PATIENCE: u64 = 10_000_000_000;
const PAUSE: u64 = 10_000_000;

/// Ends the use of a file system that was unmounted: its disk has everything then.
///
/// # Errors
///
/// `EBUSY`: a file is in use all the time. Its file system ends with the machine. `EIO`.
pub async fn end(root: Arc<dyn Inode>) -> Result<(), Errno> {
    let device = root.meta().device;
    if ext4::is_mounted(device) {
        writeback::write_all().await;
    }
    // The end of its inodes frees the files that have no name.
    drop(root);
    let last = now_ns() + PATIENCE;
    loop {
        match ext4::end(device) {
            Err(Errno::EBUSY) if now_ns() < last => time::until(now_ns() + PAUSE).await,
            ended => return ended,
        }
    }
}

/// Returns the path of a mount point.
pub fn path(view: &View, mount: &Mount) -> String {
    let path = view.names.path_of(&mount.root, view.root).unwrap_or_default();
    String::from_utf8_lossy(&path).into_owned()
}

/// Calls `tell` for each mount, the root's first: source, path, type, device, and `ro` or `rw`.
pub fn each(mut tell: impl FnMut(&str, &str, &str, Device, &str) -> core::fmt::Result) -> core::fmt::Result {
    from_root(|view| {
        tell("none", "/", super::root_kind(), view.root.meta().device, "rw")?;
        for mount in view.names.mounts() {
            let (source, path) = (String::from_utf8_lossy(&mount.source), path(&view, &mount));
            let rights = if mount.read_only { "ro" } else { "rw" };
            tell(&source, &path, mount.kind, mount.root.meta().device, rights)?;
        }
        Ok(())
    })
}
