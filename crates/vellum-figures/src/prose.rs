//! Checks the figures in the prose of pages: a sentence that states a measured figure is in the
//! plan, with the rows that it is of, and a page has it with the figure that the results give.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;
use vellum_cli::numbers::{nanoseconds, three_digits};
use vellum_linux::stats::Summary;

use crate::Results;
use crate::table::{Row, condition, figure, is_time, meets, ratio_of};

/// The place of a figure in a statement.
const PLACE: &str = "{}";

/// A part of a page's prose that states figures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Statement {
    /// The page, from the root of the repository.
    page: String,
    /// The words around the figures, which are `{}`. Line breaks count as spaces.
    says: String,
    /// The figures, in order: an experiment, conditions as in
    /// [`TableSpec`](crate::plan::TableSpec), a colon, and `name` or the ratio `a/b`. Of several
    /// rows a figure is the least and the greatest: `4.4 to 5.5`.
    figures: Vec<String>,
}

/// Returns the statements that their pages lack, each with its figures and preceded by the page.
///
/// # Errors
/// A page can't be read, or the results can't give a figure.
pub(crate) fn missing(
    root: &Path,
    statements: &[Statement],
    results: &BTreeMap<String, Results>,
) -> anyhow::Result<Vec<String>> {
    let mut missing = Vec::new();
    for statement in statements {
        let page = root.join(&statement.page);
        let text = std::fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        let words = statement.words(results).with_context(|| format!("{:?}", statement.says))?;
        if !flat(&text).contains(&words) {
            missing.push(format!("{}: {words}", statement.page));
        }
    }
    Ok(missing)
}

/// Returns a text with one space for all that separates two words.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Statement {
    /// Returns the statement with its figures.
    ///
    /// # Errors
    /// There are not as many places as figures, or the results can't give a figure.
    pub fn words(&self, results: &BTreeMap<String, Results>) -> anyhow::Result<String> {
        let says = flat(&self.says);
        let mut parts = says.split(PLACE);
        let mut words = parts.next().unwrap_or_default().to_owned();
        let parts: Vec<&str> = parts.collect();
        ensure!(parts.len() == self.figures.len(), "{} places and {} figures", parts.len(), self.figures.len());
        for (figure, after) in self.figures.iter().zip(parts) {
            words += &shown(figure, results).with_context(|| figure.clone())?;
            words += after;
        }
        Ok(words)
    }
}

/// Returns a figure of some rows, or the least and the greatest.
fn shown(which: &str, results: &BTreeMap<String, Results>) -> anyhow::Result<String> {
    let (rows, what) = which.split_once(": ").context("it lacks the name of a figure after a colon")?;
    let (name, conditions) = rows.split_once(' ').unwrap_or((rows, ""));
    let conditions = conditions.split_whitespace().map(condition).collect::<anyhow::Result<Vec<_>>>()?;
    let experiment = results.get(name).with_context(|| format!("there is no experiment {name:?}"))?;
    let mut figures = Vec::new();
    for row in experiment.rows.iter().filter(|row| meets(row, &conditions)) {
        figures.extend(value(row, what)?);
    }
    figures.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (least, greatest) = figures.first().zip(figures.last()).context("no such row was measured")?;
    Ok(if least.1 == greatest.1 { least.1.clone() } else { format!("{} to {}", least.1, greatest.1) })
}

/// Returns a figure of a row as a number and as words; `None` if it was not measured.
fn value(row: &Row, what: &str) -> anyhow::Result<Option<(f64, String)>> {
    if let Some((a, b)) = what.split_once('/') {
        let times = is_time(row, a) && is_time(row, b);
        let ratio = figure(row, a)?.zip(figure(row, b)?).map(|(of, to)| of / to);
        return Ok(ratio.map(|ratio| (ratio, ratio_of(ratio, times).trim_end_matches('×').to_owned())));
    }
    Ok(figure(row, what)?.map(|value| {
        let median = value as u64;
        let time = || nanoseconds(Summary { median, min: median, max: median }).0;
        (value, if is_time(row, what) { time() } else { three_digits(value) })
    }))
}
