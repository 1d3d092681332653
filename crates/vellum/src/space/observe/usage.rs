//! The memory that a range holds, by kind (Linux: `smaps`).

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::flag;
use crate::platform::Platform;
use crate::table::LockedTable;
use crate::vma::Prot;

use super::Observe;
use crate::space::ground::Ptes;

/// What a range holds, for `smaps`. Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident (`Rss`). The folio of zeros counts as nothing, as in Linux.
    pub resident: u64,
    /// Of that, each page's share: a page that three map is a third in each (`Pss`). Of a large
    /// folio, all pages count as mapped as often as they are on average, but at least once; and all
    /// are shared if some surely are.
    pub pss: UsageSplit,
    /// Of that, what others map too (`Shared_Clean` and `Shared_Dirty`).
    pub shared: UsageSplit,
    /// Of that, anonymous memory (`Anonymous`); the rest is objects'.
    pub anonymous: u64,
    /// Of that, what would be lost with its page (`Private_Dirty` and `Shared_Dirty`): all
    /// anonymous memory, and what was written of objects since last cleared.
    pub dirty: u64,
    /// Of that, touched since last cleared (`Referenced`).
    pub referenced: u64,
    /// Of that, in huge mappings (`AnonHugePages`).
    pub huge: u64,
    /// Of that, objects' memory in huge mappings (`ShmemPmdMapped`); the rest of [`Usage::huge`] is
    /// anonymous.
    pub huge_shmem: u64,
    /// Of that, what a TLB may hold by blocks of entries, of the last level and of the one above;
    /// how large such a block is says [`Arch::cont_bits`].
    pub cont_blocks: [u64; 2],
    /// Swapped out (`SwapPss`).
    pub swap: u64,
    /// Swapped out from the objects behind it, where nothing else is (`Swap`, together with the
    /// former).
    pub swap_shmem: u64,
    /// Runs: how many pieces the engine has to deal with.
    pub runs: u64,
}

/// A number of bytes, and what of it is of some kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageSplit {
    /// All of it.
    pub all: u64,
    /// Of that, what is anonymous.
    pub anonymous: u64,
    /// Of that, what is dirty.
    pub dirty: u64,
}

impl UsageSplit {
    fn add(&mut self, bytes: u64, anonymous: bool, dirty: bool) {
        self.all += bytes;
        self.anonymous += if anonymous { bytes } else { 0 };
        self.dirty += if dirty { bytes } else { 0 };
    }
}

impl<P: Platform, A: Arch> Observe<'_, '_, P, A> {
    /// Implements [`AddressSpace::usage`].
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
                        *blocks += (table.cont_entries(run) as u64) << table.shift();
                    }
                    // Its entries may differ in what hardware has recorded.
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

    /// Adds frames that a run maps, whose table is locked: so they are in use.
    fn count_folios(self, usage: &mut Usage, first: Pfn, count: u32, level: u8, attrs: Attrs) {
        let end = first.add(count);
        let mut at = first;
        while at < end {
            let (head, frame) = self.machine().frames().head(at);
            let (state, maps) = (frame.state(), u64::from(frame.counts().maps));
            let size = 1u64 << state.order();
            let next = head.add(size as u32).min(end);
            let bytes = u64::from(next.0 - at.0) << FRAME_SHIFT;
            let anonymous = !state.has(flag::OBJECT);
            let dirty = anonymous || attrs.contains(Attrs::DIRTY);
            usage.resident += bytes;
            usage.anonymous += if anonymous { bytes } else { 0 };
            usage.dirty += if dirty { bytes } else { 0 };
            usage.referenced += if attrs.contains(Attrs::ACCESSED) { bytes } else { 0 };
            usage.huge += if level > 1 { bytes } else { 0 };
            usage.huge_shmem += if level > 1 && !anonymous { bytes } else { 0 };
            usage.pss.add(bytes * size / maps.max(size), anonymous, dirty);
            if maps > size {
                usage.shared.add(bytes, anonymous, dirty);
            }
            at = next;
        }
    }

    /// Bytes of a range that the objects behind it have on swap devices, but for those of which a
    /// private VMA has something of its own.
    fn swapped_in_objects(self, range: UserRange) -> u64 {
        let mut bytes = 0;
        self.each_page_in_objects(range, |vma, addr, here| {
            let own = || {
                let entry = self.tables().probe(addr, vma.range, 0);
                self.arch().kind(entry.raw, entry.level) != Kind::None
            };
            let shared = vma.backing.is_shared() || !vma.prot.contains(Prot::WRITE);
            bytes += if here || !shared && own() { 0 } else { 1 << self.page_shift() };
        });
        bytes
    }
}

/// The first entries of a part of a run that are alike in what hardware has recorded, of all of a
/// block at once.
fn with_equal_accessed_dirty<P: Platform, A: Arch>(table: &LockedTable<'_, '_, P, A>, part: UserRange) -> UserRange {
    let recorded = |at: u64| table.get(at) & A::HARDWARE;
    let step = 1 << table.shift();
    let first = recorded(part.start);
    let mut end = (part.start | (step - 1)) + 1;
    while end < part.end && recorded(end) == first {
        end += step;
    }
    part.head(end)
}
