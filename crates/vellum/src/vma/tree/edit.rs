//! One change to the VMA tree, whatever it is: down to the leaf, the change there, and the consequences on the way back.
//!
//! Each level hands down what the leaf cannot see by itself ([`Above`]): how far a VMA may reach, and what a split would
//! cost. So the leaf can refuse before anything is changed, and one descent is enough.

use super::super::node::{Leaf, Node, NodeMut, Spares};
use super::Interval;

/// What a node needs to know of the tree around it.
#[derive(Clone, Copy)]
pub(in crate::vma) struct Above {
    /// Where the last VMA before it ends.
    pub(in crate::vma) floor: u64,
    /// Where the first VMA behind it starts.
    pub(in crate::vma) ceiling: u64,
    /// The largest gap inside of it, before the change.
    pub(in crate::vma) gap: u64,
    /// How many pages it takes above it if it splits.
    pub(in crate::vma) split_cost: usize,
}

impl Above {
    /// Of the root. Nobody asks for its largest gap, and as all gaps are smaller than this one, nobody works it out.
    pub(super) const ROOT: Above = Above { floor: 0, ceiling: u64::MAX, gap: u64::MAX, split_cost: 1 };
}

/// What a change did to a node.
pub(super) struct Edited<V, R> {
    /// The result of the change.
    pub(super) out: R,
    /// The node's largest gap now.
    pub(super) gap: u64,
    /// What was split off it.
    pub(super) right: Option<Node<V>>,
    /// Whether it lost an entry.
    pub(super) shrunk: bool,
}

/// Finds the leaf for `key`, lets `change` change it, and brings the nodes on the way there up to date. `None` means that
/// nothing was changed.
pub(super) fn edit<V: Interval, R>(
    node: &mut Node<V>,
    key: u64,
    above: Above,
    spares: &mut Spares,
    change: impl FnOnce(&mut Leaf<V>, Above, &mut Spares) -> Option<Edited<V, R>>,
) -> Option<Edited<V, R>> {
    let inner = match node.get_mut() {
        NodeMut::Leaf(leaf) => return change(leaf, above, spares),
        NodeMut::Inner(inner) => inner,
    };
    let i = inner.ends().count_up_to(key).min(inner.len().checked_sub(1)?);
    let before = inner.around(i);
    let below = inner.surroundings(i, &above);
    let done = edit(inner.child_mut(i)?, key, below, spares, change)?;
    inner.refresh(i, done.gap);
    if let Some(child) = done.right {
        let gap = child.largest_gap();
        let right = if inner.is_full() {
            // There is a page: the leaf has counted them (`split_cost`) before it split.
            Some(inner.insert_full(i + 1, child, gap, spares.pop()?))
        } else {
            inner.insert(i + 1, child, gap);
            None
        };
        return Some(Edited { gap: inner.largest_gap(), right, ..done });
    }
    if done.shrunk
        && let Some(page) = inner.settle(i)
    {
        spares.push(page);
        return Some(Edited { gap: inner.largest_gap(), ..done });
    }
    let gap = follow(above.gap, before, inner.around(i), || inner.largest_gap());
    Some(Edited { gap, shrunk: false, ..done })
}

/// The largest gap of a node where all that changed is that the largest one around an entry was `before` and is `after`.
/// Only if it was the largest of all, and shrank, must the node be searched.
pub(super) fn follow(largest: u64, before: u64, after: u64, search: impl FnOnce() -> u64) -> u64 {
    if after >= largest {
        after
    } else if before >= largest {
        search()
    } else {
        largest
    }
}
