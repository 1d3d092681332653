//! Results, and their JSON.

use serde::Serialize;
use serde_json::{Map, Value};
use vellum_linux::stats::Summary;
use vellum_linux::time::Time;
use vellum_linux::workload::calls::Calls;
use vellum_linux::workload::case::{Case, Op};
use vellum_linux::workload::data::{Data, Rewrites, Steps};
use vellum_linux::workload::mapping::Mapping;

use crate::bench::contender::{Column, Columns, NOTABLE_FALLBACK, Skip, Work};
use crate::bench::load::Load;
use crate::bench::turns::{Outcome, Taken};

/// One operation on one case, by all contenders.
#[derive(Clone, Debug)]
pub struct Row {
    /// The operation.
    pub op: Op,
    /// The case.
    pub case: Case,
    /// The contenders' results.
    pub cells: Columns<Cell>,
    /// The engine's counts of TLB flushes and cleared runs in one operation.
    pub work: Option<Work>,
    /// The bytes that the faults after one operation copied or swapped in, if there are any.
    pub moved: Columns<Option<u64>>,
    /// The spread in nanoseconds of the runs whose median is subtracted from Linux's time, if
    /// something is.
    pub linux_noise: Option<u64>,
    /// The other work on the machine meanwhile.
    pub load: Load,
}

/// Linux's figure has ratios if it is at least this many times the spread of what is subtracted.
const CLEAR: u64 = 3;

/// The result of one contender.
#[derive(Clone, Debug, Default)]
pub enum Cell {
    /// The contender does not take part.
    #[default]
    Absent,
    /// The contender could not measure the case, for this reason.
    Skipped(Skip),
    /// The contender's figure.
    Measured {
        /// The nanoseconds for which the thread ran, in the runs.
        cpu: Summary,
        /// The nanoseconds of the runs on the clock.
        wall: Summary,
        /// The largest share of the region that was not mapped as the case asks.
        fallback: f64,
    },
}

impl Cell {
    fn new(samples: &[Time], outcome: &Outcome) -> Cell {
        let of = |part: fn(&Time) -> u64| Summary::of(&samples.iter().map(part).collect::<Vec<_>>());
        match (&outcome.skip, of(|time| time.cpu_ns), of(|time| time.wall_ns)) {
            (Some(skip), ..) => Cell::Skipped(skip.clone()),
            (None, Some(cpu), Some(wall)) => Cell::Measured { cpu, wall, fallback: outcome.fallback },
            _ => Cell::Absent,
        }
    }

    /// Returns the nanoseconds for which the thread ran, if they were measured.
    pub fn cpu(&self) -> Option<Summary> {
        if let Cell::Measured { cpu, .. } = self { Some(*cpu) } else { None }
    }

    /// Returns the nanoseconds on the clock, if they were measured.
    pub fn wall(&self) -> Option<Summary> {
        if let Cell::Measured { wall, .. } = self { Some(*wall) } else { None }
    }

    /// Returns the share of the region that was not mapped as the case asks, if it is above
    /// [`NOTABLE_FALLBACK`].
    pub fn notable_fallback(&self) -> Option<f64> {
        match self {
            Cell::Measured { fallback, .. } if *fallback > NOTABLE_FALLBACK => Some(*fallback),
            _ => None,
        }
    }
}

impl Row {
    /// Makes the row of `outcomes`: from the times of touching for [`Op::Touch`], from those of
    /// what came after the operation for an operation with a [`front`](Op::front), and otherwise
    /// from those of the operation.
    pub fn new(op: Op, case: Case, Taken { outcomes, load }: &Taken) -> Row {
        let of = |outcome: &Outcome| match op {
            Op::Touch => Cell::new(&outcome.touches, outcome),
            op if op.front().is_some() => Cell::new(&outcome.backs, outcome),
            _ => Cell::new(&outcome.ops, outcome),
        };
        let work = outcomes.vellum.work.filter(|_| !op.is_beside());
        let (moved, linux_noise) =
            (outcomes.map(|outcome| outcome.moved), outcomes.linux.noise.filter(|_| !op.is_beside()));
        Row { op, case, cells: outcomes.map(of), work, moved, linux_noise, load: *load }
    }

