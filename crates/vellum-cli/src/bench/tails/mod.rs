//! `bench tails`: the distribution of an operation's times while memory is reclaimed.
//!
//! | module | contents |
//! |---|---|
//! | [`rows`] | results, and their JSON |
//! | [`mod@section`] | the section of the report |

mod rows;
mod section;

use vellum_linux::child::tails::{self, Tail};
use vellum_linux::cpu::allowed_cpus;
use vellum_linux::settings::resource::{HeldResource, Resource};
use vellum_linux::workload::contended::{RESIDENT, TimedOp};

use super::contender::{Column, Skip};
use super::engine::Contended;
use super::load::Meter;
use super::progress::Progress;
use super::report::Section;
use super::turns::Orders;
use rows::{Beside, Row};

/// The options of the benchmark.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Operations that are timed in a run.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub samples: u32,
    /// Runs of each contender; a figure is the median of the runs' quantiles, and of their maxima
    /// the greatest.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Operations to measure.
    #[arg(long, value_delimiter = ',', default_value = "fault,munmap,fork,bare-fork")]
    pub ops: Vec<TimedOp>,
}

/// The contenders.
const COLUMNS: [Column; 2] = [Column::Vellum, Column::Linux];

/// The contenders' machines, or the reasons why there are none.
struct Machines {
    vellum: Result<Contended, Skip>,
    /// The swap device, which exists as long as this value.
    linux: Result<HeldResource, Skip>,
}

impl Machines {
    fn measure(&self, column: Column, op: TimedOp, beside: Beside, args: &Args, cpus: &[usize]) -> Result<Tail, Skip> {
        let &[cpu, other, ..] = cpus else { return Err(Skip::Missing("second CPU for this process")) };
        let reclaim_on = (beside == Beside::Reclaim).then_some(other);
        let samples = args.samples as usize;
        if column == Column::Vellum {
            return self.vellum.as_ref().map_err(Skip::clone)?.measure(op, samples, cpu, reclaim_on);
        }
        self.linux.as_ref().map_err(Skip::clone)?;
        tails::measure(op, samples, cpu, reclaim_on)
    }
}

/// Runs the benchmark and returns its section.
pub fn section(args: &Args) -> Section {
    let cpus = allowed_cpus();
    let steps = args.ops.len() * Beside::ALL.len() * COLUMNS.len() * args.runs as usize;
    let progress = Progress::new(steps as u64);
    let linux = HeldResource::new(&Resource::Zram { bytes: 4 * RESIDENT });
    let machines = Machines { vellum: Contended::new(), linux };
    let mut rows = Vec::new();
    for &op in &args.ops {
        for beside in Beside::ALL {
            let measure = |column: Column| {
                progress.set_text(format!("{} beside {} {}", op.name(), beside.name(), column.name()));
                let tail = machines.measure(column, op, beside, args, &cpus);
                progress.step();
                tail
            };
            rows.extend(take_turns(op, beside, args.runs, measure));
        }
    }
    drop(machines);
    drop(progress);
    section::of(&rows, args)
}

/// Runs both contenders `runs` times, in turns, and returns a row for each.
fn take_turns(
    op: TimedOp,
    beside: Beside,
    runs: u32,
    mut measure: impl FnMut(Column) -> Result<Tail, Skip>,
) -> [Row; COLUMNS.len()] {
    let meter = Meter::start();
    let mut orders = Orders::of(&format!("{op:?} {beside:?}"), 0..COLUMNS.len());
    let mut tails = COLUMNS.map(|_| Vec::new());
    for _ in 0..runs {
        for index in orders.next_order() {
            tails[index].push(measure(COLUMNS[index]));
        }
    }
    let load = meter.load();
    let mut tails = tails.into_iter();
    COLUMNS.map(|column| {
        let runs = tails.next().unwrap_or_default().into_iter().collect();
        Row { op, beside, column, runs, load }
    })
}

#[cfg(test)]
mod tests {
    use vellum_linux::stats::Quantiles;

    use super::*;

    #[test]
    fn contenders_take_turns_and_have_a_row_each() {
        let mut log = Vec::new();
        let rows = take_turns(TimedOp::Fork, Beside::Reclaim, 6, |column| {
            log.push(column);
            if column == Column::Linux {
                return Err(Skip::Busy);
            }
            let ns = Quantiles { samples: 1, p50: 1, p99: 1, p999: 1, max: log.len() as u64 };
            Ok(Tail { ns, reclaimed: 1 })
        });
        let rounds: Vec<&[Column]> = log.chunks(2).collect();
        assert!(rounds.len() == 6 && rounds.iter().all(|round| round[0] != round[1]), "{rounds:?}");
        for column in COLUMNS {
            assert!(rounds.iter().any(|round| round[0] == column), "{column:?} never comes first: {rounds:?}");
        }
        let [vellum, linux] = rows;
        assert_eq!((vellum.column, linux.column), (Column::Vellum, Column::Linux));
        assert_eq!(vellum.runs.map(|runs| runs.len()), Ok(6));
        assert_eq!(linux.runs.err(), Some(Skip::Busy));
    }
}
