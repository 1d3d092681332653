//! The other processors, once `secondary` has started them: they wait for work.

use crate::arch::{interrupts, irq};
use core::hint::spin_loop;
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};

/// The number of processors that are ready, with the boot processor.
static READY: AtomicUsize = AtomicUsize::new(1);
/// What they do from [`release`] on.
static WORK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Waits until so many processors are ready, with the boot processor.
pub fn wait_until_ready(cpus: usize) {
    while READY.load(SeqCst) < cpus {
        spin_loop();
    }
}

/// Makes the other processors do `work`, of which there are `cpus - 1`.
pub fn release(cpus: usize, work: fn() -> !) {
    WORK.store(work as *mut (), SeqCst);
    (1..cpus).for_each(|cpu| irq::send(cpu, irq::KICK));
}

/// Reports that this processor is ready, and does what [`release`] gives it. Called once by each
/// other processor.
pub fn work() -> ! {
    READY.fetch_add(1, SeqCst);
    loop {
        interrupts::disable();
        let work = WORK.load(SeqCst);
        if !work.is_null() {
            interrupts::enable();
            // SAFETY: `release` alone writes it, and writes nothing but this.
            unsafe { transmute::<*mut (), fn() -> !>(work)() };
        }
        interrupts::enable_and_wait();
    }
}
