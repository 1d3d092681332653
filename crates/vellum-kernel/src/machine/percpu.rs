//! What a processor calls its own.
//!
//! A reference to it is not `Sync`, so it can't be sent, and so the compiler refuses a future that keeps one while it
//! waits: it may go on on another processor.

use crate::arch::percpu::{self as arch, Own};
use crate::mem::UserSpace;
use crate::task::Thread;
use alloc::sync::Arc;
use core::cell::{Cell, UnsafeCell};
use core::ptr;
use core::sync::atomic::AtomicBool;
use vellum_kernel::tags::Tags;

/// How many spaces a processor keeps translations of, where it can tell them apart. The number is Linux's
/// (`TLB_NR_DYN_ASIDS`).
const TAGS: usize = 6;
/// The most processors that are used.
pub const MAX_CPUS: usize = 16;

/// See the module's text.
#[repr(C, align(128))]
pub struct PerCpu {
    /// What the architecture's code needs. The first field: its address is the whole's.
    pub own: Own,
    /// As the engine counts processors.
    pub index: usize,
    /// Whether the timer has fired, or the wire has something, since this was last looked at.
    pub tick: AtomicBool,
    /// When the timer will fire, in nanoseconds; `u64::MAX`: never.
    pub armed: Cell<u64>,
    /// The space that is loaded.
    pub space: UnsafeCell<Option<Arc<UserSpace>>>,
    /// What its TLB may hold of which spaces.
    pub tags: UnsafeCell<Tags<TAGS>>,
    /// The thread whose registers beside the general ones this processor holds; null if nobody's.
    pub thread: Cell<*const Thread>,
    /// The thread whose future this processor polls; null if nobody's.
    pub polled: Cell<*const Thread>,
    /// How many tables of the whole machine's it has locked
    /// ([`Shared`](crate::mem::payer::Shared)).
    pub shared: Cell<u32>,
}

impl PerCpu {
    const fn new() -> Self {
        Self {
            own: Own::new(),
            index: 0,
            tick: AtomicBool::new(false),
            armed: Cell::new(u64::MAX),
            space: UnsafeCell::new(None),
            tags: UnsafeCell::new(Tags::new()),
            thread: Cell::new(ptr::null()),
            polled: Cell::new(ptr::null()),
            shared: Cell::new(0),
        }
    }
}

static mut CPUS: [PerCpu; MAX_CPUS] = [const { PerCpu::new() }; MAX_CPUS];

/// Makes the running processor the one of this index.
///
/// # Safety
///
/// Called once by each processor, with an index of its own below [`MAX_CPUS`], before anything asks for [`current`].
pub unsafe fn install(index: usize) {
    // SAFETY: only the address is taken; by contract nobody else has this element yet.
    let this = unsafe { &raw mut CPUS[index] };
    // SAFETY: as above. It lives for ever.
    unsafe {
        (*this).index = index;
        arch::install(this.cast());
    }
}

/// The running processor's.
#[inline(always)]
pub fn current() -> &'static PerCpu {
    // SAFETY: what `install` got is the first field of a `PerCpu` that lives for ever.
    unsafe { &*arch::current().cast() }
}
