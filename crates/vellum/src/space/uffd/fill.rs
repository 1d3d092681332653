//! Fills missing pages of registered VMAs with contents, with zeros, or with poison markers (Linux:
//! `UFFDIO_COPY`, `UFFDIO_ZEROPAGE`, `UFFDIO_POISON`). Contents go to folios as large as policy and
//! the range permit.
//!
//! A fill looks for a block of missing pages (empty PTEs, or PTEs with equal markers) without a
//! lock, then locks the block's page table and writes the new PTEs. Other CPUs may map or unmap
//! pages of the block in between; then the fill tries again. After a fixed number of tries, the
//! fill claims the page ([`Change`](crate::space::ground::Change)), so that no other operation
//! changes its VMA, and closes the space's gate, at which new faults and other disturbing
//! operations wait ([`Retry`]). So the number of tries is bounded (INV-21).
//!
//! The folio gets its contents before the first try. They come from a callback that may fault in
//! the same space, and such a fault would wait for the fill's claim and at the closed gate.

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, BadRange, Kind, Marker, UserRange};
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::{PendingPage, Platform};
use crate::stats::SpaceCounter;
use crate::sync::Retries;
use crate::table::{NotMapped, Probe, Run};
use crate::vma::{State, Vma, VmaFlags};

use super::Uffd;
use crate::space::anon::Anon;
use crate::space::fault::{Fault, FaultError, Retry};
use crate::space::ground::{LeafShape, Ptes, Vmas};

/// The reason why a page was not filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UffdFillError {
    /// The start or the end of this range is not a multiple of the page size.
    Unaligned(VirtRange),
    /// This range reaches beyond the addresses of user mode.
    OutOfRange(VirtRange),
    /// No VMA that is registered with a userfaultfd is at this address, or it ends before the range
    /// does.
    NotRegistered(u64),
    /// The VMA at this address doesn't support the operation: it is not registered for write
    /// protection or has no object; or two VMAs of a move are not alike.
    Unsuitable(u64),
    /// The page at this address is not missing.
    Exists(u64),
    /// The caller failed to provide the contents for this address; or a move has met a page there
    /// whose contents were lost, or a guard page.
    NoContents(u64),
    /// The object behind the VMA has no page for this address, or ends before it.
    NoPage(u64),
    /// There is nothing at this address that could be moved.
    Hole(u64),
    /// The page at this address is shared with another space, or the host refers to it.
    Busy(u64),
    /// The host is reading or moving this page of the object
    /// ([`FaultError::Pending`](crate::space::FaultError::Pending)).
    Pending(PendingPage),
    /// The machine is out of memory, or a memcg is at its limit.
    NoMemory(Refused),
}

impl UffdFillError {
    /// Returns the error number of Linux's `ioctl`s on a userfaultfd.
    pub const fn errno(&self) -> Errno {
        match self {
            UffdFillError::Unaligned(_) | UffdFillError::OutOfRange(_) => Errno::EINVAL,
            UffdFillError::Unsuitable(_) => Errno::EINVAL,
            UffdFillError::NotRegistered(_) | UffdFillError::Hole(_) => Errno::ENOENT,
            UffdFillError::Exists(_) => Errno::EEXIST,
            UffdFillError::NoContents(_) | UffdFillError::NoPage(_) => Errno::EFAULT,
            UffdFillError::Busy(_) => Errno::EBUSY,
            UffdFillError::Pending(_) => Errno::EAGAIN,
            UffdFillError::NoMemory(_) => Errno::ENOMEM,
        }
    }
}

