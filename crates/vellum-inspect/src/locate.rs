//! Where the empty tables are: as the scan detection, and, for root, as the tables say themselves.

use std::collections::BTreeSet;
use std::io::{self, Write};

use vellum_pagemap::{
    Detection, Kernel, LEVELS, Pagemap, Table, Target, Unreadable, WalkedTables, Walker, WalkerError,
};

use super::look::{Cell, Look, Place};
use super::report::table::{grouped, paragraph};

/// Reads tables themselves, if that works here.
pub struct Reader(Result<Walker, WalkerError>);

impl Reader {
    pub fn open() -> Self {
        Reader(Walker::open())
    }

    /// Those of a process, or why not.
    pub fn read(&mut self, target: &Target) -> Result<WalkedTables, String> {
        let walker = self.0.as_mut().map_err(|refused| refused.to_string())?;
        let pagemap =
            Pagemap::open(&target.process).map_err(|error| Unreadable::of(target.pid(), error).to_string())?;
        walker.tables(&pagemap).map_err(|refused| refused.to_string())
    }
}

/// How two ways to tell tables of the lowest level differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Empty by what they say themselves; the scan does not tell them, or not as empty.
    pub missed: u64,
    /// Empty by the scan, and not by what they say themselves.
    pub wrong: u64,
    /// In use, and not told by the scan.
    pub hidden: u64,
}

impl Difference {
    /// Between what was read and what the scan has found. None: it was to find no table by itself, or not everywhere.
    pub fn of(look: &Look, walked: &WalkedTables, kernel: &Kernel) -> Option<Self> {
        let survey = &look.survey;
        let told = kernel.detection != Detection::None && survey.scanned;
        let whole = survey.sample.is_none_or(|sample| sample.seen == 0);
        (told && whole).then(|| between(&look.places, &walked.levels[0], survey.geometry.span(0)))
    }
}

fn between(places: &[Place], lowest: &[Table], span: u64) -> Difference {
    let told = |wanted: fn(Cell) -> bool| -> BTreeSet<u64> {
        let some = places.iter().filter(|place| wanted(place.cell));
        some.flat_map(|place| (place.start..place.end).step_by(span as usize)).collect()
    };
    let read = |empty: bool| -> BTreeSet<u64> {
        lowest.iter().filter(|table| table.is_empty() == empty).map(|table| table.start).collect()
    };
    let (told_empty, empty) = (told(|cell| cell == Cell::Empty), read(true));
    let told_used = told(|cell| matches!(cell, Cell::Table(_) | Cell::Swap));
    Difference {
        missed: empty.difference(&told_empty).count() as u64,
        wrong: told_empty.difference(&empty).count() as u64,
        hidden: read(false).difference(&told_used).filter(|start| !told_empty.contains(start)).count() as u64,
    }
}

/// The addresses that tables serve, those in a row together.
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

/// Tables of a level that have no entries, and those that lead only to such.
pub fn bare(walked: &WalkedTables, level: usize, span: u64) -> [Vec<[u64; 2]>; 2] {
    let tables = &walked.levels[level];
    let nowhere = tables.iter().filter(|table| table.bare && !table.is_empty());
    [runs(tables.iter().filter(|table| table.is_empty()), span), runs(nowhere, span)]
}

/// Say where they are.
pub fn write(look: &Look, kernel: &Kernel, out: &mut impl Write) -> io::Result<()> {
    match &look.read {
        Some(Ok(walked)) => exact(look, walked, kernel, out),
        Some(Err(why)) => {
            told(look, kernel, out)?;
            paragraph(
                "NOTE",
                &format!("The tables themselves, which are exact and have upper ones, were not read: {why}."),
                out,
            )
        }
        None => told(look, kernel, out),
    }
}

fn exact(look: &Look, walked: &WalkedTables, kernel: &Kernel, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\nEMPTY TABLES, by the addresses that they serve (read by BPF: exact)")?;
    for level in 0..walked.levels.len() {
        let span = look.survey.geometry.span(level);
        let [empty, nowhere] = bare(walked, level, span);
        let name = if level == 0 { "lowest level".into() } else { format!("level {}", level + 1) };
        let none = empty.is_empty() && nowhere.is_empty();
        writeln!(out, "{name}{}", if none { ": none" } else { "" })?;
        let mut lines: Vec<_> = empty.iter().map(|run| (run, "")).collect();
        lines.extend(nowhere.iter().map(|run| (run, "   leading only to empty ones")));
        lines.sort();
        for ([start, end], note) in lines {
            writeln!(out, "  {start:012x}-{end:012x}  {}{note}", grouped((end - start) / span))?;
        }
    }
    let mut said = String::new();
    if let Some(Difference { missed, wrong, hidden }) = Difference::of(look, walked, kernel) {
        said += &match missed + wrong {
            0 => "The scan agrees about the lowest level.".into(),
            _ => format!(
                "The scan does not agree: it misses {missed} of the lowest level, and {wrong} are not empty that it calls so."
            ),
        };
        if hidden > 0 {
            said += &format!(" (Of {hidden} in use it does not know: those of devices' memory.)");
        }
        said += " ";
    }
    // Of five levels, Linux does not count the fourth.
    let count: usize = walked.levels.iter().take(LEVELS).map(Vec::len).sum();
    said += &format!("Read were {} tables; Linux counts {}", grouped(count as u64), grouped(walked.counted));
    said += &match walked.deposited() {
        0 => ".".into(),
        some => format!(", with {some} put by for huge pages."),
    };
    if walked.changed || walked.counted * look.survey.geometry.page() != look.survey.before.tables {
        said += " Tables came or went meanwhile, and may be the difference.";
    }
    paragraph("", &said, out)
}

fn told(look: &Look, kernel: &Kernel, out: &mut impl Write) -> io::Result<()> {
    let how = match kernel.detection {
        Detection::Exact if look.survey.scanned => "",
        Detection::ByTime(_) if look.survey.scanned => {
            ", found by the time that it takes to find nothing: a few may be wrong"
        }
        _ => return writeln!(out, "\nWhere the empty tables are can't be told on this kernel."),
    };
    writeln!(out, "\nEMPTY TABLES of the lowest level, by the addresses that they serve{how}")?;
    let empty = look.places.iter().filter(|place| place.cell == Cell::Empty);
    let mut none = true;
    for place in empty {
        none = false;
        let count = (place.end - place.start) / look.survey.geometry.span(0);
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
    fn tables_in_a_row_are_one_line() {
        let tables = [0, 2, 4, 8, 10].map(|start| table(start, 0));
        assert_eq!(runs(tables.iter(), 2), [[0, 6], [8, 12]]);
        assert_eq!(runs([].iter(), 2), [[0; 2]; 0]);
    }

    #[test]
    fn what_two_ways_tell_is_compared_table_by_table() {
        let place = |start, end, cell| Place { start, end, cell };
        let places = [place(0, 6, Cell::Empty), place(8, 10, Cell::Table(3)), place(10, 12, Cell::Huge)];
        let same = [table(0, 0), table(2, 0), table(4, 0), table(8, 7)];
        assert_eq!(between(&places, &same, 2), Difference::default());
        let other = [table(0, 0), table(4, 9), table(8, 0), table(20, 5)];
        assert_eq!(between(&places, &other, 2), Difference { missed: 1, wrong: 2, hidden: 1 });
    }
}
