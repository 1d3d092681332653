//! Times single operations while another thread has the process's memory reclaimed.
//!
//! A helper does both, with a thread for each, because a fork of the benchmark would copy all of
//! its mappings. The times are those of the clock: a thread that waits for a lock does not run.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use serde::{Deserialize, Serialize};

use super::{Helper, Message, fork, send};
use crate::Skip;
use crate::cpu::{now_ns, pin_to};
use crate::region::Region;
use crate::stats::Quantiles;
use crate::workload::case::{PAGE, TABLE_SPAN};
use crate::workload::contended::{PIECE, RESIDENT, TimedOp};
use crate::workload::data::Data;

/// The distribution of an operation's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tail {
    /// Nanoseconds of the operations.
    pub ns: Quantiles,
    /// Pages of 4 KiB that the other thread had paged out meanwhile; 0 without one.
    pub reclaimed: u64,
}

/// The arguments of the helper.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The operation.
    #[arg(long)]
    op: TimedOp,
    /// How often it is timed.
    #[arg(long)]
    samples: usize,
    /// The CPU of its thread.
    #[arg(long)]
    cpu: usize,
    /// The CPU of the thread that reclaims; without it, no memory is reclaimed.
    #[arg(long)]
    reclaim_on: Option<usize>,
}

/// The share of the samples of a fork that the forks without the memory have: one in this many.
const BARE: usize = 10;

/// Times `op` in a helper `samples` times on `cpu`, while another thread on the CPU `reclaim_on`
/// reclaims. Needs swap for [`RESIDENT`] bytes.
///
/// The fork of a process copies more than its memory: the task, its files, the mappings of its
/// program. So from the times of [`TimedOp::Fork`] the median of [`TimedOp::BareFork`] is
/// subtracted, which another helper is timed for in the same way.
///
/// # Errors
/// A helper failed.
pub fn measure(op: TimedOp, samples: usize, cpu: usize, reclaim_on: Option<usize>) -> Result<Tail, Skip> {
    let tail = measure_whole(op, samples, cpu, reclaim_on)?;
    if op != TimedOp::Fork {
        return Ok(tail);
    }
    let bare = measure_whole(TimedOp::BareFork, samples.div_ceil(BARE), cpu, reclaim_on)?;
    Ok(Tail { ns: tail.ns.less(bare.ns.p50), ..tail })
}

/// Times `op` in a helper as [`measure`] does, and subtracts nothing.
fn measure_whole(op: TimedOp, samples: usize, cpu: usize, reclaim_on: Option<usize>) -> Result<Tail, Skip> {
    let mut args = vec!["tails".to_owned(), format!("--op={}", op.name()), format!("--samples={samples}")];
    args.push(format!("--cpu={cpu}"));
    args.extend(reclaim_on.map(|cpu| format!("--reclaim-on={cpu}")));
    match Helper::answer(&args)? {
        Message::Tail(tail) => Ok(tail),
        other => Err(Skip::Child(format!("unexpected message {other:?}"))),
    }
}

/// Runs the helper.
///
/// # Errors
/// A system call failed, or nothing could be paged out.
pub fn run(args: &Args) -> anyhow::Result<()> {
    // Base pages only, whatever the machine's settings are. This needs no privilege.
    rustix::thread::disable_transparent_huge_pages(true)?;
    pin_to(args.cpu);
    let (mut ns, reclaimed) = match args.reclaim_on {
        Some(cpu) => beside_reclaim(args.op, cpu, || times(args.op, args.samples))?,
        None => {
            let _resident = resident(args.op)?;
            (times(args.op, args.samples)?, 0)
        }
    };
    let Some(ns) = Quantiles::of(&mut ns) else { anyhow::bail!("--samples must be at least 1") };
    send(Message::Tail(Tail { ns, reclaimed }))
}

/// Maps and fills the memory of the process, which forks by `op` copy or leave out.
fn resident(op: TimedOp) -> Result<Region, Skip> {
    let region = Region::map(RESIDENT)?;
    region.fill(|number| Data::Compressible.page(number));
    if op == TimedOp::BareFork {
        region.leave_out_of_forks()?;
    }
    Ok(region)
}

