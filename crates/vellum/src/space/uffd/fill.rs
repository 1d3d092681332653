//! Fills missing pages of registered VMAs: with contents, zeros or poison (Linux: `UFFDIO_COPY`,
//! `UFFDIO_ZEROPAGE`, `UFFDIO_POISON`), by the folio, as large as policy allows and the range has
//! room for.
//!
//! Other CPUs map and clear the same pages meanwhile, so a place may have changed between a look
//! and the lock of its page table. Then the attempt begins again, and after a number of attempts
//! with the range claimed and the gate closed, as a fault's does (INV-21). The contents are there
//! before the first attempt: they come from a callback that may fault in the same space, and a
//! fault waits for claims and at the gate.

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, BadRange, Kind, Marker, UserRange};
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::sync::Retries;
use crate::table::{NotMapped, Probe, Run};
use crate::vma::{State, Vma, VmaFlags};

use super::Uffd;
use crate::space::anon::Anon;
use crate::space::fault::{Fault, FaultError, Retry};
use crate::space::ground::{LeafShape, Ptes, Vmas};

/// Why no more was put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UffdFillError {
    /// The range is not in whole pages.
    Unaligned(VirtRange),
    /// The range reaches beyond the addresses of user mode.
    OutOfRange(VirtRange),
    /// There is no VMA, or nobody watches it.
    NotRegistered(u64),
    /// Something is there already.
    Exists(u64),
    /// The contents can't be had.
    NoContents(u64),
    /// The machine has no memory left.
    NoMemory(Refused),
}

impl UffdFillError {
    /// What Linux's requests to a `userfaultfd` answer.
    pub const fn errno(&self) -> Errno {
        match self {
            UffdFillError::Unaligned(_) | UffdFillError::OutOfRange(_) => Errno::EINVAL,
            UffdFillError::NotRegistered(_) => Errno::ENOENT,
            UffdFillError::Exists(_) => Errno::EEXIST,
            UffdFillError::NoContents(_) => Errno::EFAULT,
            UffdFillError::NoMemory(_) => Errno::ENOMEM,
        }
    }
}

impl core::fmt::Display for UffdFillError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            UffdFillError::Unaligned(range) => write!(f, "{range:?} is not in whole pages"),
            UffdFillError::OutOfRange(range) => write!(f, "{range:?} reaches beyond the addresses of user mode"),
            UffdFillError::NotRegistered(addr) => write!(f, "nobody watches {addr:#x}"),
            UffdFillError::Exists(addr) => write!(f, "something is at {addr:#x} already"),
            UffdFillError::NoContents(addr) => write!(f, "no contents for {addr:#x}"),
            UffdFillError::NoMemory(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for UffdFillError {}

may_be_refused!(UffdFillError);

impl From<FaultError> for UffdFillError {
    fn from(error: FaultError) -> Self {
        match error {
            FaultError::NoMemory(why) => UffdFillError::NoMemory(why),
            _ => UffdFillError::NoMemory(Refused::OutOfMemory),
        }
    }
}

/// Not all of a range was supplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UffdFillStopped {
    /// How many bytes were, from its beginning.
    pub done: u64,
    /// Why no more.
    pub why: UffdFillError,
}

/// Something to put in a place.
#[derive(Clone, Copy)]
enum What {
    /// A folio of this order that has its contents, mapped by entries with these marks.
    Folio(Pfn, u8, Attrs),
    /// The folio of zeros.
    Zeros,
    /// Markers.
    Poison,
}

/// A block that held nothing at the last look, or equal markers.
struct Place {
    block: UserRange,
    order: u8,
    marked: Option<Marker>,
}

/// A folio that has its contents, and is not mapped yet.
struct FilledFolio {
    /// Its first frame.
    pfn: Pfn,
    /// Its order.
    order: u8,
    /// Its place, if a look found one.
    place: Option<Place>,
}

/// Why an attempt put nothing there.
enum NotPut {
    /// A change of the VMA is under way.
    Locked,
    /// Another CPU has changed the place, or is about to.
    Changed,
    /// A new attempt fails as well.
    Failed(UffdFillError),
}

impl From<UffdFillError> for NotPut {
    fn from(error: UffdFillError) -> Self {
        NotPut::Failed(error)
    }
}

