//! A report on a terminal.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, LineStyle, TableStyle};

use super::{Report, Section, Table, Value};

/// One line, under the head.
const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Writes all of it.
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
    writeln!(
        out,
        "\n{}\n{}",
        section.title,
        "=".repeat(section.title.chars().count())
    )?;
    for part in &section.parts {
        writeln!(out, "\n{}", part.title)?;
        writeln!(out, "{}", table(&part.table))?;
    }
    for note in &section.notes {
        writeln!(out, "{note}")?;
    }
    Ok(())
}

fn table(table: &Table) -> comfy_table::Table {
    let mut shown = comfy_table::Table::new();
    shown
        .load_style(STYLE)
        .set_content_arrangement(ContentArrangement::Dynamic);
    shown.set_header(&table.head);
    for row in &table.rows {
        shown.add_row(row.iter().map(cell));
    }
    for column in shown.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    shown
}

fn cell(value: &Value) -> String {
    match value {
        Value::None => "–".to_owned(),
        Value::Text(text) => text.clone(),
        Value::Figure { main, range } => format!("{main} [{range}]"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_terminal_shows_figures_gaps_and_notes() {
        let mut out = Vec::new();
        super::write(&crate::bench::report::tests::example(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for expected in [
            "An <example>",
            "1.00 ms [0.90–1.10]",
            "–",
            "Something is missing.",
        ] {
            assert!(text.contains(expected), "{expected} in:\n{text}");
        }
    }
}
