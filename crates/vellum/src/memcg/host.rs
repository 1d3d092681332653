//! Allocates memory for a host's own structures, charged to the memcg whose program makes the host
//! allocate them (Linux: `GFP_KERNEL_ACCOUNT`; INV-9).
//!
//! Some structures are allocated when the host can't fail any more. Their charge may pass the
//! limit; the host then has the program wait until its memcg is within the limit again.

use super::lruvec::LruvecId;
use super::{MemcgId, Memcgs, OverLimit, Refused};
use crate::addr::Pfn;
use crate::frame::{FrameKind, Frames, Use, flag};
use crate::platform::Platform;

/// The flags in a descriptor by which the audit ([`crate::audit`]) finds the host's memory.
const HOST_FLAGS: u32 = flag::CHARGED | flag::HOST;

impl MemcgId {
    /// Returns the identifier's number, which is less than [`MAX_MEMCGS`](super::MAX_MEMCGS), and
    /// from which [`MemcgId::numbered`] makes the identifier again. When the memcg is removed,
    /// another one may get the number.
    pub fn number(self) -> u16 {
        self.0
    }

    /// Returns the identifier with this number. There need not be such a memcg: the calls that take
    /// the identifier check that.
    pub const fn numbered(number: u16) -> Self {
        MemcgId(number)
    }
}

impl<'p> Memcgs<'p> {
    /// Checks that a memcg could be charged `pages` now. Drains stocks (pages that lruvecs have
    /// charged in advance) if the limit requires that. Other CPUs may use the room up the next
    /// moment.
    ///
    /// # Errors
    /// The memcg whose limit doesn't allow the charge, or `id` if there is no such memcg.
    pub fn has_room<P: Platform>(&self, frames: &Frames<'p, P>, id: MemcgId, pages: u32) -> Result<(), OverLimit> {
        let _pinned = self.pinned(id).ok_or(OverLimit(id))?;
        self.charge(frames, id, pages)?;
        self.uncharge_all(id, pages);
        Ok(())
    }

    /// Allocates `1 << order` frames for a structure of the host's, charged to a memcg until
    /// [`Memcgs::free_for_host`]. The contents are unspecified.
    ///
    /// # Errors
    /// Memory is short, or the limit of the memcg or an ancestor doesn't allow the charge. If there
    /// is no such memcg: [`Refused::OverLimit`] with `id`.
    pub fn alloc_for_host<P: Platform>(&self, frames: &Frames<'p, P>, id: MemcgId, order: u8) -> Result<Pfn, Refused> {
        let _pinned = self.pinned(id).ok_or(OverLimit(id))?;
        self.alloc_flagged(frames, id, (order, false), HOST_FLAGS).map(|(pfn, _)| pfn)
    }

    /// Allocates like [`Memcgs::alloc_for_host`], for a structure that the host can't do without
    /// (Linux: `__GFP_NOFAIL`): the charge may go beyond limits, and the frames may come from the
    /// reserve ([`BootOptions::min_free`](crate::frame::BootOptions::min_free)).
    ///
    /// # Errors
    /// The reserve is used up too, or there is no such memcg.
    pub fn alloc_beyond_limit<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        order: u8,
    ) -> Result<Pfn, Refused> {
        let _pinned = self.pinned(id).ok_or(OverLimit(id))?;
        // The charge must not fail, so this does not allocate memory for this CPU's lruvec. These
        // frames are on no LRU list, so their descriptor can name any lruvec of the memcg that has
        // memory. A memcg has such a lruvec from its creation on.
        let here = frames.platform().current();
        let lruvec = |index| LruvecId { memcg: id, index };
        let any = [here].into_iter().chain(0..frames.lruvecs()).find(|at| self.try_lruvec(lruvec(*at)).is_some());
        let pfn = frames.alloc_reserve(order, Use::Kernel)?;
        self.charge_beyond(id, 1 << order);
        let frame = frames.frame(pfn);
        frame.set_lruvec(lruvec(any.unwrap_or(here)).pack(None));
        frame.set_kind(FrameKind::Private, order, HOST_FLAGS);
        Ok(pfn)
    }

    /// Frees frames that [`Memcgs::alloc_for_host`] or [`Memcgs::alloc_beyond_limit`] allocated,
    /// and uncharges them. The frames refill the reserve first.
    ///
    /// # Safety
    /// As for [`Frames::free`]; `order` is the order that was allocated.
    pub unsafe fn free_for_host<P: Platform>(&self, frames: &Frames<'p, P>, pfn: Pfn, order: u8) {
        self.uncharge(frames, pfn, order);
        // SAFETY: the caller keeps the contract of `Frames::free`: no reference, stale translation
        // or walk of the frames is left. They were allocated for [`Use::Kernel`].
        unsafe { frames.free_reserve(pfn, order, Use::Kernel) };
    }
}
