//! The section of the report: a table and a chart for each operation, the method, and what is
//! missing.

use vellum_linux::stats::Summary;
use vellum_linux::workload::calls::Calls;
use vellum_linux::workload::case::Op;
use vellum_linux::workload::data::Steps;
use vellum_linux::workload::mapping::Mapping;

use super::Subject;
use super::rows::{Cell, Row};
use crate::bench::contender::Column;
use crate::bench::files;
use crate::bench::load::Load;
use crate::bench::report::{Chart, Part, Scale, Section, Series, Table, Value, show};

/// The mark of a figure for whose measurement a notable share of the region was not mapped as the
/// row says.
const MARK: &str = "*";

/// The mark of a row that was measured beside other work.
const LOADED: &str = "†";

/// Returns the section of these rows.
pub fn of(subject: &Subject, rows: &[Row], runs: u32) -> Section {
    let bytes = rows.first().map_or(0, |row| row.case.bytes);
    Section {
        id: subject.name,
        title: format!("{} {}, by folio size", subject.title, vellum_inspect::size::show(bytes)),
        method: method(subject, rows, runs),
        parts: of_one_table(rows).map(part).chain(subject.beside.map(|part| part(rows))).collect(),
        notes: notes(rows),
        loaded: rows.iter().filter(|row| row.load.is_notable()).count(),
        json: rows.iter().map(|row| row.json(subject.name)).collect(),
    }
}

/// Returns the rows of each table: those of one operation, one mapping and one arm.
fn of_one_table(rows: &[Row]) -> impl Iterator<Item = &[Row]> {
    rows.chunk_by(|a, b| title(a) == title(b))
}

fn part(rows: &[Row]) -> Part {
    let op = rows[0].op;
    // The figures of calls are not those of a page, so a chart would say nothing.
    let chart = op.calls().is_none().then(|| chart(rows));
    Part { title: title(&rows[0]), text: description(op).to_owned(), chart, table: table(rows) }
}

/// Returns the heading of a row's table.
fn title(row: &Row) -> String {
    format!("{}, {}", row.op_title(), row.case.arm.name())
}

fn description(op: Op) -> &'static str {
    match op {
        Op::Munmap => "The region is unmapped; its folios and page tables are freed.",
        Op::Calls(Calls::Small { .. }) => {
            "Each of many small regions is unmapped by a call of its own; the figure is the time of a call. A row has \
             the length of a region, and the size of its folios."
        }
        Op::Calls(Calls::MiddleQuarter) => {
            "The middle quarter of the region is unmapped by one call, which leaves two VMAs."
        }
        Op::Calls(Calls::EverySecond) => {
            "Every second 64 KiB of the region are unmapped by a call each, which splits a VMA and leaves 2 MiB folios \
             half mapped; the figure is the time of a call."
        }
        Op::Dontneed => {
            "Its memory is discarded and the region stays (MADV_DONTNEED). Linux frees the page tables as well where \
             one call covers all of a table."
        }
        Op::Exit => {
            "The process that maps the region exits. For Linux: from a process's last instruction to the return of \
             its parent's wait, less the same for a process without the region. For the floor this is munmap again."
        }
        Op::Protect => {
            "The region is made read-only (mprotect). Every entry changes and no folio does, so the size of a run is \
             worth less here."
        }
        Op::Fork => {
            "The address space that maps the region is forked; the child's exit is not in the figure. For Linux: \
             fork() in a process with the region, from the call to its return, less the same in a process without the \
             region. For the floor: each entry is read, written back without the right to write, and written into a \
             table of the child; each folio's descriptor gets the references."
        }
        Op::ForkWrite(Steps::EveryPage) => {
            "The address space that maps the region is forked, and then the parent writes a byte in each page, while \
             the child waits: the fork and the copy-on-write faults together. A fault of the engine copies a page, or \
             a folio of the row's size if as many pages before it were copied; Linux copies one page. Both split a \
             huge PTE first. The engine's faults enter no kernel, which Linux's do."
        }
        Op::ForkWrite(_) => {
            "The address space that maps the region is forked, and then the parent writes a single byte in each 64 KiB \
             or 2 MiB, while the child waits: the fork and the copy-on-write faults together. The bytes copied are \
             those that the parent no longer shares with the child."
        }
        Op::Cow(_) => "The copy-on-write faults of the operation before, without the fork.",
        Op::SwapOut(..) => {
            "The region is swapped out to compressed memory (MADV_PAGEOUT), and its folios are freed. A page that one \
             word fills is stored as that word; any other is compressed by lz4."
        }
        Op::SwapIn(_, Steps::EveryPage) => {
            "One byte is read in each page, in order: all pages are swapped in. The engine's faults enter no kernel \
             here, which Linux's do: compare the two with the clock that counts instructions (vellum compare \
             --icount)."
        }
        Op::SwapIn(..) => {
            "A single byte is read in each 64 KiB or 2 MiB, in order: only some pages have to be swapped in. The bytes \
             swapped in are all that the faults brought into memory. All other pages are swapped in afterwards, when \
             the contents are compared, outside of the figure. The floor has no faults, so it has no such figure."
        }
        Op::Reclaim(_) => {
            "The region is made lazyfree (MADV_FREE, not in the figure), and reclaimed (MADV_PAGEOUT): all pages go \
             that were not written to since. Since 7.3.2, and in 6.18.44, Linux first splits a huge PTE into 512 PTEs."
        }
        Op::File(op) => files::description(op),
        Op::Touch => {
            "One byte is written in each page of the fresh region: page faults, and the zeroing of every page. \
             Reported, not compared: zeroing is most of it, and a simulated machine has no exceptions to take."
        }
    }
}

