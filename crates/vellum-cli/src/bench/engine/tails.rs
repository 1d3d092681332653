//! Times single operations while another CPU has the space's memory reclaimed.

use std::sync::atomic::{AtomicBool, Ordering};

use vellum::Machine;
use vellum::addr::VirtRange;
use vellum::memcg::MemcgId;
use vellum::space::{Advise, MapFlags, MapRequest};
use vellum_linux::child::tails::Tail;
use vellum_linux::cpu::{now_ns, pin_to};
use vellum_linux::stats::Quantiles;
use vellum_linux::workload::case::{PAGE, TABLE_SPAN};
use vellum_linux::workload::contended::{PIECE, RESIDENT, TimedOp};
use vellum_linux::workload::data::Data;
use vellum_sim::{Access, Fast, Program};

use super::{READ_WRITE, Space, boot, map, simulate, space, swapped, touch, unmap};
use crate::bench::contender::Skip;

/// The address of pieces to unmap, with no other mapping near it.
const PIECES: u64 = 1 << 40;

/// A simulated machine with two CPUs and swap.
pub struct Contended(&'static Machine<'static, Fast>);

impl Contended {
    /// Boots the machine, which exists until the program ends.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn new() -> Result<Contended, Skip> {
        let sim: &'static Fast = Box::leak(Box::new(simulate(2, 8 * RESIDENT + (128 << 20))?));
        sim.on_cpu(0, || {
            let machine = Box::leak(Box::new(boot(sim)?));
            swapped::attach(machine, 2 * RESIDENT)?;
            Ok(Contended(machine))
        })
    }

    /// Times `op` `samples` times on one simulated CPU, a thread on the host's CPU `cpu`, while
    /// another one, on the host's CPU `reclaim_on`, reclaims. Without the latter, no memory is
    /// reclaimed.
    ///
    /// # Errors
    /// The engine failed, or nothing was paged out.
    pub fn measure(&self, op: TimedOp, samples: usize, cpu: usize, reclaim_on: Option<usize>) -> Result<Tail, Skip> {
        let (space, range) = self.resident(op)?;
        let (ready, done) = (AtomicBool::new(reclaim_on.is_none()), AtomicBool::new(false));
        let result = std::thread::scope(|scope| {
            let reclaimer = reclaim_on.map(|cpu| {
                let (space, ready, done) = (&space, &ready, &done);
                scope.spawn(move || {
                    pin_to(cpu);
                    self.reclaim(space, range, ready, done)
                })
            });
            let timer = scope.spawn(|| {
                pin_to(cpu);
                let _done = SetOnDrop(&done);
                while !ready.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                self.times(&space, op, samples)
            });
            let times = timer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let reclaimed = reclaimer
                .map_or(Ok(0), |thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            Ok((times?, reclaimed?))
        });
        self.0.platform().on_cpu(0, || drop(space));
        let (mut times, reclaimed) = result?;
        if reclaim_on.is_some() && reclaimed == 0 {
            return Err(Skip::NotSwappedOut(RESIDENT / PAGE));
        }
        let ns = Quantiles::of(&mut times).ok_or(Skip::Missing("sample of the operation"))?;
        Ok(Tail { ns, reclaimed })
    }

    /// Makes a space with filled memory, which forks by `op` copy or leave out.
    fn resident(&self, op: TimedOp) -> Result<(Space<'static>, VirtRange), Skip> {
        let cpu = self.0.platform().cpu(0);
        let space = space(self.0, 4, MemcgId::ROOT)?;
        let range = map(&space, RESIDENT)?;
        let program = cpu.enter(&space);
        for page in 0..RESIDENT / PAGE {
            let written = program.write(range.start + page * PAGE, Data::Compressible.page(page).bytes());
            written.map_err(|error| Skip::system("touch", format!("{error:?}")))?;
        }
        drop(program);
        if op == TimedOp::BareFork {
            let advised = space.advise(range.start, range.len(), Advise::DontFork);
            advised.map_err(|error| Skip::system("advise", error))?;
        }
        Ok((space, range))
    }

    /// Pages out the space's memory and reads it again until `done`. Returns the pages that were
    /// paged out.
    fn reclaim(&self, space: &Space<'_>, range: VirtRange, ready: &AtomicBool, done: &AtomicBool) -> Result<u64, Skip> {
        let _ready = SetOnDrop(ready);
        let cpu = self.0.platform().cpu(1);
        let program = cpu.enter(space);
        let mut pages = 0;
        ready.store(true, Ordering::Release);
        loop {
            space.advise(range.start, range.len(), Advise::PageOut).map_err(|error| Skip::system("advise", error))?;
            pages += space.usage(range).swap / PAGE;
            let read = program.touch(range, PAGE, Access::Read);
            read.map_err(|error| Skip::system("touch", format!("{error:?}")))?;
            if done.load(Ordering::Acquire) {
                return Ok(pages);
            }
        }
    }

    /// Returns the nanoseconds of each of `samples` operations.
    fn times(&self, space: &Space<'_>, op: TimedOp, samples: usize) -> Result<Vec<u64>, Skip> {
        let cpu = self.0.platform().cpu(0);
        let program = cpu.enter(space);
        let mut times = Vec::with_capacity(samples);
        match op {
            TimedOp::Fault => {
                let range = map(space, TABLE_SPAN)?;
                while times.len() < samples {
                    faults(&program, range, samples - times.len(), &mut times)?;
                    let discarded = space.advise(range.start, range.len(), Advise::DontNeed);
                    discarded.map_err(|error| Skip::system("advise", error))?;
                }
                unmap(space, range)?;
            }
            TimedOp::Munmap => {
                for _ in 0..samples {
                    let flags = MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
                    let request = MapRequest { addr: PIECES, len: PIECE, prot: READ_WRITE, flags };
                    let start = space.map(request).map_err(|error| Skip::system("map", error))?;
                    let piece = VirtRange { start, end: start + PIECE };
                    touch(&program, piece)?;
                    let start = now_ns();
                    unmap(space, piece)?;
                    times.push(now_ns() - start);
                }
            }
            TimedOp::Fork | TimedOp::BareFork => {
                for _ in 0..samples {
                    let start = now_ns();
                    let child = space.fork();
                    times.push(now_ns() - start);
                    child.map_err(|error| Skip::system("fork", error))?;
                }
            }
        }
        Ok(times)
    }
}

