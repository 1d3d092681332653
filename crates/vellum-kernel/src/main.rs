//! The reference kernel: the engine on real page tables, under QEMU (`./x boot`).
//!
//! It is a guest that starts, does what its command line asks and stops with a status, so that it can stand in a
//! test. What it does so far is to hand its memory to the engine and check it on the processor's own MMU.
//!
//! | folder | story |
//! |---|---|
//! | [`arch`] | the processor and the machine: all that another architecture replaces |
//! | [`mem`] | the engine, and what the kernel is to it |
//! | [`task`] | threads, and what runs them |
//! | [`sys`] | the system calls |
//! | [`files`] | the first files |
//! | [`checks`] | the engine on trial, without user programs |
//! | [`backtrace`] | who called whom, in a report |
//!
//! What does not depend on the machine is in the library, `vellum_kernel`.

#![no_std]
#![no_main]

#[cfg(not(all(target_arch = "x86_64", target_os = "none")))]
compile_error!("vellum-kernel is built for bare metal: run `./x boot`");

extern crate alloc;

#[path = "arch/x86_64/mod.rs"]
mod arch;
mod backtrace;
mod checks;
mod files;
mod mem;
mod sys;
mod task;

use alloc::vec::Vec;
use arch::clock::Clock;
use arch::exit::{Outcome, exit};
use arch::percpu::PerCpu;
use arch::pvh::{Boot, MemoryMap};
use arch::{apic, boot, cpu, entry, paging, pvh, serial, trap, vector};
use core::mem::MaybeUninit;
use core::panic::PanicInfo;
use mem::Machine;
use x86_64::instructions::{hlt, interrupts};
use x86_64::structures::gdt::GlobalDescriptorTable;

/// The boot processor's own.
static mut BOOT_CPU: PerCpu = PerCpu::new(0);
static mut BOOT_SEGMENTS: MaybeUninit<GlobalDescriptorTable> = MaybeUninit::uninit();

/// The first Rust code, called once by [`boot`] with interrupts off, on [`boot::STACK`].
extern "C" fn start(start_info: u64) -> ! {
    serial::init();
    // SAFETY: each is called once, here, in the order that it asks for; the loader's address comes untouched from
    // the entry, and nothing so far has written outside the image.
    let boot = unsafe {
        PerCpu::install(&raw mut BOOT_CPU);
        let segments = &raw mut BOOT_SEGMENTS;
        cpu::init(&mut *segments, (&raw const boot::FAULT_STACK).wrapping_add(1) as u64);
        trap::init();
        let mut boot = pvh::read(start_info);
        paging::init(&mut boot.map);
        boot
    };
    match main(&boot) {
        Ok(()) => {
            println!("vellum-kernel: success");
            exit(Outcome::Success)
        }
        Err(reason) => {
            println!("vellum-kernel: failed: {reason}");
            exit(Outcome::Failure)
        }
    }
}

/// What the kernel does, once there is ground to stand on.
fn main(boot: &Boot) -> Result<(), &'static str> {
    let Boot { map, command_line, archive } = boot;
    println!("vellum-kernel {}\n{map}", env!("CARGO_PKG_VERSION"));
    let (levels, command_line) = match command_line.strip_prefix("la57") {
        Some(rest) => (5, rest.trim_start()),
        None => (4, *command_line),
    };
    if cpu::has_five_levels() != (levels == 5) {
        return Err("asked for five levels of page tables, and the processor has four");
    }
    println!("page tables of {levels} levels");
    match command_line.split_once(' ').unwrap_or((command_line, "")) {
        ("" | "check", story) => checks::run(boot_engine(map)?, story).map_err(|_| "a check failed"),
        ("run", _) => run(boot_engine(map)?, archive),
        // Ways to fail on purpose, to see that a failure is seen.
        ("fail", _) => Err("asked to"),
        ("panic", _) => panic!("asked to"),
        ("overflow", _) => Err(if overflow(0) == 0 { "no overflow" } else { "" }),
        ("stray", _) => stray(),
        ("hang", _) => loop {
            hlt();
        },
        _ => Err("unknown command line: [la57] [check [STORY] | run | fail | panic | overflow | stray | hang]"),
    }
}

/// Hands the machine's memory to the engine.
fn boot_engine(map: &MemoryMap) -> Result<&'static Machine, &'static str> {
    // SAFETY: nobody else knows of the interval timer.
    let clock = unsafe { Clock::start() };
    mem::init(map, clock).map_err(|error| {
        println!("{error}");
        "the engine could not boot"
    })
}

/// Runs the program that the archive names, until it ends and with it the machine.
fn run(_machine: &'static Machine, archive: &'static [u8]) -> Result<(), &'static str> {
    trap::set_page_fault_hook(mem::uaccess::resolve);
    entry::init();
    vector::init();
    apic::init();
    apic::calibrate(mem::now_ns);
    interrupts::enable();
    files::init(archive).map_err(|_| "the archive of first files can't be read")?;
    mem::space::init().map_err(|_| "no memory")?;
    let words = |name: &str| -> Vec<Vec<u8>> {
        let bytes = files::find(name.as_bytes()).and_then(|inode| sys::path::read_file(&inode)).unwrap_or_default();
        bytes.split_inclusive(|byte| *byte == 0).map(|word| word[..word.len() - 1].to_vec()).collect()
    };
    let mut arguments = words(".vellum/argv");
    if arguments.is_empty() {
        return Err("the archive names no program");
    }
    let path = arguments.remove(0);
    let program = files::find(&path).and_then(|inode| sys::path::read_all(&inode));
    let program = program.map_err(|_| "the program is not in the archive")?;
    serial::wire::init();
    sys::process::first(&program, &path, &arguments, &words(".vellum/env")).map_err(|error| {
        println!("{error:?}");
        "the program could not be started"
    })?;
    task::executor::run()
}

/// Touches user memory as only a bug would.
fn stray() -> Result<(), &'static str> {
    trap::set_page_fault_hook(|_| panic!("the hook was asked about a stray touch"));
    // SAFETY: none: this is the bug. Nothing is mapped there, so the touch faults, and a fault stops the machine.
    unsafe { (0x1234_5678_9000 as *mut u64).write_volatile(1) };
    Err("a stray touch of user memory went unnoticed")
}

/// Uses up the stack, to run into its guard page.
#[inline(never)]
#[allow(unconditional_recursion)]
fn overflow(depth: u64) -> u64 {
    let room = core::hint::black_box([depth; 64]);
    overflow(depth + 1) + room[0]
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    serial::seize();
    println!("\n{info}");
    backtrace::print_here();
    exit(Outcome::Failure)
}
