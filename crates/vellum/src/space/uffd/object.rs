//! Fills missing pages of page-cache objects (`UFFDIO_COPY` and `UFFDIO_ZEROPAGE` in shared VMAs),
//! and maps pages that an object has (`UFFDIO_CONTINUE`).

use core::mem::ManuallyDrop;

use crate::addr::VirtRange;
use crate::arch::{Arch, Attrs, Kind, Marker, UserRange};
use crate::page_cache::{AROUND_ORDER, Hints, Inserts, Lookup, NotInserted, Object, largest_order};
use crate::platform::Platform;
use crate::sync::Retries;
use crate::table::Probe;
use crate::vma::{State, Vma, VmaFlags};

use super::fill::uffd_vma_at;
use super::{Uffd, UffdFillError, UffdFillStopped};
use crate::space::anon::Anon;
use crate::space::fault::{Access, Fault, FaultError, Outcome, Retry, ToMap, Touch};

/// The reason why one try mapped nothing.
enum TryMapError {
    /// The VMA is locked ([`State::Locked`]).
    VmaLocked,
    /// Another CPU has changed the entries, or is changing them.
    Raced,
    /// Another try would fail too.
    Failed(UffdFillError),
}

impl From<UffdFillError> for TryMapError {
    fn from(error: UffdFillError) -> Self {
        TryMapError::Failed(error)
    }
}

