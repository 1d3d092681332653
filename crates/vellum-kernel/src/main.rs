//! The reference kernel: the engine on real page tables, under QEMU (`./x boot`).
//!
//! It is a guest that starts, does what its command line asks and stops with a status, so that it can stand in a
//! test. What it does so far is to hand its memory to the engine and check it on the processor's own MMU.
//!
//! | file | story |
//! |---|---|
//! | [`boot`] | from the first instruction to 64-bit code at the kernel's address |
//! | [`pvh`] | what the loader says: memory map and command line |
//! | [`cpu`] | segments, protections, access to user memory |
//! | [`paging`] | the kernel half of every address space |
//! | [`trap`] | exceptions, and the hook for page faults |
//! | [`clock`] | time |
//! | [`platform`] | all of this as the engine sees it |
//! | [`user`] | the address space in use, its page faults, and accesses that may be refused |
//! | [`checks`] | the engine on trial |
//! | [`serial`] | the console |
//! | [`backtrace`] | who called whom, in a report |
//! | [`mod@exit`] | how the machine stops |

#![no_std]
#![no_main]

#[cfg(not(all(target_arch = "x86_64", target_os = "none")))]
compile_error!("vellum-kernel is built for bare metal: run `./x boot`");

mod backtrace;
mod boot;
mod checks;
mod clock;
mod cpu;
mod exit;
mod paging;
mod platform;
mod pvh;
mod serial;
mod trap;
mod user;

use clock::Clock;
use core::panic::PanicInfo;
use exit::{Outcome, exit};
use platform::Host;
use pvh::MemoryMap;
use spin::Once;
use user::Machine;
use vellum::frame::BootOptions;
use x86_64::instructions::hlt;

static HOST: Once<Host> = Once::new();
static MACHINE: Once<Machine> = Once::new();

/// The first Rust code, called once by [`boot`] with interrupts off, on [`boot::STACK`].
extern "C" fn start(start_info: u64) -> ! {
    serial::init();
    // SAFETY: each is called once, here, in the order that it asks for; the loader's address comes untouched from
    // the entry, and nothing so far has written outside the image.
    let boot = unsafe {
        cpu::init();
        trap::init();
        let mut boot = pvh::read(start_info);
        paging::init(&mut boot.map);
        boot
    };
    match main(&boot.map, boot.command_line) {
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
fn main(map: &MemoryMap, command_line: &str) -> Result<(), &'static str> {
    println!("vellum-kernel {}\n{map}", env!("CARGO_PKG_VERSION"));
    let (levels, command_line) = match command_line.strip_prefix("la57") {
        Some(rest) => (5, rest.trim_start()),
        None => (4, command_line),
    };
    if cpu::has_five_levels() != (levels == 5) {
        return Err("asked for five levels of page tables, and the processor has four");
    }
    println!("page tables of {levels} levels");
    match command_line.split_once(' ').unwrap_or((command_line, "")) {
        ("" | "check", story) => checks::run(boot_engine(map)?, story).map_err(|_| "a check failed"),
        // Ways to fail on purpose, to see that a failure is seen.
        ("fail", _) => Err("asked to"),
        ("panic", _) => panic!("asked to"),
        ("overflow", _) => Err(if overflow(0) == 0 { "no overflow" } else { "" }),
        ("stray", _) => stray(),
        ("hang", _) => loop {
            hlt();
        },
        _ => Err("unknown command line: [la57] [check [STORY] | fail | panic | overflow | stray | hang]"),
    }
}

/// Hands the machine's memory, and page faults in user memory, to the engine.
fn boot_engine(map: &MemoryMap) -> Result<&'static Machine, &'static str> {
    // SAFETY: nobody else knows of the interval timer.
    let host = HOST.call_once(|| Host::new(map, unsafe { Clock::start() }));
    let machine = MACHINE.try_call_once(|| Machine::boot(host, BootOptions::default()));
    trap::set_page_fault_hook(user::resolve);
    machine.map_err(|error| {
        println!("{error}");
        "the engine could not boot"
    })
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
