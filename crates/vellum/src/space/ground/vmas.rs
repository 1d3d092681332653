//! The VMAs of a space, with their totals and limits.

use core::cell::Cell;
use core::convert::Infallible;
use core::ops::Range;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::Relaxed;

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

/// The state of a space that the VMA lock protects.
pub(in crate::space) struct Vmas {
    pub(in crate::space) tree: VmaTree<Vma>,
    /// The space's number, by which page-cache objects count its VMAs.
    space: SpaceId,
    pub(in crate::space) limits: Limits,
    /// The bytes of all VMAs, except those that are being unmapped (Linux: `total_vm`).
    pub(in crate::space) mapped: u64,
    /// The largest value that `mapped` has had (Linux: `hiwater_vm`).
    pub(in crate::space) peak_mapped: u64,
    /// The part of `mapped` that [`Limits::data`] counts (Linux: `data_vm`).
    pub(in crate::space) data: u64,
    /// The bytes of locked VMAs (Linux: `locked_vm`).
    pub(in crate::space) locked: u64,
    /// The bytes of displaced VMAs, in which rmap indices differ from addresses
    /// ([`Vma::is_displaced`]).
    displaced: u64,
    /// The `mlock` flags ([`VmaFlags::LOCKED_MASK`]) that new VMAs get (Linux: `def_flags`).
    pub(in crate::space) def_flags: VmaFlags,
    /// Page-cache objects with no reference left. They are freed after the lock is released.
    pub(in crate::space) orphans: Orphans,
    /// The claims by which changes lock ranges of addresses, holes included.
    pub(in crate::space) claims: Claims,
    /// The number of VMAs that changes may still add after they have released the lock
    /// ([`Change::reserve`](super::Change::reserve)). Such a change can't fail any more, so the
    /// tree keeps nodes for these VMAs.
    pub(in crate::space) promised: usize,
}

/// The allocator of the VMA tree's nodes. Each node is a frame that is charged to a memcg.
struct Nodes<'a, 'p, P: Platform> {
    machine: &'a Machine<'p, P>,
    memcg: MemcgId,
    /// The reason why the last allocation failed.
    refused: Cell<Refused>,
}

impl<'a, 'p, P: Platform> Nodes<'a, 'p, P> {
    fn new(machine: &'a Machine<'p, P>, memcg: MemcgId) -> Self {
        Nodes { machine, memcg, refused: Cell::new(Refused::OutOfMemory) }
    }

    /// Returns an allocator for calls that only free nodes. It uses no memcg, because the
    /// descriptor of a node's frame records the memcg that is charged.
    fn freeing(machine: &'a Machine<'p, P>) -> Self {
        Self::new(machine, MemcgId::ROOT)
    }
}

// SAFETY: a frame from the allocator is a page of memory, aligned to its size, that belongs to the
// caller that allocated it.
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
        // SAFETY: `node` came from `alloc` and nothing else refers to it (the contract of
        // `NodeMemory::free`), so it is a frame of the machine's allocator that the tree owns.
        unsafe { self.machine.memcgs().free(self.machine.frames(), pfn, 0, false) }
    }
}

