//! The memory that a range holds, by kind (Linux: `smaps`).

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::flag;
use crate::platform::Platform;
use crate::table::LockedTable;
use crate::vma::Prot;

use super::Observe;
use crate::space::ground::Ptes;

/// The memory that a range holds (Linux: an entry of `smaps`). Sizes are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident memory (`Rss`). The zero folio does not count, as in Linux.
    pub resident: u64,
    /// The proportional share of the resident memory (`Pss`): if three PTEs map a page, each of
    /// them counts a third of the page. For the pages of a large folio, the number of PTEs is the
    /// folio's average per page, and at least one.
    pub pss: UsageSplit,
    /// The resident memory in folios with more mappings than pages, so that some page is mapped
    /// more than once (`Shared_Clean` and `Shared_Dirty`).
    pub shared: UsageSplit,
    /// Resident anonymous memory (`Anonymous`). The rest of the resident memory belongs to
    /// page-cache objects.
    pub anonymous: u64,
    /// The resident memory whose contents exist nowhere else (`Private_Dirty` and `Shared_Dirty`):
    /// all anonymous memory, and objects' pages whose PTEs are dirty.
    pub dirty: u64,
    /// The resident memory whose PTEs have the accessed bit (`Referenced`).
    pub referenced: u64,
    /// The resident memory that huge PTEs map (`AnonHugePages`), including [`Usage::huge_shmem`]
    /// and [`Usage::huge_file`].
    pub huge: u64,
    /// The part of [`Usage::huge`] that belongs to page-cache objects without a store
    /// (`ShmemPmdMapped`).
    pub huge_shmem: u64,
    /// The part of [`Usage::huge`] that belongs to page-cache objects with a store
    /// (`FilePmdMapped`).
    pub huge_file: u64,
    /// The resident memory that cont blocks map (PTEs that a TLB may cache as one translation): at
    /// the lowest level of page tables, and at the level above. [`Arch::cont_bits`] returns the
    /// size of a cont block.
    pub cont_blocks: [u64; 2],
    /// The size of the pages that swap PTEs refer to (`SwapPss`).
    pub swap: u64,
    /// The size of the swapped-out pages of the page-cache objects behind the range. A page does
    /// not count if a private VMA has a private copy of it or a marker in its place. The sum of
    /// this and [`Usage::swap`] is `Swap`.
    pub swap_shmem: u64,
    /// Huge pages of the pool that no other PTE maps (`Private_Hugetlb`). They count in no other
    /// field.
    pub hugetlb_private: u64,
    /// Huge pages of the pool that several PTEs map (`Shared_Hugetlb`). They count in no other
    /// field.
    pub hugetlb_shared: u64,
    /// The number of runs of leaf PTEs ([`Run`](crate::table::Run)).
    pub runs: u64,
}

/// A number of bytes, with the parts that are anonymous and that are dirty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageSplit {
    /// All bytes.
    pub all: u64,
    /// The bytes of `all` that are anonymous.
    pub anonymous: u64,
    /// The bytes of `all` that are dirty, as for [`Usage::dirty`].
    pub dirty: u64,
}

impl UsageSplit {
    /// Adds `bytes` to the total, and to the anonymous and the dirty bytes if the flags are true.
    fn add(&mut self, bytes: u64, anonymous: bool, dirty: bool) {
        self.all += bytes;
        self.anonymous += if anonymous { bytes } else { 0 };
        self.dirty += if dirty { bytes } else { 0 };
    }
}

