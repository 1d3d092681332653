//! Benchmarks: the same work by several contenders in turn, and a report.
//!
//! | module | contents |
//! |---|---|
//! | [`contender`] | the interface of contenders, and the columns of a comparison |
//! | [`turns`] | the alternation of contenders, so that noise affects all alike |
//! | [`floor`] | the contender that is a lower bound of an operation |
//! | [`engine`] | the contender that is Vellum, on a simulated machine |
//! | [`unmap`], [`fork`], [`pageout`], [`lazyfree`], [`files`], [`small`], [`threads`], [`tables`] | the benchmarks |
//! | [`regions`] | the common part of the first six |
//! | [`entry`] | the costs that the engine's column leaves out, measured on Linux |
//! | [`mod@overhead`] | the memory that a kernel takes to describe and to map memory |
//! | [`tails`] | the distribution of an operation's times while memory is reclaimed |
//! | [`holds`] | a benchmark without contenders: non-preemptible sections of the reference kernel |
//! | [`contpte`] | a benchmark without contenders: a trace replayed under mapping policies |
//! | [`load`] | the other work on the machine during a measurement |
//! | [`report`] | rows to a terminal, to JSON lines, to a web page |
//!
//! The contender that is the kernel of this machine is in the crate `vellum-linux`.
//!
//! A benchmark returns a [`report::Section`]; `bench all` is several sections in one report. A new
//! benchmark needs a module with `section(&Args) -> Section`, and a line in [`Bench`] and in
//! [`run`].

pub mod contender;
pub mod contpte;
pub mod engine;
pub mod entry;
pub mod files;
pub mod floor;
pub mod fork;
pub mod holds;
pub mod lazyfree;
pub mod load;
pub mod machine;
pub mod memory;
pub mod overhead;
pub mod pageout;
pub mod progress;
pub mod regions;
pub mod report;
pub mod small;
pub mod tables;
pub mod tails;
pub mod threads;
pub mod turns;
pub mod unmap;
pub mod walker;

use std::path::Path;

use clap::Subcommand;
use vellum_linux::settings::page_reporting::PageReporting;