/// Runs `timed`, which does `op`, while another thread on the CPU `cpu` pages out the memory of the
/// process and reads it again. Returns the pages that were paged out.
fn beside_reclaim<T>(op: TimedOp, cpu: usize, timed: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, u64)> {
    let (ready, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reclaimer = scope.spawn(|| -> Result<u64, Skip> {
            pin_to(cpu);
            let region = resident(op)?;
            ready.store(true, Ordering::Release);
            let mut pages = 0;
            loop {
                region.page_out()?;
                pages += RESIDENT / PAGE - region.present()?;
                region.read(PAGE);
                if done.load(Ordering::Acquire) {
                    return Ok(pages);
                }
            }
        });
        while !ready.load(Ordering::Acquire) && !reclaimer.is_finished() {
            std::thread::yield_now();
        }
        let timed = timed();
        done.store(true, Ordering::Release);
        let pages = reclaimer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        anyhow::ensure!(pages > 0, "no page could be paged out");
        Ok((timed?, pages))
    })
}

/// Returns the nanoseconds of each of `samples` operations.
fn times(op: TimedOp, samples: usize) -> anyhow::Result<Vec<u64>> {
    let mut times = Vec::with_capacity(samples);
    match op {
        TimedOp::Fault => {
            let region = Region::map(TABLE_SPAN)?;
            while times.len() < samples {
                for page in (0..TABLE_SPAN / PAGE).take(samples - times.len()) {
                    let start = now_ns();
                    region.write((page * PAGE) as usize, 1, PAGE);
                    times.push(now_ns() - start);
                }
                region.discard_range(0, TABLE_SPAN as usize)?;
            }
        }
        TimedOp::Munmap => (0..samples).try_for_each(|_| unmap_piece().map(|ns| times.push(ns)))?,
        TimedOp::Fork | TimedOp::BareFork => {
            for _ in 0..samples {
                times.push(fork::timed()?.wall_ns);
            }
        }
    }
    Ok(times)
}

/// Maps [`PIECE`] bytes between two guard pages, touches them, and unmaps them. Returns the
/// nanoseconds of the unmapping.
fn unmap_piece() -> rustix::io::Result<u64> {
    const GUARD: usize = PAGE as usize;
    let (len, all) = (PIECE as usize, PIECE as usize + 2 * GUARD);
    // SAFETY: the kernel chooses the address, so no mapping is replaced.
    let guard = unsafe { mmap_anonymous(null_mut(), all, ProtFlags::empty(), MapFlags::PRIVATE)? };
    let piece = guard.wrapping_byte_add(GUARD);
    // SAFETY: a part of the mapping just made, to which no other pointer exists.
    unsafe { mprotect(piece, len, MprotectFlags::READ | MprotectFlags::WRITE)? };
    for at in (0..len).step_by(PAGE as usize) {
        // SAFETY: the address is in the piece, which is mapped and writable.
        unsafe { piece.byte_add(at).cast::<u8>().write_volatile(1) };
    }
    let start = now_ns();
    // SAFETY: the piece is mapped, and no reference to it exists.
    unsafe { munmap(piece, len)? };
    let ns = now_ns() - start;
    for guard in [guard, piece.wrapping_byte_add(len)] {
        // SAFETY: a guard page of the mapping made above. The piece between both is left out: other
        // mappings may use its addresses now.
        unsafe { munmap(guard, GUARD)? };
    }
    Ok(ns)
}

#[cfg(test)]
mod tests {
    use procfs::process::{Process, VmFlags};

    use super::*;

    #[test]
    fn each_operation_is_timed_as_often_as_asked() {
        // No forks: a test has threads that may hold locks.
        for op in [TimedOp::Fault, TimedOp::Munmap] {
            assert_eq!(times(op, 700).unwrap().len(), 700, "{op:?}");
        }
    }

    #[test]
    fn a_bare_fork_leaves_out_the_memory() {
        for op in TimedOp::ALL {
            let region = resident(op).unwrap();
            let vmas = Process::myself().unwrap().smaps().unwrap();
            let vma = vmas.iter().find(|vma| vma.address.0 == region.start()).unwrap();
            assert_eq!(vma.extension.vm_flags.contains(VmFlags::DC), op == TimedOp::BareFork, "{op:?}");
        }
    }
}
