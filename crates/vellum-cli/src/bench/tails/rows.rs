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

/// A quantile of the samples.
pub struct Quantile {
    /// The name in tables.
    pub name: &'static str,
    /// The key in JSON.
    key: &'static str,
    /// Returns the quantile of a run.
    of: fn(&Quantiles) -> u64,
    /// Returns the figure of all runs.
    figure: fn(&Summary) -> u64,
}

/// The quantiles, in order. The figure of the maximum is that of all samples of all runs: the
/// median of maxima would hide the longest wait.
pub const QUANTILES: [Quantile; 4] = [
    Quantile { name: "p50", key: "p50_ns", of: |ns| ns.p50, figure: |runs| runs.median },
    Quantile { name: "p99", key: "p99_ns", of: |ns| ns.p99, figure: |runs| runs.median },
    Quantile { name: "p99.9", key: "p999_ns", of: |ns| ns.p999, figure: |runs| runs.median },
    Quantile { name: "max", key: "max_ns", of: |ns| ns.max, figure: |runs| runs.max },
];

/// The figure of a quantile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The figure of all runs.
    pub all: u64,
    /// The least of a run.
    pub min: u64,
    /// The greatest of a run.
    pub max: u64,
}

impl Row {
    /// Returns the figure of a quantile, if it was measured.
    pub fn figure(&self, quantile: &Quantile) -> Option<Figure> {
        let runs = self.runs.as_ref().ok()?;
        let runs = Summary::of(&runs.iter().map(|tail| (quantile.of)(&tail.ns)).collect::<Vec<_>>())?;
        Some(Figure { all: (quantile.figure)(&runs), min: runs.min, max: runs.max })
    }

    /// Returns the row as one JSON object; `skipped` appears only with a reason.
    pub fn json(&self) -> Value {
        let all = |pick: fn(Figure) -> u64| -> Map<String, Value> {
            QUANTILES.iter().map(|quantile| (quantile.key.into(), json!(self.figure(quantile).map(pick)))).collect()
        };
        let sum = |part: fn(&Tail) -> u64| self.runs.as_ref().ok().map(|runs| runs.iter().map(part).sum::<u64>());
        let mut json = Map::new();
        json.insert("bench".into(), "tails".into());
        json.insert("op".into(), self.op.name().into());
        json.insert("beside".into(), self.beside.name().into());
        json.insert("column".into(), self.column.name().into());
        json.insert("samples".into(), json!(sum(|tail| tail.ns.samples)));
        json.insert("reclaimed".into(), json!(sum(|tail| tail.reclaimed)));
        json.extend(all(|figure| figure.all));
        json.insert("min".into(), all(|figure| figure.min).into());
        json.insert("max".into(), all(|figure| figure.max).into());
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
            "p50_ns": 3, "p99_ns": 30, "p999_ns": 300, "max_ns": 9000,
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
