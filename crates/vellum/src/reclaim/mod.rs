//! Reclaim: frees memory of memcgs by taking folios that were not used for a while from the old
//! ends of their LRU lists.
//!
//! Direct reclaim happens in the host. An operation that finds no memory returns an error and
//! leaves the state unchanged (INV-7); the host then reclaims and retries. So reclaim never runs
//! inside another operation, and no lock is held when it begins.
//!
//! # Mechanism
//! Reclaim isolates folios from the old end of a memcg's LRU lists, a batch at a time. It takes
//! each folio off its list, takes a reference to it, and writes the number of the batch
//! (`IsolationBatch`) to its descriptor. Anonymous folios that are contiguous in memory and have
//! consecutive rmap indices (Linux: `folio->index`) are handled as one `Victim` from then on.
//!
//! The anonymous rmap needs no upkeep by a fork or an unmap. A folio's descriptor names its fork
//! family (an address space and those forked from it, directly or not) and its rmap index
//! (`RmapKey`), and reclaim searches each space of that family. In most VMAs the rmap index of a
//! page is its address, so reclaim only looks that address up. In *displaced* VMAs, which were
//! moved (`mremap`) or map a page-cache object privately, index and address differ: reclaim
//! compares the rmap indices of each displaced VMA with the folio's.
//!
//! A folio that was used since the last scan (it is young: a PTE that maps it has the accessed bit)
//! goes back to the young end of its list, and so does a folio that can't be reclaimed. For the
//! remaining folios, each space in turn replaces its PTEs by swap entries, run by run
//! ([`crate::space`]). The first space that maps a folio writes it to swap. If other spaces map the
//! folio too, the first one also adds it to the swap cache, and the others use its swap slots
//! instead of writing it again. At the end reclaim frees the folios of the batch that no PTE maps
//! any more. Folios of page-cache objects (`objects`) are first unmapped in every space that maps
//! them, and then the object writes them to swap.
//!
//! Reclaim begins with the memory that costs least: the unmapped pages of partially mapped folios
//! (`split`), and after these lazyfree folios, which are freed without a write
//! ([`LruList::Lazyfree`]), and folios of files, which the host's storage has. Of these it takes
//! the ones that were used once ([`LruList::File`]), and leaves those of working sets
//! ([`LruList::ActiveFile`]): folios that were used again, and those that were read again soon
//! after they were dropped. Active folios that are not used become inactive when they are too many.
//!
//! Compaction (`compact`) empties pageblocks by the same means, so that faults find large blocks.

mod compact;
mod objects;
mod split;

pub use compact::{Compacted, compact};

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::frame::{Family, Frame, RmapKey, flag};
use crate::machine::Machine;
use crate::memcg::{IsolateLimit, LruList, LruvecId, MemcgError, MemcgId};
use crate::platform::Platform;
use crate::space::{AddressSpace, ISOLATION_BATCH, IsolationBatch, MigratedPages, Pageout, Rmap, Spaces};
use crate::vma::Vma;

/// The maximum number of folios in a batch, so that few enough are freed between two calls of
/// `resched` (INV-11). A batch also ends at [`ISOLATION_BATCH`] victims.
const BATCH_FOLIOS: usize = 512;

/// The lists whose folios are dropped, as their contents are in the host's storage: those that were
/// used once, and all.
const UNUSED_FILES: &[LruList] = &[LruList::File];
const FILES: &[LruList] = &[LruList::File, LruList::ActiveFile];

/// The lists whose folios are paged out to swap. Reclaim scans them several times. In the last scan
/// it takes young folios too.
const SWAPPABLE: &[LruList] = &[LruList::Anon, LruList::Shmem];

/// The result of an attempt to reclaim, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// The number of pages that were scanned (Linux: `pgscan`). A page that was scanned twice
    /// counts twice.
    pub scanned: u64,
    /// The number of pages that were freed (Linux: `pgsteal`).
    pub freed: u64,
}

