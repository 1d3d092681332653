//! Tests that the machine's settings are restored, whatever ends a benchmark.
//!
//! The settings are files in a directory of the test; everything else is the real command.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SIZE: &str = "hugepages-64kB/enabled";

/// A directory like `/sys/kernel/mm/transparent_hugepage`.
struct Settings(tempfile::TempDir);

impl Settings {
    fn new() -> Settings {
        let settings = Settings(tempfile::tempdir().unwrap());
        std::fs::create_dir(settings.path().join("hugepages-64kB")).unwrap();
        for (file, value) in settings.originals() {
            std::fs::write(file, value).unwrap();
        }
        settings
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn originals(&self) -> [(PathBuf, &'static str); 3] {
        [("enabled", "madvise"), ("defrag", "defer"), (SIZE, "inherit")].map(|(f, v)| (self.path().join(f), v))
    }

    fn are_original(&self) -> bool {
        self.originals().iter().all(|(file, value)| std::fs::read_to_string(file).unwrap() == *value)
    }

    fn are_changed(&self) -> bool {
        std::fs::read_to_string(self.path().join(SIZE)).unwrap() == "always"
    }

    /// Starts a benchmark that would run for a very long time.
    fn benchmark(&self, ops: &str) -> Child {
        self.unmap(&["--size=64MiB", "--runs=1000000", "--folios=64", "--ops", ops]).spawn().unwrap()
    }

    fn unmap(&self, args: &[&str]) -> Command {
        self.command("unmap", args)
    }

    fn command(&self, bench: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vellum"));
        command.args(["bench", bench, "--under-load", "--no-huge", "--thp-root"]).arg(self.path()).args(args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        // A shell without job control starts background jobs, and so these tests, with SIGINT and
        // SIGQUIT ignored, which a child inherits. SAFETY: `signal` is async-signal-safe, and the
        // closure touches no memory of the parent.
        unsafe {
            command.pre_exec(|| {
                for number in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                    libc::signal(number, libc::SIG_DFL);
                }
                Ok(())
            })
        };
        command
    }
}

/// A region size that no other swap device on the machine is made for.
const SWAPPED: &str = "--size=66MiB";
const OF_SWAPPED: &str = "135164";

/// Returns whether a swap device for regions of that size is in use.
fn has_swap() -> bool {
    std::fs::read_to_string("/proc/swaps").unwrap().lines().any(|line| line.contains(OF_SWAPPED))
}

/// The length of a file, and the size of its disk, which no other test has.
const ON_DISK: &str = "--size=38MiB";
const OF_DISK: u64 = (2 * 38 + 64) << 20;

fn has_disk() -> bool {
    let is_disk = |device: std::io::Result<std::fs::DirEntry>| {
        let size = std::fs::read_to_string(device.unwrap().path().join("disksize"));
        size.is_ok_and(|size| size.trim() == OF_DISK.to_string())
    };
    std::fs::read_dir("/sys/block").unwrap().any(is_disk)
}

/// Returns why there can be no swap device, if so.
fn no_swap() -> Option<&'static str> {
    let control = Path::new("/sys/class/zram-control/hot_add");
    // SAFETY: reads the effective user.
    match (control.exists(), unsafe { libc::geteuid() }) {
        (false, _) => Some("this kernel has no compressed block devices (zram)"),
        (true, 0) => None,
        (true, _) => Some("needs root, to set up a block device in memory"),
    }
}

/// Runs a benchmark that prints JSON, and returns its rows. The first line is about the machine.
fn rows(mut command: Command) -> Vec<serde_json::Value> {
    let mut child = command.arg("--json=-").stdout(Stdio::piped()).spawn().unwrap();
    let mut out = String::new();
    // The pipe ends when no process holds the other end, children of forks included.
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert!(child.wait().unwrap().success());
    out.lines().skip(1).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns rows of each arm for each of `names`, in the order in which a benchmark prints them.
fn of_each_arm(names: &[(&str, &str)]) -> Vec<(String, String, String)> {
    let arms = ["ascending", "random", "interleaved", "aged"];
    names.iter().flat_map(|(a, b)| arms.map(|arm| ((*a).into(), (*b).into(), arm.into()))).collect()
}

/// Returns the values of two columns and the arm of each row.
fn named(rows: &[serde_json::Value], columns: [&str; 2]) -> Vec<(String, String, String)> {
    let text = |row: &serde_json::Value, column: &str| row[column].as_str().unwrap().to_owned();
    rows.iter().map(|row| (text(row, columns[0]), text(row, columns[1]), text(row, "arm"))).collect()
}

/// Waits until a condition holds that must come about, at any time.
fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never happened: {what}");
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: signals a child that was not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

#[test]
fn a_completed_benchmark_restores_the_settings() {
    let settings = Settings::new();
    let status = settings.unmap(&["--size=64MiB", "--runs=2", "--folios=4,64", "--ops=munmap,exit"]).status().unwrap();
    assert!(status.success());
    assert!(settings.are_original());
}

#[test]
fn fork_is_measured_by_all_contenders_and_leaves_no_child() {
    let settings = Settings::new();
    let rows = rows(settings.command("fork", &["--size=64MiB", "--runs=2", "--folios=4,64"]));
    let arms: Vec<_> = rows.iter().map(|row| row["arm"].as_str().unwrap()).collect();
    assert_eq!(arms, ["ascending", "ascending", "random", "random", "interleaved", "interleaved", "aged", "aged"]);
    for row in rows {
        assert_eq!((&row["bench"], &row["op"]), (&"fork".into(), &"fork".into()));
        for column in ["floor_ns", "vellum_ns", "page_ns", "linux_ns"] {
            assert!(row[column].as_u64().is_some_and(|ns| ns > 0), "{column} in {row}");
        }
    }
    assert!(settings.are_original());
}

#[test]
fn copy_on_write_faults_are_measured_with_and_without_their_fork() {
    let settings = Settings::new();
    let options = ["--size=8MiB", "--runs=1", "--folios=4,64", "--arms=random,aged", "--ops=fork,fork-write"];
    let rows = rows(settings.command("fork", &options));
    let ops: Vec<_> = rows.iter().map(|row| row["op"].as_str().unwrap()).collect();
    assert_eq!(ops, [["fork"; 4], ["fork-write"; 4], ["cow"; 4]].concat());
    let ns = |row: usize, column: &str| rows[row][column].as_u64().unwrap();
    for row in 0..4 {
        for column in ["vellum_ns", "page_ns", "linux_ns"] {
            assert!(ns(row, column) > 0 && ns(8 + row, column) > 0 && ns(4 + row, column) >= ns(8 + row, column));
        }
        assert!(ns(row, "floor_ns") > 0 && rows[4 + row]["floor_ns"].is_null());
    }
    assert!(settings.are_original());
}

#[test]
fn sparse_copy_on_write_faults_have_rows_of_their_own() {
    let settings = Settings::new();
    let options = ["--size=8MiB", "--runs=1", "--folios=4,64", "--arms=random", "--ops=fork-write"];
    let rows = rows(settings.command("fork", &[&options[..], &["--writes=every-page,every-64k,every-2m"]].concat()));
    let names: Vec<_> = rows.iter().map(|row| (row["op"].as_str().unwrap(), row["written"].as_str())).collect();
    let expected = [None, Some("every 64 KiB"), Some("every 2 MiB")]
        .map(|written| [("fork-write", written); 2].into_iter().chain([("cow", written); 2]));
    assert_eq!(names, expected.into_iter().flatten().collect::<Vec<_>>());
    for row in rows.iter().filter(|row| row["written"].is_string()) {
        let writes = if row["written"] == "every 64 KiB" { 128 } else { 4 };
        let bytes = |column: &str| row[column].as_u64().unwrap();
        assert_eq!(bytes("vellum_copied_bytes"), writes << 12, "a fault copies the page that is written: {row}");
        // The directory of the test has the settings of no kernel: Linux may lack folios of 64 KiB.
        if row["linux_ns"].is_u64() {
            assert!(bytes("linux_copied_bytes") >= writes << 12, "{row}");
        }
    }
    assert!(settings.are_original());
}

#[test]
fn sparse_swap_in_has_rows_of_its_own() {
    let settings = Settings::new();
    let options = ["--size=8MiB", "--runs=1", "--folios=4", "--arms=random", "--reads=every-page,every-2m"];
    let rows = rows(settings.command("pageout", &options));
    let names: Vec<_> = rows.iter().map(|row| (row["op"].as_str().unwrap(), row["read"].as_str())).collect();
    let of_data = [("out", None), ("in", None), ("in", Some("every 2 MiB"))];
    assert_eq!(names, [of_data, of_data].concat());
    for row in rows {
        let (vellum, bytes) = (row["vellum_ns"].as_u64(), row["vellum_swapped_in_bytes"].as_u64());
        assert!(vellum.is_some_and(|ns| ns > 0), "{row}");
        assert_eq!(row["floor_ns"].is_null(), row["read"].is_string(), "the floor reads each page: {row}");
        // A fault reads the page of the byte alone: no access has come up to it.
        assert_eq!(bytes, row["read"].is_string().then_some(4 << 12), "{row}");
    }
    assert!(settings.are_original());
}

#[test]
fn mappings_of_files_are_measured_by_all_contenders_that_can() {
    let settings = Settings::new();
    let options = ["--size=8MiB", "--runs=1", "--folios=4,64,2048", "--arms=random", "--mapping=shared,private-file"];
    for (bench, ops, floor) in [("unmap", &["--ops=munmap,exit"][..], true), ("fork", &[], false)] {
        let rows = rows(settings.command(bench, &[&options[..], ops].concat()));
        let names: Vec<_> =
            rows.iter().map(|row| (row["mapping"].as_str().unwrap(), row["folio_kib"].as_u64())).collect();
        assert_eq!(names, ["shared", "private-file"].map(|name| [(name, Some(4)), (name, Some(64))]).concat());
        for row in rows {
            let measured = |column: &str| row[column].as_u64().is_some();
            assert!(measured("vellum_ns") && measured("page_ns") && row.get("fallback").is_none(), "{row}");
            assert_eq!(measured("floor_ns"), floor, "a fork has to copy no PTE of a file: {row}");
            // The directory of the test has no settings for files in memory.
            assert_eq!(measured("linux_ns"), row["folio_kib"] == 4, "{row}");
        }
    }
    assert!(settings.are_original());
}

#[test]
fn small_calls_are_measured_by_all_contenders_but_the_floor() {
    let settings = Settings::new();
    let rows = rows(settings.command("small", &["--size=4MiB", "--runs=1", "--folios=4", "--lengths=4,1024"]));
    let ops: Vec<_> = rows.iter().map(|row| (row["op"].as_str().unwrap(), row["calls"].as_u64().unwrap())).collect();
    let small = [("munmap-small", 1024), ("munmap-small", 4)];
    assert_eq!(ops, [&small[..], &small, &[("munmap-middle", 1), ("munmap-every-second", 32)]].concat());
    for row in rows {
        for column in ["vellum_ns", "page_ns", "linux_ns"] {
            assert!(row[column].as_u64().is_some_and(|ns| ns > 0), "{column} in {row}");
        }
        assert!(row["floor_ns"].is_null());
        assert!(row["vellum_flushes"].as_u64() >= row["calls"].as_u64(), "{row}");
    }
    assert!(settings.are_original());
}

#[test]
fn a_signal_restores_the_settings_before_it_ends_the_process() {
    for (number, ops) in [(libc::SIGINT, "munmap"), (libc::SIGTERM, "exit"), (libc::SIGHUP, "munmap")] {
        let settings = Settings::new();
        let mut child = settings.benchmark(ops);
        until("the settings are changed", || settings.are_changed());
        signal(&child, number);
        let status = child.wait().unwrap();
        assert!(settings.are_original(), "signal {number}: restored by the time the process is gone");
        assert_eq!(status.signal(), Some(number), "and the signal still is what ended it");
    }
}

#[test]
fn sigkill_restores_the_settings() {
    // Killed at a random moment, a different one in each round.
    for ops in ["munmap", "exit", "protect", "dontneed"] {
        let settings = Settings::new();
        let mut child = settings.benchmark(ops);
        until("the settings are changed", || settings.are_changed());
        signal(&child, libc::SIGKILL);
        child.wait().unwrap();
        until("the keeper has restored them", || settings.are_original());
        std::thread::sleep(Duration::from_millis(50));
        assert!(settings.are_original(), "and they are not changed again");
    }
}

#[test]
fn rows_that_need_no_change_are_measured_without_the_right() {
    let settings = Settings::new();
    // A kernel with folios of this size, whose setting is not a writable file.
    std::fs::remove_file(settings.path().join("defrag")).unwrap();
    let options = ["--size=64MiB", "--runs=1", "--folios=4,64", "--ops=munmap", "--arms=random"];
    let rows = rows(settings.unmap(&options));
    assert_eq!(rows.len(), 2);
    assert!(rows[0]["linux_ns"].is_u64() && rows[0].get("skipped").is_none());
    assert!(rows[1]["linux_ns"].is_null() && rows[1]["floor_ns"].is_u64());
    assert!(rows[1]["skipped"]["linux_ns"].as_str().unwrap().contains("defrag"));
}

/// One test, as the machine's swap devices are shared.
#[test]
fn the_swap_device_is_removed_with_the_benchmark() {
    let settings = Settings::new();
    let rows = rows(settings.command("pageout", &[SWAPPED, "--runs=1", "--folios=4"]));
    let names = [("out", "same-filled"), ("in", "same-filled"), ("out", "compressible"), ("in", "compressible")];
    assert_eq!(named(&rows, ["op", "data"]), of_each_arm(&names));
    for row in &rows {
        for column in ["floor_ns", "vellum_ns", "page_ns"] {
            assert!(row[column].as_u64().is_some_and(|ns| ns > 0), "{column} in {row}");
        }
        match no_swap() {
            Some(why) => assert_eq!(row["skipped"]["linux_ns"], why),
            None => assert!(row["linux_ns"].as_u64().is_some_and(|ns| ns > 0), "{row}"),
        }
    }
    assert!(!has_swap());
    if no_swap().is_some() {
        return;
    }
    for number in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
        let mut child = settings.command("pageout", &[SWAPPED, "--runs=1000000", "--folios=4"]).spawn().unwrap();
        until("there is swap", has_swap);
        signal(&child, number);
        assert_eq!(child.wait().unwrap().signal(), Some(number));
        until("there is none", || !has_swap());
    }
    assert!(settings.are_original());
}

#[test]
fn files_are_measured_on_a_disk_that_no_other_process_sees() {
    let mounts = || std::fs::read_to_string("/proc/self/mounts").unwrap();
    let before = mounts();
    let settings = Settings::new();
    let args = ["--size=4MiB", "--runs=1", "--folios=64", "--arms=ascending", "--ops=write,fsync,map-again,pageout"];
    let rows = rows(settings.command("files", &args));
    let ops: Vec<&str> = rows.iter().filter_map(|row| row["op"].as_str()).collect();
    assert_eq!(ops, ["write", "fsync", "map-again", "pageout"]);
    for row in &rows {
        for column in ["floor_ns", "vellum_ns"] {
            assert!(row[column].as_u64().is_some_and(|ns| ns > 0), "{column} in {row}");
        }
        // Without root or mke2fs it is skipped with the reason.
        assert_ne!(row["linux_ns"].is_u64(), row["skipped"]["linux_ns"].is_string(), "{row}");
    }
    assert_eq!(mounts(), before);
    assert!(settings.are_original());
    if rows[0]["linux_ns"].is_null() {
        return;
    }
    assert!(!has_disk());
    for number in [libc::SIGINT, libc::SIGKILL] {
        let args = [ON_DISK, "--runs=1000000", "--folios=64", "--arms=ascending", "--ops=fsync"];
        let mut child = settings.command("files", &args).spawn().unwrap();
        until("there is a disk", has_disk);
        signal(&child, number);
        assert_eq!(child.wait().unwrap().signal(), Some(number));
        until("there is none", || !has_disk());
    }
    assert_eq!(mounts(), before);
}

#[test]
fn lazyfree_memory_is_reclaimed_by_all_contenders() {
    let settings = Settings::new();
    let rows = rows(settings.command("lazyfree", &["--size=40MiB", "--runs=1", "--folios=4"]));
    let names = [("reclaim", "none"), ("reclaim", "every tenth")];
    assert_eq!(named(&rows, ["op", "written"]), of_each_arm(&names));
    for row in &rows {
        for column in ["floor_ns", "vellum_ns", "page_ns"] {
            assert!(row[column].as_u64().is_some_and(|ns| ns > 0), "{column} in {row}");
        }
        // A kernel may reclaim less: then it is skipped with the reason.
        assert_ne!(row["linux_ns"].is_u64(), row.get("skipped").is_some(), "{row}");
    }
    assert!(settings.are_original());
}
