//! `bench pageout`: swap-out and swap-in, by folio size and page contents.

use vellum_linux::workload::case::Op;
use vellum_linux::workload::data::Data::{Compressible, SameFilled};
use vellum_linux::workload::mapping::Mapping;

use super::regions::{self, Args, Subject};
use super::report::Section;

/// Runs the benchmark and returns its section.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    let ops = [SameFilled, Compressible].map(|data| [Op::SwapOut(data), Op::SwapIn(data)]).concat();
    let subject = Subject { name: "pageout", title: "Swapping out and in", method: METHOD, beside: None };
    regions::section(args, &[Mapping::Anonymous], &ops, &subject)
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
