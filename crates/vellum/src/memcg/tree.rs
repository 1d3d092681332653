//! Which memcgs there are: a head for each, and the frames that its shards are in.
//!
//! Heads stand 32 to a frame, are looked up by number, and are never freed: what walks from a memcg
//! to its ancestors needs no lock. Shards stand 32 to a frame too, in CHUNKS. A chunk is allocated
//! by the first charge of one of its CPUs, charged to the memcg's parent, and freed when the memcg
//! is removed. So a memcg that few CPUs use takes one frame, on a machine of any size.
//!
//! What may use a shard without further ado is what keeps its memcg from being removed: a charged
//! page, or a pin ([`Memcgs::pin`]), as a space has. Everything else (statistics, reclaim, which go
//! through all memcgs) looks at shards inside [`Memcgs::look`], which removal waits for.

use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
};

use super::shard::{Lists, PerCpuLruvec};
use super::{MAX_MEMCGS, MemcgError, MemcgId, Memcgs, Refused};
use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::{Frames, Use};
use crate::platform::{MAX_CPUS, MAX_NODES, Platform};
use crate::sync::SpinLock;

/// Words of a set of shards.
pub(super) const SHARD_WORDS: usize = (MAX_CPUS + MAX_NODES).div_ceil(u64::BITS as usize);

/// The head of a memcg. Zeroed memory is one that is not in use.
#[repr(C, align(128))]
pub(super) struct Memcg {
    parent: AtomicU32,
    /// 0: there is no such memcg. Else one more than its pins.
    users: AtomicU32,
    /// Uses of its shards that no pin and no charged page vouches for.
    lookers: AtomicU32,
    /// Shards that may have a stock, of the memcg and its descendants.
    pub(super) stocks: AtomicU32,
    pub(super) charged: AtomicU64,
    pub(super) peak: AtomicU64,
    pub(super) limit: AtomicU64,
    /// How many pages may yet go to swap; `u64::MAX`: as many as there is room for.
    pub(super) swap_room: AtomicU64,
    /// How many pages of its objects and of its descendants' are on swap devices.
    pub(super) swapped: AtomicU64,
    /// Of the charged pages, those with shards of descendants.
    pub(super) shards: AtomicU64,
    /// Which of its own shards may have a stock.
    pub(super) stocked: [AtomicU64; SHARD_WORDS],
}

const HEADS: usize = FRAME_SIZE as usize / size_of::<Memcg>();
/// Frames of heads that there can be.
pub(super) const HEAD_FRAMES: usize = MAX_MEMCGS / HEADS;
/// log2 of the shards of a chunk.
const CHUNK: usize = (FRAME_SIZE as usize / size_of::<PerCpuLruvec>()).ilog2() as usize;

const _: () = assert!(size_of::<Memcg>() == 128 && size_of::<PerCpuLruvec>() == 128 && HEADS << 5 == MAX_MEMCGS);

/// log2 of the chunks that a memcg has at most.
pub(super) fn chunk_shift(shards: usize) -> u32 {
    (shards.div_ceil(1 << CHUNK)).next_power_of_two().trailing_zeros()
}

/// Keeps a memcg from being removed while somebody charges it by its number.
pub(crate) struct Pinned<'g, 'p> {
    memcgs: &'g Memcgs<'p>,
    id: MemcgId,
}

impl Drop for Pinned<'_, '_> {
    fn drop(&mut self) {
        self.memcgs.unpin(self.id);
    }
}

