//! The floor: a lower bound of each operation, as a bare loop on real memory.
//!
//! The x86-64 PTEs of the region lie in page tables; an array has a 32-byte descriptor for each
//! frame. Unmapping goes folio by folio, and knows that each is mapped whole: it reads the first
//! PTE, clears all of them, subtracts them from the counts in the descriptor of the folio's head
//! frame, and puts the folio on a free list when none remain; then the page tables go on the list.
//! Protecting clears the write bit of each PTE. Forking clears the write bits, writes the same PTEs
//! into the child's page tables, and adds them to the folio's counts.
//!
//! It leaves out all that makes a memory manager: the search for runs, locks, atomic operations,
//! TLB flushes and the wait for them, rmap, statistics, memcgs, LRU lists, the merging of free
//! blocks, VMAs, the walk from the root.
//!
//! Which way is fastest depends on the machine and on the order of the frames, so each run tries
//! all [`WAYS`], and the floor is the fastest: it prefetches the descriptors of the folios that it
//! comes to next, as each of their first PTEs names one, some distance ahead; or it first collects
//! the frames in a bitmap, which sorts them, and comes to the descriptors in the order of memory.
//!
//! Which frames the folios have is a [`Placement`]. In memory that a churn left in pieces, these
//! are the frames that the engine allocates there.
//!
//! `tools/floor/floor.c` is the same floor of an unmap once more, with a bitmap of free folios and
//! without this code; a test compares the folios that both free, and `./x floor` prints both times.
//!
//! Swap-out and swap-in are in [`swapped`], and reads and writes of files in [`disk_file`].
//! `munmap`, `dontneed` and `exit` are the same loop here, as they differ only in what the floor
//! leaves out. Calls on parts of a region have no floor.

mod disk_file;
#[cfg(test)]
mod in_c;
mod placement;
mod swapped;

use std::hint::black_box;

use bytemuck::Zeroable;
use vellum_linux::region::{LINE, evict_caches};
use vellum_linux::time::Stopwatch;
use vellum_linux::workload::arm::Arm;
use vellum_linux::workload::case::{Case, Op};
use vellum_linux::workload::data::{Rewrites, Steps};
use vellum_linux::workload::files::FileOp;

use crate::bench::contender::{Column, Contender, Sample, Skip};
use crate::bench::engine::Engine;
use crate::bench::memory::Mapped;
use disk_file::DiskFile;
pub use placement::Placement;
use swapped::Swap;

/// A way in which the floor comes to the descriptors.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// In the order of addresses. The descriptor so many folios ahead is prefetched.
    Ahead(usize),
    /// In the order of frames.
    Sorted,
}

/// The ways in which each run performs an operation.
const WAYS: [Way; 4] = [Way::Ahead(0), Way::Ahead(8), Way::Ahead(24), Way::Sorted];
/// PTEs in a page table.
const ENTRIES: usize = 512;
/// The frame number of the region's first page. It is not zero, so that no valid PTE has frame 0.
const FIRST_FRAME: u64 = 0x10_0000;

const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// The leaf bit of a PTE of an upper level.
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
const FRAME: u64 = 0x000f_ffff_ffff_f000;
/// The attributes of each PTE of a touched, writable, anonymous region.
const ATTRIBUTES: u64 = PRESENT | WRITE | USER | ACCESSED | DIRTY | NO_EXECUTE;

/// The descriptor of a frame: 32 bytes, half a cache line, as in the engine.
#[derive(Clone, Copy, Zeroable)]
#[repr(C, align(32))]
struct Descriptor {
    references: u32,
    maps: u32,
    /// The next entry of the free list: index + 1, or zero at the end.
    next: u64,
    /// The number of the folio's first page among the region's pages, in the order of frames.
    page: u64,
    /// What the floor has no use for.
    rest: u64,
}

const _: () = assert!(size_of::<Descriptor>() == 32);

/// A list of free folios, linked through the descriptors of their head frames.
#[derive(Default)]
struct FreeList {
    head: u64,
    folios: u64,
}

impl FreeList {
    #[inline(always)]
    fn push(&mut self, index: usize, descriptor: &mut Descriptor) {
        descriptor.next = self.head;
        self.head = index as u64 + 1;
        self.folios += 1;
    }
}

/// The contender that does the least work for each operation.
#[derive(Default)]
pub struct Floor {
    /// The engine that knows the frames of aged memory.
    engine: Option<Engine>,
    arena: Option<Arena>,
    swap: Option<Swap>,
    file: Option<DiskFile>,
}

