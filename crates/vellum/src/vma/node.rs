//! The nodes of the VMA tree: whole pages of the caller's, and the one place that touches their memory.
//!
//! * A [`Page`] is 4 KiB that the tree owns and has no use for yet; [`Spares`] is a list of them.
//! * A [`Node`] is a page in use, as a [`Leaf`] or as an [`Inner`] node. It owns that page the way a `Box` owns its
//!   memory, so that the borrow checker sees to it that nobody holds a node that was freed. Only the freeing itself is
//!   explicit: a handle that is dropped leaks its page, which is safe.
//!
//! Both kinds keep each field of their entries in an array of its own, because a search reads one field of many entries:
//! the 56 starts of a leaf are seven cache lines, its 56 VMAs would be fifty-six.

use core::marker::PhantomData;
use core::mem::{MaybeUninit, align_of, size_of};
use core::ptr::{self, NonNull};

use super::inner::Inner;
use super::tree::{Above, Interval};
use crate::addr::VirtRange;

/// The size and the alignment of a node, in bytes.
pub(super) const NODE_SIZE: usize = 4096;
/// How many children an inner node holds at most.
pub(super) const FANOUT: usize = 102;
/// What follows the head of a leaf, in words.
const BODY: usize = (NODE_SIZE - size_of::<Head>()) / 8;
/// After so many inserts side by side, a full leaf expects more of them; see [`Leaf::insert_full`].
const RUN: u16 = 16;

/// Where the memory of nodes comes from.
///
/// # Safety
///
/// What [`alloc`](NodeMemory::alloc) returns must be 4096 bytes, aligned to as much, writable from every CPU, and used by
/// nobody else until it is given to [`free`](NodeMemory::free).
pub unsafe trait NodeMemory {
    /// A page with any content, or `None` if there is no memory.
    fn alloc(&self) -> Option<NonNull<u8>>;

    /// Takes back what `alloc` gave.
    ///
    /// # Safety
    ///
    /// `node` came from `alloc` of the same memory, was not given back since, and nothing refers to it any more.
    unsafe fn free(&self, node: NonNull<u8>);
}

/// Owns [`NODE_SIZE`] bytes of some [`NodeMemory`], whose content means nothing.
#[repr(transparent)]
pub(super) struct Page(NonNull<u8>);

// SAFETY: a page is memory that nobody else uses and that every CPU may write (the contract of `NodeMemory`).
unsafe impl Send for Page {}
// SAFETY: a shared page offers nothing at all.
unsafe impl Sync for Page {}

impl Page {
    pub(super) fn alloc(mem: &(impl NodeMemory + ?Sized)) -> Option<Page> {
        let page = mem.alloc()?;
        debug_assert!(page.as_ptr().addr().is_multiple_of(NODE_SIZE));
        Some(Page(page))
    }

    /// # Safety
    ///
    /// The page came from `mem`.
    pub(super) unsafe fn free(self, mem: &(impl NodeMemory + ?Sized)) {
        // SAFETY: it came from there (the caller), once, and as this handle owned it, no reference to it is left.
        unsafe { mem.free(self.0) }
    }

    pub(super) fn into_leaf<V: Interval>(self) -> Node<V> {
        const { Leaf::<V>::LAYOUT };
        let page = self.0.cast::<Head>();
        // SAFETY: the page is ours, and large and aligned enough for a `Leaf`. Writing the head
        // makes it one as far as Rust is concerned, as the rest is `MaybeUninit`; with all starts
        // written it is a valid, empty one.
        unsafe {
            page.write(Head { kind: Kind::Leaf, len: 0, last: 0, run: 0 });
            page.cast::<Leaf<V>>().as_mut().columns().0.fill(MaybeUninit::new(Sorted::NONE));
        }
        Node { page, marker: PhantomData }
    }

    pub(super) fn into_inner<V: Interval>(self) -> Node<V> {
        const { assert!(size_of::<Inner<V>>() <= NODE_SIZE && align_of::<Inner<V>>() <= NODE_SIZE) };
        let page = self.0.cast::<Head>();
        // SAFETY: the page is ours, and large and aligned enough for an `Inner`. Zeros and a head
        // are one as far as Rust is concerned: zero is a `u64`, and zero is the `None` of an
        // `Option` around a transparent `NonNull`, which `Node` is. With its columns cleared it is
        // a valid, empty one.
        unsafe {
            ptr::write_bytes(self.0.as_ptr(), 0, NODE_SIZE);
            page.write(Head { kind: Kind::Inner, len: 0, last: 0, run: 0 });
            page.cast::<Inner<V>>().as_mut().clear_behind(0..FANOUT);
        }
        Node { page, marker: PhantomData }
    }
}

