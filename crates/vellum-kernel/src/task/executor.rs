//! Who may run, and on which processor.
//!
//! One queue serves all processors: whoever is woken goes to its end, and a processor with nothing to do takes from its
//! front. A processor that finds it empty halts, and says so before it looks a last time; so whoever adds to the queue
//! either is seen or sees an idle processor to kick.

use crate::arch::{interrupts, irq};
use crate::mem::space;
use crate::percpu;
use crate::task::time;
use alloc::collections::VecDeque;
use async_task::Runnable;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use spin::Mutex;

static QUEUE: Mutex<VecDeque<Runnable>> = Mutex::new(VecDeque::new());
/// The processors that halt, or are about to, a bit each.
static IDLE: AtomicU64 = AtomicU64::new(0);
/// How many wait in the queue.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Starts a task.
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    let (runnable, task) = async_task::spawn(future, push);
    task.detach();
    runnable.schedule();
}

fn push(runnable: Runnable) {
    QUEUE.lock().push_back(runnable);
    WAITING.fetch_add(1, Ordering::SeqCst);
    let idle = IDLE.load(Ordering::SeqCst);
    if idle != 0 {
        // Struck off by whoever kicks it, so that the next to be woken finds another.
        let chosen = idle & idle.wrapping_neg();
        if IDLE.fetch_and(!chosen, Ordering::SeqCst) & chosen != 0 {
            irq::send(chosen.trailing_zeros() as usize, irq::KICK);
        }
    }
}

/// Whether somebody waits for a processor.
#[inline]
pub fn others_wait() -> bool {
    WAITING.load(Ordering::Relaxed) > 0
}

fn pop() -> Option<Runnable> {
    if !others_wait() {
        return None;
    }
    let runnable = QUEUE.lock().pop_front()?;
    WAITING.fetch_sub(1, Ordering::SeqCst);
    Some(runnable)
}

/// What a processor does from now on.
pub fn run() -> ! {
    loop {
        while let Some(runnable) = pop() {
            runnable.run();
            time::expire();
        }
        space::unload();
        interrupts::disable();
        time::arm_for_sleepers();
        let me = 1 << percpu::current().index;
        IDLE.fetch_or(me, Ordering::SeqCst);
        if WAITING.load(Ordering::SeqCst) > 0 || percpu::current().tick.load(Ordering::Relaxed) {
            interrupts::enable();
        } else {
            interrupts::enable_and_wait();
        }
        IDLE.fetch_and(!me, Ordering::SeqCst);
        time::expire();
    }
}

/// Lets others go first.
pub async fn give_way() {
    let mut gave_way = false;
    core::future::poll_fn(|context| {
        if core::mem::replace(&mut gave_way, true) {
            return core::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        percpu::current().gave_way.set(true);
        core::task::Poll::Pending
    })
    .await;
}
