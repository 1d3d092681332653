//! The VMAs of a space, and what limits them.

use core::cell::Cell;
use core::convert::Infallible;
use core::ops::Range;
use core::ptr::NonNull;

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, UserRange};
use crate::machine::Machine;
use crate::memcg::{MemcgId, Refused};
use crate::page_cache::{self, Object, Orphans};
use crate::platform::{Platform, SpaceId};
use crate::sync::{ReadGuard, Retries, WriteGuard};
use crate::tlb::Gather;
use crate::vma::{NodeMemory, State, Vma, VmaFlags, VmaTree};

use super::claims::Claims;
use super::{Excess, Limits};
use crate::space::AddressSpace;

/// What the lock of a space protects.
pub(in crate::space) struct Vmas {
    pub(in crate::space) tree: VmaTree<Vma>,
    /// The space's number, by which objects count its VMAs.
    space: SpaceId,
    pub(in crate::space) limits: Limits,
    /// Bytes mapped, dying VMAs not counted.
    pub(in crate::space) mapped: u64,
    /// The most that ever was.
    pub(in crate::space) peak_mapped: u64,
    /// Of those, what [`Limits::data`] counts.
    pub(in crate::space) data: u64,
    /// Bytes of locked VMAs.
    pub(in crate::space) locked: u64,
    /// Bytes of VMAs that are displaced.
    displaced: u64,
    /// What is added to new VMAs, of [`VmaFlags::LOCKED_MASK`].
    pub(in crate::space) def_flags: VmaFlags,
    /// Objects that no VMA maps any more, nor anybody else knows: freed when the lock is given
    /// back.
    pub(in crate::space) orphans: Orphans,
    /// Which ranges are being changed, holes included.
    pub(in crate::space) claims: Claims,
    /// VMAs that will be added by operations which have let go of the lock meanwhile, and can't
    /// fail any more.
    pub(in crate::space) promised: usize,
}

/// Nodes of the tree are frames, charged to a memcg.
struct Nodes<'a, 'p, P: Platform> {
    machine: &'a Machine<'p, P>,
    memcg: MemcgId,
    /// Why the last node was refused.
    refused: Cell<Refused>,
}

impl<'a, 'p, P: Platform> Nodes<'a, 'p, P> {
    fn new(machine: &'a Machine<'p, P>, memcg: MemcgId) -> Self {
        Nodes { machine, memcg, refused: Cell::new(Refused::OutOfMemory) }
    }

    /// For calls that only free nodes. A node's descriptor records its memcg.
    fn freeing(machine: &'a Machine<'p, P>) -> Self {
        Self::new(machine, MemcgId::ROOT)
    }
}

// SAFETY: a frame from the allocator is a page of memory, aligned to its size, that belongs to
// whoever allocated it.
unsafe impl<P: Platform> NodeMemory for Nodes<'_, '_, P> {
    fn alloc(&self) -> Option<NonNull<u8>> {
        self.machine.platform().resched();
        let frames = self.machine.frames();
        let allocated = self.machine.memcgs().alloc(frames, self.memcg, 0, false);
        allocated.inspect_err(|why| self.refused.set(*why)).ok().map(|(pfn, _)| frames.at(pfn.addr()))
    }

    unsafe fn free(&self, node: NonNull<u8>) {
        self.machine.platform().resched();
        let offset = (node.as_ptr() as usize).wrapping_sub(self.machine.platform().direct_map() as usize);
        let pfn = Pfn((offset >> FRAME_SHIFT) as u32);
        // SAFETY: the tree gives back what `alloc` gave it (contract of `NodeMemory`), and nobody
        // else knows of it.
        unsafe { self.machine.memcgs().free(self.machine.frames(), pfn, 0, false) }
    }
}

