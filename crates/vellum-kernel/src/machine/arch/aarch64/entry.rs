//! Enters user mode and returns from it.
//!
//! [`enter`] is an ordinary function that returns when the CPU leaves user mode, for any reason. A
//! thread has no kernel stack. In user mode SP_EL1 points to the thread's [`Registers`], and the
//! entry code saves the registers there.

use super::vectors::{INTERRUPT, SYNCHRONOUS};
use crate::arch::entry_state::{EXCEPTION_SP, KERNEL_SP};
use crate::arch::types::Trap;
use crate::arch::{irq, trap};
use core::fmt;

/// The general registers, in the order in which the entry code saves them.
#[repr(C, align(16))]
#[derive(Clone, Copy, Default)]
pub struct Registers {
    /// X0 to X30.
    pub x: [u64; 31],
    /// The stack pointer.
    pub sp: u64,
    /// The program counter.
    pub pc: u64,
    /// The saved program status (SPSR_EL1).
    pub state: u64,
    /// X0 before the last system call's result replaced it.
    pub first: u64,
    /// The exception syndrome (ESR_EL1) of the exception that left user mode.
    pub syndrome: u64,
}

/// The size of [`Registers`] in bytes.
pub const SIZE: usize = size_of::<Registers>();

// The entry code contains this size.
const _: () = assert!(SIZE == 288);

impl Registers {
    /// Returns the registers of a program about to start.
    pub fn start(pc: u64, sp: u64) -> Self {
        Self { pc, sp, ..Self::default() }
    }

    /// Returns the arguments of a system call.
    pub fn arguments(&self) -> [u64; 6] {
        core::array::from_fn(|index| self.x[index])
    }

    /// Returns the result of a system call.
    pub fn answer(&self) -> u64 {
        self.x[0]
    }

    /// Sets the result of a system call.
    pub fn set_answer(&mut self, answer: u64) {
        self.x[0] = answer;
    }

    /// Makes the program repeat its last system call, which has the number `number`.
    pub fn repeat(&mut self, number: u64) {
        (self.x[0], self.x[8]) = (self.first, number);
        self.pc -= 4; // the length of the instruction
    }

    /// Returns the address of the next instruction: after a system call, the one behind it.
    pub fn program_counter(&self) -> u64 {
        self.pc
    }

    /// Returns the stack pointer.
    pub fn stack(&self) -> u64 {
        self.sp
    }

    /// Sets the stack pointer.
    pub fn set_stack(&mut self, stack: u64) {
        self.sp = stack;
    }
}

/// Saves the general registers except X0 and X1, and the exception state, at the stack pointer.
/// Leaves the syndrome in X2.
macro_rules! save_registers {
    () => {
        r#"
    stp     x2, x3, [sp, #16]
    stp     x4, x5, [sp, #32]
    stp     x6, x7, [sp, #48]
    stp     x8, x9, [sp, #64]
    stp     x10, x11, [sp, #80]
    stp     x12, x13, [sp, #96]
    stp     x14, x15, [sp, #112]
    stp     x16, x17, [sp, #128]
    stp     x18, x19, [sp, #144]
    stp     x20, x21, [sp, #160]
    stp     x22, x23, [sp, #176]
    stp     x24, x25, [sp, #192]
    stp     x26, x27, [sp, #208]
    stp     x28, x29, [sp, #224]
    mrs     x2, sp_el0
    stp     x30, x2, [sp, #240]
    mrs     x2, elr_el1
    mrs     x3, spsr_el1
    stp     x2, x3, [sp, #256]
    mrs     x2, esr_el1
    "#
    };
}

/// Loads the general registers except X30 from the stack pointer.
macro_rules! restore_registers {
    () => {
        r#"
    ldp     x0, x1, [sp]
    ldp     x2, x3, [sp, #16]
    ldp     x4, x5, [sp, #32]
    ldp     x6, x7, [sp, #48]
    ldp     x8, x9, [sp, #64]
    ldp     x10, x11, [sp, #80]
    ldp     x12, x13, [sp, #96]
    ldp     x14, x15, [sp, #112]
    ldp     x16, x17, [sp, #128]
    ldp     x18, x19, [sp, #144]
    ldp     x20, x21, [sp, #160]
    ldp     x22, x23, [sp, #176]
    ldp     x24, x25, [sp, #192]
    ldp     x26, x27, [sp, #208]
    ldp     x28, x29, [sp, #224]
    "#
    };
}

pub(super) use {restore_registers, save_registers};

core::arch::global_asm!(
    r#"
    .section .text.entry, "ax", @progbits
enter_user:                             // (registers)
    sub     sp, sp, #96
    stp     x19, x20, [sp]
    stp     x21, x22, [sp, #16]
    stp     x23, x24, [sp, #32]
    stp     x25, x26, [sp, #48]
    stp     x27, x28, [sp, #64]
    stp     x29, x30, [sp, #80]
    mrs     x1, tpidr_el1
    mov     x2, sp
    str     x2, [x1, #{kernel_sp}]
    msr     spsel, #1
    mov     sp, x0
    ldp     x30, x1, [sp, #240]
    msr     sp_el0, x1
    ldp     x1, x2, [sp, #256]
    msr     elr_el1, x1
    msr     spsr_el1, x2
    "#,
    restore_registers!(),
    r#"
    eret

    .globl trap_from_user
trap_from_user:                         // X0 and X1 are saved, X1 is the kind
    "#,
    save_registers!(),
    r#"
    stp     x0, x2, [sp, #272]
    mov     x0, x1
    mrs     x1, tpidr_el1
    ldr     x2, [x1, #{exception_sp}]
    mov     sp, x2
    msr     spsel, #0
    ldr     x2, [x1, #{kernel_sp}]
    mov     sp, x2
    ldp     x19, x20, [sp]
    ldp     x21, x22, [sp, #16]
    ldp     x23, x24, [sp, #32]
    ldp     x25, x26, [sp, #48]
    ldp     x27, x28, [sp, #64]
    ldp     x29, x30, [sp, #80]
    add     sp, sp, #96
    ret
    "#,
    kernel_sp = const KERNEL_SP,
    exception_sp = const EXCEPTION_SP,
);

unsafe extern "C" {
    fn enter_user(registers: *mut Registers) -> u64;
}

/// Runs user mode with these registers until it is left, and returns the reason. Interrupts are off
/// before and after.
///
/// # Safety
///
/// Interrupts are off, and the saved status is one that user mode may have. The address space and
/// the extended registers of the thread that owns `registers` are loaded.
#[inline(always)]
pub unsafe fn enter(registers: &mut Registers) -> Trap {
    debug_assert!(registers.state & trap::KERNEL_STATE == 0);
    // SAFETY: the state is as this function's contract demands. The entry code writes only to
    // `registers`.
    match unsafe { enter_user(registers) } {
        SYNCHRONOUS => trap::of_user(registers),
        INTERRUPT => {
            irq::serve();
            Trap::Interrupt
        }
        kind => trap::report(registers, kind),
    }
}

impl fmt::Display for Registers {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { x, sp, pc, state, syndrome, .. } = self;
        writeln!(f, "pc {pc:#018x}  sp {sp:#018x}  state {state:#x}  syndrome {syndrome:#x}")?;
        for (index, value) in x.iter().enumerate() {
            let end = if index % 4 == 3 { "\n" } else { "  " };
            write!(f, "x{index:<2} {value:#018x}{end}")?;
        }
        Ok(())
    }
}
