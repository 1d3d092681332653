//! The tree of memcgs: a head for each memcg (its counters, limit and parent), and the frames that
//! its per-CPU lruvecs are in.
//!
//! Heads are 16 to a frame, are looked up by the memcg's number, and are never freed: a walk from a
//! memcg to its ancestors needs no lock. Per-CPU lruvecs are 32 to a frame, in *chunks*. The
//! first charge to one of a chunk's lruvecs allocates the chunk, charged to the memcg's parent
//! (INV-9), and removal of the memcg frees it. So a memcg that few CPUs use takes one frame, on a
//! machine of any size.
//!
//! A CPU may use a memcg's lruvecs directly while it keeps the memcg from being removed: while it
//! has a page that is charged to the memcg, or a pin ([`Memcgs::pin`]; each address space has one).
//! Statistics and reclaim, which visit all memcgs, have neither, and use lruvecs only inside
//! [`Memcgs::with_lruvec`]. Removal waits until no CPU is inside that function.

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use super::dirty::{DirtyLimits, DirtyPages};
use super::lruvec::{LruvecId, PerCpuLruvec};
use super::{MAX_MEMCGS, MemcgError, MemcgId, Memcgs, Refused};
use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::{Frames, Use};
use crate::platform::{MAX_CPUS, MAX_NODES, Platform};

/// The number of words of a bitmap with a bit for each per-CPU lruvec of a memcg.
pub(super) const LRUVEC_WORDS: usize = (MAX_CPUS + MAX_NODES).div_ceil(u64::BITS as usize);

/// The head of a memcg. Zeroed memory is a valid head that is not in use.
#[repr(C, align(128))]
pub(super) struct Memcg {
    /// The number of the parent; the root is its own parent.
    parent: AtomicU32,
    /// One more than the number of pins; 0 if there is no such memcg.
    users: AtomicU32,
    /// The number of CPUs that use the memcg's lruvecs without a pin or a charged page. Removal
    /// waits until it is 0.
    readers: AtomicU32,
    /// The number of lruvecs of the memcg and its descendants that are marked as stocked: they may
    /// have pages that were charged in advance ([`super::charge`]).
    pub(super) stocks: AtomicU32,
    /// Pages charged to the memcg and its descendants, including pages that lruvecs have charged in
    /// advance.
    pub(super) charged: AtomicU64,
    /// The highest value that `charged` ever had.
    pub(super) peak: AtomicU64,
    /// The limit of `charged`; `u64::MAX` is none.
    pub(super) limit: AtomicU64,
    /// The number of pages that may still go to swap; `u64::MAX` is no limit.
    pub(super) swap_room: AtomicU64,
    /// Pages of page-cache objects of the memcg and its descendants that are on swap devices.
    pub(super) swapped: AtomicU64,
    /// The number of pages in `charged` that hold the lruvecs of descendants.
    pub(super) lruvec_frames: AtomicU64,
    /// The set of the memcg's own lruvecs that are marked as stocked ([`super::charge`]): a bit for
    /// each lruvec's index.
    pub(super) stocked: [AtomicU64; LRUVEC_WORDS],
    /// Pages of files that differ from the storage.
    pub(super) dirty: DirtyPages,
    /// The number of file pages of the memcg alone that reclaim ever dropped.
    dropped: AtomicU64,
}

/// The number of memcgs' heads in a frame.
const HEADS: usize = FRAME_SIZE as usize / size_of::<Memcg>();
/// The maximum number of frames that hold memcgs' heads.
pub(super) const HEAD_FRAMES: usize = MAX_MEMCGS / HEADS;
/// log2 of the number of lruvecs in a chunk, which is one frame.
const CHUNK: usize = (FRAME_SIZE as usize / size_of::<PerCpuLruvec>()).ilog2() as usize;

const _: () = assert!(size_of::<Memcg>() == 256 && size_of::<PerCpuLruvec>() == 128 && HEADS << 6 == MAX_MEMCGS);

