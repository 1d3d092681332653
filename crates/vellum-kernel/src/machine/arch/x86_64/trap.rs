//! Exceptions and interrupts in kernel mode. Those in user mode end [`crate::arch::entry::enter`].
//!
//! A page fault at a user address calls the page-fault hook ([`crate::arch::hooks`]), which may
//! resolve it or make the faulting code continue elsewhere. Any other exception is a kernel bug:
//! the handler reports it with all that is known and stops the machine.
//!
//! An interrupt may arrive at any point of the kernel, so its handler takes no lock: it sets a
//! flag, or serves shootdown requests.

use crate::arch::entry::Registers;
use crate::arch::exit::{self, exit};
use crate::arch::hooks::{self, Fault, Outcome};
use crate::arch::paging::user_end;
use crate::arch::serial::println;
use crate::arch::types::Raised;
use crate::arch::{backtrace, percpu};
use crate::arch::{cpu, irq, serial, stack};
use core::sync::atomic::Ordering;
use linux_raw_sys::general as abi;
use vellum::space::Access;
use x86_64::VirtAddr;
use x86_64::instructions::interrupts;
use x86_64::instructions::tables::lidt;
use x86_64::registers::control::Cr2;
use x86_64::registers::rflags::RFlags;
use x86_64::registers::segmentation::{CS, Segment};
use x86_64::structures::DescriptorTablePointer;
use x86_64::structures::idt::PageFaultErrorCode;

const EXCEPTIONS: usize = 32;
/// The number of vectors: exceptions, then interrupts.
const VECTORS: usize = 48;
/// The vector of a page fault.
pub const PAGE_FAULT: u64 = 14;
/// Non-maskable interrupt, double fault and machine check: the main stack may be unusable when they
/// arrive.
const ON_FAULT_STACK: [usize; 3] = [2, 8, 18];

const NAMES: [&str; EXCEPTIONS] = [
    "divide error",
    "debug",
    "non-maskable interrupt",
    "breakpoint",
    "overflow",
    "bound range exceeded",
    "invalid opcode",
    "device not available",
    "double fault",
    "coprocessor segment overrun",
    "invalid TSS",
    "segment not present",
    "stack-segment fault",
    "general protection fault",
    "page fault",
    "reserved exception",
    "x87 floating-point error",
    "alignment check",
    "machine check",
    "SIMD floating-point error",
    "virtualization exception",
    "control protection exception",
    "reserved exception",
    "reserved exception",
    "reserved exception",
    "reserved exception",
    "reserved exception",
    "reserved exception",
    "hypervisor injection exception",
    "VMM communication exception",
    "security exception",
    "reserved exception",
];

// One stub of 16 bytes per vector. The CPU pushes an error code for some exceptions (Intel SDM,
// volume 3A, "Error Code"; AMD's manual, volume 2, adds 29 and 30); the other stubs push a zero in
// its place. The kernel is compiled without vector registers, so only the general registers are
// saved. The CPU aligns the stack before it pushes, and the 22 words of `Registers` keep it aligned
// for the call.
core::arch::global_asm!(
    r#"
    .section .text.trap, "ax", @progbits
    .balign 16
trap_stubs:
    .set vector, 0
    .rept {vectors}
    .balign 16
    .if vector >= 32 || ((0x60227d00 >> vector) & 1) == 0
    pushq $0
    .endif
    pushq $vector
    .if vector == 2 || vector == 8 || vector == 18
    jmp trap_from_kernel                // these have a stack of their own in either mode
    .else
    jmp trap_common
    .endif
    .set vector, vector + 1
    .endr
trap_common:
    testb $3, 24(%rsp)                  // the privilege level of the code segment
    jnz trap_from_user
trap_from_kernel:
    pushq %rax
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
    movq %rsp, %rdi
    callq {handle}
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
    iretq
    "#,
    vectors = const VECTORS,
    handle = sym handle,
    options(att_syntax),
);

unsafe extern "C" {
    static trap_stubs: u8;
}

static mut GATES: [[u64; 2]; VECTORS] = [[0; 2]; VECTORS];

/// Fills and loads the interrupt descriptor table.
///
/// # Safety
///
/// Called once, on the boot CPU, after [`cpu::init`].
pub unsafe fn init() {
    let gates = &raw mut GATES;
    // SAFETY: called once with one CPU running, and the table is not loaded yet: no other code
    // accesses it.
    let gates = unsafe { &mut *gates };
    for (vector, gate) in gates.iter_mut().enumerate() {
        let stack = if ON_FAULT_STACK.contains(&vector) { cpu::FAULT_STACK_SLOT + 1 } else { 0 };
        *gate = interrupt_gate(&raw const trap_stubs as u64 + 16 * vector as u64, CS::get_reg().0, stack);
        if vector == BREAKPOINT {
            // Programs execute `int3`; without this right it is a general protection fault.
            gate[0] |= USER_GATE;
        }
    }
    load();
}

/// Loads the interrupt descriptor table on this CPU.
pub fn load() {
    let gates = &raw const GATES;
    let limit = (size_of::<[[u64; 2]; VECTORS]>() - 1) as u16;
    let pointer = DescriptorTablePointer { limit, base: VirtAddr::from_ptr(gates) };
    // SAFETY: the table lives forever, is filled and not written again, and each of its gates leads
    // to a stub.
    unsafe { lidt(&pointer) };
}

/// The vector of `int3`.
const BREAKPOINT: usize = 3;
/// The bits of a gate that let programs use it by an instruction.
const USER_GATE: u64 = 3 << 45;

