//! The kernel's heap: blocks of 2ⁿ bytes from the engine's frames.
//!
//! A small block is cut from a frame of its size's own; a large one is a block of the engine's. A frame begins with a header
//! that knows its free blocks. Frames that have some are on the list of their size, and go back to the engine when all of
//! their blocks are free, but for the last of the list.
//!
//! Some memory is kept for the heap alone, so that what the kernel does for a program on the way to refusing it more, or to
//! ending it, does not fail. From when it is touched, calls that cost the kernel memory are refused.

use crate::mem::{MACHINE, Machine};
use alloc::vec::Vec;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use spin::Mutex;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, PhysAddr};
use vellum::frame::Use;
use vellum::platform::Memory;
use vellum_kernel::errno::Errno;

/// The smallest block: two words, one of which links free ones.
const SMALLEST: u32 = 4;
/// The largest block that is cut from a frame.
const LARGEST: u32 = 10;
const SIZES: usize = (LARGEST - SMALLEST + 1) as usize;

/// Whether the last frames for the heap came from what is kept for the kernel.
static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// See the module's text.
pub struct Heap {
    sizes: [Mutex<List>; SIZES],
}

/// The frames of a size that have free blocks, linked through their headers.
struct List(*mut Header);

// SAFETY: the frames on the list, and the headers of all frames of its size, belong to whoever holds its lock.
unsafe impl Send for List {}

/// What a frame begins with.
struct Header {
    next: *mut Header,
    previous: *mut Header,
    /// Its free blocks, linked through their first words.
    free: *mut u8,
    /// How many blocks are not free.
    used: usize,
}

#[global_allocator]
static HEAP: Heap = Heap { sizes: [const { Mutex::new(List(ptr::null_mut())) }; SIZES] };

/// Frames that the heap has.
static FRAMES: AtomicU64 = AtomicU64::new(0);

/// What the heap has of the machine's memory, in bytes.
pub fn used() -> u64 {
    FRAMES.load(Relaxed) * FRAME_SIZE
}

/// So many bytes of zeros, where a program says how many: memory may be short, or in pieces, and
/// the kernel must not end for it.
///
/// # Errors
///
/// `ENOMEM`.
pub fn zeros(len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

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
        let mut list = self.sizes[(shift - SMALLEST) as usize].lock();
        if list.0.is_null() {
            let Some(frame) = frames(machine, FRAME_SHIFT) else { return ptr::null_mut() };
            // SAFETY: the frame is ours.
            unsafe { list.cut(frame.as_ptr(), shift) };
        }
        // SAFETY: frames on the list have free blocks, and a free block's first word is the link.
        unsafe {
            let header = list.0;
            let block = (*header).free;
            (*header).free = block.cast::<*mut u8>().read();
            (*header).used += 1;
            if (*header).free.is_null() {
                list.unlink(header);
            }
            block
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let shift = size_of_block(layout);
        if shift <= LARGEST {
            let mut list = self.sizes[(shift - SMALLEST) as usize].lock();
            // SAFETY: of this size, and the caller's to give.
            let Some(frame) = (unsafe { list.give_back(block) }) else { return };
            drop(list);
            // SAFETY: all of the frame's blocks are free, and it is on no list.
            return unsafe { give_back(frame, 0) };
        }
        // SAFETY: `alloc` got these frames from the allocator, and the caller gives them up.
        unsafe { give_back(block, (shift.max(FRAME_SHIFT) - FRAME_SHIFT) as u8) };
    }
}

/// # Safety
///
/// Frames that [`frames`] gave, which are nobody's any more.
unsafe fn give_back(at: *mut u8, order: u8) {
    let machine = crate::mem::machine();
    let address = at.addr() - machine.platform().direct_map().addr();
    FRAMES.fetch_sub(1 << order, Relaxed);
    // SAFETY: by contract.
    unsafe { machine.frames().free_kept(PhysAddr(address as u64).pfn(), order, Use::Kernel) };
}

impl List {
    /// Cuts a frame into blocks, and has it on the list.
    ///
    /// # Safety
    ///
    /// The caller's frame, that becomes the list's.
    unsafe fn cut(&mut self, frame: *mut u8, shift: u32) {
        let header = frame.cast::<Header>();
        // Blocks are aligned to their size, so the header costs one, or a few small ones.
        let first = size_of::<Header>().next_multiple_of(1 << shift);
        let mut free = ptr::null_mut();
        // SAFETY: all inside the frame.
        unsafe {
            for offset in (first..FRAME_SIZE as usize).step_by(1 << shift).rev() {
                let block = frame.add(offset);
                block.cast::<*mut u8>().write(free);
                free = block;
            }
            header.write(Header { next: ptr::null_mut(), previous: ptr::null_mut(), free, used: 0 });
            self.link(header);
        }
    }

    /// Takes a block back; a frame whose blocks are all free now, and that is not needed.
    ///
    /// # Safety
    ///
    /// A block of a frame of this list's size, which nobody uses any more.
    unsafe fn give_back(&mut self, block: *mut u8) -> Option<*mut u8> {
        let header = block.map_addr(|at| at & !(FRAME_SIZE as usize - 1)).cast::<Header>();
        // SAFETY: the frame's header, which is the list's; a block has room for a word.
        unsafe {
            if (*header).free.is_null() {
                self.link(header);
            }
            block.cast::<*mut u8>().write((*header).free);
            (*header).free = block;
            (*header).used -= 1;
            let alone = (*header).next.is_null() && (*header).previous.is_null();
            if (*header).used > 0 || alone {
                return None;
            }
            self.unlink(header);
        }
        Some(header.cast())
    }

    /// # Safety
    ///
    /// A frame of this list's size that is not on it.
    unsafe fn link(&mut self, header: *mut Header) {
        // SAFETY: headers on the list are the list's.
        unsafe {
            (*header).next = self.0;
            (*header).previous = ptr::null_mut();
            if !self.0.is_null() {
                (*self.0).previous = header;
            }
        }
        self.0 = header;
    }

    /// # Safety
    ///
    /// A frame that is on this list.
    unsafe fn unlink(&mut self, header: *mut Header) {
        // SAFETY: its neighbours are on the list too.
        unsafe {
            let (next, previous) = ((*header).next, (*header).previous);
            if !next.is_null() {
                (*next).previous = previous;
            }
            match previous.is_null() {
                true => self.0 = next,
                false => (*previous).next = next,
            }
        }
    }
}

fn frames(machine: &'static Machine, shift: u32) -> Option<NonNull<u8>> {
    let (frames, order) = (machine.frames(), u8::try_from(shift.max(FRAME_SHIFT) - FRAME_SHIFT).ok()?);
    let free = frames.alloc(order, false, Use::Kernel);
    IS_SHORT.store(free.is_err(), Relaxed);
    let pfn = free.or_else(|_| frames.alloc_kept(order, Use::Kernel)).ok()?;
    FRAMES.fetch_add(1 << order, Relaxed);
    Some(frames.at(pfn.addr()))
}

/// Whether the kernel lives on what is kept for it. Then programs get nothing that the kernel needs memory for.
pub fn is_short() -> bool {
    if !IS_SHORT.load(Relaxed) {
        return false;
    }
    let Some(machine) = MACHINE.get() else { return false };
    let Ok(pfn) = machine.frames().alloc(0, false, Use::Kernel) else { return true };
    // SAFETY: just allocated, and nobody's.
    unsafe { machine.frames().free(pfn, 1, false, Use::Kernel) };
    IS_SHORT.store(false, Relaxed);
    false
}
