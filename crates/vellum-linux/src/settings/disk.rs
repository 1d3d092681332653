//! A disk in memory with an ext4 file system, for a benchmark.
//!
//! The file system is mounted in a mount namespace of the helper process that makes it: no other
//! process sees the mount, and it is gone when the helper is. The benchmark reaches its files by
//! the helper's root directory in `/proc`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::zram::{self, Device};
use crate::Skip;
use crate::workload::files::WINDOW;

/// The directory that the file system covers, in the helper's namespace only.
const MOUNTED_ON: &str = "/mnt";

/// Checks that a disk can be made.
///
/// # Errors
/// The kernel has no zram, this user may not set it up, or `mke2fs` is not installed.
pub fn available() -> Result<(), Skip> {
    zram::available()?;
    let found = Command::new("mke2fs").arg("-V").output().is_ok_and(|output| output.status.success());
    if found { Ok(()) } else { Err(Skip::NotInstalled { program: "mke2fs", package: "e2fsprogs" }) }
}

/// A disk whose file system is mounted. Dropping it removes both.
pub struct Disk {
    device: Device,
    mounted: bool,
}

impl Disk {
    /// Makes a disk of `bytes`, whose files are read ahead in windows of at most [`WINDOW`].
    ///
    /// # Errors
    /// A step failed; what was made is removed.
    pub fn set_up(bytes: u64) -> anyhow::Result<Disk> {
        let mut disk = Disk { device: Device::add(bytes)?, mounted: false };
        disk.device.write("queue/read_ahead_kb", &(WINDOW >> 10).to_string())?;
        // Without a journal, which the kernel's fastest figures need: a benchmark's disk is not
        // mounted again after a crash.
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-t", "ext4", "-O", "^has_journal"]).arg(disk.device.path());
        let made = mke2fs.output().context("mke2fs")?;
        ensure!(made.status.success(), "mke2fs: {}", String::from_utf8_lossy(&made.stderr).trim());
        // SAFETY: the flag concerns the mount namespace and the file system context, no memory and
        // no file descriptors.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.context("unshare")?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).context("mount /")?;
        mount(disk.device.path(), MOUNTED_ON, "ext4", MountFlags::NOATIME, None)
            .with_context(|| format!("mount {MOUNTED_ON}"))?;
        disk.mounted = true;
        Ok(disk)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mut mounted = self.mounted;
        self.device.remove_after(|| {
            if mounted {
                unmount(MOUNTED_ON, UnmountFlags::empty()).context("umount")?;
                mounted = false;
            }
            Ok(())
        });
    }
}

/// Returns the directory of the file system's root, for other processes. `helper` is the process
/// that made the disk.
pub fn root_of(helper: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{helper}/root{MOUNTED_ON}"))
}
