//! What a processor calls its own, found through the GS segment.
//!
//! A reference to it is not `Sync`, so it can't be sent, and so the compiler refuses a future that keeps one while it
//! waits: it may go on on another processor.

use crate::mem::UserSpace;
use crate::task::Thread;
use alloc::sync::Arc;
use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::AtomicBool;
use vellum_kernel::tags::Tags;
use x86_64::VirtAddr;
use x86_64::registers::model_specific::{GsBase, KernelGsBase};
use x86_64::structures::tss::TaskStateSegment;

/// How many spaces a processor keeps translations of, where it can tell them apart. The number is Linux's
/// (`TLB_NR_DYN_ASIDS`).
const TAGS: usize = 6;
/// The most processors that are used.
pub const MAX_CPUS: usize = 16;

/// See the module's text. The entry code knows the offsets of some fields.
#[repr(C, align(128))]
pub struct PerCpu {
    this: *const PerCpu,
    /// The kernel's stack pointer while this processor is in user mode.
    kernel_sp: Cell<u64>,
    /// Where the entry of a system call puts the user's for a moment.
    user_sp: Cell<u64>,
    /// The end of the registers of the thread in user mode: where the entries push to.
    registers_end: Cell<u64>,
    /// The task state: the processor reads from it where to push at an exception.
    pub task: UnsafeCell<TaskStateSegment>,
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
    /// The thread whose registers (segment bases and vectors) this processor holds; null if nobody's.
    pub thread: Cell<*const Thread>,
    /// The thread whose future this processor polls; null if nobody's.
    pub polled: Cell<*const Thread>,
    /// Whether that ended its turn with no other wish than to have the next.
    pub gave_way: Cell<bool>,
}

/// Offset of the stack pointer of an entry, which is also that of the processor's own (Intel SDM, volume 3A, "64-Bit Mode
/// TSS": RSP0 at byte 4).
pub const TASK_SP: usize = offset_of!(PerCpu, task) + 4;
/// Offset of a field, for the entry code.
pub const KERNEL_SP: usize = offset_of!(PerCpu, kernel_sp);
/// As above.
pub const USER_SP: usize = offset_of!(PerCpu, user_sp);
/// As above.
pub const REGISTERS_END: usize = offset_of!(PerCpu, registers_end);

impl PerCpu {
    const fn new() -> Self {
        Self {
            this: ptr::null(),
            kernel_sp: Cell::new(0),
            user_sp: Cell::new(0),
            registers_end: Cell::new(0),
            task: UnsafeCell::new(TaskStateSegment::new()),
            index: 0,
            tick: AtomicBool::new(false),
            armed: Cell::new(u64::MAX),
            space: UnsafeCell::new(None),
            tags: UnsafeCell::new(Tags::new()),
            thread: Cell::new(ptr::null()),
            polled: Cell::new(ptr::null()),
            gave_way: Cell::new(false),
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
    // SAFETY: as above.
    unsafe { ((*this).this, (*this).index) = (this, index) };
    GsBase::write(VirtAddr::from_ptr(this));
    KernelGsBase::write(VirtAddr::zero());
}

/// The running processor's.
#[inline(always)]
pub fn current() -> &'static PerCpu {
    let this: *const PerCpu;
    // SAFETY: GS points to a `PerCpu` from `install` on, whenever the kernel runs, and its first word to itself.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) this, options(nostack, preserves_flags, readonly, pure));
        &*this
    }
}