impl<'m, P: Platform> Uffd<'_, 'm, P> {
    /// Implements [`uffd_continue`](crate::space::uffd_continue).
    pub(super) fn uffd_continue(self, range: VirtRange, protect: bool) -> Result<(), UffdFillStopped> {
        let needs = if protect { VmaFlags::UFFD_WP } else { VmaFlags::empty() };
        self.fill_range(range, needs, |rest, _| self.map_existing(rest, protect))
    }

    /// Returns the part of `rest` that lies within the object behind a VMA. Another CPU may change
    /// the object's size meanwhile: then it unmaps what was mapped beyond the end (INV-12).
    ///
    /// # Errors
    /// [`UffdFillError::NoPage`]: the first page of `rest` lies beyond the end.
    pub(super) fn within_object(self, vma: &Vma, rest: UserRange) -> Result<UserRange, UffdFillError> {
        let shift = self.page_shift();
        let end = self.object_of(vma).size().div_ceil(1 << shift) << shift;
        let left = end.saturating_sub(vma.backing.offset(rest.start));
        match left {
            0 => Err(UffdFillError::NoPage(rest.start)),
            left => Ok(rest.head(rest.start.saturating_add(left))),
        }
    }

    /// Returns the object that a VMA maps. The caller holds the VMA lock, and uses the result no
    /// longer.
    fn object_of(self, vma: &Vma) -> ManuallyDrop<Object<'m, P>> {
        // SAFETY: the VMA keeps its reference to the object as long as the VMA lock is held, and
        // the callers hold it while they use the result.
        unsafe { Object::of_backing(self.machine(), &vma.backing) }
    }

    /// Inserts the page at the beginning of `rest` into the object of a shared VMA, and maps it.
    /// Returns the end of the page.
    ///
    /// # Errors
    /// The object has the page; it ends before the page; `contents` failed; there is no memory.
    pub(super) fn insert_and_map(
        self,
        rest: UserRange,
        protect: bool,
        contents: impl FnOnce(&mut [u8]) -> Result<(), ()>,
    ) -> Result<u64, UffdFillError> {
        let at = rest.start;
        let page = rest.around(at, self.page_shift());
        let vmas = self.space.read();
        let vma = uffd_vma_at(&vmas, at)?;
        if !vma.backing.is_shared() {
            return Err(UffdFillError::NotRegistered(at));
        }
        let Probe { raw, level, .. } = self.tables().probe(at, vma.range, 0);
        if matches!(self.arch().kind(raw, level), Kind::Leaf | Kind::Swap) {
            return Err(UffdFillError::Exists(at));
        }
        let number = vma.backing.offset(at) >> self.page_shift();
        let object = (*self.object_of(vma)).clone();
        // `contents` may fault in this space, so the VMAs must not stay locked.
        drop(vmas);
        Inserts(&object).insert_page(number, self.tables().memcg(), contents).map_err(|error| match error {
            NotInserted::Exists => UffdFillError::Exists(at),
            NotInserted::BeyondEnd => UffdFillError::NoPage(at),
            NotInserted::NoContents => UffdFillError::NoContents(at),
            NotInserted::Failed(error) => FaultError::of_object(error, at).into(),
        })?;
        match self.map_existing(page, protect) {
            // Another CPU has mapped the page already, or has removed it again.
            Err(UffdFillError::Exists(_) | UffdFillError::NoPage(_)) if !protect => Ok(page.end),
            mapped => mapped.map(|_| page.end),
        }
    }

    /// Maps pages at the beginning of `rest` that the object of the VMA has. Returns the end of
    /// what was mapped.
    ///
    /// # Errors
    /// The object does not have the first page; a PTE maps it; the VMA has no object, or is not
    /// registered; there is no memory. Nothing was mapped.
    fn map_existing(self, rest: UserRange, protect: bool) -> Result<u64, UffdFillError> {
        let page = rest.around(rest.start, self.page_shift());
        let mut retry = Retry::new(self.space);
        loop {
            match self.try_map_existing(rest, protect, &retry.retries) {
                Ok(end) => return Ok(end),
                Err(TryMapError::Failed(error)) => return Err(error),
                Err(TryMapError::VmaLocked) => retry.wait(self.space, page),
                Err(TryMapError::Raced) => {
                    self.platform().relax();
                    self.platform().resched();
                    retry.again(self.space, page);
                }
            }
        }
    }

    /// Tries once to do what [`Uffd::map_existing`] does.
    ///
    /// # Errors
    /// [`TryMapError`]; nothing was mapped.
    fn try_map_existing(self, rest: UserRange, protect: bool, retries: &Retries<'_>) -> Result<u64, TryMapError> {
        let arch = self.arch();
        let at = rest.start;
        let vmas = self.space.read_with(Some(retries));
        let vma = uffd_vma_at(&vmas, at)?;
        if vma.state == State::Locked {
            return Err(TryMapError::VmaLocked);
        }
        if vma.backing.is_anonymous() {
            return Err(UffdFillError::Unsuitable(at).into());
        }
        let object = self.object_of(vma);
        let rest = vma.range.intersect(&rest);
        let Probe { raw, level, .. } = self.tables().probe(at, rest, 0);
        let (empty, marker) = match arch.kind(raw, level) {
            Kind::None => {
                // The block lies in one page table.
                let table = arch.page_order() + arch.index_bits() as u8;
                let least = (AROUND_ORDER + arch.page_order()).min(table);
                let largest = largest_order(&object, Anon::of(self.space).advice(vma)).clamp(least, table);
                (self.tables().empty_around(at, rest, largest, least), None)
            }
            Kind::Marker if arch.marker_of(raw) == Some(Marker::UffdWp) => {
                (rest.around(at, self.page_shift()), Some(Marker::UffdWp))
            }
            Kind::Table => return Err(TryMapError::Raced),
            Kind::Busy => {
                self.platform().wait();
                return Err(TryMapError::Raced);
            }
            _ => return Err(UffdFillError::Exists(at).into()),
        };
        let number = vma.backing.offset(at) >> self.page_shift();
        let looked = object.lookup(number, Hints::of(vma), self.tables().memcg());
        if !matches!(looked.map_err(|error| failed(error, at))?, Lookup::Page(_)) {
            return Err(UffdFillError::NoPage(at).into());
        }
        let attrs = if protect { Attrs::UFFD_WP } else { Attrs::empty() };
        let touch = Touch { vma, addr: at, access: Access::Read };
        let to_map = ToMap { empty, inserts: false, marker, attrs };
        match Fault::of(self.space).map_pages(touch, &object, to_map) {
            Ok(Outcome::Mapped(range)) => Ok(range.end),
            Ok(_) => Err(TryMapError::Raced),
            Err(error) => Err(UffdFillError::from(error).into()),
        }
    }
}

/// Returns the error of an operation for one of an object.
fn failed(error: crate::page_cache::ObjectError, at: u64) -> UffdFillError {
    FaultError::of_object(error, at).into()
}
