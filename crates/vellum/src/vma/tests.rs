//! Compares the VMA tree with a `BTreeMap` and gap searches with a linear search, and tests that
//! inserts for which `reserve` has reserved pages never fail.

extern crate std;

use core::cell::{Cell, RefCell};
use core::ptr::NonNull;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::vec::Vec;

use super::gap::Direction;
use super::node::{Extent, NODE_SIZE, Node, NodeRef, Page};
use super::tree::{Interval, NodeMemory, VmaTree};
use crate::addr::VirtRange;

/// A VMA of the largest size that the tree permits, so that few VMAs make a deep tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seg {
    start: u64,
    end: u64,
    guard: u64,
    tag: [u64; 5],
}

impl Interval for Seg {
    fn range(&self) -> VirtRange {
        VirtRange { start: self.start, end: self.end }
    }

    fn reserved_start(&self) -> u64 {
        self.start.saturating_sub(self.guard)
    }
}

fn seg(start: u64, len: u64) -> Seg {
    Seg { start, end: start + len, guard: 0, tag: [start; 5] }
}

/// A source of pages that records which pages are in use, and can run out.
struct Memory {
    live: RefCell<BTreeSet<usize>>,
    left: Cell<usize>,
}

impl Memory {
    const PAGE: Layout = match Layout::from_size_align(NODE_SIZE, NODE_SIZE) {
        Ok(layout) => layout,
        Err(_) => panic!(),
    };

    fn new() -> Memory {
        Memory { live: RefCell::default(), left: Cell::new(usize::MAX) }
    }

    fn live(&self) -> usize {
        self.live.borrow().len()
    }
}

// SAFETY: each page comes from the global allocator and is used for nothing else until it is freed
// (`live`).
unsafe impl NodeMemory for Memory {
    fn alloc(&self) -> Option<NonNull<u8>> {
        self.left.set(self.left.get().checked_sub(1)?);
        // SAFETY: the size is not zero.
        let page = NonNull::new(unsafe { alloc(Self::PAGE) })?;
        // SAFETY: the page was just allocated, with that size.
        unsafe { page.write_bytes(0xa5, NODE_SIZE) };
        assert!(self.live.borrow_mut().insert(page.as_ptr().addr()));
        Some(page)
    }

    unsafe fn free(&self, page: NonNull<u8>) {
        assert!(self.live.borrow_mut().remove(&page.as_ptr().addr()), "freed a page that is not in use");
        // SAFETY: the page came from `alloc` (asserted), and the caller guarantees that no
        // reference to it is left.
        unsafe {
            page.write_bytes(0x5a, NODE_SIZE);
            dealloc(page.as_ptr(), Self::PAGE);
        }
    }
}

/// A pseudo-random number generator: xorshift64*.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((u128::from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)) * u128::from(n)) >> 64) as u64
    }
}

/// Returns a smaller number of rounds under Miri, where each takes long.
fn rounds(n: u64) -> u64 {
    if cfg!(miri) { n / 2000 + 1 } else { n }
}

fn new() -> VmaTree<Seg> {
    // SAFETY: each test passes the same `Memory` to all methods of its tree.
    unsafe { VmaTree::new() }
}

fn add(tree: &mut VmaTree<Seg>, mem: &Memory, seg: Seg) {
    tree.reserve(mem, 1).unwrap();
    tree.insert(seg).unwrap();
}

