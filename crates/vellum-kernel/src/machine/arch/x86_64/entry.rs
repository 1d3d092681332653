//! Enters user mode and returns from it.
//!
//! [`enter`] is an ordinary function that returns when the CPU leaves user mode, for any reason. A
//! thread has no kernel stack. The task state segment's stack pointer is the end of the thread's
//! [`Registers`], so the CPU pushes its exception frame directly there, and the entry code pushes
//! the other registers below it: nothing is copied.

use crate::arch::cpu;
use crate::arch::cpu::{USER_CODE, USER_DATA};
use crate::arch::entry_state::{KERNEL_SP, REGISTERS_END, TASK_SP, USER_SP};
use crate::arch::trap::{self, PAGE_FAULT};
use crate::arch::types::Trap;
use core::fmt;
use x86_64::VirtAddr;
use x86_64::registers::control::Cr2;
use x86_64::registers::model_specific::{Efer, EferFlags, LStar, Msr, SFMask};
use x86_64::registers::rflags::RFlags;

/// The value of [`Registers::vector`] after a system call.
pub const SYSTEM_CALL: u64 = 256;

/// The general registers, in the order in which the entry code pushes them.
#[repr(C, align(16))]
#[derive(Clone, Copy, Default)]
#[allow(missing_docs)]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub rdx: u64,
    pub rcx: u64,
    pub rax: u64,
    /// The reason for which user mode was left: the vector of the exception or interrupt, or
    /// [`SYSTEM_CALL`].
    pub vector: u64,
    /// The exception's error code, or the system call's number.
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

// The CPU aligns the stack to 16 bytes before it pushes, so the end must be aligned.
const _: () = assert!(size_of::<Registers>().is_multiple_of(16));

impl Registers {
    /// Returns the registers of a program about to start.
    pub fn start(rip: u64, rsp: u64) -> Self {
        let rflags = RFlags::INTERRUPT_FLAG.bits();
        Self { rip, rsp, rflags, cs: USER_CODE, ss: USER_DATA, ..Self::default() }
    }

    /// Returns the arguments of a system call.
    pub fn arguments(&self) -> [u64; 6] {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9]
    }

    /// Returns the result of a system call.
    pub fn answer(&self) -> u64 {
        self.rax
    }

    /// Sets the result of a system call.
    pub fn set_answer(&mut self, answer: u64) {
        self.rax = answer;
    }

    /// Makes the program repeat its last system call, which has the number `number`.
    pub fn repeat(&mut self, number: u64) {
        self.rax = number;
        self.rip -= 2; // the length of the instruction
    }

    /// Returns the address of the next instruction: after a system call, the one behind it.
    pub fn program_counter(&self) -> u64 {
        self.rip
    }

    /// Returns the stack pointer.
    pub fn stack(&self) -> u64 {
        self.rsp
    }

    /// Sets the stack pointer.
    pub fn set_stack(&mut self, stack: u64) {
        self.rsp = stack;
    }
}

core::arch::global_asm!(
    r#"
    .section .text.entry, "ax", @progbits
enter_user:                             // (registers)
    pushq %rbx
    pushq %rbp
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, %gs:{kernel_sp}
    leaq {size}(%rdi), %rax
    movq %rax, %gs:{registers_end}
    movq %rax, %gs:{task_sp}
    movq %rdi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rdi
    popq %rsi
    popq %rbp
    popq %rbx
    popq %rdx
    popq %rcx
    popq %rax
    addq $16, %rsp                      // vector and error code
    swapgs
    iretq

    .balign 16
system_call_entry:                      // interrupts masked, user stack, rip in rcx, rflags in r11
    swapgs
    movq %rsp, %gs:{user_sp}
    movq %gs:{registers_end}, %rsp
    pushq ${user_data}
    pushq %gs:{user_sp}
    pushq %r11
    pushq ${user_code}
    pushq %rcx
    pushq %rax
    pushq ${system_call}
    jmp 1f

    .balign 16
    .globl trap_from_user
trap_from_user:                         // vector and error code are pushed
    swapgs
1:  pushq %rax
    pushq %rcx
    pushq %rdx
    pushq %rbx
    pushq %rbp
    pushq %rsi
    pushq %rdi
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    cld
    movq %gs:{kernel_sp}, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbp
    popq %rbx
    retq
    "#,
    size = const size_of::<Registers>(),
    kernel_sp = const KERNEL_SP,
    user_sp = const USER_SP,
    registers_end = const REGISTERS_END,
    task_sp = const TASK_SP,
    user_data = const USER_DATA,
    user_code = const USER_CODE,
    system_call = const SYSTEM_CALL,
    options(att_syntax),
);

