//! Builds the allocator from the machine's memory map (Linux: `memblock`, `free_area_init`).
//!
//! The descriptors need memory before the allocator exists, so they are taken from the low end of
//! the largest region. A machine with holes pays for the descriptors of every 32 MiB section that
//! has memory, not for the holes between sections.

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicBool;

use super::{CacheLine, Frames, HUGE_ORDER, Node, SECTION_SHIFT, Section, Watermarks, percpu::FrameCache};
use crate::addr::{FRAME_SHIFT, FRAME_SIZE, PhysAddr, align_down, align_up};
use crate::platform::{MAX_CPUS, MAX_NODES, Platform, Region};
use crate::sync::SpinLock;

/// The reason why a machine can't be booted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootError {
    /// The region overlaps another, is out of order, or wraps around.
    BadRegion(Region),
    /// The region reaches beyond 16 TiB.
    TooFar(Region),
    /// The largest region has no room for a boot-time structure of this many bytes after the
    /// earlier structures.
    TooSmall(u64),
    /// The host reports this number of CPUs: none, or more than [`MAX_CPUS`].
    BadCpuCount(usize),
    /// The host reports a region or a CPU on this node, which is not below [`MAX_NODES`].
    BadNode(usize),
}

impl core::fmt::Display for BootError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            BootError::BadRegion(r) => {
                write!(
                    f,
                    "invalid memory region {:?}+{:#x}: regions must be ascending, disjoint and not wrap",
                    r.base, r.len
                )
            }
            BootError::TooFar(r) => write!(
                f,
                "memory region {:?}+{:#x} reaches beyond 16 TiB, the largest address that is supported",
                r.base, r.len
            ),
            BootError::TooSmall(n) => write!(
                f,
                "the largest memory region is too small: its start must hold {n} bytes of boot-time structures"
            ),
            BootError::BadCpuCount(n) => write!(f, "invalid number of CPUs {n}: must be 1 to {MAX_CPUS}"),
            BootError::BadNode(n) => write!(f, "invalid NUMA node {n} of a region or CPU: must be below {MAX_NODES}"),
        }
    }
}

impl core::error::Error for BootError {}

/// The options of [`Frames::boot`].
#[derive(Clone, Copy, Debug, Default)]
pub struct BootOptions {
    /// If set, memory is zeroed when it is freed, not when it is next used (Linux:
    /// `init_on_free`).
    pub zero_on_free: bool,
    /// The number of frames in the reserve, which only [`Frames::alloc_reserve`] allocates. The
    /// host uses them when users have taken all other memory (Linux: `min_free_kbytes`). Each node
    /// holds a part in proportion to its memory.
    pub min_free: u64,
    /// The number of frames between one watermark and the next ([`Watermarks`]), distributed over
    /// the nodes in proportion to their memory (Linux: `watermark_scale_factor`). 0 means a 64th of
    /// all frames.
    pub watermarks: u64,
}

/// The boot-time allocator, which takes memory for the machine's lifetime from the low end of one
/// region and never frees (Linux: `memblock`).
struct Early<'p, P> {
    platform: &'p P,
    /// The physical address of the next allocation.
    next: u64,
    /// The end of the region.
    end: u64,
}

impl<'p, P: Platform> Early<'p, P> {
    /// Allocates `bytes` zero bytes, aligned to a frame.
    ///
    /// # Errors
    /// Fails with [`BootError::TooSmall`] if the region has fewer bytes left.
    fn take(&mut self, bytes: u64) -> Result<PhysAddr, BootError> {
        let needed = align_up(bytes, FRAME_SHIFT).ok_or(BootError::TooSmall(bytes))?;
        if self.end - self.next < needed {
            return Err(BootError::TooSmall(bytes));
        }
        let at = self.next;
        self.next += needed;
        // SAFETY: the memory is inside a region, which is readable, writable and the engine's alone
        // (contract of `Memory`), and no other call of this function allocates it.
        unsafe { self.platform.zero(self.platform.direct_map().wrapping_add(at as usize), needed as usize) };
        Ok(PhysAddr(at))
    }

    /// Allocates an uninitialised slice of `count` values.
    ///
    /// # Errors
    /// As for [`Early::take`].
    fn slice_of<T>(&mut self, count: usize) -> Result<&'p mut [MaybeUninit<T>], BootError> {
        const { assert!(align_of::<T>() <= FRAME_SIZE as usize) };
        let at = self.take((count * size_of::<T>()) as u64)?;
        let first = self.platform.direct_map().wrapping_add(at.0 as usize).cast();
        // SAFETY: `take` allocated enough memory for `count` values, aligned to a frame, to this
        // call alone, for the machine's lifetime.
        Ok(unsafe { core::slice::from_raw_parts_mut(first, count) })
    }
}

