//! The reference kernel: the engine on real page tables, under QEMU (`./x boot`).
//!
//! It is a guest that starts, does what its command line asks and stops with a status, so that it can stand in a
//! test. What it does so far is to hand its memory to the engine and check it on the processor's own MMU.
//!
//! | folder | story |
//! |---|---|
//! | [`arch`] | the processor and the machine: all that another architecture replaces |
//! | [`percpu`] | what a processor calls its own |
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

#[cfg(not(target_os = "none"))]
compile_error!("vellum-kernel is built for bare metal: run `./x boot`");

extern crate alloc;

mod arch;
mod checks;
mod files;
mod mem;
mod sys;
mod task;

use alloc::format;
use alloc::vec::Vec;
use arch::clock::Clock;
use arch::exit::{Outcome, exit};
use arch::{hooks, interrupts, paging, secondary, serial, smp};
use core::fmt::Display;
use core::panic::PanicInfo;
use mem::Machine;
use vellum_kernel::boot::Boot;
use vellum_kernel::errno::Errno;
use vellum_kernel::written::{self, BootOption};

/// The first Rust code, called once by [`arch::boot`] with interrupts off, on the boot processor's stack.
// SAFETY: `arch` declares it so, and nothing else has this name.
#[unsafe(no_mangle)]
extern "C" fn kernel_start(handed_over: u64) -> ! {
    serial::init();
    // SAFETY: called once, here, before any CPU asks for its record.
    unsafe { task::percpu::provide() };
    // SAFETY: called once, here; what the loader handed over comes untouched from the entry.
    let boot = unsafe { arch::boot::prepare(handed_over) };
    let boot = boot.unwrap_or_else(|reason| fail(&reason));
    match main(&boot) {
        Ok(()) => {
            println!("vellum-kernel: success");
            exit(Outcome::Success)
        }
        Err(reason) => fail(&reason),
    }
}

/// Says why the kernel can't go on, and ends the machine.
fn fail(reason: &dyn Display) -> ! {
    println!("vellum-kernel: failed: {reason}");
    exit(Outcome::Failure)
}

/// What the kernel does, once there is ground to stand on.
fn main(boot: &Boot) -> Result<(), &'static str> {
    let Boot { map, command_line, .. } = boot;
    println!("vellum-kernel {}\n{map}", env!("CARGO_PKG_VERSION"));
    let (command_line, levels) = paging::choose(command_line)?;
    if let Some(levels) = levels {
        println!("page tables of {levels} levels");
    }
    // Time is instructions (QEMU's `-icount shift=0`): the same work takes the same number of them every time.
    let (counted, command_line) = match command_line.strip_suffix("counted") {
        Some(rest) => (true, rest.trim_end()),
        None => (false, command_line),
    };
    match command_line.split_once(' ').unwrap_or((command_line, "")) {
        ("" | "check", story) => {
            checks::run(boot_engine(boot, start_clock(counted), 1)?, story, counted).map_err(|_| "a check failed")
        }
        ("processors", _) => {
            let (machine, cpus) = boot_all(boot, counted)?;
            checks::processors::prepare(machine, cpus).map_err(|_| "a check failed")?;
            smp::release(cpus, checks::processors::part);
            checks::processors::part()
        }
        ("run", wish) => run(boot, wish, counted),
        // Ways to fail on purpose, to see that a failure is seen.
        ("fail", _) => Err("asked to"),
        ("panic", _) => panic!("asked to"),
        ("overflow", _) => Err(if overflow(0) == 0 { "no overflow" } else { "" }),
        ("stray", _) => stray(),
        ("hang", _) => loop {
            interrupts::halt();
        },
        _ => Err(
            "unknown command line: [la57] [check [STORY] | processors | run [apart] | fail | panic | overflow | stray | hang] [counted]",
        ),
    }
}

fn start_clock(counted: bool) -> Clock {
    // SAFETY: called once, and nobody else knows of the machine's timers.
    unsafe { Clock::start(counted) }
}

/// Hands the machine's memory to the engine.
fn boot_engine(boot: &Boot, clock: Clock, cpus: usize) -> Result<&'static Machine, &'static str> {
    mem::init(&boot.map, &boot.nodes, clock, cpus).map_err(|error| {
        println!("{error}");
        "the engine could not boot"
    })
}

/// Starts all processors, and hands their machine's memory to the engine.
fn boot_all(boot: &Boot, counted: bool) -> Result<(&'static Machine, usize), &'static str> {
    hooks::set_shootdown(mem::shootdown::answer);
    // SAFETY: called once, and nobody else knows of the machine's timers.
    let (clock, cpus) = unsafe { secondary::start(counted) };
    println!("{cpus} processors");
    let machine = boot_engine(boot, clock, cpus)?;
    interrupts::enable();
    Ok((machine, cpus))
}

/// Runs the program that the archive names, until it ends and with it the machine. By `wish`, memory is mapped without
/// contiguous blocks.
fn run(boot: &Boot, wish: &str, counted: bool) -> Result<(), &'static str> {
    let (machine, cpus) = boot_all(boot, counted)?;
    match wish {
        "" => {}
        "apart" => machine.policy().set_joins(false),
        _ => return Err("unknown wish: run [apart]"),
    }
    hooks::set_page_fault(mem::uaccess::resolve);
    files::kinds::init(boot.archive).map_err(|_| "the archive of first files can't be read")?;
    mem::space::init().map_err(|_| "no memory")?;
    follow_options()?;
    let words = |name: &str| -> Vec<Vec<u8>> {
        let bytes = files::find(name.as_bytes()).and_then(|inode| sys::path::read_file(&inode)).unwrap_or_default();
        written::words(&bytes)
    };
    let mut arguments = words(".vellum/argv");
    if arguments.is_empty() {
        return Err("the archive names no program");
    }
    let path = arguments.remove(0);
    serial::wire::init();
    let program = files::find(&path).and_then(|inode| sys::program::Program::open(&inode));
    let started = program.and_then(|program| sys::process::first(&program, &path, &arguments, &words(".vellum/env")));
    if let Err(error) = started {
        refuse(&path, error);
        return Ok(());
    }
    task::background::start();
    smp::release(cpus, task::executor::run);
    task::executor::run()
}

/// What the archive wishes beside its program: lines `key=value`.
fn follow_options() -> Result<(), &'static str> {
    let options = files::find(b".vellum/options").and_then(|inode| sys::path::read_file(&inode)).unwrap_or_default();
    let make_file = |store: &mem::swap::Store| files::make_block_device(store.path, store.number);
    written::options(&options).try_for_each(|option| match option? {
        BootOption::Swap(bytes) => mem::swap::init_memory(bytes, make_file).map_err(|_| "no memory for so much swap"),
        BootOption::SwapDisk { checked } => {
            mem::swap::init_disk(checked, make_file).map_err(|_| "there is no disk, or no memory to swap to it")
        }
    })
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
    hooks::set_page_fault(|_| panic!("the hook was asked about a stray touch"));
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
    arch::backtrace::print_here();
    exit(Outcome::Failure)
}
