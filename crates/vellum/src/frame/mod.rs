//! Allocates physical memory: a descriptor for every frame, buddy allocators, and per-CPU caches of
//! free frames.
//!
//! [`Frames`] owns the descriptors ([`Frame`]; Linux: `struct page`), one buddy allocator per NUMA
//! node (Linux: the zone's free lists) and the per-CPU caches (Linux: `per_cpu_pages`). It takes
//! the memory for its own structures from the machine's regions at boot (`boot`) and allocates
//! nothing afterwards.
//!
//! | file | contents |
//! |---|---|
//! | `desc` | the 32-byte descriptor of a frame |
//! | `list` | doubly linked lists threaded through descriptors |
//! | `folios` | iterates over the folios of a range of frames |
//! | `counts` | refcounts and mapcounts of folios, with trace events |
//! | `contents` | zeroes and copies frames |
//! | `buddy` | the buddy allocator: free blocks of 2ⁿ frames |
//! | `pageblock` | bitmaps of the free frames of 2 MiB |
//! | `blocks` | finds the block that contains a frame |
//! | `percpu` | per-CPU caches of free blocks |
//! | `node` | NUMA nodes, watermarks and the order in which nodes are tried |
//! | `boot` | builds all of the above from the machine's memory map |
//! | `policy` | the folio sizes that a page fault may use |
//!
//! Rules kept here: free memory that is marked zero is all zero bytes (INV-10); references
//! are never fewer than mappings (INV-2); zeroing and copying is preemptible every 64 KiB (INV-11).
//!
//! Lock order: a per-CPU cache's lock, then a buddy allocator's lock. A CPU never holds two locks
//! of the same kind. Both are taken with interrupts masked, so frames may be allocated and freed in
//! any context, with page-table locks held or not.

mod blocks;
mod boot;
mod buddy;
mod contents;
mod counts;
mod desc;
mod folios;
mod icache;
mod isolate;
mod list;
mod node;
mod pageblock;
mod percpu;
pub mod policy;
mod shmem;
#[cfg(test)]
mod tests;

pub use boot::{BootError, BootOptions};
pub(crate) use desc::RmapKey;
pub use desc::{Counts, Family, Frame, FrameKind, FrameState, flag};
pub(crate) use icache::sync_object_icache;
pub(crate) use isolate::{
    FrameUse, IsolatedPageblock, alloc_in_pieces, free_in_pageblock, pageblocks, unskip_pageblock,
};
pub use list::FrameList;
pub(crate) use list::{Cut, ListEnd, prefetch_neighbours};

use buddy::Buddy;
use core::ptr::NonNull;
use core::sync::atomic::AtomicBool;
use node::{LocatedBlock, Node};
use pageblock::Pageblock;
use percpu::FrameCache;

use crate::addr::{Pfn, PhysAddr};
use crate::platform::{Event, FailPoint, Platform, allows, trace};
use crate::sync::SpinLock;

/// The order of the largest block of the buddy allocator: 1 GiB.
pub const MAX_ORDER: u8 = 18;
/// The order of a 2 MiB folio, the largest block that the per-CPU caches hold.
pub const HUGE_ORDER: u8 = 9;
/// The order of the largest folio: 32 MiB. With 16 KiB pages AArch64 maps it by one huge PTE. With
/// 4 KiB pages AArch64 maps it by one cont block of 2 MiB PTEs (aligned PTEs with the contiguous
/// bit, which a TLB may cache as one translation).
pub const LARGEST_FOLIO: u8 = 13;
/// log2 of the number of frames in a section (Linux: `PFN_SECTION_SHIFT`). A section is 32 MiB of
/// memory, whose descriptors are one array of 256 KiB. The bitmaps of its free frames have 3 KiB.
const SECTION_SHIFT: u32 = 13;

/// One section (Linux: `mem_section`). A section has this structure if at least one of its frames
/// exists.
#[repr(C)]
struct Section {
    /// The descriptors of its frames.
    descriptors: [Frame; 1 << SECTION_SHIFT],
    /// The free frames of its pageblocks.
    pageblocks: [Pageblock; 1 << (SECTION_SHIFT - HUGE_ORDER as u32)],
}

