//! Draws the address space as a map: a cell for the span of one last-level page table, or of
//! several.

use std::io::{self, Write};

use crate::inspection::{Cell, Inspection, TableRun};
use crate::size::about;

/// Cells in a row.
pub const WIDTH: u64 = 64;
/// The most rows of a section.
const HEIGHT: u64 = 16;
/// Page tables farther apart than this are drawn in separate sections.
const GAP: u64 = 1 << 30;

/// The kinds of cells: character, terminal colour, and meaning.
pub const LEGEND: [(char, &str, &str); 9] = [
    ('.', "90", "no table"),
    ('!', "31;1", "EMPTY"),
    ('░', "34", "up to 1/8"),
    ('▒', "36", "up to half"),
    ('▓', "32", "more"),
    ('█', "32;1", "full, or nearly"),
    ('H', "35;1", "huge page"),
    ('s', "36;1", "swap"),
    ('~', "33", "several kinds, none empty"),
];

/// A section of the map: page tables close to each other.
pub struct Section {
    pub start: u64,
    pub end: u64,
    /// Bytes of addresses in a cell.
    pub cell: u64,
    /// The kind of each cell, as an index into [`LEGEND`].
    pub kinds: Vec<usize>,
}

impl Section {
    /// Returns the rows: the first address of each, and the kinds of its cells.
    pub fn rows(&self) -> impl Iterator<Item = (u64, &[usize])> {
        let rows = self.kinds.chunks(WIDTH as usize);
        rows.enumerate().map(|(n, kinds)| (self.start + n as u64 * WIDTH * self.cell, kinds))
    }
}

/// Returns the sections of a process's map.
pub fn sections(inspection: &Inspection) -> Vec<Section> {
    let table = inspection.survey.geometry.span(0);
    let together = inspection.table_runs.chunk_by(|a, b| b.start - a.end < GAP);
    let section = |runs: &[TableRun]| {
        let (start, end) = (runs[0].start, runs[runs.len() - 1].end);
        let cell = table * ((end - start) / table).div_ceil(WIDTH * HEIGHT).next_power_of_two();
        let start = start / cell * cell;
        let mut first = 0;
        let cells = (start..end).step_by(cell as usize).map(|at| {
            while runs.get(first).is_some_and(|run| run.end <= at) {
                first += 1;
            }
            kind(&runs[first..], at, at + cell)
        });
        Section { start, end, cell, kinds: cells.collect() }
    };
    together.map(section).collect()
}

/// Draws the map for a terminal.
///
/// # Errors
/// Returns the error of `out`.
pub fn draw(inspection: &Inspection, colours: bool, out: &mut impl Write) -> io::Result<()> {
    let colours = colours && std::env::var_os("NO_COLOR").is_none();
    let show = |index: usize| {
        let (letter, colour, _) = LEGEND[index];
        if colours { format!("\x1b[{colour}m{letter}\x1b[0m") } else { letter.to_string() }
    };
    writeln!(out, "\nMAP of the last-level page tables (a cell of several shows an empty one among them)")?;
    let legend: Vec<String> = (0..LEGEND.len()).map(|index| format!("{} {}", show(index), LEGEND[index].2)).collect();
    writeln!(out, "{}", legend.join("   "))?;
    for section in sections(inspection) {
        let size = about(section.end - section.start);
        writeln!(out, "\n{:012x}  {size}, a cell is {}", section.start, about(section.cell))?;
        for (row, kinds) in section.rows() {
            writeln!(out, "{row:012x}  {}", kinds.iter().map(|kind| show(*kind)).collect::<String>())?;
        }
    }
    Ok(())
}

/// Returns the kind of the cell for `start..end`, as an index into [`LEGEND`].
fn kind(runs: &[TableRun], start: u64, end: u64) -> usize {
    let here = runs.iter().take_while(|run| run.start < end).filter(|run| run.end > start);
    let mut kinds = here.map(|run| match run.cell {
        Cell::Empty => 1,
        Cell::Table(0 | 1) => 2,
        Cell::Table(2..=4) => 3,
        Cell::Table(5..=7) => 4,
        Cell::Table(_) => 5,
        Cell::Huge => 6,
        Cell::Swap => 7,
    });
    let Some(first) = kinds.next() else { return 0 };
    kinds.fold(first, |all, kind| match (all, kind) {
        (1, _) | (_, 1) => 1,
        (a, b) if a == b => a,
        _ => 8,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_empty_table_shows_among_others() {
        let run = |start, end, cell| TableRun { start, end, cell };
        let runs = [run(0, 4, Cell::Table(8)), run(4, 5, Cell::Empty), run(8, 12, Cell::Huge)];
        assert_eq!([(0, 4), (0, 8), (4, 8), (5, 8), (8, 16)].map(|(a, b)| kind(&runs, a, b)), [5, 1, 1, 0, 6]);
        assert_eq!(kind(&[run(0, 4, Cell::Table(8)), run(4, 8, Cell::Huge)], 0, 8), 8);
        assert_eq!(kind(&[run(0, 4, Cell::Swap)], 0, 4), 7);
    }
}