impl<P: Platform, A: Arch> Uffd<'_, '_, P, A> {
    /// Implements [`AddressSpace::fill`].
    pub(super) fn uffd_copy(
        self,
        range: VirtRange,
        protect: bool,
        mut contents: impl FnMut(u64, &mut [u8]) -> Result<(), ()>,
    ) -> Result<(), UffdFillStopped> {
        let marks = if protect { Attrs::UFFD_WP } else { Attrs::empty() };
        let mut orders = u32::MAX;
        self.fill_range(range, |rest| {
            let at = rest.start;
            let filled = self.filled_folio(rest, orders, |bytes| contents(at - range.start, bytes))?;
            let FilledFolio { pfn, order, place: seen } = filled;
            let block = rest.around(at, order as u32 + FRAME_SHIFT);
            let put = self.put(block, What::Folio(pfn, order, marks), seen);
            if put != Ok(block.end) {
                self.machine().put_folio(pfn, 1 << order, 1 << order);
            }
            // Where a larger folio has lost its room, a single page comes next: it has room
            // wherever anything has, so `contents` is called twice a piece at most.
            orders = if put == Ok(at) { 0 } else { u32::MAX };
            put
        })
    }

    /// Implements [`AddressSpace::fill_zeros`].
    pub(super) fn uffd_zeropage(self, range: VirtRange) -> Result<(), UffdFillStopped> {
        self.fill_range(range, |rest| self.put(rest, What::Zeros, None))
    }

    /// Implements [`AddressSpace::poison`].
    pub(super) fn uffd_poison(self, range: VirtRange) -> Result<(), UffdFillStopped> {
        self.fill_range(range, |rest| self.put(rest, What::Poison, None))
    }

    /// Has `next` supply a piece of what is left, again and again; `next` returns how far it got.
    fn fill_range(
        self,
        range: VirtRange,
        mut next: impl FnMut(UserRange) -> Result<u64, UffdFillError>,
    ) -> Result<(), UffdFillStopped> {
        let mut rest = UserRange::exact(self.arch(), range).map_err(|bad| {
            let why = match bad {
                BadRange::Beyond(_) => UffdFillError::OutOfRange(range),
                BadRange::Unaligned(_) | BadRange::Overflow => UffdFillError::Unaligned(range),
            };
            UffdFillStopped { done: 0, why }
        })?;
        while !rest.is_empty() {
            match next(rest) {
                Ok(at) => rest = rest.tail(at),
                Err(why) => return Err(UffdFillStopped { done: rest.start - range.start, why }),
            }
            self.platform().resched();
        }
        Ok(())
    }

    /// Allocates a folio for the beginning of `rest`, of one of `orders` or of a page, as large as
    /// there is room, and has `contents` fill it. `contents` may fault in this space, and so wait
    /// for a change of the VMAs or at the gate: the caller holds nothing that those wait for.
    fn filled_folio(
        self,
        rest: UserRange,
        orders: u32,
        contents: impl FnOnce(&mut [u8]) -> Result<(), ()>,
    ) -> Result<FilledFolio, UffdFillError> {
        let at = rest.start;
        let vmas = self.space.read();
        let vma = uffd_vma_at(&vmas, at)?;
        let orders = orders & Anon::of(self.space).orders(vma);
        let place = match self.find_place(vma, rest, orders) {
            Ok(place) => Some(place),
            Err(NotPut::Failed(why)) => return Err(why),
            // The caller waits for the place once the contents are there. A page needs no more room
            // than there is.
            Err(NotPut::Locked | NotPut::Changed) => None,
        };
        let (order, orders) = place.as_ref().map_or((self.arch().page_order(), 0), |place| (place.order, orders));
        let (pfn, order) = Anon::of(self.space).alloc_or_smaller(vma, at, order, orders, false)?;
        drop(vmas);
        let bytes = self.machine().frames().at(pfn.addr());
        // SAFETY: `new_folio` returned frames of that many bytes, in the direct map. No page table
        // maps them and no object has them, and the engine reads and writes a folio only for one of
        // those: until `put` maps this one, which comes after the slice has ended, nothing else
        // accesses it.
        let bytes = unsafe { core::slice::from_raw_parts_mut(bytes.as_ptr(), 1 << (order as u32 + FRAME_SHIFT)) };
        if contents(bytes).is_err() {
            self.machine().put_folio(pfn, 1 << order, 1 << order);
            return Err(UffdFillError::NoContents(at));
        }
        let block = rest.around(at, order as u32 + FRAME_SHIFT);
        Ok(FilledFolio { pfn, order, place: place.map(|place| Place { block, order, ..place }) })
    }

    /// Puts something at the beginning of `rest`, and returns how far it reaches: as far as there
    /// is room. A folio covers all of `rest` or is not put there: then that is how far. Ends after
    /// a bounded number of attempts (INV-21), as a fault does.
    #[inline]
    fn put(self, rest: UserRange, what: What, seen: Option<Place>) -> Result<u64, UffdFillError> {
        match self.try_put(rest, what, seen, None) {
            Ok(end) => Ok(end),
            Err(why) => self.put_in_turn(rest, what, why),
        }
    }

