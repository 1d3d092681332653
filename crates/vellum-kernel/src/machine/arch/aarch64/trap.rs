//! Exceptions. Those that come in user mode end [`crate::arch::entry::enter`].
//!
//! A page fault of the kernel's at a user address goes to the hook, which may resolve it, or have the code that faulted go on
//! elsewhere; every other exception is a bug of the kernel, is reported with all that is known of it, and stops the machine.
//!
//! Interrupts may come at any moment in kernel mode; so what serves them takes no lock and calls nothing: it sets a flag,
//! or invalidates, and is done.

use super::vectors::{INTERRUPT, SYNCHRONOUS};
use crate::arch::backtrace;
use crate::arch::entry::Registers;
use crate::arch::exit::{self, exit};
use crate::arch::hooks::{self, Fault, Outcome};
use crate::arch::paging::user_end;
use crate::arch::types::{Raised, Trap};
use crate::arch::{cpu, interrupts, irq, serial, stack};
use crate::println;
use linux_raw_sys::general as abi;
use vellum::space::Access;

/// What user mode may set in its state: the condition flags, those of branch targets, of speculation and of timing.
pub const USER_STATE: u64 = 0xf << 28 | 1 << 24 | 1 << 12 | 3 << 10;
/// What user mode's state never has: another level, or exceptions kept away.
pub const KERNEL_STATE: u64 = 0x3df;
/// In the kernel's: interrupts are kept away; touching user memory is forbidden (PAN).
const MASKED: u64 = 1 << 7;
const FORBIDDEN: u64 = 1 << 22;

/// What ESR_EL1 says (Arm ARM, D19.2.40).
#[derive(Clone, Copy)]
struct Syndrome(u64);

impl Syndrome {
    /// The class of the exception.
    fn class(self) -> u64 {
        self.0 >> 26 & 63
    }

    fn is_fetch(self) -> bool {
        matches!(self.class(), 0x20 | 0x21)
    }

    fn is_abort(self) -> bool {
        self.is_fetch() || matches!(self.class(), 0x24 | 0x25)
    }

    /// Whether an entry of a page table is the reason: a translation, access flag or permission fault, at any level.
    fn is_page_fault(self) -> bool {
        self.is_abort() && matches!(self.0 >> 2 & 15, 1..=3)
    }

    /// What was tried. Maintenance of caches counts as a read.
    fn access(self) -> Access {
        let (write, maintenance) = (self.0 >> 6 & 1 != 0, self.0 >> 8 & 1 != 0);
        match self.is_fetch() {
            true => Access::Exec,
            false if write && !maintenance => Access::Write,
            false => Access::Read,
        }
    }
}

/// Why a synchronous exception left user mode.
#[inline]
pub fn of_user(registers: &Registers) -> Trap {
    const SYSTEM_CALL: u64 = 0x15;
    let syndrome = Syndrome(registers.syndrome);
    if syndrome.class() == SYSTEM_CALL {
        Trap::SystemCall(registers.x[8])
    } else if syndrome.is_page_fault() {
        Trap::PageFault(read_register!("far_el1"), syndrome.access())
    } else {
        Trap::Exception(raised(registers, syndrome))
    }
}

/// The signal that another exception of user mode's is to the program.
#[cold]
fn raised(registers: &Registers, syndrome: Syndrome) -> Raised {
    const ALIGNMENT: u64 = 0b10_0001;
    let address = read_register!("far_el1");
    let (signal, code, address) = match syndrome.class() {
        _ if syndrome.is_abort() && syndrome.0 & 63 == ALIGNMENT => (abi::SIGBUS, abi::BUS_ADRALN, address),
        // The address has more bits than there are, or memory failed.
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

/// An exception in kernel mode.
pub extern "C" fn handle(frame: &mut Registers, kind: u64) {
    match kind {
        SYNCHRONOUS => {}
        INTERRUPT => return irq::serve(),
        _ => report(frame, kind),
    }
    // First of all, as a fault inside the handler would overwrite it.
    let address = read_register!("far_el1");
    if frame.state & MASKED == 0 {
        // Whoever resolves the fault may wait for another processor, which may wait for this one.
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

/// Asks the hook about the faults that a page-table entry can cure: not about the kernel's own half, and not about
/// user memory touched where that is forbidden.
fn resolve(frame: &Registers, address: u64) -> Outcome {
    let syndrome = Syndrome(frame.syndrome);
    if !syndrome.is_page_fault() || address >= user_end() || is_stray(frame) {
        return Outcome::Unresolved;
    }
    hooks::page_fault(&Fault { address, access: syndrome.access(), pc: frame.pc })
}

/// Whether the kernel ran with access to user memory forbidden.
fn is_stray(frame: &Registers) -> bool {
    cpu::has_pan() && frame.state & FORBIDDEN != 0
}

/// Reports an exception that nobody knows what to do about, and stops the machine.
#[cold]
pub fn report(frame: &Registers, kind: u64) -> ! {
    let address = read_register!("far_el1");
    serial::seize();
    println!("\nexception of kind {kind}, class {:#x}", Syndrome(frame.syndrome).class());
    println!("{frame}\nfar {address:#018x}");
    if stack::is_guard(address) {
        println!("the stack overflowed");
    } else if address < user_end() && Syndrome(frame.syndrome).is_page_fault() && is_stray(frame) {
        println!("the kernel touched a user address outside cpu::user_access");
    }
    backtrace::print(Some(frame.pc), frame.x[29]);
    exit(exit::Outcome::Failure)
}
