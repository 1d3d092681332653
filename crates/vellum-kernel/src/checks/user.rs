//! User memory: which address space is in use, page faults in it, and accesses that may be refused.
//!
//! A page fault goes to the engine. When the engine has resolved it the access is tried again; when it refuses, the
//! access fails: [`load`], [`store`] and [`call`] say so to their caller. Any other touch that is refused is a bug of
//! the kernel.

use crate::arch::cpu::user_access;
use crate::arch::paging::user_end;
use crate::arch::percpu::{self, MAX_CPUS};
use crate::arch::trap::{Fault, Outcome};
use crate::mem::{self, space};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};
use spin::Mutex;
use vellum::frame::OutOfMemory;
use vellum::group::GroupId;
use vellum::space::{Access, FaultError, Limits};
use x86_64::structures::idt::PageFaultErrorCode as Code;

pub use crate::mem::{Machine, Space};

/// What this is about on one processor.
struct Seat {
    /// The space in use; null when the user half is empty.
    current: AtomicPtr<Space>,
    /// Why the engine refused the last fault that it refused.
    refused: Mutex<Option<FaultError>>,
    /// What [`call`] is calling; 0 for nothing.
    called: AtomicU64,
    /// Faults since the last access began.
    tries: AtomicU32,
}

static SEATS: [Seat; MAX_CPUS] = [const {
    Seat {
        current: AtomicPtr::new(ptr::null_mut()),
        refused: Mutex::new(None),
        called: AtomicU64::new(0),
        tries: AtomicU32::new(0),
    }
}; MAX_CPUS];

fn seat() -> &'static Seat {
    &SEATS[percpu::current().index]
}

/// If an access still faults after so many faults were resolved, the tables do not say what the engine believes.
const PATIENCE: u32 = 100;

/// An empty space, with the kernel in its upper half.
pub fn new_space(machine: &'static Machine, group: GroupId) -> Result<Space, OutOfMemory> {
    mem::new_space(machine, group, Limits::default())
}

/// Runs `body` with this space in use, and then returns to the one before.
pub fn run_in<T>(space: &Space, body: impl FnOnce() -> T) -> T {
    let before = seat().current.load(Relaxed);
    // SAFETY: the space is borrowed until the second switch is done, whatever `body` does, as a panic does not return.
    // The space before is borrowed by the call of `run_in` that this one is inside of.
    unsafe { switch(ptr::from_ref(space).cast_mut()) };
    let result = body();
    // SAFETY: as above.
    unsafe { switch(before) };
    result
}

/// Puts another space in use, or none.
///
/// # Safety
///
/// Null, or a space that lives until the next switch.
unsafe fn switch(to: *mut Space) {
    let from = seat().current.swap(to, Relaxed);
    if from == to {
        return;
    }
    // SAFETY: both live: by this contract, and by that of the switch before.
    unsafe { space::translate(to.as_ref(), from.as_ref()) };
}

// The accesses, each a function whose one instruction may be refused. What they answer is whether it was.
core::arch::global_asm!(
    r#"
    .section .text.user, "ax", @progbits
user_load:                              // (address, where to put the value)
    movq (%rdi), %rax
    movq %rax, (%rsi)
    xorl %eax, %eax
    retq
user_store:                             // (address, value)
    movq %rsi, (%rdi)
    xorl %eax, %eax
    retq
user_call:                              // (address)
    callq *%rdi
    xorl %eax, %eax
    retq
user_call_refused:
    addq $8, %rsp                       // the call was made, but nobody was there to return from it
user_refused:
    movl $1, %eax
    retq
    "#,
    options(att_syntax),
);

unsafe extern "C" {
    fn user_load(address: u64, value: *mut u64) -> u32;
    fn user_store(address: u64, value: u64) -> u32;
    fn user_call(address: u64) -> u32;
    fn user_call_refused();
    fn user_refused();
}

/// Reads the word at an address.
pub fn load(address: u64) -> Result<u64, FaultError> {
    let mut value = 0;
    // SAFETY: a word of user memory, to which no reference exists; and one of this function's.
    attempt(address, || unsafe { user_load(address, &raw mut value) })?;
    Ok(value)
}

/// Writes the word at an address.
pub fn store(address: u64, value: u64) -> Result<(), FaultError> {
    // SAFETY: a word of user memory, to which no reference exists.
    attempt(address, || unsafe { user_store(address, value) })
}

/// Calls what is at an address: until there is a user mode, the only way to find out whether it may be executed.
///
/// # Safety
///
/// If code can be executed there, it is a function that does nothing.
pub unsafe fn call(address: u64) -> Result<(), FaultError> {
    seat().called.store(address, Relaxed);
    // SAFETY: by contract, it only returns.
    let result = attempt(address, || unsafe { user_call(address) });
    seat().called.store(0, Relaxed);
    result
}

fn attempt(address: u64, access: impl FnOnce() -> u32) -> Result<(), FaultError> {
    // The user half, and nothing beyond, is what the engine answers for.
    if address > user_end() - size_of::<u64>() as u64 {
        return Err(FaultError::Unmapped(address));
    }
    seat().tries.store(0, Relaxed);
    match user_access(access) {
        0 => Ok(()),
        _ => Err(seat().refused.lock().take().expect("an access is refused by the engine")),
    }
}

/// The hook for page faults.
pub fn resolve(fault: &Fault) -> Outcome {
    // SAFETY: null, or a space that lives until the next switch (contract of `switch`), which this is not inside of:
    // it touches no user memory.
    let Some(space) = (unsafe { seat().current.load(Relaxed).as_ref() }) else {
        return Outcome::Unresolved;
    };
    assert!(!fault.code.contains(Code::MALFORMED_TABLE), "an entry has a bit set that must be 0");
    assert!(
        seat().tries.fetch_add(1, Relaxed) < PATIENCE,
        "the fault at {:#x} was resolved {PATIENCE} times, and is still there: {:?}",
        fault.address,
        fault.code
    );
    let access = if fault.code.contains(Code::INSTRUCTION_FETCH) {
        Access::Exec
    } else if fault.code.contains(Code::CAUSED_BY_WRITE) {
        Access::Write
    } else {
        Access::Read
    };
    match space.fault(fault.address, access) {
        Ok(()) => Outcome::Retry,
        Err(error) => {
            *seat().refused.lock() = Some(error);
            recovery(fault).map_or(Outcome::Unresolved, Outcome::Resume)
        }
    }
}

/// Where a refused access goes on, if it is one of those that may be.
fn recovery(fault: &Fault) -> Option<u64> {
    // A fetch: the instruction is the one that isn't there.
    if fault.rip == fault.address && fault.address == seat().called.load(Relaxed) {
        return Some(user_call_refused as *const () as u64);
    }
    [user_load as *const () as u64, user_store as *const () as u64]
        .contains(&fault.rip)
        .then_some(user_refused as *const () as u64)
}