    /// Goes on with what an attempt has not put there.
    #[cold]
    fn put_in_turn(self, rest: UserRange, what: What, mut why: NotPut) -> Result<u64, UffdFillError> {
        let page = rest.around(rest.start, self.page_shift());
        let mut retry = Retry::new(self.space);
        loop {
            match why {
                NotPut::Failed(why) => return Err(why),
                NotPut::Locked => retry.wait(self.space, page),
                NotPut::Changed => {
                    self.platform().relax();
                    self.platform().resched();
                    retry.again(self.space, page);
                }
            }
            match self.try_put(rest, what, None, Some(&retry.retries)) {
                Ok(end) => return Ok(end),
                Err(again) => why = again,
            }
        }
    }

    /// An attempt at [`AddressSpace::put`], in the place that the caller has seen, if that is still
    /// in one VMA.
    #[inline]
    fn try_put(
        self,
        rest: UserRange,
        what: What,
        seen: Option<Place>,
        patience: Option<&Retries<'_>>,
    ) -> Result<u64, NotPut> {
        let arch = self.arch();
        let vmas = self.space.read_with(patience);
        let vma = uffd_vma_at(&vmas, rest.start)?;
        let place = match seen {
            Some(place) if vma.state == State::Live && vma.range.covers(&place.block) => place,
            _ => {
                let orders = match what {
                    What::Folio(_, order, _) => 1 << order,
                    What::Zeros => Fault::of(self.space).zero_orders(Anon::of(self.space).orders(vma)),
                    // As much as a table holds, at most.
                    What::Poison => (2 << (arch.level_shift(2) - FRAME_SHIFT)) - 1,
                };
                self.find_place(vma, rest, orders)?
            }
        };
        let block = place.block;
        let run = match what {
            What::Folio(_, order, _) if order != place.order => return Ok(rest.start),
            What::Folio(pfn, order, marks) => {
                let LeafShape { level, entries } = Ptes::of(self.space).leaf_shape(order);
                let attrs = Ptes::of(self.space).exclusive_attrs(vma, marks);
                let frames = self.machine().frames();
                // Since the folio was allocated, another VMA may have moved here.
                frames.frame(pfn).set_data(Anon::of(self.space).rmap_key(vma, block.start).pack());
                frames.sync_icache(pfn, 1 << order, attrs);
                Run::new(block.start, level, Kind::Leaf, arch.leaf(pfn.addr(), attrs, level), entries)
            }
            _ if place.marked.is_some() => return Err(UffdFillError::Exists(block.start).into()),
            What::Zeros => Fault::of(self.space).zero_ptes(vma, block, Attrs::empty()),
            What::Poison => {
                let entries = (block.len() >> arch.page_shift()) as usize;
                Run::new(block.start, 1, Kind::Marker, arch.marker_pte(Marker::Poison), entries)
            }
        };
        let put = match place.marked {
            Some(_) => Fault::of(self.space).map_over_markers(block, &run, place.marked),
            None => match self.tables().map_run(block, &run) {
                Ok(()) => true,
                Err(NotMapped::Occupied) => false,
                Err(NotMapped::NoMemory(why)) => return Err(UffdFillError::NoMemory(why).into()),
            },
        };
        if !put {
            return Err(NotPut::Changed);
        }
        if let What::Folio(_, order, _) = what {
            self.tables().slot().add(SpaceCounter::Anon, 1 << order);
        }
        Ok(block.end)
    }

    /// Returns the largest block of these orders, or of a page, that begins where `rest` does and
    /// holds nothing, or equal markers. A look: what it finds may have changed when the caller
    /// locks the page table.
    fn find_place(self, vma: &Vma, rest: UserRange, orders: u32) -> Result<Place, NotPut> {
        let arch = self.arch();
        if vma.state == State::Locked {
            return Err(NotPut::Locked);
        }
        let (at, window) = (rest.start, vma.range.intersect(&rest));
        let Probe { raw, level, order } = self.tables().probe(at, window, orders);
        match arch.kind(raw, level) {
            Kind::None => Ok(Place { block: window.around(at, order as u32 + FRAME_SHIFT), order, marked: None }),
            Kind::Marker if arch.marker_of(raw).is_some_and(|marker| marker != Marker::Guard) => {
                let marked = arch.marker_of(raw);
                let (block, order) = Fault::of(self.space).marked_block(window, at, orders, marked);
                Ok(Place { block, order, marked })
            }
            Kind::Table => Err(NotPut::Changed),
            Kind::Busy => {
                self.platform().wait();
                Err(NotPut::Changed)
            }
            _ => Err(UffdFillError::Exists(at).into()),
        }
    }
}

/// Returns the VMA at an address whose missing pages may be supplied: it is watched, and anonymous.
fn uffd_vma_at(vmas: &Vmas, addr: u64) -> Result<&Vma, UffdFillError> {
    let is_supplied = |vma: &&Vma| vma.flags.intersects(VmaFlags::UFFD_FLAGS) && vma.backing.is_anonymous();
    vmas.find(addr).filter(is_supplied).ok_or(UffdFillError::NotRegistered(addr))
}
