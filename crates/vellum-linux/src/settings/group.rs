//! A control group of the benchmark's own, whose memory it has the kernel take back.
//!
//! There are two versions of groups: `memory.reclaim` takes so many bytes, `memory.force_empty` (of
//! the first version) as much as can be had. What must be kept is not swapped out meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use crate::Skip;

/// How often it is tried to remove one whose processes are about to end.
const TRIES: usize = 200;

/// What is called how in a version.
struct Version {
    root: &'static str,
    reclaim: &'static str,
    no_swap: &'static str,
    /// Where memory has to be turned on for groups.
    control: Option<&'static str>,
}

const VERSIONS: [Version; 2] = [
    Version {
        root: "/sys/fs/cgroup",
        reclaim: "memory.reclaim",
        no_swap: "memory.swap.max",
        control: Some("/sys/fs/cgroup/cgroup.subtree_control"),
    },
    Version {
        root: "/sys/fs/cgroup/memory",
        reclaim: "memory.force_empty",
        no_swap: "memory.swappiness",
        control: None,
    },
];

fn version() -> Option<&'static Version> {
    VERSIONS.iter().find(|version| Path::new(version.root).join("cgroup.procs").exists())
}

/// Whether one can be had.
pub fn available() -> Result<(), Skip> {
    if version().is_none() {
        return Err(Skip::Missing("control groups"));
    }
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(Skip::NotRoot("make a control group")) }
}

/// Where the group of this name is.
fn path(name: &str) -> anyhow::Result<PathBuf> {
    Ok(Path::new(version().context("no control groups")?.root).join(name))
}

/// A group. Dropping it removes it, once its processes have ended.
pub struct Group {
    path: PathBuf,
    /// Where memory was turned on for it.
    controlled: Option<&'static str>,
}

impl Group {
    /// Makes one.
    pub fn make(name: &str) -> anyhow::Result<Group> {
        let version = version().context("no control groups")?;
        let off =
            |control: &&str| fs::read_to_string(control).is_ok_and(|on| !on.split_whitespace().any(|c| c == "memory"));
        let controlled = version.control.filter(off);
        if let Some(control) = controlled {
            fs::write(control, "+memory").context(control)?;
        }
        let group = Group { path: path(name)?, controlled };
        fs::create_dir(&group.path).with_context(|| group.path.display().to_string())?;
        // A kernel without swap has no such file.
        let _ = fs::write(group.path.join(version.no_swap), "0");
        anyhow::ensure!(group.path.join(version.reclaim).exists(), "this kernel has no {}", version.reclaim);
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            if fs::remove_dir(&self.path).is_ok() || !self.path.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Some(control) = self.controlled {
            let _ = fs::write(control, "-memory");
        }
    }
}

/// Puts this process into a group.
pub fn join(name: &str) -> anyhow::Result<()> {
    let file = path(name)?.join("cgroup.procs");
    fs::write(&file, "0").with_context(|| file.display().to_string())
}

/// Has a group give back so many bytes, or as much as it can.
pub fn reclaim(name: &str, bytes: u64) -> anyhow::Result<()> {
    let file = path(name)?.join(version().context("no control groups")?.reclaim);
    match fs::write(&file, bytes.to_string()) {
        // It got less than it was asked for.
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(()),
        result => result.with_context(|| file.display().to_string()),
    }
}
