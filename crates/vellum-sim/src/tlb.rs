//! The translation caches of one CPU: banks of translations, and the paging-structure cache, which
//! holds pointers to page tables so that a walk need not start at the root.
//!
//! The bank decides how much one entry holds: all or a part of a cont block or of a huge page, or,
//! if the bank coalesces, contiguous pages that no bit marks.
//!
//! If the architecture lets a TLB cache entries that are not present ([`vellum::arch::stale`]),
//! these are kept in a cache of their own, which takes precedence over a translation of the same
//! address.
//!
//! Every entry is tagged with the address space, as with PCIDs or ASIDs. Entries leave only by
//! invalidation, eviction or replacement, or with their space: a translation that the engine
//! forgets to invalidate stays and is used.

use std::ops::Range;

use vellum::addr::{Pfn, VirtRange};
use vellum::platform::{Invalidation, SpaceId};

use crate::model::{Bank, TlbModel};
use crate::program::Access;
use crate::walker::{Found, Leaf};

/// The key of an entry: a naturally aligned range of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub space: SpaceId,
    pub page: u64,
    pub shift: u32,
}

impl Tag {
    pub fn new(space: SpaceId, va: u64, shift: u32) -> Tag {
        Tag { space, page: va >> shift, shift }
    }

    pub fn range(self) -> VirtRange {
        let start = self.page << self.shift;
        VirtRange { start, end: start + (1 << self.shift) }
    }

    /// Returns whether an invalidation reaches this entry: one of the addresses through which the
    /// invalidation steps must lie inside the entry's range. A stride wider than the entry can step
    /// over it, as on real processors.
    pub fn reached_by(self, what: &Invalidation<'_>) -> bool {
        if self.space != what.space {
            return false;
        }
        let mine = self.range();
        what.ranges.is_empty()
            || what.ranges.iter().any(|range| {
                let short = mine.start.saturating_sub(range.start);
                let first = range.start.saturating_add(short.next_multiple_of(1 << what.stride_shift));
                first < range.end.min(mine.end)
            })
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot<T> {
    entry: Option<(Tag, T)>,
    used: u64,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Slot { entry: None, used: 0 }
    }
}

/// A set-associative cache.
#[derive(Debug)]
struct Cache<T> {
    slots: Box<[Slot<T>]>,
    /// A bit for each slot: 0 if it is empty. Large caches are mostly empty, and are searched at
    /// each event.
    filled: Box<[u64]>,
    ways: usize,
    /// Number of sets, less one.
    mask: u64,
}

impl<T: Copy> Cache<T> {
    fn new(sets: u32, ways: u32) -> Self {
        assert!(sets.is_power_of_two() && ways > 0, "a cache of {sets} sets of {ways} entries");
        let slots = (0..sets * ways).map(|_| Slot::default()).collect();
        let filled = (0..(sets * ways).div_ceil(u64::BITS)).map(|_| 0).collect();
        Cache { slots, filled, ways: ways as usize, mask: sets as u64 - 1 }
    }

    /// Returns the slots of the set of a page.
    #[inline]
    fn set(&self, page: u64) -> Range<usize> {
        let first = (page & self.mask) as usize * self.ways;
        first..first + self.ways
    }

    /// Returns the value cached for an address, in an entry of one of these sizes.
    #[inline]
    fn find(&mut self, space: SpaceId, va: u64, shifts: &[u32], now: u64) -> Option<T> {
        if self.mask != 0 {
            return shifts.iter().find_map(|shift| self.get(Tag::new(space, va, *shift), now));
        }
        let holds = |s: &Slot<T>| s.entry.is_some_and(|(t, _)| t.page == va >> t.shift && t.space == space);
        let slot = self.slots.iter_mut().find(|s| holds(s))?;
        slot.used = now;
        slot.entry.map(|(_, value)| value)
    }

    #[inline]
    fn get(&mut self, tag: Tag, now: u64) -> Option<T> {
        let set = self.set(tag.page);
        let slot = self.slots[set].iter_mut().find(|s| s.entry.is_some_and(|(t, _)| t == tag))?;
        slot.used = now;
        slot.entry.map(|(_, value)| value)
    }

