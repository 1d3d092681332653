//! A churn: work of other programs that leaves free memory in pieces, as on a server after hours.
//!
//! Several address spaces fill memory with folios of mixed sizes up to a bound, replace half of it,
//! and free a third of it at random: they unmap, unmap a part, discard (`MADV_DONTNEED`), and have
//! lazyfree pages reclaimed. What they still map lies between the free pieces, until they end.
//!
//! The churn is a list of steps that depends on the region's size only, so that every contender
//! does the same. It does not touch a page again that it freed: a contender's folio sizes change
//! no step.

use serde::{Deserialize, Serialize};

use super::case::{PAGE, TABLE_SPAN};
use super::shuffle::{SEED, below, next};

/// The number of address spaces.
pub const SPACES: usize = 4;
/// The memory in use at the peak, in regions.
pub const PEAK: u64 = 3;
/// The memory in use at the end, in regions.
const REST: u64 = 2;
/// Bytes of a slot: the addresses that a step maps or frees.
pub const SLOT: u64 = TABLE_SPAN;
/// The folio sizes of the rounds in turn, in KiB. Half of the memory is in base pages.
const SIZES: [u32; 8] = [4, 64, 4, 16, 4, 2048, 4, 256];
/// The number of rounds in which memory is filled to its peak.
const ROUNDS: u64 = 16;
/// The sizes of the pieces that are freed, in KiB.
const PIECES: [u32; 7] = [4, 8, 16, 32, 64, 128, 256];

/// Steps in which all faults allocate folios of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// The folio size in KiB. A contender without this size uses base pages.
    pub folio_kib: u32,
    /// The steps in order, each with the index of its address space.
    pub steps: Vec<(usize, Step)>,
}

/// A step of one address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The slot: an aligned range of [`SLOT`] bytes, with unmapped addresses on both sides.
    pub slot: u32,
    /// The action.
    pub act: Act,
    /// The pieces of the slot to which it is done.
    pub pieces: Pieces,
}

/// The action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    /// Map the slot, and write a byte in each page.
    Fill,
    /// Unmap the pieces.
    Unmap,
    /// Discard the pieces (`MADV_DONTNEED`).
    Discard,
    /// Make the pieces lazyfree (`MADV_FREE`), and have them reclaimed (`MADV_PAGEOUT`).
    Reclaim,
}

/// Some pieces of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pieces {
    /// The whole slot.
    All,
    /// About half of the pieces of this size, at random.
    Some {
        /// The size in KiB.
        kib: u32,
        /// The seed of the choice.
        seed: u64,
    },
}

impl Pieces {
    /// Returns the offset and the length of each piece, in ascending order.
    pub fn ranges(self) -> impl Iterator<Item = (u64, u64)> {
        let (len, mut seed) = match self {
            Pieces::All => (SLOT, None),
            Pieces::Some { kib, seed } => (u64::from(kib) << 10, Some(seed)),
        };
        (0..SLOT).step_by(len as usize).filter_map(move |at| {
            let chosen = seed.as_mut().is_none_or(|seed| next(seed) & 1 == 1);
            chosen.then_some((at, len))
        })
    }
}

/// Returns the churn before a region of `bytes` bytes.
pub fn rounds(bytes: u64) -> Vec<Round> {
    rounds_from(bytes, SEED)
}

fn rounds_from(bytes: u64, seed: u64) -> Vec<Round> {
    let mut churn = Churn { random: seed, used: Vec::new(), held: 0, filled: 0, rounds: Vec::new() };
    let (peak, rest) = (PEAK * bytes, REST * bytes);
    let fills = peak / SLOT;
    let a_round = fills.div_ceil(ROUNDS);
    for fill in 0..fills + fills / 2 {
        if fill % a_round == 0 {
            churn.rounds.push(Round { folio_kib: SIZES[churn.rounds.len() % SIZES.len()], steps: Vec::new() });
        }
        while churn.held + SLOT > peak {
            churn.free_some();
        }
        churn.fill();
    }
    while churn.held > rest {
        churn.free_some();
    }
    churn.rounds
}

/// The state of a churn that is being written.
struct Churn {
    random: u64,
    /// The slots with memory.
    used: Vec<Used>,
    /// The bytes of folios of which any page is mapped.
    held: u64,
    /// The number of slots filled so far.
    filled: u32,
    rounds: Vec<Round>,
}

struct Used {
    space: usize,
    slot: u32,
    folio_kib: u32,
    /// The bytes of folios of which any page is mapped.
    held: u64,
    /// True after a step that freed a part.
    partial: bool,
}

impl Churn {
    fn step(&mut self, space: usize, step: Step) {
        if let Some(round) = self.rounds.last_mut() {
            round.steps.push((space, step));
        }
    }

    fn fill(&mut self) {
        let (slot, space) = (self.filled, below(SPACES as u64, &mut self.random) as usize);
        let folio_kib = self.rounds.last().map_or(4, |round| round.folio_kib);
        self.step(space, Step { slot, act: Act::Fill, pieces: Pieces::All });
        self.used.push(Used { space, slot, folio_kib, held: SLOT, partial: false });
        self.held += SLOT;
        self.filled += 1;
    }

