//! Groups (memory control groups) and their LRU lists.
//!
//! Every folio is charged to a group and stands on one of its LRU lists from its first fault to its last unmap. Both are
//! done in one step, because both belong to the same *shard*: a group has one shard a CPU, with a lock, lists, and a stock
//! of pages charged in advance. A fault uses its own CPU's shard, so faults on different CPUs share no line; the group's
//! counter is touched once a stock ([`STOCK`] pages). Memory of another node goes to that node's own shard, so each list has
//! memory of one node only ([`crate::frame`]). A folio stays in the shard where it was faulted in, and says which
//! that is, so whoever frees a batch takes each shard's lock once for as many folios as stand there in a row.
//!
//! | file | story |
//! |---|---|
//! | `shard` | one shard's part: lists and stock |
//! | `leave` | freeing folios in batches |
//! | `refused` | why memory was refused |
//! | `split` | one folio becomes several |
//!
//! Locks: a shard's lock is taken with page-table locks held or without, never while holding another shard's or the
//! allocator's; it is not for interrupt handlers.

mod leave;
mod refused;
mod shard;
mod split;
#[cfg(test)]
mod tests;

pub(crate) use leave::Leavers;
pub(crate) use refused::may_be_refused;
pub use refused::{MayBeRefused, OverLimit, Refused};
pub use shard::LruList;
pub(crate) use shard::{Home, Shard};
pub(crate) use split::Mapped;

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::{Frame, Frames, OutOfMemory, Use};
use crate::platform::Platform;
use crate::sync::SpinLock;
use shard::Lists;

/// Pages that a shard charges at once, to have them at hand.
pub const STOCK: u32 = 64;
/// The most groups that a machine can have: one frame of frame numbers.
pub const MAX_GROUPS: usize = FRAME_SIZE as usize / size_of::<u32>();

/// The name of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(pub(crate) u16);

impl GroupId {
    /// The group that every other descends from. It has no limit.
    pub const ROOT: GroupId = GroupId(0);
}

/// Why a group can't be made, changed or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupError {
    /// No such group.
    NoSuchGroup(GroupId),
    /// All [`MAX_GROUPS`] are in use.
    TooMany,
    /// No memory for it, or its parent may not have it.
    NoMemory(Refused),
    /// It still has pages charged, or children, or is the root.
    Busy(GroupId),
}

may_be_refused!(GroupError);

/// What a group holds, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUsage {
    /// Charged here and in all descendants.
    pub charged: u64,
    /// The most that ever was, stocks included.
    pub peak: u64,
    /// The limit.
    pub limit: u64,
    /// On this group's own LRU lists, by list.
    pub lru: [u64; LruList::COUNT],
    /// Folios of this group waiting to be split because part of them is not mapped.
    pub deferred: u64,
    /// Of objects, on swap devices; here and in all descendants.
    pub swapped: u64,
}

/// The head of a group's memory; its shards follow.
#[repr(C, align(128))]
struct Group {
    parent: AtomicU32,
    /// 1 when in use. A group that was removed can't come back while a folio still names it: `charged` must be 0.
    live: AtomicU32,
    charged: AtomicU64,
    peak: AtomicU64,
    limit: AtomicU64,
    /// How many pages may yet go to swap; `u64::MAX`: as many as there is room for.
    swap_room: AtomicU64,
    /// How many pages of its objects and of its descendants' are on swap devices.
    swapped: AtomicU64,
}

/// All groups of a machine.
pub struct Groups<'p> {
    /// Frame number of each group's memory, 0 for none. Memory of removed groups is kept and used again.
    table: &'p [AtomicU32],
    direct: *mut u8,
    shards: usize,
    changing: SpinLock<()>,
}

// SAFETY: `direct` only serves to find the groups' memory, which consists of atomics and locks.
unsafe impl Sync for Groups<'_> {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Groups<'_> {}