unsafe extern "C" {
    fn enter_user(registers: *mut Registers);
    fn system_call_entry();
}

/// Runs user mode with these registers until it is left, and returns the reason. Interrupts are off
/// before and after.
///
/// # Safety
///
/// Interrupts are off. The segments are the user's, and the flags are ones that user mode may have.
/// The address space and the extended registers of the thread that owns `registers` are loaded.
#[inline(always)]
pub unsafe fn enter(registers: &mut Registers) -> Trap {
    debug_assert!(registers.cs == USER_CODE && registers.ss == USER_DATA);
    // SAFETY: the state is as this function's contract demands. The entry code writes only to
    // `registers`, which this CPU's `EntryState` locates.
    unsafe { enter_user(registers) };
    // Read CR2 before another page fault can overwrite it.
    let address = if registers.vector == PAGE_FAULT { Cr2::read_raw() } else { 0 };
    cpu::forbid_user_access();
    match registers.vector {
        SYSTEM_CALL => Trap::SystemCall(registers.error),
        PAGE_FAULT if registers.error & trap::UNRESOLVABLE != 0 => {
            Trap::Exception(trap::raised_by_key(registers.error, address))
        }
        PAGE_FAULT => Trap::PageFault(address, trap::access(registers.error)),
        0..32 => Trap::Exception(trap::raised(registers)),
        vector => {
            trap::interrupt(vector);
            Trap::Interrupt
        }
    }
}

/// Enables system calls on this CPU.
pub fn init() {
    // SAFETY: the selectors are those of `cpu`'s table, whose first two are the kernel's code and
    // data; the ones that SYSRET would load are not used. The entry code leaves the user's stack at
    // once, with interrupts masked.
    unsafe {
        Efer::update(|efer| efer.insert(EferFlags::SYSTEM_CALL_EXTENSIONS));
        Msr::new(0xc000_0081).write(0x0008 << 32 | 0x0010 << 48);
    }
    LStar::write(VirtAddr::new(system_call_entry as *const () as u64));
    SFMask::write(
        RFlags::INTERRUPT_FLAG
            | RFlags::DIRECTION_FLAG
            | RFlags::TRAP_FLAG
            | RFlags::ALIGNMENT_CHECK
            | RFlags::NESTED_TASK,
    );
}

impl fmt::Display for Registers {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { rip, cs, rflags, rsp, ss, error, .. } = self;
        writeln!(f, "rip {rip:#018x}  rsp {rsp:#018x}  rflags {rflags:#x}  cs {cs:#x}  ss {ss:#x}  error {error:#x}")?;
        let Self { rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15, .. } = self;
        writeln!(f, "rax {rax:#018x}  rbx {rbx:#018x}  rcx {rcx:#018x}  rdx {rdx:#018x}")?;
        writeln!(f, "rsi {rsi:#018x}  rdi {rdi:#018x}  rbp {rbp:#018x}  r8  {r8:#018x}")?;
        writeln!(f, "r9  {r9:#018x}  r10 {r10:#018x}  r11 {r11:#018x}  r12 {r12:#018x}")?;
        write!(f, "r13 {r13:#018x}  r14 {r14:#018x}  r15 {r15:#018x}")
    }
}
