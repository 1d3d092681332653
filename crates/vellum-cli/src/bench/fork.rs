//! `bench fork`: fork of an address space, by folio size.

use vellum_linux::workload::case::Op;
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
    /// The mappings of the regions. Those of files have folios below 2 MiB.
    #[arg(long, value_delimiter = ',', default_value = "anon")]
    pub mapping: Vec<Mapping>,
}

impl Args {
    /// Returns the options with which `bench all` forks these regions.
    pub fn of(regions: &regions::Args) -> Args {
        Args { regions: regions.clone(), mapping: vec![Mapping::Anonymous] }
    }
}

/// Runs the benchmark and returns its section.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    let subject = Subject { name: "fork", title: "Forking", ..Subject::default() };
    regions::section(&args.regions, &args.mapping, &[Op::Fork], &subject)
}
