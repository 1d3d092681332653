//! Maps a region of memory, and times the system calls on it.

mod caches;
mod file;
mod folios;
mod parts;
mod smaps;

use std::ffi::c_void;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::null_mut;

pub use caches::{EVICTING, LINE, evict_caches, warm_memory};
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, MsyncFlags, ProtFlags, madvise, mmap_anonymous, mprotect, msync, munmap,
};

use crate::Skip;
use crate::child::neighbour::Place;
use crate::time::{Stopwatch, Time};
use crate::workload::case::{Case, PAGE, TABLE_SPAN};
use crate::workload::data::Page;

/// Private anonymous memory, or a mapping of a file, aligned to 2 MiB, between PROT_NONE guard
/// areas.
///
/// The guard areas keep the kernel from merging the region's VMA with a neighbour. So an operation
/// on the region is one on a whole VMA, and the VMA's figures in `smaps` are the region's.
pub struct Region {
    reserved: *mut c_void,
    reserved_len: usize,
    start: *mut c_void,
    len: usize,
    /// The file that is mapped. It is open until the region is dropped, so that unmapping it frees
    /// no folio.
    file: Option<OwnedFd>,
    /// True once the region between the guard areas is unmapped.
    unmapped: bool,
}

/// The result of touching a region.
#[derive(Clone, Copy, Debug)]
pub struct Touched {
    /// The time to touch every page.
    pub time: Time,
    /// Share of the region, 0 to 1, that is not mapped as the case asks.
    pub fallback: f64,
}

impl Region {
    /// Maps `bytes`, a multiple of 2 MiB, of anonymous memory.
    ///
    /// # Errors
    /// `mmap` failed.
    pub fn map(bytes: u64) -> Result<Region, Skip> {
        let region = Region::reserve(bytes)?;
        // SAFETY: replaces pages inside the reservation, to which no other pointer exists.
        let mapped = unsafe {
            mmap_anonymous(
                region.start,
                region.len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            )
        };
        mapped.map(|_| region).map_err(|error| Skip::system("mmap", error))
    }

