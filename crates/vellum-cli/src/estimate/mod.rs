//! `vellum inspect --estimate`: estimates the cost of exit, munmap, fork, swap-out and reclaim of a
//! process, as it is and with other folio sizes.
//!
//! The process's mappings are copied twice, into a process on this kernel and into the engine, and
//! each operation is timed on both copies in turn. The process itself is only read. Of a large
//! process a random share is copied, and the figures are extrapolated.
//!
//! | module | contents |
//! |---|---|
//! | `import` | the layout that is copied, from the survey of the process |
//! | `show`, `json`, `html` | the report |

mod html;
mod import;
mod json;
mod show;

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::ensure;
use maud::Markup;
use vellum_inspect::extension::{Analysis, Collector, Extension, Part};
use vellum_linux::Skip;
use vellum_linux::child::copy::ProcessCopier;
use vellum_linux::cpu::PinnedCpu;
use vellum_linux::stats::Summary;
use vellum_linux::workload::case::PAGE;
use vellum_linux::workload::layout::{Folios, Layout, Operation, Timed};
use vellum_pagemap::{Memory, Region, Vma, VmaSurvey};

use crate::bench::engine::Engine;
use crate::bench::progress::Progress;
use import::{Import, Imported};

/// The directory of the huge-page settings.
const THP: &str = "/sys/kernel/mm/transparent_hugepage";
/// The limit of a copy's memory with larger folios, in multiples of `--estimate-memory`.
const MORE: u64 = 4;

/// The options of the estimate.
#[derive(Clone, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Estimate the cost of exit, munmap, fork, swap-out and lazyfree reclaim, on this kernel and
    /// on Vellum, as it is and with other folio sizes.
    ///
    /// The process's mappings are copied (not its contents) into a helper process and into the
    /// engine, and the operations are done on the copies. As root, huge-page settings are changed
    /// for moments, and a zram swap device exists meanwhile; all is restored, however this ends.
    #[arg(long, conflicts_with_all = ["all", "cgroup", "children", "watch", "diff"])]
    pub estimate: bool,
    /// The memory that a copy may take. Of a larger process, a share is copied.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size, requires = "estimate")]
    pub estimate_memory: u64,
    /// Folio sizes in KiB to try besides those of the process; 2048 is mapped by huge PTEs.
    #[arg(
        long,
        value_name = "KIB",
        value_delimiter = ',',
        default_value = "4,64,2048",
        value_parser = vellum_linux::workload::case::parse_folio,
        requires = "estimate"
    )]
    pub estimate_folios: Vec<u32>,
    /// Runs of each operation; the figure is the median.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..),
        requires = "estimate"
    )]
    pub estimate_runs: u32,
}

fn parse_size(text: &str) -> Result<u64, String> {
    match vellum_inspect::size::parse(text) {
        Ok(size) if size < 2 << 20 => Err("a copy needs at least 2 MiB".into()),
        result => result.map_err(|error| error.to_string()),
    }
}

/// The estimate of one process.
#[derive(Debug)]
pub struct Estimate {
    /// The copied layout.
    pub imported: Imported,
    /// The results by folio size.
    pub columns: Vec<Column>,
    /// Runs of each operation.
    pub runs: u32,
}

/// The results with one choice of folio sizes.
#[derive(Debug)]
pub struct Column {
    /// The folio sizes.
    pub folios: Folios,
    /// The bytes of memory that the copy takes with folios of these sizes.
    pub memory: u64,
    /// The reason why no operation was tried with these sizes.
    pub skip: Option<Skip>,
    /// The results of each operation, on this kernel and on Vellum.
    pub rows: Vec<(Operation, [Side; 2])>,
}

/// The results of an operation on one of the two copies.
#[derive(Clone, Debug, Default)]
pub struct Side {
    done: Vec<Timed>,
    /// The reason for a missing figure.
    pub skip: Option<Skip>,
}

impl Side {
    fn take(&mut self, did: impl FnOnce() -> Result<Timed, Skip>) {
        if self.skip.is_none() {
            match did() {
                Ok(done) => self.done.push(done),
                Err(skip) => self.skip = Some(skip),
            }
        }
    }

    /// Returns nanoseconds of the operation on the copy.
    pub fn time(&self) -> Option<Summary> {
        let times: Vec<u64> = self.done.iter().map(|done| done.ns).collect();
        Summary::of(&times).filter(|_| self.skip.is_none())
    }

    /// Returns the last result, which has the sizes of the copy.
    pub fn copy(&self) -> Option<Timed> {
        self.done.last().copied()
    }
}

impl Extension for Args {
    fn is_wanted(&self) -> bool {
        self.estimate
    }

