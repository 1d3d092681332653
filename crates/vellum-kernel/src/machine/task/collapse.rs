//! Collapses small pages into huge ones in the background: a task scans a number of pages at
//! intervals, one address space after the other (Linux: khugepaged).

use crate::mem::spaces::{self, All};
use crate::mem::{Object, now_ns};
use crate::task::{executor, time};
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::task::Poll;
use vellum::frame::HUGE_ORDER;
use vellum::memcg::Refused;
use vellum::platform::SpaceId;
use vellum::space::{CollapseError, CollapseLimits};
use vellum_kernel::wait::Queue;

/// The number of small pages in a huge one.
pub const PAGES: u64 = 1 << HUGE_ORDER;

/// A setting that a program may change.
pub struct Setting {
    value: AtomicU64,
    /// The smallest and the largest value allowed.
    pub range: [u64; 2],
}

impl Setting {
    const fn new(value: u64, range: [u64; 2]) -> Setting {
        Setting { value: AtomicU64::new(value), range }
    }

    /// Returns the value.
    pub fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }

    /// Sets the value. The task takes it into account at once, even while it sleeps.
    pub fn set(&self, value: u64) {
        self.value.store(value, Relaxed);
        CHANGES.fetch_add(1, Relaxed);
        CHANGED.wake_all();
    }
}

/// The number of pages scanned before each sleep (`pages_to_scan`).
pub static PAGES_TO_SCAN: Setting = Setting::new(8 * PAGES, [1, u32::MAX as u64]);
/// The sleep between scans, in milliseconds (`scan_sleep_millisecs`).
pub static SCAN_SLEEP: Setting = Setting::new(10_000, [0, u32::MAX as u64]);
/// The sleep after memory was short, in milliseconds (`alloc_sleep_millisecs`).
pub static ALLOC_SLEEP: Setting = Setting::new(60_000, [0, u32::MAX as u64]);
/// The number of pages of a huge page that may be unmapped (`max_ptes_none`).
pub static MAX_NONE: Setting = Setting::new(PAGES - 1, [0, PAGES - 1]);
/// The number of pages of a huge page that may be swapped out (`max_ptes_swap`).
pub static MAX_SWAP: Setting = Setting::new(PAGES / 8, [0, PAGES - 1]);
/// The number of pages of a huge page that may be shared with other spaces (`max_ptes_shared`).
pub static MAX_SHARED: Setting = Setting::new(PAGES / 2, [0, PAGES - 1]);

/// The number of changes of settings.
static CHANGES: AtomicU64 = AtomicU64::new(0);
static CHANGED: Queue = Queue::new();
static COLLAPSED: AtomicU64 = AtomicU64::new(0);
static ROUNDS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of folios that the task has collapsed (`pages_collapsed`).
pub fn collapsed() -> u64 {
    COLLAPSED.load(Relaxed)
}

/// Returns the number of full scans of all address spaces (`full_scans`).
pub fn rounds() -> u64 {
    ROUNDS.load(Relaxed)
}

/// Runs the task.
pub async fn run() {
    let mut at = (SpaceId(0), 0);
    let mut wait = &SCAN_SLEEP;
    loop {
        sleep(wait).await;
        wait = if scan(&mut at).await { &SCAN_SLEEP } else { &ALLOC_SLEEP };
    }
}

/// Sleeps until the setting's time has passed since the call. A change of the setting meanwhile
/// applies to the same sleep.
async fn sleep(setting: &Setting) {
    let began = now_ns();
    loop {
        let changes = CHANGES.load(Relaxed);
        let deadline = began.saturating_add(setting.get().saturating_mul(1_000_000));
        let mut over = pin!(time::until(deadline));
        let mut changed = pin!(CHANGED.wait_until(|| (CHANGES.load(Relaxed) != changes).then_some(())));
        poll_fn(|context| match (over.as_mut().poll(context), changed.as_mut().poll(context)) {
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            _ => Poll::Ready(()),
        })
        .await;
        if now_ns() >= deadline {
            return;
        }
    }
}

/// Scans as many pages as `PAGES_TO_SCAN` demands, from the position `at` on, but not beyond the
/// last space. Returns false if memory was short.
async fn scan(at: &mut (SpaceId, u64)) -> bool {
    let pages = |limit: &Setting| limit.get() as u32;
    let limits = CollapseLimits { none: pages(&MAX_NONE), swapped: pages(&MAX_SWAP), shared: pages(&MAX_SHARED) };
    let mut left = PAGES_TO_SCAN.get();
    while let Some(space) = spaces::next(at.0) {
        if space.engine.id() != at.0 {
            *at = (space.engine.id(), 0);
        }
        let collapse = |object: &Object, page| vellum::space::collapse_object(&All, object, page, space.engine.memcg());
        match space.engine.collapse_some(at.1, left, &limits, collapse) {
            Ok(done) => {
                COLLAPSED.fetch_add(done.collapsed, Relaxed);
                left = left.saturating_sub(done.scanned);
                if let Some(next) = done.next {
                    at.1 = next;
                    return true;
                }
            }
            // The memcg of this space is at its limit. Spaces of other memcgs may still be
            // collapsed.
            Err(CollapseError::NoMemory(Refused::OverLimit(_))) => {}
            Err(_) => return false,
        }
        *at = (SpaceId(at.0.0 + 1), 0);
        executor::yield_now().await;
    }
    *at = (SpaceId(0), 0);
    ROUNDS.fetch_add(1, Relaxed);
    true
}
