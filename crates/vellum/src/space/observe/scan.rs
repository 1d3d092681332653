//! Categories of pages, and write protection of the reported pages in the same step (Linux:
//! `PAGEMAP_SCAN`).
//!
//! A scan can write-protect the pages that it reports, under the same hold of the page table's
//! lock. So a caller that scans again and again misses no write. A write before the scan reads the
//! PTE is reported by this scan. A later write finds the page write-protected, removes the
//! protection, and is reported by the next scan.

use bitflags::bitflags;

use crate::addr::VirtRange;
use crate::arch::{Arch, Attrs, BadRange, Kind, Marker, UserRange};
use crate::errno::Errno;
use crate::frame::flag;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::table::{Found, LockedTable, MAX_RUNS_PER_HOLD, NotMapped, Run};
use crate::tlb::Gather;
use crate::vma::{State, Vma, VmaFlags};

use super::Observe;
use crate::space::ground::{Change, Ptes};

bitflags! {
    /// The categories of a page. The bits are Linux's `PAGE_IS_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Categories: u64 {
        /// The VMA is registered for asynchronous write protection ([`VmaFlags::UFFD_WP_ASYNC`]),
        /// so the page can be write-protected (`PAGE_IS_WPALLOWED`).
        const WP_ALLOWED = 1;
        /// The page is mapped or swapped out, and was written since it was write-protected, or
        /// never was write-protected (`PAGE_IS_WRITTEN`).
        const WRITTEN = 2;
        /// The mapped page belongs to a page-cache object (`PAGE_IS_FILE`).
        const FILE = 4;
        /// The page is mapped (`PAGE_IS_PRESENT`).
        const PRESENT = 8;
        /// The page is swapped out (`PAGE_IS_SWAPPED`).
        const SWAPPED = 16;
        /// The page is part of the zero folio, read-only zeros that missing pages share
        /// (`PAGE_IS_PFNZERO`).
        const ZERO = 32;
        /// A huge PTE maps the page (`PAGE_IS_HUGE`).
        const HUGE = 64;
        /// The page was written since soft-dirty was cleared
        /// ([`AddressSpace::clear_soft_dirty`](crate::space::AddressSpace::clear_soft_dirty);
        /// `PAGE_IS_SOFT_DIRTY`).
        const SOFT_DIRTY = 128;
        /// The page is a guard page ([`Advise::GuardInstall`](crate::space::Advise::GuardInstall);
        /// `PAGE_IS_GUARD`).
        const GUARD = 256;
    }
}

/// Contiguous pages of the same categories (Linux: `struct page_region`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// The addresses of the pages.
    pub range: VirtRange,
    /// The categories of each of the pages, as [`Scan::select`] returned them.
    pub categories: Categories,
}

/// The parameters of a scan (Linux: `struct pm_scan_arg`).
#[derive(Clone, Copy, Debug)]
pub struct Scan<F> {
    /// A callback that gets the categories of contiguous pages. It returns the categories to
    /// report, or `None` if these pages are not to be reported. Adjacent pages for which it returns
    /// the same categories are one region. It is called with a page table locked: it must be quick,
    /// and must not call back into the space.
    pub select: F,
    /// The maximum number of pages to report.
    pub max_pages: u64,
    /// True if the reported pages are to be write-protected (`PM_SCAN_WP_MATCHING`). VMAs without
    /// [`VmaFlags::UFFD_WP_ASYNC`] are skipped then.
    pub write_protect: bool,
    /// True if the scan fails at a VMA without [`VmaFlags::UFFD_WP_ASYNC`]
    /// (`PM_SCAN_CHECK_WPASYNC`).
    pub only_async: bool,
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// The number of regions that were written to the caller's slice.
    pub regions: usize,
    /// The number of pages that were reported.
    pub pages: u64,
    /// The address at which the scan ended: the end of the range, or the first page that did not
    /// fit into the caller's slice or into [`Scan::max_pages`] (`walk_end`).
    pub end: u64,
}

/// The reason why a scan failed. Pages that were write-protected stay so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanError {
    /// The start or the end of this range is not a multiple of the page size.
    Unaligned(VirtRange),
    /// This range reaches beyond the addresses of user mode.
    OutOfRange(VirtRange),
    /// The VMA with this range is not registered for asynchronous write protection.
    NotAsync(VirtRange),
    /// There is no memory to split a huge PTE, or for a page table that holds uffd-wp markers.
    NoMemory(Refused),
}

