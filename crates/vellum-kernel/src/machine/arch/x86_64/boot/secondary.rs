//! Starts the other CPUs: from real mode to 64-bit code, each on its own stack, where they wait for
//! work.
//!
//! The CPUs start in real mode at a page below 1 MiB, to which the code below is copied. It enters
//! 64-bit mode in one step, with the page tables of [`crate::arch::boot`], whose identity mapping
//! is needed for one jump.

use crate::arch::clock::Clock;
use crate::arch::kernel_map::{PAGE_SIZE, phys_to_virt};
use crate::arch::layout::KERNEL_BASE;
use crate::arch::paging;
use crate::arch::percpu::{self, MAX_CPUS};
use crate::arch::stack::{MAIN_STACK_SIZE, STACKS, Stacks};
use crate::arch::{cpu, entry, extended_state, irq, smp, trap};
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use x86_64::instructions::port::Port;
use x86_64::registers::control::Cr4;

/// The physical address to which the CPUs' start code is copied, in otherwise unused low memory.
const PAGE: u64 = 0x8000;
/// The longest wait for the CPUs to start: a second, in nanoseconds.
const TIMEOUT: u64 = 1_000_000_000;

/// The number of CPUs that have taken an index; the boot CPU has 0.
static COUNT: AtomicUsize = AtomicUsize::new(1);

core::arch::global_asm!(
    r#"
    .section .rodata.smp, "a", @progbits
    .code16
smp_begin:
    cli
    movl %cs:(smp_cr4 - smp_begin), %eax
    movl %eax, %cr4
    movl %cs:(smp_cr3 - smp_begin), %eax
    movl %eax, %cr3
    movl $0xc0000080, %ecx                              // EFER
    rdmsr
    orl $0x100, %eax                                    // LME
    wrmsr
    lgdtl %cs:(smp_segments - smp_begin)
    movl $0x80000011, %eax                              // PG, ET, PE
    movl %eax, %cr0
    ljmpl $8, $({page} + smp_long - smp_begin)
    .code64
smp_long:
    movabsq $smp_high, %rax
    jmpq *%rax
    .balign 4
smp_segments:
    .word 15
    .long boot_gdt - {base}
smp_cr3:
    .long 0
smp_cr4:
    .long 0
smp_end:

    .section .text.smp, "ax", @progbits
smp_high:
    xorl %eax, %eax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %ss
    movw %ax, %fs
    movw %ax, %gs
    movl $1, %edi
    lock xaddq %rdi, {count}(%rip)
    cmpq ${most}, %rdi
    jae 1f
    imulq ${stacks_size}, %rdi, %rax
    leaq {stacks} + {stack_size}(%rip), %rsp
    addq %rax, %rsp
    xorl %ebp, %ebp
    callq {begin}
1:  hlt
    jmp 1b
    "#,
    page = const PAGE,
    base = const KERNEL_BASE,
    count = sym COUNT,
    most = const MAX_CPUS,
    stacks = sym STACKS,
    stacks_size = const size_of::<Stacks>(),
    stack_size = const MAIN_STACK_SIZE,
    begin = sym begin,
    options(att_syntax),
);

unsafe extern "C" {
    static smp_begin: u8;
    static smp_end: u8;
    static smp_cr3: u32;
    static smp_cr4: u32;
    static boot_pml4: u8;
    static boot_pml5: u8;
}

/// Returns the number of CPUs to use, as QEMU's configuration device reports it (QEMU's
/// documentation, "QEMU Firmware Configuration (fw_cfg) Device").
fn expected() -> usize {
    const PROCESSORS: u16 = 5;
    let (mut selector, mut data) = (Port::<u16>::new(0x510), Port::<u8>::new(0x511));
    // SAFETY: the ports are that device's, or no device's.
    let count = unsafe {
        selector.write(PROCESSORS);
        u16::from_le_bytes([data.read(), data.read()])
    };
    // Without the device all bits read as 1.
    if count == u16::MAX { 1 } else { usize::from(count).clamp(1, MAX_CPUS) }
}

/// Starts the clock (`counted` is passed to [`Clock::start`]) and all CPUs. Returns the clock and
/// the number of CPUs. The other CPUs wait for [`smp::release`].
///
/// # Safety
///
/// Called once, on the boot CPU, after the final page tables are loaded. No other code uses the
/// PC's timers.
pub unsafe fn start(counted: bool) -> (Clock, usize) {
    extended_state::init();
    irq::init();
    // SAFETY: by this function's contract no other code uses the PC's timers.
    let clock = unsafe { Clock::start(counted) };
    irq::calibrate(|| clock.now_ns());
    // SAFETY: this function has the same contract as `start_others`, and calls it once.
    let cpus = unsafe { start_others(&clock) };
    (clock, cpus)
}

/// Starts the other CPUs. Returns the number of CPUs, including this one.
///
/// # Safety
///
/// Called once, on the boot CPU, after the final page tables are loaded.
unsafe fn start_others(clock: &Clock) -> usize {
    let expected = expected();
    if expected == 1 {
        return 1;
    }
    let (begin, end) = (&raw const smp_begin, &raw const smp_end);
    let root = if cpu::has_five_levels() { &raw const boot_pml5 } else { &raw const boot_pml4 };
    let page = phys_to_virt::<u8>(PAGE);
    // SAFETY: the page is unused; the copied code is part of this image and shorter than a page,
    // and the two words to fill in (`smp_cr3`, `smp_cr4`) lie in it.
    unsafe {
        page.copy_from_nonoverlapping(begin, end as usize - begin as usize);
        let word = |symbol: *const u32| page.add(symbol as usize - begin as usize).cast::<u32>();
        word(&raw const smp_cr3).write_unaligned((root as u64 - KERNEL_BASE) as u32);
        word(&raw const smp_cr4).write_unaligned(0x20 | Cr4::read_raw() as u32 & 0x1000);
    }
    let wait = |ns| {
        let start = clock.now_ns();
        while clock.now_ns() - start < ns {
            core::hint::spin_loop();
        }
    };
    irq::start_others((PAGE / PAGE_SIZE) as u8, wait);
    let start = clock.now_ns();
    while COUNT.load(SeqCst) < expected && clock.now_ns() - start < TIMEOUT {
        core::hint::spin_loop();
    }
    // No index is left for a CPU that starts later, so that CPU halts.
    let count = COUNT.swap(MAX_CPUS, SeqCst).min(MAX_CPUS);
    smp::wait_until_ready(count);
    count
}

/// Returns the firmware's number of a CPU: its APIC ID.
pub fn name(cpu: usize) -> u64 {
    irq::name(cpu)
}

/// The first Rust code of another CPU.
extern "C" fn begin(index: usize) -> ! {
    // SAFETY: called once by each CPU, with its own index, and the functions in the order that
    // their contracts demand. The kernel's page tables map everything that this code uses of the
    // boot page tables.
    unsafe {
        percpu::install(index);
        cpu::init();
        paging::load_root(paging::kernel_root());
    }
    cpu::enable_global_and_pcid();
    trap::load();
    irq::init();
    entry::init();
    extended_state::init();
    smp::work()
}
