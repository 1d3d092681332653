//! Makes a Markdown table of results.
//!
//! A column shows one of these, by its last word:
//!
//! | word | shows |
//! |---|---|
//! | `label` | the label of the rows in the plan |
//! | `folio` | the folio's size, and whether it is mapped huge |
//! | `region` | the length of a small region |
//! | a text field, like `op` | the field |
//! | a name, like `vellum` | the field `vellum_ns` as a time with its range, or the number `vellum`, a count in full |
//! | a name that ends in `_kb` | the number of kilobytes |
//! | a name that contains `_bytes` | the number as a size |
//! | `a/b` | the ratio of two figures: of times the lowest and highest of the passes |
//! | `a:b`, `a:b:c` | figures, and how many times the first the others are |
//!
//! Rows with equal labels and texts are one row of the table; conditions before the last word say
//! from which of them a column takes its figure.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value};
use vellum_cli::numbers::{grouped, nanoseconds, ratio, size, three_digits};
use vellum_linux::stats::Summary;

use crate::Results;
use crate::passes::{GREATEST, PASSES};
use crate::plan::TableSpec;

pub(crate) type Row = Map<String, Value>;

/// The place of a figure that was not measured.
const NONE: &str = "–";
/// The least multiple of its noise of a time that has a ratio.
const CLEAR: f64 = 3.0;
/// Marks a figure of memory that was not mapped throughout as its row says.
pub(crate) const FALLBACK: &str = " ‡";
/// Marks a range whose margin is the greatest, which does not cover what the passes needed.
pub(crate) const CAPPED: &str = " †";

/// A column of a table.
struct Column<'p> {
    header: &'p str,
    conditions: Vec<(&'p str, &'p str)>,
    what: &'p str,
}

/// Returns the table, and the results that it shows.
pub(crate) fn markdown<'r>(
    spec: &TableSpec,
    results: &'r BTreeMap<String, Results>,
) -> anyhow::Result<(String, Vec<&'r Results>)> {
    let columns = spec.columns.iter().map(|column| self::column(column)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut shown = Vec::new();
    let mut lines: Vec<(Vec<String>, Vec<Row>)> = Vec::new();
    for line in &spec.rows {
        let (which, label) = line.split_once(": ").unwrap_or((line, ""));
        let (name, conditions) = which.split_once(' ').unwrap_or((which, ""));
        let experiment = results.get(name).with_context(|| format!("{line:?}: there is no experiment {name:?}"))?;
        shown.push(experiment);
        let conditions = conditions.split_whitespace().map(condition).collect::<anyhow::Result<Vec<_>>>()?;
        let before = lines.iter().map(|(_, rows)| rows.len()).sum::<usize>();
        for row in experiment.rows.iter().filter(|row| meets(row, &conditions)) {
            let mut row = shown_ranges(experiment, row);
            row.insert("label".into(), label.into());
            let texts: Vec<String> =
                columns.iter().filter(|column| is_text(column, &row)).map(|column| text(&row, column.what)).collect();
            match lines.iter_mut().find(|(known, _)| *known == texts) {
                Some((_, rows)) => rows.push(row),
                None => lines.push((texts, vec![row])),
            }
        }
        ensure!(lines.iter().map(|(_, rows)| rows.len()).sum::<usize>() > before, "{line:?}: no such row was measured");
    }
    let mut table = format!("|{}\n|{}\n", cells(columns.iter().map(|c| c.header.into())), "---|".repeat(columns.len()));
    for (_, rows) in &lines {
        let cells = columns.iter().map(|column| cell(column, rows)).collect::<anyhow::Result<Vec<_>>>()?;
        table += &format!("|{}\n", self::cells(cells.into_iter()));
    }
    Ok((table, shown))
}

/// Returns a row with the ranges in which a repetition lies instead of those of the runs, and an
/// object `capped` with the fields whose margin is the greatest.
fn shown_ranges(results: &Results, row: &Row) -> Row {
    let mut shown = row.clone();
    let mut capped = Map::new();
    for key in row.keys() {
        let Some((min, max)) = results.range(row, key) else { continue };
        if results.margins.get(key).is_some_and(|margin| *margin >= GREATEST) {
            capped.insert(key.clone(), true.into());
        }
        for (bound, value) in [("min", min), ("max", max)] {
            if let Some(Value::Object(bounds)) = shown.get_mut(bound) {
                bounds.insert(key.clone(), Value::from(value.round() as u64));
            }
        }
    }
    shown.insert("capped".into(), capped.into());
    shown
}

fn cells(cells: impl Iterator<Item = String>) -> String {
    cells.map(|cell| format!(" {cell} |")).collect()
}

fn column(spec: &str) -> anyhow::Result<Column<'_>> {
    let (header, rest) = spec.split_once(" = ").unwrap_or((spec, spec));
    let mut words: Vec<&str> = rest.split_whitespace().collect();
    let what = words.pop().with_context(|| format!("{spec:?} names no column"))?;
    Ok(Column { header, conditions: words.into_iter().map(condition).collect::<anyhow::Result<_>>()?, what })
}

