//! Nodes of the VMA tree: whole pages that the caller allocates. Only this module accesses their
//! memory.
//!
//! * A [`Page`] is 4 KiB that the tree owns and does not use yet. [`SpareNodes`] is a list of
//!   pages.
//! * A [`Node`] is a page in use, as a [`Leaf`] or an [`Inner`] node. It owns the page as a `Box`
//!   owns its memory, so that the borrow checker rules out access to a freed node. Only freeing is
//!   explicit: a dropped handle leaks its page, which is safe.
//!
//! Both kinds of nodes keep each field in an array of its own, because a search reads one field of
//! many entries: the 56 starts of a leaf are seven cache lines, the 56 VMAs themselves are
//! fifty-six.

use core::marker::PhantomData;
use core::mem::{MaybeUninit, align_of, size_of};
use core::ptr::{self, NonNull};

use super::edit::NodeContext;
use super::inner::Inner;
use super::tree::Interval;
use crate::addr::VirtRange;

/// The size and the alignment of a node, in bytes.
pub(super) const NODE_SIZE: usize = 4096;
/// The maximum number of children of an inner node.
pub(super) const FANOUT: usize = 102;
/// The number of 8-byte words of a leaf after its head.
const BODY_WORDS: usize = (NODE_SIZE - size_of::<Head>()) / 8;
/// The number of adjacent inserts after which a full leaf is split at the place of the next insert;
/// see [`Leaf::insert_full`].
const SEQUENTIAL_INSERTS: u16 = 16;

/// A source of memory for nodes.
///
/// # Safety
///
/// Each page that [`alloc`](NodeMemory::alloc) returns must be 4096 bytes, aligned to 4096,
/// writable from every CPU, and used for nothing else until [`free`](NodeMemory::free) gets it.
pub unsafe trait NodeMemory {
    /// Allocates a page with any contents. Returns `None` if there is no memory.
    fn alloc(&self) -> Option<NonNull<u8>>;

    /// Frees a page that `alloc` returned.
    ///
    /// # Safety
    ///
    /// `node` came from `alloc` of this [`NodeMemory`], was not freed since, and no reference to it
    /// is left.
    unsafe fn free(&self, node: NonNull<u8>);
}

/// A page of [`NODE_SIZE`] bytes from a [`NodeMemory`], which the tree owns and does not use. Its
/// contents have no meaning.
#[repr(transparent)]
pub(super) struct Page(NonNull<u8>);

// SAFETY: a page is memory that nothing else uses and every CPU may write (contract of
// `NodeMemory`).
unsafe impl Send for Page {}
// SAFETY: a shared reference to a page gives no access to it.
unsafe impl Sync for Page {}

impl Page {
    /// Allocates a page; `None` if there is no memory.
    pub(super) fn alloc(mem: &(impl NodeMemory + ?Sized)) -> Option<Page> {
        let page = mem.alloc()?;
        debug_assert!(page.as_ptr().addr().is_multiple_of(NODE_SIZE));
        Some(Page(page))
    }

    /// Frees the page.
    ///
    /// # Safety
    ///
    /// The page came from `mem`.
    pub(super) unsafe fn free(self, mem: &(impl NodeMemory + ?Sized)) {
        // SAFETY: the caller guarantees that the page came from `mem`. This handle owned it, so it
        // is freed once, and no reference to it is left.
        unsafe { mem.free(self.0) }
    }

    /// Makes the page an empty leaf.
    pub(super) fn into_leaf<V: Interval>(self) -> Node<V> {
        const { Leaf::<V>::LAYOUT };
        let page = self.0.cast::<Head>();
        // SAFETY: the handle owns the page, which is large and aligned enough for a `Leaf`. A
        // written head makes the memory a valid `Leaf` for Rust, because all other fields are
        // `MaybeUninit`. With all starts written it is an empty leaf of the tree.
        unsafe {
            page.write(Head { kind: Kind::Leaf, len: 0, last_insert: 0, sequential: 0 });
            page.cast::<Leaf<V>>().as_mut().columns().0.fill(MaybeUninit::new(Sorted::NONE));
        }
        Node { page, marker: PhantomData }
    }

