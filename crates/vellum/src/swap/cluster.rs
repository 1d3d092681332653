//! A cluster: as many consecutive slots as a huge folio has pages, with their free bitmap and
//! reference counts (Linux: `swap_cluster_info`).
//!
//! # Reference counts don't overflow
//! A count has 32 bits. A *lasting* reference is that of a swap PTE or of a page-cache object. An
//! address space has at most one swap PTE for a slot. So a count is bounded by the number of
//! address spaces. Each space has at least two page-table pages, and physical memory has less than
//! 2^32 frames ([`Pfn`](crate::addr::Pfn)). [`LockedCluster::duplicate`] still refuses to pass
//! [`MAX_REFERENCES`], half of what a count can hold: a host's mistake must not make the count
//! wrap. The other half is for *transient* references ([`LockedCluster::get_transient`]), at most
//! one for each thread that reads the slot, and for the swap cache's one reference. So transient
//! references and the swap cache's are never refused.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use crate::frame::{HUGE_ORDER, Zeroable};
use crate::platform::Cpus;
use crate::sync::{SpinGuard, SpinLock};

/// The number of slots in a cluster.
pub(super) const SLOTS: u32 = 1 << HUGE_ORDER;
/// The number of words in a [`SlotSet`].
const WORDS: usize = SLOTS as usize / 64;
/// The maximum number of lasting references to a slot.
pub(super) const MAX_REFERENCES: u32 = 1 << 31;

/// One cluster. Zeroed memory is a valid cluster, which has no free slot and is in no list.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Cluster {
    /// The free bitmap, protected by the cluster's lock.
    pub(super) state: SpinLock<State>,
    /// The next and the previous cluster in the list. Written under the lock of the lists.
    pub(super) links: [AtomicU32; 2],
    /// The list that the cluster is in: see [`super::cluster_lists`].
    pub(super) list: AtomicU8,
}

// SAFETY: zero is valid for all fields: atomic integers, an unlocked lock, and the bitmap that it
// protects.
unsafe impl Zeroable for Cluster {}

/// The data that a cluster's lock protects, together with its [`SwapMap`]. A slot is free, or has
/// references, or neither while the device forgets its contents.
#[derive(Debug)]
pub(super) struct State {
    /// The free slots.
    free: SlotSet,
}

/// The reference counts of a cluster's slots, accessed under the cluster's lock (Linux:
/// `swap_map`). Two of these fill a frame, so they are in an array of their own, not in
/// [`Cluster`].
#[derive(Debug)]
pub(super) struct SwapMap([AtomicU32; SLOTS as usize]);

// SAFETY: it consists of atomic integers, for which 0 is valid.
unsafe impl Zeroable for SwapMap {}

/// A cluster whose lock is held, with its reference counts.
pub(super) struct LockedCluster<'a, C: Cpus> {
    /// The held lock, with the free bitmap.
    state: SpinGuard<'a, State, C>,
    /// The reference counts, which the lock protects too.
    swap_map: &'a SwapMap,
}

/// A set of slots of one cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotSet([u64; WORDS]);

/// For each order, the positions in a word where an aligned block may begin.
const ALIGNED: [u64; 7] = [!0, !0 / 0x3, !0 / 0xf, !0 / 0xff, !0 / 0xffff, !0 / 0xffff_ffff, 1];

/// Returns the positions in `word` at which aligned blocks of `1 << order` set bits begin.
#[inline]
const fn blocks(mut word: u64, order: u8) -> u64 {
    // Each step doubles the size of the blocks: it keeps an aligned start only if another block of
    // the present size follows.
    let mut found = 0;
    while found < order {
        word &= word >> (1 << found) & ALIGNED[found as usize + 1];
        found += 1;
    }
    word
}

impl SlotSet {
    /// Returns the set of the slots in `range`.
    pub(super) fn range(range: Range<u32>) -> Self {
        let mut set = SlotSet::default();
        for (i, word) in set.0.iter_mut().enumerate() {
            let [from, to] = [range.start, range.end].map(|end| end.saturating_sub(i as u32 * 64).min(64));
            // A shift by 64 means all bits.
            let below = |n: u32| 1u64.checked_shl(n).map_or(!0, |bit| bit - 1);
            *word = below(to) & !below(from);
        }
        set
    }

    /// Returns true if the set has no member.
    pub(super) fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Adds the members of `other`.
    pub(super) fn add(&mut self, other: &SlotSet) {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
    }

    /// Removes the aligned block of `1 << order` members that begins at `first`.
    #[inline]
    fn remove(&mut self, first: u32, order: u8) {
        let word = first as usize / 64;
        match order.checked_sub(6) {
            Some(words) => self.0[word..word + (1 << words)].fill(0),
            None => self.0[word] &= !(!0 >> (64 - (1 << order)) << (first % 64)),
        }
    }

    /// Returns a word with one bit for each word of the set, which is set if that word is all ones.
    /// Blocks of 64 or more slots are blocks of such bits.
    fn whole_words(&self) -> u64 {
        self.0.iter().enumerate().fold(0, |set, (i, word)| set | u64::from(*word == !0) << i)
    }

