//! Sleeping until a deadline.
//!
//! All sleepers are in one map, ordered by deadline. Each CPU arms its timer for the first deadline
//! or for the end of its thread's time slice, whichever is sooner. Any CPU whose timer fires wakes
//! the sleepers that are due.

use crate::arch::irq;
use crate::mem::now_ns;
use crate::mem::payer::Shared;
use crate::task::percpu;
use alloc::collections::BTreeMap;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll, Waker};
use spin::Once;

/// The time slice: 10 ms for which a thread may run while others wait.
pub const TIME_SLICE: u64 = 10_000_000;
/// The longest time for which a timer is armed: 2 s.
const REACH: u64 = 2_000_000_000;

/// The sleepers by deadline, and by a serial number among equals.
static SLEEPERS: Shared<BTreeMap<(u64, u64), Waker>> = Shared::new(BTreeMap::new());
/// The first sleeper's deadline, or `u64::MAX`.
static FIRST: AtomicU64 = AtomicU64::new(u64::MAX);
/// The function that [`set_input`] set.
static LOOK: Once<fn()> = Once::new();
/// The serial number of the next sleeper.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// Sets the function that is called after each interrupt of the timer or of an input device, on the
/// interrupted CPU, outside the interrupt handler: it wakes tasks that wait for input. Called once.
pub fn set_input(look: fn()) {
    LOOK.call_once(|| look);
}

/// Returns a future that waits until the clock reaches `deadline`, in nanoseconds.
pub fn until(deadline: u64) -> Sleep {
    Sleep { key: (deadline, NUMBERS.fetch_add(1, Ordering::Relaxed)) }
}

/// The future that [`until`] returns. Dropping it cancels the sleep.
pub struct Sleep {
    key: (u64, u64),
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context) -> Poll<()> {
        if now_ns() >= self.key.0 {
            return Poll::Ready(());
        }
        let mut sleepers = SLEEPERS.lock();
        sleepers.insert(self.key, context.waker().clone());
        FIRST.fetch_min(self.key.0, Ordering::SeqCst);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        SLEEPERS.lock().remove(&self.key);
    }
}

/// Handles a pending tick: wakes sleepers whose deadline has passed, and tasks that wait for input.
pub fn expire() {
    let cpu = percpu::current();
    if cpu.mem.arch.tick.swap(false, Ordering::Relaxed) {
        cpu.armed.set(u64::MAX);
        if let Some(look) = LOOK.get() {
            look();
        }
    }
    if FIRST.load(Ordering::Relaxed) > now_ns() {
        return;
    }
    let mut sleepers = SLEEPERS.lock();
    let later = sleepers.split_off(&(now_ns() + 1, 0));
    let due = core::mem::replace(&mut *sleepers, later);
    FIRST.store(sleepers.first_key_value().map_or(u64::MAX, |(key, _)| key.0), Ordering::SeqCst);
    drop(sleepers);
    due.into_values().for_each(Waker::wake);
}

/// Arms this CPU's timer before user mode, for the first sleeper or for the end of a time slice.
/// Interrupts are off.
#[inline]
pub fn arm_for_time_slice() {
    let armed = percpu::current().armed.get();
    let first = FIRST.load(Ordering::SeqCst);
    if armed == u64::MAX || first < armed {
        arm(first.min(now_ns() + TIME_SLICE).min(armed));
    }
}

/// Arms this CPU's timer before it halts, for the first sleeper. Interrupts are off.
pub fn arm_for_sleepers() {
    let first = FIRST.load(Ordering::SeqCst);
    if first < percpu::current().armed.get() {
        arm(first);
    }
}

/// Arms this CPU's timer for the time `wanted`, but for at most [`REACH`] from now.
#[cold]
fn arm(wanted: u64) {
    percpu::current().armed.set(wanted);
    irq::arm(wanted.saturating_sub(now_ns()).clamp(1, REACH));
}