/// The purpose of a block of frames (Linux: migratetype). The per-CPU caches keep blocks of the two
/// purposes apart, so that a few immovable frames don't prevent much memory from merging into large
/// blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Use {
    /// Folios of user memory, which can be reclaimed or migrated (Linux: `MIGRATE_MOVABLE`).
    Folio = 0,
    /// Page tables and the engine's other structures, which can't be moved (Linux:
    /// `MIGRATE_UNMOVABLE`).
    Kernel = 1,
}

/// A type for which all-zero memory is a valid value.
///
/// # Safety
/// Zero bytes of the type's size are a valid value of the type.
pub(crate) unsafe trait Zeroable {}

/// The error of an allocation that found no free block of the requested size above the min
/// watermark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl core::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("out of memory: no free block of that size")
    }
}

impl core::error::Error for OutOfMemory {}

/// The error of a program's system call that needs another reference to a folio that already has
/// [`Counts::MAX_REFS`] references (Linux: `try_grab_folio` fails). Reclaim doesn't help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyReferences;

impl core::fmt::Display for TooManyReferences {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("the folio already has the largest number of references and mappings")
    }
}

impl core::error::Error for TooManyReferences {}

/// The physical memory of a machine: its descriptors and its allocator.
pub struct Frames<'p, P: Platform> {
    platform: &'p P,
    /// The base of the host's direct map.
    direct: *mut u8,
    /// Descriptors by section number; `None` for a section without memory.
    sections: &'p [Option<&'p Section>],
    nodes: &'p [Node],
    /// Caches of free frames, one for each per-CPU lruvec ([`node`]), by its number.
    caches: &'p [CacheLine],
    /// Set when no node had more than its low watermark free. Cleared once every node has reached
    /// its high watermark.
    short: AtomicBool,
    /// [`BootOptions::zero_on_free`].
    zero_on_free: bool,
}

/// The free-memory thresholds of a node, in frames (Linux: `min_wmark_pages` and so on). They are
/// set at boot ([`BootOptions`]). The host runs background reclaim by them ([`Frames::shortage`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Below this only [`Frames::alloc_reserve`] allocates ([`BootOptions::min_free`]).
    pub min: u64,
    /// Below this the host should reclaim in the background, so that allocating CPUs don't have to
    /// enter direct reclaim.
    pub low: u64,
    /// At this level background reclaim stops.
    pub high: u64,
}

/// The cache of free frames for one per-CPU lruvec: one for each CPU, and with several nodes one
/// more for each node ([`node`]). It has cache lines of its own.
#[repr(align(128))]
struct CacheLine(SpinLock<FrameCache>);

// SAFETY: `direct` is only the base from which addresses of frames are computed, and only a frame's
// owner accesses memory at such an address. All other fields are `Sync`.
unsafe impl<P: Platform> Sync for Frames<'_, P> {}
// SAFETY: no field belongs to one thread.
unsafe impl<P: Platform> Send for Frames<'_, P> {}