/// The state of the caches when an operation begins.
const EVICTED: &str = "have nothing of an operation when it begins: after the touch, each contender writes 1 GiB of \
                       other memory, which is several times the size of a CPU's caches.";

fn method(subject: &Subject, rows: &[Row], runs: u32) -> Vec<(&'static str, String)> {
    let texts = [
        (
            "floor",
            "is a lower bound of the operation: a bare loop over the same page-table entries and one 32-byte \
             descriptor a folio, which it prefetches, each folio known to be mapped whole; the fastest of its runs. \
             It has no search for runs, no locks, no atomic operations, no TLB, no \
             reverse map, no accounting, no LRU lists, no VMAs, no walk from the root.",
        ),
        (
            "vellum",
            "is the engine on real memory, in a simulated machine with one CPU. In its figure is all that it does when \
             a kernel runs it: VMAs found, split and merged; the walk from the root; table locks; PTEs cleared; the \
             flush gathered and the platform called; each folio's refcount, mapcount and rmap key; the memcg's charge \
             and LRU list; statistics; folios and empty page tables freed and merged. Not in it: entering a kernel by \
             a system call or an exception, and the TLB instructions themselves, which are counted instead: see the \
             notes.",
        ),
        (
            "page",
            "is the same engine with runs capped at one PTE, and nothing else changed: it still gathers the frames of \
             a whole call, flushes once for them, sorts them, and frees neighbours together. So it is an ablation of \
             the run, and no model of Linux or of another kernel that works page by page.",
        ),
        (
            "linux",
            "is the kernel of this machine through its system calls, with its distribution's configuration and \
             hardening, of which the engine has none. Memory is compacted beforehand, only the folio size in question \
             is enabled, and the sizes are checked after each touch. Before a step that allocates memory (touch, fork, \
             copies, swap), as much memory is allocated and freed, so that the figure has nothing of what a hypervisor \
             needs to give memory back. In the figure is all that the kernel does, kernel entry and TLB flushes \
             included, and some that the engine has no counterpart of yet: a mapcount for each page, checks for file \
             mappings, the hooks of userfaultfd, uprobes, MMU notifiers and cgroup v1.",
        ),
        (
            "aged",
            "is memory in pieces: before the rows of a folio size, four address spaces fill three times the region's \
             memory with folios of mixed sizes, replace half of it, and free a third of it at random; the rest stays \
             mapped during the rows. All contenders do the same steps, Linux in processes. In the engine the free \
             pieces are nearly all the memory that there is; Linux also has the memory that it had before. The floor \
             has the engine's frames.",
        ),
        (
            "2 MiB",
            "has each folio mapped by 512 entries (Linux and vellum: split by a change of one page's protection and \
             back); 2 MiB huge has it mapped by one.",
        ),
    ];
    let mut method = vec![(
        "",
        format!(
            "Each figure is the time for which the thread ran: the median of {runs} runs, with the smallest and the \
             largest beside it. The contenders take turns on one CPU, with a fresh region each time. The first place \
             goes round from run to run; who begins, and the rest of the order, is random by row. Mapping, touching \
             and tearing down are not in the figure (touch is the exception, being just that). Only ratios of two \
             columns carry over to another machine."
        ),
    )];
    // Small calls find the caches as the touch left them, as their benchmark says.
    if rows.iter().any(|row| row.op.calls().is_none()) {
        method.push(("caches", EVICTED.to_owned()));
    }
    let of_files = if rows.iter().any(|row| matches!(row.case.mapping, Mapping::Shared | Mapping::PrivateFile)) {
        OF_FILES
    } else {
        &[]
    };
    method.extend(texts.iter().chain(subject.method).chain(of_files).map(|&(term, text)| (term, text.to_owned())));
    method
}