impl Vmas {
    pub(in crate::space) fn new(mut limits: Limits, arch: &impl Arch, space: SpaceId) -> Self {
        limits.mmap_base = limits.mmap_base.min(arch.user_end());
        // SAFETY: the methods below always give it the frames of the machine that the space lives
        // on.
        let tree = unsafe { VmaTree::new() };
        Vmas {
            tree,
            space,
            limits,
            mapped: 0,
            peak_mapped: 0,
            data: 0,
            locked: 0,
            displaced: 0,
            def_flags: VmaFlags::empty(),
            orphans: Orphans::default(),
            claims: Claims::default(),
            promised: 0,
        }
    }

    pub(in crate::space) fn clear<P: Platform>(&mut self, machine: &Machine<'_, P>) {
        for vma in self.tree.iter_from(0) {
            page_cache::put_backing(machine, &vma.backing, self.space, &mut self.orphans);
            machine.platform().resched();
        }
        self.tree.clear(&Nodes::freeing(machine));
        core::mem::take(&mut self.orphans).free(machine);
    }

    /// Make sure that this many VMAs can be added, besides those promised; what was reserved
    /// before is forgotten. New nodes are charged to `memcg`.
    pub(in crate::space) fn reserve<P: Platform>(
        &mut self,
        machine: &Machine<'_, P>,
        memcg: MemcgId,
        inserts: usize,
    ) -> Result<(), Refused> {
        let nodes = Nodes::new(machine, memcg);
        self.tree.reserve(&nodes, self.promised + inserts).map_err(|_| nodes.refused.get())
    }

    /// Give back what was reserved for nothing.
    pub(in crate::space) fn trim<P: Platform>(&mut self, machine: &Machine<'_, P>) {
        if self.promised == 0 {
            self.tree.trim(&Nodes::freeing(machine));
        }
    }

    /// The VMA at `addr`, unless it is being unmapped.
    pub(in crate::space) fn find(&self, addr: u64) -> Option<&Vma> {
        self.tree.find(addr).filter(|v| v.state != State::Dying)
    }

    /// Returns the first VMA that overlaps `range`, be it a dying one.
    pub(in crate::space) fn first(&self, range: UserRange) -> Option<&Vma> {
        self.tree.find_from(range.start).filter(|vma| vma.range.start < range.end)
    }

    /// Returns the VMAs that overlap `range`, dying ones included. However many a program has made
    /// there, the iterator gives way to other work between two of them (INV-11), inside the lock of
    /// the VMAs.
    pub(in crate::space) fn overlapping<P: Platform>(
        &self,
        platform: &P,
        range: UserRange,
    ) -> impl Iterator<Item = &Vma> {
        let vmas = self.tree.iter_from(range.start).take_while(move |vma| vma.range.start < range.end);
        vmas.inspect(move |vma| {
            if vma.range.start > range.start {
                platform.resched();
            }
        })
    }

    /// Looks once at the VMAs of `range`. `look` sees each, and whether all that lies before it in
    /// the range is mapped; the first that it refuses ends this.
    ///
    /// # Errors
    /// What `look` answers.
    #[inline]
    pub(in crate::space) fn survey<P: Platform, E>(
        &self,
        platform: &P,
        range: UserRange,
        mut look: impl FnMut(&Vma, bool) -> Result<(), E>,
    ) -> Result<Survey, E> {
        let mut survey = Survey { covered: true, ..Survey::default() };
        let mut end = range.start;
        for vma in self.overlapping(platform, range) {
            survey.covered &= vma.range.start <= end && vma.state != State::Dying;
            look(vma, survey.covered)?;
            let (below, above) = (vma.range.start < range.start, vma.range.end > range.end);
            survey.edge_splits += below as usize + above as usize;
            survey.inside_one_vma |= below && above;
            survey.amounts.add(vma, range);
            end = vma.range.end;
        }
        survey.covered &= end >= range.end;
        Ok(survey)
    }