/// Returns log2 of the maximum number of chunks (frames of lruvecs) of a memcg with `lruvecs`
/// per-CPU lruvecs, rounded up.
pub(super) fn chunk_shift(lruvecs: usize) -> u32 {
    (lruvecs.div_ceil(1 << CHUNK)).next_power_of_two().trailing_zeros()
}

/// A guard: the memcg can't be removed before the guard is dropped. A caller that charges a memcg
/// by its identifier holds a guard until the charge is made.
pub(crate) struct MemcgPin<'g, 'p> {
    memcgs: &'g Memcgs<'p>,
    id: MemcgId,
}

impl Drop for MemcgPin<'_, '_> {
    fn drop(&mut self) {
        self.memcgs.unpin(self.id);
    }
}

impl<'p> Memcgs<'p> {
    /// Creates a memcg below `parent`, limited to `limit` pages (`u64::MAX`: limited by its
    /// ancestors only). The memory of the memcg's own lruvecs is charged to the parent.
    ///
    /// # Errors
    /// There is no such parent; all numbers are in use; memory is short; or a limit of the parent
    /// or an ancestor does not allow the charge.
    pub fn create<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        parent: MemcgId,
        limit: u64,
    ) -> Result<MemcgId, MemcgError> {
        let _changing = self.changing.lock(frames.platform());
        self.find(parent).ok_or(MemcgError::NoSuchMemcg(parent))?;
        let free =
            (0..MAX_MEMCGS as u16).map(MemcgId).find(|id| self.find(*id).is_none()).ok_or(MemcgError::TooMany)?;
        self.init_memcg(frames, free, parent, limit)?;
        Ok(free)
    }

    /// Allocates and initializes the head of a memcg, with a lruvec for this CPU. The caller
    /// serializes creation and removal. On failure the memcg does not exist; memory that was
    /// allocated for it stays for the next memcg with this number.
    pub(super) fn init_memcg<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        parent: MemcgId,
        limit: u64,
    ) -> Result<(), Refused> {
        let heads = &self.heads[usize::from(id.0) / HEADS];
        if heads.load(Relaxed) == 0 {
            heads.store(frames.alloc(0, true, Use::Kernel)?.0, Release);
        }
        let memcg = self.memcg(id);
        memcg.parent.store(parent.0.into(), Relaxed);
        memcg.peak.store(0, Relaxed);
        memcg.limit.store(limit, Relaxed);
        memcg.swap_room.store(u64::MAX, Relaxed);
        memcg.dirty.set_limits(DirtyLimits::NONE);
        let lruvec = LruvecId { memcg: id, index: frames.platform().current() };
        if self.try_lruvec(lruvec).is_none() {
            self.alloc_lruvecs(frames, lruvec)?;
        }
        memcg.users.store(1, Release);
        Ok(())
    }

    /// Removes a memcg that nothing is charged to, and frees its lruvecs. Waits for CPUs that use
    /// the lruvecs inside `Memcgs::with_lruvec`.
    ///
    /// # Errors
    /// There is no such memcg, or [`MemcgError::Busy`]: the memcg has charged pages, is pinned (by
    /// an address space, say), has children, or is the root.
    pub fn remove<P: Platform>(&self, frames: &Frames<'p, P>, id: MemcgId) -> Result<(), MemcgError> {
        let _changing = self.changing.lock(frames.platform());
        let memcg = self.find(id).ok_or(MemcgError::NoSuchMemcg(id))?;
        let child = |other: MemcgId| other != id && self.memcg(other).parent.load(Relaxed) == id.0.into();
        self.drain(frames, id)?;
        let empty = || memcg.charged.load(Relaxed) == 0;
        if id == MemcgId::ROOT || !empty() || self.all().any(child) {
            return Err(MemcgError::Busy(id));
        }
        memcg.users.compare_exchange(1, 0, SeqCst, Relaxed).map_err(|_| MemcgError::Busy(id))?;
        if !empty() {
            // After the first look at `charged`, a CPU with a pin charged a page and dropped its
            // pin.
            memcg.users.store(1, SeqCst);
            return Err(MemcgError::Busy(id));
        }
        let first = usize::from(id.0) << self.chunk_shift;
        for chunk in &self.chunks[first..first + (1 << self.chunk_shift)] {
            let Some(pfn) = Some(Pfn(chunk.swap(0, SeqCst))).filter(|pfn| pfn.0 != 0) else { continue };
            while memcg.readers.load(SeqCst) != 0 {
                frames.platform().relax();
            }
            // SAFETY: nothing is charged to the memcg, it has no pins, and no CPU is inside
            // `as_reader`: none of its lruvecs is in use, and none is found again.
            unsafe { frames.free(pfn, 1, false, Use::Kernel) };
            self.uncharge_lruvecs(MemcgId(memcg.parent.load(Relaxed) as u16), 1);
        }
        Ok(())
    }

    /// Allocates the chunk (the frame of lruvecs) that a lruvec is in, charged to the memcg's
    /// parent, unless another CPU does so first. The caller has the memcg pinned, or is creating
    /// it.
    ///
    /// # Errors
    /// Memory is short, or the limit of an ancestor does not allow the charge.
    #[cold]
    pub(super) fn alloc_lruvecs<P: Platform>(&self, frames: &Frames<'p, P>, lruvec: LruvecId) -> Result<(), Refused> {
        let id = lruvec.memcg;
        let parent = (id != MemcgId::ROOT).then(|| MemcgId(self.memcg(id).parent.load(Relaxed) as u16));
        parent.map_or(Ok(()), |parent| self.charge(frames, parent, 1))?;
        let uncharge_parent = || parent.into_iter().for_each(|parent| self.uncharge_all(parent, 1));
        let pfn = frames.alloc(0, false, Use::Kernel).inspect_err(|_| uncharge_parent())?;
        let first = frames.at(pfn.addr()).cast::<PerCpuLruvec>();
        for i in 0..1 << CHUNK {
            // SAFETY: the frame was just allocated, and has room for `1 << CHUNK` lruvecs.
            unsafe { first.add(i).write(PerCpuLruvec::new()) };
        }
        if self.chunk(lruvec).compare_exchange(0, pfn.0, Release, Relaxed).is_err() {
            // Another CPU has allocated the chunk meanwhile.
            uncharge_parent();
            // SAFETY: the frame was just allocated, and no other CPU knows of it.
            unsafe { frames.free(pfn, 1, false, Use::Kernel) };
            return Ok(());
        }
        if let Some(parent) = parent {
            self.ancestors(parent).for_each(|at| _ = self.memcg(at).lruvec_frames.fetch_add(1, Relaxed));
        }
        Ok(())
    }

    /// Uncharges `parent` for `frames` chunks that held a child's lruvecs.
    fn uncharge_lruvecs(&self, parent: MemcgId, frames: u32) {
        self.ancestors(parent).for_each(|at| _ = self.memcg(at).lruvec_frames.fetch_sub(frames.into(), Relaxed));
        self.uncharge_all(parent, frames);
    }

    /// Pins a memcg: keeps it from being removed until [`Memcgs::unpin`]. Returns false if there is
    /// no such memcg.
    pub(crate) fn pin(&self, id: MemcgId) -> bool {
        let more = |users: u32| (users != 0 && users < u32::MAX / 2).then(|| users + 1);
        self.head(id).is_some_and(|memcg| memcg.users.fetch_update(SeqCst, Relaxed, more).is_ok())
    }

    /// Drops a pin that [`Memcgs::pin`] took.
    pub(crate) fn unpin(&self, id: MemcgId) {
        self.memcg(id).users.fetch_sub(1, Release);
    }

    /// Pins a memcg until the returned guard is dropped. `None`: there is no such memcg.
    pub(crate) fn pinned(&self, id: MemcgId) -> Option<MemcgPin<'_, 'p>> {
        self.pin(id).then(|| MemcgPin { memcgs: self, id })
    }

    /// Returns the head of a memcg that exists or existed.
    pub(super) fn memcg(&self, id: MemcgId) -> &'p Memcg {
        let frame = self.heads[usize::from(id.0) / HEADS].load(Acquire);
        debug_assert!(frame != 0);
        self.head_at(frame, id)
    }

    /// Returns the head for a number, in use or not. `None`: its frame was never allocated, so no
    /// memcg ever had the number.
    fn head(&self, id: MemcgId) -> Option<&'p Memcg> {
        let frame = self.heads.get(usize::from(id.0) / HEADS)?.load(Acquire);
        (frame != 0).then(|| self.head_at(frame, id))
    }

    /// Returns the head of a memcg in a frame of heads.
    fn head_at(&self, frame: u32, id: MemcgId) -> &'p Memcg {
        let first = self.direct.wrapping_add(Pfn(frame).addr().0 as usize).cast::<Memcg>();
        // SAFETY: `init_memcg` allocated this frame, zeroed, and it is never freed. It has room for
        // `HEADS` heads, and zeros are a valid head.
        unsafe { &*first.wrapping_add(usize::from(id.0) % HEADS) }
    }

    /// Returns the head of a memcg, if there is such a memcg.
    pub(super) fn find(&self, id: MemcgId) -> Option<&'p Memcg> {
        self.head(id).filter(|memcg| memcg.users.load(Acquire) != 0)
    }

    /// Returns whether a memcg with this identifier exists.
    pub fn exists(&self, id: MemcgId) -> bool {
        self.find(id).is_some()
    }

    /// Returns the memcg itself, its parent, and so on to the root. Takes no lock.
    pub(super) fn ancestors(&self, id: MemcgId) -> impl Iterator<Item = MemcgId> + '_ {
        let parent =
            |id: &MemcgId| (*id != MemcgId::ROOT).then(|| MemcgId(self.memcg(*id).parent.load(Relaxed) as u16));
        core::iter::successors(Some(id), parent)
    }

    /// Returns the number of file pages of a memcg alone that reclaim ever dropped, the clock of
    /// refault distances. A memcg that gets the number of a removed one goes on from there.
    pub(crate) fn clock(&self, id: MemcgId) -> &'p AtomicU64 {
        &self.memcg(id).dropped
    }

    /// Returns whether `id` is `memcg` or one of its descendants. Takes no lock.
    pub(crate) fn is_below(&self, id: MemcgId, memcg: MemcgId) -> bool {
        self.ancestors(id).any(|other| other == memcg)
    }

    /// Returns a memcg and all its descendants. Visits every memcg of the machine.
    pub(crate) fn descendants(&self, id: MemcgId) -> impl Iterator<Item = MemcgId> + '_ {
        self.all().filter(move |memcg| self.is_below(*memcg, id))
    }

    /// Returns all memcgs. A new memcg gets the lowest free number, and heads are never freed, so
    /// no number above the first one without a head has a head.
    pub(crate) fn all(&self) -> impl Iterator<Item = MemcgId> + '_ {
        let known = (0..MAX_MEMCGS as u16).map(MemcgId).map_while(|id| self.head(id).map(|_| id));
        known.filter(|id| self.find(*id).is_some())
    }

    /// Returns the entry for the chunk (the frame of lruvecs) that a lruvec is in: its frame
    /// number, or 0 if it is not allocated.
    #[inline]
    fn chunk(&self, lruvec: LruvecId) -> &'p AtomicU32 {
        &self.chunks[usize::from(lruvec.memcg.0) << self.chunk_shift | lruvec.index >> CHUNK]
    }

    /// Returns a lruvec, if it has memory. The caller keeps the memcg from being removed meanwhile.
    #[inline]
    pub(super) fn try_lruvec(&self, lruvec: LruvecId) -> Option<&'p PerCpuLruvec> {
        let pfn = self.chunk(lruvec).load(Acquire);
        (pfn != 0).then(|| self.lruvec_in(pfn, lruvec.index))
    }

    /// Returns the lruvec with this index in the frame of its chunk.
    #[inline]
    fn lruvec_in(&self, pfn: u32, index: usize) -> &'p PerCpuLruvec {
        let first = self.direct.wrapping_add(Pfn(pfn).addr().0 as usize).cast::<PerCpuLruvec>();
        // SAFETY: `alloc_lruvecs` wrote `1 << CHUNK` lruvecs to the frame before it published the
        // frame's number. Only removal of the memcg frees the frame, and the caller keeps the memcg
        // from being removed.
        unsafe { &*first.wrapping_add(index & ((1 << CHUNK) - 1)) }
    }

    /// Returns the lruvec to which a frame is charged. The charge keeps the memcg from being
    /// removed.
    ///
    /// # Panics
    /// If the lruvec has no memory, so that no frame can be charged there.
    #[inline]
    pub(super) fn lruvec(&self, lruvec: LruvecId) -> &'p PerCpuLruvec {
        match self.try_lruvec(lruvec) {
            Some(at) => at,
            None => missing_lruvec(lruvec),
        }
    }

    /// Calls `visit` for each lruvec of a memcg to which anything was ever charged.
    pub(super) fn each_used_lruvec<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        mut visit: impl FnMut(&PerCpuLruvec),
    ) {
        self.as_reader(frames, id, || {
            for chunk in 0..1 << self.chunk_shift {
                let pfn = self.chunk(LruvecId { memcg: id, index: chunk << CHUNK }).load(SeqCst);
                let lruvecs = (0..1 << CHUNK).filter(|_| pfn != 0).map(|index| self.lruvec_in(pfn, index));
                lruvecs.filter(|lruvec| lruvec.used.load(Relaxed)).for_each(&mut visit);
            }
        });
    }

    /// Calls `visit` with a lruvec, if it has memory, and returns the result. The lruvec's memory
    /// stays until `visit` returns, though the caller has neither a pin nor a charged page.
    /// Preemption is disabled meanwhile.
    pub(super) fn with_lruvec<P: Platform, R>(
        &self,
        frames: &Frames<'p, P>,
        lruvec: LruvecId,
        visit: impl FnOnce(&PerCpuLruvec) -> R,
    ) -> Option<R> {
        self.as_reader(frames, lruvec.memcg, || {
            let pfn = self.chunk(lruvec).load(SeqCst);
            (pfn != 0).then(|| visit(self.lruvec_in(pfn, lruvec.index)))
        })
    }

    /// Calls `visit` as a reader of the memcg's chunks: a chunk that `visit` finds is not freed
    /// before it returns. The reader increments the count of readers and then loads the chunk's
    /// frame number. [`Memcgs::remove`] clears the frame number and then loads the count. All four
    /// accesses are sequentially consistent, so either the reader finds no chunk, or removal waits
    /// for the reader.
    fn as_reader<P: Platform, R>(&self, frames: &Frames<'p, P>, id: MemcgId, visit: impl FnOnce() -> R) -> R {
        let (platform, memcg) = (frames.platform(), self.memcg(id));
        // Removal spins until there are no readers, so a reader must not be preempted.
        platform.preempt_disable();
        memcg.readers.fetch_add(1, SeqCst);
        let result = visit();
        memcg.readers.fetch_sub(1, Release);
        platform.preempt_enable();
        result
    }
}

/// Panics for a lruvec without memory. Out of line, so that the callers stay small.
#[cold]
fn missing_lruvec(LruvecId { memcg, index }: LruvecId) -> ! {
    panic!("{memcg:?}: lruvec {index} has no memory, so no frame can be charged to it")
}