impl Floor {
    /// Returns a floor that takes the frames of aged memory from `engine`.
    pub fn beside(engine: Engine) -> Floor {
        Floor { engine: Some(engine), ..Floor::default() }
    }

    fn placement(&self, case: &Case) -> Result<Placement, Skip> {
        match &self.engine {
            Some(engine) if case.arm == Arm::Aged => Ok(Placement::known(case, &engine.frames(case)?)),
            _ => Ok(Placement::in_order(case)),
        }
    }
}

/// The memory of one case, kept between its runs.
pub struct Arena {
    /// The case.
    pub case: Case,
    /// The frames of its folios.
    placement: Placement,
    /// The region's PTEs, page table after page table.
    entries: Mapped<u64>,
    /// The PTEs that a fork fills in for the child.
    copies: Mapped<u64>,
    /// The descriptors of the region's frames, then those of its page tables.
    descriptors: Mapped<Descriptor>,
    /// A bit for each of the region's frames, none of which is set before or after an operation.
    bitmap: Mapped<u64>,
}

impl Contender for Floor {
    fn column(&self) -> Column {
        Column::Floor
    }

    /// Leaves out calls on parts of a region, which cost what the floor lacks (VMAs, a walk, a
    /// flush); copy-on-write faults, as the floor has no faults; and the fork of a file's mapping,
    /// of which a child needs no PTE.
    fn does(&self, case: &Case, op: Op) -> bool {
        op.calls().is_none() && op.writes().is_none() && !(case.mapping.is_file() && op == Op::Fork)
    }

    fn prepare(&mut self, case: &Case) -> Result<(), Skip> {
        if self.arena.as_ref().is_none_or(|arena| arena.case != *case) {
            (self.arena, self.swap, self.file) = (None, None, None);
            let placement = self.placement(case)?;
            self.arena = Some(Arena::new(case, placement).map_err(|error| Skip::system("mmap", error))?);
        }
        Ok(())
    }

    fn run(&mut self, case: &Case, op: Op) -> Result<Sample, Skip> {
        let Some(arena) = self.arena.as_mut().filter(|arena| arena.case == *case) else {
            return Err(Skip::system("mmap", "no memory"));
        };
        if let Some(data) = op.data() {
            arena.fill();
            let swap = match &mut self.swap {
                Some(swap) => swap,
                None => self.swap.insert(Swap::new(case).map_err(|error| Skip::system("mmap", error))?),
            };
            let sample = swap.measure(arena, data)?;
            // It reads each page: of sparse reads it has no time.
            return Ok(Sample { back: sample.back.filter(|_| op.reads() == Some(Steps::EveryPage)), ..sample });
        }
        let mut before = Sample::default();
        if let Some(op) = op.file() {
            arena.fill();
            let file = match &mut self.file {
                Some(file) => file,
                None => self.file.insert(DiskFile::new(case).map_err(|error| Skip::system("mmap", error))?),
            };
            before = file.measure(arena, op)?;
            if !matches!(op, FileOp::Pageout | FileOp::PageoutDirty) {
                return Ok(before);
            }
        }
        let mut fastest = None;
        for way in WAYS {
            arena.fill();
            if let Some(rewrites) = op.rewrites() {
                arena.make_lazyfree(rewrites);
            }
            evict_caches()?;
            let watch = Stopwatch::start();
            let freed = arena.perform(op, way);
            let time = watch.time();
            black_box(freed);
            fastest = [fastest, Some(time)].into_iter().flatten().min_by_key(|time| time.cpu_ns);
        }
        let op = before.op + fastest.ok_or_else(|| Skip::system("floor", "no way"))?;
        Ok(Sample { op, ..Sample::default() })
    }
}

impl Arena {
    /// Allocates the memory of a case whose folios have the frames of `placement`.
    ///
    /// # Errors
    /// `mmap` failed.
    pub fn new(case: &Case, placement: Placement) -> rustix::io::Result<Arena> {
        let entries = if case.huge { case.folios() } else { case.pages() } as usize;
        Ok(Arena {
            case: *case,
            entries: Mapped::zeroed(entries)?,
            copies: Mapped::zeroed(entries)?,
            descriptors: Mapped::zeroed(placement.frames + entries.div_ceil(ENTRIES))?,
            bitmap: Mapped::zeroed(placement.frames.div_ceil(u64::BITS as usize))?,
            placement,
        })
    }

