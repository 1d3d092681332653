//! Notes what the kernel works for, so that a plugin of QEMU can count instructions by cause
//! (`vellum run --kernel-work`).
//!
//! The CPU reads a byte whose place in a table is the cause's number: the plugin sees the address.
//! The kernel writes nothing, so CPUs share the table's cache lines. A note takes about eight
//! instructions.

use crate::arch::types::Trap;
use core::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// The causes that are numbers of system calls.
const CALLS: u16 = 512;
/// The bytes of the table: more than there are causes.
const TABLE: usize = 1024;

/// The cause of kernel work. Up to 511 it is the number of a system call. `vellum-cli` has the
/// other causes' numbers too, in its module `roles`.
#[derive(Clone, Copy)]
pub struct Cause(u16);

impl Cause {
    /// A page fault of a program.
    const PAGE_FAULT: Self = Self(CALLS);
    /// Another exception in user mode.
    const EXCEPTION: Self = Self(CALLS + 1);
    /// A new thread, until it enters user mode.
    pub const START: Self = Self(CALLS + 2);
    /// A task of the kernel itself.
    pub const TASK: Self = Self(CALLS + 3);
    /// The idle loop.
    pub const IDLE: Self = Self(CALLS + 4);
    /// An interrupt.
    pub const INTERRUPT: Self = Self(CALLS + 5);
    /// The program that the machine runs has ended.
    pub const END: Self = Self(CALLS + 6);
    /// A system call with a number that no call has.
    const NO_CALL: Self = Self(CALLS + 7);

    /// Returns the cause of the work after this trap.
    pub fn of(trap: &Trap) -> Self {
        match trap {
            Trap::SystemCall(number) if *number < CALLS.into() => Self(*number as u16),
            Trap::SystemCall(_) => Self::NO_CALL,
            Trap::PageFault(..) => Self::PAGE_FAULT,
            Trap::Exception(_) => Self::EXCEPTION,
            Trap::Interrupt => Self::INTERRUPT,
        }
    }

    /// Notes that what this CPU does next has this cause.
    pub fn note(self) {
        note_cause(self.0.into());
    }
}

/// A thread's cause, noted again when a CPU goes on with the thread.
pub struct Last(AtomicU16);

impl Last {
    /// Returns the cause of a thread that has not been in user mode.
    pub const fn new() -> Self {
        Self(AtomicU16::new(Cause::START.0))
    }

    /// Sets the cause, and notes it.
    pub fn set(&self, cause: Cause) {
        self.0.store(cause.0, Relaxed);
        cause.note();
    }

    /// Notes the cause.
    pub fn note(&self) {
        Cause(self.0.load(Relaxed)).note();
    }
}

/// The table. Its contents mean nothing.
// SAFETY: no other item has the name.
#[unsafe(no_mangle)]
static KERNEL_CAUSES: [u8; TABLE] = [0; TABLE];

/// Reads the cause's byte. The plugin finds this function and the table by their names.
// SAFETY: no other item has the name.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn note_cause(cause: usize) {
    // SAFETY: the place is in the table.
    unsafe { (&raw const KERNEL_CAUSES).cast::<u8>().add(cause % TABLE).read_volatile() };
}