/// The benchmarks.
#[derive(Subcommand)]
pub enum Bench {
    /// Remove memory: munmap, MADV_DONTNEED, exit; and change it: mprotect.
    ///
    /// A region is mapped, touched page by page, and then timed while it is unmapped (or made
    /// read-only). Its folios are 4 KiB to 2 MiB, each page mapped by its own PTE; `huge` is 2 MiB
    /// folios, each mapped by one huge PTE. They are touched in ascending order, which makes their
    /// frames consecutive, in random order, which scatters them, in turn with other address
    /// spaces, and in random order in memory that other programs left in pieces (`--arms`).
    Unmap {
        /// The options of the benchmark.
        #[command(flatten)]
        args: unmap::Args,
        /// The outputs of the report.
        #[command(flatten)]
        output: report::Output,
    },
    /// Fork an address space.
    ///
    /// A region is mapped, touched page by page, and then its address space is forked. Folios are
    /// as in `unmap`.
    Fork {
        /// The options of the benchmark.
        #[command(flatten)]
        args: fork::Args,
        /// The outputs of the report.
        #[command(flatten)]
        output: report::Output,
    },
    /// Swap memory out and in again: MADV_PAGEOUT.
    ///
    /// A region's pages are filled, swapped out to compressed memory (lz4), and swapped in; all
    /// contents are compared afterwards. For Linux the benchmark sets up a zram swap device, and
    /// removes it however it ends, which needs root.
    #[command(mut_arg("size", |size| size.default_value("256MiB")), mut_arg("folios", few))]
    Pageout {
        /// The options of the benchmark.
        #[command(flatten)]
        args: pageout::Args,
        /// The outputs of the report.
        #[command(flatten)]
        output: report::Output,
    },
    /// Reclaim lazyfree memory: MADV_FREE, then MADV_PAGEOUT.
    ///
    /// A region is mapped, touched and made lazyfree; then it is reclaimed. Once no page is written
    /// to meanwhile, and once every tenth 2 MiB range is: exactly those must stay.
    #[command(mut_arg("folios", few))]
    Lazyfree {
        /// On what to measure.
        #[command(flatten)]
        args: regions::Args,
        /// The outputs of the report.
        #[command(flatten)]
        output: report::Output,
    },
    /// Read, write, map and reclaim a file of a disk.
    ///
    /// A file is written by calls with the bytes of a folio each, written to the disk, read by
    /// calls and through a mapping, and reclaimed, clean and dirty. The disk is in memory: for
    /// Linux the benchmark makes a zram device with an ext4 file system, which no other process
    /// sees, and removes it however it ends. That needs root, and mke2fs.
    #[command(
        mut_arg("size", |size| size.default_value("256MiB")),
        mut_arg("folios", few),
        mut_arg("arms", |arms| arms.default_value("ascending,aged").help("Orders in which the file is written")),
        mut_arg("no_huge", |huge| huge.hide(true))
    )]
    Files {
        /// The options of the benchmark.
        #[command(flatten)]
        args: files::Args,
        /// The outputs of the report.
        #[command(flatten)]
        output: report::Output,
    },
    /// Unmap memory by many small calls: small regions, and parts of a region.
    ///
    /// Many regions of 4 KiB to 1 MiB are mapped, touched, and then unmapped by a call each, in
    /// ascending and in random order. Of one large region, the middle quarter is unmapped by one
    /// call, or every second 64 KiB by a call each, which splits VMAs and huge PTEs. The figure is
    /// the time of a call. The engine's calls do not enter a kernel.
    #[command(
        mut_arg("size", |size| size.default_value("256MiB")),
        mut_arg("folios", few),
        mut_arg("arms", |arms| arms.default_value("ascending"))
    )]
    Small {
        /// The options of the benchmark.
        #[command(flatten)]
        args: small::Args,
        /// The outputs of the report.
        #[command(flatten)]
        output: report::Output,
    },
    /// Unmap memory with several threads at once: does it scale?
    ///
    /// Each thread maps, touches and unmaps a region of its own, all at the same time, each on its
    /// own CPU; in one address space, and in one each. The scaling is the throughput relative to
    /// one thread.
    Threads {
        /// The options of the benchmark.
        #[command(flatten)]
        args: threads::Args,
        /// The outputs of the report.
        #[command(flatten)]
        output: report::Output,
    },
    /// Time single operations while memory is reclaimed: how long are the tails?
    ///
    /// One thread takes page faults, unmaps 64 KiB, or forks a process of 16 MiB, and times each;
    /// another thread has the process's memory paged out meanwhile, and reads it again, over and
    /// over. The figures are quantiles of the clock's times, so preemption by other work is in
    /// them: run this on a quiet machine with two CPUs or more. For Linux it sets up a zram swap
    /// device, and removes it however it ends, which needs root.
    Tails {
        /// The options of the benchmark.
        #[command(flatten)]
        args: tails::Args,
        /// The outputs of the report.
        #[command(flatten)]
        output: report::Output,
    },
    /// Touch and discard a long range of addresses: how many page tables remain?
    ///
    /// Touches 2 MiB at a time and discards them at once, over the whole range. Nothing is mapped
    /// in the end, so no page table is needed; the figure is the memory in page tables that remain.
    Tables {
        /// The options of the benchmark.
        #[command(flatten)]
        args: tables::Args,
        /// The outputs of the report.
        #[command(flatten)]
        output: report::Output,
    },
    /// Count the memory that a kernel takes to describe and to map a GiB.
    ///
    /// Page descriptors, page tables, VMAs and the rest, of a region of folios of each size. The
    /// engine's figures are counted in its own free frames, so that nothing is missing; Linux's
    /// are those that it reports. No times: a busy machine has the same figures. Root is needed
    /// for folio sizes that Linux's settings do not give, and for the sizes of its VMAs.
    Memory {
        /// The options of the benchmark.
        #[command(flatten)]
        args: overhead::Args,
        /// The outputs of the report.
        #[command(flatten)]
        output: report::Output,
    },
    /// Measure what the engine's column leaves out: system calls, exceptions, TLB flushes.
    ///
    /// The engine runs on a simulated machine, whose programs enter no kernel and whose CPUs have
    /// no TLB. This measures on Linux what these events cost, each by calls that differ in the
    /// event alone, counts the events of the engine's operations, and estimates what they would
    /// add to the engine's times. Needs no root.
    Entry {
        /// The options of the benchmark.
        #[command(flatten)]
        args: entry::Args,
        /// The outputs of the report.
        #[command(flatten)]
        output: report::Output,
    },
    /// Replay a program's memory accesses: what do larger translations gain it?
    ///
    /// The engine makes the page tables, under policies from single 4 KiB pages to contpte blocks
    /// and larger pages; the TLBs of real cores are simulated. `tools/trace` in the sources makes
    /// traces.
    Contpte {
        /// The options of the benchmark.
        #[command(flatten)]
        args: contpte::Args,
        /// The outputs of the report.
        #[command(flatten)]
        output: report::Output,
    },
    /// Measure non-preemptible sections: with a spin lock held, with interrupts masked, between two
    /// preemption points.
    ///
    /// The reference kernel runs each memory operation at its worst size, in a machine whose clock
    /// counts instructions, and records the longest sections. Takes minutes, and needs `./x build
    /// --holds` first.
    Holds {
        /// The options of the benchmark.
        #[command(flatten)]
        args: holds::Args,
        /// The outputs of the report.
        #[command(flatten)]
        output: report::Output,
    },
    /// Run `unmap`, `fork`, `pageout`, `lazyfree`, `threads` and `tables`, into one report.
    All {
        /// The options of `unmap`, and the regions of `fork` and, smaller, of `pageout` and
        /// `lazyfree`.
        #[command(flatten)]
        unmap: unmap::Args,
        /// The options of `threads` besides; its regions are at most those of `unmap`.
        #[command(flatten)]
        threads: threads::ThreadCount,
        /// The options of `tables`.
        #[command(flatten)]
        tables: tables::Args,
        /// The outputs of the report.
        #[command(flatten)]
        output: report::Output,
    },
}

