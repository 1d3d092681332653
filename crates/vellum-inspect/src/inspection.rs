//! Inspects one process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use vellum_pagemap::{
    Categories, Detection, FolioStats, Frames, Kernel, Options, Pace, Pagemap, Region, Survey, SurveyError, Target,
    Unreadable, Visitor, Vma, WalkedTables, survey,
};

use super::Args;
use super::extension::{Analysis, Collector, Extension, Part};

/// The most bytes of resident memory whose folios are examined without a request: examining takes a
/// tenth of a second for each GiB.
const FEW: u64 = 16 << 30;

/// The findings of one process.
pub struct Inspection {
    pub pid: i32,
    pub name: String,
    pub user: u32,
    pub survey: Survey,
    pub table_runs: Vec<TableRun>,
    /// The statistics of the process's folios; `None` if they were not examined or this user may
    /// not read frame numbers.
    pub stats: Option<FolioStats>,
    pub took: Duration,
    /// If requested, the page tables as read from kernel memory, or the reason why they can't be
    /// read.
    pub read: Option<Result<WalkedTables, String>>,
    /// The extension's analysis; taken out when it runs.
    pub analysis: Option<Analysis>,
    /// The extension's part of the report.
    pub part: Option<Box<dyn Part>>,
}

/// The last-level page table of a range of addresses, or the huge PTE in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// An empty page table.
    Empty,
    /// A page table that is full to this many eighths, rounded up.
    Table(u8),
    /// A page table most of whose PTEs are swap entries or markers.
    Swap,
    /// A huge PTE.
    Huge,
}

/// Consecutive page tables of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRun {
    pub start: u64,
    pub end: u64,
    pub cell: Cell,
}

impl Inspection {
    /// Inspects `target` once.
    ///
    /// # Errors
    /// The process is gone, may not be read, or the inspection was interrupted.
    pub fn at<X: Extension>(
        target: Target,
        args: &Args<X>,
        kernel: &Kernel,
        stop: &Arc<AtomicBool>,
    ) -> Result<Inspection, SurveyError> {
        let began = Instant::now();
        let mut pagemap = Pagemap::open(&target.process).map_err(|error| Unreadable::of(target.pid(), error))?;
        if args.only_read {
            pagemap = pagemap.only_read();
        }
        let detection = if pagemap.scans() { kernel.detection } else { Detection::None };
        let options = Options { detection, sample: args.sample.map(|share| (share, fastrand::u64(..))) };
        let mut pace = Pace::new(args.max_hold).until(stop);
        let entries = pagemap.page_size() / 8;
        // Examine folios only for a single process: a list of processes does not show them.
        let one = args.pids.len() == 1 && !args.children;
        let frames = match args.folios || one && target.memory()?.resident <= FEW {
            true => Frames::open(&target.process)?,
            false => None,
        };
        let mut recorder = Recorder {
            table: pagemap.page_size() * entries,
            entries,
            records_runs: args.locate || args.map || args.html.is_some(),
            ..Recorder::default()
        };
        recorder.frames = frames;
        if args.extension.is_wanted() {
            recorder.collector = Some(args.extension.collector(&target.memory()?));
        }
        let survey = survey(&target, &mut pagemap, &mut pace, &options, &mut recorder)?;
        let analysis = recorder.collector.map(|collector| collector.finish(&survey.vmas));
        let (pid, user) = (target.pid(), target.user);
        // Without root, Linux reports frame 0 for all pages.
        let stats = recorder.frames.and(Some(recorder.stats)).filter(|stats| stats.pages > 0);
        Ok(Inspection {
            pid,
            name: target.name,
            user,
            survey,
            table_runs: recorder.table_runs,
            stats,
            took: began.elapsed(),
            read: None,
            analysis,
            part: None,
        })
    }

    /// Returns the bytes of page tables that are empty or lead only to empty ones, as the survey
    /// counted them.
    pub fn empty(&self) -> u64 {
        self.survey.empty().max(0) as u64 * self.survey.geometry.page()
    }
}

