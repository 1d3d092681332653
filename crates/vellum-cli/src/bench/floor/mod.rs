//! The floor: a lower bound of each operation, as a bare loop on real memory.
//!
//! The x86-64 PTEs of the region lie in page tables; an array has a 32-byte descriptor for each
//! frame. Unmapping reads each PTE, finds the run by comparing neighbours, clears it, subtracts it
//! from the counts in the head frame's descriptor, and puts the folio on a free list when none
//! remain; then the page table itself goes on the list. Protecting clears the write bit of each
//! PTE. Forking goes run by run: clears the write bits, writes the same PTEs into the child's page
//! tables, and adds the run's length to the folio's counts.
//!
//! It leaves out all that makes a memory manager: locks, atomic operations, TLB flushes and the
//! wait for them, rmap, statistics, memcgs, LRU lists, the merging of free blocks, VMAs, the walk
//! from the root. It prefetches the descriptors of the folios that it comes to next, as each of
//! their PTEs names one.
//!
//! Swap-out and swap-in are in [`swapped`]. `munmap`, `dontneed` and `exit` are the same loop here,
//! as they differ only in what the floor leaves out.

mod swapped;

use std::hint::black_box;
use std::time::Instant;

use bytemuck::Zeroable;
use vellum_linux::workload::case::{Case, Op, TABLE_SPAN};
use vellum_linux::workload::data::Rewrites;

use crate::bench::contender::{Column, Contender, Sample, Skip};
use crate::bench::memory::Mapped;
use swapped::Swap;

/// The number of folios whose descriptors are prefetched ahead of the one in work: enough that
/// memory has answered by then, and no more than the line fill buffers of a core hold.
const PREFETCH_AHEAD: usize = 12;
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

/// A page table: of the last level, or of the level above if it has huge PTEs.
#[derive(Clone, Copy, Zeroable)]
#[repr(C, align(4096))]
struct Table([u64; ENTRIES]);

/// The descriptor of a frame: 32 bytes, half a cache line, as in the engine.
#[derive(Clone, Copy, Zeroable)]
#[repr(C, align(32))]
struct Descriptor {
    references: u32,
    maps: u32,
    /// The pages of the folio, in its head frame's descriptor.
    pages: u32,
    /// The distance to the folio's head frame, in a tail frame's descriptor.
    to_head: u32,
    /// The next entry of the free list: index + 1, or zero at the end.
    next: u64,
    rmap_key: u64,
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
    arena: Option<Arena>,
    swap: Option<Swap>,
    elsewhere: Option<Mapped<u64>>,
}

/// The number of bytes that [`evict_from_caches`] writes: several times the size of a CPU's caches.
pub const ELSEWHERE: usize = 256 << 20;

/// Evicts the region's PTEs and descriptors from the caches. All other contenders write the whole
/// region between making a PTE and the operation, so their operations read memory.
fn evict_from_caches(elsewhere: &mut Option<Mapped<u64>>) -> Result<(), Skip> {
    let memory = match elsewhere {
        Some(memory) => memory,
        None => {
            let new = Mapped::zeroed(ELSEWHERE / size_of::<u64>()).map_err(|error| Skip::system("mmap", error))?;
            elsewhere.insert(new)
        }
    };
    for line in memory.chunks_exact_mut(8) {
        line[0] = line[0].wrapping_add(1);
    }
    black_box(&memory[0]);
    Ok(())
}

/// The memory of one case, kept between its runs.
pub struct Arena {
    /// The case.
    pub case: Case,
    tables: Mapped<Table>,
    /// The page tables that a fork fills for the child.
    copies: Mapped<Table>,
    /// The descriptors of the region's frames, then those of its page tables.
    descriptors: Mapped<Descriptor>,
}

impl Contender for Floor {
    fn column(&self) -> Column {
        Column::Floor
    }

