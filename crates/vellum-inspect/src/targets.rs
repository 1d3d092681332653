//! Whom to look at.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use vellum_pagemap::{SurveyError, Target, Unreadable, parent};

use super::Args;
use super::extension::Extension;

/// Processes, and those that could not be opened.
pub struct Targets {
    pub processes: Vec<Result<Target, SurveyError>>,
    /// Nobody named them one by one.
    found: bool,
}

impl Targets {
    /// Whether to list them, rather than to tell of each.
    pub fn several(&self) -> bool {
        self.found
    }
}

/// Those that were asked for.
pub fn find<X: Extension>(args: &Args<X>) -> anyhow::Result<Targets> {
    let open = |pid| Target::open(pid).map_err(SurveyError::from);
    if let Some(path) = &args.cgroup {
        let mut pids = BTreeSet::new();
        let place = place_of(path)?;
        members(&place, &mut pids).with_context(|| format!("{} can't be read", place.display()))?;
        return Ok(Targets { processes: pids.into_iter().map(open).collect(), found: true });
    }
    if args.all {
        let all = procfs::process::all_processes().context("/proc can't be read")?;
        let processes = all.flatten().map(|process| open(process.pid));
        // Not to be mentioned: they have no memory.
        let absent = |one: &Result<Target, SurveyError>| {
            use Unreadable::{Gone, KernelThread, Zombie};
            matches!(one, Err(SurveyError::Unreadable(Gone(_) | KernelThread(_) | Zombie(_))))
        };
        return Ok(Targets { processes: processes.filter(|one| !absent(one)).collect(), found: true });
    }
    if args.children {
        let mut pids: BTreeSet<i32> = args.pids.iter().copied().collect();
        let parents = parents()?;
        // Numbers go round, so a child's may be the smaller one.
        while parents.iter().any(|(pid, parent)| pids.contains(parent) && pids.insert(*pid)) {}
        return Ok(Targets { processes: pids.into_iter().map(open).collect(), found: true });
    }
    Ok(Targets { processes: args.pids.iter().copied().map(open).collect(), found: false })
}

/// Every process, and its parent.
fn parents() -> anyhow::Result<Vec<(i32, i32)>> {
    let all = procfs::process::all_processes().context("/proc can't be read")?;
    Ok(all.flatten().filter_map(|process| Some((process.pid, parent(&process).ok()?))).collect())
}

/// A group may be named as `/proc/PID/cgroup` does.
fn place_of(path: &Path) -> anyhow::Result<std::path::PathBuf> {
    let below = Path::new("/sys/fs/cgroup").join(path.strip_prefix("/").unwrap_or(path));
    let memory = Path::new("/sys/fs/cgroup/memory").join(path.strip_prefix("/").unwrap_or(path));
    for place in [path.to_owned(), below, memory] {
        if place.join("cgroup.procs").exists() {
            return Ok(place);
        }
    }
    bail!("there is no control group {} (nor is there one below /sys/fs/cgroup)", path.display())
}

fn members(place: &Path, pids: &mut BTreeSet<i32>) -> std::io::Result<()> {
    let text = fs::read_to_string(place.join("cgroup.procs"))?;
    pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    for entry in fs::read_dir(place)? {
        let entry = entry?;
        // A group that is removed meanwhile has no members.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) && entry.path().join("cgroup.procs").exists() {
            let _ = members(&entry.path(), pids);
        }
    }
    Ok(())
}

/// Say who could not be looked at.
pub fn conclude(failures: &[SurveyError], several: bool) -> ExitCode {
    let (mut hidden, mut ended) = (0, 0);
    for failure in failures {
        match failure {
            SurveyError::Unreadable(Unreadable::Denied(_)) if several => hidden += 1,
            SurveyError::Unreadable(Unreadable::Gone(_) | Unreadable::Zombie(_)) if several => ended += 1,
            failure => eprintln!("vellum: {failure}"),
        }
    }
    if hidden > 0 {
        eprintln!("vellum: not looked at, being other users' (that needs root, CAP_SYS_PTRACE): {hidden}");
    }
    if ended > 0 {
        eprintln!("vellum: ended before they could be looked at: {ended}");
    }
    if !several && !failures.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
