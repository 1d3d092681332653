//! Operations on a whole region of memory, by folio size: what `bench unmap` and `bench fork` have
//! in common.
//!
//! | module | its story |
//! |---|---|
//! | [`rows`] | what came of it, and its shape in JSON |
//! | [`mod@section`] | what is told of it |

mod rows;
mod section;

use std::path::PathBuf;

use vellum_linux::Linux;
use vellum_linux::cpu::PinnedCpu;
use vellum_linux::workload::case::{Case, Op, TABLE_SPAN, parse_folio};

use super::contender::{Column, Columns, Contender};
use super::engine::Engine;
use super::floor::Floor;
use super::progress::Progress;
use super::report::{Part, Section};
use super::turns::{self, Outcome};
pub use rows::Row;

/// On what to measure.
#[derive(Clone, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Length of the region: a multiple of 2 MiB.
    #[arg(long, default_value = "1GiB", value_parser = parse_size)]
    pub size: u64,
    /// Runs of each contender; the figure is their median.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Folio sizes in KiB whose pages are mapped one entry each.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "4,16,32,64,128,256,512,1024,2048",
        value_parser = parse_folio
    )]
    pub folios: Vec<u32>,
    /// Leave out the region of 2 MiB folios that are mapped by one upper-level entry each.
    #[arg(long)]
    pub no_huge: bool,
    /// Where the huge-page settings are.
    #[arg(long, hide = true, default_value = "/sys/kernel/mm/transparent_hugepage")]
    pub thp_root: PathBuf,
}

/// Sizes of folios, in KiB, that tell the most.
pub const FEW_FOLIOS: [u32; 3] = [4, 64, 2048];

impl Args {
    /// The same with no more bytes than these, and with folios of sizes that tell the most.
    pub fn less(&self, size: u64) -> Args {
        Args { size: self.size.min(size), folios: self.those_of(&FEW_FOLIOS), ..self.clone() }
    }

    /// Those of some folio sizes that are measured here; if none is, all that are.
    pub fn those_of(&self, folios: &[u32]) -> Vec<u32> {
        let those: Vec<u32> = folios.iter().copied().filter(|folio| self.folios.contains(folio)).collect();
        if those.is_empty() { self.folios.clone() } else { those }
    }
}

/// Everybody who is measured. A contender listed here appears in every table, chart and JSON row.
pub fn contenders(args: &Args) -> Vec<Box<dyn Contender>> {
    let engine = Engine::of(args.size);
    vec![
        Box::new(Floor::default()),
        Box::new(engine.contender(Column::Vellum)),
        Box::new(engine.contender(Column::Page)),
        Box::new(Linux::new(&args.thp_root)),
    ]
}

/// What a benchmark is about.
#[derive(Default)]
pub struct Subject {
    /// Its name on the command line and in JSON.
    pub name: &'static str,
    /// What its headline says is done to the region.
    pub title: &'static str,
    /// What is to be said of how it is measured, besides what holds for all of them.
    pub method: &'static [(&'static str, &'static str)],
    /// A finding besides a table an operation.
    pub beside: Option<fn(&[Row]) -> Part>,
}

/// Measures `ops`, and tells of it.
pub fn section(args: &Args, ops: &[Op], subject: &Subject) -> anyhow::Result<Section> {
    anyhow::ensure!(args.size > 0 && args.size.is_multiple_of(TABLE_SPAN), "--size must be a multiple of 2 MiB");
    let _here = PinnedCpu::pin();
    let rows = measure(args, ops, &mut contenders(args));
    Ok(section::of(subject, &rows, args.runs))
}

fn cases(args: &Args) -> impl Iterator<Item = Case> {
    let small = args.folios.iter().map(|&folio_kib| Case { bytes: args.size, folio_kib, huge: false });
    let huge = (!args.no_huge).then_some(Case { bytes: args.size, folio_kib: 2048, huge: true });
    small.chain(huge)
}

/// Runs everything, and returns the rows in the order of the operations asked for.
fn measure(args: &Args, ops: &[Op], contenders: &mut [Box<dyn Contender>]) -> Vec<Row> {
    let mut timed: Vec<Op> = ops.iter().copied().filter(|op| !matches!(op, Op::Touch | Op::SwapIn(_))).collect();
    if timed.is_empty() {
        timed.push(Op::Touch);
    }
    let steps = cases(args).count() * timed.len() * contenders.len() * args.runs as usize;
    let progress = Progress::new(steps as u64);
    let mut rows = Vec::new();
    for case in cases(args) {
        let mut all = Columns::<Outcome>::default();
        for &op in &timed {
            let outcomes = turns::take(contenders, &case, op, args.runs, &progress);
            rows::gather_touches(&mut all, &outcomes);
            rows.push(Row::new(op, case, &outcomes));
            rows.extend(op.back().filter(|back| ops.contains(back)).map(|back| Row::new(back, case, &outcomes)));
        }
        rows.retain(|row| row.op != Op::Touch || row.case != case);
        if ops.contains(&Op::Touch) {
            rows.push(Row::new(Op::Touch, case, &all));
        }
    }
    rows.sort_by_key(|row| ops.iter().position(|&op| op == row.op));
    rows
}

fn parse_size(text: &str) -> Result<u64, vellum_inspect::size::SizeError> {
    vellum_inspect::size::parse(text)
}
