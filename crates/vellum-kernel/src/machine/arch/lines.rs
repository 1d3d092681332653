//! The devices' interrupt lines, which all lead to the boot CPU, and the CPUs that wait for a
//! device.

use crate::arch::percpu;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The CPUs that wait for a device, a bit each.
static WAITING: AtomicU64 = AtomicU64::new(0);

/// Sets whether interrupts of devices are for this CPU too.
pub fn set_waiting(waits: bool) {
    let me = 1 << percpu::current().index;
    if waits {
        WAITING.fetch_or(me, SeqCst)
    } else {
        WAITING.fetch_and(!me, SeqCst)
    };
}

/// A line rose: marks this CPU's record for the loops that serve devices, and calls `kick` with
/// each other CPU that waits.
pub fn rose(kick: impl Fn(usize)) {
    let cpu = percpu::current();
    cpu.tick.store(true, SeqCst);
    let mut others = WAITING.load(SeqCst) & !(1 << cpu.index);
    while others != 0 {
        kick(others.trailing_zeros() as usize);
        others &= others - 1;
    }
}
