//! `bench unmap`: munmap, discard, exit and mprotect, by folio size.

use vellum_linux::workload::case::Op;

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
}

/// Runs the benchmark and returns its section.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    regions::section(&args.regions, &args.ops, &Subject { name: "unmap", title: "Taking away", ..Subject::default() })
}