/// A visitor of the survey that records runs of equal page tables and the folios, which the report
/// shows.
#[derive(Default)]
struct Recorder {
    table: u64,
    entries: u64,
    /// True if the report needs the runs of page tables.
    records_runs: bool,
    /// For each last-level page table, by its first address, the number of PTEs that are swap
    /// entries, migration entries or markers.
    swapped: BTreeMap<u64, u64>,
    table_runs: Vec<TableRun>,
    frames: Option<Frames>,
    stats: FolioStats,
    collector: Option<Box<dyn Collector>>,
}

impl Visitor for Recorder {
    fn region(&mut self, region: &Region, vma: &Vma) {
        let collector = &mut self.collector;
        let reported = std::cell::Cell::new(false);
        let mut add = |start, end, order| {
            reported.set(true);
            if let Some(collector) = collector {
                collector.pages(&Region { start, end, ..*region }, vma, order);
            }
        };
        // Ignore an error: frames that can't be read any more belong to a process that is gone.
        if let Some(frames) = &mut self.frames {
            let _ = frames.add(region, vma.page, &mut self.stats, &mut add);
        }
        if !reported.get() {
            add(region.start, region.end, 0);
        }
        if self.records_runs && !region.categories.contains(Categories::PRESENT) {
            for table in (region.start / self.table * self.table..region.end).step_by(self.table as usize) {
                let bytes = region.end.min(table + self.table) - region.start.max(table);
                *self.swapped.entry(table).or_default() += bytes * self.entries / self.table;
            }
        }
    }

    fn table(&mut self, start: u64, entries: Option<u64>) {
        if let (Some(collector), Some(0)) = (&mut self.collector, entries) {
            collector.empty_table(start);
        }
        if !self.records_runs {
            return;
        }
        // The survey reports a page table after all its pages, so the number of its swap entries is
        // complete.
        let swapped = self.swapped.remove(&start).unwrap_or(0);
        let cell = match entries {
            None => Cell::Huge,
            Some(0) => Cell::Empty,
            Some(some) if swapped * 2 > some => Cell::Swap,
            Some(some) => Cell::Table((some * 8).div_ceil(self.entries) as u8),
        };
        match self.table_runs.last_mut() {
            Some(last) if last.end == start && last.cell == cell => last.end += self.table,
            _ => self.table_runs.push(TableRun { start, end: start + self.table, cell }),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use clap::Parser;
    use procfs::process::MMPermissions;

    use super::*;

    #[derive(Parser)]
    struct Inspect {
        #[command(flatten)]
        args: Args,
    }

    /// Parses a command line.
    pub fn args(words: &[&str]) -> Args {
        Inspect::parse_from(["inspect"].iter().chain(words)).args
    }

    /// Inspects this process with these arguments.
    pub fn own(words: &[&str]) -> Inspection {
        let pid = std::process::id().to_string();
        let args = args(&[words, &[&pid]].concat());
        let kernel = Kernel::probe(&mut Pace::new(args.max_hold)).unwrap();
        Inspection::at(Target::open(args.pids[0]).unwrap(), &args, &kernel, &Arc::default()).unwrap()
    }

    #[test]
    fn a_table_counts_as_swap_if_most_of_its_ptes_do() {
        let mut recorder = Recorder { table: 512 * 4096, entries: 512, records_runs: true, ..Recorder::default() };
        let permissions = MMPermissions::PRIVATE;
        let vma =
            Vma { start: 0, end: 8 << 20, permissions, name: String::new(), file: false, inode: (0, 0, 0), page: 4096 };
        let mut pages = |first: u64, count: u64, categories| {
            recorder.region(&Region { start: first * 4096, end: (first + count) * 4096, categories }, &vma);
        };
        // Swapped pages from the middle of the first page table to the third, where more are in
        // memory.
        pages(500, 12 + 512 + 4, Categories::SWAPPED);
        pages(1028, 5, Categories::PRESENT);
        for (page, entries) in [(0, 12), (512, 512), (1024, 9), (1536, 0)] {
            recorder.table(page * 4096, Some(entries));
        }
        let cells: Vec<Cell> = recorder.table_runs.iter().map(|run| run.cell).collect();
        assert_eq!(cells, [Cell::Swap, Cell::Table(1), Cell::Empty]);
        assert!(recorder.swapped.is_empty(), "no state remains for completed tables");
    }
}
