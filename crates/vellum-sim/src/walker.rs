//! The page walker: reads the page tables in memory as the processor does, and sets accessed and
//! dirty as it does.

use std::sync::atomic::{AtomicU64, Ordering};

use vellum::addr::{Pfn, PhysAddr};
use vellum::arch::{Aarch64, Arch, Attrs, Kind, Riscv64, X86_64};

use crate::arena::Arena;
use crate::program::Access;

/// The way in which a processor updates page tables, beyond the format itself.
pub trait Silicon: Arch {
    /// Returns the bits that a walk sets in each pointer to a page table that it follows.
    fn table_accessed(&self) -> u64 {
        0
    }
}

impl Silicon for X86_64 {
    // "Whenever the processor uses a paging-structure entry as part of linear-address translation,
    // it sets the accessed flag in that entry" (Intel SDM vol. 3A §5.8), not only in leaves.
    fn table_accessed(&self) -> u64 {
        1 << 5
    }
}

// The simulated CPU has FEAT_HAFDBS: it sets accessed and dirty in leaves, unless the machine
// leaves them to software. It has no FEAT_HAFT: it sets nothing in table descriptors.
impl Silicon for Aarch64 {}

// The simulated CPU has Svadu (it sets accessed and dirty in leaves), or Svade if the machine
// leaves them to software. In a pointer to a page table the two bits are reserved.
impl Silicon for Riscv64 {}

/// Returns the bits to flip in leaf `raw` so that `more` of [`Attrs::HARDWARE`] is set too. (In
/// some formats dirty is a bit that is cleared.)
pub(crate) fn hardware_bits<A: Arch>(arch: &A, raw: u64, level: u8, more: Attrs) -> u64 {
    let (pa, attrs) = (arch.leaf_addr(raw, level), arch.attrs(raw, level));
    arch.leaf(pa, attrs, level) ^ arch.leaf(pa, attrs | more, level)
}

/// A translation: of a page, or of as much as a TLB entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// The address of the first byte.
    pub base: PhysAddr,
    /// log2 of the size.
    pub shift: u32,
    /// The attributes of the leaf.
    pub attrs: Attrs,
    /// log2 of the size in the page tables: that of the page, or of its cont block.
    pub block: u32,
}

impl Leaf {
    /// Returns the part for `va` that a TLB entry of another size holds.
    pub fn resized(self, va: u64, shift: u32) -> Leaf {
        let pa = self.base.0 + (va & ((1 << self.shift) - 1));
        Leaf { base: PhysAddr(pa >> shift << shift), shift, ..self }
    }
}

/// The result of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The page.
    pub leaf: Leaf,
    /// log2 of the size in bytes, around the page, that one TLB entry may hold: the cont block, or
    /// pages that coalesce.
    pub span: u32,
}

/// The reason why a walk ended in a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// An entry that maps `1 << shift` bytes is not present: it is empty, or allows no access at
    /// all.
    Absent { shift: u32 },
    /// The leaf does not allow the access.
    Denied(Found),
    /// The leaf allows the access, but accessed or dirty is not set, and the machine leaves these
    /// to software.
    AdFault(Found),
}

/// Returns the bits that a walk for this access sets in the leaf.
pub(crate) fn sets(access: Access) -> Attrs {
    match access {
        Access::Write => Attrs::HARDWARE,
        Access::Read | Access::Execute => Attrs::ACCESSED,
    }
}

/// Choices that the architecture leaves to the walker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WalkOptions {
    /// log2 of the largest number of pages that the walker checks for being contiguous.
    pub coalesces: u32,
    /// The index of the cont block's entry in which accessed and dirty are set, modulo the number
    /// of its entries. `None`: they are set in the entry of the accessed page.
    pub ad_entry: Option<usize>,
    /// True if accessed and dirty are left to software, so that an access that would set one
    /// faults.
    pub software_ad_bits: bool,
}

/// Page tables in memory.
pub(crate) struct Tables<'a, A> {
    pub arena: &'a Arena,
    pub arch: &'a A,
}

