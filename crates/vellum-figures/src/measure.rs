//! Runs the experiments, each once, on one commit.
//!
//! Results are kept under `target/figures` until all experiments of the commit have them. So a run
//! that was interrupted or refused goes on where it stopped, and the documents' results are of one
//! run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::plan::Experiment;
use crate::{FOLDER, Plan, Results};

/// Measures what the commit lacks, with the program `vellum`, and puts all results in place.
///
/// With `again`, measures everything once more instead, changes nothing, and returns a line for
/// each figure that lies outside the range that the documents have for it.
///
/// # Errors
/// The working tree differs from its commit, an experiment fails, or a file cannot be written.
pub fn measure(root: &Path, vellum: &Path, again: bool) -> anyhow::Result<Vec<String>> {
    let plan = Plan::read(root)?;
    let commit = commit(root)?;
    let kept = root.join("target/figures").join(if again { format!("{commit}-again") } else { commit.clone() });
    std::fs::create_dir_all(&kept).with_context(|| kept.display().to_string())?;
    let mut lines = Vec::new();
    let count = plan.experiment.len();
    for (number, (name, experiment)) in plan.experiment.iter().enumerate() {
        let path = kept.join(format!("{name}.json"));
        let results = match Results::read(&path).ok().filter(|results| results.command == experiment.command()) {
            Some(results) => results,
            None => {
                eprintln!("figures: {} of {count}, {name}: {}", number + 1, experiment.command());
                let results = run(root, vellum, experiment, &commit)
                    .with_context(|| format!("{name} (run ./x figures again: it goes on here)"))?;
                replace(&path, &results.text())?;
                results
            }
        };
        if again {
            let path = root.join(FOLDER).join(format!("{name}.json"));
            lines.extend(Results::read(&path)?.outside(&results).into_iter().map(|line| format!("{name}: {line}")));
        }
    }
    if !again {
        for name in plan.experiment.keys() {
            let file = format!("{name}.json");
            replace(&root.join(FOLDER).join(&file), &std::fs::read_to_string(kept.join(&file))?)?;
        }
    }
    Ok(lines)
}

/// Returns the commit, of which the sources must not differ. Pages and results may: they are what
/// the measurement changes.
fn commit(root: &Path) -> anyhow::Result<String> {
    let changes = git(root, &["status", "--porcelain", "--", ".", ":!docs", ":!*.md"])?;
    ensure!(changes.is_empty(), "the sources differ from the commit, so no commit has these figures:\n{changes}");
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
    let mut command = Command::new(vellum);
    command.current_dir(root).args(experiment.run.split_whitespace()).arg("--json").arg(&json);
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
