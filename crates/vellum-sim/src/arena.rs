//! The machine's memory: one reservation of the host's address space, in which the regions are readable and writable
//! and everything else, holes included, traps.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU64};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};
use vellum::addr::{FRAME_SIZE, Pfn, PhysAddr};
use vellum::platform::Region;

/// The reservation starts at a multiple of this, so that what is aligned in the machine is aligned on the host too, and
/// the host can back a huge page by a huge page.
const HOST_ALIGN: usize = 2 << 20;

/// What fills memory that was not promised to be zero.
const JUNK: u8 = 0xa5;

/// How to build an [`Arena`].
#[derive(Clone, Debug)]
pub(crate) struct Ram {
    pub regions: Vec<Region>,
    pub prefault: bool,
    pub reserve_swap: bool,
    pub host_huge_pages: bool,
}

/// The memory of a machine.
#[derive(Debug)]
pub struct Arena {
    mapped: NonNull<u8>,
    mapped_len: usize,
    /// Where physical address 0 would be.
    zero: NonNull<u8>,
    regions: Vec<Region>,
    /// The host's `/proc/self/pagemap`, if it has one.
    pagemap: Option<File>,
}

// SAFETY: the arena owns its mapping, which any thread may use and unmap; the pointers never change.
unsafe impl Send for Arena {}
// SAFETY: `&Arena` gives out only atomics, and addresses whose use is the business of whoever dereferences them.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) fn new(ram: &Ram) -> io::Result<Arena> {
        for pair in ram.regions.windows(2) {
            assert!(pair[0].base.0 + pair[0].len <= pair[1].base.0, "regions overlap or are out of order: {pair:?}");
        }
        let end = ram.regions.last().map_or(0, |r| r.base.0 + r.len);
        let mapped_len = usize::try_from(end).expect("memory beyond the host's addresses") + 2 * HOST_ALIGN;
        let mut flags = MapFlags::PRIVATE;
        if !ram.reserve_swap {
            flags |= MapFlags::NORESERVE;
        }
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), mapped_len, ProtFlags::empty(), flags)? };
        let mapped = NonNull::new(mapped.cast::<u8>()).expect("the host never maps page 0");
        let skip = mapped.as_ptr().align_offset(HOST_ALIGN);
        // SAFETY: the mapping is at least `HOST_ALIGN` longer than the machine's memory, so this stays inside.
        let zero = unsafe { mapped.add(skip) };
        // From here on dropping the arena unmaps it, whichever step fails.
        let pages_are_frames = rustix::param::page_size() as u64 == FRAME_SIZE;
        let pagemap = if pages_are_frames { File::open("/proc/self/pagemap").ok() } else { None };
        let arena = Arena { mapped, mapped_len, zero, regions: ram.regions.clone(), pagemap };
        for region in &ram.regions {
            arena.populate(region, ram)?;
        }
        Ok(arena)
    }

    fn populate(&self, region: &Region, ram: &Ram) -> io::Result<()> {
        let start = region.base.0 & !(FRAME_SIZE - 1);
        let end = (region.base.0 + region.len).next_multiple_of(FRAME_SIZE);
        let len = (end - start) as usize;
        if len == 0 {
            return Ok(());
        }
        let at = self.at(PhysAddr(start));
        // SAFETY: the pages lie inside the arena's own reservation, and nobody has a pointer to them yet.
        unsafe { mprotect(at.cast(), len, MprotectFlags::READ | MprotectFlags::WRITE)? };
        if ram.host_huge_pages {
            // SAFETY: advice on the size of the host's pages changes no contents. A host without huge pages refuses,
            // and then small ones do as well.
            let _ = unsafe { madvise(at.cast(), len, Advice::LinuxHugepage) };
        }
        if !region.zeroed {
            // SAFETY: the pages were just made writable, and nobody else has them yet.
            unsafe { ptr::write_bytes(at, JUNK, len) };
        } else if ram.prefault {
            // SAFETY: populating changes no contents.
            if unsafe { madvise(at.cast(), len, Advice::LinuxPopulateWrite) }.is_err() {
                for page in (0..len).step_by(FRAME_SIZE as usize) {
                    // SAFETY: inside the region, as above; a host older than Linux 5.14 needs each page touched.
                    unsafe { at.add(page).write_volatile(0) };
                }
            }
        }
        Ok(())
    }

    fn at(&self, pa: PhysAddr) -> *mut u8 {
        self.zero.as_ptr().wrapping_add(pa.0 as usize)
    }

    /// Where physical address 0 appears.
    #[inline]
    pub fn direct_map(&self) -> *mut u8 {
        self.zero.as_ptr()
    }

    /// The regions.
    #[inline]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Number of frames from physical address 0 to the end of the last region.
    pub fn frames(&self) -> usize {
        self.regions.last().map_or(0, |r| (r.base.0 + r.len).div_ceil(FRAME_SIZE) as usize)
    }

    /// Whether all of `len` bytes at `pa` are memory.
    #[inline]
    pub fn holds(&self, pa: PhysAddr, len: u64) -> bool {
        self.regions.iter().any(|r| r.base.0 <= pa.0 && pa.0.saturating_add(len) <= r.base.0 + r.len)
    }

    /// Returns for each frame from `pfn` on whether the host has ever supplied memory for it, for as
    /// many frames as `room` has 8 bytes for. A frame without is all zeros, and to read it would
    /// make the host supply memory.
    ///
    /// # Errors
    /// If the host does not say: it is no Linux, or has no `/proc`.
    pub fn supplied<'a>(&self, pfn: Pfn, room: &'a mut [u8]) -> io::Result<impl Iterator<Item = bool> + 'a> {
        /// The bits of an entry of `/proc/PID/pagemap`: the page is in memory, or in swap space.
        const SUPPLIED: u64 = 3 << 62;
        let pagemap = self.pagemap.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        pagemap.read_exact_at(room, self.at(pfn.addr()) as u64 / FRAME_SIZE * 8)?;
        Ok(room.as_chunks::<8>().0.iter().map(|entry| u64::from_ne_bytes(*entry) & SUPPLIED != 0))
    }

    /// Fills memory with zeros. What the host has supplied no memory for is zeros already, and stays
    /// without.
    ///
    /// # Safety
    /// These bytes lie in the arena, and no other thread uses them meanwhile.
    pub(crate) unsafe fn zero(&self, at: *mut u8, bytes: usize) {
        const FRAME: usize = FRAME_SIZE as usize;
        /// The most frames whose state is asked for at once.
        const MOST: usize = 16;
        let mut room = [0; 8 * MOST];
        let frames = bytes / FRAME;
        if frames > 1 && frames <= MOST && bytes.is_multiple_of(FRAME) && (at as usize).is_multiple_of(FRAME) {
            let pfn = PhysAddr(at as u64 - self.zero.as_ptr() as u64).pfn();
            if let Ok(supplied) = self.supplied(pfn, &mut room[..8 * frames]) {
                for (n, _) in supplied.enumerate().filter(|(_, supplied)| *supplied) {
                    // SAFETY: by contract, and it is one of `frames`.
                    unsafe { at.add(n * FRAME).write_bytes(0, FRAME) };
                }
                return;
            }
        }
        // SAFETY: by contract.
        unsafe { at.write_bytes(0, bytes) }
    }

    /// The aligned word at `pa`, as the machine's own hardware reaches it.
    ///
    /// # Panics
    /// If there is no memory: a bus error.
    #[inline]
    pub fn word(&self, pa: PhysAddr) -> &AtomicU64 {
        assert!(pa.0.is_multiple_of(8) && self.holds(pa, 8), "bus error: no aligned word of memory at {pa:?}");
        // SAFETY: aligned, inside a region, which stays mapped for as long as `self`. Hardware reads and writes atomically.
        // So does the engine in tables; other frames it writes plainly only while it knows that no CPU has a translation,
        // and if that is wrong then the strict machine exists to say so.
        unsafe { AtomicU64::from_ptr(self.at(pa).cast()) }
    }

    /// So many words from `pa` on, as [`Arena::word`].
    ///
    /// # Panics
    /// If there is no memory: a bus error.
    #[inline]
    pub fn words(&self, pa: PhysAddr, count: usize) -> &[AtomicU64] {
        assert!(
            pa.0.is_multiple_of(8) && self.holds(pa, 8 * count as u64),
            "bus error: no {count} words of memory at {pa:?}"
        );
        // SAFETY: as in `word`, for all of them.
        unsafe { core::slice::from_raw_parts(self.at(pa).cast(), count) }
    }

    /// The byte at `pa`, as the machine's own hardware reaches it.
    ///
    /// # Panics
    /// If there is no memory: a bus error.
    #[inline]
    pub fn byte(&self, pa: PhysAddr) -> &AtomicU8 {
        assert!(self.holds(pa, 1), "bus error: no memory at {pa:?}");
        // SAFETY: as in `word`.
        unsafe { AtomicU8::from_ptr(self.at(pa)) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping and nothing but; every borrow of it ended before `self` could be dropped.
        // Failure would mean that it was not mapped: nothing is left to do then.
        let _ = unsafe { munmap(self.mapped.as_ptr().cast(), self.mapped_len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    fn region(base: u64, len: u64, zeroed: bool) -> Region {
        Region { base: PhysAddr(base), len, zeroed, node: 0 }
    }

    #[test]
    fn regions_are_memory_and_holes_are_not() {
        let regions = vec![region(0x1000, 0x3000, true), region(0x8000, 0x1000, false)];
        let ram = Ram { regions, prefault: true, reserve_swap: false, host_huge_pages: false };
        let arena = Arena::new(&ram).unwrap();
        assert_eq!(arena.frames(), 9);
        assert!(arena.holds(PhysAddr(0x1000), 0x3000));
        assert!(!arena.holds(PhysAddr(0x1000), 0x3001));
        assert!(!arena.holds(PhysAddr(0), 1) && !arena.holds(PhysAddr(0x5000), 1));
        assert_eq!(arena.word(PhysAddr(0x3ff8)).load(Ordering::Relaxed), 0);
        assert_eq!(arena.byte(PhysAddr(0x8fff)).load(Ordering::Relaxed), JUNK);
        arena.word(PhysAddr(0x2000)).store(0x0102_0304, Ordering::Relaxed);
        assert_eq!(arena.byte(PhysAddr(0x2000)).load(Ordering::Relaxed), 4);
        assert_eq!(arena.direct_map().align_offset(HOST_ALIGN), 0);
    }

    #[test]
    fn memory_that_was_never_touched_is_zeroed_without_being_supplied() {
        let ram = Ram {
            regions: vec![region(0, 16 << 12, true)],
            prefault: false,
            reserve_swap: false,
            host_huge_pages: false,
        };
        let arena = Arena::new(&ram).unwrap();
        let mut room = [0; 16 * 8];
        // A host that does not say which frames it has supplied has all of them zeroed.
        let mut supplied = || Some(arena.supplied(Pfn(0), &mut room).ok()?.collect::<Vec<_>>());
        let Some(fresh) = supplied() else { return };
        assert_eq!(fresh, [false; 16]);
        arena.word(PhysAddr(0x5ff8)).store(7, Ordering::Relaxed);
        // SAFETY: it is all of the arena, and nobody else knows of it.
        unsafe { arena.zero(arena.direct_map(), 16 << 12) };
        assert_eq!(supplied().map(|all| all.iter().filter(|supplied| **supplied).count()), Some(1));
        assert_eq!(arena.word(PhysAddr(0x5ff8)).load(Ordering::Relaxed), 0);
    }

    #[test]
    #[should_panic(expected = "bus error")]
    fn a_hole_is_a_bus_error() {
        let ram =
            Ram { regions: vec![region(0, 0x1000, true)], prefault: false, reserve_swap: true, host_huge_pages: true };
        Arena::new(&ram).unwrap().byte(PhysAddr(0x1000));
    }
}