    /// Reserves the addresses of a region of `bytes` and of its guard areas.
    fn reserve(bytes: u64) -> Result<Region, Skip> {
        let (align, len) = (TABLE_SPAN as usize, bytes as usize);
        let reserved_len = len + 2 * align;
        // SAFETY: the kernel chooses the address, so no mapping is replaced.
        let reserved = unsafe {
            mmap_anonymous(null_mut(), reserved_len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        let reserved = reserved.map_err(|error| Skip::system("mmap", error))?;
        // Leave at least a page, and at most 2 MiB, as the guard area in front. At least as much of
        // the reservation then remains behind the region.
        let start = reserved.wrapping_byte_add(PAGE as usize);
        let start = start.wrapping_byte_add(start.align_offset(align));
        Ok(Region { reserved, reserved_len, start, len, file: None, unmapped: false })
    }

    /// Returns the first address.
    pub fn start(&self) -> u64 {
        self.start as u64
    }

    /// Writes a byte in each page, folio by folio in the order of the case's arm, makes the
    /// mappings as the case asks, and checks them. After each folio it touches the folio at the
    /// same offset of each neighbour, whose time is in the result.
    ///
    /// # Errors
    /// A system call failed.
    pub fn touch(&self, case: &Case, neighbours: &[Place]) -> Result<Touched, Skip> {
        self.touch_at(case, neighbours, |at| at)
    }

    /// Touches as [`touch`](Self::touch) does, in a region whose byte `at` lies at `offset(at)`.
    ///
    /// # Errors
    /// A system call failed.
    pub fn touch_at(&self, case: &Case, neighbours: &[Place], offset: impl Fn(u64) -> u64) -> Result<Touched, Skip> {
        let (order, folio) = (case.arm.order(case.folios()), case.folio_bytes() as usize);
        let (faults, watch) = (minor_faults(), Stopwatch::start());
        for n in order {
            self.write(offset(n * folio as u64) as usize, folio, PAGE);
            for neighbour in neighbours {
                neighbour.touch(n * folio as u64)?;
            }
        }
        let (time, faults) = (watch.time(), minor_faults() - faults);
        // The kernel counts the neighbours' faults here, too: one for each folio.
        let faults = faults.saturating_sub(neighbours.len() as u64 * case.folios());
        let fallback = self.shape(case, faults)?;
        self.finish_touch(case, Touched { time, fallback })
    }

    /// Makes the mappings of a touched region as the case asks. `faults` is the number of page
    /// faults that the touch took. Returns the share, 0 to 1, that is mapped otherwise.
    ///
    /// # Errors
    /// A system call failed.
    pub fn shape(&self, case: &Case, faults: u64) -> Result<f64, Skip> {
        let small = small_share(case, faults);
        if case.folio_kib != 2048 {
            return Ok(small);
        }
        if !case.huge {
            self.split().map_err(|error| Skip::system("mprotect", error))?;
            // The PTEs are newer than in other cases, in which the touch follows them.
            self.write(0, self.len.min(EVICTING as usize), LINE);
        }
        let huge = self.huge_bytes().map_err(|error| Skip::system("/proc/self/smaps", error))?;
        let wrong = if case.huge { case.bytes.saturating_sub(huge) } else { huge };
        Ok(small.max(wrong as f64 / case.bytes as f64))
    }

    /// Writes each page with the contents that `page` returns for its number.
    pub fn fill(&self, page: impl Fn(u64) -> Page) {
        for number in 0..self.len as u64 / PAGE {
            // SAFETY: the page is in the region, which is mapped and writable. The pointer is
            // aligned, as the region is.
            unsafe { self.page(number).write_volatile(page(number)) };
        }
    }

    /// Reads a byte every `step` bytes, a multiple of a page, in ascending order. Returns the time.
    pub fn read(&self, step: u64) -> Time {
        let watch = Stopwatch::start();
        for number in (0..self.len as u64 / PAGE).step_by((step / PAGE) as usize) {
            // SAFETY: the page is in the region, which is mapped and readable, and any byte is a
            // valid value.
            unsafe { self.page(number).cast::<u8>().read_volatile() };
        }
        watch.time()
    }

    /// Calls `madvise(MADV_FREE)` on the region.
    ///
    /// # Errors
    /// The call failed.
    pub fn free(&self) -> Result<(), Skip> {
        // SAFETY: the range is the region, to whose contents no reference exists.
        let result = unsafe { madvise(self.start, self.len, Advice::LinuxFree) };
        result.map_err(|error| Skip::system("madvise", error))
    }

    /// Writes the first word of a page.
    pub fn set_word(&self, number: u64, word: u64) {
        // SAFETY: the page is in the region, which is mapped and writable, and its first word is
        // aligned.
        unsafe { self.page(number).cast::<u64>().write_volatile(word) };
    }

    /// Returns the first word of a page.
    pub fn word(&self, number: u64) -> u64 {
        // SAFETY: the page is in the region, which is mapped and readable. Its first word is
        // aligned, and any bits are a valid word.
        unsafe { self.page(number).cast::<u64>().read_volatile() }
    }

    /// Returns the contents of a page.
    pub fn contents(&self, number: u64) -> Page {
        // SAFETY: the page is in the region, which is mapped and readable. The pointer is aligned,
        // and any words are a valid page.
        unsafe { self.page(number).read_volatile() }
    }

    fn page(&self, number: u64) -> *mut Page {
        assert!(number < self.len as u64 / PAGE);
        self.start.wrapping_byte_add((number * PAGE) as usize).cast()
    }

    /// Calls `madvise(MADV_PAGEOUT)` on the region. Returns the time.
    ///
    /// # Errors
    /// The call failed.
    pub fn page_out(&self) -> Result<Time, Skip> {
        self.page_out_range(0..self.len as u64)
    }

    /// Calls `madvise(MADV_PAGEOUT)` on the region until no page is in memory, eight times at most,
    /// as one call does not remove all pages. Returns the time, and the number of pages that
    /// stayed.
    ///
    /// # Errors
    /// A call failed.
    pub fn page_out_all(&self) -> Result<(Time, u64), Skip> {
        let (mut time, mut left) = (Time::default(), 0);
        for _ in 0..8 {
            time += self.page_out()?;
            left = self.present()?;
            if left == 0 {
                break;
            }
        }
        Ok((time, left))
    }

    /// Calls `madvise(MADV_PAGEOUT)` on a part of the region. Returns the time.
    ///
    /// # Errors
    /// The call failed.
    pub fn page_out_range(&self, part: Range<u64>) -> Result<Time, Skip> {
        assert!(part.start <= part.end && part.end <= self.len as u64);
        let (start, len) = (self.start.wrapping_byte_add(part.start as usize), (part.end - part.start) as usize);
        let watch = Stopwatch::start();
        // SAFETY: the range is in the region, and the advice changes no contents.
        let result = unsafe { madvise(start, len, Advice::LinuxPageOut) };
        let time = watch.time();
        result.map(|()| time).map_err(|error| Skip::system("madvise", error))
    }

    /// Writes the region's dirty pages to its file's disk (`msync`). Returns the time.
    ///
    /// # Errors
    /// The call failed.
    pub fn sync(&self) -> Result<Time, Skip> {
        let watch = Stopwatch::start();
        // SAFETY: the range is the region, and the call changes no contents.
        let result = unsafe { msync(self.start, self.len, MsyncFlags::SYNC) };
        let time = watch.time();
        result.map(|()| time).map_err(|error| Skip::system("msync", error))
    }

    /// Makes forks leave out the region (`MADV_DONTFORK`).
    ///
    /// # Errors
    /// The call failed.
    pub fn leave_out_of_forks(&self) -> Result<(), Skip> {
        // SAFETY: the advice changes no contents.
        let result = unsafe { madvise(self.start, self.len, Advice::LinuxDontFork) };
        result.map_err(|error| Skip::system("madvise", error))
    }

    /// Returns the number of its pages in memory.
    ///
    /// # Errors
    /// `mincore` failed.
    pub fn present(&self) -> Result<u64, Skip> {
        let mut pages = vec![0u8; self.len / PAGE as usize];
        // SAFETY: the kernel writes a byte for each page of the region to the array, which is as
        // long.
        if unsafe { libc::mincore(self.start, self.len, pages.as_mut_ptr()) } != 0 {
            return Err(Skip::system("mincore", std::io::Error::last_os_error()));
        }
        Ok(pages.iter().filter(|&&page| page & 1 == 1).count() as u64)
    }

    /// Writes a byte every `step` bytes in `len` bytes from `offset`.
    pub fn write(&self, offset: usize, len: usize, step: u64) {
        assert!(offset + len <= self.len);
        for at in (offset..offset + len).step_by(step as usize) {
            // SAFETY: the address is in the region, which is mapped and writable until a method
            // that takes `self` ends it. Volatile, as the value is never read.
            unsafe { self.start.byte_add(at).cast::<u8>().write_volatile(1) };
        }
    }

    /// Splits the huge PTE of each folio by changing one page's protection, which needs a PTE for
    /// each page. Then restores the protection, so that the PTEs and the VMA are uniform again. The
    /// folio stays large.
    fn split(&self) -> Result<(), Errno> {
        for offset in (0..self.len).step_by(TABLE_SPAN as usize) {
            let page = self.start.wrapping_byte_add(offset);
            for protection in [MprotectFlags::READ, MprotectFlags::READ | MprotectFlags::WRITE] {
                // SAFETY: one page of the region, to which no reference exists.
                unsafe { mprotect(page, PAGE as usize, protection)? };
            }
            // Write to the page: if the kernel left its PTE read-only, the fault makes it writable
            // like its neighbours.
            self.write(offset, 1, PAGE);
        }
        Ok(())
    }

    /// Unmaps the region. Returns the time.
    ///
    /// # Errors
    /// `munmap` failed.
    pub fn unmap(mut self) -> Result<Time, Skip> {
        let watch = Stopwatch::start();
        self.unmap_in_place()?;
        Ok(watch.time())
    }

    /// Unmaps the region. After this the caller may only drop the value.
    ///
    /// # Errors
    /// `munmap` failed.
    pub fn unmap_in_place(&mut self) -> Result<(), Skip> {
        // SAFETY: the region is this value's own, and no reference to it exists.
        unsafe { munmap(self.start, self.len) }.map_err(|error| Skip::system("munmap", error))?;
        // Other mappings may use the addresses now: `drop` must not unmap them.
        self.unmapped = true;
        Ok(())
    }

    /// Calls `madvise(MADV_DONTNEED)` on the region. Returns the time.
    ///
    /// # Errors
    /// The call failed.
    pub fn discard(&self) -> Result<Time, Skip> {
        let watch = Stopwatch::start();
        self.discard_range(0, self.len)?;
        Ok(watch.time())
    }

    /// Calls `madvise(MADV_DONTNEED)` on `len` bytes from `offset`.
    ///
    /// # Errors
    /// The call failed.
    pub fn discard_range(&self, offset: usize, len: usize) -> Result<(), Skip> {
        assert!(offset + len <= self.len);
        // SAFETY: the range is in the region, whose contents are not used.
        let result = unsafe { madvise(self.start.wrapping_byte_add(offset), len, Advice::LinuxDontNeed) };
        result.map_err(|error| Skip::system("madvise", error))
    }

    /// Unmaps `len` bytes from `offset`, and reserves their addresses again.
    ///
    /// # Errors
    /// `mmap` failed.
    pub fn unmap_range(&self, offset: usize, len: usize) -> Result<(), Skip> {
        assert!(offset + len <= self.len);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: replaces pages of the region, to whose contents no reference exists.
        let result = unsafe { mmap_anonymous(self.start.wrapping_byte_add(offset), len, ProtFlags::empty(), flags) };
        result.map(drop).map_err(|error| Skip::system("mmap", error))
    }

    /// Makes `len` bytes from `offset` lazyfree (`MADV_FREE`), and has them reclaimed
    /// (`MADV_PAGEOUT`).
    ///
    /// # Errors
    /// A call failed.
    pub fn reclaim_range(&self, offset: usize, len: usize) -> Result<(), Skip> {
        assert!(offset + len <= self.len);
        for advice in [Advice::LinuxFree, Advice::LinuxPageOut] {
            // SAFETY: the range is in the region, whose contents are not used.
            let result = unsafe { madvise(self.start.wrapping_byte_add(offset), len, advice) };
            result.map_err(|error| Skip::system("madvise", error))?;
        }
        Ok(())
    }

    /// Makes the region read-only, as its last operation. Returns the time.
    ///
    /// # Errors
    /// `mprotect` failed.
    pub fn protect(self) -> Result<Time, Skip> {
        let watch = Stopwatch::start();
        // SAFETY: the region is this value's own, and no reference to it exists.
        let result = unsafe { mprotect(self.start, self.len, MprotectFlags::READ) };
        let time = watch.time();
        result.map(|()| time).map_err(|error| Skip::system("mprotect", error))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let front = self.start as usize - self.reserved as usize;
        let behind = self.start.wrapping_byte_add(self.len);
        let parts = if self.unmapped {
            [(self.reserved, front), (behind, self.reserved_len - front - self.len)]
        } else {
            [(self.reserved, front), (self.start, self.reserved_len - front)]
        };
        for (start, len) in parts {
            // SAFETY: the reservation is this value's own, and no reference to it exists. The parts
            // leave out the region if it was unmapped, as its addresses may have other mappings
            // now.
            let _ = unsafe { munmap(start, len) };
        }
    }
}

/// Returns the number of page faults of this thread so far that needed no I/O.
pub fn minor_faults() -> u64 {
    // SAFETY: all zeroes is a valid value of this plain C structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live structure of the type that the call fills in.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_minflt as u64
}

/// Returns the share of a region that got 4 KiB pages instead of the case's folios. It is computed
/// from the number of page faults: one for each folio, or one for each of its pages.
///
/// The kernel also counts fallbacks (`stats/anon_fault_fallback`), but for all processes together:
/// on a busy machine the count includes those of other processes.
fn small_share(case: &Case, faults: u64) -> f64 {
    let surplus = faults.saturating_sub(case.folios());
    let largest = case.pages() - case.folios();
    if largest == 0 { 0.0 } else { (surplus as f64 / largest as f64).min(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case = Case::of(4 << 20, 64);

    #[test]
    fn the_number_of_faults_gives_the_share_of_small_folios() {
        assert_eq!(small_share(&CASE, 64), 0.0);
        assert_eq!(small_share(&CASE, 1024), 1.0);
        assert_eq!(small_share(&CASE, 64 + 32 * 15), 0.5, "half of the folios took 16 faults each");
        assert_eq!(small_share(&Case { folio_kib: 4, ..CASE }, 1024), 0.0);
    }

    #[test]
    fn all_operations_work_on_a_touched_region() {
        let case = Case { folio_kib: 4, ..CASE };
        let touched = || {
            let region = Region::map(case.bytes).unwrap();
            region.touch(&case, &[]).unwrap();
            region
        };
        touched().unmap().unwrap();
        touched().protect().unwrap();
        let region = touched();
        assert!(region.discard().is_ok());
        region.write(0, region.len, PAGE);
        assert_eq!(region.start as usize % TABLE_SPAN as usize, 0);
        region.split().unwrap();
        assert_eq!(region.huge_bytes().unwrap(), 0);
    }
}
