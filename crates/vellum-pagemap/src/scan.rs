//! Scans a process's pages and page tables in bounded steps.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use procfs::process::Process;
use rustix::io::Errno;

use crate::ioctl::Regions;
use crate::pace::{Interrupted, Pace};
use crate::{Categories, Query, Region};

/// Regions that one `PAGEMAP_SCAN` may return.
const REGIONS: usize = 2048;
/// Entries that one read of `pagemap` returns where there is no `PAGEMAP_SCAN`: those of one page
/// table, for which Linux takes the mmap lock once.
const ENTRIES: u64 = 512;

/// A process's open `/proc/PID/pagemap`.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    page: u64,
    scans: bool,
    regions: Regions,
}

/// The reason why a process's memory can't be scanned.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// A read or an ioctl failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The caller asked the scan to stop.
    #[error("interrupted")]
    Interrupted,
    /// This kernel has no `PAGEMAP_SCAN`.
    #[error("this kernel has no PAGEMAP_SCAN (Linux has it from 6.7 on)")]
    NoScan,
}

impl From<Interrupted> for ScanError {
    fn from(_: Interrupted) -> Self {
        ScanError::Interrupted
    }
}

impl From<Errno> for ScanError {
    fn from(errno: Errno) -> Self {
        ScanError::Io(errno.into())
    }
}

impl Pagemap {
    /// Opens the pagemap of `process`.
    ///
    /// # Errors
    /// The process is another user's, or gone. The caller needs the right to read its memory as a
    /// debugger does (`ptrace(2)`).
    pub fn open(process: &Process) -> Result<Self, procfs::ProcError> {
        Ok(Self::new(process.open_relative("pagemap")?))
    }

