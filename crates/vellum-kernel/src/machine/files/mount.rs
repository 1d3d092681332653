//! Mounting: the file systems that there are, and where they are.

use super::{Host, cgroupfs, from_root, proc, sys};
use crate::task::process as processes;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Inode;
use vellum_kernel::fs::meta::Device;
use vellum_kernel::fs::names::{Mount, View};
use vellum_kernel::fs::tmpfs::Tmpfs;
use vellum_kernel::written;

/// A file system by the name that `mount` knows it by: its root directory. Of those in memory a new one, with a root of this
/// mode; of the kernel's own there is one of each.
fn root(kind: &[u8], mode: u32) -> Result<(Arc<dyn Inode>, &'static str), Errno> {
    /// From here on are numbers of devices for file systems in memory.
    static MINORS: AtomicU32 = AtomicU32::new(30);
    match kind {
        b"proc" => Ok((proc::root()?, "proc")),
        b"sysfs" => Ok((sys::root()?, "sysfs")),
        b"cgroup2" => Ok((cgroupfs::root()?, "cgroup2")),
        b"tmpfs" => Ok((Tmpfs::root(Arc::new(Host), MINORS.fetch_add(1, Relaxed), mode), "tmpfs")),
        _ => Err(Errno::ENODEV),
    }
}

/// Mounts what is there from the start.
///
/// # Errors
///
/// `ENOMEM`, and those of looking for the directories.
pub fn init(view: &View) -> Result<(), Errno> {
    let first: [(&[u8], &[u8]); 3] = [(b"proc", b"/proc"), (b"sysfs", b"/sys"), (b"cgroup2", b"/sys/fs/cgroup")];
    first.iter().try_for_each(|(kind, on)| mount(view, kind, on, kind, b"", false))
}

/// Mounts a file system of a kind on a directory. Of the options one counts, `mode=`; there is no limit to the size of a file
/// system but memory's.
///
/// # Errors
///
/// `ENODEV`: no such kind. `EINVAL`: bad options. Those of looking for the directory, and of mounting there.
pub fn mount(view: &View, source: &[u8], on: &[u8], kind: &[u8], options: &[u8], read_only: bool) -> Result<(), Errno> {
    let on = view.get(on, true)?;
    let (root, kind) = root(kind, written::mode(options)?.unwrap_or(0o1777))?;
    view.names.mount(Mount { on, root, kind, source: source.into(), read_only })
}

/// Whether anybody is in a file system, or has a file of it open, or something is mounted there.
fn is_used(view: &View, device: Device) -> bool {
    let of = |inode: &Arc<dyn Inode>| inode.meta().device == device;
    view.names.mounts().iter().any(|mount| of(&mount.on))
        || processes::all().any(|process| {
            let Some(files) = process.files.lock().clone() else { return false };
            let current = files.current.lock().clone();
            let table = files.table.lock();
            let mut open = core::iter::successors(table.next(0), |(number, _)| table.next(number + 1));
            of(&current) || open.any(|(_, slot)| of(slot.open.inode()))
        })
}

/// Unmounts what is mounted on a directory, if nobody uses it, or else, with `anyway`, out of the sight of those who don't.
///
/// # Errors
///
/// `EINVAL`: nothing is mounted there. `EBUSY`.
pub fn unmount(view: &View, path: &[u8], follow: bool, anyway: bool) -> Result<(), Errno> {
    let root = view.get(path, follow)?;
    if !anyway && is_used(view, root.meta().device) {
        return Err(Errno::EBUSY);
    }
    view.names.unmount(&root).map(drop)
}

/// Where something is mounted.
pub fn path(view: &View, mount: &Mount) -> String {
    let path = view.names.path_of(&mount.root, view.root).unwrap_or_default();
    String::from_utf8_lossy(&path).into_owned()
}

/// Every mount, the root's first: source, path, kind, device, and whether it is read-only.
pub fn each(mut tell: impl FnMut(&str, &str, &str, Device, &str) -> core::fmt::Result) -> core::fmt::Result {
    from_root(|view| {
        tell("none", "/", "tmpfs", view.root.meta().device, "rw")?;
        for mount in view.names.mounts() {
            let (source, path) = (String::from_utf8_lossy(&mount.source), path(&view, &mount));
            let rights = if mount.read_only { "ro" } else { "rw" };
            tell(&source, &path, mount.kind, mount.root.meta().device, rights)?;
        }
        Ok(())
    })
}
