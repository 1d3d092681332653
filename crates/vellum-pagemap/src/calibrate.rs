//! Probes how this kernel treats empty page tables, on a mapping of this process.

use std::ptr;
use std::time::Duration;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::{Pace, Pagemap, ScanError, Timing};

/// The kernel's behaviour, as probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The method by which empty page tables can be found one by one.
    pub detection: Detection,
    /// True if `MADV_DONTNEED` of all pages of a page table also frees the page table
    /// (`CONFIG_PT_RECLAIM`). `None`: unknown, as the kernel has no `PAGEMAP_SCAN`.
    pub frees_tables: Option<bool>,
}

/// The method by which empty last-level page tables are found one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detection {
    /// Not at all; only their number is known.
    #[default]
    None,
    /// By [`Pagemap::tables`], which is exact on this kernel: it reports every page table, empty
    /// ones too, and nothing where there is no page table.
    Exact,
    /// By the time that a scan of an empty range takes ([`Pagemap::tables_by_time`]), which is
    /// wrong now and then.
    ByTime(Timing),
}

impl Kernel {
    /// Probes the running kernel on a mapping of this process.
    ///
    /// # Errors
    /// There is no `/proc`, or no memory.
    pub fn probe(pace: &mut Pace<'_>) -> Result<Self, ScanError> {
        let mut pagemap = Pagemap::own()?;
        if !pagemap.scans() {
            return Ok(Kernel { detection: Detection::None, frees_tables: None });
        }
        let table = pagemap.page_size() * pagemap.page_size() / 8;
        let vma = ScratchMapping::new(4 * table as usize)?;
        let first = (vma.start as u64).next_multiple_of(table);
        let last_page = first + table - pagemap.page_size();
        let mut tables_in = |range| {
            let mut tables = Vec::new();
            pagemap.tables(range, pace, |table| tables.push(table)).map(|()| tables)
        };
        // The probe keeps the last page of the first page table mapped, so that the kernel can't
        // free the table.
        vma.touch(last_page);
        let exact = tables_in((first, first + table / 2))? == [first]
            && tables_in((first + table, first + 2 * table))?.is_empty();
        vma.discard(first, table);
        if exact {
            let frees_tables = Some(tables_in((first, first + table))?.is_empty());
            return Ok(Kernel { detection: Detection::Exact, frees_tables });
        }
        Kernel::by_time()
    }

    /// Probes as if the kernel did not report empty page tables, so that they are found by time.
    ///
    /// # Errors
    /// As for [`Kernel::probe`].
    pub fn by_time() -> Result<Self, ScanError> {
        let Some(timing) = Timing::calibrate()? else {
            return Ok(Kernel { detection: Detection::None, frees_tables: None });
        };
        let mut pagemap = Pagemap::own()?;
        let table = pagemap.page_size() * pagemap.page_size() / 8;
        let vma = ScratchMapping::new(4 * table as usize)?;
        let first = (vma.start as u64).next_multiple_of(table);
        vma.touch(first);
        vma.discard(first, table);
        let mut left = false;
        pagemap.tables_by_time((first, first + table), &timing, &mut Pace::new(Duration::MAX), |_| left = true)?;
        Ok(Kernel { detection: Detection::ByTime(timing), frees_tables: Some(!left) })
    }
}

/// A private anonymous mapping of this process, without huge pages.
pub(crate) struct ScratchMapping {
    start: *mut u8,
    len: usize,
}

impl ScratchMapping {
    pub(crate) fn new(len: usize) -> Result<Self, ScanError> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address, so no mapping is replaced.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?.cast();
        let own = ScratchMapping { start, len };
        // SAFETY: the mapping is this value's own, and the advice changes no contents. A kernel
        // without huge pages refuses it, and doesn't need it.
        let _ = unsafe { madvise(own.start.cast(), own.len, Advice::LinuxNoHugepage) };
        Ok(own)
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn touch(&self, at: u64) {
        let offset = at as usize - self.start as usize;
        assert!(offset < self.len);
        // SAFETY: the byte at the offset lies in the mapping, which is writable and to which no
        // other pointer exists.
        unsafe { self.start.add(offset).write_volatile(1) };
    }
}

impl ScratchMapping {
    fn discard(&self, at: u64, len: u64) {
        let offset = at as usize - self.start as usize;
        assert!(offset + len as usize <= self.len);
        // SAFETY: the offset lies in the mapping, to which no other pointer exists. The advice
        // clears bytes that nothing reads.
        let _ = unsafe { madvise(self.start.add(offset).cast(), len as usize, Advice::LinuxDontNeed) };
    }
}

impl Drop for ScratchMapping {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` mapped; no reference to it exists.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
