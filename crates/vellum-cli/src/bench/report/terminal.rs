//! Writes a report for a terminal.

use std::io::{self, Write};

use comfy_table::{CellAlignment, LineStyle, TableStyle};

use super::{Report, Section, Table, Value};

/// The table style: one line under the header.
pub const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Writes the whole report.
///
/// # Errors
/// Returns the error of `out`.
pub fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    for (name, value) in &report.machine.facts {
        writeln!(out, "{name:>12}  {value}")?;
    }
    if let Some(busy) = &report.machine.busy {
        writeln!(out, "\n{busy}")?;
    }
    for section in &report.sections {
        write_section(section, out)?;
    }
    Ok(())
}

fn write_section(section: &Section, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\n{}\n{}", section.title, "=".repeat(section.title.chars().count()))?;
    for part in &section.parts {
        writeln!(out, "\n{}", part.title)?;
        writeln!(out, "{}", table(&part.table))?;
    }
    for note in &section.notes {
        writeln!(out, "{note}")?;
    }
    Ok(())
}

/// Lays out the table: ranges beside their figures, or under them on a narrow screen. If the output
/// is no terminal, the width is not limited.
fn table(table: &Table) -> comfy_table::Table {
    let wide = lay_out(table, " ");
    let narrow = wide.width().is_some_and(|limit| wide.lines().any(|line| line.chars().count() > limit.into()));
    if narrow { lay_out(table, "\n") } else { wide }
}

fn lay_out(table: &Table, before_range: &str) -> comfy_table::Table {
    let mut shown = comfy_table::Table::new();
    shown.load_style(STYLE);
    // Break the names of ratios into two lines, so that the columns are as narrow as their figures.
    shown.set_header(table.head.iter().map(|name| name.replace(" / ", "\n/ ").replace(" vs ", "\nvs ")));
    for row in &table.rows {
        shown.add_row(row.iter().map(|value| cell(value, before_range)));
    }
    for column in shown.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    shown
}

fn cell(value: &Value, before_range: &str) -> String {
    match value {
        Value::None => "–".to_owned(),
        Value::Text(text) => text.clone(),
        Value::Figure { main, range } => format!("{main}{before_range}[{range}]"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_terminal_shows_figures_gaps_and_notes() {
        let mut out = Vec::new();
        super::write(&crate::bench::report::tests::example(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for expected in ["An <example>", "1.00 ms [0.90–1.10]", "–", "Something is missing."] {
            assert!(text.contains(expected), "{expected} in:\n{text}");
        }
    }
}
