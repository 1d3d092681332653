//! The address space, drawn: a cell for a table's worth of addresses, or for several.

use std::io::{self, Write};

use crate::look::{Cell, Look, Place};
use crate::size::about;

/// Cells in a row.
pub const WIDTH: u64 = 64;
/// Rows for a stretch of addresses, at most.
const HEIGHT: u64 = 16;
/// What is farther apart is drawn apart.
const GAP: u64 = 1 << 30;

/// From empty to full, then huge and swap: letters, their colours on a terminal, and what they
/// mean.
pub const LEGEND: [(char, &str, &str); 9] = [
    ('.', "90", "no table"),
    ('!', "31;1", "EMPTY"),
    ('░', "34", "up to 1/8"),
    ('▒', "36", "up to half"),
    ('▓', "32", "more"),
    ('█', "32;1", "full, or nearly"),
    ('H', "35;1", "huge page"),
    ('s', "36;1", "swap"),
    ('~', "33", "several kinds, none of them empty"),
];

/// Addresses that lie together, in cells of as many tables as it takes.
pub struct Stretch {
    pub start: u64,
    pub end: u64,
    /// Bytes of addresses in a cell.
    pub cell: u64,
    /// What is in each: an index into the legend.
    pub kinds: Vec<usize>,
}

impl Stretch {
    /// Its rows: the first address of each, and what is in its cells.
    pub fn rows(&self) -> impl Iterator<Item = (u64, &[usize])> {
        let rows = self.kinds.chunks(WIDTH as usize);
        rows.enumerate().map(|(n, kinds)| (self.start + n as u64 * WIDTH * self.cell, kinds))
    }
}

/// What there is to draw.
pub fn stretches(look: &Look) -> Vec<Stretch> {
    let table = look.survey.geometry.span(0);
    let together = look.places.chunk_by(|a, b| b.start - a.end < GAP);
    let stretch = |places: &[Place]| {
        let (start, end) = (places[0].start, places[places.len() - 1].end);
        let cell = table * ((end - start) / table).div_ceil(WIDTH * HEIGHT).next_power_of_two();
        let start = start / cell * cell;
        let mut first = 0;
        let cells = (start..end).step_by(cell as usize).map(|at| {
            while places.get(first).is_some_and(|place| place.end <= at) {
                first += 1;
            }
            kind(&places[first..], at, at + cell)
        });
        Stretch { start, end, cell, kinds: cells.collect() }
    };
    together.map(stretch).collect()
}

/// Draw it.
pub fn draw(look: &Look, colours: bool, out: &mut impl Write) -> io::Result<()> {
    let colours = colours && std::env::var_os("NO_COLOR").is_none();
    let show = |index: usize| {
        let (letter, colour, _) = LEGEND[index];
        if colours { format!("\x1b[{colour}m{letter}\x1b[0m") } else { letter.to_string() }
    };
    writeln!(out, "\nMAP of the page tables of the lowest level (in a cell of several, one empty table shows)")?;
    let legend: Vec<String> = (0..LEGEND.len()).map(|index| format!("{} {}", show(index), LEGEND[index].2)).collect();
    writeln!(out, "{}", legend.join("   "))?;
    for stretch in stretches(look) {
        let size = about(stretch.end - stretch.start);
        writeln!(out, "\n{:012x}  {size}, a cell is {}", stretch.start, about(stretch.cell))?;
        for (row, kinds) in stretch.rows() {
            writeln!(out, "{row:012x}  {}", kinds.iter().map(|kind| show(*kind)).collect::<String>())?;
        }
    }
    Ok(())
}

/// What to draw for addresses, of what is there: an index into the legend.
fn kind(places: &[Place], start: u64, end: u64) -> usize {
    let here = places.iter().take_while(|place| place.start < end).filter(|place| place.end > start);
    let mut kinds = here.map(|place| match place.cell {
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
        let place = |start, end, cell| Place { start, end, cell };
        let places = [place(0, 4, Cell::Table(8)), place(4, 5, Cell::Empty), place(8, 12, Cell::Huge)];
        assert_eq!([(0, 4), (0, 8), (4, 8), (5, 8), (8, 16)].map(|(a, b)| kind(&places, a, b)), [5, 1, 1, 0, 6]);
        assert_eq!(kind(&[place(0, 4, Cell::Table(8)), place(4, 8, Cell::Huge)], 0, 8), 8);
        assert_eq!(kind(&[place(0, 4, Cell::Swap)], 0, 4), 7);
    }
}
