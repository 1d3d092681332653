//! `bench files`: reads, writes and reclaim of a file of a disk, by folio size.

use vellum_linux::workload::arm::Arm;
use vellum_linux::workload::case::{Case, Op};
use vellum_linux::workload::files::FileOp;
use vellum_linux::workload::mapping::Mapping;

use super::regions::{self, Subject};
use super::report::Section;

/// The options of the benchmark.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The file.
    #[command(flatten)]
    pub regions: regions::Args,
    /// Operations to measure.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "write,fsync,read,read-again,read-random,map,map-again,pageout,pageout-dirty"
    )]
    pub ops: Vec<FileOp>,
}

/// Runs the benchmark and returns its section.
///
/// # Errors
/// `--size` is not a multiple of 2 MiB.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    let subject = Subject { name: "files", title: "Files of a disk:", method: METHOD, beside: None };
    let ops: Vec<Op> = args.ops.iter().copied().map(Op::File).collect();
    regions::section_of_all(&args.regions, &cases(&args.regions), &ops, &subject)
}

/// Returns the cases: a file's folios of 2 MiB are mapped by huge PTEs. The neighbours of
/// [`Arm::Interleaved`] have anonymous memory, so there is no such file.
fn cases(args: &regions::Args) -> Vec<Case> {
    let args = regions::Args { no_huge: true, ..args.clone() };
    let cases = regions::cases(&args, Mapping::DiskFile).filter(|case| case.arm != Arm::Interleaved);
    cases.map(|case| Case { huge: case.folio_kib == 2048, ..case }).collect()
}

/// Returns the description of an operation in the report.
pub fn description(op: FileOp) -> &'static str {
    match op {
        FileOp::Write => {
            "An empty file is written by calls that have the bytes of a folio each, so that its folios have this size. \
             In ascending order, or, for aged, in random order. Nothing is written to the disk."
        }
        FileOp::Fsync => "The file that was just written is written to the disk (fsync).",
        FileOp::Read => {
            "The file is read from its beginning to its end by calls with 64 KiB, and nothing of it is in memory. At \
             most 2 MiB are read ahead. Linux chooses the size of its folios by that; the engine's have at most this \
             size."
        }
        FileOp::ReadAgain => "It is read by the same calls when all of it is in memory, in folios of this size.",
        FileOp::ReadRandom => "Each page of the file is read by a call of its own, in random order, from the disk.",
        FileOp::Map => {
            "A byte is read in each 64 KiB through a mapping, in order, and nothing of the file is in memory. \
             Each read is a page fault that maps pages around it. If these are not all pages, a byte is read in each \
             page then."
        }
        FileOp::MapAgain => {
            "The same bytes are read through a fresh mapping when all of the file is in memory, in folios of this \
             size; of folios of 2 MiB a byte in each."
        }
        FileOp::Pageout => {
            "The pages of the mapped file, all of which were read, are clean. They are reclaimed (MADV_PAGEOUT): their \
             PTEs are cleared and their folios freed."
        }
        FileOp::PageoutDirty => {
            "The pages were written through the mapping. They are written to the disk (msync) and reclaimed \
             (MADV_PAGEOUT)."
        }
    }
}

const METHOD: &[(&str, &str)] = &[
    (
        "the disk",
        "is in memory, and takes a word for each page that one word fills, which all pages of the file are: a write \
         reads the page, and a read fills it. For Linux it is a new zram device with ext4, without a journal; it reads \
         and writes in the calling thread. The engine's is a table of the simulated machine. So most of the figures is \
         the cache's work and the copying, and a file system's is in those of Linux only: its extents, its blocks, the \
         bios. Compare these with the instructions of the reference kernel, which has ext4, too (vellum compare).",
    ),
    (
        "folios",
        "of the file have the size of the row because the calls that write it have; for 2 MiB a huge PTE maps each. \
         Nothing makes Linux read a file into folios of a size. A row whose file got other folios is marked: of the \
         engine's files, and of Linux's after operations that begin with the file in memory and leave it there.",
    ),
    (
        "floor",
        "copies the bytes, reads or fills the disk's pages, and writes or clears the PTEs and a descriptor for each \
         folio.",
    ),
    ("vellum vs page", "is only in rows of mappings: a read or write by a call changes no PTE."),
];

#[cfg(test)]
mod tests {
    use clap::{Parser, ValueEnum};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn only_folios_of_2_mib_are_mapped_huge_and_no_file_has_neighbours() {
        let line = "files --size 64MiB --folios 4,64,2048 --arms interleaved,ascending";
        let huge: Vec<bool> =
            cases(&Line::parse_from(line.split(' ')).args.regions).iter().map(|case| case.huge).collect();
        assert_eq!(huge, [false, false, true]);
    }

    #[test]
    fn all_operations_are_measured_by_default() {
        assert_eq!(Line::parse_from(["files"]).args.ops, FileOp::value_variants());
    }
}
