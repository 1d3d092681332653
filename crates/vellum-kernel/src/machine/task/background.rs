//! Memory is reclaimed before it runs out, by a task beside those who use it (Linux: `kswapd`).
//!
//! Whoever has a fault looks whether little is free. Then the task is woken, and let go first; it reclaims until enough is free. So those who want memory seldom have to wait until some has been found for them.

use crate::mem::reclaim::{Who, reclaim};
use crate::mem::{machine, now_ns};
use crate::task::{executor, time};
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use core::task::{Poll, Waker};
use spin::Mutex;
use vellum::memcg::MemcgId;
use vellum::reclaim::ReclaimScope;

/// Pages that are reclaimed before others are let go on.
const AT_ONCE: u64 = 256;
/// How long nothing is tried once nothing was found, in nanoseconds.
const PAUSE: u64 = 100_000_000;

/// Whether the task is at work, or about to be.
static AT_WORK: AtomicBool = AtomicBool::new(false);
static WAKER: Mutex<Option<Waker>> = Mutex::new(None);

/// To be called after a fault. Whether its thread had better let the task go first.
#[inline]
pub fn look() -> bool {
    machine().frames().shortage() > 0 && {
        wake();
        true
    }
}

#[cold]
fn wake() {
    if !AT_WORK.swap(true, SeqCst) {
        let waker = WAKER.lock().take();
        waker.iter().for_each(Waker::wake_by_ref);
    }
}

/// Has the task ready.
pub fn start() {
    executor::spawn_first(run());
}

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
            // Of each node what that lacks.
            let found: u64 = (0..frames.nodes())
                .map(|node| (node, frames.shortage_on(node).min(AT_ONCE)))
                .filter(|(_, missing)| *missing > 0)
                .map(|(node, missing)| {
                    reclaim(Who::Background, ReclaimScope { memcg: MemcgId::ROOT, node: Some(node) }, missing)
                })
                .sum();
            if found == 0 {
                time::until(now_ns() + PAUSE).await;
                break;
            }
            executor::give_way().await;
        }
        AT_WORK.store(false, SeqCst);
    }
}