    /// Returns whether every address of `range` is mapped.
    pub(in crate::space) fn covers<P: Platform>(&self, platform: &P, range: UserRange) -> bool {
        let looked = self.survey(platform, range, |_, _| Ok::<_, Infallible>(()));
        looked.is_ok_and(|survey| survey.covered)
    }

    /// Returns the first VMA of `range` that is sealed.
    pub(in crate::space) fn sealed<P: Platform>(&self, platform: &P, range: UserRange) -> Option<VirtRange> {
        let mut vmas = self.overlapping(platform, range);
        vmas.find(|vma| vma.flags.contains(VmaFlags::SEALED)).map(|vma| *vma.range)
    }

    /// Of the ends of `range`, how many lie inside a VMA: how many VMAs [`Vmas::isolate`] adds.
    pub(in crate::space) fn edge_splits(&self, range: UserRange) -> usize {
        let inside = |addr| self.tree.find(addr).is_some_and(|v| v.range.start < addr) as usize;
        inside(range.start) + inside(range.end)
    }

    /// The VMAs that end above `addr` and are displaced.
    pub(in crate::space) fn displaced(&self, addr: u64) -> impl Iterator<Item = &Vma> {
        let any = self.displaced != 0;
        self.tree.iter_from(addr).take_while(move |_| any).filter(|v| v.is_displaced())
    }

    /// Split VMAs so that one begins at `range.start` and one ends at `range.end`. Reserved before:
    /// [`Vmas::edge_splits`] VMAs.
    pub(in crate::space) fn isolate<P: Platform>(&mut self, machine: &Machine<'_, P>, range: UserRange) {
        self.split_at(machine, range.start);
        self.split_at(machine, range.end);
    }

    fn split_at<P: Platform>(&mut self, machine: &Machine<'_, P>, addr: u64) {
        let Some(vma) = self.tree.find(addr).filter(|v| v.range.start < addr).copied() else { return };
        self.tree.update(vma.range.start, |v| v.range = vma.range.head(addr));
        let upper = Vma { range: vma.range.tail(addr), ..vma };
        let inserted = self.tree.insert(upper);
        debug_assert!(inserted.is_ok(), "a VMA was added without being reserved");
        page_cache::get_backing(machine, &upper.backing, self.space);
    }

    /// Changes each VMA of `range`, in full if it was not isolated. `change` leaves its range, and
    /// whether it grows down, alone. Between two leaves of the tree other work may come (INV-11).
    pub(in crate::space) fn each<P: Platform>(
        &mut self,
        machine: &Machine<'_, P>,
        range: UserRange,
        mut change: impl FnMut(&mut Vma),
    ) {
        let mut left = *range;
        while left.start < left.end
            && let Some(end) = self.tree.change(left, &mut change)
        {
            left.start = end;
            machine.platform().resched();
        }
    }

    /// Take out every VMA of `range`, which was isolated.
    pub(in crate::space) fn remove<P: Platform>(&mut self, machine: &Machine<'_, P>, range: UserRange) {
        let mut at = range.start;
        while at < range.end
            && let Some(vma) = self.first(range.tail(at)).copied()
        {
            self.tree.remove(&Nodes::freeing(machine), vma.range.start);
            page_cache::put_backing(machine, &vma.backing, self.space, &mut self.orphans);
            at = vma.range.end.min(range.end);
            machine.platform().resched();
        }
    }

    /// Put another VMA in the place of one, whatever the two have behind them. The new one's
    /// reference is the caller's.
    pub(in crate::space) fn replace<P: Platform>(&mut self, machine: &Machine<'_, P>, start: u64, new: Vma) {
        let (orphans, space) = (&mut self.orphans, self.space);
        self.tree.update(start, |vma| {
            page_cache::put_backing(machine, &vma.backing, space, orphans);
            *vma = new;
        });
    }

