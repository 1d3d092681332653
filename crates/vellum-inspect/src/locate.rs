//! Locates empty page tables: by the scan of the survey, and for root by reading page tables from
//! kernel memory.

use std::collections::BTreeSet;
use std::io::{self, Write};

use vellum_pagemap::{
    Detection, Kernel, LEVELS, Pagemap, Table, Target, Unreadable, WalkedTables, Walker, WalkerError,
};

use super::inspection::{Cell, Inspection, TableRun};
use super::report::table::{grouped, paragraph};

/// Reads page tables from kernel memory, where that is possible.
pub struct Reader(Result<Walker, WalkerError>);

impl Reader {
    pub fn open() -> Self {
        Reader(Walker::open())
    }

    /// Returns the page tables of a process, or the reason why they can't be read.
    pub fn read(&mut self, target: &Target) -> Result<WalkedTables, String> {
        let walker = self.0.as_mut().map_err(|refused| refused.to_string())?;
        let pagemap =
            Pagemap::open(&target.process).map_err(|error| Unreadable::of(target.pid(), error).to_string())?;
        walker.tables(&pagemap).map_err(|refused| refused.to_string())
    }
}

/// The difference between the page tables read from kernel memory and those the scan found, at the
/// last level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Empty page tables that the scan missed, or did not report as empty.
    pub missed: u64,
    /// Page tables that the scan reported as empty, and that are not empty or do not exist.
    pub wrong: u64,
    /// Page tables in use that the scan did not report.
    pub hidden: u64,
}

impl Difference {
    /// Compares the page tables read from kernel memory with those that the scan found. Returns
    /// `None` if the scan does not find page tables one by one on this kernel, or scanned only a
    /// sample.
    pub fn of(inspection: &Inspection, walked: &WalkedTables, kernel: &Kernel) -> Option<Self> {
        let survey = &inspection.survey;
        let finds_tables = kernel.detection != Detection::None && survey.scanned;
        let whole = survey.sample.is_none_or(|sample| sample.seen == 0);
        (finds_tables && whole).then(|| between(&inspection.table_runs, &walked.levels[0], survey.geometry.span(0)))
    }
}

fn between(runs: &[TableRun], lowest: &[Table], span: u64) -> Difference {
    let scanned = |wanted: fn(Cell) -> bool| -> BTreeSet<u64> {
        let some = runs.iter().filter(|place| wanted(place.cell));
        some.flat_map(|place| (place.start..place.end).step_by(span as usize)).collect()
    };
    let read = |empty: bool| -> BTreeSet<u64> {
        lowest.iter().filter(|table| table.is_empty() == empty).map(|table| table.start).collect()
    };
    let (scanned_empty, empty) = (scanned(|cell| cell == Cell::Empty), read(true));
    let scanned_used = scanned(|cell| matches!(cell, Cell::Table(_) | Cell::Swap));
    Difference {
        missed: empty.difference(&scanned_empty).count() as u64,
        wrong: scanned_empty.difference(&empty).count() as u64,
        hidden: read(false).difference(&scanned_used).filter(|start| !scanned_empty.contains(start)).count() as u64,
    }
}

/// Returns the address ranges that page tables span. Ranges that follow each other are merged.
pub fn runs<'a>(tables: impl Iterator<Item = &'a Table>, span: u64) -> Vec<[u64; 2]> {
    let mut runs: Vec<[u64; 2]> = Vec::new();
    for table in tables {
        match runs.last_mut() {
            Some(run) if run[1] == table.start => run[1] += span,
            _ => runs.push([table.start, table.start + span]),
        }
    }
    runs
}

/// Returns the address ranges of the empty page tables of a level, and of those that lead only to
/// empty ones.
pub fn bare(walked: &WalkedTables, level: usize, span: u64) -> [Vec<[u64; 2]>; 2] {
    let tables = &walked.levels[level];
    let leading_nowhere = tables.iter().filter(|table| table.bare && !table.is_empty());
    [runs(tables.iter().filter(|table| table.is_empty()), span), runs(leading_nowhere, span)]
}

/// Writes the addresses of empty page tables.
///
/// # Errors
/// Returns the error of `out`.
pub fn write(inspection: &Inspection, kernel: &Kernel, out: &mut impl Write) -> io::Result<()> {
    match &inspection.read {
        Some(Ok(walked)) => write_exact(inspection, walked, kernel, out),
        Some(Err(why)) => {
            write_scanned(inspection, kernel, out)?;
            paragraph("NOTE", &format!("Page tables of all levels, which would be exact, were not read: {why}."), out)
        }
        None => write_scanned(inspection, kernel, out),
    }
}

