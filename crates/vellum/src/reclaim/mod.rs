//! Memory is short: what was not used for a while goes, from the groups that should have less.
//!
//! Who runs out of memory is told so, having changed nothing; it is the host who reclaims and has it tried again. So nothing here
//! runs inside another operation, and no lock is held when it begins.
//!
//! # Mechanism
//! Folios are taken off the old end of a group's lists, a batch at a time, each with a reference and a mark
//! ([`flag::ISOLATED`]). Where they are mapped is asked of the spaces of their family, where an area has their place behind it:
//! a fork costs nothing for it, and neither does an unmap. That is the address where they were first mapped, but for areas that
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
use crate::group::{GroupError, GroupId, LruList};
use crate::machine::Machine;
use crate::platform::Platform;
use crate::space::{AddressSpace, BATCH, Copies, Isolated};
use crate::vma::Vma;

/// How often a list is gone through: the last time, what was used may go too.
const ROUNDS: usize = 3;

/// The address spaces that a host has.
pub trait Spaces<'m, P: Platform, A: Arch> {
    /// Show all spaces, those that are ending included. Each stays until `visit` returns.
    fn each(&self, visit: &mut dyn FnMut(&AddressSpace<'m, P, A>));

    /// Show all spaces of a family.
    fn each_of(&self, family: Family, visit: &mut dyn FnMut(&AddressSpace<'m, P, A>)) {
        self.each(&mut |space| {
            if space.family() == family {
                visit(space);
            }
        });
    }
}

impl<'m, P: Platform, A: Arch> Spaces<'m, P, A> for [&AddressSpace<'m, P, A>] {
    fn each(&self, visit: &mut dyn FnMut(&AddressSpace<'m, P, A>)) {
        self.iter().for_each(|space| visit(space));
    }
}

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
    /// Of what this group and its descendants have ([`GroupId::ROOT`]: of all).
    pub group: GroupId,
    /// Only of what is on this node.
    pub node: Option<usize>,
}

impl From<GroupId> for Part {
    /// What a group and its descendants have, on whatever node.
    fn from(group: GroupId) -> Self {
        Part { group, node: None }
    }
}

/// Free about so many pages (of 4 KiB) of what a group and its descendants have, on one node or all, as far as that can be, of each as much
/// as it has of the whole. ([`GroupId::ROOT`]: of the whole machine.)
///
/// # Errors
/// There is no such group.
pub fn reclaim<'m, P: Platform, A: Arch>(
    machine: &'m Machine<'m, P>,
    spaces: &(impl Spaces<'m, P, A> + ?Sized),
    part: impl Into<Part>,
    pages: u64,
) -> Result<Reclaimed, GroupError> {
    let part = part.into();
    if !machine.groups().exists(part.group) {
        return Err(GroupError::NoSuchGroup(part.group));
    }
    let done = Reclaimed::default();
    let mut work = Reclaim { machine, spaces, wanted: pages, done, arch: core::marker::PhantomData };
    work.split_partial(part);
    work.lists(part, &[LruList::Lazy], false);
    for round in 1..=ROUNDS {
        if machine.swaps().has_room(machine.platform()) {
            work.lists(part, &[LruList::Anon, LruList::Shmem], round < ROUNDS);
        }
    }
    // Among what was locked may be what is not any more: of a parent that is gone, say.
    if machine.swaps().has_room(machine.platform()) {
        work.lists(part, &[LruList::Unevictable], false);
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

/// A folio that was isolated.
#[derive(Clone, Copy)]
struct Victim<'m> {
    head: Pfn,
    frame: &'m Frame,
    /// Whose it said to be, and where, when it was isolated. An object's may be nobody's any more; but what is sorted by it has to keep still.
    owner: u64,
    family: Family,
    /// Its places.
    range: VirtRange,
    /// It was used.
    young: bool,
}

impl<'m> Victim<'m> {
    fn new(head: Pfn, frame: &'m Frame) -> Self {
        let owner = frame.data();
        let Owner { family, page } = Owner::unpack(owner);
        let start = page << FRAME_SHIFT;
        let range = VirtRange { start, end: start + (1 << (frame.order() as u32 + FRAME_SHIFT)) };
        Victim { head, frame, owner, family, range, young: false }
    }

    fn is_object(&self) -> bool {
        self.frame.has(flag::OBJECT)
    }

    /// What lies between the places of these.
    fn places(victims: &[Self]) -> VirtRange {
        let start = victims.iter().map(|victim| victim.range.start).min().unwrap_or(0);
        let end = victims.iter().map(|victim| victim.range.end).max().unwrap_or(0);
        VirtRange { start, end }
    }
}

/// Where to look for folios.
#[derive(Clone, Copy)]
enum Area {
    /// Wherever an address is its own place.
    Plain,
    Displaced(Vma),
}

impl Area {
    fn find(&self, victim: &Victim<'_>) -> Option<VirtRange> {
        match self {
            Area::Plain => Some(victim.range),
            Area::Displaced(area) => area.with_places(victim.range),
        }
    }
}

impl<'m, P: Platform, A: Arch, S: Spaces<'m, P, A> + ?Sized> Reclaim<'_, 'm, P, A, S> {
    /// Go once through lists of all groups concerned, as far as is wanted: in turns, in each of which the same part of what
    /// each of them has is looked at, and of that what it owes of the rest is freed; in the next one twice as much is looked at.
    fn lists(&mut self, part: Part, lists: &[LruList], ages: bool) {
        let (groups, frames) = (self.machine.groups(), self.machine.frames());
        let each = |shard| lists.iter().map(move |list| (shard, *list));
        let shards = || groups.shards_on(frames, part.group, part.node).flat_map(each);
        let all: u64 = shards().map(|(shard, list)| groups.listed(frames, shard, list)).sum();
        let (mut looked, mut turn) = (0, self.wanted.min(all));
        while looked < all && self.done.freed < self.wanted {
            let missing = self.wanted - self.done.freed;
            for (shard, list) in shards() {
                let listed = groups.listed(frames, shard, list);
                let part_of = |pages: u64| (listed as u128 * pages as u128).div_ceil(all as u128) as u64;
                self.shard(shard, list, part_of(turn), part_of(missing), ages);
            }
            looked += turn;
            turn = (2 * turn).min(all);
        }
    }

    /// Look at so many pages of one shard's list, and free no more of them than is owed and wanted.
    fn shard(&mut self, shard: (GroupId, usize), list: LruList, mut left: u64, owed: u64, ages: bool) {
        let enough = self.wanted.min(self.done.freed.saturating_add(owed));
        let machine = self.machine;
        let (groups, frames) = (machine.groups(), machine.frames());
        while left > 0 && self.done.freed < enough {
            let (mut victims, isolated) = (ArrayVec::<_, BATCH>::new(), Isolated::new(machine));
            let most = (BATCH, left.min(enough - self.done.freed));
            let take = |head, frame| {
                isolated.add(frame);
                victims.push(Victim::new(head, frame));
            };
            let pages = groups.isolate(frames, shard, list, most, take);
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
            for family in anonymous.chunk_by_mut(|a, b| a.family == b.family) {
                self.family(family, isolated, ages, None);
            }
            self.objects(objects, isolated, ages);
            self.done.freed += isolated.settle(machine, &mut victims, |victim| (victim.head, victim.frame));
            machine.platform().resched();
        }
    }

    /// Folios of one family go: to `copies`, or else to where memory is swapped.
    fn family(&self, victims: &mut [Victim<'m>], isolated: Isolated, ages: bool, mut copies: Option<&mut Copies>) {
        let Some(Victim { family, .. }) = victims.first().copied() else { return };
        if ages {
            self.each_area(family, victims, |space, area, victims| {
                for victim in victims {
                    victim.young |= area.find(victim).is_some_and(|range| space.used(range, victim.head));
                }
            });
        }
        // Addresses have no highest bit.
        victims.sort_unstable_by_key(|victim| victim.range.start | u64::from(victim.young) << 63);
        let old = victims.partition_point(|victim| !victim.young);
        self.each_area(family, &mut victims[..old], |space, area, victims| {
            let mut ranges = ArrayVec::<VirtRange, BATCH>::new();
            for range in victims.iter().filter_map(|victim| area.find(victim)) {
                match ranges.last_mut() {
                    Some(last) if last.start <= range.start && range.start <= last.end => {
                        last.end = last.end.max(range.end);
                    }
                    _ => ranges.push(range),
                }
            }
            if let Area::Displaced(_) = area {
                // Places may begin anew within it.
                ranges.sort_unstable_by_key(|range| range.start);
            }
            space.evict(&ranges, Some(isolated), copies.as_deref_mut());
        });
    }

    /// Show every area of a family that may have some of these folios.
    fn each_area(
        &self,
        family: Family,
        victims: &mut [Victim<'m>],
        mut visit: impl FnMut(&AddressSpace<'m, P, A>, Area, &mut [Victim<'m>]),
    ) {
        if victims.is_empty() {
            return;
        }
        self.spaces.each_of(family, &mut |space| {
            visit(space, Area::Plain, victims);
            let (mut at, mut all) = (0, None);
            while let Some(area) = space.next_displaced(at, || *all.get_or_insert_with(|| Victim::places(victims))) {
                visit(space, Area::Displaced(area), victims);
                at = area.range.end;
            }
        });
    }
}
