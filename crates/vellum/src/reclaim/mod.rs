//! Memory is short: what was not used for a while goes, from the memcgs that should have less.
//!
//! Who runs out of memory is told so, having changed nothing; it is the host who reclaims and has it tried again. So nothing here
//! runs inside another operation, and no lock is held when it begins.
//!
//! # Mechanism
//! Folios are taken off the old end of a memcg's lists, a batch at a time, each with a reference and the number of who did.
//! Those that go on in memory and by their places are one row from then on. Where they are mapped is asked of the spaces of their family, where a VMA has their place behind it:
//! a fork costs nothing for it, and neither does an unmap. That is the address where they were first mapped, but for VMAs that
//! were moved, or have an object behind them; which a space goes through only if it has any. A folio that was used since somebody last looked goes back to the
//! young end, and so does what can't go; the others are evicted by every space that has them ([`crate::space`]'s `evict`), by the run, and
//! freed together. What is an object's (`objects`) is unmapped wherever the object is mapped, and then goes from the object. What is not mapped of folios that are mapped in part goes first (`split`), and then what may go without being kept
//! ([`LruList::Lazy`]).

mod objects;
mod split;

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::Arch;
use crate::frame::{Family, Frame, Owner, flag};
use crate::machine::Machine;
use crate::memcg::{LruList, MemcgError, MemcgId};
use crate::platform::Platform;
use crate::space::{AddressSpace, BATCH, Copies, Isolated, Pageout, Rmap, Spaces};
use crate::vma::Vma;

/// Folios that are isolated together, if they are few rows: as many as are freed between two points where the CPU may do something else.
const FOLIOS: usize = 512;

/// What goes to where memory is swapped. It is gone through several times: the last time, what was used may go too.
const EVICTABLE: &[LruList] = &[LruList::Anon, LruList::Shmem];

/// What became of an attempt, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Pages that were looked at, each time that they were (Linux: `pgscan`).
    pub looked: u64,
    /// Pages that were freed (`pgsteal`).
    pub freed: u64,
}

/// Of what memory is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Of what this memcg and its descendants have ([`MemcgId::ROOT`]: of all).
    pub memcg: MemcgId,
    /// Only of what is on this node.
    pub node: Option<usize>,
}

impl From<MemcgId> for Part {
    /// What a memcg and its descendants have, on whatever node.
    fn from(memcg: MemcgId) -> Self {
        Part { memcg, node: None }
    }
}

/// Free about so many pages (of 4 KiB) of what a memcg and its descendants have, on one node or all, as far as that can be, of each as much
/// as it has of the whole. ([`MemcgId::ROOT`]: of the whole machine.)
///
/// # Errors
/// There is no such memcg.
pub fn reclaim<'m, P: Platform, A: Arch>(
    machine: &'m Machine<'m, P>,
    spaces: &(impl Spaces<'m, P, A> + ?Sized),
    part: impl Into<Part>,
    pages: u64,
) -> Result<Reclaimed, MemcgError> {
    let part = part.into();
    if !machine.memcgs().exists(part.memcg) {
        return Err(MemcgError::NoSuchMemcg(part.memcg));
    }
    let done = Reclaimed::default();
    let mut work = Reclaim { machine, spaces, wanted: pages, done, arch: core::marker::PhantomData };
    work.split_partial(part);
    work.lists(part, &[LruList::Lazy], false);
    // Among what was locked may be what is not any more: of a parent that is gone, say.
    let rounds = [(EVICTABLE, true), (EVICTABLE, true), (EVICTABLE, false), (&[LruList::Unevictable], false)];
    for (lists, ages) in rounds {
        if work.done.freed < pages && machine.swaps().has_room(machine.platform()) {
            work.lists(part, lists, ages);
        }
    }
    Ok(work.done)
}

struct Reclaim<'s, 'm, P: Platform, A: Arch, S: ?Sized> {
    machine: &'m Machine<'m, P>,
    spaces: &'s S,
    wanted: u64,
    done: Reclaimed,
    arch: core::marker::PhantomData<A>,
}

