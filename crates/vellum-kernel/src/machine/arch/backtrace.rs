//! Who called whom, when something went wrong: return addresses, which `./x boot` turns into lines of source.
//!
//! `./x` compiles the kernel with frame pointers, so the register for it points to two words on the stack: the caller's frame
//! pointer, and above it the address to return to. Compiled otherwise, the chain breaks off early.

use crate::arch::{cpu, stack};
use crate::println;

/// A chain longer than this is taken for a circle.
const LIMIT: usize = 24;

/// Prints the addresses of the chain that starts at frame pointer `frame`, after `pc`, if there is one.
pub fn print(pc: Option<u64>, mut frame: u64) {
    println!("backtrace:");
    if let Some(pc) = pc {
        println!("  at {pc:#018x}");
    }
    for _ in 0..LIMIT {
        if !stack::is_in_stack(frame) || !stack::is_in_stack(frame + 8) {
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
    print(None, cpu::frame_pointer());
}