/// Times the first write to each page of `range`, `most` pages at most.
fn faults(
    program: &Program<'_, Fast, Space<'_>>,
    range: VirtRange,
    most: usize,
    times: &mut Vec<u64>,
) -> Result<(), Skip> {
    for at in (range.start..range.end).step_by(PAGE as usize).take(most) {
        let start = now_ns();
        touch(program, VirtRange { start: at, end: at + PAGE })?;
        times.push(now_ns() - start);
    }
    Ok(())
}

/// Guard. Sets the flag when dropped, so that no thread waits for one that failed.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_fork_leaves_out_the_memory() {
        let contended = Contended::new().unwrap();
        for op in [TimedOp::Fork, TimedOp::BareFork] {
            let (space, range) = contended.resident(op).unwrap();
            contended.0.platform().on_cpu(0, || {
                let child = space.fork().unwrap();
                let copied = if op == TimedOp::Fork { RESIDENT } else { 0 };
                assert_eq!(child.usage(range).resident, copied, "{op:?}");
                drop((child, space));
            });
        }
    }

    #[test]
    fn operations_are_timed_beside_reclaim_and_leave_no_memory_behind() {
        let cpus: Vec<usize> = vellum_linux::cpu::allowed_cpus().into_iter().cycle().take(2).collect();
        let contended = Contended::new().unwrap();
        let free = || contended.0.platform().on_cpu(0, || contended.0.frames().free_frames());
        let mut before = None;
        for op in TimedOp::ALL {
            for reclaim_on in [None, Some(cpus[1])] {
                let tail = contended.measure(op, 600, cpus[0], reclaim_on).unwrap();
                assert_eq!(tail.ns.samples, 600, "{op:?}");
                assert_eq!(tail.reclaimed > 0, reclaim_on.is_some(), "{op:?}: {tail:?}");
                assert!(tail.ns.p50 <= tail.ns.p99 && tail.ns.p99 <= tail.ns.p999 && tail.ns.p999 <= tail.ns.max);
                // The first round makes the structures of the swap device.
                if reclaim_on.is_some() {
                    assert_eq!(free(), *before.get_or_insert_with(free), "{op:?}");
                }
            }
        }
    }
}
