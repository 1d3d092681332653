//! The machine's physical memory: one reservation of the host's address space. The memory regions
//! are readable and writable; everything else, holes included, traps.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU64};

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};
use vellum::addr::{FRAME_SIZE, Pfn, PhysAddr};
use vellum::platform::Region;

/// Alignment of the reservation: what is aligned in the machine is aligned on the host too, and the
/// host can back a huge page by a huge page.
const HOST_ALIGN: usize = 2 << 20;

/// The byte that fills memory which the platform does not report as zeroed.
const JUNK: u8 = 0xa5;

/// Options of an [`Arena`].
#[derive(Clone, Debug)]
pub(crate) struct Ram {
    pub regions: Vec<Region>,
    pub prefault: bool,
    pub reserve_swap: bool,
    pub host_huge_pages: bool,
}

/// The physical memory of a machine.
#[derive(Debug)]
pub struct Arena {
    mapped: NonNull<u8>,
    mapped_len: usize,
    /// The host address of physical address 0.
    zero: NonNull<u8>,
    regions: Vec<Region>,
    /// The host's `/proc/self/pagemap`, or `None` where the host has none or its pages are not 4
    /// KiB.
    pagemap: Option<File>,
}

// SAFETY: the arena owns its mapping, which any thread may use and unmap; the pointers never
// change.
unsafe impl Send for Arena {}
// SAFETY: `&Arena` gives out atomics, and raw addresses whose use is the caller's responsibility.
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
        // SAFETY: the mapping is at least `HOST_ALIGN` longer than the machine's memory, so this
        // stays inside.
        let zero = unsafe { mapped.add(skip) };
        // From here on, dropping the arena unmaps the reservation, so no later error leaks it.
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
        // SAFETY: the pages lie inside the arena's own reservation, and no pointer to them exists
        // yet.
        unsafe { mprotect(at.cast(), len, MprotectFlags::READ | MprotectFlags::WRITE)? };
        if ram.host_huge_pages {
            // SAFETY: advice on the size of the host's pages changes no contents. A host without
            // huge pages refuses, and then small pages serve as well.
            let _ = unsafe { madvise(at.cast(), len, Advice::LinuxHugepage) };
        }
        if !region.zeroed {
            // SAFETY: the pages were just made writable, and no other code has a pointer to them
            // yet.
            unsafe { ptr::write_bytes(at, JUNK, len) };
        } else if ram.prefault {
            // SAFETY: populating changes no contents.
            if unsafe { madvise(at.cast(), len, Advice::LinuxPopulateWrite) }.is_err() {
                for page in (0..len).step_by(FRAME_SIZE as usize) {
                    // SAFETY: inside the region, as above; a host older than Linux 5.14 needs each
                    // page touched.
                    unsafe { at.add(page).write_volatile(0) };
                }
            }
        }
        Ok(())
    }

    fn at(&self, pa: PhysAddr) -> *mut u8 {
        self.zero.as_ptr().wrapping_add(pa.0 as usize)
    }

    /// Returns the host address of physical address 0.
    #[inline]
    pub fn direct_map(&self) -> *mut u8 {
        self.zero.as_ptr()
    }

    /// Returns the memory regions, in ascending order.
    #[inline]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Returns the number of frames from physical address 0 to the end of the last region.
    pub fn frames(&self) -> usize {
        self.regions.last().map_or(0, |r| (r.base.0 + r.len).div_ceil(FRAME_SIZE) as usize)
    }

    /// Returns whether all `len` bytes at `pa` are memory.
    #[inline]
    pub fn holds(&self, pa: PhysAddr, len: u64) -> bool {
        self.regions.iter().any(|r| r.base.0 <= pa.0 && pa.0.saturating_add(len) <= r.base.0 + r.len)
    }

    /// Returns, for each frame from `pfn` on, whether the host has ever allocated memory for it.
    /// The iterator covers as many frames as `room` has 8 bytes for. A frame without host memory is
    /// all zeros; reading it would make the host allocate.
    ///
    /// # Errors
    /// If the host does not report this: it is not Linux, or has no `/proc`.
    pub fn supplied<'a>(&self, pfn: Pfn, room: &'a mut [u8]) -> io::Result<impl Iterator<Item = bool> + 'a> {
        /// Bits of an entry of `/proc/PID/pagemap`: the page is in memory, or in swap space.
        const SUPPLIED: u64 = 3 << 62;
        let pagemap = self.pagemap.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        pagemap.read_exact_at(room, self.at(pfn.addr()) as u64 / FRAME_SIZE * 8)?;
        Ok(room.as_chunks::<8>().0.iter().map(|entry| u64::from_ne_bytes(*entry) & SUPPLIED != 0))
    }

    /// Zeroes memory. Frames for which the host has allocated no memory are zero already and stay
    /// unallocated.
    ///
    /// # Safety
    /// The bytes lie in the arena, and no other thread uses them meanwhile.
    pub(crate) unsafe fn zero(&self, at: *mut u8, bytes: usize) {
        const FRAME: usize = FRAME_SIZE as usize;
        /// The most frames whose state is read at once.
        const MOST: usize = 16;
        let mut room = [0; 8 * MOST];
        let frames = bytes / FRAME;
        if frames > 1 && frames <= MOST && bytes.is_multiple_of(FRAME) && (at as usize).is_multiple_of(FRAME) {
            let pfn = PhysAddr(at as u64 - self.zero.as_ptr() as u64).pfn();
            if let Ok(supplied) = self.supplied(pfn, &mut room[..8 * frames]) {
                for (n, _) in supplied.enumerate().filter(|(_, supplied)| *supplied) {
                    // SAFETY: the caller's contract; the frame is one of `frames`.
                    unsafe { at.add(n * FRAME).write_bytes(0, FRAME) };
                }
                return;
            }
        }
        // SAFETY: the caller's contract.
        unsafe { at.write_bytes(0, bytes) }
    }

    /// Returns the aligned word at `pa`, as the machine's hardware accesses it.
    ///
    /// # Panics
    /// If there is no memory at `pa`: a bus error.
    #[inline]
    pub fn word(&self, pa: PhysAddr) -> &AtomicU64 {
        assert!(pa.0.is_multiple_of(8) && self.holds(pa, 8), "bus error: no aligned word of memory at {pa:?}");
        // SAFETY: the word is aligned and inside a region, which stays mapped for as long as
        // `self`. Hardware accesses it atomically, and so does the engine in page tables. Other
        // frames the engine writes plainly, but only while no CPU has a translation of them; the
        // strict machine checks that.
        unsafe { AtomicU64::from_ptr(self.at(pa).cast()) }
    }

    /// Returns `count` words from `pa` on; see [`Arena::word`].
    ///
    /// # Panics
    /// If there is no memory at one of them: a bus error.
    #[inline]
    pub fn words(&self, pa: PhysAddr, count: usize) -> &[AtomicU64] {
        assert!(
            pa.0.is_multiple_of(8) && self.holds(pa, 8 * count as u64),
            "bus error: no {count} words of memory at {pa:?}"
        );
        // SAFETY: the words are aligned and inside a region, which stays mapped for as long as
        // `self`; [`Arena::word`] says why atomic access is sound.
        unsafe { core::slice::from_raw_parts(self.at(pa).cast(), count) }
    }

    /// Returns the byte at `pa`, as the machine's hardware accesses it.
    ///
    /// # Panics
    /// If there is no memory at `pa`: a bus error.
    #[inline]
    pub fn byte(&self, pa: PhysAddr) -> &AtomicU8 {
        assert!(self.holds(pa, 1), "bus error: no memory at {pa:?}");
        // SAFETY: the byte is inside a region, which stays mapped for as long as `self`;
        // [`Arena::word`] says why atomic access is sound.
        unsafe { AtomicU8::from_ptr(self.at(pa)) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping and nothing else; every borrow of it ended before
        // `self` could be dropped. `munmap` fails only if the range was not mapped, and then
        // nothing is left to do.
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
    fn only_regions_are_memory() {
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
    fn zeroing_untouched_memory_allocates_no_host_memory() {
        let ram = Ram {
            regions: vec![region(0, 16 << 12, true)],
            prefault: false,
            reserve_swap: false,
            host_huge_pages: false,
        };
        let arena = Arena::new(&ram).unwrap();
        let mut room = [0; 16 * 8];
        // A host that does not report which frames it has allocated has all of them zeroed.
        let mut supplied = || Some(arena.supplied(Pfn(0), &mut room).ok()?.collect::<Vec<_>>());
        let Some(fresh) = supplied() else { return };
        assert_eq!(fresh, [false; 16]);
        arena.word(PhysAddr(0x5ff8)).store(7, Ordering::Relaxed);
        // SAFETY: the range is all of the arena, and this test alone uses it.
        unsafe { arena.zero(arena.direct_map(), 16 << 12) };
        assert_eq!(supplied().map(|all| all.iter().filter(|supplied| **supplied).count()), Some(1));
        assert_eq!(arena.word(PhysAddr(0x5ff8)).load(Ordering::Relaxed), 0);
    }

    #[test]
    #[should_panic(expected = "bus error")]
    fn an_access_to_a_hole_is_a_bus_error() {
        let ram =
            Ram { regions: vec![region(0, 0x1000, true)], prefault: false, reserve_swap: true, host_huge_pages: true };
        Arena::new(&ram).unwrap().byte(PhysAddr(0x1000));
    }
}
