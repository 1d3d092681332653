//! Where there is time, small pages become huge ones: a task looks at so many of them every so often, one address space after the other
//! (Linux: `khugepaged`).

use crate::mem::{now_ns, spaces};
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

/// A huge page's pages.
pub const PAGES: u64 = 1 << HUGE_ORDER;

/// A number that a program may set.
pub struct Setting {
    value: AtomicU64,
    /// The least and the most that it may be.
    pub range: [u64; 2],
}

impl Setting {
    const fn new(value: u64, range: [u64; 2]) -> Setting {
        Setting { value: AtomicU64::new(value), range }
    }

    /// What it is.
    pub fn get(&self) -> u64 {
        self.value.load(Relaxed)
    }

    /// What it is from now on: the task looks at it at once.
    pub fn set(&self, value: u64) {
        self.value.store(value, Relaxed);
        TURNED.fetch_add(1, Relaxed);
        CHANGED.wake_all();
    }
}

/// Pages that are looked at each time.
pub static PAGES_TO_SCAN: Setting = Setting::new(8 * PAGES, [1, u32::MAX as u64]);
/// How long to wait until the next time.
pub static SCAN_SLEEP: Setting = Setting::new(10_000, [0, u32::MAX as u64]);
/// How long, when there was no memory.
pub static ALLOC_SLEEP: Setting = Setting::new(60_000, [0, u32::MAX as u64]);
/// How many pages of a huge one may be missing, swapped out, or others' too.
pub static MAX_NONE: Setting = Setting::new(PAGES - 1, [0, PAGES - 1]);
/// See [`MAX_NONE`].
pub static MAX_SWAP: Setting = Setting::new(PAGES / 8, [0, PAGES - 1]);
/// See [`MAX_NONE`].
pub static MAX_SHARED: Setting = Setting::new(PAGES / 2, [0, PAGES - 1]);

/// How often a setting was turned.
static TURNED: AtomicU64 = AtomicU64::new(0);
static CHANGED: Queue = Queue::new();
static COLLAPSED: AtomicU64 = AtomicU64::new(0);
static ROUNDS: AtomicU64 = AtomicU64::new(0);

/// How many folios have become of smaller pieces here.
pub fn collapsed() -> u64 {
    COLLAPSED.load(Relaxed)
}

/// How often all address spaces were gone through.
pub fn rounds() -> u64 {
    ROUNDS.load(Relaxed)
}

/// The task.
pub async fn run() {
    let mut at = (SpaceId(0), 0);
    let mut wait = &SCAN_SLEEP;
    loop {
        sleep(wait).await;
        wait = if scan(&mut at).await { &SCAN_SLEEP } else { &ALLOC_SLEEP };
    }
}

/// Until so much time has passed since it began, however often that is turned meanwhile.
async fn sleep(setting: &Setting) {
    let began = now_ns();
    loop {
        let turned = TURNED.load(Relaxed);
        let deadline = began.saturating_add(setting.get().saturating_mul(1_000_000));
        let mut over = pin!(time::until(deadline));
        let mut changed = pin!(CHANGED.wait_until(|| (TURNED.load(Relaxed) != turned).then_some(())));
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

/// Looks at as many pages as are to be looked at, from where it was left off; at the end of the last space it ends. Whether there was
/// memory.
async fn scan(at: &mut (SpaceId, u64)) -> bool {
    let pages = |limit: &Setting| limit.get() as u32;
    let limits = CollapseLimits { none: pages(&MAX_NONE), swapped: pages(&MAX_SWAP), shared: pages(&MAX_SHARED) };
    let mut left = PAGES_TO_SCAN.get();
    while let Some(space) = spaces::next(at.0) {
        if space.engine.id() != at.0 {
            *at = (space.engine.id(), 0);
        }
        match space.engine.collapse_some(at.1, left, &limits) {
            Ok(done) => {
                COLLAPSED.fetch_add(done.collapsed, Relaxed);
                left = left.saturating_sub(done.scanned);
                if let Some(next) = done.next {
                    at.1 = next;
                    return true;
                }
            }
            // Others may have more.
            Err(CollapseError::NoMemory(Refused::OverLimit(_))) => {}
            Err(_) => return false,
        }
        *at = (SpaceId(at.0.0 + 1), 0);
        executor::give_way().await;
    }
    *at = (SpaceId(0), 0);
    ROUNDS.fetch_add(1, Relaxed);
    true
}
