//! The VMA tree: keeps the VMAs of an address space in order, in a B+tree with whole pages as nodes
//! (Linux: the maple tree).
//!
//! Guarantees:
//!
//! * VMAs never overlap, and are never empty.
//! * Lookup, insertion, removal, change and gap search take O(log n) steps: with 60,000 VMAs a
//!   lookup visits three nodes.
//! * Only [`VmaTree::reserve`] allocates memory. Inserts for which it has reserved pages can't
//!   fail, whatever other operations come before them.
//! * An operation that fails has changed nothing (INV-7).
//!
//! All VMAs are in leaves. An inner node stores for each child the start of its first VMA, the end
//! of its last VMA, and the largest gap inside it. Every change is one recursive [`edit()`]: it
//! descends to the leaf, changes it, and on the way back updates the summaries, and splits and
//! merges nodes. Nodes own their children ([`Node`]), so there are no parent pointers. The only
//! `unsafe` operation here is freeing a page to its source.

use core::fmt;
use core::iter::FusedIterator;

use super::edit::{Edited, NodeContext, edit, updated_gap};
use super::node::{FANOUT, Leaf, Node, NodeMut, NodeRef, Page, SpareNodes};
use crate::addr::VirtRange;

pub use super::node::NodeMemory;

/// A range of addresses that the tree can hold: a VMA, as a small value.
///
/// At most 64 bytes, aligned to at most 8: larger types do not compile. `range` and
/// `reserved_start` must return the same whenever they are called.
pub trait Interval: Copy {
    /// Returns the addresses that the VMA covers; not empty.
    fn range(&self) -> VirtRange;

    /// Returns the lowest address that must stay free for this VMA, at most its start: the start of
    /// a stack's guard gap. The reservation ends at the VMA before this one, if it reaches that far
    /// down.
    fn reserved_start(&self) -> u64 {
        self.range().start
    }
}

/// A node of the VMA tree could not be allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutOfNodes;

impl fmt::Display for OutOfNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no memory for a node of the VMA tree")
    }
}

impl core::error::Error for OutOfNodes {}

/// An ordered set of VMAs that do not overlap.
///
/// The tree allocates nodes from the [`NodeMemory`] that its methods are given. Dropping the tree
/// leaks its nodes: call [`VmaTree::clear`] first.
pub struct VmaTree<V: Interval> {
    root: Option<Node<V>>,
    /// The number of levels, leaves included.
    height: usize,
    len: usize,
    pub(super) spares: SpareNodes,
    /// The number of pages that the tree owns, spare ones included.
    pub(super) pages: usize,
    /// The number of inserts that were reserved and have not been made yet.
    pub(super) reserved_inserts: usize,
}

/// Returns the minimum number of inserts from one growth of the tree (a new root above the old one)
/// to the next. A new root has room for one insert less than this number: a new leaf has one VMA,
/// and a new inner node has two children.
const fn inserts_between_growths<V: Interval>() -> usize {
    if Leaf::<V>::CAPACITY < FANOUT - 1 { Leaf::<V>::CAPACITY } else { FANOUT - 1 }
}

impl<V: Interval> VmaTree<V> {
    /// Returns an empty tree, which owns no memory.
    ///
    /// # Safety
    ///
    /// The caller passes the same `mem` to all methods of this tree, because the tree frees its
    /// nodes to the `mem` that a method is given.
    pub const unsafe fn new() -> Self {
        VmaTree { root: None, height: 0, len: 0, spares: SpareNodes::new(), pages: 0, reserved_inserts: 0 }
    }

    /// Returns the number of VMAs.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the tree holds no VMA.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of nodes that a lookup visits.
    pub fn depth(&self) -> usize {
        self.height
    }

    /// Returns the number of pages in use as nodes.
    pub fn nodes(&self) -> usize {
        self.pages - self.spares.len()
    }

    /// Returns the number of spare pages, kept for later inserts.
    pub fn spares(&self) -> usize {
        self.spares.len()
    }

