//! What it costs to end a process, to unmap, fork, swap and reclaim it: as it is, and with other
//! folios.
//!
//! A copy of what it has mapped is made twice, in a process on this kernel and in the engine, and
//! the same is done to both, in turn. The process itself is only looked at. Of a large one, the
//! copy is of a share of it, and figures are what all of it would take.
//!
//! | module | story |
//! |---|---|
//! | `import` | from what was seen to a layout |
//! | `show`, `json` | how it is said |

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

/// Where the settings of huge pages are.
const THP: &str = "/sys/kernel/mm/transparent_hugepage";
/// A copy with other folios may take so many times the memory that a copy may take.
const MORE: u64 = 4;

/// How it is estimated.
#[derive(Clone, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Say what its end, munmap, fork, swap-out and lazyfree reclaim cost, on this kernel and on
    /// Vellum, as it is and with other folios.
    ///
    /// Copies are made of what it has mapped (not of what is in it), in a helper process and in the
    /// engine, and it is these that are ended and unmapped. As root, settings of huge pages are
    /// changed for moments, and there is a swap device in memory and a control group meanwhile; all
    /// is put back, however this ends.
    #[arg(long, conflicts_with_all = ["all", "cgroup", "children", "watch", "diff"])]
    pub estimate: bool,
    /// Memory that a copy may take. Of a larger process, a share of it is copied.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size, requires = "estimate")]
    pub estimate_memory: u64,
    /// Folio sizes in KiB to try besides those that it has; 2048 is mapped huge.
    #[arg(long, value_name = "KIB", value_delimiter = ',', default_value = "4,64,2048", value_parser = vellum_linux::workload::case::parse_folio, requires = "estimate")]
    pub estimate_folios: Vec<u32>,
    /// How often each is done; the figure is the median.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..), requires = "estimate")]
    pub estimate_runs: u32,
}

fn parse_size(text: &str) -> Result<u64, String> {
    match vellum_inspect::size::parse(text) {
        Ok(size) if size < 2 << 20 => Err("a copy needs 2 MiB at least".into()),
        result => result.map_err(|error| error.to_string()),
    }
}

/// What was found.
#[derive(Debug)]
pub struct Estimate {
    /// What was copied.
    pub imported: Imported,
    /// By folios.
    pub columns: Vec<Column>,
    /// How often each was done.
    pub runs: u32,
}

/// With some folios.
#[derive(Debug)]
pub struct Column {
    /// Which.
    pub folios: Folios,
    /// Bytes of memory that the process has with them.
    pub memory: u64,
    /// Why nothing was tried.
    pub skip: Option<Skip>,
    /// Of each deed, on this kernel and on Vellum.
    pub rows: Vec<(Operation, [Side; 2])>,
}

/// What one of the two has done.
#[derive(Clone, Debug, Default)]
pub struct Side {
    done: Vec<Timed>,
    /// Why there is no figure.
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

    /// Nanoseconds, on the copy.
    pub fn time(&self) -> Option<Summary> {
        let times: Vec<u64> = self.done.iter().map(|done| done.ns).collect();
        Summary::of(&times).filter(|_| self.skip.is_none())
    }

    /// What the copy had.
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
        Box::new(Copied { import, args: self.clone() })
    }
}

/// A process that is being surveyed, to be copied.
struct Copied {
    import: Import,
    args: Args,
}

impl Collector for Copied {
    fn pages(&mut self, region: &Region, vma: &Vma, order: usize) {
        self.import.pages(region, vma, order);
    }

    fn empty_table(&mut self, start: u64) {
        self.import.empty_table(start);
    }

    fn finish(self: Box<Self>, vmas: &[VmaSurvey]) -> Analysis {
        let Copied { import, args } = *self;
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

/// Make copies, and find out.
///
/// # Errors
/// Interrupted, or not with pages of this size.
pub fn of(imported: Imported, args: &Args, stop: &AtomicBool) -> anyhow::Result<Estimate> {
    ensure!(
        rustix::param::page_size() as u64 == PAGE,
        "estimates are of systems with pages of 4 KiB, which this is not"
    );
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
        for deed in Operation::ALL.into_iter().filter(|_| column.skip.is_none()) {
            let [mut here, mut vellum, mut base] = [const { Side { done: Vec::new(), skip: None } }; 3];
            for _ in 0..args.estimate_runs {
                progress.say(format!("{}, {}", deed.name(), show::folios(column.folios)));
                // What a helper costs that has nothing is what any process does.
                let of_nothing = matches!(deed, Operation::Exit | Operation::Fork);
                match (&mut linux, &mut nothing) {
                    (Ok(linux), Ok(nothing)) => {
                        here.take(|| linux.time(column.folios, deed));
                        if of_nothing {
                            base.take(|| nothing.time(column.folios, deed));
                        }
                    }
                    (Err(skip), _) | (_, Err(skip)) => here.skip = Some(skip.clone()),
                }
                vellum.take(|| engine.deed(layout, column.folios, deed));
                ensure!(!stop.load(Ordering::Relaxed), "interrupted");
                progress.step();
            }
            let base = base.time().map_or(0, |time| time.median);
            here.done.iter_mut().for_each(|done| done.ns = done.ns.saturating_sub(base));
            column.rows.push((deed, [here, vellum]));
        }
        found.push(column);
    }
    Ok(Estimate { columns: found, runs: args.estimate_runs, imported })
}

/// Which are tried, and which are not.
fn columns(layout: &Layout, args: &Args) -> Vec<Column> {
    let own: Vec<u32> = layout.sizes(Folios::AsIs).into_iter().filter(|size| *size > 0).collect();
    let others = args.estimate_folios.iter().map(|kib| Folios::Of(*kib));
    // What it is already is not tried again.
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