/// The method of rows whose regions map a file in memory.
const OF_FILES: &[(&str, &str)] = &[
    (
        "shared memory",
        "is a shared mapping of a memfd, in the engine of a page-cache object, touched by writes. The file outlives \
         the mapping: an unmap frees page tables, and no folio. A fork leaves its PTEs to later faults of the child, \
         in the engine and on Linux.",
    ),
    (
        "a private file mapping",
        "is a private mapping of such a file, whose pages were written before, and are only read through the mapping. \
         At a fork, Linux skips a VMA that never had a private copy of a page; the engine looks for copies in its page \
         tables. What Linux needs for such a fork does not depend on the region, and its figure, the difference of two \
         forks, is mostly noise.",
    ),
];

fn table(rows: &[Row]) -> Table {
    use Column::{Floor, Linux, Page, Vellum};
    let compared = rows[0].op != Op::Touch;
    let ratios =
        [("linux / vellum", Linux, Vellum), ("vellum / floor", Vellum, Floor), ("linux / floor", Linux, Floor)];
    let first = if rows[0].op.calls().and_then(Calls::kib).is_some() { "region, folio" } else { "folio" };
    let mut head = vec![first.to_owned()];
    head.extend(Column::ALL.map(|column| column.name().to_owned()));
    if compared {
        head.extend(ratios.map(|(name, ..)| name.to_owned()));
        head.push("vellum vs page".to_owned());
    }
    let line =
        |row: &Row| {
            let mut line = vec![Value::Text(label(row))];
            line.extend(Column::ALL.map(|column| figure(row, column)));
            if compared {
                line.extend(ratios.map(|(_, over, under)| {
                    row.ratio(over, under).map_or(Value::None, |r| Value::Text(show::ratio(r)))
                }));
                line.push(row.ratio(Vellum, Page).map_or(Value::None, |r| Value::Text(show::change(r))));
            }
            line
        };
    Table { head, rows: rows.iter().map(line).collect() }
}

/// Returns the row's name in its table, with a mark if it was measured beside other work.
fn label(row: &Row) -> String {
    let mark = if row.load.is_notable() { LOADED } else { "" };
    format!("{}{mark}", row.label())
}