    /// Makes the page an empty inner node.
    pub(super) fn into_inner<V: Interval>(self) -> Node<V> {
        const { assert!(size_of::<Inner<V>>() <= NODE_SIZE && align_of::<Inner<V>>() <= NODE_SIZE) };
        let page = self.0.cast::<Head>();
        // SAFETY: the handle owns the page, which is large and aligned enough for an `Inner`. A
        // head and zeros are a valid `Inner` for Rust: zero is a valid `u64`, and zero is the
        // `None` of an `Option<Node>`, because `Node` is a transparent `NonNull`. With all starts
        // and ends set to [`Sorted::NONE`] it is an empty inner node of the tree.
        unsafe {
            ptr::write_bytes(self.0.as_ptr(), 0, NODE_SIZE);
            page.write(Head { kind: Kind::Inner, len: 0, last_insert: 0, sequential: 0 });
            page.cast::<Inner<V>>().as_mut().clear_tail(0..FANOUT);
        }
        Node { page, marker: PhantomData }
    }
}

/// A list of pages that are kept for later inserts, linked through their first word.
pub(super) struct SpareNodes {
    first: Option<Page>,
    len: usize,
}

impl SpareNodes {
    /// Returns an empty list.
    pub(super) const fn new() -> SpareNodes {
        SpareNodes { first: None, len: 0 }
    }

    /// Returns the number of pages.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a page.
    pub(super) fn push(&mut self, page: Page) {
        // SAFETY: the handle owns the page, which is large and aligned enough for a pointer.
        unsafe { page.0.cast::<Option<Page>>().write(self.first.take()) };
        self.first = Some(page);
        self.len += 1;
    }

    /// Removes a page and returns it.
    pub(super) fn pop(&mut self) -> Option<Page> {
        let page = self.first.take()?;
        // SAFETY: `push` wrote the link, and only this list could write to the page since. The link
        // is read once: from here on the contents of the page have no meaning.
        self.first = unsafe { page.0.cast::<Option<Page>>().read() };
        self.len -= 1;
        Some(page)
    }
}

/// The kind of a node.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Leaf,
    Inner,
}

/// The first word of every node.
#[repr(C)]
pub(super) struct Head {
    /// Set when the page becomes a node, and never changed.
    kind: Kind,
    /// The number of entries.
    pub(super) len: u16,
    /// In a leaf, the index of the last insert.
    last_insert: u16,
    /// In a leaf, the number of consecutive inserts that each went next to the insert before.
    sequential: u16,
}

/// A node of the tree: owns a page, which holds a valid [`Leaf`] or [`Inner`] according to its
/// head.
#[repr(transparent)]
pub(super) struct Node<V> {
    page: NonNull<Head>,
    marker: PhantomData<V>,
}

// SAFETY: a node owns its page, its VMAs and its children as a `Box` would, and shares nothing with
// another node.
unsafe impl<V: Send> Send for Node<V> {}
// SAFETY: a shared node gives shared references only, and has no interior mutability.
unsafe impl<V: Sync> Sync for Node<V> {}

