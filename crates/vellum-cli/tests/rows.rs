//! Tests that benchmarks without regions as contenders print a row for each of their measurements.

use std::process::Command;

/// Runs a benchmark and returns its rows. The first line is about the machine.
fn rows(args: &[&str]) -> Vec<serde_json::Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vellum"));
    let output = command.arg("bench").args(args).args(["--under-load", "--json=-"]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn entries_to_linux_have_costs_and_operations_have_counts() {
    let rows = rows(&["entry", "--size=8MiB", "--runs=1", "--rounds=1", "--folios=64", "--no-huge"]);
    let ops: Vec<_> = rows.iter().map(|row| row["op"].as_str().unwrap()).collect();
    let costs = ["call", "munmap-empty", "exception", "flush", "ipi"];
    assert_eq!(ops[..5], costs);
    assert_eq!(ops[5..], ["munmap", "dontneed", "exit", "protect", "fork", "cow", "out", "in", "touch"]);
    for row in &rows[..3] {
        assert!(row["linux_ns"].as_u64().is_some_and(|ns| ns > 0), "{row}");
    }
    for row in &rows[5..] {
        assert!(row["vellum_ns"].as_u64().is_some_and(|ns| ns > 0), "{row}");
        assert!(row["added_ns"].as_u64().is_some_and(|ns| ns > 0), "{row}");
        assert_eq!(row["calls"], u64::from(!["cow", "in", "touch"].contains(&row["op"].as_str().unwrap())), "{row}");
    }
    assert_eq!(rows[13]["exceptions"], (8 << 20) / (64 << 10), "an exception for each folio: {}", rows[13]);
    // In each of four page tables: the pages of the first folio, and the other folios.
    assert_eq!(rows[10]["exceptions"], 4 * (16 + 31), "{}", rows[10]);
}

#[test]
fn memory_has_a_row_for_each_way_to_map() {
    let rows = rows(&["memory", "--size=8MiB", "--folios=4", "--thp-root=/nonexistent"]);
    let huge: Vec<_> = rows.iter().map(|row| row["huge"].as_bool().unwrap()).collect();
    assert_eq!(huge, [false, true]);
    let of = |row: usize, key: &str| rows[row][key].as_u64();
    assert!(of(0, "vellum_bytes_a_gib") > of(1, "vellum_bytes_a_gib"), "page tables of base pages: {rows:?}");
    assert_eq!(of(0, "vellum_descriptors_bytes_a_gib"), Some(32 << 18));
    assert!(rows[1]["skipped"]["linux_bytes_a_gib"].is_string(), "without settings no huge pages: {rows:?}");
    // Older kernels do not count their descriptors.
    if rows[0].get("skipped").is_none() {
        assert!(of(0, "linux_tables_bytes_a_gib") >= Some(2 << 20), "{rows:?}");
    }
}

#[test]
fn tails_have_a_row_for_each_contender_with_and_without_reclaim() {
    let rows = rows(&["tails", "--samples=50", "--runs=1"]);
    let text = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap().to_owned();
    let names: Vec<_> =
        rows.iter().map(|row| format!("{} {} {}", text(row, "op"), text(row, "beside"), text(row, "column"))).collect();
    let expected = ["fault", "munmap", "fork", "bare-fork"]
        .iter()
        .flat_map(|op| ["nothing", "reclaim"].map(|beside| (op, beside)))
        .flat_map(|(op, beside)| ["vellum", "linux"].map(|column| format!("{op} {beside} {column}")));
    assert_eq!(names, expected.collect::<Vec<_>>());
    for row in rows.iter().filter(|row| row.get("skipped").is_none()) {
        assert_eq!(row["samples"], 50, "{row}");
        assert_eq!(row["reclaimed"].as_u64() > Some(0), text(row, "beside") == "reclaim", "{row}");
    }
    // Linux needs root and zram, and both contenders two CPUs.
    if vellum_linux::cpu::allowed_cpus().len() > 1 {
        assert!(rows.iter().all(|row| text(row, "column") == "linux" || row.get("skipped").is_none()), "{rows:?}");
    }
}