impl core::fmt::Display for UffdFillError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            UffdFillError::Unaligned(range) => {
                write!(f, "{range:?} is not in whole pages: align its start and end")
            }
            UffdFillError::OutOfRange(range) => write!(f, "{range:?} reaches beyond the addresses of user mode"),
            UffdFillError::NotRegistered(addr) => {
                write!(
                    f,
                    "no VMA at {addr:#x} is registered with a userfaultfd, or it ends too early: register it first"
                )
            }
            UffdFillError::Unsuitable(addr) => {
                write!(f, "the VMA at {addr:#x} does not support this: check its modes, its object and its protection")
            }
            UffdFillError::Exists(addr) => write!(f, "the page at {addr:#x} is not missing: skip it"),
            UffdFillError::NoContents(addr) => write!(f, "the contents for the page at {addr:#x} could not be read"),
            UffdFillError::NoPage(addr) => write!(f, "the object has no page for {addr:#x}: write to the object first"),
            UffdFillError::Hole(addr) => write!(f, "nothing is mapped at {addr:#x}: allow holes, or skip the page"),
            UffdFillError::Busy(addr) => write!(f, "the page at {addr:#x} is shared or pinned: copy it instead"),
            UffdFillError::Pending(page) => page.fmt(f),
            UffdFillError::NoMemory(refused) => refused.fmt(f),
        }
    }
}

impl core::error::Error for UffdFillError {}

may_be_refused!(UffdFillError);

impl From<FaultError> for UffdFillError {
    fn from(error: FaultError) -> Self {
        match error {
            FaultError::NoMemory(refused) => UffdFillError::NoMemory(refused),
            FaultError::Pending(page) => UffdFillError::Pending(page),
            FaultError::Unmapped(addr) => UffdFillError::NotRegistered(addr),
            FaultError::Denied(addr) => UffdFillError::Unsuitable(addr),
            FaultError::BeyondEnd(addr) => UffdFillError::NoPage(addr),
            FaultError::NoHugePage(addr) | FaultError::Poisoned(addr) => UffdFillError::NoContents(addr),
            FaultError::TooManyReferences(addr) => UffdFillError::Busy(addr),
            FaultError::Uffd(event) => UffdFillError::Busy(event.page),
        }
    }
}

/// The error of a fill that did not reach the end of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UffdFillStopped {
    /// The number of bytes that were filled, from the beginning of the range.
    pub done: u64,
    /// The reason why the next page was not filled.
    pub error: UffdFillError,
}

/// The PTEs that a fill writes for missing pages.
#[derive(Clone, Copy)]
enum Fill {
    /// Leaf PTEs that map a folio, which has its contents.
    Folio {
        /// The first frame of the folio.
        pfn: Pfn,
        /// The order of the folio.
        order: u8,
        /// The attributes of the PTEs, besides those that all new memory of the VMA gets.
        attrs: Attrs,
    },
    /// Leaf PTEs that map the zero folio.
    Zeros,
    /// Poison markers.
    Poison,
}

/// A naturally aligned block of missing pages. When it was found, its entries were all empty, or
/// all the same marker. Other CPUs may have changed them since.
struct MissingBlock {
    /// The addresses of the block.
    range: UserRange,
    /// The order of the block.
    order: u8,
    /// The marker, if the entries are not empty.
    marker: Option<Marker>,
}

/// A folio that has its contents, and is not mapped yet.
struct FilledFolio {
    /// The first frame of the folio.
    pfn: Pfn,
    /// The order of the folio.
    order: u8,
    /// The missing block to map the folio in, if one was found before the folio was allocated.
    block: Option<MissingBlock>,
}

/// The reason why one try ([`Uffd::try_fill_block`]) filled nothing.
enum TryFillError {
    /// The VMA is locked ([`State::Locked`]): another operation moves or replaces it.
    VmaLocked,
    /// Another CPU has changed the entries, or is changing them.
    Raced,
    /// The fill fails; another try would fail too.
    Failed(UffdFillError),
}

impl From<UffdFillError> for TryFillError {
    fn from(error: UffdFillError) -> Self {
        TryFillError::Failed(error)
    }
}

