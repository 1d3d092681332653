//! Benchmarks: the same work by several contenders, in turn, and a report of it.
//!
//! | module | its story |
//! |---|---|
//! | [`contender`] | who is measured, and what a contender must supply |
//! | [`turns`] | taking turns, so that noise falls on everybody |
//! | [`floor`] | the contender that does the least an operation can be |
//! | [`engine`] | the contender that is Vellum, on a simulated machine |
//! | [`unmap`], [`fork`], [`pageout`], [`lazyfree`], [`threads`], [`tables`] | the benchmarks: cases in, rows out |
//! | [`regions`] | what the first four have in common |
//! | [`holds`] | one without contenders too: the reference kernel, under a clock that counts instructions |
//! | [`contpte`] | a benchmark without contenders: a trace replayed under policies |
//! | [`report`] | rows to a terminal, to JSON lines, to a web page |
//!
//! A benchmark ends in a [`report::Section`]; `bench all` is nothing but several sections in one
//! report. A new one needs a module with `section(&Args) -> Section`, and a line in [`Bench`] and
//! in [`run`].

pub mod contender;
pub mod contpte;
pub mod engine;
pub mod floor;
pub mod fork;
pub mod holds;
pub mod lazyfree;
pub mod machine;
pub mod memory;
pub mod pageout;
pub mod progress;
pub mod regions;
pub mod report;
pub mod tables;
pub mod threads;
pub mod turns;
pub mod unmap;
pub mod walker;

use clap::Subcommand;

/// The benchmarks there are.
#[derive(Subcommand)]
pub enum Bench {
    /// Take memory away: munmap, MADV_DONTNEED, exit; and change it: mprotect.
    ///
    /// A region is mapped, touched page by page, and then measured while it is taken away (or made
    /// read-only). Its folios are 4 KiB to 2 MiB, each page mapped by a page-table entry of its
    /// own; `huge` is 2 MiB folios mapped by one upper-level entry each.
    Unmap {
        /// What to measure.
        #[command(flatten)]
        args: unmap::Args,
        /// Where to write it.
        #[command(flatten)]
        output: report::Output,
    },
    /// Make a child of an address space: fork.
    ///
    /// A region is mapped, touched page by page, and then the address space that holds it is
    /// forked. Folios are as in `unmap`.
    Fork {
        /// On what to measure.
        #[command(flatten)]
        args: regions::Args,
        /// Where to write it.
        #[command(flatten)]
        output: report::Output,
    },
    /// Have memory written to swap, and read it again: MADV_PAGEOUT.
    ///
    /// A region's pages are filled, go to swap in compressed memory (lz4), and come back; all are
    /// compared afterwards. For Linux the swap device (zram) is made by the benchmark, and removed
    /// however it ends, which needs root.
    #[command(mut_arg("size", |size| size.default_value("256MiB")), mut_arg("folios", few))]
    Pageout {
        /// On what to measure.
        #[command(flatten)]
        args: regions::Args,
        /// Where to write it.
        #[command(flatten)]
        output: report::Output,
    },
    /// Have memory taken back that its owner has no use for any more: MADV_FREE, and reclaim by its
    /// group.
    ///
    /// A region is mapped, touched and said to be free; then its group gives back what it can. Once
    /// nobody writes to it meanwhile, once every tenth stretch of 2 MiB is written to: exactly that
    /// must stay. For Linux this needs root, to make a control group.
    #[command(mut_arg("folios", few))]
    Lazyfree {
        /// On what to measure.
        #[command(flatten)]
        args: regions::Args,
        /// Where to write it.
        #[command(flatten)]
        output: report::Output,
    },
    /// Take memory away with several threads at once: does one wait for another?
    ///
    /// Each thread maps and touches a region of its own and unmaps it, all together, on a CPU of
    /// its own; in one address space, and in one each. The scaling is how much more they do in the
    /// same time than one thread.
    Threads {
        /// What to measure.
        #[command(flatten)]
        args: threads::Args,
        /// Where to write it.
        #[command(flatten)]
        output: report::Output,
    },
    /// Touch and discard a long span of addresses: how many page tables are left behind?
    ///
    /// Touches 2 MiB at a time and discards it at once, over the whole span. Nothing is mapped in
    /// the end, so no page table is needed; what the process still pays for is the figure.
    Tables {
        /// What to measure.
        #[command(flatten)]
        args: tables::Args,
        /// Where to write it.
        #[command(flatten)]
        output: report::Output,
    },
    /// Replay a program's memory accesses: what are larger translations worth to it?
    ///
    /// The engine makes the page tables, under policies from single pages of 4 KiB to contiguous
    /// blocks and larger pages; the translation caches of real cores are simulated. `tools/trace`
    /// in the sources makes traces.
    Contpte {
        /// What to replay.
        #[command(flatten)]
        args: contpte::Args,
        /// Where to write it.
        #[command(flatten)]
        output: report::Output,
    },
    /// How long a CPU can do nothing else: with a spin lock held, with interrupts masked, between
    /// two places to give way.
    ///
    /// The reference kernel runs each operation on memory at its worst size, in a machine whose
    /// clock counts instructions, and records the longest stretches. Takes minutes, and `./x build
    /// --holds` first.
    Holds {
        /// What to measure.
        #[command(flatten)]
        args: holds::Args,
        /// Where to write it.
        #[command(flatten)]
        output: report::Output,
    },
    /// Run every benchmark of time and memory, into one report.
    All {
        /// What `unmap` measures, on what `fork` is measured, and, with less of it, `pageout` and
        /// `lazyfree`.
        #[command(flatten)]
        unmap: unmap::Args,
        /// What `threads` measures besides: no more than `unmap`.
        #[command(flatten)]
        threads: threads::Crowd,
        /// What `tables` measures.
        #[command(flatten)]
        tables: tables::Args,
        /// Where to write it.
        #[command(flatten)]
        output: report::Output,
    },
}

/// [`regions::FEW_FOLIOS`], unless others are asked for.
fn few(folios: clap::Arg) -> clap::Arg {
    folios.default_value("4,64,2048")
}

/// Runs what was asked for and writes the report.
pub fn run(what: Bench) -> anyhow::Result<()> {
    // Before anything is measured: the load and the settings of the machine as we found it.
    let machine = machine::Machine::of_this();
    // Before the first measurement too: an output that cannot be written should not cost minutes.
    let (sections, writer) = match what {
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
        Bench::Threads { args, output } => {
            let writer = output.open()?;
            (vec![threads::section(&args)?], writer)
        }
        Bench::Tables { args, output } => {
            let writer = output.open()?;
            (vec![tables::section(&args)], writer)
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
                fork::section(&unmap.regions)?,
                pageout::section(&unmap.regions.less(256 << 20))?,
                lazyfree::section(&unmap.regions.less(1 << 30))?,
                threads::section(&threads)?,
                tables::section(&tables),
            ];
            (sections, writer)
        }
    };
    writer.write(&report::Report { machine, sections })
}