    /// Returns the first slot of the first aligned block of `1 << order` members.
    #[inline]
    fn find(&self, order: u8) -> Option<u32> {
        let first = |word: u64| (word != 0).then(|| word.trailing_zeros());
        match order.checked_sub(6) {
            Some(words) => Some(first(blocks(self.whole_words(), words))? * 64),
            None => (0..).zip(self.0).find_map(|(i, word)| Some(i * 64 + first(blocks(word, order))?)),
        }
    }

    /// Returns the order of the largest aligned block of members, or `None` if the set is empty.
    pub(super) fn room(&self) -> Option<u8> {
        let largest = |any: &dyn Fn(u8) -> bool, top: u8| (0..=top).take_while(|order| any(*order)).last();
        let words = self.whole_words();
        match largest(&|order| blocks(words, order) != 0, HUGE_ORDER - 6) {
            Some(order) => Some(order + 6),
            None => largest(&|order| self.0.iter().any(|word| blocks(*word, order) != 0), 5),
        }
    }

    /// Returns the maximal ranges of consecutive members. All members must be in `within`.
    pub(super) fn runs(self, within: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let Range { start: mut at, end } = within;
        core::iter::from_fn(move || {
            let start = self.next(at, end, 0);
            at = self.next(start, end, !0);
            (start < end).then_some(start..at)
        })
    }

    /// Returns the first slot from `at` on, before `end`, that is a member. With `flip` all ones,
    /// returns the first that is not a member. Returns `end` if there is none.
    #[inline]
    fn next(&self, mut at: u32, end: u32, flip: u64) -> u32 {
        while at < end {
            let rest = (self.0[at as usize / 64] ^ flip) >> (at % 64);
            if rest != 0 {
                return at + rest.trailing_zeros();
            }
            at = (at / 64 + 1) * 64;
        }
        end
    }
}

impl SwapMap {
    /// Returns the counts of these slots.
    fn of(&self, range: &Range<u32>) -> &[AtomicU32] {
        &self.0[range.start as usize..range.end as usize]
    }
}

impl<'a, C: Cpus> LockedCluster<'a, C> {
    /// Locks a cluster. `swap_map` has the cluster's reference counts.
    #[inline]
    pub(super) fn new(cluster: &'a Cluster, swap_map: &'a SwapMap, cpus: &'a C) -> Self {
        LockedCluster { state: cluster.state.lock(cpus), swap_map }
    }

    /// Marks slots as free. The slots have no references, and the device has forgotten their
    /// contents.
    pub(super) fn mark_free(&mut self, slots: &SlotSet) {
        self.state.free.add(slots);
    }

    /// Returns the order of the largest free block, or `None` if no slot is free.
    pub(super) fn room(&self) -> Option<u8> {
        self.state.free.room()
    }

    /// Allocates an aligned block of `1 << order` free slots, each with one reference. Returns its
    /// first slot.
    #[inline]
    pub(super) fn take(&mut self, order: u8) -> Option<u32> {
        let first = self.state.free.find(order)?;
        self.set_references(&(first..first + (1 << order)), 1);
        self.state.free.remove(first, order);
        Some(first)
    }

    /// Returns true if a slot is free.
    pub(super) fn is_free(&self, slot: u32) -> bool {
        self.state.free.0[slot as usize / 64] >> (slot % 64) & 1 != 0
    }

    /// Returns the number of references to a slot; 0 if it is free.
    pub(super) fn references(&self, slot: u32) -> u32 {
        self.swap_map.0[slot as usize].load(Relaxed)
    }

    /// Sets the number of references to each of these slots.
    pub(super) fn set_references(&mut self, range: &Range<u32>, references: u32) {
        self.swap_map.of(range).iter().for_each(|count| count.store(references, Relaxed));
    }

    /// Adds a lasting reference to each of these slots.
    ///
    /// # Errors
    /// Fails with the first slot that has [`MAX_REFERENCES`]. Nothing is changed then.
    #[inline]
    pub(super) fn duplicate(&mut self, range: &Range<u32>) -> Result<(), u32> {
        let full = self.swap_map.of(range).iter().position(|count| count.load(Relaxed) >= MAX_REFERENCES);
        match full {
            Some(full) => Err(range.start + full as u32),
            None => {
                self.get_transient(range);
                Ok(())
            }
        }
    }

    /// Adds a transient reference, or the swap cache's reference, to each of these slots. Each slot
    /// must have another reference.
    #[inline]
    pub(super) fn get_transient(&mut self, range: &Range<u32>) {
        for count in self.swap_map.of(range) {
            let references = count.load(Relaxed);
            debug_assert!(references > 0, "a reference is added to a slot that has none");
            count.store(references + 1, Relaxed);
        }
    }

    /// Drops a reference to each of these slots. Returns the slots that have no reference left.
    #[inline]
    pub(super) fn release(&mut self, range: &Range<u32>) -> SlotSet {
        let mut dead = SlotSet::default();
        for (slot, count) in range.clone().zip(self.swap_map.of(range)) {
            let references = count.load(Relaxed);
            debug_assert!(references > 0, "a reference is dropped from a slot that has none");
            dead.0[slot as usize / 64] |= u64::from(references == 1) << (slot % 64);
            count.store(references.saturating_sub(1), Relaxed);
        }
        dead
    }
}

const _: () = assert!(size_of::<Cluster>() <= 128, "a frame has 32 clusters");
const _: () = assert!(size_of::<SwapMap>() == 4096 / 2, "a frame has the counts of two clusters");
