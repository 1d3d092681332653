//! Results of `bench threads`, and their JSON.

use serde_json::{Map, Value, json};
use vellum_linux::stats::Summary;
use vellum_linux::workload::case::{Case, Op};

use super::Spaces;
use super::pace::Times;
use super::teams::Sample;
use crate::bench::contender::{Column, Columns, NOTABLE_FALLBACK, Skip};
use crate::bench::load::Load;

/// The contenders that support several threads, in order.
pub const COLUMNS: [Column; 3] = [Column::Floor, Column::Vellum, Column::Linux];

/// The results of a team's runs.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Times of all threads together.
    pub together: Vec<Times>,
    /// Times of one thread alone.
    pub alone: Vec<Times>,
    /// The largest share of a region that was not mapped as the case asks.
    pub fallback: f64,
    /// The reason for missing samples.
    pub skip: Option<Skip>,
}

impl Outcome {
    /// Adds a run of all threads together and one of a single thread.
    pub fn add(&mut self, together: Result<Sample, Skip>, alone: Result<Sample, Skip>) {
        match (together, alone) {
            (Ok(together), Ok(alone)) => {
                self.together.push(together.times);
                self.alone.push(alone.times);
                self.fallback = self.fallback.max(together.fallback).max(alone.fallback);
            }
            (Err(skip), _) | (_, Err(skip)) => self.skip = Some(skip),
        }
    }
}

/// The results of all teams.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// The results, by team.
    pub outcomes: Columns<Outcome>,
    /// The other work on the machine meanwhile.
    pub load: Load,
}

/// One operation, on folios of one size, in one kind of address space, by all contenders.
#[derive(Clone, Debug)]
pub struct Row {
    /// The operation.
    pub op: Op,
    /// The address spaces of the regions.
    pub spaces: Spaces,
    /// The number of threads together.
    pub threads: usize,
    /// Each thread's region.
    pub case: Case,
    /// The contenders' results.
    pub cells: Columns<Cell>,
    /// The other work on the machine meanwhile.
    pub load: Load,
}

/// The result of one team.
#[derive(Clone, Debug, Default)]
pub enum Cell {
    /// The team does not take part.
    #[default]
    Absent,
    /// The team could not measure the case, for this reason.
    Skipped(Skip),
    /// The team's figures.
    Measured {
        /// Nanoseconds of the runs of all threads together, each with its own region.
        together: Summary,
        /// Nanoseconds of the runs of one thread alone, with one region.
        alone: Summary,
        /// The largest share of a region that was not mapped as the case asks.
        fallback: f64,
    },
}

impl Cell {
    fn new(op: Op, outcome: &Outcome) -> Cell {
        let summary = |times: &[Times]| {
            let of_op = |times: &Times| {
                if op == Op::Touch { times.touch_ns } else { times.unmap_ns }
            };
            Summary::of(&times.iter().map(of_op).collect::<Vec<_>>())
        };
        match (&outcome.skip, summary(&outcome.together), summary(&outcome.alone)) {
            (Some(skip), ..) => Cell::Skipped(skip.clone()),
            (None, Some(together), Some(alone)) => Cell::Measured { together, alone, fallback: outcome.fallback },
            _ => Cell::Absent,
        }
    }

    /// Returns the summary of the runs of all threads together, and of those of one thread alone.
    pub fn summaries(&self) -> Option<(Summary, Summary)> {
        match self {
            Cell::Measured { together, alone, .. } => Some((*together, *alone)),
            _ => None,
        }
    }

    /// Returns the largest share of a region that was not mapped as the case asks, if it is above
    /// [`NOTABLE_FALLBACK`].
    pub fn notable_fallback(&self) -> Option<f64> {
        match self {
            Cell::Measured { fallback, .. } if *fallback > NOTABLE_FALLBACK => Some(*fallback),
            _ => None,
        }
    }
}

impl Row {
    /// Makes the row of `outcomes`.
    pub fn new(op: Op, spaces: Spaces, threads: usize, case: Case, taken: &Taken) -> Row {
        let cells = taken.outcomes.map(|outcome| Cell::new(op, outcome));
        Row { op, spaces, threads, case, cells, load: taken.load }
    }

    /// Returns the throughput of all threads relative to that of one, from the medians. If no
    /// thread waits for another, it is the number of threads.
    pub fn scaling(&self, column: Column) -> Option<f64> {
        let (together, alone) = self.cells[column].summaries()?;
        (together.median > 0).then(|| self.threads as f64 * alone.median as f64 / together.median as f64)
    }