pub(crate) fn condition(word: &str) -> anyhow::Result<(&str, &str)> {
    word.split_once('=').with_context(|| format!("{word:?} is no condition: field=value"))
}

/// Returns whether a row meets all conditions. A field that a row lacks is `none`, and a space in a
/// value is `_`.
pub(crate) fn meets(row: &Row, conditions: &[(&str, &str)]) -> bool {
    conditions.iter().all(|(field, values)| {
        let is = match row.get(*field) {
            None | Some(Value::Null) => "none".to_owned(),
            Some(Value::String(text)) => text.replace(' ', "_"),
            Some(value) => value.to_string(),
        };
        values.split(',').any(|value| value == is)
    })
}

fn is_text(column: &Column<'_>, row: &Row) -> bool {
    matches!(column.what, "label" | "folio" | "region") || row.get(column.what).is_some_and(Value::is_string)
}

fn text(row: &Row, what: &str) -> String {
    match what {
        "folio" => folio(row),
        "region" => row.get("region_kib").and_then(Value::as_u64).map_or(NONE.into(), kibibytes),
        _ => row.get(what).and_then(Value::as_str).unwrap_or(NONE).to_owned(),
    }
}

pub(crate) fn folio(row: &Row) -> String {
    let Some(kib) = row.get("folio_kib").and_then(Value::as_u64) else {
        return row.get("folio").and_then(Value::as_str).unwrap_or(NONE).into();
    };
    if row.get("huge") == Some(&Value::Bool(true)) { kibibytes(kib) + " huge" } else { kibibytes(kib) }
}

fn kibibytes(kib: u64) -> String {
    if kib < 1024 { format!("{kib} KiB") } else { format!("{} MiB", kib / 1024) }
}

fn cell(column: &Column<'_>, rows: &[Row]) -> anyhow::Result<String> {
    let Some(row) = rows.iter().find(|row| meets(row, &column.conditions)) else { return Ok(NONE.into()) };
    if is_text(column, row) {
        return Ok(text(row, column.what));
    }
    let both = |a, b| Ok::<_, anyhow::Error>(figure(row, a)?.zip(figure(row, b)?));
    if let Some((a, b)) = column.what.split_once('/') {
        return Ok(both(a, b)?.map_or(NONE.into(), |(of, to)| ratio_in_passes(row, (a, of), (b, to))));
    }
    if column.what.contains(':') {
        let named = column.what.split(':').map(|name| Ok(figure(row, name)?.map(|figure| (name, figure))));
        let figures = named.collect::<anyhow::Result<Option<Vec<_>>>>()?;
        return Ok(figures.map_or(NONE.into(), |figures| all_and_ratios(row, &figures)));
    }
    let Some(value) = figure(row, column.what)? else { return Ok(NONE.into()) };
    if column.what.ends_with("_kb") {
        return Ok(format!("{} kB", grouped(value as u64)));
    }
    let key = format!("{}_ns", column.what);
    if row.get(&key).is_none() {
        let count = row.get(column.what).and_then(Value::as_u64);
        let shown = if column.what.contains("_bytes") { size } else { grouped };
        return Ok(count.map_or_else(|| three_digits(value), shown));
    }
    let bound = |bound: &str| row.get(bound).and_then(|figures| figures.get(&key)).and_then(Value::as_u64);
    let median = value as u64;
    let (min, max) = (bound("min").unwrap_or(median), bound("max").unwrap_or(median));
    let (shown, range) = nanoseconds(Summary { median, min, max });
    let marked = |object: &str, mark| row.get(object).and_then(|marks| marks.get(&key)).map_or("", |_| mark);
    let (fallback, capped) = (marked("fallback", FALLBACK), marked("capped", CAPPED));
    // A floor is the least of its runs.
    Ok(if column.what == "floor" || min == max {
        format!("{shown}{fallback}")
    } else {
        format!("{shown} ({range}){capped}{fallback}")
    })
}

