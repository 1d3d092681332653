//! `bench pageout`: swap-out and swap-in, by folio size and page contents.

use vellum_linux::workload::case::Op;
use vellum_linux::workload::data::Data::{Compressible, SameFilled};
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
    /// The bytes that are read to swap in, in ascending order. The other pages are swapped in
    /// outside of the figure.
    #[arg(long, value_delimiter = ',', default_value = "every-page")]
    pub reads: Vec<Steps>,
}

impl Args {
    /// Returns the options with which `bench all` swaps these regions.
    pub fn of(regions: regions::Args) -> Args {
        Args { regions, reads: vec![Steps::EveryPage] }
    }
}

/// Runs the benchmark and returns its section.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    // The swap-out is the same before all reads: one row has it.
    let swaps = |data| {
        let out = args.reads.first().map(|&reads| Op::SwapOut(data, reads));
        out.into_iter().chain(args.reads.iter().map(move |&reads| Op::SwapIn(data, reads)))
    };
    let ops: Vec<Op> = [SameFilled, Compressible].into_iter().flat_map(swaps).collect();
    let subject = Subject { name: "pageout", title: "Swapping out and in", method: METHOD, beside: None };
    regions::section(&args.regions, &[Mapping::Anonymous], &ops, &subject)
}

const METHOD: &[(&str, &str)] = &[
    (
        "swap",
        "is compressed memory: the engine's own, and for Linux a new zram device, with the same algorithm and before \
         all other swap devices. The contents of all pages are compared afterwards, by all contenders, outside of the \
         figures.",
    ),
    (
        "floor",
        "reads each page, and stores its word or its compressed bytes, with a record that each entry refers to; \
         descriptors are freed. Compressed pages lie one after the other and can't be freed one by one, which the \
         other contenders' stores can.",
    ),
    (
        "linux",
        "repeats the call for pages that stayed, at most eight times, which is in its figure. Its settings also allow \
         folios of this size at swap-in.",
    ),
];
