//! One change to the VMA tree: descends to the leaf, changes it there, and updates the nodes on the
//! way back.
//!
//! Each level passes down what the leaf can't see by itself ([`NodeContext`]): where the VMA before
//! the leaf ends, where the VMA after it starts, and how many pages a split would need. So the leaf
//! can refuse before anything is changed, and one descent is enough.

use super::node::{Leaf, Node, NodeMut, SpareNodes};
use super::tree::Interval;

/// The context of a node in the tree.
#[derive(Clone, Copy)]
pub(super) struct NodeContext {
    /// The end of the last VMA before the node.
    pub(super) floor: u64,
    /// The start of the first VMA after the node.
    pub(super) ceiling: u64,
    /// The length of the largest gap inside the node, before the change.
    pub(super) gap: u64,
    /// The number of pages that are needed above the node if it splits.
    pub(super) split_cost: usize,
}

impl NodeContext {
    /// The context of the root. No caller uses the largest gap of the root. `gap` is larger than
    /// any gap, so that [`updated_gap`] never searches the root for its largest gap.
    pub(super) const ROOT: NodeContext = NodeContext { floor: 0, ceiling: u64::MAX, gap: u64::MAX, split_cost: 1 };
}

/// The outcome of a change for a node.
pub(super) struct Edited<V, R> {
    /// The result of the change.
    pub(super) result: R,
    /// The length of the largest gap inside the node, after the change.
    pub(super) gap: u64,
    /// The right sibling that was split off the node, if the node was full.
    pub(super) right: Option<Node<V>>,
    /// True if the node lost an entry.
    pub(super) shrunk: bool,
}

/// Descends to the leaf for `key`, changes it by `change`, and updates the nodes on the way back.
/// Returns `None` if nothing was changed.
pub(super) fn edit<V: Interval, R>(
    node: &mut Node<V>,
    key: u64,
    context: NodeContext,
    spares: &mut SpareNodes,
    change: impl FnOnce(&mut Leaf<V>, NodeContext, &mut SpareNodes) -> Option<Edited<V, R>>,
) -> Option<Edited<V, R>> {
    let inner = match node.get_mut() {
        NodeMut::Leaf(leaf) => return change(leaf, context, spares),
        NodeMut::Inner(inner) => inner,
    };
    let i = inner.ends().count_up_to(key).min(inner.len().checked_sub(1)?);
    let before = inner.gap_around(i);
    let below = inner.child_context(i, &context);
    let done = edit(inner.child_mut(i)?, key, below, spares, change)?;
    inner.refresh(i, done.gap);
    if let Some(child) = done.right {
        let gap = child.largest_gap();
        let right = if inner.is_full() {
            // There is a spare page: before the insert split the leaf, it checked that there are
            // enough pages for all splits (`split_cost`).
            Some(inner.insert_full(i + 1, child, gap, spares.pop()?))
        } else {
            inner.insert(i + 1, child, gap);
            None
        };
        return Some(Edited { gap: inner.largest_gap(), right, ..done });
    }
    if done.shrunk
        && let Some(page) = inner.rebalance(i)
    {
        spares.push(page);
        return Some(Edited { gap: inner.largest_gap(), ..done });
    }
    let gap = updated_gap(context.gap, before, inner.gap_around(i), || inner.largest_gap());
    Some(Edited { gap, shrunk: false, ..done })
}

/// Returns the length of the largest gap of a node after a change of one entry. `largest` is that
/// length before the change; `before` and `after` are the largest gap around that entry, before and
/// after the change. Searches the node only if its largest gap shrank.
pub(super) fn updated_gap(largest: u64, before: u64, after: u64, search: impl FnOnce() -> u64) -> u64 {
    if after >= largest {
        after
    } else if before >= largest {
        search()
    } else {
        largest
    }
}
