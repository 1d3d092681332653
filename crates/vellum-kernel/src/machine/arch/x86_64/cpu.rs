//! CPU setup: segments, protections, and access to user memory.
//!
//! With SMAP, kernel accesses to user memory fault except inside [`user_access`], the only place
//! where the kernel accesses user addresses. A CPU without SMAP runs the same code without this
//! check.

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
/// The selector of the segment whose limit is the CPU's number, which programs read (`lsl`).
const CPU_NUMBER: u64 = 0x3b;
/// That segment's descriptor without its limit: read-only data of user mode, present, and marked as
/// accessed.
const CPU_NUMBER_SEGMENT: u64 = 0xf1 << 40;
/// The slot of the interrupt stack table for exceptions that can't rely on another stack.
pub const FAULT_STACK_SLOT: u16 = 0;

static mut SEGMENTS: [MaybeUninit<GlobalDescriptorTable>; MAX_CPUS] = [const { MaybeUninit::uninit() }; MAX_CPUS];
static SMAP: AtomicBool = AtomicBool::new(false);
/// True if the CPU has ERMS. `user/touch.rs` reads this byte.
pub(super) static ERMS: AtomicBool = AtomicBool::new(false);
static TAGS: AtomicBool = AtomicBool::new(false);

/// Loads the segments and enables the CPU's protections: no-execute and write protection always,
/// SMEP and SMAP where available.
///
/// # Safety
///
/// Called once by each CPU, with interrupts off, after [`percpu::install`].
pub unsafe fn init() {
    let percpu::ArchCpu { index, ref entry, .. } = *percpu::current();
    let (task, fault_stack) = (entry.task.get(), stack::fault_stack_top(index));
    // SAFETY: this CPU's own task state segment, which is not loaded yet.
    unsafe { (*task).interrupt_stack_table[FAULT_STACK_SLOT as usize] = VirtAddr::new(fault_stack) };
    let mut table = GlobalDescriptorTable::new();
    let code = table.append(Descriptor::kernel_code_segment());
    let data = table.append(Descriptor::kernel_data_segment());
    let user_data = table.append(Descriptor::user_data_segment());
    let user_code = table.append(Descriptor::user_code_segment());
    debug_assert!([user_data.0, user_code.0].map(u64::from) == [USER_DATA, USER_CODE]);
    // SAFETY: the task state segment is this CPU's and lives forever.
    let state = table.append(unsafe { Descriptor::tss_segment_unchecked(task) });
    let number = table.append(Descriptor::UserSegment(CPU_NUMBER_SEGMENT | index as u64));
    debug_assert!(u64::from(number.0) == CPU_NUMBER);
    let segments = &raw mut SEGMENTS;
    // SAFETY: this CPU's own table, which is not loaded yet and not written again.
    unsafe { (*segments)[index].write(table) }.load();
    // SAFETY: the selectors are those of the table just loaded, which never changes.
    unsafe {
        CS::set_reg(code);
        SS::set_reg(data);
        load_tss(state);
    }
    assert!(extended_features() & 1 << 20 != 0, "this processor has no no-execute bit");
    let (smep, smap) = (structured_features() & 1 << 7 != 0, structured_features() & 1 << 20 != 0);
    // SAFETY: no page table in use sets a bit whose meaning these flags change (no-execute is bit
    // 63), maps a user page, or maps read-only memory that is written.
    unsafe {
        Efer::update(|efer| efer.insert(EferFlags::NO_EXECUTE_ENABLE));
        Cr0::update(|cr0| cr0.insert(Cr0Flags::WRITE_PROTECT));
        Cr4::update(|cr4| {
            cr4.set(Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION, smep);
            cr4.set(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION, smap);
        });
    }
    SMAP.store(smap, Relaxed);
    ERMS.store(structured_features() & 1 << 9 != 0, Relaxed);
}

/// Lets TLB entries survive a change of address space: global ones, and with PCIDs those of every
/// space. Called with the kernel's own page tables loaded.
pub fn enable_global_and_pcid() {
    let tags = features() & 1 << 17 != 0;
    // SAFETY: the kernel half is the same in every address space, and only it has global PTEs. The
    // PCID in use is 0, which enabling PCIDs requires.
    unsafe {
        Cr4::update(|cr4| {
            cr4.insert(Cr4Flags::PAGE_GLOBAL);
            cr4.set(Cr4Flags::PCID, tags);
        });
    }
    TAGS.store(tags, Relaxed);
}

/// Returns whether TLB entries are tagged with the address space (PCID).
pub fn has_tags() -> bool {
    TAGS.load(Relaxed)
}

/// Returns whether a PTE at the 1 GiB level may be a leaf (CPUID 80000001H, EDX bit 26).
pub fn has_1g_pages() -> bool {
    extended_features() & 1 << 26 != 0
}

/// Returns whether page tables have five levels, which boot decides.
pub fn has_five_levels() -> bool {
    Cr4::read().contains(Cr4Flags::L5_PAGING)
}

/// Returns whether SMAP is on.
pub fn has_smap() -> bool {
    SMAP.load(Relaxed)
}

/// Returns whether `rep movsb` and `rep stosb` are fast (CPUID 7, EBX bit 9). Before [`init`],
/// returns false.
pub fn has_erms() -> bool {
    ERMS.load(Relaxed)
}

/// Runs `body`, which may access user memory. A page fault in it calls the hook of
/// [`crate::arch::hooks`]; the access is retried once the hook has resolved the fault.
pub fn user_access<T>(body: impl FnOnce() -> T) -> T {
    if !has_smap() {
        return body();
    }
    // SAFETY: sets EFLAGS.AC and nothing else; the instruction exists with SMAP. Without `nomem`,
    // so that the compiler moves no access over it.
    unsafe { asm!("stac", options(nostack)) };
    let result = body();
    forbid_user_access();
    result
}

/// Forbids access to user memory until the next [`user_access`]. Called at the entry of an
/// exception handler, which inherits the permission of the interrupted code; returning from the
/// exception restores it.
pub fn forbid_user_access() {
    if has_smap() {
        // SAFETY: clears EFLAGS.AC and nothing else.
        unsafe { asm!("clac", options(nostack)) };
    }
}

/// Orders an earlier `SeqCst` store before later loads, so that of two CPUs that each store and
/// then check the other's store, at least one sees it. On x86 the store alone does that (`xchg`).
#[inline(always)]
pub fn store_load_barrier() {}

/// Pauses in a loop that waits for another CPU.
#[inline]
pub fn relax() {
    core::hint::spin_loop();
}

/// Returns the caller's frame pointer.
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
