//! A cluster: as many slots in a row as a huge folio has pages, which of them are free, and how
//! many references each of the others has.
//!
//! # Reference counts don't overflow
//! A count has 32 bits. A *lasting* reference is a swap entry's, of which an address space has at
//! most one for each slot, or the page cache's. So a count is bounded by the number of address
//! spaces, of which each has at least two page-table pages, while physical memory has less than
//! 2^32 frames ([`Pfn`](crate::addr::Pfn)). [`Locked::duplicate`] refuses to pass
//! [`MAX_REFERENCES`] all the same, half of what a count holds: a host's mistake must not wrap it.
//! The other half is for *transient* references ([`Locked::hold`]), at most one for each thread
//! that reads the slot, and the swap cache's one, which are therefore never refused.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use crate::frame::{HUGE_ORDER, Zeroable};
use crate::platform::Cpus;
use crate::sync::{SpinGuard, SpinLock};

/// Slots of a cluster.
pub(super) const SLOTS: u32 = 1 << HUGE_ORDER;
/// Words of a set of slots.
const WORDS: usize = SLOTS as usize / 64;
/// Lasting references that a slot may have.
pub(super) const MAX_REFERENCES: u32 = 1 << 31;

/// One cluster. Zeroed memory is one without a free slot that is filed nowhere.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Cluster {
    pub(super) state: SpinLock<State>,
    /// The next and the previous one in the file that it is in. Written under the lock of the files.
    pub(super) links: [AtomicU32; 2],
    /// Where it is filed: see [`super::files`].
    pub(super) place: AtomicU8,
}

// SAFETY: atomics, a lock, and integers behind it; aligned to 64 bytes.
unsafe impl Zeroable for Cluster {}

/// What a cluster's lock protects, with its [`Counts`]. A slot is free, or referred to, or (between
/// the two) neither: its contents are being forgotten.
#[derive(Debug)]
pub(super) struct State {
    free: SlotSet,
}

/// The reference counts of a cluster's slots, read and written under the cluster's lock. (They are
/// apart from the cluster because two of these fill a frame.)
#[derive(Debug)]
pub(super) struct Counts([AtomicU32; SLOTS as usize]);

// SAFETY: atomics only.
unsafe impl Zeroable for Counts {}

/// A cluster whose lock is held, with its reference counts.
pub(super) struct Locked<'a, C: Cpus> {
    state: SpinGuard<'a, State, C>,
    counts: &'a Counts,
}

/// A set of a cluster's slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotSet([u64; WORDS]);

/// Where blocks of each order may begin in a word.
const ALIGNED: [u64; 7] = [!0, !0 / 0x3, !0 / 0xf, !0 / 0xff, !0 / 0xffff, !0 / 0xffff_ffff, 1];

/// Where in a word the aligned blocks of `1 << order` ones begin.
#[inline]
const fn blocks(mut word: u64, order: u8) -> u64 {
    let mut have = 0;
    while have < order {
        word &= word >> (1 << have) & ALIGNED[have as usize + 1];
        have += 1;
    }
    word
}

impl SlotSet {
    /// Slots in a row.
    pub(super) fn range(range: Range<u32>) -> Self {
        let mut set = SlotSet::default();
        for (i, word) in set.0.iter_mut().enumerate() {
            let [from, to] = [range.start, range.end].map(|end| end.saturating_sub(i as u32 * 64).min(64));
            // A shift by 64 is none.
            let below = |n: u32| 1u64.checked_shl(n).map_or(!0, |bit| bit - 1);
            *word = below(to) & !below(from);
        }
        set
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    pub(super) fn add(&mut self, other: &SlotSet) {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word |= other);
    }

    /// Remove an aligned block of `1 << order` members.
    #[inline]
    fn remove(&mut self, first: u32, order: u8) {
        let word = first as usize / 64;
        match order.checked_sub(6) {
            Some(words) => self.0[word..word + (1 << words)].fill(0),
            None => self.0[word] &= !(!0 >> (64 - (1 << order)) << (first % 64)),
        }
    }

    /// A bit for each word that is all ones: blocks of 64 and more are found among these as smaller ones are in a word.
    fn whole_words(&self) -> u64 {
        self.0.iter().enumerate().fold(0, |set, (i, word)| set | u64::from(*word == !0) << i)
    }

    /// Where the first aligned block of `1 << order` members begins.
    #[inline]
    fn find(&self, order: u8) -> Option<u32> {
        let first = |word: u64| (word != 0).then(|| word.trailing_zeros());
        match order.checked_sub(6) {
            Some(words) => Some(first(blocks(self.whole_words(), words))? * 64),
            None => (0..).zip(self.0).find_map(|(i, word)| Some(i * 64 + first(blocks(word, order))?)),
        }
    }

