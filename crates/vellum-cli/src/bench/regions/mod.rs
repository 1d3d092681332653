//! Operations on a whole region of memory, by folio size: the common part of `bench unmap`, `fork`,
//! `pageout`, `lazyfree` and `small`.
//!
//! | module | contents |
//! |---|---|
//! | [`rows`] | results, and their JSON |
//! | [`mod@section`] | the section of the report |
//! | [`sizes`] | the sizes of the region and of its folios |

mod rows;
mod section;
mod sizes;

use std::path::PathBuf;

use vellum_linux::Linux;
use vellum_linux::cpu::PinnedCpu;
use vellum_linux::workload::arm::Arm;
use vellum_linux::workload::case::{Case, Op, parse_folio};
use vellum_linux::workload::mapping::Mapping;

use super::contender::{Column, Contender};
use super::engine::Engine;
use super::floor::Floor;
use super::progress::Progress;
use super::report::{Part, Section};
use super::turns::{self, Taken};
pub use rows::Row;
use sizes::cases_of;
pub use sizes::{FEW_FOLIOS, Sizes, check_size};

/// The regions to measure.
#[derive(Clone, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Length of the region: a multiple of 2 MiB.
    #[arg(long, default_value = "1GiB", value_parser = parse_size)]
    pub size: u64,
    /// Runs of each contender; the figure is their median (of the floor, their minimum).
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Folio sizes in KiB whose pages are mapped by a PTE each.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "4,16,32,64,128,256,512,1024,2048",
        value_parser = parse_folio
    )]
    pub folios: Vec<u32>,
    /// Leave out the region of 2 MiB folios that are mapped by huge PTEs.
    #[arg(long)]
    pub no_huge: bool,
    /// Orders in which the region's folios are touched, which decide where in memory they lie.
    #[arg(long, value_delimiter = ',', default_value = "ascending,random,interleaved,aged")]
    pub arms: Vec<Arm>,
    /// The directory of the huge-page settings.
    #[arg(long, hide = true, default_value = "/sys/kernel/mm/transparent_hugepage")]
    pub thp_root: PathBuf,
}

impl Args {
    /// Returns these options with regions of at most `size` bytes, and only the folio sizes of
    /// [`FEW_FOLIOS`].
    pub fn less(&self, size: u64) -> Args {
        Args { size: self.size.min(size), folios: self.restricted_to(&FEW_FOLIOS), ..self.clone() }
    }

    /// Returns the sizes in `folios` that these options also have; if there is none, all sizes of
    /// these options.
    pub fn restricted_to(&self, folios: &[u32]) -> Vec<u32> {
        let both: Vec<u32> = folios.iter().copied().filter(|folio| self.folios.contains(folio)).collect();
        if both.is_empty() { self.folios.clone() } else { both }
    }
}

/// Returns all contenders. A contender listed here appears in every table, chart and JSON row.
pub fn contenders(args: &Args, ops: &[Op]) -> Vec<Box<dyn Contender>> {
    let beside = args.arms.iter().map(|arm| arm.regions_beside()).max().unwrap_or(0);
    let engine = Engine::of(args.size).with_beside(beside);
    let twice = ops.iter().any(|&op| op.data().is_some() || op.writes().is_some());
    let engine = if twice { engine.with_pages_twice() } else { engine };
    vec![
        Box::new(Floor::beside(engine.clone())),
        Box::new(engine.contender(Column::Vellum)),
        Box::new(engine.contender(Column::Page)),
        Box::new(Linux::new(&args.thp_root)),
    ]
}

/// The description of a benchmark.
#[derive(Default)]
pub struct Subject {
    /// The name on the command line and in JSON.
    pub name: &'static str,
    /// The operation, in the headline.
    pub title: &'static str,
    /// The notes on the method that hold for this benchmark only.
    pub method: &'static [(&'static str, &'static str)],
    /// A function that makes one more part of the section from the rows.
    pub beside: Option<fn(&[Row]) -> Part>,
}

