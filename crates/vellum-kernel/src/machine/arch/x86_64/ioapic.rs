//! The I/O APIC: which processor hears of a device's interrupt, and as what (Intel 82093AA I/O Advanced Programmable
//! Interrupt Controller, "Register Description").

use crate::arch::kernel_map::phys_to_virt;

/// Where every PC has the first.
const BASE: u64 = 0xfec0_0000;
/// Says which register the window shows.
const SELECT: usize = 0x00;
const WINDOW: usize = 0x10;
/// The first of two registers for each line.
const REDIRECTION: u32 = 0x10;

/// Has a line of the old bus, which signals by its edge, interrupt the processor with this APIC number.
///
/// To be called once for a line, by one processor at a time.
pub fn route(line: u8, vector: u8, apic: u8) {
    let register = REDIRECTION + 2 * u32::from(line);
    // The second half, without the bit that masks the line, last.
    write(register + 1, u32::from(apic) << 24);
    write(register, u32::from(vector));
}

fn write(register: u32, value: u32) {
    let base = phys_to_virt::<u32>(BASE);
    // SAFETY: both are devices' memory that the direct map shows; they route interrupts, and touch no memory.
    unsafe {
        base.byte_add(SELECT).write_volatile(register);
        base.byte_add(WINDOW).write_volatile(value);
    }
}