    /// Joins neighbours that say the same, from the VMA before `range` to the one behind it; but
    /// not where another change begins, ends or goes on, which counts on that boundary. Such a
    /// change joins them when it is done. A change elsewhere in the two VMAs, or a fault's turn, is
    /// no hindrance: nothing would join them later, or only after calls that need one VMA.
    pub(in crate::space) fn merge<P: Platform>(&mut self, machine: &Machine<'_, P>, range: UserRange) {
        let first = self.tree.find_from(range.start).map_or(range.start, |vma| vma.range.start.min(range.start));
        let mut at = first.saturating_sub(1);
        while let Some((before, next)) = self.next_to_merge(machine.platform(), at, range.end) {
            self.tree.remove(&Nodes::freeing(machine), next.range.start);
            page_cache::put_backing(machine, &next.backing, self.space, &mut self.orphans);
            self.tree.update(before.start, |v| v.range.append(&next.range));
            at = before.start;
            machine.platform().resched();
        }
    }

    /// The next two neighbours that can be joined: the first of them ends above `at` and begins at
    /// `end` at the latest.
    fn next_to_merge<P: Platform>(&self, platform: &P, at: u64, end: u64) -> Option<(UserRange, Vma)> {
        let mut vmas = self.tree.iter_from(at);
        let mut before = vmas.next()?;
        while before.range.start <= end {
            let next = vmas.next()?;
            if next.can_merge_after(before) && !self.claims.relies_on_boundary(next.range.start) {
                return Some((before.range, *next));
            }
            before = next;
            platform.resched();
        }
        None
    }

    /// Bookkeeping for the VMAs of `range`, which come (`+1`) or go (`-1`).
    pub(in crate::space) fn account_all<P: Platform>(&mut self, machine: &Machine<'_, P>, range: UserRange, sign: i64) {
        self.account_as(machine, range, |_| (), sign);
    }

    /// The same for each VMA of `range` as `change` would have it.
    fn account_as<P: Platform>(
        &mut self,
        machine: &Machine<'_, P>,
        range: UserRange,
        change: impl Fn(&mut Vma),
        sign: i64,
    ) {
        let mut amounts = Amounts::default();
        for vma in self.overlapping(machine.platform(), range) {
            let mut vma = *vma;
            change(&mut vma);
            amounts.add(&vma, range);
        }
        self.count(&amounts, sign);
    }

    /// Whether the limits allow `len` bytes more that are used as `kind` is, `replaced` bytes being
    /// given up for them.
    pub(in crate::space) fn allow(&self, kind: &Vma, len: u64, replaced: u64) -> Result<(), Excess> {
        let limits = &self.limits;
        let more = |now: u64| (now - replaced.min(now)).saturating_add(len);
        if kind.flags.contains(VmaFlags::LOCKED) && self.locked.saturating_add(len) > limits.locked {
            Err(Excess::Locked)
        } else if more(self.mapped) > limits.address_space {
            Err(Excess::AddressSpace)
        } else if kind.is_data() && more(self.data) > limits.data {
            Err(Excess::Data)
        } else {
            Ok(())
        }
    }

    /// Bookkeeping for the part of a VMA that lies in `range`. In the lock in which a limit
    /// allowed it (INV-19).
    pub(in crate::space) fn account(&mut self, vma: &Vma, range: UserRange, sign: i64) {
        let mut amounts = Amounts::default();
        amounts.add(vma, range);
        self.count(&amounts, sign);
    }

    /// The same for what VMAs come to.
    pub(in crate::space) fn count(&mut self, amounts: &Amounts, sign: i64) {
        let add = |to: &mut u64, bytes: u64| *to = to.wrapping_add(bytes.wrapping_mul(sign as u64));
        add(&mut self.mapped, amounts.mapped);
        add(&mut self.data, amounts.data);
        add(&mut self.locked, amounts.locked);
        add(&mut self.displaced, amounts.displaced);
        self.peak_mapped = self.peak_mapped.max(self.mapped);
    }
}

