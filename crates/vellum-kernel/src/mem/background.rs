//! Memory is reclaimed before it runs out, by a task beside those who use it (Linux: `kswapd`).
//!
//! Whoever has a fault looks now and then whether little is free. Then the task is woken, and let go first; it reclaims until enough
//! is free. So those who want memory seldom have to wait until some has been found for them.

use crate::mem::reclaim::{Who, reclaim};
use crate::mem::{machine, now_ns};
use crate::percpu;
use crate::task::{executor, time};
use core::future::poll_fn;
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use core::task::{Poll, Waker};
use spin::{Mutex, Once};
use vellum::group::GroupId;

/// A fault of so many looks.
const OFTEN: u32 = 16;
/// Pages that are reclaimed before others are let go on.
const AT_ONCE: u64 = 256;
/// No more is kept free for who comes next, in frames: 16 MiB.
const MOST: u64 = 4096;
/// How long nothing is tried once nothing was found, in nanoseconds.
const PAUSE: u64 = 100_000_000;

/// Whether the task is at work, or about to be.
static AT_WORK: AtomicBool = AtomicBool::new(false);
static WAKER: Mutex<Option<Waker>> = Mutex::new(None);

/// With less than the first free, the task is woken; with the second, it stops. In frames.
fn marks() -> [u64; 2] {
    static MARKS: Once<[u64; 2]> = Once::new();
    *MARKS.call_once(|| {
        let frames = machine().frames();
        let (kept, part) = (frames.kept(), (frames.total() / 32).min(MOST));
        [kept + part, kept + 2 * part]
    })
}

/// To be called after a fault. Whether its thread had better let others go first, because the task was woken.
pub fn look() -> bool {
    let cpu = percpu::current();
    let faults = cpu.faults.get();
    cpu.faults.set(faults.wrapping_add(1));
    if !faults.is_multiple_of(OFTEN) || AT_WORK.load(SeqCst) || machine().frames().free_frames() >= marks()[0] {
        return false;
    }
    if AT_WORK.swap(true, SeqCst) {
        return false;
    }
    let waker = WAKER.lock().take();
    waker.inspect(Waker::wake_by_ref).is_some()
}

/// Has the task ready.
pub fn start() {
    executor::spawn(run());
}

async fn run() {
    loop {
        poll_fn(|context| {
            *WAKER.lock() = Some(context.waker().clone());
            if AT_WORK.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        while machine().frames().free_frames() < marks()[1] {
            if reclaim(Who::Background, GroupId::ROOT, AT_ONCE) == 0 {
                time::until(now_ns() + PAUSE).await;
                break;
            }
            executor::give_way().await;
        }
        AT_WORK.store(false, SeqCst);
    }
}
