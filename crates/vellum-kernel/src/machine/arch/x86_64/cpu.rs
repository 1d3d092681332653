//! The processor: its segments, the protections that are switched on, and the way to user memory.
//!
//! With SMAP the kernel faults on its own stray touches of user memory. It runs with the protection on, and lifts
//! it only inside [`user_access`], the one place from which user addresses are meant to be touched. A processor
//! without SMAP runs the same code, less guarded.

use crate::arch::percpu::{self, MAX_CPUS};
use crate::arch::stack;
use core::arch::asm;
use core::arch::x86_64::__cpuid_count;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use x86_64::VirtAddr;
use x86_64::instructions::tables::load_tss;
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags, Efer, EferFlags};
use x86_64::registers::segmentation::{CS, SS, Segment};
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};

/// The selector of user mode's data segment.
pub const USER_DATA: u64 = 0x1b;
/// The selector of user mode's code segment.
pub const USER_CODE: u64 = 0x23;
/// The slot of the interrupt stack table whose stack serves the exceptions that may find no other stack usable.
pub const FAULT_STACK_SLOT: u16 = 0;

static mut SEGMENTS: [MaybeUninit<GlobalDescriptorTable>; MAX_CPUS] = [const { MaybeUninit::uninit() }; MAX_CPUS];
static SMAP: AtomicBool = AtomicBool::new(false);
static TAGS: AtomicBool = AtomicBool::new(false);

/// Loads the segments, and switches on the protections that the processor has: no-execute and write protection
/// always; supervisor-mode execution and access prevention where available.
///
/// # Safety
///
/// To be called once by each processor, with interrupts off, after [`percpu::install`].
pub unsafe fn init() {
    let percpu::ArchCpu { index, ref entry, .. } = *percpu::current();
    let (task, fault_stack) = (entry.task.get(), stack::fault_stack_top(index));
    // SAFETY: this processor's own, and not loaded yet.
    unsafe { (*task).interrupt_stack_table[FAULT_STACK_SLOT as usize] = VirtAddr::new(fault_stack) };
    let mut table = GlobalDescriptorTable::new();
    let code = table.append(Descriptor::kernel_code_segment());
    let data = table.append(Descriptor::kernel_data_segment());
    let user_data = table.append(Descriptor::user_data_segment());
    let user_code = table.append(Descriptor::user_code_segment());
    debug_assert!([user_data.0, user_code.0].map(u64::from) == [USER_DATA, USER_CODE]);
    // SAFETY: the task state is this processor's, and lives for ever.
    let state = table.append(unsafe { Descriptor::tss_segment_unchecked(task) });
    let segments = &raw mut SEGMENTS;
    // SAFETY: this processor's own, which is not loaded yet and not written again.
    unsafe { (*segments)[index].write(table) }.load();
    // SAFETY: the selectors are those of the table just loaded, which is never changed.
    unsafe {
        CS::set_reg(code);
        SS::set_reg(data);
        load_tss(state);
    }
    assert!(extended_features() & 1 << 20 != 0, "this processor has no no-execute bit");
    let (smep, smap) = (structured_features() & 1 << 7 != 0, structured_features() & 1 << 20 != 0);
    // SAFETY: no table in use has a bit that these give another meaning to (no-execute is bit 63), maps a user
    // page, or maps something read-only that is yet written.
    unsafe {
        Efer::update(|efer| efer.insert(EferFlags::NO_EXECUTE_ENABLE));
        Cr0::update(|cr0| cr0.insert(Cr0Flags::WRITE_PROTECT));
        Cr4::update(|cr4| {
            cr4.set(Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION, smep);
            cr4.set(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION, smap);
        });
    }
    SMAP.store(smap, Relaxed);
}

/// Lets the TLB keep translations over a change of address space: global ones, and, where it can tag them, every space's
/// own. The kernel's own tables are loaded.
pub fn enable_keeping() {
    let tags = features() & 1 << 17 != 0;
    // SAFETY: the kernel half is the same in every address space, and it alone has global entries. The tag in use is 0, as
    // tags ask for when they are switched on.
    unsafe {
        Cr4::update(|cr4| {
            cr4.insert(Cr4Flags::PAGE_GLOBAL);
            cr4.set(Cr4Flags::PCID, tags);
        });
    }
    TAGS.store(tags, Relaxed);
}

/// Whether the TLB tags translations with the space that they belong to (PCID).
pub fn has_tags() -> bool {
    TAGS.load(Relaxed)
}

/// Whether an upper-level entry may map 1 GiB (CPUID 80000001H, EDX bit 26).
pub fn has_1g_pages() -> bool {
    extended_features() & 1 << 26 != 0
}

/// Whether page tables have five levels, which is settled at boot.
pub fn has_five_levels() -> bool {
    Cr4::read().contains(Cr4Flags::L5_PAGING)
}

/// Whether supervisor-mode access prevention is on.
pub fn has_smap() -> bool {
    SMAP.load(Relaxed)
}

/// Runs `body`, which may touch user memory. A touch of a page that is not mapped, or not so, goes to the hook
/// of [`crate::arch::hooks`], and is retried when the hook has resolved it.
pub fn user_access<T>(body: impl FnOnce() -> T) -> T {
    if !has_smap() {
        return body();
    }
    // SAFETY: sets EFLAGS.AC and nothing else; it exists, as the processor has SMAP. Without `nomem`, and so a
    // barrier that the compiler moves no access over.
    unsafe { asm!("stac", options(nostack)) };
    let result = body();
    forbid_user_access();
    result
}

/// Forbids touching user memory until the next [`user_access`]: for the entry of an exception handler, which
/// begins with the permission of the code that it interrupted, and gives it back by returning.
pub fn forbid_user_access() {
    if has_smap() {
        // SAFETY: clears EFLAGS.AC and nothing else, as above.
        unsafe { asm!("clac", options(nostack)) };
    }
}

/// Between a store and a look at what another processor stores, where each looks after its own
/// store and at least one must see the other's: a `SeqCst` store does that (`xchg`).
#[inline(always)]
pub fn after_store() {}

/// A processor calls this again and again while it waits for another one.
#[inline]
pub fn relax() {
    core::hint::spin_loop();
}

/// The frame pointer of the caller.
#[inline(always)]
pub fn frame_pointer() -> u64 {
    let frame: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags)) };
    frame
}

fn features() -> u32 {
    __cpuid_count(1, 0).ecx
}

fn structured_features() -> u32 {
    __cpuid_count(7, 0).ebx
}

fn extended_features() -> u32 {
    __cpuid_count(0x8000_0001, 0).edx
}
