//! Inner nodes of the VMA tree: for each child the addresses that its VMAs span, and the largest
//! gap inside it.
//!
//! The gap between two children belongs to neither. An inner node derives it from the end of one
//! and the reserved start of the next: its start, less the guard gap below a stack (Linux:
//! `vm_start_gap`). So a VMA that is inserted or removed changes summaries only on its own path to
//! the root.

use core::ops::Range;

use super::edit::NodeContext;
use super::node::{Extent, FANOUT, Head, Node, NodeMut, Page, Sorted, gap_between};
use super::tree::Interval;
use crate::addr::VirtRange;

/// An inner node: its entries are nodes of the next lower level. Entry `i` of each array describes
/// child `i`. Entries from `head.len` on have no meaning, except that their starts and ends are
/// [`Sorted::NONE`].
#[repr(C)]
pub(super) struct Inner<V> {
    pub(super) head: Head,
    /// The start of the first VMA in each child's subtree.
    starts: [u64; FANOUT],
    /// The reserved start of that VMA ([`Interval::reserved_start`]).
    reserved: [u64; FANOUT],
    /// The end of the last VMA in each child's subtree.
    ends: [u64; FANOUT],
    /// The length of the largest gap between two VMAs in each child's subtree.
    gaps: [u64; FANOUT],
    children: [Option<Node<V>>; FANOUT],
}

