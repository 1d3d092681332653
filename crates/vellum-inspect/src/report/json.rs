//! Writes and reads the report of an inspection as JSON.

use std::borrow::Cow;
use std::io::Write;

use serde::{Deserialize, Serialize};
use vellum_pagemap::{BLOCKS, FolioStats, Kernel, VmaSurvey, WalkedTables};

use crate::inspection::{Cell, Inspection};
use crate::locate::{self, Difference};

/// The whole report.
#[derive(Serialize, Deserialize)]
pub struct SavedReport<'a> {
    vellum: Cow<'a, str>,
    /// True if on this kernel `MADV_DONTNEED` of all pages of a page table also frees the page
    /// table.
    kernel_frees_tables: Option<bool>,
    /// The inspected processes.
    pub processes: Vec<Process<'a>>,
}

/// A process. Sizes are in bytes, times in nanoseconds; figures of page tables are their numbers.
#[derive(Serialize, Deserialize)]
pub struct Process<'a> {
    pub pid: i32,
    pub name: Cow<'a, str>,
    user: u32,
    changed_meanwhile: bool,
    scanned: bool,
    pub reserved: u64,
    pub resident: u64,
    pub swapped: u64,
    pub page_tables: u64,
    pub table_size: u64,
    /// The number of page tables in use at each level, the last level first.
    tables_used: [u64; vellum_pagemap::LEVELS],
    tables_deposited: u64,
    /// The number of empty last-level page tables; `None` if unknown.
    tables_empty: Option<u64>,
    tables_leading_nowhere: Option<u64>,
    /// The number of needless page tables of all levels: those that Linux counts and no page needs.
    /// Can be negative if the process changed during the survey.
    pub tables_needless: i64,
    tables_least: u64,
    entries: u64,
    occupancy_eighths: [u64; 8],
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<Sample>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frames: Option<Frames>,
    lock_longest_ns: u64,
    lock_total_ns: u64,
    lock_steps: u64,
    lock_waited: u64,
    took_ns: u64,
    #[serde(rename = "areas")]
    vmas: Vec<Vma<'a>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    empty_at: Vec<[u64; 2]>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exact: Option<Exact>,
    /// The reason why `exact` is missing, if it was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exact_refused: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    estimate: Option<serde_json::Value>,
}

/// The page tables read from kernel memory, by level, the last level first. An address range is a
/// pair of start and end.
#[derive(Serialize, Deserialize)]
struct Exact {
    tables: Vec<u64>,
    empty_at: Vec<Vec<[u64; 2]>>,
    leading_nowhere_at: Vec<Vec<[u64; 2]>>,
    /// The number of page tables that Linux counts: those of three levels, and those deposited for
    /// the split of huge PTEs.
    counted: u64,
    deposited: i64,
    changed_meanwhile: bool,
    /// The difference between these page tables and those that the scan found, at the last level.
    scan: Option<Scan>,
}

#[derive(Serialize, Deserialize)]
struct Scan {
    empty_missed: u64,
    empty_wrong: u64,
    used_hidden: u64,
}

/// The sample from which the figures of the process are extrapolated.
#[derive(Serialize, Deserialize)]
struct Sample {
    stretches: u64,
    seen: u64,
    tables_used_error: u64,
}

/// The folios of a process, in pages; blocks are of 16 KiB, 64 KiB and 2 MiB.
#[derive(Serialize, Deserialize)]
struct Frames {
    pages: u64,
    pages_by_order: Vec<u64>,
    huge: u64,
    contiguous_pages: [u64; BLOCKS.len()],
    aligned_blocks: [u64; BLOCKS.len()],
    blocks_in_one_folio: [u64; BLOCKS.len()],
}

#[derive(Serialize, Deserialize)]
struct Vma<'a> {
    start: u64,
    end: u64,
    name: Cow<'a, str>,
    shared: bool,
    file: bool,
    resident: u64,
    swapped: u64,
    huge: u64,
    tables_used: u64,
    tables_empty: Option<u64>,
}

