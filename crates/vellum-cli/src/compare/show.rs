//! Writes several outputs as tables, and their rows as JSON.

use super::pair::{Object, Part, Spread};
use crate::bench::report::terminal::STYLE;
use comfy_table::{CellAlignment, Table};
use serde_json::Value;
use std::io::{self, Write};

/// Writes all parts. `names` are the names of the columns; ratios are to the first column.
///
/// # Errors
/// Returns the error of `out`.
pub fn write(out: &mut impl Write, names: &[&str], parts: &[Part]) -> io::Result<()> {
    for part in parts {
        match part {
            Part::Lines(lines) => writeln!(out, "{}", side_by_side(names, lines))?,
            Part::Rows(rows) => writeln!(out, "{}", ratios(names, rows))?,
        }
    }
    Ok(())
}

/// Writes for each kernel by how much its runs differ at most, in percent, and in which figure.
///
/// # Errors
/// Returns the error of `out`.
pub fn write_spreads(out: &mut impl Write, spreads: &[(&str, Spread)]) -> io::Result<()> {
    if spreads.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nThe runs of a kernel differ at most by (figures of 1 and more)")?;
    for (name, Spread { share, figure }) in spreads {
        writeln!(out, "  {name}: {:.2} % ({figure})", share * 100.0)?;
    }
    Ok(())
}

/// Returns the shares by which the runs of each kernel differ at most, with four decimals.
pub fn json_of(spreads: &[(&str, Spread)]) -> Value {
    let share = |share: f64| (share * 10_000.0).round() / 10_000.0;
    Value::Object(spreads.iter().map(|(name, spread)| ((*name).to_owned(), share(spread.share).into())).collect())
}

/// Writes each row as a JSON object on a line: its labels, and each figure once for each column,
/// under the column's name and the figure's, as in `vellum_munmap`.
///
/// # Errors
/// Returns the error of `out`.
pub fn write_json(out: &mut impl Write, names: &[&str], parts: &[Part]) -> io::Result<()> {
    for rows in parts.iter().filter_map(|part| if let Part::Rows(rows) = part { Some(rows) } else { None }) {
        let (figures, labels) = keys(rows);
        for row in rows {
            let label = |key: &&String| (key.to_string(), row[0][*key].clone());
            let mut object: Object = labels.iter().map(label).collect();
            for key in &figures {
                object.extend(names.iter().zip(row).map(|(name, side)| (format!("{name}_{key}"), side[*key].clone())));
            }
            writeln!(out, "{}", Value::Object(object))?;
        }
    }
    Ok(())
}

/// Returns the lines side by side, with a mark before each that differs from the first column's.
fn side_by_side(names: &[&str], lines: &[Vec<Option<String>>]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    let separated = |nth: usize, cell: String, mark: &'static str| {
        if nth == 0 { vec![cell] } else { vec![mark.to_string(), cell] }
    };
    table.set_header(names.iter().enumerate().flat_map(|(nth, name)| separated(nth, name.to_string(), "")));
    for line in lines {
        let cell = |(nth, text): (usize, &Option<String>)| {
            separated(nth, text.clone().unwrap_or_default(), if *text == line[0] { "" } else { "≠" })
        };
        table.add_row(line.iter().enumerate().flat_map(cell));
    }
    table
}

/// Returns the keys of the figures, and those of the other values. A figure is a number that
/// differs between the columns of some row.
fn keys(rows: &[Vec<Object>]) -> (Vec<&String>, Vec<&String>) {
    let differs = |row: &Vec<Object>, key: &str| row.iter().any(|side| side[key] != row[0][key]);
    let is_figure =
        |key: &str| rows.iter().flatten().all(|side| side[key].is_number()) && rows.iter().any(|row| differs(row, key));
    rows[0][0].keys().partition(|key| is_figure(key))
}

