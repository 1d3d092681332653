//! Moves pages of anonymous memory to missing pages of a registered VMA (Linux: `UFFDIO_MOVE`).
//!
//! A move takes a run of PTEs at a time. Busy entries, at which faults wait, take the place of the
//! run at its old addresses. The TLB flush follows, and the run is mapped at the new addresses with
//! no lock held in between. Then the busy entries become empty; or, if another CPU has mapped
//! something at the new addresses, the run is put back. So no CPU finds a page at both addresses,
//! and no page is copied.
//!
//! A folio moves as a whole, because its rmap key names the addresses of all of its pages. Where
//! only a part of a folio moves, or where the new addresses are not aligned to the folio's size,
//! the page is first replaced by a copy in a folio of its own.

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::policy::Advice;
use crate::frame::{Counts, flag};
use crate::platform::Platform;
use crate::sync::Retries;
use crate::table::{Found, LockedTable, NotMapped, Run};
use crate::vma::{Prot, State, UffdId, Vma, VmaFlags};

use super::{Uffd, UffdFillError, UffdFillStopped};
use crate::space::anon::Anon;
use crate::space::fault::{Access, Fault, Retry};
use crate::space::ground::Ptes;

/// The largest number of folios that a move takes out of a page table under one hold of its lock
/// (INV-11).
const MAX_FOLIOS: usize = 128;
/// The largest number of times that a move prepares a page, by a swap-in or a copy, before it gives
/// up because the page does not stay prepared (INV-21).
const MAX_PREPARATIONS: u32 = 64;

/// The rest of a move: what is left of both ranges, of the same length.
#[derive(Clone, Copy)]
struct Route {
    from: UserRange,
    to: UserRange,
}

impl Route {
    /// Returns the part of the route after its first `len` bytes.
    fn after(self, len: u64) -> Self {
        Route { from: self.from.tail(self.from.start + len), to: self.to.tail(self.to.start + len) }
    }

    /// Returns the first `len` bytes of the route.
    fn first(self, len: u64) -> Self {
        Route { from: self.from.head(self.from.start + len), to: self.to.head(self.to.start + len) }
    }
}

/// The reason why one try moved nothing.
enum TryMoveError {
    /// The VMA around this address is locked ([`State::Locked`]).
    VmaLocked(u64),
    /// Another CPU has changed the entries, or is changing them.
    Raced,
    /// The page at the old address must first be made present and exclusive, by a write fault.
    Fault,
    /// The page at the old address was made a folio of its own, or another CPU changed it.
    Prepared,
    /// The move fails; another try would fail too.
    Failed(UffdFillError),
}

impl From<UffdFillError> for TryMoveError {
    fn from(error: UffdFillError) -> Self {
        TryMoveError::Failed(error)
    }
}

