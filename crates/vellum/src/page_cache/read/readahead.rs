//! Decides which pages of a file to read before a program asks for them (Linux: `struct
//! file_ra_state`, `page_cache_sync_ra`).
//!
//! An opener's accesses follow a pattern if each begins as far behind the end of the one before as
//! that one did, in the same direction: a distance of 0 is a stream, or, downwards, a stream read
//! from its end; any other is a stride. So a pattern is a sequence of pages, of which the next ones
//! are known. As long as accesses keep to it, the pages ahead are asked for in windows that double,
//! each while half of the last one is still ahead, so that the program need not wait for a device.
//! An access that leaves the pattern begins another one, and nothing ahead of it is read yet.

use core::ops::Range;

use arrayvec::ArrayVec;

use crate::vma::Expected;

/// The maximum number of ranges that one access asks for.
pub(super) const MAX_RANGES: usize = 16;
/// How many accesses in a row must keep to a stride before it is read ahead. A stream is believed
/// at once.
const STRIDE_HITS: u32 = 2;
/// How many times as many pages as an access has are read ahead of it at first.
const FIRST_WINDOW: u64 = 4;

/// Pages that an opener begins to use.
pub(super) struct NewlyUsed {
    /// The pages.
    pub(super) pages: Range<u64>,
    /// The opener has just used the page before them.
    pub(super) continues: bool,
}

/// The readahead state of one opener of a file.
#[derive(Clone, Debug)]
pub struct Readahead {
    /// The opener's advice; [`Expected::Sequential`] doubles the windows.
    pub expected: Expected,
    /// The largest window in pages.
    pub limit: u32,
    /// The pages of the last access.
    last: Range<u64>,
    /// True if accesses go towards the beginning of the file.
    backward: bool,
    /// The number of pages between the last two accesses.
    gap: u64,
    /// The number of accesses in a row that kept to the pattern.
    hits: u32,
    /// The number of pages of the pattern, from the last access on, that were asked for already.
    ahead: u64,
    /// The number of pages of the last window.
    window: u64,
}

impl Readahead {
    /// Returns the state of an opener without an access, which reads at most `limit` pages at once
    /// ahead. Its first access belongs to a stream if it is at the beginning of the file.
    pub fn new(limit: u32) -> Self {
        Readahead {
            expected: Expected::Unknown,
            limit,
            last: 0..0,
            backward: false,
            gap: 0,
            hits: 0,
            ahead: 0,
            window: 0,
        }
    }

    /// Records an access to `pages`, and returns the pages ahead to ask for: ranges without
    /// overlap, which don't contain pages of the access, and may lie beyond the end of the file.
    pub(super) fn access(&mut self, pages: Range<u64>) -> ArrayVec<Range<u64>, MAX_RANGES> {
        let Some(pages) = self.news(pages) else { return ArrayVec::new() };
        let count = pages.end - pages.start;
        let (backward, gap) = match pages.start.checked_sub(self.last.end) {
            Some(gap) => (false, gap),
            // An access around the last one has no distance to it, and no pattern.
            None => (true, self.last.start.checked_sub(pages.end).unwrap_or(u64::MAX)),
        };
        let keeps = (backward, gap) == (self.backward, self.gap);
        if keeps {
            self.ahead = self.ahead.saturating_sub(count);
            self.hits = self.hits.saturating_add(1);
        } else {
            (self.ahead, self.window, self.hits) = (0, 0, u32::from(gap == 0));
        }
        (self.last, self.backward, self.gap) = (pages, backward, gap);
        let is_believed = if gap == 0 { self.hits > 0 } else { self.hits >= STRIDE_HITS };
        if self.expected == Expected::Random || !is_believed || self.ahead > self.window / 2 {
            return ArrayVec::new();
        }
        let limit = u64::from(self.limit) << u32::from(self.expected == Expected::Sequential);
        self.window = (2 * self.window).max(FIRST_WINDOW * count).min(limit);
        let (first, end) = (self.ahead, self.ahead.max(self.window));
        let mut ranges = ArrayVec::<Range<u64>, MAX_RANGES>::new();
        if gap == 0 && first < end {
            // A stream: its next pages are in a row.
            self.ahead = end;
            ranges.push(if backward {
                self.last.start.saturating_sub(end)..self.last.start.saturating_sub(first)
            } else {
                self.last.end.saturating_add(first)..self.last.end.saturating_add(end)
            });
            ranges.retain(|range| range.start < range.end);
            return ranges;
        }
        for nth in first..end {
            let Some(page) = self.nth(nth) else { break };
            self.ahead = nth + 1;
            match ranges.last_mut() {
                Some(last) if last.end == page => last.end += 1,
                Some(last) if last.start == page + 1 => last.start = page,
                _ => {
                    if ranges.try_push(page..page + 1).is_err() {
                        self.ahead = nth;
                        break;
                    }
                }
            }
        }
        ranges
    }

    /// Returns the pages that an access uses and the access before it did not use.
    pub(super) fn newly_used(&self, pages: &Range<u64>) -> NewlyUsed {
        let pages = self.news(pages.clone()).unwrap_or(0..0);
        NewlyUsed { continues: pages.start == self.last.end && !self.last.is_empty(), pages }
    }

