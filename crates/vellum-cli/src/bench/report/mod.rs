//! Reports of benchmarks: on a terminal, as JSON lines, as a web page.
//!
//! A benchmark returns [`Section`]s, plain data; the writers know nothing of benchmarks.

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

/// The outputs of the report.
#[derive(Default, clap::Args)]
pub struct Output {
    /// Write one JSON object for the machine and one for each row to FILE; with `-`, to standard
    /// output, and the table goes to standard error.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a self-contained web page with charts to FILE.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Do not fail if rows were measured beside other work; they are marked all the same.
    #[arg(long)]
    pub under_load: bool,
}

/// The results of one command.
pub struct Report {
    /// The machine.
    pub machine: Machine,
    /// The sections.
    pub sections: Vec<Section>,
}

/// The results of one benchmark.
#[derive(Clone, Debug)]
pub struct Section {
    /// The name on the command line.
    pub id: &'static str,
    /// The headline.
    pub title: String,
    /// The method: what the figures include and what they do not. Each text comes with the term
    /// that it explains, or with an empty one.
    pub method: Vec<(&'static str, String)>,
    /// The parts.
    pub parts: Vec<Part>,
    /// Notes on missing or wrong figures.
    pub notes: Vec<String>,
    /// The number of rows that were measured beside other work.
    pub loaded: usize,
    /// The rows in JSON.
    pub json: Vec<serde_json::Value>,
}

/// A part: a table, with text and a chart.
#[derive(Clone, Debug)]
pub struct Part {
    /// The title.
    pub title: String,
    /// The explanation.
    pub text: String,
    /// The chart.
    pub chart: Option<Chart>,
    /// The table.
    pub table: Table,
}

/// A table.
#[derive(Clone, Debug)]
pub struct Table {
    /// The names of the columns; the first column names the rows.
    pub head: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<Value>>,
}

/// A cell of a table.
#[derive(Clone, Debug)]
pub enum Value {
    /// No value.
    None,
    /// A text.
    Text(String),
    /// A figure with its range.
    Figure {
        /// The median, with its unit.
        main: String,
        /// The range, in the same unit.
        range: String,
    },
}

/// A chart: lines over an axis with given ticks.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The description, for readers who can't see it.
    pub label: String,
    /// The name of the vertical axis.
    pub y_name: String,
    /// The scale of the vertical axis.
    pub scale: Scale,
    /// Positions on the horizontal axis, in order, with their names.
    pub ticks: Vec<(f64, String)>,
    /// The lines.
    pub series: Vec<Series>,
}

/// The scale of a vertical axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Logarithmic, in whole decades.
    Decades,
    /// Linear, from zero to a ratio of at least this.
    Times(u32),
}

/// The colour of a line, by role; the page defines the colours, light and dark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// The colour of a contender.
    Column(Column),
    /// One of [`Ink::OTHERS`] colours for other lines.
    Other(usize),
}

impl Ink {
    /// The number of colours besides those of columns.
    pub const OTHERS: usize = 7;

    /// Returns the colour of the line with this index.
    pub fn of(line: usize) -> Ink {
        Ink::Other(line % Ink::OTHERS)
    }

    /// Returns the name of the colour in the page's style sheet.
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
    /// The name.
    pub name: String,
    /// The colour.
    pub ink: Ink,
    /// The points that the line connects.
    pub line: Vec<(f64, f64)>,
    /// Points beside the line that are not connected.
    pub lone: Vec<(f64, f64)>,
}

impl Series {
    /// Makes the line of a column.
    pub fn of(column: Column, line: Vec<(f64, f64)>, lone: Vec<(f64, f64)>) -> Series {
        Series { name: column.name().to_owned(), ink: Ink::Column(column), line, lone }
    }
}

impl Output {
    /// Opens the outputs, so that a wrong path fails before minutes of measurement.
    ///
    /// # Errors
    /// A file can't be opened for writing.
    pub fn open(&self) -> anyhow::Result<Writer> {
        // Do not truncate yet: an old report stays until the new one is written.
        let open = |path: &PathBuf| {
            let file = File::options().write(true).create(true).truncate(false).open(path);
            file.with_context(|| format!("cannot write {}", path.display()))
        };
        let json = match &self.json {
            None => Json::No,
            Some(path) if path.as_os_str() == "-" => Json::Stdout,
            Some(path) => Json::File(open(path)?),
        };
        Ok(Writer { json, html: self.html.as_ref().map(open).transpose()?, under_load: self.under_load })
    }
}

/// The open outputs.
pub struct Writer {
    json: Json,
    html: Option<File>,
    under_load: bool,
}

enum Json {
    No,
    Stdout,
    File(File),
}

impl Writer {
    /// Writes the report in each requested form, and always the table.
    ///
    /// # Errors
    /// An output can't be written; or rows were measured beside other work, and the user did not
    /// allow that.
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
        let loaded: usize = report.sections.iter().map(|section| section.loaded).sum();
        anyhow::ensure!(
            self.under_load || loaded == 0,
            "{loaded} rows, marked in the report, were measured beside other work: repeat them on a quiet machine, or \
             allow this with --under-load"
        );
        Ok(())
    }
}

/// Truncates a regular file. Leaves others, such as pipes, as they are.
fn replace(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Writes one JSON object on each line: the facts about the machine, then each row.
fn json_lines(report: &Report, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", report.machine.json())?;
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
            method: vec![("linux", "Measured & noted.".into())],
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
            loaded: 0,
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
        assert_eq!(rows[0], serde_json::json!({ "machine": { "CPU": "one <fast>" } }));
        assert_eq!(rows[1..], example().sections[0].json);
    }

    #[test]
    fn a_shorter_report_replaces_a_longer_one() {
        let directory = tempfile::tempdir().unwrap();
        let json = directory.path().join("rows.json");
        std::fs::write(&json, "x".repeat(10_000)).unwrap();
        let writer = Output { json: Some(json.clone()), ..Output::default() }.open().unwrap();
        assert_eq!(std::fs::read(&json).unwrap().len(), 10_000, "opened, not yet replaced");
        writer.write_to(&example(), &mut Vec::new(), &mut Vec::new()).unwrap();
        assert!(std::fs::read_to_string(&json).unwrap().ends_with("}\n{\"row\":1}\n{\"row\":2}\n"));
        assert!(std::fs::read(&json).unwrap().len() < 200);
    }

    #[test]
    fn json_on_standard_output_is_alone_there() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let writer = Output { json: Some("-".into()), ..Output::default() }.open().unwrap();
        writer.write_to(&example(), &mut out, &mut err).unwrap();
        assert!(String::from_utf8(out).unwrap().ends_with("}\n{\"row\":1}\n{\"row\":2}\n"));
        assert!(String::from_utf8(err).unwrap().contains("Something is missing."));
    }

    #[test]
    fn rows_beside_other_work_fail_the_run_after_the_report() {
        let mut report = example();
        report.sections[0].loaded = 2;
        for under_load in [false, true] {
            let mut out = Vec::new();
            let writer = Output { under_load, ..Output::default() }.open().unwrap();
            let written = writer.write_to(&report, &mut out, &mut Vec::new());
            assert_eq!(written.is_ok(), under_load);
            assert!(String::from_utf8(out).unwrap().contains("Something is missing."), "the report is written first");
        }
    }

    #[test]
    fn an_unwritable_output_fails_at_once() {
        let nowhere = Some(PathBuf::from("/nonexistent/directory/report.html"));
        assert!(Output { html: nowhere, ..Output::default() }.open().is_err());
    }
}
