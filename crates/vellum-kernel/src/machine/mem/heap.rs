//! The kernel's heap: blocks of 2ⁿ bytes from the engine's frames.
//!
//! A small block is cut from a frame whose blocks all have the same size and memcg; the memcg is
//! charged for the whole frame. A large block is a block of the frame allocator, or single frames
//! at consecutive addresses if free memory is in pieces. A frame of small blocks begins with a
//! header that links its free blocks. A frame with free blocks is on the list of its size and
//! memcg, and returns to the engine once all its blocks are free. Only the lists of the root memcg
//! keep their last frame, because that frame counts toward no limit.
//!
//! A reserve of memory is kept for the heap alone, so that the kernel's own allocations do not fail
//! while the kernel refuses memory to a program or ends it ([`payer`]).

use crate::mem::{MACHINE, Machine, payer, vmalloc};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use spin::Mutex;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, Pfn, PhysAddr};
use vellum::frame::Use;
use vellum::memcg::{MAX_MEMCGS, MemcgId, Refused};
use vellum::platform::Memory;

/// log2 of the smallest block: two words, one of which links free blocks.
const SMALLEST: u32 = 4;
/// log2 of the largest block that is cut from a frame.
const LARGEST: u32 = 10;
const SIZES: usize = (LARGEST - SMALLEST + 1) as usize;

/// True if the latest frames for the heap came from the kernel's reserve.
static IS_SHORT: AtomicBool = AtomicBool::new(false);

/// The kernel's allocator; the module's documentation describes it.
pub struct Heap {
    /// The lists, by memcg number and by block size.
    lists: [[Mutex<List>; SIZES]; MAX_MEMCGS],
}

/// The frames of one size and memcg that have free blocks, linked through their headers.
struct List(*mut Header);

// SAFETY: the headers of all frames of the list's size and memcg, and the free blocks in these
// frames, are accessed only under the list's lock. A block in use belongs to its owner alone.
unsafe impl Send for List {}

/// The header at the start of a frame of small blocks.
struct Header {
    next: *mut Header,
    previous: *mut Header,
    /// The frame's free blocks, linked through their first words.
    free: *mut u8,
    /// The number of blocks in use.
    used: u32,
    /// The memcg that is charged, and whose list links this frame while it has free blocks.
    memcg: MemcgId,
}

#[global_allocator]
static HEAP: Heap = Heap { lists: [const { [const { Mutex::new(List(ptr::null_mut())) }; SIZES] }; MAX_MEMCGS] };

/// The number of frames that the heap has allocated from the engine and not returned.
static FRAMES: AtomicU64 = AtomicU64::new(0);

/// Returns the bytes of memory that the heap has allocated from the engine and not returned.
pub fn used() -> u64 {
    FRAMES.load(Relaxed) * FRAME_SIZE
}

/// Returns log2 of the size of the block for `layout`.
fn size_of_block(layout: Layout) -> u32 {
    layout.size().max(layout.align()).max(1 << SMALLEST).next_power_of_two().ilog2()
}

impl Heap {
    /// Returns the list of a memcg and block size. `shift` is at most [`LARGEST`].
    fn list(&self, memcg: MemcgId, shift: u32) -> &Mutex<List> {
        &self.lists[usize::from(memcg.number())][(shift - SMALLEST) as usize]
    }

