//! Tests the subcommand `vellum inspect`.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn vellum(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vellum")).arg("inspect").args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_reported_counts_add_up() {
    let mut sleeper = Command::new("sleep").arg("100").stdin(Stdio::null()).spawn().unwrap();
    let pid = sleeper.id().to_string();
    let output = loop {
        let output = vellum(&["--json", "-", &pid]);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        // Wait until the process sleeps.
        if json["processes"][0]["name"] == "sleep" && json["processes"][0]["changed_meanwhile"] == false {
            break json["processes"][0].clone();
        }
    };
    let count = |key: &str| output[key].as_u64().unwrap_or_else(|| panic!("{key} in {output}"));
    let used: u64 = output["tables_used"].as_array().unwrap().iter().map(|level| level.as_u64().unwrap()).sum();
    let all = count("page_tables") / count("table_size");
    assert_eq!(all as i64, (used + count("tables_deposited")) as i64 + output["tables_needless"].as_i64().unwrap());
    let vmas = output["areas"].as_array().unwrap();
    let sum: u64 = vmas.iter().map(|vma| vma["tables_used"].as_u64().unwrap()).sum();
    assert_eq!(sum, output["tables_used"][0].as_u64().unwrap());
    for words in
        [&["--map", "--locate", &pid][..], &["--only-read", &pid], &["--sample", "5%", &pid], &["--children", &pid]]
    {
        let output = vellum(words);
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
        assert!(text(&output.stdout).contains("sleep"), "{words:?}");
    }
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let output = vellum(&[&pid]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stderr), format!("vellum: there is no process {pid}\n"));
}

/// Checks that page tables read from kernel memory are those that Linux counts and the scan finds;
/// or that the reason is printed why they can't be read.
#[test]
fn located_tables_are_those_that_linux_counts() {
    let mut sleeper = Command::new("sleep").arg("100").stdin(Stdio::null()).spawn().unwrap();
    let pid = sleeper.id().to_string();
    let process = loop {
        let json: Value = serde_json::from_slice(&vellum(&["--locate", "--json", "-", &pid]).stdout).unwrap();
        let process = &json["processes"][0];
        // Wait until the process sleeps.
        if process["name"] == "sleep" && process["changed_meanwhile"] == false {
            break process.clone();
        }
    };
    let shown = text(&vellum(&["--locate", &pid]).stdout);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let exact = &process["exact"];
    if exact.is_null() {
        let why = process["exact_refused"].as_str().unwrap();
        assert!(shown.contains("NOTE") && shown.contains("were not read"), "{shown}");
        return println!("NOT TESTED: {why}");
    }
    let tables: u64 = exact["tables"].as_array().unwrap().iter().take(3).map(|level| level.as_u64().unwrap()).sum();
    assert_eq!(tables * 4096, process["page_tables"].as_u64().unwrap());
    assert_eq!((&exact["counted"], &exact["deposited"]), (&tables.into(), &0.into()));
    assert_eq!((&exact["scan"]["empty_missed"], &exact["scan"]["empty_wrong"]), (&0.into(), &0.into()));
    assert!(shown.contains("(read by BPF: exact)") && shown.contains("The scan agrees"), "{shown}");
}

#[test]
fn invalid_arguments_are_refused() {
    for (words, say) in [
        (&["--sample", "300%", "1"][..], "a share must be more than 0"),
        (&["--cgroup", "no/such/group"], "there is no cgroup no/such/group"),
        (&["--tlb", "no-such-file", "1"], "can't read no-such-file"),
        (&["--diff", "no-such-file", "nor-this"], "can't read no-such-file"),
        (&[], "Usage: vellum inspect"),
    ] {
        let output = vellum(words);
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(say), "{words:?}: {}", text(&output.stderr));
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let command = format!("{} inspect --all --top 100000 | head -n 1", env!("CARGO_BIN_EXE_vellum"));
    let output = Command::new("sh").args(["-c", &command]).output().unwrap();
    assert!(
        !text(&output.stderr).contains("panic") && !text(&output.stderr).contains("Broken"),
        "{}",
        text(&output.stderr)
    );
}

/// Checks that both copies have the process's memory, and that each operation has a figure or a
/// reason.
#[test]
fn the_estimate_measures_complete_copies() {
    // This process has enough memory for an incomplete copy to be noticed.
    let held = std::hint::black_box(vec![1u8; 16 << 20]);
    let pid = std::process::id().to_string();
    let words = ["--estimate", "--estimate-runs", "1", "--estimate-folios", "64", "--json", "-", &pid];
    let output = vellum(&words);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    drop(std::hint::black_box(held));
    let estimate = &json["processes"][0]["estimate"];
    assert_eq!(estimate["share"], 1.0);
    let columns = estimate["folios"].as_array().unwrap();
    assert!(columns[0]["folio_kib"].is_null(), "first as it is");
    assert_eq!(columns.len(), 2);
    for column in columns {
        let memory = column["memory"].as_u64().unwrap();
        let costs = column["costs"].as_array().unwrap();
        let what: Vec<&str> = costs.iter().map(|cost| cost["what"].as_str().unwrap()).collect();
        assert_eq!(what, ["exit", "munmap", "fork", "out", "reclaim"]);
        for cost in costs {
            for side in ["linux", "vellum"] {
                let side = &cost[side];
                assert!(side["ns"][0].as_u64().is_some() || side["why_not"].as_str().is_some(), "{cost}");
            }
            assert_eq!(cost["vellum"]["resident"], memory, "{} {cost}", column["folio_kib"]);
            // Linux counts in batches, and a file fault maps resident pages around it
            // (fault-around).
            let linux = cost["linux"]["resident"].as_u64();
            assert!(linux.is_none_or(|linux| linux.abs_diff(memory) < 1 << 20), "{cost}");
        }
    }
}
