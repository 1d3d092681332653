//! The processors' stacks.

use crate::arch::percpu::MAX_CPUS;
use core::mem::offset_of;

/// Bytes of the kernel's stack.
const STACK_SIZE: usize = 128 * 1024;
/// Bytes of the stack for exceptions: on x86-64 only of those that can't rely on the other stack; on AArch64 of all in kernel
/// mode, with page faults resolved there.
const FAULT_STACK_SIZE: usize = if cfg!(target_arch = "x86_64") { 16 * 1024 } else { 64 * 1024 };
/// Bytes of a page that is left out.
const GUARD: usize = 4096;

/// A stack, below which lies a page that `paging::init` leaves out: an overflow faults instead of
/// writing over what happens to lie there.
#[repr(C, align(4096))]
pub struct Stack<const SIZE: usize> {
    guard: [u8; GUARD],
    room: [u8; SIZE],
}

impl<const SIZE: usize> Stack<SIZE> {
    /// An empty stack.
    pub const fn new() -> Self {
        Self { guard: [0; GUARD], room: [0; SIZE] }
    }
}

/// The stacks of one processor.
#[repr(C, align(4096))]
pub struct Stacks {
    /// What it runs on.
    main: Stack<STACK_SIZE>,
    /// For exceptions, where they can't rely on the other.
    fault: Stack<FAULT_STACK_SIZE>,
}

/// How far above its stacks a processor's stack begins.
pub const MAIN_STACK_SIZE: usize = size_of::<Stack<STACK_SIZE>>();

/// The stacks of all processors; the boot processor's are the first.
pub static mut STACKS: [Stacks; MAX_CPUS] = [const { Stacks { main: Stack::new(), fault: Stack::new() } }; MAX_CPUS];

/// The top of a processor's stack for exceptions.
pub fn fault_stack_top(cpu: usize) -> u64 {
    &raw const STACKS as u64 + (cpu as u64 + 1) * size_of::<Stacks>() as u64
}

/// How far into its processor's stacks an address lies.
fn offset_in_stacks(address: u64) -> Option<usize> {
    let offset = address.checked_sub(&raw const STACKS as u64)? as usize;
    (offset < MAX_CPUS * size_of::<Stacks>()).then_some(offset % size_of::<Stacks>())
}

/// Whether an address lies in the guard page of a stack.
pub fn is_guard(address: u64) -> bool {
    offset_in_stacks(address).is_some_and(|offset| {
        let fault = offset.checked_sub(offset_of!(Stacks, fault)).unwrap_or(offset);
        fault < GUARD
    })
}

/// Whether a word can be read at `address` because it lies in a stack.
pub fn is_in_stack(address: u64) -> bool {
    address.is_multiple_of(8) && offset_in_stacks(address).is_some() && !is_guard(address)
}
