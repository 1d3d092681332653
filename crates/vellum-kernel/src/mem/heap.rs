//! The kernel's heap: blocks of 2ⁿ bytes from the engine's frames.
//!
//! A small block is cut from a frame of its size's own and goes back to a list of its size; a large one is a block of the
//! engine's. Small blocks are not given back to the engine: what the kernel needed once, it will need again.

use crate::mem::{MACHINE, Machine};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use spin::Mutex;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, PhysAddr};
use vellum::frame::Use;
use vellum::platform::Memory;

/// The smallest block: two words, one of which links free ones.
const SMALLEST: u32 = 4;
/// The largest block that is cut from a frame.
const LARGEST: u32 = 10;
const SIZES: usize = (LARGEST - SMALLEST + 1) as usize;

/// See the module's text.
pub struct Heap {
    free: [Mutex<List>; SIZES],
}

/// Free blocks of a size, linked through their first words.
struct List(*mut u8);

// SAFETY: free blocks belong to the list, which belongs to whoever holds its lock.
unsafe impl Send for List {}

#[global_allocator]
static HEAP: Heap = Heap { free: [const { Mutex::new(List(ptr::null_mut())) }; SIZES] };

/// log2 of the size of the block for this layout.
fn size_of_block(layout: Layout) -> u32 {
    layout.size().max(layout.align()).max(1 << SMALLEST).next_power_of_two().ilog2()
}

// SAFETY: a block is at least as large and as aligned as asked for, and nobody's until it is freed.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(machine) = MACHINE.get() else { return ptr::null_mut() };
        let shift = size_of_block(layout);
        if shift > LARGEST {
            return frames(machine, shift).map_or(ptr::null_mut(), NonNull::as_ptr);
        }
        let mut list = self.free[(shift - SMALLEST) as usize].lock();
        if list.0.is_null() {
            let Some(frame) = frames(machine, FRAME_SHIFT) else { return ptr::null_mut() };
            for offset in (0..FRAME_SIZE as usize).step_by(1 << shift).rev() {
                // SAFETY: inside the frame, which is ours.
                unsafe { list.push(frame.as_ptr().add(offset)) };
            }
        }
        let block = list.0;
        // SAFETY: on the list, so free, and its first word is the link.
        list.0 = unsafe { block.cast::<*mut u8>().read() };
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let shift = size_of_block(layout);
        if shift <= LARGEST {
            // SAFETY: of this size, and the caller's to give.
            return unsafe { self.free[(shift - SMALLEST) as usize].lock().push(block) };
        }
        let machine = crate::mem::machine();
        let address = block.addr() - machine.platform().direct_map().addr();
        let count = 1u32 << (shift.max(FRAME_SHIFT) - FRAME_SHIFT);
        // SAFETY: `alloc` got these frames from the allocator, and the caller gives them up.
        unsafe { machine.frames().free(PhysAddr(address as u64).pfn(), count, false, Use::Kernel) };
    }
}

impl List {
    /// # Safety
    ///
    /// A free block of this list's size, that becomes the list's.
    unsafe fn push(&mut self, block: *mut u8) {
        // SAFETY: by contract; a block has room for a word.
        unsafe { block.cast::<*mut u8>().write(self.0) };
        self.0 = block;
    }
}

fn frames(machine: &'static Machine, shift: u32) -> Option<NonNull<u8>> {
    let order = shift.max(FRAME_SHIFT) - FRAME_SHIFT;
    let pfn = machine.frames().alloc(u8::try_from(order).ok()?, false, Use::Kernel).ok()?;
    Some(machine.frames().at(pfn.addr()))
}