    /// Returns the row's name in a note.
    pub fn name(&self) -> String {
        format!("{} {} {}", self.op_title(), self.case.arm.name(), self.label())
    }

    /// Returns the operation and, unless it is anonymous memory, the kind of the mapping.
    pub fn op_title(&self) -> String {
        let mapping = match self.case.mapping {
            Mapping::Anonymous => "",
            Mapping::Shared => " of shared memory",
            Mapping::PrivateFile => " of a private file mapping",
            // Its benchmark has nothing else.
            Mapping::DiskFile => "",
        };
        format!("{}{mapping}", self.op.title())
    }

    /// Returns the row's name in its table: the folio size, behind the length of small regions.
    pub fn label(&self) -> String {
        match self.op.calls().and_then(Calls::kib) {
            Some(kib) => format!("{}, {}", Case::of(0, kib).label(), self.case.label()),
            None => self.case.label(),
        }
    }

    /// Returns the figure of a column: the median of the nanoseconds for which the thread ran, and
    /// for the floor, as a lower bound, their minimum.
    pub fn figure(&self, column: Column) -> Option<u64> {
        let cpu = self.cells[column].cpu()?;
        Some(if column == Column::Floor { cpu.min } else { cpu.median })
    }

    /// Returns the figure of column `over` divided by that of `under`; `None` if one of them is
    /// [lost in noise](Self::is_lost_in_noise).
    pub fn ratio(&self, over: Column, under: Column) -> Option<f64> {
        if [over, under].contains(&Column::Linux) && self.is_lost_in_noise() {
            return None;
        }
        let (over, under) = (self.figure(over)?, self.figure(under)?);
        (under > 0).then(|| over as f64 / under as f64)
    }

    /// Returns whether Linux's figure is less than [`CLEAR`] times the spread of the runs whose
    /// median is subtracted from its time.
    pub fn is_lost_in_noise(&self) -> bool {
        let both = self.figure(Column::Linux).zip(self.linux_noise);
        both.is_some_and(|(figure, noise)| figure < noise.saturating_mul(CLEAR))
    }

    /// Returns the row as one JSON object; `bench` is the benchmark's name.
    pub fn json(&self, bench: &'static str) -> Value {
        let cpu = |f: fn(Summary) -> u64| self.cells.map(|cell| cell.cpu().map(f));
        let wall = |f: fn(Summary) -> u64| self.cells.map(|cell| cell.wall().map(f));
        let mut figures = Columns::default();
        Column::ALL.into_iter().for_each(|column| figures[column] = self.figure(column));
        let by_column = |f: &dyn Fn(&Cell) -> Option<Value>| -> Option<Map<String, Value>> {
            let some = Column::ALL.into_iter().filter_map(|c| Some((format!("{}_ns", c.name()), f(&self.cells[c])?)));
            Some(some.collect::<Map<_, _>>()).filter(|map| !map.is_empty())
        };
        // Writes to each page copy all of the region, and reads of each page swap in all of it.
        let sparse = self.op.sparse();
        let moved = |by: Option<Steps>, column: Column| self.moved[column].filter(|_| by.is_some() && sparse.is_some());
        let copied = |column| moved(self.op.writes(), column);
        let swapped_in = |column| moved(self.op.reads(), column);
        let json = Json {
            bench,
            op: self.op.name(),
            data: self.op.data().map(Data::name),
            written: self.op.rewrites().map(Rewrites::name).or(self.op.writes().and(sparse)),
            read: self.op.reads().and(sparse),
            region_kib: self.op.calls().and_then(Calls::kib),
            order: self.op.calls().map(Calls::order),
            calls: self.op.calls().map(|calls| calls.ranges(self.case.bytes).len()),
            mapping: self.case.mapping.name(),
            arm: self.case.arm.name(),
            folio_kib: self.case.folio_kib,
            huge: self.case.huge,
            bytes: self.case.bytes,
            figures,
            min: cpu(|summary| summary.min),
            median: cpu(|summary| summary.median),
            max: cpu(|summary| summary.max),
            wall_min: wall(|summary| summary.min),
            wall_median: wall(|summary| summary.median),
            load: self.load,
            vellum_flushes: self.work.map(|work| work.flushes),
            vellum_runs: self.work.map(|work| work.runs),
            vellum_copied_bytes: copied(Column::Vellum),
            page_copied_bytes: copied(Column::Page),
            linux_noise_ns: self.linux_noise,
            linux_copied_bytes: copied(Column::Linux),
            vellum_swapped_in_bytes: swapped_in(Column::Vellum),
            page_swapped_in_bytes: swapped_in(Column::Page),
            linux_swapped_in_bytes: swapped_in(Column::Linux),
            skipped: by_column(&|cell| match cell {
                Cell::Skipped(skip) => Some(skip.to_string().into()),
                _ => None,
            }),
            fallback: by_column(&|cell| cell.notable_fallback().map(Value::from)),
        };
        serde_json::to_value(json).unwrap_or_default()
    }
}

