//! The interrupt controller (GICv3), this processor's timer, and interrupts between processors.

use crate::arch::clock::{rate, ticks};
use crate::arch::hooks;
use crate::arch::kernel_map::phys_to_virt;
use crate::arch::percpu::{self, MAX_CPUS};
use arm_gic::gicv3::registers::{Gicd, GicrSgi};
use arm_gic::gicv3::{GicCpuInterface, GicV3, SgiTarget, SgiTargetGroup};
use arm_gic::{IntId, InterruptGroup, Trigger, UniqueMmioPointer};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use spin::Mutex;

/// Ends another processor's halt, and nothing more.
pub const KICK: u32 = 0;
/// Has another processor answer a shootdown.
pub const SHOOTDOWN: u32 = 1;
/// The first of the four lines of PCI, as the machine has them.
pub const PCI_LINES: u32 = 3;
/// The interrupt of the virtual timer, of those that each processor has for itself.
const TIMER: u32 = 11;
const PRIORITY: u8 = 0x80;

/// Where the machine has the distributor, and the processors' own parts.
const DISTRIBUTOR: u64 = 0x0800_0000;
const REDISTRIBUTORS: u64 = 0x080a_0000;

static GIC: Mutex<Option<GicV3<'static>>> = Mutex::new(None);
/// The processors' affinities.
static NAMES: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
/// The wire's interrupt.
static WIRE: AtomicU32 = AtomicU32::new(u32::MAX);

/// Sets the controller up, for so many processors.
pub fn init_all(cpus: usize) {
    let at = |address| NonNull::new(phys_to_virt::<u8>(address)).expect("not at 0");
    // SAFETY: the machine's controller, whose registers the direct map shows, and which nobody else knows of.
    let gic = unsafe {
        GicV3::new(UniqueMmioPointer::new(at(DISTRIBUTOR).cast::<Gicd>()), at(REDISTRIBUTORS).cast::<GicrSgi>(), cpus)
    };
    let mut gic = gic.expect("the machine has a GICv3");
    gic.setup(percpu::current().index);
    *GIC.lock() = Some(gic);
}

/// Lets this processor be interrupted, by its timer and by other processors.
///
/// # Panics
///
/// Before [`init_all`].
pub fn init() {
    let cpu = percpu::current().index;
    NAMES[cpu].store(read_register!("mpidr_el1"), Relaxed);
    let mut gic = GIC.lock();
    let gic = gic.as_mut().expect("the controller is set up");
    gic.init_cpu(cpu);
    for own in [IntId::sgi(KICK), IntId::sgi(SHOOTDOWN), IntId::ppi(TIMER)] {
        let enabled = gic
            .set_interrupt_priority(own, Some(cpu), PRIORITY)
            .and_then(|()| gic.enable_interrupt(own, Some(cpu), true));
        enabled.expect("each processor has these");
    }
    GicCpuInterface::set_priority_mask(0xff);
    GicCpuInterface::enable_group1(true);
}

/// Has the timer fire once, in so many nanoseconds (at most some seconds).
pub fn arm(ns: u64) {
    let wait = (u128::from(ns) * u128::from(rate()) / 1_000_000_000) as u64;
    // SAFETY: this processor's timer, whose interrupt is served.
    unsafe {
        write_register!("cntv_cval_el0", ticks() + wait.max(1));
        write_register!("cntv_ctl_el0", 1);
    }
}

/// Has this processor hear of a line.
pub fn hear(line: u32) {
    let interrupt = IntId::spi(line);
    WIRE.store(interrupt.into(), Relaxed);
    let mut gic = GIC.lock();
    let Some(gic) = gic.as_mut() else { return };
    // The line falls when all has been read: what counts is that it rises again.
    let heard = gic
        .set_trigger(interrupt, None, Trigger::Edge)
        .and_then(|()| gic.set_interrupt_priority(interrupt, None, PRIORITY))
        .and_then(|()| gic.enable_interrupt(interrupt, None, true));
    heard.expect("the controller has the line");
}

/// Sends another processor an interrupt.
pub fn send(cpu: usize, interrupt: u32) {
    let name = NAMES[cpu].load(Relaxed);
    let target = SgiTarget::List {
        affinity3: (name >> 32) as u8,
        affinity2: (name >> 16) as u8,
        affinity1: (name >> 8) as u8,
        target_list: 1 << (name & 15),
    };
    // What was written before is seen by whoever is interrupted.
    // SAFETY: a barrier.
    unsafe { core::arch::asm!("dsb ishst", options(nostack, preserves_flags)) };
    let sent = GicCpuInterface::send_sgi(IntId::sgi(interrupt), target, SgiTargetGroup::CurrentGroup1);
    sent.expect("one of the sixteen that there are");
}

/// Serves what interrupts this processor.
pub fn serve() {
    while let Some(interrupt) = GicCpuInterface::get_and_acknowledge_interrupt(InterruptGroup::Group1) {
        if interrupt == IntId::ppi(TIMER) {
            // It stands until the timer is set anew, or is off.
            // SAFETY: as in `arm`.
            unsafe { write_register!("cntv_ctl_el0", 0) };
            percpu::current().tick.store(true, Relaxed);
        } else if interrupt == IntId::sgi(SHOOTDOWN) {
            hooks::shootdown();
        } else if u32::from(interrupt) == WIRE.load(Relaxed) {
            percpu::current().tick.store(true, Relaxed);
        }
        GicCpuInterface::end_interrupt(interrupt, InterruptGroup::Group1);
    }
}