fn figure(row: &Row, column: Column) -> Value {
    let Some(cpu) = row.cells[column].cpu() else {
        return Value::None;
    };
    let (figure, range) = show::nanoseconds(Summary { median: row.figure(column).unwrap_or(cpu.median), ..cpu });
    let mark = if row.cells[column].notable_fallback().is_some() { MARK } else { "" };
    Value::Figure { main: format!("{figure}{mark}"), range }
}

fn chart(rows: &[Row]) -> Chart {
    // The x axis is log2 of the folio size; the huge case is a separate point one step to the
    // right.
    let x = |row: &Row| f64::from(row.case.folio_kib).log2() + if row.case.huge { 1.0 } else { 0.0 };
    let mut ticks: Vec<(f64, String)> =
        rows.iter().map(|row| (x(row), if row.case.huge { "huge".to_owned() } else { row.case.label() })).collect();
    ticks.sort_by(|a, b| a.0.total_cmp(&b.0));
    let series = Column::ALL.into_iter().filter_map(|column| {
        let points = |huge: bool| -> Vec<(f64, f64)> {
            let mut points: Vec<_> = rows
                .iter()
                .filter(|row| row.case.huge == huge)
                .filter_map(|row| Some((x(row), row.figure(column)? as f64 / row.case.pages() as f64)))
                .filter(|&(_, y)| y > 0.0)
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            points
        };
        let series = Series::of(column, points(false), points(true));
        (!series.line.is_empty() || !series.lone.is_empty()).then_some(series)
    });
    Chart {
        label: format!("{}: nanoseconds a page of 4 KiB by folio size, both axes logarithmic", title(&rows[0])),
        y_name: "ns a page".to_owned(),
        scale: Scale::Decades,
        ticks,
        series: series.collect(),
    }
}

/// Returns notes on missing or doubtful figures: each reason once, with the rows it applies to.
fn notes(rows: &[Row]) -> Vec<String> {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for (row, column) in rows.iter().flat_map(|row| Column::ALL.map(|column| (row, column))) {
        let reason = match &row.cells[column] {
            Cell::Skipped(skip) => format!("{} not measured: {skip}", column.name()),
            cell => match cell.notable_fallback() {
                Some(_) => format!(
                    "{MARK} {}: more than 1 % of the region was not in folios of this size or not mapped this way \
                     (memory is fragmented)",
                    column.name()
                ),
                None => continue,
            },
        };
        let name = match row.cells[column].notable_fallback() {
            Some(share) => format!("{} ({:.0} %)", row.name(), share * 100.0),
            None => row.name(),
        };
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) => names.push(name),
            None => reasons.push((reason, vec![name])),
        }
    }
    reasons.extend(rows.iter().filter(|row| row.load.is_notable()).map(|row| {
        let Load { others, stolen } = row.load;
        let reason = format!("{LOADED} {} was measured beside other work", row.name());
        (reason, vec![format!("{others:.2} CPUs, and {:.0} % of the time stolen", stolen * 100.0)])
    }));
    reasons.extend(
        rows.iter()
            .filter(|row| row.ratio(Column::Vellum, Column::Floor).is_some_and(|r| r < 1.0))
            .map(|row| ("vellum is faster than the floor, which is no lower bound here".to_owned(), vec![row.name()])),
    );
    let lost = rows.iter().filter(|row| row.is_lost_in_noise()).map(Row::name);
    reasons.push((
        "linux's figure is less than three times the spread of the runs that are subtracted, and has no ratio"
            .to_owned(),
        lost.collect(),
    ));
    let absent = |column: Column| rows.iter().all(|row| matches!(row.cells[column], Cell::Absent));
    let missing: Vec<&str> = Column::ALL.into_iter().filter(|&c| absent(c)).map(Column::name).collect();
    let mut notes: Vec<String> = of_one_table(rows).flat_map(|rows| [work(rows), moved(rows)]).flatten().collect();
    notes.extend(
        reasons
            .into_iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(reason, names)| format!("{reason}: {}.", names.join(", "))),
    );
    if !missing.is_empty() && !rows.is_empty() {
        notes.push(format!("Not part of this run: {}.", missing.join(", ")));
    }
    notes
}

