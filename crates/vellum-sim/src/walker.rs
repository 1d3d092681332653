//! The page walker: reads the tables in memory as the processor does, and sets accessed and dirty as it does.

use std::sync::atomic::Ordering;

use vellum::addr::{Pfn, PhysAddr};
use vellum::arch::{Aarch64, Arch, Attrs, Kind, Riscv64, X86_64};

use crate::arena::Arena;
use crate::program::Access;

/// What a processor does to tables that the format alone doesn't say.
pub trait Silicon: Arch {
    /// Bits that a walk sets in each pointer to a table that it follows.
    fn table_accessed(&self) -> u64 {
        0
    }
}

impl Silicon for X86_64 {
    // "Whenever the processor uses a paging-structure entry as part of linear-address translation, it sets the accessed
    // flag in that entry" (Intel SDM vol. 3A §5.8), not in leaves alone.
    fn table_accessed(&self) -> u64 {
        1 << 5
    }
}

// A CPU that manages accessed and dirty in leaves (FEAT_HAFDBS) and not in table descriptors (FEAT_HAFT).
impl Silicon for Aarch64 {}

// A CPU with Svadu. In a pointer to a table the bits are reserved.
impl Silicon for Riscv64 {}

/// The bits to flip in leaf `raw` for `more` of [`Attrs::HARDWARE`] to be set too. (In some formats dirty is a bit that is
/// cleared.)
pub(crate) fn hardware_bits<A: Arch>(arch: &A, raw: u64, level: u8, more: Attrs) -> u64 {
    let (pa, attrs) = (arch.leaf_addr(raw, level), arch.attrs(raw, level));
    arch.leaf(pa, attrs, level) ^ arch.leaf(pa, attrs | more, level)
}

/// A translation, as a walk found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// The address of the page's first byte.
    pub base: PhysAddr,
    /// log2 of the page's size.
    pub shift: u32,
    /// What the leaf says besides.
    pub attrs: Attrs,
}

/// Why a walk found none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// Nothing is mapped, or what is may not be accessed at all.
    Absent,
    /// What is mapped may not be accessed like this.
    Denied,
}

/// What a leaf must allow for an access. A leaf that allows nothing is not present to the hardware.
pub(crate) fn allows(attrs: Attrs, access: Access) -> Result<(), Miss> {
    if !attrs.intersects(Attrs::PROT) {
        Err(Miss::Absent)
    } else if attrs.contains(access.needs()) {
        Ok(())
    } else {
        Err(Miss::Denied)
    }
}

/// What a walk sets in the leaf that it found.
pub(crate) fn sets(access: Access) -> Attrs {
    match access {
        Access::Write => Attrs::HARDWARE,
        Access::Read | Access::Execute => Attrs::ACCESSED,
    }
}

/// Walk from the table of `level` at `table` down to the leaf for `va`. `seen` hears of each table pointer that is
/// followed: the level where it stands, and the table. `reads` counts the entries read.
pub(crate) fn walk<A: Silicon>(
    arena: &Arena,
    arch: &A,
    (mut table, mut level): (Pfn, u8),
    va: u64,
    access: Access,
    reads: &mut u64,
    mut seen: impl FnMut(u8, Pfn),
) -> Result<Leaf, Miss> {
    loop {
        let entry = arena.word(PhysAddr(table.addr().0 + 8 * arch.index(va, level) as u64));
        // Another CPU may write the entry between reading it here and setting bits in it: then it counts as not yet read,
        // as it does for the locked read-modify-write of a processor.
        let (raw, set) = loop {
            *reads += 1;
            let raw = entry.load(Ordering::Acquire);
            let flip = match arch.kind(raw, level) {
                Kind::Table if level > 1 => arch.table_accessed() & !raw,
                Kind::Leaf => {
                    allows(arch.attrs(raw, level), access)?;
                    hardware_bits(arch, raw, level, sets(access))
                }
                _ => return Err(Miss::Absent),
            };
            let set = raw ^ flip;
            if flip == 0 || entry.compare_exchange(raw, set, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                break (raw, set);
            }
        };
        if arch.kind(raw, level) == Kind::Leaf {
            let attrs = arch.attrs(set, level);
            let base = arch.leaf_addr(arch.single(set, arch.index(va, level)), level);
            return Ok(Leaf { base, shift: arch.level_shift(level), attrs });
        }
        table = arch.table_addr(raw).pfn();
        level -= 1;
        seen(level + 1, table);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Ram;
    use vellum::platform::Region;

    #[test]
    fn marking_a_leaf_makes_the_leaf_that_says_so() {
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
    fn a_walk_sets_what_the_access_sets_and_no_more() {
        let arch = X86_64::four_levels();
        let regions = vec![Region { base: PhysAddr(0), len: 16 << 20, zeroed: true }];
        let arena = Arena::new(&Ram { regions, prefault: false, reserve_swap: false, host_huge_pages: false }).unwrap();
        let put = |table: u32, index: usize, raw: u64| {
            arena.word(PhysAddr(Pfn(table).addr().0 + 8 * index as u64)).store(raw, Ordering::Relaxed);
        };
        let get = |table: u32, index: usize| {
            arena.word(PhysAddr(Pfn(table).addr().0 + 8 * index as u64)).load(Ordering::Relaxed)
        };
        put(1, 0, arch.table(Pfn(2).addr()));
        put(2, 0, arch.table(Pfn(3).addr()));
        put(3, 0, arch.table(Pfn(4).addr()));
        put(3, 1, arch.leaf(PhysAddr(4 << 20), Attrs::READ | Attrs::WRITE, 2));
        put(4, 5, arch.leaf(Pfn(9).addr(), Attrs::READ, 1));
        put(4, 6, arch.leaf(Pfn(9).addr(), Attrs::empty(), 1));
        put(4, 7, arch.busy());
        let go = |va: u64, access: Access| {
            let (mut reads, mut path) = (0, Vec::new());
            let leaf = walk(&arena, &arch, (Pfn(1), 4), va, access, &mut reads, |l, t| path.push((l, t.0)));
            (leaf, reads, path)
        };

        let (leaf, reads, path) = go(0x5123, Access::Read);
        assert_eq!(leaf.unwrap(), Leaf { base: Pfn(9).addr(), shift: 12, attrs: Attrs::READ | Attrs::ACCESSED });
        assert_eq!((reads, path), (4, vec![(4, 2), (3, 3), (2, 4)]));
        assert_eq!(get(4, 5), arch.leaf(Pfn(9).addr(), Attrs::READ | Attrs::ACCESSED, 1));
        assert_eq!(get(1, 0), arch.table(Pfn(2).addr()) | 1 << 5, "x86 marks table pointers too");

        assert_eq!(go(0x5123, Access::Write).0, Err(Miss::Denied));
        assert_eq!(go(0x6000, Access::Read).0, Err(Miss::Absent), "PROT_NONE is not there");
        assert_eq!(go(0x7000, Access::Read).0, Err(Miss::Absent), "busy is not there");
        assert_eq!(go(0x8000, Access::Read).0, Err(Miss::Absent));
        assert_eq!(get(4, 6), arch.leaf(Pfn(9).addr(), Attrs::empty(), 1), "a refused access leaves no mark");

        let (leaf, reads, _) = go(0x20_0000 + 0x1234, Access::Write);
        assert_eq!((leaf.unwrap().shift, reads), (21, 3));
        assert_eq!(arch.attrs(get(3, 1), 2), Attrs::READ | Attrs::WRITE | Attrs::HARDWARE);
    }
}
