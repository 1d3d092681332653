//! `bench entry`: the costs that the engine's column leaves out, measured on the kernel of this
//! machine: system calls, exceptions, TLB flushes.
//!
//! | module | contents |
//! |---|---|
//! | [`rows`] | results, and their JSON |
//! | [`mod@section`] | the section of the report |

mod rows;
mod section;

use vellum_linux::child::entry;
use vellum_linux::cpu::{PinnedCpu, allowed_cpus};
use vellum_linux::stats::Summary;
use vellum_linux::workload::case::{Case, Op};
use vellum_linux::workload::data::{Data, Steps};

use super::contender::Skip;
use super::engine::{Engine, Entries};
use super::load::Meter;
use super::progress::Progress;
use super::regions::Sizes;
use super::report::Section;
use rows::{Added, Cost, Costs, Event};

/// The options of the benchmark.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The engine's region, of which at most 256 MiB are swapped or copied.
    #[command(flatten)]
    pub sizes: Sizes,
    /// Runs of each measurement; the figure is their median.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Events in a run, in units of 512.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
}

/// The most bytes that are swapped, or copied.
const MOST_TWICE: u64 = 256 << 20;

const OPS: [Op; 9] = [
    Op::Munmap,
    Op::Dontneed,
    Op::Exit,
    Op::Protect,
    Op::Fork,
    Op::Cow(Steps::EveryPage),
    Op::SwapOut(Data::Compressible, Steps::EveryPage),
    Op::SwapIn(Data::Compressible, Steps::EveryPage),
    Op::Touch,
];

/// Runs the benchmark and returns its section.
///
/// # Errors
/// `--size` is not a multiple of 2 MiB.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    let cases = args.sizes.cases()?;
    let cpus = allowed_cpus();
    let _pinned = PinnedCpu::pin();
    let runs = u64::from(args.runs);
    let progress = Progress::new(runs * (1 + (cases.len() * OPS.len()) as u64));
    let costs = costs(args, &cpus, &progress);
    let added = added(args, &cases, &costs, &progress);
    drop(progress);
    Ok(section::of(&costs, &added, args.runs))
}

/// Measures the costs of the events on Linux.
fn costs(args: &Args, cpus: &[usize], progress: &Progress) -> Costs {
    let meter = Meter::start();
    let here = rustix::thread::sched_getcpu();
    let other = cpus.iter().copied().find(|&cpu| cpu != here);
    let mut skip = None;
    let mut all = Vec::new();
    for _ in 0..args.runs {
        progress.set_text("entries to linux".into());
        match entry::measure(here, other, args.rounds) {
            Ok(costs) => all.push(costs),
            Err(error) => skip = skip.or(Some(error)),
        }
        progress.step();
    }
    let load = meter.load();
    let cost = |event: Event| {
        let samples: Vec<u64> = all.iter().filter_map(|costs| event.of(costs)).collect();
        let none = || skip.clone().unwrap_or(Skip::Missing("second CPU for this process"));
        Cost { event, ns: Summary::of(&samples).ok_or_else(none), load }
    };
    Costs(Event::ALL.map(cost))
}

/// Runs the engine, and returns what the costs of its events would add, ordered by operation.
fn added(args: &Args, cases: &[Case], costs: &Costs, progress: &Progress) -> Vec<Added> {
    let engine = Engine::of(args.sizes.size);
    let with_copies = Engine::of(args.sizes.size.min(MOST_TWICE)).with_pages_twice();
    let mut rows = Vec::new();
    for op in OPS {
        let twice = op.data().is_some() || op.writes().is_some();
        for case in cases {
            let case = if twice { Case { bytes: case.bytes.min(MOST_TWICE), ..*case } } else { *case };
            let engine = if twice { &with_copies } else { &engine };
            progress.set_text(format!("{} {} vellum", op.title(), case.label()));
            let meter = Meter::start();
            let run = |_| {
                let entries = engine.entries(&case, op);
                progress.step();
                entries
            };
            let runs: Result<Vec<Entries>, Skip> = (0..args.runs).map(run).collect();
            rows.push(Added::new(op, case, runs, costs, meter.load()));
        }
    }
    rows
}
