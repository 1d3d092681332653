//! `bench small`: `munmap` of small regions and of parts of a region, by a call each.

use vellum_linux::workload::calls::Calls;
use vellum_linux::workload::case::{Case, Op, parse_folio};
use vellum_linux::workload::mapping::Mapping;

use super::regions::{self, Subject};
use super::report::Section;

/// The most small regions that are mapped at a time. Linux permits 65,530 VMAs by default.
const MOST: u64 = 16 << 10;

/// The options of the benchmark.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The memory: all small regions together, which are at most 16,384, or the region of which
    /// parts are unmapped.
    #[command(flatten)]
    pub regions: regions::Args,
    /// Lengths of the small regions, in KiB. They have folios of at most their length.
    #[arg(long, value_delimiter = ',', default_value = "4,16,64,256,1024", value_parser = parse_folio)]
    pub lengths: Vec<u32>,
}

/// Runs the benchmark and returns its section.
///
/// # Errors
/// `--size` is not a multiple of 2 MiB.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    let subject = Subject { name: "small", title: TITLE, method: METHOD, beside: None };
    let section = regions::section_of(&args.regions, &work(args), &subject)?;
    Ok(Section { title: TITLE.to_owned(), ..section })
}

/// Returns the cases and the operation on each, in the order of the report.
fn work(args: &Args) -> Vec<(Case, Op)> {
    let cases: Vec<Case> = regions::cases(&args.regions, Mapping::Anonymous).collect();
    let small = [false, true].into_iter().flat_map(|random| {
        let of_a_length = |&kib: &u32| {
            let bytes = args.regions.size.min(u64::from(kib) * 1024 * MOST);
            let fitting = cases.iter().filter(move |case| case.folio_kib <= kib);
            fitting.map(move |&case| (Case { bytes, ..case }, Op::Calls(Calls::Small { kib, random })))
        };
        args.lengths.iter().flat_map(of_a_length).collect::<Vec<_>>()
    });
    let parts = [Calls::MiddleQuarter, Calls::EverySecond].map(Op::Calls);
    let parts = parts.into_iter().flat_map(|op| cases.iter().map(move |&case| (case, op)));
    small.chain(parts).collect()
}

const TITLE: &str = "Unmapping small regions, and parts of a region";

const METHOD: &[(&str, &str)] = &[
    (
        "a figure",
        "is the time of a call: that of all calls of a run, divided by their number. Unlike in other benchmarks, \
         nothing evicts page tables and descriptors from the caches between the touch and the calls.",
    ),
    (
        "entry",
        "is in Linux's figures only: the engine's calls do not enter a kernel, and a call on one page is little more \
         than that entry. So compare these rows only together with what a system call costs on this machine.",
    ),
    (
        "linux",
        "makes the calls in a process that has one thread and no other memory. The engine calls in an address space \
         with nothing else, too.",
    ),
    ("floor", "has no figure here: it lacks all that a small call costs."),
    (
        "small regions",
        "lie as far apart as they are long, so that each is a VMA of its own. They are touched in ascending order; \
         the first order in a heading is that of the calls, the second that of the touches.",
    ),
];

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn work_of(line: &str) -> Vec<(Case, Op)> {
        work(&Line::parse_from(line.split(' ')).args)
    }

    #[test]
    fn folios_are_no_longer_than_their_region() {
        let work = work_of("small --size 64MiB --folios 4,64,2048 --arms ascending");
        let small: Vec<(u32, u32)> =
            work.iter().filter_map(|(case, op)| Some((op.calls()?.kib()?, case.folio_kib))).collect();
        assert_eq!(small.len(), 2 * (2 + 3 * 2), "4 and 16 KiB have 4 KiB folios, 64 KiB and longer both");
        assert!(small.iter().all(|(kib, folio_kib)| folio_kib <= kib));
        assert_eq!(work.len() - small.len(), 2 * 4, "parts are unmapped of regions of all folio sizes, and huge ones");
    }

    #[test]
    fn small_regions_fit_into_the_limit_on_vmas() {
        for (case, op) in work_of("small --size 1GiB --no-huge") {
            let calls = op.calls().unwrap();
            assert!(calls.ranges(case.bytes).len() as u64 <= MOST);
            assert!(calls.kib() != Some(4) || case.bytes == 64 << 20);
        }
    }
}
