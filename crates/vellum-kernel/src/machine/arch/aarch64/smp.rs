//! The other processors, started by PSCI.

use super::{devicetree, vectors};
use crate::arch::boot::boot_other;
use crate::arch::clock::Clock;
use crate::arch::percpu;
use crate::arch::{cpu, interrupts, irq, paging};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};
use smccc::{Hvc, psci};

/// How many processors are ready.
static READY: AtomicUsize = AtomicUsize::new(1);
/// What they do from [`release`] on.
static WORK: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Starts the clock, of instructions if they are `counted`, and all processors; how many there are. The others wait for [`release`].
///
/// # Safety
///
/// To be called once, on the boot processor, when it has its final tables.
pub unsafe fn start(counted: bool) -> (Clock, usize) {
    // SAFETY: by contract.
    let clock = unsafe { Clock::start(counted) };
    irq::init_all(devicetree::processors().count());
    irq::init();
    let entry = paging::image_to_phys(boot_other as *const () as u64);
    let mut cpus = 1;
    for name in devicetree::processors().skip(1) {
        // One after the other, so that there is none of an index above one that is missing.
        if psci::cpu_on::<Hvc>(name, entry, cpus as u64).is_err() {
            break;
        }
        cpus += 1;
        while READY.load(SeqCst) < cpus {
            core::hint::spin_loop();
        }
    }
    (clock, cpus)
}

/// What the firmware calls a processor.
pub fn name(cpu: usize) -> u64 {
    devicetree::processors().nth(cpu).unwrap_or(0)
}

/// Lets the other processors work.
pub fn release(cpus: usize, work: fn() -> !) {
    WORK.store(work as *mut (), SeqCst);
    (1..cpus).for_each(|cpu| irq::send(cpu, irq::KICK));
}

/// The first Rust code of another processor.
pub extern "C" fn begin(index: usize) -> ! {
    // SAFETY: once on each processor, in the order that they ask for; the index is its own. The kernel's tables map all
    // that the boot tables do and this code uses.
    unsafe {
        percpu::install(index);
        vectors::install();
        cpu::init();
        paging::adopt();
    }
    irq::init();
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