    /// Allocates a block of `1 << shift` bytes that is charged to `memcg`. Takes the list's lock,
    /// and with it held the engine's locks if the list needs a new frame.
    fn alloc_for(&self, machine: &'static Machine, memcg: MemcgId, shift: u32) -> Option<NonNull<u8>> {
        if shift > LARGEST {
            return frames(machine, memcg, shift);
        }
        let mut list = self.list(memcg, shift).lock();
        if list.0.is_null() {
            let frame = frames(machine, memcg, FRAME_SHIFT)?;
            // SAFETY: the frame was just allocated for this list.
            unsafe { list.cut(frame.as_ptr(), shift, memcg) };
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

// SAFETY: a block is at least as large and as aligned as the layout demands, and belongs to the
// caller until it is freed.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(machine) = MACHINE.get() else { return ptr::null_mut() };
        let (shift, memcg) = (size_of_block(layout), payer::payer());
        let block = self.alloc_for(machine, memcg, shift);
        // A thread that moves to another memcg may still allocate for its old one, after that was
        // removed. The root memcg is then charged instead.
        let is_gone = || memcg != MemcgId::ROOT && !machine.memcgs().exists(memcg);
        let block = block.or_else(|| is_gone().then(|| self.alloc_for(machine, MemcgId::ROOT, shift))?);
        block.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let shift = size_of_block(layout);
        if shift <= LARGEST {
            // SAFETY: the block's frame begins with its header, whose memcg does not change while
            // any of its blocks is in use, as this one is.
            let memcg = unsafe { (*Header::of(block)).memcg };
            let mut list = self.list(memcg, shift).lock();
            // SAFETY: the block is of this size and memcg, and the caller of `dealloc` gives it up.
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
    /// Returns the header of the frame that contains a small block.
    fn of(block: *mut u8) -> *mut Header {
        block.map_addr(|at| at & !(FRAME_SIZE as usize - 1)).cast()
    }
}

/// Returns `1 << order` frames to the engine and uncharges their memcg.
///
/// # Safety
///
/// The frames came from [`frames`], and the caller gives them up.
unsafe fn give_back(at: *mut u8, order: u8) {
    let machine = crate::mem::machine();
    FRAMES.fetch_sub(1 << order, Relaxed);
    // SAFETY: the frames came from `frames`, and the caller gives them up; of a block that is
    // mapped frame by frame, no translation is left when `vmalloc` frees them.
    let free = |first, order| unsafe { machine.memcgs().free_for_host(machine.frames(), first, order) };
    // SAFETY: the caller gives up the block, which has this order.
    if !unsafe { vmalloc::free(at, order, |frame| free(frame, 0)) } {
        let address = at.addr() - machine.platform().direct_map().addr();
        free(PhysAddr(address as u64).pfn(), order);
    }
}

impl List {
    /// Cuts a frame into blocks of `1 << shift` bytes and links it into this list, which is the
    /// list of `memcg`.
    ///
    /// # Safety
    ///
    /// The caller owns the frame and gives it to the list.
    unsafe fn cut(&mut self, frame: *mut u8, shift: u32, memcg: MemcgId) {
        let header = frame.cast::<Header>();
        // Blocks are aligned to their size, so the header costs one block, or several of the
        // smallest.
        let first = size_of::<Header>().next_multiple_of(1 << shift);
        let mut free = ptr::null_mut();
        // SAFETY: all writes stay inside the frame.
        unsafe {
            for offset in (first..FRAME_SIZE as usize).step_by(1 << shift).rev() {
                let block = frame.add(offset);
                block.cast::<*mut u8>().write(free);
                free = block;
            }
            header.write(Header { next: ptr::null_mut(), previous: ptr::null_mut(), free, used: 0, memcg });
            self.link(header);
        }
    }

    /// Frees a block. Returns the block's frame, unlinked, if all its blocks are free now and the
    /// list does not keep it.
    ///
    /// # Safety
    ///
    /// The block is of a frame of this list's size and memcg, and is not in use.
    unsafe fn give_back(&mut self, block: *mut u8) -> Option<*mut u8> {
        let header = Header::of(block);
        // SAFETY: the list's lock protects the frame's header; a block has room for a word.
        unsafe {
            if (*header).free.is_null() {
                self.link(header);
            }
            block.cast::<*mut u8>().write((*header).free);
            (*header).free = block;
            (*header).used -= 1;
            let alone = (*header).next.is_null() && (*header).previous.is_null();
            if (*header).used > 0 || alone && (*header).memcg == MemcgId::ROOT {
                return None;
            }
            self.unlink(header);
        }
        Some(header.cast())
    }

    /// Links a frame as the list's first.
    ///
    /// # Safety
    ///
    /// The frame is of this list's size and memcg, and is not on it.
    unsafe fn link(&mut self, header: *mut Header) {
        // SAFETY: the list's lock protects the headers of the frames on it.
        unsafe {
            (*header).next = self.0;
            (*header).previous = ptr::null_mut();
            if !self.0.is_null() {
                (*self.0).previous = header;
            }
        }
        self.0 = header;
    }

    /// Unlinks a frame.
    ///
    /// # Safety
    ///
    /// The frame is on this list.
    unsafe fn unlink(&mut self, header: *mut Header) {
        // SAFETY: the frames linked before and after this one are on the list too, whose lock is
        // held.
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

/// Allocates frames for a block of `1 << shift` bytes, charged to `memcg`: contiguous ones, or, if
/// free memory is in pieces, single ones ([`vmalloc`]). If the memcg's limit or free memory does
/// not allow it, the refusal is noted for the current thread, and a small block
/// ([`payer::most_beyond`]) is allocated all the same: from the reserve, or beyond the limit.
fn frames(machine: &'static Machine, memcg: MemcgId, shift: u32) -> Option<NonNull<u8>> {
    let (memcgs, frames) = (machine.memcgs(), machine.frames());
    let order = u8::try_from(shift.max(FRAME_SHIFT) - FRAME_SHIFT).ok()?;
    let allowed = |order| memcgs.alloc_for_host(frames, memcg, order);
    let beyond = |order| memcgs.alloc_beyond_limit(frames, memcg, order);
    let had = block(machine, order, &allowed);
    IS_SHORT.store(had == Err(Refused::OutOfMemory), Relaxed);
    let had = had.or_else(|why| {
        let may = order <= payer::most_beyond();
        payer::refused(why, may);
        if may { block(machine, order, &beyond) } else { Err(why) }
    });
    FRAMES.fetch_add(if had.is_ok() { 1 << order } else { 0 }, Relaxed);
    had.ok()
}

/// Returns a block of `1 << order` frames that `alloc` allocates, of the order that it is called
/// with: of this order, or else single ones.
fn block(
    machine: &'static Machine,
    order: u8,
    alloc: &impl Fn(u8) -> Result<Pfn, Refused>,
) -> Result<NonNull<u8>, Refused> {
    // SAFETY: `alloc` has just allocated the frame, and it is in no use.
    let free = |frame| unsafe { machine.memcgs().free_for_host(machine.frames(), frame, 0) };
    match alloc(order) {
        Ok(first) => Ok(machine.frames().at(first.addr())),
        Err(Refused::OutOfMemory) if order > 0 => vmalloc::alloc(order, || alloc(0), free),
        Err(why) => Err(why),
    }
}

/// Returns whether the kernel lives on its reserve: true if the latest frames came from it and no
/// free frame can be had even now.
pub fn is_short() -> bool {
    if !IS_SHORT.load(Relaxed) {
        return false;
    }
    let Some(machine) = MACHINE.get() else { return false };
    let Ok(pfn) = machine.frames().alloc(0, false, Use::Kernel) else { return true };
    // SAFETY: the frame was just allocated and is in no other use.
    unsafe { machine.frames().free(pfn, 1, false, Use::Kernel) };
    IS_SHORT.store(false, Relaxed);
    false
}
