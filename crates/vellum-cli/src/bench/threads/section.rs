//! The section of `bench threads`: a table and a chart for each operation and kind of address
//! space, and the method.

use vellum_linux::workload::case::Op;

use super::Spaces;
use super::rows::{COLUMNS, Cell, Row};
use crate::bench::report::{Chart, Part, Scale, Section, Series, Table, Value, show};

/// The mark of a figure for whose measurement a notable share of a region was not mapped as the row
/// says.
const MARK: &str = "*";

/// Returns the section of these rows.
pub fn of(rows: &[Row], runs: u32) -> Section {
    let (threads, bytes) = rows.first().map_or((0, 0), |row| (row.threads, row.case.bytes));
    Section {
        id: "threads",
        title: format!("{threads} threads at once, {} each", vellum_inspect::size::show(bytes)),
        method: method(threads, runs),
        parts: rows.chunk_by(|a, b| (a.op, a.spaces) == (b.op, b.spaces)).map(part).collect(),
        notes: notes(rows),
        loaded: rows.iter().filter(|row| row.load.is_notable()).count(),
        json: rows.iter().map(Row::json).collect(),
    }
}

fn part(rows: &[Row]) -> Part {
    let place = match rows[0].spaces {
        Spaces::One => "in one address space",
        Spaces::Own => "in an address space each",
    };
    Part {
        title: format!("{} {place}", rows[0].op.name()),
        text: description(rows[0].op).to_owned(),
        chart: Some(chart(rows)),
        table: table(rows),
    }
}

fn description(op: Op) -> &'static str {
    match op {
        Op::Touch => {
            "Each thread writes one byte in each page of its fresh region: page faults, and the zeroing of every page. \
             The floor's part of it is the zeroing."
        }
        _ => "Each thread unmaps its region; its folios and page tables are freed.",
    }
}

fn method(threads: usize, runs: u32) -> Vec<(&'static str, String)> {
    vec![
        (
            "scaling",
            format!(
                "is the throughput of {threads} threads relative to one: {threads} times the time of one thread with \
                 one region (× 1), over the time from the common start to the moment when the last of {threads} is \
                 done with its own (× {threads}). {threads}× is the maximum. Where the floor has less, the machine \
                 limits it: memory, caches and power that CPUs share, or a host that shares its CPUs."
            ),
        ),
        (
            "",
            format!(
                "Each figure is the median of {runs} runs. The contenders take turns. All threads come first in one \
                 run, and one thread in the next; which of them begins is random by row. A thread has its own CPU and \
                 touches its region there; all threads meet before they touch and before they unmap. Mapping and \
                 tearing down are not in the figure. 2 MiB folios are mapped by 512 PTEs each."
            ),
        ),
        (
            "floor",
            "is the bare loop of the unmap benchmark, on memory of each thread's own: no two threads write to the same \
             place, so this is what the machine can do."
                .into(),
        ),
        (
            "vellum",
            "is the engine on a simulated machine with as many CPUs, one for each thread. A flush reaches every CPU \
             that has the space loaded, as far as it is the engine's work; that the others are not interrupted is in \
             the simulation's favour."
                .into(),
        ),
        (
            "linux",
            "is the kernel of this machine: threads of this process for one address space, and a process on each CPU \
             for an address space each."
                .into(),
        ),
    ]
}

fn table(rows: &[Row]) -> Table {
    let mut head = vec!["folio".to_owned()];
    for column in COLUMNS {
        let name = column.name();
        head.extend([format!("{name} × 1"), format!("{name} × {}", rows[0].threads), format!("{name} scaling")]);
    }
    let line = |row: &Row| {
        let mut line = vec![Value::Text(row.case.label())];
        for column in COLUMNS {
            let cell = &row.cells[column];
            let mark = if cell.notable_fallback().is_some() { MARK } else { "" };
            let (together, alone) = match cell.summaries() {
                Some((together, alone)) => (figure(together, mark), figure(alone, mark)),
                None => (Value::None, Value::None),
            };
            let scaling = row.scaling(column).map_or(Value::None, |r| Value::Text(show::ratio(r)));
            line.extend([alone, together, scaling]);
        }
        line
    };
    Table { head, rows: rows.iter().map(line).collect() }
}

