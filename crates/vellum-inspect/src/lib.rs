//! Inspects the page tables and folios of live Linux processes, without root.
//!
//! A process that reserves much memory and gives most of it back keeps page tables that hold
//! nothing. This crate counts them exactly, finds their addresses, explains what would free them on
//! the running kernel, and shows how the process's memory lies in folios. It reads, and changes
//! nothing. It is the subcommand `vellum inspect`: [`Args`] are its options, [`run`] does the work.
//! The reading itself is in the crate `vellum-pagemap`.
//!
//! | module | contents |
//! |---|---|
//! | `targets` | the processes to inspect |
//! | `inspection` | the inspection of one process |
//! | `locate` | the addresses of empty page tables |
//! | `advice` | what would free empty page tables on this kernel |
//! | `tlb` | TLB entries that the memory takes, by kind of core |
//! | `totals` | the sums of many processes, and the mappings they share |
//! | `watch` | repeated inspection, and the difference of two saved reports |
//! | [`report`] | the report as text, map, JSON and HTML |
//! | [`extension`] | options and report parts that another crate adds |
//! | [`size`] | sizes and shares as command-line arguments and text |

mod advice;
pub mod extension;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod inspection;
mod locate;
pub mod report;
pub mod size;
mod targets;
mod tlb;
mod totals;
mod watch;

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::Context;
use vellum_pagemap::{Kernel, Pace};

use extension::Extension;
use inspection::Inspection;
use report::{html, json, text};

/// The options of `vellum inspect`: the processes to inspect, and the form of the report.
#[derive(clap::Args)]
pub struct Args<X: Extension = ()> {
    /// The PIDs of the processes to inspect.
    #[arg(value_name = "PID", required_unless_present_any = ["all", "cgroup", "diff", "tlb_sources"])]
    pids: Vec<i32>,
    /// Also inspect all descendants of these processes.
    #[arg(long)]
    children: bool,
    /// Inspect all processes that may be read.
    #[arg(long, conflicts_with_all = ["pids", "cgroup"])]
    all: bool,
    /// Inspect all processes of a cgroup and its descendants: a path below /sys/fs/cgroup, or an
    /// absolute one.
    #[arg(long, value_name = "PATH", conflicts_with = "pids")]
    cgroup: Option<PathBuf>,
    /// List the addresses of empty page tables. As root, page tables are read from kernel memory
    /// (by BPF): the list is exact, and has upper levels, too.
    #[arg(long)]
    locate: bool,
    /// Draw a map of the address space: a cell for each page table, or for as many as needed to
    /// fit.
    #[arg(long)]
    map: bool,
    /// Examine folios even if there is much memory: takes a tenth of a second for a GiB, and needs
    /// root.
    #[arg(long)]
    folios: bool,
    #[command(flatten)]
    extension: X,
    /// Count TLB entries for the cores in this file, instead of the built-in ones. --tlb-sources
    /// writes such a file.
    #[arg(long, value_name = "FILE")]
    tlb: Option<PathBuf>,
    /// Write the built-in table of cores, with the sources of its figures, and nothing else.
    #[arg(long)]
    tlb_sources: bool,
    /// Scan only this share of large VMAs (2%), and print the error of the estimate.
    #[arg(long, value_name = "SHARE", value_parser = size::parse_share)]
    sample: Option<f64>,
    /// Inspect repeatedly at this interval, a line each time.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = humantime::parse_duration,
        conflicts_with_all = ["all", "cgroup", "children", "json"]
    )]
    watch: Option<Duration>,
    /// Compare two files written by --json.
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with_all = ["pids", "all", "cgroup"])]
    diff: Vec<PathBuf>,
    /// The number of VMAs, or processes, to list.
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Hold a process's mmap lock for no longer than this at a time; for much less, with pauses,
    /// while the process contends for it.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = humantime::parse_duration)]
    max_hold: Duration,
    /// Read every pagemap entry, as on a kernel without PAGEMAP_SCAN.
    #[arg(long, hide = true)]
    only_read: bool,
    /// Find empty page tables by scan time, as on a kernel that does not report them.
    #[arg(long, hide = true)]
    by_time: bool,
    /// Also write the report as JSON to a file; with -, to standard output instead of the text.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write the report as a self-contained web page. Of many processes, those that --top
    /// lists are shown in full.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs `vellum inspect`. The exit code is a failure if a process given by its PID can't be
/// inspected.
///
/// # Errors
/// Arguments, files or this machine don't allow the inspection.
pub fn run<X: Extension>(args: &Args<X>) -> anyhow::Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The first signal sets `stop`; a second one ends the process at once.
        signal_hook::flag::register_conditional_default(signal, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let mut out = io::stdout().lock();
    match inspect(args, &stop, &mut out) {
        // It is no failure if the reader of standard output closes the pipe early, as `head` does.
        Err(error) if watch::is_closed_pipe(&error) => Ok(ExitCode::SUCCESS),
        result => result,
    }
}

fn inspect<X: Extension>(
    args: &Args<X>,
    stop: &Arc<AtomicBool>,
    out: &mut io::StdoutLock<'_>,
) -> anyhow::Result<ExitCode> {
    if args.tlb_sources {
        out.write_all(tlb::KNOWN.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let cores = tlb::load(args.tlb.as_deref())?;
    if let [before, after] = &args.diff[..] {
        watch::diff(before, after, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let kernel = match args.by_time {
        false => Kernel::probe(&mut Pace::new(args.max_hold)),
        true => Kernel::by_time(),
    };
    let kernel = kernel.context("this process's own page tables")?;
    if let Some(every) = args.watch {
        watch::watch(&args.pids, every, args, &kernel, stop, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut reader = args.locate.then(locate::Reader::open);
    let targets = targets::find(args)?;
    let mut inspections = Vec::new();
    let mut failures = Vec::new();
    let several = targets.is_list();
    for target in targets.processes {
        let inspection = target.and_then(|target| {
            let read = reader.as_mut().map(|reader| reader.read(&target));
            Ok(Inspection { read, ..Inspection::at(target, args, &kernel, stop)? })
        });
        match inspection {
            Ok(inspection) => inspections.push(inspection),
            Err(error) => failures.push(error),
        }
    }
    for inspection in &mut inspections {
        inspection.part = inspection.analysis.take().map(|analysis| analysis(stop)).transpose()?;
    }
    if let Some(path) = &args.html {
        std::fs::write(path, html::page(&inspections, several.then_some(args.top), &kernel, &cores))
            .with_context(|| format!("can't write {}", path.display()))?;
    }
    match &args.json {
        Some(path) if path.as_os_str() == "-" => {
            json::write(&inspections, &kernel, out)?;
            return Ok(targets::report_failures(&failures, several));
        }
        Some(path) => {
            let file = File::create(path).with_context(|| format!("can't write {}", path.display()))?;
            json::write(&inspections, &kernel, &mut BufWriter::new(file))?;
        }
        None => {}
    }
    let wide = out.is_terminal();
    match several {
        true => text::several(&inspections, args, &kernel, out)?,
        false => {
            inspections.iter().try_for_each(|inspection| text::one(inspection, args, &kernel, &cores, wide, out))?
        }
    }
    out.flush()?;
    Ok(targets::report_failures(&failures, several))
}
