//! Helper processes: this program, started again by the benchmark.
//!
//! They are started afresh rather than forked. A fork copies the benchmark's page tables, and then
//! each write of another contender to its own memory is a fault; a fresh process has nothing but
//! what it maps itself.

pub mod copy;
pub mod exit;
pub mod fork;
pub mod held;
pub mod lazy;
pub mod spans;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::Skip;
use crate::settings::{keeper, lent};

/// What a helper does.
#[derive(clap::Subcommand)]
pub enum Role {
    /// Put settings back when standard input ends.
    Keeper,
    /// Make something, say so, and remove it when standard input ends.
    Lent {
        /// What.
        #[command(subcommand)]
        thing: lent::Thing,
    },
    /// Map and touch a region, say so, wait for a byte, and exit.
    Exit(exit::Args),
    /// Map and touch a region, say so, wait for a byte, fork, and say how long it took.
    Fork(held::Args),
    /// Map and touch a region in a group, say so, wait for a byte, have it reclaimed, and say how
    /// long it took.
    Reclaim(lazy::Args),
    /// Touch and discard a span, and count the page tables.
    Tables(spans::Args),
    /// Have mapped what another process has, and do something to it.
    Copy(copy::Args),
}

/// What a helper says, a line of JSON each.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The region is touched; what comes next can be timed.
    Touched {
        /// Nanoseconds of the touch.
        ns: u64,
        /// Share of the region that is not mapped as asked, 0 to 1.
        fallback: f64,
    },
    /// What it was to do is done.
    Took {
        /// Nanoseconds of it.
        ns: u64,
    },
    /// What was asked for is there.
    Lent,
    /// It is about to touch memory that is to be in folios of this size.
    Wants {
        /// In KiB.
        folio_kib: u32,
    },
    /// The copy is there; what comes next can be timed.
    Copied {
        /// Bytes of it that are in memory.
        resident: u64,
        /// Bytes of its page tables.
        tables: u64,
    },
    /// Part of the span that is done, 0 to 1.
    Progress(f64),
    /// Page tables of the process.
    Tables(spans::PageTables),
}

/// Runs a helper. Its errors go to standard error, which the benchmark reads.
pub fn run(role: Role) -> anyhow::Result<()> {
    match role {
        Role::Keeper => keeper::keep(std::io::stdin().lock()),
        Role::Lent { thing } => lent::lend(&thing),
        Role::Exit(args) => {
            die_with_parent()?;
            exit::exit(&args)
        }
        Role::Fork(args) => {
            die_with_parent()?;
            fork::fork(&args)
        }
        Role::Reclaim(args) => {
            die_with_parent()?;
            lazy::reclaim(&args)
        }
        Role::Tables(args) => {
            die_with_parent()?;
            spans::count(&args)
        }
        Role::Copy(args) => {
            die_with_parent()?;
            copy::live(&args)
        }
    }
}

/// From now on, what ends a benchmark does not end this process. A service manager that stops the
/// one stops every process of it; the work of helpers that put things back begins then.
pub fn outlive_signals() -> io::Result<()> {
    let noticed = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGHUP, signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, noticed.clone())?;
    }
    Ok(())
}

/// A helper that holds a gigabyte shall not outlive a benchmark that was killed.
fn die_with_parent() -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have died before it could be asked to take us along.
    anyhow::ensure!(getppid() != Some(rustix::process::Pid::INIT) || std::process::id() == 1, "started by nobody");
    Ok(())
}

/// Says it to the benchmark.
pub fn say(message: Message) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &message)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// A running helper. Dropping it ends it.
pub struct Helper {
    process: std::process::Child,
    go: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts one.
    pub fn start(args: &[String]) -> Result<Helper, Skip> {
        let failed = |error: &dyn ToString| Skip::Child(error.to_string());
        let mut process = Command::new("/proc/self/exe")
            .arg("linux-child")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C goes to all of a terminal's foreground group. Helpers end with the benchmark,
            // or after it.
            .process_group(0)
            .spawn()
            .map_err(|error| failed(&error))?;
        let go = process.stdin.take();
        let says = process.stdout.take().ok_or_else(|| failed(&"no standard output"))?;
        Ok(Helper { process, go, says: BufReader::new(says) })
    }

    /// The next thing it says. Its silence is an error, explained by what it wrote to standard
    /// error.
    pub fn hear(&mut self) -> Result<Message, Skip> {
        let mut line = String::new();
        match self.says.read_line(&mut line) {
            Ok(0) => Err(self.finish().err().unwrap_or_else(|| Skip::Child("it ended too early".into()))),
            Ok(_) => serde_json::from_str(&line).map_err(|error| Skip::Child(error.to_string())),
            Err(error) => Err(Skip::Child(error.to_string())),
        }
    }

    fn last_words(&mut self) -> String {
        let mut error = String::new();
        let _ = self.process.stderr.take().map(|mut stderr| stderr.read_to_string(&mut error));
        error
    }

    /// Ends its standard input, and waits for its end. What it wrote to standard error is an error.
    pub fn finish(&mut self) -> Result<(), Skip> {
        self.go = None;
        let error = self.last_words();
        let status = self.process.wait().map_err(|error| Skip::Child(error.to_string()))?;
        if status.success() && error.is_empty() {
            Ok(())
        } else {
            Err(Skip::Child(format!("{status} {}", error.trim())))
        }
    }

    /// Tells it to go on; it may ask again.
    pub fn nod(&mut self) -> Result<(), Skip> {
        let go = self.go.as_mut().ok_or_else(|| Skip::Child("already gone".into()))?;
        go.write_all(b"!").map_err(|error| Skip::Child(error.to_string()))
    }

    /// Tells it to go on, for the last time.
    pub fn go(&mut self) -> Result<(), Skip> {
        self.nod()?;
        self.go = None;
        Ok(())
    }

    /// How long took what it was told to do; nanoseconds.
    pub fn took(&mut self) -> Result<u64, Skip> {
        match self.hear()? {
            Message::Took { ns } => Ok(ns),
            other => Err(Skip::Child(format!("said {other:?}"))),
        }
    }

    /// Tells it to go on, and waits for its end.
    pub fn go_and_wait(&mut self) -> Result<(), Skip> {
        let failed = |error: std::io::Error| Skip::Child(error.to_string());
        self.go()?;
        let status = self.process.wait().map_err(failed)?;
        if status.success() { Ok(()) } else { Err(Skip::Child(status.to_string())) }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Neither does anything to a process that has been waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A file of ours, under a name by which a helper can open it.
pub fn path_for_helper(file: &impl std::os::fd::AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
}
