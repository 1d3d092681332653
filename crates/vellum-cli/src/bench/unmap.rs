//! `bench unmap`: munmap, discard, exit and mprotect, by folio size.

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
    /// Operations to measure. `touch`, the page faults, is reported, but not compared.
    #[arg(long, value_delimiter = ',', default_value = "munmap,dontneed,exit,protect,touch")]
    pub ops: Vec<Op>,
    /// The mappings of the regions. Of other than anonymous memory, `munmap` and `touch` are
    /// measured, with folios below 2 MiB.
    #[arg(long, value_delimiter = ',', default_value = "anon")]
    pub mapping: Vec<Mapping>,
}

/// Runs the benchmark and returns its section.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    let subject = Subject { name: "unmap", title: "Taking away", ..Subject::default() };
    regions::section(&args.regions, &args.mapping, &args.ops, &subject)
}