    /// The order of the largest aligned block of members.
    pub(super) fn room(&self) -> Option<u8> {
        let largest = |any: &dyn Fn(u8) -> bool, top: u8| (0..=top).take_while(|order| any(*order)).last();
        let words = self.whole_words();
        match largest(&|order| blocks(words, order) != 0, HUGE_ORDER - 6) {
            Some(order) => Some(order + 6),
            None => largest(&|order| self.0.iter().any(|word| blocks(*word, order) != 0), 5),
        }
    }

    /// The members, of which all lie within a range, in stretches as long as can be.
    pub(super) fn stretches(self, within: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        let Range { start: mut at, end } = within;
        core::iter::from_fn(move || {
            let start = self.next(at, end, 0);
            at = self.next(start, end, !0);
            (start < end).then_some(start..at)
        })
    }

    /// The first slot from `at` to `end` that is a member, or, with `flip` all ones, that is none; `end` otherwise.
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

impl Counts {
    fn of(&self, range: &Range<u32>) -> &[AtomicU32] {
        &self.0[range.start as usize..range.end as usize]
    }
}

impl<'a, C: Cpus> Locked<'a, C> {
    /// Locks a cluster, whose counts these are.
    #[inline]
    pub(super) fn new(cluster: &'a Cluster, counts: &'a Counts, cpus: &'a C) -> Self {
        Locked { state: cluster.state.lock(cpus), counts }
    }

    /// Makes slots free, which nothing refers to and whose contents are forgotten.
    pub(super) fn free(&mut self, slots: &SlotSet) {
        self.state.free.add(slots);
    }

    /// Returns the order of the largest block that is free.
    pub(super) fn room(&self) -> Option<u8> {
        self.state.free.room()
    }

    /// Takes an aligned block of free slots; each has one reference then.
    #[inline]
    pub(super) fn take(&mut self, order: u8) -> Option<u32> {
        let first = self.state.free.find(order)?;
        self.set_references(&(first..first + (1 << order)), 1);
        self.state.free.remove(first, order);
        Some(first)
    }

    /// Returns whether a slot is free.
    pub(super) fn is_free(&self, slot: u32) -> bool {
        self.state.free.0[slot as usize / 64] >> (slot % 64) & 1 != 0
    }

    /// Returns how many references a slot has; 0 if it is free.
    pub(super) fn references(&self, slot: u32) -> u32 {
        self.counts.0[slot as usize].load(Relaxed)
    }

    /// Sets how many references each of these slots has.
    pub(super) fn set_references(&mut self, range: &Range<u32>, references: u32) {
        self.counts.of(range).iter().for_each(|count| count.store(references, Relaxed));
    }

    /// Adds a lasting reference to each of these slots.
    ///
    /// # Errors
    /// The first of them that has [`MAX_REFERENCES`]. Nothing is changed.
    #[inline]
    pub(super) fn duplicate(&mut self, range: &Range<u32>) -> Result<(), u32> {
        let full = self.counts.of(range).iter().position(|count| count.load(Relaxed) >= MAX_REFERENCES);
        match full {
            Some(full) => Err(range.start + full as u32),
            None => {
                self.hold(range);
                Ok(())
            }
        }
    }

    /// Adds a transient reference to each of these slots, or the swap cache's.
    #[inline]
    pub(super) fn hold(&mut self, range: &Range<u32>) {
        for count in self.counts.of(range) {
            let references = count.load(Relaxed);
            debug_assert!(references > 0, "one more reference to a slot that nobody has");
            count.store(references + 1, Relaxed);
        }
    }

    /// Drops a reference to each of these slots. Returns those that have none left.
    #[inline]
    pub(super) fn release(&mut self, range: &Range<u32>) -> SlotSet {
        let mut dead = SlotSet::default();
        for (slot, count) in range.clone().zip(self.counts.of(range)) {
            let references = count.load(Relaxed);
            debug_assert!(references > 0, "one reference less to a slot that nobody has");
            dead.0[slot as usize / 64] |= u64::from(references == 1) << (slot % 64);
            count.store(references.saturating_sub(1), Relaxed);
        }
        dead
    }
}

const _: () = assert!(size_of::<Cluster>() <= 128, "32 clusters to a frame");
const _: () = assert!(size_of::<Counts>() == 4096 / 2, "two clusters' counts to a frame");
