//! The start of the storage task, and the flusher (Linux: the flusher threads). It has all dirty
//! pages written from time to time (`dirty_writeback_centisecs`), and those of a memcg at once if
//! they are more than the memcg's background limit.
//!
//! The limits are shares of the memory that may hold dirty pages, which is what is free or has
//! pages of files: on the machine `dirty_background_ratio` and `dirty_ratio`, or the numbers of
//! bytes. A memcg with a limit of its own has the same shares of what it may use.

use super::{block, contents, ext4};
use crate::mem::storage_task::Task;
use crate::mem::throttle::{self, FLUSHER};
use crate::mem::{machine, memcgs, now_ns, storage};
use crate::task::{executor, time};
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;
use spin::Mutex;
use vellum::addr::FRAME_SIZE;
use vellum::memcg::{DirtyLimits, LruList, MemcgId};
use vellum::page_cache::Writeback;
use vellum::stats::Counter;

/// The settings of `/proc/sys/vm` for dirty pages.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Background limit and limit in bytes; 0: by the ratio.
    pub bytes: [u64; 2],
    /// Background limit and limit in percent of the available memory.
    pub ratios: [u64; 2],
    /// The time between two rounds, in hundredths of a second; 0: there are none.
    pub interval: u64,
}

impl Settings {
    /// The settings at the start, which are Linux's.
    pub const USUAL: Settings = Settings { bytes: [0; 2], ratios: [10, 20], interval: 500 };
}

static SETTINGS: Mutex<Settings> = Mutex::new(Settings::USUAL);

/// The pages of a file that are written before the next file's turn: 4 MiB.
const AT_ONCE: u64 = 1024;
/// The pause after nothing could be written, in nanoseconds.
const PAUSE: u64 = 100_000_000;
/// The time between two looks for threads whose turn is over because pages were truncated, in
/// nanoseconds.
const LOOK: u64 = 200_000_000;

/// Starts the tasks, if a file has a store.
pub fn start() {
    let Some(task) = Task::new() else { return };
    update_limits();
    executor::spawn_first(task.run());
    executor::spawn(flush());
}

/// The flusher's work.
async fn flush() {
    let mut last_round = now_ns();
    loop {
        let interval = SETTINGS.lock().interval * 10_000_000;
        let next_round = if interval == 0 { u64::MAX } else { last_round.saturating_add(interval) };
        match machine().memcgs().throttle().next_wanting_writeback(None) {
            Some(memcg) if write_some(memcg).await => {}
            Some(_) => time::until(now_ns() + PAUSE).await,
            None => wait(next_round).await,
        }
        if now_ns() >= next_round {
            last_round = now_ns();
            write_dirty().await;
        }
        update_limits();
        throttle::wake();
    }
}

/// Waits until a memcg has more dirty pages than its background limit, or until the time of the
/// next round. Wakes threads whose turn is over meanwhile.
async fn wait(next_round: u64) {
    let mut work = FLUSHER.wait_until(|| machine().memcgs().throttle().next_wanting_writeback(None));
    loop {
        let look = (now_ns() + LOOK).min(next_round);
        let mut sleep = pin!(time::until(if throttle::is_empty() { next_round } else { look }));
        let has_work = poll_fn(|context| match pin!(&mut work).poll(context) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending => sleep.as_mut().poll(context).map(|()| false),
        });
        if has_work.await || now_ns() >= next_round {
            return;
        }
        throttle::wake();
    }
}

/// Has dirty pages of a memcg and its descendants written, some of each file in turn, until they
/// are no more than its background limit, or each file had its turn. Returns whether a write began.
async fn write_some(memcg: MemcgId) -> bool {
    let mut wrote = false;
    for contents in contents::all_stored() {
        let Ok(before) = machine().memcgs().counters(memcg) else { return false };
        if before.dirty <= before.dirty_limits.background {
            break;
        }
        storage::room().await;
        wrote |= contents.write_some(memcg, AT_ONCE);
        executor::yield_now().await;
    }
    wrote
}

/// Has all dirty pages written.
async fn write_dirty() {
    for contents in contents::all_stored() {
        storage::room().await;
        // A later round writes the pages for which memory is short now.
        let _ = contents.write_back(&mut Writeback::start(0..u64::MAX));
        executor::yield_now().await;
    }
    // `fsync` reports the errors of a file's own. (Linux: jbd2 commits every 5 s.)
    let _ = ext4::sync_all();
}

/// Sets the limits of dirty pages, by the memory that may hold them now.
pub fn update_limits() {
    let (frames, counters) = (machine().frames(), |memcg| machine().memcgs().counters(memcg));
    let available = frames.free_frames() + machine().counter(Counter::FilePages);
    let _ = machine().memcgs().throttle().set_limits(MemcgId::ROOT, limits(available, available));
    memcgs::table().each_numbered(|engine, below| {
        let Ok(counters) = counters(engine) else { return };
        let files = below.filter_map(|memcg| machine().memcgs().usage(frames, memcg).ok());
        let files: u64 =
            files.map(|usage| usage.lru[LruList::File as usize] + usage.lru[LruList::ActiveFile as usize]).sum();
        let own = counters.limit.saturating_sub(counters.charged) + files;
        let limits = if counters.limit == u64::MAX { DirtyLimits::NONE } else { limits(own.min(available), available) };
        let _ = machine().memcgs().throttle().set_limits(engine, limits);
    });
}

/// Returns the limits for a part of the machine's available memory, both in pages.
fn limits(part: u64, available: u64) -> DirtyLimits {
    let Settings { bytes, ratios, .. } = *SETTINGS.lock();
    let share = |bytes: u64, ratio: u64| match bytes {
        0 => part * ratio / 100,
        bytes => (u128::from(bytes / FRAME_SIZE) * u128::from(part) / u128::from(available.max(1))) as u64,
    };
    let [background, limit] = [0, 1].map(|which: usize| share(bytes[which], ratios[which]));
    DirtyLimits { limit, background: if background >= limit { limit / 2 } else { background } }
}

/// Follows new settings from now on.
pub fn follow(settings: Settings) {
    *SETTINGS.lock() = settings;
    update_limits();
    FLUSHER.wake_all();
}

/// Has everything written that a disk is to keep, and unmounts: the machine is about to stop.
pub async fn finish() {
    write_all().await;
    ext4::end_all();
    block::flush_all();
}

/// Has all dirty pages written, and waits.
pub async fn write_all() {
    for contents in contents::all_stored() {
        contents.write_all().await;
    }
}