impl<P: Platform> Uffd<'_, '_, P> {
    /// Implements [`AddressSpace::uffd_copy`](crate::space::AddressSpace::uffd_copy).
    pub(super) fn uffd_copy(
        self,
        range: VirtRange,
        protect: bool,
        mut contents: impl FnMut(u64, &mut [u8]) -> Result<(), ()>,
    ) -> Result<(), UffdFillStopped> {
        let attrs = if protect { Attrs::UFFD_WP } else { Attrs::empty() };
        let mut orders = u32::MAX;
        let needs = if protect { VmaFlags::UFFD_WP } else { VmaFlags::empty() };
        self.fill_range(range, needs, |rest, backed| {
            let at = rest.start;
            if backed == Backed::Shared {
                return self.insert_and_map(rest, protect, |bytes| contents(at - range.start, bytes));
            }
            let filled = self.prepare_folio(rest, orders, |bytes| contents(at - range.start, bytes))?;
            let FilledFolio { pfn, order, block: seen } = filled;
            let range = rest.around(at, order as u32 + FRAME_SHIFT);
            let result = self.fill_block(range, Fill::Folio { pfn, order, attrs }, seen);
            if result != Ok(range.end) {
                self.machine().put_folio(pfn, 1 << order, 1 << order);
            }
            // The result `at` means that nothing was filled: the block has become too small for the
            // folio. Then a single page is tried next, which fits wherever a page is missing. So
            // `contents` is called at most twice for a piece.
            orders = if result == Ok(at) { 0 } else { u32::MAX };
            result
        })
    }

    /// Implements [`AddressSpace::uffd_zeropage`](crate::space::AddressSpace::uffd_zeropage).
    pub(super) fn uffd_zeropage(self, range: VirtRange) -> Result<(), UffdFillStopped> {
        let zeros = |bytes: &mut [u8]| {
            bytes.fill(0);
            Ok(())
        };
        self.fill_range(range, VmaFlags::empty(), |rest, backed| match backed {
            Backed::Anonymous => self.fill_block(rest, Fill::Zeros, None),
            Backed::Shared => self.insert_and_map(rest, false, zeros),
            // The zero folio can't take the place of a private copy: a write to it would copy the
            // object's page.
            Backed::Private => {
                let FilledFolio { pfn, order, block } = self.prepare_folio(rest, 0, zeros)?;
                let page = rest.around(rest.start, self.page_shift());
                let result = self.fill_block(page, Fill::Folio { pfn, order, attrs: Attrs::empty() }, block);
                if result != Ok(page.end) {
                    self.machine().put_folio(pfn, 1 << order, 1 << order);
                }
                result
            }
        })
    }

    /// Implements [`AddressSpace::uffd_poison`](crate::space::AddressSpace::uffd_poison).
    pub(super) fn uffd_poison(self, range: VirtRange) -> Result<(), UffdFillStopped> {
        self.fill_range(range, VmaFlags::empty(), |rest, _| self.fill_block(rest, Fill::Poison, None))
    }

    /// Calls `fill_next` with the rest of `range`, and with the backing of its VMA, until nothing
    /// is left. The VMA has the flags `needs`. `fill_next` fills the beginning of what it gets, and
    /// returns the address up to which the range is filled. No lock is held between two calls.
    ///
    /// # Errors
    /// [`UffdFillStopped`], with the first error of `fill_next`, or with nothing filled if `range`
    /// is invalid.
    pub(super) fn fill_range(
        self,
        range: VirtRange,
        needs: VmaFlags,
        mut fill_next: impl FnMut(UserRange, Backed) -> Result<u64, UffdFillError>,
    ) -> Result<(), UffdFillStopped> {
        let begun = self.exact(range).and_then(|rest| Ok((rest, self.check_vma(rest, needs)?)));
        let (mut rest, backed) = begun.map_err(|error| UffdFillStopped { done: 0, error })?;
        while !rest.is_empty() {
            match fill_next(rest, backed) {
                Ok(at) => rest = rest.tail(at),
                Err(error) => return Err(UffdFillStopped { done: rest.start - range.start, error }),
            }
            self.platform().resched();
        }
        Ok(())
    }

