//! The I/O APIC: routes a device's interrupt to a CPU and a vector (Intel 82093AA I/O Advanced
//! Programmable Interrupt Controller, "Register Description").

use crate::arch::kernel_map::phys_to_virt;

/// The address of every PC's first I/O APIC.
const BASE: u64 = 0xfec0_0000;
/// The register that selects the register behind the window.
const SELECT: usize = 0x00;
const WINDOW: usize = 0x10;
/// The number of the first redirection register. Each interrupt line has two.
const REDIRECTION: u32 = 0x10;

/// Routes a line, edge-triggered, to the CPU with this APIC ID. Called once for a line, by one CPU
/// at a time.
pub fn route(line: u32, vector: u8, apic: u8) {
    let register = REDIRECTION + 2 * line;
    // The low half is written last: its mask bit is clear, so it enables the line.
    write(register + 1, u32::from(apic) << 24);
    write(register, u32::from(vector));
}

fn write(register: u32, value: u32) {
    let base = phys_to_virt::<u32>(BASE);
    // SAFETY: both are device registers in the direct map; they route interrupts and access no
    // memory.
    unsafe {
        base.byte_add(SELECT).write_volatile(register);
        base.byte_add(WINDOW).write_volatile(value);
    }
}
