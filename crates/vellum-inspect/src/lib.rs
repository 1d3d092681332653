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
//! | `look` | the inspection of one process |
//! | `locate` | the addresses of empty page tables |
//! | `advice` | what would free empty page tables on this kernel |
//! | `tlb` | TLB entries that the memory takes, by kind of core |
//! | `groups` | many processes together, and what they share |
//! | `watch` | repeated inspection, and the difference of two saved reports |
//! | [`report`] | the report as text, map, JSON and HTML |
//! | [`extension`] | options and report parts that another crate adds |
//! | [`size`] | sizes and shares as command-line arguments and text |

mod advice;
pub mod extension;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod groups;
mod locate;
mod look;
pub mod report;
pub mod size;
mod targets;
mod tlb;
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
use look::Look;
use report::{html, json, text};

/// Whom to look at, and how.
#[derive(clap::Args)]
pub struct Args<X: Extension = ()> {
    /// Processes, by their numbers.
    #[arg(value_name = "PID", required_unless_present_any = ["all", "cgroup", "diff", "tlb_sources"])]
    pids: Vec<i32>,
    /// Their children, too, and theirs.
    #[arg(long)]
    children: bool,
    /// All processes that may be read.
    #[arg(long, conflicts_with_all = ["pids", "cgroup"])]
    all: bool,
    /// All processes of a control group and of those below it: a path below /sys/fs/cgroup, or a
    /// whole one.
    #[arg(long, value_name = "PATH", conflicts_with = "pids")]
    cgroup: Option<PathBuf>,
    /// Say where the empty tables are, address by address. For root, the tables themselves are read
    /// (by BPF): then it is exact, and upper tables are told, too.
    #[arg(long)]
    locate: bool,
    /// Draw the address space: a cell for each table, or for as many as it takes to fit.
    #[arg(long)]
    map: bool,
    /// Look into folios even if there is much memory: a tenth of a second for a GiB, and only for
    /// root.
    #[arg(long)]
    folios: bool,
    #[command(flatten)]
    extension: X,
    /// Count entries of translation caches for the cores in this file, instead of those that are
    /// known. --tlb-sources writes one.
    #[arg(long, value_name = "FILE")]
    tlb: Option<PathBuf>,
    /// Write the table of the cores that are known, with where its figures are from, and nothing
    /// else.
    #[arg(long)]
    tlb_sources: bool,
    /// Go through this share of large VMAs only (2%), and say how sure that is.
    #[arg(long, value_name = "SHARE", value_parser = size::parse_share)]
    sample: Option<f64>,
    /// Look again and again, this far apart: a line each time.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, conflicts_with_all = ["all", "cgroup", "children", "json"])]
    watch: Option<Duration>,
    /// Compare two files that --json has written.
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with_all = ["pids", "all", "cgroup"])]
    diff: Vec<PathBuf>,
    /// How many VMAs, or processes, to list.
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,
    /// Hold a process's memory lock for no longer than this at a time; where it needs that itself,
    /// for much less, with pauses.
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = humantime::parse_duration)]
    max_hold: Duration,
    /// Read every entry, as on a kernel without PAGEMAP_SCAN.
    #[arg(long, hide = true)]
    only_read: bool,
    /// Find empty tables by time, as on a kernel that doesn't tell them.
    #[arg(long, hide = true)]
    by_time: bool,
    /// Write it as JSON as well, to a file, or to standard output instead of the text (-).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write it as one web page as well, complete in itself. Of many processes, those that --top
    /// lists are told in full.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Look, and say what was seen. The status says whether everybody who was named could be.
pub fn run<X: Extension>(args: &Args<X>) -> anyhow::Result<ExitCode> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second time, it ends at once.
        signal_hook::flag::register_conditional_default(signal, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let mut out = io::stdout().lock();
    match look_around(args, &stop, &mut out) {
        // Whoever has seen enough may close the pipe.
        Err(error) if watch::closed(&error) => Ok(ExitCode::SUCCESS),
        result => result,
    }
}

fn look_around<X: Extension>(
    args: &Args<X>,
    stop: &Arc<AtomicBool>,
    out: &mut io::StdoutLock<'_>,
) -> anyhow::Result<ExitCode> {
    if args.tlb_sources {
        out.write_all(tlb::KNOWN.as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    let cores = tlb::cores(args.tlb.as_deref())?;
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
    let mut looks = Vec::new();
    let mut failures = Vec::new();
    let several = targets.several();
    for target in targets.processes {
        let look = target.and_then(|target| {
            let read = reader.as_mut().map(|reader| reader.read(&target));
            Ok(Look { read, ..Look::at(target, args, &kernel, stop)? })
        });
        match look {
            Ok(look) => looks.push(look),
            Err(error) => failures.push(error),
        }
    }
    for look in &mut looks {
        look.part = look.analysis.take().map(|analysis| analysis(stop)).transpose()?;
    }
    if let Some(path) = &args.html {
        std::fs::write(path, html::page(&looks, several.then_some(args.top), &kernel, &cores))
            .with_context(|| format!("can't write {}", path.display()))?;
    }
    match &args.json {
        Some(path) if path.as_os_str() == "-" => {
            json::write(&looks, &kernel, out)?;
            return Ok(targets::conclude(&failures, several));
        }
        Some(path) => {
            let file = File::create(path).with_context(|| format!("can't write {}", path.display()))?;
            json::write(&looks, &kernel, &mut BufWriter::new(file))?;
        }
        None => {}
    }
    let wide = out.is_terminal();
    match several {
        true => text::several(&looks, args, &kernel, out)?,
        false => looks.iter().try_for_each(|look| text::one(look, args, &kernel, &cores, wide, out))?,
    }
    out.flush()?;
    Ok(targets::conclude(&failures, several))
}
