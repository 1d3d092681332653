//! Starts the other CPUs through PSCI.

use super::devicetree;
use crate::arch::aarch64::vectors;
use crate::arch::boot::boot_other;
use crate::arch::clock::Clock;
use crate::arch::kernel_map::image_to_phys;
use crate::arch::percpu;
use crate::arch::{cpu, irq, paging, smp};
use smccc::{Hvc, psci};

/// Starts the clock (`counted` is passed to [`Clock::start`]) and all CPUs. Returns the clock and
/// the number of CPUs. The other CPUs wait for [`smp::release`].
///
/// # Safety
///
/// Called once, on the boot CPU, after the final page tables are loaded.
pub unsafe fn start(counted: bool) -> (Clock, usize) {
    // SAFETY: [`Clock::start`] demands nothing on AArch64.
    let clock = unsafe { Clock::start(counted) };
    irq::init_all(devicetree::processors().count());
    irq::init();
    let entry = image_to_phys(boot_other as *const () as u64);
    let mut cpus = 1;
    for name in devicetree::processors().skip(1) {
        // Start one CPU after the other, so that indices have no gap if one fails.
        if psci::cpu_on::<Hvc>(name, entry, cpus as u64).is_err() {
            break;
        }
        cpus += 1;
        smp::wait_until_ready(cpus);
    }
    (clock, cpus)
}

/// Returns the firmware's name of a CPU: its affinity.
pub fn name(cpu: usize) -> u64 {
    devicetree::processors().nth(cpu).unwrap_or(0)
}

/// The first Rust code of another CPU.
pub extern "C" fn begin(index: usize) -> ! {
    // SAFETY: called once by each CPU, with its own index, and the functions in the order that
    // their contracts demand. The kernel's page tables map everything that this code uses of the
    // boot page tables.
    unsafe {
        percpu::install(index);
        vectors::install();
        cpu::init();
        paging::switch_tables();
    }
    irq::init();
    smp::work()
}
