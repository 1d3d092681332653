//! The VMAs of an address space, in order: a B+tree whose nodes are pages.
//!
//! Guarantees:
//!
//! * VMAs never overlap, and are never empty.
//! * Looking up, inserting, removing and changing a VMA, and finding a gap, take O(log n): three nodes at 60,000 VMAs.
//! * Only [`VmaTree::reserve`] asks for memory. What it promised can be inserted whatever happens in between.
//! * An operation that is refused has changed nothing.
//!
//! The mechanism: all VMAs are in leaves. Inner nodes know of each child where its first VMA starts, where its last one
//! ends, and the largest gap inside of it. Every change is one recursive [`edit`]: down to the leaf, the change there, and
//! on the way back up the summaries, splits and merges. Nodes own their children ([`Node`]): there are no parent pointers,
//! and of `unsafe` only the return of a page to where it came from.

mod edit;

use core::fmt;
use core::iter::FusedIterator;

use super::node::{FANOUT, Leaf, Node, NodeMut, NodeRef, Page, Spares};
use crate::addr::VirtRange;
use edit::{Edited, edit, follow};

pub use super::node::NodeMemory;
pub(super) use edit::Above;

/// What the tree needs to know of a VMA: a small value that stands for a range of addresses.
///
/// 64 bytes at most, aligned to 8 at most; more than that does not compile. `range` and `reserved_start` must say the same
/// whenever they are asked.
pub trait Interval: Copy {
    /// The addresses it covers; not empty.
    fn range(&self) -> VirtRange;

    /// The lowest address that must stay free for it, at most its start: where the guard gap of a stack begins. It counts
    /// as far down as the VMA before this one and no further.
    fn reserved_start(&self) -> u64 {
        self.range().start
    }
}

/// There was no memory for a node.
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
/// It takes its nodes from the [`NodeMemory`] that its methods are given. Dropping it leaks them: [`VmaTree::clear`] it
/// first.
pub struct VmaTree<V: Interval> {
    root: Option<Node<V>>,
    /// Levels, leaves included.
    height: usize,
    len: usize,
    pub(super) spares: Spares,
    /// Pages that it owns, spares included.
    pub(super) pages: usize,
    /// Inserts that were promised and have not come yet.
    pub(super) promised: usize,
}

/// So many inserts are needed at least to make the tree higher once more after it was. A new root has room for as many
/// less one: it is a leaf with one VMA, or has two children.
const fn between_growths<V: Interval>() -> usize {
    if Leaf::<V>::CAPACITY < FANOUT - 1 { Leaf::<V>::CAPACITY } else { FANOUT - 1 }
}

impl<V: Interval> VmaTree<V> {
    /// An empty tree, without any memory.
    ///
    /// # Safety
    ///
    /// Every `mem` that the methods of this tree are given is the same memory: it takes back what any other one gave.
    pub const unsafe fn new() -> Self {
        VmaTree { root: None, height: 0, len: 0, spares: Spares::new(), pages: 0, promised: 0 }
    }

    /// How many VMAs there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no VMA.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many nodes a lookup visits.
    pub fn depth(&self) -> usize {
        self.height
    }

    /// How many pages hold VMAs or nodes.
    pub fn nodes(&self) -> usize {
        self.pages - self.spares.len()
    }

    /// How many pages wait for inserts.
    pub fn spares(&self) -> usize {
        self.spares.len()
    }

    pub(super) fn root(&self) -> Option<&Node<V>> {
        self.root.as_ref()
    }

    /// The VMA that contains `addr`.
    #[inline]
    pub fn find(&self, addr: u64) -> Option<&V> {
        self.find_from(addr).filter(|vma| vma.range().start <= addr)
    }

    /// The first VMA that ends above `addr`: the one that contains it, or else the next.
    #[inline]
    pub fn find_from(&self, addr: u64) -> Option<&V> {
        let (leaf, i) = self.seek(addr)?;
        leaf.vmas().get(i)
    }

    /// Where the first VMA that ends above `addr` is, if there is one.
    #[inline]
    fn seek(&self, addr: u64) -> Option<(&Leaf<V>, usize)> {
        let mut node = self.root.as_ref()?;
        loop {
            match node.get() {
                NodeRef::Inner(inner) => node = inner.child(inner.ends().count_up_to(addr))?,
                NodeRef::Leaf(leaf) => return Some((leaf, leaf.first_above(addr))),
            }
        }
    }

    /// The leaf of the first VMA that ends above `addr`, if there is one.
    fn seek_mut(&mut self, addr: u64) -> Option<&mut Leaf<V>> {
        let mut node = self.root.as_mut()?;
        loop {
            match node.get_mut() {
                NodeMut::Inner(inner) => node = inner.child_mut(inner.ends().count_up_to(addr))?,
                NodeMut::Leaf(leaf) => return Some(leaf),
            }
        }
    }

