//! Prints backtraces as return addresses, which `./x boot` converts to source lines.
//!
//! `./x` compiles the kernel with frame pointers: the frame-pointer register points to two words on
//! the stack, the caller's frame pointer and above it the return address. Without them the
//! backtrace ends early.

use crate::arch::serial::println;
use crate::arch::{cpu, stack};

/// The largest number of frames printed: a longer chain is taken for a cycle.
const LIMIT: usize = 24;

/// Prints the return addresses of the chain that starts at frame pointer `frame`, preceded by `pc`
/// if there is one.
pub fn print(pc: Option<u64>, mut frame: u64) {
    println!("backtrace:");
    if let Some(pc) = pc {
        println!("  at {pc:#018x}");
    }
    for _ in 0..LIMIT {
        if !stack::is_in_stack(frame) || !stack::is_in_stack(frame + 8) {
            return;
        }
        // SAFETY: both words lie in a stack, and any value there can be read.
        let [caller, address] = unsafe { (frame as *const [u64; 2]).read_volatile() };
        // Print the call itself: the return address may belong to another line.
        println!("  at {:#018x}", address.wrapping_sub(1));
        if caller <= frame {
            return;
        }
        frame = caller;
    }
}

/// Prints the backtrace of the caller.
pub fn print_here() {
    print(None, cpu::frame_pointer());
}