    /// Frees a part of a random slot, or all of it. Of four slots in which a part was freed before,
    /// three stay as they are.
    fn free_some(&mut self) {
        let at = below(self.used.len() as u64, &mut self.random) as usize;
        let Used { space, slot, partial, .. } = self.used[at];
        let choice = below(8, &mut self.random);
        if partial && choice >= 2 {
            return;
        }
        let act = match choice {
            0..4 => Act::Unmap,
            4..7 => Act::Discard,
            _ => Act::Reclaim,
        };
        if choice < 2 {
            self.held -= self.used.swap_remove(at).held;
            return self.step(space, Step { slot, act, pieces: Pieces::All });
        }
        let kib = PIECES[below(PIECES.len() as u64, &mut self.random) as usize];
        let pieces = Pieces::Some { kib, seed: next(&mut self.random) };
        let used = &mut self.used[at];
        let held = held_after(pieces, used.folio_kib);
        self.held -= used.held - held;
        (used.held, used.partial) = (held, true);
        self.step(space, Step { slot, act, pieces });
    }
}

/// Returns the bytes of the folios in a slot that have a page left once the pieces are freed.
fn held_after(pieces: Pieces, folio_kib: u32) -> u64 {
    let mut freed = [false; (SLOT / PAGE) as usize];
    for (at, len) in pieces.ranges() {
        freed[(at / PAGE) as usize..][..(len / PAGE) as usize].fill(true);
    }
    let folio = u64::from(folio_kib) << 10;
    let held = freed.chunks((folio / PAGE) as usize).filter(|pages| pages.contains(&false));
    held.count() as u64 * folio
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const BYTES: u64 = 16 << 20;

    /// Returns the mapped pages of each slot after the rounds, and the most pages that were mapped.
    fn replayed(rounds: &[Round]) -> (BTreeMap<(usize, u32), Vec<bool>>, u64) {
        let (mut slots, mut most) = (BTreeMap::<(usize, u32), Vec<bool>>::new(), 0);
        for &(space, Step { slot, act, pieces }) in rounds.iter().flat_map(|round| &round.steps) {
            if act == Act::Fill {
                assert!(slots.insert((space, slot), vec![true; (SLOT / PAGE) as usize]).is_none());
            } else if (act, pieces) == (Act::Unmap, Pieces::All) {
                assert!(slots.remove(&(space, slot)).is_some(), "slot {slot} is not mapped");
            } else {
                let pages = slots.get_mut(&(space, slot)).expect("a mapped slot");
                for (at, len) in pieces.ranges() {
                    pages[(at / PAGE) as usize..][..(len / PAGE) as usize].fill(false);
                }
            }
            most = most.max(mapped(&slots));
        }
        (slots, most)
    }

    fn mapped(slots: &BTreeMap<(usize, u32), Vec<bool>>) -> u64 {
        slots.values().flatten().filter(|&&mapped| mapped).count() as u64
    }

    #[test]
    fn the_same_seed_gives_the_same_steps() {
        assert_eq!(rounds(BYTES), rounds(BYTES));
        assert_ne!(rounds_from(BYTES, SEED), rounds_from(BYTES, SEED + 1));
    }

    #[test]
    fn memory_is_filled_to_the_peak_and_freed_to_the_rest() {
        for bytes in [2 << 20, BYTES, 256 << 20] {
            let rounds = rounds(bytes);
            let (slots, most) = replayed(&rounds);
            assert!(most <= PEAK * bytes / PAGE && most > PEAK * bytes / PAGE * 3 / 4, "{most} pages of {bytes}");
            assert!(mapped(&slots) <= REST * bytes / PAGE);
            if bytes >= BYTES {
                assert!(mapped(&slots) > REST * bytes / PAGE / 4, "{} pages of {bytes}", mapped(&slots));
                assert!(SIZES.iter().all(|size| rounds.iter().any(|round| round.folio_kib == *size)));
            }
        }
    }

    #[test]
    fn every_space_does_everything() {
        let rounds = rounds(64 << 20);
        let steps: Vec<_> = rounds.iter().flat_map(|round| &round.steps).collect();
        for space in 0..SPACES {
            for act in [Act::Fill, Act::Unmap, Act::Discard, Act::Reclaim] {
                assert!(steps.iter().any(|(of, step)| *of == space && step.act == act), "{act:?} in space {space}");
            }
            let partly = |step: &Step| step.act == Act::Unmap && step.pieces != Pieces::All;
            assert!(steps.iter().any(|(of, step)| *of == space && partly(step)));
        }
    }

    #[test]
    fn a_partly_freed_folio_is_held() {
        let half = Pieces::Some { kib: 32, seed: SEED };
        assert_eq!(held_after(Pieces::All, 4), 0);
        assert_eq!(held_after(half, 2048), SLOT);
        let freed: u64 = half.ranges().map(|(_, len)| len).sum();
        assert_eq!(held_after(half, 4), SLOT - freed);
        assert!(held_after(half, 64) > SLOT - freed);
    }
}
