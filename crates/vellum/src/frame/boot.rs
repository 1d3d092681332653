//! From a memory map to an allocator.
//!
//! The descriptors need memory before there is anything to allocate from, so they are carved off the low end of the
//! largest region. A machine with holes pays for descriptors by section (32 MiB), not for the holes between.

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicBool;

use super::{CacheLine, Frames, MAX_ORDER, Node, SECTION_SHIFT, Section, Watermarks, percpu::FrameCache};
use crate::addr::{FRAME_SHIFT, FRAME_SIZE, Pfn, PhysAddr, align_down, align_up};
use crate::platform::{MAX_CPUS, MAX_NODES, Platform, Region};
use crate::sync::SpinLock;

/// Why a machine can't be booted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootError {
    /// Regions overlap, are out of order, or wrap around: the offending one.
    BadRegion(Region),
    /// A region reaches beyond 16 TiB.
    TooFar(Region),
    /// The largest region can't hold the descriptors and leave something to manage: bytes needed.
    TooSmall(u64),
    /// The host reports no CPU, or more than [`MAX_CPUS`].
    BadCpuCount(usize),
    /// A region or a CPU is said to be on a node that is not below [`MAX_NODES`].
    BadNode(usize),
}

impl core::fmt::Display for BootError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            BootError::BadRegion(r) => {
                write!(f, "memory region {:?}+{:#x} overlaps, is out of order or wraps", r.base, r.len)
            }
            BootError::TooFar(r) => write!(f, "memory region {:?}+{:#x} reaches beyond 16 TiB", r.base, r.len),
            BootError::TooSmall(n) => write!(f, "no memory region can hold {n} bytes of descriptors and more"),
            BootError::BadCpuCount(n) => write!(f, "{n} CPUs: must be 1 to {MAX_CPUS}"),
            BootError::BadNode(n) => write!(f, "node {n}: must be below {MAX_NODES}"),
        }
    }
}

impl core::error::Error for BootError {}

/// What can be chosen at boot.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootOptions {
    /// Zero memory when it is freed rather than when it is used next.
    pub zero_on_free: bool,
    /// Frames that only [`Frames::alloc_kept`] gives out: what the host itself needs when users have taken all the rest (Linux:
    /// `min_free_kbytes`). Each node keeps its part.
    pub kept: u64,
    /// Frames between one watermark and the next, of [`Watermarks`]; of each node its part. 0: a 64th of all frames.
    pub watermarks: u64,
}

/// Memory for what lives as long as the machine, off the low end of one region.
struct Early<'p, P> {
    platform: &'p P,
    next: u64,
    end: u64,
}

impl<'p, P: Platform> Early<'p, P> {
    /// `bytes` zero bytes, aligned to a frame.
    fn take(&mut self, bytes: u64) -> Result<PhysAddr, BootError> {
        let needed = align_up(bytes, FRAME_SHIFT).ok_or(BootError::TooSmall(bytes))?;
        if self.end - self.next < needed {
            return Err(BootError::TooSmall(bytes));
        }
        let at = self.next;
        self.next += needed;
        // SAFETY: inside a region, which is readable, writable and the engine's alone (contract of `Memory`), and handed
        // out once, here.
        unsafe { self.platform.zero(self.platform.direct_map().wrapping_add(at as usize), needed as usize) };
        Ok(PhysAddr(at))
    }

    /// Room for so many values.
    fn room<T>(&mut self, count: usize) -> Result<&'p mut [MaybeUninit<T>], BootError> {
        const { assert!(align_of::<T>() <= FRAME_SIZE as usize) };
        let at = self.take((count * size_of::<T>()) as u64)?;
        let first = self.platform.direct_map().wrapping_add(at.0 as usize).cast();
        // SAFETY: `take` gave it, large enough and aligned to a frame, to nobody else and for as long as the machine lives.
        Ok(unsafe { core::slice::from_raw_parts_mut(first, count) })
    }
}

/// The whole frames of a region, as first frame and one past the last.
fn whole_frames(region: &Region) -> Result<(u64, u64), BootError> {
    let end = region.base.0.checked_add(region.len).ok_or(BootError::BadRegion(*region))?;
    if end >> FRAME_SHIFT >= u32::MAX as u64 {
        return Err(BootError::TooFar(*region));
    }
    let start = align_up(region.base.0, FRAME_SHIFT).ok_or(BootError::BadRegion(*region))?;
    // Frame 0 is never given out: physical address 0 stands for "nothing" in too many formats.
    let start = start.max(FRAME_SIZE);
    Ok((start, align_down(end, FRAME_SHIFT).max(start)))
}

fn check(regions: &[Region]) -> Result<(), BootError> {
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

/// What of each region is to be given out: of the largest, what is behind the engine's own; and of one that touches another node's, all
/// but the first frame (see [`super::node`]).
fn usable<'r>(regions: &'r [Region], largest: &'r Region, next: u64) -> impl Iterator<Item = (&'r Region, u64, u64)> {
    regions.iter().scan((0, 0), move |(last, node), region| {
        let (start, end) = whole_frames(region).unwrap_or_default();
        let touches = *last == start && *node != region.node;
        let from = if region == largest { next } else { start + if touches { FRAME_SIZE } else { 0 } };
        if start < end {
            (*last, *node) = (end, region.node);
        }
        Some((region, from, end.max(from)))
    })
}

