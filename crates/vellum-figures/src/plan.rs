//! The plan: which experiments there are, and which tables are made of their results.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

use crate::{FOLDER, Results};

/// The contents of `figures.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The experiments, by name.
    pub experiment: BTreeMap<String, Experiment>,
    /// The tables, by name.
    pub table: BTreeMap<String, TableSpec>,
}

/// A command that measures.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The arguments of `vellum`, separated by spaces. It is given `--json FILE` too.
    pub run: String,
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

impl Plan {
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
            let path = root.join(FOLDER).join(format!("{name}.json"));
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
        let mut origins = all.values().map(Results::origin);
        if let Some(first) = origins.next()
            && let Some(other) = origins.find(|other| !other.agrees(&first))
        {
            anyhow::bail!(
                "the results in {FOLDER} are not of one run: {first} and {other}. Run ./x figures, which measures all."
            );
        }
        Ok(all)
    }
}

impl Experiment {
    /// Returns the command as a reader would type it.
    pub fn command(&self) -> String {
        format!("vellum {}", self.run)
    }
}