fn write_exact(
    inspection: &Inspection,
    walked: &WalkedTables,
    kernel: &Kernel,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "\nEMPTY TABLES, by the addresses that they span (read by BPF: exact)")?;
    for level in 0..walked.levels.len() {
        let span = inspection.survey.geometry.span(level);
        let [empty, leading_nowhere] = bare(walked, level, span);
        let name = if level == 0 { "last level".into() } else { format!("level {}", level + 1) };
        let none = empty.is_empty() && leading_nowhere.is_empty();
        writeln!(out, "{name}{}", if none { ": none" } else { "" })?;
        let mut lines: Vec<_> = empty.iter().map(|run| (run, "")).collect();
        lines.extend(leading_nowhere.iter().map(|run| (run, "   leading only to empty ones")));
        lines.sort();
        for ([start, end], note) in lines {
            writeln!(out, "  {start:012x}-{end:012x}  {}{note}", grouped((end - start) / span))?;
        }
    }
    let mut text = String::new();
    if let Some(Difference { missed, wrong, hidden }) = Difference::of(inspection, walked, kernel) {
        text += &match missed + wrong {
            0 => "The scan agrees about the last level.".into(),
            _ => format!(
                "The scan does not agree: it missed {missed} empty ones of the last level, and reported {wrong} as \
                 empty that are not."
            ),
        };
        if hidden > 0 {
            text += &format!(" ({hidden} in use are not reported by the scan: those of device memory.)");
        }
        text += " ";
    }
    // Count the levels that Linux counts in `VmPTE`: with five levels, it leaves out the fourth
    // (P4D).
    let count: usize = walked.levels.iter().take(LEVELS).map(Vec::len).sum();
    text += &format!("{} tables were read; Linux counts {}", grouped(count as u64), grouped(walked.counted));
    text += &match walked.deposited() {
        0 => ".".into(),
        some => format!(", with {some} deposited for huge pages."),
    };
    if walked.changed || walked.counted * inspection.survey.geometry.page() != inspection.survey.before.tables {
        text += " Tables were allocated or freed meanwhile, which may be the difference.";
    }
    paragraph("", &text, out)
}

fn write_scanned(inspection: &Inspection, kernel: &Kernel, out: &mut impl Write) -> io::Result<()> {
    let how = match kernel.detection {
        Detection::Exact if inspection.survey.scanned => "",
        Detection::ByTime(_) if inspection.survey.scanned => ", found by scan time: a few may be wrong",
        _ => return writeln!(out, "\nThis kernel does not report where empty tables are."),
    };
    writeln!(out, "\nEMPTY TABLES of the last level, by the addresses that they span{how}")?;
    let empty = inspection.table_runs.iter().filter(|place| place.cell == Cell::Empty);
    let mut none = true;
    for place in empty {
        none = false;
        let count = (place.end - place.start) / inspection.survey.geometry.span(0);
        writeln!(out, "{:012x}-{:012x}  {count}", place.start, place.end)?;
    }
    if none { writeln!(out, "none") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(start: u64, entries: u16) -> Table {
        Table { start, entries, bare: entries == 0 }
    }

    #[test]
    fn consecutive_tables_are_one_range() {
        let tables = [0, 2, 4, 8, 10].map(|start| table(start, 0));
        assert_eq!(runs(tables.iter(), 2), [[0, 6], [8, 12]]);
        assert_eq!(runs([].iter(), 2), [[0; 2]; 0]);
    }

    #[test]
    fn scanned_and_read_tables_are_compared_one_by_one() {
        let place = |start, end, cell| TableRun { start, end, cell };
        let runs = [place(0, 6, Cell::Empty), place(8, 10, Cell::Table(3)), place(10, 12, Cell::Huge)];
        let same = [table(0, 0), table(2, 0), table(4, 0), table(8, 7)];
        assert_eq!(between(&runs, &same, 2), Difference::default());
        let other = [table(0, 0), table(4, 9), table(8, 0), table(20, 5)];
        assert_eq!(between(&runs, &other, 2), Difference { missed: 1, wrong: 2, hidden: 1 });
    }
}