/// A folio that was isolated; or several, in a row in memory and by their places.
#[derive(Clone, Copy)]
struct Victim<'m> {
    head: Pfn,
    /// How many frames.
    frames: u32,
    frame: &'m Frame,
    /// Whose it said to be, and where, when it was isolated. An object's may be nobody's any more; but what is sorted by it has to keep still.
    owner: u64,
    /// It was used.
    young: bool,
    /// How many frames of it were found mapped.
    seen: u32,
}

impl<'m> Victim<'m> {
    #[inline]
    fn new(head: Pfn, frame: &'m Frame, frames: u32) -> Self {
        Victim { head, frames, frame, owner: frame.data(), young: false, seen: 0 }
    }

    /// Take in an anonymous folio that goes on where these end. Whether it does.
    #[inline]
    fn join(&mut self, next: &Self) -> bool {
        // Nothing is mapped at the first address, which might be taken for the one after another family's last.
        let goes_on =
            next.head == self.head.add(self.frames) && next.owner == self.owner.wrapping_add(u64::from(self.frames));
        if goes_on {
            self.frames += next.frames;
        }
        goes_on
    }

    fn family(&self) -> Family {
        Owner::unpack(self.owner).family
    }

    /// Whether it stays, or no space has it any more.
    fn is_settled<P: Platform>(&self, machine: &Machine<'_, P>, isolated: Isolated) -> bool {
        let mut folios = machine.frames().folios(self.head, self.frames);
        self.young || folios.all(|(_, frame, _)| isolated.is_unmapped(frame))
    }

    /// Its places.
    fn range(&self) -> VirtRange {
        let start = Owner::unpack(self.owner).page << FRAME_SHIFT;
        VirtRange { start, end: start + (u64::from(self.frames) << FRAME_SHIFT) }
    }

    fn is_object(&self) -> bool {
        self.frame.has(flag::OBJECT)
    }

    /// What lies between the places of these.
    fn places(victims: &[Self]) -> VirtRange {
        let start = victims.iter().map(|victim| victim.range().start).min().unwrap_or(0);
        let end = victims.iter().map(|victim| victim.range().end).max().unwrap_or(0);
        VirtRange { start, end }
    }
}

/// Where to look for folios.
#[derive(Clone, Copy)]
enum SearchIn {
    /// Wherever an address is its own place.
    Plain,
    Displaced(Vma),
}

impl SearchIn {
    fn find(&self, victim: &Victim<'_>) -> Option<VirtRange> {
        match self {
            SearchIn::Plain => Some(victim.range()),
            SearchIn::Displaced(vma) => vma.with_places(victim.range()).map(VirtRange::from),
        }
    }
}

impl<'m, P: Platform, A: Arch, S: Spaces<'m, P, A> + ?Sized> Reclaim<'_, 'm, P, A, S> {
    /// Go once through lists of all memcgs concerned, as far as is wanted: in turns, in each of which the same part of what
    /// each of them has is looked at, and of that what it owes of the rest is freed; in the next one twice as much is looked at.
    fn lists(&mut self, part: Part, lists: &[LruList], ages: bool) {
        let (memcgs, frames) = (self.machine.memcgs(), self.machine.frames());
        let each = |shard| lists.iter().map(move |list| (shard, *list));
        let shards = || memcgs.shards_on(frames, part.memcg, part.node).flat_map(each);
        let all: u64 = shards().map(|(shard, list)| memcgs.listed(frames, shard, list)).sum();
        let (mut looked, mut turn) = (0, self.wanted.min(all));
        while looked < all && self.done.freed < self.wanted {
            let missing = (self.wanted - self.done.freed).min(all);
            shards().for_each(|(shard, list)| {
                let listed = memcgs.listed(frames, shard, list);
                // There are fewer than 2^32 frames.
                let part_of = |pages: u64| (listed * pages).div_ceil(all);
                self.shard(shard, list, part_of(turn), part_of(missing), ages);
            });
            looked += turn;
            turn = (2 * turn).min(all);
        }
    }

