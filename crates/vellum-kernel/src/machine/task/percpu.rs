//! The task layer's part of a CPU's record. It is the topmost part, and so the whole record.

use crate::arch::percpu::{self, MAX_CPUS, Record};
use crate::mem::percpu::MemCpu;
use crate::task::Thread;
use core::cell::Cell;
use core::ptr;

/// A CPU's record.
#[repr(C, align(128))]
pub struct TaskCpu {
    /// The memory layer's part, and in it the architecture layer's.
    pub mem: MemCpu,
    /// The time for which the timer is armed, in nanoseconds; `u64::MAX` if it is not.
    pub armed: Cell<u64>,
    /// The thread whose FPU, vector and TLS registers are loaded on this CPU; null if none.
    pub thread: Cell<*const Thread>,
    /// The thread whose future this CPU polls; null if it polls none.
    pub polled: Cell<*const Thread>,
}

// SAFETY: `repr(C)`, with a `MemCpu` as its first field.
unsafe impl Record for TaskCpu {}

impl TaskCpu {
    const fn new() -> Self {
        Self {
            mem: MemCpu::new(),
            armed: Cell::new(u64::MAX),
            thread: Cell::new(ptr::null()),
            polled: Cell::new(ptr::null()),
        }
    }
}

static mut CPUS: [TaskCpu; MAX_CPUS] = [const { TaskCpu::new() }; MAX_CPUS];

/// Hands the records to the architecture layer.
///
/// # Safety
///
/// Called once, before any CPU asks for its record.
pub unsafe fn provide() {
    // SAFETY: only the address is taken. No other code uses the records, and they live forever.
    unsafe { percpu::provide(&raw mut CPUS) };
}

/// Returns the running CPU's record.
#[inline(always)]
pub fn current() -> &'static TaskCpu {
    // SAFETY: the records are `TaskCpu`s.
    unsafe { percpu::current_as() }
}