    fn put(&mut self, tag: Tag, value: T, now: u64) {
        let at = self.set(tag.page);
        let first = at.start;
        let set = &mut self.slots[at];
        let same = set.iter().position(|s| s.entry.is_some_and(|(t, _)| t == tag));
        let oldest = || (0..set.len()).min_by_key(|i| if set[*i].entry.is_none() { 0 } else { 1 + set[*i].used });
        if let Some(i) = same.or_else(oldest) {
            set[i] = Slot { entry: Some((tag, value)), used: now };
            self.filled[(first + i) / 64] |= 1 << ((first + i) % 64);
        }
    }

    fn retain(&mut self, mut keep: impl FnMut(Tag) -> bool) {
        for (bits, slots) in self.filled.iter_mut().zip(self.slots.chunks_mut(64)) {
            for n in ones(*bits) {
                if slots[n].entry.is_none_or(|(tag, _)| !keep(tag)) {
                    slots[n].entry = None;
                    *bits &= !(1 << n);
                }
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (Tag, T)> + '_ {
        let filled = self.filled.iter().zip(self.slots.chunks(64));
        filled.flat_map(|(bits, slots)| ones(*bits).filter_map(|n| slots[n].entry))
    }

    /// Returns the first entry that satisfies `like`.
    fn first(&self, mut like: impl FnMut(&(Tag, T)) -> bool) -> Option<(Tag, T)> {
        for (bits, slots) in self.filled.iter().zip(self.slots.chunks(64)) {
            for n in ones(*bits) {
                if let Some(entry) = slots[n].entry.filter(&mut like) {
                    return Some(entry);
                }
            }
        }
        None
    }

    /// Returns the first entry over some of a range that satisfies `like`. All entries have one of
    /// `sizes`. If the range maps to few sets, only these are searched.
    fn first_over(
        &self,
        space: SpaceId,
        range: VirtRange,
        sizes: &[u32],
        mut like: impl FnMut(&(Tag, T)) -> bool,
    ) -> Option<(Tag, T)> {
        let mut over = |entry: &(Tag, T)| entry.0.space == space && entry.0.range().overlaps(&range) && like(entry);
        let pages = |size: &u32| range.start >> size..=(range.end - 1) >> size;
        let sets = sizes.iter().map(|size| pages(size).end() - pages(size).start() + 1).sum::<u64>();
        if sets > self.mask {
            return self.first(over);
        }
        let set = |page: u64| &self.slots[self.set(page)];
        sizes.iter().flat_map(pages).flat_map(set).filter_map(|slot| slot.entry).find(|entry| over(entry))
    }
}

/// Returns the positions of the set bits.
fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let n = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        n
    })
}

/// A bank, restricted to the mapping sizes that the page-table format has.
#[derive(Debug)]
struct Store {
    bank: Bank,
    cache: Cache<Leaf>,
    /// The sizes of its entries, smallest first.
    sizes: Vec<u32>,
}

impl Store {
    fn new(bank: &Bank, page_shift: u32, sizes: &[u32]) -> Option<Store> {
        let mut mine: Vec<u32> = bank.shifts.iter().copied().filter(|shift| sizes.contains(shift)).collect();
        if bank.coalesces > 0 && mine.contains(&page_shift) {
            mine.push(page_shift + bank.coalesces);
        }
        mine.sort();
        mine.dedup();
        let cache = Cache::new(bank.sets, bank.ways);
        (!mine.is_empty()).then(|| Store { bank: bank.clone(), cache, sizes: mine })
    }

    /// Returns the largest size, up to `1 << limit` bytes, that one entry holds.
    fn holds(&self, limit: u32) -> Option<u32> {
        self.sizes.iter().rev().find(|size| **size <= limit).copied()
    }
}

/// Two translations of one address that disagree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict {
    pub held: (Tag, Leaf),
    pub new: (Tag, Leaf),
}

/// The caches of one CPU.
#[derive(Debug)]
pub(crate) struct Tlb {
    stores: Vec<Store>,
    /// The paging-structure caches, each with its level. The level nearest to the leaves comes
    /// first, because a walk that starts at the deepest pointer reads the fewest entries.
    paging: Vec<(u8, Cache<Pfn>)>,
    absent: Absent,
    now: u64,
}

/// Cached entries that are not present. The value is the number of accesses that the cached entry
/// makes fault before the CPU reads the entry again, or `None` if the CPU never does so by itself.
#[derive(Debug)]
struct Absent {
    cache: Cache<Option<u32>>,
    /// log2 of the bytes that an entry maps, by level. Empty if such entries are not cached.
    sizes: Vec<u32>,
}