/// Checks the whole structure, compares every summary with what it summarises, and returns the
/// VMAs.
fn check(tree: &VmaTree<Seg>, mem: &Memory) -> Vec<Seg> {
    fn walk(node: &Node<Seg>, level: usize, nodes: &mut usize, out: &mut Vec<Seg>) -> (Extent, u64) {
        assert!(node.len() > 0 && node.len() <= node.capacity());
        *nodes += 1;
        let from = out.len();
        match node.get() {
            NodeRef::Leaf(leaf) => {
                assert_eq!(level, 1, "a leaf is not on level 1");
                out.extend(leaf.vmas());
                assert!(leaf.starts().is_tail_clear());
                assert!(leaf.starts().as_slice().iter().eq(leaf.vmas().iter().map(|seg| &seg.start)));
            }
            NodeRef::Inner(inner) => {
                assert!(inner.starts().is_tail_clear() && inner.ends().is_tail_clear());
                let (starts, ends) = (inner.starts().as_slice(), inner.ends().as_slice());
                for i in 0..inner.len() {
                    let (extent, gap) = walk(inner.child(i).unwrap(), level - 1, nodes, out);
                    assert_eq!((starts[i], ends[i]), (extent.start, extent.end));
                    assert_eq!(inner.gaps()[i], gap);
                }
                assert!(inner.child(inner.len()).is_none(), "an inner node has a child beyond its length");
            }
        }
        let vmas = &out[from..];
        let (first, last) = (vmas[0], vmas[vmas.len() - 1]);
        let extent = Extent { start: first.start, reserved: first.reserved_start(), end: last.end };
        assert_eq!(node.extent(), Some(extent));
        let gap = |w: &[Seg]| w[1].reserved_start().saturating_sub(w[0].end);
        (extent, vmas.windows(2).map(gap).max().unwrap_or(0))
    }
    let (mut nodes, mut out) = (0, Vec::new());
    match tree.root() {
        Some(root) => {
            walk(root, tree.depth(), &mut nodes, &mut out);
            assert!(root.len() > 1 || tree.depth() == 1, "the root is an inner node with one child");
        }
        None => assert_eq!(tree.depth(), 0),
    }
    assert!(out.windows(2).all(|w| w[0].end <= w[1].start));
    assert_eq!((out.len(), nodes, nodes + tree.spares()), (tree.len(), tree.nodes(), mem.live()));
    assert!(tree.spares() >= tree.pages_needed(tree.reserved_inserts));
    out
}

/// Returns the correct result of `find_gap`, from a linear search over all gaps.
fn find_gap_slowly(vmas: &[Seg], len: u64, shift: u32, window: VirtRange, direction: Direction) -> Option<u64> {
    let starts = vmas.iter().map(|seg| seg.reserved_start()).chain([u64::MAX]);
    let ends = [0].into_iter().chain(vmas.iter().map(|seg| seg.end));
    let mut places = ends.zip(starts).filter_map(|(low, high)| {
        let (low, high, align) = (low.max(window.start), high.min(window.end), 1 << shift);
        let at = match direction {
            Direction::TopDown => high.checked_sub(len)? / align * align,
            Direction::BottomUp => low.checked_next_multiple_of(align)?,
        };
        (low <= at && at.checked_add(len)? <= high).then_some(at)
    });
    match direction {
        Direction::TopDown => places.last(),
        Direction::BottomUp => places.next(),
    }
}

fn compare_searches(tree: &VmaTree<Seg>, vmas: &[Seg], space: u64, rng: &mut Rng) {
    for _ in 0..8 {
        let direction = if rng.below(2) == 0 { Direction::TopDown } else { Direction::BottomUp };
        let (a, b) = (rng.below(space + 1), rng.below(space + 1));
        let window = VirtRange { start: a.min(b), end: a.max(b) };
        let longest = vmas.windows(2).map(|w| w[1].start - w[0].end).max().unwrap_or(space);
        let (len, shift) = (1 + rng.below(longest + 1), rng.below(10) as u32);
        let expected = find_gap_slowly(vmas, len, shift, window, direction);
        assert_eq!(tree.find_gap(len, shift, window, direction), expected, "{len} {shift} {window:?} {direction:?}");
    }
}

fn compare_lookups(tree: &VmaTree<Seg>, vmas: &[Seg], addr: u64) {
    let next = vmas.partition_point(|seg| seg.end <= addr);
    assert_eq!(tree.find_from(addr), vmas.get(next));
    assert_eq!(tree.find(addr), vmas.get(next).filter(|seg| seg.start <= addr));
    assert_eq!(tree.prev(addr), next.checked_sub(1).map(|i| &vmas[i]));
    assert!(tree.iter_from(addr).take(200).eq(vmas[next..].iter().take(200)));
}

/// A tree and its model, both changed by the same random operations.
struct Differential {
    mem: Memory,
    tree: VmaTree<Seg>,
    model: BTreeMap<u64, Seg>,
    space: u64,
    rng: Rng,
}

impl Differential {
    fn new(space: u64, seed: u64) -> Differential {
        Differential { mem: Memory::new(), tree: new(), model: BTreeMap::new(), space, rng: Rng(seed) }
    }