impl Vmas {
    pub(in crate::space) fn new(mut limits: Limits, arch: &impl Arch, space: SpaceId) -> Self {
        limits.mmap_base = limits.mmap_base.min(arch.user_end());
        // SAFETY: the methods below always pass the tree `Nodes` of one machine, the one that the
        // space lives on, so a node is freed to the allocator that it came from.
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

    /// Removes all VMAs, when the space ends.
    pub(in crate::space) fn clear<P: Platform>(&mut self, machine: &Machine<'_, P>) {
        self.put_objects(machine);
        self.tree.clear(&Nodes::freeing(machine));
        core::mem::take(&mut self.orphans).free(machine);
    }

    /// Drops the references of all VMAs to their objects.
    fn put_objects<P: Platform>(&mut self, machine: &Machine<'_, P>) {
        for vma in self.tree.iter_from(0) {
            page_cache::unreserve_huge(machine, vma, vma.range, self.space);
            page_cache::put_backing(machine, &vma.backing, self.space, &mut self.orphans);
            machine.platform().resched();
        }
    }

    /// Reserves nodes so that `inserts` VMAs can be added, besides those of [`Vmas::promised`].
    /// Replaces earlier reservations. New nodes are charged to `memcg`.
    ///
    /// # Errors
    /// There is no memory for the nodes.
    pub(in crate::space) fn reserve<P: Platform>(
        &mut self,
        machine: &Machine<'_, P>,
        memcg: MemcgId,
        inserts: usize,
    ) -> Result<(), Refused> {
        let nodes = Nodes::new(machine, memcg);
        self.tree.reserve(&nodes, self.promised + inserts).map_err(|_| nodes.refused.get())
    }

    /// Frees nodes that were reserved and not used, unless a change may still need them
    /// ([`Vmas::promised`]).
    pub(in crate::space) fn trim<P: Platform>(&mut self, machine: &Machine<'_, P>) {
        if self.promised == 0 {
            self.tree.trim(&Nodes::freeing(machine));
        }
    }

    /// Returns the VMA at `addr`, unless it is being unmapped ([`State::Dying`]).
    pub(in crate::space) fn find(&self, addr: u64) -> Option<&Vma> {
        self.tree.find(addr).filter(|v| v.state != State::Dying)
    }

    /// Returns the first VMA that overlaps `range`, even if it is being unmapped
    /// ([`State::Dying`]).
    pub(in crate::space) fn first(&self, range: UserRange) -> Option<&Vma> {
        self.tree.find_from(range.start).filter(|vma| vma.range.start < range.end)
    }

    /// Returns the VMAs that overlap `range`, including VMAs that are being unmapped
    /// ([`State::Dying`]). A program may have made any number of VMAs, so the iterator calls
    /// `resched` between two of them (INV-11), with the VMA lock held.
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

    /// Returns the addresses from the start of the first VMA of `range` to the end of the last one
    /// before a gap of a block of 2^`shift` bytes, or of a bounded number of VMAs.
    pub(in crate::space) fn next_together<P: Platform>(
        &self,
        platform: &P,
        range: UserRange,
        shift: u32,
    ) -> Option<UserRange> {
        const MOST: usize = 64;
        let mut vmas = self.overlapping(platform, range).take(MOST);
        let VirtRange { start, mut end } = *vmas.next()?.range;
        for vma in vmas {
            if vma.range.start >> shift > (end >> shift) + 1 {
                break;
            }
            end = vma.range.end;
        }
        Some(range.tail(start.max(range.start)).head(end))
    }

    /// Visits the VMAs of `range` once and returns their properties. Calls `check` for each VMA,
    /// with the VMA and with a flag that is true if all of the range up to the end of that VMA is
    /// mapped.
    ///
    /// # Errors
    /// The first error of `check`, which ends the visit.
    #[inline]
    pub(in crate::space) fn survey<P: Platform, E>(
        &self,
        platform: &P,
        range: UserRange,
        mut check: impl FnMut(&Vma, bool) -> Result<(), E>,
    ) -> Result<Survey, E> {
        let mut survey = Survey { covered: true, ..Survey::default() };
        let mut end = range.start;
        for vma in self.overlapping(platform, range) {
            survey.covered &= vma.range.start <= end && vma.state != State::Dying;
            check(vma, survey.covered)?;
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
        let survey = self.survey(platform, range, |_, _| Ok::<_, Infallible>(()));
        survey.is_ok_and(|survey| survey.covered)
    }

    /// Returns the range of the first sealed VMA in `range`.
    pub(in crate::space) fn sealed<P: Platform>(&self, platform: &P, range: UserRange) -> Option<VirtRange> {
        let mut vmas = self.overlapping(platform, range);
        vmas.find(|vma| vma.flags.contains(VmaFlags::SEALED)).map(|vma| *vma.range)
    }

    /// Returns the number of ends of `range` that lie inside a VMA. [`Vmas::isolate`] adds this
    /// number of VMAs.
    pub(in crate::space) fn edge_splits(&self, range: UserRange) -> usize {
        let inside = |addr| self.tree.find(addr).is_some_and(|v| v.range.start < addr) as usize;
        inside(range.start) + inside(range.end)
    }

    /// Returns the VMAs that end above `addr` and are displaced: their rmap indices may differ from
    /// addresses ([`Vma::is_displaced`]). Calls `resched` at each VMA (INV-11), with the VMA lock
    /// held.
    pub(in crate::space) fn displaced<P: Platform>(&self, platform: &P, addr: u64) -> impl Iterator<Item = &Vma> {
        let any = self.displaced != 0;
        let vmas = self.tree.iter_from(addr).take_while(move |_| any);
        vmas.inspect(|_| platform.resched()).filter(|v| v.is_displaced())
    }

    /// Splits VMAs so that none reaches across an end of `range`. The caller has reserved nodes for
    /// [`Vmas::edge_splits`] VMAs.
    pub(in crate::space) fn isolate<P: Platform>(&mut self, machine: &Machine<'_, P>, range: UserRange) {
        self.split_at(machine, range.start);
        self.split_at(machine, range.end);
    }

    /// Splits the VMA that `addr` lies inside, if there is one.
    fn split_at<P: Platform>(&mut self, machine: &Machine<'_, P>, addr: u64) {
        let Some(vma) = self.tree.find(addr).filter(|v| v.range.start < addr).copied() else { return };
        if vma.splits_huge_at(addr) {
            return;
        }
        self.tree.update(vma.range.start, |v| v.range = vma.range.head(addr));
        let upper = Vma { range: vma.range.tail(addr), ..vma };
        let inserted = self.tree.insert(upper);
        debug_assert!(inserted.is_ok(), "a VMA was added without being reserved");
        page_cache::get_backing(machine, &upper.backing, self.space);
    }

    /// Calls `change` for each VMA that overlaps `range`. `change` must leave the VMA's range and
    /// `VM_GROWSDOWN` as they are. Calls `resched` between two leaf nodes of the VMA tree (INV-11).
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

    /// Removes every VMA of `range`. The caller has split the VMAs at the ends of `range`
    /// ([`Vmas::isolate`]).
    pub(in crate::space) fn remove<P: Platform>(&mut self, machine: &Machine<'_, P>, range: UserRange) {
        let holds =
            |vma: Option<&Vma>| vma.is_none_or(|vma| range.start <= vma.range.start && vma.range.end <= range.end);
        if holds(self.tree.find_from(0)) && holds(self.tree.prev(u64::MAX)) {
            self.put_objects(machine);
            return self.tree.remove_all(&Nodes::freeing(machine));
        }
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

    /// Replaces the VMA that begins at `start` by `new`, and drops the reference of the old VMA to
    /// its object. The caller's reference to the object of `new` becomes the reference of the new
    /// VMA.
    pub(in crate::space) fn replace<P: Platform>(&mut self, machine: &Machine<'_, P>, start: u64, new: Vma) {
        let (orphans, space) = (&mut self.orphans, self.space);
        self.tree.update(start, |vma| {
            page_cache::put_backing(machine, &vma.backing, space, orphans);
            *vma = new;
        });
    }

    /// Merges adjacent VMAs that can be merged, from the VMA before `range` to the VMA after it.
    /// Keeps boundaries that another change relies on ([`Claims::relies_on_boundary`]): that change
    /// merges the VMAs there when it ends. Merges at other boundaries even if a change is at work
    /// elsewhere in one of the two VMAs, or a fault has claimed a range with the boundary. If these
    /// merges were left out, two VMAs could stay apart for ever, because perhaps no later operation
    /// looks at the boundary; and a call that needs a single VMA, such as `mremap`, could fail.
    pub(in crate::space) fn merge<P: Platform>(&mut self, machine: &Machine<'_, P>, range: UserRange) {
        let first = self.tree.find_from(range.start).map_or(range.start, |vma| vma.range.start.min(range.start));
        let mut at = first.saturating_sub(1);
        while let Some((before, next)) = self.next_to_merge(machine.platform(), at, range.end) {
            self.tree.remove(&Nodes::freeing(machine), next.range.start);
            page_cache::put_backing(machine, &next.backing, self.space, &mut self.orphans);
            self.tree.update(before.start, |v| v.append(&next));
            at = before.start;
            machine.platform().resched();
        }
    }

    /// Returns the next two adjacent VMAs that can be merged: the range of the first, and the
    /// second. The first ends above `at` and begins at or before `end`.
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

    /// Adds the VMAs of `range` to the totals that the limits apply to (`sign` is 1), or subtracts
    /// them (`sign` is -1).
    pub(in crate::space) fn account_all<P: Platform>(&mut self, machine: &Machine<'_, P>, range: UserRange, sign: i64) {
        let mut amounts = Amounts::default();
        for vma in self.overlapping(machine.platform(), range) {
            amounts.add(vma, range);
        }
        self.count(&amounts, sign);
    }

    /// Checks whether the limits allow `len` more bytes of VMAs like `kind`, which replace
    /// `replaced` bytes.
    ///
    /// # Errors
    /// The limit that would be exceeded.
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

    /// Adds the part of a VMA that lies in `range` to the totals that the limits apply to (`sign`
    /// is 1), or subtracts it (`sign` is -1). The caller still holds the lock under which
    /// [`Vmas::allow`] checked the limits (INV-19).
    pub(in crate::space) fn account(&mut self, vma: &Vma, range: UserRange, sign: i64) {
        let mut amounts = Amounts::default();
        amounts.add(vma, range);
        self.count(&amounts, sign);
    }

    /// Adds `amounts` to the totals (`sign` is 1), or subtracts them (`sign` is -1).
    pub(in crate::space) fn count(&mut self, amounts: &Amounts, sign: i64) {
        let add = |to: &mut u64, bytes: u64| *to = to.wrapping_add(bytes.wrapping_mul(sign as u64));
        add(&mut self.mapped, amounts.mapped);
        add(&mut self.data, amounts.data);
        add(&mut self.locked, amounts.locked);
        add(&mut self.displaced, amounts.displaced);
        self.peak_mapped = self.peak_mapped.max(self.mapped);
    }
}

/// The result of [`Vmas::survey`] of a range.
#[derive(Default)]
pub(in crate::space) struct Survey {
    /// True if VMAs cover all of the range, and none of them is being unmapped.
    pub(in crate::space) covered: bool,
    /// The number of ends of the range that lie inside a VMA, as [`Vmas::edge_splits`] returns it.
    pub(in crate::space) edge_splits: usize,
    /// True if one VMA reaches beyond both ends of the range.
    pub(in crate::space) inside_one_vma: bool,
    /// The bytes that the parts of the VMAs in the range add to each total in [`Vmas`].
    pub(in crate::space) amounts: Amounts,
}

/// The bytes that VMAs add to each total in [`Vmas`].
#[derive(Default)]
pub(in crate::space) struct Amounts {
    pub(in crate::space) mapped: u64,
    pub(in crate::space) data: u64,
    locked: u64,
    displaced: u64,
}

impl Amounts {
    /// Adds the part of a VMA that lies in `range`.
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

/// Returns the part of a VMA that maps `pages` of an object, or `None` if it maps none of them.
/// `pages` are numbered from the object's beginning, in pages of `1 << shift` bytes.
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

impl<'m, P: Platform> AddressSpace<'m, P> {
    /// Returns the limits of the space.
    pub fn limits(&self) -> Limits {
        self.read().limits
    }

    /// Changes the limits of the space. Memory that exceeds a new limit already stays mapped.
    pub fn set_limits(&self, change: impl FnOnce(&mut Limits)) {
        let mut vmas = self.write();
        change(&mut vmas.limits);
        vmas.limits.mmap_base = vmas.limits.mmap_base.min(self.tables.arch.user_end());
        self.large_folios.store(vmas.limits.large_folios as u8, Relaxed);
    }

    /// Locks the VMAs for writing. Before that, waits while an operation that had to retry too
    /// often keeps the gate closed ([`crate::sync::Gate`], INV-21).
    pub(in crate::space) fn write(&self) -> WriteGuard<'_, Vmas> {
        self.tables.gate.pass(self.machine().platform());
        self.vmas.write(self.machine().platform(), self.tables.slots.iter().map(|s| &s.readers))
    }

    /// Locks the VMAs for reading, by adding to this CPU's reader count. Before that, waits while
    /// an operation that had to retry too often keeps the gate closed ([`crate::sync::Gate`],
    /// INV-21).
    pub(in crate::space) fn read(&self) -> ReadGuard<'_, Vmas> {
        self.read_with(None)
    }

    /// Locks the VMAs for reading. An operation that has closed the gate itself passes its
    /// `retries`, and does not wait at the gate.
    #[inline]
    pub(in crate::space) fn read_with(&self, retries: Option<&Retries<'_>>) -> ReadGuard<'_, Vmas> {
        if !retries.is_some_and(Retries::has_closed) {
            self.tables.gate.pass(self.machine().platform());
        }
        self.vmas.read(self.machine().platform(), &self.tables.slot().readers)
    }

    /// Returns an empty gather (Linux: `mmu_gather`) for an operation on `range`.
    pub(in crate::space) fn gather(&self, range: UserRange) -> Gather<'_, 'm, P> {
        Gather::new(&self.tables.tlb, range, self.tables.arch.page_shift(), self.tables.max_run > 1)
    }
}