/// Returns a table with a line for each figure of each row. The other values label the line.
fn ratios(names: &[&str], rows: &[Vec<Object>]) -> Table {
    let (figures, labels) = keys(rows);
    let mut table = Table::new();
    table.load_style(STYLE);
    let mut header: Vec<String> = labels.iter().map(|key| key.to_string()).collect();
    header.push("figure".into());
    header.extend(names.iter().map(|name| name.to_string()));
    header.extend(names.iter().skip(1).map(|name| format!("{name} / {}", names[0])));
    table.set_header(header);
    for row in rows {
        for (nth, key) in figures.iter().enumerate() {
            // A row has a line for each figure. The labels stand on the first of these lines only.
            let mut cells: Vec<String> =
                labels.iter().map(|key| if nth == 0 { label(row, key) } else { String::new() }).collect();
            cells.push(key.to_string());
            cells.extend(row.iter().map(|side| figure(&side[*key])));
            cells.extend(row.iter().skip(1).map(|side| ratio(&row[0][*key], &side[*key])));
            table.add_row(cells);
        }
        if figures.is_empty() {
            table.add_row(labels.iter().map(|key| label(row, key)));
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

/// Formats a label: it is the same on all kernels, unless something failed.
fn label(row: &[Object], key: &str) -> String {
    if row.iter().all(|side| side[key] == row[0][key]) {
        text(&row[0][key])
    } else {
        row.iter().map(|side| text(&side[key])).collect::<Vec<_>>().join(" ≠ ")
    }
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

    const NAMES: [&str; 3] = ["vellum", "linux", "minimal"];

    fn of(outputs: &[&str]) -> Vec<Part> {
        parts(&outputs.iter().map(|&output| output.into()).collect::<Vec<_>>())
    }

    fn shown(outputs: &[&str]) -> Vec<String> {
        let mut out = Vec::new();
        write(&mut out, &NAMES[..outputs.len()], &of(outputs)).unwrap();
        String::from_utf8(out)
            .unwrap()
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    }

    const VELLUM: &str =
        "{\"op\":\"munmap\",\"kib\":4,\"ns\":10.0,\"kb\":0}\n{\"op\":\"munmap\",\"kib\":64,\"ns\":4,\"kb\":8}\n";
    const LINUX: &str =
        "{\"op\":\"munmap\",\"kib\":4,\"ns\":125.0,\"kb\":8}\n{\"op\":\"munmap\",\"kib\":64,\"ns\":6,\"kb\":8}\n";

    #[test]
    fn figures_get_ratios_and_common_values_label_them() {
        let lines = shown(&[VELLUM, LINUX]);
        assert_eq!(lines[0], "op kib figure vellum linux linux / vellum");
        assert_eq!(lines[2..6], ["munmap 4 ns 10.0 125.0 12.5", "kb 0 8 –", "munmap 64 ns 4 6 1.50", "kb 8 8 1.00"]);
    }

    #[test]
    fn a_third_kernel_gets_a_column_and_a_ratio_to_the_first() {
        let lines = shown(&[VELLUM, LINUX, &LINUX.replace("125.0", "50.0")]);
        assert_eq!(lines[0], "op kib figure vellum linux minimal linux / vellum minimal / vellum");
        assert_eq!(lines[2], "munmap 4 ns 10.0 125.0 50.0 12.5 5.00");
        assert!(shown(&["a\nb", "a\nb", "a\nc"]).contains(&"b b ≠ c".into()));
    }

    #[test]
    fn json_rows_have_labels_and_a_figure_for_each_kernel() {
        let mut out = Vec::new();
        write_json(&mut out, &NAMES, &of(&[&format!("hi\n{VELLUM}"), LINUX, LINUX])).unwrap();
        let text = String::from_utf8(out).unwrap();
        let first = "{\"op\":\"munmap\",\"kib\":4,\"vellum_ns\":10.0,\"linux_ns\":125.0,\"minimal_ns\":125.0,\
                     \"vellum_kb\":0,\"linux_kb\":8,\"minimal_kb\":8}";
        assert_eq!(text.lines().next(), Some(first));
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn spreads_are_percent_for_readers_and_shares_in_json() {
        let of = |share, figure: &str| Spread { share, figure: figure.into() };
        let spreads = [("vellum", of(0.001_234, "random, fork")), ("linux", of(0.0, "exit"))];
        let mut out = Vec::new();
        write_spreads(&mut out, &spreads).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.ends_with("\n  vellum: 0.12 % (random, fork)\n  linux: 0.00 % (exit)\n"), "{text}");
        assert_eq!(json_of(&spreads), serde_json::json!({"vellum": 0.0012, "linux": 0.0}));
        let mut out = Vec::new();
        write_spreads(&mut out, &[]).unwrap();
        assert!(out.is_empty(), "without figures there is no line");
    }

    #[test]
    fn differing_labels_are_shown() {
        assert!(shown(&["{\"at\":\"0x1\"}", "{\"at\":\"0x2\"}"]).join("\n").contains("0x1 ≠ 0x2"));
        assert!(shown(&["a\nb", "a\nc"]).contains(&"b ≠ c".into()));
    }
}
