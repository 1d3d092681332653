//! Exceptions in kernel mode. Those in user mode end [`crate::arch::entry::enter`].
//!
//! A page fault at a user address calls the page-fault hook ([`crate::arch::hooks`]), which may
//! resolve it or make the faulting code continue elsewhere. Any other exception is a kernel bug:
//! the handler reports it with all that is known and stops the machine.
//!
//! An interrupt may arrive at any point of the kernel, so its handler takes no lock: it sets a
//! flag, or serves shootdown requests.

use super::vectors::{INTERRUPT, SYNCHRONOUS};
use crate::arch::backtrace;
use crate::arch::entry::Registers;
use crate::arch::exit::{self, exit};
use crate::arch::hooks::{self, Fault, Outcome};
use crate::arch::paging::user_end;
use crate::arch::serial::println;
use crate::arch::types::{Raised, Trap};
use crate::arch::{cpu, interrupts, irq, serial, stack};
use linux_raw_sys::general as abi;
use vellum::space::Access;

/// The status bits that user mode may set: the condition flags, DIT, SSBS and BTYPE.
pub const USER_STATE: u64 = 0xf << 28 | 1 << 24 | 1 << 12 | 3 << 10;
/// The status bit with which user mode stops after an instruction (SS), if MDSCR_EL1 says so.
pub const STEP_STATE: u64 = 1 << 21;
/// The status bits that are never set in user mode: other exception levels, and the exception
/// masks.
pub const KERNEL_STATE: u64 = 0x3df;
/// Bits of the saved status of kernel code: interrupts masked; access to user memory forbidden
/// (PAN).
const MASKED: u64 = 1 << 7;
const FORBIDDEN: u64 = 1 << 22;

/// The exception syndrome (ESR_EL1; Arm ARM, D19.2.40).
#[derive(Clone, Copy)]
struct Syndrome(u64);

impl Syndrome {
    /// Returns the exception class.
    fn class(self) -> u64 {
        self.0 >> 26 & 63
    }

    fn is_fetch(self) -> bool {
        matches!(self.class(), 0x20 | 0x21)
    }

    fn is_abort(self) -> bool {
        self.is_fetch() || matches!(self.class(), 0x24 | 0x25)
    }

    /// Returns whether a page-table entry caused the exception: a translation, access flag or
    /// permission fault at any level.
    fn is_page_fault(self) -> bool {
        self.is_abort() && matches!(self.0 >> 2 & 15, 1..=3)
    }

    /// Returns the kind of access. Cache maintenance counts as a read.
    fn access(self) -> Access {
        let (write, maintenance) = (self.0 >> 6 & 1 != 0, self.0 >> 8 & 1 != 0);
        match self.is_fetch() {
            true => Access::Exec,
            false if write && !maintenance => Access::Write,
            false => Access::Read,
        }
    }
}

/// The exception class of a system call.
const SYSTEM_CALL: u64 = 0x15;

/// Returns whether a system call left user mode last.
pub fn is_system_call(registers: &Registers) -> bool {
    Syndrome(registers.syndrome).class() == SYSTEM_CALL
}

/// Returns the reason for which a synchronous exception left user mode.
#[inline]
pub fn of_user(registers: &Registers) -> Trap {
    let syndrome = Syndrome(registers.syndrome);
    if syndrome.class() == SYSTEM_CALL {
        Trap::SystemCall(registers.x[8])
    } else if syndrome.is_page_fault() {
        Trap::PageFault(read_register!("far_el1"), syndrome.access())
    } else {
        Trap::Exception(raised(registers, syndrome))
    }
}

/// Returns the signal for an exception in user mode other than a system call or a page fault.
#[cold]
fn raised(registers: &Registers, syndrome: Syndrome) -> Raised {
    const ALIGNMENT: u64 = 0b10_0001;
    let address = read_register!("far_el1");
    let (signal, code, address) = match syndrome.class() {
        _ if syndrome.is_abort() && syndrome.0 & 63 == ALIGNMENT => (abi::SIGBUS, abi::BUS_ADRALN, address),
        // The address is not canonical, or memory has failed.
        _ if syndrome.is_abort() => (abi::SIGSEGV, abi::SEGV_MAPERR, address),
        0x22 => (abi::SIGBUS, abi::BUS_ADRALN, address),
        0x26 => (abi::SIGBUS, abi::BUS_ADRALN, registers.sp),
        0x2c => (abi::SIGFPE, abi::FPE_FLTINV, registers.pc),
        0x30 | 0x32 | 0x34 => (abi::SIGTRAP, abi::TRAP_TRACE, registers.pc),
        0x3c => (abi::SIGTRAP, abi::TRAP_BRKPT, registers.pc),
        _ => (abi::SIGILL, abi::ILL_ILLOPC, registers.pc),
    };
    Raised { signal, code: code as i32, address }
}

/// Handles an exception in kernel mode.
pub extern "C" fn handle(frame: &mut Registers, kind: u64) {
    match kind {
        SYNCHRONOUS => {}
        INTERRUPT => return irq::serve(),
        _ => report(frame, kind),
    }
    // Read FAR_EL1 first, because a fault inside the handler would overwrite it.
    let address = read_register!("far_el1");
    if frame.state & MASKED == 0 {
        // Interrupts must be on in the hook, which may wait for another CPU that itself waits until
        // this CPU serves its shootdown.
        interrupts::enable();
    }
    let outcome = resolve(frame, address);
    interrupts::disable();
    match outcome {
        Outcome::Retry => {}
        Outcome::Resume(pc) => frame.pc = pc,
        Outcome::Unresolved => report(frame, kind),
    }
}

/// Calls the page-fault hook if a PTE can resolve the exception: a page fault at a user address,
/// inside `cpu::user_access`. Returns `Unresolved` for all others.
fn resolve(frame: &Registers, address: u64) -> Outcome {
    let syndrome = Syndrome(frame.syndrome);
    if !syndrome.is_page_fault() || address >= user_end() || is_outside_user_access(frame) {
        return Outcome::Unresolved;
    }
    hooks::page_fault(&Fault { address, access: syndrome.access(), denied_by_key: false, pc: frame.pc })
}

/// Returns whether the kernel faulted while access to user memory was forbidden.
fn is_outside_user_access(frame: &Registers) -> bool {
    cpu::has_pan() && frame.state & FORBIDDEN != 0
}

/// Reports an unexpected exception and stops the machine.
#[cold]
pub fn report(frame: &Registers, kind: u64) -> ! {
    let address = read_register!("far_el1");
    serial::seize();
    println!("\nexception of kind {kind}, class {:#x}", Syndrome(frame.syndrome).class());
    println!("{frame}\nfar {address:#018x}");
    if stack::is_guard(address) {
        println!("the stack overflowed");
    } else if address < user_end() && Syndrome(frame.syndrome).is_page_fault() && is_outside_user_access(frame) {
        println!("the kernel accessed a user address outside cpu::user_access");
    }
    backtrace::print(Some(frame.pc), frame.x[29]);
    exit(exit::Outcome::Failure)
}
