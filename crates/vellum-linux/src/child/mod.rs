//! Helper processes: this program, started again by the benchmark.
//!
//! The benchmark starts them as new processes and does not fork. A fork write-protects the
//! benchmark's pages, after which the first write to each page by another contender takes a fault.
//! Also, a new process has only the mappings that it makes itself.
//!
//! | module | contents |
//! |---|---|
//! | [`holder`] | a helper that holds a touched region |
//! | [`calls`] | timing the `munmap` calls of such a helper |
//! | [`exit`], [`fork`], [`lazyfree`] | timing the exit, the fork, or the reclaim of such a helper |
//! | [`churn`] | processes whose work leaves free memory in pieces |
//! | [`neighbour`] | processes whose memory alternates with the measured one |
//! | [`tables`] | the page tables that a walk over addresses leaves behind |
//! | [`entry`], [`spin`] | the costs of entering the kernel; a CPU kept busy meanwhile |
//! | [`overhead`] | the kernel's memory for a region |
//! | [`tails`] | the times of single operations while memory is reclaimed |
//! | [`together`] | processes that touch and unmap regions at the same moment |
//! | [`mod@copy`] | a copy of another process's memory, and timing an operation on it |

pub mod calls;
pub mod churn;
pub mod copy;
pub mod entry;
pub mod exit;
pub mod fork;
pub mod holder;
pub mod lazyfree;
pub mod neighbour;
pub mod overhead;
pub mod spin;
pub mod tables;
pub mod tails;
pub mod together;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::Skip;
use crate::settings::{keeper, resource};
use crate::time::Time;

/// The task of a helper.
#[derive(clap::Subcommand)]
pub enum Role {
    /// Restore settings when standard input ends.
    Keeper,
    /// Make a resource, report it, and remove it when standard input ends.
    #[command(name = "lent")]
    Resource {
        /// The resource.
        #[command(subcommand)]
        resource: resource::Resource,
    },
    /// Map and touch a region, report it, wait for a byte, and exit.
    Exit(exit::Args),
    /// Map and touch a region, report it, wait for a byte, fork, and report the time.
    Fork(fork::Args),
    /// Map and touch a region, report it, wait for a byte, unmap it by several calls, and report
    /// the time of a call.
    Calls(calls::Args),
    /// Map and touch a region, report it, wait for a byte, have it reclaimed as lazyfree memory,
    /// and report the time.
    Reclaim(lazyfree::Args),
    /// Hold a region that another process touches.
    Neighbour(neighbour::Args),
    /// Do the steps of a churn that come on standard input, and report each.
    Churn,
    /// Touch and discard a span, and report the page tables.
    Tables(tables::Args),
    /// Measure system calls, page faults and TLB flushes, and report their costs.
    Entry(entry::Args),
    /// Keep a CPU busy.
    Spin(spin::Args),
    /// Map and touch a region, and report its page tables.
    Overhead(holder::Args),
    /// Time single operations while memory is reclaimed, and report the distribution.
    Tails(tails::Args),
    /// Map a region, and touch and unmap it at the same moment as other helpers.
    Together(together::Args),
    /// Copy another process's mappings, and do an operation on them.
    Copy(copy::Args),
}

/// A message of a helper, one line of JSON.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The region is touched; the operation can be timed.
    Touched {
        /// The time of the touch.
        time: Time,
        /// Share of the region, 0 to 1, that is not mapped as the case asks.
        fallback: f64,
    },
    /// The region is mapped, and not touched.
    Mapped {
        /// The first address.
        start: u64,
    },
    /// The operation is done.
    Took {
        /// The time of the operation.
        time: Time,
    },
    /// The writes after a fork are done.
    Wrote {
        /// Their time.
        time: Time,
        /// The bytes that their faults copied.
        copied: u64,
    },
    /// The resource exists, or the step of a churn is done.
    Ready,
    /// The helper is about to touch memory that needs folios of this size.
    Wants {
        /// The size in KiB.
        folio_kib: u32,
    },
    /// The copy is filled; the operation can be timed.
    Copied {
        /// Bytes of the copy in memory.
        resident: u64,
        /// Bytes of its page tables.
        tables: u64,
    },
    /// The share of the span that is done, 0 to 1.
    Progress(f64),
    /// The page tables of the process.
    Tables(tables::PageTables),
    /// The costs of system calls, page faults and TLB flushes.
    Costs(entry::Costs),
    /// The times of an operation.
    Tail(tails::Tail),
}

/// Runs a helper's task. The benchmark reads its errors from standard error.
///
/// # Errors
/// The task failed.
pub fn run(role: Role) -> anyhow::Result<()> {
    match role {
        Role::Keeper => keeper::run(std::io::stdin().lock()),
        Role::Resource { resource } => resource::run(&resource),
        Role::Exit(args) => {
            die_with_parent()?;
            exit::run(&args)
        }
        Role::Fork(args) => {
            die_with_parent()?;
            fork::run(&args)
        }
        Role::Calls(args) => {
            die_with_parent()?;
            calls::run(&args)
        }
        Role::Reclaim(args) => {
            die_with_parent()?;
            lazyfree::run(&args)
        }
        Role::Neighbour(args) => {
            die_with_parent()?;
            neighbour::run(&args)
        }
        Role::Churn => {
            die_with_parent()?;
            churn::run()
        }
        Role::Tables(args) => {
            die_with_parent()?;
            tables::run(&args)
        }
        Role::Entry(args) => {
            die_with_parent()?;
            entry::run(&args)
        }
        Role::Spin(args) => {
            die_with_parent()?;
            spin::run(&args)
        }
        Role::Overhead(args) => {
            die_with_parent()?;
            overhead::run(&args)
        }
        Role::Tails(args) => {
            die_with_parent()?;
            tails::run(&args)
        }
        Role::Together(args) => {
            die_with_parent()?;
            together::run(&args)
        }
        Role::Copy(args) => {
            die_with_parent()?;
            copy::run(&args)
        }
    }
}