    /// Look at so many pages of one shard's list, and free no more of them than is owed and wanted.
    fn shard(&mut self, shard: (MemcgId, usize), list: LruList, mut left: u64, owed: u64, ages: bool) {
        let enough = self.wanted.min(self.done.freed.saturating_add(owed));
        let machine = self.machine;
        let (memcgs, frames) = (machine.memcgs(), machine.frames());
        while left > 0 && self.done.freed < enough {
            let (mut victims, isolated) = (ArrayVec::<Victim<'_>, BATCH>::new(), Isolated::new(machine));
            let most = (FOLIOS, left.min(enough - self.done.freed));
            // Who asks whether they were used asks it of each.
            let joins = !ages && matches!(list, LruList::Anon | LruList::Lazy);
            let take = |head, frame, frames| {
                isolated.add(frame);
                let next = Victim::new(head, frame, frames);
                if !(joins && victims.last_mut().is_some_and(|last| last.join(&next))) {
                    victims.push(next);
                }
                !victims.is_full()
            };
            let pages = memcgs.isolate(frames, shard, list, most, take);
            if pages == 0 {
                break;
            }
            self.done.looked += pages;
            left = left.saturating_sub(pages);
            if list == LruList::Unevictable {
                victims.sort_unstable_by_key(Victim::is_object);
            }
            let first = victims.partition_point(|victim| !victim.is_object());
            let (anonymous, objects) = victims.split_at_mut(first);
            // Those of one family together: each is asked once.
            if !anonymous.is_sorted_by_key(Victim::family) {
                anonymous.sort_unstable_by_key(|victim| victim.owner);
            }
            for family in anonymous.chunk_by_mut(|a, b| a.family() == b.family()) {
                self.family(family, isolated, ages, None);
            }
            self.objects(objects, isolated, ages);
            self.done.freed += isolated.settle(machine, victims.iter().map(|victim| (victim.head, victim.frames)));
            machine.platform().resched();
        }
    }

    /// Folios of one family go: to `copies`, or else to where memory is swapped.
    fn family(&self, victims: &mut [Victim<'m>], isolated: Isolated, ages: bool, mut copies: Option<&mut Copies>) {
        let Some(family) = victims.first().map(Victim::family) else { return };
        if ages {
            // Once all that maps them was seen there is nothing more to be found.
            let seen = |victim: &Victim<'_>| victim.young || victim.seen >= victim.frame.counts().maps;
            let visit = |space: &AddressSpace<'m, P, A>, vma: SearchIn, victims: &mut [Victim<'m>]| {
                for victim in victims {
                    let Some(range) = vma.find(victim) else { continue };
                    let referenced = Rmap::of(space).clear_young(range, victim.head);
                    victim.young |= referenced.young;
                    victim.seen += referenced.frames;
                }
            };
            self.each_vma(family, victims, visit, |victims| victims.iter().all(seen));
        }
        let visit = |space: &AddressSpace<'m, P, A>, vma: SearchIn, victims: &mut [Victim<'m>]| {
            let mut old = victims.iter().filter(|victim| !victim.young).filter_map(|victim| vma.find(victim));
            let Some(mut last) = old.next() else { return };
            let mut ranges = ArrayVec::<VirtRange, BATCH>::new();
            for range in old {
                if !last.join(&range) {
                    ranges.push(core::mem::replace(&mut last, range));
                }
            }
            ranges.push(last);
            let left = VirtRange::join_all(&mut ranges);
            ranges.truncate(left);
            Pageout::of(space).pageout(&ranges, Some(isolated), copies.as_deref_mut());
        };
        self.each_vma(family, victims, visit, |victims| {
            victims.iter().all(|victim| victim.is_settled(self.machine, isolated))
        });
    }

    /// Show every VMA of a family that may have some of these folios, until that is `enough`:
    /// which is asked before each space other than the first.
    fn each_vma(
        &self,
        family: Family,
        victims: &mut [Victim<'m>],
        mut visit: impl FnMut(&AddressSpace<'m, P, A>, SearchIn, &mut [Victim<'m>]),
        mut enough: impl FnMut(&[Victim<'m>]) -> bool,
    ) {
        if victims.is_empty() {
            return;
        }
        let mut first = true;
        self.spaces.each_of(family, &mut |space| {
            if !core::mem::take(&mut first) && enough(victims) {
                return false;
            }
            visit(space, SearchIn::Plain, victims);
            let (mut at, mut all) = (0, None);
            while let Some(vma) =
                Rmap::of(space).next_displaced(at, || *all.get_or_insert_with(|| Victim::places(victims)))
            {
                visit(space, SearchIn::Displaced(vma), victims);
                at = vma.range.end;
            }
            self.machine.platform().resched();
            true
        });
    }
}
