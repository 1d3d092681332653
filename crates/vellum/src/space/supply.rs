//! What whoever watches an area ([`super::watch`]) puts where there is nothing: contents, zeros, or poison. By the folio, as large as
//! policy allows and the range has room for.

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, BadRange, Kind, Marker, UserRange};
use crate::errno::Errno;
use crate::group::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::table::{NotMapped, Run};
use crate::vma::{AreaFlags, State, Vma};

use super::{AddressSpace, FaultError};

/// Why no more was put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SupplyError {
    /// The range is not in whole pages.
    Unaligned(VirtRange),
    /// The range reaches beyond the addresses of user mode.
    OutOfRange(VirtRange),
    /// There is no area, or nobody watches it.
    NotWatched(u64),
    /// Something is there already.
    Exists(u64),
    /// The contents can't be had.
    NoContents(u64),
    /// The machine has no memory left.
    NoMemory(Refused),
}

impl SupplyError {
    /// What Linux's requests to a `userfaultfd` answer.
    pub const fn errno(&self) -> Errno {
        match self {
            SupplyError::Unaligned(_) | SupplyError::OutOfRange(_) => Errno::EINVAL,
            SupplyError::NotWatched(_) => Errno::ENOENT,
            SupplyError::Exists(_) => Errno::EEXIST,
            SupplyError::NoContents(_) => Errno::EFAULT,
            SupplyError::NoMemory(_) => Errno::ENOMEM,
        }
    }
}

impl core::fmt::Display for SupplyError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SupplyError::Unaligned(range) => write!(f, "{range:?} is not in whole pages"),
            SupplyError::OutOfRange(range) => write!(f, "{range:?} reaches beyond the addresses of user mode"),
            SupplyError::NotWatched(addr) => write!(f, "nobody watches {addr:#x}"),
            SupplyError::Exists(addr) => write!(f, "something is at {addr:#x} already"),
            SupplyError::NoContents(addr) => write!(f, "no contents for {addr:#x}"),
            SupplyError::NoMemory(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for SupplyError {}

may_be_refused!(SupplyError);

impl From<FaultError> for SupplyError {
    fn from(error: FaultError) -> Self {
        match error {
            FaultError::NoMemory(why) => SupplyError::NoMemory(why),
            _ => SupplyError::NoMemory(Refused::OutOfMemory),
        }
    }
}

/// Not all of a range was supplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// How many bytes were, from its beginning.
    pub done: u64,
    /// Why no more.
    pub why: SupplyError,
}