impl<A: Silicon> Tables<'_, A> {
    fn entry(&self, table: Pfn, index: usize) -> &AtomicU64 {
        self.arena.word(PhysAddr(table.addr().0 + 8 * index as u64))
    }

    /// Walks from the page table at `table`, of `level`, down to the leaf for `va`. Calls `seen`
    /// with each followed table pointer: its level, and the page table. `reads` counts the entries
    /// read.
    pub fn walk(
        &self,
        (mut table, mut level): (Pfn, u8),
        va: u64,
        access: Access,
        options: WalkOptions,
        reads: &mut u64,
        mut seen: impl FnMut(u8, Pfn),
    ) -> Result<Found, Miss> {
        let arch = self.arch;
        loop {
            let index = arch.index(va, level);
            let entry = self.entry(table, index);
            // Another CPU may write the entry between the read and the update here: then it is read
            // again, as by the locked read-modify-write of a processor.
            let (raw, set) = loop {
                *reads += 1;
                let raw = entry.load(Ordering::Acquire);
                let flip = match arch.kind(raw, level) {
                    Kind::Table if level > 1 => arch.table_accessed() & !raw,
                    // A leaf that allows nothing is not present to the hardware.
                    Kind::Leaf if arch.attrs(raw, level).intersects(Attrs::PROT) => {
                        if !arch.attrs(raw, level).contains(access.needs()) {
                            return Err(Miss::Denied(self.found(table, index, level, raw, options)));
                        }
                        let flip = hardware_bits(arch, raw, level, sets(access));
                        if flip != 0 && options.software_ad_bits {
                            return Err(Miss::AdFault(self.found(table, index, level, raw, options)));
                        }
                        flip
                    }
                    _ => return Err(Miss::Absent { shift: arch.level_shift(level) }),
                };
                let set = raw ^ flip;
                if flip == 0
                    || options.ad_entry.is_some_and(|n| self.record_in_other_entry(table, index, level, raw, access, n))
                    || entry.compare_exchange(raw, set, Ordering::AcqRel, Ordering::Relaxed).is_ok()
                {
                    break (raw, set);
                }
            };
            if arch.kind(raw, level) == Kind::Leaf {
                return Ok(self.found(table, index, level, set, options));
            }
            table = arch.table_addr(raw).pfn();
            level -= 1;
            seen(level + 1, table);
        }
    }

    /// Sets accessed or dirty for `raw`, an entry of a cont block, in the n-th entry of the cont
    /// block, if that is another entry and still part of the cont block (hardware may set the bits
    /// in any of them: Arm ARM D8.5.5; RISC-V, Svnapot). Returns whether it did.
    fn record_in_other_entry(&self, table: Pfn, index: usize, level: u8, raw: u64, access: Access, n: usize) -> bool {
        let arch = self.arch;
        let bits = block_bits(arch, raw, level);
        let other = index >> bits << bits | n & ((1 << bits) - 1);
        if other == index {
            return false;
        }
        let entry = self.entry(table, other);
        loop {
            let there = entry.load(Ordering::Acquire);
            if !self.same(raw, index, there, other, level, A::HARDWARE) || block_bits(arch, there, level) != bits {
                return false;
            }
            let set = there ^ hardware_bits(arch, there, level, sets(access));
            if entry.compare_exchange(there, set, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return true;
            }
        }
    }

    /// Returns whether the physical addresses that two leaves of a page table map are as far apart
    /// as the virtual addresses of the leaves, and the leaves agree in all other bits except those
    /// of `aside`.
    fn same(&self, a: u64, at: usize, b: u64, other: usize, level: u8, aside: u64) -> bool {
        let arch = self.arch;
        let (a, b) = (arch.at_index(a, at), arch.at_index(b, other));
        let distance = (other as u64).wrapping_sub(at as u64);
        (a.wrapping_add(arch.step(a, level).wrapping_mul(distance)) ^ b) & !aside == 0
    }

    /// Returns a leaf of a page table, with the size of its cont block or of the pages that
    /// coalesce with it.
    fn found(&self, table: Pfn, index: usize, level: u8, raw: u64, options: WalkOptions) -> Found {
        let arch = self.arch;
        let shift = arch.level_shift(level);
        let block = shift + block_bits(arch, raw, level);
        let base = arch.leaf_addr(arch.without_cont(raw, index), level);
        let leaf = Leaf { base, shift, attrs: arch.attrs(raw, level), block };
        // A walker reads a line of eight entries, so only entries of one line coalesce; larger
        // leaves don't.
        let coalesced = (1..=options.coalesces).rev().filter(|_| level == 1 && block == shift).find(|bits| {
            let first = index >> bits << bits;
            let aligned = base.0 >> shift & ((1 << bits) - 1) == (index - first) as u64;
            let alike = |i: usize| self.same(raw, index, self.entry(table, i).load(Ordering::Relaxed), i, level, 0);
            aligned && (first..first + (1 << bits)).all(|i| i == index || alike(i))
        });
        Found { leaf, span: coalesced.map_or(block, |bits| shift + bits) }
    }
}

