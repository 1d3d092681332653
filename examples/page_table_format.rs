//! A page-table format that the engine does not know, in a hundred lines: three levels, 4 KiB
//! pages, and bits in places of its own. Everything else (walks, runs, locks, huge pages, swap) is
//! the engine's.
//!
//! `cargo run -p vellum-sim --example page_table_format`

use std::error::Error;

use vellum::addr::PhysAddr;
use vellum::arch::{Arch, Attrs, Kind, Stale, SwapPteLayout, TlbRules};
use vellum::memcg::MemcgId;
use vellum::space::{Advise, Limits, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Silicon};

/// The format of an imaginary CPU.
///
/// | bits | leaf | table |
/// |---|---|---|
/// | 0 | valid | valid |
/// | 1–3 | read, write, execute | 0 |
/// | 4 | 1 | 0 |
/// | 5, 6 | accessed, dirty (set by hardware) | 0 |
/// | 7–9 | exclusive, uffd-wp, soft-dirty | 0 |
/// | 12–51 | frame | page table |
/// | 63 | with bit 0 clear: a leaf that allows no access | 0 |
#[derive(Clone, Copy, Debug)]
struct Imaginary;

const VALID: u64 = 1;
const LEAF: u64 = 1 << 4;
const NO_ACCESS: u64 = 1 << 63;
const ADDR: u64 = 0x000f_ffff_ffff_f000;

/// Each attribute and its bit.
const BITS: [(Attrs, u64); 8] = [
    (Attrs::READ, 1 << 1),
    (Attrs::WRITE, 1 << 2),
    (Attrs::EXEC, 1 << 3),
    (Attrs::ACCESSED, 1 << 5),
    (Attrs::DIRTY, 1 << 6),
    (Attrs::EXCLUSIVE, 1 << 7),
    (Attrs::UFFD_WP, 1 << 8),
    (Attrs::SOFT_DIRTY, 1 << 9),
];

impl Arch for Imaginary {
    const HARDWARE: u64 = 1 << 5 | 1 << 6;

    // The bits of PTEs that are not valid: hardware ignores them, so the engine keeps swap entries
    // and markers there. Bit 0 and the mark of a no-access leaf stay clear.
    const SWAP_PTE: SwapPteLayout = SwapPteLayout {
        software_shift: 4,
        device_shift: 7,
        slot_shift: 12,
        slot_bits: 40,
        inverted: false,
        clear: NO_ACCESS,
    }
    .checked();

    fn levels(&self) -> u8 {
        3
    }

    fn page_shift(&self) -> u32 {
        12
    }

    fn user_end(&self) -> u64 {
        1 << 38 // the lower half of three levels of 512 entries
    }

    fn leaf_at(&self, level: u8) -> bool {
        level <= 2 // huge pages of 2 MiB
    }

    fn kind(&self, raw: u64, _level: u8) -> Kind {
        match raw {
            0 => Kind::None,
            _ if raw & VALID != 0 => {
                if raw & LEAF != 0 {
                    Kind::Leaf
                } else {
                    Kind::Table
                }
            }
            _ if raw & NO_ACCESS != 0 => Kind::Leaf,
            _ => Self::SWAP_PTE.kind(raw),
        }
    }

    fn leaf(&self, pa: PhysAddr, attrs: Attrs, _level: u8) -> u64 {
        let bits = BITS.iter().filter(|(attr, _)| attrs.contains(*attr)).fold(LEAF | pa.0, |raw, (_, bit)| raw | bit);
        bits | if attrs.intersects(Attrs::PROT) { VALID } else { NO_ACCESS }
    }

    fn leaf_addr(&self, raw: u64, _level: u8) -> PhysAddr {
        PhysAddr(raw & ADDR)
    }

    fn attrs(&self, raw: u64, _level: u8) -> Attrs {
        BITS.iter().filter(|(_, bit)| raw & bit != 0).fold(Attrs::empty(), |attrs, (attr, _)| attrs | *attr)
    }

    fn table_pte(&self, pa: PhysAddr) -> u64 {
        VALID | pa.0
    }

    fn table_addr(&self, raw: u64) -> PhysAddr {
        PhysAddr(raw & ADDR)
    }

    // This CPU behaves as x86-64 does: a PTE that is not valid is not cached, and a fault drops a
    // translation that denied the access.
    fn tlb_rules(&self) -> TlbRules {
        let not = Stale::NotCached;
        TlbRules { not_present: not, denied: Stale::UntilFault, not_accessed: not, not_dirty: not }
    }

    fn hardware_idle(&self, raw: u64) -> bool {
        let attrs = self.attrs(raw, 1);
        raw & VALID == 0
            || attrs.contains(Attrs::ACCESSED) && (attrs.contains(Attrs::DIRTY) || !attrs.contains(Attrs::WRITE))
    }

    fn step(&self, raw: u64, level: u8) -> u64 {
        let is_leaf = raw & (VALID | NO_ACCESS) != 0;
        if is_leaf { 1 << self.level_shift(level) } else { Self::SWAP_PTE.step() }
    }
}

/// Its page walker sets no accessed bits in upper levels.
impl Silicon for Imaginary {}

fn main() -> Result<(), Box<dyn Error>> {
    let host = Config::with_arch(Imaginary, 64 << 20).fast()?;
    let cpu = host.cpu(0);
    let machine = Machine::boot(&host, Default::default())?;
    let space = AddressSpace::new(&machine, Imaginary, MemcgId::ROOT, Limits::default())?;
    let prot = Prot::READ | Prot::WRITE;
    let at = space.map(MapRequest { addr: 0, len: 4 << 20, prot, flags: MapFlags::empty() })?;
    space.advise(at, 2 << 20, Advise::Huge)?;

    let program = cpu.enter(&space);
    program.store_u64(at, 1).map_err(|_| "a write was refused")?;
    program.store_u64(at + (3 << 20), 2).map_err(|_| "a write was refused")?;
    assert_eq!(program.load_u64(at).map_err(|_| "a read was refused")?, 1);
    println!("resident: {} KiB", space.stats().anon >> 10);

    space.protect(at, 4 << 20, Prot::READ)?;
    assert!(program.store(at, 0).is_err());
    space.unmap(at, 4 << 20)?;
    assert_eq!(space.stats().anon, 0);
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