/// The contents of a node, for reading.
pub(super) enum NodeRef<'a, V> {
    Leaf(&'a Leaf<V>),
    Inner(&'a Inner<V>),
}

/// The contents of a node, for changing.
pub(super) enum NodeMut<'a, V> {
    Leaf(&'a mut Leaf<V>),
    Inner(&'a mut Inner<V>),
}

impl<V: Interval> Node<V> {
    /// Returns the head.
    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: `Leaf` and `Inner` both begin with a `Head`, the page holds one of them, and
        // `self` is borrowed for as long as the reference lives.
        unsafe { self.page.as_ref() }
    }

    /// Returns the contents for reading.
    #[inline]
    pub(super) fn get(&self) -> NodeRef<'_, V> {
        match self.head().kind {
            // SAFETY: according to its head the page holds a `Leaf`, and `self`, its only owner,
            // stays borrowed.
            Kind::Leaf => NodeRef::Leaf(unsafe { self.page.cast().as_ref() }),
            // SAFETY: according to its head the page holds an `Inner`, and `self`, its only owner,
            // stays borrowed.
            Kind::Inner => NodeRef::Inner(unsafe { self.page.cast().as_ref() }),
        }
    }

    /// Returns the contents for changing.
    #[inline]
    pub(super) fn get_mut(&mut self) -> NodeMut<'_, V> {
        match self.head().kind {
            // SAFETY: according to its head the page holds a `Leaf`. `self`, its only owner, stays
            // borrowed mutably, and the reference to the head is gone.
            Kind::Leaf => NodeMut::Leaf(unsafe { self.page.cast().as_mut() }),
            // SAFETY: according to its head the page holds an `Inner`. `self`, its only owner,
            // stays borrowed mutably, and the reference to the head is gone.
            Kind::Inner => NodeMut::Inner(unsafe { self.page.cast().as_mut() }),
        }
    }

    /// Returns the number of entries.
    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.head().len)
    }

    /// Returns the maximum number of entries.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        match self.head().kind {
            Kind::Leaf => Leaf::<V>::CAPACITY,
            Kind::Inner => FANOUT,
        }
    }

    /// Returns the span of the VMAs in the node's subtree; `None` if there are none.
    pub(super) fn extent(&self) -> Option<Extent> {
        match self.get() {
            NodeRef::Leaf(leaf) => leaf.extent(),
            NodeRef::Inner(inner) => inner.extent(),
        }
    }

    /// Returns the length of the largest gap between two VMAs in the node's subtree.
    pub(super) fn largest_gap(&self) -> u64 {
        match self.get() {
            NodeRef::Leaf(leaf) => leaf.largest_gap(),
            NodeRef::Inner(inner) => inner.largest_gap(),
        }
    }

    /// Moves all entries of `right`, the next node of the same level, to the end of this one, where
    /// they must fit. Returns the page of `right`.
    pub(super) fn absorb(&mut self, mut right: Node<V>) -> Page {
        match (self.get_mut(), right.get_mut()) {
            (NodeMut::Leaf(left), NodeMut::Leaf(right)) => right.move_tail(0, left),
            (NodeMut::Inner(left), NodeMut::Inner(right)) => right.move_tail(0, left),
            _ => debug_assert!(false, "sibling nodes are a leaf and an inner node"),
        }
        right.into_page()
    }

    /// Ends the use of the node and returns its page. Leaks the children that it still has.
    pub(super) fn into_page(self) -> Page {
        Page(self.page.cast())
    }
}

/// The starts or the ends of a node's entries, sorted. The unused slots after them hold
/// [`Sorted::NONE`].
#[derive(Clone, Copy)]
pub(super) struct Sorted<'a> {
    slots: &'a [u64],
    len: usize,
}

impl<'a> Sorted<'a> {
    /// The value of unused slots, which no search address exceeds.
    pub(super) const NONE: u64 = u64::MAX;

    /// Returns the first `len` of `slots` as sorted addresses.
    #[inline]
    pub(super) fn new(slots: &'a [u64], len: usize) -> Self {
        Sorted { slots, len }
    }

    /// Returns the addresses.
    #[inline]
    pub(super) fn as_slice(self) -> &'a [u64] {
        &self.slots[..self.len]
    }

    /// Returns how many of the addresses are at most `addr`.
    ///
    /// Reads the first address of each cache line, and then counts within one line. No load waits
    /// for another, so the lines of a node that is not in the cache arrive in parallel: a lookup
    /// takes two thirds of the time of a binary search, which waits for three loads one after the
    /// other.
    #[inline(always)]
    pub(super) fn count_up_to(self, addr: u64) -> usize {
        let count = |some: &[u64; 7]| some.iter().filter(|&&other| other <= addr).count();
        // Cache lines begin with every eighth address from the seventh on, because the head of a
        // node is one word.
        let skipped = 8 * self.as_slice().chunks_exact(8).filter(|chunk| chunk[7] <= addr).count();
        let rest = &self.slots[skipped..];
        // Fewer than seven slots are left only at the end of a full node.
        let in_line = rest.first_chunk().map_or_else(|| rest.iter().filter(|&&other| other <= addr).count(), count);
        // An `addr` of `u64::MAX` also counts unused slots.
        (skipped + in_line).min(self.len)
    }
}

#[cfg(test)]
impl Sorted<'_> {
    /// Returns true if all unused slots hold [`Sorted::NONE`].
    pub(super) fn is_tail_clear(self) -> bool {
        self.slots[self.len..].iter().all(|addr| *addr == Self::NONE)
    }
}

/// The span of the VMAs of a subtree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    /// The start of the first VMA.
    pub(super) start: u64,
    /// The reserved start of the first VMA ([`Interval::reserved_start`]).
    pub(super) reserved: u64,
    /// The end of the last VMA.
    pub(super) end: u64,
}

/// Returns the gap between a VMA that ends at `end` and the next one, which reserves addresses from
/// `reserved` on.
///
/// A reservation may reach into the VMA before it, if a program mapped memory inside the guard gap
/// of a stack. The gap is empty then: the stack can't grow past that VMA anyway.
#[inline]
pub(super) fn gap_between(end: u64, reserved: u64) -> VirtRange {
    VirtRange { start: end, end: reserved.max(end) }
}