    /// Returns the root, if the tree has one.
    pub(super) fn root(&self) -> Option<&Node<V>> {
        self.root.as_ref()
    }

    /// Returns the VMA that contains `addr`.
    #[inline]
    pub fn find(&self, addr: u64) -> Option<&V> {
        self.find_from(addr).filter(|vma| vma.range().start <= addr)
    }

    /// Returns the first VMA that ends above `addr`: the one that contains it, or else the next
    /// (Linux: `find_vma`).
    #[inline]
    pub fn find_from(&self, addr: u64) -> Option<&V> {
        let Position { leaf, index } = self.seek(addr)?;
        leaf.vmas().get(index)
    }

    /// Returns the position of the first VMA that ends above `addr`. If there is none, returns
    /// `None` or an index after the last VMA.
    #[inline]
    fn seek(&self, addr: u64) -> Option<Position<'_, V>> {
        let mut node = self.root.as_ref()?;
        loop {
            match node.get() {
                NodeRef::Inner(inner) => node = inner.child(inner.ends().count_up_to(addr))?,
                NodeRef::Leaf(leaf) => return Some(Position { leaf, index: leaf.first_above(addr) }),
            }
        }
    }

    /// Returns, for changing it, the leaf of the first VMA that ends above `addr`. If there is no
    /// such VMA, returns `None` or a leaf without one.
    fn seek_mut(&mut self, addr: u64) -> Option<&mut Leaf<V>> {
        let mut node = self.root.as_mut()?;
        loop {
            match node.get_mut() {
                NodeMut::Inner(inner) => node = inner.child_mut(inner.ends().count_up_to(addr))?,
                NodeMut::Leaf(leaf) => return Some(leaf),
            }
        }
    }

    /// Returns the last VMA that ends at or below `addr`.
    pub fn prev(&self, addr: u64) -> Option<&V> {
        let mut node = self.root.as_ref()?;
        // The subtree just before the one that the search has entered.
        let mut before = None;
        loop {
            match node.get() {
                NodeRef::Inner(inner) => {
                    let i = inner.ends().count_up_to(addr);
                    before = i.checked_sub(1).and_then(|i| inner.child(i)).or(before);
                    let Some(child) = inner.child(i) else { break };
                    node = child;
                }
                NodeRef::Leaf(leaf) => match leaf.first_above(addr).checked_sub(1) {
                    Some(i) => return leaf.vmas().get(i),
                    None => break,
                },
            }
        }
        loop {
            match before?.get() {
                NodeRef::Inner(inner) => before = inner.child(inner.len().checked_sub(1)?),
                NodeRef::Leaf(leaf) => return leaf.vmas().last(),
            }
        }
    }

    /// Returns the VMAs that end above `addr`, in order.
    pub fn iter_from(&self, addr: u64) -> Iter<'_, V> {
        Iter { tree: self, at: self.seek(addr) }
    }

    /// Reserves pages for the next `inserts` inserts, so that they can't fail, wherever they go and
    /// whatever is removed before them.
    ///
    /// Allocates nothing for a tree of one leaf that has room for the inserts. Otherwise it takes a
    /// page for each insert and each level below the root, and the pages that the root may need.
    /// Unused pages serve the next `reserve`.
    ///
    /// # Errors
    ///
    /// [`OutOfNodes`], with nothing allocated.
    pub fn reserve(&mut self, mem: &(impl NodeMemory + ?Sized), inserts: usize) -> Result<(), OutOfNodes> {
        let (before, needed) = (self.spares.len(), self.pages_needed(inserts));
        while self.spares.len() < needed {
            let Some(page) = Page::alloc(mem) else {
                self.release(mem, before);
                return Err(OutOfNodes);
            };
            self.spares.push(page);
            self.pages += 1;
        }
        self.reserved_inserts = self.reserved_inserts.max(inserts);
        Ok(())
    }

    /// Returns the maximum number of pages that `inserts` inserts can take.
    ///
    /// An insert splits at most one node on each level below the root, unless it makes the tree
    /// higher: then it takes a page for each level of the higher tree. The first growth comes when
    /// the root has no room left, and each further one at least [`inserts_between_growths`] later.
    /// With `g` growths that is `g` pages, and for each insert one page on every level of the final
    /// tree except the topmost.
    ///
    /// Removals do not invalidate this number. They leave the root with more room, or remove the
    /// root. The tree may then grow once more than was computed, but no higher, and uses the page
    /// of the former root: [`VmaTree::remove`] keeps the pages that reserved inserts may need.
    pub(super) fn pages_needed(&self, inserts: usize) -> usize {
        let between = inserts_between_growths::<V>();
        let room = self.root.as_ref().map_or(0, |root| root.capacity() - root.len()).min(between - 1);
        let growths = inserts.saturating_sub(room).div_ceil(between);
        match self.height + growths {
            0 => 0,
            height => inserts.saturating_mul(height - 1).saturating_add(growths),
        }
    }

    /// Inserts a VMA. Can't fail after [`VmaTree::reserve`].
    ///
    /// # Errors
    ///
    /// Returns `vma` if it is empty or overlaps another one, or if no page is left for it. Each of
    /// these is a bug of the caller: with debug assertions the function panics.
    pub fn insert(&mut self, vma: V) -> Result<(), V> {
        let inserted = self.try_insert(vma).is_some();
        debug_assert!(inserted, "VMA {:?} is empty, overlaps another, or was not reserved for", vma.range());
        inserted.then_some(()).ok_or(vma)
    }

    /// Returns whether [`VmaTree::push`] can't fail, without pages: all VMAs are in one leaf, which
    /// has room.
    pub fn has_room_behind(&self) -> bool {
        self.height == 1 && self.root.as_ref().is_some_and(|root| root.len() < root.capacity())
    }

    /// Inserts a VMA, which lies behind all others if they are in one leaf with room: then this
    /// takes neither pages nor a search.
    ///
    /// # Errors
    ///
    /// Those of [`VmaTree::insert`].
    pub fn push(&mut self, vma: V) -> Result<(), V> {
        if let Some(NodeMut::Leaf(leaf)) = self.root.as_mut().map(Node::get_mut)
            && !leaf.is_full()
        {
            let (range, last) = (vma.range(), leaf.len());
            let space = leaf.space_for(last, last, &NodeContext::ROOT);
            if space.start <= range.start && range.start < range.end {
                leaf.insert(last, vma);
                self.len += 1;
                self.reserved_inserts = self.reserved_inserts.saturating_sub(1);
                return Ok(());
            }
        }
        self.insert(vma)
    }

    /// Inserts a VMA; returns `None`, with nothing changed, if that is not possible.
    fn try_insert(&mut self, vma: V) -> Option<()> {
        let (range, spares) = (vma.range(), &mut self.spares);
        if range.start >= range.end {
            return None;
        }
        let root = match &mut self.root {
            Some(root) => root,
            none => {
                let leaf = spares.pop()?.into_leaf();
                self.height = 1;
                none.insert(leaf)
            }
        };
        let done = edit(root, range.start, NodeContext::ROOT, spares, |leaf, context, spares| {
            let i = leaf.first_above(range.start);
            let space = leaf.space_for(i, i, &context);
            if range.start < space.start || range.end > space.end {
                return None;
            }
            if !leaf.is_full() {
                let before = leaf.gap_before(i).map_or(0, |s| s.len());
                leaf.insert(i, vma);
                let gap = updated_gap(context.gap, before, leaf.gap_around(i), || leaf.largest_gap());
                return Some(Edited { result: (), gap, right: None, shrunk: false });
            }
            // Unless there are spare pages for all splits that this insert causes, nothing is
            // changed.
            if context.split_cost + 1 > spares.len() {
                return None;
            }
            let right = leaf.insert_full(i, vma, spares.pop()?);
            Some(Edited { result: (), gap: leaf.largest_gap(), right: Some(right), shrunk: false })
        })?;
        self.len += 1;
        self.reserved_inserts = self.reserved_inserts.saturating_sub(1);
        if let Some(right) = done.right {
            self.grow_root(done.gap, right);
        }
        Some(())
    }

    /// Puts a new root above the old root, which has the largest gap `gap`, and `right`.
    #[cold]
    fn grow_root(&mut self, gap: u64, right: Node<V>) {
        // Both exist: the old root was just split, and before any split the insert checked that
        // there are spare pages for all splits and for the new root (`split_cost`).
        let (Some(left), Some(page)) = (self.root.take(), self.spares.pop()) else {
            return;
        };
        let mut root = page.into_inner();
        if let NodeMut::Inner(inner) = root.get_mut() {
            let right_gap = right.largest_gap();
            inner.push(left, gap);
            inner.push(right, right_gap);
        }
        self.root = Some(root);
        self.height += 1;
    }

    /// Removes and returns the VMA that starts at `start`; `None` if there is none. Frees pages
    /// that reserved inserts do not need.
    pub fn remove(&mut self, mem: &(impl NodeMemory + ?Sized), start: u64) -> Option<V> {
        let spares_before = self.spares.len();
        let done = edit(self.root.as_mut()?, start, NodeContext::ROOT, &mut self.spares, |leaf, context, _| {
            let (i, vma) = leaf.starting_at(start)?;
            let before = leaf.gap_around(i);
            leaf.remove(i);
            let gap =
                updated_gap(context.gap, before, leaf.gap_before(i).map_or(0, |s| s.len()), || leaf.largest_gap());
            Some(Edited { result: vma, gap, right: None, shrunk: true })
        })?;
        self.len -= 1;
        self.shrink_root();
        let keep = self.pages_needed(self.reserved_inserts);
        self.release(mem, keep.max(spares_before));
        Some(done.result)
    }

    /// Removes the root while it has a single child, or no VMA.
    fn shrink_root(&mut self) {
        while let Some(mut root) = self.root.take() {
            let only = match root.get_mut() {
                NodeMut::Inner(inner) if inner.len() == 1 => inner.pop(),
                _ => None,
            };
            if only.is_none() && root.len() > 0 {
                self.root = Some(root);
                return;
            }
            self.root = only;
            self.height -= 1;
            self.spares.push(root.into_page());
        }
    }

    /// Changes the VMA that starts at `start`, and returns the result of `change`; `None` if there
    /// is no such VMA.
    ///
    /// The range may change too, if the VMA stays non-empty and between its neighbours. Otherwise
    /// the tree stays as it was, and the result is `None`; with debug assertions the function
    /// panics.
    pub fn update<R>(&mut self, start: u64, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        let done = edit(self.root.as_mut()?, start, NodeContext::ROOT, &mut self.spares, |leaf, context, _| {
            let (i, mut vma) = leaf.starting_at(start)?;
            let result = change(&mut vma);
            let range = vma.range();
            let space = leaf.space_for(i, i + 1, &context);
            if range.start < space.start || range.start >= range.end || range.end > space.end {
                debug_assert!(
                    false,
                    "new VMA range {range:?} is empty, or not within {space:?} between its neighbours"
                );
                return None;
            }
            let before = leaf.gap_around(i);
            leaf.set(i, vma);
            let gap = updated_gap(context.gap, before, leaf.gap_around(i), || leaf.largest_gap());
            Some(Edited { result, gap, right: None, shrunk: false })
        })?;
        Some(done.result)
    }

    /// Changes the VMAs that overlap `range`, but only those in the leaf where the first such VMA
    /// is. Returns the end of the last VMA that it changed, or `None` if it found no VMA that
    /// overlaps. To change all VMAs of a range, the caller calls again from that end on.
    ///
    /// `change` must not change a VMA's range or reservation, which are recorded in the nodes
    /// above. If it does, the VMA stays as it was; with debug assertions the function panics.
    pub fn change(&mut self, range: VirtRange, mut change: impl FnMut(&mut V)) -> Option<u64> {
        let leaf = self.seek_mut(range.start)?;
        let first = leaf.first_above(range.start);
        let mut end = None;
        for vma in leaf.vmas_mut()[first..].iter_mut().take_while(|vma| vma.range().start < range.end) {
            let mut changed = *vma;
            change(&mut changed);
            let stays = changed.range() == vma.range() && changed.reserved_start() == vma.reserved_start();
            debug_assert!(
                stays,
                "change() moved VMA {:?} to {:?}, or changed its reservation",
                vma.range(),
                changed.range()
            );
            if stays {
                *vma = changed;
            }
            end = Some(vma.range().end);
        }
        end
    }

    /// Frees all spare pages. Inserts that [`VmaTree::reserve`] reserved may fail after that.
    pub fn trim(&mut self, mem: &(impl NodeMemory + ?Sized)) {
        self.reserved_inserts = 0;
        self.release(mem, 0);
    }

    /// Removes all VMAs. Keeps pages that reserved inserts may need.
    pub fn remove_all(&mut self, mem: &(impl NodeMemory + ?Sized)) {
        let spares_before = self.spares.len();
        self.remove_nodes();
        let keep = self.pages_needed(self.reserved_inserts);
        self.release(mem, keep.max(spares_before));
    }

    /// Removes all VMAs and frees all pages.
    pub fn clear(&mut self, mem: &(impl NodeMemory + ?Sized)) {
        self.remove_nodes();
        self.trim(mem);
    }

    /// Makes all nodes spare pages.
    fn remove_nodes(&mut self) {
        if let Some(root) = self.root.take() {
            free_subtree(root, &mut self.spares);
        }
        self.height = 0;
        self.len = 0;
    }

    /// Frees spare pages until `keep` are left.
    fn release(&mut self, mem: &(impl NodeMemory + ?Sized), keep: usize) {
        while self.spares.len() > keep
            && let Some(page) = self.spares.pop()
        {
            // SAFETY: the creator of this tree guarantees that every method gets the same `mem`
            // (see `new`), so all pages of the tree came from it.
            unsafe { page.free(mem) };
            self.pages -= 1;
        }
    }
}