    /// Returns the range of an operation as a [`UserRange`].
    ///
    /// # Errors
    /// [`UffdFillError::Unaligned`], [`UffdFillError::OutOfRange`].
    pub(super) fn exact(self, range: VirtRange) -> Result<UserRange, UffdFillError> {
        UserRange::exact(self.arch(), range).map_err(|bad| match bad {
            BadRange::Beyond(_) => UffdFillError::OutOfRange(range),
            BadRange::Unaligned(_) | BadRange::Overflow => UffdFillError::Unaligned(range),
        })
    }

    /// Checks that one registered VMA covers `range` and has the flags `needs`, and returns its
    /// backing.
    ///
    /// # Errors
    /// [`UffdFillError::NotRegistered`], [`UffdFillError::Unsuitable`].
    fn check_vma(self, range: UserRange, needs: VmaFlags) -> Result<Backed, UffdFillError> {
        let vmas = self.space.read();
        let vma = uffd_vma_at(&vmas, range.start)?;
        if !vma.range.covers(&range) {
            return Err(UffdFillError::NotRegistered(vma.range.end));
        }
        if !vma.flags.contains(needs) {
            return Err(UffdFillError::Unsuitable(range.start));
        }
        Ok(Backed::of(vma))
    }

    /// Allocates a folio for the beginning of `rest` and has `contents` fill it. The folio has the
    /// largest of `orders` (a bit mask) for which there is a missing block and memory, or it is a
    /// single page. `contents` runs without any lock, because it may fault in this space. Such a
    /// fault may wait for an operation that has claimed a range, or at the space's closed gate
    /// ([`Retry`]). So the caller has claimed no range and has not closed the gate.
    ///
    /// # Errors
    /// The page is not missing or its VMA is not registered, there is no memory, or `contents`
    /// failed. The folio was freed again.
    fn prepare_folio(
        self,
        rest: UserRange,
        orders: u32,
        contents: impl FnOnce(&mut [u8]) -> Result<(), ()>,
    ) -> Result<FilledFolio, UffdFillError> {
        let at = rest.start;
        let vmas = self.space.read();
        let vma = uffd_vma_at(&vmas, at)?;
        if Backed::of(vma) == Backed::Shared {
            return Err(UffdFillError::NotRegistered(at));
        }
        let orders = orders & Anon::of(self.space).orders(vma);
        let block = match self.find_missing_block(vma, rest, orders) {
            Ok(block) => Some(block),
            Err(TryFillError::Failed(error)) => return Err(error),
            // Another operation is changing the VMA or its PTEs, so that no block is known, and
            // only a single page surely fits. `fill_block` waits for that operation, once the folio
            // has its contents.
            Err(TryFillError::VmaLocked | TryFillError::Raced) => None,
        };
        let (order, orders) = block.as_ref().map_or((self.arch().page_order(), 0), |block| (block.order, orders));
        let (pfn, order) = Anon::of(self.space).alloc_or_smaller(vma, at, order, orders, false)?;
        drop(vmas);
        let bytes = self.machine().frames().at(pfn.addr());
        // SAFETY: `alloc_or_smaller` returned a new folio of `order`. Its bytes are contiguous in
        // the direct map, from `bytes` on. The engine reads and writes the contents of a folio only
        // if a page table maps it or an object has it. Neither is true of this folio before
        // `fill_block` maps it, after the last use of the slice. So nothing else accesses these
        // bytes.
        let bytes = unsafe { core::slice::from_raw_parts_mut(bytes.as_ptr(), 1 << (order as u32 + FRAME_SHIFT)) };
        if contents(bytes).is_err() {
            self.machine().put_folio(pfn, 1 << order, 1 << order);
            return Err(UffdFillError::NoContents(at));
        }
        // The folio may be smaller than the block that was found, for lack of memory.
        let range = rest.around(at, order as u32 + FRAME_SHIFT);
        Ok(FilledFolio { pfn, order, block: block.map(|block| MissingBlock { range, order, ..block }) })
    }

