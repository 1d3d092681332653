//! Gap search: finds free addresses for a new VMA (Linux: `vm_unmapped_area`).
//!
//! [`VmaTree::find_gap`] walks the tree in the preferred direction, and enters only nodes whose
//! largest gap, as their parent records it, is long enough. The search of such a node may still
//! find nothing, for two reasons: the gap lies outside the window, or it is too short once the
//! start is aligned. The first reason applies only in the two nodes of each level that contain an
//! end of the window.

use super::node::{Node, NodeRef, Sorted};
use super::tree::{Interval, VmaTree};
use crate::addr::{VirtRange, align_down, align_up};

/// The preferred end of the address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The highest free address.
    TopDown,
    /// The lowest free address.
    BottomUp,
}

/// A search for free addresses; the fields are the arguments of [`VmaTree::find_gap`].
struct GapQuery {
    len: u64,
    align_shift: u32,
    window: VirtRange,
    direction: Direction,
}

impl<V: Interval> VmaTree<V> {
    /// Returns the start of `len` free bytes in `window`, aligned to `1 << align_shift`: the
    /// highest or the lowest such address, by `direction`. Returns `None` if there is none, or
    /// `len` is 0.
    ///
    /// Addresses that a VMA [reserves](Interval::reserved_start) are not free.
    ///
    /// Takes O(log n) steps, and one more for each gap on the way that is long enough but does not
    /// fit once aligned.
    pub fn find_gap(&self, len: u64, align_shift: u32, window: VirtRange, direction: Direction) -> Option<u64> {
        if len == 0 || align_shift >= u64::BITS || window.start >= window.end {
            return None;
        }
        let query = GapQuery { len, align_shift, window, direction };
        let Some((root, extent)) = self.root().and_then(|root| Some((root, root.extent()?))) else {
            return query.fit(window);
        };
        let below = || query.fit(VirtRange { start: 0, end: extent.reserved });
        let above = || query.fit(VirtRange { start: extent.end, end: u64::MAX });
        match direction {
            Direction::TopDown => above().or_else(|| query.search(root)).or_else(below),
            Direction::BottomUp => below().or_else(|| query.search(root)).or_else(above),
        }
    }
}

impl GapQuery {
    /// Returns the highest or the lowest start, by `direction`, at which the bytes fit between two
    /// VMAs of `node`'s subtree.
    fn search<V: Interval>(&self, node: &Node<V>) -> Option<u64> {
        match node.get() {
            NodeRef::Leaf(leaf) => {
                // The first gap that can reach into the window precedes the first VMA that starts
                // in the window. The last such gap precedes the first VMA that starts above the
                // window.
                let first = leaf.starts().count_up_to(self.window.start).max(1);
                let last = count_below(leaf.starts(), self.window.end).min(leaf.len() - 1);
                self.in_order(first, last).find_map(|i| self.fit(leaf.gap_before(i)?))
            }
            NodeRef::Inner(inner) => {
                let first = inner.ends().count_up_to(self.window.start);
                let last = count_below(inner.starts(), self.window.end);
                // The search alternates between children and the gaps between them: step `2 * i` is
                // child `i`, and step `2 * i - 1` is the gap before child `i`.
                let first = (2 * first).saturating_sub(1);
                let last = (2 * last).checked_sub(1)?.min(2 * inner.len() - 2);
                self.in_order(first, last).find_map(|step| {
                    let i = step.div_ceil(2);
                    match step % 2 {
                        0 if inner.gaps()[i] >= self.len => self.search(inner.child(i)?),
                        0 => None,
                        _ => self.fit(inner.gap_before(i)?),
                    }
                })
            }
        }
    }

    /// Returns the numbers from `first` to `last`, both included, in the direction of the search.
    fn in_order(&self, first: usize, last: usize) -> impl Iterator<Item = usize> {
        let top_down = self.direction == Direction::TopDown;
        (first..last + 1).map(move |i| if top_down { last - (i - first) } else { i })
    }

    /// Returns the highest or the lowest start, by `direction`, in the gap `free`, if the bytes fit
    /// there.
    fn fit(&self, free: VirtRange) -> Option<u64> {
        let (start, end) = (free.start.max(self.window.start), free.end.min(self.window.end));
        let last = end.checked_sub(self.len).filter(|&last| last >= start)?;
        match self.direction {
            Direction::TopDown => Some(align_down(last, self.align_shift)).filter(|&at| at >= start),
            Direction::BottomUp => align_up(start, self.align_shift).filter(|&at| at <= last),
        }
    }
}

/// Returns how many of these sorted addresses are below `addr`.
fn count_below(sorted: Sorted<'_>, addr: u64) -> usize {
    addr.checked_sub(1).map_or(0, |addr| sorted.count_up_to(addr))
}
