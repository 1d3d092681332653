//! The interrupt controller (GICv3), this CPU's timer, and inter-processor interrupts.

use crate::arch::clock::{rate, ticks};
use crate::arch::hooks;
use crate::arch::kernel_map::phys_to_virt;
use crate::arch::percpu::{self, MAX_CPUS};
use arm_gic::gicv3::registers::{Gicd, GicrSgi};
use arm_gic::gicv3::{GicCpuInterface, GicV3, SgiTarget, SgiTargetGroup};
use arm_gic::{IntId, InterruptGroup, Trigger, UniqueMmioPointer};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use spin::Mutex;

/// The software interrupt that only ends another CPU's halt.
pub const KICK: u32 = 0;
/// The software interrupt that makes another CPU serve shootdown requests.
pub const SHOOTDOWN: u32 = 1;
/// The virtual timer's interrupt, as a number among each CPU's private interrupts.
const TIMER: u32 = 11;
const PRIORITY: u8 = 0x80;

/// The addresses of the distributor and the redistributors.
const DISTRIBUTOR: u64 = 0x0800_0000;
const REDISTRIBUTORS: u64 = 0x080a_0000;

static GIC: Mutex<Option<GicV3<'static>>> = Mutex::new(None);
/// The affinity (MPIDR_EL1) of each CPU, by CPU index.
static NAMES: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// Sets up the interrupt controller for `cpus` CPUs.
pub fn init_all(cpus: usize) {
    let at = |address| NonNull::new(phys_to_virt::<u8>(address)).expect("the direct map has no address 0");
    // SAFETY: these are the controller's registers, which the direct map covers and no other code
    // uses.
    let gic = unsafe {
        GicV3::new(UniqueMmioPointer::new(at(DISTRIBUTOR).cast::<Gicd>()), at(REDISTRIBUTORS).cast::<GicrSgi>(), cpus)
    };
    let mut gic = gic.expect("no GICv3: run QEMU with -machine virt,gic-version=3");
    gic.setup(percpu::current().index);
    *GIC.lock() = Some(gic);
}

/// Enables the timer's and the software interrupts on this CPU.
///
/// # Panics
///
/// Before [`init_all`].
pub fn init() {
    let cpu = percpu::current().index;
    NAMES[cpu].store(read_register!("mpidr_el1"), Relaxed);
    let mut gic = GIC.lock();
    let gic = gic.as_mut().expect("irq::init_all must be called before irq::init");
    gic.init_cpu(cpu);
    for own in [IntId::sgi(KICK), IntId::sgi(SHOOTDOWN), IntId::ppi(TIMER)] {
        let enabled = gic
            .set_interrupt_priority(own, Some(cpu), PRIORITY)
            .and_then(|()| gic.enable_interrupt(own, Some(cpu), true));
        enabled.expect("the GIC rejected a private interrupt of this CPU");
    }
    GicCpuInterface::set_priority_mask(0xff);
    GicCpuInterface::enable_group1(true);
}

/// Arms the timer to fire once after `ns` nanoseconds (some seconds at most).
pub fn arm(ns: u64) {
    let wait = (u128::from(ns) * u128::from(rate()) / 1_000_000_000) as u64;
    // SAFETY: this CPU's timer, whose interrupt has a handler.
    unsafe {
        write_register!("cntv_cval_el0", ticks() + wait.max(1));
        write_register!("cntv_ctl_el0", 1);
    }
}

/// Routes an interrupt line to this CPU, as edge-triggered: the device lowers it once the kernel
/// has looked at what it tells, and raises it at the next event.
pub fn enable_line(line: u32) {
    let interrupt = IntId::spi(line);
    let mut gic = GIC.lock();
    let Some(gic) = gic.as_mut() else { return };
    let enabled = gic
        .set_trigger(interrupt, None, Trigger::Edge)
        .and_then(|()| gic.set_interrupt_priority(interrupt, None, PRIORITY))
        .and_then(|()| gic.enable_interrupt(interrupt, None, true));
    enabled.expect("the GIC rejected the interrupt line");
}

/// Sends an interrupt to another CPU.
pub fn send(cpu: usize, interrupt: u32) {
    let name = NAMES[cpu].load(Relaxed);
    let target = SgiTarget::List {
        affinity3: (name >> 32) as u8,
        affinity2: (name >> 16) as u8,
        affinity1: (name >> 8) as u8,
        target_list: 1 << (name & 15),
    };
    // The interrupted CPU must see this CPU's earlier writes. SAFETY: a barrier changes no state.
    unsafe { core::arch::asm!("dsb ishst", options(nostack, preserves_flags)) };
    let sent = GicCpuInterface::send_sgi(IntId::sgi(interrupt), target, SgiTargetGroup::CurrentGroup1);
    sent.expect("the GIC rejected a software interrupt: its number must be below 16");
}

/// Serves this CPU's pending interrupts.
pub fn serve() {
    while let Some(interrupt) = GicCpuInterface::get_and_acknowledge_interrupt(InterruptGroup::Group1) {
        if interrupt == IntId::ppi(TIMER) {
            // Disable the timer, which would otherwise keep its interrupt pending until it is armed
            // again. SAFETY: the register is that of this CPU's timer and accesses no memory.
            unsafe { write_register!("cntv_ctl_el0", 0) };
            percpu::current().tick.store(true, Relaxed);
        } else if interrupt == IntId::sgi(SHOOTDOWN) {
            hooks::shootdown();
        } else if interrupt.is_spi() {
            percpu::current().tick.store(true, Relaxed);
        }
        GicCpuInterface::end_interrupt(interrupt, InterruptGroup::Group1);
    }
}
