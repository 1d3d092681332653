//! Repeats an inspection and prints changes; compares saved reports.

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
use super::inspection::Inspection;
use super::report::json::{self, Process, SavedReport};
use super::report::table::{align, new_table};
use crate::size::about;

/// Prints a line for each process at each interval, until it is stopped or all processes have
/// ended.
///
/// # Errors
/// A process can't be inspected, or `out` can't be written.
pub(crate) fn watch<X: Extension>(
    pids: &[i32],
    every: Duration,
    args: &Args<X>,
    kernel: &Kernel,
    stop: &Arc<AtomicBool>,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    writeln!(out, "{:<20} {:>8}  {:>22} {:>22} {:>22}", "TIME", "PID", "RES", "page tables", "needless")?;
    let mut before: Vec<(i32, [u64; 3])> = Vec::new();
    let mut pids = pids.to_vec();
    while !pids.is_empty() && !stop.load(Relaxed) {
        let began = Instant::now();
        let mut gone = Vec::new();
        for pid in &pids {
            let inspection =
                Target::open(*pid).map_err(SurveyError::from).and_then(|one| Inspection::at(one, args, kernel, stop));
            let inspection = match inspection {
                Ok(inspection) => inspection,
                Err(SurveyError::Unreadable(error @ (Unreadable::Gone(_) | Unreadable::Zombie(_)))) => {
                    eprintln!("vellum: {error}");
                    gone.push(*pid);
                    continue;
                }
                Err(_) if stop.load(Relaxed) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let now = [inspection.survey.after.resident, inspection.survey.after.tables, inspection.empty()];
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
        // Sleep for short times, to check the stop flag between them.
        while !pids.is_empty() && began.elapsed() < every && !stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(20).min(every));
        }
    }
    Ok(())
}

/// Returns the signed difference as text, or `None` if there is none.
fn change(from: u64, to: u64) -> Option<String> {
    match to.cmp(&from) {
        std::cmp::Ordering::Equal => None,
        std::cmp::Ordering::Greater => Some(format!("+{}", about(to - from))),
        std::cmp::Ordering::Less => Some(format!("-{}", about(from - to))),
    }
}

/// Compares two files written by `--json`.
///
/// # Errors
/// A file can't be read, or is not such a report.
pub fn diff(before: &Path, after: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    let read = |path: &Path| -> anyhow::Result<SavedReport> {
        let text = fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
        json::read(&text).with_context(|| format!("{} is not a report of `vellum inspect --json`", path.display()))
    };
    Ok(compare(&read(before)?, &read(after)?, out)?)
}

/// Writes the differences between two saved reports.
///
/// # Errors
/// Returns the error of `out`.
pub fn compare(before: &SavedReport<'_>, after: &SavedReport<'_>, out: &mut impl Write) -> io::Result<()> {
    let mut shown = new_table(["PROCESS", "", "", "before", "after", "change"]);
    let rows = |one: &Process<'_>| {
        [
            ("VIRT", one.reserved),
            ("RES", one.resident),
            ("swap", one.swapped),
            ("page tables", one.page_tables),
            ("needless", (one.tables_needless.max(0) as u64).saturating_mul(one.table_size)),
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

/// Returns whether `error` means that the reader of standard output has closed the pipe.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::super::inspection::tests::own;
    use super::*;

    fn saved() -> Vec<u8> {
        let mut text = Vec::new();
        let kernel = Kernel { detection: vellum_pagemap::Detection::None, frees_tables: None };
        let mut inspection = own(&[]);
        inspection.survey.vmas.truncate(1);
        json::write(&[inspection], &kernel, &mut text).unwrap();
        text
    }

    #[test]
    fn an_error_names_the_file_that_is_no_report() {
        let folder = tempfile::tempdir().unwrap();
        let (good, bad) = (folder.path().join("good"), folder.path().join("bad"));
        fs::write(&good, saved()).unwrap();
        fs::write(&bad, "[1, 2]").unwrap();
        let error = format!("{:#}", diff(&good, &bad, &mut Vec::new()).unwrap_err());
        assert!(error.contains("bad is not a report of `vellum inspect --json`"), "{error}");
        diff(&good, &good, &mut Vec::new()).unwrap();
    }
}