/// Ignores the signals that end a benchmark. A service manager that stops a benchmark signals all
/// its processes, and helpers that restore settings have to do so after that.
///
/// # Errors
/// A handler can't be installed.
pub fn outlive_signals() -> io::Result<()> {
    let noticed = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGHUP, signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, noticed.clone())?;
    }
    Ok(())
}

/// Makes the kernel kill this process when the benchmark ends, so that no helper keeps its memory
/// after that.
fn die_with_parent() -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The benchmark may have ended before the call, which then has no effect.
    anyhow::ensure!(
        getppid() != Some(rustix::process::Pid::INIT) || std::process::id() == 1,
        "the benchmark that started this helper is gone"
    );
    Ok(())
}

/// Sends a message to the benchmark.
///
/// # Errors
/// Standard output can't be written.
pub fn send(message: Message) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &message)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// A running helper. Dropping it kills it.
pub struct Helper {
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts a helper with these arguments.
    ///
    /// # Errors
    /// The process can't be started.
    pub fn start(args: &[String]) -> Result<Helper, Skip> {
        let failed = |error: &dyn ToString| Skip::Child(error.to_string());
        let mut process = Command::new("/proc/self/exe")
            .arg("linux-child")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Put the helper into a process group of its own: Ctrl-C signals the terminal's
            // foreground group, and a helper must not end before the benchmark.
            .process_group(0)
            .spawn()
            .map_err(|error| failed(&error))?;
        let stdin = process.stdin.take();
        let stdout = process.stdout.take().ok_or_else(|| failed(&"no standard output"))?;
        Ok(Helper { process, stdin, stdout: BufReader::new(stdout) })
    }

    /// Runs a helper that sends one message, and returns that message.
    ///
    /// # Errors
    /// The helper can't be started, or failed.
    pub fn answer(args: &[String]) -> Result<Message, Skip> {
        let mut helper = Helper::start(args)?;
        let message = helper.receive()?;
        helper.finish()?;
        Ok(message)
    }

    /// Returns the next message.
    ///
    /// # Errors
    /// The helper ended without one; the error has its standard error.
    pub fn receive(&mut self) -> Result<Message, Skip> {
        let mut line = String::new();
        match self.stdout.read_line(&mut line) {
            Ok(0) => Err(self.finish().err().unwrap_or_else(|| Skip::Child("it ended too early".into()))),
            Ok(_) => serde_json::from_str(&line).map_err(|error| Skip::Child(error.to_string())),
            Err(error) => Err(Skip::Child(error.to_string())),
        }
    }

    /// Returns the helper's process ID.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns what the helper wrote to standard error.
    fn standard_error(&mut self) -> String {
        let mut error = String::new();
        let _ = self.process.stderr.take().map(|mut stderr| stderr.read_to_string(&mut error));
        error
    }

    /// Closes the helper's standard input and waits for its end.
    ///
    /// # Errors
    /// The helper failed, or wrote to standard error.
    pub fn finish(&mut self) -> Result<(), Skip> {
        self.stdin = None;
        let error = self.standard_error();
        let status = self.process.wait().map_err(|error| Skip::Child(error.to_string()))?;
        if status.success() && error.is_empty() {
            Ok(())
        } else {
            Err(Skip::Child(format!("{status} {}", error.trim())))
        }
    }

    /// Lets the helper continue until its next message.
    ///
    /// # Errors
    /// The helper is gone.
    pub fn resume(&mut self) -> Result<(), Skip> {
        self.write(b"!")
    }

    /// Sends a request to the helper, as one line of JSON.
    ///
    /// # Errors
    /// The helper is gone; the error has its standard error.
    fn request(&mut self, request: &impl Serialize) -> Result<(), Skip> {
        let mut line = serde_json::to_vec(request).map_err(|error| Skip::Child(error.to_string()))?;
        line.push(b'\n');
        self.write(&line).map_err(|error| self.finish().err().unwrap_or(error))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Skip> {
        let stdin = self.stdin.as_mut().ok_or_else(|| Skip::Child("it has ended already".into()))?;
        stdin.write_all(bytes).map_err(|error| Skip::Child(error.to_string()))
    }

    /// Lets the helper continue for the last time.
    ///
    /// # Errors
    /// The helper is gone.
    pub fn resume_last(&mut self) -> Result<(), Skip> {
        self.resume()?;
        self.stdin = None;
        Ok(())
    }

    /// Returns the time of the operation.
    ///
    /// # Errors
    /// The helper failed, or sent another message.
    pub fn took(&mut self) -> Result<Time, Skip> {
        match self.receive()? {
            Message::Took { time } => Ok(time),
            other => Err(Skip::Child(format!("unexpected message {other:?}"))),
        }
    }

    /// Lets the helper continue, and waits for its end.
    ///
    /// # Errors
    /// The helper failed.
    pub fn resume_and_wait(&mut self) -> Result<(), Skip> {
        let failed = |error: std::io::Error| Skip::Child(error.to_string());
        self.resume_last()?;
        let status = self.process.wait().map_err(failed)?;
        if status.success() { Ok(()) } else { Err(Skip::Child(status.to_string())) }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Both calls do nothing if the process has been waited for already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the path by which a helper can open a file of this process.
pub fn path_for_helper(file: &impl std::os::fd::AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
}