/// Pages in waiting, linked through their first word.
pub(super) struct Spares {
    first: Option<Page>,
    len: usize,
}

impl Spares {
    pub(super) const fn new() -> Spares {
        Spares { first: None, len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, page: Page) {
        // SAFETY: the page is ours, and large and aligned enough for a pointer.
        unsafe { page.0.cast::<Option<Page>>().write(self.first.take()) };
        self.first = Some(page);
        self.len += 1;
    }

    pub(super) fn pop(&mut self) -> Option<Page> {
        let page = self.first.take()?;
        // SAFETY: `push` wrote the link, and nobody else could write to the page since. It is read once: from here on
        // the page's content means nothing.
        self.first = unsafe { page.0.cast::<Option<Page>>().read() };
        self.len -= 1;
        Some(page)
    }
}

/// What a node is.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Leaf,
    Inner,
}

/// The beginning of every node.
#[repr(C)]
pub(super) struct Head {
    /// Set when the page becomes a node, and never after.
    kind: Kind,
    /// How many entries there are.
    pub(super) len: u16,
    /// In a leaf, where the last insert went ...
    last: u16,
    /// ... and how many inserts in a row went next to the one before them.
    run: u16,
}

/// Owns a page that holds a valid [`Leaf`] or [`Inner`], whichever its head says.
#[repr(transparent)]
pub(super) struct Node<V> {
    page: NonNull<Head>,
    marker: PhantomData<V>,
}

// SAFETY: a node owns its page, its VMAs and its children as a `Box` would, and shares nothing with another node.
unsafe impl<V: Send> Send for Node<V> {}
// SAFETY: a shared node gives out shared references only, and has no interior mutability of its own.
unsafe impl<V: Sync> Sync for Node<V> {}

/// A node, to read.
pub(super) enum NodeRef<'a, V> {
    Leaf(&'a Leaf<V>),
    Inner(&'a Inner<V>),
}

/// A node, to change.
pub(super) enum NodeMut<'a, V> {
    Leaf(&'a mut Leaf<V>),
    Inner(&'a mut Inner<V>),
}

impl<V: Interval> Node<V> {
    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: `Leaf` and `Inner` both begin with a `Head`, the page holds one of them, and `self` is borrowed for as
        // long as the reference lives.
        unsafe { self.page.as_ref() }
    }

    #[inline]
    pub(super) fn get(&self) -> NodeRef<'_, V> {
        match self.head().kind {
            // SAFETY: the head says that the page holds a `Leaf`, and `self`, its only owner, stays borrowed.
            Kind::Leaf => NodeRef::Leaf(unsafe { self.page.cast().as_ref() }),
            // SAFETY: as above, for an `Inner`.
            Kind::Inner => NodeRef::Inner(unsafe { self.page.cast().as_ref() }),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self) -> NodeMut<'_, V> {
        match self.head().kind {
            // SAFETY: the head says that the page holds a `Leaf`; `self`, its only owner, stays borrowed mutably, and the
            // reference to the head is gone.
            Kind::Leaf => NodeMut::Leaf(unsafe { self.page.cast().as_mut() }),
            // SAFETY: as above, for an `Inner`.
            Kind::Inner => NodeMut::Inner(unsafe { self.page.cast().as_mut() }),
        }
    }

    /// How many entries there are.
    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.head().len)
    }

    /// How many entries there can be.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        match self.head().kind {
            Kind::Leaf => Leaf::<V>::CAPACITY,
            Kind::Inner => FANOUT,
        }
    }

    /// What the VMAs below it span; `None` if there are none.
    pub(super) fn extent(&self) -> Option<Extent> {
        match self.get() {
            NodeRef::Leaf(leaf) => leaf.extent(),
            NodeRef::Inner(inner) => inner.extent(),
        }
    }

    /// The largest free stretch between two VMAs below it.
    pub(super) fn largest_gap(&self) -> u64 {
        match self.get() {
            NodeRef::Leaf(leaf) => leaf.largest_gap(),
            NodeRef::Inner(inner) => inner.largest_gap(),
        }
    }

    /// Moves the entries of `right`, the next node of the same level, to the end of this one, where they must have room.
    pub(super) fn absorb(&mut self, mut right: Node<V>) -> Page {
        match (self.get_mut(), right.get_mut()) {
            (NodeMut::Leaf(left), NodeMut::Leaf(right)) => right.move_tail(0, left),
            (NodeMut::Inner(left), NodeMut::Inner(right)) => right.move_tail(0, left),
            _ => debug_assert!(false, "a leaf beside an inner node"),
        }
        right.into_page()
    }

    /// Ends the node's use. Children that it still has are leaked.
    pub(super) fn into_page(self) -> Page {
        Page(self.page.cast())
    }
}

