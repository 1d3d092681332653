//! What pages are, by the run, and which of them were written since they were protected (Linux:
//! `PAGEMAP_SCAN`). What is told may be protected in the same step, so that whoever asks again and
//! again hears of every write: it came before its page was looked at, which finds that; or the page
//! is protected when it comes, which the next to ask finds.

use bitflags::bitflags;

use crate::addr::VirtRange;
use crate::arch::{Arch, Attrs, BadRange, Kind, Marker, UserRange};
use crate::errno::Errno;
use crate::frame::flag;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::table::{Found, LockedTable, NotMapped, Run};
use crate::tlb::Gather;
use crate::vma::{State, Vma, VmaFlags};

use super::Observe;
use crate::space::ground::{Change, Ptes};

bitflags! {
    /// What a page is. The bits are Linux's.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Categories: u64 {
        /// Writes to it can be asked for ([`VmaFlags::UFFD_WP_ASYNC`]).
        const ASYNC = 1;
        /// There is something, and it was written since it was protected, or never was.
        const WRITTEN = 2;
        /// It is an object's.
        const FILE = 4;
        /// It is mapped.
        const PRESENT = 8;
        /// It is swapped out.
        const SWAPPED = 16;
        /// It is of the folio of zeros.
        const ZERO = 32;
        /// It is in a huge mapping.
        const HUGE = 64;
        /// It was written since tracking began ([`AddressSpace::track_writes`]).
        const SOFT_DIRTY = 128;
        /// It is guarded ([`super::Advise::GuardInstall`]).
        const GUARD = 256;
    }
}

/// Pages in a row that are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// Where.
    pub range: VirtRange,
    /// What they are.
    pub is: Categories,
}

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub struct Scan<F> {
    /// Which pages to tell of, and what of them: categories that are left out don't keep regions
    /// apart. Tables are locked meanwhile.
    pub select: F,
    /// Of how many pages at most.
    pub pages: u64,
    /// Protect what is told. Only where writes go on ([`VmaFlags::UFFD_WP_ASYNC`]); other VMAs are passed
    /// over.
    pub protect: bool,
    /// End with an error where writes don't go on.
    pub only_async: bool,
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// How many regions were written to the answer.
    pub regions: usize,
    /// How many pages were told of.
    pub pages: u64,
    /// Where the look ended: at the end of the range, or where there was no room for more.
    pub end: u64,
}

/// Why a look ended early. What was protected stays so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanError {
    /// The range is not in whole pages.
    Unaligned(VirtRange),
    /// The range reaches beyond the addresses of user mode.
    OutOfRange(VirtRange),
    /// In this VMA writes don't go on.
    NotAsync(VirtRange),
    /// No memory to split huge mappings, or for tables of markers.
    NoMemory(Refused),
}

impl ScanError {
    /// What Linux's `PAGEMAP_SCAN` answers.
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
            ScanError::Unaligned(range) => write!(f, "{range:?} is not in whole pages"),
            ScanError::OutOfRange(range) => write!(f, "{range:?} reaches beyond the addresses of user mode"),
            ScanError::NotAsync(range) => write!(f, "writes to {range:?} are not watched for, or told at once"),
            ScanError::NoMemory(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for ScanError {}

may_be_refused!(ScanError);

/// A look under way.
struct Pass<'q, F> {
    select: F,
    /// Where regions go, if anybody wants them, and how many there are.
    out: Option<&'q mut [Region]>,
    used: usize,
    /// Of how many pages more may be told.
    left: u64,
    told: u64,
    shift: u32,
    protect: bool,
    /// Protect pages that are not there, too.
    unmapped: bool,
    /// There is no room for more.
    full: bool,
}

impl<F: Fn(Categories) -> Option<Categories>> Pass<'_, F> {
    /// How much of a piece is to be told, and what; none, if it is not of interest, or there is no
    /// room.
    fn admit(&mut self, piece: UserRange, is: Categories) -> Option<(UserRange, Categories)> {
        let is = (self.select)(is)?;
        let start = piece.start;
        let pages = (piece.len() >> self.shift).min(self.left);
        let room = match &self.out {
            Some(out) if self.used == out.len() => {
                self.used > 0
                    && out[self.used - 1] == Region { range: VirtRange { end: start, ..out[self.used - 1].range }, is }
            }
            _ => true,
        };
        if !room || pages == 0 {
            self.full = true;
            return None;
        }
        Some((piece.head(start + (pages << self.shift)), is))
    }

