//! The CPUs' kernel stacks and their guard pages.

use crate::arch::percpu::MAX_CPUS;
use core::mem::offset_of;

/// Bytes of a CPU's main stack.
const STACK_SIZE: usize = 128 * 1024;
/// Bytes of a CPU's exception stack. x86-64 uses it only for exceptions that can't rely on the main
/// stack; AArch64 uses it for all exceptions in kernel mode, including page faults that are
/// resolved there.
const FAULT_STACK_SIZE: usize = if cfg!(target_arch = "x86_64") { 16 * 1024 } else { 64 * 1024 };
/// Bytes of a guard page.
const GUARD: usize = 4096;

/// A stack above a guard page that `paging::init` leaves unmapped, so that an overflow faults
/// instead of overwriting other data.
#[repr(C, align(4096))]
pub struct Stack<const SIZE: usize> {
    guard: [u8; GUARD],
    room: [u8; SIZE],
}

impl<const SIZE: usize> Stack<SIZE> {
    /// Returns an empty stack.
    pub const fn new() -> Self {
        Self { guard: [0; GUARD], room: [0; SIZE] }
    }
}

/// The stacks of one CPU.
#[repr(C, align(4096))]
pub struct Stacks {
    /// The main stack.
    main: Stack<STACK_SIZE>,
    /// The exception stack.
    fault: Stack<FAULT_STACK_SIZE>,
}

/// The offset of the top of a CPU's main stack from the start of its stacks.
pub const MAIN_STACK_SIZE: usize = size_of::<Stack<STACK_SIZE>>();

/// The stacks of all CPUs, the boot CPU's first.
pub static mut STACKS: [Stacks; MAX_CPUS] = [const { Stacks { main: Stack::new(), fault: Stack::new() } }; MAX_CPUS];

/// Returns the top of a CPU's exception stack.
pub fn fault_stack_top(cpu: usize) -> u64 {
    &raw const STACKS as u64 + (cpu as u64 + 1) * size_of::<Stacks>() as u64
}

/// Returns the offset of an address in its CPU's stacks, or `None` if it lies in no stack.
fn offset_in_stacks(address: u64) -> Option<usize> {
    let offset = address.checked_sub(&raw const STACKS as u64)? as usize;
    (offset < MAX_CPUS * size_of::<Stacks>()).then_some(offset % size_of::<Stacks>())
}

/// Returns whether an address lies in a stack's guard page.
pub fn is_guard(address: u64) -> bool {
    offset_in_stacks(address).is_some_and(|offset| {
        let fault = offset.checked_sub(offset_of!(Stacks, fault)).unwrap_or(offset);
        fault < GUARD
    })
}

/// Returns whether the word at `address` is aligned, lies in a stack and is mapped.
pub fn is_in_stack(address: u64) -> bool {
    address.is_multiple_of(8) && offset_in_stacks(address).is_some() && !is_guard(address)
}
