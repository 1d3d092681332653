//! The spaces that map an object: a truncation, or reclaim, asks these and no others, so that it
//! costs what is mapped and not what runs on the machine.
//!
//! # Mechanism
//! Pairs of a space's number and how many of its VMAs map the object, in the order of the numbers.
//! They stand in *rows*: the first is what the object's head leaves of its frame, each other one a
//! frame that the group of the space pays for which there was no room. Neighbours that are half
//! empty together become one, so a list is never longer than one row for each half row of spaces.
//!
//! # A child that is forked meanwhile
//! Numbers are given out in ascending order, and a child is in the list before its parent's range
//! is no longer claimed. So a visit in the order of the numbers meets every child that could have
//! got something from a space that the visit was not done with.

use core::ptr::NonNull;

use arrayvec::ArrayVec;

use super::Head;
use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::Frames;
use crate::platform::{Platform, SpaceId};

/// How many bytes of a row's frame come before it: an object's head, or nothing.
const BEFORE: usize = size_of::<Head>().next_multiple_of(align_of::<Mapper>());

/// How many pairs a row has room for.
pub(super) const ROOM: usize = (FRAME_SIZE as usize - BEFORE - size_of::<[Pfn; 3]>() - 4) / size_of::<Mapper>();

const _: () = assert!(BEFORE + size_of::<Row>() <= FRAME_SIZE as usize);

/// A space, and how many of its VMAs map the object. At least one.
#[derive(Clone, Copy)]
struct Mapper {
    space: SpaceId,
    vmas: u64,
}

struct Row {
    before: Pfn,
    after: Pfn,
    pairs: ArrayVec<Mapper, ROOM>,
}

/// The list. Rows other than the first are not empty. It is in the object's lock, and so are its
/// rows.
pub(super) struct Mappers {
    first: Pfn,
    last: Pfn,
}

impl Mappers {
    /// The list of an object that nothing maps yet, in this frame.
    ///
    /// # Safety
    /// The frame is the caller's alone, for as long as the object lives; what is behind the
    /// object's head in it is the list's.
    pub(super) unsafe fn new<P: Platform>(frames: &Frames<'_, P>, object: Pfn) -> Self {
        // SAFETY: by contract.
        unsafe { Row::init(frames, object, [Pfn::NONE; 2]) };
        Mappers { first: object, last: object }
    }

    /// Counts one more VMA of a space. A new row is made in the `spare` frame.
    ///
    /// Returns `false`, with nothing changed, if that takes a frame and there is none.
    pub(super) fn add<P: Platform>(&mut self, frames: &Frames<'_, P>, space: SpaceId, spare: &mut Option<Pfn>) -> bool {
        let at = self.seek(frames, space);
        let row = self.row(frames, at);
        let place = match row.place(space) {
            Ok(known) => {
                row.pairs[known].vmas += 1;
                return true;
            }
            Err(place) => place,
        };
        let new = Mapper { space, vmas: 1 };
        if !row.pairs.is_full() {
            row.pairs.insert(place, new);
            return true;
        }
        let Some(upper) = spare.take() else { return false };
        let after = row.after;
        // Numbers mostly come in ascending order: then rows stay full.
        let kept = if place == ROOM { ROOM } else { ROOM / 2 };
        let moved: ArrayVec<Mapper, ROOM> = row.pairs.drain(kept..).collect();
        row.after = upper;
        if place < kept {
            row.pairs.insert(place, new);
        }
        // SAFETY: the caller's frame becomes the list's here.
        unsafe { Row::init(frames, upper, [at, after]) };
        let row = self.row(frames, upper);
        row.pairs.extend(moved);
        if place >= kept {
            row.pairs.insert(place - kept, new);
        }
        *self.link_before(frames, after) = upper;
        true
    }

