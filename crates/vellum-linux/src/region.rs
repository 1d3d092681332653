//! A region of memory: map, touch, take away; each step timed.

use std::ffi::c_void;
use std::ptr::null_mut;

use procfs::process::Process;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};

use crate::Skip;
use crate::cpu::now_ns;
use crate::workload::case::{Case, PAGE, TABLE_SPAN};
use crate::workload::data::Page;

/// Private anonymous memory, aligned to 2 MiB, with inaccessible memory on both sides.
///
/// The sides keep the kernel from joining it with a neighbour: an operation on it is then one on a
/// whole VMA, and what `smaps` says of the VMA it says of the region.
pub struct Region {
    reserved: *mut c_void,
    reserved_len: usize,
    start: *mut c_void,
    len: usize,
    /// Between the sides is nothing of ours any more.
    gone: bool,
}

/// What touching found out.
#[derive(Clone, Copy, Debug)]
pub struct Touched {
    /// Nanoseconds of it.
    pub ns: u64,
    /// Share of the region that is not mapped the way the case says, 0 to 1.
    pub fallback: f64,
}

impl Region {
    /// Maps `bytes`, a multiple of 2 MiB.
    pub fn map(bytes: u64) -> Result<Region, Skip> {
        let (align, len) = (TABLE_SPAN as usize, bytes as usize);
        let reserved_len = len + 2 * align;
        // SAFETY: no address is asked for, so that nothing that exists is replaced.
        let reserved = unsafe {
            mmap_anonymous(null_mut(), reserved_len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
        };
        let reserved = reserved.map_err(|error| Skip::system("mmap", error))?;
        // At least a page in front; at most 2 MiB, which leaves as much or more behind.
        let start = reserved.wrapping_byte_add(PAGE as usize);
        let start = start.wrapping_byte_add(start.align_offset(align));
        let region = Region { reserved, reserved_len, start, len, gone: false };
        // SAFETY: replaces pages in the middle of the reservation above, which nobody else knows
        // of.
        let mapped = unsafe {
            mmap_anonymous(
                start,
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            )
        };
        mapped.map(|_| region).map_err(|error| Skip::system("mmap", error))
    }

    /// Writes one byte in each page, makes the mappings what the case says, and checks that they
    /// are.
    pub fn touch(&self, case: &Case) -> Result<Touched, Skip> {
        let (faults, start) = (minor_faults(), now_ns());
        self.write(0, self.len, PAGE);
        let (ns, faults) = (now_ns() - start, minor_faults() - faults);
        let fallback = self.shape(case, faults)?;
        Ok(Touched { ns, fallback })
    }

    /// Makes the mappings of a region that took so many `faults` what the case says; the share that
    /// is not, 0 to 1.
    pub fn shape(&self, case: &Case, faults: u64) -> Result<f64, Skip> {
        let small = small_share(case, faults);
        if case.folio_kib != 2048 {
            return Ok(small);
        }
        if !case.huge {
            self.split().map_err(|error| Skip::system("mprotect", error))?;
        }
        let huge = self.huge_bytes().map_err(|error| Skip::system("/proc/self/smaps", error))?;
        let wrong = if case.huge { case.bytes.saturating_sub(huge) } else { huge };
        Ok(small.max(wrong as f64 / case.bytes as f64))
    }

    /// Writes whole pages.
    pub fn fill(&self, page: impl Fn(u64) -> Page) {
        for number in 0..self.len as u64 / PAGE {
            // SAFETY: a page of the region, as in `write`; both are aligned.
            unsafe { self.page(number).write_volatile(page(number)) };
        }
    }

    /// Reads one byte in each page; nanoseconds.
    pub fn read(&self) -> u64 {
        let start = now_ns();
        for number in 0..self.len as u64 / PAGE {
            // SAFETY: a page of the region, as in `write`; and any byte is one.
            unsafe { self.page(number).cast::<u8>().read_volatile() };
        }
        now_ns() - start
    }

    /// `madvise(MADV_FREE)` of the whole region.
    pub fn free(&self) -> Result<(), Skip> {
        // SAFETY: lies in the region, of whose contents nobody has a reference.
        let result = unsafe { madvise(self.start, self.len, Advice::LinuxFree) };
        result.map_err(|error| Skip::system("madvise", error))
    }

    /// Writes the first word of a page.
    pub fn set_word(&self, number: u64, word: u64) {
        // SAFETY: a page of the region, as in `write`; it is aligned.
        unsafe { self.page(number).cast::<u64>().write_volatile(word) };
    }

    /// The first word of a page.
    pub fn word(&self, number: u64) -> u64 {
        // SAFETY: as above, and any word is one.
        unsafe { self.page(number).cast::<u64>().read_volatile() }
    }

    /// What is in a page.
    pub fn contents(&self, number: u64) -> Page {
        // SAFETY: as in `fill`, and any words are a page.
        unsafe { self.page(number).read_volatile() }
    }

    fn page(&self, number: u64) -> *mut Page {
        assert!(number < self.len as u64 / PAGE);
        self.start.wrapping_byte_add((number * PAGE) as usize).cast()
    }

    /// `madvise(MADV_PAGEOUT)` of the whole region; nanoseconds.
    pub fn page_out(&self) -> Result<u64, Skip> {
        let start = now_ns();
        // SAFETY: the advice changes no contents.
        let result = unsafe { madvise(self.start, self.len, Advice::LinuxPageOut) };
        let ns = now_ns() - start;
        result.map(|()| ns).map_err(|error| Skip::system("madvise", error))
    }

    /// Pages of it that are in memory.
    pub fn present(&self) -> Result<u64, Skip> {
        let mut pages = vec![0u8; self.len / PAGE as usize];
        // SAFETY: a byte a page of the region is written to the array, which has so many.
        if unsafe { libc::mincore(self.start, self.len, pages.as_mut_ptr()) } != 0 {
            return Err(Skip::system("mincore", std::io::Error::last_os_error()));
        }
        Ok(pages.iter().filter(|&&page| page & 1 == 1).count() as u64)
    }

    /// Writes one byte every `step` bytes in `len` bytes from `offset`.
    pub fn write(&self, offset: usize, len: usize, step: u64) {
        assert!(offset + len <= self.len);
        for at in (offset..offset + len).step_by(step as usize) {
            // SAFETY: in the region, which is mapped and writable until a method that takes `self`
            // ends it. Volatile, since nobody ever reads it.
            unsafe { self.start.byte_add(at).cast::<u8>().write_volatile(1) };
        }
    }

    /// Maps each huge folio by page-table entries: a change of one page's protection needs an entry
    /// for each page. It is taken back at once, so that entries and VMA are as if nothing had been.
    /// The folio stays large.
    fn split(&self) -> Result<(), Errno> {
        for offset in (0..self.len).step_by(TABLE_SPAN as usize) {
            let page = self.start.wrapping_byte_add(offset);
            for protection in [MprotectFlags::READ, MprotectFlags::READ | MprotectFlags::WRITE] {
                // SAFETY: one page of the region, to which no reference exists.
                unsafe { mprotect(page, PAGE as usize, protection)? };
            }
            // If the kernel left the entry read-only, this makes it like its neighbours.
            self.write(offset, 1, PAGE);
        }
        Ok(())
    }

    /// Bytes that upper-level entries map, as `smaps` tells.
    fn huge_bytes(&self) -> procfs::ProcResult<u64> {
        let (start, end) = (self.start as u64, self.start as u64 + self.len as u64);
        let vmas = Process::myself()?.smaps()?;
        let inside = vmas.iter().filter(|vma| vma.address.0 >= start && vma.address.1 <= end);
        Ok(inside.filter_map(|vma| vma.extension.map.get("AnonHugePages")).sum())
    }

    /// `munmap` of the whole region; nanoseconds.
    pub fn unmap(mut self) -> Result<u64, Skip> {
        let start = now_ns();
        self.take_away()?;
        Ok(now_ns() - start)
    }

    /// `munmap` of the whole region, which is its last operation: nothing but dropping it is left
    /// to do.
    pub fn take_away(&mut self) -> Result<(), Skip> {
        // SAFETY: the region is this value's own, and no reference to it exists.
        unsafe { munmap(self.start, self.len) }.map_err(|error| Skip::system("munmap", error))?;
        // The hole is anybody's now, and `drop` must not touch it again.
        self.gone = true;
        Ok(())
    }

    /// `madvise(MADV_DONTNEED)` of the whole region; nanoseconds.
    pub fn discard(&self) -> Result<u64, Skip> {
        let start = now_ns();
        self.discard_part(0, self.len)?;
        Ok(now_ns() - start)
    }

    /// `madvise(MADV_DONTNEED)` of `len` bytes from `offset`.
    pub fn discard_part(&self, offset: usize, len: usize) -> Result<(), Skip> {
        assert!(offset + len <= self.len);
        // SAFETY: lies in the region, whose contents nobody reads.
        let result = unsafe { madvise(self.start.wrapping_byte_add(offset), len, Advice::LinuxDontNeed) };
        result.map_err(|error| Skip::system("madvise", error))
    }

    /// `mprotect` of the whole region to read-only; nanoseconds. It is the region's last operation:
    /// it can no longer be written.
    pub fn protect(self) -> Result<u64, Skip> {
        let start = now_ns();
        // SAFETY: the region is this value's own, and no reference to it exists.
        let result = unsafe { mprotect(self.start, self.len, MprotectFlags::READ) };
        let ns = now_ns() - start;
        result.map(|()| ns).map_err(|error| Skip::system("mprotect", error))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let front = self.start as usize - self.reserved as usize;
        let behind = self.start.wrapping_byte_add(self.len);
        let parts = if self.gone {
            [(self.reserved, front), (behind, self.reserved_len - front - self.len)]
        } else {
            [(self.reserved, front), (self.start, self.reserved_len - front)]
        };
        for (start, len) in parts {
            // SAFETY: the reservation is this value's own, what is gone of it is in neither part,
            // and no reference to it exists.
            let _ = unsafe { munmap(start, len) };
        }
    }
}

/// Faults of this thread that needed no device.
pub fn minor_faults() -> u64 {
    // SAFETY: all zeroes is a value of this plain C structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live structure of the type that the call fills in.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_minflt as u64
}

/// Share of a region that got 4 KiB pages in place of the case's folios, told by the number of
/// faults: one a folio, or one for each of its pages.
///
/// The kernel also counts fallbacks (`stats/anon_fault_fallback`), but for all processes together:
/// on a busy machine it would accuse the wrong one.
fn small_share(case: &Case, faults: u64) -> f64 {
    let surplus = faults.saturating_sub(case.folios());
    let largest = case.pages() - case.folios();
    if largest == 0 { 0.0 } else { (surplus as f64 / largest as f64).min(1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: Case = Case { bytes: 4 << 20, folio_kib: 64, huge: false };

    #[test]
    fn faults_tell_the_share_of_small_pages() {
        assert_eq!(small_share(&CASE, 64), 0.0);
        assert_eq!(small_share(&CASE, 1024), 1.0);
        assert_eq!(small_share(&CASE, 64 + 32 * 15), 0.5, "half of the folios took 16 faults each");
        assert_eq!(small_share(&Case { folio_kib: 4, ..CASE }, 1024), 0.0);
    }

    #[test]
    fn every_operation_works_on_a_touched_region() {
        let case = Case { folio_kib: 4, ..CASE };
        let touched = || {
            let region = Region::map(case.bytes).unwrap();
            region.touch(&case).unwrap();
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