/// Returns several figures of a row, and the ratios of the others to the first.
fn all_and_ratios(row: &Row, figures: &[(&str, f64)]) -> String {
    let list = |shown: Vec<String>, between: &str| shown.join(between);
    let ratios = figures[1..].iter().map(|other| format!("**{}**", ratio_in_passes(row, *other, figures[0])));
    let shown = figures.iter().map(|(_, figure)| three_digits(*figure));
    format!("{} = {}", list(shown.collect(), " / "), list(ratios.collect(), ", "))
}

/// Returns the ratio of two figures of a row, each given with its name. Of times it is the lowest
/// and the highest ratio of the figures of one pass, or one number if the two print the same. Rows
/// without the figures of passes have the ratio of the figures. There is no ratio of a time that is
/// less than [`CLEAR`] times the noise of what was subtracted from it.
fn ratio_in_passes(row: &Row, (a, of): (&str, f64), (b, to): (&str, f64)) -> String {
    if !is_time(row, a) || !is_time(row, b) {
        return ratio_of(of / to, false);
    }
    let noise = |name: &str| row.get(&format!("{name}_noise_ns")).and_then(Value::as_f64).unwrap_or(0.0);
    if of < CLEAR * noise(a) || to < CLEAR * noise(b) {
        return NONE.into();
    }
    let passes = |name: &str| row.get(PASSES)?.get(format!("{name}_ns"))?.as_array();
    let (of_passes, to_passes) = passes(a).zip(passes(b)).unzip();
    let pairs = of_passes.into_iter().flatten().zip(to_passes.into_iter().flatten());
    let ratio = |(of, to): (&Value, &Value)| Some(of.as_f64()? / to.as_f64().filter(|to| *to > 0.0)?);
    let mut ratios: Vec<f64> = pairs.filter_map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let (lowest, highest) = ratios.first().zip(ratios.last()).map_or((of / to, of / to), |(a, b)| (*a, *b));
    let (lowest, highest) = (ratio_of(lowest, true), ratio_of(highest, true));
    if lowest == highest { highest } else { format!("{}–{highest}", lowest.trim_end_matches('×')) }
}

/// Returns whether a figure of a row is a time.
pub(crate) fn is_time(row: &Row, name: &str) -> bool {
    row.contains_key(&format!("{name}_ns"))
}

/// Formats a ratio. That of counts has three digits, and that of times two significant ones: the
/// third is other in each pass.
pub(crate) fn ratio_of(value: f64, times: bool) -> String {
    if !times || !value.is_normal() {
        return ratio(value);
    }
    // In scientific notation the digit before the point is the first significant one, also of a
    // value that rounding gives another digit, like 9.96.
    let rounded = format!("{value:.1e}");
    let exponent: i32 = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let rounded: f64 = rounded.parse().unwrap_or(value);
    let decimals = usize::try_from(1 - exponent).unwrap_or(0);
    format!("{rounded:.decimals$}×")
}

/// Returns a figure of a row; `None` if it was not measured.
pub(crate) fn figure(row: &Row, name: &str) -> anyhow::Result<Option<f64>> {
    match row.get(&format!("{name}_ns")).or_else(|| row.get(name)) {
        Some(Value::Null) => Ok(None),
        Some(value) if value.is_number() => Ok(value.as_f64()),
        _ => bail!("there is no figure {name:?} in {}", Value::from(row.clone())),
    }
}