impl<'m, P: Platform> Uffd<'_, 'm, P> {
    /// Implements [`uffd_move`](crate::space::uffd_move).
    pub(super) fn uffd_move(
        self,
        uffd: UffdId,
        to: VirtRange,
        from: VirtRange,
        holes: bool,
    ) -> Result<(), UffdFillStopped> {
        let stopped = |done: u64| move |error| UffdFillStopped { done, error };
        let (to, from) = (self.exact(to).map_err(stopped(0))?, self.exact(from).map_err(stopped(0))?);
        if to.len() != from.len() {
            return Err(stopped(0)(UffdFillError::Unaligned(*from)));
        }
        let mut rest = Route { from, to };
        while !rest.to.is_empty() {
            let done = rest.to.start - to.start;
            let moved = self.move_next(uffd, rest, holes, done == 0).map_err(stopped(done))?;
            rest = rest.after(moved);
            self.platform().resched();
        }
        Ok(())
    }

    /// Moves the beginning of `rest`, and returns its length in bytes. `is_first`: nothing was
    /// moved before, so that both ranges have to lie in one VMA each.
    ///
    /// # Errors
    /// See [`uffd_move`](crate::space::uffd_move).
    fn move_next(self, uffd: UffdId, rest: Route, holes: bool, is_first: bool) -> Result<u64, UffdFillError> {
        let page = |at: u64| UserRange::all(self.arch()).around(at, self.page_shift());
        let mut retry = Retry::new(self.space);
        let mut prepared = 0;
        loop {
            match self.try_move(uffd, rest, holes, is_first, Some(&retry.retries)) {
                Ok(moved) => return Ok(moved),
                Err(TryMoveError::Failed(error)) => return Err(error),
                Err(TryMoveError::VmaLocked(at)) => retry.wait(self.space, page(at)),
                Err(TryMoveError::Raced) => {
                    self.platform().relax();
                    self.platform().resched();
                    retry.again(self.space, page(rest.to.start));
                }
                Err(TryMoveError::Fault | TryMoveError::Prepared) if prepared == MAX_PREPARATIONS => {
                    return Err(UffdFillError::Busy(rest.from.start));
                }
                Err(TryMoveError::Fault) => {
                    prepared += 1;
                    // A fault waits at the gate and for claims, so this move must hold neither.
                    drop(core::mem::replace(&mut retry, Retry::new(self.space)));
                    Fault::of(self.space).fault_in(rest.from.start, Access::Write)?;
                }
                Err(TryMoveError::Prepared) => {
                    prepared += 1;
                    self.platform().resched();
                }
            }
        }
    }

    /// Tries once to move the beginning of `rest`. Returns its length in bytes.
    ///
    /// # Errors
    /// [`TryMoveError`]; nothing was moved.
    fn try_move(
        self,
        uffd: UffdId,
        rest: Route,
        holes: bool,
        is_first: bool,
        retries: Option<&Retries<'_>>,
    ) -> Result<u64, TryMoveError> {
        let vmas = self.space.read_with(retries);
        let find = |at: u64| vmas.find(at).ok_or(UffdFillError::NotRegistered(at));
        let (target, source) = (find(rest.to.start)?, find(rest.from.start)?);
        for (vma, at) in [(target, rest.to.start), (source, rest.from.start)] {
            if vma.state == State::Locked {
                return Err(TryMoveError::VmaLocked(at));
            }
        }
        let covered = target.range.covers(&rest.to) && source.range.covers(&rest.from);
        if is_first && !covered || !may_move(source, target, uffd) {
            return Err(UffdFillError::Unsuitable(rest.to.start).into());
        }
        let len = target.range.intersect(&rest.to).len().min(source.range.intersect(&rest.from).len());
        let route = rest.first(len);
        let route = route.first(self.empty_len(route.to)?);
        let table = match self.tables().find(route.from) {
            Found::Hole(end) if holes => return Ok(end - route.from.start),
            Found::Hole(_) => return Err(UffdFillError::Hole(route.from.start).into()),
            Found::Table(table) => table,
        };
        let Some(run) = table.run(route.from.start, route.from.end) else {
            table.release();
            return Err(TryMoveError::Raced);
        };
        let error = match run.kind {
            Kind::None if holes => {
                let end = run.range(self.arch()).end;
                table.release();
                return Ok(end - route.from.start);
            }
            Kind::None => UffdFillError::Hole(route.from.start).into(),
            Kind::Leaf => return self.move_leaves(table, run, route, source, target),
            Kind::Swap => TryMoveError::Fault,
            Kind::Marker => UffdFillError::NoContents(route.from.start).into(),
            Kind::Table | Kind::Busy => TryMoveError::Raced,
        };
        table.release();
        Err(error)
    }

    /// Returns the number of bytes from the start of `to` in which nothing is mapped.
    ///
    /// # Errors
    /// [`UffdFillError::Exists`] if there are none; [`TryMoveError::Raced`].
    fn empty_len(self, to: UserRange) -> Result<u64, TryMoveError> {
        let end = match self.tables().find(to) {
            Found::Hole(end) => end,
            Found::Table(table) => {
                let run = table.run(to.start, to.end);
                table.release();
                match run {
                    Some(run) if run.kind == Kind::None => run.range(self.arch()).end,
                    Some(_) => return Err(UffdFillError::Exists(to.start).into()),
                    None => return Err(TryMoveError::Raced),
                }
            }
        };
        Ok(end.min(to.end) - to.start)
    }

    /// Moves the leaf PTEs at the start of `run`, which was read under the lock of `table`: whole
    /// folios that are exclusive to the space, or PTEs of the zero folio. Releases the lock.
    /// Returns the number of bytes.
    ///
    /// # Errors
    /// [`TryMoveError`]; nothing was moved.
    fn move_leaves(
        self,
        table: LockedTable<'_, 'm, P>,
        mut run: Run,
        route: Route,
        source: &Vma,
        target: &Vma,
    ) -> Result<u64, TryMoveError> {
        let arch = self.arch();
        let at = route.from.start;
        let is_zeros = self.machine().zero_folio().contains(run.pfn(arch));
        if is_zeros || run.level > 1 {
            run.len = 1;
        }
        let whole = run.range(arch);
        if run.va != at || whole.end > route.from.end || run.level > 1 && !self.fits_huge(&run, route, target) {
            table.release();
            let page = source.range.around(at, self.page_shift());
            self.tables().split_edges(page).map_err(UffdFillError::NoMemory)?;
            return Err(TryMoveError::Prepared);
        }
        if !is_zeros {
            match self.movable_len(&run, route, target) {
                Ok(0) => {
                    table.release();
                    return Err(self.make_single(source, at));
                }
                Ok(len) => run.len = len,
                Err(error) => {
                    table.release();
                    return Err(error);
                }
            }
        }
        let (from, len) = (run.range(arch), run.range(arch).len());
        let to = route.to.head(route.to.start + len);
        let shift = table.shift();
        let mut taken = None;
        let place = table.make_busy(from, |removed| taken = Some((removed.pfn, removed.unsplit())));
        self.tables().tlb.invalidate(&[from], shift, false);
        let Some((pfn, _)) = taken else {
            place.fill(&run);
            return Err(TryMoveError::Raced);
        };
        let new = match is_zeros {
            true => Fault::of(self.space).zero_ptes(target, to, Attrs::empty()),
            false => {
                self.set_rmap_keys(pfn, run.frames(arch), target, to.start);
                let attrs = Ptes::of(self.space).exclusive_attrs(target, Attrs::empty());
                Run::new(to.start, run.level, Kind::Leaf, arch.leaf(pfn.addr(), attrs, run.level), run.len)
            }
        };
        let mapped = match new.range(arch).len() == len && new.level == run.level {
            true => self.tables().map_run(to, &new),
            false => Err(NotMapped::Occupied),
        };
        match mapped {
            Ok(()) => {
                let mut gather = self.space.gather(source.range.intersect(&route.from));
                place.clear(from, &mut gather);
                Ok(len)
            }
            Err(error) => {
                if !is_zeros {
                    self.set_rmap_keys(pfn, run.frames(arch), source, from.start);
                }
                // Hardware may have set the bits after the PTEs were read.
                let attrs = run.attrs(arch) | Attrs::HARDWARE;
                place.fill(&Run { raw: arch.leaf(arch.leaf_addr(run.raw, run.level), attrs, run.level), ..run });
                Err(match error {
                    NotMapped::Occupied => TryMoveError::Raced,
                    NotMapped::NoMemory(refused) => UffdFillError::NoMemory(refused).into(),
                })
            }
        }
    }

    /// Returns whether a huge PTE can move as it is.
    fn fits_huge(self, run: &Run, route: Route, target: &Vma) -> bool {
        let size = 1u64 << self.arch().level_shift(run.level);
        Anon::of(self.space).advice(target) != Advice::NoHuge
            && route.to.start & (size - 1) == 0
            && route.to.len() >= size
    }

    /// Returns the number of PTEs at the start of `run` that can move together: those of whole
    /// folios to which only these PTEs refer, and for which the new addresses are aligned. Returns
    /// 0 if the first folio can't move as a whole.
    ///
    /// # Errors
    /// [`TryMoveError::Fault`]: the page is not marked as exclusive. [`UffdFillError::Busy`]: it is
    /// shared with another space, or pinned.
    fn movable_len(self, run: &Run, route: Route, target: &Vma) -> Result<usize, TryMoveError> {
        let arch = self.arch();
        let frames = self.machine().frames();
        let (head, first) = frames.head(run.pfn(arch));
        let counts = first.counts();
        let is_pinned = counts.has_unmapped_refs() && !first.has(flag::SWAP_CACHED);
        if !run.attrs(arch).contains(Attrs::EXCLUSIVE) {
            let is_shared = is_pinned || counts.maps > 1 << first.order();
            return Err(if is_shared { UffdFillError::Busy(run.va).into() } else { TryMoveError::Fault });
        }
        if is_pinned {
            return Err(UffdFillError::Busy(run.va).into());
        }
        if head != run.pfn(arch) {
            return Ok(0);
        }
        let (mut count, mut folios) = (0, 0);
        for (_, frame, pages) in frames.folios(run.pfn(arch), run.frames(arch)) {
            let place = (target.backing.offset(route.to.start) >> FRAME_SHIFT) + u64::from(count);
            let is_whole = pages == 1 << frame.order() && frame.counts() == Counts { refs: pages, maps: pages };
            let is_aligned = place & (u64::from(pages) - 1) == 0;
            if !is_whole || !is_aligned || frame.has(flag::SWAP_CACHED) || folios == MAX_FOLIOS {
                break;
            }
            count += pages;
            folios += 1;
        }
        Ok((count >> (arch.level_shift(run.level) - FRAME_SHIFT)) as usize)
    }

    /// Gives the folios in contiguous frames the rmap keys of folios that `vma` maps from `start`
    /// on.
    fn set_rmap_keys(self, pfn: Pfn, count: u32, vma: &Vma, start: u64) {
        let frames = self.machine().frames();
        for (head, frame, _) in frames.folios(pfn, count) {
            let at = start + (u64::from(head.0 - pfn.0) << FRAME_SHIFT);
            frame.set_data(Anon::of(self.space).rmap_key(vma, at).pack());
        }
    }

    /// Replaces a page that is exclusive to the space by a copy in a folio of its own. Returns the
    /// reason to try again, or to fail.
    fn make_single(self, vma: &Vma, at: u64) -> TryMoveError {
        let arch = self.arch();
        let new = Anon::of(self.space).alloc_or_smaller(vma, at, arch.page_order(), 0, false);
        let (pfn, order) = match new {
            Ok(new) => new,
            Err(refused) => return UffdFillError::NoMemory(refused).into(),
        };
        let page = vma.range.around(at, self.page_shift());
        if let Found::Table(table) = self.tables().find(page) {
            let run = table.run(page.start, page.end).filter(|run| {
                let is_exclusive = run.kind == Kind::Leaf && run.attrs(arch).contains(Attrs::EXCLUSIVE);
                let is_pinned = || self.machine().frames().head(run.pfn(arch)).1.counts().has_unmapped_refs();
                is_exclusive && run.level == 1 && !self.machine().zero_folio().contains(run.pfn(arch)) && !is_pinned()
            });
            if run.is_some() {
                Anon::of(self.space).replace_part::<1>(table, vma, page, pfn);
                return TryMoveError::Prepared;
            }
            table.release();
        }
        self.machine().put_folio(pfn, 1 << order, 1 << order);
        TryMoveError::Prepared
    }
}

/// Returns whether pages of `source` may move to `target`: both are anonymous, writable and alike,
/// and `target` is registered with `uffd`.
fn may_move(source: &Vma, target: &Vma, uffd: UffdId) -> bool {
    let is_locked = |vma: &Vma| vma.flags.contains(VmaFlags::LOCKED);
    source.backing.is_anonymous()
        && target.backing.is_anonymous()
        && source.prot == target.prot
        && source.prot.contains(Prot::WRITE)
        && is_locked(source) == is_locked(target)
        && target.uffd == Some(uffd)
}
