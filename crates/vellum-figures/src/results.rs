//! The results of an experiment: a file with the command, its origin, and the rows.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write as _};
use std::path::Path;

use anyhow::Context;
use serde_json::{Map, Value};

/// The least margin of what is counted: see [`Results::margins`].
const COUNTS_REPEAT: f64 = 0.03;

/// The results of an experiment.
#[derive(Clone, Debug)]
pub struct Results {
    /// The command that measured.
    pub command: String,
    /// The commit, as hexadecimal digits.
    pub commit: String,
    /// The day, as `2026-11-25`.
    pub date: String,
    /// Facts about what was measured on: the machine and its configuration, or, for a comparison in
    /// a simulator, the kernels.
    pub machine: Map<String, Value>,
    /// By which share of itself a figure of a repetition may lie outside the range of the runs, for
    /// each field of a row: what the passes of the experiment needed beside each other.
    pub margins: BTreeMap<String, f64>,
    /// The measured rows.
    pub rows: Vec<Map<String, Value>>,
}

/// The comparison of results with a repetition.
#[derive(Debug, Default)]
pub struct Compared {
    /// The number of figures that were compared.
    pub figures: usize,
    /// A line for each that lies outside its range.
    pub outside: Vec<String>,
}

/// The commit and the machine of results: only results of one origin stand beside each other.
/// Results of a simulator have no CPU and no kernel, because these do not change its counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    commit: String,
    machine: Option<(String, String)>,
}

impl Origin {
    /// Returns whether results of both origins may stand beside each other.
    pub fn agrees(&self, other: &Origin) -> bool {
        let machines = self.machine.as_ref().zip(other.machine.as_ref());
        self.commit == other.commit && machines.is_none_or(|(a, b)| a == b)
    }
}

impl Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "commit {}", self.commit)?;
        self.machine.iter().try_for_each(|(cpu, kernel)| write!(f, " on {cpu}, {kernel}"))
    }
}

impl Results {
    /// Makes results of the lines that a command of `vellum` has written: one object each, of which
    /// the first describes the machine.
    ///
    /// # Errors
    /// A line is no JSON object, or there is no machine or no row.
    pub fn of_lines(lines: &str, command: String, commit: String, date: String) -> anyhow::Result<Results> {
        let mut machine = None;
        let mut rows = Vec::new();
        for line in lines.lines() {
            let mut object: Map<String, Value> = serde_json::from_str(line).with_context(|| line.to_owned())?;
            match ["machine", "compare"].iter().find_map(|key| object.remove(*key)) {
                Some(Value::Object(facts)) => machine = Some(facts),
                _ => rows.push(object),
            }
        }
        let machine = machine.with_context(|| format!("`{command}` does not say on which machine it ran"))?;
        anyhow::ensure!(!rows.is_empty(), "`{command}` has measured nothing");
        Ok(Results { command, commit, date, machine, margins: BTreeMap::new(), rows })
    }

    /// Reads results.
    ///
    /// # Errors
    /// The file is missing or is not of this form.
    pub fn read(path: &Path) -> anyhow::Result<Results> {
        let read = || {
            let text = std::fs::read_to_string(path)?;
            let mut object: Map<String, Value> = serde_json::from_str(&text)?;
            let mut text = |key: &str| match object.remove(key) {
                Some(Value::String(text)) => Ok(text),
                _ => anyhow::bail!("no text {key:?}"),
            };
            let (command, commit, date) = (text("command")?, text("commit")?, text("date")?);
            let Some(Value::Object(machine)) = object.remove("machine") else { anyhow::bail!("no object \"machine\"") };
            let margins = object.remove("margins").context("no object \"margins\"")?;
            let Some(Value::Array(rows)) = object.remove("rows") else { anyhow::bail!("no array \"rows\"") };
            let row = |row| match row {
                Value::Object(row) => Ok(row),
                row => anyhow::bail!("{row} is no row"),
            };
            let rows = rows.into_iter().map(row).collect::<Result<_, _>>()?;
            Ok(Results { command, commit, date, machine, margins: serde_json::from_value(margins)?, rows })
        };
        read().with_context(|| format!("{}: run ./x figures, which measures all", path.display()))
    }