    fn report(&mut self, range: UserRange, is: Categories) {
        self.left -= range.len() >> self.shift;
        self.told += range.len() >> self.shift;
        let Some(out) = &mut self.out else { return };
        match out[..self.used].last_mut() {
            Some(last) if last.range.end == range.start && last.is == is => last.range.end = range.end,
            _ => {
                out[self.used] = Region { range: *range, is };
                self.used += 1;
            }
        }
    }
}

impl<'m, P: Platform, A: Arch> Observe<'_, 'm, P, A> {
    /// Implements [`AddressSpace::scan`].
    pub(super) fn scan(
        self,
        range: VirtRange,
        scan: Scan<impl Fn(Categories) -> Option<Categories>>,
        out: Option<&mut [Region]>,
    ) -> Result<Scanned, ScanError> {
        let shift = self.page_shift();
        let range = UserRange::exact(self.arch(), range).map_err(|bad| match bad {
            BadRange::Beyond(_) => ScanError::OutOfRange(range),
            BadRange::Unaligned(_) | BadRange::Overflow => ScanError::Unaligned(range),
        })?;
        let Scan { select, pages, protect, only_async } = scan;
        let pass = Pass { select, out, used: 0, left: pages, told: 0, shift, protect, unmapped: true, full: false };
        let change = protect.then(|| {
            // Two don't tell of the same write, and one of them before its page is protected.
            let mut change = Change::begin(self.space, range);
            change.unlock();
            change
        });
        let scanned = self.scan_range(range, pass, |vma| match vma.flags.contains(VmaFlags::UFFD_WP_ASYNC) {
            true => Ok(true),
            false if only_async => Err(ScanError::NotAsync(*vma.range)),
            false => Ok(!protect),
        });
        drop(change);
        scanned
    }

    /// Protect all pages of a range that is claimed.
    pub(in crate::space) fn write_protect_all(self, range: UserRange, unmapped: bool) -> Result<(), Refused> {
        let pass = Pass {
            select: Some,
            out: None,
            used: 0,
            left: u64::MAX,
            told: 0,
            shift: self.page_shift(),
            protect: true,
            unmapped,
            full: false,
        };
        self.scan_range(range, pass, |_| Ok(true)).map(|_| ()).map_err(|error| match error {
            ScanError::NoMemory(why) => why,
            _ => Refused::OutOfMemory,
        })
    }

    /// Look at the VMAs of a range for which `looks` says so.
    fn scan_range(
        self,
        range: UserRange,
        mut pass: Pass<'_, impl Fn(Categories) -> Option<Categories>>,
        looks: impl Fn(&Vma) -> Result<bool, ScanError>,
    ) -> Result<Scanned, ScanError> {
        let mut gather = self.space.gather(range);
        let mut at = range.start;
        while at < range.end && !pass.full {
            let rest = range.tail(at);
            let next = self.space.read().overlapping(self.platform(), rest).find(|v| v.state != State::Dying).copied();
            let Some(vma) = next else {
                at = range.end;
                break;
            };
            let part = vma.range.intersect(&rest);
            at = match looks(&vma)? {
                true => self.scan_table(&vma, part, &mut pass, &mut gather)?,
                false => part.end,
            };
            self.platform().resched();
        }
        Ok(Scanned { regions: pass.used, pages: pass.told, end: at })
    }

    /// Look at what stands first in a part of a VMA: a hole, or what a table has of it. How far
    /// that was.
    fn scan_table(
        self,
        vma: &Vma,
        part: UserRange,
        pass: &mut Pass<'_, impl Fn(Categories) -> Option<Categories>>,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Result<u64, Refused> {
        let arch = self.arch();
        let table = match self.tables().find(part) {
            Found::Hole(end) => return self.scan_hole(vma, part.head(end), pass),
            Found::Table(table) => table,
        };
        let end = part.end.min(table.end());
        let mut at = part.start;
        let (mut hole, mut split) = (None, None);
        while at < end
            && let Some(mut run) = table.run(at, end)
        {
            if run.kind == Kind::None && table.level > 1 {
                hole = Some(part.intersect(&run.range(arch)));
                break;
            }
            let is = self.categories(vma, &mut run);
            let seen = part.tail(at).intersect(&run.range(arch));
            if let Some((piece, is)) = pass.admit(seen, is) {
                if pass.protect && !self.protect_piece(&table, piece, vma, pass.unmapped, gather) {
                    split = Some(piece);
                    break;
                }
                pass.report(piece, is);
                at = piece.end;
            } else if pass.full {
                break;
            } else {
                at = seen.end;
            }
        }
        table.unlock(gather);
        if let Some(piece) = split {
            self.tables().split_edges(piece)?;
        }
        match hole {
            Some(hole) => self.scan_hole(vma, hole, pass),
            None => Ok(at),
        }
    }

    /// Look at a range that nothing is mapped in, nor any table. How far that was.
    fn scan_hole(
        self,
        vma: &Vma,
        hole: UserRange,
        pass: &mut Pass<'_, impl Fn(Categories) -> Option<Categories>>,
    ) -> Result<u64, Refused> {
        let arch = self.arch();
        let Some((piece, is)) = pass.admit(hole, of_vma(vma)) else {
            return Ok(if pass.full { hole.start } else { hole.end });
        };
        if !(pass.protect && pass.unmapped && vma.backing.is_anonymous()) {
            pass.report(piece, is);
            return Ok(piece.end);
        }
        let table = arch.level_shift(2);
        let end = ((piece.start >> table << table).saturating_add(1 << table)).min(piece.end);
        let marked = piece.head(end);
        match self.tables().map_run(marked, &self.markers(marked)) {
            Ok(()) => {
                pass.report(marked, is);
                Ok(end)
            }
            // It is no hole any more.
            Err(NotMapped::Occupied) => Ok(piece.start),
            Err(NotMapped::NoMemory(why)) => Err(why),
        }
    }

    fn markers(self, range: UserRange) -> Run {
        let arch = self.arch();
        let entries = (range.len() >> arch.page_shift()) as usize;
        Run::new(range.start, 1, Kind::Marker, arch.marker_pte(Marker::UffdWp), entries)
    }

    /// Protect what a table has of a range, which is a part of one run. `false`: it is a part of
    /// one entry.
    fn protect_piece(
        self,
        table: &LockedTable<'_, 'm, P, A>,
        piece: UserRange,
        vma: &Vma,
        unmapped: bool,
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
            Kind::None if unmapped && vma.backing.is_anonymous() => table.set(&self.markers(piece)),
            _ => {}
        }
        true
    }

    /// What the pages of a run are, as far as it is the same for all of them.
    fn categories(self, vma: &Vma, run: &mut Run) -> Categories {
        let arch = self.arch();
        let mut is = of_vma(vma);
        let attrs = match run.kind {
            Kind::Leaf => {
                is |= Categories::PRESENT;
                is.set(Categories::HUGE, run.level > 1);
                if self.machine().zero_folio().contains(run.pfn(arch)) {
                    is |= Categories::ZERO;
                } else if !vma.backing.is_anonymous() {
                    is.set(
                        Categories::FILE,
                        Ptes::of(self.space).shorten_to_equal(run, |frame| frame.has(flag::OBJECT)),
                    );
                }
                run.attrs(arch)
            }
            Kind::Swap => {
                is |= Categories::SWAPPED;
                arch.swap_entry(run.raw).attrs
            }
            Kind::Marker if arch.marker_of(run.raw) == Some(Marker::Guard) => return is | Categories::GUARD,
            _ => return is,
        };
        is.set(Categories::WRITTEN, !attrs.contains(Attrs::UFFD_WP));
        is | if attrs.contains(Attrs::SOFT_DIRTY) { Categories::SOFT_DIRTY } else { Categories::empty() }
    }
}

/// What is the same for all pages of a VMA.
fn of_vma(vma: &Vma) -> Categories {
    let mut is = Categories::empty();
    is.set(Categories::ASYNC, vma.flags.contains(VmaFlags::UFFD_WP_ASYNC));
    is.set(Categories::SOFT_DIRTY, !vma.flags.contains(VmaFlags::SOFT_DIRTY_CLEARED));
    is
}