    /// Returns the end of the VMA before `start`, and the start of the first VMA after `start`.
    fn bounds(&self, start: u64) -> (u64, u64) {
        let floor = self.model.range(..start).next_back().map_or(0, |(_, seg)| seg.end);
        (floor, self.model.range(start + 1..).next().map_or(self.space, |(&next, _)| next))
    }

    fn pick(&mut self) -> Option<u64> {
        let addr = self.rng.below(self.space);
        self.model.range(addr..).chain(self.model.range(..addr)).next().map(|(&start, _)| start)
    }

    fn insert(&mut self) {
        let start = self.rng.below(self.space);
        let (floor, ceiling) = self.bounds(start);
        if floor <= start && start < ceiling && !self.model.contains_key(&start) {
            let len = 1 + self.rng.below((ceiling - start).min(24));
            let guard = if self.rng.below(4) == 0 { self.rng.below(40) } else { 0 };
            let seg = Seg { guard, ..seg(start, len) };
            self.tree.reserve(&self.mem, 1).unwrap();
            if self.rng.below(2) == 0 {
                self.tree.push(seg).unwrap()
            } else {
                self.tree.insert(seg).unwrap()
            }
            self.model.insert(start, seg);
        }
    }

    fn remove(&mut self) {
        let Some(start) = self.pick() else { return };
        assert_eq!(self.tree.remove(&self.mem, start + 1), self.model.remove(&(start + 1)));
        assert_eq!(self.tree.remove(&self.mem, start), self.model.remove(&start));
    }

    fn update(&mut self) {
        let Some(start) = self.pick() else { return };
        let (floor, ceiling) = self.bounds(start);
        let mut seg = self.model.remove(&start).unwrap();
        seg.start = floor + self.rng.below(ceiling - floor);
        seg.end = seg.start + 1 + self.rng.below(ceiling - seg.start);
        seg.guard = self.rng.below(20);
        assert_eq!(self.tree.update(start, |it| core::mem::replace(it, seg).start), Some(start));
        self.model.insert(seg.start, seg);
    }

    /// Changes the VMAs of a range leaf by leaf, and checks that each is changed once.
    fn change(&mut self) {
        let start = self.rng.below(self.space);
        let (range, tag) = (VirtRange { start, end: start + self.rng.below(self.space / 4) }, self.rng.0);
        let mut changed = Vec::new();
        let mut left = range;
        while let Some(end) = self.tree.change(left, |it| {
            changed.push(it.start);
            it.tag = [tag; 5];
        }) {
            left.start = end;
        }
        let inside = |seg: &Seg| range.start < seg.end && seg.start < range.end;
        let expected = self.model.values_mut().filter(|seg| inside(seg));
        assert!(expected.map(|seg| (seg.tag = [tag; 5], seg.start).1).eq(changed));
    }

    fn check(&mut self) {
        let vmas = check(&self.tree, &self.mem);
        assert!(vmas.iter().eq(self.model.values()));
        compare_searches(&self.tree, &vmas, self.space, &mut self.rng);
        for _ in 0..8 {
            compare_lookups(&self.tree, &vmas, self.rng.below(self.space));
        }
    }
}

#[test]
fn random_operations_match_a_btreemap() {
    for (seed, space, steps) in [(1, 1 << 12, 40_000), (2, 1 << 17, 80_000), (3, 1 << 24, 160_000)] {
        let mut test = Differential::new(space, seed);
        // In four phases the tree grows, keeps its size, shrinks, and becomes empty. Each pair is
        // the number of inserts and of removals among ten operations.
        for (inserts, removes) in [(8, 1), (4, 4), (1, 8), (0, 10)] {
            for step in 0..rounds(steps) {
                match test.rng.below(10) {
                    dice if dice < inserts => test.insert(),
                    dice if dice < inserts + removes => test.remove(),
                    _ if step % 2 == 0 => test.change(),
                    _ => test.update(),
                }
                if step % (1 + test.model.len() as u64 / 4) == 0 {
                    test.check();
                }
            }
            test.check();
        }
        while !test.model.is_empty() {
            test.remove();
        }
        assert_eq!((test.tree.nodes(), test.tree.depth()), (0, 0));
        test.tree.trim(&test.mem);
        assert_eq!(test.mem.live(), 0);
    }
}

