//! `bench tables`: the page tables that a long walk over addresses leaves behind.
//!
//! Allocators map much, touch it, and discard it with `MADV_DONTNEED` while they keep the
//! addresses. A kernel that frees the folios but keeps empty page tables ends with gigabytes of
//! them.

use serde::Serialize;
use vellum_linux::child::tables;
use vellum_linux::workload::case::TABLE_SPAN;

use super::contender::Skip;
use super::engine::Engine;
use super::progress::Progress;
use super::report::{Part, Section, Table, Value, show};
use super::walker::{Tables, VARIANTS, Variant, Walker};

/// The options of the benchmark.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Bytes of addresses to walk over: a multiple of 2 MiB. Never more than 2 MiB of memory are in
    /// use.
    #[arg(long, default_value = "50GiB", value_parser = parse_span)]
    pub span: u64,
}

fn parse_span(text: &str) -> Result<u64, String> {
    let span = vellum_inspect::size::parse(text).map_err(|error| error.to_string())?;
    if span > 0 && span.is_multiple_of(TABLE_SPAN) { Ok(span) } else { Err("must be a multiple of 2 MiB".into()) }
}

/// The kernel of this machine.
struct Linux;

impl Walker for Linux {
    fn walk(&mut self, span: u64, variant: Variant, progress: &mut dyn FnMut(f64)) -> Result<Tables, Skip> {
        let tables::PageTables { start_kb, peak_kb, end_kb } = tables::measure(span, variant.piece, progress)?;
        Ok(Tables { end_kb, peak_kb, start_kb })
    }
}

/// The results of one way of discarding ([`Variant`]), of all contenders.
struct Row {
    variant: Variant,
    span: u64,
    vellum: Result<Tables, Skip>,
    linux: Result<Tables, Skip>,
}

/// The keys of a row in JSON. `linux_skipped` appears only with a reason.
#[derive(Serialize)]
struct Json<'a> {
    bench: &'static str,
    variant: &'a str,
    span: u64,
    vellum_kb: Option<u64>,
    vellum_peak_kb: Option<u64>,
    linux_kb: Option<u64>,
    linux_peak_kb: Option<u64>,
    linux_start_kb: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    linux_skipped: Option<String>,
}

impl Row {
    fn vellum(&self) -> Option<Tables> {
        self.vellum.as_ref().ok().copied()
    }

    fn linux(&self) -> Option<Tables> {
        self.linux.as_ref().ok().copied()
    }

    fn json(&self) -> serde_json::Value {
        let (vellum, linux) = (self.vellum(), self.linux());
        let json = Json {
            bench: "tables",
            variant: self.variant.name,
            span: self.span,
            vellum_kb: vellum.map(|tables| tables.end_kb),
            vellum_peak_kb: vellum.map(|tables| tables.peak_kb),
            linux_kb: linux.map(|tables| tables.end_kb),
            linux_peak_kb: linux.map(|tables| tables.peak_kb),
            linux_start_kb: linux.map(|tables| tables.start_kb),
            linux_skipped: self.linux.as_ref().err().map(Skip::to_string),
        };
        serde_json::to_value(json).unwrap_or_default()
    }

    fn line(&self) -> Vec<Value> {
        let kb = |kb: Option<u64>| kb.map_or(Value::None, |kb| Value::Text(format!("{} kB", show::grouped(kb))));
        let (vellum, linux) = (self.vellum(), self.linux());
        let ratio = vellum.zip(linux).filter(|(vellum, _)| vellum.end_kb > 0);
        vec![
            Value::Text(vellum_inspect::size::show(self.variant.piece)),
            kb(vellum.map(|tables| tables.end_kb)),
            kb(vellum.map(|tables| tables.peak_kb)),
            kb(linux.map(|tables| tables.end_kb)),
            kb(linux.map(|tables| tables.peak_kb)),
            ratio.map_or(Value::None, |(v, l)| Value::Text(show::ratio(l.end_kb as f64 / v.end_kb as f64))),
        ]
    }
}

