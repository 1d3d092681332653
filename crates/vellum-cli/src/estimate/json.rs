//! The estimate as JSON.

use serde::Serialize;
use vellum_linux::workload::layout::Folios;

use super::Estimate;

/// The estimate of one process.
#[derive(Serialize)]
pub struct Costs {
    /// The share of the process that was copied, 0 to 1. Figures are those of the copy.
    share: f64,
    left_out: u64,
    runs: u32,
    folios: Vec<Column>,
}

/// The results with one choice of folio sizes.
#[derive(Serialize)]
struct Column {
    /// The folio size in KiB; `None` for the folio sizes that the process has.
    folio_kib: Option<u32>,
    memory: u64,
    costs: Vec<Cost>,
}

#[derive(Serialize)]
struct Cost {
    what: String,
    linux: Side,
    vellum: Side,
}

#[derive(Serialize)]
struct Side {
    /// The median, the smallest and the largest time.
    ns: Option<[u64; 3]>,
    resident: Option<u64>,
    tables: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
}

impl Costs {
    /// Returns the JSON form of an estimate.
    pub fn of(estimate: &Estimate) -> Costs {
        let side = |side: &super::Side| Side {
            ns: side.time().map(|time| [time.median, time.min, time.max]),
            resident: side.copy().map(|copy| copy.resident),
            tables: side.copy().map(|copy| copy.tables),
            why_not: side.skip.as_ref().map(ToString::to_string),
        };
        let column = |column: &super::Column| Column {
            folio_kib: if let Folios::Of(kib) = column.folios { Some(kib) } else { None },
            memory: column.memory,
            costs: column
                .rows
                .iter()
                .map(|(operation, [linux, vellum])| Cost {
                    what: operation.argument(),
                    linux: side(linux),
                    vellum: side(vellum),
                })
                .collect(),
        };
        Costs {
            share: estimate.imported.share,
            left_out: estimate.imported.left_out,
            runs: estimate.runs,
            folios: estimate.columns.iter().map(column).collect(),
        }
    }
}