/// Returns a present interrupt gate, which masks interrupts (Intel SDM, volume 3A, "64-Bit Mode
/// IDT": type 14).
fn interrupt_gate(address: u64, code: u16, stack: u16) -> [u64; 2] {
    let low = address & 0xffff | u64::from(code) << 16 | u64::from(stack) << 32 | 0x8e << 40;
    [low | (address >> 16 & 0xffff) << 48, address >> 32]
}

extern "C" fn handle(frame: &mut Registers) {
    if frame.vector >= EXCEPTIONS as u64 {
        return interrupt(frame.vector);
    }
    // Read CR2 first, because a fault inside the handler would overwrite it.
    let address = Cr2::read_raw();
    cpu::forbid_user_access();
    if frame.rflags & RFlags::INTERRUPT_FLAG.bits() != 0 {
        // Interrupts must be on in the hook, which may wait for another CPU that itself waits until
        // this CPU serves its shootdown.
        interrupts::enable();
    }
    let outcome = resolve(frame, address);
    interrupts::disable();
    match outcome {
        Outcome::Retry => {}
        Outcome::Resume(rip) => frame.rip = rip,
        Outcome::Unresolved => report(frame, address),
    }
}

/// Serves an interrupt, in kernel mode or from user mode. Interrupts are off.
pub fn interrupt(vector: u64) {
    match vector as u8 {
        irq::TIMER | irq::LINE => percpu::current().tick.store(true, Ordering::Relaxed),
        irq::SHOOTDOWN => hooks::shootdown(),
        irq::SPURIOUS => return,
        _ => {}
    }
    irq::end_of_interrupt();
}

/// Calls the page-fault hook if a PTE can resolve the exception: a page fault at a user address,
/// inside `cpu::user_access`. Returns `Unresolved` for all others.
fn resolve(frame: &Registers, address: u64) -> Outcome {
    if frame.vector != PAGE_FAULT || address >= user_end() || is_outside_user_access(frame) {
        return Outcome::Unresolved;
    }
    let denied_by_key = check(frame.error);
    hooks::page_fault(&Fault { address, access: access(frame.error), denied_by_key, pc: frame.rip })
}

/// The bits of a page fault's error code that no PTE can resolve.
pub const UNRESOLVABLE: u64 = PageFaultErrorCode::MALFORMED_TABLE.bits() | PageFaultErrorCode::PROTECTION_KEY.bits();

/// Returns true if a page fault's error code says that a protection key forbids the access.
///
/// # Panics
///
/// If a reserved bit is set in a page-table entry.
pub fn check(error: u64) -> bool {
    let code = PageFaultErrorCode::from_bits_truncate(error);
    assert!(
        !code.contains(PageFaultErrorCode::MALFORMED_TABLE),
        "a page-table entry has a reserved bit set: {error:#x}"
    );
    code.contains(PageFaultErrorCode::PROTECTION_KEY)
}

/// Returns the signal for a page fault at `address` in user mode that a protection key forbids.
#[cold]
pub fn raised_by_key(error: u64, address: u64) -> Raised {
    check(error);
    Raised { signal: abi::SIGSEGV, code: abi::SEGV_PKUERR as i32, address }
}

/// Returns the kind of access in a page fault's error code.
#[inline]
pub fn access(error: u64) -> Access {
    let code = PageFaultErrorCode::from_bits_truncate(error);
    if code.contains(PageFaultErrorCode::INSTRUCTION_FETCH) {
        Access::Exec
    } else if code.contains(PageFaultErrorCode::CAUSED_BY_WRITE) {
        Access::Write
    } else {
        Access::Read
    }
}

/// Returns the signal for an exception in user mode other than a page fault.
#[cold]
pub fn raised(registers: &Registers) -> Raised {
    let rip = registers.rip;
    let (signal, code, address) = match registers.vector {
        0 => (abi::SIGFPE, abi::FPE_INTDIV, rip),
        1 => (abi::SIGTRAP, abi::TRAP_TRACE, rip),
        3 => (abi::SIGTRAP, abi::SI_KERNEL, 0),
        6 => (abi::SIGILL, abi::ILL_ILLOPN, rip),
        12 => (abi::SIGBUS, abi::SI_KERNEL, 0),
        16 | 19 => (abi::SIGFPE, abi::FPE_FLTINV, rip),
        17 => (abi::SIGBUS, abi::BUS_ADRALN, 0),
        _ => (abi::SIGSEGV, abi::SI_KERNEL, 0),
    };
    Raised { signal, code: code as i32, address }
}

/// Returns whether the kernel faulted while access to user memory was forbidden.
fn is_outside_user_access(frame: &Registers) -> bool {
    let from_kernel = frame.cs & 3 == 0;
    from_kernel && cpu::has_smap() && frame.rflags & RFlags::ALIGNMENT_CHECK.bits() == 0
}

#[cold]
fn report(frame: &Registers, address: u64) -> ! {
    serial::seize();
    println!("\nexception {}: {}", frame.vector, NAMES[frame.vector as usize % EXCEPTIONS]);
    println!("{frame}");
    if frame.vector == PAGE_FAULT {
        println!("cr2 {address:#018x}  {:?}", PageFaultErrorCode::from_bits_truncate(frame.error));
        if address < user_end() && is_outside_user_access(frame) {
            println!("the kernel accessed a user address outside cpu::user_access");
        }
    } else {
        println!("cr2 {address:#018x}");
        if stack::is_guard(address) {
            println!("the stack overflowed");
        }
    }
    backtrace::print(Some(frame.rip), frame.rbp);
    exit(exit::Outcome::Failure)
}