/// Runs the benchmark and returns its section.
pub fn section(args: &Args) -> Section {
    const STEPS: u64 = 1000;
    let progress = Progress::new(2 * STEPS * VARIANTS.len() as u64);
    let rows = VARIANTS.map(|variant| {
        let turn = |name: &str, walker: &mut dyn Walker| {
            let before = progress.steps();
            progress.set_text(format!("tables {} {name}", variant.name));
            let tables =
                walker.walk(args.span, variant, &mut |done| progress.at(before + (done * STEPS as f64) as u64));
            progress.at(before + STEPS);
            tables
        };
        Row {
            variant,
            span: args.span,
            vellum: turn("vellum", &mut Engine::of(TABLE_SPAN)),
            linux: turn("linux", &mut Linux),
        }
    });
    drop(progress);
    section_of(&rows)
}

fn section_of(rows: &[Row]) -> Section {
    let span = rows.first().map_or(0, |row| row.span);
    let head = ["discarded by", "vellum", "vellum peak", "linux", "linux peak", "linux / vellum"];
    Section {
        id: "tables",
        title: format!("Page tables left after {} of touch and discard", vellum_inspect::size::show(span)),
        method: vec![
            (
                "",
                "2 MiB of addresses are touched, in folios of 4 KiB, and discarded with MADV_DONTNEED; then the next 2 \
                 MiB, to the end of the span. Discarded by 2 MiB is one call that covers all of a page table; \
                 otherwise the calls come in pieces, in shuffled order, and the last one leaves the table just as \
                 empty."
                    .into(),
            ),
            (
                "",
                "The figure is the memory in page tables, of every level, when nothing is mapped any more, and the \
                 most of it on the way. For Linux it is VmPTE of a child process, with the tables for the program and \
                 its stack in it; for vellum, the tables of an address space from its root on, in a simulated \
                 machine."
                    .into(),
            ),
        ],
        parts: vec![Part {
            title: "memory in page tables".into(),
            text: String::new(),
            chart: None,
            table: Table { head: head.map(str::to_owned).to_vec(), rows: rows.iter().map(Row::line).collect() },
        }],
        notes: notes(rows),
        loaded: 0,
        json: rows.iter().map(Row::json).collect(),
    }
}

fn notes(rows: &[Row]) -> Vec<String> {
    let mut notes: Vec<String> = rows
        .iter()
        .filter_map(|row| Some(format!("linux not measured for {}: {}.", row.variant.name, row.linux.as_ref().err()?)))
        .collect();
    if let Some(tables) = rows.iter().find_map(Row::linux) {
        notes.push(format!("Before the walk, the Linux process has {} kB of page tables.", tables.start_kb));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_json_of_a_row_has_these_keys_only() {
        let tables = Tables { end_kb: 240, peak_kb: 248, start_kb: 40 };
        let row = |linux| Row { variant: VARIANTS[1], span: 2 << 20, vellum: Err(Skip::Busy), linux };
        let mut expected = serde_json::json!({
            "bench": "tables", "variant": "1m", "span": 2 << 20,
            "vellum_kb": null, "vellum_peak_kb": null,
            "linux_kb": 240, "linux_peak_kb": 248, "linux_start_kb": 40,
        });
        assert_eq!(row(Ok(tables)).json(), expected);
        for key in ["linux_kb", "linux_peak_kb", "linux_start_kb"] {
            expected[key] = serde_json::Value::Null;
        }
        expected["linux_skipped"] = Skip::NoThp.to_string().into();
        assert_eq!(row(Err(Skip::NoThp)).json(), expected);
    }

    #[test]
    fn every_piece_divides_the_span_of_a_page_table() {
        assert!(VARIANTS.iter().all(|variant| TABLE_SPAN.is_multiple_of(variant.piece)));
    }
}
