//! Memory runs out, the machine's or a group's: some is reclaimed, or else a process is killed for it, and who wanted memory tries
//! again.
//!
//! Where there is no swap left, what is in use comes back only from who ends, because files in memory have nothing behind them. The
//! process with the most memory ends, as far as nothing was said about it (`oom_score_adj`). Who shares its memory ends with it.

use crate::mem::memcgs::{self, Event};
use crate::mem::reclaim::{Who, reclaim};
use crate::mem::{machine, swap};
use crate::println;
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

/// A process that is never killed has this said about it.
const NEVER: i32 = -1000;
/// Pages that are reclaimed for who finds none: enough to be worth the while, and not so many that one pays for all.
const AT_ONCE: u64 = 128;

/// How often nothing is found to reclaim before somebody is killed.
const TRIES: usize = 16;

static KILLED: AtomicU64 = AtomicU64::new(0);

/// How many were killed for memory.
pub fn killed() -> u64 {
    KILLED.load(Relaxed)
}

/// Whose memory is short.
#[derive(Clone, Copy)]
enum Scope {
    Machine,
    Group(u32),
}

impl Scope {
    fn has(self, process: &Process) -> bool {
        match self {
            Scope::Machine => true,
            Scope::Group(group) => memcgs::is_below(process.cgroup.load(Relaxed), group),
        }
    }

    /// Whether some memory could be reclaimed.
    fn reclaims(self, pages: u64) -> bool {
        let (why, group) = match self {
            Scope::Machine => (Who::Direct, Some(MemcgId::ROOT)),
            Scope::Group(group) => (Who::Limit, memcgs::engine(group).ok()),
        };
        group.is_some_and(|group| reclaim(why, group, pages) > 0)
    }

    /// How many pages there are in all.
    fn pages(self) -> u64 {
        let total = machine().frames().total();
        match self {
            Scope::Machine => total,
            Scope::Group(group) => memcgs::limit(group).min(total),
        }
    }
}

fn stats(process: &Process) -> Option<SpaceStats> {
    let memory = process.memory();
    memory.map(|memory| memory.engine.stats())
}

fn pages(stats: &SpaceStats) -> u64 {
    (stats.anon + stats.file + stats.shmem + stats.swap + stats.tables + stats.kernel) / FRAME_SIZE
}

/// What a process counts, in pages, where there are so many in all.
fn points(process: &Process, stats: &SpaceStats, all: u64) -> i64 {
    pages(stats) as i64 + i64::from(process.badness.load(Relaxed)) * (all / 1000) as i64
}

/// The same in thousandths of the machine's memory (`oom_score`).
pub fn score(process: &Process) -> u64 {
    let all = Scope::Machine.pages().max(1);
    let points = stats(process).map_or(0, |stats| points(process, &stats, all));
    (points.max(0) as u64) * 1000 / all
}

/// A fault or a system call was refused memory. Reclaims where it was refused: of the machine, or
/// of that group alone. Returns when there may be some: when some was reclaimed, when a process
/// that had it is gone, or the caller is to end itself; `false`: nobody can be killed.
pub async fn relieve(thread: &Arc<Thread>, why: Refused) -> bool {
    let scope = match why {
        Refused::OverLimit(group) => Scope::Group(memcgs::number_of(group)),
        Refused::OutOfMemory => Scope::Machine,
    };
    if thread.process.life.lock().is_over() {
        return true;
    }
    if let Scope::Group(group) = scope {
        memcgs::note(group, Event::Max);
    }
    // What another processor is just looking at, or is about to free, can't be found.
    for _ in 0..TRIES {
        if scope.reclaims(AT_ONCE) {
            return true;
        }
        executor::give_way().await;
        // To look at everything in vain takes long, and longer if other threads do it as well: a
        // signal comes first.
        if thread.is_interrupted() {
            return true;
        }
    }
    if let Scope::Group(group) = scope {
        memcgs::note(group, Event::OutOfMemory);
    }
    let Some(victim) = leaving(scope).or_else(|| kill(scope, Some(&thread.process))) else { return false };
    while !victim.threads.lock().is_empty() && !thread.process.life.lock().is_over() {
        executor::give_way().await;
    }
    true
}

/// A group may have less than it has: some is reclaimed, or one of it is killed.
pub fn enforce(group: u32) {
    let scope = Scope::Group(group);
    memcgs::note(group, Event::Max);
    while let over @ 1.. = memcgs::excess(group) {
        if !scope.reclaims(over) {
            break;
        }
    }
    if memcgs::excess(group) == 0 {
        return;
    }
    memcgs::note(group, Event::OutOfMemory);
    if leaving(scope).is_none() {
        kill(scope, None);
    }
}

/// A process that is about to give up its memory.
fn leaving(scope: Scope) -> Option<Arc<Process>> {
    let leaves = |process: &Arc<Process>| process.life.lock().is_over() && !process.threads.lock().is_empty();
    processes::all().find(|process| leaves(process) && scope.has(process))
}

fn kill(scope: Scope, wanting: Option<&Arc<Process>>) -> Option<Arc<Process>> {
    let all = scope.pages();
    let may =
        |process: &Arc<Process>| process.pid != FIRST && process.badness.load(Relaxed) > NEVER && scope.has(process);
    let counted = processes::all().filter(may).filter_map(|process| {
        let stats = stats(&process)?;
        Some((points(&process, &stats, all), process, stats))
    });
    let (points, victim, has) = counted.max_by_key(|(points, ..)| *points)?;
    say(scope, wanting, &victim, points, &has);
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

fn name(process: &Process) -> String {
    let first = process.threads.lock().values().next().map(|thread| thread.name()).unwrap_or_default();
    String::from_utf8_lossy(&first).into_owned()
}

/// Who is killed and why.
fn say(scope: Scope, wanting: Option<&Arc<Process>>, victim: &Process, points: i64, has: &SpaceStats) {
    let kib = |bytes: u64| bytes / 1024;
    match scope {
        Scope::Machine => {
            let frames = machine().frames();
            let [free, all] = [frames.free_frames(), frames.total()].map(|pages| kib(pages * FRAME_SIZE));
            let [swap, swap_free, _] = swap::bytes().map(kib);
            println!("out of memory: {free} kB of {all} kB are free, {swap_free} kB of {swap} kB of swap");
        }
        Scope::Group(group) => {
            let (path, limit) = (memcgs::path(group), kib(memcgs::limit(group) * FRAME_SIZE));
            println!("out of memory: group {} may have {limit} kB", String::from_utf8_lossy(&path));
        }
    }
    if let Some(wanting) = wanting {
        println!("out of memory: process {} ({}) wanted more", wanting.pid, name(wanting));
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
        victim.badness.load(Relaxed),
    );
}