    /// Returns the file's text: a row a line, so that a change of one is a change of one line.
    pub fn text(&self) -> String {
        let string = |text: &str| Value::from(text).to_string();
        let mut text = format!(
            "{{\n\"command\": {},\n\"commit\": {},\n\"date\": {},\n\"machine\": {},\n\"margins\": {},\n\"rows\": [\n",
            string(&self.command),
            string(&self.commit),
            string(&self.date),
            Value::from(self.machine.clone()),
            serde_json::json!(self.margins),
        );
        for (index, row) in self.rows.iter().enumerate() {
            let comma = if index + 1 < self.rows.len() { "," } else { "" };
            let _ = writeln!(text, "{}{comma}", Value::from(row.clone()));
        }
        text + "]\n}\n"
    }

    /// Returns what these results must share with those beside which they stand.
    pub fn origin(&self) -> Origin {
        let fact = |name: &str| self.machine.get(name).and_then(Value::as_str).map(str::to_owned);
        Origin { commit: self.commit.clone(), machine: fact("CPU").zip(fact("kernel")) }
    }

    /// Compares with a repetition: each figure that has a range here with its counterpart.
    pub fn compare(&self, again: &Results) -> Compared {
        let mut compared = Compared::default();
        for row in &self.rows {
            let name = identity(row);
            let Some(other) = again.rows.iter().find(|other| identity(other) == name) else {
                compared.figures += 1;
                compared.outside.push(format!("{name}: not measured again"));
                continue;
            };
            for (key, figure) in other {
                let Some(figure) = figure.as_f64() else { continue };
                let Some((min, max)) = self.range(row, key) else { continue };
                compared.figures += 1;
                if figure < min || figure > max {
                    compared.outside.push(format!("{name}, {key}: {figure}, not within {min:.4} to {max:.4}"));
                }
            }
        }
        compared
    }

    /// Returns the range in which a repetition of a figure lies: that of its runs with the margin
    /// on both sides. `None` if the figure has no runs.
    pub(crate) fn range(&self, row: &Map<String, Value>, key: &str) -> Option<(f64, f64)> {
        let (min, max) = self.runs(row, key)?;
        let least = if self.is_count(key) { COUNTS_REPEAT } else { 0.0 };
        let margin = self.margins.get(key).map_or(least, |margin| margin.max(least));
        Some((min / (1.0 + margin), max * (1.0 + margin)))
    }

    /// Returns true if a figure is no time: instructions of kernels in a simulator, or memory.
    fn is_count(&self, key: &str) -> bool {
        self.machine.contains_key("kernels") || key.ends_with("_kb") || key.ends_with("_bytes_a_gib")
    }

    /// Returns the range of a figure's runs. Of a count only the least is known.
    pub(crate) fn runs(&self, row: &Map<String, Value>, key: &str) -> Option<(f64, f64)> {
        if self.is_count(key) {
            return row.get(key)?.as_f64().map(|count| (count, count));
        }
        let bound = |bound: &str| row.get(bound)?.get(key)?.as_f64().filter(|_| key.ends_with("_ns"));
        bound("min").zip(bound("max"))
    }
}

/// Returns what identifies a row: all fields that describe it instead of a measured figure.
pub(crate) fn identity(row: &Map<String, Value>) -> String {
    const FIELDS: [&str; 18] = [
        "bench",
        "op",
        "mapping",
        "arm",
        "data",
        "written",
        "read",
        "variant",
        "region_kib",
        "order",
        "folio_kib",
        "folio",
        "huge",
        "bytes",
        "threads",
        "space",
        "beside",
        "column",
    ];
    let fields = FIELDS.iter().filter_map(|field| Some(format!("{field}={}", row.get(*field)?)));
    fields.collect::<Vec<_>>().join(" ")
}