/// What one look at the VMAs of a range finds.
#[derive(Default)]
pub(in crate::space) struct Survey {
    /// Whether they cover all of it, and none of them is dying.
    pub(in crate::space) covered: bool,
    /// Of the range's ends, how many lie inside a VMA: as many are added by [`Vmas::isolate`].
    pub(in crate::space) edge_splits: usize,
    /// Whether one VMA reaches beyond both ends.
    pub(in crate::space) inside_one_vma: bool,
    /// What the VMAs count as, as far as they lie in the range.
    pub(in crate::space) amounts: Amounts,
}

/// Bytes of some VMAs, by what they count as.
#[derive(Default)]
pub(in crate::space) struct Amounts {
    pub(in crate::space) mapped: u64,
    pub(in crate::space) data: u64,
    locked: u64,
    displaced: u64,
}

impl Amounts {
    pub(in crate::space) fn add(&mut self, vma: &Vma, range: UserRange) {
        let bytes = vma.range.intersect(&range).len();
        let if_counted = |is: bool| if is { bytes } else { 0 };
        self.mapped += bytes;
        self.data += if_counted(vma.is_data());
        self.locked += if_counted(vma.flags.contains(VmaFlags::LOCKED));
        self.displaced += if_counted(vma.is_displaced());
    }
}

/// The VMAs, locked for writing.
pub(super) type WriteVmas<'a> = WriteGuard<'a, Vmas>;

/// Returns the part of a VMA that maps pages of an object, or `None` if it maps none of them. The
/// numbers of `pages` count from the object's beginning in pages of `1 << shift` bytes.
pub(in crate::space) fn mapped_part<P: Platform>(
    vma: &Vma,
    object: &Object<'_, P>,
    pages: &Range<u64>,
    shift: u32,
) -> Option<UserRange> {
    if !object.backs(&vma.backing) {
        return None;
    }
    let first = vma.backing.offset(vma.range.start) >> shift;
    let count = vma.range.len() >> shift;
    let start = pages.start.max(first) - first;
    let end = pages.end.min(first + count).saturating_sub(first);
    let at = |page: u64| vma.range.start + (page << shift);
    (start < end).then(|| vma.range.tail(at(start)).head(at(end)))
}

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Returns the limits of the space.
    pub fn limits(&self) -> Limits {
        self.read().limits
    }

    /// Changes the limits of the space. What exceeds a new limit already stays.
    pub fn set_limits(&self, change: impl FnOnce(&mut Limits)) {
        let mut vmas = self.write();
        change(&mut vmas.limits);
        vmas.limits.mmap_base = vmas.limits.mmap_base.min(self.tables.arch.user_end());
    }

    /// Locks the VMAs for writing. Passes the gate first (INV-21).
    pub(in crate::space) fn write(&self) -> WriteGuard<'_, Vmas> {
        self.tables.gate.pass(self.machine().platform());
        self.vmas.write(self.machine().platform(), self.tables.slots.iter().map(|s| &s.readers))
    }

    /// Locks the VMAs for reading, by this CPU's reader count. Passes the gate first (INV-21).
    pub(in crate::space) fn read(&self) -> ReadGuard<'_, Vmas> {
        self.read_with(None)
    }

    /// Locks the VMAs for reading. An operation that has closed the gate itself passes its
    /// `retries`, and doesn't wait at the gate.
    #[inline]
    pub(in crate::space) fn read_with(&self, retries: Option<&Retries<'_>>) -> ReadGuard<'_, Vmas> {
        if !retries.is_some_and(Retries::has_closed) {
            self.tables.gate.pass(self.machine().platform());
        }
        self.vmas.read(self.machine().platform(), &self.tables.slot().readers)
    }

    /// Returns a gather for an operation on `range`.
    pub(in crate::space) fn gather(&self, range: UserRange) -> Gather<'_, 'm, P> {
        Gather::new(&self.tables.tlb, range, self.tables.arch.page_shift(), self.tables.max_run > 1)
    }
}
