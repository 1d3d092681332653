//! From a memory map to an allocator.
//!
//! The descriptors need memory before there is anything to allocate from, so they are carved off the low end of the
//! largest region. A machine with holes pays for descriptors by section (32 MiB), not for the holes between.

use core::sync::atomic::AtomicBool;

use super::{Buddy, CacheLine, Frames, MAX_ORDER, SECTION_SHIFT, Section, Watermarks, percpu::Cache};
use crate::addr::{FRAME_SHIFT, FRAME_SIZE, Pfn, PhysAddr, align_down, align_up};
use crate::platform::{MAX_CPUS, Platform, Region};
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
    /// `min_free_kbytes`).
    pub kept: u64,
    /// Frames between one watermark and the next, of [`Watermarks`](super::Watermarks). 0: a 64th of all frames.
    pub watermarks: u64,
}

/// Memory for what lives as long as the machine, off the low end of one region.
struct Early {
    next: u64,
    end: u64,
}

impl Early {
    /// `bytes` zero bytes, aligned to a frame.
    fn take<P: Platform>(&mut self, platform: &P, bytes: u64) -> Result<PhysAddr, BootError> {
        let needed = align_up(bytes, FRAME_SHIFT).ok_or(BootError::TooSmall(bytes))?;
        if self.end - self.next < needed {
            return Err(BootError::TooSmall(bytes));
        }
        let at = self.next;
        self.next += needed;
        // SAFETY: inside a region, which is readable, writable and the engine's alone (contract of `Memory`), and handed
        // out once, here.
        unsafe { platform.zero(platform.direct_map().wrapping_add(at as usize), needed as usize) };
        Ok(PhysAddr(at))
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
        let largest = regions.iter().max_by_key(|r| r.len).ok_or(BootError::TooSmall(FRAME_SIZE))?;
        let (start, end) = whole_frames(largest)?;
        let mut early = Early { next: start, end };

        let sections = Self::describe(platform, regions, &mut early)?;
        let total_frames: u64 = regions.iter().map(|r| r.len >> FRAME_SHIFT).sum();
        let caches = Self::caches(platform, total_frames, cpus, &mut early)?;
        let mut frames = Frames {
            platform,
            direct: platform.direct_map(),
            sections,
            buddy: SpinLock::new(Buddy::new(options.kept)),
            caches,
            total: 0,
            marks: Watermarks { min: options.kept, low: 0, high: 0 },
            short: AtomicBool::new(false),
            zero_on_free: options.zero_on_free,
        };
        for region in regions {
            let (mut from, to) = whole_frames(region)?;
            if region == largest {
                from = early.next;
            }
            frames.total += (to - from) >> FRAME_SHIFT;
            frames.release(from, to, region.zeroed);
        }
        let step = if options.watermarks == 0 { frames.total / 64 } else { options.watermarks };
        frames.marks.low = options.kept.saturating_add(step);
        frames.marks.high = frames.marks.low.saturating_add(step);
        Ok(frames)
    }

    /// Zeroed descriptors for each section that has memory, and the table that finds them.
    fn describe(
        platform: &'p P,
        regions: &[Region],
        early: &mut Early,
    ) -> Result<&'p [Option<&'p Section>], BootError> {
        let section_bytes = FRAME_SIZE << SECTION_SHIFT;
        let last = regions.iter().map(|r| r.base.0 + r.len).max().unwrap_or(0);
        let count = last.div_ceil(section_bytes) as usize;
        let at = |pa: PhysAddr| platform.direct_map().wrapping_add(pa.0 as usize);
        let table = early.take(platform, (count * size_of::<Option<&Section>>()) as u64)?;
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
                    let descriptors = early.take(platform, size_of::<Section>() as u64)?;
                    // SAFETY: as above; zeros are valid descriptors, which are made of atomics and so may be shared.
                    *slot = Some(unsafe { &*at(descriptors).cast::<Section>() });
                }
            }
        }
        Ok(sections)
    }

    fn caches(platform: &'p P, frames: u64, cpus: usize, early: &mut Early) -> Result<&'p [CacheLine], BootError> {
        // A small part of memory in all, at least something, and never more than a few huge pages a CPU; and an eighth of
        // memory in reserves, as Linux's per-CPU lists may have, since what is in one piece keeps nothing else from being.
        let limit = (frames / (32 * cpus as u64)).clamp(32, 2048) as u32;
        let reserve = frames / (8 * cpus as u64);
        let at = early.take(platform, (cpus * size_of::<CacheLine>()) as u64)?;
        let first = platform.direct_map().wrapping_add(at.0 as usize).cast::<CacheLine>();
        for cpu in 0..cpus {
            // SAFETY: inside what `take` gave, aligned to a frame and so to a `CacheLine`; nobody has a reference yet.
            unsafe { first.add(cpu).write(CacheLine(SpinLock::new(Cache::new(limit, reserve)))) };
        }
        // SAFETY: all `cpus` elements were just written, and live as long as the machine.
        Ok(unsafe { core::slice::from_raw_parts(first, cpus) })
    }

    /// Hand a region's frames to the buddy allocator.
    fn release(&self, from: u64, to: u64, zero: bool) {
        let mut buddy = self.buddy.lock_irq(self.platform);
        let mut at = from >> FRAME_SHIFT;
        let to = to >> FRAME_SHIFT;
        while at < to {
            let order = at.trailing_zeros().min((to - at).ilog2()).min(MAX_ORDER as u32) as u8;
            buddy.free(self, Pfn(at as u32), order, zero);
            at += 1 << order;
        }
    }
}
