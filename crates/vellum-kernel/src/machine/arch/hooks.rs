//! The functions of the layers above that exceptions and interrupts in kernel mode call.

use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use vellum::space::Access;

/// A page fault at a user address in kernel mode.
pub struct Fault {
    /// The faulting address.
    pub address: u64,
    /// The kind of access.
    pub access: Access,
    /// True if the memory's protection key forbids the access, whatever the PTE permits.
    pub denied_by_key: bool,
    /// The address of the faulting instruction.
    pub pc: u64,
}

/// The way to continue after a page fault.
pub enum Outcome {
    /// Repeat the faulting instruction.
    Retry,
    /// Continue at this address instead.
    Resume(u64),
    /// Do not continue: the access is not allowed, or no hook is set.
    Unresolved,
}

/// A function that resolves a page fault.
pub type Hook = fn(&Fault) -> Outcome;

static PAGE_FAULT: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
static SHOOTDOWN: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Sets the hook for page faults at user addresses. It runs on a stack of the faulting CPU, with
/// interrupts as the faulting code had them, and without access to user memory except inside
/// `cpu::user_access`.
pub fn set_page_fault(hook: Hook) {
    PAGE_FAULT.store(hook as *mut (), Ordering::Release);
}

/// Sets the hook for shootdown interrupts. It runs with interrupts off at any point of the kernel,
/// and so must take no lock.
pub fn set_shootdown(hook: fn()) {
    SHOOTDOWN.store(hook as *mut (), Ordering::Release);
}

/// Calls the page-fault hook. Returns `Unresolved` if none is set.
pub fn page_fault(fault: &Fault) -> Outcome {
    let hook = PAGE_FAULT.load(Ordering::Acquire);
    if hook.is_null() {
        return Outcome::Unresolved;
    }
    // SAFETY: only `set_page_fault` writes `PAGE_FAULT`, and writes a `Hook`.
    let hook = unsafe { transmute::<*mut (), Hook>(hook) };
    hook(fault)
}

/// Calls the shootdown hook: another CPU has requested an invalidation.
pub fn shootdown() {
    let hook = SHOOTDOWN.load(Ordering::Acquire);
    if !hook.is_null() {
        // SAFETY: only `set_shootdown` writes `SHOOTDOWN`, and writes a `fn()`.
        unsafe { transmute::<*mut (), fn()>(hook)() };
    }
}
