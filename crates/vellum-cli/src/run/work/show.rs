//! Kernel work by cause, as a table and as JSON.

use crate::bench::report::terminal::STYLE;
use comfy_table::{CellAlignment, Table};
use serde_json::{Map, Value};
use vellum_count::tally::{Count, IDLE, INIT, PROGRAM, REPETITIONS, Tally};

/// The counts of one kernel, under the name of its column.
pub type Column<'a> = (&'a str, &'a Tally);

/// A cause with its counts on each kernel.
struct Row {
    cause: String,
    counts: Vec<Count>,
}

/// Returns all instructions of kernel work.
pub fn all(tally: &Tally) -> u64 {
    tally.kernel_work().map(|(_, count)| count.instructions).sum()
}

/// Returns the causes of kernel work, those with the most instructions first, and then the sums and
/// what is no kernel work.
fn rows(columns: &[Column]) -> (Vec<Row>, Vec<Row>) {
    let mut rows: Vec<Row> = Vec::new();
    for (nth, (_, tally)) in columns.iter().enumerate() {
        for (cause, count) in tally.kernel_work() {
            let at = rows.iter().position(|row| row.cause == cause).unwrap_or_else(|| {
                rows.push(Row { cause: cause.into(), counts: vec![Count::default(); columns.len()] });
                rows.len() - 1
            });
            rows[at].counts[nth] = count;
        }
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.counts.iter().map(|count| count.instructions).max()));
    let sum = |tally: &Tally| Count { times: 0, instructions: all(tally) };
    let apart = |cause: &str, of: &dyn Fn(&Tally) -> Count| Row {
        cause: cause.into(),
        counts: columns.iter().map(|(_, tally)| of(tally)).collect(),
    };
    let others = vec![
        apart("all kernel work", &sum),
        apart("the program itself", &|tally| tally.of(PROGRAM)),
        apart("idle", &|tally| tally.of(IDLE)),
        apart("init", &|tally| tally.of(INIT)),
        apart("string repetitions", &|tally| tally.of(REPETITIONS)),
    ];
    let occurs = |row: &Row| row.counts.iter().any(|count| *count != Count::default());
    (rows, others.into_iter().filter(occurs).collect())
}

/// Returns the table: for each kernel the instructions, how often the cause occurred, and the
/// instructions each time; then how many times the first kernel's instructions the others take, or,
/// of a single kernel, the cause's share of all kernel work.
pub fn table(columns: &[Column]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    let mut header = vec!["kernel work".to_owned()];
    for (name, _) in columns {
        header.extend([(*name).to_owned(), "times".into(), "each".into()]);
    }
    match columns {
        [_] => header.push("share".into()),
        _ => header.extend(columns.iter().skip(1).map(|(name, _)| format!("{name} / {}", columns[0].0))),
    }
    let width = header.len();
    table.set_header(header);
    let (rows, others) = rows(columns);
    let work = columns.first().map_or(0, |(_, tally)| all(tally));
    for row in &rows {
        table.add_row(cells(row, (columns.len() == 1).then_some(work)));
    }
    table.add_row(vec![""; width]);
    for row in &others {
        table.add_row(cells(row, None));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn cells(row: &Row, work: Option<u64>) -> Vec<String> {
    let mut cells = vec![row.cause.clone()];
    for count in &row.counts {
        let (times, each) = match count.times {
            0 => (String::new(), String::new()),
            times => (grouped(times), grouped((count.instructions + times / 2) / times)),
        };
        let instructions = if *count == Count::default() { "–".into() } else { grouped(count.instructions) };
        cells.extend([instructions, times, each]);
    }
    let first = row.counts.first().map_or(0, |count| count.instructions);
    match work {
        Some(work) => cells.push(format!("{:.1} %", first as f64 * 100.0 / work.max(1) as f64)),
        None => cells.extend(row.counts.iter().skip(1).map(|count| ratio(first, count.instructions))),
    }
    cells
}

fn ratio(first: u64, other: u64) -> String {
    match other as f64 / first as f64 {
        _ if first == 0 || other == 0 => "–".into(),
        ratio if ratio < 10.0 => format!("{ratio:.2}"),
        ratio => format!("{ratio:.1}"),
    }
}

/// Formats a number with a comma after each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the rows as JSON objects: the cause, and for each kernel the numbers under its name, as
/// in `vellum_times` and `vellum_instructions`.
pub fn json(columns: &[Column]) -> Vec<Value> {
    let (rows, others) = rows(columns);
    let object = |row: &Row| {
        let mut object: Map<String, Value> = Map::new();
        object.insert("kernel_work".into(), row.cause.clone().into());
        for ((name, _), count) in columns.iter().zip(&row.counts) {
            object.insert(format!("{name}_times"), count.times.into());
            object.insert(format!("{name}_instructions"), count.instructions.into());
        }
        Value::Object(object)
    };
    rows.iter().chain(&others).map(object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(text: &str) -> Tally {
        Tally::parse(text).unwrap()
    }

    fn shown(columns: &[Column]) -> Vec<String> {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        table(columns).to_string().lines().map(words).collect()
    }

    #[test]
    fn kernels_stand_side_by_side_with_ratios() {
        let [a, b] = [tally("0 9 program\n2 2000 mmap\n4 100 read\n"), tally("0 9 program\n2 5001 mmap\n0 7 idle\n")];
        let lines = shown(&[("vellum", &a), ("linux", &b)]);
        assert_eq!(lines[0], "kernel work vellum times each linux times each linux / vellum");
        assert_eq!(lines[2], "mmap 2,000 2 1,000 5,001 2 2,501 2.50");
        assert_eq!(lines[3], "read 100 4 25 – –");
        assert_eq!(lines[5..], ["all kernel work 2,100 5,001 2.38", "the program itself 9 9 1.00", "idle – 7 –"]);
    }

    #[test]
    fn one_kernel_has_shares() {
        let lines = shown(&[("vellum", &tally("2 300 mmap\n4 100 read\n"))]);
        assert_eq!(lines[2..4], ["mmap 300 2 150 75.0 %", "read 100 4 25 25.0 %"]);
    }

    #[test]
    fn json_has_a_row_for_each_cause_and_sums() {
        let rows = json(&[("vellum", &tally("0 9 program\n2 300 mmap\n"))]);
        let text: Vec<_> = rows.iter().map(Value::to_string).collect();
        assert_eq!(text[0], r#"{"kernel_work":"mmap","vellum_times":2,"vellum_instructions":300}"#);
        assert_eq!(text.len(), 3);
    }
}
