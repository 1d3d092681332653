//! The search for free address space.
//!
//! [`VmaTree::find_gap`] walks the tree in the direction asked for and enters only those nodes whose summary promises a
//! stretch that is long enough. A promise can be broken in two ways: the stretch lies outside the window, which only the
//! two nodes of a level that the window cuts can do, or alignment does not leave enough of it.

use super::node::{Node, NodeRef, Sorted};
use super::tree::{Interval, VmaTree};
use crate::addr::{VirtRange, align_down, align_up};

/// Which free stretch to prefer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The one with the highest address.
    TopDown,
    /// The one with the lowest address.
    BottomUp,
}

/// What is searched for.
struct Wanted {
    len: u64,
    align_shift: u32,
    window: VirtRange,
    direction: Direction,
}

impl<V: Interval> VmaTree<V> {
    /// Where in `window` there are `len` bytes free, aligned to `1 << align_shift`: the highest or the lowest such address,
    /// depending on `direction`.
    ///
    /// What a VMA reserves is not free. For no bytes there is no place.
    ///
    /// O(log n), and one step more for each stretch on the way that is long enough but not once aligned.
    pub fn find_gap(&self, len: u64, align_shift: u32, window: VirtRange, direction: Direction) -> Option<u64> {
        if len == 0 || align_shift >= u64::BITS || window.start >= window.end {
            return None;
        }
        let wanted = Wanted { len, align_shift, window, direction };
        let Some((root, extent)) = self.root().and_then(|root| Some((root, root.extent()?))) else {
            return wanted.place(window);
        };
        let below = || wanted.place(VirtRange { start: 0, end: extent.reserved });
        let above = || wanted.place(VirtRange { start: extent.end, end: u64::MAX });
        match direction {
            Direction::TopDown => above().or_else(|| wanted.search(root)).or_else(below),
            Direction::BottomUp => below().or_else(|| wanted.search(root)).or_else(above),
        }
    }
}

impl Wanted {
    /// The best place between the VMAs below `node`.
    fn search<V: Interval>(&self, node: &Node<V>) -> Option<u64> {
        match node.get() {
            NodeRef::Leaf(leaf) => {
                // The first stretch that can reach into the window lies before the first VMA that starts in it, and the
                // last one before the first VMA that starts above it.
                let first = leaf.starts().count_up_to(self.window.start).max(1);
                let last = count_below(leaf.starts(), self.window.end).min(leaf.len() - 1);
                self.in_order(first, last).find_map(|i| self.place(leaf.stretch(i)?))
            }
            NodeRef::Inner(inner) => {
                let first = inner.ends().count_up_to(self.window.start);
                let last = count_below(inner.starts(), self.window.end);
                // Step 2i is child i, and the one before that is the stretch before it.
                let first = (2 * first).saturating_sub(1);
                let last = (2 * last).checked_sub(1)?.min(2 * inner.len() - 2);
                self.in_order(first, last).find_map(|step| {
                    let i = step.div_ceil(2);
                    match step % 2 {
                        0 if inner.gaps()[i] >= self.len => self.search(inner.child(i)?),
                        0 => None,
                        _ => self.place(inner.stretch(i)?),
                    }
                })
            }
        }
    }

    /// `first` to `last`, both included, in the direction of the search.
    fn in_order(&self, first: usize, last: usize) -> impl Iterator<Item = usize> {
        let top_down = self.direction == Direction::TopDown;
        (first..last + 1).map(move |i| if top_down { last - (i - first) } else { i })
    }

    /// The best place in a free stretch.
    fn place(&self, free: VirtRange) -> Option<u64> {
        let (start, end) = (free.start.max(self.window.start), free.end.min(self.window.end));
        let last = end.checked_sub(self.len).filter(|&last| last >= start)?;
        match self.direction {
            Direction::TopDown => Some(align_down(last, self.align_shift)).filter(|&at| at >= start),
            Direction::BottomUp => align_up(start, self.align_shift).filter(|&at| at <= last),
        }
    }
}

/// How many of these sorted addresses are less than `addr`.
fn count_below(sorted: Sorted<'_>, addr: u64) -> usize {
    addr.checked_sub(1).map_or(0, |addr| sorted.count_up_to(addr))
}
