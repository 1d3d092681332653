//! Surveys real programs: all page tables that Linux counts are accounted for once the program is
//! idle.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use vellum_pagemap::{Kernel, Options, Pace, Pagemap, Survey, Target, survey};

/// A running program, killed when dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    /// Starts a program with these arguments. `input` goes to its standard input, which stays open.
    fn new(name: &str, words: &[&str], input: &str) -> Program {
        let command = Command::new(name).args(words).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut program = Program(command.unwrap_or_else(|error| panic!("{name} is needed here: {error}")));
        program.0.stdin.as_mut().unwrap().write_all(input.as_bytes()).unwrap();
        program
    }

    /// Returns the survey once the program's memory no longer changes.
    fn survey(&self) -> Survey {
        let target = Target::open(self.0.id() as i32).unwrap();
        let mut before = None;
        loop {
            sleep(Duration::from_millis(300));
            let mut pace = Pace::new(Duration::from_millis(1));
            let options = Options { detection: Kernel::probe(&mut pace).unwrap().detection, sample: None };
            let mut pagemap = Pagemap::open(&target.process).unwrap();
            let survey = survey(&target, &mut pagemap, &mut pace, &options, &mut ()).unwrap();
            if before.replace(survey.after) == Some(survey.before) && !survey.changed() && survey.tables.used[0] > 10 {
                return survey;
            }
        }
    }
}

/// Asserts that the page tables that Linux counts are those that the survey found.
fn is_accounted_for(survey: &Survey) {
    let found =
        survey.tables.empty.expect("this kernel reports empty page tables") + survey.tables.leading_nowhere().unwrap();
    assert_eq!(survey.empty(), found as i64, "{:?} of {:?}", survey.tables, survey.after);
}

#[test]
#[ignore = "needs python3, which ./x test installs"]
fn python() {
    let text = "import mmap, sys\nkept = [bytearray(3000) for _ in range(60000)]\ndel kept[::2]\nblock = mmap.mmap(-1, \
                64 << 20)\nfor i in range(0, 64 << 20, 4096): block[i] = 1\nfor i in range(0, 64 << 20, 1 << 20): \
                block.madvise(mmap.MADV_DONTNEED, i, 1 << 20) if i % (6 << 20) else None\nsys.stdin.read()\n";
    let python = Program::new("python3", &["-c", text], "");
    is_accounted_for(&python.survey());
}

#[test]
#[ignore = "needs sqlite3, which ./x test installs"]
fn sqlite() {
    let text = "create table t(x);\nwith recursive n(i) as (select 1 union all select i + 1 from n where i < 200000) \
                insert into t select randomblob(200) from n;\ndelete from t where rowid % 3;\nselect count(*) from \
                t;\n";
    let sqlite = Program::new("sqlite3", &[":memory:"], text);
    is_accounted_for(&sqlite.survey());
}

/// jemalloc returns unused memory, but no page table.
#[test]
#[ignore = "needs redis, which ./x test installs"]
fn redis_after_a_purge() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let socket = socket.to_str().unwrap();
    let redis = Program::new("redis-server", &["--port", "0", "--unixsocket", socket, "--save", ""], "");
    let send = |words: &[&str]| {
        let command =
            || Command::new("redis-cli").args(["-s", socket]).args(words).output().expect("redis-cli is needed here");
        // The server takes a while to start.
        while !command().status.success() {
            sleep(Duration::from_millis(20));
        }
    };
    send(&["ping"]);
    send(&["eval", "for i = 1, 300000 do redis.call('set', 'key' .. i, string.rep('x', 200)) end", "0"]);
    let full = redis.survey();
    is_accounted_for(&full);
    assert_eq!(full.tables.empty, Some(0));
    send(&["flushall"]);
    send(&["memory", "purge"]);
    let purged = redis.survey();
    is_accounted_for(&purged);
    assert!(purged.tables.empty > Some(0), "{:?}", purged.tables);
}