/// Returns the engine's counts of an operation, for each case.
fn work(rows: &[Row]) -> Option<String> {
    let counts = |row: &Row| {
        let work = row.work?;
        let flushes = show::grouped(work.flushes);
        Some(match work.runs {
            0 => format!("{flushes} ({})", row.label()),
            runs => format!("{flushes} / {} ({})", show::grouped(runs), row.label()),
        })
    };
    let all: Vec<String> = rows.iter().filter_map(counts).collect();
    let cleared = rows.iter().any(|row| row.work.is_some_and(|work| work.runs > 0));
    let what = if cleared { "TLB flushes / runs cleared" } else { "TLB flushes" };
    let name = title(&rows[0]);
    let of = if rows[0].op.calls().is_some() { "all calls of one" } else { "one" };
    (!all.is_empty()).then(|| format!("vellum's {what} in {of} {name}: {}.", all.join(", ")))
}

/// Returns the bytes that sparse writes after a fork copied, or that sparse reads swapped in, for
/// each case.
fn moved(rows: &[Row]) -> Option<String> {
    rows[0].op.sparse()?;
    let of = |row: &Row| {
        let all = [Column::Vellum, Column::Linux].into_iter();
        let bytes = all.filter_map(|column| Some((column.name(), vellum_inspect::size::show(row.moved[column]?))));
        let bytes: Vec<String> = bytes.map(|(name, size)| format!("{name} {size}")).collect();
        (!bytes.is_empty()).then(|| format!("{} ({})", bytes.join(", "), row.label()))
    };
    let all: Vec<String> = rows.iter().filter_map(of).collect();
    let moved = if rows[0].op.reads().is_some() { "Swapped in by" } else { "Copied in" };
    (!all.is_empty()).then(|| format!("{moved} one {}: {}.", title(&rows[0]), all.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::contender::{Columns, Skip, Work};
    use crate::bench::turns::{Outcome, Taken};
    use vellum_linux::time::Time;
    use vellum_linux::workload::case::Case;
    use vellum_linux::workload::data::Data;

    fn ns(ns: u64) -> Time {
        Time { wall_ns: ns, cpu_ns: ns }
    }

    fn row(op: Op, folio_kib: u32, linux: Outcome) -> Row {
        let floor = Outcome { ops: vec![ns(1000)], ..Outcome::default() };
        let outcomes = Columns { floor, linux, ..Columns::default() };
        Row::new(op, Case::of(2 << 20, folio_kib), &Taken { outcomes, ..Taken::default() })
    }

    #[test]
    fn a_reason_is_given_once_with_all_its_rows() {
        let skip = || Outcome { skip: Some(Skip::NoFolio(16)), ..Outcome::default() };
        let notes = notes(&[row(Op::Munmap, 16, skip()), row(Op::Protect, 16, skip())]);
        let about: Vec<_> = notes.iter().filter(|note| note.contains("16 KiB")).collect();
        assert_eq!(about.len(), 1);
        assert!(about[0].contains("munmap ascending 16 KiB, protect ascending 16 KiB"), "{}", about[0]);
    }

    #[test]
    fn flushes_and_runs_are_noted_for_each_operation() {
        let row = |op, folio_kib, flushes, runs| Row {
            work: Some(Work { flushes, runs }),
            ..row(op, folio_kib, Outcome::default())
        };
        let notes =
            notes(&[row(Op::Munmap, 4, 129, 262_144), row(Op::Munmap, 64, 5, 16_384), row(Op::Protect, 4, 1, 0)]);
        let expected = [
            "vellum's TLB flushes / runs cleared in one munmap, ascending: 129 / 262\u{202f}144 (4 KiB), 5 / \
             16\u{202f}384 (64 KiB).",
            "vellum's TLB flushes in one protect, ascending: 1 (4 KiB).",
        ];
        assert_eq!(notes[..2], expected);
    }

    #[test]
    fn bytes_copied_or_swapped_in_are_noted_for_sparse_writes_and_reads_only() {
        let moved = || Outcome { moved: Some(64 << 10), ..Outcome::default() };
        let notes = |writes| notes(&[row(Op::ForkWrite(writes), 4, moved()), row(Op::ForkWrite(writes), 64, moved())]);
        let expected = "Copied in one fork-write, a byte in every 2 MiB, ascending: linux 64 KiB (4 KiB); linux 64 \
                        KiB (64 KiB).";
        assert_eq!(notes(Steps::Every2Mib)[0], expected);
        let swapped = row(Op::SwapIn(Data::SameFilled, Steps::Every2Mib), 4, moved());
        let expected = "Swapped in by one in, same-filled, a byte in every 2 MiB, ascending: linux 64 KiB (4 KiB).";
        assert_eq!(super::notes(&[swapped])[0], expected);
        assert!(!notes(Steps::EveryPage).iter().any(|note| note.contains("Copied")));
    }

    #[test]
    fn a_figure_lost_in_noise_is_noted() {
        let linux = |noise| Outcome { ops: vec![ns(2000)], noise: Some(noise), ..Outcome::default() };
        let noted = |noise| {
            let notes = notes(&[row(Op::Fork, 64, linux(noise))]);
            notes.iter().any(|note| note.contains("has no ratio: fork ascending 64 KiB"))
        };
        assert_eq!([noted(600), noted(700)], [false, true]);
    }

    #[test]
    fn a_row_with_fallback_is_marked() {
        let linux = Outcome { ops: vec![ns(2000)], fallback: 0.2, ..Outcome::default() };
        let section = of(&Subject { name: "unmap", ..Subject::default() }, &[row(Op::Munmap, 64, linux)], 1);
        let Value::Figure { main, .. } = &section.parts[0].table.rows[0][4] else { panic!("no figure") };
        assert!(main.ends_with(MARK), "{main}");
        assert!(
            section.notes.iter().any(|note| note.contains("munmap ascending 64 KiB (20 %)")),
            "{:?}",
            section.notes
        );
    }

    #[test]
    fn a_row_beside_other_work_is_marked_and_counted() {
        let load = Load { others: 0.5, stolen: 0.0 };
        let rows = [Row { load, ..row(Op::Munmap, 64, Outcome::default()) }, row(Op::Munmap, 4, Outcome::default())];
        let section = of(&Subject { name: "unmap", ..Subject::default() }, &rows, 1);
        assert_eq!(section.loaded, 1);
        let first = |row: usize| match &section.parts[0].table.rows[row][0] {
            Value::Text(text) => text.ends_with(LOADED),
            _ => false,
        };
        assert_eq!([first(0), first(1)], [true, false]);
        assert!(section.notes.iter().any(|note| note.contains("0.50 CPUs")), "{:?}", section.notes);
    }

    #[test]
    fn a_floor_above_the_engine_is_reported() {
        let taken = |vellum| {
            let times = |time| Outcome { ops: vec![ns(time)], ..Outcome::default() };
            let outcomes = Columns { floor: times(1000), vellum: times(vellum), ..Columns::default() };
            Row::new(Op::Munmap, Case::of(2 << 20, 64), &Taken { outcomes, ..Taken::default() })
        };
        let reported = |vellum| notes(&[taken(vellum)]).iter().any(|note| note.contains("no lower bound"));
        assert_eq!([reported(999), reported(1000)], [true, false]);
    }

    #[test]
    fn every_line_of_a_table_is_as_wide_as_its_head() {
        for op in [Op::Munmap, Op::Touch] {
            let table = table(&[row(op, 4, Outcome::default())]);
            assert!(table.rows.iter().all(|row| row.len() == table.head.len()));
        }
    }
}