/// The keys of a row in JSON. Of an operation that is several calls, a time is that of one call,
/// and a count that of all `calls`. Times are those for which the thread ran, except `wall_min` and
/// `wall_median`. `skipped` (the reason for no figure) and `fallback` (the share of the region that
/// was not mapped as the row says) appear only where they apply.
#[derive(Serialize)]
struct Json {
    bench: &'static str,
    op: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    written: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    read: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    region_kib: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<usize>,
    mapping: &'static str,
    arm: &'static str,
    folio_kib: u32,
    huge: bool,
    bytes: u64,
    #[serde(flatten)]
    figures: Columns<Option<u64>>,
    min: Columns<Option<u64>>,
    median: Columns<Option<u64>>,
    max: Columns<Option<u64>>,
    wall_min: Columns<Option<u64>>,
    wall_median: Columns<Option<u64>>,
    #[serde(flatten)]
    load: Load,
    vellum_flushes: Option<u64>,
    vellum_runs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    linux_noise_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vellum_copied_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    page_copied_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    linux_copied_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vellum_swapped_in_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    page_swapped_in_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    linux_swapped_in_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fallback: Option<Map<String, Value>>,
}

/// Adds the times of touching in the runs of one operation to `all`. The runs of every operation
/// begin with a touch.
pub fn gather_touches(all: &mut Taken, taken: &Taken) {
    all.load = all.load.max(taken.load);
    for column in Column::ALL {
        let (all, outcome) = (&mut all.outcomes[column], &taken.outcomes[column]);
        all.touches.extend(&outcome.touches);
        all.fallback = all.fallback.max(outcome.fallback);
        all.skip = all.skip.take().or_else(|| outcome.skip.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns times of which the thread ran `ns`, and waited for another nanosecond.
    fn times(ns: impl IntoIterator<Item = u64>) -> Vec<Time> {
        ns.into_iter().map(|ns| Time { wall_ns: ns + 1, cpu_ns: ns }).collect()
    }

    fn outcome(ops: &[u64]) -> Outcome {
        let touches = times(ops.iter().map(|ns| ns * 10));
        Outcome { ops: times(ops.iter().copied()), touches, ..Outcome::default() }
    }

    fn row(op: Op, outcomes: Columns<Outcome>) -> Row {
        Row::new(op, CASE, &Taken { outcomes, load: Load { others: 0.25, stolen: 0.0 } })
    }

    const CASE: Case = Case::of(1 << 30, 64);

    #[test]
    fn the_json_of_a_row_has_these_keys_and_no_others() {
        let outcomes = Columns {
            floor: outcome(&[3, 1, 2]),
            vellum: outcome(&[6, 5, 9]),
            linux: Outcome { skip: Some(Skip::NoThp), ..Outcome::default() },
            ..Columns::default()
        };
        let expected = serde_json::json!({
            "bench": "unmap", "op": "munmap", "mapping": "anon", "arm": "ascending",
            "folio_kib": 64, "huge": false, "bytes": 1 << 30,
            "floor_ns": 1, "vellum_ns": 6, "page_ns": null, "linux_ns": null,
            "min": { "floor_ns": 1, "vellum_ns": 5, "page_ns": null, "linux_ns": null },
            "median": { "floor_ns": 2, "vellum_ns": 6, "page_ns": null, "linux_ns": null },
            "max": { "floor_ns": 3, "vellum_ns": 9, "page_ns": null, "linux_ns": null },
            "wall_min": { "floor_ns": 2, "vellum_ns": 6, "page_ns": null, "linux_ns": null },
            "wall_median": { "floor_ns": 3, "vellum_ns": 7, "page_ns": null, "linux_ns": null },
            "others": 0.25, "stolen": 0.0,
            "vellum_flushes": null, "vellum_runs": null,
            "skipped": { "linux_ns": Skip::NoThp.to_string() },
        });
        assert_eq!(row(Op::Munmap, outcomes).json("unmap"), expected);
    }

    #[test]
    fn engine_counts_are_in_all_rows_but_those_of_touches() {
        let outcomes = Columns {
            vellum: Outcome { work: Some(Work { flushes: 3, runs: 40 }), ..outcome(&[5]) },
            ..Columns::default()
        };
        let json = row(Op::Exit, outcomes.clone()).json("unmap");
        assert_eq!((&json["vellum_flushes"], &json["vellum_runs"]), (&3.into(), &40.into()));
        let json = row(Op::Touch, outcomes).json("unmap");
        assert!(json["vellum_flushes"].is_null() && json["vellum_runs"].is_null());
    }

    #[test]
    fn a_fallback_above_one_percent_is_reported() {
        let with = |fallback| {
            let linux = Outcome { fallback, ..outcome(&[5]) };
            row(Op::Munmap, Columns { linux, ..Columns::default() })
        };
        assert!(with(0.01).json("unmap").get("fallback").is_none());
        assert_eq!(with(0.25).json("unmap")["fallback"], serde_json::json!({ "linux_ns": 0.25 }));
    }

    #[test]
    fn a_contender_that_skips_halfway_has_no_figure() {
        let linux = Outcome { skip: Some(Skip::Busy), ..outcome(&[5, 6]) };
        let row = row(Op::Munmap, Columns { linux, ..Columns::default() });
        assert_eq!(row.figure(Column::Linux), None);
    }

    #[test]
    fn the_touch_row_has_the_touches_of_every_operation() {
        let mut all = Taken::default();
        for (ops, others) in [([1, 2], 0.5), ([3, 4], 0.25)] {
            let outcomes = Columns { linux: outcome(&ops), ..Columns::default() };
            gather_touches(&mut all, &Taken { outcomes, load: Load { others, stolen: 0.0 } });
        }
        let row = Row::new(Op::Touch, CASE, &all);
        assert_eq!(row.cells.linux.cpu(), Summary::of(&[10, 20, 30, 40]));
        assert_eq!(row.load.others, 0.5, "the load of the worst run counts");
    }

    #[test]
    fn swap_in_is_a_separate_row_with_the_same_data() {
        let page = Outcome { ops: times([5]), backs: times([7]), ..Outcome::default() };
        let outcomes = Columns { page, ..Columns::default() };
        let out = Op::SwapOut(Data::Compressible, Steps::EveryPage);
        let rows = [out, out.back().unwrap()].map(|op| row(op, outcomes.clone()).json("pageout"));
        for (row, op, ns) in [(&rows[0], "out", 5), (&rows[1], "in", 7)] {
            assert_eq!((&row["op"], &row["data"], &row["page_ns"]), (&op.into(), &"compressible".into(), &ns.into()));
        }
        assert!(row(Op::Munmap, outcomes).json("unmap").get("data").is_none());
    }

    #[test]
    fn a_row_of_calls_has_their_number_and_the_length_of_small_regions() {
        let json = |calls| row(Op::Calls(calls), Columns::default()).json("small");
        let small = json(Calls::Small { kib: 256, random: true });
        assert_eq!(
            (&small["region_kib"], &small["order"], &small["calls"]),
            (&256.into(), &"random".into(), &4096.into())
        );
        let middle = json(Calls::MiddleQuarter);
        assert_eq!((middle.get("region_kib"), &middle["calls"]), (None, &1.into()));
    }

    #[test]
    fn copy_on_write_faults_are_a_row_beside_that_of_fork_and_faults() {
        let page = Outcome { ops: times([9]), backs: times([7]), ..Outcome::default() };
        let outcomes = Columns { page, ..Columns::default() };
        let rows =
            [Op::ForkWrite, Op::Cow].map(|op| op(Steps::EveryPage)).map(|op| row(op, outcomes.clone()).json("fork"));
        assert_eq!(
            rows.map(|row| (row["op"].clone(), row["page_ns"].clone())),
            [("fork-write", 9), ("cow", 7)].map(|(op, ns)| (op.into(), ns.into()))
        );
    }

    #[test]
    fn rows_of_sparse_writes_have_their_distance_and_the_bytes_copied() {
        let linux = Outcome { moved: Some(8192), ..outcome(&[5]) };
        let outcomes = Columns { linux, ..Columns::default() };
        for op in [Op::ForkWrite, Op::Cow] {
            let json = |writes| row(op(writes), outcomes.clone()).json("fork");
            let sparse = json(Steps::Every64Kib);
            let fields = ["written", "linux_copied_bytes", "vellum_copied_bytes"].map(|key| sparse.get(key).cloned());
            assert_eq!(fields, [Some("every 64 KiB".into()), Some(8192.into()), None]);
            let each = json(Steps::EveryPage);
            assert!(["written", "linux_copied_bytes"].iter().all(|key| each.get(key).is_none()), "{each}");
        }
    }

    #[test]
    fn rows_of_sparse_reads_have_their_distance_and_the_bytes_swapped_in() {
        let linux = Outcome { moved: Some(8192), backs: times([7]), ..outcome(&[5]) };
        let outcomes = Columns { linux, ..Columns::default() };
        let fields = |op: fn(Data, Steps) -> Op, reads| {
            let json = row(op(Data::SameFilled, reads), outcomes.clone()).json("pageout");
            ["read", "written", "linux_swapped_in_bytes", "linux_copied_bytes"].map(|key| json.get(key).cloned())
        };
        let sparse = [Some("every 2 MiB".into()), None, Some(8192.into()), None];
        assert_eq!(fields(Op::SwapIn, Steps::Every2Mib), sparse);
        assert_eq!(fields(Op::SwapIn, Steps::EveryPage), [None, None, None, None]);
        assert_eq!(fields(Op::SwapOut, Steps::Every2Mib), [None, None, None, None], "the reads come later");
    }

    #[test]
    fn a_ratio_needs_both_and_no_zero() {
        let ratio = |floor: &[u64], linux: &[u64]| {
            let outcomes = Columns { floor: outcome(floor), linux: outcome(linux), ..Columns::default() };
            row(Op::Munmap, outcomes).ratio(Column::Linux, Column::Floor)
        };
        assert_eq!(ratio(&[2], &[5]), Some(2.5));
        assert_eq!(ratio(&[], &[5]), None);
        assert_eq!(ratio(&[0], &[5]), None);
    }

    #[test]
    fn a_figure_of_linux_below_three_times_the_noise_has_no_ratio() {
        let row = |op, noise| {
            let linux = Outcome { noise: Some(noise), backs: times([60]), ..outcome(&[60]) };
            row(op, Columns { linux, vellum: Outcome { backs: times([2]), ..outcome(&[2]) }, ..Columns::default() })
        };
        let ratio = |op, noise| row(op, noise).ratio(Column::Linux, Column::Vellum);
        assert_eq!((ratio(Op::Fork, 20), ratio(Op::Fork, 21)), (Some(30.0), None));
        assert_eq!(ratio(Op::Cow(Steps::EveryPage), 21), Some(30.0), "the time of the faults is no difference");
        let noise = |op| row(op, 21).json("fork").get("linux_noise_ns").cloned();
        assert_eq!((noise(Op::Fork), noise(Op::Cow(Steps::EveryPage))), (Some(21.into()), None));
    }
}