impl<'p> Memcgs<'p> {
    /// Creates a memcg below `parent`, limited to `limit` pages (`u64::MAX`: by its ancestors
    /// only). The parent is charged for its memory.
    ///
    /// # Errors
    /// There is no such parent, no number for another memcg, or no memory, or the parent may not
    /// have that.
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
        self.set_up(frames, free, parent, limit)?;
        Ok(free)
    }

    pub(super) fn set_up<P: Platform>(
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
        let memcg = self.of(id);
        memcg.parent.store(parent.0.into(), Relaxed);
        memcg.peak.store(0, Relaxed);
        memcg.limit.store(limit, Relaxed);
        memcg.swap_room.store(u64::MAX, Relaxed);
        if self.shard_of(id, frames.platform().current()).is_none() {
            self.provide_shard(frames, id, frames.platform().current())?;
        }
        memcg.users.store(1, Release);
        Ok(())
    }

    /// Removes a memcg that nothing is charged to.
    ///
    /// # Errors
    /// [`MemcgError::Busy`]: something is charged to it, a space is in it, it has children, or it
    /// is the root.
    pub fn remove<P: Platform>(&self, frames: &Frames<'p, P>, id: MemcgId) -> Result<(), MemcgError> {
        let _changing = self.changing.lock(frames.platform());
        let memcg = self.find(id).ok_or(MemcgError::NoSuchMemcg(id))?;
        let child = |other: MemcgId| other != id && self.of(other).parent.load(Relaxed) == id.0.into();
        self.drain(frames, id)?;
        let empty = || memcg.charged.load(Relaxed) == 0;
        if id == MemcgId::ROOT || !empty() || self.all().any(child) {
            return Err(MemcgError::Busy(id));
        }
        memcg.users.compare_exchange(1, 0, SeqCst, Relaxed).map_err(|_| MemcgError::Busy(id))?;
        if !empty() {
            // A pin charged something in between.
            memcg.users.store(1, SeqCst);
            return Err(MemcgError::Busy(id));
        }
        let first = usize::from(id.0) << self.chunk_shift;
        for chunk in &self.chunks[first..first + (1 << self.chunk_shift)] {
            let Some(pfn) = Some(Pfn(chunk.swap(0, SeqCst))).filter(|pfn| pfn.0 != 0) else { continue };
            while memcg.lookers.load(SeqCst) != 0 {
                frames.platform().relax();
            }
            // SAFETY: nothing is charged to the memcg, nobody has it pinned, and nobody looks: no
            // shard of it is in use, or found again.
            unsafe { frames.free(pfn, 1, false, Use::Kernel) };
            self.count_shards(MemcgId(memcg.parent.load(Relaxed) as u16), -1);
        }
        Ok(())
    }

    /// Allocates the chunk in which a shard of a memcg is. The caller has the memcg pinned, or is
    /// about to make it.
    ///
    /// # Errors
    /// No memory, or the memcg's parent may not have it.
    #[cold]
    pub(super) fn provide_shard<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        shard: usize,
    ) -> Result<(), Refused> {
        let parent = (id != MemcgId::ROOT).then(|| MemcgId(self.of(id).parent.load(Relaxed) as u16));
        parent.map_or(Ok(()), |parent| self.charge(frames, parent, 1))?;
        let give_up = || parent.into_iter().for_each(|parent| self.uncharge_all(parent, 1));
        let pfn = frames.alloc(0, false, Use::Kernel).inspect_err(|_| give_up())?;
        let first = frames.at(pfn.addr()).cast::<PerCpuLruvec>();
        for i in 0..1 << CHUNK {
            // SAFETY: the frame was just allocated, and has room for so many.
            unsafe { first.add(i).write(PerCpuLruvec(SpinLock::new(Lists::default()), AtomicBool::new(false))) };
        }
        if self.chunk(id, shard).compare_exchange(0, pfn.0, Release, Relaxed).is_err() {
            // Another CPU was quicker.
            give_up();
            // SAFETY: just allocated, and nobody knows of it.
            unsafe { frames.free(pfn, 1, false, Use::Kernel) };
            return Ok(());
        }
        if let Some(parent) = parent {
            self.ancestors(parent).for_each(|at| _ = self.of(at).shards.fetch_add(1, Relaxed));
        }
        Ok(())
    }

    /// Uncharges frames of a child's shards.
    fn count_shards(&self, parent: MemcgId, frames: i64) {
        self.ancestors(parent).for_each(|at| _ = self.of(at).shards.fetch_add(frames as u64, Relaxed));
        self.uncharge_all(parent, frames.unsigned_abs() as u32);
    }

    /// Keeps a memcg from being removed, if there is one of that number, until [`Memcgs::unpin`].
    pub(crate) fn pin(&self, id: MemcgId) -> bool {
        let more = |users: u32| (users != 0 && users < u32::MAX / 2).then(|| users + 1);
        self.head(id).is_some_and(|memcg| memcg.users.fetch_update(SeqCst, Relaxed, more).is_ok())
    }

    /// Ends what [`Memcgs::pin`] began.
    pub(crate) fn unpin(&self, id: MemcgId) {
        self.of(id).users.fetch_sub(1, Release);
    }

    /// The same, until the answer is dropped. `None`: there is no such memcg.
    pub(crate) fn pinned(&self, id: MemcgId) -> Option<Pinned<'_, 'p>> {
        self.pin(id).then(|| Pinned { memcgs: self, id })
    }

    /// The head of a memcg that exists or existed.
    pub(super) fn of(&self, id: MemcgId) -> &'p Memcg {
        let frame = self.heads[usize::from(id.0) / HEADS].load(Acquire);
        debug_assert!(frame != 0);
        self.head_in(frame, id)
    }

    fn head(&self, id: MemcgId) -> Option<&'p Memcg> {
        let frame = self.heads.get(usize::from(id.0) / HEADS)?.load(Acquire);
        (frame != 0).then(|| self.head_in(frame, id))
    }

    fn head_in(&self, frame: u32, id: MemcgId) -> &'p Memcg {
        let first = self.direct.wrapping_add(Pfn(frame).addr().0 as usize).cast::<Memcg>();
        // SAFETY: only frames that `set_up` allocated, as zeros, get here, which are so many heads
        // (zeros are a valid one), and never freed.
        unsafe { &*first.wrapping_add(usize::from(id.0) % HEADS) }
    }

    /// A memcg in use.
    pub(super) fn find(&self, id: MemcgId) -> Option<&'p Memcg> {
        self.head(id).filter(|memcg| memcg.users.load(Acquire) != 0)
    }

    /// Whether such a memcg exists.
    pub fn exists(&self, id: MemcgId) -> bool {
        self.find(id).is_some()
    }

    /// The memcg itself, its parent, and so on to the root.
    pub(super) fn ancestors(&self, id: MemcgId) -> impl Iterator<Item = MemcgId> + '_ {
        let parent = |id: &MemcgId| (*id != MemcgId::ROOT).then(|| MemcgId(self.of(*id).parent.load(Relaxed) as u16));
        core::iter::successors(Some(id), parent)
    }

    /// A memcg and all that descend from it.
    pub(crate) fn descendants(&self, id: MemcgId) -> impl Iterator<Item = MemcgId> + '_ {
        self.all().filter(move |memcg| self.ancestors(*memcg).any(|other| other == id))
    }

    /// All memcgs. Numbers are given out from the lowest on, and heads are kept: behind the first
    /// number that has none, none has.
    pub(crate) fn all(&self) -> impl Iterator<Item = MemcgId> + '_ {
        let known = (0..MAX_MEMCGS as u16).map(MemcgId).map_while(|id| self.head(id).map(|_| id));
        known.filter(|id| self.find(*id).is_some())
    }

    #[inline]
    fn chunk(&self, id: MemcgId, shard: usize) -> &'p AtomicU32 {
        &self.chunks[usize::from(id.0) << self.chunk_shift | shard >> CHUNK]
    }

    /// A shard, if it has memory, of a memcg that can't be removed meanwhile.
    #[inline]
    pub(super) fn shard_of(&self, id: MemcgId, shard: usize) -> Option<&'p PerCpuLruvec> {
        let pfn = self.chunk(id, shard).load(Acquire);
        (pfn != 0).then(|| self.shard_in(pfn, shard))
    }

    #[inline]
    fn shard_in(&self, pfn: u32, shard: usize) -> &'p PerCpuLruvec {
        let first = self.direct.wrapping_add(Pfn(pfn).addr().0 as usize).cast::<PerCpuLruvec>();
        // SAFETY: `provide_shard` wrote so many there before it published the frame, which is freed
        // only when the memcg is removed; the caller keeps it from that.
        unsafe { &*first.wrapping_add(shard & ((1 << CHUNK) - 1)) }
    }

    /// The shard in which something is charged.
    ///
    /// # Panics
    /// If nothing can be, because the shard has no memory.
    #[inline]
    pub(crate) fn shard(&self, id: MemcgId, shard: usize) -> &'p PerCpuLruvec {
        match self.shard_of(id, shard) {
            Some(shard) => shard,
            None => no_shard(id, shard),
        }
    }

    /// Shows the shards of a memcg in which anything was ever charged.
    pub(super) fn each_used<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: MemcgId,
        mut look: impl FnMut(&PerCpuLruvec),
    ) {
        self.looking(frames, id, || {
            for chunk in 0..1 << self.chunk_shift {
                let pfn = self.chunk(id, chunk << CHUNK).load(SeqCst);
                let shards = (0..1 << CHUNK).filter(|_| pfn != 0).map(|shard| self.shard_in(pfn, shard));
                shards.filter(|shard| shard.1.load(Relaxed)).for_each(&mut look);
            }
        });
    }

    /// Looks at a shard, if it has memory, of a memcg that nothing else may keep from being
    /// removed.
    pub(super) fn look<P: Platform, R>(
        &self,
        frames: &Frames<'p, P>,
        (id, shard): (MemcgId, usize),
        look: impl FnOnce(&PerCpuLruvec) -> R,
    ) -> Option<R> {
        self.looking(frames, id, || {
            let pfn = self.chunk(id, shard).load(SeqCst);
            (pfn != 0).then(|| look(self.shard_in(pfn, shard)))
        })
    }

    /// Keeps the memory of a memcg's shards, as far as it is found inside of this, from being
    /// freed.
    fn looking<P: Platform, R>(&self, frames: &Frames<'p, P>, id: MemcgId, look: impl FnOnce() -> R) -> R {
        let (platform, memcg) = (frames.platform(), self.of(id));
        // Removal spins for those who look.
        platform.preempt_disable();
        memcg.lookers.fetch_add(1, SeqCst);
        let seen = look();
        memcg.lookers.fetch_sub(1, Release);
        platform.preempt_enable();
        seen
    }
}

#[cold]
fn no_shard(id: MemcgId, shard: usize) -> ! {
    panic!("nothing can be charged in shard {shard} of {id:?}")
}