impl<'p, P: Platform> Frames<'p, P> {
    /// Returns the host.
    #[inline]
    pub fn platform(&self) -> &'p P {
        self.platform
    }

    /// Returns the number of frames that the allocator manages. The engine's boot-time structures
    /// are not among them.
    pub fn total(&self) -> u64 {
        self.nodes.iter().map(|node| node.total).sum()
    }

    /// Returns the number of frames in the reserve of all nodes, the sum of the min watermarks:
    /// [`BootOptions::min_free`].
    pub fn min_free(&self) -> u64 {
        self.nodes.iter().map(|node| node.marks.min).sum()
    }

    /// Returns the end of physical memory: every frame's number is lower.
    pub(crate) fn end(&self) -> Pfn {
        Pfn((self.sections.len() << SECTION_SHIFT).min(Pfn::NONE.0 as usize) as u32)
    }

    /// Returns the number of free frames, those in per-CPU caches included. The number is exact
    /// only while no CPU allocates or frees. Takes the lock of every cache and every buddy
    /// allocator in turn.
    pub fn free_frames(&self) -> u64 {
        (0..self.nodes()).map(|node| self.free_on(node)).sum()
    }

    /// Returns the descriptor of `pfn`, or `None` if its section has no memory. The descriptor of a
    /// hole inside a section is [`FrameKind::Reserved`].
    #[inline]
    pub fn get(&self, pfn: Pfn) -> Option<&'p Frame> {
        let section = (*self.sections.get((pfn.0 >> SECTION_SHIFT) as usize)?)?;
        Some(&section.descriptors[(pfn.0 & ((1 << SECTION_SHIFT) - 1)) as usize])
    }

    /// Returns the descriptors from `pfn` to the end of its section.
    #[inline]
    fn descriptors_from(&self, pfn: Pfn) -> Option<&'p [Frame]> {
        let section = (*self.sections.get((pfn.0 >> SECTION_SHIFT) as usize)?)?;
        Some(&section.descriptors[(pfn.0 & ((1 << SECTION_SHIFT) - 1)) as usize..])
    }

    /// Returns the descriptor of a frame that came from this allocator.
    ///
    /// # Panics
    /// If the machine has no such frame. No caller passes an unchecked number.
    #[inline]
    pub fn frame(&self, pfn: Pfn) -> &'p Frame {
        match self.get(pfn) {
            Some(frame) => frame,
            None => no_such_frame(pfn),
        }
    }

    /// Prefetches the descriptor of a frame, if the machine has that frame.
    #[inline]
    pub(crate) fn prefetch(&self, pfn: Pfn) {
        if let Some(frame) = self.get(pfn) {
            prefetch(frame);
        }
    }

    /// Returns the head frame of the folio that contains `pfn`, with its descriptor. For a frame
    /// that is not a tail, returns the frame itself.
    #[inline]
    pub fn head(&self, pfn: Pfn) -> (Pfn, &'p Frame) {
        let frame = self.frame(pfn);
        let state = frame.state();
        if state.kind() != FrameKind::Tail {
            return (pfn, frame);
        }
        let head = pfn.align_down(state.order());
        (head, self.frame(head))
    }

    /// Returns the descriptors from `pfn` on, at most `count`, fewer where the section ends.
    ///
    /// # Panics
    /// If the machine has no such frame. No caller passes an unchecked number.
    #[inline]
    pub(crate) fn descriptors(&self, pfn: Pfn, count: u32) -> &'p [Frame] {
        let descriptors = self.descriptors_from(pfn).unwrap_or_else(|| no_such_frame(pfn));
        &descriptors[..descriptors.len().min(count as usize)]
    }

    /// Returns the address of `pa` in the direct map (Linux: `phys_to_virt`). Only the owner of the
    /// frame may access memory through it.
    #[inline]
    pub fn at(&self, pa: PhysAddr) -> NonNull<u8> {
        // SAFETY: the direct map never wraps around to the null address (contract of `Memory`).
        unsafe { NonNull::new_unchecked(self.direct.wrapping_add(pa.0 as usize)) }
    }

    /// Allocates a block of `1 << order` frames, which belongs to the caller alone. With `zero` all
    /// of it is zero; otherwise the contents are unspecified. Prefers the current CPU's node and
    /// falls back to the others, nearest first.
    ///
    /// # Errors
    /// Fails with [`OutOfMemory`] if no node has such a block above its min watermark. The caller
    /// reclaims and tries again, or fails.
    #[inline]
    pub fn alloc(&self, order: u8, zero: bool, usage: Use) -> Result<Pfn, OutOfMemory> {
        self.alloc_at_lruvec(order, zero, usage).map(|(pfn, _)| pfn)
    }

    /// Allocates like [`Frames::alloc`], and also returns the number of the per-CPU lruvec of the
    /// block's node, for a caller that charges the block to a memcg ([`crate::memcg`]).
    #[inline(always)]
    pub(crate) fn alloc_at_lruvec(&self, order: u8, zero: bool, usage: Use) -> Result<(Pfn, usize), OutOfMemory> {
        let (pfn, shard) = self.find_block(order, zero, usage);
        pfn.some().map(|pfn| (pfn, shard)).ok_or(OutOfMemory)
    }

    /// Allocates like [`Frames::alloc_at_lruvec`]; on failure the frame is [`Pfn::NONE`]. This form
    /// returns in two registers.
    fn find_block(&self, order: u8, zero: bool, usage: Use) -> (Pfn, usize) {
        if !allows(self.platform, FailPoint::Frames) {
            return (Pfn::NONE, 0);
        }
        if order <= HUGE_ORDER {
            let cpu = self.platform.current();
            let cached = self.caches[cpu].0.lock_irq(self.platform).alloc(self, order, zero, usage);
            if let Some(block) = cached {
                return (self.prepare_allocated(block.pfn, order, zero && !block.is_zero), cpu);
            }
        }
        match self.find_anywhere(order, zero, usage) {
            Some(LocatedBlock { block, shard }) => {
                (self.prepare_allocated(block.pfn, order, zero && !block.is_zero), shard)
            }
            None => (Pfn::NONE, 0),
        }
    }

    /// Traces a block that left the free lists, and zeroes it if `clear` is set (Linux:
    /// `prep_new_page`).
    #[inline]
    fn prepare_allocated(&self, pfn: Pfn, order: u8, clear: bool) -> Pfn {
        trace(self.platform, || Event::Allocated(pfn, 1 << order));
        if clear {
            // SAFETY: the block just left the allocator and belongs to this call alone.
            unsafe { self.zero(pfn, 1 << order) };
        }
        pfn
    }

    /// Allocates a block like [`Frames::alloc`], from the reserve below the min watermark too
    /// (Linux: `ALLOC_NO_WATERMARKS`). For host structures without which reclaim can't proceed, and
    /// which are freed soon. The contents are unspecified.
    ///
    /// # Errors
    /// Fails with [`OutOfMemory`] if the reserve is exhausted.
    pub fn alloc_reserve(&self, order: u8, usage: Use) -> Result<Pfn, OutOfMemory> {
        self.alloc(order, false, usage).or_else(|error| {
            let pfn = self.find_in_reserve(order, usage).ok_or(error)?;
            Ok(self.prepare_allocated(pfn, order, false))
        })
    }

    /// Frees a block that came from [`Frames::alloc_reserve`]. While the node is below its min
    /// watermark the block goes straight to the buddy allocator, so that the reserve refills first.
    ///
    /// # Safety
    /// As for [`Frames::free`].
    pub unsafe fn free_reserve(&self, pfn: Pfn, order: u8, usage: Use) {
        // SAFETY: the caller guarantees the conditions of [`Frames::free`], which `prepare_freed`
        // requires.
        let zero = unsafe { self.prepare_freed(pfn, 1 << order, false) };
        let mut buddy = self.nodes[self.node_of(pfn)].buddy.lock_irq(self.platform);
        if buddy.is_below_min() {
            return buddy.free(self, pfn, order, zero);
        }
        drop(buddy);
        self.free_to_cache(pfn, 1 << order, zero, usage);
    }

    /// Frees `count` consecutive frames of one [`Use`], which may come from several allocations. A
    /// range of 32 frames or more goes straight to the buddy allocator in its largest aligned
    /// blocks. A shorter range goes to the current CPU's cache.
    ///
    /// # Safety
    /// The frames came from this allocator and belong to the caller alone: no reference is left, no
    /// CPU can use a stale translation of them, and no lockless walk of page tables can reach them
    /// (INV-1). If `zero` is set, every byte of them is zero (INV-10).
    #[inline]
    pub unsafe fn free(&self, pfn: Pfn, count: u32, zero: bool, usage: Use) {
        // SAFETY: the caller guarantees the conditions of [`Frames::free`], which `prepare_freed`
        // requires.
        let zero = unsafe { self.prepare_freed(pfn, count, zero) };
        self.free_to_cache(pfn, count, zero, usage);
    }

    /// Frees ranges of frames straight to their nodes' buddy allocators, under one hold of a lock
    /// where the frames of consecutive ranges are of one node. For many frames at once, of which a
    /// CPU's cache could keep only a few.
    ///
    /// # Safety
    /// As for [`Frames::free`], for each range.
    pub(crate) unsafe fn free_to_buddy(&self, ranges: &[(Pfn, u32)], zero: bool) {
        let mut now_zero = zero;
        for &(pfn, count) in ranges {
            // SAFETY: the caller guarantees the conditions of [`Frames::free`], which
            // `prepare_freed` requires.
            now_zero = unsafe { self.prepare_freed(pfn, count, zero) };
        }
        let zero = now_zero;
        let free = |ranges: &[(Pfn, u32)]| {
            let node = &self.nodes[self.node_of(ranges[0].0)];
            node.buddy.lock_irq(self.platform).free_ranges(self, ranges, zero);
        };
        match self.nodes.len() {
            1 if ranges.is_empty() => {}
            1 => free(ranges),
            _ => ranges.chunk_by(|a, b| self.node_of(a.0) == self.node_of(b.0)).for_each(free),
        }
    }

    /// Traces frames that are about to be freed, and zeroes them if [`BootOptions::zero_on_free`]
    /// is set. Returns whether the frames are all zero.
    ///
    /// # Safety
    /// As for [`Frames::free`].
    #[inline]
    unsafe fn prepare_freed(&self, pfn: Pfn, count: u32, zero: bool) -> bool {
        trace(self.platform, || Event::Freed(pfn, count));
        if !zero && self.zero_on_free {
            // SAFETY: the frames belong to the caller alone (this contract).
            unsafe { self.zero(pfn, count) };
        }
        zero || self.zero_on_free
    }

    /// Frees frames to the current CPU's cache for their node. Several frames are freed as a range,
    /// which may go to the buddy allocator. The single-frame path is inlined.
    #[inline]
    fn free_to_cache(&self, pfn: Pfn, count: u32, zero: bool, usage: Use) {
        if count == 1 {
            let shard = self.lruvec_on(self.node_of(pfn));
            self.caches[shard].0.lock_irq(self.platform).free(self, pfn, 0, zero, usage);
        } else {
            self.free_range(pfn, count, zero, usage);
        }
    }

    /// Frees a range of frames in its largest aligned blocks, under one hold of a lock.
    fn free_range(&self, pfn: Pfn, count: u32, zero: bool, usage: Use) {
        /// From this number of frames on, the range bypasses the per-CPU cache: its large blocks
        /// are worth the buddy allocator's lock.
        const TO_BUDDY: u32 = 32;
        let node = self.node_of(pfn);
        if count >= TO_BUDDY {
            self.nodes[node].buddy.lock_irq(self.platform).free_ranges(self, &[(pfn, count)], zero);
        } else {
            let mut cache = self.caches[self.lruvec_on(node)].0.lock_irq(self.platform);
            AlignedBlocks { pfn, count }.for_each(|(pfn, order)| cache.free(self, pfn, order, zero, usage));
        }
    }
}

