//! The section of `bench tails`: a table for each operation.

use super::Args;
use super::rows::{Figure, QUANTILES, Row};
use crate::bench::load::Load;
use crate::bench::report::{Part, Section, Table, Value, show};
use vellum_linux::stats::Summary;
use vellum_linux::workload::contended::TimedOp;

/// The mark of a row that was measured beside other work.
const LOADED: &str = "†";

/// Returns the section of these rows.
pub fn of(rows: &[Row], args: &Args) -> Section {
    Section {
        id: "tails",
        title: "Tails: single operations while memory is reclaimed".into(),
        method: method(args),
        parts: rows.chunk_by(|a, b| a.op == b.op).map(part).collect(),
        notes: notes(rows),
        loaded: rows.iter().filter(|row| row.load.is_notable()).count(),
        json: rows.iter().map(Row::json).collect(),
    }
}

fn part(rows: &[Row]) -> Part {
    let text = match rows[0].op {
        TimedOp::Fault => "The first write to a page of 4 KiB: one page fault, and every 512th allocates a page table.",
        TimedOp::Munmap => "munmap of 64 KiB of touched memory in base pages, with no other mapping beside it.",
        TimedOp::Fork => {
            "A fork of the process, whose 16 MiB of base pages are the memory that is reclaimed. From the times of \
             Linux, which also copies the task, its files and the mappings of its program, the median of forks without \
             the memory is subtracted, timed in the same run beside the same reclaim; from those of vellum nothing. \
             Beside reclaim that median is mostly a wait for the reclaimer, which vellum's figure then has and Linux's \
             lacks. A tail has all that such forks take longer than their median: compare it with that of bare-fork."
        }
        TimedOp::BareFork => "The same fork without this memory (MADV_DONTFORK), with nothing subtracted.",
    };
    let mut head = vec!["beside".to_owned(), "contender".to_owned()];
    head.extend(QUANTILES.map(|quantile| quantile.name.to_owned()));
    let line = |row: &Row| {
        let mark = if row.load.is_notable() { LOADED } else { "" };
        let mut line = vec![Value::Text(format!("{}{mark}", row.beside.name()))];
        line.push(Value::Text(row.column.name().into()));
        line.extend(QUANTILES.map(|quantile| {
            row.figure(&quantile).map_or(Value::None, |Figure { all, min, max }| {
                let (main, range) = show::nanoseconds(Summary { median: all, min, max });
                Value::Figure { main, range }
            })
        }));
        line
    };
    let table = Table { head, rows: rows.iter().map(line).collect() };
    Part { title: rows[0].op.name().into(), text: text.into(), chart: None, table }
}

fn method(args: &Args) -> Vec<(&'static str, String)> {
    let all = format!(
        "Each operation is timed by the clock, {} times in each of {} runs; a figure is the median of the runs' \
         quantiles, and of their maxima the greatest, with the smallest and the largest of a run beside it. The \
         contenders take turns, in random order.",
        args.samples, args.runs
    );
    let texts = [
        (
            "reclaim",
            "is another thread of the process, on another CPU, that pages out 16 MiB of compressible memory \
             (MADV_PAGEOUT, to compressed memory) and reads it again, over and over.",
        ),
        (
            "clock",
            "includes all waiting: for locks, and for a CPU. So any other work on the machine shows up, most of all in \
             p99.9 and the maximum: a thread of either contender may be preempted, and a thread of the engine also \
             while it holds a spin lock, which cannot happen in a kernel.",
        ),
        (
            "vellum",
            "has two simulated CPUs, each a thread of its own. Its times lack the entry to a kernel; a TLB flush waits \
             for the other simulated CPU to finish up to 64 accesses, as the simulated TLB is a lock.",
        ),
        ("linux", "is a process with a thread for each; swap is a new zram device, with lz4."),
    ];
    std::iter::once(("", all)).chain(texts.map(|(term, text)| (term, text.to_owned()))).collect()
}

fn notes(rows: &[Row]) -> Vec<String> {
    let mut notes = Vec::new();
    for row in rows {
        let name = format!("{} of {} beside {}", row.op.name(), row.column.name(), row.beside.name());
        notes.extend(row.runs.as_ref().err().map(|skip| format!("{name} not measured: {skip}.")));
        notes.extend(row.load.is_notable().then(|| {
            let Load { others, stolen } = row.load;
            let stolen = stolen * 100.0;
            format!(
                "{LOADED} {name} was measured beside other work: {others:.2} CPUs, and {stolen:.0} % of the time \
                 stolen."
            )
        }));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::rows::tests::row;
    use super::*;
    use crate::bench::contender::{Column, Skip};

    #[test]
    fn rows_beside_other_work_and_rows_without_a_figure_are_noted() {
        let args = Args { samples: 1, runs: 1, ops: TimedOp::ALL.to_vec() };
        let load = Load { others: 0.0, stolen: 0.5 };
        let rows =
            [Row { load, ..row(Column::Vellum, &[1]) }, Row { runs: Err(Skip::Busy), ..row(Column::Linux, &[]) }];
        let section = of(&rows, &args);
        assert_eq!((section.loaded, section.parts.len()), (1, 1));
        let expected = ["munmap of vellum beside reclaim was measured", "munmap of linux beside reclaim not measured"];
        for part in expected {
            assert!(section.notes.iter().any(|note| note.contains(part)), "{part}: {:?}", section.notes);
        }
        let table = &section.parts[0].table;
        assert!(table.rows.iter().all(|row| row.len() == table.head.len()));
    }
}