    fn prepare(&mut self, case: &Case) -> Result<(), Skip> {
        if self.arena.as_ref().is_none_or(|arena| arena.case != *case) {
            (self.arena, self.swap) = (None, None);
            self.arena = Some(Arena::new(case).map_err(|error| Skip::system("mmap", error))?);
        }
        Ok(())
    }

    fn run(&mut self, case: &Case, op: Op) -> Result<Sample, Skip> {
        self.prepare(case)?;
        let Some(arena) = self.arena.as_mut() else {
            return Err(Skip::system("mmap", "no memory"));
        };
        arena.fill();
        if let Some(rewrites) = op.rewrites() {
            arena.make_lazyfree(rewrites);
        }
        if let Some(data) = op.data() {
            let swap = match &mut self.swap {
                Some(swap) => swap,
                None => self.swap.insert(Swap::new(case).map_err(|error| Skip::system("mmap", error))?),
            };
            return swap.measure(arena, data);
        }
        evict_from_caches(&mut self.elsewhere)?;
        let start = Instant::now();
        let freed = arena.perform(op);
        let op_ns = start.elapsed().as_nanos() as u64;
        black_box(freed);
        Ok(Sample { touch_ns: None, back_ns: None, op_ns, fallback: 0.0, work: None })
    }
}

impl Arena {
    /// Allocates the memory of a case.
    ///
    /// # Errors
    /// `mmap` failed.
    pub fn new(case: &Case) -> rustix::io::Result<Arena> {
        let tables = (case.bytes / TABLE_SPAN) as usize;
        let tables = if case.huge { tables.div_ceil(ENTRIES) } else { tables };
        Ok(Arena {
            case: *case,
            tables: Mapped::zeroed(tables)?,
            copies: Mapped::zeroed(tables)?,
            descriptors: Mapped::zeroed(Self::frames(case) + tables)?,
        })
    }

    /// Returns the number of the region's page, in the order of frames, that is in this frame of
    /// the region.
    fn page_of(case: &Case, frame: usize) -> usize {
        let folio = case.pages_per_folio() as usize;
        frame / folio / (1 + case.arm.neighbours()) * folio + frame % folio
    }

    /// Returns the number of frames of the region and of its neighbours.
    fn frames(case: &Case) -> usize {
        case.pages() as usize * (1 + case.arm.neighbours())
    }

    /// Fills in a fresh region, each folio mapped once in full. The folio that is touched first has
    /// the first frames. Not measured.
    pub fn fill(&mut self) {
        let leaf = if self.case.huge { LARGE } else { 0 };
        let (folio, entries) = (self.case.pages_per_folio(), self.entries_of_a_folio());
        let apart = folio * (1 + self.case.arm.neighbours() as u64);
        for (position, n) in (0..).zip(self.case.arm.order(self.case.folios())) {
            let (at, first) = (n as usize * entries, FIRST_FRAME + position * apart);
            let table = &mut self.tables[at / ENTRIES].0;
            for (entry, frame) in table[at % ENTRIES..][..entries].iter_mut().zip(first..) {
                *entry = frame << 12 | ATTRIBUTES | leaf;
            }
        }
        self.copies.fill(Table([0; ENTRIES]));
        let pages = self.case.pages_per_folio() as u32;
        let mappings = if self.case.huge { 1 } else { pages };
        for (frame, descriptor) in self.descriptors.iter_mut().enumerate() {
            let is_neighbours = frame as u64 % apart >= folio;
            *descriptor = match frame as u32 % pages {
                _ if is_neighbours => Descriptor::zeroed(),
                0 => Descriptor { pages, references: mappings, maps: mappings, ..Descriptor::zeroed() },
                to_head => Descriptor { to_head, ..Descriptor::zeroed() },
            };
        }
        // The frames of page tables lie behind those of the region, and are not mapped.
        self.descriptors[Self::frames(&self.case)..].fill(Descriptor::zeroed());
    }

    /// Returns the number of PTEs that map a folio.
    fn entries_of_a_folio(&self) -> usize {
        if self.case.huge { 1 } else { self.case.pages_per_folio() as usize }
    }