    /// Fills the block of missing pages at the beginning of `rest`, and returns the end of the
    /// filled range. A folio is mapped only if it fits exactly: otherwise nothing is filled, and
    /// the result is the start of `rest`. `seen` is the block that the caller has found at the
    /// beginning of `rest`. Ends after a bounded number of tries (INV-21). The caller holds no lock
    /// and has claimed no range.
    ///
    /// # Errors
    /// The page is not missing or its VMA is not registered, or there is no memory for a page
    /// table. Nothing was filled.
    #[inline]
    fn fill_block(self, rest: UserRange, fill: Fill, seen: Option<MissingBlock>) -> Result<u64, UffdFillError> {
        match self.try_fill_block(rest, fill, seen, None) {
            Ok(end) => Ok(end),
            Err(error) => self.retry_fill_block(rest, fill, error),
        }
    }

    /// Implements [`Uffd::fill_block`] after its first try failed with `error`.
    #[cold]
    fn retry_fill_block(self, rest: UserRange, fill: Fill, mut error: TryFillError) -> Result<u64, UffdFillError> {
        let page = rest.around(rest.start, self.page_shift());
        let mut retry = Retry::new(self.space);
        loop {
            match error {
                TryFillError::Failed(error) => return Err(error),
                TryFillError::VmaLocked => retry.wait(self.space, page),
                TryFillError::Raced => {
                    self.platform().relax();
                    self.platform().resched();
                    retry.again(self.space, page);
                }
            }
            match self.try_fill_block(rest, fill, None, Some(&retry.retries)) {
                Ok(end) => return Ok(end),
                Err(next) => error = next,
            }
        }
    }

    /// Tries once to do what [`Uffd::fill_block`] does. Fills the block `seen` if it still lies in
    /// one VMA, which no operation has locked ([`State::Locked`]); otherwise looks for a block
    /// again. `retries` counts the failed tries. If `retries` holds the space's gate closed, this
    /// call does not wait at the gate.
    ///
    /// # Errors
    /// [`TryFillError`]; nothing was filled.
    #[inline]
    fn try_fill_block(
        self,
        rest: UserRange,
        fill: Fill,
        seen: Option<MissingBlock>,
        retries: Option<&Retries<'_>>,
    ) -> Result<u64, TryFillError> {
        let arch = self.arch();
        let vmas = self.space.read_with(retries);
        let vma = uffd_vma_at(&vmas, rest.start)?;
        let backed = Backed::of(vma);
        let fits = match fill {
            Fill::Folio { .. } => backed != Backed::Shared,
            Fill::Zeros => backed == Backed::Anonymous,
            Fill::Poison => true,
        };
        // Another VMA may have taken the place of the one that was checked.
        if !fits {
            return Err(UffdFillError::NotRegistered(rest.start).into());
        }
        let rest = if backed == Backed::Anonymous { rest } else { self.within_object(vma, rest)? };
        let block = match seen {
            Some(block) if vma.state == State::Live && vma.range.covers(&block.range) => block,
            _ => {
                let orders = match fill {
                    Fill::Folio { order, .. } => 1 << order,
                    Fill::Zeros => Fault::of(self.space).zero_orders(Anon::of(self.space).orders(vma)),
                    // All orders up to that of the range that a lowest-level page table maps.
                    Fill::Poison => (2 << (arch.level_shift(2) - FRAME_SHIFT)) - 1,
                };
                self.find_missing_block(vma, rest, orders)?
            }
        };
        let range = block.range;
        let run = match fill {
            Fill::Folio { order, .. } if order != block.order => return Ok(rest.start),
            Fill::Folio { pfn, order, attrs } => {
                let LeafShape { level, entries } = Ptes::of(self.space).leaf_shape(order);
                let attrs = Ptes::of(self.space).exclusive_attrs(vma, attrs);
                let frames = self.machine().frames();
                // Another VMA may have moved to this address since the folio was allocated, so the
                // folio's rmap key is set anew.
                frames.frame(pfn).set_data(Anon::of(self.space).rmap_key(vma, range.start).pack());
                frames.sync_icache(pfn, 1 << order, attrs);
                Run::new(range.start, level, Kind::Leaf, arch.leaf(pfn.addr(), attrs, level), entries)
            }
            _ if block.marker.is_some() => return Err(UffdFillError::Exists(range.start).into()),
            Fill::Zeros => Fault::of(self.space).zero_ptes(vma, range, Attrs::empty()),
            Fill::Poison => {
                let entries = (range.len() >> arch.page_shift()) as usize;
                Run::new(range.start, 1, Kind::Marker, arch.marker_pte(Marker::Poison), entries)
            }
        };
        let is_filled = match block.marker {
            Some(_) => Fault::of(self.space).map_over_markers(range, &run, block.marker),
            None => match self.tables().map_run(range, &run) {
                Ok(()) => true,
                Err(NotMapped::Occupied) => false,
                Err(NotMapped::NoMemory(refused)) => return Err(UffdFillError::NoMemory(refused).into()),
            },
        };
        if !is_filled {
            return Err(TryFillError::Raced);
        }
        if let Fill::Folio { order, .. } = fill {
            self.tables().slot().add(SpaceCounter::Anon, 1 << order);
        }
        Ok(range.end)
    }

