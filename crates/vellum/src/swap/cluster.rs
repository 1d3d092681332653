//! A cluster: as many slots in a row as a huge folio has pages, which of them are free, and how often each of the others is
//! referred to.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU32};

use crate::frame::{HUGE_ORDER, Zeroable};
use crate::sync::SpinLock;

/// Slots of a cluster.
pub(super) const SLOTS: u32 = 1 << HUGE_ORDER;
/// Words of a set of slots.
const WORDS: usize = SLOTS as usize / 64;

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

/// What a cluster's lock protects. A slot is free, or referred to, or (between the two) neither: its contents are being
/// forgotten.
#[derive(Debug)]
pub(super) struct State {
    free: SlotSet,
    counts: [u8; SLOTS as usize],
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

impl State {
    /// Make slots free, which nothing refers to and whose contents are forgotten.
    pub(super) fn free(&mut self, slots: &SlotSet) {
        self.free.add(slots);
    }

    /// The order of the largest block that is free.
    pub(super) fn room(&self) -> Option<u8> {
        self.free.room()
    }

    /// Take an aligned block of free slots; each is referred to once then.
    #[inline]
    pub(super) fn take(&mut self, order: u8) -> Option<u32> {
        let first = self.free.find(order)?;
        self.counts[first as usize..][..1 << order].fill(1);
        self.free.remove(first, order);
        Some(first)
    }

    /// How often each of these slots is referred to; 0 if it is free.
    pub(super) fn counts(&self, range: &Range<u32>) -> &[u8] {
        &self.counts[range.start as usize..range.end as usize]
    }

    /// Refer to each of these slots once more.
    ///
    /// # Errors
    /// One of them, which is the answer, is referred to as often as can be counted. Nothing is changed.
    #[inline]
    pub(super) fn duplicate(&mut self, range: &Range<u32>) -> Result<(), u32> {
        let counts = &mut self.counts[range.start as usize..range.end as usize];
        debug_assert!(!counts.contains(&0), "one more reference to a slot that nobody has");
        if let Some(full) = counts.iter().position(|count| *count == u8::MAX) {
            return Err(range.start + full as u32);
        }
        counts.iter_mut().for_each(|count| *count += 1);
        Ok(())
    }

    /// Refer to each of these slots once less: those that nothing refers to any more.
    #[inline]
    pub(super) fn release(&mut self, range: &Range<u32>) -> SlotSet {
        let mut dead = SlotSet::default();
        for (slot, count) in range.clone().zip(&mut self.counts[range.start as usize..range.end as usize]) {
            debug_assert!(*count > 0, "one reference less to a slot that nobody has");
            dead.0[slot as usize / 64] |= u64::from(*count == 1) << (slot % 64);
            *count = count.saturating_sub(1);
        }
        dead
    }
}

const _: () = assert!(size_of::<Cluster>() <= 4096 / 6, "six clusters to a frame");
