//! Entries that TLBs cache after they have come to allow more: exactly those that each format
//! allows ([`vellum::arch::stale`]). The page tables are written by hand, for one page; the fault
//! handler does what a test chooses.

use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;

use vellum::addr::{Pfn, PhysAddr, VirtRange};
use vellum::arch::{Aarch64, Attrs, Riscv64, X86_64};
use vellum::platform::{Invalidation, SpaceId, Tlb};
use vellum_sim::{Access, Config, Fast, Fault, Handler, Silicon, Simulated, TlbModel};

const VA: u64 = 0x12_3000_0000;
const SPACE: SpaceId = SpaceId(3);
const READ: Attrs = Attrs::READ.union(Attrs::HARDWARE);
const RW: Attrs = READ.union(Attrs::WRITE);

/// The invalidation that the handler does after it has written the entry.
#[derive(Clone, Copy, PartialEq)]
enum After {
    Nothing,
    /// [`Tlb::invalidate_local`] of the page only.
    Page,
    /// The same, with `tables`.
    Tables,
}

struct Space<'m, A: Silicon> {
    machine: &'m Fast<A>,
    arch: A,
    /// The level and the entry that the handler writes.
    fix: Cell<(u8, u64)>,
    after: After,
    faults: Cell<u32>,
}

impl<A: Silicon> Space<'_, A> {
    /// Returns the address of the page table of a level.
    fn table(&self, level: u8) -> PhysAddr {
        PhysAddr((4 << 20) + u64::from(level) * (64 << 10))
    }

    fn write(&self, level: u8, raw: u64) {
        let at = PhysAddr(self.table(level).0 + 8 * self.arch.index(VA, level) as u64);
        self.machine.hardware().arena().word(at).store(raw, SeqCst);
    }

    fn leaf(&self, attrs: Attrs) -> u64 {
        self.arch.leaf(self.table(0), attrs, 1)
    }
}

impl<A: Silicon> Handler for Space<'_, A> {
    type Error = ();

    fn root(&self) -> Pfn {
        self.table(self.arch.levels()).pfn()
    }

    fn space_id(&self) -> SpaceId {
        SPACE
    }

    fn fault(&self, va: u64, _access: Access) -> Result<(), ()> {
        self.faults.set(self.faults.get() + 1);
        let (level, raw) = self.fix.get();
        self.write(level, raw);
        let page = 1 << self.arch.page_shift();
        let ranges = &[VirtRange { start: va & !(page - 1), end: (va & !(page - 1)) + page }];
        let stride_shift = self.arch.page_shift();
        let tables = self.after == After::Tables;
        if self.after != After::Nothing {
            self.machine.invalidate_local(&Invalidation {
                space: SPACE,
                root: self.root(),
                ranges,
                stride_shift,
                tables,
            });
        }
        Ok(())
    }
}

/// Returns the number of faults that an access takes, or `None` if it faults forever. The entry for
/// the page is `before` (`None`: there is no page table) and is read once, if that is allowed. Then
/// the page is written, or read, and each fault writes the new entry.
fn faults<A: Silicon>(
    (arch, software): (A, bool),
    before: Option<Attrs>,
    (now, writes): (Attrs, bool),
    after: After,
) -> Option<u32> {
    let config = Config::with_arch(arch, 16 << 20).tlb(TlbModel::SMALL);
    let machine = if software { config.software_ad_bits() } else { config }.fast().unwrap();
    let cpu = machine.cpu(0);
    let space = Space { machine: &machine, arch, fix: Cell::new((1, 0)), after, faults: Cell::new(0) };
    for level in 2..=arch.levels() {
        space.write(level, arch.table_pte(space.table(level - 1)));
    }
    space.fix.set((1, space.leaf(now)));
    match before {
        Some(attrs) if attrs.is_empty() => {}
        Some(attrs) => space.write(1, space.leaf(attrs)),
        None => {
            space.write(1, space.leaf(now));
            space.fix.set((2, arch.table_pte(space.table(1))));
            space.write(2, 0);
        }
    }
    let program = cpu.enter(&space);
    if writes {
        program.load(VA).unwrap();
        assert_eq!(space.faults.replace(0), 0, "it may be read");
    }
    match if writes { program.store(VA, 1) } else { program.load(VA).map(|_| ()) } {
        Ok(()) => Some(space.faults.get()),
        Err(Fault::Stuck(_)) => None,
        Err(error) => panic!("{error:?}"),
    }
}

