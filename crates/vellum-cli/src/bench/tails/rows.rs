//! Results, and their JSON.

use serde_json::{Map, Value, json};
use vellum_linux::child::tails::Tail;
use vellum_linux::stats::{Quantiles, Summary};
use vellum_linux::workload::contended::TimedOp;

use crate::bench::contender::{Column, Skip};
use crate::bench::load::Load;

/// The work of the other CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// None of the benchmark's.
    Nothing,
    /// The process's memory is paged out and read again, over and over.
    Reclaim,
}

impl Beside {
    /// Both, in order.
    pub const ALL: [Beside; 2] = [Beside::Nothing, Beside::Reclaim];

    /// Returns the name in JSON and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Beside::Nothing => "nothing",
            Beside::Reclaim => "reclaim",
        }
    }
}

/// One operation of one contender.
#[derive(Clone, Debug)]
pub struct Row {
    /// The operation.
    pub op: TimedOp,
    /// The work of the other CPU.
    pub beside: Beside,
    /// The contender.
    pub column: Column,
    /// The distributions of the runs, or the reason why there are none.
    pub runs: Result<Vec<Tail>, Skip>,
    /// The other work on the machine meanwhile.
    pub load: Load,
}

/// A quantile: its name in tables, its key in JSON, and its place.
pub type Quantile = (&'static str, &'static str, fn(&Quantiles) -> u64);

/// The quantiles, in order.
pub const QUANTILES: [Quantile; 4] = [
    ("p50", "p50_ns", |ns| ns.p50),
    ("p99", "p99_ns", |ns| ns.p99),
    ("p99.9", "p999_ns", |ns| ns.p999),
    ("max", "max_ns", |ns| ns.max),
];

impl Row {
    /// Returns a quantile: the median of the runs, and their least and greatest.
    pub fn quantile(&self, pick: fn(&Quantiles) -> u64) -> Option<Summary> {
        let runs = self.runs.as_ref().ok()?;
        Summary::of(&runs.iter().map(|tail| pick(&tail.ns)).collect::<Vec<_>>())
    }

    /// Returns the row as one JSON object; `skipped` appears only with a reason.
    pub fn json(&self) -> Value {
        let all = |pick: fn(Summary) -> u64| -> Map<String, Value> {
            QUANTILES.iter().map(|(_, key, of)| ((*key).into(), json!(self.quantile(*of).map(pick)))).collect()
        };
        let sum = |part: fn(&Tail) -> u64| self.runs.as_ref().ok().map(|runs| runs.iter().map(part).sum::<u64>());
        let mut json = Map::new();
        json.insert("bench".into(), "tails".into());
        json.insert("op".into(), self.op.name().into());
        json.insert("beside".into(), self.beside.name().into());
        json.insert("column".into(), self.column.name().into());
        json.insert("samples".into(), json!(sum(|tail| tail.ns.samples)));
        json.insert("reclaimed".into(), json!(sum(|tail| tail.reclaimed)));
        json.extend(all(|summary| summary.median));
        json.insert("min".into(), all(|summary| summary.min).into());
        json.insert("max".into(), all(|summary| summary.max).into());
        json.insert("others".into(), json!(self.load.others));
        json.insert("stolen".into(), json!(self.load.stolen));
        if let Err(skip) = &self.runs {
            json.insert("skipped".into(), skip.to_string().into());
        }
        json.into()
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A row of runs whose quantiles are this many nanoseconds, ten times that, and so on.
    pub fn row(column: Column, p50: &[u64]) -> Row {
        let run = |&ns: &u64| {
            let ns = Quantiles { samples: 7, p50: ns, p99: 10 * ns, p999: 100 * ns, max: 1000 * ns };
            Tail { ns, reclaimed: 5 }
        };
        let runs = Ok(p50.iter().map(run).collect());
        Row { op: TimedOp::Munmap, beside: Beside::Reclaim, column, runs, load: Load::default() }
    }

    #[test]
    fn the_json_of_a_row_has_these_keys_and_no_others() {
        let expected = json!({
            "bench": "tails", "op": "munmap", "beside": "reclaim", "column": "linux", "samples": 21, "reclaimed": 15,
            "p50_ns": 3, "p99_ns": 30, "p999_ns": 300, "max_ns": 3000,
            "min": { "p50_ns": 2, "p99_ns": 20, "p999_ns": 200, "max_ns": 2000 },
            "max": { "p50_ns": 9, "p99_ns": 90, "p999_ns": 900, "max_ns": 9000 },
            "others": 0.0, "stolen": 0.0,
        });
        assert_eq!(row(Column::Linux, &[9, 2, 3]).json(), expected);
        let skipped = Row { runs: Err(Skip::Busy), ..row(Column::Linux, &[]) }.json();
        assert_eq!((&skipped["p50_ns"], &skipped["samples"]), (&Value::Null, &Value::Null));
        assert_eq!(skipped["skipped"], Skip::Busy.to_string());
    }
}
