//! Runs experiments, each as often as the plan says, on one commit.
//!
//! Results are kept under `target/figures` until all experiments of the commit have them. So a run
//! that was interrupted or refused goes on where it stopped, and the documents' results are of one
//! commit and machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail, ensure};

use crate::Plan;
use crate::passes::joined;
use crate::plan::{Experiment, of_one_origin, path_of};
use crate::results::{Compared, Results};

/// The result of a measurement.
#[derive(Debug, Default)]
pub struct Measured {
    /// The comparison of a repetition with the documents' ranges.
    pub again: Compared,
    /// The experiments without results of this commit. Unless there are none, the documents'
    /// results are not replaced.
    pub missing: Vec<String>,
}

/// Measures with the program `vellum`, and puts the results in place once all experiments have
/// some.
///
/// Without names, measures what the commit lacks. With names, measures these experiments only, and
/// takes those of the others from the documents' results, if the sources did not change since.
///
/// With `again`, measures once more instead, and changes nothing.
///
/// # Errors
/// The working tree differs from its commit, there is no experiment of a name, an experiment fails,
/// the results are not of one machine, or a file cannot be written.
pub fn measure(root: &Path, vellum: &Path, names: &[String], again: bool) -> anyhow::Result<Measured> {
    let plan = Plan::read(root)?;
    let experiments = plan.named(names)?;
    let shown = shown(root, &plan);
    let commit = commit(root, if names.is_empty() { None } else { shown.values().next() })?;
    let kept = root.join("target/figures").join(if again { format!("{commit}-again") } else { commit.clone() });
    std::fs::create_dir_all(&kept).with_context(|| kept.display().to_string())?;
    let file = |name: &str, pass: u32| kept.join(format!("{name}.{pass}.json"));
    let passes = |experiment: &Experiment| if again { 1 } else { plan.passes(experiment) };
    let read = |name: &str, experiment: &Experiment| -> Option<Vec<_>> {
        (0..passes(experiment)).map(|pass| read_pass(&file(name, pass), experiment)).collect()
    };
    let mut measured = Measured::default();
    // The passes of an experiment lie apart: one may have neighbours on the machine.
    let most = experiments.values().map(|experiment| passes(experiment)).max().unwrap_or(0);
    let of_pass = |pass| experiments.iter().map(move |(name, experiment)| (pass, *name, *experiment));
    let lacks = |&(pass, name, experiment): &(u32, &str, &Experiment)| {
        pass < passes(experiment) && (!names.is_empty() || read_pass(&file(name, pass), experiment).is_none())
    };
    let runs: Vec<_> = (0..most).flat_map(of_pass).filter(lacks).collect();
    let minutes: u32 = runs.iter().filter_map(|(_, _, experiment)| experiment.minutes).sum();
    eprintln!("figures: {} runs, about {minutes} minutes on a machine that does nothing else", runs.len());
    for (number, (pass, name, experiment)) in runs.iter().enumerate() {
        let about = experiment.minutes.map_or(String::new(), |minutes| format!(", about {minutes} minutes"));
        eprintln!("figures: {} of {}, {name}{about}: {}", number + 1, runs.len(), experiment.command());
        let began = Instant::now();
        let results = run(root, vellum, experiment, &commit)
            .with_context(|| format!("{name} (run ./x figures again: it goes on here)"))?;
        eprintln!("figures: {name} took {:.1} minutes", began.elapsed().as_secs_f64() / 60.0);
        replace(&file(name, *pass), &results.text())?;
    }
    if again {
        for (name, experiment) in plan.named(names)? {
            let results = read(name, experiment).and_then(|passes| joined(&passes));
            let results = results.with_context(|| format!("{name}: no results"))?;
            let compared = Results::read(&path_of(root, name))?.compare(&results);
            measured.again.figures += compared.figures;
            measured.again.outside.extend(compared.outside.into_iter().map(|line| format!("{name}: {line}")));
        }
        return Ok(measured);
    }
    let (mut all, mut parts) = (BTreeMap::new(), BTreeMap::new());
    for (name, experiment) in &plan.experiment {
        let known = || Some(vec![shown.get(name).filter(|results| results.commit == commit)?.clone()]);
        let passes = read(name, experiment).or_else(known).unwrap_or_default();
        match joined(&passes) {
            Some(results) => _ = all.insert(name.clone(), results),
            None => measured.missing.push(name.clone()),
        }
        parts.extend((0..).zip(passes).map(|(pass, results)| (format!("{name}.{pass}"), results)));
    }
    of_one_origin(&parts)?;
    if measured.missing.is_empty() {
        for (name, results) in &all {
            replace(&path_of(root, name), &results.text())?;
        }
    }
    Ok(measured)
}

/// Returns the results of a pass, if it was run, by the same command.
fn read_pass(file: &Path, experiment: &Experiment) -> Option<Results> {
    Results::read(file).ok().filter(|results| results.command == experiment.command())
}

/// Returns the documents' results of the experiments whose command is still the same.
fn shown(root: &Path, plan: &Plan) -> BTreeMap<String, Results> {
    let results = plan.experiment.iter().filter_map(|(name, experiment)| {
        let results = Results::read(&path_of(root, name)).ok()?;
        (results.command == experiment.command()).then(|| (name.clone(), results))
    });
    results.collect()
}

/// All that a figure depends on. Pages and results are what the measurement changes.
const SOURCES: [&str; 4] = ["--", ".", ":!docs", ":!*.md"];

/// Returns the commit, of which the sources must not differ: that of `earlier` results, if the
/// sources did not change since.
fn commit(root: &Path, earlier: Option<&Results>) -> anyhow::Result<String> {
    let changes = git(root, &[&["status", "--porcelain"], &SOURCES[..]].concat())?;
    ensure!(changes.is_empty(), "the sources differ from the commit, so no commit has these figures:\n{changes}");
    if let Some(Results { commit, .. }) = earlier
        && git(root, &[&["diff", "--quiet", commit, "HEAD"], &SOURCES[..]].concat()).is_ok()
    {
        return Ok(commit.clone());
    }
    git(root, &["rev-parse", "HEAD"])
}

fn git(root: &Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("git").current_dir(root).args(arguments).output().context("git")?;
    ensure!(output.status.success(), "git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Runs an experiment. Its table goes to the terminal.
fn run(root: &Path, vellum: &Path, experiment: &Experiment, commit: &str) -> anyhow::Result<Results> {
    let folder = tempfile::tempdir()?;
    let json = folder.path().join("rows.json");
    let path = json.to_str().context("the path of a temporary file is no UTF-8")?;
    let mut command = Command::new(vellum);
    // `compare` reads its standard input to the end.
    command.current_dir(root).args(experiment.arguments(path)).stdin(Stdio::null());
    let status = command.status().with_context(|| vellum.display().to_string())?;
    if !status.success() {
        bail!("`{}` failed: {status}", experiment.command());
    }
    let day = Command::new("date").args(["-u", "+%Y-%m-%d"]).output().context("date")?;
    let date = String::from_utf8(day.stdout)?.trim().to_owned();
    Results::of_lines(&std::fs::read_to_string(&json)?, experiment.command(), commit.to_owned(), date)
}

/// Writes a file such that it has either its old contents or all of the new.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let new: PathBuf = path.with_extension("new");
    std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path)).with_context(|| path.display().to_string())
}