const X86: (X86_64, bool) = (X86_64::four_levels(), false);
const ARM: (Aarch64, bool) = (Aarch64::granule_4k(), false);
const RISC: (Riscv64, bool) = (Riscv64::sv39(), false);
const VVPTC: (Riscv64, bool) = (Riscv64::sv39().with_vvptc(), false);

/// Runs [`faults`] with [`After::Nothing`], [`After::Page`] and [`After::Tables`].
fn each<A: Silicon>(of: (A, bool), before: Option<Attrs>, now: (Attrs, bool)) -> [Option<u32>; 3] {
    [After::Nothing, After::Page, After::Tables].map(|after| faults(of, before, now, after))
}

#[test]
fn ptes_that_deny_an_access_are_cached_except_on_x86() {
    let (before, now) = (Some(READ), (RW, true));
    assert_eq!(each(X86, before, now), [Some(1); 3], "the entry is read anew before each fault");
    assert_eq!(each(ARM, before, now), [None, Some(1), Some(1)]);
    assert_eq!(each((Aarch64::granule_64k().wide(), false), before, now), [None, Some(1), Some(1)]);
    assert_eq!(each(RISC, before, now), [None, Some(1), Some(1)]);
    assert_eq!(each(VVPTC, before, now), [None, Some(1), Some(1)]);
}

#[test]
fn risc_v_caches_non_present_ptes_and_with_svvptc_for_a_bounded_time() {
    let (before, now) = (Some(Attrs::empty()), (RW, false));
    assert_eq!(each(X86, before, now), [Some(1); 3]);
    assert_eq!(each(ARM, before, now), [Some(1); 3]);
    assert_eq!(each(RISC, before, now), [None, Some(1), Some(1)]);
    assert_eq!(each(VVPTC, before, now), [Some(2), Some(1), Some(1)]);
}

#[test]
fn non_present_table_pointers_are_cached_until_tables_are_invalidated() {
    let (before, now) = (None, (RW, false));
    assert_eq!(each(X86, before, now), [Some(1); 3]);
    assert_eq!(each(ARM, before, now), [Some(1); 3]);
    assert_eq!(each(RISC, before, now), [None, None, Some(1)]);
    assert_eq!(each(VVPTC, before, now), [Some(2), Some(2), Some(1)]);
}

#[test]
fn risc_v_caches_non_accessed_ptes_with_software_ad_bits() {
    let (before, now) = (Some(Attrs::READ), (RW, false));
    assert_eq!(each(X86, before, now), [Some(0); 3]);
    assert_eq!(each(ARM, before, now), [Some(0); 3]);
    assert_eq!(each((ARM.0, true), before, now), [Some(1); 3]);
    assert_eq!(each(RISC, before, now), [Some(0); 3]);
    assert_eq!(each((RISC.0, true), before, now), [None, Some(1), Some(1)]);
    assert_eq!(each((VVPTC.0, true), before, now), [None, Some(1), Some(1)]);
}

#[test]
fn non_dirty_ptes_are_cached_with_software_ad_bits() {
    let (before, now) = (Some(RW - Attrs::DIRTY), (RW, true));
    assert_eq!(each(X86, before, now), [Some(0); 3]);
    assert_eq!(each(ARM, before, now), [Some(0); 3]);
    assert_eq!(each((ARM.0, true), before, now), [None, Some(1), Some(1)]);
    assert_eq!(each(RISC, before, now), [Some(0); 3]);
    assert_eq!(each((RISC.0, true), before, now), [None, Some(1), Some(1)]);
}