/// The memory that an attempt to reclaim may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimScope {
    /// Only memory of this memcg and its descendants; [`MemcgId::ROOT`] is all.
    pub memcg: MemcgId,
    /// Only memory of this node; `None` is all nodes.
    pub node: Option<usize>,
}

impl From<MemcgId> for ReclaimScope {
    /// The memory of a memcg and its descendants on all nodes.
    fn from(memcg: MemcgId) -> Self {
        ReclaimScope { memcg, node: None }
    }
}

/// Reclaims about `pages` pages (of 4 KiB) from the memcg and the node in `scope`, in proportion to
/// the size of each per-CPU lruvec's lists. Frees fewer if the rest is in use or can't be
/// reclaimed. The caller holds no lock; the platform's `resched` is called between batches.
///
/// # Errors
/// There is no such memcg.
pub fn reclaim<'m, P: Platform>(
    machine: &'m Machine<'m, P>,
    spaces: &(impl Spaces<'m, P> + ?Sized),
    scope: impl Into<ReclaimScope>,
    pages: u64,
) -> Result<Reclaimed, MemcgError> {
    let scope = scope.into();
    if !machine.memcgs().exists(scope.memcg) {
        return Err(MemcgError::NoSuchMemcg(scope.memcg));
    }
    let done = Reclaimed::default();
    let mut work = Reclaim { machine, spaces, wanted: pages, done, arch: core::marker::PhantomData };
    work.split_partial(scope);
    work.shrink_lists(scope, &[LruList::Lazyfree], Spares::None);
    // The lists of each round, and whether it spares young folios. The unevictable list may have
    // folios that no locked VMA maps any more: for example, the parent that locked them has exited,
    // and its child still maps them.
    let unevictable: &[LruList] = &[LruList::Unevictable];
    let rounds = [
        (UNUSED_FILES, Spares::Young),
        (SWAPPABLE, Spares::Young),
        (UNUSED_FILES, Spares::Young),
        (SWAPPABLE, Spares::Young),
        (FILES, Spares::None),
        (SWAPPABLE, Spares::None),
        (unevictable, Spares::None),
    ];
    for (lists, spares) in rounds {
        let (first, has_room) = (lists[0], || machine.swaps().has_room(machine.platform()));
        if work.done.freed < pages && (first == LruList::File || has_room()) {
            if lists == UNUSED_FILES {
                work.deactivate_files(scope);
            }
            work.shrink_lists(scope, lists, spares);
        }
    }
    Ok(work.done)
}

/// The folios that a scan of a list leaves as they are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spares {
    /// None.
    None,
    /// Young ones, which go back to the young end of their list, or, if they are folios of files
    /// that were used before, to the list of active ones.
    Young,
    /// All: young ones stay active, and the others go to the list of files that are not.
    Active,
}

/// One attempt to reclaim (Linux: `scan_control`).
struct Reclaim<'s, 'm, P: Platform, S: ?Sized> {
    machine: &'m Machine<'m, P>,
    spaces: &'s S,
    /// The number of pages to free.
    wanted: u64,
    done: Reclaimed,
    arch: core::marker::PhantomData<P::Arch>,
}

/// An isolated folio, or several that are contiguous in memory and have consecutive rmap indices.
#[derive(Clone, Copy)]
struct Victim<'m> {
    /// The first frame of the first folio.
    head: Pfn,
    /// The number of frames of all folios.
    frames: u32,
    /// The descriptor of `head`.
    frame: &'m Frame,
    /// The word of the descriptor that names the rmap key, or the page-cache object and page
    /// ([`Frame::data`]), as it was when the folio was isolated. Victims are sorted by this copy,
    /// because the word itself changes when another CPU removes the folio from its object.
    rmap_key: u64,
    /// True if a PTE that maps the victim had the accessed bit.
    young: bool,
    /// The number of frames of the victim for which a PTE was found.
    found: u32,
}