/// Compares `find_gap` in a space of 300 addresses with a search that tries each address.
#[test]
fn gap_search_matches_a_linear_search() {
    const SPACE: u64 = 300;
    for seed in 1..rounds(500) {
        let mut test = Differential::new(SPACE, seed);
        for _ in 0..test.rng.below(100) {
            test.insert();
        }
        let vmas: Vec<Seg> = test.model.values().copied().collect();
        let free = |addr: u64| {
            let next = vmas.iter().find(|seg| seg.end > addr);
            next.is_none_or(|seg| addr < seg.start.saturating_sub(seg.guard))
        };
        for _ in 0..20 {
            let (len, align) = (1 + test.rng.below(12), 1 << test.rng.below(4));
            let (start, end) = (test.rng.below(SPACE), test.rng.below(SPACE));
            let mut fits = (start..end).filter(|at| at % align == 0 && at + len <= end && (*at..at + len).all(free));
            let window = VirtRange { start: start.min(end), end };
            let shift = u64::trailing_zeros(align);
            let found = |direction| test.tree.find_gap(len, shift, window, direction);
            assert_eq!(found(Direction::BottomUp), fits.clone().next());
            assert_eq!(found(Direction::TopDown), fits.next_back());
        }
        test.tree.clear(&test.mem);
    }
}

#[test]
fn vmas_may_touch_both_ends_of_the_address_space() {
    let (mem, mut tree) = (Memory::new(), new());
    let all = VirtRange { start: 0, end: u64::MAX };
    assert_eq!(tree.find_gap(u64::MAX, 0, all, Direction::TopDown), Some(0));
    assert_eq!(tree.find_gap(1, 64, all, Direction::TopDown), None);
    assert_eq!(tree.find_gap(0, 0, all, Direction::BottomUp), None);
    assert!(tree.find(0).or(tree.find_from(0)).or(tree.prev(u64::MAX)).or(tree.iter_from(0).next()).is_none());
    add(&mut tree, &mem, seg(u64::MAX - 4096, 4096));
    add(&mut tree, &mem, Seg { guard: 1 << 20, ..seg(0, 4096) });
    assert_eq!(tree.find(0).map(|seg| seg.end), Some(4096));
    assert_eq!(tree.find(u64::MAX - 1).map(|seg| seg.end), Some(u64::MAX));
    assert_eq!(tree.find_from(u64::MAX), None);
    assert_eq!(tree.find_gap(4096, 63, all, Direction::TopDown), Some(1 << 63));
    assert_eq!(tree.find_gap(4096, 0, all, Direction::BottomUp), Some(4096));
    assert_eq!(tree.find_gap(u64::MAX - 8191, 0, all, Direction::BottomUp), None);
    check(&tree, &mem);
    tree.clear(&mem);
    assert_eq!(mem.live(), 0);
}

/// Inserts 65,536 VMAs in ascending, descending and scattered order, and checks that adjacent
/// inserts leave full leaves.
#[test]
fn adjacent_inserts_fill_leaves_and_sparse_nodes_merge() {
    const MANY: u64 = if cfg!(miri) { 512 } else { 65_536 };
    // Ascending, descending and scattered: (a + b * i) % MANY.
    for (a, b, per_leaf) in [(0, 1, 50), (MANY - 1, MANY - 1, 50), (0, 40_503, 30)] {
        let order = |i| (a + b * i) % MANY;
        let (mem, mut tree) = (Memory::new(), new());
        for i in 0..MANY {
            add(&mut tree, &mem, seg(order(i) * 4, 2));
        }
        let vmas = check(&tree, &mem);
        assert_eq!((vmas.len() as u64, vmas[1]), (MANY, seg(4, 2)));
        assert!(tree.nodes() as u64 <= MANY / per_leaf + 3, "{tree:?}");
        assert!(tree.depth() <= 3);
        for i in (0..MANY).filter(|i| i % 64 != 0) {
            assert_eq!(tree.remove(&mem, order(i) * 4), Some(seg(order(i) * 4, 2)));
        }
        check(&tree, &mem);
        assert!(tree.nodes() as u64 <= MANY / 64 / 10 + 2, "sparse nodes did not merge: {tree:?}");
        tree.clear(&mem);
        assert_eq!((mem.live(), tree.len(), tree.nodes()), (0, 0, 0));
    }
}

/// The cost of an insert, ordered by the number of splits first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct InsertCost {
    /// The number of full nodes that the insert splits.
    splits: u32,
    /// True if the node itself is one of them.
    splits_node: bool,
    /// A free address for the insert.
    addr: u64,
}

