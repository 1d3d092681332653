//! `bench fork`: fork of an address space, by folio size.

use clap::ValueEnum;
use vellum_linux::workload::case::Op;
use vellum_linux::workload::data::Steps;
use vellum_linux::workload::mapping::Mapping;

use super::regions::{self, Subject};
use super::report::Section;

/// The options of the benchmark.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The regions.
    #[command(flatten)]
    pub regions: regions::Args,
    /// Operations to measure.
    #[arg(long, value_delimiter = ',', default_value = "fork")]
    pub ops: Vec<ForkOp>,
    /// The bytes that the parent writes in `fork-write`.
    #[arg(long, value_delimiter = ',', default_value = "every-page")]
    pub writes: Vec<Steps>,
    /// The mappings of the regions. Those of files have folios below 2 MiB, and no `fork-write`.
    #[arg(long, value_delimiter = ',', default_value = "anon")]
    pub mapping: Vec<Mapping>,
}

/// An operation of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ForkOp {
    /// The fork.
    Fork,
    /// The fork, and then writes by the parent. The faults also have a row of their own.
    ForkWrite,
}

impl Args {
    /// Returns the options with which `bench all` forks these regions.
    pub fn of(regions: &regions::Args) -> Args {
        Args {
            regions: regions.clone(),
            ops: vec![ForkOp::Fork],
            writes: vec![Steps::EveryPage],
            mapping: vec![Mapping::Anonymous],
        }
    }
}

/// Runs the benchmark and returns its section.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    let ops = |op: &ForkOp| match op {
        ForkOp::Fork => vec![Op::Fork],
        ForkOp::ForkWrite => args.writes.iter().flat_map(|&writes| [Op::ForkWrite(writes), Op::Cow(writes)]).collect(),
    };
    let ops: Vec<Op> = args.ops.iter().flat_map(ops).collect();
    let subject = Subject { name: "fork", title: "Forking", ..Subject::default() };
    regions::section(&args.regions, &args.mapping, &ops, &subject)
}
