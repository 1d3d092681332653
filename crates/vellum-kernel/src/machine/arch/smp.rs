//! The other CPUs: after `secondary` has started them, they wait for work.

use crate::arch::{interrupts, irq};
use core::hint::spin_loop;
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};

/// The number of ready CPUs, including the boot CPU.
static READY: AtomicUsize = AtomicUsize::new(1);
/// The function that the other CPUs run once [`release`] sets it.
static WORK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Waits until `cpus` CPUs are ready, including the boot CPU.
pub fn wait_until_ready(cpus: usize) {
    while READY.load(SeqCst) < cpus {
        spin_loop();
    }
}

/// Makes the other `cpus - 1` CPUs run `work`.
pub fn release(cpus: usize, work: fn() -> !) {
    WORK.store(work as *mut (), SeqCst);
    (1..cpus).for_each(|cpu| irq::send(cpu, irq::KICK));
}

/// Reports this CPU as ready, and runs the function that [`release`] sets. Called once by each CPU
/// other than the boot CPU.
pub fn work() -> ! {
    READY.fetch_add(1, SeqCst);
    loop {
        interrupts::disable();
        let work = WORK.load(SeqCst);
        if !work.is_null() {
            interrupts::enable();
            // SAFETY: only `release` writes `WORK`, and writes a `fn() -> !`.
            unsafe { transmute::<*mut (), fn() -> !>(work)() };
        }
        interrupts::enable_and_wait();
    }
}
