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
//! freed together. What is not mapped of folios that are mapped in part goes first (`split`), and then what may go without being kept
//! ([`LruList::Lazy`]).

mod split;

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::Arch;
use crate::frame::{Counts, Family, Frame, Owner, flag};
use crate::group::{GroupError, GroupId, LruList};
use crate::machine::Machine;
use crate::platform::Platform;
use crate::space::{AddressSpace, BATCH, Isolated};
use crate::tlb::free_unmapped;
use crate::vma::Vma;

/// How often a list is gone through: the last time, what was used may go too.
const ROUNDS: usize = 3;

/// The address spaces that a host has.
pub trait Spaces<'m, P: Platform, A: Arch> {
    /// Show all spaces of this family, those that are ending included. Each stays until `visit` returns.
    fn each(&self, family: Family, visit: &mut dyn FnMut(&AddressSpace<'m, P, A>));
}

impl<'m, P: Platform, A: Arch> Spaces<'m, P, A> for [&AddressSpace<'m, P, A>] {
    fn each(&self, family: Family, visit: &mut dyn FnMut(&AddressSpace<'m, P, A>)) {
        self.iter().filter(|space| space.family() == family).for_each(|space| visit(space));
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

/// Free about so many pages (of 4 KiB) of what a group and its descendants have, as far as that can be, of each as much as it has of
/// the whole. ([`GroupId::ROOT`]: of the whole machine.)
///
/// # Errors
/// There is no such group.
pub fn reclaim<'m, P: Platform, A: Arch>(
    machine: &'m Machine<'m, P>,
    spaces: &(impl Spaces<'m, P, A> + ?Sized),
    group: GroupId,
    pages: u64,
) -> Result<Reclaimed, GroupError> {
    if !machine.groups().exists(group) {
        return Err(GroupError::NoSuchGroup(group));
    }
    let split = split::split_partial(machine, spaces, group, pages);
    let done = Reclaimed { looked: split, freed: split };
    let mut work = Reclaim { machine, spaces, wanted: pages, done, arch: core::marker::PhantomData };
    work.list(group, LruList::Lazy, false);
    for round in 1..=ROUNDS {
        if machine.swaps().has_room(machine.platform()) {
            work.list(group, LruList::Anon, round < ROUNDS);
        }
    }
    // Among what was locked may be what is not any more: of a parent that is gone, say.
    if machine.swaps().has_room(machine.platform()) {
        work.list(group, LruList::Unevictable, false);
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
    family: Family,
    /// Its places.
    range: VirtRange,
    /// It was used.
    young: bool,
    /// Nobody has it any more.
    gone: bool,
}

impl<'m> Victim<'m> {
    fn new(head: Pfn, frame: &'m Frame) -> Self {
        let Owner { family, page } = Owner::unpack(frame.data());
        let start = page << FRAME_SHIFT;
        let range = VirtRange { start, end: start + (1 << (frame.order() as u32 + FRAME_SHIFT)) };
        Victim { head, frame, family, range, young: false, gone: false }
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
    /// Go once through a list of a group and its descendants, as far as is wanted: in turns, in each of which the same part of what
    /// each of them has is looked at, and of that what it owes of the rest is freed; in the next one twice as much is looked at.
    fn list(&mut self, group: GroupId, list: LruList, ages: bool) {
        let (groups, frames) = (self.machine.groups(), self.machine.frames());
        let shards = || groups.descendants(group).flat_map(|id| (0..groups.cpus()).map(move |cpu| (id, cpu)));
        let all: u64 = shards().map(|shard| groups.listed(frames, shard, list)).sum();
        let (mut looked, mut turn) = (0, self.wanted.min(all));
        while looked < all && self.done.freed < self.wanted {
            let missing = self.wanted - self.done.freed;
            for shard in shards() {
                let listed = groups.listed(frames, shard, list);
                let part_of = |pages: u64| (listed as u128 * pages as u128).div_ceil(all as u128) as u64;
                self.shard(shard, list, part_of(turn), part_of(missing), ages);
            }
            looked += turn;
            turn = (2 * turn).min(all);
        }
    }

    /// Look at so many pages of one CPU's list, and free no more of them than is owed and wanted.
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
            for family in victims.chunk_by_mut(|a, b| a.family == b.family) {
                self.family(family, isolated, ages);
            }
            self.settle(&mut victims, isolated);
            machine.platform().resched();
        }
    }

    /// Folios of one family.
    fn family(&self, victims: &mut [Victim<'m>], isolated: Isolated, ages: bool) {
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
            space.evict(&ranges, Some(isolated));
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
        self.spaces.each(family, &mut |space| {
            visit(space, Area::Plain, victims);
            let (mut at, mut all) = (0, None);
            while let Some(area) = space.next_displaced(at, || *all.get_or_insert_with(|| Victim::places(victims))) {
                visit(space, Area::Displaced(area), victims);
                at = area.range.end;
            }
        });
    }

    /// What nobody has any more is freed, and the others go back to their lists.
    fn settle(&mut self, victims: &mut [Victim<'m>], isolated: Isolated) {
        for Victim { head, frame, gone, .. } in victims.iter_mut() {
            let unmapped = || frame.counts() == Counts { refs: 1, maps: 0 };
            // Then nobody can find it any more to have it anew.
            let uncached = || self.machine.uncache(*head, frame, unmapped) && unmapped();
            *gone = unmapped() && (!frame.has(flag::SWAP_CACHED) || uncached());
            if !*gone {
                let list = match isolated.is_locked(frame) {
                    true => LruList::Unevictable,
                    false if frame.has(flag::LAZY) => LruList::Lazy,
                    false => LruList::Anon,
                };
                frame.clear_flag(flag::ISOLATED);
                self.machine.groups().relist(self.machine.frames(), *head, None, list);
                self.machine.put_refs(*head, frame, 1);
            }
        }
        let gone = victims.iter().filter(|victim| victim.gone).map(|victim| (victim.head, victim.frame));
        let dropped = gone.inspect(|(head, frame)| self.machine.frames().put_last(*head, frame));
        self.done.freed += free_unmapped(self.machine, dropped);
    }
}
