//! Joins the results of several passes. One invocation of a benchmark repeats itself better than
//! the next one does, with its memory elsewhere, at another time: so the range of a figure is that
//! of all passes, with a margin that the passes themselves have needed.

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};

use crate::results::{Results, identity};

/// Joins the results of passes of one experiment. A figure is the median of the passes' figures,
/// and a bound or a share of noise the farthest, as is the spread of what is subtracted; a floor is
/// the least, and the longest time of an operation is the greatest. An object `passes` keeps the
/// times of each pass, in the order of the passes, because figures of one pass are compared with
/// each other. Only rows that all passes have are joined. The margins are those that the passes
/// [needed](margins).
///
/// Returns `None` if there is no pass.
pub fn joined(passes: &[Results]) -> Option<Results> {
    let mut joined = rows_joined(passes)?;
    joined.margins = margins(passes);
    Some(joined)
}

/// The share of figures that may lie beyond the margin: one of this many.
const BEYOND: usize = 40;

/// The field of a joined row with the times of each pass.
pub(crate) const PASSES: &str = "passes";

/// The greatest margin. Figures that need more are outliers, which no margin covers.
pub(crate) const GREATEST: f64 = 1.0;

/// Returns the shares by which the figures of a pass lie outside the range of all other passes,
/// each pass compared in turn: for each field, of all but one figure in [`BEYOND`] at most so much,
/// but at most [`GREATEST`].
fn margins(passes: &[Results]) -> BTreeMap<String, f64> {
    let mut shares: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
    for (index, pass) in passes.iter().enumerate() {
        let others: Vec<Results> =
            passes.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| other.clone()).collect();
        let Some(others) = rows_joined(&others) else { continue };
        for row in &others.rows {
            let Some(of_pass) = pass.rows.iter().find(|of_pass| identity(of_pass) == identity(row)) else { continue };
            for (key, figure) in of_pass {
                let Some(((min, max), figure)) = others.runs(row, key).zip(figure.as_f64()) else { continue };
                shares.entry(key).or_default().push((min / figure).max(figure / max).max(1.0) - 1.0);
            }
        }
    }
    let margin = |(key, mut shares): (&String, Vec<f64>)| {
        shares.sort_by(f64::total_cmp);
        let margin = shares[shares.len() - 1 - shares.len() / BEYOND];
        (key.clone(), (margin.min(GREATEST) * 1000.0).ceil() / 1000.0)
    };
    shares.into_iter().map(margin).collect()
}

/// Joins the rows of passes.
fn rows_joined(passes: &[Results]) -> Option<Results> {
    let (first, others) = passes.split_first()?;
    let rows = first.rows.iter().filter_map(|row| {
        let name = identity(row);
        let same = |other: &'_ Results| other.rows.iter().find(|row| identity(row) == name).cloned();
        let rows: Option<Vec<_>> = others.iter().map(same).collect();
        let rows = rows?;
        let mut joined = row_of(row, &rows, None);
        if !rows.is_empty() {
            joined.insert(PASSES.into(), Value::Object(times(row, &rows)));
        }
        Some(joined)
    });
    Some(Results { rows: rows.collect(), ..first.clone() })
}

/// Returns the times of each pass, `null` for one that a pass lacks.
fn times(first: &Map<String, Value>, others: &[Map<String, Value>]) -> Map<String, Value> {
    let of_passes = |key: &String| {
        let values = std::iter::once(first).chain(others).map(|row| row.get(key).cloned().unwrap_or_default());
        (key.clone(), Value::Array(values.collect()))
    };
    let is_time = |key: &str| key.ends_with("_ns") && !key.ends_with("_noise_ns");
    first.iter().filter(|(key, value)| is_time(key) && value.is_number()).map(|(key, _)| of_passes(key)).collect()
}

/// Joins rows, or the objects with the bounds `within` of rows.
fn row_of(first: &Map<String, Value>, others: &[Map<String, Value>], within: Option<&str>) -> Map<String, Value> {
    let join = |(key, value): (&String, &Value)| {
        let values = || std::iter::once(value).chain(others.iter().filter_map(|other| other.get(key)));
        let joined = match value {
            Value::Object(bounds) => {
                let others: Vec<_> = others.iter().filter_map(|other| other.get(key)?.as_object().cloned()).collect();
                Value::Object(row_of(bounds, &others, Some(key)))
            }
            Value::Number(_) => number(key, within, values().filter_map(Value::as_f64).collect()),
            _ => value.clone(),
        };
        (key.clone(), joined)
    };
    first.iter().map(join).collect()
}

/// Joins the numbers that the passes have for a field.
fn number(key: &str, within: Option<&str>, mut numbers: Vec<f64>) -> Value {
    numbers.sort_by(f64::total_cmp);
    let last = numbers.len() - 1;
    let joined = match (within, key) {
        (Some("min" | "wall_min"), _) | (None, "floor_ns") => numbers[0],
        (Some("max"), _) | (None, "others" | "stolen" | "max_ns" | "linux_noise_ns") => numbers[last],
        _ => (numbers[last / 2] + numbers[last.div_ceil(2)]) / 2.0,
    };
    // Nanoseconds and counts are whole numbers, but shares of a region are named as the times are.
    let whole =
        key.ends_with("_ns") && within != Some("fallback") || numbers.iter().all(|number| number.fract() == 0.0);
    if whole { Value::from(joined.round() as u64) } else { Number::from_f64(joined).map_or(Value::Null, Value::Number) }
}
