//! The reference kernel: the engine on real page tables, under QEMU (`./x boot`).
//!
//! It is a guest that starts, does what its command line asks and stops with a status, so that it can stand in a
//! test. What is here so far is the ground to stand on: memory, exceptions, a console, a way to stop.
//!
//! | file | story |
//! |---|---|
//! | [`boot`] | from the first instruction to 64-bit code at the kernel's address |
//! | [`pvh`] | what the loader says: memory map and command line |
//! | [`cpu`] | segments, protections, access to user memory |
//! | [`paging`] | the kernel half of every address space |
//! | [`trap`] | exceptions, and the hook for page faults |
//! | [`serial`] | the console |
//! | [`backtrace`] | who called whom, in a report |
//! | [`mod@exit`] | how the machine stops |
//! | [`demo`] | stands in for the engine |

#![no_std]
#![no_main]

#[cfg(not(all(target_arch = "x86_64", target_os = "none")))]
compile_error!("vellum-kernel is built for bare metal: run `./x boot`");

mod backtrace;
mod boot;
mod cpu;
mod demo;
mod exit;
mod paging;
mod pvh;
mod serial;
mod trap;

use core::panic::PanicInfo;
use exit::{Outcome, exit};
use pvh::MemoryMap;
use x86_64::instructions::hlt;

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

/// What the kernel does, once there is ground to stand on: here the engine goes.
fn main(map: &MemoryMap, command_line: &str) -> Result<(), &'static str> {
    println!("vellum-kernel {}\n{map}", env!("CARGO_PKG_VERSION"));
    match command_line {
        "" => demo::page_faults(map),
        // Ways to fail on purpose, to see that a failure is seen.
        "fail" => Err("asked to"),
        "panic" => panic!("asked to"),
        "overflow" => Err(if overflow(0) == 0 { "no overflow" } else { "" }),
        "stray" => demo::stray(),
        "hang" => loop {
            hlt();
        },
        _ => Err("unknown command line: none, fail, panic, overflow, stray or hang"),
    }
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