    /// The last VMA that ends at or below `addr`.
    pub fn prev(&self, addr: u64) -> Option<&V> {
        let mut node = self.root.as_ref()?;
        // The subtree just before the one that the search is in.
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

    /// The VMAs that end above `addr`, in order.
    pub fn iter_from(&self, addr: u64) -> Iter<'_, V> {
        Iter { tree: self, at: self.seek(addr) }
    }

    /// Makes sure that the next `inserts` inserts, wherever they go and whatever is removed in between, will not fail. On
    /// failure nothing was allocated.
    ///
    /// Takes no memory for a tree of one leaf that has room for them; otherwise a page for each insert and each level below
    /// the root, and for what the root may need. Pages that turn out not to be needed serve the next `reserve`.
    pub fn reserve(&mut self, mem: &(impl NodeMemory + ?Sized), inserts: usize) -> Result<(), OutOfNodes> {
        let (before, needed) = (self.spares.len(), self.needed(inserts));
        while self.spares.len() < needed {
            let Some(page) = Page::alloc(mem) else {
                self.release(mem, before);
                return Err(OutOfNodes);
            };
            self.spares.push(page);
            self.pages += 1;
        }
        self.promised = self.promised.max(inserts);
        Ok(())
    }

    /// How many pages `inserts` inserts take at most.
    ///
    /// An insert splits at most one node on each level below the root, unless it makes the tree higher: then it takes a
    /// page for each level of the higher tree. The first growth comes when the root has no room left, and another one
    /// [`between_growths`] later. With `g` growths that is `g` pages, and for each insert one on every level but the
    /// topmost of the final tree.
    ///
    /// Removals do not invalidate that. They leave the root with more room, or take the root away: the tree may then grow
    /// once more than was thought, but no higher than that, and the page of the old root pays for it, because
    /// [`VmaTree::remove`] keeps what is needed for what was promised.
    pub(super) fn needed(&self, inserts: usize) -> usize {
        let between = between_growths::<V>();
        let room = self.root.as_ref().map_or(0, |root| root.capacity() - root.len()).min(between - 1);
        let growths = inserts.saturating_sub(room).div_ceil(between);
        match self.height + growths {
            0 => 0,
            height => inserts.saturating_mul(height - 1).saturating_add(growths),
        }
    }

