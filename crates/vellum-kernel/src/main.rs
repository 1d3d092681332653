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

use alloc::format;
use alloc::vec::Vec;
use arch::clock::Clock;
use arch::exit::{Outcome, exit};
use arch::pvh::{Boot, MemoryMap};
use arch::{apic, cpu, entry, paging, percpu, pvh, serial, smp, trap, vector};
use core::panic::PanicInfo;
use mem::Machine;
use vellum_kernel::errno::Errno;
use x86_64::instructions::{hlt, interrupts};

/// The first Rust code, called once by [`arch::boot`] with interrupts off, on the boot processor's stack.
extern "C" fn start(start_info: u64) -> ! {
    serial::init();
    // SAFETY: each is called once, here, in the order that it asks for; the loader's address comes untouched from
    // the entry, and nothing so far has written outside the image.
    let boot = unsafe {
        percpu::install(0);
        cpu::init();
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
        ("" | "check", story) => checks::run(boot_engine(map, start_clock(), 1)?, story).map_err(|_| "a check failed"),
        ("processors", _) => {
            let (machine, cpus) = boot_all(map)?;
            checks::processors::prepare(machine, cpus).map_err(|_| "a check failed")?;
            smp::release(cpus, checks::processors::part);
            checks::processors::part()
        }
        ("run", _) => run(map, archive),
        // Ways to fail on purpose, to see that a failure is seen.
        ("fail", _) => Err("asked to"),
        ("panic", _) => panic!("asked to"),
        ("overflow", _) => Err(if overflow(0) == 0 { "no overflow" } else { "" }),
        ("stray", _) => stray(),
        ("hang", _) => loop {
            hlt();
        },
        _ => Err(
            "unknown command line: [la57] [check [STORY] | processors | run | fail | panic | overflow | stray | hang]",
        ),
    }
}

fn start_clock() -> Clock {
    // SAFETY: called once, and nobody else knows of the interval timer.
    unsafe { Clock::start() }
}

/// Hands the machine's memory to the engine.
fn boot_engine(map: &MemoryMap, clock: Clock, cpus: usize) -> Result<&'static Machine, &'static str> {
    mem::init(map, clock, cpus).map_err(|error| {
        println!("{error}");
        "the engine could not boot"
    })
}

/// Starts all processors, and hands their machine's memory to the engine.
fn boot_all(map: &MemoryMap) -> Result<(&'static Machine, usize), &'static str> {
    trap::set_shootdown_hook(mem::shootdown::answer);
    entry::init();
    vector::init();
    apic::init();
    let clock = start_clock();
    apic::calibrate(|| clock.now_ns());
    // SAFETY: called once, and the boot processor has all that it needs.
    let cpus = unsafe { smp::start(&clock) };
    println!("{cpus} processors");
    let machine = boot_engine(map, clock, cpus)?;
    interrupts::enable();
    Ok((machine, cpus))
}

/// Runs the program that the archive names, until it ends and with it the machine.
fn run(map: &MemoryMap, archive: &'static [u8]) -> Result<(), &'static str> {
    let (_, cpus) = boot_all(map)?;
    trap::set_page_fault_hook(mem::uaccess::resolve);
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
    serial::wire::init();
    let program = files::find(&path).and_then(|inode| sys::path::read_all(&inode));
    let started = program.and_then(|program| sys::process::first(&program, &path, &arguments, &words(".vellum/env")));
    if let Err(error) = started {
        refuse(&path, error);
        return Ok(());
    }
    smp::release(cpus, task::executor::run);
    task::executor::run()
}

/// The program is none: its fault, and told as a shell would.
fn refuse(path: &[u8], error: Errno) {
    use serial::wire::{Frame, send};
    send(Frame::Errors, path);
    send(Frame::Errors, format!(": {error:?}\n").as_bytes());
    let status: u32 = if error == Errno::ENOENT { 127 } else { 126 };
    send(Frame::Exit, &status.to_le_bytes());
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
