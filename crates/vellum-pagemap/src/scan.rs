//! Ask what is mapped, a step at a time.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use procfs::process::Process;
use rustix::io::Errno;

use crate::ioctl::Regions;
use crate::pace::{Pace, Stopped};
use crate::{Categories, Query, Region};

/// Regions that Linux is asked for at once.
const REGIONS: usize = 2048;
/// Entries that are read at once where it can't be asked: those of a table, for which Linux takes
/// the lock once.
const ENTRIES: u64 = 512;

/// A process's `pagemap`.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    page: u64,
    scans: bool,
    regions: Regions,
}

/// Why something can't be told of a process's memory.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// It may not be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It was asked to stop.
    #[error("interrupted")]
    Stopped,
    /// This kernel can't be asked that.
    #[error("this kernel has no PAGEMAP_SCAN (Linux has it from 6.7 on)")]
    NoScan,
}

impl From<Stopped> for ScanError {
    fn from(_: Stopped) -> Self {
        ScanError::Stopped
    }
}

impl From<Errno> for ScanError {
    fn from(errno: Errno) -> Self {
        ScanError::Io(errno.into())
    }
}

impl Pagemap {
    /// That of a process.
    ///
    /// # Errors
    /// It is another user's, or gone. (What is needed: to be allowed to read its memory as a
    /// debugger may, `ptrace(2)`.)
    pub fn open(process: &Process) -> Result<Self, procfs::ProcError> {
        Ok(Self::new(process.open_relative("pagemap")?))
    }

    /// One's own.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub fn own() -> io::Result<Self> {
        Ok(Self::new(File::open("/proc/self/pagemap")?))
    }

    fn new(file: File) -> Self {
        let (page, mut regions) = (rustix::param::page_size() as u64, Regions::new(REGIONS));
        // A kernel that knows the call does so for any range.
        let scans = regions.fill(&file, (0, page), &Query::there(Categories::PRESENT), 1).is_ok();
        Pagemap { file, page, scans, regions }
    }

    /// Whether this kernel can be asked (`PAGEMAP_SCAN`). Otherwise all entries are read, which
    /// takes its time where much is reserved, and [`Categories::HUGE`], [`Categories::ZERO`] are
    /// never told.
    pub fn scans(&self) -> bool {
        self.scans
    }

    /// Pretend that it can't.
    pub fn only_read(self) -> Self {
        Pagemap { scans: false, ..self }
    }

    /// Its number among the files of this process.
    pub(crate) fn number(&self) -> u64 {
        self.file.as_raw_fd() as u64
    }

    /// The size of a page.
    pub fn page_size(&self) -> u64 {
        self.page
    }

    /// Tell of the pages of a range that are asked for, in ascending order; pages in a row that are
    /// alike are told together. What changes meanwhile is told as it was at some time.
    ///
    /// # Errors
    /// [`ScanError`]; what was told until then is true.
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
            true => self.ask(range, query, pace, &mut join)?,
            false => self.read(range, query, pace, &mut join)?,
        }
        if let Some(last) = last {
            each(last);
        }
        Ok(())
    }

    fn ask(
        &mut self,
        (start, end): (u64, u64),
        query: &Query,
        pace: &mut Pace<'_>,
        each: &mut impl FnMut(Region),
    ) -> Result<(), ScanError> {
        let mut at = start;
        while at < end {
            let span = pace.span();
            // As far as a multiple of it, so that steps end where tables do.
            let to = end.min((at / span + 1).saturating_mul(span));
            let most = pace.pages();
            let count = pace.step(|| self.regions.fill(&self.file, (at, to), query, most))??;
            let mut pages = 0;
            let mut told = at;
            for region in self.regions.get(count, (at, to))? {
                pages += region.len() / self.page;
                told = region.end;
                each(region);
            }
            // Where the walk says that it has ended is not to be trusted when there was no room for
            // more (Linux 6.18 and 7.3 both may tell an earlier address, and would tell regions
            // twice): what was told says it.
            at = if count == self.regions.most() || pages >= most { told } else { to };
        }
        Ok(())
    }

    /// Reads an entry of 64 bits a page.
    fn read(
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
                // Behind the last address, or the process is gone.
                return Ok(());
            }
            for entry in bytes[..read].as_chunks().0 {
                let categories = categories_of(u64::from_ne_bytes(*entry));
                if query.matches(categories) {
                    each(Region { start: at, end: at + self.page, categories: categories & query.told });
                }
                at += self.page;
            }
        }
        Ok(())
    }

    /// Ask once.
    pub(crate) fn one(&mut self, range: (u64, u64), query: &Query) -> Result<usize, Errno> {
        self.regions.fill(&self.file, range, query, 1)
    }

    /// Tell of the tables of the lowest level that a range has, empty ones too: the first address
    /// of each, in ascending order. (And of huge pages, which are where a table would be.)
    ///
    /// That is not what the call is for, but it follows from how it is built. Asked only for pages
    /// that are [`Categories::WRITTEN`], Linux looks at nothing of an entry but its mark of
    /// protection, and so an empty entry is one that was written; but where there is no table, it
    /// has no entry to look at. So each step asks for one page from here on, and goes on behind its
    /// table: an existing table costs one step, and none costs next to nothing. Only a table all of
    /// whose pages are protected by `userfaultfd` is not told; but those are known to be there from
    /// [`Pagemap::scan`]. [`crate::Kernel`] says whether this kernel does so (seen on 6.18 and 7.2;
    /// by the sources from 6.7 on and no more from 7.3).
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
        let query = Query { all: Categories::WRITTEN, any: Categories::empty(), told: Categories::WRITTEN };
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

/// Returns what an entry of `/proc/PID/pagemap` says (Linux,
/// `Documentation/admin-guide/mm/pagemap.rst`).
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