/// Where something is to be put.
struct Place {
    area: Vma,
    block: UserRange,
    order: u8,
    /// Which smaller ones would do.
    orders: u32,
    /// What markers stand there.
    marked: Option<Marker>,
}

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Put memory where there is none, or what there was is lost, in a range of areas that are watched. Each page appears with its contents: `contents` is given how far
    /// into the range a piece lies, and the piece to fill, of one page or more; no lock is held, so it may fault. `protect`: writes to it
    /// are watched for ([`AddressSpace::write_protect`]).
    ///
    /// # Errors
    /// [`Stopped`] where something is there already, where nobody watches, or where `contents` has none.
    pub fn fill(
        &self,
        range: VirtRange,
        protect: bool,
        mut contents: impl FnMut(u64, &mut [u8]) -> Result<(), ()>,
    ) -> Result<(), Stopped> {
        let marks = if protect { Attrs::WATCHED } else { Attrs::empty() };
        self.supply(range, |rest| {
            let areas = self.read();
            let Some(place) = self.place(&areas, rest, |area| self.orders(area))? else { return Ok(rest.start) };
            let (pfn, order) = self.new_folio(&place.area, rest.start, place.order, place.orders, false)?;
            drop(areas);
            let block = place.block.around(rest.start, order as u32 + FRAME_SHIFT);
            let bytes = self.tables.machine.frames().at(pfn.addr());
            // SAFETY: a folio that was just allocated and is not mapped yet: nobody else reads or writes what it holds.
            let bytes = unsafe { core::slice::from_raw_parts_mut(bytes.as_ptr(), block.len() as usize) };
            let filled = contents(rest.start - range.start, bytes);
            let mapped = filled.map_err(|()| SupplyError::NoContents(rest.start)).and_then(|()| {
                let place = Place { block, order, ..place };
                self.map_filled(&place, pfn, marks)
            });
            if mapped != Ok(true) {
                self.tables.machine.put_folio(pfn, 1 << order, 1 << order);
            }
            Ok(if mapped? { block.end } else { rest.start })
        })
    }

    /// Map zeros where there is nothing, in a range of areas that are watched.
    ///
    /// # Errors
    /// [`Stopped`] where something is there already, or nobody watches.
    pub fn fill_zeros(&self, range: VirtRange) -> Result<(), Stopped> {
        self.supply(range, |rest| {
            let areas = self.read();
            let orders = |area: &Vma| self.zeros_orders(self.orders(area));
            let Some(place) = self.place(&areas, rest, orders)? else { return Ok(rest.start) };
            let run = self.zeros_run(&place.area, place.block, Attrs::empty());
            self.put_first(&place, &run)
        })
    }

    /// What there is nothing of, in a range of areas that are watched, is lost: whoever touches it is told so ([`FaultError::Poisoned`]).
    ///
    /// # Errors
    /// [`Stopped`] where something is there already, or nobody watches.
    pub fn poison(&self, range: VirtRange) -> Result<(), Stopped> {
        let arch = &self.tables.arch;
        // As much as a table holds, at most.
        let table = arch.level_shift(2) - FRAME_SHIFT;
        self.supply(range, |rest| {
            let areas = self.read();
            let Some(place) = self.place(&areas, rest, |_| (2 << table) - 1)? else { return Ok(rest.start) };
            let entries = (place.block.len() >> arch.page_shift()) as usize;
            let run = Run::new(place.block.start, 1, Kind::Marker, arch.marker(Marker::Poison), entries);
            self.put_first(&place, &run)
        })
    }

    /// Have `next` supply a piece of what is left, again and again; its answer is how far that was.
    fn supply(
        &self,
        range: VirtRange,
        mut next: impl FnMut(UserRange) -> Result<u64, SupplyError>,
    ) -> Result<(), Stopped> {
        let mut rest = UserRange::exact(&self.tables.arch, range).map_err(|bad| {
            let why = match bad {
                BadRange::Beyond(_) => SupplyError::OutOfRange(range),
                BadRange::Unaligned(_) | BadRange::Overflow => SupplyError::Unaligned(range),
            };
            Stopped { done: 0, why }
        })?;
        let mut turn = None;
        while !rest.is_empty() {
            match next(rest) {
                // What keeps it out is a change, or else a fault: that ends by itself.
                Ok(at) if at == rest.start => match &turn {
                    None => turn = Some(self.turn(rest)),
                    Some(_) => self.tables.platform().relax(),
                },
                Ok(at) => rest = rest.tail(at),
                Err(why) => return Err(Stopped { done: rest.start - range.start, why }),
            }
            self.tables.platform().resched();
        }
        Ok(())
    }

    /// The largest block of some orders that begins a range and has nothing in it, or markers that are alike. None: the area is not to be touched for a while.
    fn place(
        &self,
        areas: &super::areas::Areas,
        rest: UserRange,
        orders: impl Fn(&Vma) -> u32,
    ) -> Result<Option<Place>, SupplyError> {
        let arch = &self.tables.arch;
        let at = rest.start;
        let watched = areas.find(at).filter(|area| is_supplied(area));
        let area = *watched.ok_or(SupplyError::NotWatched(at))?;
        if area.state == State::Held {
            return Ok(None);
        }
        let (window, orders) = (area.range.intersect(&rest), orders(&area));
        let (raw, level, order) = self.tables.room(at, window, orders);
        let (block, order, marked) = match arch.kind(raw, level) {
            Kind::None => (window.around(at, order as u32 + FRAME_SHIFT), order, None),
            Kind::Marker if arch.marked(raw).is_some_and(|marker| marker != Marker::Guard) => {
                let marked = arch.marked(raw);
                let (block, order) = self.marked_block(window, at, orders, marked);
                (block, order, marked)
            }
            Kind::Table | Kind::Busy => return Ok(None),
            _ => return Err(SupplyError::Exists(at)),
        };
        Ok(Some(Place { area, block, order, orders, marked }))
    }

    /// Write a run there. `false`: it is not what it was.
    fn put(&self, place: &Place, run: &Run) -> Result<bool, SupplyError> {
        if place.marked.is_some() {
            return Ok(self.map_over_markers(place.block, run, place.marked));
        }
        match self.tables.map_run(place.block, run) {
            Ok(()) => Ok(true),
            Err(NotMapped::Occupied) => Ok(false),
            Err(NotMapped::NoMemory(why)) => Err(why.into()),
        }
    }

    /// The same, where not even markers stand.
    fn put_first(&self, place: &Place, run: &Run) -> Result<u64, SupplyError> {
        if place.marked.is_some() {
            return Err(SupplyError::Exists(place.block.start));
        }
        Ok(if self.put(place, run)? { place.block.end } else { place.block.start })
    }

    /// Map a folio that has its contents. `false`: the place is not what it was.
    fn map_filled(&self, place: &Place, pfn: Pfn, marks: Attrs) -> Result<bool, SupplyError> {
        let arch = &self.tables.arch;
        let areas = self.read();
        let watched = areas.find(place.block.start).filter(|area| is_supplied(area));
        let area = watched.ok_or(SupplyError::NotWatched(place.block.start))?;
        if area.state != State::Live || !area.range.covers(&place.block) {
            return Ok(false);
        }
        let (level, entries) = self.shape(place.order);
        let attrs = self.own_attrs(area, marks);
        let frames = 1 << place.order;
        self.tables.machine.frames().expose(pfn, frames, attrs);
        let raw = arch.leaf(pfn.addr(), attrs, level);
        let put = self.put(place, &Run::new(place.block.start, level, Kind::Leaf, raw, entries))?;
        if put {
            self.tables.slot().add(SpaceCounter::Anon, frames as i64);
        }
        Ok(put)
    }
}

/// Whether somebody who watches an area may supply what it holds: it is anonymous memory.
fn is_supplied(area: &Vma) -> bool {
    area.flags.intersects(AreaFlags::WATCHES) && area.backing.is_anonymous()
}
