//! Accesses user memory for the checks: the address space in use, page faults, and refused
//! accesses.
//!
//! A page fault calls the engine. If the engine resolves it, the access is retried. If the engine
//! refuses, the access fails, and [`load`], [`store`] or [`execute`] returns the error. Any other
//! refused access is a bug of the kernel.

use crate::arch::cpu::user_access;
use crate::arch::entry::{self, Registers};
use crate::arch::hooks::{Fault, Outcome};
use crate::arch::paging::user_end;
use crate::arch::percpu::{self, MAX_CPUS};
use crate::arch::types::Trap;
use crate::arch::{access, interrupts};
use crate::mem::{self, space};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::Relaxed};
use spin::Mutex;
use vellum::memcg::MemcgId;
use vellum::memcg::Refused;
use vellum::space::{FaultError, Limits};

pub use crate::mem::{Machine, Space};

/// The state of one CPU.
struct Seat {
    /// The address space in use; null if the user half is empty.
    current: AtomicPtr<Space>,
    /// The error of the last fault that the engine refused.
    refused: Mutex<Option<FaultError>>,
    /// The number of faults since the last access began.
    tries: AtomicU32,
}

static SEATS: [Seat; MAX_CPUS] =
    [const { Seat { current: AtomicPtr::new(ptr::null_mut()), refused: Mutex::new(None), tries: AtomicU32::new(0) } };
        MAX_CPUS];

fn seat() -> &'static Seat {
    &SEATS[percpu::current().index]
}

/// The most faults per access. If an access still faults after that many were resolved, the page
/// tables do not have what the engine believes.
const MOST_TRIES: u32 = 100;

/// Creates an empty space, with the kernel in its upper half.
pub fn new_space(machine: &'static Machine, group: MemcgId) -> Result<Space, Refused> {
    mem::new_space(machine, group, Limits::default())
}

/// Runs `body` with this space in use, and then restores the previous one.
pub fn run_in<T>(space: &Space, body: impl FnOnce() -> T) -> T {
    let before = seat().current.load(Relaxed);
    // SAFETY: the space is borrowed until the second switch is done, whatever `body` does, as a
    // panic does not return. The previous space is borrowed by the enclosing call of `run_in`.
    unsafe { switch(ptr::from_ref(space).cast_mut()) };
    let result = body();
    // SAFETY: the previous space is borrowed by the enclosing call of `run_in`.
    unsafe { switch(before) };
    result
}

/// Puts another space, or none, in use.
///
/// # Safety
///
/// `to` is null, or a space that lives until the next switch.
unsafe fn switch(to: *mut Space) {
    let from = seat().current.swap(to, Relaxed);
    if from == to {
        return;
    }
    // SAFETY: `to` lives until the next switch (this function's contract), and `from` has lived
    // until this one (the same contract of the previous call).
    unsafe { space::translate(to.as_ref(), from.as_ref()) };
}

/// Reads the word at an address.
pub fn load(address: u64) -> Result<u64, FaultError> {
    // SAFETY: a word of user memory, to which no reference exists.
    attempt(address, || unsafe { access::load(address) })
}

/// Writes the word at an address.
pub fn store(address: u64, value: u64) -> Result<(), FaultError> {
    // SAFETY: a word of user memory, to which no reference exists.
    attempt(address, || unsafe { access::store(address, value) }.then_some(()))
}

/// Executes the code at an address in user mode, until it makes a system call.
///
/// # Safety
///
/// If code can be executed there, it makes a system call and touches no memory. A space is in use.
pub unsafe fn execute(address: u64) -> Result<(), FaultError> {
    let mut registers = Registers::start(address, 0);
    for _ in 0..MOST_TRIES {
        // SAFETY: interrupts are off. The space in use stays; the code uses no other registers.
        match interrupts::without(|| unsafe { entry::enter(&mut registers) }) {
            Trap::SystemCall(_) => return Ok(()),
            Trap::PageFault(address, access) => {
                // SAFETY: the field is null, or a space that lives until the next switch (contract
                // of `switch`).
                let space = unsafe { seat().current.load(Relaxed).as_ref() }.expect("a space is in use");
                space.fault(address, access)?;
            }
            Trap::Interrupt => {}
            Trap::Exception(raised) => panic!("code in user memory raised {raised:?}"),
        }
    }
    panic!("code at {address:#x} made no system call");
}

fn attempt<T>(address: u64, access: impl FnOnce() -> Option<T>) -> Result<T, FaultError> {
    // The engine handles the user half only.
    if address > user_end() - size_of::<u64>() as u64 {
        return Err(FaultError::Unmapped(address));
    }
    seat().tries.store(0, Relaxed);
    let refused = || seat().refused.lock().take().expect("the engine refused the access");
    user_access(access).ok_or_else(refused)
}

/// Handles page faults (the hook of `arch`).
pub fn resolve(fault: &Fault) -> Outcome {
    // SAFETY: the field is null, or a space that lives until the next switch (contract of
    // `switch`). No switch is under way during a fault, because `switch` touches no user memory.
    let Some(space) = (unsafe { seat().current.load(Relaxed).as_ref() }) else {
        return Outcome::Unresolved;
    };
    assert!(
        seat().tries.fetch_add(1, Relaxed) < MOST_TRIES,
        "the access to {:#x} still faults after {MOST_TRIES} resolved faults: {:?}",
        fault.address,
        fault.access
    );
    match space.fault(fault.address, fault.access) {
        Ok(_) => Outcome::Retry,
        Err(error) => {
            *seat().refused.lock() = Some(error);
            access::refused(fault.pc).map_or(Outcome::Unresolved, Outcome::Resume)
        }
    }
}
