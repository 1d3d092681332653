//! The memory layer's part of a CPU's record.

use crate::arch::percpu::{self, ArchCpu, Record};
use crate::mem::UserSpace;
use crate::mem::thread::ThreadMem;
use alloc::sync::Arc;
use core::cell::{Cell, UnsafeCell};
use core::ptr;
use core::sync::atomic::AtomicU16;
use vellum_kernel::tags::Tags;

/// The number of address spaces whose translations a CPU keeps, where its TLB has tags (x86: PCIDs,
/// AArch64: ASIDs). The value is Linux's `TLB_NR_DYN_ASIDS`.
const TAGS: usize = 6;

/// The memory layer's record of a CPU.
#[repr(C)]
pub struct MemCpu {
    /// The architecture layer's part.
    pub arch: ArchCpu,
    /// The address space that is loaded.
    pub space: UnsafeCell<Option<Arc<UserSpace>>>,
    /// The address spaces whose translations the TLB may hold.
    pub tags: UnsafeCell<Tags<TAGS>>,
    /// The number of machine-wide tables that this CPU has locked
    /// ([`Shared`](crate::mem::payer::Shared)), and of other reasons why the root memcg pays.
    pub shared: Cell<u32>,
    /// The depth of work on this CPU that can't be undone
    /// ([`enter_unrefused`](crate::mem::payer::enter_unrefused)).
    pub unrefused: Cell<u32>,
    /// The memory layer's part of the thread that this CPU works for; null if it works for none.
    pub thread: Cell<*const ThreadMem>,
    /// The number of the memcg that is charged for what this CPU allocates: that of the thread's
    /// process. Null if this CPU works for no thread.
    pub payer: Cell<*const AtomicU16>,
}

// SAFETY: `repr(C)`, with an `ArchCpu` as its first field.
unsafe impl Record for MemCpu {}

impl MemCpu {
    /// Returns the part of a CPU that has not started.
    pub const fn new() -> Self {
        Self {
            arch: ArchCpu::new(),
            space: UnsafeCell::new(None),
            tags: UnsafeCell::new(Tags::new()),
            shared: Cell::new(0),
            unrefused: Cell::new(0),
            thread: Cell::new(ptr::null()),
            payer: Cell::new(ptr::null()),
        }
    }
}

/// Returns the memory layer's part of the running CPU's record.
#[inline(always)]
pub fn current() -> &'static MemCpu {
    // SAFETY: the records are `TaskCpu`s, which begin with a `MemCpu`.
    unsafe { percpu::current_as() }
}