    /// Counts one VMA of a space less. Returns a frame that the list does not need any more.
    pub(super) fn remove<P: Platform>(&mut self, frames: &Frames<'_, P>, space: SpaceId) -> Option<Pfn> {
        let at = self.seek(frames, space);
        let row = self.row(frames, at);
        let known = row.place(space);
        debug_assert!(known.is_ok(), "a VMA that nobody counted");
        let pair = known.ok().and_then(|known| row.pairs.get_mut(known))?;
        pair.vmas -= 1;
        if pair.vmas > 0 {
            return None;
        }
        row.pairs.retain(|pair| pair.vmas > 0);
        let (before, after) = (row.before, row.after);
        self.join(frames, before, at).or_else(|| self.join(frames, at, after))
    }

    /// Returns the first space from this number on, and how many of its VMAs map the object.
    pub(super) fn next<P: Platform>(&mut self, frames: &Frames<'_, P>, from: SpaceId) -> Option<(SpaceId, u64)> {
        let at = self.seek(frames, from);
        let row = self.row(frames, at);
        let place = row.place(from).unwrap_or_else(|place| place);
        let after = row.after;
        let found = row.pairs.get(place).copied();
        found.or_else(|| self.row(frames, after.some()?).pairs.first().copied()).map(|pair| (pair.space, pair.vmas))
    }

    /// Returns how many rows there are beside the first: frames of the list's own.
    pub(super) fn rows<P: Platform>(&mut self, frames: &Frames<'_, P>) -> u64 {
        let (mut rows, mut at) = (0, self.first);
        while let Some(after) = self.row(frames, at).after.some() {
            (rows, at) = (rows + 1, after);
        }
        rows
    }

    /// Moves what the second of two neighbours has to the first, if both are half empty together.
    fn join<P: Platform>(&mut self, frames: &Frames<'_, P>, lower: Pfn, upper: Pfn) -> Option<Pfn> {
        let (lower, upper) = (lower.some()?, upper.some()?);
        let below = self.row(frames, lower).pairs.len();
        let row = self.row(frames, upper);
        if !row.pairs.is_empty() && below + row.pairs.len() > ROOM / 2 {
            return None;
        }
        let (after, moved) = (row.after, core::mem::take(&mut row.pairs));
        let row = self.row(frames, lower);
        row.pairs.extend(moved);
        row.after = after;
        *self.link_before(frames, after) = lower;
        Some(upper)
    }

    /// The row in which a space is, or would be.
    fn seek<P: Platform>(&mut self, frames: &Frames<'_, P>, space: SpaceId) -> Pfn {
        let begins = |row: &Row| row.pairs.first().is_some_and(|pair| pair.space.0 <= space.0);
        let last = self.last;
        if begins(self.row(frames, last)) {
            return last;
        }
        let mut at = self.first;
        while let Some(after) = self.row(frames, at).after.some()
            && begins(self.row(frames, after))
        {
            at = after;
        }
        at
    }

    /// Where the row before this one is said to be.
    fn link_before<P: Platform>(&mut self, frames: &Frames<'_, P>, row: Pfn) -> &mut Pfn {
        if row == Pfn::NONE { &mut self.last } else { &mut self.row(frames, row).before }
    }

    fn row<P: Platform>(&mut self, frames: &Frames<'_, P>, at: Pfn) -> &mut Row {
        // SAFETY: a row of this list, which `Row::init` has made; and the list is borrowed for as
        // long as the row is.
        unsafe { Row::of(frames, at).as_mut() }
    }
}

impl Row {
    fn of<P: Platform>(frames: &Frames<'_, P>, frame: Pfn) -> NonNull<Row> {
        // SAFETY: within the frame, as asserted above.
        unsafe { frames.at(frame.addr()).byte_add(BEFORE).cast() }
    }

    /// An empty one.
    ///
    /// # Safety
    /// From [`BEFORE`] on the frame is the caller's alone.
    unsafe fn init<P: Platform>(frames: &Frames<'_, P>, frame: Pfn, [before, after]: [Pfn; 2]) {
        // SAFETY: by contract; aligned, because frames are and `BEFORE` is.
        unsafe { Row::of(frames, frame).write(Row { before, after, pairs: ArrayVec::new() }) };
    }

    /// Where the pair of a space is, or would be.
    fn place(&self, space: SpaceId) -> Result<usize, usize> {
        self.pairs.binary_search_by_key(&space.0, |pair| pair.space.0)
    }
}
