//! Direct reclaim and the OOM killer: the machine or a memcg is out of memory, so some is
//! reclaimed, or else a process is killed, and the thread that needs memory retries.
//!
//! Without free swap, reclaim can free neither anonymous memory (except lazyfree pages) nor files
//! in memory, which have no backing store. So the kernel has to end a process. The victim is the
//! process with the most memory, adjusted by its `oom_score_adj`; processes that share its address
//! space end with it.

use crate::arch::serial::println;
use crate::mem::memcgs::{self, Event};
use crate::mem::reclaim::{Reason, reclaim};
use crate::mem::{machine, swap};
use crate::task::life::Life;
use crate::task::process::{self as processes, FIRST};
use crate::task::{Process, Thread, executor};
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use linux_raw_sys::general::SIGKILL;
use vellum::addr::FRAME_SIZE;
use vellum::memcg::{MemcgId, Refused};
use vellum::space::SpaceStats;

/// The `oom_score_adj` of a process that is never killed (Linux: `OOM_SCORE_ADJ_MIN`).
const OOM_SCORE_ADJ_MIN: i32 = -1000;
/// The pages to reclaim per attempt: enough to be worthwhile, and few enough that one thread does
/// not pay for all.
const AT_ONCE: u64 = 128;

/// The number of fruitless attempts before a process is killed.
const ATTEMPTS: usize = 16;

static KILLED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of processes killed.
pub fn killed() -> u64 {
    KILLED.load(Relaxed)
}

/// The part of the machine that is out of memory: all of it, or the memcg with this number.
#[derive(Clone, Copy)]
enum Scope {
    Machine,
    Memcg(u32),
}

impl Scope {
    /// Returns whether the process is charged in this scope.
    fn has(self, process: &Process) -> bool {
        match self {
            Scope::Machine => true,
            Scope::Memcg(memcg) => memcgs::is_below(process.cgroup.load(Relaxed), memcg),
        }
    }

    /// Tries to reclaim `pages` pages. Returns whether any were freed.
    fn reclaims(self, pages: u64) -> bool {
        let (why, memcg) = match self {
            Scope::Machine => (Reason::Direct, Some(MemcgId::ROOT)),
            Scope::Memcg(memcg) => (Reason::Limit, memcgs::engine(memcg).ok()),
        };
        memcg.is_some_and(|memcg| reclaim(why, memcg, pages) > 0)
    }

    /// Returns the number of pages of the machine, or the memcg's limit if that is lower.
    fn pages(self) -> u64 {
        let total = machine().frames().total();
        match self {
            Scope::Machine => total,
            Scope::Memcg(memcg) => memcgs::limit(memcg).min(total),
        }
    }
}

/// Returns the memory statistics of a process's address space, or `None` if it has ended.
fn stats(process: &Process) -> Option<SpaceStats> {
    let memory = process.memory();
    memory.map(|memory| memory.engine.stats())
}

/// Returns the pages that count for the badness: resident, swapped, page tables, and the engine's
/// own memory for the space.
fn pages(stats: &SpaceStats) -> u64 {
    (stats.anon + stats.file + stats.shmem + stats.swap + stats.tables + stats.kernel) / FRAME_SIZE
}

/// Returns a process's badness in pages (Linux: `oom_badness`): its memory, plus `oom_score_adj`
/// thousandths of all `all` pages.
fn points(process: &Process, stats: &SpaceStats, all: u64) -> i64 {
    pages(stats) as i64 + i64::from(process.oom_score_adj.load(Relaxed)) * (all / 1000) as i64
}

/// Returns the badness in thousandths of the machine's memory (`oom_score`).
pub fn score(process: &Process) -> u64 {
    let all = Scope::Machine.pages().max(1);
    let points = stats(process).map_or(0, |stats| points(process, &stats, all));
    (points.max(0) as u64) * 1000 / all
}