/// Returns the start and the end of the whole frames of a region, in bytes.
///
/// # Errors
/// [`BootError::BadRegion`] if the region wraps around; [`BootError::TooFar`] if it ends beyond 16
/// TiB.
fn whole_frames(region: &Region) -> Result<(u64, u64), BootError> {
    let end = region.base.0.checked_add(region.len).ok_or(BootError::BadRegion(*region))?;
    if end >> FRAME_SHIFT >= u32::MAX as u64 {
        return Err(BootError::TooFar(*region));
    }
    let start = align_up(region.base.0, FRAME_SHIFT).ok_or(BootError::BadRegion(*region))?;
    // Frame 0 is never allocated: many formats use physical address 0 for "nothing".
    let start = start.max(FRAME_SIZE);
    Ok((start, align_down(end, FRAME_SHIFT).max(start)))
}

/// Checks that the regions are ascending and disjoint, and that each is within the limits.
///
/// # Errors
/// [`BootError::BadRegion`] or [`BootError::TooFar`] with the first region that violates this.
fn check_regions(regions: &[Region]) -> Result<(), BootError> {
    let mut last = 0;
    for region in regions {
        let (_, end) = whole_frames(region)?;
        if region.base.0 < last {
            return Err(BootError::BadRegion(*region));
        }
        last = region.base.0 + region.len;
        debug_assert!(end <= last.max(FRAME_SIZE));
    }
    Ok(())
}

/// The part of a memory region that the allocator manages.
#[derive(Clone, Copy)]
struct UsablePart<'r> {
    region: &'r Region,
    /// The first byte of the part.
    start: u64,
    /// The end of the part, in bytes; both are at frame boundaries.
    end: u64,
}

impl UsablePart<'_> {
    /// Returns the number of frames in the part.
    fn frames(&self) -> u64 {
        (self.end - self.start) >> FRAME_SHIFT
    }
}

/// Returns the usable part of each region. The usable part of the largest region begins at `next`,
/// where the boot-time structures end. After a region of another node, a region loses the frames of
/// the pageblock in which that other region ends, or its own first frame if the other region ends
/// with a pageblock, right before it. So no pageblock and no range of free frames lies on two nodes
/// ([`super::node`]).
fn usable_parts<'r>(regions: &'r [Region], largest: &'r Region, next: u64) -> impl Iterator<Item = UsablePart<'r>> {
    const PAGEBLOCK: u64 = FRAME_SIZE << HUGE_ORDER;
    regions.iter().scan((0u64, 0), move |(last, node), region| {
        let (start, end) = whole_frames(region).unwrap_or_default();
        let mut from = if region == largest { next } else { start };
        if *node != region.node {
            from = from.max(last.next_multiple_of(PAGEBLOCK));
            from += if from == *last { FRAME_SIZE } else { 0 };
        }
        if from < end {
            (*last, *node) = (end, region.node);
        }
        Some(UsablePart { region, start: from, end: end.max(from) })
    })
}

impl<'p, P: Platform> Frames<'p, P> {
    /// Takes over the host's memory and builds descriptors, nodes and caches.
    ///
    /// # Errors
    /// [`BootError`], if the memory map or the number of CPUs or nodes is not acceptable. Memory
    /// outside the regions is not touched.
    pub fn boot(platform: &'p P, options: BootOptions) -> Result<Self, BootError> {
        let regions = platform.regions();
        let cpus = platform.count();
        if cpus == 0 || cpus > MAX_CPUS {
            return Err(BootError::BadCpuCount(cpus));
        }
        check_regions(regions)?;
        let of_cpus = (0..cpus).map(|cpu| platform.node(cpu));
        let last = regions.iter().map(|region| region.node).chain(of_cpus).max().unwrap_or(0);
        if last >= MAX_NODES {
            return Err(BootError::BadNode(last));
        }
        let nodes = last + 1;
        let largest = regions.iter().max_by_key(|r| r.len).ok_or(BootError::TooSmall(FRAME_SIZE))?;
        let (start, end) = whole_frames(largest)?;
        let mut early = Early { platform, next: start, end };

        let sections = Self::make_sections(platform, regions, &mut early)?;
        let caches = Self::make_caches(platform, regions, (cpus, nodes), &mut early)?;
        let slice = early.slice_of(nodes)?;
        let usable_parts = || usable_parts(regions, largest, early.next);
        let all: u64 = usable_parts().map(|part| part.frames()).sum();
        let step = if options.watermarks == 0 { all / 64 } else { options.watermarks };
        let mut before = 0;
        let nodes = init_slice(slice, |node| {
            let total: u64 = usable_parts().filter(|part| part.region.node == node).map(|part| part.frames()).sum();
            // Rounds each node's part so that the parts of all nodes add up to the whole.
            let up_to = |whole: u64, frames: u64| (whole as u128 * frames as u128 / (all as u128).max(1)) as u64;
            let part = |whole: u64| up_to(whole, before + total) - up_to(whole, before);
            let (min, step) = (part(options.min_free), part(step));
            let low = min.saturating_add(step);
            before += total;
            Node::new(platform, node, nodes, total, Watermarks { min, low, high: low.saturating_add(step) })
        });
        let (direct, short) = (platform.direct_map(), AtomicBool::new(false));
        let frames = Frames { platform, direct, sections, nodes, caches, short, zero_on_free: options.zero_on_free };
        usable_parts().for_each(|part| frames.free_part(part));
        Ok(frames)
    }