/// Sorted addresses of a node. The room behind them holds the largest address there is.
#[derive(Clone, Copy)]
pub(super) struct Sorted<'a> {
    room: &'a [u64],
    len: usize,
}

impl<'a> Sorted<'a> {
    /// What stands in the room behind the addresses.
    pub(super) const NONE: u64 = u64::MAX;

    #[inline]
    pub(super) fn new(room: &'a [u64], len: usize) -> Self {
        Sorted { room, len }
    }

    /// Returns the addresses.
    #[inline]
    pub(super) fn as_slice(self) -> &'a [u64] {
        &self.room[..self.len]
    }

    /// Returns how many of the addresses are `addr` or less.
    ///
    /// One look at the first address of each cache line, then a count within one line. No load
    /// waits for another, so the lines of a cold node arrive together: a lookup takes two thirds of
    /// what it takes with a binary search, which waits three times.
    #[inline]
    pub(super) fn count_up_to(self, addr: u64) -> usize {
        let count = |some: &[u64; 7]| some.iter().filter(|&&other| other <= addr).count();
        // Lines begin with every eighth address from the seventh on, because a node begins with a head of one word.
        let skipped = 8 * self.as_slice().chunks_exact(8).filter(|chunk| chunk[7] <= addr).count();
        let rest = &self.room[skipped..];
        // Only at the end of a full node there are fewer.
        let in_line = rest.first_chunk().map_or_else(|| rest.iter().filter(|&&other| other <= addr).count(), count);
        // The last of all addresses is no less than what stands behind the addresses.
        (skipped + in_line).min(self.len)
    }
}

#[cfg(test)]
impl Sorted<'_> {
    /// Whether the room behind the addresses holds what it should.
    pub(super) fn is_clear_behind(self) -> bool {
        self.room[self.len..].iter().all(|addr| *addr == Self::NONE)
    }
}

/// What the VMAs of a subtree span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    /// The start of the first one.
    pub(super) start: u64,
    /// The reserved start of the first one.
    pub(super) reserved: u64,
    /// The end of the last one.
    pub(super) end: u64,
}

/// The free stretch between a VMA that ends at `end` and the next one, which wants all from `reserved` on.
///
/// A reservation may reach into the VMA before it (somebody mapped something inside the guard gap of a stack). It then
/// protects nothing: the stack cannot grow past that VMA anyway.
#[inline]
pub(super) fn stretch(end: u64, reserved: u64) -> VirtRange {
    VirtRange { start: end, end: reserved.max(end) }
}

/// A node that holds VMAs.
#[repr(C)]
pub(super) struct Leaf<V> {
    head: Head,
    /// [`CAPACITY`](Leaf::CAPACITY) starts, all initialised, and then as many VMAs, of which the
    /// first `head.len` are.
    body: [MaybeUninit<u64>; BODY],
    marker: PhantomData<V>,
}

/// The two arrays of a leaf, up to their capacity.
type Columns<'a, V> = (&'a mut [MaybeUninit<u64>], &'a mut [MaybeUninit<V>]);

impl<V: Interval> Leaf<V> {
    /// How many VMAs a leaf holds at most: 56 of 64 bytes.
    pub(super) const CAPACITY: usize = BODY * 8 / (8 + size_of::<V>());

    /// What the casts below rely on, checked when the tree is compiled.
    const LAYOUT: () = {
        assert!(size_of::<V>() <= 64, "a VMA is 64 bytes at most");
        assert!(align_of::<V>() <= align_of::<u64>(), "the VMAs of a leaf follow an array of u64");
        assert!(size_of::<Leaf<V>>() <= NODE_SIZE && align_of::<Leaf<V>>() <= NODE_SIZE);
    };

    #[inline]
    pub(super) fn len(&self) -> usize {
        usize::from(self.head.len)
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.len() == Self::CAPACITY
    }

