//! The spaces that map an object (Linux: `i_mmap`). Truncation and reclaim visit these spaces and
//! no others, so their cost depends on the mappings of the object and not on the number of spaces.
//!
//! # Mechanism
//! A list of [`Mapper`]s, each a space's number and the number of its VMAs that map the object,
//! ordered by space number. It is stored in *list frames*: the first is the rest of the frame that
//! holds the object's head; the others are frames of their own, each charged to the memcg of the
//! space for which it was allocated. Two neighbouring list frames are merged if their mappers
//! together fill at most half a list frame. So the number of list frames stays proportional to the
//! number of mappers.
//!
//! # A child that is forked during a visit
//! Space numbers are assigned in ascending order, so a child's number is higher than its parent's.
//! Fork puts the child on the list before it ends its claim of the parent's range (the exclusive
//! right to change it). So a visit of the spaces in ascending order also reaches every child that
//! may have inherited PTEs from a space that the visit had not finished.

use core::ptr::NonNull;

use arrayvec::ArrayVec;

use super::Head;
use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::Frames;
use crate::platform::{Platform, SpaceId};

/// The offset in bytes of a [`ListFrame`] in the frame of memory that holds it. In the first of
/// these frames the object's head fills the bytes before the offset; in the others these bytes are
/// unused.
const OFFSET: usize = size_of::<Head>().next_multiple_of(align_of::<Mapper>());

/// The number of mappers that a list frame holds.
pub(super) const CAPACITY: usize = (FRAME_SIZE as usize - OFFSET - size_of::<[Pfn; 3]>() - 4) / size_of::<Mapper>();

const _: () = assert!(OFFSET + size_of::<ListFrame>() <= FRAME_SIZE as usize);

/// A space that maps the object.
#[derive(Clone, Copy)]
pub(super) struct Mapper {
    /// The space's number.
    pub(super) space: SpaceId,
    /// The number of the space's VMAs that map the object; at least one.
    pub(super) vmas: u64,
}

/// A list frame: the part of an object's list of mappers that one frame of memory holds.
struct ListFrame {
    /// The list frame before this one, or [`Pfn::NONE`].
    previous: Pfn,
    /// The list frame after this one, or [`Pfn::NONE`].
    next: Pfn,
    /// The mappers, in ascending order of space numbers.
    mappers: ArrayVec<Mapper, CAPACITY>,
}

/// The list of an object's mappers. List frames other than the first are not empty. The object's
/// lock protects the list and its frames.
pub(super) struct Mappers {
    /// The first list frame, in the frame of the object's head.
    first: Pfn,
    /// The last list frame.
    last: Pfn,
}

impl Mappers {
    /// Creates the empty list of a new object, in the frame that holds the object's head.
    ///
    /// # Safety
    /// The frame belongs to the caller alone for as long as the object lives, and the list may use
    /// all of the frame after the head.
    pub(super) unsafe fn new<P: Platform>(frames: &Frames<'_, P>, object: Pfn) -> Self {
        // SAFETY: the frame belongs to the caller alone, and the list may use it after the head
        // (this contract).
        unsafe { ListFrame::init(frames, object, [Pfn::NONE; 2]) };
        Mappers { first: object, last: object }
    }

    /// Adds one VMA to a space's count, and the space to the list if it is not on the list yet. If
    /// the list needs another frame, it takes the one in `spare`.
    ///
    /// Returns `false`, with nothing changed, if the list needs a frame and `spare` is empty. The
    /// caller then unlocks the object, allocates a frame and tries again.
    pub(super) fn add<P: Platform>(&mut self, frames: &Frames<'_, P>, space: SpaceId, spare: &mut Option<Pfn>) -> bool {
        let at = self.frame_for(frames, space);
        let list_frame = self.list_frame(frames, at);
        let position = match list_frame.position(space) {
            Ok(found) => {
                list_frame.mappers[found].vmas += 1;
                return true;
            }
            Err(position) => position,
        };
        let new = Mapper { space, vmas: 1 };
        if !list_frame.mappers.is_full() {
            list_frame.mappers.insert(position, new);
            return true;
        }
        let Some(upper) = spare.take() else { return false };
        let next = list_frame.next;
        // Spaces are mostly added in ascending order of their numbers. Then the new list frame gets
        // only the new mapper, and the old list frame stays full.
        let lower_len = if position == CAPACITY { CAPACITY } else { CAPACITY / 2 };
        let moved: ArrayVec<Mapper, CAPACITY> = list_frame.mappers.drain(lower_len..).collect();
        list_frame.next = upper;
        if position < lower_len {
            list_frame.mappers.insert(position, new);
        }
        // SAFETY: the caller passed the frame in `spare` to this list, and nothing else uses the
        // frame.
        unsafe { ListFrame::init(frames, upper, [at, next]) };
        let list_frame = self.list_frame(frames, upper);
        list_frame.mappers.extend(moved);
        if position >= lower_len {
            list_frame.mappers.insert(position - lower_len, new);
        }
        *self.previous_link(frames, next) = upper;
        true
    }

