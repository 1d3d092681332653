//! A memcg for a benchmark, whose memory the kernel reclaims on request.
//!
//! With cgroup v2, `memory.reclaim` reclaims a number of bytes; with v1, `memory.force_empty`
//! reclaims as much as possible. Swap is disabled for the memcg, so that pages that are not
//! lazyfree stay in memory, and are not swapped out.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use crate::Skip;

/// The most attempts to remove the memcg, 10 ms apart. They fail until its processes have ended.
const TRIES: usize = 200;

/// The file names of a cgroup version.
struct Version {
    root: &'static str,
    reclaim: &'static str,
    no_swap: &'static str,
    /// The file that enables the memory controller.
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

/// Checks that a memcg can be made.
///
/// # Errors
/// The kernel has no memcgs, or this user may not make one.
pub fn available() -> Result<(), Skip> {
    if version().is_none() {
        return Err(Skip::Missing("control groups"));
    }
    if rustix::process::geteuid().is_root() { Ok(()) } else { Err(Skip::NotRoot("make a control group")) }
}

/// Returns the path of the memcg with this name.
fn path(name: &str) -> anyhow::Result<PathBuf> {
    Ok(Path::new(version().context("no control groups")?.root).join(name))
}

/// A memcg. Dropping it waits until its processes have ended, for two seconds at most, and removes
/// it. The memcg stays if a process in it lives longer.
pub struct Memcg {
    path: PathBuf,
    /// The file in which this value enabled the memory controller, to disable it again when
    /// dropped.
    controlled: Option<&'static str>,
}

impl Memcg {
    /// Makes a memcg.
    ///
    /// # Errors
    /// A step failed; the memcg is removed.
    pub fn make(name: &str) -> anyhow::Result<Memcg> {
        let version = version().context("no control groups")?;
        let off =
            |control: &&str| fs::read_to_string(control).is_ok_and(|on| !on.split_whitespace().any(|c| c == "memory"));
        let controlled = version.control.filter(off);
        if let Some(control) = controlled {
            fs::write(control, "+memory").context(control)?;
        }
        let memcg = Memcg { path: path(name)?, controlled };
        fs::create_dir(&memcg.path).with_context(|| memcg.path.display().to_string())?;
        // Ignore an error: a kernel without swap has no such file.
        let _ = fs::write(memcg.path.join(version.no_swap), "0");
        anyhow::ensure!(memcg.path.join(version.reclaim).exists(), "this kernel has no {}", version.reclaim);
        Ok(memcg)
    }
}

impl Drop for Memcg {
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

/// Moves this process into a memcg.
///
/// # Errors
/// The file can't be written.
pub fn join(name: &str) -> anyhow::Result<()> {
    let file = path(name)?.join("cgroup.procs");
    fs::write(&file, "0").with_context(|| file.display().to_string())
}

/// Reclaims `bytes` from a memcg, or as much as possible.
///
/// # Errors
/// The file can't be written.
pub fn reclaim(name: &str, bytes: u64) -> anyhow::Result<()> {
    let file = path(name)?.join(version().context("no control groups")?.reclaim);
    match fs::write(&file, bytes.to_string()) {
        // The kernel reclaimed less than requested, which the caller checks by itself.
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(()),
        result => result.with_context(|| file.display().to_string()),
    }
}
