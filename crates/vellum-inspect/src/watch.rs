//! Look again and again, and say what has changed; or what has changed from one saved look to another.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use vellum_pagemap::{Kernel, SurveyError, Target, Unreadable};

use super::Args;
use super::extension::Extension;
use super::look::Look;
use super::report::json::{self, Process, Saved};
use super::report::table::{align, new_table};
use crate::size::about;

/// A line each time, until it is stopped or everybody has ended.
pub(crate) fn watch<X: Extension>(
    pids: &[i32],
    every: Duration,
    args: &Args<X>,
    kernel: &Kernel,
    stop: &Arc<AtomicBool>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    writeln!(out, "{:<20} {:>8}  {:>22} {:>22} {:>22}", "TIME", "PID", "RES", "page tables", "needed for nothing")?;
    let mut before: Vec<(i32, [u64; 3])> = Vec::new();
    let mut pids = pids.to_vec();
    while !pids.is_empty() && !stop.load(Relaxed) {
        let began = Instant::now();
        let mut gone = Vec::new();
        for pid in &pids {
            let look = Target::open(*pid).map_err(SurveyError::from).and_then(|one| Look::at(one, args, kernel, stop));
            let look = match look {
                Ok(look) => look,
                Err(SurveyError::Unreadable(error @ (Unreadable::Gone(_) | Unreadable::Zombie(_)))) => {
                    eprintln!("vellum: {error}");
                    gone.push(*pid);
                    continue;
                }
                Err(_) if stop.load(Relaxed) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let now = [look.survey.after.resident, look.survey.after.tables, look.empty()];
            let last = before.iter().find(|(of, _)| of == pid).map_or(now, |(_, last)| *last);
            let columns: Vec<String> = now
                .iter()
                .zip(last)
                .map(|(now, last)| match change(last, *now) {
                    None => about(*now),
                    Some(change) => format!("{} ({change})", about(*now)),
                })
                .collect();
            let time = humantime::format_rfc3339_seconds(SystemTime::now());
            writeln!(out, "{time:<20} {pid:>8}  {:>22} {:>22} {:>22}", columns[0], columns[1], columns[2])?;
            before.retain(|(of, _)| of != pid);
            before.push((*pid, now));
        }
        out.flush()?;
        pids.retain(|pid| !gone.contains(pid));
        // In small pieces, so that it ends when it is told to.
        while !pids.is_empty() && began.elapsed() < every && !stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(20).min(every));
        }
    }
    Ok(())
}

fn change(from: u64, to: u64) -> Option<String> {
    match to.cmp(&from) {
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some(format!("+{}", about(to - from))),
        std::cmp::Ordering::Less => Some(format!("-{}", about(from - to))),
    }
}

/// What has changed between two files that `--json` has written.
pub fn diff(before: &Path, after: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    let read = |path: &Path| -> anyhow::Result<Saved> {
        let text = fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
        json::read(&text).with_context(|| format!("{} is not what `vellum inspect --json FILE` writes", path.display()))
    };
    Ok(compare(&read(before)?, &read(after)?, out)?)
}

/// Writes what has changed from one saved look to another.
pub fn compare(before: &Saved<'_>, after: &Saved<'_>, out: &mut impl Write) -> io::Result<()> {
    let mut shown = new_table(["PROCESS", "", "", "before", "after", "change"]);
    let rows = |one: &Process<'_>| {
        [
            ("VIRT", one.reserved),
            ("RES", one.resident),
            ("swap", one.swapped),
            ("page tables", one.page_tables),
            ("needed for nothing", (one.tables_needless.max(0) as u64).saturating_mul(one.table_size)),
        ]
    };
    for now in &after.processes {
        let Some(was) = before.processes.iter().find(|was| was.pid == now.pid && was.name == now.name) else {
            shown.add_row([now.pid.to_string(), now.name.to_string(), "is new".into()]);
            continue;
        };
        for (n, ((name, was), (_, is))) in rows(was).into_iter().zip(rows(now)).enumerate() {
            let (pid, process) = if n == 0 { (now.pid.to_string(), now.name.to_string()) } else { Default::default() };
            let change = change(was, is).unwrap_or_else(|| "none".into());
            shown.add_row([pid, process, name.to_string(), about(was), about(is), change]);
        }
    }
    for was in before.processes.iter().filter(|was| after.processes.iter().all(|now| now.pid != was.pid)) {
        shown.add_row([was.pid.to_string(), was.name.to_string(), "has gone".into()]);
    }
    align(&mut shown, [0, 3, 4, 5]);
    writeln!(out, "{shown}")
}

/// Standard output, and whether it was closed by whoever has seen enough.
pub fn closed(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::super::look::tests::own;
    use super::*;

    fn saved() -> Vec<u8> {
        let mut text = Vec::new();
        let kernel = Kernel { detection: vellum_pagemap::Detection::None, frees_tables: None };
        let mut look = own(&[]);
        look.survey.vmas.truncate(1);
        json::write(&[look], &kernel, &mut text).unwrap();
        text
    }

    #[test]
    fn a_file_that_was_not_saved_says_which() {
        let folder = tempfile::tempdir().unwrap();
        let (good, bad) = (folder.path().join("good"), folder.path().join("bad"));
        fs::write(&good, saved()).unwrap();
        fs::write(&bad, "[1, 2]").unwrap();
        let error = format!("{:#}", diff(&good, &bad, &mut Vec::new()).unwrap_err());
        assert!(error.contains("bad is not what `vellum inspect --json FILE` writes"), "{error}");
        diff(&good, &good, &mut Vec::new()).unwrap();
    }
}