    fn collector(&self, memory: &Memory) -> Box<dyn Collector> {
        let import = Import::within(memory.resident + memory.tables, self.estimate_memory);
        Box::new(LayoutCollector { import, args: self.clone() })
    }
}

/// Collects the layout of a process while it is surveyed.
struct LayoutCollector {
    import: Import,
    args: Args,
}

impl Collector for LayoutCollector {
    fn pages(&mut self, region: &Region, vma: &Vma, order: usize) {
        self.import.pages(region, vma, order);
    }

    fn empty_table(&mut self, start: u64) {
        self.import.empty_table(start);
    }

    fn finish(self: Box<Self>, vmas: &[VmaSurvey]) -> Analysis {
        let LayoutCollector { import, args } = *self;
        let imported = import.finish(vmas);
        Box::new(move |stop| Ok(Box::new(of(imported, &args, stop)?)))
    }
}

impl Part for Estimate {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        show::write(self, out)
    }

    fn html(&self) -> Markup {
        html::article(self)
    }

    fn json(&self) -> serde_json::Result<serde_json::Value> {
        serde_json::to_value(json::Costs::of(self))
    }
}

/// Makes the copies and times the operations.
///
/// # Errors
/// The run was interrupted, or the page size is not 4 KiB.
pub fn of(imported: Imported, args: &Args, stop: &AtomicBool) -> anyhow::Result<Estimate> {
    ensure!(rustix::param::page_size() as u64 == PAGE, "estimates need a system with 4 KiB pages");
    let layout = &imported.layout;
    let columns = columns(layout, args);
    let bytes = columns.iter().filter(|column| column.skip.is_none()).map(|column| layout.bytes(column.folios)).max();
    let engine = Engine::of(bytes.unwrap_or(0));
    let _here = PinnedCpu::pin();
    let mut linux = ProcessCopier::new(layout, Path::new(THP));
    let empty = Layout::default();
    let mut nothing = ProcessCopier::new(&empty, Path::new(THP));
    let tried = columns.iter().filter(|column| column.skip.is_none()).count();
    let progress = Progress::new(u64::from(args.estimate_runs) * (tried * Operation::ALL.len()) as u64);
    let mut found = Vec::new();
    for mut column in columns {
        for operation in Operation::ALL.into_iter().filter(|_| column.skip.is_none()) {
            let [mut here, mut vellum, mut base] = [const { Side { done: Vec::new(), skip: None } }; 3];
            for _ in 0..args.estimate_runs {
                progress.set_text(format!("{}, {}", operation.name(), show::folios(column.folios)));
                // Also time a helper process without mappings, and subtract its time, which is not
                // the mappings' cost.
                let of_nothing = matches!(operation, Operation::Exit | Operation::Fork);
                match (&mut linux, &mut nothing) {
                    (Ok(linux), Ok(nothing)) => {
                        here.take(|| linux.time(column.folios, operation));
                        if of_nothing {
                            base.take(|| nothing.time(column.folios, operation));
                        }
                    }
                    (Err(skip), _) | (_, Err(skip)) => here.skip = Some(skip.clone()),
                }
                vellum.take(|| engine.time(layout, column.folios, operation));
                ensure!(!stop.load(Ordering::Relaxed), "interrupted");
                progress.step();
            }
            let base = base.time().map_or(0, |time| time.median);
            here.done.iter_mut().for_each(|done| done.ns = done.ns.saturating_sub(base));
            column.rows.push((operation, [here, vellum]));
        }
        found.push(column);
    }
    Ok(Estimate { columns: found, runs: args.estimate_runs, imported })
}

/// Returns a column for each choice of folio sizes, with a reason to skip it if the copy would take
/// too much memory.
fn columns(layout: &Layout, args: &Args) -> Vec<Column> {
    let own: Vec<u32> = layout.sizes(Folios::AsIs).into_iter().filter(|size| *size > 0).collect();
    let others = args.estimate_folios.iter().map(|kib| Folios::Of(*kib));
    // Leave out a size that all folios of the process already have, except 2 MiB, which is then
    // mapped by huge PTEs.
    let others = others.filter(|folios| own.len() != 1 || *folios != Folios::Of(own[0]) || *folios == Folios::Of(2048));
    let all = std::iter::once(Folios::AsIs).chain(others);
    all.map(|folios| {
        let memory = layout.bytes(folios);
        let limit = args.estimate_memory.saturating_mul(MORE);
        let skip = (memory > limit).then_some(Skip::Memory { needed: memory >> 20, available: limit >> 20 });
        Column { folios, memory, skip, rows: Vec::new() }
    })
    .collect()
}