    /// Fills in a fresh region, each folio mapped once in full. Not measured.
    pub fn fill(&mut self) {
        let leaf = if self.case.huge { LARGE } else { 0 };
        let (pages, entries) = (self.case.pages_per_folio(), self.entries_of_a_folio());
        self.descriptors.fill(Descriptor::zeroed());
        let mappings = entries as u32;
        for (folio, &head) in self.entries.chunks_exact_mut(entries).zip(&self.placement.heads) {
            for (entry, frame) in folio.iter_mut().zip(FIRST_FRAME + head as u64..) {
                *entry = frame << 12 | ATTRIBUTES | leaf;
            }
            // A file has a reference to each of its pages, too.
            let references = mappings + if self.case.mapping.is_file() { pages as u32 } else { 0 };
            self.descriptors[head] = Descriptor { references, maps: mappings, ..Zeroable::zeroed() };
        }
        let folios = self.descriptors.iter_mut().filter(|descriptor| descriptor.references > 0);
        (0..).step_by(pages as usize).zip(folios).for_each(|(page, descriptor)| descriptor.page = page);
        self.copies.fill(0);
    }

    /// Returns the number of PTEs that map a folio.
    fn entries_of_a_folio(&self) -> usize {
        if self.case.huge { 1 } else { self.case.pages_per_folio() as usize }
    }

    /// Clears the accessed and dirty bits of all pages that are not written again. Not measured.
    fn make_lazyfree(&mut self, rewrites: Rewrites) {
        let pages = if self.case.huge { ENTRIES as u64 } else { 1 };
        for (n, entry) in (0..).zip(self.entries.iter_mut()) {
            if !rewrites.includes(n * pages) {
                *entry &= !(ACCESSED | DIRTY);
            }
        }
    }

    /// Does the measured operation. Returns the folios freed, page tables included; for a fork, the
    /// folios shared.
    #[inline(never)]
    pub fn perform(&mut self, op: Op, way: Way) -> u64 {
        // With a constant, the compiler stores the PTEs of a small folio without a call.
        match self.entries_of_a_folio() {
            1 => self.perform_by(1, op, way),
            4 => self.perform_by(4, op, way),
            8 => self.perform_by(8, op, way),
            16 => self.perform_by(16, op, way),
            folio => self.perform_by(folio, op, way),
        }
    }

    /// Does the operation on folios that `folio` PTEs map.
    #[inline(always)]
    fn perform_by(&mut self, folio: usize, op: Op, way: Way) -> u64 {
        match op {
            Op::Protect => {
                self.entries.iter_mut().for_each(|entry| *entry &= !WRITE);
                0
            }
            Op::Fork => self.share(folio, way),
            Op::Reclaim(_) => self.free::<DIRTY>(folio, 0, way).folios,
            Op::File(_) => self.free::<0>(folio, self.case.pages_per_folio() as u32, way).folios,
            _ => {
                let mut free = self.free::<0>(folio, 0, way);
                let of_tables = self.placement.frames..;
                for (index, of_table) in of_tables.clone().zip(&mut self.descriptors[of_tables]) {
                    free.push(index, of_table);
                }
                free.folios
            }
        }
    }

    /// Unmaps and frees each folio without a PTE that has a bit of `STAYS`, and drops the `cached`
    /// references that its file has to it.
    #[inline(always)]
    fn free<const STAYS: u64>(&mut self, folio: usize, cached: u32, way: Way) -> FreeList {
        let Arena { entries, descriptors, bitmap, .. } = self;
        let mut free = FreeList::default();
        let change = |entries: &mut [u64], _: usize| {
            let goes = STAYS == 0 || entries.iter().fold(0, |all, entry| all | entry) & STAYS == 0;
            if goes {
                entries.fill(0);
            }
            goes
        };
        each_folio((entries, descriptors, bitmap), folio, way, change, |head, descriptor| {
            descriptor.maps = descriptor.maps.wrapping_sub(folio as u32);
            descriptor.references = descriptor.references.wrapping_sub(folio as u32 + cached);
            if descriptor.references == 0 {
                free.push(head, descriptor);
            }
        });
        free
    }

    /// Inserts the folio with this number into its file.
    #[inline(always)]
    fn insert(&mut self, folio: usize) {
        let Some(&head) = self.placement.heads.get(folio) else { return };
        let page = self.descriptors[head].page;
        let references = self.case.pages_per_folio() as u32;
        self.descriptors[head] = Descriptor { references, page, ..Zeroable::zeroed() };
    }

