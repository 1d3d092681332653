//! The kernel's heap: blocks of 2ⁿ bytes from the engine's frames.
//!
//! A small block is cut from a frame that has blocks of one size of one group, which is charged for
//! it; a large one is a block of the engine's. A frame begins with a header that knows its free
//! blocks. Frames that have some are on the list of their size and group, and go back to the engine
//! when all of their blocks are free. The root group keeps the last of a list: no limit counts it.
//!
//! Some memory is kept for the heap alone, so that what the kernel does for a program on the way to
//! refusing it more, or to ending it, doesn't fail ([`payer`]).

use crate::mem::{MACHINE, Machine, payer};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use spin::Mutex;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, PhysAddr};
use vellum::frame::Use;
use vellum::memcg::{MAX_MEMCGS, MemcgId, Refused};
use vellum::platform::Memory;

/// The smallest block: two words, one of which links free ones.
const SMALLEST: u32 = 4;
/// The largest block that is cut from a frame.
const LARGEST: u32 = 10;
const SIZES: usize = (LARGEST - SMALLEST + 1) as usize;

/// Whether the last frames for the heap came from what is kept for the kernel.
static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// See the module's text.
pub struct Heap {
    /// By the group's number.
    groups: [[Mutex<List>; SIZES]; MAX_MEMCGS],
}

/// The frames of a size and group that have free blocks, linked through their headers.
struct List(*mut Header);

// SAFETY: the frames on the list, and the headers of all frames of its size and group, are touched
// only under its lock.
unsafe impl Send for List {}

/// What a frame begins with.
struct Header {
    next: *mut Header,
    previous: *mut Header,
    /// Its free blocks, linked through their first words.
    free: *mut u8,
    /// How many blocks are not free.
    used: u32,
    /// The group whose list it is on when it has free blocks.
    group: MemcgId,
}

#[global_allocator]
static HEAP: Heap = Heap { groups: [const { [const { Mutex::new(List(ptr::null_mut())) }; SIZES] }; MAX_MEMCGS] };

/// Frames that the heap has.
static FRAMES: AtomicU64 = AtomicU64::new(0);

/// What the heap has of the machine's memory, in bytes.
pub fn used() -> u64 {
    FRAMES.load(Relaxed) * FRAME_SIZE
}

/// log2 of the size of the block for this layout.
fn size_of_block(layout: Layout) -> u32 {
    layout.size().max(layout.align()).max(1 << SMALLEST).next_power_of_two().ilog2()
}

impl Heap {
    fn list(&self, group: MemcgId, shift: u32) -> &Mutex<List> {
        &self.groups[usize::from(group.number())][(shift - SMALLEST) as usize]
    }

    /// A block of `1 << shift` bytes that a group pays for.
    fn alloc_for(&self, machine: &'static Machine, group: MemcgId, shift: u32) -> Option<NonNull<u8>> {
        if shift > LARGEST {
            return frames(machine, group, shift);
        }
        let mut list = self.list(group, shift).lock();
        if list.0.is_null() {
            let frame = frames(machine, group, FRAME_SHIFT)?;
            // SAFETY: the frame is ours.
            unsafe { list.cut(frame.as_ptr(), shift, group) };
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
            NonNull::new(block)
        }
    }
}

// SAFETY: a block is at least as large and as aligned as asked for, and nobody's until it is freed.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(machine) = MACHINE.get() else { return ptr::null_mut() };
        let (shift, group) = (size_of_block(layout), payer::payer());
        let block = self.alloc_for(machine, group, shift);
        // A thread that moves to another group may leave one that is gone by now.
        let is_gone = || group != MemcgId::ROOT && !machine.memcgs().exists(group);
        let block = block.or_else(|| is_gone().then(|| self.alloc_for(machine, MemcgId::ROOT, shift))?);
        block.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let shift = size_of_block(layout);
        if shift <= LARGEST {
            // SAFETY: the block's frame begins with its header, whose group stays the same for as
            // long as any of its blocks is in use, as this one is.
            let group = unsafe { (*Header::of(block)).group };
            let mut list = self.list(group, shift).lock();
            // SAFETY: of this size and group, and the caller's to give.
            let Some(frame) = (unsafe { list.give_back(block) }) else { return };
            drop(list);
            // SAFETY: all of the frame's blocks are free, and it is on no list.
            return unsafe { give_back(frame, 0) };
        }
        // SAFETY: `alloc` got these frames from the allocator, and the caller gives them up.
        unsafe { give_back(block, (shift.max(FRAME_SHIFT) - FRAME_SHIFT) as u8) };
    }
}

impl Header {
    /// The header of the frame in which a small block is.
    fn of(block: *mut u8) -> *mut Header {
        block.map_addr(|at| at & !(FRAME_SIZE as usize - 1)).cast()
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
    unsafe { machine.memcgs().free_for_host(machine.frames(), PhysAddr(address as u64).pfn(), order) };
}

impl List {
    /// Cuts a frame into blocks, and has it on the list, which is this group's.
    ///
    /// # Safety
    ///
    /// The caller's frame, that becomes the list's.
    unsafe fn cut(&mut self, frame: *mut u8, shift: u32, group: MemcgId) {
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
            header.write(Header { next: ptr::null_mut(), previous: ptr::null_mut(), free, used: 0, group });
            self.link(header);
        }
    }

    /// Takes a block back; a frame whose blocks are all free now, and that is not needed.
    ///
    /// # Safety
    ///
    /// A block of a frame of this list's size, which nobody uses any more.
    unsafe fn give_back(&mut self, block: *mut u8) -> Option<*mut u8> {
        let header = Header::of(block);
        // SAFETY: the frame's header, which is the list's; a block has room for a word.
        unsafe {
            if (*header).free.is_null() {
                self.link(header);
            }
            block.cast::<*mut u8>().write((*header).free);
            (*header).free = block;
            (*header).used -= 1;
            let alone = (*header).next.is_null() && (*header).previous.is_null();
            if (*header).used > 0 || alone && (*header).group == MemcgId::ROOT {
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

fn frames(machine: &'static Machine, group: MemcgId, shift: u32) -> Option<NonNull<u8>> {
    let (groups, frames) = (machine.memcgs(), machine.frames());
    let order = u8::try_from(shift.max(FRAME_SHIFT) - FRAME_SHIFT).ok()?;
    let had = groups.alloc_for_host(frames, group, order);
    IS_SHORT.store(had == Err(Refused::OutOfMemory), Relaxed);
    let had = had.or_else(|why| {
        let beyond = order <= payer::MOST_BEYOND;
        payer::refused(why, beyond);
        if beyond { groups.alloc_beyond_limit(frames, group, order) } else { Err(why) }
    });
    let pfn = had.ok()?;
    FRAMES.fetch_add(1 << order, Relaxed);
    Some(frames.at(pfn.addr()))
}

/// Whether the kernel lives on what is kept for it.
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
