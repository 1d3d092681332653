//! Physical memory: a descriptor for every frame, and who gives frames out.
//!
//! [`Frames`] owns the descriptors ([`Frame`]), the buddy allocator and the per-CPU caches. Everything that it needs for
//! itself it takes from the machine's memory at boot (`boot`); afterwards it allocates nothing.
//!
//! | file | story |
//! |---|---|
//! | `desc` | the 32 bytes that describe a frame |
//! | `list` | lists threaded through descriptors |
//! | `buddy` | blocks of 2ⁿ frames |
//! | `percpu` | what each CPU keeps at hand |
//! | `node` | memory near and far, and when it is short |
//! | `boot` | from a memory map to all of the above |
//! | `policy` | which folio sizes a fault may use |
//!
//! Locks: a cache's, then a buddy allocator's, never two of either. Both with interrupts masked, so that frames may be allocated and freed
//! anywhere.

mod boot;
mod buddy;
mod desc;
mod folios;
mod list;
mod node;
mod percpu;
pub mod policy;
#[cfg(test)]
mod tests;

pub use boot::{BootError, BootOptions};
pub(crate) use desc::Owner;
pub use desc::{Counts, Family, Frame, FrameKind, FrameState, flag};
pub(crate) use list::Cut;
pub use list::FrameList;

use buddy::Buddy;
use core::ptr::NonNull;
use core::sync::atomic::AtomicBool;
use node::Node;
use percpu::Cache;

use crate::addr::{FRAME_SIZE, Pfn, PhysAddr};
use crate::arch::Attrs;
use crate::platform::{Event, FailPoint, Platform, allows, trace};
use crate::sync::SpinLock;

/// The largest block: 1 GiB.
pub const MAX_ORDER: u8 = 18;
/// The order of a 2 MiB folio, the largest that is cached per CPU.
pub const HUGE_ORDER: u8 = 9;
/// The order of the largest folio: 32 MiB, which AArch64 maps by one block of 2 MiB leaves, or with 16 KiB pages by one leaf.
pub const LARGEST_FOLIO: u8 = 13;
/// log2 of the frames whose descriptors stand in one piece: 32 MiB of memory, 256 KiB of descriptors.
const SECTION_SHIFT: u32 = 13;

/// The descriptors of so many frames in a row, of which at least one exists.
type Section = [Frame; 1 << SECTION_SHIFT];

/// Frames whose contents are zeroed or copied in one go, 64 KiB: after so many the CPU may do
/// something else.
const PIECE: u32 = 16;

/// What frames are for. Those that stay where they are keep together, so that few of them don't keep much memory from
/// becoming whole again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Use {
    /// User memory: folios, which can be given back or moved.
    Folio = 0,
    /// Page tables and the engine's other structures, which can't.
    Kernel = 1,
}

/// What may be made of zeroed memory.
///
/// # Safety
/// All zero bits must be a valid value, and the alignment at most a frame's.
pub(crate) unsafe trait Zeroable {}

/// No block of that size is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl core::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("out of memory")
    }
}

impl core::error::Error for OutOfMemory {}

/// A folio has [`Counts::MOST`] references and mappings, and a program asked for one more. No
/// reclaim helps against that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyReferences;

impl core::fmt::Display for TooManyReferences {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("as many references as there may be")
    }
}

impl core::error::Error for TooManyReferences {}

/// All frames of a machine.
pub struct Frames<'p, P: Platform> {
    platform: &'p P,
    direct: *mut u8,
    /// None where there is no memory.
    sections: &'p [Option<&'p Section>],
    nodes: &'p [Node],
    /// By shard: see `node`.
    caches: &'p [CacheLine],
    /// No node had more than its low watermark free, and nobody has found as many as the high one on all of them since.
    short: AtomicBool,
    zero_on_free: bool,
}