/// Measures `ops` of regions with these mappings and returns the section.
///
/// # Errors
/// `--size` is not a multiple of 2 MiB.
pub fn section(args: &Args, mappings: &[Mapping], ops: &[Op], subject: &Subject) -> anyhow::Result<Section> {
    let cases: Vec<Case> = mappings.iter().flat_map(|&mapping| cases(args, mapping)).collect();
    section_of_all(args, &cases, ops, subject)
}

/// Measures `ops` of these cases and returns the section.
///
/// # Errors
/// `--size` is not a multiple of 2 MiB.
pub fn section_of_all(args: &Args, cases: &[Case], ops: &[Op], subject: &Subject) -> anyhow::Result<Section> {
    check(args)?;
    let _pinned = PinnedCpu::pin();
    let rows = measure(args, cases, ops, &mut contenders(args, ops));
    Ok(section::of(subject, &rows, args.runs))
}

/// Measures each operation on its case and returns the section, with the rows in this order.
///
/// # Errors
/// `--size` is not a multiple of 2 MiB.
pub fn section_of(args: &Args, work: &[(Case, Op)], subject: &Subject) -> anyhow::Result<Section> {
    check(args)?;
    let _pinned = PinnedCpu::pin();
    let ops: Vec<Op> = work.iter().map(|(_, op)| *op).collect();
    let mut contenders = contenders(args, &ops);
    let progress = Progress::new((work.len() * contenders.len() * args.runs as usize) as u64);
    let row =
        |(case, op): &(Case, Op)| Row::new(*op, *case, &turns::take(&mut contenders, case, *op, args.runs, &progress));
    let rows: Vec<Row> = work.iter().map(row).collect();
    drop(progress);
    Ok(section::of(subject, &rows, args.runs))
}

fn check(args: &Args) -> anyhow::Result<()> {
    check_size(args.size)?;
    Ok(())
}

/// Returns the cases of these options that can have this mapping, arm by arm.
pub fn cases(args: &Args, mapping: Mapping) -> impl Iterator<Item = Case> {
    let cases = cases_of(args.size, &args.folios, args.no_huge);
    let cases = args.arms.iter().flat_map(move |&arm| cases.clone().map(move |case| Case { arm, mapping, ..case }));
    cases.filter(move |case| mapping.can_be(case))
}

/// Runs all operations on all cases, and returns the rows in the order of `ops`. An operation that
/// comes after another one is timed in the runs of that one.
fn measure(args: &Args, cases: &[Case], ops: &[Op], contenders: &mut [Box<dyn Contender>]) -> Vec<Row> {
    let mut timed: Vec<Op> = Vec::new();
    for op in ops.iter().map(|op| op.front().unwrap_or(*op)).filter(|op| !op.is_beside()) {
        if !timed.contains(&op) {
            timed.push(op);
        }
    }
    if timed.is_empty() {
        timed.push(Op::Touch);
    }
    let timed_of = |case: &Case| timed.iter().copied().filter(|op| op.is_of(case)).collect::<Vec<Op>>();
    let pairs: usize = cases.iter().map(|case| timed_of(case).len()).sum();
    let steps = pairs * contenders.len() * args.runs as usize;
    let progress = Progress::new(steps as u64);
    let mut rows = Vec::new();
    for &case in cases {
        let mut all = Taken::default();
        for op in timed_of(&case) {
            let taken = turns::take(contenders, &case, op, args.runs, &progress);
            rows::gather_touches(&mut all, &taken);
            let rows_of_runs = [Some(op), op.back()].into_iter().flatten().filter(|op| *op != Op::Touch);
            rows.extend(rows_of_runs.filter(|op| ops.contains(op)).map(|op| Row::new(op, case, &taken)));
        }
        if ops.contains(&Op::Touch) {
            rows.push(Row::new(Op::Touch, case, &all));
        }
    }
    rows.sort_by_key(|row| ops.iter().position(|&op| op == row.op));
    rows
}

/// Parses a size with a unit, such as `1GiB`.
pub fn parse_size(text: &str) -> Result<u64, vellum_inspect::size::SizeError> {
    vellum_inspect::size::parse(text)
}
