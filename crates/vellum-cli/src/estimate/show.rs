//! The estimate as tables and text.

use std::io::{self, Write};

use vellum_inspect::report::table::{align, grouped, new_table, paragraph};
use vellum_inspect::size::{about, show};
use vellum_linux::stats::Summary;
use vellum_linux::workload::case::PAGE;
use vellum_linux::workload::layout::{Folios, Operation};

use super::{Column, Estimate, Side};
use crate::bench::contender::Skip;
use crate::bench::report::show::{nanoseconds, ratio};

/// Returns the name of a choice of folio sizes.
pub fn folios(folios: Folios) -> String {
    match folios {
        Folios::AsIs => "as it is".into(),
        Folios::Of(2048) => "2 MiB, huge".into(),
        Folios::Of(kib) => show(u64::from(kib) << 10),
    }
}

/// Writes the estimate for a terminal.
///
/// # Errors
/// Returns the error of `out`.
pub fn write(estimate: &Estimate, mut out: &mut dyn Write) -> io::Result<()> {
    let rows = cells(estimate);
    let mut shown = new_table(rows[0].clone());
    shown.add_rows(rows[1..].iter().cloned());
    align(&mut shown, 2..2 + estimate.columns.len());
    writeln!(out, "\n{shown}")?;
    notes(estimate).iter().try_for_each(|text| paragraph("", text, &mut out))
}

/// Returns the table, header row first.
pub fn cells(estimate: &Estimate) -> Vec<Vec<String>> {
    let share = estimate.imported.share;
    let mut head = vec!["WHAT IT COSTS (estimated)".to_owned(), String::new()];
    head.extend(estimate.columns.iter().map(|column| folios(column.folios)));
    let mut rows = vec![head];
    let mut row = |what: &str, name: &str, cell: &dyn Fn(&Column) -> String| {
        let mut cells = vec![what.to_owned(), name.to_owned()];
        cells.extend(estimate.columns.iter().map(cell));
        rows.push(cells);
    };
    row("memory", "", &|column| about(whole(column.memory, share)));
    for (name, side) in [("Linux", 0), ("Vellum", 1)] {
        row(if side == 0 { "page tables" } else { "" }, name, &|column| {
            let copy = column.rows.iter().find_map(|(_, sides)| sides[side].copy());
            copy.map_or_else(|| "-".into(), |copy| about(whole(copy.tables, share)))
        });
    }
    for operation in Operation::ALL {
        let sides = |column: &Column| column.rows.iter().find(|row| row.0 == operation).map(|row| row.1.clone());
        let cell =
            |side: Option<&Side>| side.and_then(Side::time).map_or_else(|| "-".into(), |time| figure(time, share));
        row(operation.name(), "Linux", &|column| cell(sides(column).as_ref().map(|sides| &sides[0])));
        row("", "Vellum", &|column| cell(sides(column).as_ref().map(|sides| &sides[1])));
        row("", "", &|column| {
            let times = sides(column).and_then(|[linux, vellum]| linux.time().zip(vellum.time()));
            let times = times.filter(|(linux, vellum)| linux.median > 0 && vellum.median > 0);
            times.map_or_else(String::new, |(linux, vellum)| ratio(linux.median as f64 / vellum.median as f64))
        });
    }
    rows
}

/// Returns paragraphs on the method, and on what is missing.
pub fn notes(estimate: &Estimate) -> Vec<String> {
    let imported = &estimate.imported;
    let mut paragraphs = Vec::new();
    let size = about(imported.layout.bytes(Folios::AsIs));
    let of = match imported.share {
        1.0.. => format!("A copy of it ({size})"),
        share => format!("A copy of {:.2} % of it, chosen at random ({size}: --estimate-memory)", share * 100.0),
    };
    let likeness = likeness(estimate).unwrap_or_default();
    paragraphs.push(format!(
        "{of} was made in a process on this kernel and in Vellum's engine, and each operation was done {} times on \
         both, in turn: the median, and half of the range between the fastest and the slowest. The engine has no \
         system call and no TLB to wait for; and a copy has just been written: an idle process was seen to take up to \
         one and a half times as long.{likeness}",
        estimate.runs
    ));
    if imported.left_out > 0 {
        paragraphs.push(format!(
            "Left out (swapped out, huge pages of files, or the kernel's own): {}.",
            about(imported.left_out)
        ));
    }
    let mut why: Vec<String> = Vec::new();
    for column in &estimate.columns {
        let skips = column.rows.iter().flat_map(|(operation, sides)| {
            let [linux, vellum] = sides.each_ref().map(|side| side.skip.as_ref());
            let reason = |name: &'static str, skip: &Skip| format!("{}, {name}: {skip}", operation.name());
            linux.map(|skip| reason("Linux", skip)).into_iter().chain(vellum.map(|skip| reason("Vellum", skip)))
        });
        for text in
            skips.chain(column.skip.iter().map(|skip| format!("folios of {}: a copy {skip}", folios(column.folios))))
        {
            if !why.contains(&text) {
                why.push(text);
            }
        }
    }
    if !why.is_empty() {
        paragraphs.push(format!("Not measured: {}.", why.join("; ")));
    }
    paragraphs
}

/// Returns a sentence that compares the memory and page tables of the copy with those of the
/// process.
fn likeness(estimate: &Estimate) -> Option<String> {
    let column = estimate.columns.iter().find(|column| column.folios == Folios::AsIs)?;
    let copy = column.rows.iter().find_map(|(_, sides)| sides[0].copy())?;
    let layout = &estimate.imported.layout;
    let (has, should) = (about(copy.resident), about(layout.bytes(Folios::AsIs)));
    let tables = [copy.tables / PAGE, layout.tables()].map(grouped);
    Some(format!(" The copy has {has} of {should}, {} tables of {}.", tables[0], tables[1]))
}

fn whole(bytes: u64, share: f64) -> u64 {
    (bytes as f64 / share) as u64
}

/// Formats an extrapolated time with its error.
fn figure(time: Summary, share: f64) -> String {
    // The time of an empty process was subtracted, so nothing may remain.
    if time.median == 0 {
        return "≈ 0".into();
    }
    let scale = |ns: u64| (ns as f64 / share) as u64;
    let time = Summary { median: scale(time.median), min: scale(time.min), max: scale(time.max) };
    let error = (time.max - time.min) as f64 * 50.0 / time.median.max(1) as f64;
    format!("{} ± {error:.0} %", nanoseconds(time).0)
}
