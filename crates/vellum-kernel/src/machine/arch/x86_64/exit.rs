//! Stops the machine through QEMU's `isa-debug-exit` device.
//!
//! A write of `n` to its port makes QEMU exit with the status `(n << 1) | 1`. That is never 0, the
//! status after a triple fault under `-no-reboot`, so that a crash too early to be reported can't
//! pass for success. `./x boot` knows these statuses.

use x86_64::instructions::{hlt, interrupts, port::Port};

/// The port of the device, which `./x boot` sets (`iobase=0xf4`).
const PORT: u16 = 0xf4;

/// The outcome of a run of the kernel.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Outcome {
    /// The run succeeded: QEMU exits with 33.
    Success = 0x10,
    /// The run failed, and the reason was printed: QEMU exits with 35.
    Failure = 0x11,
}

/// Stops the machine.
pub fn exit(outcome: Outcome) -> ! {
    // SAFETY: the port is the exit device's, or no device's on a machine without one. Neither
    // accesses memory.
    unsafe { Port::new(PORT).write(outcome as u32) };
    loop {
        interrupts::disable();
        hlt();
    }
}