    /// Returns the row as one JSON object. `skipped` (the reason for no figure) and `fallback` (the
    /// share of a region that was not mapped as the row says) appear only where they apply.
    pub fn json(&self) -> Value {
        let mut json = Map::new();
        let mut put = |key: String, value: Value| json.insert(key, value);
        put("bench".into(), "threads".into());
        put("op".into(), self.op.name().into());
        put("space".into(), self.spaces.name().into());
        put("threads".into(), self.threads.into());
        put("folio_kib".into(), self.case.folio_kib.into());
        put("bytes".into(), self.case.bytes.into());
        for column in COLUMNS {
            for (key, value) in self.times(column, |summary| summary.median) {
                put(key, value);
            }
            let scaling = self.scaling(column).map(|scaling| (scaling * 1000.0).round() / 1000.0);
            put(format!("{}_scaling", column.name()), json!(scaling));
        }
        let all = |pick: fn(Summary) -> u64| -> Map<String, Value> {
            COLUMNS.into_iter().flat_map(|column| self.times(column, pick)).collect()
        };
        put("min".into(), all(|summary| summary.min).into());
        put("max".into(), all(|summary| summary.max).into());
        let some = |f: fn(&Cell) -> Option<Value>| -> Map<String, Value> {
            let entry = |column: Column| Some((format!("{}_ns", column.name()), f(&self.cells[column])?));
            COLUMNS.into_iter().filter_map(entry).collect()
        };
        let skipped = some(|cell| match cell {
            Cell::Skipped(skip) => Some(skip.to_string().into()),
            _ => None,
        });
        let fallback = some(|cell| cell.notable_fallback().map(Value::from));
        for (key, map) in [("skipped", skipped), ("fallback", fallback)] {
            if !map.is_empty() {
                put(key.into(), map.into());
            }
        }
        json.into()
    }

    /// Returns a column's time of all threads together and of one alone, each with its key in JSON.
    fn times(&self, column: Column, pick: fn(Summary) -> u64) -> [(String, Value); 2] {
        let summaries = self.cells[column].summaries();
        let name = column.name();
        [
            (format!("{name}_ns"), json!(summaries.map(|(together, _)| pick(together)))),
            (format!("{name}_one_ns"), json!(summaries.map(|(_, alone)| pick(alone)))),
        ]
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A row of the floor and of Linux, with these samples of all together; one alone always takes
    /// 100 ns.
    pub fn row(op: Op, spaces: Spaces, together: &[u64], linux: Outcome) -> Row {
        let times = |ns: &[u64]| ns.iter().map(|&ns| Times { touch_ns: 10 * ns, unmap_ns: ns }).collect();
        let floor = Outcome { together: times(together), alone: times(&[100]), ..Outcome::default() };
        let case = Case::of(2 << 20, 64);
        let outcomes = Columns { floor, linux, ..Columns::default() };
        Row::new(op, spaces, 2, case, &Taken { outcomes, ..Taken::default() })
    }

    #[test]
    fn the_json_of_a_row_has_these_keys_and_no_others() {
        let linux = Outcome { skip: Some(Skip::NoThp), ..Outcome::default() };
        let expected = json!({
            "bench": "threads", "op": "munmap", "space": "one", "threads": 2, "folio_kib": 64, "bytes": 2 << 20,
            "floor_ns": 150, "floor_one_ns": 100, "floor_scaling": 1.333,
            "vellum_ns": null, "vellum_one_ns": null, "vellum_scaling": null,
            "linux_ns": null, "linux_one_ns": null, "linux_scaling": null,
            "min": {
                "floor_ns": 110, "floor_one_ns": 100, "vellum_ns": null, "vellum_one_ns": null,
                "linux_ns": null, "linux_one_ns": null,
            },
            "max": {
                "floor_ns": 160, "floor_one_ns": 100, "vellum_ns": null, "vellum_one_ns": null,
                "linux_ns": null, "linux_one_ns": null,
            },
            "skipped": { "linux_ns": Skip::NoThp.to_string() },
        });
        let json = row(Op::Munmap, Spaces::One, &[160, 110, 150], linux).json();
        assert_eq!(json, expected);
        let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&json), keys(&expected), "in this order");
    }

    #[test]
    fn touches_have_separate_rows_and_a_fallback_is_reported() {
        let times = vec![Times { touch_ns: 30, unmap_ns: 3 }];
        let linux = Outcome { together: times.clone(), alone: times, fallback: 0.25, skip: None };
        let json = row(Op::Touch, Spaces::Own, &[200], linux).json();
        assert_eq!((&json["op"], &json["space"]), (&json!("touch"), &json!("own")));
        assert_eq!((&json["floor_ns"], &json["linux_one_ns"]), (&json!(2000), &json!(30)));
        assert_eq!(json["fallback"], json!({ "linux_ns": 0.25 }));
    }

    #[test]
    fn a_pair_of_which_one_is_missing_is_none() {
        let mut outcome = Outcome::default();
        let sample = Sample { times: Times { touch_ns: 1, unmap_ns: 1 }, fallback: 0.0 };
        outcome.add(Ok(sample), Err(Skip::Busy));
        assert!(outcome.together.is_empty());
        assert_eq!(outcome.skip, Some(Skip::Busy));
    }
}