/// Returns log2 of the number of entries in the cont block of this entry; 0 if it is not part of
/// one.
pub(crate) fn block_bits<A: Arch>(arch: &A, raw: u64, level: u8) -> u32 {
    if A::CONT != 0 && raw & A::CONT != 0 { arch.cont_bits(level) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Ram;
    use vellum::platform::Region;

    #[test]
    fn hardware_bits_set_accessed_and_dirty_as_the_format_encodes_them() {
        fn check<A: Silicon>(arch: A) {
            let prots = [Attrs::READ, Attrs::READ | Attrs::WRITE, Attrs::READ | Attrs::EXEC];
            for (level, prot) in [1, 2].into_iter().flat_map(|level| prots.map(|prot| (level, prot))) {
                let pa = PhysAddr(1 << arch.level_shift(level));
                let clean = arch.leaf(pa, prot | Attrs::EXCLUSIVE, level);
                for more in [Attrs::ACCESSED, Attrs::HARDWARE] {
                    let flip = hardware_bits(&arch, clean, level, more);
                    assert_eq!(clean ^ flip, arch.leaf(pa, prot | Attrs::EXCLUSIVE | more, level));
                    assert_eq!(flip & !A::HARDWARE, 0);
                    assert_eq!(hardware_bits(&arch, clean ^ flip, level, more), 0);
                }
            }
        }
        check(X86_64::four_levels());
        check(Aarch64::granule_4k());
        check(Aarch64::granule_16k());
        check(Aarch64::granule_64k());
        check(Riscv64::sv39());
    }

    #[test]
    fn a_walk_sets_accessed_or_dirty_only_in_the_entries_it_uses() {
        let arch = X86_64::four_levels();
        let regions = vec![Region { base: PhysAddr(0), len: 16 << 20, zeroed: true, node: 0 }];
        let arena = Arena::new(&Ram { regions, prefault: false, reserve_swap: false, host_huge_pages: false }).unwrap();
        let put = |table: u32, index: usize, raw: u64| {
            arena.word(PhysAddr(Pfn(table).addr().0 + 8 * index as u64)).store(raw, Ordering::Relaxed);
        };
        let get = |table: u32, index: usize| {
            arena.word(PhysAddr(Pfn(table).addr().0 + 8 * index as u64)).load(Ordering::Relaxed)
        };
        put(1, 0, arch.table_pte(Pfn(2).addr()));
        put(2, 0, arch.table_pte(Pfn(3).addr()));
        put(3, 0, arch.table_pte(Pfn(4).addr()));
        put(3, 1, arch.leaf(PhysAddr(4 << 20), Attrs::READ | Attrs::WRITE, 2));
        put(4, 5, arch.leaf(Pfn(9).addr(), Attrs::READ, 1));
        put(4, 6, arch.leaf(Pfn(9).addr(), Attrs::empty(), 1));
        put(4, 7, arch.busy_pte());
        let go = |va: u64, access: Access| {
            let (mut reads, mut path) = (0, Vec::new());
            let tables = Tables { arena: &arena, arch: &arch };
            let found =
                tables.walk((Pfn(1), 4), va, access, WalkOptions::default(), &mut reads, |l, t| path.push((l, t.0)));
            (found.map(|found| found.leaf), reads, path)
        };

        let (leaf, reads, path) = go(0x5123, Access::Read);
        assert_eq!(
            leaf.unwrap(),
            Leaf { base: Pfn(9).addr(), shift: 12, attrs: Attrs::READ | Attrs::ACCESSED, block: 12 }
        );
        assert_eq!((reads, path), (4, vec![(4, 2), (3, 3), (2, 4)]));
        assert_eq!(get(4, 5), arch.leaf(Pfn(9).addr(), Attrs::READ | Attrs::ACCESSED, 1));
        assert_eq!(get(1, 0), arch.table_pte(Pfn(2).addr()) | 1 << 5, "x86 sets accessed in table pointers too");

        let absent = |shift| Err(Miss::Absent { shift });
        assert!(matches!(go(0x5123, Access::Write).0, Err(Miss::Denied(found)) if Ok(found.leaf) == leaf));
        assert_eq!(go(0x6000, Access::Read).0, absent(12), "a PROT_NONE leaf is not present");
        assert_eq!(go(0x7000, Access::Read).0, absent(12), "a busy entry is not present");
        assert_eq!(go(0x8000, Access::Read).0, absent(12));
        assert_eq!(go(0x40_0000, Access::Read).0, absent(21), "there is no page table");
        assert_eq!(get(4, 6), arch.leaf(Pfn(9).addr(), Attrs::empty(), 1), "a refused access sets no bit");

        let (leaf, reads, _) = go(0x20_0000 + 0x1234, Access::Write);
        assert_eq!((leaf.unwrap().shift, reads), (21, 3));
        assert_eq!(arch.attrs(get(3, 1), 2), Attrs::READ | Attrs::WRITE | Attrs::HARDWARE);
    }
}
