//! Memory runs out: somebody is killed for it.

use crate::mem::machine;
use crate::task::Process;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vellum::addr::FRAME_SIZE;

static KILLED: AtomicU64 = AtomicU64::new(0);

/// How many were killed for memory.
pub fn killed() -> u64 {
    KILLED.load(Relaxed)
}

/// How much sooner than others a process is to be killed, in thousandths of the machine's memory: what it has, and what was said
/// of it (`oom_score_adj`).
pub fn score(process: &Process) -> u64 {
    let memory = process.memory.lock().clone();
    let stats = memory.map(|memory| memory.engine.stats()).unwrap_or_default();
    let has = (stats.anon + stats.file + stats.shmem + stats.swap + stats.tables) / FRAME_SIZE;
    let thousandths = (has * 1000 / machine().frames().total().max(1)) as i64;
    (thousandths + i64::from(process.badness.load(Relaxed))).max(0) as u64
}
