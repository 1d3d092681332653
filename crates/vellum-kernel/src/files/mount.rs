//! The file systems that there are from the start, and where they are mounted.

use super::{groups, proc, sys};
use alloc::string::String;
use alloc::sync::Arc;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Inode;
use vellum_kernel::fs::names::{Mount, View};

/// A file system by the name that `mount` knows it by: its root directory. Those of the kernel's own there is one of.
///
/// # Errors
///
/// `ENODEV`: there is no such kind. `ENOMEM`.
fn root(kind: &str) -> Result<(Arc<dyn Inode>, &'static str), Errno> {
    match kind {
        "proc" => Ok((proc::root()?, "proc")),
        "sysfs" => Ok((sys::root()?, "sysfs")),
        "cgroup2" => Ok((groups::root()?, "cgroup2")),
        _ => Err(Errno::ENODEV),
    }
}

/// Mounts what is there from the start.
///
/// # Errors
///
/// `ENOMEM`, and those of looking for the directories.
pub fn init(view: &View) -> Result<(), Errno> {
    for (kind, on) in [("proc", b"/proc".as_slice()), ("sysfs", b"/sys"), ("cgroup2", b"/sys/fs/cgroup")] {
        let (root, kind) = root(kind)?;
        view.names.mount(view.get(on, true)?, root, kind)?;
    }
    Ok(())
}

/// Where something is mounted.
pub fn path(view: &View, mount: &Mount) -> String {
    let path = view.names.path_of(&mount.root, view.root).unwrap_or_default();
    String::from_utf8_lossy(&path).into_owned()
}
