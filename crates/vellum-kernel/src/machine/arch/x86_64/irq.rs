//! The local APIC: this CPU's timer, and inter-processor interrupts (Intel SDM, volume 3A,
//! "Advanced Programmable Interrupt Controller").

use super::ioapic;
use crate::arch::clock::ticks;
use crate::arch::interrupts;
use crate::arch::kernel_map::phys_to_virt;
use crate::arch::percpu::{self, MAX_CPUS};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use x86_64::instructions::port::Port;

/// The timer's vector.
pub const TIMER: u8 = 32;
/// The vector that only ends another CPU's halt.
pub const KICK: u8 = 33;
/// The vector that makes another CPU serve shootdown requests.
pub const SHOOTDOWN: u8 = 34;
/// The vector of the devices' interrupt lines.
pub const LINE: u8 = 35;
/// The vector of spurious interrupts.
pub const SPURIOUS: u8 = 47;

/// The address of every PC's local APIC.
const BASE: u64 = 0xfee0_0000;
const ID: usize = 0x20;
const END: usize = 0xb0;
const SPURIOUS_VECTOR: usize = 0xf0;
const COMMAND_LOW: usize = 0x300;
const COMMAND_HIGH: usize = 0x310;
const LVT_TIMER: usize = 0x320;
const INITIAL_COUNT: usize = 0x380;
const CURRENT_COUNT: usize = 0x390;
const DIVIDE: usize = 0x3e0;
/// The value of [`DIVIDE`] with which the timer counts every 16th tick of its clock.
const DIVIDE_BY_16: u32 = 3;

/// The bit of [`COMMAND_LOW`] that is set until the previous command has been delivered.
const PENDING: u32 = 1 << 12;
const ASSERT: u32 = 1 << 14;
const ALL_OTHERS: u32 = 3 << 18;
const INIT: u32 = 5 << 8;
const START: u32 = 6 << 8;

/// The APIC ID of each CPU.
static IDS: [AtomicU8; MAX_CPUS] = [const { AtomicU8::new(0) }; MAX_CPUS];
/// The number of timer counts in 2³² nanoseconds.
static RATE: AtomicU64 = AtomicU64::new(0);

fn read(register: usize) -> u32 {
    // SAFETY: the APIC's registers are device memory in the direct map; reading one has no effect.
    unsafe { phys_to_virt::<u32>(BASE).byte_add(register).read_volatile() }
}

fn write(register: usize, value: u32) {
    // SAFETY: the APIC's registers are device memory in the direct map; the values written have the
    // effects that this module's functions document, and access no memory.
    unsafe { phys_to_virt::<u32>(BASE).byte_add(register).write_volatile(value) }
}

/// Masks the PC's legacy interrupt controllers, whose vectors overlap those of exceptions.
pub fn mask_legacy() {
    for port in [0x21, 0xa1] {
        // SAFETY: the mask registers of the two interrupt controllers.
        unsafe { Port::<u8>::new(port).write(0xff) };
    }
}

/// Enables this CPU's APIC, with the timer stopped.
pub fn init() {
    IDS[percpu::current().index].store((read(ID) >> 24) as u8, Relaxed);
    write(SPURIOUS_VECTOR, 0x100 | u32::from(SPURIOUS));
    write(DIVIDE, DIVIDE_BY_16);
    write(LVT_TIMER, u32::from(TIMER));
}

/// Calibrates the timer by the clock. Called once, on the boot CPU after [`init`]: the other CPUs'
/// timers have the same rate.
pub fn calibrate(now_ns: impl Fn() -> u64) {
    const SPAN: u64 = 2_000_000;
    write(INITIAL_COUNT, u32::MAX);
    let start = now_ns();
    let start_ticks = ticks();
    while now_ns() - start < SPAN && ticks() - start_ticks < 1 << 32 {
        core::hint::spin_loop();
    }
    let passed = u64::from(u32::MAX - read(CURRENT_COUNT));
    let ns = now_ns() - start;
    write(INITIAL_COUNT, 0);
    RATE.store((passed << 32) / ns.max(1), Relaxed);
}

/// Arms the timer to fire once after `ns` nanoseconds, some seconds at most: its count has 32 bits.
pub fn arm(ns: u64) {
    let count = ((u128::from(ns) * u128::from(RATE.load(Relaxed))) >> 32) as u64;
    write(INITIAL_COUNT, count.clamp(1, u64::from(u32::MAX)) as u32);
}

/// Routes an interrupt line to this CPU, as edge-triggered: the device lowers it once the kernel
/// has looked at what it tells, and raises it at the next event.
pub fn enable_line(line: u32) {
    ioapic::route(line, LINE, (read(ID) >> 24) as u8);
}

/// Signals the end of an interrupt to the APIC.
pub fn end_of_interrupt() {
    write(END, 0);
}

/// Returns the APIC ID of a CPU whose APIC is enabled.
pub fn name(cpu: usize) -> u64 {
    IDS[cpu].load(Relaxed).into()
}

/// Sends an interrupt to another CPU.
pub fn send(cpu: usize, vector: u8) {
    command(u32::from(IDS[cpu].load(Relaxed)) << 24, u32::from(vector));
}

/// Starts all other CPUs in real mode at a page below 1 MiB (Intel SDM, volume 3A, "Typical BSP
/// Initialization Sequence"). `wait` must wait for the given number of nanoseconds.
pub fn start_others(page: u8, wait: impl Fn(u64)) {
    command(0, ALL_OTHERS | ASSERT | INIT);
    wait(10_000_000);
    for _ in 0..2 {
        command(0, ALL_OTHERS | ASSERT | START | u32::from(page));
        wait(200_000);
    }
}

fn command(target: u32, command: u32) {
    // Interrupts are off, so that no handler writes a command between the two halves of this one.
    interrupts::without(|| {
        while read(COMMAND_LOW) & PENDING != 0 {
            core::hint::spin_loop();
        }
        write(COMMAND_HIGH, target);
        write(COMMAND_LOW, command);
    });
}
