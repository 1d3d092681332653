//! Pages: Markdown with places for tables, `<!-- figures: NAME -->` to `<!-- end of figures -->`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::{Plan, Results, aims, table};

const BEGIN: &str = "<!-- figures: ";
const END: &str = "<!-- end of figures -->";

/// Returns all pages of the repository that may have tables.
pub(crate) fn all(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    for folder in [root.to_owned(), root.join("docs")] {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    Ok(pages)
}

/// Returns a page's text with all its tables made anew.
///
/// # Errors
/// A place has no end, or names a table that the plan or the results cannot give.
pub fn fill(text: &str, plan: &Plan, results: &BTreeMap<String, Results>) -> anyhow::Result<String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, place)) = rest.split_once(BEGIN) {
        let (name, place) = place.split_once(" -->").context("a place for a table has no end of its first line")?;
        let (_, after) = place.split_once(END).with_context(|| format!("table {name:?} has no {END:?}"))?;
        let made = match (plan.table.get(name), plan.aims.get(name)) {
            (Some(spec), None) => table::markdown(spec, results),
            (None, Some(aims)) => aims::markdown(aims, results),
            (None, None) => bail!("there is no table {name:?} in the plan"),
            (Some(_), Some(_)) => bail!("there are two tables {name:?} in the plan"),
        };
        let (table, shown) = made.with_context(|| format!("table {name:?}"))?;
        let note = |mark, note| if table.contains(mark) { note } else { "" };
        let (capped, fallback) = (note(table::CAPPED, CAPPED_NOTE), note(table::FALLBACK, FALLBACK_NOTE));
        let below = wrapped(&format!("{}{capped}{fallback}", origin(&shown)));
        filled += &format!("{before}{BEGIN}{name} -->\n{table}\n{below}{END}");
        rest = after;
    }
    Ok(filled + rest)
}

/// The note below a table in which a range is marked.
const CAPPED_NOTE: &str = " † The margin is capped: figures of another invocation may lie farther out.";
/// The note below a table in which a figure is marked.
const FALLBACK_NOTE: &str = " ‡ Part of the region had smaller folios than the row says.";

/// Returns the sentence that says where a table comes from.
fn origin(shown: &[&Results]) -> String {
    let Some(first) = shown.first() else { return String::new() };
    let commands: BTreeSet<String> = shown.iter().map(|results| format!("`{}`", results.command)).collect();
    let commands: Vec<String> = commands.into_iter().collect();
    let fact = |name: &str| first.machine.get(name).and_then(Value::as_str);
    let commit = first.commit.get(..12).unwrap_or(&first.commit);
    let on =
        fact("CPU").zip(fact("kernel")).map_or(String::new(), |(cpu, kernel)| format!(", on {cpu} under {kernel}"));
    let (against, spread) = (against(first), spread(shown));
    format!("Measured on {} at commit {commit}{on}{against}, by {}{spread}.", first.date, commands.join(" and "))
}

/// Returns the releases of the Linux kernels that a comparison booted.
fn against(results: &Results) -> String {
    let Some(kernels) = results.machine.get("kernels").and_then(Value::as_object) else { return String::new() };
    let named = kernels.iter().filter_map(|(name, release)| {
        let release = release.as_str()?;
        Some(if name == "linux" { release.to_owned() } else { format!("{release} ({name})") })
    });
    let named: Vec<String> = named.collect();
    if named.is_empty() { String::new() } else { format!(", against Linux {}", named.join(" and ")) }
}

/// Returns by how much the runs of each compared kernel differed at most, rounded up to a tenth of
/// a percent. Results lack this if each kernel ran once.
fn spread(shown: &[&Results]) -> String {
    let mut greatest: Vec<(&str, f64)> = Vec::new();
    for spread in shown.iter().filter_map(|results| results.machine.get("spread")?.as_object()) {
        for (name, share) in spread.iter().filter_map(|(name, share)| Some((name.as_str(), share.as_f64()?))) {
            match greatest.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => *known = known.max(share),
                None => greatest.push((name, share)),
            }
        }
    }
    // The shares have four decimals.
    let percent = |share: f64| ((share * 10_000.0).round() as u64).div_ceil(10) as f64 / 10.0;
    let named: Vec<String> =
        greatest.iter().map(|(name, share)| format!("{:.1} % ({name})", percent(*share))).collect();
    if named.is_empty() { String::new() } else { format!("; runs differed by at most {}", named.join(", ")) }
}

/// Wraps a paragraph as prose is.
fn wrapped(sentence: &str) -> String {
    let mut wrapped = String::new();
    let mut width = 0;
    for word in sentence.split(' ') {
        let columns = word.chars().count();
        if width != 0 && width + 1 + columns > 120 {
            wrapped.push('\n');
            width = 0;
        } else if width != 0 {
            wrapped.push(' ');
            width += 1;
        }
        wrapped += word;
        width += columns;
    }
    wrapped + "\n"
}
