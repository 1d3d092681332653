//! Stops the machine through semihosting with an exit status, as QEMU supports it
//! (`-semihosting-config enable=on,target=native`; Arm, "Semihosting for AArch32 and AArch64",
//! SYS_EXIT), or without a status through PSCI.

use crate::arch::interrupts;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use smccc::{Hvc, psci};

/// The outcome of a run of the kernel. QEMU's statuses are those of x86-64's exit device.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub enum Outcome {
    /// The run succeeded.
    Success = 33,
    /// The run failed, and the reason was printed.
    Failure = 35,
}

static TRIED: AtomicBool = AtomicBool::new(false);

/// Stops the machine.
pub fn exit(outcome: Outcome) -> ! {
    const SYS_EXIT: u64 = 0x18;
    /// `ADP_Stopped_ApplicationExit`.
    const APPLICATION_EXIT: u64 = 0x20026;
    let block = [APPLICATION_EXIT, outcome as u64];
    interrupts::disable();
    // Without semihosting the instruction is an exception, whose report calls this function again.
    if !TRIED.swap(true, Relaxed) {
        // SAFETY: the call reads the block and does not return.
        unsafe { asm!("hlt #0xf000", in("x0") SYS_EXIT, in("x1") &raw const block) };
    }
    // Returns if there is no PSCI.
    let _ = psci::system_off::<Hvc>();
    loop {
        interrupts::halt();
    }
}