impl<P: Platform> Observe<'_, '_, P> {
    /// Implements [`AddressSpace::usage`](crate::space::AddressSpace::usage).
    pub(super) fn usage(self, range: VirtRange) -> Usage {
        let arch = self.arch();
        let range = UserRange::all(arch).intersect(&range);
        let mut usage = Usage::default();
        Ptes::of(self.space).each_run_or_hole(range, |table, run| {
            let part = range.intersect(&run.range(arch));
            match run.kind {
                Kind::Leaf if !self.machine().zero_folio().contains(run.pfn(arch)) => {
                    usage.runs += 1;
                    let Some(table) = table else { return };
                    if let Some(blocks) = usage.cont_blocks.get_mut(usize::from(run.level) - 1) {
                        *blocks += (table.cont_ptes(run) as u64) << table.shift();
                    }
                    // The PTEs of a run may differ in accessed and dirty bits, so the run is
                    // counted in pieces of equal bits. The PTEs of a run with
                    // [`Run::stable`](crate::table::Run::stable) all have the same bits.
                    let mut rest = part;
                    while !rest.is_empty() {
                        let piece = if run.stable { rest } else { with_equal_accessed_dirty(table, rest) };
                        let attrs =
                            if run.stable { run.attrs(arch) } else { arch.attrs(table.get(piece.start), run.level) };
                        let first = run.pfn(arch).add(((piece.start - run.va) >> FRAME_SHIFT) as u32);
                        self.count_folios(&mut usage, first, (piece.len() >> FRAME_SHIFT) as u32, run.level, attrs);
                        rest = rest.tail(piece.end);
                    }
                }
                Kind::Swap => usage.swap += part.len(),
                _ => {}
            }
        });
        usage.swap_shmem = self.swapped_in_objects(range);
        usage
    }

    /// Adds to `usage` the `count` frames from `first` on, which PTEs of `level` with the
    /// attributes `attrs` map. The caller holds the lock of their page table, so the frames are in
    /// use.
    fn count_folios(self, usage: &mut Usage, first: Pfn, count: u32, level: u8, attrs: Attrs) {
        let end = first.add(count);
        let mut at = first;
        while at < end {
            let (head, frame) = self.machine().frames().head(at);
            let (state, maps) = (frame.state(), u64::from(frame.counts().maps));
            let size = 1u64 << state.order();
            let next = head.add(size as u32).min(end);
            let bytes = u64::from(next.0 - at.0) << FRAME_SHIFT;
            at = next;
            if state.has(flag::HUGETLB) {
                // No part of the resident set (Linux: `smaps_hugetlb_range`).
                *if maps > size { &mut usage.hugetlb_shared } else { &mut usage.hugetlb_private } += bytes;
                continue;
            }
            let anonymous = !state.has(flag::OBJECT);
            let dirty = anonymous || attrs.contains(Attrs::DIRTY);
            usage.resident += bytes;
            usage.anonymous += if anonymous { bytes } else { 0 };
            usage.dirty += if dirty { bytes } else { 0 };
            usage.referenced += if attrs.contains(Attrs::ACCESSED) { bytes } else { 0 };
            usage.huge += if level > 1 { bytes } else { 0 };
            let huge_object = if level > 1 && !anonymous { bytes } else { 0 };
            *if state.has(flag::FILE) { &mut usage.huge_file } else { &mut usage.huge_shmem } += huge_object;
            usage.pss.add(bytes * size / maps.max(size), anonymous, dirty);
            if maps > size {
                usage.shared.add(bytes, anonymous, dirty);
            }
        }
    }

    /// Returns the number of bytes of a range that the page-cache objects behind its VMAs have on
    /// swap devices. In a private writable VMA, a page does not count if its PTE is not empty: then
    /// the VMA has a private copy of the page, or a marker.
    fn swapped_in_objects(self, range: UserRange) -> u64 {
        let mut bytes = 0;
        self.each_page_in_objects(range, |vma, addr, is_resident| {
            let has_entry = || {
                let entry = self.tables().probe(addr, vma.range, 0);
                self.arch().kind(entry.raw, entry.level) != Kind::None
            };
            let shows_object = vma.backing.is_shared() || !vma.prot.contains(Prot::WRITE);
            bytes += if is_resident || !shows_object && has_entry() { 0 } else { 1 << self.page_shift() };
        });
        bytes
    }
}

/// Returns the first part of `part` in which all PTEs have the same accessed and dirty bits. `part`
/// is a part of one run. A PTE of a cont block counts as having the bits of the whole block.
fn with_equal_accessed_dirty<P: Platform>(table: &LockedTable<'_, '_, P>, part: UserRange) -> UserRange {
    let hardware_bits = |at: u64| table.get(at) & P::Arch::HARDWARE;
    let step = 1 << table.shift();
    let first = hardware_bits(part.start);
    let mut end = (part.start | (step - 1)) + 1;
    while end < part.end && hardware_bits(end) == first {
        end += step;
    }
    part.head(end)
}
