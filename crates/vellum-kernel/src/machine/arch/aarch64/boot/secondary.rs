//! The other processors, started by PSCI.

use super::devicetree;
use crate::arch::aarch64::vectors;
use crate::arch::boot::boot_other;
use crate::arch::clock::Clock;
use crate::arch::kernel_map::image_to_phys;
use crate::arch::percpu;
use crate::arch::{cpu, irq, paging, smp};
use smccc::{Hvc, psci};

/// Starts the clock, of instructions if they are `counted`, and all processors; how many there are. The others wait for [`smp::release`].
///
/// # Safety
///
/// To be called once, on the boot processor, when it has its final tables.
pub unsafe fn start(counted: bool) -> (Clock, usize) {
    // SAFETY: by contract.
    let clock = unsafe { Clock::start(counted) };
    irq::init_all(devicetree::processors().count());
    irq::init();
    let entry = image_to_phys(boot_other as *const () as u64);
    let mut cpus = 1;
    for name in devicetree::processors().skip(1) {
        // One after the other, so that there is none of an index above one that is missing.
        if psci::cpu_on::<Hvc>(name, entry, cpus as u64).is_err() {
            break;
        }
        cpus += 1;
        smp::wait_until_ready(cpus);
    }
    (clock, cpus)
}

/// What the firmware calls a processor.
pub fn name(cpu: usize) -> u64 {
    devicetree::processors().nth(cpu).unwrap_or(0)
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
    smp::work()
}
