//! `bench pageout`: memory goes to swap, and comes back, by folio size and by what is in it.

use std::path::PathBuf;

use super::case::{Op, parse_folio};
use super::data::Data::{Compressible, SameFilled};
use super::regions::{self, Subject};
use super::report::Section;

/// On what to measure.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Length of the region: a multiple of 2 MiB.
    #[arg(long, default_value = "256MiB", value_parser = regions::parse_size)]
    pub size: u64,
    /// Runs of each contender; the figure is their median.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Folio sizes in KiB whose pages are mapped one entry each.
    #[arg(long, value_delimiter = ',', default_values_t = FOLIOS, value_parser = parse_folio)]
    pub folios: Vec<u32>,
    /// Leave out the region of 2 MiB folios that are mapped by one upper-level entry each.
    #[arg(long)]
    pub no_huge: bool,
    /// Where the huge-page settings are.
    #[arg(long, hide = true, default_value = "/sys/kernel/mm/transparent_hugepage")]
    pub thp_root: PathBuf,
}

const SIZE: u64 = 256 << 20;
const FOLIOS: [u32; 3] = [4, 64, 2048];

impl Args {
    /// For a report of everything: no more than `unmap` measures.
    pub fn beside(unmap: &regions::Args) -> Args {
        Args {
            size: unmap.size.min(SIZE),
            runs: unmap.runs,
            folios: unmap.those_of(&FOLIOS),
            no_huge: unmap.no_huge,
            thp_root: unmap.thp_root.clone(),
        }
    }
}

/// Measures, and tells of it.
pub fn section(args: Args) -> anyhow::Result<Section> {
    let Args { size, runs, folios, no_huge, thp_root } = args;
    let on = regions::Args { size, runs, folios, no_huge, thp_root };
    let ops = [SameFilled, Compressible].map(|data| [Op::Out(data), Op::In(data)]).concat();
    regions::section(&on, &ops, &Subject { name: "pageout", title: "Swapping out and in", method: METHOD })
}

const METHOD: &[(&str, &str)] = &[
    (
        "swap",
        "is compressed memory: the engine's own, and for Linux a new zram device, with the same algorithm and before all other swap \
         devices. What each page holds afterwards is compared with what was written to it, on all sides, outside of the figures.",
    ),
    (
        "floor",
        "reads each page, keeps its word or compresses it to where it stays, and says so in a record; each entry says which; descriptors are \
         freed. Compressed pages lie one after the other and cannot be freed by themselves, which is what memory in pieces costs.",
    ),
    (
        "linux",
        "is asked again for what was busy, at most eight times, which is in its figure. Its settings allow folios of the size in question \
         to come back, too.",
    ),
];