/// The size of the cache of entries that are not present, in entries.
const ABSENT: u32 = 16;

impl Tlb {
    /// Builds the caches for a page-table format with these sizes (log2 of bytes) and `levels`
    /// levels. Sizes and levels of the model that the format does not have are left out.
    pub fn new(model: &TlbModel, page_shift: u32, sizes: &[u32], levels: u8) -> Self {
        let mut stores: Vec<_> = model.banks.iter().filter_map(|bank| Store::new(bank, page_shift, sizes)).collect();
        stores.sort_by_key(|store| store.bank.tier);
        let mut paging: Vec<_> =
            model.paging.iter().filter(|p| p.level <= levels).map(|p| (p.level, Cache::new(1, p.entries))).collect();
        paging.sort_by_key(|(level, _)| *level);
        Tlb { stores, paging, absent: Absent { cache: Cache::new(1, 1), sizes: Vec::new() }, now: 0 }
    }

    /// Enables the caching of entries that are not present, for page tables of `levels` levels. A
    /// TLB without banks caches none.
    pub fn cache_absent(&mut self, page_shift: u32, levels: u8) {
        if !self.stores.is_empty() {
            let sizes = (0..u32::from(levels)).map(|level| page_shift + level * (page_shift - 3)).collect();
            self.absent = Absent { cache: Cache::new(1, ABSENT), sizes };
        }
    }

    /// Returns whether a cached entry says that `va` is not present.
    #[inline]
    pub fn is_absent(&mut self, space: SpaceId, va: u64) -> bool {
        if self.absent.sizes.is_empty() {
            return false;
        }
        let covers =
            |slot: &&mut Slot<_>| slot.entry.is_some_and(|(tag, _)| tag.space == space && tag.range().contains(va));
        let Some(slot) = self.absent.cache.slots.iter_mut().find(covers) else { return false };
        if let Some((_, Some(left))) = &mut slot.entry {
            *left -= 1;
            if *left == 0 {
                slot.entry = None;
            }
        }
        true
    }

    /// Caches that an entry which maps `1 << shift` bytes around `va` is not present, for `left`
    /// more accesses if that is `Some`.
    pub fn insert_absent(&mut self, space: SpaceId, va: u64, shift: u32, left: Option<u32>) {
        if !self.absent.sizes.is_empty() {
            debug_assert!(self.absent.sizes.contains(&shift));
            self.now += 1;
            self.absent.cache.put(Tag::new(space, va, shift), left, self.now);
        }
    }

    /// Returns the translation of `va` if one is cached, and the tier that has it.
    #[inline]
    pub fn lookup(&mut self, space: SpaceId, va: u64, access: Access) -> Option<(Leaf, u8)> {
        self.now += 1;
        let now = self.now;
        let (leaf, tier) = self
            .stores
            .iter_mut()
            .filter(|store| store.bank.serves.contains(&access))
            .find_map(|store| store.cache.find(space, va, &store.sizes, now).map(|leaf| (leaf, store.bank.tier)))?;
        if tier > 1 {
            self.put_below(space, va, leaf, leaf.shift, access, tier);
        }
        Some((leaf, tier))
    }

    /// Caches a translation in every tier, at most `1 << limit` bytes of it in one entry. Returns
    /// the largest entry that holds it now.
    pub fn insert(&mut self, space: SpaceId, va: u64, found: Found, access: Access, limit: u32) -> Leaf {
        self.put_below(space, va, found.leaf, found.span.min(limit), access, u8::MAX)
    }

    fn put_below(&mut self, space: SpaceId, va: u64, leaf: Leaf, limit: u32, access: Access, tier: u8) -> Leaf {
        let mut largest = leaf;
        for first in 0..self.stores.len() {
            let this = self.stores[first].bank.tier;
            if this >= tier || first > 0 && self.stores[first - 1].bank.tier == this {
                continue;
            }
            let of_tier = self.stores[first..].iter_mut().take_while(|store| store.bank.tier == this);
            let serving: Vec<_> = of_tier.filter(|store| store.bank.serves.contains(&access)).collect();
            let most = serving.iter().filter_map(|store| store.holds(limit)).max();
            for store in serving {
                if let Some(size) = most.filter(|most| store.holds(limit) == Some(*most)) {
                    let held = leaf.resized(va, size);
                    store.cache.put(Tag::new(space, va, size), held, self.now);
                    if size > largest.shift {
                        largest = held;
                    }
                }
            }
        }
        largest
    }