    /// Returns the part of an access that the access before it did not have; `None` if it had all.
    fn news(&self, pages: Range<u64>) -> Option<Range<u64>> {
        let is_inside = |page| self.last.contains(&page);
        let start = if is_inside(pages.start) { self.last.end } else { pages.start };
        let end = if pages.end > start && is_inside(pages.end - 1) && !is_inside(pages.start) {
            self.last.start
        } else {
            pages.end
        };
        (start < end).then_some(start..end)
    }

    /// Returns the n-th page that follows the last access in the pattern; `None` if that lies
    /// before the beginning of the file.
    fn nth(&self, nth: u64) -> Option<u64> {
        let count = self.last.end - self.last.start;
        let distance = self.gap.checked_add((nth / count).checked_mul(count.checked_add(self.gap)?)?)? + nth % count;
        match self.backward {
            false => self.last.end.checked_add(distance),
            true => self.last.start.checked_sub(distance.checked_add(1)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use super::*;
    use crate::testing::Dice;

    /// The pages of a file that were asked for.
    #[derive(Default)]
    struct Asked {
        pages: BTreeSet<u64>,
        /// Pages that an access needed and that were not asked for before it.
        late: u64,
    }

    impl Asked {
        /// Makes an access; no page may be asked for twice.
        fn access(&mut self, state: &mut Readahead, pages: Range<u64>) {
            self.late += pages.clone().filter(|page| self.pages.insert(*page)).count() as u64;
            for page in state.access(pages).into_iter().flatten() {
                assert!(self.pages.insert(page), "page {page} twice");
            }
        }
    }

    fn run(accesses: impl IntoIterator<Item = Range<u64>>) -> (u64, Asked) {
        let (mut state, mut asked, mut pages) = (Readahead::new(32), Asked::default(), 0);
        for access in accesses {
            pages += access.end - access.start;
            asked.access(&mut state, access);
        }
        (pages, asked)
    }

    /// A stream waits for its first access, whatever the size of its accesses, upwards and
    /// downwards, and no more than a window is read in vain.
    #[test]
    fn a_stream_waits_once() {
        for count in [1, 3, 16] {
            let up = run((0..1000 / count).map(|i| i * count..(i + 1) * count));
            let down = run((1..1000 / count).map(|i| 5000 - i * count..5000 - (i - 1) * count));
            for (pages, asked) in [up, down] {
                assert!(asked.late <= 2 * count, "{} late of {pages}, {count} at a time", asked.late);
                assert!(asked.pages.len() as u64 <= pages + 32 + count, "{} of {pages}", asked.pages.len());
            }
        }
    }

    /// A stride is read ahead from its fourth access on, and the pages between are not read.
    #[test]
    fn a_stride_skips_what_is_between() {
        for (count, step) in [(1, 10), (2, 7), (4, 1 << 40)] {
            let (pages, asked) = run((0..100).map(|i| 77 + i * step..77 + i * step + count));
            assert_eq!(asked.late, 4 * count, "{count} of {step}");
            assert!(asked.pages.iter().all(|page| (page - 77) % step < count));
            assert!(asked.pages.len() as u64 <= pages + 32);
        }
    }

    /// Accesses without a pattern are not read ahead of.
    #[test]
    fn random_accesses_read_nothing_else() {
        let mut dice = Dice(3);
        let (pages, asked) = run((0..1000).map(|_| dice.roll(1 << 30)).map(|page| page..page + 1));
        assert_eq!((asked.pages.len() as u64, asked.late), (pages, pages));
        let mut state = Readahead::new(32);
        state.expected = Expected::Random;
        assert!((0..10).all(|page| state.access(page..page + 1).is_empty()));
    }

    /// Parts of pages that are read one after another are one access to the page, and windows
    /// double up to the limit, or twice the limit for an opener that told that it reads a stream.
    #[test]
    fn windows_double_up_to_the_limit() {
        for (expected, most) in [(Expected::Unknown, 32), (Expected::Sequential, 64)] {
            let mut state = Readahead::new(32);
            state.expected = expected;
            let mut reach = 0;
            let distances: Vec<u64> = (0..4 * 400)
                .map(|part| {
                    let page = part / 4;
                    reach = state.access(page..page + 1).iter().map(|range| range.end).fold(reach, u64::max);
                    reach.saturating_sub(page + 1)
                })
                .collect();
            assert_eq!(distances.iter().max(), Some(&most));
            assert_eq!(distances[..8], [4, 4, 4, 4, 3, 3, 3, 3]);
            assert!(distances.iter().all(|distance| *distance > 0), "no access waits");
        }
    }

    /// An access that leaves a pattern and a return to it cost the pattern's windows, but no page
    /// is lost: any sequence of accesses, however large its numbers, has each page.
    #[test]
    fn any_sequence_is_served() {
        let mut dice = Dice(5);
        for _ in 0..200 {
            let mut state = Readahead::new(1 + dice.roll(64) as u32);
            for _ in 0..50 {
                let page = [0, dice.roll(100), u64::MAX - 200 + dice.roll(100)][dice.roll(3) as usize];
                let pages = page..page + dice.roll(20);
                for range in state.access(pages.clone()) {
                    assert!(range.start < range.end && range.end - range.start <= u64::from(state.limit));
                    assert!(pages.clone().all(|page| !range.contains(&page)));
                }
            }
        }
    }
}
