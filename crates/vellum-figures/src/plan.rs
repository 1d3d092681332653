//! The plan: which experiments there are, and which tables are made of their results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

use crate::aims::Aim;
use crate::prose::Statement;
use crate::{FOLDER, Results};

/// The contents of `figures.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// How often each experiment that measures times is run; the others repeat.
    #[serde(default = "once")]
    passes: u32,
    /// The experiments, by name.
    pub experiment: BTreeMap<String, Experiment>,
    /// The tables, by name.
    pub table: BTreeMap<String, TableSpec>,
    /// The tables of aims, by name.
    #[serde(default)]
    pub aims: BTreeMap<String, Vec<Aim>>,
    /// The statements with figures in the prose of the pages.
    #[serde(default)]
    pub prose: Vec<Statement>,
}

/// A command that measures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The arguments of `vellum`, separated by spaces. It is given `--json FILE` too, before `--`.
    pub run: String,
    /// The minutes that one pass took on the machine of the documents' figures.
    pub minutes: Option<u32>,
}

/// The rows and columns of a table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSpec {
    /// Which rows of which experiments: each entry is the name of an experiment, then conditions
    /// `field=value`, or `field=value,value`. After a colon follows a label, which the column
    /// `label` shows.
    pub rows: Vec<String>,
    /// The columns: `header = [field=value …] what`, or `what` alone, which is the header too.
    pub columns: Vec<String>,
}

fn once() -> u32 {
    1
}

impl Plan {
    /// Returns how often an experiment is run.
    pub(crate) fn passes(&self, experiment: &Experiment) -> u32 {
        if experiment.boots().is_some() { 1 } else { self.passes }
    }

    /// Reads the plan of a repository.
    ///
    /// # Errors
    /// The file cannot be read, or is not a plan.
    pub fn read(root: &Path) -> anyhow::Result<Plan> {
        let path = root.join(FOLDER).join("figures.toml");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Reads the results of all experiments.
    ///
    /// # Errors
    /// An experiment has no results, or they are not readable, or two experiments were measured on
    /// different commits or machines.
    pub fn results(&self, root: &Path) -> anyhow::Result<BTreeMap<String, Results>> {
        let mut all = BTreeMap::new();
        for (name, experiment) in &self.experiment {
            let path = path_of(root, name);
            let results = Results::read(&path)?;
            anyhow::ensure!(
                results.command == experiment.command(),
                "{}: measured by `{}`, but the plan says `{}`: run ./x figures",
                path.display(),
                results.command,
                experiment.command()
            );
            all.insert(name.clone(), results);
        }
        of_one_origin(&all)?;
        Ok(all)
    }

    /// Returns the experiments of these names, or all of them if there are no names.
    ///
    /// # Errors
    /// There is no experiment of a name.
    pub fn named(&self, names: &[String]) -> anyhow::Result<BTreeMap<&str, &Experiment>> {
        if names.is_empty() {
            return Ok(self.experiment.iter().map(|(name, experiment)| (name.as_str(), experiment)).collect());
        }
        let known = || self.experiment.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let one = |name| {
            let found = self.experiment.get_key_value(name);
            let (name, experiment) = found.with_context(|| format!("no experiment {name:?}: there are {}", known()))?;
            Ok((name.as_str(), experiment))
        };
        names.iter().map(one).collect()
    }
}

/// Returns the path of the results of an experiment that the documents show.
pub(crate) fn path_of(root: &Path, name: &str) -> PathBuf {
    root.join(FOLDER).join(format!("{name}.json"))
}

/// Checks that results may stand beside each other.
///
/// # Errors
/// Two of them were measured on different commits or machines.
pub(crate) fn of_one_origin(all: &BTreeMap<String, Results>) -> anyhow::Result<()> {
    // Results without a machine agree with those of any machine, so each pair is compared.
    let origins: Vec<_> = all.values().map(Results::origin).collect();
    for (n, first) in origins.iter().enumerate() {
        if let Some(other) = origins[n + 1..].iter().find(|other| !other.agrees(first)) {
            anyhow::bail!("the results are not of one run: {first} and {other}. Run ./x figures, which measures all.");
        }
    }
    Ok(())
}

impl Experiment {
    /// Returns the command as a reader would type it.
    pub fn command(&self) -> String {
        format!("vellum {}", self.run)
    }

    /// Returns the arguments of `vellum` that write the rows to a file, too. What follows `--` are
    /// the arguments of another program.
    pub(crate) fn arguments<'a>(&'a self, json: &'a str) -> Vec<&'a str> {
        let mut words: Vec<&str> = self.run.split_whitespace().collect();
        let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
        words.splice(end..end, ["--json", json]);
        words
    }

    /// Returns the architecture of the kernels that the experiment boots, if it boots any.
    pub fn boots(&self) -> Option<&str> {
        let mut words = self.run.split_whitespace();
        if words.next() != Some("compare") {
            return None;
        }
        Some(words.skip_while(|word| *word != "--arch").nth(1).unwrap_or("x86_64"))
    }
}