impl ScanError {
    /// Returns the error number of Linux's `PAGEMAP_SCAN`.
    pub const fn errno(&self) -> Errno {
        match self {
            ScanError::Unaligned(_) => Errno::EINVAL,
            ScanError::OutOfRange(_) => Errno::EFAULT,
            ScanError::NotAsync(_) => Errno::EPERM,
            ScanError::NoMemory(_) => Errno::ENOMEM,
        }
    }
}

impl core::fmt::Display for ScanError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ScanError::Unaligned(range) => write!(f, "{range:?} is not in whole pages: align its start and end"),
            ScanError::OutOfRange(range) => write!(f, "{range:?} reaches beyond the addresses of user mode"),
            ScanError::NotAsync(range) => {
                write!(f, "{range:?} is not registered for asynchronous write protection: register it first")
            }
            ScanError::NoMemory(refused) => refused.fmt(f),
        }
    }
}

impl core::error::Error for ScanError {}

may_be_refused!(ScanError);

/// Contiguous pages that a scan is to report, with the categories to report.
struct Selected {
    range: UserRange,
    categories: Categories,
}

/// The state of a scan: its parameters, and the pages that it has reported.
struct ScanState<'q, F> {
    select: F,
    /// The caller's slice for regions, if there is one.
    out: Option<&'q mut [Region]>,
    /// The number of regions in `out`.
    regions: usize,
    /// The number of pages that may still be reported.
    pages_left: u64,
    /// The number of pages that were reported.
    pages: u64,
    /// log2 of the page size in bytes.
    page_shift: u32,
    /// True if the reported pages are write-protected.
    write_protect: bool,
    /// True if missing pages of anonymous VMAs are write-protected too, by marker PTEs, as those of
    /// other VMAs always are.
    protect_missing: bool,
    /// True if the next page to report does not fit into `out` or `pages_left`.
    is_full: bool,
}

impl<F: Fn(Categories) -> Option<Categories>> ScanState<'_, F> {
    /// Returns whether missing pages of a VMA are write-protected too.
    fn protects_missing(&self, vma: &Vma) -> bool {
        self.protect_missing || !vma.backing.is_anonymous()
    }

    /// Returns how much of `piece` to report, from its start on, with the categories to report.
    /// `piece` is contiguous pages that all have `categories`. Returns `None` if `select` does not
    /// select them. If there is no room for another page, sets `is_full` and returns `None`.
    /// Reports nothing yet.
    fn admit(&mut self, piece: UserRange, categories: Categories) -> Option<Selected> {
        let categories = (self.select)(categories)?;
        let start = piece.start;
        let pages = (piece.len() >> self.page_shift).min(self.pages_left);
        let has_room = match &self.out {
            // Without room for another region, the piece must extend the last one.
            Some(out) if self.regions == out.len() => {
                self.regions > 0 && {
                    let last = out[self.regions - 1];
                    last == Region { range: VirtRange { end: start, ..last.range }, categories }
                }
            }
            _ => true,
        };
        if !has_room || pages == 0 {
            self.is_full = true;
            return None;
        }
        Some(Selected { range: piece.head(start + (pages << self.page_shift)), categories })
    }

    /// Reports what [`ScanState::admit`] returned: extends the last region, or adds one.
    fn report(&mut self, selected: Selected) {
        let Selected { range, categories } = selected;
        self.pages_left -= range.len() >> self.page_shift;
        self.pages += range.len() >> self.page_shift;
        let Some(out) = &mut self.out else { return };
        match out[..self.regions].last_mut() {
            Some(last) if last.range.end == range.start && last.categories == categories => last.range.end = range.end,
            _ => {
                out[self.regions] = Region { range: *range, categories };
                self.regions += 1;
            }
        }
    }
}