    /// Returns a cached translation that overlaps a new one, and is of another size or maps another
    /// address.
    pub fn conflict(&self, space: SpaceId, va: u64, new: Leaf) -> Option<Conflict> {
        let tag = Tag::new(space, va, new.block);
        let whole = new.resized(va, new.block);
        let differs = |held: &(Tag, Leaf)| {
            let (at, leaf) = held;
            let offset = at.range().start.wrapping_sub(tag.range().start);
            let inside = offset < 1 << new.block;
            // A page or cont block may have one TLB entry or several, as long as they agree.
            let agree = leaf.block == new.block && (!inside || whole.base.0 + offset == leaf.base.0);
            !agree && (leaf.block != new.block || *at != tag)
        };
        self.translation_over(space, tag.range(), differs).map(|held| Conflict { held, new: (tag, whole) })
    }

    /// Returns where the walk for `va` may start: the page table of the deepest cached pointer, and
    /// its level.
    pub fn start(&mut self, space: SpaceId, va: u64, level_shift: impl Fn(u8) -> u32) -> Option<(Pfn, u8)> {
        let now = self.now;
        self.paging.iter_mut().find_map(|(level, cache)| {
            cache.find(space, va, &[level_shift(*level)], now).map(|table| (table, *level - 1))
        })
    }

    /// Caches the pointer at `level` (where an entry spans `1 << shift` bytes) on the way to `va`.
    pub fn insert_pointer(&mut self, space: SpaceId, va: u64, level: u8, shift: u32, table: Pfn) {
        if let Some((_, cache)) = self.paging.iter_mut().find(|(l, _)| *l == level) {
            cache.put(Tag::new(space, va, shift), table, self.now);
        }
    }

    /// Drops the entries that an invalidation reaches.
    pub fn invalidate(&mut self, what: &Invalidation<'_>) {
        for Store { cache, .. } in &mut self.stores {
            cache.retain(|tag| !tag.reached_by(what));
        }
        if what.tables {
            for (_, cache) in &mut self.paging {
                cache.retain(|tag| !tag.reached_by(what));
            }
        }
        // An entry above the last level that is cached as not present may become a pointer to a
        // page table. So it is dropped where pointers are: only with `tables`.
        let page = self.absent.sizes.first().copied();
        self.absent.cache.retain(|tag| !tag.reached_by(what) || !what.tables && Some(tag.shift) != page);
    }

    /// Drops the entries of one address, as a fault does on processors that guarantee it.
    pub fn forget(&mut self, space: SpaceId, va: u64) {
        let keep = |tag: Tag| tag.space != space || !tag.range().contains(va);
        self.stores.iter_mut().for_each(|store| store.cache.retain(keep));
        self.paging.iter_mut().for_each(|(_, cache)| cache.retain(keep));
    }

    /// Drops all entries of a space.
    pub fn forget_space(&mut self, space: SpaceId) {
        for Store { cache, .. } in &mut self.stores {
            cache.retain(|tag| tag.space != space);
        }
        for (_, cache) in &mut self.paging {
            cache.retain(|tag| tag.space != space);
        }
        self.absent.cache.retain(|tag| tag.space != space);
    }

    /// Evicts the entry in the n-th slot, counted through all caches of this CPU, modulo their
    /// size. Does nothing if the slot is empty.
    pub fn evict(&mut self, n: usize) {
        let leaves: usize = self.stores.iter().map(|store| store.cache.slots.len()).sum();
        let pointers: usize = self.paging.iter().map(|(_, cache)| cache.slots.len()).sum();
        let absent = if self.absent.sizes.is_empty() { 0 } else { self.absent.cache.slots.len() };
        let mut n = n % (leaves + pointers + absent).max(1);
        for Store { cache, .. } in &mut self.stores {
            if let Some(slot) = cache.slots.get_mut(n) {
                return slot.entry = None;
            }
            n -= cache.slots.len();
        }
        for (_, cache) in &mut self.paging {
            if let Some(slot) = cache.slots.get_mut(n) {
                return slot.entry = None;
            }
            n -= cache.slots.len();
        }
        if let Some(slot) = self.absent.cache.slots.get_mut(n) {
            slot.entry = None;
        }
    }