impl<V: Interval> Inner<V> {
    /// Returns the number of children.
    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.head.len)
    }

    /// Returns true if no further child fits.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len() == FANOUT
    }

    /// Returns the start of the first VMA of each child.
    #[inline]
    pub(super) fn starts(&self) -> Sorted<'_> {
        Sorted::new(&self.starts, self.len())
    }

    /// Returns the end of the last VMA of each child.
    #[inline]
    pub(super) fn ends(&self) -> Sorted<'_> {
        Sorted::new(&self.ends, self.len())
    }

    /// Sets starts and ends of unused entries to [`Sorted::NONE`].
    pub(super) fn clear_tail(&mut self, entries: Range<usize>) {
        self.starts[entries.clone()].fill(Sorted::NONE);
        self.ends[entries].fill(Sorted::NONE);
    }

    /// Returns the largest gap inside each child.
    #[inline]
    pub(super) fn gaps(&self) -> &[u64] {
        &self.gaps[..self.len()]
    }

    /// Returns child `i`, if there is one.
    #[inline]
    pub(super) fn child(&self, i: usize) -> Option<&Node<V>> {
        self.children.get(i)?.as_ref()
    }

    /// Returns child `i` for changing it, if there is one.
    #[inline]
    pub(super) fn child_mut(&mut self, i: usize) -> Option<&mut Node<V>> {
        self.children.get_mut(i)?.as_mut()
    }

    /// Appends a child, inside which the largest gap is `gap`. The node must not be full.
    pub(super) fn push(&mut self, child: Node<V>, gap: u64) {
        self.insert(self.len(), child, gap);
    }

    /// Inserts a child, inside which the largest gap is `gap`, before child `i`. The node must not
    /// be full.
    pub(super) fn insert(&mut self, i: usize, child: Node<V>, gap: u64) {
        let len = self.len();
        for column in [&mut self.starts, &mut self.reserved, &mut self.ends, &mut self.gaps] {
            column.copy_within(i..len, i + 1);
        }
        self.children[i..=len].rotate_right(1);
        self.children[i] = Some(child);
        self.head.len += 1;
        self.refresh(i, gap);
    }

    /// Inserts a child before child `i` of a full node, which is split in half. Returns the new
    /// right sibling of this node, made of `page`.
    pub(super) fn insert_full(&mut self, i: usize, child: Node<V>, gap: u64, page: Page) -> Node<V> {
        let at = self.len() / 2;
        let mut node = page.into_inner();
        if let NodeMut::Inner(right) = node.get_mut() {
            self.move_tail(at, right);
            match i <= at {
                true => self.insert(i, child, gap),
                false => right.insert(i - at, child, gap),
            }
        }
        node
    }

    /// Removes child `i` and returns it.
    pub(super) fn remove(&mut self, i: usize) -> Option<Node<V>> {
        let len = self.len();
        let child = self.children[i..len].first_mut()?.take();
        self.children[i..len].rotate_left(1);
        for column in [&mut self.starts, &mut self.reserved, &mut self.ends, &mut self.gaps] {
            column.copy_within(i + 1..len, i);
        }
        self.clear_tail(len - 1..len);
        self.head.len -= 1;
        child
    }

    /// Removes the last child and returns it.
    pub(super) fn pop(&mut self) -> Option<Node<V>> {
        self.remove(self.len().checked_sub(1)?)
    }

    /// Moves the children from `at` on to the end of `to`.
    pub(super) fn move_tail(&mut self, at: usize, to: &mut Inner<V>) {
        let (from, into) = (at..self.len(), to.len()..to.len() + self.len() - at);
        to.starts[into.clone()].copy_from_slice(&self.starts[from.clone()]);
        to.reserved[into.clone()].copy_from_slice(&self.reserved[from.clone()]);
        to.ends[into.clone()].copy_from_slice(&self.ends[from.clone()]);
        to.gaps[into.clone()].copy_from_slice(&self.gaps[from.clone()]);
        to.children[into].swap_with_slice(&mut self.children[from.clone()]);
        self.clear_tail(from.clone());
        to.head.len += from.len() as u16;
        self.head.len = at as u16;
    }

    /// Updates entry `i` from its child, inside which the largest gap is `gap`.
    pub(super) fn refresh(&mut self, i: usize, gap: u64) {
        if let Some(extent) = self.child(i).and_then(Node::extent) {
            self.starts[i] = extent.start;
            self.reserved[i] = extent.reserved;
            self.ends[i] = extent.end;
            self.gaps[i] = gap;
        }
    }

    /// Returns the span of the VMAs in this subtree; `None` if there are none.
    pub(super) fn extent(&self) -> Option<Extent> {
        let end = *self.ends().as_slice().last()?;
        Some(Extent { start: self.starts[0], reserved: self.reserved[0], end })
    }

    /// Returns the gap between child `i - 1` and child `i`; `None` if either does not exist.
    #[inline]
    pub(super) fn gap_before(&self, i: usize) -> Option<VirtRange> {
        let end = *self.ends().as_slice().get(i.checked_sub(1)?)?;
        (i < self.len()).then(|| gap_between(end, self.reserved[i]))
    }

    /// Returns the context of child `i`, derived from the context of this node.
    pub(super) fn child_context(&self, i: usize, context: &NodeContext) -> NodeContext {
        NodeContext {
            floor: i.checked_sub(1).and_then(|i| self.ends().as_slice().get(i)).copied().unwrap_or(context.floor),
            ceiling: self.starts().as_slice().get(i + 1).copied().unwrap_or(context.ceiling),
            gap: self.gaps[i],
            split_cost: if self.is_full() { context.split_cost + 1 } else { 0 },
        }
    }

    /// Returns the length of the largest gap inside child `i` or next to it.
    pub(super) fn gap_around(&self, i: usize) -> u64 {
        let sides = [self.gap_before(i), self.gap_before(i + 1)];
        sides.iter().flatten().map(VirtRange::len).fold(self.gaps[i], u64::max)
    }

    /// Returns the length of the largest gap in this subtree. Reads all entries.
    #[cold]
    pub(super) fn largest_gap(&self) -> u64 {
        let sides = self.ends().as_slice().iter().zip(self.reserved[..self.len()].iter().skip(1));
        let between = sides.map(|(&end, &reserved)| gap_between(end, reserved).len());
        between.chain(self.gaps().iter().copied()).max().unwrap_or(0)
    }

    /// Called after child `i` has lost an entry. Removes the child if it is empty, or merges it
    /// with a sibling if the two fill at most three quarters of a node, which leaves room for
    /// inserts. Returns the page that this frees.
    pub(super) fn rebalance(&mut self, i: usize) -> Option<Page> {
        let (len, capacity) = self.child(i).map(|child| (child.len(), child.capacity()))?;
        if len == 0 {
            return self.remove(i).map(Node::into_page);
        }
        if len > capacity / 2 {
            return None;
        }
        let fits = |other: &Node<V>| len + other.len() <= capacity * 3 / 4;
        let left = match i.checked_sub(1).filter(|&left| self.child(left).is_some_and(fits)) {
            Some(left) => left,
            None => self.child(i + 1).is_some_and(fits).then_some(i)?,
        };
        let right = self.remove(left + 1)?;
        let into = self.child_mut(left)?;
        let page = into.absorb(right);
        let gap = into.largest_gap();
        self.refresh(left, gap);
        Some(page)
    }
}