impl<V: Interval> fmt::Debug for VmaTree<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VmaTree")
            .field("len", &self.len)
            .field("depth", &self.height)
            .field("nodes", &self.nodes())
            .field("spares", &self.spares.len())
            .finish()
    }
}

/// Makes all nodes of a subtree spare pages.
fn free_subtree<V: Interval>(mut node: Node<V>, spares: &mut SpareNodes) {
    if let NodeMut::Inner(inner) = node.get_mut() {
        while let Some(child) = inner.pop() {
            free_subtree(child, spares);
        }
    }
    spares.push(node.into_page());
}

/// An iterator over VMAs in order: see [`VmaTree::iter_from`].
#[derive(Clone)]
pub struct Iter<'a, V: Interval> {
    tree: &'a VmaTree<V>,
    /// The position of the next VMA.
    at: Option<Position<'a, V>>,
}

/// The position of a VMA in the tree.
#[derive(Clone)]
struct Position<'a, V: Interval> {
    leaf: &'a Leaf<V>,
    /// The index of the VMA in the leaf.
    index: usize,
}

impl<'a, V: Interval> Iterator for Iter<'a, V> {
    type Item = &'a V;

    fn next(&mut self) -> Option<&'a V> {
        let Position { leaf, index } = self.at.take()?;
        let vma = leaf.vmas().get(index)?;
        // A leaf has no link to the next leaf. A search from the root once in 56 steps costs less
        // than keeping such links up to date.
        self.at = match index + 1 {
            index if index < leaf.len() => Some(Position { leaf, index }),
            _ => self.tree.seek(vma.range().end),
        };
        Some(vma)
    }
}

impl<V: Interval> FusedIterator for Iter<'_, V> {}
