//! Makes a Markdown table of aims: in how many rows of the results each holds, in how many even at
//! the ends of the ranges of the runs, and the row that is farthest from it.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::Results;
use crate::results::identity;
use crate::table::{Row, condition, figure, folio, is_time, meets, ratio_of};

/// A bound for ratios of figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Aim {
    /// The aim's name in the table. With `{}` in it, the table has a row for each of `rows`, with
    /// the label of that instead.
    label: String,
    /// Which rows of which experiments, as in [`TableSpec`](crate::plan::TableSpec), without labels
    /// unless `label` wants them.
    rows: Vec<String>,
    /// The ratios that must keep the bound in each row: `a/b`.
    ratios: Vec<String>,
    /// The ratios are at least this.
    least: Option<f64>,
    /// The ratios are at most this.
    most: Option<f64>,
    /// `field=value`: the second figure of a ratio is that of the row with this value instead.
    against: Option<String>,
    /// `field=value`: the figures of the row with this value instead are subtracted first.
    less: Option<String>,
}

/// A ratio of figures.
struct Ratio {
    value: f64,
    /// For times, the least and the greatest ratio of a figure within the range of the one to one
    /// within the range of the other.
    ends: Option<(f64, f64)>,
    /// The name of its row.
    row: String,
    /// The figure compares two times.
    times: bool,
}

/// Returns the table, and the results that it shows.
pub(crate) fn markdown<'r>(
    aims: &[Aim],
    results: &'r BTreeMap<String, Results>,
) -> anyhow::Result<(String, Vec<&'r Results>)> {
    let mut table = String::from(
        "| aim | figures | of them hold | even at the ends of the ranges | the farthest |\n|---|---|---|---|---|\n",
    );
    let mut shown = Vec::new();
    let lines = aims.iter().map(Aim::lines).collect::<anyhow::Result<Vec<_>>>()?;
    for (aim, label, rows) in lines.into_iter().flatten() {
        let figures = aim.figures(&rows, results, &mut shown).with_context(|| format!("aim {label:?}"))?;
        let holds = |ratio: f64| aim.distance(ratio) >= 1.0;
        let hold = figures.iter().filter(|figure| holds(figure.value)).count();
        let ends: Option<Vec<_>> = figures.iter().map(|figure| figure.ends).collect();
        let even_there = ends.map_or("–".to_owned(), |ends| {
            ends.iter().filter(|(least, greatest)| holds(*least) && holds(*greatest)).count().to_string()
        });
        let farthest = figures.iter().min_by(|a, b| aim.distance(a.value).total_cmp(&aim.distance(b.value)));
        let Ratio { value, row, times, .. } = farthest.with_context(|| format!("aim {label:?} has no figures"))?;
        let value = ratio_of(*value, *times);
        table += &format!("| {label} | {} | {hold} | {even_there} | {value}: {row} |\n", figures.len());
    }
    Ok((table, shown))
}

impl Aim {
    /// Returns the table's rows: the label of each, and which rows of the results it is about.
    fn lines(&self) -> anyhow::Result<Vec<(&Aim, String, Vec<&str>)>> {
        if !self.label.contains("{}") {
            return Ok(vec![(self, self.label.clone(), self.rows.iter().map(String::as_str).collect())]);
        }
        let labelled = self.rows.iter().map(|row| {
            let (which, label) =
                row.split_once(": ").with_context(|| format!("{row:?} lacks a label for {:?}", self.label))?;
            Ok((self, self.label.replace("{}", label), vec![which]))
        });
        labelled.collect()
    }

    /// Returns how well a ratio keeps the bound: the bound is kept from 1 on.
    fn distance(&self, ratio: f64) -> f64 {
        let least = self.least.map_or(f64::INFINITY, |least| ratio / least);
        least.min(self.most.map_or(f64::INFINITY, |most| most / ratio))
    }

    /// Returns all ratios.
    fn figures<'r>(
        &self,
        rows: &[&str],
        results: &'r BTreeMap<String, Results>,
        shown: &mut Vec<&'r Results>,
    ) -> anyhow::Result<Vec<Ratio>> {
        ensure!(self.least.is_some() || self.most.is_some(), "no bound");
        let mut figures = Vec::new();
        for line in rows {
            let (name, conditions) = line.split_once(' ').unwrap_or((line, ""));
            let experiment = results.get(name).with_context(|| format!("there is no experiment {name:?}"))?;
            shown.push(experiment);
            let conditions = conditions.split_whitespace().map(condition).collect::<anyhow::Result<Vec<_>>>()?;
            for row in experiment.rows.iter().filter(|row| meets(row, &conditions)) {
                for both in &self.ratios {
                    let (a, b) = both.split_once('/').with_context(|| format!("{both:?} is no ratio: a/b"))?;
                    let other =
                        self.against.as_deref().map_or(Ok(row), |change| changed(row, change, experiment, results))?;
                    let Some((first, second)) =
                        self.figure(row, a, experiment, results)?.zip(self.figure(other, b, experiment, results)?)
                    else {
                        continue;
                    };
                    let times = is_time(row, a) && is_time(other, b);
                    let range = |row, name: &str| experiment.range(row, &format!("{name}_ns"));
                    let both = range(row, a).zip(range(other, b)).filter(|_| times && self.less.is_none());
                    let ends = both.map(|(of, to)| (of.0 / to.1, of.1 / to.0));
                    figures.push(Ratio { value: first / second, ends, row: called(row, b), times });
                }
            }
        }
        Ok(figures)
    }

    /// Returns a figure of a row, less what is subtracted.
    fn figure(
        &self,
        row: &Row,
        name: &str,
        experiment: &Results,
        results: &BTreeMap<String, Results>,
    ) -> anyhow::Result<Option<f64>> {
        let Some(less) = &self.less else { return figure(row, name) };
        Ok(figure(row, name)?
            .zip(figure(changed(row, less, experiment, results)?, name)?)
            .map(|(whole, part)| whole - part))
    }
}

/// Returns the row that differs from another in one field, whose value the condition `change`
/// states: one of the same experiment, or else of any.
fn changed<'r>(
    row: &Row,
    change: &str,
    experiment: &'r Results,
    results: &'r BTreeMap<String, Results>,
) -> anyhow::Result<&'r Row> {
    let (field, value) = condition(change)?;
    let mut wanted = row.clone();
    wanted.insert(field.into(), Value::from(value.replace('_', " ")));
    let wanted = identity(&wanted);
    let mut rows = std::iter::once(experiment).chain(results.values()).flat_map(|results| &results.rows);
    rows.find(|row| identity(row) == wanted).with_context(|| format!("there is no row {wanted}"))
}

/// Returns the name of a row for a reader: the operation, which may be that of the figure, the
/// order and the folio's size.
fn called(row: &Row, figure: &str) -> String {
    let text = |field: &str| row.get(field).and_then(Value::as_str);
    let op = text("op").or_else(|| figure.split_once('_').map(|(_, op)| op));
    let parts = [op.map(|op| format!("`{op}`")), text("data").map(str::to_owned), text("arm").map(str::to_owned)];
    parts.into_iter().flatten().chain([folio(row)]).collect::<Vec<_>>().join(", ")
}