    /// The starts of the VMAs.
    #[inline]
    pub(super) fn starts(&self) -> Sorted<'_> {
        // SAFETY: so many words are starts, initialised (see `body`).
        Sorted::new(unsafe { self.body[..Self::CAPACITY].assume_init_ref() }, self.len())
    }

    /// The VMAs.
    #[inline]
    pub(super) fn vmas(&self) -> &[V] {
        let vmas = self.body[Self::CAPACITY..].as_ptr().cast::<V>();
        // SAFETY: `LAYOUT` and `CAPACITY` make room for that many, aligned, behind the starts; the first `len` are
        // initialised (see `body`); and they are borrowed with `self`.
        unsafe { core::slice::from_raw_parts(vmas, self.len()) }
    }

    /// The VMAs, to change what is not their range.
    pub(super) fn vmas_mut(&mut self) -> &mut [V] {
        let len = self.len();
        let (_, vmas) = self.columns();
        // SAFETY: the first `len` are initialised (see `body`).
        unsafe { vmas[..len].assume_init_mut() }
    }

    /// The first VMA that ends above `addr`; how many there are if none does.
    #[inline(always)]
    pub(super) fn first_above(&self, addr: u64) -> usize {
        let i = self.starts().count_up_to(addr);
        // All VMAs up to here start at or below `addr`: only the last of them can reach above it.
        let reaches = |before: &usize| self.vmas().get(*before).is_some_and(|vma| vma.range().end > addr);
        i.checked_sub(1).filter(reaches).unwrap_or(i)
    }

    /// The VMA that starts at `start`, and its place.
    pub(super) fn starting_at(&self, start: u64) -> Option<(usize, V)> {
        let i = self.first_above(start);
        let vma = self.vmas().get(i)?;
        (vma.range().start == start).then_some((i, *vma))
    }

    /// Where the VMA before VMA `i` ends, and where VMA `next` starts.
    pub(super) fn bounds(&self, i: usize, next: usize, above: &Above) -> (u64, u64) {
        let floor = i.checked_sub(1).and_then(|i| self.vmas().get(i)).map_or(above.floor, |vma| vma.range().end);
        (floor, self.starts().as_slice().get(next).copied().unwrap_or(above.ceiling))
    }

    #[inline]
    fn columns(&mut self) -> Columns<'_, V> {
        let (starts, vmas) = self.body.split_at_mut(Self::CAPACITY);
        // SAFETY: as in `vmas`; and `MaybeUninit` needs no initialisation. The two halves do not overlap.
        let vmas = unsafe { core::slice::from_raw_parts_mut(vmas.as_mut_ptr().cast(), Self::CAPACITY) };
        (starts, vmas)
    }

    /// Overwrites VMA `i`.
    pub(super) fn set(&mut self, i: usize, vma: V) {
        let (starts, vmas) = self.columns();
        starts[i] = MaybeUninit::new(vma.range().start);
        vmas[i] = MaybeUninit::new(vma);
    }

    /// Puts a VMA before VMA `i`. The leaf must not be full.
    pub(super) fn insert(&mut self, i: usize, vma: V) {
        let len = self.len();
        let (starts, vmas) = self.columns();
        starts.copy_within(i..len, i + 1);
        vmas.copy_within(i..len, i + 1);
        self.set(i, vma);
        self.head.run = if self.head.last.abs_diff(i as u16) <= 1 { self.head.run.saturating_add(1) } else { 0 };
        self.head.last = i as u16;
        self.head.len += 1;
    }

    /// Puts a VMA before VMA `i` of a leaf that is full, and returns the new leaf to the right of this one.
    ///
    /// Where the inserts arrive side by side (`mmap` places each below the one before), more are to come: it splits there,
    /// which leaves a full leaf behind where a split in the middle would leave a half-empty one.
    pub(super) fn insert_full(&mut self, i: usize, vma: V, page: Page) -> Node<V> {
        let at = if self.head.run >= RUN { i } else { self.len() / 2 };
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

    /// Takes VMA `i` out.
    pub(super) fn remove(&mut self, i: usize) {
        let len = self.len();
        let (starts, vmas) = self.columns();
        starts.copy_within(i + 1..len, i);
        vmas.copy_within(i + 1..len, i);
        starts[len - 1] = MaybeUninit::new(Sorted::NONE);
        self.head.len -= 1;
        self.head.run = 0;
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

    fn extent(&self) -> Option<Extent> {
        let (first, last) = (self.vmas().first()?, self.vmas().last()?);
        Some(Extent { start: first.range().start, reserved: reserved(first), end: last.range().end })
    }

    /// The free stretch before VMA `i`, if there is a VMA before that.
    #[inline]
    pub(super) fn stretch(&self, i: usize) -> Option<VirtRange> {
        let vmas = self.vmas();
        Some(stretch(vmas.get(i.checked_sub(1)?)?.range().end, reserved(vmas.get(i)?)))
    }

    /// The larger of the free stretches on both sides of VMA `i`.
    pub(super) fn around(&self, i: usize) -> u64 {
        self.stretch(i).map_or(0, |s| s.len()).max(self.stretch(i + 1).map_or(0, |s| s.len()))
    }

    #[cold]
    pub(super) fn largest_gap(&self) -> u64 {
        self.vmas().windows(2).map(|w| stretch(w[0].range().end, reserved(&w[1])).len()).max().unwrap_or(0)
    }
}

/// What a VMA reserves; never above its start, whatever the VMA says.
#[inline]
fn reserved<V: Interval>(vma: &V) -> u64 {
    vma.reserved_start().min(vma.range().start)
}
