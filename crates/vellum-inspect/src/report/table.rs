//! Tables, paragraphs and numbers for a terminal.

use std::io::{self, Write};

use comfy_table::{CellAlignment, LineStyle, Row, Table, TableStyle};

const STYLE: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Returns an empty table with this header row.
pub fn new_table(head: impl Into<Row>) -> Table {
    let mut shown = Table::new();
    shown.load_style(STYLE);
    shown.set_header(head);
    shown
}

/// Aligns the columns with these numbers to the right.
pub fn align(shown: &mut Table, right: impl IntoIterator<Item = usize>) {
    for column in right {
        if let Some(column) = shown.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// Writes a paragraph, wrapped at 100 columns, with the word `head` at its left margin.
///
/// # Errors
/// Returns the error of `out`.
pub fn paragraph(head: &str, text: &str, out: &mut impl Write) -> io::Result<()> {
    const WIDTH: usize = 100;
    let mut line = String::new();
    let mut head = head;
    for word in text.split(' ') {
        if line.len() + word.len() >= WIDTH {
            write_line(head, &line, out)?;
            head = "";
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    write_line(head, &line, out)
}

fn write_line(head: &str, line: &str, out: &mut impl Write) -> io::Result<()> {
    if head.is_empty() { writeln!(out, "       {line}") } else { writeln!(out, "{head:<6} {line}") }
}

/// Formats a number with its thousands separated.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
