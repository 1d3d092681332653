//! Timing a fork of a process that holds a region.
//!
//! It is a helper that forks: the benchmark has gigabytes of its own. Its child waits until the
//! time is taken, so that the child's end is not in it. What a fork costs in a helper that holds
//! nothing is what any process pays, and is taken off.

use std::io::Read;

use rustix::pipe::pipe;

use super::held::{self, Holding};
use super::{Message, say};
use crate::cpu::now_ns;
use crate::settings::knobs::Scope;
use crate::stats::Summary;
use crate::workload::case::Case;
use crate::{Sample, Skip};

/// How many empty helpers the fork of an empty helper is the median of.
const EMPTY_RUNS: usize = 15;

/// Times forks.
#[derive(Default)]
pub struct ForkTimer {
    /// Nanoseconds of an empty helper's fork, once measured.
    empty: Option<u64>,
}

impl ForkTimer {
    /// Times the fork of a process with the case's region. The settings are needed until it is
    /// touched.
    pub fn measure(&mut self, case: &Case, settings: Scope<'_>) -> Result<Sample, Skip> {
        let mut full = start(Some(case))?;
        settings.restore()?;
        let empty = match self.empty {
            Some(empty) => empty,
            None => *self.empty.insert(empty_fork()?),
        };
        let op_ns = time(&mut full)?.saturating_sub(empty);
        Ok(Sample { touch_ns: Some(full.touch_ns), back_ns: None, op_ns, fallback: full.fallback })
    }
}

fn empty_fork() -> Result<u64, Skip> {
    let runs: Result<Vec<u64>, Skip> = (0..EMPTY_RUNS).map(|_| time(&mut start(None)?)).collect();
    Ok(Summary::of(&runs?).map_or(0, |summary| summary.median))
}

fn start(case: Option<&Case>) -> Result<Holding, Skip> {
    Holding::start(vec!["fork".to_owned()], case)
}

fn time(holding: &mut Holding) -> Result<u64, Skip> {
    holding.helper.go_and_wait()?;
    holding.helper.took()
}

/// The helper's life.
pub fn fork(args: &held::Args) -> anyhow::Result<()> {
    let _region = args.hold()?;
    if std::io::stdin().read(&mut [0])? != 1 {
        return Ok(());
    }
    say(Message::Took { ns: timed()? })
}

/// Forks this process, which has one thread; nanoseconds.
pub fn timed() -> anyhow::Result<u64> {
    let (wait, go) = pipe()?;
    let start = now_ns();
    // SAFETY: the process has one thread, and its child makes system calls and nothing else.
    let child = unsafe { libc::fork() };
    let ns = now_ns() - start;
    if child == 0 {
        drop(go);
        let _ = rustix::io::read(&wait, &mut [0u8]);
        // SAFETY: ends the child, in which nothing waits to be written or cleaned up.
        unsafe { libc::_exit(0) }
    }
    anyhow::ensure!(child > 0, "fork: {}", std::io::Error::last_os_error());
    drop(go);
    // SAFETY: waits for the child just made; nobody wants its status.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    Ok(ns)
}
