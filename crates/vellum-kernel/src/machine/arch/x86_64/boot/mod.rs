//! Boot, from the first instruction to `kernel_start`.
//!
//! QEMU (and Xen, Firecracker, Cloud Hypervisor) start an ELF file with an
//! `XEN_ELFNOTE_PHYS32_ENTRY` note by jumping to the physical address in the note, in 32-bit
//! protected mode with paging off and the address of the start info in EBX (Xen,
//! `docs/misc/pvh.pandoc`). Four steps lead from there to 64-bit code at the kernel's own address
//! (Intel SDM, volume 3A, "Initializing IA-32e Mode"): page tables in CR3, PAE in CR4, long mode in
//! EFER, paging in CR0.
//!
//! Page tables have four levels, or five if the command line begins with `la57` and the CPU
//! supports them. The number can be chosen only here, while paging is off.
//!
//! The boot page tables map the first GiB three times: at 0, because the instruction after the one
//! that enables paging still has its physical address; at [`layout::KERNEL_BASE`], where the kernel
//! is linked; and at [`layout::DIRECT_MAP`], so that [`pvh`] reads its structures the same way
//! before and after [`paging::init`] loads the final page tables, which have no identity mapping.

mod pvh;
pub mod secondary;

use crate::arch::percpu;
use crate::arch::stack::{MAIN_STACK_SIZE, STACKS};
use crate::arch::{cpu, entry, irq, layout, paging, trap};
use vellum_kernel::boot::{BadBoot, Boot};

unsafe extern "C" {
    /// The kernel's first Rust code, which `main` defines. `pvh_entry` calls it once, on the boot
    /// CPU's stack with interrupts off, with the physical address of the loader's start info.
    fn kernel_start(handed_over: u64) -> !;
}

/// Sets up the boot CPU and reads the loader's information.
///
/// # Safety
///
/// Called once, before anything else, with the physical address of the loader's start info.
///
/// # Errors
///
/// [`BadBoot`]: the structures are malformed, or name memory or an archive that can't exist.
pub unsafe fn prepare(start_info: u64) -> Result<Boot, BadBoot> {
    // SAFETY: each function is called once, here, in the order that its contract demands; nothing
    // has written outside the image yet.
    unsafe {
        irq::mask_legacy();
        percpu::install(0);
        cpu::init();
        trap::init();
        let (mut boot, rsdp) = pvh::read(start_info)?;
        paging::init(&mut boot.map)?;
        pvh::read_nodes(rsdp, &mut boot);
        entry::init();
        Ok(boot)
    }
}

core::arch::global_asm!(
    r#"
    .set PRESENT_WRITABLE, 0x003
    .set PRESENT_WRITABLE_HUGE, 0x083

    // Type 18 is XEN_ELFNOTE_PHYS32_ENTRY. QEMU reads eight bytes of the value, so it is a quad.
    .section .note.pvh, "a", @note
    .balign 4
    .long 4, 8, 18
    .asciz "Xen"
    .quad pvh_entry - {base}

    .section .data.boot, "aw", @progbits
    .balign 4096
.globl boot_pml5, boot_pml4, boot_gdt
boot_pml5:                                              // the lowest and the highest addresses are those of four levels
    .quad boot_pml4 - {base} + PRESENT_WRITABLE
    .fill 510, 8, 0
    .quad boot_pml4 - {base} + PRESENT_WRITABLE
boot_pml4:
    .quad boot_pdpt - {base} + PRESENT_WRITABLE         // the identity mapping
    .fill {direct_slot} - 1, 8, 0
    .quad boot_pdpt - {base} + PRESENT_WRITABLE         // the direct map
    .fill 511 - {direct_slot} - 1, 8, 0
    .quad boot_pdpt - {base} + PRESENT_WRITABLE         // the kernel
boot_pdpt:
    .quad boot_pd - {base} + PRESENT_WRITABLE           // for the first two
    .fill 509, 8, 0
    .quad boot_pd - {base} + PRESENT_WRITABLE           // for the kernel, 2 GiB below the top
    .quad 0
boot_pd:
    .set page, 0
    .rept 512
    .quad (page << 21) + PRESENT_WRITABLE_HUGE
    .set page, page + 1
    .endr

    // A null descriptor, and 64-bit code: `cpu::init` loads the real table soon after.
boot_gdt:
    .quad 0, 0x00209b0000000000
boot_gdt_pointer:
    .word 15
    .long boot_gdt - {base}

    .section .text.boot, "ax", @progbits
    .code32
    .globl pvh_entry
pvh_entry:
    cld
    movl %ebx, %edi                                     // the start info: the first argument of `start`
    movl $(boot_pml4 - {base}), %esi
    movl $0x20, %ebp                                    // PAE
    movl {command_line}(%edi), %eax
    testl %eax, %eax
    jz 1f
    cmpl $0x3735616c, (%eax)                            // "la57"
    jne 1f
    movl $7, %eax
    xorl %ecx, %ecx
    cpuid
    testl $0x10000, %ecx                                // LA57
    jz 1f
    movl $(boot_pml5 - {base}), %esi
    orl $0x1000, %ebp                                   // LA57
1:  movl %esi, %cr3
    movl %cr4, %eax
    orl %ebp, %eax
    movl %eax, %cr4
    movl $0xc0000080, %ecx                              // EFER
    rdmsr
    orl $0x100, %eax                                    // LME
    wrmsr
    movl %cr0, %eax
    orl $0x80000000, %eax                               // PG
    movl %eax, %cr0
    lgdt boot_gdt_pointer - {base}
    ljmpl $8, $(2f - {base})

    .code64
2:  movabsq $3f, %rax
    jmpq *%rax                                          // from the identity mapping to the kernel's address
3:  xorl %eax, %eax                                     // 64-bit mode wants no data segments
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movw %ax, %fs
    movw %ax, %gs
    leaq {stack} + {stack_size}(%rip), %rsp
    xorl %ebp, %ebp                                     // the end of the chain of frames
    movl %edi, %edi                                     // a mode switch leaves the upper halves undefined
    callq {start}
    ud2
    "#,
    base = const layout::KERNEL_BASE,
    direct_slot = const layout::DIRECT_MAP_SLOT,
    stack = sym STACKS,
    stack_size = const MAIN_STACK_SIZE,
    command_line = const pvh::COMMAND_LINE,
    start = sym kernel_start,
    options(att_syntax),
);