    /// Returns a translation that satisfies `like`.
    pub fn translation(&self, like: impl Fn(&(Tag, Leaf)) -> bool) -> Option<(Tag, Leaf)> {
        self.stores.iter().find_map(|store| store.cache.first(&like))
    }

    /// Returns a translation over some of a range that satisfies `like`.
    pub fn translation_over(
        &self,
        space: SpaceId,
        range: VirtRange,
        like: impl Fn(&(Tag, Leaf)) -> bool,
    ) -> Option<(Tag, Leaf)> {
        self.stores.iter().find_map(|store| store.cache.first_over(space, range, &store.sizes, &like))
    }

    /// Returns all translations. One that several banks hold comes several times.
    #[cfg(test)]
    pub fn translations(&self) -> impl Iterator<Item = (Tag, Leaf)> + '_ {
        self.stores.iter().flat_map(|store| store.cache.iter())
    }

    /// Returns all cached pointers to page tables.
    pub fn pointers(&self) -> impl Iterator<Item = (Tag, Pfn)> + '_ {
        self.paging.iter().flat_map(|(_, cache)| cache.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vellum::addr::PhysAddr;
    use vellum::arch::Attrs;

    const SPACE: SpaceId = SpaceId(7);

    fn found(shift: u32) -> Found {
        let attrs = Attrs::READ | Attrs::ACCESSED;
        Found { leaf: Leaf { base: PhysAddr(1 << shift), shift, attrs, block: shift }, span: shift }
    }

    fn insert(tlb: &mut Tlb, va: u64, shift: u32) {
        tlb.insert(SPACE, va, found(shift), Access::Read, u32::MAX);
    }

    fn invalidation(ranges: &[VirtRange], stride_shift: u32, tables: bool) -> Invalidation<'_> {
        Invalidation { space: SPACE, root: Pfn(0), ranges, stride_shift, tables }
    }

    #[test]
    fn a_later_tier_refills_the_first() {
        let mut tlb = Tlb::new(&TlbModel::GENERIC, 12, &[12, 21, 30], 4);
        // Five pages of one set of four ways.
        for page in 0..5 {
            insert(&mut tlb, page << 16, 12);
        }
        assert_eq!(tlb.lookup(SPACE, 0, Access::Read).unwrap().1, 2);
        assert_eq!(tlb.lookup(SPACE, 0, Access::Read).unwrap().1, 1, "refilled");
        assert_eq!(tlb.lookup(SpaceId(8), 0, Access::Read), None, "entries are tagged with the space");
    }

    #[test]
    fn an_invalidation_with_too_wide_a_stride_skips_small_pages() {
        let mut tlb = Tlb::new(&TlbModel::SMALL, 12, &[12, 21, 30], 4);
        let range = [VirtRange { start: 0x20_0000, end: 0x60_0000 }];
        for va in [0x20_0000, 0x20_1000, 0x40_0000, 0x60_0000] {
            insert(&mut tlb, va, 12);
        }
        insert(&mut tlb, 0x5f_f000, 21);
        tlb.invalidate(&invalidation(&range, 21, false));
        let mut left: Vec<_> = tlb.translations().map(|(tag, _)| tag.range().start).collect();
        left.sort();
        assert_eq!(left, [0x20_1000, 0x60_0000]);
        tlb.invalidate(&invalidation(&range, 12, false));
        assert_eq!(tlb.translations().count(), 1);
        tlb.invalidate(&invalidation(&[], 12, false));
        assert_eq!(tlb.translations().count(), 0);
    }

    #[test]
    fn a_search_over_a_range_finds_entries_in_few_sets_and_in_many() {
        let mut cache = Cache::new(128, 4);
        let (page, huge) = (0x4030_5000, 0x8020_0000);
        cache.put(Tag::new(SPACE, page, 12), (), 1);
        cache.put(Tag::new(SPACE, huge, 21), (), 2);
        let over = |space, start, shift: u32| {
            let range = VirtRange { start, end: start + (1 << shift) };
            cache.first_over(space, range, &[12, 21], |_| true).map(|(tag, ())| tag.range().start)
        };
        for (start, shift) in [(page, 12), (page - 0x1000, 13), (0x4020_0000, 21), (0x4000_0000, 30)] {
            assert_eq!(over(SPACE, start, shift), Some(page), "{start:#x}, {shift}");
        }
        for (start, shift) in [(huge, 12), (huge + 0x1f_f000, 12), (huge - 0x1000, 13), (0x8000_0000, 30)] {
            assert_eq!(over(SPACE, start, shift), Some(huge), "{start:#x}, {shift}");
        }
        for (start, shift) in [(page - 0x1000, 12), (page + 0x1000, 12), (huge + 0x20_0000, 21), (0xc000_0000, 30)] {
            assert_eq!(over(SPACE, start, shift), None, "{start:#x}, {shift}");
        }
        assert_eq!(over(SpaceId(8), page, 12), None);
    }

    #[test]
    fn table_pointers_are_dropped_only_by_invalidations_of_tables() {
        let mut tlb = Tlb::new(&TlbModel::SMALL, 12, &[12, 21, 30], 4);
        let shift = |level: u8| 12 + 9 * (level as u32 - 1);
        tlb.insert_pointer(SPACE, 0x4000_0000, 3, shift(3), Pfn(3));
        tlb.insert_pointer(SPACE, 0x4020_0000, 2, shift(2), Pfn(2));
        assert_eq!(tlb.start(SPACE, 0x4020_5000, shift), Some((Pfn(2), 1)));
        assert_eq!(tlb.start(SPACE, 0x4040_0000, shift), Some((Pfn(3), 2)));
        let range = [VirtRange { start: 0x4020_0000, end: 0x4020_1000 }];
        tlb.invalidate(&invalidation(&range, 12, false));
        assert_eq!(tlb.pointers().count(), 2);
        tlb.invalidate(&invalidation(&range, 12, true));
        assert_eq!(tlb.pointers().count(), 0, "both pointers are on the way to the range");
        assert_eq!(tlb.start(SPACE, 0x4020_5000, shift), None);
    }

    #[test]
    fn absent_entries_are_cached_until_invalidated_and_upper_levels_until_tables_are() {
        let mut tlb = Tlb::new(&TlbModel::SMALL, 12, &[12, 21, 30], 3);
        tlb.insert_absent(SPACE, 0x4000_0000, 12, None);
        assert!(!tlb.is_absent(SPACE, 0x4000_0000), "not cached before cache_absent");
        tlb.cache_absent(12, 3);
        tlb.insert_absent(SPACE, 0x4000_0000, 12, None);
        tlb.insert_absent(SPACE, 0x4020_0000, 21, None);
        let range = [VirtRange { start: 0x4000_0000, end: 0x4040_0000 }];
        assert!(tlb.is_absent(SPACE, 0x4000_0abc) && tlb.is_absent(SPACE, 0x4035_0000));
        assert!(!tlb.is_absent(SPACE, 0x4000_1000) && !tlb.is_absent(SpaceId(8), 0x4000_0000));
        tlb.invalidate(&invalidation(&range, 12, false));
        assert!(!tlb.is_absent(SPACE, 0x4000_0abc) && tlb.is_absent(SPACE, 0x4035_0000));
        tlb.invalidate(&invalidation(&range, 12, true));
        assert!(!tlb.is_absent(SPACE, 0x4035_0000));
        tlb.insert_absent(SPACE, 0, 12, Some(2));
        assert_eq!([(); 3].map(|()| tlb.is_absent(SPACE, 0)), [true, true, false], "cached for two accesses");
    }

    #[test]
    fn forgetting_an_address_drops_the_table_pointers_on_its_way() {
        let mut tlb = Tlb::new(&TlbModel::SMALL, 12, &[12, 21, 30], 4);
        insert(&mut tlb, 0x4020_0000, 12);
        insert(&mut tlb, 0x4020_1000, 12);
        for (va, level, shift) in [(0x4000_0000, 3, 30), (0x4020_0000, 2, 21), (0x4060_0000, 2, 21)] {
            tlb.insert_pointer(SPACE, va, level, shift, Pfn(2));
        }
        tlb.forget(SpaceId(8), 0x4020_0000);
        assert_eq!((tlb.translations().count(), tlb.pointers().count()), (2, 3));
        tlb.forget(SPACE, 0x4020_0000);
        assert_eq!((tlb.translations().count(), tlb.pointers().count()), (1, 1));
    }
}