/// How many frames should be free (Linux's words for the same): what is below them is dealt with by the host.
///
/// They are set at boot ([`BootOptions`]), for each node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// With so few free, only [`Frames::alloc_kept`] gives out any ([`BootOptions::kept`]).
    pub min: u64,
    /// With fewer, memory should be reclaimed beside those who use it, so that they don't have to wait for it.
    pub low: u64,
    /// With so many, that is enough.
    pub high: u64,
}

/// A shard's cache, on cache lines of its own.
#[repr(align(128))]
struct CacheLine(SpinLock<Cache>);

// SAFETY: `direct` is only ever the base for addresses of frames, whose use is governed by their owners; everything else
// is `Sync` by itself.
unsafe impl<P: Platform> Sync for Frames<'_, P> {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl<P: Platform> Send for Frames<'_, P> {}

impl<'p, P: Platform> Frames<'p, P> {
    /// The host.
    #[inline]
    pub fn platform(&self) -> &'p P {
        self.platform
    }

    /// Frames that the engine gives out, its own structures not counted.
    pub fn total(&self) -> u64 {
        self.nodes.iter().map(|node| node.total).sum()
    }

    /// How many of them are kept: [`BootOptions::kept`].
    pub fn kept(&self) -> u64 {
        self.nodes.iter().map(|node| node.marks.min).sum()
    }

    /// No frame has this number or a higher one.
    pub(crate) fn end(&self) -> Pfn {
        Pfn((self.sections.len() << SECTION_SHIFT).min(Pfn::NONE.0 as usize) as u32)
    }

    /// Frames that are free now: exact when nothing runs.
    pub fn free_frames(&self) -> u64 {
        (0..self.nodes()).map(|node| self.free_on(node)).sum()
    }

    /// A frame's descriptor, if the machine has such a frame or could have (a hole inside a section reads as reserved).
    #[inline]
    pub fn get(&self, pfn: Pfn) -> Option<&'p Frame> {
        self.row(pfn)?.first()
    }

    /// A frame's descriptor and those behind it that stand in one piece with it.
    #[inline]
    fn row(&self, pfn: Pfn) -> Option<&'p [Frame]> {
        let section = (*self.sections.get((pfn.0 >> SECTION_SHIFT) as usize)?)?;
        Some(&section[(pfn.0 & ((1 << SECTION_SHIFT) - 1)) as usize..])
    }

    /// The descriptor of a frame that came from this allocator.
    ///
    /// # Panics
    /// If there is no such frame: a number that no caller can supply.
    #[inline]
    pub fn frame(&self, pfn: Pfn) -> &'p Frame {
        match self.get(pfn) {
            Some(frame) => frame,
            None => no_such_frame(pfn),
        }
    }

    /// The first frame of the folio that `pfn` belongs to.
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

    /// The block or folio that a frame lies in, by its first frame, and what that says: free, a folio, a table, or anything
    /// else; none where there is no memory. As of an instant that nobody holds still.
    ///
    /// Any frame can be asked for, as only firsts are: what others say may be left over from what they were. The frame at a
    /// multiple of the largest size is the first of its block in any case; and where that ends before `pfn`, so is the one at
    /// a multiple of the next size.
    pub fn block(&self, pfn: Pfn) -> Option<(Pfn, &'p Frame, FrameState)> {
        (0..=MAX_ORDER).rev().find_map(|order| {
            let first = pfn.align_down(order);
            let frame = self.get(first)?;
            let state = frame.state();
            (state.kind() != FrameKind::Tail && state.order() >= order).then_some((first, frame, state))
        })
    }

    /// The descriptors from `pfn` on that stand in one piece, as many as there are but no more than `count`.
    ///
    /// # Panics
    /// If there is no such frame: a number that no caller can supply.
    #[inline]
    pub(crate) fn stretch(&self, pfn: Pfn, count: u32) -> &'p [Frame] {
        let row = self.row(pfn).unwrap_or_else(|| no_such_frame(pfn));
        &row[..row.len().min(count as usize)]
    }

    /// Where a physical address appears to the engine. Merely a number until somebody who owns the frame uses it.
    #[inline]
    pub fn at(&self, pa: PhysAddr) -> NonNull<u8> {
        // SAFETY: the direct map never wraps around to the null address (contract of `Memory`).
        unsafe { NonNull::new_unchecked(self.direct.wrapping_add(pa.0 as usize)) }
    }

    /// A block of `1 << order` frames, the caller's alone; contents unspecified unless `zero`. Of this CPU's node, as long as that or no
    /// other has any to spare.
    #[inline]
    pub fn alloc(&self, order: u8, zero: bool, usage: Use) -> Result<Pfn, OutOfMemory> {
        self.alloc_at_lruvec(order, zero, usage).map(|(pfn, _)| pfn)
    }

    /// The same, and the shard where it is at home, for whoever has it admitted to a memcg.
    #[inline(always)]
    pub(crate) fn alloc_at_lruvec(&self, order: u8, zero: bool, usage: Use) -> Result<(Pfn, usize), OutOfMemory> {
        let (pfn, shard) = self.find(order, zero, usage);
        pfn.some().map(|pfn| (pfn, shard)).ok_or(OutOfMemory)
    }

    /// The same, or [`Pfn::NONE`]: an answer that fits two registers.
    fn find(&self, order: u8, zero: bool, usage: Use) -> (Pfn, usize) {
        if !allows(self.platform, FailPoint::Frames) {
            return (Pfn::NONE, 0);
        }
        if order <= HUGE_ORDER {
            let cpu = self.platform.current();
            let found = self.caches[cpu].0.lock_irq(self.platform).alloc(self, order, zero, usage);
            if let Some((pfn, is_zero)) = found {
                return (self.give(pfn, order, zero && !is_zero), cpu);
            }
        }
        match self.find_anywhere(order, zero, usage) {
            Some((pfn, is_zero, shard)) => (self.give(pfn, order, zero && !is_zero), shard),
            None => (Pfn::NONE, 0),
        }
    }

    /// A block leaves the allocator.
    #[inline]
    fn give(&self, pfn: Pfn, order: u8, clear: bool) -> Pfn {
        trace(self.platform, || Event::Allocated(pfn, 1 << order));
        if clear {
            // SAFETY: the block just left the allocator and is nobody else's.
            unsafe { self.zero(pfn, 1 << order) };
        }
        pfn
    }

    /// The same, of the frames too that [`BootOptions::kept`] keeps: for what the host can't do without, and gives back soon.
    /// Contents unspecified.
    pub fn alloc_kept(&self, order: u8, usage: Use) -> Result<Pfn, OutOfMemory> {
        self.alloc(order, false, usage).or_else(|error| {
            let pfn = self.find_kept(order).ok_or(error)?;
            Ok(self.give(pfn, order, false))
        })
    }

    /// Give back what [`Frames::alloc_kept`] gave out: first of all to what is to be kept.
    ///
    /// # Safety
    /// As of [`Frames::free`].
    pub unsafe fn free_kept(&self, pfn: Pfn, order: u8, usage: Use) {
        // SAFETY: by contract.
        let zero = unsafe { self.leave(pfn, 1 << order, false) };
        let mut buddy = self.nodes[self.node_of(pfn)].buddy.lock_irq(self.platform);
        if buddy.is_short() {
            return buddy.free(self, pfn, order, zero);
        }
        drop(buddy);
        self.keep_at_hand(pfn, 1 << order, zero, usage);
    }

    /// Give back `count` consecutive frames of one use, however they were allocated. A long stretch goes straight to the buddy
    /// allocator in its largest blocks; a short one stays at hand.
    ///
    /// # Safety
    /// The frames came from this allocator and are the caller's alone: no reference, no translation that a CPU may still
    /// use, no walker. If `zero`, every byte of them is zero.
    #[inline]
    pub unsafe fn free(&self, pfn: Pfn, count: u32, zero: bool, usage: Use) {
        // SAFETY: by contract.
        let zero = unsafe { self.leave(pfn, count, zero) };
        self.keep_at_hand(pfn, count, zero, usage);
    }

    /// Frames leave their owner; whether they are zero then.
    ///
    /// # Safety
    /// As of [`Frames::free`].
    #[inline]
    unsafe fn leave(&self, pfn: Pfn, count: u32, zero: bool) -> bool {
        trace(self.platform, || Event::Freed(pfn, count));
        if !zero && self.zero_on_free {
            // SAFETY: by contract.
            unsafe { self.zero(pfn, count) };
        }
        zero || self.zero_on_free
    }

    #[inline]
    fn keep_at_hand(&self, pfn: Pfn, count: u32, zero: bool, usage: Use) {
        if count == 1 {
            let shard = self.lruvec_on(self.node_of(pfn));
            self.caches[shard].0.lock_irq(self.platform).free(self, pfn, 0, zero, usage);
        } else {
            self.free_blocks_of(pfn, count, zero, usage);
        }
    }

    fn free_blocks_of(&self, pfn: Pfn, count: u32, zero: bool, usage: Use) {
        /// From here on the buddy's lock is worth its price.
        const STRAIGHT: u32 = 32;
        let (blocks, node) = (Blocks { pfn, count }, self.node_of(pfn));
        if count >= STRAIGHT {
            let mut buddy = self.nodes[node].buddy.lock_irq(self.platform);
            blocks.for_each(|(pfn, order)| buddy.free(self, pfn, order, zero));
        } else {
            let mut cache = self.caches[self.lruvec_on(node)].0.lock_irq(self.platform);
            blocks.for_each(|(pfn, order)| cache.free(self, pfn, order, zero, usage));
        }
    }

    /// Drop references and mappings of a folio; what is left.
    #[inline]
    pub(crate) fn put(&self, head: Pfn, frame: &Frame, refs: u32, maps: u32) -> Counts {
        trace(self.platform, || {
            let before = frame.counts();
            Event::Counts(
                head,
                (before.refs, before.maps),
                (before.refs.wrapping_sub(refs), before.maps.wrapping_sub(maps)),
            )
        });
        frame.put(refs, maps)
    }

    /// The same for all there are, where nobody can find the folio to have another.
    #[inline]
    pub(crate) fn put_all(&self, head: Pfn, frame: &Frame) {
        trace(self.platform, || {
            let Counts { refs, maps } = frame.counts();
            Event::Counts(head, (refs, maps), (0, 0))
        });
        frame.set_counts(Counts { refs: 0, maps: 0 });
    }

    /// [`Frame::try_get`].
    #[inline]
    pub(crate) fn try_get(&self, head: Pfn, frame: &Frame, refs: u32, maps: u32) -> bool {
        let got = frame.try_get(refs, maps);
        if got {
            // Said afterwards, because it was not certain. Nobody frees it meanwhile.
            trace(self.platform, || {
                let Counts { refs: all, maps: mapped } = frame.counts();
                Event::Counts(head, (all.wrapping_sub(refs), mapped.wrapping_sub(maps)), (all, mapped))
            });
        }
        got
    }

    /// Adds references and mappings to a folio, and returns what the counts were. The caller has a
    /// reference, or keeps whoever has one from dropping it.
    #[inline]
    pub(crate) fn get_counts(&self, head: Pfn, frame: &Frame, refs: u32, maps: u32) -> Counts {
        self.trace_more(head, frame, refs, maps);
        frame.get(refs, maps)
    }

    /// The same for a program's call: see [`Frame::share`].
    ///
    /// # Errors
    /// [`TooManyReferences`]: nothing was changed.
    #[inline]
    pub(crate) fn share_counts(&self, head: Pfn, frame: &Frame, refs: u32, maps: u32) -> Result<(), TooManyReferences> {
        self.trace_more(head, frame, refs, maps);
        if frame.share(refs, maps) { Ok(()) } else { Err(TooManyReferences) }
    }

    #[inline]
    fn trace_more(&self, head: Pfn, frame: &Frame, refs: u32, maps: u32) {
        trace(self.platform, || {
            let before = frame.counts();
            let after = (before.refs.wrapping_add(refs), before.maps.wrapping_add(maps));
            Event::Counts(head, (before.refs, before.maps), after)
        });
    }

    /// Make a folio of a block that was just allocated, with these counts. Its tails learn the way to the head, whose descriptor
    /// is the answer.
    #[inline]
    pub(crate) fn make_folio(&self, pfn: Pfn, order: u8, flags: u32, counts: Counts) -> &'p Frame {
        const { assert!(LARGEST_FOLIO as u32 <= SECTION_SHIFT, "a folio's descriptors stand in one piece") };
        let row = self.stretch(pfn, 1 << order);
        let head = &row[0];
        row[1..].iter().for_each(|tail| tail.become_kind(FrameKind::Tail, order, 0));
        head.become_kind(FrameKind::Folio, order, flags);
        trace(self.platform, || Event::Counts(pfn, (0, 0), (counts.refs, counts.maps)));
        head.set_counts(counts);
        head
    }

    /// Whether freed memory is zeroed at once, so that no data outlives its owner (Linux: `init_on_free`).
    pub fn zero_on_free(&self) -> bool {
        self.zero_on_free
    }

    /// Overwrites frames with zeros. If they are more than a [`PIECE`], the caller holds no spin
    /// lock.
    ///
    /// # Safety
    /// The frames are this machine's and the caller's alone.
    #[inline]
    pub(crate) unsafe fn zero(&self, pfn: Pfn, count: u32) {
        self.in_pieces(count, |at, bytes| {
            // SAFETY: the direct map covers the machine's frames (contract of `Memory`); nobody
            // else's (this contract).
            unsafe { self.platform.zero(self.at(pfn.add(at).addr()).as_ptr(), bytes) };
        });
    }

    /// Copies frames that others may be writing to. If they are more than a [`PIECE`], the caller
    /// holds no spin lock.
    ///
    /// # Safety
    /// `from` and `to` are the first of as many frames in a row. Those at `from` stay meanwhile;
    /// those at `to` are others, that only the caller knows.
    pub(crate) unsafe fn copy(&self, from: Pfn, to: Pfn, count: u32) {
        self.in_pieces(count, |at, bytes| {
            let [from, to] = [from, to].map(|pfn| self.at(pfn.add(at).addr()).as_ptr());
            // SAFETY: by contract; the direct map covers the machine's frames (contract of
            // `Memory`), and whatever writes to the contents of objects and VMAs treats them as
            // atomics.
            unsafe { self.platform.copy(from, to, bytes) };
        });
    }

    /// Calls `f` with the number of the first frame of each piece of `count` frames, and with the
    /// bytes of the piece.
    #[inline(always)]
    fn in_pieces(&self, count: u32, f: impl Fn(u32, usize)) {
        let (mut at, mut left) = (0, count);
        while left > PIECE {
            f(at, PIECE as usize * FRAME_SIZE as usize);
            self.platform.resched();
            (at, left) = (at + PIECE, left - PIECE);
        }
        f(at, left as usize * FRAME_SIZE as usize);
    }

    /// Frames are about to be mapped, by entries that say this and did not say so before.
    #[inline(always)]
    pub(crate) fn expose(&self, pfn: Pfn, count: u32, attrs: Attrs) {
        if attrs.contains(Attrs::EXEC) {
            self.platform.sync_icache(self.at(pfn.addr()).as_ptr(), count as usize * FRAME_SIZE as usize);
        }
    }
}

/// This descriptor will be needed soon. No more than a hint, and no access: any address will do.
#[inline(always)]
pub(crate) fn prefetch(at: *const Frame) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect that the program could see (Intel SDM vol. 2B, PREFETCHh).
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above (Arm ARM C6.2, PRFM: a hint that never faults).
    unsafe {
        core::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

#[cold]
fn no_such_frame(pfn: Pfn) -> ! {
    panic!("{pfn:?} is not a frame of this machine")
}

/// A stretch of frames, cut into the largest naturally aligned blocks.
struct Blocks {
    pfn: Pfn,
    count: u32,
}

impl Iterator for Blocks {
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