    /// Adds a VMA. Cannot fail after [`VmaTree::reserve`].
    ///
    /// # Errors
    ///
    /// Gives it back if the contract is broken (without debug assertions; with them it panics): the VMA is empty,
    /// overlaps another, or there is no page left for it.
    pub fn insert(&mut self, vma: V) -> Result<(), V> {
        let inserted = self.try_insert(vma).is_some();
        debug_assert!(inserted, "{:?} is empty, overlaps or was not reserved for", vma.range());
        inserted.then_some(()).ok_or(vma)
    }

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
        let done = edit(root, range.start, Above::ROOT, spares, |leaf, above, spares| {
            let i = leaf.first_above(range.start);
            let (floor, ceiling) = leaf.bounds(i, i, &above);
            if range.start < floor || range.end > ceiling {
                return None;
            }
            if !leaf.is_full() {
                let before = leaf.stretch(i).map_or(0, |s| s.len());
                leaf.insert(i, vma);
                let gap = follow(above.gap, before, leaf.around(i), || leaf.largest_gap());
                return Some(Edited { out: (), gap, right: None, shrunk: false });
            }
            // The pages for all nodes that this splits are there, or nothing is changed.
            if above.split_cost + 1 > spares.len() {
                return None;
            }
            let right = leaf.insert_full(i, vma, spares.pop()?);
            Some(Edited { out: (), gap: leaf.largest_gap(), right: Some(right), shrunk: false })
        })?;
        self.len += 1;
        self.promised = self.promised.saturating_sub(1);
        if let Some(right) = done.right {
            self.grow(done.gap, right);
        }
        Some(())
    }

    /// Puts a new root above the old one, whose largest gap is `gap`, and `right`.
    #[cold]
    fn grow(&mut self, gap: u64, right: Node<V>) {
        // Both are there: `right` was split off the one, and the other was counted before that.
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

    /// Removes the VMA that starts at `start`.
    pub fn remove(&mut self, mem: &(impl NodeMemory + ?Sized), start: u64) -> Option<V> {
        let spares_before = self.spares.len();
        let done = edit(self.root.as_mut()?, start, Above::ROOT, &mut self.spares, |leaf, above, _| {
            let (i, vma) = leaf.starting_at(start)?;
            let before = leaf.around(i);
            leaf.remove(i);
            let gap = follow(above.gap, before, leaf.stretch(i).map_or(0, |s| s.len()), || leaf.largest_gap());
            Some(Edited { out: vma, gap, right: None, shrunk: true })
        })?;
        self.len -= 1;
        self.lower();
        let keep = self.needed(self.promised);
        self.release(mem, keep.max(spares_before));
        Some(done.out)
    }

    /// Takes the root away as long as it has one child only, or no VMA.
    fn lower(&mut self) {
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

    /// Changes the VMA that starts at `start`, and returns what `change` returned; `None` if there is no such VMA.
    ///
    /// The range may change too, as long as the VMA stays non-empty and between its neighbours. If it does not, the tree
    /// stays as it was, and the result is `None` (with debug assertions it panics).
    pub fn update<R>(&mut self, start: u64, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        let done = edit(self.root.as_mut()?, start, Above::ROOT, &mut self.spares, |leaf, above, _| {
            let (i, mut vma) = leaf.starting_at(start)?;
            let out = change(&mut vma);
            let range = vma.range();
            let (floor, ceiling) = leaf.bounds(i, i + 1, &above);
            if range.start < floor || range.start >= range.end || range.end > ceiling {
                debug_assert!(false, "{range:?} is empty or not within {floor:#x}..{ceiling:#x}");
                return None;
            }
            let before = leaf.around(i);
            leaf.set(i, vma);
            let gap = follow(above.gap, before, leaf.around(i), || leaf.largest_gap());
            Some(Edited { out, gap, right: None, shrunk: false })
        })?;
        Some(done.out)
    }

    /// Changes the VMAs of one leaf that overlap `range`, and returns the end of the last one; `None`
    /// if there is none. A caller that wants all VMAs of the range calls again, from there on.
    ///
    /// `change` must leave a VMA's range and reservation alone, because the nodes above record
    /// them. If it does not, the VMA stays as it was (with debug assertions this panics).
    pub fn change(&mut self, range: VirtRange, mut change: impl FnMut(&mut V)) -> Option<u64> {
        let leaf = self.seek_mut(range.start)?;
        let first = leaf.first_above(range.start);
        let mut end = None;
        for vma in leaf.vmas_mut()[first..].iter_mut().take_while(|vma| vma.range().start < range.end) {
            let mut changed = *vma;
            change(&mut changed);
            let stays = changed.range() == vma.range() && changed.reserved_start() == vma.reserved_start();
            debug_assert!(stays, "{:?} has become {:?}, or reserves something else", vma.range(), changed.range());
            if stays {
                *vma = changed;
            }
            end = Some(vma.range().end);
        }
        end
    }

    /// Gives back all pages that hold nothing. This ends what was promised by [`VmaTree::reserve`].
    pub fn trim(&mut self, mem: &(impl NodeMemory + ?Sized)) {
        self.promised = 0;
        self.release(mem, 0);
    }

    /// Removes all VMAs and gives back all pages.
    pub fn clear(&mut self, mem: &(impl NodeMemory + ?Sized)) {
        if let Some(root) = self.root.take() {
            dismantle(root, &mut self.spares);
        }
        self.height = 0;
        self.len = 0;
        self.trim(mem);
    }

    /// Gives back spares until `keep` of them are left.
    fn release(&mut self, mem: &(impl NodeMemory + ?Sized), keep: usize) {
        while self.spares.len() > keep
            && let Some(page) = self.spares.pop()
        {
            // SAFETY: whoever made this tree promised that all memory it is given is the same (see `new`), and its pages
            // come from there only.
            unsafe { page.free(mem) };
            self.pages -= 1;
        }
    }
}

impl<V: Interval> fmt::Debug for VmaTree<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AreaTree")
            .field("len", &self.len)
            .field("depth", &self.height)
            .field("nodes", &self.nodes())
            .field("spares", &self.spares.len())
            .finish()
    }
}

/// Turns a subtree into spare pages.
fn dismantle<V: Interval>(mut node: Node<V>, spares: &mut Spares) {
    if let NodeMut::Inner(inner) = node.get_mut() {
        while let Some(child) = inner.pop() {
            dismantle(child, spares);
        }
    }
    spares.push(node.into_page());
}

/// See [`VmaTree::iter_from`].
#[derive(Clone)]
pub struct Iter<'a, V: Interval> {
    tree: &'a VmaTree<V>,
    /// The next VMA: its leaf and its place there.
    at: Option<(&'a Leaf<V>, usize)>,
}

impl<'a, V: Interval> Iterator for Iter<'a, V> {
    type Item = &'a V;

    fn next(&mut self) -> Option<&'a V> {
        let (leaf, i) = self.at?;
        let vma = leaf.vmas().get(i)?;
        // A leaf does not know the next one; to ask the root once in 56 times is cheaper than to keep it up to date.
        self.at = if i + 1 < leaf.len() { Some((leaf, i + 1)) } else { self.tree.seek(vma.range().end) };
        Some(vma)
    }
}

impl<V: Interval> FusedIterator for Iter<'_, V> {}
