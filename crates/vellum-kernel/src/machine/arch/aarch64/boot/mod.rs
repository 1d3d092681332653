//! Boot, from a CPU's first instruction to `kernel_start`.
//!
//! QEMU starts an ELF file at its entry, on one CPU, at EL1 with the MMU off, and leaves the device
//! tree at the start of memory. PSCI starts the other CPUs the same way, with their index in X0.
//!
//! The kernel runs on SP_EL0. Every exception switches to SP_EL1, which points to the exception
//! stack, or, in user mode, to the memory for the thread's registers. So no exception depends on a
//! stack that may have overflowed.
//!
//! The boot page tables map the first 2 GiB, devices and memory, three times: at 0, because the
//! instruction after the one that enables translation still has its physical address; at
//! [`layout::DIRECT_MAP`]; and memory at [`layout::KERNEL_BASE`].

mod devicetree;
pub mod secondary;

use crate::arch::aarch64::vectors;
use crate::arch::percpu::{self, MAX_CPUS};
use crate::arch::stack::{MAIN_STACK_SIZE, STACKS, Stacks};
use crate::arch::{cpu, layout, paging};
use vellum_kernel::boot::{BadBoot, Boot};

/// The address at which QEMU leaves the device tree.
const DEVICE_TREE: u64 = 0x4000_0000;

/// SCTLR_EL1: translation and caches on, stack alignment checked; user mode may zero and clean
/// caches, and wait for events and interrupts. SPAN is clear, so that exceptions set PAN. A is
/// clear, so that accesses to normal memory need not be aligned, as the compiler assumes
/// (`scripts/prepare.sh`). The other bits are reserved ones that must be set.
const SYSTEM_CONTROL: u64 = {
    let on = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 12;
    let user = 1 << 14 | 1 << 15 | 1 << 16 | 1 << 18 | 1 << 26;
    let reserved = 1 << 11 | 1 << 20 | 1 << 22 | 1 << 28 | 1 << 29;
    on | user | reserved
};

unsafe extern "C" {
    /// The kernel's first Rust code, which `main` defines. `boot_entry` calls it once, on the boot
    /// CPU's stack with interrupts off, with the physical address of the device tree.
    fn kernel_start(handed_over: u64) -> !;
}

/// Sets up the boot CPU and reads the loader's information.
///
/// # Safety
///
/// Called once, before anything else, with the device tree's physical address.
///
/// # Errors
///
/// [`BadBoot`]: the tree is malformed, or names memory or an archive that can't exist.
pub unsafe fn prepare(device_tree: u64) -> Result<Boot, BadBoot> {
    // SAFETY: each function is called once, here, in the order that its contract demands; nothing
    // has written outside the image yet.
    unsafe {
        percpu::install(0);
        vectors::install();
        cpu::init();
        let mut boot = devicetree::read(device_tree)?;
        paging::init(&mut boot.map)?;
        Ok(boot)
    }
}

core::arch::global_asm!(
    r#"
    .section .data.boot, "aw", @progbits
    .balign 4096
boot_root:
    .quad boot_low - {base} + 3         // the identity mapping, and the direct map
    .fill 510, 8, 0
    .quad boot_high - {base} + 3        // the kernel
boot_low:
    .quad 0x60000000000405              // device memory, not executable
    .quad 0x40000701                    // memory
    .fill 510, 8, 0
boot_high:
    .fill 510, 8, 0
    .quad 0x40000701
    .quad 0

    .section .text.boot, "ax", @progbits
    .globl boot_entry
boot_entry:
    mov     x0, xzr
    .globl boot_other
boot_other:                             // (index)
    msr     daifset, #15
    msr     spsel, #0
    adrp    x1, boot_root
    msr     ttbr0_el1, x1
    msr     ttbr1_el1, x1
    ldr     x1, ={memory_types}
    msr     mair_el1, x1
    ldr     x1, ={control}
    mrs     x2, id_aa64mmfr0_el1        // the size of physical addresses, of 48 bits at most
    and     x2, x2, #7
    mov     x3, #5
    cmp     x2, x3
    csel    x2, x2, x3, lo
    orr     x1, x1, x2, lsl #32
    msr     tcr_el1, x1
    isb
    tlbi    vmalle1
    dsb     nsh
    isb
    ldr     x1, ={system_control}
    msr     sctlr_el1, x1
    isb
    ldr     x1, =1f
    br      x1                          // from the identity mapping to the kernel's address
1:  ldr     x1, ={stacks}
    ldr     x2, ={stacks_size}
    madd    x1, x0, x2, x1
    add     x2, x1, x2                  // SP_EL1: the end of its stacks
    msr     spsel, #1
    mov     sp, x2
    msr     spsel, #0
    ldr     x2, ={stack_size}
    add     x1, x1, x2
    mov     sp, x1
    mov     x29, xzr                    // the end of the chain of frames
    mov     x30, xzr
    cbnz    x0, 2f
    ldr     x0, ={device_tree}
    bl      {start}
    brk     #0
2:  bl      {other}
    brk     #0
    .ltorg
    "#,
    base = const layout::KERNEL_BASE,
    memory_types = const paging::MEMORY_TYPES,
    control = const paging::control(),
    system_control = const SYSTEM_CONTROL,
    stacks = sym STACKS,
    stacks_size = const size_of::<Stacks>(),
    stack_size = const MAIN_STACK_SIZE,
    device_tree = const DEVICE_TREE,
    start = sym kernel_start,
    other = sym secondary::begin,
);

const _: () = assert!(MAX_CPUS * size_of::<Stacks>() < 8 << 20);

unsafe extern "C" {
    /// The first instruction of another CPU, which has its index in X0.
    pub fn boot_other();
}