    /// Allocates zeroed descriptors for each section that has memory, and the table from section
    /// number to descriptors, which it returns.
    ///
    /// # Errors
    /// [`BootError::TooSmall`], if the largest region has no room for them.
    fn make_sections(
        platform: &'p P,
        regions: &[Region],
        early: &mut Early<'p, P>,
    ) -> Result<&'p [Option<&'p Section>], BootError> {
        let section_bytes = FRAME_SIZE << SECTION_SHIFT;
        let last = regions.iter().map(|r| r.base.0 + r.len).max().unwrap_or(0);
        let count = last.div_ceil(section_bytes) as usize;
        let at = |pa: PhysAddr| platform.direct_map().wrapping_add(pa.0 as usize);
        let table = early.take((count * size_of::<Option<&Section>>()) as u64)?;
        // SAFETY: `take` allocated zero bytes for `count` references, aligned to a frame, to this
        // call alone and for the machine's lifetime (`'p`); zeros are the `None` of a reference.
        let sections = unsafe { core::slice::from_raw_parts_mut(at(table).cast::<Option<&Section>>(), count) };
        for region in regions {
            let (from, to) = whole_frames(region)?;
            if from == to {
                continue;
            }
            for section in from / section_bytes..=(to - 1) / section_bytes {
                let slot = &mut sections[section as usize];
                if slot.is_none() {
                    let descriptors = early.take(size_of::<Section>() as u64)?;
                    // SAFETY: `take` allocated these zero bytes to this call alone, for the
                    // machine's lifetime. Zeros are valid descriptors and pageblocks, which consist
                    // of atomics and so may be shared.
                    *slot = Some(unsafe { &*at(descriptors).cast::<Section>() });
                }
            }
        }
        Ok(sections)
    }

    /// Allocates an empty frame cache for each per-CPU lruvec ([`super::node`]).
    ///
    /// # Errors
    /// [`BootError::TooSmall`], if the largest region has no room for them.
    fn make_caches(
        platform: &'p P,
        regions: &[Region],
        (cpus, nodes): (usize, usize),
        early: &mut Early<'p, P>,
    ) -> Result<&'p [CacheLine], BootError> {
        let count = if nodes == 1 { cpus } else { cpus + nodes };
        let node_of = |shard: usize| if shard < cpus { platform.node(shard) } else { shard - cpus };
        Ok(init_slice(early.slice_of(count)?, |shard| {
            let node = node_of(shard);
            let shards = (0..count).filter(|other| node_of(*other) == node).count() as u64;
            let frames: u64 = regions.iter().filter(|r| r.node == node).map(|r| r.len >> FRAME_SHIFT).sum();
            // A cache has lists of free blocks (its stacks) and a huge range (contiguous free 2 MiB
            // blocks). The stacks of a node's caches share a 32nd of the node's memory, but each
            // may hold 32 frames in any case, and none more than 2048 (four huge pages). The huge
            // ranges of a node's caches share an eighth of its memory, as Linux's per-CPU lists
            // may. They may hold more than the stacks, because a frame on a stack keeps its free
            // buddy from merging with it, and the frames of a contiguous range leave no such gaps.
            let limit = (frames / (32 * shards)).clamp(32, 2048) as u32;
            CacheLine(SpinLock::new(FrameCache::new(node, limit, frames / (8 * shards))))
        }))
    }

    /// Frees the usable part of a region to its node's buddy allocator. Blocks of a region that the
    /// host zeroed count as zero (INV-10).
    fn free_part(&self, part: UsablePart<'_>) {
        let (node, count) = (&self.nodes[part.region.node], part.frames() as u32);
        let range = (PhysAddr(part.start).pfn(), count);
        node.buddy.lock_irq(self.platform).free_ranges(self, &[range], part.region.zeroed);
    }
}

/// Initialises every element of a slice, by index.
fn init_slice<T>(slice: &mut [MaybeUninit<T>], value: impl FnMut(usize) -> T) -> &[T] {
    let count = slice.len();
    slice.iter_mut().zip((0..count).map(value)).for_each(|(slot, value)| {
        slot.write(value);
    });
    // SAFETY: every element was just written.
    unsafe { &*(core::ptr::from_ref(slice) as *const [T]) }
}