impl<'p> Groups<'p> {
    /// With the root group alone.
    pub(crate) fn boot<P: Platform>(frames: &Frames<'p, P>) -> Result<Self, OutOfMemory> {
        let pfn = frames.alloc(0, true, Use::Kernel)?;
        // SAFETY: a frame of zeros, just allocated and kept for `'p`, is `MAX_GROUPS` atomics.
        let table =
            unsafe { core::slice::from_raw_parts(frames.at(pfn.addr()).as_ptr().cast::<AtomicU32>(), MAX_GROUPS) };
        let groups = Groups {
            table,
            direct: frames.platform().direct_map(),
            shards: frames.shards(),
            changing: SpinLock::new(()),
        };
        groups.set_up(frames, GroupId::ROOT, GroupId::ROOT, u64::MAX)?;
        Ok(groups)
    }

    /// A new group below `parent`, limited to `limit` pages (`u64::MAX`: by its ancestors only).
    pub fn create<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        parent: GroupId,
        limit: u64,
    ) -> Result<GroupId, GroupError> {
        let _changing = self.changing.lock(frames.platform());
        self.find(parent).ok_or(GroupError::NoSuchGroup(parent))?;
        let free =
            (0..MAX_GROUPS as u16).map(GroupId).find(|id| self.find(*id).is_none()).ok_or(GroupError::TooMany)?;
        self.set_up(frames, free, parent, limit).map_err(Refused::from)?;
        Ok(free)
    }

    fn set_up<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: GroupId,
        parent: GroupId,
        limit: u64,
    ) -> Result<(), OutOfMemory> {
        let slot = &self.table[id.0 as usize];
        if slot.load(Relaxed) == 0 {
            let bytes = size_of::<Group>() + self.shards * size_of::<Shard>();
            let order = bytes.div_ceil(FRAME_SIZE as usize).next_power_of_two().trailing_zeros() as u8;
            slot.store(frames.alloc(order, true, Use::Kernel)?.0, Relaxed);
        }
        let group = self.memory(Pfn(slot.load(Relaxed)));
        group.parent.store(parent.0 as u32, Relaxed);
        group.peak.store(0, Relaxed);
        group.limit.store(limit, Relaxed);
        group.swap_room.store(u64::MAX, Relaxed);
        for shard in 0..self.shards {
            let mut lists = self.shard(id, shard).0.lock(frames.platform());
            if lists.stock == 0 && lists.is_unused() {
                *lists = Lists::default();
            }
        }
        group.live.store(1, core::sync::atomic::Ordering::Release);
        Ok(())
    }

    /// Remove a group that nothing is charged to.
    pub fn remove<P: Platform>(&self, frames: &Frames<'p, P>, id: GroupId) -> Result<(), GroupError> {
        let _changing = self.changing.lock(frames.platform());
        let group = self.find(id).ok_or(GroupError::NoSuchGroup(id))?;
        let child = |other: GroupId| other != id && self.of(other).parent.load(Relaxed) == id.0 as u32;
        self.drain_stocks(frames, id);
        let busy = id == GroupId::ROOT || group.charged.load(Relaxed) != 0;
        if busy || self.all().any(child) {
            return Err(GroupError::Busy(id));
        }
        group.live.store(0, Relaxed);
        Ok(())
    }

    /// Change a group's limit, in pages. What is above it already stays.
    pub fn set_limit(&self, id: GroupId, limit: u64) -> Result<(), GroupError> {
        let group = self.find(id).ok_or(GroupError::NoSuchGroup(id))?;
        group.limit.store(limit, Relaxed);
        Ok(())
    }

    /// How many pages more it may be charged, as of an instant that nobody holds still.
    pub(crate) fn room(&self, id: GroupId) -> u64 {
        let room = |group: &Group| group.limit.load(Relaxed).saturating_sub(group.charged.load(Relaxed));
        self.ancestors(id).map(|at| room(self.of(at))).min().unwrap_or(u64::MAX)
    }

    /// From now on so many pages of a group's spaces and objects and of those of its descendants may go to swap, and no more until this is called
    /// again (`u64::MAX`: any number). Who has what in swap is the host's to know: it says how much less than a limit that is.
    ///
    /// # Errors
    /// There is no such group.
    pub fn set_swap_room(&self, id: GroupId, pages: u64) -> Result<(), GroupError> {
        let group = self.find(id).ok_or(GroupError::NoSuchGroup(id))?;
        group.swap_room.store(pages, Relaxed);
        Ok(())
    }

    /// How many pages more may go to swap.
    #[inline]
    pub(crate) fn swap_room(&self, id: GroupId) -> u64 {
        self.ancestors(id).map(|at| self.of(at).swap_room.load(Relaxed)).min().unwrap_or(u64::MAX)
    }

    /// So many went. (Two CPUs that find room at a time may both use it.)
    #[inline]
    pub(crate) fn use_swap_room(&self, id: GroupId, pages: u64) {
        let less = |room: u64| (room < u64::MAX).then(|| room.saturating_sub(pages));
        for at in self.ancestors(id) {
            // Without a limit there is nothing to count.
            let _ = self.of(at).swap_room.fetch_update(Relaxed, Relaxed, less);
        }
    }

    /// So many more pages of a group's objects are on swap devices, or fewer.
    pub(crate) fn count_swapped(&self, id: GroupId, pages: i64) {
        self.ancestors(id).for_each(|at| _ = self.of(at).swapped.fetch_add(pages as u64, Relaxed));
    }

    /// What it holds now.
    pub fn usage<P: Platform>(&self, frames: &Frames<'p, P>, id: GroupId) -> Result<GroupUsage, GroupError> {
        let group = self.find(id).ok_or(GroupError::NoSuchGroup(id))?;
        let mut usage = GroupUsage {
            charged: group.charged.load(Relaxed),
            peak: group.peak.load(Relaxed),
            limit: group.limit.load(Relaxed),
            swapped: group.swapped.load(Relaxed),
            ..GroupUsage::default()
        };
        for other in self.all() {
            if !self.ancestors(other).any(|g| g == id) {
                continue;
            }
            for shard in 0..self.shards {
                let lists = self.shard(other, shard).0.lock(frames.platform());
                usage.charged = usage.charged.saturating_sub(lists.stock as u64);
                if other == id {
                    usage.lru.iter_mut().zip(lists.pages()).for_each(|(sum, n)| *sum += n);
                    usage.deferred += lists.deferred.len() as u64;
                }
            }
        }
        Ok(usage)
    }

    /// Pages of a node on a group's own LRU lists, by list; what the lists of all nodes have is what [`Groups::usage`] says.
    ///
    /// # Errors
    /// There is no such group.
    pub fn listed_on<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: GroupId,
        node: usize,
    ) -> Result<[u64; LruList::COUNT], GroupError> {
        self.find(id).ok_or(GroupError::NoSuchGroup(id))?;
        let mut sum = [0; LruList::COUNT];
        for shard in frames.shards_on(Some(node)) {
            let pages = self.shard(id, shard).0.lock(frames.platform()).pages();
            sum.iter_mut().zip(pages).for_each(|(sum, n)| *sum += n);
        }
        Ok(sum)
    }

    /// A group that exists or existed.
    fn of(&self, id: GroupId) -> &'p Group {
        self.memory(Pfn(self.table[id.0 as usize].load(Relaxed)))
    }

    fn memory(&self, pfn: Pfn) -> &'p Group {
        // SAFETY: only frames set up by `set_up` get here; they begin with a `Group` (zeros are a valid one) and are never
        // freed.
        unsafe { &*self.direct.wrapping_add(pfn.addr().0 as usize).cast::<Group>() }
    }

    /// A group in use.
    fn find(&self, id: GroupId) -> Option<&'p Group> {
        let pfn = self.table.get(id.0 as usize)?.load(Relaxed);
        let group = (pfn != 0).then(|| self.memory(Pfn(pfn)))?;
        (group.live.load(core::sync::atomic::Ordering::Acquire) == 1).then_some(group)
    }

    /// Whether such a group exists.
    pub fn exists(&self, id: GroupId) -> bool {
        self.find(id).is_some()
    }

    /// The group itself, its parent, and so on to the root.
    fn ancestors(&self, id: GroupId) -> impl Iterator<Item = GroupId> + '_ {
        let parent = |id: &GroupId| {
            let group = self.of(*id);
            (*id != GroupId::ROOT).then(|| GroupId(group.parent.load(Relaxed) as u16))
        };
        core::iter::successors(Some(id), parent)
    }

    /// One shard of a group that exists or existed.
    #[inline]
    pub(crate) fn shard(&self, id: GroupId, shard: usize) -> &'p Shard {
        debug_assert!(shard < self.shards);
        let pfn = Pfn(self.table[id.0 as usize].load(Relaxed));
        let first = self.direct.wrapping_add(pfn.addr().0 as usize + size_of::<Group>()).cast::<Shard>();
        // SAFETY: `set_up` allocated room for so many behind the `Group`; zeros are a valid one; never freed.
        unsafe { &*first.wrapping_add(shard) }
    }

    /// Charge to the group and its ancestors, or to none of them.
    fn charge_all(&self, id: GroupId, pages: u32) -> Result<(), OverLimit> {
        for at in self.ancestors(id) {
            let group = self.of(at);
            let now = group.charged.fetch_add(pages as u64, Relaxed) + pages as u64;
            if now > group.limit.load(Relaxed) {
                group.charged.fetch_sub(pages as u64, Relaxed);
                for undo in self.ancestors(id).take_while(|g| *g != at) {
                    self.of(undo).charged.fetch_sub(pages as u64, Relaxed);
                }
                return Err(OverLimit(at));
            }
            if now > group.peak.load(Relaxed) {
                group.peak.fetch_max(now, Relaxed);
            }
        }
        Ok(())
    }

    fn uncharge_all(&self, id: GroupId, pages: u32) {
        for at in self.ancestors(id) {
            self.of(at).charged.fetch_sub(pages as u64, Relaxed);
        }
    }

    /// Fill a shard's stock so that it holds at least `pages`.
    #[cold]
    fn restock(&self, id: GroupId, lists: &mut Lists, pages: u32) -> Result<(), OverLimit> {
        let missing = pages - lists.stock;
        let charged = self.charge_all(id, missing + STOCK).map(|()| missing + STOCK);
        lists.stock += charged.or_else(|_| self.charge_all(id, missing).map(|()| missing))?;
        Ok(())
    }

    /// Return what the group's shards have in stock.
    #[cold]
    fn drain_stocks<P: Platform>(&self, frames: &Frames<'p, P>, id: GroupId) {
        for shard in 0..self.shards {
            let stock = core::mem::take(&mut self.shard(id, shard).0.lock(frames.platform()).stock);
            self.uncharge_all(id, stock);
        }
    }

    /// Charge `1 << order` frames, of which this is the first, to a group and, if `list` says so, put the folio on that list of
    /// its shard, which the allocator named ([`Frames::alloc_at_home`]). The frame's descriptor remembers where it is at home.
    #[inline(always)]
    pub(crate) fn admit<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: GroupId,
        (pfn, frame, shard): (Pfn, &Frame, usize),
        order: u8,
        list: Option<LruList>,
    ) -> Result<(), OverLimit> {
        let pages = 1u32 << order;
        loop {
            let mut lists = self.shard(id, shard).0.lock(frames.platform());
            if lists.stock < pages
                && let Err(over) = self.restock(id, &mut lists, pages)
            {
                drop(lists);
                self.reclaim_stock(frames, id, pages, over)?;
                continue;
            }
            lists.stock -= pages;
            frame.set_home(Home { group: id, shard, list }.pack());
            if let Some(list) = list {
                lists.add(frames, (pfn, frame), order, list);
            }
            return Ok(());
        }
    }

    /// Allocates `1 << order` frames for a structure of the engine's own (a page table, a node, per-CPU slots), charged to a group.
    /// The frame's descriptor records the group until [`Groups::free`].
    pub(crate) fn alloc<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: GroupId,
        order: u8,
        zero: bool,
    ) -> Result<Pfn, Refused> {
        let (pfn, shard) = frames.alloc_at_home(order, zero, Use::Kernel)?;
        if let Err(over) = self.admit(frames, id, (pfn, frames.frame(pfn), shard), order, None) {
            // SAFETY: just allocated, unknown to anybody else, and as zero as it came.
            unsafe { frames.free(pfn, 1 << order, zero, Use::Kernel) };
            return Err(over.into());
        }
        Ok(pfn)
    }

    /// Frees frames that [`Groups::alloc`] allocated, and returns their charge to the group that was charged. `zero`: they hold zeros.
    ///
    /// # Safety
    /// As for [`Frames::free`].
    pub(crate) unsafe fn free<P: Platform>(&self, frames: &Frames<'p, P>, pfn: Pfn, order: u8, zero: bool) {
        Leavers::new(frames, self).leave(pfn, frames.frame(pfn), 1 << order);
        // SAFETY: by contract.
        unsafe { frames.free(pfn, 1 << order, zero, Use::Kernel) };
    }

    /// See [`Lists::isolate`]: off the lists that a shard has of a group.
    pub(crate) fn isolate<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        (id, shard): (GroupId, usize),
        list: LruList,
        most: (usize, u64),
        take: impl FnMut(Pfn, &'p Frame, u32) -> bool,
    ) -> u64 {
        self.shard(id, shard).0.lock(frames.platform()).isolate(frames, list, most, take)
    }

    /// See [`Lists::isolate_one`].
    pub(crate) fn isolate_one<P: Platform>(&self, frames: &Frames<'p, P>, pfn: Pfn, list: LruList) -> bool {
        let Home { group, shard, .. } = Home::unpack(frames.frame(pfn).home());
        self.shard(group, shard).0.lock(frames.platform()).isolate_one(frames, pfn, list)
    }

    /// Put a folio on a list, as the youngest: one that somebody has isolated, or one that is on `from`. The caller has a reference.
    pub(crate) fn relist<P: Platform>(&self, frames: &Frames<'p, P>, pfn: Pfn, from: Option<LruList>, to: LruList) {
        let frame = frames.frame(pfn);
        let Home { group, shard, .. } = Home::unpack(frame.home());
        let mut lists = self.shard(group, shard).0.lock(frames.platform());
        // Whoever has isolated it puts it back where it belongs then.
        if Home::unpack(frame.home()).list == from {
            lists.relist(frames, pfn, to);
        }
    }

    /// A folio that is on this list is the next to be looked at. The caller has a reference.
    pub(crate) fn make_oldest<P: Platform>(&self, frames: &Frames<'p, P>, pfn: Pfn, list: LruList) {
        let frame = frames.frame(pfn);
        let Home { group, shard, .. } = Home::unpack(frame.home());
        let mut lists = self.shard(group, shard).0.lock(frames.platform());
        if LruList::of(frame) == Some(list) {
            lists.make_oldest(frames, pfn, list);
        }
    }

    /// How many pages a shard's list of a group has.
    pub(crate) fn listed<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        (id, shard): (GroupId, usize),
        list: LruList,
    ) -> u64 {
        self.shard(id, shard).0.lock(frames.platform()).pages()[list as usize]
    }

    /// All shards of a group and its descendants that have memory of a node, or of any.
    pub(crate) fn shards_on<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: GroupId,
        node: Option<usize>,
    ) -> impl Iterator<Item = (GroupId, usize)> {
        self.descendants(id).flat_map(move |id| frames.shards_on(node).map(move |shard| (id, shard)))
    }

    /// A group and all that descend from it.
    pub(crate) fn descendants(&self, id: GroupId) -> impl Iterator<Item = GroupId> + '_ {
        self.all().filter(move |group| self.ancestors(*group).any(|other| other == id))
    }

    /// All groups. Numbers are given out from the lowest on, and the memory of a group that was removed is kept: behind the first
    /// number that has none, none has.
    fn all(&self) -> impl Iterator<Item = GroupId> + '_ {
        let known = self.table.iter().take_while(|slot| slot.load(Relaxed) != 0);
        (0..).map(GroupId).zip(known).map(|(id, _)| id).filter(|id| self.find(*id).is_some())
    }

    /// A charge failed: perhaps other CPUs have in stock what is missing.
    #[cold]
    fn reclaim_stock<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        id: GroupId,
        pages: u32,
        over: OverLimit,
    ) -> Result<(), OverLimit> {
        for at in self.all() {
            if self.ancestors(at).any(|g| g == over.0) {
                self.drain_stocks(frames, at);
            }
        }
        // What was drained may have been taken by others: only go on if it can still succeed.
        self.charge_all(id, pages)?;
        self.uncharge_all(id, pages);
        Ok(())
    }
}
