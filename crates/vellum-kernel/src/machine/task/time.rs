//! Waiting for a moment.
//!
//! All who wait are in one ordered map. Each processor's timer is set for the first of them, or for the end of the turn of the
//! thread it runs, whichever is sooner; whichever processor's fires, wakes them.

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

/// How long a thread may run while others wait: 10 ms.
pub const TURN: u64 = 10_000_000;
/// The timer's longest reach: 2 s.
const REACH: u64 = 2_000_000_000;

static SLEEPERS: Shared<BTreeMap<(u64, u64), Waker>> = Shared::new(BTreeMap::new());
/// When the first of them wants to be woken.
static FIRST: AtomicU64 = AtomicU64::new(u64::MAX);
/// See [`set_input`].
static LOOK: Once<fn()> = Once::new();
static NUMBERS: AtomicU64 = AtomicU64::new(0);

/// Has `look` called after each interrupt of the timer or of an input device, on the CPU that was interrupted, outside the
/// interrupt handler: it wakes the tasks that wait for input. Called once.
pub fn set_input(look: fn()) {
    LOOK.call_once(|| look);
}

/// Waits until the clock says so many nanoseconds.
pub fn until(deadline: u64) -> Sleep {
    Sleep { key: (deadline, NUMBERS.fetch_add(1, Ordering::Relaxed)) }
}

/// See [`until`].
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

/// Deals with what an interrupt has told: wakes whoever has waited long enough, or for the wire.
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

/// Sets this processor's timer before user mode: for the first sleeper, or for the end of a turn. Interrupts are off.
#[inline]
pub fn arm_for_turn() {
    let armed = percpu::current().armed.get();
    let first = FIRST.load(Ordering::SeqCst);
    if armed == u64::MAX || first < armed {
        arm(first.min(now_ns() + TURN).min(armed));
    }
}

/// Sets this processor's timer before it halts: for the first sleeper. Interrupts are off.
pub fn arm_for_sleepers() {
    let first = FIRST.load(Ordering::SeqCst);
    if first < percpu::current().armed.get() {
        arm(first);
    }
}

#[cold]
fn arm(wanted: u64) {
    percpu::current().armed.set(wanted);
    irq::arm(wanted.saturating_sub(now_ns()).clamp(1, REACH));
}
