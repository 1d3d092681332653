//! Finds the processes to inspect.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use vellum_pagemap::{SurveyError, Target, Unreadable, parent};

use super::Args;
use super::extension::Extension;

/// The processes to inspect, each opened, or with the error of opening it.
pub struct Targets {
    pub processes: Vec<Result<Target, SurveyError>>,
    /// True if the processes were found by a search, and not given by PID.
    found: bool,
}

impl Targets {
    /// Returns whether to list the processes, rather than report on each.
    pub fn is_list(&self) -> bool {
        self.found
    }
}

/// Returns the processes that the arguments select.
///
/// # Errors
/// `/proc` or the cgroup can't be read.
pub fn find<X: Extension>(args: &Args<X>) -> anyhow::Result<Targets> {
    let open = |pid| Target::open(pid).map_err(SurveyError::from);
    if let Some(path) = &args.cgroup {
        let mut pids = BTreeSet::new();
        let folder = cgroup_path(path)?;
        members(&folder, &mut pids).with_context(|| format!("{} can't be read", folder.display()))?;
        return Ok(Targets { processes: pids.into_iter().map(open).collect(), found: true });
    }
    if args.all {
        let all = procfs::process::all_processes().context("/proc can't be read")?;
        let processes = all.flatten().map(|process| open(process.pid));
        // Leave out processes without memory, without an error.
        let absent = |one: &Result<Target, SurveyError>| {
            use Unreadable::{Gone, KernelThread, Zombie};
            matches!(one, Err(SurveyError::Unreadable(Gone(_) | KernelThread(_) | Zombie(_))))
        };
        return Ok(Targets { processes: processes.filter(|one| !absent(one)).collect(), found: true });
    }
    if args.children {
        let mut pids: BTreeSet<i32> = args.pids.iter().copied().collect();
        let parents = parents()?;
        // Repeat until nothing is added: PIDs wrap around, so a child's PID may be smaller than its
        // parent's.
        while parents.iter().any(|(pid, parent)| pids.contains(parent) && pids.insert(*pid)) {}
        return Ok(Targets { processes: pids.into_iter().map(open).collect(), found: true });
    }
    Ok(Targets { processes: args.pids.iter().copied().map(open).collect(), found: false })
}

/// Returns the PID of each process and of its parent.
fn parents() -> anyhow::Result<Vec<(i32, i32)>> {
    let all = procfs::process::all_processes().context("/proc can't be read")?;
    Ok(all.flatten().filter_map(|process| Some((process.pid, parent(&process).ok()?))).collect())
}

/// Returns the path of a cgroup, which may be given as in `/proc/PID/cgroup`.
fn cgroup_path(path: &Path) -> anyhow::Result<std::path::PathBuf> {
    let below = Path::new("/sys/fs/cgroup").join(path.strip_prefix("/").unwrap_or(path));
    let memory = Path::new("/sys/fs/cgroup/memory").join(path.strip_prefix("/").unwrap_or(path));
    for place in [path.to_owned(), below, memory] {
        if place.join("cgroup.procs").exists() {
            return Ok(place);
        }
    }
    bail!("there is no cgroup {}, as a path or below /sys/fs/cgroup", path.display())
}

/// Adds the PIDs of a cgroup and its descendants.
fn members(folder: &Path, pids: &mut BTreeSet<i32>) -> std::io::Result<()> {
    let text = fs::read_to_string(folder.join("cgroup.procs"))?;
    pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Ignore an error: a cgroup that is removed during the search has no members.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && entry.path().join("cgroup.procs").exists() {
            let _ = members(&entry.path(), pids);
        }
    }
    Ok(())
}

/// Prints why processes could not be inspected, and returns the exit code.
pub fn report_failures(failures: &[SurveyError], several: bool) -> ExitCode {
    let (mut hidden, mut ended) = (0, 0);
    for failure in failures {
        match failure {
            SurveyError::Unreadable(Unreadable::Denied(_)) if several => hidden += 1,
            SurveyError::Unreadable(Unreadable::Gone(_) | Unreadable::Zombie(_)) if several => ended += 1,
            failure => eprintln!("vellum: {failure}"),
        }
    }
    if hidden > 0 {
        eprintln!("vellum: {hidden} processes of other users were not inspected: that needs root (CAP_SYS_PTRACE)");
    }
    if ended > 0 {
        eprintln!("vellum: {ended} processes ended before they could be inspected");
    }
    if !several && !failures.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