/// Writes the report as one JSON object.
///
/// # Errors
/// `out` can't be written.
pub fn write(inspections: &[Inspection], kernel: &Kernel, out: &mut impl Write) -> anyhow::Result<()> {
    let report = SavedReport {
        vellum: env!("CARGO_PKG_VERSION").into(),
        kernel_frees_tables: kernel.frees_tables,
        processes: inspections.iter().map(|inspection| process(inspection, kernel)).collect::<Result<_, _>>()?,
    };
    serde_json::to_writer_pretty(&mut *out, &report)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

/// Parses a report that [`write()`] wrote.
///
/// # Errors
/// The text is not such a report.
pub fn read(text: &[u8]) -> serde_json::Result<SavedReport<'static>> {
    serde_json::from_slice(text)
}

fn process<'a>(inspection: &'a Inspection, kernel: &Kernel) -> serde_json::Result<Process<'a>> {
    let survey = &inspection.survey;
    let nanos = |time: std::time::Duration| time.as_nanos() as u64;
    let exact = survey.tables.empty.is_some();
    let empty = inspection.table_runs.iter().filter(|run| run.cell == Cell::Empty);
    Ok(Process {
        pid: inspection.pid,
        name: inspection.name.as_str().into(),
        user: inspection.user,
        changed_meanwhile: survey.changed(),
        scanned: survey.scanned,
        reserved: survey.after.reserved,
        resident: survey.after.resident,
        swapped: survey.after.swapped,
        page_tables: survey.after.tables,
        table_size: survey.geometry.page(),
        tables_used: survey.tables.used,
        tables_deposited: survey.tables.deposited,
        tables_empty: survey.tables.empty,
        tables_leading_nowhere: survey.tables.leading_nowhere(),
        tables_needless: survey.empty(),
        tables_least: survey.least(),
        entries: survey.tables.entries,
        occupancy_eighths: survey.tables.occupancy,
        sample: survey.sample.map(|sample| Sample {
            stretches: sample.stretches,
            seen: sample.seen,
            tables_used_error: sample.error,
        }),
        frames: inspection.stats.as_ref().map(frames),
        lock_longest_ns: nanos(survey.lock_times.longest),
        lock_total_ns: nanos(survey.lock_times.total),
        lock_steps: survey.lock_times.steps,
        lock_waited: survey.lock_times.waited,
        took_ns: nanos(inspection.took),
        vmas: survey.vmas.iter().map(|one| vma(one, exact)).collect(),
        empty_at: empty.map(|run| [run.start, run.end]).collect(),
        exact: inspection
            .read
            .as_ref()
            .and_then(|read| read.as_ref().ok())
            .map(|walked| self::exact(inspection, walked, kernel)),
        exact_refused: inspection.read.as_ref().and_then(|read| read.as_ref().err()).map(|why| why.as_str().into()),
        estimate: inspection.part.as_ref().map(|part| part.json()).transpose()?,
    })
}

fn exact(inspection: &Inspection, walked: &WalkedTables, kernel: &Kernel) -> Exact {
    let levels = 0..walked.levels.len();
    let bare = levels.map(|level| locate::bare(walked, level, inspection.survey.geometry.span(level)));
    let (empty_at, leading_nowhere_at) = bare.map(|[empty, nowhere]| (empty, nowhere)).unzip();
    Exact {
        tables: walked.levels.iter().map(|level| level.len() as u64).collect(),
        empty_at,
        leading_nowhere_at,
        counted: walked.counted,
        deposited: walked.deposited(),
        changed_meanwhile: walked.changed,
        scan: Difference::of(inspection, walked, kernel).map(|difference| Scan {
            empty_missed: difference.missed,
            empty_wrong: difference.wrong,
            used_hidden: difference.hidden,
        }),
    }
}

fn frames(stats: &FolioStats) -> Frames {
    let orders = stats.by_order.iter().rposition(|pages| *pages > 0).map_or(0, |last| last + 1);
    Frames {
        pages: stats.pages,
        pages_by_order: stats.by_order[..orders].to_vec(),
        huge: stats.huge,
        contiguous_pages: stats.contiguous,
        aligned_blocks: stats.aligned,
        blocks_in_one_folio: stats.in_folio,
    }
}

fn vma(one: &VmaSurvey, exact: bool) -> Vma<'_> {
    Vma {
        start: one.vma.start,
        end: one.vma.end,
        name: one.vma.name.as_str().into(),
        shared: one.vma.is_shared(),
        file: one.vma.file,
        resident: one.resident,
        swapped: one.swapped,
        huge: one.huge,
        tables_used: one.used,
        tables_empty: exact.then_some(one.empty),
    }
}