    /// Returns the largest missing block of one of `orders` (a bit mask), or of a page, that begins
    /// where `rest` does and lies in it. Looks without a lock: the block may have changed when the
    /// caller locks its page table.
    ///
    /// # Errors
    /// [`TryFillError`]; [`UffdFillError::Exists`] if the page is not missing. A page with a guard
    /// marker is not missing.
    fn find_missing_block(self, vma: &Vma, rest: UserRange, orders: u32) -> Result<MissingBlock, TryFillError> {
        let arch = self.arch();
        if vma.state == State::Locked {
            return Err(TryFillError::VmaLocked);
        }
        let (at, window) = (rest.start, vma.range.intersect(&rest));
        let Probe { raw, level, order } = self.tables().probe(at, window, orders);
        match arch.kind(raw, level) {
            Kind::None => {
                Ok(MissingBlock { range: window.around(at, order as u32 + FRAME_SHIFT), order, marker: None })
            }
            Kind::Marker if arch.marker_of(raw).is_some_and(|marker| marker != Marker::Guard) => {
                let marker = arch.marker_of(raw);
                let (range, order) = Fault::of(self.space).marked_block(window, at, orders, marker);
                Ok(MissingBlock { range, order, marker })
            }
            Kind::Table => Err(TryFillError::Raced),
            Kind::Busy => {
                self.platform().wait();
                Err(TryFillError::Raced)
            }
            _ => Err(UffdFillError::Exists(at).into()),
        }
    }
}

/// The backing of a VMA, as fills distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backed {
    /// Private anonymous memory.
    Anonymous,
    /// An object, of which writes make private copies.
    Private,
    /// An object, to which writes go.
    Shared,
}

impl Backed {
    /// Returns the backing of a VMA.
    fn of(vma: &Vma) -> Self {
        match (vma.backing.is_anonymous(), vma.backing.is_shared()) {
            (true, _) => Backed::Anonymous,
            (false, false) => Backed::Private,
            (false, true) => Backed::Shared,
        }
    }
}

/// Returns the VMA at `addr`, if it is registered with a userfaultfd.
///
/// # Errors
/// [`UffdFillError::NotRegistered`]: there is no such VMA.
pub(super) fn uffd_vma_at(vmas: &Vmas, addr: u64) -> Result<&Vma, UffdFillError> {
    let is_registered = |vma: &&Vma| vma.flags.intersects(VmaFlags::UFFD_FLAGS);
    vmas.find(addr).filter(is_registered).ok_or(UffdFillError::NotRegistered(addr))
}