/// Sets [`regions::FEW_FOLIOS`] as the default.
fn few(folios: clap::Arg) -> clap::Arg {
    folios.default_value("4,64,2048")
}

/// Runs the benchmark and writes the report.
///
/// # Errors
/// The benchmark can't run, or the report can't be written.
pub fn run(what: Bench) -> anyhow::Result<()> {
    // First: the load and the settings of the machine before any measurement.
    let mut machine = machine::Machine::of_this();
    let reporting = PageReporting::at(Path::new("/sys"));
    // Benchmarks whose figures of Linux are no times, or which have none.
    let without_times =
        matches!(what, Bench::Tables { .. } | Bench::Memory { .. } | Bench::Contpte { .. } | Bench::Holds { .. });
    // Open outputs before the first measurement: a wrong path must not cost minutes.
    let (mut sections, writer) = match what {
        Bench::Unmap { args, output } => {
            let writer = output.open()?;
            (vec![unmap::section(&args)?], writer)
        }
        Bench::Fork { args, output } => {
            let writer = output.open()?;
            (vec![fork::section(&args)?], writer)
        }
        Bench::Pageout { args, output } => {
            let writer = output.open()?;
            (vec![pageout::section(&args)?], writer)
        }
        Bench::Lazyfree { args, output } => {
            let writer = output.open()?;
            (vec![lazyfree::section(&args)?], writer)
        }
        Bench::Files { args, output } => {
            let writer = output.open()?;
            (vec![files::section(&args)?], writer)
        }
        Bench::Small { args, output } => {
            let writer = output.open()?;
            (vec![small::section(&args)?], writer)
        }
        Bench::Threads { args, output } => {
            let writer = output.open()?;
            (vec![threads::section(&args)?], writer)
        }
        Bench::Tails { args, output } => {
            let writer = output.open()?;
            (vec![tails::section(&args)], writer)
        }
        Bench::Tables { args, output } => {
            let writer = output.open()?;
            (vec![tables::section(&args)], writer)
        }
        Bench::Memory { args, output } => {
            let writer = output.open()?;
            (vec![overhead::section(&args)?], writer)
        }
        Bench::Entry { args, output } => {
            let writer = output.open()?;
            (vec![entry::section(&args)?], writer)
        }
        Bench::Contpte { args, output } => {
            let writer = output.open()?;
            (vec![contpte::section(&args)?], writer)
        }
        Bench::Holds { args, output } => {
            let writer = output.open()?;
            (vec![holds::section(&args)?], writer)
        }
        Bench::All { unmap, threads, tables, output } => {
            let writer = output.open()?;
            let threads = threads::Args::beside(threads, &unmap.regions);
            let sections = vec![
                unmap::section(&unmap)?,
                fork::section(&fork::Args::of(&unmap.regions))?,
                pageout::section(&pageout::Args::of(unmap.regions.less(256 << 20)))?,
                lazyfree::section(&unmap.regions.less(1 << 30))?,
                threads::section(&threads)?,
                tables::section(&tables),
            ];
            (sections, writer)
        }
    };
    if !without_times {
        let reported = reporting.reported_since().map(|bytes| format!("{} MiB", bytes >> 20));
        machine.facts.extend(reported.map(|reported| ("reported during the run", reported)));
        if let Some(last) = sections.last_mut() {
            last.notes.extend(reporting.warning());
        }
    }
    writer.write(&report::Report { machine, sections })
}
