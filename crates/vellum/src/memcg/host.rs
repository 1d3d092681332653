//! Memory of a host's own structures, charged to the memcg whose program makes the host allocate
//! them (Linux: `GFP_KERNEL_ACCOUNT`).
//!
//! Some of them can't be refused any more when they are allocated. They may pass the limit; the
//! host then has the program wait until its memcg is within the limit again.

use super::shard::LruvecId;
use super::{MemcgId, Memcgs, OverLimit, Refused};
use crate::addr::Pfn;
use crate::frame::{FrameKind, Frames, Use, flag};
use crate::platform::Platform;

/// By what an audit knows the host's memory.
const MARKS: u32 = flag::CHARGED | flag::HOST;

impl MemcgId {
    /// Returns the number that [`MemcgId::numbered`] makes a name of; less than
    /// [`MAX_MEMCGS`](super::MAX_GROUPS). Another memcg may get it when this one is removed.
    pub fn number(self) -> u16 {
        self.0
    }

    /// The name of this number. There need not be such a memcg: calls say so.
    pub const fn numbered(number: u16) -> Self {
        MemcgId(number)
    }
}

impl<'p> Memcgs<'p> {
    /// Checks that a memcg could be charged so many pages now, with what its stocks have. It need
    /// not stay so.
    ///
    /// # Errors
    /// The memcg whose limit doesn't allow it, or `id` if there is no such memcg.
    pub fn has_room<P: Platform>(&self, frames: &Frames<'p, P>, id: MemcgId, pages: u32) -> Result<(), OverLimit> {
        let _pinned = self.pinned(id).ok_or(OverLimit(id))?;
        self.charge(frames, id, pages)?;
        self.uncharge_all(id, pages);
        Ok(())
    }

    /// Allocates `1 << order` frames for a structure of the host's, charged to a memcg until
    /// [`Memcgs::free_for_host`]. Contents unspecified.
    ///
    /// # Errors
    /// Memory is short, or the memcg's or an ancestor's limit doesn't allow it.
    /// [`Refused::OverLimit`] with `id` too if there is no such memcg.
    pub fn alloc_for_host<P: Platform>(&self, frames: &Frames<'p, P>, id: MemcgId, order: u8) -> Result<Pfn, Refused> {
        let _pinned = self.pinned(id).ok_or(OverLimit(id))?;
        self.alloc_marked(frames, id, (order, false), MARKS).map(|(pfn, _)| pfn)
    }

    /// The same for what can't be refused (Linux: `__GFP_NOFAIL`): passes limits, and uses the
    /// frames that [`BootOptions::kept`](crate::frame::BootOptions::kept) keeps.
    ///
    /// # Errors
    /// Those are used up too, or there is no such memcg.
    pub fn alloc_beyond_limit<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        order: u8,
    ) -> Result<Pfn, Refused> {
        let _pinned = self.pinned(id).ok_or(OverLimit(id))?;
        // A memcg has memory for some shard from its creation on. Nothing of this goes on a list,
        // so any will do.
        let here = frames.platform().current();
        let shard = [here].into_iter().chain(0..frames.shards()).find(|at| self.shard_of(id, *at).is_some());
        let pfn = frames.alloc_kept(order, Use::Kernel)?;
        self.charge_beyond(id, 1 << order);
        let frame = frames.frame(pfn);
        frame.set_lruvec(LruvecId { memcg: id, shard: shard.unwrap_or(here), list: None }.pack());
        frame.become_kind(FrameKind::Private, order, MARKS);
        Ok(pfn)
    }

    /// Frees frames that [`Memcgs::alloc_for_host`] or [`Memcgs::alloc_beyond_limit`] allocated,
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
