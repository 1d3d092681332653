//! Timing the exit of a process that holds a region.
//!
//! The child maps and touches the region and waits. Told to go, it writes the time into a page it
//! shares with us and ends itself with its next instruction. The time until our wait for it returns
//! is the whole of its end: leaving the CPU, tearing down the address space, telling the parent.
//! The same for a child that maps nothing is what any process pays, and is taken off.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::held::{self, Holding};
use super::path_for_helper;
use crate::cpu::now_ns;
use crate::settings::knobs::Scope;
use crate::stats::Summary;
use crate::workload::case::{Case, PAGE};
use crate::{Sample, Skip};

/// How many empty children the exit of an empty child is the median of.
const EMPTY_RUNS: usize = 15;

/// Times exits.
#[derive(Default)]
pub struct ExitTimer {
    /// Nanoseconds of an empty child's exit, once measured.
    empty: Option<u64>,
}

impl ExitTimer {
    /// Times the exit of a child with the case's region. The settings are needed until it is
    /// touched.
    pub fn measure(&mut self, case: &Case, settings: Scope<'_>) -> Result<Sample, Skip> {
        let mut full = Waiting::start(Some(case))?;
        settings.restore()?;
        let empty = match self.empty {
            Some(empty) => empty,
            None => *self.empty.insert(empty_exit()?),
        };
        let op_ns = full.time_exit()?.saturating_sub(empty);
        Ok(Sample { touch_ns: Some(full.holding.touch_ns), back_ns: None, op_ns, fallback: full.holding.fallback })
    }
}

fn empty_exit() -> Result<u64, Skip> {
    let runs: Result<Vec<u64>, Skip> = (0..EMPTY_RUNS).map(|_| Waiting::start(None)?.time_exit()).collect();
    Ok(Summary::of(&runs?).map_or(0, |summary| summary.median))
}

/// A child that has touched its region and waits.
struct Waiting {
    holding: Holding,
    stamp: Stamp,
}

impl Waiting {
    fn start(case: Option<&Case>) -> Result<Waiting, Skip> {
        let (stamp, file) = Stamp::new().map_err(|error| Skip::system("memfd_create", error))?;
        let args = vec!["exit".to_owned(), format!("--stamp={}", path_for_helper(&file).display())];
        Ok(Waiting { holding: Holding::start(args, case)?, stamp })
    }

    fn time_exit(&mut self) -> Result<u64, Skip> {
        self.holding.helper.go_and_wait()?;
        Ok(self.stamp.since())
    }
}

/// What the child is to do.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The shared page.
    #[arg(long)]
    stamp: PathBuf,
    /// What it holds.
    #[command(flatten)]
    held: held::Args,
}

/// The child's life.
pub fn exit(args: &Args) -> anyhow::Result<()> {
    let stamp = Stamp::open(&File::options().read(true).write(true).open(&args.stamp)?)?;
    let _region = args.held.hold()?;
    if std::io::stdin().read(&mut [0])? == 1 {
        stamp.exit();
    }
    Ok(())
}

/// A time in a page that two processes share.
pub struct Stamp(&'static AtomicU64);

impl Stamp {
    /// One, and the file that it is in.
    pub fn new() -> rustix::io::Result<(Stamp, File)> {
        let file = memfd_create("vellum-stamp", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, PAGE)?;
        let file = File::from(file);
        Ok((Stamp::open(&file)?, file))
    }

    /// That which is in a file.
    pub fn open(file: &File) -> rustix::io::Result<Stamp> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: no address is asked for, so that nothing that exists is replaced.
        let page = unsafe { mmap(null_mut(), PAGE as usize, access, MapFlags::SHARED, file, 0)? };
        let page = NonNull::new(page.cast::<AtomicU64>()).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: a page of zeroes, aligned, mapped until `drop`; the reference does not leave this
        // value. The other process writes it as an atomic, too.
        Ok(Stamp(unsafe { page.as_ref() }))
    }

    /// Nanoseconds since somebody noted the time.
    pub fn since(&self) -> u64 {
        now_ns().saturating_sub(self.0.load(Ordering::Acquire))
    }

    /// Notes the time and ends the process at once.
    pub fn exit(&self) -> ! {
        self.0.store(now_ns(), Ordering::Release);
        // SAFETY: ends the process. Nothing here waits to be written or cleaned up, and unmapping
        // what it has mapped first is exactly what shall not happen.
        unsafe { libc::_exit(0) }
    }
}

impl Drop for Stamp {
    fn drop(&mut self) {
        // SAFETY: the mapping that `open` made, and the reference to it goes with this value.
        let _ = unsafe { munmap(std::ptr::from_ref(self.0).cast_mut().cast(), PAGE as usize) };
    }
}
