//! `bench pageout`: memory goes to swap, and comes back, by folio size and by what is in it.

use vellum_linux::workload::case::Op;
use vellum_linux::workload::data::Data::{Compressible, SameFilled};

use super::regions::{self, Args, Subject};
use super::report::Section;

/// Measures, and tells of it.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    let ops = [SameFilled, Compressible].map(|data| [Op::SwapOut(data), Op::SwapIn(data)]).concat();
    let subject = Subject { name: "pageout", title: "Swapping out and in", method: METHOD, beside: None };
    regions::section(args, &ops, &subject)
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
