//! Blocks of several frames that need not be contiguous: each frame is mapped at the next address
//! (Linux: vmalloc). The heap has such blocks while free memory is in pieces.

use crate::arch::kernel_map::{PAGE_SIZE, Section};
use crate::arch::paging::{flush_pages, leaf};
use crate::arch::vmalloc::{PAGES, START, contains, frame, map, unmap};
use crate::mem::shootdown;
use core::ops::Range;
use core::ptr::NonNull;
use spin::Mutex;
use vellum::addr::{Pfn, PhysAddr, VirtRange};
use vellum::memcg::Refused;

/// A bit for each page of the area that belongs to a block.
struct Pages([u64; PAGES / 64]);

static USED: Mutex<Pages> = Mutex::new(Pages([0; PAGES / 64]));

impl Pages {
    /// Takes `count` pages, aligned to that number, a power of two. Returns the first.
    fn take(&mut self, count: usize) -> Option<usize> {
        // A block is whole words, or a part of one.
        let (words, mask) = (count.div_ceil(64), u64::MAX >> (64 - count.min(64)));
        let mut blocks = self.0.chunks_exact_mut(words).enumerate();
        blocks.find_map(|(nth, block)| {
            let is_free = |shift: &usize| block.iter().all(|word| word & mask << shift == 0);
            let shift = (0..64).step_by(count).find(is_free)?;
            block.iter_mut().for_each(|word| *word |= mask << shift);
            Some(nth * words * 64 + shift)
        })
    }

    fn give_back(&mut self, pages: Range<usize>) {
        pages.for_each(|at| self.0[at / 64] &= !(1 << (at % 64)));
    }
}

/// Allocates a block of `1 << order` frames, each of which `one` allocates. It is aligned to its
/// size.
///
/// # Errors
///
/// The refusal of `one`, after which all frames of the block went back to `free`. `OutOfMemory`
/// if the area has no room.
pub fn alloc(order: u8, one: impl Fn() -> Result<Pfn, Refused>, free: impl Fn(Pfn)) -> Result<NonNull<u8>, Refused> {
    let count = 1usize.checked_shl(order.into()).ok_or(Refused::OutOfMemory)?;
    let first = USED.lock().take(count).ok_or(Refused::OutOfMemory)?;
    for page in first..first + count {
        match one() {
            Ok(pfn) => map(page, leaf(Section::Data, pfn.addr().0)),
            Err(why) => {
                unmap_all(first..page, free);
                USED.lock().give_back(first..first + count);
                return Err(why);
            }
        }
    }
    // The PTEs are seen by the next access. No TLB keeps that a page is not mapped, so there is
    // nothing to flush.
    flush_pages(core::iter::empty());
    NonNull::new((START + first as u64 * PAGE_SIZE) as *mut u8).ok_or(Refused::OutOfMemory)
}

/// Frees a block of [`alloc()`]'s, and each of its frames by `free`. Returns whether it is one: if
/// not, nothing happens.
///
/// # Safety
///
/// If the block came from [`alloc()`], it was of this order, and the caller gives it up.
pub unsafe fn free(block: *mut u8, order: u8, free: impl Fn(Pfn)) -> bool {
    if !contains(block.addr() as u64) {
        return false;
    }
    let first = ((block.addr() as u64 - START) / PAGE_SIZE) as usize;
    let pages = first..first + (1 << order);
    unmap_all(pages.clone(), free);
    USED.lock().give_back(pages);
    true
}

/// Unmaps pages, at each of which a frame is mapped, and frees the frames.
fn unmap_all(pages: Range<usize>, free: impl Fn(Pfn)) {
    if pages.is_empty() {
        return;
    }
    pages.clone().for_each(unmap);
    let [start, end] = [pages.start, pages.end].map(|page| START + page as u64 * PAGE_SIZE);
    // Afterwards no CPU can use a frame by a translation from before.
    shootdown::invalidate_kernel(VirtRange { start, end });
    pages.for_each(|page| free(PhysAddr(frame(page)).pfn()));
}

/// Returns the number of bytes at an address in the kernel half that are contiguous in physical
/// memory, from this one on, within what was allocated.
pub fn contiguous(at: *const u8) -> usize {
    let page = PAGE_SIZE as usize;
    if contains(at.addr() as u64) { page - at.addr() % page } else { usize::MAX }
}