    /// Subtracts one VMA from a space's count, and removes the space from the list at zero. Returns
    /// a frame that the list no longer needs, which the caller frees with the object unlocked.
    pub(super) fn remove<P: Platform>(&mut self, frames: &Frames<'_, P>, space: SpaceId) -> Option<Pfn> {
        let at = self.frame_for(frames, space);
        let list_frame = self.list_frame(frames, at);
        let found = list_frame.position(space);
        debug_assert!(found.is_ok(), "uncounted a VMA of a space that does not map the object");
        let mapper = found.ok().and_then(|found| list_frame.mappers.get_mut(found))?;
        mapper.vmas -= 1;
        if mapper.vmas > 0 {
            return None;
        }
        list_frame.mappers.retain(|mapper| mapper.vmas > 0);
        let (previous, next) = (list_frame.previous, list_frame.next);
        self.merge(frames, previous, at).or_else(|| self.merge(frames, at, next))
    }

    /// Returns the mapper with the lowest space number from `from` on.
    pub(super) fn next<P: Platform>(&mut self, frames: &Frames<'_, P>, from: SpaceId) -> Option<Mapper> {
        let at = self.frame_for(frames, from);
        let list_frame = self.list_frame(frames, at);
        let position = list_frame.position(from).unwrap_or_else(|position| position);
        let next = list_frame.next;
        let found = list_frame.mappers.get(position).copied();
        found.or_else(|| self.list_frame(frames, next.some()?).mappers.first().copied())
    }

    /// Returns the number of list frames without the first, which is part of the frame of the
    /// object's head.
    pub(super) fn extra_frames<P: Platform>(&mut self, frames: &Frames<'_, P>) -> u64 {
        let (mut extra_frames, mut at) = (0, self.first);
        while let Some(next) = self.list_frame(frames, at).next.some() {
            (extra_frames, at) = (extra_frames + 1, next);
        }
        extra_frames
    }

    /// Moves the mappers of list frame `upper` to its neighbour `lower`, if `upper` is empty or the
    /// mappers of both fill at most half a list frame. Returns the frame `upper` if the list does
    /// not use it any more.
    fn merge<P: Platform>(&mut self, frames: &Frames<'_, P>, lower: Pfn, upper: Pfn) -> Option<Pfn> {
        let (lower, upper) = (lower.some()?, upper.some()?);
        let below = self.list_frame(frames, lower).mappers.len();
        let list_frame = self.list_frame(frames, upper);
        if !list_frame.mappers.is_empty() && below + list_frame.mappers.len() > CAPACITY / 2 {
            return None;
        }
        let (next, moved) = (list_frame.next, core::mem::take(&mut list_frame.mappers));
        let list_frame = self.list_frame(frames, lower);
        list_frame.mappers.extend(moved);
        list_frame.next = next;
        *self.previous_link(frames, next) = lower;
        Some(upper)
    }

    /// Returns the list frame in which the space's mapper is, or would be inserted. Tries the last
    /// list frame first, because spaces mostly arrive in ascending order.
    fn frame_for<P: Platform>(&mut self, frames: &Frames<'_, P>, space: SpaceId) -> Pfn {
        let starts_at_or_before =
            |list_frame: &ListFrame| list_frame.mappers.first().is_some_and(|mapper| mapper.space.0 <= space.0);
        let last = self.last;
        if starts_at_or_before(self.list_frame(frames, last)) {
            return last;
        }
        let mut at = self.first;
        while let Some(next) = self.list_frame(frames, at).next.some()
            && starts_at_or_before(self.list_frame(frames, next))
        {
            at = next;
        }
        at
    }

    /// Returns the link from a list frame to the one before it. For [`Pfn::NONE`], which stands for
    /// the end of the list, returns the link to the last list frame.
    fn previous_link<P: Platform>(&mut self, frames: &Frames<'_, P>, list_frame: Pfn) -> &mut Pfn {
        if list_frame == Pfn::NONE { &mut self.last } else { &mut self.list_frame(frames, list_frame).previous }
    }

    /// Returns a list frame by its frame number.
    fn list_frame<P: Platform>(&mut self, frames: &Frames<'_, P>, at: Pfn) -> &mut ListFrame {
        // SAFETY: the frame is one of this list, and `ListFrame::init` has initialised it. The list
        // is borrowed for as long as the list frame is.
        unsafe { ListFrame::of(frames, at).as_mut() }
    }
}

impl ListFrame {
    /// Returns the address of the list frame in a frame of memory.
    fn of<P: Platform>(frames: &Frames<'_, P>, frame: Pfn) -> NonNull<ListFrame> {
        // SAFETY: the result is within the frame, as the constant assertion on `OFFSET` ensures.
        unsafe { frames.at(frame.addr()).byte_add(OFFSET).cast() }
    }

    /// Initialises an empty list frame between these neighbours.
    ///
    /// # Safety
    /// From [`OFFSET`] on the frame belongs to the caller alone.
    unsafe fn init<P: Platform>(frames: &Frames<'_, P>, frame: Pfn, [previous, next]: [Pfn; 2]) {
        // SAFETY: the memory from `OFFSET` on belongs to the caller alone (this contract). The
        // address is aligned, because frames and `OFFSET` are.
        unsafe { ListFrame::of(frames, frame).write(ListFrame { previous, next, mappers: ArrayVec::new() }) };
    }

    /// Returns the index of a space's mapper, or as an error the index at which to insert it.
    fn position(&self, space: SpaceId) -> Result<usize, usize> {
        self.mappers.binary_search_by_key(&space.0, |mapper| mapper.space.0)
    }
}