    /// Maps the folio with this number of a file.
    #[inline(always)]
    fn map(&mut self, folio: usize) {
        let Some(&head) = self.placement.heads.get(folio) else { return };
        let (entries, leaf) = (self.entries_of_a_folio(), if self.case.huge { LARGE } else { 0 });
        for (entry, frame) in self.entries[folio * entries..][..entries].iter_mut().zip(FIRST_FRAME + head as u64..) {
            *entry = frame << 12 | ATTRIBUTES | leaf;
        }
        let descriptor = &mut self.descriptors[head];
        descriptor.references = descriptor.references.wrapping_add(entries as u32);
        descriptor.maps = descriptor.maps.wrapping_add(entries as u32);
    }

    /// Shares all folios with a child: write-protects their PTEs, copies them, and counts the
    /// child's mappings. Returns the number of folios.
    #[inline(always)]
    fn share(&mut self, folio: usize, way: Way) -> u64 {
        let Arena { entries, copies, descriptors, bitmap, .. } = self;
        let change = |entries: &mut [u64], at: usize| {
            for (entry, copy) in entries.iter_mut().zip(&mut copies[at..][..folio]) {
                *entry &= !WRITE;
                *copy = *entry;
            }
            true
        };
        let mut folios = 0;
        each_folio((entries, descriptors, bitmap), folio, way, change, |_, descriptor| {
            descriptor.references = descriptor.references.wrapping_add(folio as u32);
            descriptor.maps = descriptor.maps.wrapping_add(folio as u32);
            folios += 1;
        });
        folios
    }
}

/// Calls `change` with the PTEs of each folio, of which `folio` map it, and the index of the first,
/// and, if that returns true, `count` with the number of the folio's head frame and its descriptor.
#[inline(always)]
fn each_folio(
    (entries, descriptors, bitmap): (&mut [u64], &mut [Descriptor], &mut [u64]),
    folio: usize,
    way: Way,
    mut change: impl FnMut(&mut [u64], usize) -> bool,
    mut count: impl FnMut(usize, &mut Descriptor),
) {
    const BITS: usize = u64::BITS as usize;
    let starts = (0..entries.len()).step_by(folio);
    let mut change = |entries: &mut [u64], at: usize| {
        // Hardware prefetches no PTEs of another page table.
        for line in (0..folio).step_by(LINE as usize / size_of::<u64>()) {
            prefetch_line(entries.as_ptr().wrapping_add(at + ENTRIES + line));
        }
        let entries = &mut entries[at..][..folio];
        let head = frame_of(entries[0]);
        change(entries, at).then_some(head)
    };
    match way {
        Way::Ahead(ahead) => {
            for at in starts {
                if let Some(&entry) = entries.get(at + ahead * folio) {
                    prefetch_line(descriptors.as_ptr().wrapping_add(frame_of(entry)));
                }
                let Some(head) = change(entries, at) else { continue };
                let Some(descriptor) = descriptors.get_mut(head) else { return };
                count(head, descriptor);
            }
        }
        Way::Sorted => {
            for at in starts {
                let Some(head) = change(entries, at) else { continue };
                let Some(word) = bitmap.get_mut(head / BITS) else { return };
                *word |= 1 << (head % BITS);
            }
            for (word, first) in bitmap.iter_mut().zip((0..).step_by(BITS)) {
                let mut bits = core::mem::take(word);
                while bits != 0 {
                    let head = first + bits.trailing_zeros() as usize;
                    let Some(descriptor) = descriptors.get_mut(head) else { return };
                    count(head, descriptor);
                    bits &= bits - 1;
                }
            }
        }
    }
}

/// Returns the index of the frame that a PTE maps.
#[inline(always)]
fn frame_of(entry: u64) -> usize {
    ((entry & FRAME) >> 12).wrapping_sub(FIRST_FRAME) as usize
}