/// Prefetches what is needed soon. This is a hint and no access, so any address will do.
///
/// On x86-64 not by `_mm_prefetch`, which is a call on targets without SSE, as kernels are.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect that the program could see (Intel SDM vol.
    // 2B, PREFETCHh).
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch of any address is a hint that never faults (Arm ARM C6.2, PRFM).
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Panics for a number that is no frame. Out of line, so that the callers stay small.
#[cold]
fn no_such_frame(pfn: Pfn) -> ! {
    panic!("{pfn:?} is not a frame of this machine: it lies in no memory region that was booted")
}

/// An iterator that cuts a range of frames into the largest naturally aligned blocks. Each item is
/// the first frame of a block, and the block's order.
struct AlignedBlocks {
    pfn: Pfn,
    count: u32,
}

impl Iterator for AlignedBlocks {
    type Item = (Pfn, u8);

    #[inline]
    fn next(&mut self) -> Option<(Pfn, u8)> {
        if self.count == 0 {
            return None;
        }
        let aligned = self.pfn.0.trailing_zeros().min(MAX_ORDER as u32);
        let order = aligned.min(self.count.ilog2()) as u8;
        let block = (self.pfn, order);
        self.pfn = self.pfn.add(1 << order);
        self.count -= 1 << order;
        Some(block)
    }
}
