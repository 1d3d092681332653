//! Background reclaim: a kernel task reclaims memory before free memory runs out (Linux: kswapd).
//!
//! After each page fault the faulting thread checks whether free memory is below its mark. If so it
//! wakes the task and yields to it. The task reclaims until enough memory is free, so that threads
//! seldom have to reclaim directly.

use crate::mem::reclaim::{Reason, reclaim};
use crate::mem::{machine, now_ns};
use crate::task::{executor, time};
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use core::task::{Poll, Waker};
use spin::Mutex;
use vellum::memcg::MemcgId;
use vellum::reclaim::ReclaimScope;

/// The pages to reclaim before the task yields.
const AT_ONCE: u64 = 256;
/// The pause after nothing could be reclaimed, in nanoseconds.
const PAUSE: u64 = 100_000_000;

/// True if the task runs or is about to.
static AT_WORK: AtomicBool = AtomicBool::new(false);
static WAKER: Mutex<Option<Waker>> = Mutex::new(None);

/// Wakes the task if free memory is low. Returns whether it is, in which case the calling thread
/// should yield. Called after each page fault.
#[inline]
pub fn wake_if_low() -> bool {
    machine().frames().shortage() > 0 && {
        wake();
        true
    }
}

/// Wakes the task unless it is at work.
#[cold]
fn wake() {
    if !AT_WORK.swap(true, SeqCst) {
        let waker = WAKER.lock().take();
        waker.iter().for_each(Waker::wake_by_ref);
    }
}

/// Starts the task.
pub fn start() {
    executor::spawn_first(run());
}

/// Sleeps until woken, then reclaims on each node until none is short or nothing can be reclaimed.
async fn run() {
    loop {
        poll_fn(|context| {
            *WAKER.lock() = Some(context.waker().clone());
            if AT_WORK.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        loop {
            let frames = machine().frames();
            if frames.shortage() == 0 {
                break;
            }
            // Reclaim on each node that is short of memory.
            let found: u64 = (0..frames.nodes())
                .map(|node| (node, frames.shortage_on(node).min(AT_ONCE)))
                .filter(|(_, missing)| *missing > 0)
                .map(|(node, missing)| {
                    reclaim(Reason::Background, ReclaimScope { memcg: MemcgId::ROOT, node: Some(node) }, missing)
                })
                .sum();
            if found == 0 {
                time::until(now_ns() + PAUSE).await;
                break;
            }
            executor::yield_now().await;
        }
        AT_WORK.store(false, SeqCst);
    }
}
