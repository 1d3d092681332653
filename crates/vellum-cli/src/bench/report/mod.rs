//! Reports: what benchmarks found, on a terminal, as JSON lines, as a web page.
//!
//! A benchmark fills in [`Section`]s, plain data; the writers know nothing of benchmarks. A new
//! benchmark gets all three for free, a new format sees all benchmarks.

mod chart;
pub mod html;
pub mod show;
pub mod terminal;

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;

use super::contender::Column;
use super::machine::Machine;

/// Where to write.
#[derive(clap::Args)]
pub struct Output {
    /// Write one JSON object a row to FILE; `-` is standard output, and the table then goes to
    /// standard error.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a report with charts to FILE: one page, complete in itself.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Everything one command found out.
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// What.
    pub sections: Vec<Section>,
}

/// What one benchmark found out.
#[derive(Clone, Debug)]
pub struct Section {
    /// Its name on the command line.
    pub id: &'static str,
    /// Its headline.
    pub title: String,
    /// How it was measured: what is in the figures and what is not. Each text with the term it
    /// explains, or with an empty one.
    pub method: Vec<(&'static str, String)>,
    /// The findings.
    pub parts: Vec<Part>,
    /// What is missing or not as it should be.
    pub notes: Vec<String>,
    /// The rows for programs.
    pub json: Vec<serde_json::Value>,
}

/// One finding.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its name.
    pub title: String,
    /// What it is.
    pub text: String,
    /// As a picture.
    pub chart: Option<Chart>,
    /// In figures.
    pub table: Table,
}

/// Figures.
#[derive(Clone, Debug)]
pub struct Table {
    /// The columns' names; the first column names the rows.
    pub head: Vec<String>,
    /// The lines.
    pub rows: Vec<Vec<Value>>,
}

/// What stands in a table.
#[derive(Clone, Debug)]
pub enum Value {
    /// Nothing is known.
    None,
    /// As it is.
    Text(String),
    /// A figure and its smallest and largest.
    Figure {
        /// The median, with its unit.
        main: String,
        /// The range, in the same unit.
        range: String,
    },
}

/// A picture: lines over an axis that the benchmark lays out.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows, for those who cannot see it.
    pub label: String,
    /// The name of the vertical axis.
    pub y_name: String,
    /// What that axis is like.
    pub scale: Scale,
    /// Places on the horizontal axis, in order, and what they are called.
    pub ticks: Vec<(f64, String)>,
    /// The lines.
    pub series: Vec<Series>,
}

/// A vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Logarithmic, by whole decades.
    Decades,
    /// From zero to at least so many times.
    Times(u32),
}

/// The colour of a line. The page has it, light or dark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// A contender's own.
    Column(Column),
    /// One of [`Ink::OTHERS`] for lines that are nobody's column.
    Other(usize),
}

impl Ink {
    /// How many there are besides those of columns.
    pub const OTHERS: usize = 7;

    /// For the line with this index.
    pub fn of(line: usize) -> Ink {
        Ink::Other(line % Ink::OTHERS)
    }

    /// The page's name for it.
    pub fn name(self) -> String {
        match self {
            Ink::Column(column) => column.name().to_owned(),
            Ink::Other(line) => format!("line-{line}"),
        }
    }
}

/// A line.
#[derive(Clone, Debug)]
pub struct Series {
    /// What it is called.
    pub name: String,
    /// Its colour.
    pub ink: Ink,
    /// Joined points.
    pub line: Vec<(f64, f64)>,
    /// Points by themselves.
    pub lone: Vec<(f64, f64)>,
}

impl Series {
    /// A column's.
    pub fn of(column: Column, line: Vec<(f64, f64)>, lone: Vec<(f64, f64)>) -> Series {
        Series { name: column.name().to_owned(), ink: Ink::Column(column), line, lone }
    }
}

impl Output {
    /// Opens what will be written, so that a wrong path is told before minutes of measuring and not
    /// after.
    pub fn open(&self) -> anyhow::Result<Writer> {
        // What is in the file stays until there is something to replace it with.
        let open = |path: &PathBuf| {
            let file = File::options().write(true).create(true).truncate(false).open(path);
            file.with_context(|| format!("cannot write {}", path.display()))
        };
        let json = match &self.json {
            None => Json::No,
            Some(path) if path.as_os_str() == "-" => Json::Stdout,
            Some(path) => Json::File(open(path)?),
        };
        Ok(Writer { json, html: self.html.as_ref().map(open).transpose()? })
    }
}