/// Returns the most expensive insert below `node`.
fn most_expensive(node: &Node<Seg>) -> InsertCost {
    match node.get() {
        NodeRef::Leaf(leaf) => {
            let widest = (1..leaf.len()).filter_map(|i| leaf.gap_before(i)).max_by_key(VirtRange::len);
            let addr = widest.map_or(leaf.vmas()[0].end + (1 << 20), |free| free.start + free.len() / 2);
            InsertCost { splits: leaf.is_full().into(), splits_node: leaf.is_full(), addr }
        }
        NodeRef::Inner(inner) => {
            let children = (0..inner.len()).map(|i| most_expensive(inner.child(i).unwrap()));
            let InsertCost { splits, splits_node, addr } = children.max().unwrap();
            let splits_node = splits_node && inner.is_full();
            InsertCost { splits: splits + u32::from(splits_node), splits_node, addr }
        }
    }
}

/// Makes reserved inserts where they cost the most pages, with removals in between, while no page
/// can be allocated.
#[test]
fn reserved_inserts_never_fail() {
    const STEP: u64 = 1 << 32;
    for round in 0..rounds(1_000) {
        let (mut rng, mem, mut tree) = (Rng(round + 1), Memory::new(), new());
        let full = [0, 1, 2, 55, 56, 57, 112, 56 * 101, 56 * 102, 56 * 103, 56 * 153];
        let vmas = full[(round % if cfg!(miri) { 7 } else { 11 }) as usize] + rng.below(3);
        let mut starts: BTreeSet<u64> = (1..=vmas).map(|i| i * STEP).collect();
        starts.iter().for_each(|&start| add(&mut tree, &mem, seg(start, 1)));
        let inserts = [1, 2, 3, 7, 60, 150][rng.below(6) as usize];
        tree.reserve(&mem, inserts).unwrap();
        mem.left.set(0);
        for _ in 0..inserts {
            while rng.below(3) == 0 && !starts.is_empty() {
                // Removes adjacent VMAs, and with them leaves and levels.
                let from = *starts.range(rng.below(vmas * STEP)..).next().or(starts.first()).unwrap();
                let most = [1, 50, 3_000][rng.below(3) as usize];
                let removed: Vec<u64> = starts.range(from..).take(rng.below(most) as usize + 1).copied().collect();
                for start in removed {
                    assert!(tree.remove(&mem, start).is_some() && starts.remove(&start));
                }
                assert!(tree.spares() >= tree.pages_needed(tree.reserved_inserts));
            }
            if rng.below(40) == 0 {
                tree.remove_all(&mem);
                starts.clear();
            }
            let at = tree.root().map_or(STEP, |root| most_expensive(root).addr);
            let insert = if rng.below(2) == 0 { VmaTree::push } else { VmaTree::insert };
            insert(&mut tree, seg(at, 1)).expect("a reserved insert failed");
            starts.insert(at);
        }
        assert!(check(&tree, &mem).iter().map(|seg| seg.start).eq(starts));
        tree.clear(&mem);
        assert_eq!(mem.live(), 0);
    }
}

#[test]
fn reserve_allocates_no_more_pages_than_needed() {
    let (mem, mut tree) = (Memory::new(), new());
    for i in 0..56 {
        add(&mut tree, &mem, seg(i * 8, 4));
        assert_eq!(mem.live(), 1, "one leaf with room for the insert needs one page");
    }
    tree.reserve(&mem, 1).unwrap();
    assert_eq!(mem.live(), 3, "a full leaf: reserve adds a leaf and a root");
    tree.reserve(&mem, 1).unwrap();
    assert_eq!(mem.live(), 3, "the reserved pages are there already");
    tree.reserve(&mem, 2).unwrap();
    assert_eq!(mem.live(), 4, "a second insert may take another leaf");
    tree.remove(&mem, 0).unwrap();
    assert_eq!(mem.live(), 4, "a removal keeps the reserved pages");
    tree.trim(&mem);
    assert_eq!((mem.live(), tree.spares()), (1, 0));
    check(&tree, &mem);
    (56..300).for_each(|i| add(&mut tree, &mem, seg(i * 8, 4)));
    let spares = tree.spares();
    tree.remove(&mem, 299 * 8).unwrap();
    assert!(spares > 0 && tree.spares() == spares, "a removal frees no page that was spare before");
    tree.trim(&mem);
    (1..299).for_each(|i| assert!(tree.remove(&mem, i * 8).is_some()));
    assert_eq!((mem.live(), tree.len()), (0, 0), "an empty node was not freed");
}

