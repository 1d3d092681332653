//! The churn of the C programs does the steps of this crate's.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use vellum_linux::workload::churn::rounds;

/// Returns the text that `steps.c` prints for a region of this many MiB.
fn printed(mib: u64) -> String {
    let mut text = String::new();
    for round in rounds(mib << 20) {
        let _ = writeln!(text, "round {}", round.folio_kib);
        for (space, step) in round.steps {
            let _ = write!(text, "{space} {} {:?}", step.slot, step.act);
            step.pieces.ranges().for_each(|(at, len)| _ = write!(text, " {at}+{len}"));
            text.push('\n');
        }
    }
    text
}

#[test]
fn programs_churn_memory_by_the_same_steps() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("steps");
    let options = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-iquote"];
    let mut cc = Command::new("cc");
    cc.args(options).arg(here.join("../../programs")).arg("-o").arg(&program).arg(here.join("tests/churn/steps.c"));
    assert!(cc.status().unwrap().success());
    for mib in [2, 16, 64, 130] {
        let output = Command::new(&program).arg(mib.to_string()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let (steps, expected) = (String::from_utf8(output.stdout).unwrap(), printed(mib));
        let differing = steps.lines().zip(expected.lines()).find(|(step, expected)| step != expected);
        assert!(steps == expected, "{mib} MiB: {} lines, {differing:?}", steps.lines().count());
    }
}