impl<'m> Victim<'m> {
    /// Makes a victim of the folio `head`, which the caller has isolated.
    #[inline]
    fn new(head: Pfn, frame: &'m Frame, frames: u32) -> Self {
        Victim { head, frames, frame, rmap_key: frame.data(), young: false, found: 0 }
    }

    /// Adds `next` to this victim, if `next` is an anonymous folio that begins where the victim
    /// ends, both in memory and by rmap index. Returns whether it was added.
    #[inline]
    fn join(&mut self, next: &Self) -> bool {
        // The key has the fork family (the spaces that can map the folio) in the bits above the
        // index, so the key after the last index of a family names the next family and the index 0.
        // No folio has that key, because nothing is mapped at address 0. So equality means that
        // both folios are of one family.
        let follows = next.head == self.head.add(self.frames)
            && next.rmap_key == self.rmap_key.wrapping_add(u64::from(self.frames));
        if follows {
            self.frames += next.frames;
        }
        follows
    }

    /// Returns the fork family of an anonymous victim: only spaces of this family can map it.
    fn family(&self) -> Family {
        RmapKey::unpack(self.rmap_key).family
    }

    /// Returns whether the search for PTEs that map this victim can end: the victim is young and
    /// stays, or no space maps it any more.
    fn is_done<P: Platform>(&self, machine: &Machine<'_, P>, isolated: IsolationBatch) -> bool {
        let mut folios = machine.frames().folios(self.head, self.frames);
        self.young || folios.all(|(_, frame, _)| isolated.is_unmapped(frame))
    }

    /// Returns the rmap indices of an anonymous victim, as a range of addresses.
    fn rmap_range(&self) -> VirtRange {
        let start = RmapKey::unpack(self.rmap_key).rmap_index << FRAME_SHIFT;
        VirtRange { start, end: start + (u64::from(self.frames) << FRAME_SHIFT) }
    }

    /// Returns whether the victim is a folio of a page-cache object.
    fn is_object(&self) -> bool {
        self.frame.has(flag::OBJECT)
    }

    /// Returns the smallest range that has the rmap indices of all these victims.
    fn rmap_hull(victims: &[Self]) -> VirtRange {
        let start = victims.iter().map(|victim| victim.rmap_range().start).min().unwrap_or(0);
        let end = victims.iter().map(|victim| victim.rmap_range().end).max().unwrap_or(0);
        VirtRange { start, end }
    }
}

/// The part of a space in which reclaim searches for PTEs that map victims.
#[derive(Clone, Copy)]
enum RmapSearch {
    /// The VMAs that are not displaced: the rmap index of a page is its address.
    AtIndex,
    /// This displaced VMA: the rmap indices of its pages are not their addresses
    /// ([`Vma::is_displaced`]).
    Displaced(Vma),
}

impl RmapSearch {
    /// Returns the addresses at which this part of the space may map a victim; `None` if the
    /// displaced VMA has none of the victim's rmap indices.
    fn find(&self, victim: &Victim<'_>) -> Option<VirtRange> {
        match self {
            RmapSearch::AtIndex => Some(victim.rmap_range()),
            RmapSearch::Displaced(vma) => vma.rmap_part(victim.rmap_range()).map(VirtRange::from),
        }
    }
}

impl<'m, P: Platform, S: Spaces<'m, P> + ?Sized> Reclaim<'_, 'm, P, S> {
    /// Deactivates folios of files, if more than three quarters of the pages of files are active
    /// (Linux: `shrink_active_list`, `inactive_is_low`), so that a new page has time to be used
    /// again, and an active one that is not used leaves in the end. Scans no more than twice what
    /// is wanted, so that an attempt to reclaim stays short where all are young.
    fn deactivate_files(&mut self, scope: ReclaimScope) {
        let lru = self.machine.memcgs().lru(self.machine.frames());
        let lruvecs = || lru.lruvecs_on(scope.memcg, scope.node);
        let listed = |list| lruvecs().map(|lruvec| lru.list_pages(lruvec, list)).sum::<u64>();
        let (inactive, active) = (listed(LruList::File), listed(LruList::ActiveFile));
        let missing = ((inactive + active) / 4).saturating_sub(inactive).min(self.wanted.saturating_mul(2));
        if missing == 0 {
            return;
        }
        lruvecs().for_each(|lruvec| {
            let own = lru.list_pages(lruvec, LruList::ActiveFile);
            self.shrink_list(lruvec, LruList::ActiveFile, (own * missing).div_ceil(active), 0, Spares::Active);
        });
    }