    /// Opens the pagemap of this process.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub fn own() -> io::Result<Self> {
        Ok(Self::new(File::open("/proc/self/pagemap")?))
    }

    fn new(file: File) -> Self {
        let (page, mut regions) = (rustix::param::page_size() as u64, Regions::new(REGIONS));
        // Try the ioctl once: a kernel that has it accepts any range.
        let scans = regions.fill(&file, (0, page), &Query::nonempty(Categories::PRESENT), 1).is_ok();
        Pagemap { file, page, scans, regions }
    }

    /// Returns whether `PAGEMAP_SCAN` is used. Otherwise all entries are read, which is slow where
    /// much is reserved, and [`Categories::HUGE`] and [`Categories::ZERO`] are never returned.
    pub fn scans(&self) -> bool {
        self.scans
    }

    /// Reads all entries even if the kernel has `PAGEMAP_SCAN`.
    pub fn only_read(self) -> Self {
        Pagemap { scans: false, ..self }
    }

    /// Returns the file descriptor's number in this process.
    pub(crate) fn number(&self) -> u64 {
        self.file.as_raw_fd() as u64
    }

    /// Returns the page size in bytes.
    pub fn page_size(&self) -> u64 {
        self.page
    }

    /// Calls `each` with the pages of `range` that match `query`, in ascending order. Consecutive
    /// pages with equal categories form one region. Pages that change during the scan are reported
    /// as they were at some moment of it.
    ///
    /// # Errors
    /// [`ScanError`]; what was reported until then is correct.
    pub fn scan(
        &mut self,
        range: (u64, u64),
        query: &Query,
        pace: &mut Pace<'_>,
        mut each: impl FnMut(Region),
    ) -> Result<(), ScanError> {
        let mut last: Option<Region> = None;
        let mut join = |region: Region| match &mut last {
            Some(last) if last.end == region.start && last.categories == region.categories => last.end = region.end,
            _ => {
                if let Some(last) = last.replace(region) {
                    each(last);
                }
            }
        };
        match self.scans {
            true => self.scan_by_ioctl(range, query, pace, &mut join)?,
            false => self.scan_by_reading(range, query, pace, &mut join)?,
        }
        if let Some(last) = last {
            each(last);
        }
        Ok(())
    }

    fn scan_by_ioctl(
        &mut self,
        (start, end): (u64, u64),
        query: &Query,
        pace: &mut Pace<'_>,
        each: &mut impl FnMut(Region),
    ) -> Result<(), ScanError> {
        let mut at = start;
        while at < end {
            let span = pace.span();
            // End the step at a multiple of the span, so that no page table is walked in two steps.
            let to = end.min((at / span + 1).saturating_mul(span));
            let limit = pace.pages();
            let count = pace.step(|| self.regions.fill(&self.file, (at, to), query, limit))??;
            let mut pages = 0;
            let mut reached = at;
            for region in self.regions.get(count, (at, to))? {
                pages += region.len() / self.page;
                reached = region.end;
                each(region);
            }
            // With a full vector or page limit, `walk_end` is not reliable: Linux 6.18 and 7.3 may
            // return an earlier address, and regions would be reported twice. So the scan continues
            // at the end of the last region.
            at = if count == self.regions.capacity() || pages >= limit { reached } else { to };
        }
        Ok(())
    }

    /// Implements [`Pagemap::scan`] without `PAGEMAP_SCAN`: reads the 64-bit pagemap entry of each
    /// page.
    fn scan_by_reading(
        &self,
        (start, end): (u64, u64),
        query: &Query,
        pace: &mut Pace<'_>,
        each: &mut impl FnMut(Region),
    ) -> Result<(), ScanError> {
        let mut entries = [0u8; ENTRIES as usize * 8];
        let mut at = start;
        while at < end {
            let count = (end - at).div_ceil(self.page).min(ENTRIES - at / self.page % ENTRIES);
            let bytes = &mut entries[..count as usize * 8];
            let read = pace.step(|| self.file.read_at(bytes, at / self.page * 8))??;
            if read == 0 {
                // The end of the file: the range continues beyond the last user address, or the
                // process is gone.
                return Ok(());
            }
            for entry in bytes[..read].as_chunks().0 {
                let categories = categories_of(u64::from_ne_bytes(*entry));
                if query.matches(categories) {
                    each(Region { start: at, end: at + self.page, categories: categories & query.returned });
                }
                at += self.page;
            }
        }
        Ok(())
    }

    /// Scans `range` with one ioctl, without a [`Pace`], until a page matches. Returns the number
    /// of regions found: 0 or 1.
    pub(crate) fn scan_once(&mut self, range: (u64, u64), query: &Query) -> Result<usize, Errno> {
        self.regions.fill(&self.file, range, query, 1)
    }

    /// Calls `each` with the start of each last-level page table in `range`, empty ones too, in
    /// ascending order. Huge PTEs, which stand where a page table would be, are reported as well.
    ///
    /// `PAGEMAP_SCAN` has no such query, but its implementation permits one. A query for nothing
    /// but [`Categories::WRITTEN`] makes Linux check only the uffd-wp bit of a PTE, so a none PTE
    /// counts as written; where there is no page table, Linux reports nothing. Each step asks for
    /// one page and continues after the range of that page's table. An existing table costs one
    /// step, a missing one next to nothing. Only a table all of whose PTEs are uffd-wp is not
    /// reported;
    /// [`Pagemap::scan`] shows that it exists. [`crate::Kernel`] probes whether the running kernel
    /// behaves so (seen on 6.18 and 7.2; by the sources from 6.7 on, and no longer from 7.3).
    ///
    /// # Errors
    /// [`ScanError`].
    pub fn tables(
        &mut self,
        (start, end): (u64, u64),
        pace: &mut Pace<'_>,
        mut each: impl FnMut(u64),
    ) -> Result<(), ScanError> {
        if !self.scans {
            return Err(ScanError::NoScan);
        }
        let table = self.page * self.page / 8;
        let query = Query { all: Categories::WRITTEN, any: Categories::empty(), returned: Categories::WRITTEN };
        let mut at = start;
        while at < end {
            let span = pace.span().max(table);
            let to = end.min((at / span + 1).saturating_mul(span));
            let count = pace.step(|| self.regions.fill(&self.file, (at, to), &query, 1))??;
            at = match self.regions.get(count, (at, to))?.next() {
                None => to,
                Some(region) => {
                    let first = region.start / table * table;
                    each(first);
                    first + table
                }
            };
        }
        Ok(())
    }
}

/// Decodes an entry of `/proc/PID/pagemap` (Linux, `Documentation/admin-guide/mm/pagemap.rst`).
fn categories_of(entry: u64) -> Categories {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const FILE: u64 = 1 << 61;
    const GUARD: u64 = 1 << 58;
    const PROTECTED: u64 = 1 << 57;
    const SOFT_DIRTY: u64 = 1 << 55;
    let mut categories = Categories::empty();
    categories.set(Categories::PRESENT, entry & PRESENT != 0);
    categories.set(Categories::SWAPPED, entry & SWAPPED != 0);
    categories.set(Categories::FILE, entry & FILE != 0);
    categories.set(Categories::GUARD, entry & GUARD != 0);
    categories.set(Categories::WRITTEN, entry & PROTECTED == 0);
    categories.set(Categories::SOFT_DIRTY, entry & SOFT_DIRTY != 0);
    categories
}