/// Open outputs.
pub struct Writer {
    json: Json,
    html: Option<File>,
}

enum Json {
    No,
    Stdout,
    File(File),
}

impl Writer {
    /// Writes the report in every form that was asked for; the table always.
    pub fn write(self, report: &Report) -> anyhow::Result<()> {
        self.write_to(report, &mut io::stdout().lock(), &mut io::stderr().lock())
    }

    fn write_to(self, report: &Report, out: &mut impl Write, err: &mut impl Write) -> anyhow::Result<()> {
        match self.json {
            Json::No => terminal::write(report, out)?,
            Json::Stdout => {
                terminal::write(report, err)?;
                json_lines(report, out)?;
            }
            Json::File(file) => {
                terminal::write(report, out)?;
                json_lines(report, &mut replace(file)?)?;
            }
        }
        if let Some(file) = self.html {
            replace(file)?.write_all(html::page(report)?.as_bytes())?;
        }
        Ok(())
    }
}

/// Empties a file, unless it is one that has no length.
fn replace(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// One object a line.
fn json_lines(report: &Report, out: &mut impl Write) -> io::Result<()> {
    for row in report.sections.iter().flat_map(|section| &section.json) {
        writeln!(out, "{row}")?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn example() -> Report {
        let series = Series::of(Column::Linux, vec![(2.0, 90.5), (4.0, 31.0)], vec![(5.0, 1.5)]);
        let section = Section {
            id: "example",
            title: "An <example>".into(),
            method: vec![("linux", "Measured & told.".into())],
            parts: vec![Part {
                title: "part".into(),
                text: "What it is.".into(),
                chart: Some(Chart {
                    label: "a \"picture\"".into(),
                    y_name: "ns".into(),
                    scale: Scale::Decades,
                    ticks: vec![(2.0, "4 KiB".into()), (4.0, "16 KiB".into()), (5.0, "huge".into())],
                    series: vec![series],
                }),
                table: Table {
                    head: vec!["folio".into(), "linux".into()],
                    rows: vec![
                        vec![
                            Value::Text("4 KiB".into()),
                            Value::Figure { main: "1.00 ms".into(), range: "0.90–1.10".into() },
                        ],
                        vec![Value::Text("16 KiB".into()), Value::None],
                    ],
                },
            }],
            notes: vec!["Something is missing.".into()],
            json: vec![serde_json::json!({ "row": 1 }), serde_json::json!({ "row": 2 })],
        };
        let machine = Machine { facts: vec![("CPU", "one <fast>".into())], busy: None };
        Report { machine, sections: vec![section] }
    }

    #[test]
    fn json_is_one_object_a_line() {
        let mut out = Vec::new();
        json_lines(&example(), &mut out).unwrap();
        let rows: Vec<serde_json::Value> =
            String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows, example().sections[0].json);
    }

    #[test]
    fn a_shorter_report_leaves_nothing_of_a_longer_one() {
        let directory = tempfile::tempdir().unwrap();
        let json = directory.path().join("rows.json");
        std::fs::write(&json, "x".repeat(10_000)).unwrap();
        let writer = Output { json: Some(json.clone()), html: None }.open().unwrap();
        assert_eq!(std::fs::read(&json).unwrap().len(), 10_000, "opened, not yet replaced");
        writer.write_to(&example(), &mut Vec::new(), &mut Vec::new()).unwrap();
        assert_eq!(std::fs::read_to_string(&json).unwrap(), "{\"row\":1}\n{\"row\":2}\n");
    }

    #[test]
    fn rows_on_standard_output_have_it_to_themselves() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let writer = Output { json: Some("-".into()), html: None }.open().unwrap();
        writer.write_to(&example(), &mut out, &mut err).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "{\"row\":1}\n{\"row\":2}\n");
        assert!(String::from_utf8(err).unwrap().contains("Something is missing."));
    }

    #[test]
    fn an_output_that_cannot_be_written_is_told_at_once() {
        let nowhere = Some(PathBuf::from("/nonexistent/directory/report.html"));
        assert!(Output { json: None, html: nowhere }.open().is_err());
    }
}
