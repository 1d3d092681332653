//! Memory of a host's own structures, charged to the group whose program makes the host allocate
//! them (Linux: `GFP_KERNEL_ACCOUNT`).
//!
//! Some of them can't be refused any more when they are allocated. They may pass the limit; the
//! host then has the program wait until its group is within the limit again.

use super::shard::Home;
use super::{GroupId, Groups, OverLimit, Refused};
use crate::addr::Pfn;
use crate::frame::{FrameKind, Frames, Use, flag};
use crate::platform::Platform;

/// By what an audit knows the host's memory.
const MARKS: u32 = flag::CHARGED | flag::HOST;

impl GroupId {
    /// Returns the number that [`GroupId::numbered`] makes a name of; less than
    /// [`MAX_GROUPS`](super::MAX_GROUPS). Another group may get it when this one is removed.
    pub fn number(self) -> u16 {
        self.0
    }

    /// The name of this number. There need not be such a group: calls say so.
    pub const fn numbered(number: u16) -> Self {
        GroupId(number)
    }
}

impl<'p> Groups<'p> {
    /// Checks that a group could be charged so many pages now, with what its stocks have. It need
    /// not stay so.
    ///
    /// # Errors
    /// The group whose limit doesn't allow it, or `id` if there is no such group.
    pub fn has_room<P: Platform>(&self, frames: &Frames<'p, P>, id: GroupId, pages: u32) -> Result<(), OverLimit> {
        let _pinned = self.pinned(id).ok_or(OverLimit(id))?;
        self.charge(frames, id, pages)?;
        self.uncharge_all(id, pages);
        Ok(())
    }

    /// Allocates `1 << order` frames for a structure of the host's, charged to a group until
    /// [`Groups::free_for_host`]. Contents unspecified.
    ///
    /// # Errors
    /// Memory is short, or the group's or an ancestor's limit doesn't allow it.
    /// [`Refused::OverLimit`] with `id` too if there is no such group.
    pub fn alloc_for_host<P: Platform>(&self, frames: &Frames<'p, P>, id: GroupId, order: u8) -> Result<Pfn, Refused> {
        let _pinned = self.pinned(id).ok_or(OverLimit(id))?;
        self.alloc_marked(frames, id, (order, false), MARKS).map(|(pfn, _)| pfn)
    }

    /// The same for what can't be refused (Linux: `__GFP_NOFAIL`): passes limits, and uses the
    /// frames that [`BootOptions::kept`](crate::frame::BootOptions::kept) keeps.
    ///
    /// # Errors
    /// Those are used up too, or there is no such group.
    pub fn alloc_beyond_limit<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: GroupId,
        order: u8,
    ) -> Result<Pfn, Refused> {
        let _pinned = self.pinned(id).ok_or(OverLimit(id))?;
        // A group has memory for some shard from its creation on. Nothing of this goes on a list,
        // so any will do.
        let here = frames.platform().current();
        let shard = [here].into_iter().chain(0..frames.shards()).find(|at| self.shard_of(id, *at).is_some());
        let pfn = frames.alloc_kept(order, Use::Kernel)?;
        self.charge_beyond(id, 1 << order);
        let frame = frames.frame(pfn);
        frame.set_home(Home { group: id, shard: shard.unwrap_or(here), list: None }.pack());
        frame.become_kind(FrameKind::Private, order, MARKS);
        Ok(pfn)
    }

    /// Frees frames that [`Groups::alloc_for_host`] or [`Groups::alloc_beyond_limit`] allocated,
    /// and returns their charge.
    ///
    /// # Safety
    /// As for [`Frames::free`]; of the same order.
    pub unsafe fn free_for_host<P: Platform>(&self, frames: &Frames<'p, P>, pfn: Pfn, order: u8) {
        self.uncharge(frames, pfn, order);
        // SAFETY: by contract.
        unsafe { frames.free_kept(pfn, order, Use::Kernel) };
    }
}