    /// Scans `lists` of all lruvecs in `scope` at most once, until enough pages are freed.
    ///
    /// The scan goes in turns. Each turn scans the same fraction of every list, and frees from no
    /// list more than the list's share of the pages that are still to be freed. The fraction
    /// doubles with each turn.
    fn shrink_lists(&mut self, scope: ReclaimScope, lists: &[LruList], spares: Spares) {
        let (memcgs, frames) = (self.machine.memcgs(), self.machine.frames());
        let each = |lruvec| lists.iter().map(move |list| (lruvec, *list));
        let all_lists = || memcgs.lru(frames).lruvecs_on(scope.memcg, scope.node).flat_map(each);
        let all: u64 = all_lists().map(|(lruvec, list)| memcgs.lru(frames).list_pages(lruvec, list)).sum();
        let (mut scanned, mut turn_pages) = (0, self.wanted.min(all));
        while scanned < all && self.done.freed < self.wanted {
            let missing = (self.wanted - self.done.freed).min(all);
            all_lists().for_each(|(lruvec, list)| {
                let listed = memcgs.lru(frames).list_pages(lruvec, list);
                // The product does not overflow: there are fewer than 2^32 frames.
                let share_of = |pages: u64| (listed * pages).div_ceil(all);
                self.shrink_list(lruvec, list, share_of(turn_pages), share_of(missing), spares);
            });
            scanned += turn_pages;
            turn_pages = (2 * turn_pages).min(all);
        }
    }