impl<'p, P: Platform> Frames<'p, P> {
    /// Take over the host's memory.
    ///
    /// # Errors
    /// See [`BootError`]; nothing outside the regions was touched.
    pub fn boot(platform: &'p P, options: BootOptions) -> Result<Self, BootError> {
        let regions = platform.regions();
        let cpus = platform.count();
        if cpus == 0 || cpus > MAX_CPUS {
            return Err(BootError::BadCpuCount(cpus));
        }
        check(regions)?;
        let of_cpus = (0..cpus).map(|cpu| platform.node(cpu));
        let last = regions.iter().map(|region| region.node).chain(of_cpus).max().unwrap_or(0);
        if last >= MAX_NODES {
            return Err(BootError::BadNode(last));
        }
        let nodes = last + 1;
        let largest = regions.iter().max_by_key(|r| r.len).ok_or(BootError::TooSmall(FRAME_SIZE))?;
        let (start, end) = whole_frames(largest)?;
        let mut early = Early { platform, next: start, end };

        let sections = Self::describe(platform, regions, &mut early)?;
        let caches = Self::caches(platform, regions, (cpus, nodes), &mut early)?;
        let room = early.room(nodes)?;
        let usable = || usable(regions, largest, early.next);
        let frames_of = |(_, from, to): (&Region, u64, u64)| (to - from) >> FRAME_SHIFT;
        let all: u64 = usable().map(frames_of).sum();
        let step = if options.watermarks == 0 { all / 64 } else { options.watermarks };
        let mut before = 0;
        let nodes = fill(room, |node| {
            let total: u64 = usable().filter(|(region, ..)| region.node == node).map(frames_of).sum();
            // Such that the parts of all are the whole.
            let up_to = |whole: u64, frames: u64| (whole as u128 * frames as u128 / (all as u128).max(1)) as u64;
            let part = |whole: u64| up_to(whole, before + total) - up_to(whole, before);
            let (min, step) = (part(options.kept), part(step));
            let low = min.saturating_add(step);
            before += total;
            Node::new(platform, node, nodes, total, Watermarks { min, low, high: low.saturating_add(step) })
        });
        let (direct, short) = (platform.direct_map(), AtomicBool::new(false));
        let frames = Frames { platform, direct, sections, nodes, caches, short, zero_on_free: options.zero_on_free };
        usable().for_each(|(region, from, to)| frames.release(region, from, to));
        Ok(frames)
    }

    /// Zeroed descriptors for each section that has memory, and the table that finds them.
    fn describe(
        platform: &'p P,
        regions: &[Region],
        early: &mut Early<'p, P>,
    ) -> Result<&'p [Option<&'p Section>], BootError> {
        let section_bytes = FRAME_SIZE << SECTION_SHIFT;
        let last = regions.iter().map(|r| r.base.0 + r.len).max().unwrap_or(0);
        let count = last.div_ceil(section_bytes) as usize;
        let at = |pa: PhysAddr| platform.direct_map().wrapping_add(pa.0 as usize);
        let table = early.take((count * size_of::<Option<&Section>>()) as u64)?;
        // SAFETY: `take` gave this many zero bytes, aligned, to nobody else, for as long as the machine lives (`'p`); zeros are
        // the `None` of a reference.
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
                    // SAFETY: as above; zeros are valid descriptors, which are made of atomics and so may be shared.
                    *slot = Some(unsafe { &*at(descriptors).cast::<Section>() });
                }
            }
        }
        Ok(sections)
    }

    /// One for each shard.
    fn caches(
        platform: &'p P,
        regions: &[Region],
        (cpus, nodes): (usize, usize),
        early: &mut Early<'p, P>,
    ) -> Result<&'p [CacheLine], BootError> {
        let count = if nodes == 1 { cpus } else { cpus + nodes };
        let node_of = |shard: usize| if shard < cpus { platform.node(shard) } else { shard - cpus };
        Ok(fill(early.room(count)?, |shard| {
            let node = node_of(shard);
            let shards = (0..count).filter(|other| node_of(*other) == node).count() as u64;
            let frames: u64 = regions.iter().filter(|r| r.node == node).map(|r| r.len >> FRAME_SHIFT).sum();
            // A small part of memory in all, at least something, and never more than a few huge pages a CPU; and an eighth of
            // memory in reserves, as Linux's per-CPU lists may have, since what is in one piece keeps nothing else from being.
            let limit = (frames / (32 * shards)).clamp(32, 2048) as u32;
            CacheLine(SpinLock::new(FrameCache::new(node, limit, frames / (8 * shards))))
        }))
    }

    /// Hand a region's frames to its node's buddy allocator.
    fn release(&self, region: &Region, from: u64, to: u64) {
        let mut buddy = self.nodes[region.node].buddy.lock_irq(self.platform);
        let mut at = from >> FRAME_SHIFT;
        let to = to >> FRAME_SHIFT;
        while at < to {
            let order = at.trailing_zeros().min((to - at).ilog2()).min(MAX_ORDER as u32) as u8;
            buddy.free(self, Pfn(at as u32), order, region.zeroed);
            at += 1 << order;
        }
    }
}

/// Values for all of it.
fn fill<T>(room: &mut [MaybeUninit<T>], value: impl FnMut(usize) -> T) -> &[T] {
    let count = room.len();
    room.iter_mut().zip((0..count).map(value)).for_each(|(slot, value)| {
        slot.write(value);
    });
    // SAFETY: each was just written.
    unsafe { &*(core::ptr::from_ref(room) as *const [T]) }
}