/// A leaf node: its entries are VMAs.
#[repr(C)]
pub(super) struct Leaf<V> {
    head: Head,
    /// [`CAPACITY`](Leaf::CAPACITY) starts, all initialised, followed by as many VMAs, of which the
    /// first `head.len` are initialised.
    body: [MaybeUninit<u64>; BODY_WORDS],
    marker: PhantomData<V>,
}

/// The two arrays of a leaf, with their unused slots: starts and VMAs.
type Columns<'a, V> = (&'a mut [MaybeUninit<u64>], &'a mut [MaybeUninit<V>]);

impl<V: Interval> Leaf<V> {
    /// The maximum number of VMAs of a leaf: 56, if a VMA has 64 bytes.
    pub(super) const CAPACITY: usize = BODY_WORDS * 8 / (8 + size_of::<V>());

    /// The layout that the casts below rely on, checked at compile time.
    const LAYOUT: () = {
        assert!(size_of::<V>() <= 64, "a VMA is 64 bytes at most");
        assert!(
            align_of::<V>() <= align_of::<u64>(),
            "a VMA is aligned to 8 bytes at most: VMAs follow an array of u64"
        );
        assert!(size_of::<Leaf<V>>() <= NODE_SIZE && align_of::<Leaf<V>>() <= NODE_SIZE);
    };

