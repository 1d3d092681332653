//! Page tables as hardware finds them: read from the machine's memory, from the root down, with nothing of the engine but
//! the format of an entry.

use std::sync::atomic::Ordering;

use vellum::AddressSpace;
use vellum::addr::{FRAME_SIZE, Pfn, PhysAddr};
use vellum::arch::{Arch, Attrs, Kind};
use vellum::swap::{Slots, SwapRun};

use super::contents::NOTHING;
use super::host::Host;
use super::model::SLOTS;

/// A space on a simulated machine.
pub type Space<'m, H> = AddressSpace<'m, H, <H as vellum_sim::Simulated>::Arch>;

/// An entry that maps something.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    /// The first page that it maps.
    pub page: u64,
    /// How many.
    pub pages: u64,
    /// Where to.
    pub pfn: Pfn,
    pub attrs: Attrs,
}

/// All of a space's tables.
#[derive(Debug, Default)]
pub struct Tree {
    pub leaves: Vec<Leaf>,
    /// Pages with a marker.
    pub markers: Vec<u64>,
    /// Pages that are swapped out, and their slots.
    pub swapped: Vec<(u64, SwapRun)>,
    /// Tables, the root included.
    pub tables: Vec<Pfn>,
}

/// A word of the machine's memory.
pub fn word<H: Host>(host: &H, at: PhysAddr) -> u64 {
    host.hardware().arena().word(at).load(Ordering::Acquire)
}

/// What is in each of [`SLOTS`] of the page that begins here.
pub fn words<H: Host>(host: &H, page: PhysAddr) -> [u64; SLOTS.len()] {
    let words = host.hardware().arena().words(page, FRAME_SIZE as usize / 8);
    SLOTS.map(|slot| words[slot as usize].load(Ordering::Acquire))
}

/// The frames that the host has supplied memory for. The others are zeros, and to look at them would
/// make the host supply it.
pub struct Supplied(Option<Vec<bool>>);

impl Supplied {
    /// As of now: nothing may run.
    pub fn new<H: Host>(host: &H) -> Self {
        let arena = host.hardware().arena();
        let mut room = vec![0; 8 * arena.frames()];
        Supplied(arena.supplied(Pfn(0), &mut room).ok().map(Iterator::collect))
    }

    /// As the function of this name. Where the host does not say what it has supplied, all is looked at.
    pub fn words<H: Host>(&self, host: &H, page: Pfn) -> [u64; SLOTS.len()] {
        match &self.0 {
            Some(supplied) if !supplied[page.0 as usize] => NOTHING,
            _ => words(host, page.addr()),
        }
    }
}

/// Read a space's tables. Nothing may run in it.
///
/// # Panics
/// If a table other than the root is empty (INV-3), an entry is in transition, or what hangs there is no table.
pub fn tree<H: Host>(host: &H, space: &Space<'_, H>) -> Tree {
    let mut tree = Tree::default();
    descend(host, space, space.root(), space.arch().levels(), 0, &mut tree);
    tree
}

fn descend<H: Host>(host: &H, space: &Space<'_, H>, table: Pfn, level: u8, base: u64, tree: &mut Tree) {
    let arch = space.arch();
    tree.tables.push(table);
    let shift = arch.level_shift(level);
    let mut used = 0;
    for index in 0..1u64 << arch.index_bits() {
        let mut raw = word(host, PhysAddr(table.addr().0 + 8 * index));
        let va = base + (index << shift);
        if va >= arch.user_end() {
            // The rest of a root is the host's.
            break;
        }
        if arch.kind(raw, level) == Kind::Leaf {
            raw = arch.single(raw, index as usize);
        }
        match arch.kind(raw, level) {
            Kind::None => continue,
            Kind::Table => {
                assert!(level > 1, "{va:#x}: a pointer to a table in a table of pages");
                descend(host, space, arch.table_addr(raw).pfn(), level - 1, va, tree);
            }
            Kind::Leaf => tree.leaves.push(Leaf {
                page: va >> arch.page_shift(),
                pages: 1 << (shift - arch.page_shift()),
                pfn: arch.leaf_pfn(raw, level),
                attrs: arch.attrs(raw, level) | recorded(host, arch, (table, level), index),
            }),
            Kind::Swap => {
                let first = va >> arch.page_shift();
                let pages = first..first + (1 << (shift - arch.page_shift()));
                tree.swapped.extend(pages.map(|page| (page, slots(arch, raw, page - first))));
            }
            Kind::Marker => tree.markers.push(va >> arch.page_shift()),
            kind => panic!("{va:#x}: {kind:?} ({raw:#x}) at rest, at level {level}"),
        }
        used += 1;
    }
    let root = level == arch.levels();
    assert!(used > 0 || root, "INV-3: {table:?} for {base:#x}, level {level}, is hooked and empty");
}

/// What hardware has recorded of a leaf: in any entry of its block, if it is joined to one.
fn recorded<A: Arch>(host: &impl Host, arch: &A, (table, level): (Pfn, u8), index: u64) -> Attrs {
    let entry = |index: u64| word(host, PhysAddr(table.addr().0 + 8 * index));
    let joined = A::JOINED != 0 && entry(index) & A::JOINED != 0;
    let bits = if joined { arch.block_bits(level) } else { 0 };
    let block = index >> bits << bits..(index >> bits << bits) + (1 << bits);
    block.fold(Attrs::empty(), |all, i| all | arch.attrs(entry(i), level) & Attrs::HARDWARE)
}

/// Where the contents of a page are.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    Nowhere,
    Memory(PhysAddr),
    Swap(SwapRun),
}

/// The slots of the n-th page of what an entry says is swapped out.
fn slots(arch: &impl Arch, raw: u64, n: u64) -> SwapRun {
    let swapped = arch.swapped(raw);
    let first = ((swapped.slot + n) as u32) << arch.page_order();
    SwapRun { device: swapped.device, slots: Slots { first, count: 1 << arch.page_order() } }
}

/// Where a page is. It must stay so meanwhile.
pub fn find<H: Host>(host: &H, space: &Space<'_, H>, page: u64) -> Place {
    let arch = space.arch();
    let va = page << arch.page_shift();
    let (mut table, mut level) = (space.root(), arch.levels());
    loop {
        let raw = word(host, PhysAddr(table.addr().0 + 8 * arch.index(va, level) as u64));
        match arch.kind(raw, level) {
            Kind::Table => (table, level) = (arch.table_addr(raw).pfn(), level - 1),
            Kind::Leaf => {
                let inside = va & ((1 << arch.level_shift(level)) - 1);
                let raw = arch.single(raw, arch.index(va, level));
                return Place::Memory(PhysAddr(arch.leaf_addr(raw, level).0 + inside));
            }
            Kind::Swap => {
                let inside = va & ((1 << arch.level_shift(level)) - 1);
                return Place::Swap(slots(arch, raw, inside >> arch.page_shift()));
            }
            _ => return Place::Nowhere,
        }
    }
}

/// Frames that a page takes.
pub fn frames_per_page(arch: &impl Arch) -> u64 {
    (1u64 << arch.page_shift()) / FRAME_SIZE
}
