//! Who called whom, when something went wrong: return addresses, which `./x boot` turns into lines of source.
//!
//! `./x` compiles the kernel with frame pointers, so every function begins by pushing RBP and pointing it at the
//! push: the caller's RBP, and above it the address to return to. Compiled otherwise, the chain breaks off early.

use crate::arch::boot;
use crate::println;
use core::arch::asm;

/// A chain longer than this is taken for a circle.
const LIMIT: usize = 24;

/// Prints the addresses of the chain that starts at frame pointer `frame`, after `rip`, if there is one.
pub fn print(rip: Option<u64>, mut frame: u64) {
    println!("backtrace:");
    if let Some(rip) = rip {
        println!("  at {rip:#018x}");
    }
    for _ in 0..LIMIT {
        if !boot::is_in_stack(frame) || !boot::is_in_stack(frame + 8) {
            return;
        }
        // SAFETY: both words lie in a stack. Whatever they hold, they can be read.
        let [caller, address] = unsafe { (frame as *const [u64; 2]).read_volatile() };
        // The call, not the instruction after it, which may belong to another line.
        println!("  at {:#018x}", address.wrapping_sub(1));
        if caller <= frame {
            return;
        }
        frame = caller;
    }
}

/// Prints the addresses of everything that led here.
pub fn print_here() {
    let frame: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags)) };
    print(None, frame);
}
