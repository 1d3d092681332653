//! Experiments are measured on one commit, all of them or some.

use std::path::{Path, PathBuf};
use std::process::Command;

use vellum_figures::measure;

/// A repository with two experiments, and a program that measures in it.
struct Repository {
    folder: tempfile::TempDir,
}

impl Repository {
    fn new() -> Repository {
        let repository = Repository { folder: tempfile::tempdir().unwrap() };
        repository.write(
            "docs/figures/figures.toml",
            "passes = 2\n[experiment]\na.run = \"bench a\"\nb.run = \"compare --arch aarch64 -- program\"\n\
             b.minutes = 2\n[table]\n",
        );
        repository.write("source", "one");
        repository.write(".gitignore", "/target\n/vellum\n/calls\n");
        // Writes its arguments to `calls`, and a row to the file behind `--json`.
        repository.write(
            "vellum",
            "#!/bin/sh\necho \"$*\" | sed 's/--json [^ ]*/--json FILE/' >>calls\n\
             while [ \"$1\" != --json ]; do shift; done\n\
             time=$(wc -l <calls)\n\
             printf '{\"machine\":{\"CPU\":\"c\",\"kernel\":\"k\"}}\\n{\"op\":\"o\",\"a_ns\":%s0,\"floor_ns\":%s0,\
             \"min\":{\"a_ns\":%s},\"max\":{\"a_ns\":%s00},\"fallback\":{\"a_ns\":0.%s}}\\n' \
             $time $time $time $time $time >\"$2\"\n",
        );
        let status = Command::new("chmod").arg("+x").arg(repository.path("vellum")).status().unwrap();
        assert!(status.success());
        repository.git(&["init", "--quiet"]);
        repository.commit();
        repository
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn git(&self, arguments: &[&str]) -> String {
        let identity = ["-c", "user.name=n", "-c", "user.email=e"];
        let output =
            Command::new("git").current_dir(self.folder.path()).args(identity).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn commit(&self) -> String {
        self.git(&["add", "."]);
        self.git(&["commit", "--quiet", "-m", "m"]);
        self.git(&["rev-parse", "HEAD"])
    }

    /// Measures, and returns the experiments whose results are missing.
    fn measure(&self, names: &[&str]) -> anyhow::Result<Vec<String>> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Ok(measure(self.folder.path(), &self.path("vellum"), &names, false)?.missing)
    }

    /// Returns the commands that were run, and forgets them.
    fn calls(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        let _ = std::fs::remove_file(self.path("calls"));
        text.lines().map(str::to_owned).collect()
    }

    /// Returns the commits of the documents' results.
    fn shown(&self) -> Vec<String> {
        let results = |name: &str| vellum_figures::Results::read(Path::new(&self.path(name)));
        ["docs/figures/a.json", "docs/figures/b.json"]
            .iter()
            .filter_map(|name| Some(results(name).ok()?.commit))
            .collect()
    }
}

const A: &str = "bench a --json FILE";
const B: &str = "compare --arch aarch64 --json FILE -- program";

#[test]
fn the_documents_change_once_every_experiment_is_measured() {
    let repository = Repository::new();
    assert_eq!(repository.measure(&["a"]).unwrap(), ["b"]);
    assert!(repository.shown().is_empty());
    assert!(repository.measure(&[]).unwrap().is_empty());
    // The first call of a was before.
    assert_eq!(repository.calls(), [A, A, B]);
    assert_eq!(repository.shown().len(), 2);
    // A named experiment is measured again.
    assert!(repository.measure(&["b"]).unwrap().is_empty());
    assert_eq!(repository.calls(), [B]);
}

#[test]
fn times_are_of_all_passes() {
    let repository = Repository::new();
    repository.measure(&[]).unwrap();
    assert_eq!(repository.calls(), [A, B, A]);
    let results = vellum_figures::Results::read(&repository.path("docs/figures/a.json")).unwrap();
    let row = serde_json::Value::from(results.rows[0].clone());
    let expected = serde_json::json!({
        "op": "o", "a_ns": 20, "floor_ns": 10, "min": { "a_ns": 1 }, "max": { "a_ns": 300 },
        "fallback": { "a_ns": 0.2 }, "passes": { "a_ns": [10, 30], "floor_ns": [10, 30] },
    });
    assert_eq!(row, expected, "of the first call and the third");
    // The runs of the passes were 1 to 100 and 3 to 300; their figures, 10 and 30, lie within.
    assert_eq!(results.margins["a_ns"], 0.0);
}

#[test]
fn the_longest_time_is_that_of_all_passes() {
    let repository = Repository::new();
    let program = std::fs::read_to_string(repository.path("vellum")).unwrap();
    repository.write("vellum", &program.replace("a_ns", "max_ns"));
    repository.measure(&[]).unwrap();
    let results = vellum_figures::Results::read(&repository.path("docs/figures/a.json")).unwrap();
    assert_eq!(results.rows[0]["max_ns"], 30, "of 10 and 30");
}

#[test]
fn the_margin_is_what_each_pass_needs_beside_the_others() {
    let repository = Repository::new();
    let program = std::fs::read_to_string(repository.path("vellum")).unwrap();
    let program = program.replace("\"a_ns\":%s", "\"a_ns\":1%s");
    let narrow = program.replace("\"min\":{\"a_ns\":1%s}", "\"min\":{\"a_ns\":1%s0}");
    repository.write("vellum", &narrow.replace("\"max\":{\"a_ns\":1%s00}", "\"max\":{\"a_ns\":1%s8}"));
    repository.measure(&[]).unwrap();
    let results = vellum_figures::Results::read(&repository.path("docs/figures/a.json")).unwrap();
    // 110 of runs of 110 to 118, and 130 of runs of 130 to 138: the first needs 130 / 110 - 1, the
    // second 130 / 118 - 1.
    assert_eq!(results.margins["a_ns"], 0.182);
}

#[test]
fn a_named_experiment_joins_results_of_the_same_sources() {
    let repository = Repository::new();
    let first = repository.git(&["rev-parse", "HEAD"]);
    repository.measure(&[]).unwrap();
    repository.write("docs/page.md", "new");
    repository.commit();
    std::fs::remove_dir_all(repository.path("target")).unwrap();
    assert!(repository.measure(&["a"]).unwrap().is_empty());
    assert_eq!(repository.shown(), [first.clone(), first.clone()]);
    repository.write("source", "two");
    assert!(repository.measure(&["a"]).is_err(), "the sources differ from the commit");
    let second = repository.commit();
    assert_eq!(repository.measure(&["a"]).unwrap(), ["b"]);
    assert_eq!(repository.shown(), [first.clone(), first]);
    repository.measure(&[]).unwrap();
    assert_eq!(repository.shown(), [second.clone(), second]);
}

#[test]
fn an_unknown_experiment_is_an_error() {
    let error = Repository::new().measure(&["c"]).unwrap_err().to_string();
    assert!(error.contains("\"c\"") && error.contains("a, b"), "{error}");
}
