//! What this kernel does with empty tables, tried on one of our own.

use std::ptr;
use std::time::Duration;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::{Pace, Pagemap, ScanError, Timing};

/// What this kernel does, as tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// How empty tables are found one by one, if they are.
    pub tells: Tells,
    /// Who gives up all pages of a table in one call (`MADV_DONTNEED`) is rid of the table as well.
    /// None: it doesn't tell.
    pub frees_tables: Option<bool>,
}

/// How empty tables are found one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tells {
    /// They are not, though their number is known.
    #[default]
    Nothing,
    /// [`Pagemap::tables`] is right: it tells a table without an entry where we ask, and tells none
    /// where there is none.
    Tables,
    /// By the time that it takes to find nothing ([`Pagemap::tables_by_time`]), which may be wrong
    /// now and then.
    Time(Timing),
}

impl Kernel {
    /// Try it, on memory of our own.
    ///
    /// # Errors
    /// [`ScanError`]: there is no `/proc`, or no memory.
    pub fn probe(pace: &mut Pace<'_>) -> Result<Self, ScanError> {
        let mut pagemap = Pagemap::own()?;
        if !pagemap.scans() {
            return Ok(Kernel { tells: Tells::Nothing, frees_tables: None });
        }
        let table = pagemap.page_size() * pagemap.page_size() / 8;
        let vma = Own::new(4 * table as usize)?;
        let first = (vma.start as u64).next_multiple_of(table);
        let last_page = first + table - pagemap.page_size();
        let mut told = |range| {
            let mut tables = Vec::new();
            pagemap.tables(range, pace, |table| tables.push(table)).map(|()| tables)
        };
        // The last page of the first table is there, so nobody has freed the table.
        vma.touch(last_page);
        let exact =
            told((first, first + table / 2))? == [first] && told((first + table, first + 2 * table))?.is_empty();
        vma.forget(first, table);
        if exact {
            let frees_tables = Some(told((first, first + table))?.is_empty());
            return Ok(Kernel { tells: Tells::Tables, frees_tables });
        }
        Kernel::by_time()
    }

    /// As if it didn't tell tables, so that they are found by time.
    ///
    /// # Errors
    /// As of [`Kernel::probe`].
    pub fn by_time() -> Result<Self, ScanError> {
        let Some(timing) = Timing::calibrate()? else {
            return Ok(Kernel { tells: Tells::Nothing, frees_tables: None });
        };
        let mut pagemap = Pagemap::own()?;
        let table = pagemap.page_size() * pagemap.page_size() / 8;
        let vma = Own::new(4 * table as usize)?;
        let first = (vma.start as u64).next_multiple_of(table);
        vma.touch(first);
        vma.forget(first, table);
        let mut left = false;
        pagemap.tables_by_time((first, first + table), &timing, &mut Pace::new(Duration::MAX), |_| left = true)?;
        Ok(Kernel { tells: Tells::Time(timing), frees_tables: Some(!left) })
    }
}

/// Memory of our own, with small pages, and nothing in it.
pub(crate) struct Own {
    start: *mut u8,
    len: usize,
}

impl Own {
    pub(crate) fn new(len: usize) -> Result<Self, ScanError> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: it is put where nothing is.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?.cast();
        let own = Own { start, len };
        // SAFETY: it is ours, and this changes nothing of what is in it. Where there are no huge
        // pages it is refused, and not needed.
        let _ = unsafe { madvise(own.start.cast(), own.len, Advice::LinuxNoHugepage) };
        Ok(own)
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    pub(crate) fn touch(&self, at: u64) {
        let offset = at as usize - self.start as usize;
        assert!(offset < self.len);
        // SAFETY: it lies in what we have mapped, to which nobody else has a pointer.
        unsafe { self.start.add(offset).write_volatile(1) };
    }
}

impl Own {
    fn forget(&self, at: u64, len: u64) {
        let offset = at as usize - self.start as usize;
        assert!(offset + len as usize <= self.len);
        // SAFETY: as above; nobody needs what is in it.
        let _ = unsafe { madvise(self.start.add(offset).cast(), len as usize, Advice::LinuxDontNeed) };
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: what `new` has mapped; nobody refers to it.
        let _ = unsafe { munmap(self.start.cast(), self.len) };
    }
}