/// Prefetches the cache line of an address.
#[inline(always)]
fn prefetch_line<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address has no effect that the program could see (Intel SDM vol.
    // 2B, PREFETCHh).
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch of any address is a hint that never faults (Arm ARM C6.2, PRFM).
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use vellum_linux::workload::case::TABLE_SPAN;
    use vellum_linux::workload::mapping::Mapping;

    use super::*;

    const BYTES: u64 = 8 << 20;

    fn cases() -> impl Iterator<Item = (Case, Way)> {
        let small = [4, 16, 64, 512, 2048].map(|folio_kib| Case::of(BYTES, folio_kib));
        let cases = small.into_iter().chain([Case { huge: true, ..Case::of(BYTES, 2048) }]);
        let cases = cases.flat_map(|case| Arm::value_variants().iter().map(move |&arm| Case { arm, ..case }));
        cases.flat_map(|case| WAYS.map(|way| (case, way)))
    }

    /// Returns a placement for the arm: for an aged one, scattered folios, of which the engine got
    /// three in four.
    pub(super) fn placement(case: &Case) -> Placement {
        if case.arm != Arm::Aged {
            return Placement::in_order(case);
        }
        let frame = |n: u64| (n % 4 != 1).then_some((n * 3 + 7) * case.pages_per_folio());
        Placement::known(case, &case.arm.order(case.folios()).into_iter().map(frame).collect::<Vec<_>>())
    }

    fn filled(case: &Case) -> Arena {
        let mut arena = Arena::new(case, placement(case)).unwrap();
        arena.fill();
        arena
    }

    #[test]
    fn unmapping_clears_every_pte_and_frees_every_folio_once() {
        for (case, way) in cases() {
            for op in [Op::Munmap, Op::Dontneed, Op::Exit] {
                let mut arena = filled(&case);
                assert!(arena.entries.iter().all(|&entry| entry & PRESENT != 0));
                let tables = if case.huge { 1 } else { case.bytes / TABLE_SPAN };
                assert_eq!(arena.perform(op, way), case.folios() + tables, "{} {} {way:?}", op.name(), case.label());
                assert!(arena.entries.iter().all(|&entry| entry == 0));
                assert!(arena.descriptors.iter().all(|d| d.references == 0 && d.maps == 0));
            }
        }
    }

    #[test]
    fn rewritten_folios_are_not_reclaimed() {
        for (case, way) in cases().map(|(case, way)| (Case { bytes: 10 * TABLE_SPAN, ..case }, way)) {
            for (rewrites, stays) in [(Rewrites::None, 0), (Rewrites::EveryTenth, case.folios() / 10)] {
                let mut arena = filled(&case);
                let before = arena.entries.to_vec();
                arena.make_lazyfree(rewrites);
                assert_eq!(
                    arena.perform(Op::Reclaim(rewrites), way),
                    case.folios() - stays,
                    "{} {way:?}",
                    case.label()
                );
                let entries = if case.huge { 1 } else { 512 };
                for (n, (&after, before)) in arena.entries.iter().zip(before).enumerate() {
                    assert_eq!(after, if stays > 0 && n / entries == 3 { before } else { 0 });
                }
            }
        }
    }

    #[test]
    fn a_folio_with_another_reference_is_not_freed() {
        for (case, way) in cases() {
            let mut arena = filled(&case);
            let head = frame_of(arena.entries[0]);
            arena.descriptors[head].references += 1;
            let tables = if case.huge { 1 } else { case.bytes / TABLE_SPAN };
            assert_eq!(arena.perform(Op::Munmap, way), case.folios() + tables - 1, "{} {way:?}", case.label());
        }
    }

    #[test]
    fn unmapping_a_file_clears_every_pte_and_frees_page_tables_only() {
        for (case, way) in cases().filter(|(case, _)| !case.huge) {
            let case = Case { mapping: Mapping::Shared, ..case };
            let mut arena = filled(&case);
            assert_eq!(arena.perform(Op::Munmap, way), case.bytes / TABLE_SPAN, "{} {way:?}", case.label());
            assert!(arena.entries.iter().all(|&entry| entry == 0));
            let count =
                |count: fn(&Descriptor) -> u32| arena.descriptors.iter().map(|d| u64::from(count(d))).sum::<u64>();
            assert_eq!((count(|d| d.references), count(|d| d.maps)), (case.pages(), 0));
        }
    }

    #[test]
    fn parent_and_child_map_the_same_read_only() {
        for (case, way) in cases() {
            let mut arena = filled(&case);
            let before = arena.entries.to_vec();
            assert_eq!(arena.perform(Op::Fork, way), case.folios(), "{} {way:?}", case.label());
            assert!(arena.entries.iter().zip(&before).all(|(after, before)| *after == before & !WRITE));
            assert_eq!(arena.copies[..], arena.entries[..]);
            let counts =
                |count: fn(&Descriptor) -> u32| arena.descriptors.iter().map(|d| u64::from(count(d))).sum::<u64>();
            let mapped = before.len() as u64;
            assert_eq!((counts(|d| d.references), counts(|d| d.maps)), (2 * mapped, 2 * mapped));
        }
    }

    #[test]
    fn protecting_clears_the_write_bit_only() {
        for (case, way) in cases() {
            let mut arena = filled(&case);
            let before = arena.entries.to_vec();
            arena.perform(Op::Protect, way);
            assert!(arena.entries.iter().zip(before).all(|(after, before)| *after == before & !WRITE));
        }
    }
}
