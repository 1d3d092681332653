//! What exceptions and interrupts of the kernel's lead to.

use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use vellum::space::Access;

/// A page fault at a user address, in kernel mode.
pub struct Fault {
    /// The address touched.
    pub address: u64,
    /// What the touch was.
    pub access: Access,
    /// The instruction that did it.
    pub pc: u64,
}

/// How to go on after a page fault.
pub enum Outcome {
    /// By the same instruction once more.
    Retry,
    /// By this one instead.
    Resume(u64),
    /// Not at all: nobody may touch this, or nobody knows about it.
    Unresolved,
}

/// Resolves a page fault.
pub type Hook = fn(&Fault) -> Outcome;

static PAGE_FAULT: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());
static SHOOTDOWN: AtomicPtr<()> = AtomicPtr::new(ptr::null_mut());

/// Gives page faults at user addresses to `hook`. It runs on a stack of this processor's, with interrupts as the code that
/// faulted had them, and without access to user memory, unless it asks for it by `cpu::user_access`.
pub fn set_page_fault(hook: Hook) {
    PAGE_FAULT.store(hook as *mut (), Ordering::Release);
}

/// Has shootdowns answered by `hook`, which runs with interrupts off, at any moment, and so takes no lock.
pub fn set_shootdown(hook: fn()) {
    SHOOTDOWN.store(hook as *mut (), Ordering::Release);
}

/// Asks about a page fault; without a hook nobody knows about it.
pub fn page_fault(fault: &Fault) -> Outcome {
    let hook = PAGE_FAULT.load(Ordering::Acquire);
    if hook.is_null() {
        return Outcome::Unresolved;
    }
    // SAFETY: `set_page_fault` alone writes it, and writes nothing but a `Hook`.
    let hook = unsafe { transmute::<*mut (), Hook>(hook) };
    hook(fault)
}

/// Another processor wants something dropped.
pub fn shootdown() {
    let hook = SHOOTDOWN.load(Ordering::Acquire);
    if !hook.is_null() {
        // SAFETY: `set_shootdown` alone writes it, and writes nothing but this.
        unsafe { transmute::<*mut (), fn()>(hook)() };
    }
}
