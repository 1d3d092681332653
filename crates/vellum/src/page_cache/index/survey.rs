//! The index looked at node by node, for an audit.

use super::{BITS, FANOUT, Index, Node, Page, frame_of, slot};
use crate::addr::Pfn;
use crate::frame::Frames;
use crate::platform::Platform;

impl Index {
    /// Shows the pages of the first node of the last level that has some from page `from` on, and
    /// the nodes on the way to it, this one included, that begin at `from` or behind it: each with
    /// how many entries its descriptor counts, and how many it has. Returns the first page behind
    /// that node; `None` if there are no more pages.
    ///
    /// A caller that begins at page 0 and goes on where the last call ended sees each node and each
    /// page once, if the index does not change meanwhile.
    pub(in crate::page_cache) fn survey<P: Platform>(
        &self,
        frames: &Frames<'_, P>,
        from: u64,
        node: &mut dyn FnMut(Pfn, u32, u32),
        page: &mut dyn FnMut(u64, Page),
    ) -> Option<u64> {
        let (first, _) = self.next(frames, from)?;
        let mut at = self.root;
        for level in (0..self.height).rev() {
            let this = Node { frames, at };
            if first >> (BITS * (level + 1)) << (BITS * (level + 1)) >= from {
                let found = (0..FANOUT).filter(|slot| this.get(*slot) != 0).count();
                node(at, this.live(), found as u32);
            }
            if level > 0 {
                at = frame_of(this.get(slot(first, level)))?;
            }
        }
        let (leaf, base) = (Node { frames, at }, first & !(FANOUT - 1));
        for slot in slot(first, 0)..FANOUT {
            Page::of(leaf.get(slot)).into_iter().for_each(|there| page(base + slot, there));
        }
        Some(base + FANOUT)
    }
}