    /// Scans `left` pages of one lruvec's list, in batches, and frees no more than `share` of them
    /// and no more than is wanted. No lock is held between batches.
    fn shrink_list(&mut self, lruvec: LruvecId, list: LruList, mut left: u64, share: u64, spares: Spares) {
        // A scan that frees none ends after `left` pages.
        let enough = match spares {
            Spares::Active => u64::MAX,
            _ => self.wanted.min(self.done.freed.saturating_add(share)),
        };
        let machine = self.machine;
        let (memcgs, frames) = (machine.memcgs(), machine.frames());
        while left > 0 && self.done.freed < enough {
            let (mut victims, isolated) =
                (ArrayVec::<Victim<'_>, ISOLATION_BATCH>::new(), IsolationBatch::new(machine));
            let limit = IsolateLimit { folios: BATCH_FOLIOS, pages: left.min(enough - self.done.freed) };
            // A victim is young or not as a whole, so folios are joined only if accessed bits are
            // not checked.
            let joins = spares == Spares::None && matches!(list, LruList::Anon | LruList::Lazyfree);
            let take = |head, frame, frames| {
                isolated.add(frame);
                let next = Victim::new(head, frame, frames);
                if !(joins && victims.last_mut().is_some_and(|last| last.join(&next))) {
                    victims.push(next);
                }
                !victims.is_full()
            };
            let pages = memcgs.lru(frames).isolate(lruvec, list, limit, take);
            if pages == 0 {
                break;
            }
            if spares != Spares::Active {
                self.done.scanned += pages;
            }
            left = left.saturating_sub(pages);
            if list == LruList::Unevictable {
                victims.sort_unstable_by_key(Victim::is_object);
            }
            let first = victims.partition_point(|victim| !victim.is_object());
            let (anonymous, objects) = victims.split_at_mut(first);
            // Victims are grouped by fork family, so that each family's spaces are searched once.
            if !anonymous.is_sorted_by_key(Victim::family) {
                anonymous.sort_unstable_by_key(|victim| victim.rmap_key);
            }
            for family in anonymous.chunk_by_mut(|a, b| a.family() == b.family()) {
                self.reclaim_family(family, isolated, spares == Spares::Young, None);
            }
            self.reclaim_objects(objects, isolated, spares);
            let ranges = victims.iter().map(|victim| machine.frames().folios(victim.head, victim.frames));
            self.done.freed += isolated.putback(machine, ranges);
            machine.platform().resched();
        }
    }

    /// Pages out victims of one fork family ([`Family`]) in every space that maps them: to swap,
    /// or, with `copies`, by migration to new folios, which `copies` records. With `spare_young`,
    /// first checks the accessed bits of all PTEs that map the victims, and leaves young victims
    /// mapped.
    fn reclaim_family(
        &self,
        victims: &mut [Victim<'m>],
        isolated: IsolationBatch,
        spare_young: bool,
        mut copies: Option<&mut MigratedPages>,
    ) {
        let Some(family) = victims.first().map(Victim::family) else { return };
        if spare_young {
            // The search for a victim's PTEs ends when one of them is young, or when all were
            // found.
            let done = |victim: &Victim<'_>| victim.young || victim.found >= victim.frame.counts().maps;
            let visit = |space: &AddressSpace<'m, P>, search: RmapSearch, victims: &mut [Victim<'m>]| {
                for victim in victims {
                    let Some(range) = search.find(victim) else { continue };
                    let referenced = Rmap::of(space).clear_young(range, victim.head);
                    victim.young |= referenced.young;
                    victim.found += referenced.frames;
                }
            };
            self.rmap_walk(family, victims, visit, |victims| victims.iter().all(done));
        }
        let visit = |space: &AddressSpace<'m, P>, search: RmapSearch, victims: &mut [Victim<'m>]| {
            let mut old = victims.iter().filter(|victim| !victim.young).filter_map(|victim| search.find(victim));
            let Some(mut last) = old.next() else { return };
            let mut ranges = ArrayVec::<VirtRange, ISOLATION_BATCH>::new();
            for range in old {
                if !last.merge(&range) {
                    ranges.push(core::mem::replace(&mut last, range));
                }
            }
            ranges.push(last);
            let merged = VirtRange::merge_all(&mut ranges);
            ranges.truncate(merged);
            Pageout::of(space).pageout(&ranges, Some(isolated), copies.as_deref_mut());
        };
        self.rmap_walk(family, victims, visit, |victims| {
            victims.iter().all(|victim| victim.is_done(self.machine, isolated))
        });
    }

    /// Calls `visit` for each space of a fork family ([`Family`]; Linux: `rmap_walk_anon`): once
    /// for all VMAs that are not displaced ([`RmapSearch::AtIndex`]), and once for each displaced
    /// VMA ([`RmapSearch::Displaced`]) that has rmap indices in the range of the victims'. Calls
    /// `done` before each space except the first, and ends when it returns true. No lock is held
    /// while `visit` runs.
    fn rmap_walk(
        &self,
        family: Family,
        victims: &mut [Victim<'m>],
        mut visit: impl FnMut(&AddressSpace<'m, P>, RmapSearch, &mut [Victim<'m>]),
        mut done: impl FnMut(&[Victim<'m>]) -> bool,
    ) {
        if victims.is_empty() {
            return;
        }
        let mut first = true;
        self.spaces.each_in_family(family, &mut |space| {
            if !core::mem::take(&mut first) && done(victims) {
                return false;
            }
            visit(space, RmapSearch::AtIndex, victims);
            let (mut at, mut hull) = (0, None);
            while let Some(vma) =
                Rmap::of(space).next_displaced(at, || *hull.get_or_insert_with(|| Victim::rmap_hull(victims)))
            {
                visit(space, RmapSearch::Displaced(vma), victims);
                at = vma.range.end;
            }
            self.machine.platform().resched();
            true
        });
    }
}
