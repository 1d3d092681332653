//! One process, looked at.

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

/// Of more memory than this, frames are looked at only if that was asked for: it takes a tenth of a second for a GiB.
const FEW: u64 = 16 << 30;

/// What was seen of a process.
pub struct Look {
    pub pid: i32,
    pub name: String,
    pub user: u32,
    pub survey: Survey,
    pub places: Vec<Place>,
    /// How its memory stats in frames, if that may be known.
    pub stats: Option<FolioStats>,
    pub took: Duration,
    /// Its tables as they were read themselves, if that was asked for, or why they were not.
    pub read: Option<Result<WalkedTables, String>>,
    /// The extension's analysis, until it has run.
    pub analysis: Option<Analysis>,
    /// The extension's part of the report.
    pub part: Option<Box<dyn Part>>,
}

/// What is at an address where a table of the lowest level can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// A table that holds nothing.
    Empty,
    /// One that is so full, in eighths, rounded up.
    Table(u8),
    /// One most of whose entries are of what is swapped out, or markers.
    Swap,
    /// No table, but a huge page.
    Huge,
}

/// Tables in a row that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub start: u64,
    pub end: u64,
    pub cell: Cell,
}

impl Look {
    /// Look at it once.
    pub fn at<X: Extension>(
        target: Target,
        args: &Args<X>,
        kernel: &Kernel,
        stop: &Arc<AtomicBool>,
    ) -> Result<Look, SurveyError> {
        let began = Instant::now();
        let mut pagemap = Pagemap::open(&target.process).map_err(|error| Unreadable::of(target.pid(), error))?;
        if args.only_read {
            pagemap = pagemap.only_read();
        }
        let detection = if pagemap.scans() { kernel.detection } else { Detection::None };
        let options = Options { detection, sample: args.sample.map(|share| (share, fastrand::u64(..))) };
        let mut pace = Pace::new(args.max_hold).until(stop);
        let entries = pagemap.page_size() / 8;
        // In a list there is no room for it.
        let one = args.pids.len() == 1 && !args.children;
        let frames = match args.folios || one && target.memory()?.resident <= FEW {
            true => Frames::open(&target.process)?,
            false => None,
        };
        let mut seen = Seen {
            table: pagemap.page_size() * entries,
            entries,
            kept: args.locate || args.map || args.html.is_some(),
            ..Seen::default()
        };
        seen.frames = frames;
        if args.extension.is_wanted() {
            seen.collector = Some(args.extension.collector(&target.memory()?));
        }
        let survey = survey(&target, &mut pagemap, &mut pace, &options, &mut seen)?;
        let analysis = seen.collector.map(|collector| collector.finish(&survey.vmas));
        let (pid, user) = (target.pid(), target.user);
        // Who may not know frames is told that all are the first one.
        let stats = seen.frames.and(Some(seen.stats)).filter(|stats| stats.pages > 0);
        Ok(Look {
            pid,
            name: target.name,
            user,
            survey,
            places: seen.places,
            stats,
            took: began.elapsed(),
            read: None,
            analysis,
            part: None,
        })
    }

    /// Bytes of tables that hold nothing or lead nowhere, as far as that is known.
    pub fn empty(&self) -> u64 {
        self.survey.empty().max(0) as u64 * self.survey.geometry.page()
    }
}

/// Keeps what is shown, by the run.
#[derive(Default)]
struct Seen {
    table: u64,
    entries: u64,
    /// Whether places are wanted.
    kept: bool,
    /// Entries of tables, by the first address of each, that are not of what is in memory.
    swapped: BTreeMap<u64, u64>,
    places: Vec<Place>,
    frames: Option<Frames>,
    stats: FolioStats,
    collector: Option<Box<dyn Collector>>,
}

impl Visitor for Seen {
    fn region(&mut self, region: &Region, vma: &Vma) {
        let collector = &mut self.collector;
        let told = std::cell::Cell::new(false);
        let mut add = |start, end, order| {
            told.set(true);
            if let Some(collector) = collector {
                collector.pages(&Region { start, end, ..*region }, vma, order);
            }
        };
        // What can't be read any more has gone.
        if let Some(frames) = &mut self.frames {
            let _ = frames.add(region, vma.page, &mut self.stats, &mut add);
        }
        if !told.get() {
            add(region.start, region.end, 0);
        }
        if self.kept && !region.categories.contains(Categories::PRESENT) {
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
        if !self.kept {
            return;
        }
        // Its pages were all told before.
        let swapped = self.swapped.remove(&start).unwrap_or(0);
        let cell = match entries {
            None => Cell::Huge,
            Some(0) => Cell::Empty,
            Some(some) if swapped * 2 > some => Cell::Swap,
            Some(some) => Cell::Table((some * 8).div_ceil(self.entries) as u8),
        };
        match self.places.last_mut() {
            Some(last) if last.end == start && last.cell == cell => last.end += self.table,
            _ => self.places.push(Place { start, end: start + self.table, cell }),
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

    /// Those of a command line.
    pub fn args(words: &[&str]) -> Args {
        Inspect::parse_from(["inspect"].iter().chain(words)).args
    }

    /// This process, as these words want it looked at.
    pub fn own(words: &[&str]) -> Look {
        let pid = std::process::id().to_string();
        let args = args(&[words, &[&pid]].concat());
        let kernel = Kernel::probe(&mut Pace::new(args.max_hold)).unwrap();
        Look::at(Target::open(args.pids[0]).unwrap(), &args, &kernel, &Arc::default()).unwrap()
    }

    #[test]
    fn a_table_is_of_swap_if_most_of_it_is() {
        let mut seen = Seen { table: 512 * 4096, entries: 512, kept: true, ..Seen::default() };
        let permissions = MMPermissions::PRIVATE;
        let vma =
            Vma { start: 0, end: 8 << 20, permissions, name: String::new(), file: false, inode: (0, 0, 0), page: 4096 };
        let mut pages = |first: u64, count: u64, categories| {
            seen.region(&Region { start: first * 4096, end: (first + count) * 4096, categories }, &vma);
        };
        // From the middle of the first table to the third one, in which more is in memory.
        pages(500, 12 + 512 + 4, Categories::SWAPPED);
        pages(1028, 5, Categories::PRESENT);
        for (page, entries) in [(0, 12), (512, 512), (1024, 9), (1536, 0)] {
            seen.table(page * 4096, Some(entries));
        }
        let cells: Vec<Cell> = seen.places.iter().map(|place| place.cell).collect();
        assert_eq!(cells, [Cell::Swap, Cell::Table(1), Cell::Empty]);
        assert!(seen.swapped.is_empty(), "nothing is kept of what was told");
    }
}