fn figure(summary: vellum_linux::stats::Summary, mark: &str) -> Value {
    let (median, range) = show::nanoseconds(summary);
    Value::Figure { main: format!("{median}{mark}"), range }
}

fn chart(rows: &[Row]) -> Chart {
    let x = |row: &Row| f64::from(row.case.folio_kib).log2();
    let mut ticks: Vec<_> = rows.iter().map(|row| (x(row), row.case.label())).collect();
    ticks.sort_by(|a, b| a.0.total_cmp(&b.0));
    let series = COLUMNS.into_iter().filter_map(|column| {
        let mut line: Vec<_> = rows.iter().filter_map(|row| Some((x(row), row.scaling(column)?))).collect();
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
        (!line.is_empty()).then_some(Series::of(column, line, vec![]))
    });
    let threads = rows[0].threads;
    Chart {
        label: format!("{}: throughput of {threads} threads relative to one, by folio size", rows[0].op.name()),
        y_name: "scaling".to_owned(),
        scale: Scale::Times(threads as u32),
        ticks,
        series: series.collect(),
    }
}

/// Returns notes on missing or doubtful figures: each reason once, with the rows it applies to.
fn notes(rows: &[Row]) -> Vec<String> {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    // Take the reasons from the rows of `munmap` only: touching is measured in the same runs.
    let of_one = |row: &&Row| row.op == Op::Munmap;
    for (row, column) in rows.iter().filter(of_one).flat_map(|row| COLUMNS.map(|column| (row, column))) {
        let name = column.name();
        let place = format!("{} ({} space)", row.case.label(), row.spaces.name());
        let (reason, place) = match (&row.cells[column], row.cells[column].notable_fallback()) {
            (Cell::Skipped(skip), _) => (format!("{name} not measured: {skip}"), place),
            (_, Some(share)) => {
                let reason = format!(
                    "{MARK} {name}: more than 1 % of a region was not in folios of this size or not mapped this way \
                     (memory is fragmented)"
                );
                (reason, format!("{place} {:.0} %", share * 100.0))
            }
            _ => continue,
        };
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, places)) => places.push(place),
            None => reasons.push((reason, vec![place])),
        }
    }
    let line = |(reason, places): (String, Vec<String>)| format!("{reason}: {}.", places.join(", "));
    reasons.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::rows::Outcome;
    use super::super::rows::tests::row;
    use super::*;
    use crate::bench::contender::Skip;

    fn skipped() -> Outcome {
        Outcome { skip: Some(Skip::NoFolio(64)), ..Outcome::default() }
    }

    #[test]
    fn each_operation_and_kind_of_space_is_a_part() {
        let rows = [
            row(Op::Munmap, Spaces::One, &[100], skipped()),
            row(Op::Munmap, Spaces::Own, &[100], Outcome::default()),
            row(Op::Touch, Spaces::One, &[100], skipped()),
        ];
        let section = of(&rows, 1);
        let titles: Vec<_> = section.parts.iter().map(|part| part.title.as_str()).collect();
        let expected = ["munmap in one address space", "munmap in an address space each", "touch in one address space"];
        assert_eq!(titles, expected);
        assert_eq!(section.title, "2 threads at once, 2 MiB each");
        for part in &section.parts {
            assert!(part.table.rows.iter().all(|row| row.len() == part.table.head.len()));
            let chart = part.chart.as_ref().unwrap();
            assert_eq!((chart.series.len(), chart.scale), (1, Scale::Times(2)));
        }
        assert_eq!(section.notes.len(), 1, "{:?}", section.notes);
        assert!(section.notes[0].ends_with("of 64 KiB: 64 KiB (one space)."), "{:?}", section.notes);
    }

    #[test]
    fn the_scaling_is_beside_its_two_times() {
        let table = table(&[row(Op::Munmap, Spaces::One, &[160, 110, 150], skipped())]);
        assert_eq!(table.head[..4], ["folio", "floor × 1", "floor × 2", "floor scaling"]);
        let Value::Text(scaling) = &table.rows[0][3] else { panic!("no scaling") };
        assert_eq!(scaling, "1.33×");
        assert!(matches!(&table.rows[0][7..], [Value::None, Value::None, Value::None]));
    }
}