/// Makes memory available after a fault or a system call was refused some: reclaims on the machine,
/// or in the memcg whose limit was reached, or else kills a process. Returns true when a retry is
/// due: memory was reclaimed, a signal arrived, a process that had memory is gone, or the caller's
/// process is ending. Returns false if no process can be killed.
pub async fn relieve(thread: &Arc<Thread>, why: Refused) -> bool {
    let scope = match why {
        Refused::OverLimit(memcg) => Scope::Memcg(memcgs::number_of(memcg)),
        Refused::OutOfMemory => Scope::Machine,
    };
    if thread.process.life.lock().is_over() {
        return true;
    }
    if let Scope::Memcg(memcg) = scope {
        memcgs::note(memcg, Event::Max);
    }
    // Pages that another CPU is scanning or about to free can't be found: retry.
    for _ in 0..ATTEMPTS {
        if scope.reclaims(AT_ONCE) {
            return true;
        }
        executor::yield_now().await;
        // A fruitless scan of everything takes long, and longer if other threads scan too: a signal
        // goes first.
        if thread.is_interrupted() {
            return true;
        }
    }
    if let Scope::Memcg(memcg) = scope {
        memcgs::note(memcg, Event::OutOfMemory);
    }
    let Some(victim) = find_ending(scope).or_else(|| kill(scope, Some(&thread.process))) else { return false };
    while !victim.threads.lock().is_empty() && !thread.process.life.lock().is_over() {
        executor::yield_now().await;
    }
    true
}

/// Enforces a memcg's lowered limit: reclaims the excess, or kills a process of the memcg.
pub fn enforce(memcg: u32) {
    let scope = Scope::Memcg(memcg);
    memcgs::note(memcg, Event::Max);
    while let over @ 1.. = memcgs::excess(memcg) {
        if !scope.reclaims(over) {
            break;
        }
    }
    if memcgs::excess(memcg) == 0 {
        return;
    }
    memcgs::note(memcg, Event::OutOfMemory);
    if find_ending(scope).is_none() {
        kill(scope, None);
    }
}

/// Returns a process that is ending but has not freed its memory yet.
fn find_ending(scope: Scope) -> Option<Arc<Process>> {
    let is_ending = |process: &Arc<Process>| process.life.lock().is_over() && !process.threads.lock().is_empty();
    processes::all().find(|process| is_ending(process) && scope.has(process))
}

/// Kills the process with the highest badness in this scope, and all processes that share its
/// address space. Returns `None` if no process may be killed.
fn kill(scope: Scope, wanting: Option<&Arc<Process>>) -> Option<Arc<Process>> {
    let all = scope.pages();
    let may = |process: &Arc<Process>| {
        process.pid != FIRST && process.oom_score_adj.load(Relaxed) > OOM_SCORE_ADJ_MIN && scope.has(process)
    };
    let counted = processes::all().filter(may).filter_map(|process| {
        let stats = stats(&process)?;
        Some((points(&process, &stats, all), process, stats))
    });
    let (points, victim, has) = counted.max_by_key(|(points, ..)| *points)?;
    log(scope, wanting, &victim, points, &has);
    KILLED.fetch_add(1, Relaxed);
    memcgs::note(victim.cgroup.load(Relaxed), Event::Killed);
    let memory = victim.memory();
    for process in processes::all() {
        let shared = memory.as_ref().zip(process.memory()).is_some_and(|(own, other)| Arc::ptr_eq(own, &other));
        if shared || Arc::ptr_eq(&process, &victim) {
            process.end(Life::Killed(SIGKILL));
        }
    }
    Some(victim)
}

/// Returns the name of a process's first thread.
fn name(process: &Process) -> String {
    let first = process.threads.lock().values().next().map(|thread| thread.name()).unwrap_or_default();
    String::from_utf8_lossy(&first).into_owned()
}

/// Logs the victim and the reason.
fn log(scope: Scope, wanting: Option<&Arc<Process>>, victim: &Process, points: i64, has: &SpaceStats) {
    let kib = |bytes: u64| bytes / 1024;
    match scope {
        Scope::Machine => {
            let frames = machine().frames();
            let [free, all] = [frames.free_frames(), frames.total()].map(|pages| kib(pages * FRAME_SIZE));
            let [swap, swap_free, _] = swap::bytes().map(kib);
            println!("out of memory: {free} kB of {all} kB are free, {swap_free} kB of {swap} kB of swap");
        }
        Scope::Memcg(memcg) => {
            let (path, limit) = (memcgs::path(memcg), kib(memcgs::limit(memcg) * FRAME_SIZE));
            println!("out of memory: memcg {} is at its limit of {limit} kB", String::from_utf8_lossy(&path));
        }
    }
    if let Some(wanting) = wanting {
        println!("out of memory: process {} ({}) could not allocate", wanting.pid, name(wanting));
    }
    println!(
        "out of memory: killed process {} ({}): {} kB anonymous, {} kB of files, {} kB shared, {} kB of page tables, \
         {} kB swapped out, oom_score_adj {}, {points} points",
        victim.pid,
        name(victim),
        kib(has.anon),
        kib(has.file),
        kib(has.shmem),
        kib(has.tables),
        kib(has.swap),
        victim.oom_score_adj.load(Relaxed),
    );
}