    /// Clears the accessed and dirty bits of all pages that are not written again. Not measured.
    fn make_lazyfree(&mut self, rewrites: Rewrites) {
        let pages = if self.case.huge { ENTRIES as u64 } else { 1 };
        let entries = self.tables.iter_mut().flat_map(|table| table.0.iter_mut());
        for (n, entry) in (0..).zip(entries) {
            if !rewrites.includes(n * pages) {
                *entry &= !(ACCESSED | DIRTY);
            }
        }
    }

    /// Does the measured operation. Returns the folios freed, page tables included; for a fork, the
    /// runs shared.
    pub fn perform(&mut self, op: Op) -> u64 {
        let folio = self.entries_of_a_folio();
        match (op, self.case.huge) {
            (Op::Protect, _) => {
                write_protect(&mut self.tables);
                0
            }
            (Op::Fork, false) => share(&mut self.tables, &mut self.copies, &mut self.descriptors, folio),
            (Op::Fork, true) => share_huge(&mut self.tables, &mut self.copies, &mut self.descriptors),
            (Op::Reclaim(_), false) => reclaim(&mut self.tables, &mut self.descriptors, folio),
            (Op::Reclaim(_), true) => unmap_huge::<DIRTY>(&mut self.tables, &mut self.descriptors),
            (_, true) => unmap_huge::<0>(&mut self.tables, &mut self.descriptors),
            (_, false) => unmap(&mut self.tables, &mut self.descriptors, Self::frames(&self.case), folio),
        }
    }
}

/// Unmaps and frees everything that the page tables map, and the page tables.
#[inline(never)]
fn unmap(tables: &mut [Table], descriptors: &mut [Descriptor], frames: usize, folio: usize) -> u64 {
    let (frames, of_tables) = descriptors.split_at_mut(frames);
    let mut free = FreeList::default();
    for (number, of_table) in of_tables.iter_mut().enumerate() {
        unmap_table::<0>(tables, number, frames, folio, &mut free);
        free.push(frames.len() + number, of_table);
    }
    free.folios
}

/// Unmaps and frees each folio that was not written to.
#[inline(never)]
fn reclaim(tables: &mut [Table], frames: &mut [Descriptor], folio: usize) -> u64 {
    let mut free = FreeList::default();
    for number in 0..tables.len() {
        unmap_table::<DIRTY>(tables, number, frames, folio, &mut free);
    }
    free.folios
}

/// Returns the index of the frame that a PTE maps.
#[inline(always)]
fn frame_of(entry: u64) -> usize {
    ((entry & FRAME) >> 12).wrapping_sub(FIRST_FRAME) as usize
}

/// Returns the index of the head frame of the folio that a PTE maps, the distance from there to the
/// frame that it maps, and the head's descriptor.
#[inline(always)]
fn head_of(frames: &mut [Descriptor], entry: u64) -> Option<(usize, usize, &mut Descriptor)> {
    let frame = frame_of(entry);
    let to_head = frames.get(frame)?.to_head as usize;
    let head = frame.wrapping_sub(to_head);
    Some((head, to_head, frames.get_mut(head)?))
}