impl<'m, P: Platform> Observe<'_, 'm, P> {
    /// Implements [`AddressSpace::scan`](crate::space::AddressSpace::scan).
    pub(super) fn scan(
        self,
        range: VirtRange,
        scan: Scan<impl Fn(Categories) -> Option<Categories>>,
        out: Option<&mut [Region]>,
    ) -> Result<Scanned, ScanError> {
        let range = UserRange::exact(self.arch(), range).map_err(|bad| match bad {
            BadRange::Beyond(_) => ScanError::OutOfRange(range),
            BadRange::Unaligned(_) | BadRange::Overflow => ScanError::Unaligned(range),
        })?;
        let Scan { select, max_pages, write_protect, only_async } = scan;
        let state = ScanState {
            select,
            out,
            regions: 0,
            pages_left: max_pages,
            pages: 0,
            page_shift: self.page_shift(),
            write_protect,
            protect_missing: true,
            is_full: false,
        };
        let change = write_protect.then(|| {
            // The claim keeps other scans out. Otherwise another scan could report the write that
            // this scan reports, before this scan has write-protected the page.
            let mut change = Change::begin(self.space, range);
            change.unlock();
            change
        });
        let scanned = self.scan_range(range, state, |vma| match vma.flags.contains(VmaFlags::UFFD_WP_ASYNC) {
            true => Ok(true),
            false if only_async => Err(ScanError::NotAsync(*vma.range)),
            false => Ok(!write_protect),
        });
        drop(change);
        scanned
    }

    /// Write-protects all pages of `range` for a userfaultfd, missing pages of objects included, by
    /// marker PTEs; with `unmapped`, also missing pages of anonymous VMAs. Splits huge PTEs that
    /// cross an end of `range`. The caller has claimed `range` and holds no lock.
    ///
    /// # Errors
    /// There is no memory to split a huge PTE, or for a page table that holds markers. The pages
    /// before the failure are write-protected.
    pub(in crate::space) fn write_protect_all(self, range: UserRange, unmapped: bool) -> Result<(), Refused> {
        let state = ScanState {
            select: Some,
            out: None,
            regions: 0,
            pages_left: u64::MAX,
            pages: 0,
            page_shift: self.page_shift(),
            write_protect: true,
            protect_missing: unmapped,
            is_full: false,
        };
        self.scan_range(range, state, |_| Ok(true)).map(|_| ()).map_err(|error| match error {
            ScanError::NoMemory(refused) => refused,
            _ => Refused::OutOfMemory,
        })
    }

    /// Scans those VMAs of `range` for which `includes` returns true, one page table at a time.
    /// Holds the VMA lock only while it looks up the next VMA.
    ///
    /// # Errors
    /// The first error of `includes`, which ends the scan, and [`ScanError::NoMemory`].
    fn scan_range(
        self,
        range: UserRange,
        mut state: ScanState<'_, impl Fn(Categories) -> Option<Categories>>,
        includes: impl Fn(&Vma) -> Result<bool, ScanError>,
    ) -> Result<Scanned, ScanError> {
        let mut gather = self.space.gather(range);
        let mut at = range.start;
        while at < range.end && !state.is_full {
            let rest = range.tail(at);
            let next = self.space.read().overlapping(self.platform(), rest).find(|v| v.state != State::Dying).copied();
            let Some(vma) = next else {
                at = range.end;
                break;
            };
            let part = vma.range.intersect(&rest);
            at = match includes(&vma)? {
                true => self.scan_table(&vma, part, &mut state, &mut gather)?,
                false => part.end,
            };
            self.platform().resched();
        }
        Ok(Scanned { regions: state.regions, pages: state.pages, end: at })
    }

    /// Scans the beginning of `part`, a range inside `vma`: the addresses that one page table
    /// translates, or a hole in the page tables. Returns the address at which the scan goes on. If
    /// a huge PTE must be split before a part of it can be write-protected, splits it, and returns
    /// the start of that part, which the caller scans again. Takes the page table's lock; the
    /// caller holds no lock.
    ///
    /// # Errors
    /// There is no memory to split a huge PTE, or for a page table that holds markers.
    fn scan_table(
        self,
        vma: &Vma,
        part: UserRange,
        state: &mut ScanState<'_, impl Fn(Categories) -> Option<Categories>>,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Result<u64, Refused> {
        let arch = self.arch();
        let table = match self.tables().find(part) {
            Found::Hole(end) => return self.scan_hole(vma, part.head(end), state),
            Found::Table(table) => table,
        };
        let end = table.hold_end(part);
        let (mut at, mut runs) = (part.start, 0);
        let (mut hole, mut split) = (None, None);
        while at < end
            && runs < MAX_RUNS_PER_HOLD
            && let Some(mut run) = table.run(at, end)
        {
            runs += 1;
            if run.kind == Kind::None && table.level > 1 {
                hole = Some(part.intersect(&run.range(arch)));
                break;
            }
            let categories = self.categories(vma, &mut run);
            let seen = part.tail(at).intersect(&run.range(arch));
            if let Some(selected) = state.admit(seen, categories) {
                let range = selected.range;
                if state.write_protect && !self.protect_piece(&table, range, vma, state.protects_missing(vma), gather) {
                    split = Some(range);
                    break;
                }
                state.report(selected);
                at = range.end;
            } else if state.is_full {
                break;
            } else {
                at = seen.end;
            }
        }
        table.unlock(gather);
        // The split of a huge PTE and the scan of a hole allocate page tables, so no lock may be
        // held.
        if let Some(range) = split {
            self.tables().split_edges(range)?;
        }
        match hole {
            Some(hole) => self.scan_hole(vma, hole, state),
            None => Ok(at),
        }
    }

    /// Scans a hole in the page tables: a range of `vma` for which no lowest-level page table
    /// exists. Returns the address at which the scan goes on. To write-protect missing pages, maps
    /// markers for at most one page table, and returns the end of these.
    ///
    /// # Errors
    /// There is no memory for the page table.
    fn scan_hole(
        self,
        vma: &Vma,
        hole: UserRange,
        state: &mut ScanState<'_, impl Fn(Categories) -> Option<Categories>>,
    ) -> Result<u64, Refused> {
        let arch = self.arch();
        let Some(selected) = state.admit(hole, vma_categories(vma)) else {
            return Ok(if state.is_full { hole.start } else { hole.end });
        };
        let Selected { range, categories } = selected;
        if !(state.write_protect && state.protects_missing(vma)) {
            state.report(selected);
            return Ok(range.end);
        }
        let table_shift = arch.level_shift(2);
        let end = ((range.start >> table_shift << table_shift).saturating_add(1 << table_shift)).min(range.end);
        let marked = range.head(end);
        match self.tables().map_run(marked, &Run::wp_markers(arch, marked.start, marked.end)) {
            Ok(()) => {
                state.report(Selected { range: marked, categories });
                Ok(end)
            }
            // Another CPU has mapped something in the hole: the caller scans the range again.
            Err(NotMapped::Occupied) => Ok(range.start),
            Err(NotMapped::NoMemory(refused)) => Err(refused),
        }
    }

    /// Write-protects the pages of `piece`, which is a part of one run of a locked page table. With
    /// `protect_missing`, also write-protects missing pages. Adds a run that loses write access to
    /// `gather`, which flushes it. Returns false, with nothing changed, if
    /// `piece` is a part of a huge PTE, which must be split first.
    fn protect_piece(
        self,
        table: &LockedTable<'_, 'm, P>,
        piece: UserRange,
        vma: &Vma,
        protect_missing: bool,
        gather: &mut Gather<'_, 'm, P>,
    ) -> bool {
        let arch = self.arch();
        let Some(run) = table.run(piece.start, piece.end) else { return true };
        if piece != run.range(arch) {
            return false;
        }
        match run.kind {
            Kind::Leaf if Ptes::of(self.space).set_attrs(table, &run, run.attrs(arch) | Attrs::UFFD_WP, vma.prot) => {
                gather.note(*piece, table.shift());
            }
            Kind::Swap => {
                Ptes::of(self.space).set_swap_attrs(table, &run, arch.swap_entry(run.raw).attrs | Attrs::UFFD_WP)
            }
            Kind::None if protect_missing => table.set(&Run::wp_markers(arch, piece.start, piece.end)),
            _ => {}
        }
        true
    }

    /// Returns the categories of the first page of `run`, and shortens `run` to the pages from
    /// there on that have the same categories. The run's page table is locked.
    fn categories(self, vma: &Vma, run: &mut Run) -> Categories {
        let arch = self.arch();
        let mut categories = vma_categories(vma);
        let attrs = match run.kind {
            Kind::Leaf => {
                categories |= Categories::PRESENT;
                categories.set(Categories::HUGE, run.level > 1);
                if self.machine().zero_folio().contains(run.pfn(arch)) {
                    categories |= Categories::ZERO;
                } else if !vma.backing.is_anonymous() {
                    // A private VMA maps both pages of the object and private copies, which are
                    // anonymous.
                    categories.set(
                        Categories::FILE,
                        Ptes::of(self.space).shorten_to_equal(run, |frame| frame.has(flag::OBJECT)),
                    );
                }
                run.attrs(arch)
            }
            Kind::Swap => {
                categories |= Categories::SWAPPED;
                arch.swap_entry(run.raw).attrs
            }
            Kind::Marker if arch.marker_of(run.raw) == Some(Marker::Guard) => return categories | Categories::GUARD,
            _ => return categories,
        };
        categories.set(Categories::WRITTEN, !attrs.contains(Attrs::UFFD_WP));
        categories | if attrs.contains(Attrs::SOFT_DIRTY) { Categories::SOFT_DIRTY } else { Categories::empty() }
    }
}

/// Returns the categories that every page of a VMA has.
fn vma_categories(vma: &Vma) -> Categories {
    let mut categories = Categories::empty();
    categories.set(Categories::WP_ALLOWED, vma.flags.contains(VmaFlags::UFFD_WP_ASYNC));
    categories.set(Categories::SOFT_DIRTY, !vma.flags.contains(VmaFlags::SOFT_DIRTY_CLEARED));
    categories
}
