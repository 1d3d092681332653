//! Walks the index node by node, for an audit.

use super::dirty::is_frame;
use super::{BITS, DIRTY, Entry, FANOUT, Index, Node, WRITING, index_at, pfn_of};
use crate::frame::Frames;
use crate::page_cache::survey::{IndexNode, PageState};
use crate::platform::Platform;

impl Index {
    /// Finds the first page from `from` on that exists, and visits its node of the last level.
    /// Calls `page` for that page and each later page of the node. Calls `node` for each node on
    /// the path from the root to that last-level node, both included, except nodes that also cover
    /// pages below `from`, which an earlier call has visited. Returns the first page number after
    /// the last-level node, or `None` if no page from `from` on exists.
    ///
    /// A caller that begins at page 0 and continues where the last call ended visits each node and
    /// each page once, if the index does not change between the calls. The work of one call is
    /// bounded by the size of the nodes on one path (INV-11).
    pub(in crate::page_cache) fn survey<P: Platform>(
        &self,
        frames: &Frames<'_, P>,
        from: u64,
        node: &mut dyn FnMut(IndexNode),
        page: &mut dyn FnMut(u64, Entry, PageState),
    ) -> Option<u64> {
        let (first, _) = self.next(frames, from)?;
        let mut at = self.root;
        for level in (0..self.height).rev() {
            let this = Node { frames, at };
            if first >> (BITS * (level + 1)) << (BITS * (level + 1)) >= from {
                let found = (0..FANOUT).filter(|index| this.get(*index) != 0).count();
                node(IndexNode { at, counted: this.live_count(), found: found as u32 });
            }
            if level > 0 {
                at = pfn_of(this.get(index_at(first, level)))?;
            }
        }
        let (leaf, base) = (Node { frames, at }, first & !(FANOUT - 1));
        for index in index_at(first, 0)..FANOUT {
            let word = leaf.get(index);
            let state = PageState { is_dirty: is_frame(word, DIRTY), is_writing: is_frame(word, WRITING) };
            Entry::decode(word).into_iter().for_each(|entry| page(base + index, entry, state));
        }
        Some(base + FANOUT)
    }
}