/// Prefetches the descriptor of the frame that PTE `at` of the region maps.
#[inline(always)]
fn prefetch(tables: &[Table], at: usize, frames: &[Descriptor]) {
    let Some(Table(table)) = tables.get(at / ENTRIES) else { return };
    let at = frames.as_ptr().wrapping_add(frame_of(table[at % ENTRIES]));
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

/// Unmaps and frees everything that page table `number` maps, except folios with a PTE that has a
/// bit of `STAYS`. `folio` is the number of PTEs of most folios.
#[inline(always)]
fn unmap_table<const STAYS: u64>(
    tables: &mut [Table],
    number: usize,
    frames: &mut [Descriptor],
    folio: usize,
    free: &mut FreeList,
) {
    let mut at = 0;
    while at < ENTRIES {
        prefetch(tables, number * ENTRIES + at + PREFETCH_AHEAD * folio, frames);
        let rest = &mut tables[number].0[at..];
        let first = rest[0];
        if first & PRESENT == 0 {
            at += 1;
            continue;
        }
        let Some((head, to_head, descriptor)) = head_of(frames, first) else {
            break;
        };
        // A run ends at the end of its folio and of its page table.
        let limit = (descriptor.pages as usize).wrapping_sub(to_head).clamp(1, rest.len());
        if STAYS != 0 && rest[..limit].iter().fold(0, |all, entry| all | entry) & STAYS != 0 {
            at += limit;
            continue;
        }
        let run = take_run(&mut rest[..limit], first);
        at += run;

        descriptor.maps = descriptor.maps.wrapping_sub(run as u32);
        descriptor.references = descriptor.references.wrapping_sub(run as u32);
        if descriptor.references == 0 {
            free.push(head, descriptor);
        }
    }
}

/// Clears the run at the start of `entries`: the first PTE, `first`, and those after it that map
/// consecutive frames with equal attributes. Returns the number of PTEs cleared.
#[inline(always)]
fn take_run(entries: &mut [u64], first: u64) -> usize {
    change_run(entries, first, |_, part| part.fill(0))
}

/// Calls `change` for the run at the start of `entries`: the first PTE, `first`, and those after it
/// that map consecutive frames with equal attributes, except accessed and dirty bits. `change` gets
/// the run in parts, each with its index in `entries`. Returns the number of PTEs in the run.
///
/// Compares four PTEs at a time with one branch, so that the compiler uses vector instructions.
#[inline(always)]
fn change_run(entries: &mut [u64], first: u64, mut change: impl FnMut(usize, &mut [u64])) -> usize {
    const ACCESSED_DIRTY: u64 = ACCESSED | DIRTY;
    if entries.len() == 1 {
        change(0, entries);
        return 1;
    }
    let mut expected = first | ACCESSED_DIRTY;
    let mut run = 0;
    let (fours, _) = entries.as_chunks_mut::<4>();
    for four in fours {
        let differs = |n: usize| (four[n] | ACCESSED_DIRTY) ^ (expected + ((n as u64) << 12));
        if differs(0) | differs(1) | differs(2) | differs(3) != 0 {
            break;
        }
        change(run, four);
        expected += 4 << 12;
        run += 4;
    }
    // Change the last PTEs, fewer than four, of a run that is shorter than `entries`.
    while let Some(entry) = entries.get_mut(run)
        && *entry | ACCESSED_DIRTY == expected
    {
        change(run, std::slice::from_mut(entry));
        expected += 1 << 12;
        run += 1;
    }
    run
}

/// Shares all mapped pages with a child: write-protects their PTEs, copies them into `copies`, and
/// counts the child's mappings. `folio` is the number of PTEs of most folios. Returns the number of
/// runs.
#[inline(never)]
fn share(tables: &mut [Table], copies: &mut [Table], frames: &mut [Descriptor], folio: usize) -> u64 {
    let mut runs = 0;
    for (number, Table(copies)) in copies.iter_mut().enumerate() {
        let mut at = 0;
        while at < ENTRIES {
            prefetch(tables, number * ENTRIES + at + PREFETCH_AHEAD * folio, frames);
            let (rest, copy) = (&mut tables[number].0[at..], &mut copies[at..]);
            let first = rest[0];
            if first & PRESENT == 0 {
                at += 1;
                continue;
            }
            let Some((_, to_head, descriptor)) = head_of(frames, first) else {
                break;
            };
            // A run ends at the end of its folio and of its page table.
            let limit = (descriptor.pages as usize).wrapping_sub(to_head).clamp(1, rest.len());
            let run = change_run(&mut rest[..limit], first, |at, part| {
                for (entry, copy) in part.iter_mut().zip(&mut copy[at..]) {
                    *entry &= !WRITE;
                    *copy = *entry;
                }
            });
            descriptor.references = descriptor.references.wrapping_add(run as u32);
            descriptor.maps = descriptor.maps.wrapping_add(run as u32);
            runs += 1;
            at += run;
        }
    }
    runs
}

/// Shares each huge mapping with a child. Returns their number.
#[inline(never)]
fn share_huge(tables: &mut [Table], copies: &mut [Table], frames: &mut [Descriptor]) -> u64 {
    let mut runs = 0;
    let copies = copies.iter_mut().flat_map(|table| table.0.iter_mut());
    for (entry, copy) in tables.iter_mut().flat_map(|table| table.0.iter_mut()).zip(copies) {
        if *entry & PRESENT == 0 {
            continue;
        }
        let head = frame_of(*entry);
        let Some(descriptor) = frames.get_mut(head) else {
            break;
        };
        *entry &= !WRITE;
        *copy = *entry;
        descriptor.references = descriptor.references.wrapping_add(1);
        descriptor.maps = descriptor.maps.wrapping_add(1);
        runs += 1;
    }
    runs
}

/// Unmaps and frees each huge mapping whose PTE has no bit of `STAYS`.
#[inline(never)]
fn unmap_huge<const STAYS: u64>(tables: &mut [Table], descriptors: &mut [Descriptor]) -> u64 {
    let mut free = FreeList::default();
    for entry in tables.iter_mut().flat_map(|table| table.0.iter_mut()) {
        if *entry & PRESENT == 0 || *entry & STAYS != 0 {
            continue;
        }
        let head = frame_of(*entry);
        let Some(descriptor) = descriptors.get_mut(head) else {
            break;
        };
        *entry = 0;
        descriptor.maps = descriptor.maps.wrapping_sub(1);
        descriptor.references = descriptor.references.wrapping_sub(1);
        if descriptor.references == 0 {
            free.push(head, descriptor);
        }
    }
    free.folios
}

/// Clears the write bit of each PTE. A none PTE stays none.
#[inline(never)]
fn write_protect(tables: &mut [Table]) {
    for entry in tables.iter_mut().flat_map(|table| table.0.iter_mut()) {
        *entry &= !WRITE;
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;
    use vellum_linux::workload::arm::Arm;

    use super::*;

    const BYTES: u64 = 8 << 20;

    fn cases() -> impl Iterator<Item = Case> {
        let small = [4, 16, 64, 512, 2048].map(|folio_kib| Case::of(BYTES, folio_kib));
        let cases = small.into_iter().chain([Case { huge: true, ..Case::of(BYTES, 2048) }]);
        cases.flat_map(|case| Arm::value_variants().iter().map(move |&arm| Case { arm, ..case }))
    }

    fn entries(arena: &Arena) -> impl Iterator<Item = u64> {
        arena.tables.iter().flat_map(|table| table.0)
    }

    #[test]
    fn unmapping_clears_every_pte_and_frees_every_folio_once() {
        for case in cases() {
            for op in [Op::Munmap, Op::Dontneed, Op::Exit] {
                let mut arena = Arena::new(&case).unwrap();
                arena.fill();
                assert!(entries(&arena).any(|entry| entry != 0));
                let tables = if case.huge { 0 } else { case.bytes / TABLE_SPAN };
                assert_eq!(arena.perform(op), case.folios() + tables, "{} {}", op.name(), case.label());
                assert!(entries(&arena).all(|entry| entry == 0));
                assert!(arena.descriptors.iter().all(|d| d.references == 0 && d.maps == 0));
            }
        }
    }

    #[test]
    fn rewritten_folios_are_not_reclaimed() {
        for case in cases().map(|case| Case { bytes: 10 * TABLE_SPAN, ..case }) {
            for (rewrites, stays) in [(Rewrites::None, 0), (Rewrites::EveryTenth, case.folios() / 10)] {
                let mut arena = Arena::new(&case).unwrap();
                arena.fill();
                let before: Vec<u64> = entries(&arena).collect();
                arena.make_lazyfree(rewrites);
                assert_eq!(arena.perform(Op::Reclaim(rewrites)), case.folios() - stays, "{}", case.label());
                let pages = case.pages() / (case.bytes / TABLE_SPAN) / if case.huge { 512 } else { 1 };
                for (n, (after, before)) in (0..).zip(entries(&arena).zip(before)) {
                    assert_eq!(after, if stays > 0 && n / pages == 3 { before } else { 0 });
                }
            }
        }
    }

    #[test]
    fn a_run_ends_where_frames_or_attributes_differ() {
        let entry = |frame: u64, attributes: u64| frame << 12 | attributes;
        let first = entry(7, ATTRIBUTES);
        let run = [
            first,
            entry(8, ATTRIBUTES & !DIRTY),
            entry(9, ATTRIBUTES & !ACCESSED),
            entry(10, ATTRIBUTES),
            entry(11, ATTRIBUTES),
            first + (5 << 12),
        ];
        let taken = |mut run: [u64; 6]| {
            let length = take_run(&mut run, first);
            assert!(run[..length].iter().all(|&entry| entry == 0), "what is in the run is cleared");
            (length, run)
        };
        assert_eq!(taken(run).0, 6, "accessed and dirty are merged, not compared");
        for (at, other) in [(1, 0), (2, entry(10, ATTRIBUTES)), (3, entry(10, ATTRIBUTES & !WRITE)), (5, 0)] {
            let mut run = run;
            run[at] = other;
            let (length, after) = taken(run);
            assert_eq!(length, at);
            assert_eq!(after[at..], run[at..], "what is behind the run is left alone");
        }
    }

    #[test]
    fn a_folio_in_several_runs_is_freed_with_the_last_run() {
        let case = Case::of(TABLE_SPAN, 64);
        let mut arena = Arena::new(&case).unwrap();
        arena.fill();
        arena.tables[0].0[5] &= !WRITE;
        assert_eq!(arena.perform(Op::Munmap), case.folios() + 1, "three runs, one folio");
        assert!(entries(&arena).all(|entry| entry == 0));

        arena.fill();
        arena.tables[0].0[5] = 0;
        assert_eq!(arena.perform(Op::Munmap), case.folios(), "one page is still mapped somewhere else");
        assert_eq!(arena.descriptors[0].references, 1);
    }

    #[test]
    fn parent_and_child_map_the_same_read_only() {
        for case in cases() {
            let mut arena = Arena::new(&case).unwrap();
            arena.fill();
            let before: Vec<u64> = entries(&arena).collect();
            let mapped = before.iter().filter(|&&entry| entry != 0).count() as u64;
            assert_eq!(arena.perform(Op::Fork), case.folios(), "{}", case.label());
            assert!(entries(&arena).zip(&before).all(|(after, before)| after == before & !WRITE));
            assert!(arena.copies.iter().flat_map(|table| table.0).eq(entries(&arena)));
            let counts =
                |count: fn(&Descriptor) -> u32| arena.descriptors.iter().map(|d| u64::from(count(d))).sum::<u64>();
            assert_eq!((counts(|d| d.references), counts(|d| d.maps)), (2 * mapped, 2 * mapped));
        }
    }

    #[test]
    fn a_child_gets_mapped_pages_only() {
        let case = Case::of(TABLE_SPAN, 64);
        let mut arena = Arena::new(&case).unwrap();
        arena.fill();
        arena.tables[0].0[5] = 0;
        assert_eq!(arena.perform(Op::Fork), case.folios() + 1, "one folio in two runs");
        assert_eq!(arena.copies[0].0, arena.tables[0].0);
        assert_eq!(arena.descriptors[0].references, 16 + 15);
    }

    #[test]
    fn protecting_clears_the_write_bit_only() {
        for case in cases() {
            let mut arena = Arena::new(&case).unwrap();
            arena.fill();
            let before: Vec<u64> = entries(&arena).collect();
            arena.perform(Op::Protect);
            assert!(entries(&arena).zip(before).all(|(after, before)| after == before & !WRITE));
        }
    }
}
