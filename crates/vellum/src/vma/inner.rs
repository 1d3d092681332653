//! Inner nodes of the VMA tree: what each child spans, and the largest gap inside of it.
//!
//! The gap between two children belongs to no child. An inner node works it out from the end of the one and the reserved
//! start of the other, so that a VMA that comes or goes changes summaries on its own path to the root only.

use core::ops::Range;

use super::node::{Extent, FANOUT, Head, Node, NodeMut, Page, Sorted, stretch};
use super::tree::{Above, Interval};
use crate::addr::VirtRange;

/// A node that holds nodes. Entry `i` of the arrays describes child `i`; entries from `head.len` on
/// mean nothing (and their starts and ends are [`Sorted::NONE`]).
#[repr(C)]
pub(super) struct Inner<V> {
    pub(super) head: Head,
    /// Where the first VMA below the child starts.
    starts: [u64; FANOUT],
    /// Where what that VMA reserves starts.
    reserved: [u64; FANOUT],
    /// Where the last VMA below the child ends.
    ends: [u64; FANOUT],
    /// The largest free stretch between two VMAs below the child.
    gaps: [u64; FANOUT],
    children: [Option<Node<V>>; FANOUT],
}

impl<V: Interval> Inner<V> {
    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.head.len)
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len() == FANOUT
    }

    #[inline]
    pub(super) fn starts(&self) -> Sorted<'_> {
        Sorted::new(&self.starts, self.len())
    }

    #[inline]
    pub(super) fn ends(&self) -> Sorted<'_> {
        Sorted::new(&self.ends, self.len())
    }

    /// Makes entries say nothing that did not, or do no more.
    pub(super) fn clear_behind(&mut self, entries: Range<usize>) {
        self.starts[entries.clone()].fill(Sorted::NONE);
        self.ends[entries].fill(Sorted::NONE);
    }

    #[inline]
    pub(super) fn gaps(&self) -> &[u64] {
        &self.gaps[..self.len()]
    }

    #[inline]
    pub(super) fn child(&self, i: usize) -> Option<&Node<V>> {
        self.children.get(i)?.as_ref()
    }

    #[inline]
    pub(super) fn child_mut(&mut self, i: usize) -> Option<&mut Node<V>> {
        self.children.get_mut(i)?.as_mut()
    }

    /// Adds the last child.
    pub(super) fn push(&mut self, child: Node<V>, gap: u64) {
        self.insert(self.len(), child, gap);
    }

    /// Adds a child before child `i`. The node must not be full.
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

    /// Adds a child before child `i` of a node that is full, and returns the new node to the right of this one.
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

    /// Takes child `i` out.
    pub(super) fn remove(&mut self, i: usize) -> Option<Node<V>> {
        let len = self.len();
        let child = self.children[i..len].first_mut()?.take();
        self.children[i..len].rotate_left(1);
        for column in [&mut self.starts, &mut self.reserved, &mut self.ends, &mut self.gaps] {
            column.copy_within(i + 1..len, i);
        }
        self.clear_behind(len - 1..len);
        self.head.len -= 1;
        child
    }

    /// Takes the last child out.
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
        self.clear_behind(from.clone());
        to.head.len += from.len() as u16;
        self.head.len = at as u16;
    }

    /// Brings entry `i` up to date with its child, whose largest gap is `gap`.
    pub(super) fn refresh(&mut self, i: usize, gap: u64) {
        if let Some(extent) = self.child(i).and_then(Node::extent) {
            self.starts[i] = extent.start;
            self.reserved[i] = extent.reserved;
            self.ends[i] = extent.end;
            self.gaps[i] = gap;
        }
    }

    pub(super) fn extent(&self) -> Option<Extent> {
        let end = *self.ends().as_slice().last()?;
        Some(Extent { start: self.starts[0], reserved: self.reserved[0], end })
    }

    /// The free stretch before child `i`, if there is a child before that.
    #[inline]
    pub(super) fn stretch(&self, i: usize) -> Option<VirtRange> {
        let end = *self.ends().as_slice().get(i.checked_sub(1)?)?;
        (i < self.len()).then(|| stretch(end, self.reserved[i]))
    }

    /// What child `i` needs to know, given what this node knows.
    pub(super) fn surroundings(&self, i: usize, above: &Above) -> Above {
        Above {
            floor: i.checked_sub(1).and_then(|i| self.ends().as_slice().get(i)).copied().unwrap_or(above.floor),
            ceiling: self.starts().as_slice().get(i + 1).copied().unwrap_or(above.ceiling),
            gap: self.gaps[i],
            split_cost: if self.is_full() { above.split_cost + 1 } else { 0 },
        }
    }

    /// The largest free stretch inside of child `i` or on either side of it.
    pub(super) fn around(&self, i: usize) -> u64 {
        let sides = [self.stretch(i), self.stretch(i + 1)];
        sides.iter().flatten().map(VirtRange::len).fold(self.gaps[i], u64::max)
    }

    /// The largest free stretch below this node.
    #[cold]
    pub(super) fn largest_gap(&self) -> u64 {
        let sides = self.ends().as_slice().iter().zip(self.reserved[..self.len()].iter().skip(1));
        let between = sides.map(|(&end, &reserved)| stretch(end, reserved).len());
        between.chain(self.gaps().iter().copied()).max().unwrap_or(0)
    }

    /// After child `i` has lost an entry: removes it if it was the last, and merges it with a neighbour if the two fit
    /// comfortably, which leaves a quarter of the node for inserts to come. Returns the page that this frees.
    pub(super) fn settle(&mut self, i: usize) -> Option<Page> {
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
