//! How the machine stops: QEMU's `isa-debug-exit` device.
//!
//! A write of `n` to its port makes QEMU exit with the status `(n << 1) | 1`. That is never 0, which is what
//! QEMU exits with after a triple fault under `-no-reboot`: so a crash too early to report itself cannot pass
//! for success. `./x boot` knows these statuses.

use x86_64::instructions::{hlt, interrupts, port::Port};

/// Where `./x boot` puts the device (`iobase=0xf4`).
const PORT: u16 = 0xf4;

/// How a run of the kernel ended.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Outcome {
    /// Everything asked was done: QEMU exits with 33.
    Success = 0x10,
    /// Something went wrong and was printed: QEMU exits with 35.
    Failure = 0x11,
}

/// Stops the machine.
pub fn exit(outcome: Outcome) -> ! {
    // SAFETY: the port is that of the exit device, or of nothing at all on a machine without one; neither
    // touches memory.
    unsafe { Port::new(PORT).write(outcome as u32) };
    loop {
        interrupts::disable();
        hlt();
    }
}
