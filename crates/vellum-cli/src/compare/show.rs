//! Writes two outputs as tables.

use super::pair::Part;
use crate::bench::report::terminal::STYLE;
use comfy_table::{CellAlignment, Table};
use serde_json::{Map, Value};
use std::io::{self, Write};

type Pair = (Map<String, Value>, Map<String, Value>);

/// Writes all parts.
///
/// # Errors
/// Returns the error of `out`.
pub fn write(out: &mut impl Write, parts: &[Part]) -> io::Result<()> {
    for part in parts {
        match part {
            Part::Lines(lines) => writeln!(out, "{}", side_by_side(lines))?,
            Part::Rows(rows) => writeln!(out, "{}", ratios(rows))?,
        }
    }
    Ok(())
}

/// Returns the lines side by side, with a mark where they differ.
fn side_by_side(lines: &[(Option<String>, Option<String>)]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_header(["vellum", "", "linux"]);
    for (vellum, linux) in lines {
        let text = |line: &Option<String>| line.clone().unwrap_or_default();
        table.add_row([text(vellum), if vellum == linux { "" } else { "≠" }.into(), text(linux)]);
    }
    table
}

/// Returns a table with a line for each figure (a number that differs in some pair) of each pair.
/// The other values label the line.
fn ratios(rows: &[Pair]) -> Table {
    let is_figure = |key: &str| {
        rows.iter().all(|(a, b)| a[key].is_number() && b[key].is_number()) && rows.iter().any(|(a, b)| a[key] != b[key])
    };
    let (figures, labels): (Vec<&String>, Vec<&String>) = rows[0].0.keys().partition(|key| is_figure(key));
    let mut table = Table::new();
    table.load_style(STYLE);
    let labelled = labels.iter().map(|key| key.as_str());
    table.set_header(labelled.chain(["figure", "vellum", "linux", "linux / vellum"]));
    for (a, b) in rows {
        for (nth, key) in figures.iter().enumerate() {
            // A pair has a line for each figure. The labels stand on the first of these lines only.
            let mut cells: Vec<String> =
                labels.iter().map(|key| if nth == 0 { label(&a[*key], &b[*key]) } else { String::new() }).collect();
            cells.extend([key.to_string(), figure(&a[*key]), figure(&b[*key]), ratio(&a[*key], &b[*key])]);
            table.add_row(cells);
        }
        if figures.is_empty() {
            table.add_row(labels.iter().map(|key| label(&a[*key], &b[*key])));
        }
    }
    for column in table.column_iter_mut().skip(labels.len() + 1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

/// Formats a label: it is the same on both kernels, unless something failed.
fn label(a: &Value, b: &Value) -> String {
    if a == b { text(a) } else { format!("{} ≠ {}", text(a), text(b)) }
}

fn figure(value: &Value) -> String {
    match value.as_f64() {
        Some(number) if !value.is_u64() && !value.is_i64() => format!("{number:.1}"),
        _ => text(value),
    }
}

fn ratio(vellum: &Value, linux: &Value) -> String {
    match (vellum.as_f64(), linux.as_f64()) {
        (Some(vellum), Some(linux)) if vellum != 0.0 => {
            let ratio = linux / vellum;
            if ratio < 10.0 { format!("{ratio:.2}") } else { format!("{ratio:.1}") }
        }
        _ => "–".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::pair::parts;
    use super::*;

    fn shown(a: &str, b: &str) -> Vec<String> {
        let mut out = Vec::new();
        write(&mut out, &parts(a, b)).unwrap();
        String::from_utf8(out)
            .unwrap()
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn figures_get_ratios_and_common_values_label_them() {
        let lines = shown(
            "{\"op\":\"munmap\",\"kib\":4,\"ns\":10.0,\"kb\":0}\n{\"op\":\"munmap\",\"kib\":64,\"ns\":4,\"kb\":8}\n",
            "{\"op\":\"munmap\",\"kib\":4,\"ns\":125.0,\"kb\":8}\n{\"op\":\"munmap\",\"kib\":64,\"ns\":6,\"kb\":8}\n",
        );
        assert_eq!(lines[0], "op kib figure vellum linux linux / vellum");
        assert_eq!(lines[2..6], ["munmap 4 ns 10.0 125.0 12.5", "kb 0 8 –", "munmap 64 ns 4 6 1.50", "kb 8 8 1.00"]);
    }

    #[test]
    fn differing_labels_are_shown() {
        assert!(shown("{\"at\":\"0x1\"}", "{\"at\":\"0x2\"}").join("\n").contains("0x1 ≠ 0x2"));
        assert!(shown("a\nb", "a\nc").contains(&"b ≠ c".into()));
    }
}