/// Lets each allocation fail in turn.
#[test]
fn a_failed_reserve_changes_nothing() {
    for vmas in [0, 56, if cfg!(miri) { 57 } else { 56 * 102 }] {
        let (mem, mut tree) = (Memory::new(), new());
        (0..vmas).for_each(|i| add(&mut tree, &mem, seg(i * 8, 4)));
        tree.trim(&mem);
        let (before, live) = (check(&tree, &mem), mem.live());
        for left in 0.. {
            mem.left.set(left);
            if tree.reserve(&mem, 3).is_ok() {
                assert_eq!(left, tree.pages_needed(3));
                break;
            }
            assert_eq!((check(&tree, &mem), mem.live()), (before.clone(), live));
        }
        tree.insert(seg(4, 4)).unwrap();
        check(&tree, &mem);
        tree.clear(&mem);
        assert_eq!(mem.live(), 0);
    }
}

/// Without enough reserved pages for all splits, an insert fails.
#[test]
fn an_insert_without_pages_for_all_its_splits_changes_nothing() {
    // All leaves and the root are full: an insert takes a leaf, an inner node and a root.
    let vmas = 56 * 102;
    let (mem, mut tree) = (Memory::new(), new());
    (0..vmas).for_each(|i| add(&mut tree, &mem, seg(i * 8, 4)));
    tree.trim(&mem);
    for spares in 0..3 {
        assert_eq!(tree.spares(), spares);
        assert!(!matches!(catch_unwind(AssertUnwindSafe(|| tree.insert(seg(4, 1)))), Ok(Ok(()))));
        assert_eq!(check(&tree, &mem).len() as u64, vmas);
        tree.spares.push(Page::alloc(&mem).unwrap());
        tree.pages += 1;
    }
    tree.insert(seg(4, 1)).unwrap();
    assert_eq!((check(&tree, &mem).len() as u64, tree.depth(), tree.spares()), (vmas + 1, 3, 0));
    tree.clear(&mem);
    assert_eq!(mem.live(), 0);
}

/// A contract violation panics with debug assertions, and is refused without.
#[test]
fn contract_violations_change_nothing() {
    // Three levels: a neighbour is in the same leaf, in the next leaf, or below the next inner
    // node.
    let vmas = if cfg!(miri) { 60 } else { 56 * 110 };
    let (mem, mut tree) = (Memory::new(), new());
    (0..vmas).for_each(|i| add(&mut tree, &mem, seg(i * 8, 4)));
    tree.reserve(&mem, 1).unwrap();
    let before = check(&tree, &mem);
    // Tests the first, the second and the last VMA of each leaf.
    for at in (2..vmas - 1).filter(|i| (i + 1) % 56 < 3).map(|i| i * 8) {
        let overlaps = [(at, at + 4), (at - 1, at + 1), (at + 3, at + 5), (at - 4, at + 8), (at + 4, at + 9)];
        for (start, end) in overlaps.into_iter().chain([(at + 5, at + 5), (at + 6, at + 5)]) {
            let mut broken = seg(start, 0);
            broken.end = end;
            let refused = catch_unwind(AssertUnwindSafe(|| tree.insert(broken)));
            assert_eq!(refused.unwrap_or(Err(broken)), Err(broken));
        }
        for (start, end) in [(at + 1, at + 1), (at + 1, at), (at, at + 9), (at - 5, at + 4)] {
            let change = |seg: &mut Seg| (seg.start, seg.end) = (start, end);
            let refused = catch_unwind(AssertUnwindSafe(|| tree.update(at, change)));
            assert_eq!(refused.unwrap_or(None), None);
            let here = VirtRange { start: at, end: at + 4 };
            let refused = catch_unwind(AssertUnwindSafe(|| tree.change(here, change)));
            assert!(refused.is_ok_and(|end| end == Some(here.end)) != cfg!(debug_assertions));
        }
        assert_eq!(check(&tree, &mem), before);
    }
    assert_eq!((tree.update(1, |_| ()), tree.remove(&mem, 1)), (None, None));
    tree.clear(&mem);
    assert_eq!(mem.live(), 0);
}