    /// Returns the number of VMAs.
    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.head.len)
    }

    /// Returns true if no further VMA fits.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len() == Self::CAPACITY
    }

    /// Returns the starts of the VMAs.
    #[inline]
    pub(super) fn starts(&self) -> Sorted<'_> {
        // SAFETY: the first `CAPACITY` words are starts, all initialised (see `body`).
        Sorted::new(unsafe { self.body[..Self::CAPACITY].assume_init_ref() }, self.len())
    }

    /// Returns the VMAs.
    #[inline]
    pub(super) fn vmas(&self) -> &[V] {
        let vmas = self.body[Self::CAPACITY..].as_ptr().cast::<V>();
        // SAFETY: `LAYOUT` and `CAPACITY` leave room for that many VMAs, aligned, after the starts.
        // The first `len` are initialised (see `body`), and they are borrowed with `self`.
        unsafe { core::slice::from_raw_parts(vmas, self.len()) }
    }

    /// Returns the VMAs for changing anything but their ranges.
    pub(super) fn vmas_mut(&mut self) -> &mut [V] {
        let len = self.len();
        let (_, vmas) = self.columns();
        // SAFETY: the first `len` are initialised (see `body`).
        unsafe { vmas[..len].assume_init_mut() }
    }

    /// Returns the index of the first VMA that ends above `addr`; the number of VMAs if there is
    /// none.
    #[inline(always)]
    pub(super) fn first_above(&self, addr: u64) -> usize {
        let i = self.starts().count_up_to(addr);
        // All VMAs up to here start at or below `addr`, so only the last of them can end above it.
        let reaches = |before: &usize| self.vmas().get(*before).is_some_and(|vma| vma.range().end > addr);
        i.checked_sub(1).filter(reaches).unwrap_or(i)
    }

    /// Returns the VMA that starts at `start`, with its index.
    pub(super) fn starting_at(&self, start: u64) -> Option<(usize, V)> {
        let i = self.first_above(start);
        let vma = self.vmas().get(i)?;
        (vma.range().start == start).then_some((i, *vma))
    }

    /// Returns the space for a VMA in place of the VMAs from `i` to `next - 1`: from the end of the
    /// VMA before to the start of VMA `next`.
    pub(super) fn space_for(&self, i: usize, next: usize, context: &NodeContext) -> VirtRange {
        let start = i.checked_sub(1).and_then(|i| self.vmas().get(i)).map_or(context.floor, |vma| vma.range().end);
        let end = self.starts().as_slice().get(next).copied().unwrap_or(context.ceiling);
        VirtRange { start, end }
    }

    /// Returns the two arrays for changing them.
    #[inline]
    fn columns(&mut self) -> Columns<'_, V> {
        let (starts, vmas) = self.body.split_at_mut(Self::CAPACITY);
        // SAFETY: `LAYOUT` and `CAPACITY` leave room for `CAPACITY` VMAs, aligned, after the
        // starts, and `MaybeUninit` needs no initialisation. The two halves do not overlap.
        let vmas = unsafe { core::slice::from_raw_parts_mut(vmas.as_mut_ptr().cast(), Self::CAPACITY) };
        (starts, vmas)
    }

    /// Overwrites VMA `i`.
    pub(super) fn set(&mut self, i: usize, vma: V) {
        let (starts, vmas) = self.columns();
        starts[i] = MaybeUninit::new(vma.range().start);
        vmas[i] = MaybeUninit::new(vma);
    }

    /// Inserts a VMA before VMA `i`. The leaf must not be full.
    pub(super) fn insert(&mut self, i: usize, vma: V) {
        let len = self.len();
        let (starts, vmas) = self.columns();
        starts.copy_within(i..len, i + 1);
        vmas.copy_within(i..len, i + 1);
        self.set(i, vma);
        self.head.sequential =
            if self.head.last_insert.abs_diff(i as u16) <= 1 { self.head.sequential.saturating_add(1) } else { 0 };
        self.head.last_insert = i as u16;
        self.head.len += 1;
    }

    /// Inserts a VMA before VMA `i` of a full leaf, which is split. Returns the new right sibling
    /// of this leaf, made of `page`.
    ///
    /// After adjacent inserts (`mmap` places each VMA below the one before) the leaf is split at
    /// the place of the new VMA, because the next ones will go there too. So the part that gets no
    /// more inserts is full; after a split in the middle it would stay half empty.
    pub(super) fn insert_full(&mut self, i: usize, vma: V, page: Page) -> Node<V> {
        let at = if self.head.sequential >= SEQUENTIAL_INSERTS { i } else { self.len() / 2 };
        let mut node = page.into_leaf();
        if let NodeMut::Leaf(right) = node.get_mut() {
            self.move_tail(at, right);
            match i <= at && !self.is_full() {
                true => self.insert(i, vma),
                false => right.insert(i - at, vma),
            }
        }
        node
    }

    /// Removes VMA `i`.
    pub(super) fn remove(&mut self, i: usize) {
        let len = self.len();
        let (starts, vmas) = self.columns();
        starts.copy_within(i + 1..len, i);
        vmas.copy_within(i + 1..len, i);
        starts[len - 1] = MaybeUninit::new(Sorted::NONE);
        self.head.len -= 1;
        self.head.sequential = 0;
    }

    /// Moves the VMAs from `at` on to the end of `to`.
    fn move_tail(&mut self, at: usize, to: &mut Leaf<V>) {
        let (from, into) = (at..self.len(), to.len()..to.len() + self.len() - at);
        let (starts, vmas) = self.columns();
        let (to_starts, to_vmas) = to.columns();
        to_starts[into.clone()].copy_from_slice(&starts[from.clone()]);
        to_vmas[into].copy_from_slice(&vmas[from.clone()]);
        starts[from.clone()].fill(MaybeUninit::new(Sorted::NONE));
        to.head.len += from.len() as u16;
        self.head.len = at as u16;
    }

    /// Returns the span of the VMAs; `None` if there are none.
    fn extent(&self) -> Option<Extent> {
        let (first, last) = (self.vmas().first()?, self.vmas().last()?);
        Some(Extent { start: first.range().start, reserved: reserved(first), end: last.range().end })
    }

    /// Returns the gap between VMA `i - 1` and VMA `i`; `None` if either does not exist.
    #[inline]
    pub(super) fn gap_before(&self, i: usize) -> Option<VirtRange> {
        let vmas = self.vmas();
        Some(gap_between(vmas.get(i.checked_sub(1)?)?.range().end, reserved(vmas.get(i)?)))
    }

    /// Returns the length of the larger of the gaps next to VMA `i`.
    pub(super) fn gap_around(&self, i: usize) -> u64 {
        self.gap_before(i).map_or(0, |s| s.len()).max(self.gap_before(i + 1).map_or(0, |s| s.len()))
    }

    /// Returns the length of the largest gap between two VMAs of this leaf.
    #[cold]
    pub(super) fn largest_gap(&self) -> u64 {
        self.vmas().windows(2).map(|w| gap_between(w[0].range().end, reserved(&w[1])).len()).max().unwrap_or(0)
    }
}

/// Returns the reserved start of a VMA, or its start if [`Interval::reserved_start`] returns a
/// higher address.
#[inline]
fn reserved<V: Interval>(vma: &V) -> u64 {
    vma.reserved_start().min(vma.range().start)
}
