//! The same questions to every format, and the answers of a memory management unit that knows the manuals and nothing of
//! [`Arch`]: its walkers are plain arithmetic on bits, so that an encoder and its decoder cannot be wrong together.

extern crate std;

use super::*;
use crate::addr::{FRAME_SIZE, align_down};
use std::vec;
use std::vec::Vec;

/// A format, and what the manuals say of it.
struct Case<A> {
    arch: A,
    mmu: Mmu,
    page_shift: u32,
    /// Bits of the addresses of user mode.
    va_bits: u32,
    /// Bits of physical addresses.
    pa_bits: u32,
    /// log2 of the bytes that an entry maps at each level, from level 1 to the root.
    level_shifts: &'static [u32],
    /// Up to which level there are leaves.
    leaf_levels: u8,
    /// What a leaf can hold; what else it is given it forgets.
    supported: Attrs,
    /// What a leaf that allows anything allows besides.
    implied: Attrs,
    max_slot: u64,
}

// ---- The machine --------------------------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq)]
enum Access {
    Read,
    Write,
    Exec,
}

/// How a CPU is configured.
#[derive(Clone, Copy)]
enum Mmu {
    /// Levels; EFER.NXE.
    X86(u32, bool),
    /// TCR_EL1; bits of physical addresses.
    Arm(u64, u32),
    /// Levels; whether Svrsw60t59b is there.
    Riscv(u32, bool),
}

/// Page tables by physical address.
#[derive(Default)]
struct Memory {
    tables: Vec<(u64, Vec<u64>)>,
}

impl Memory {
    fn word(&mut self, pa: u64) -> &mut u64 {
        let found = self.tables.iter_mut().find(|(at, words)| pa.wrapping_sub(*at) / 8 < words.len() as u64);
        let (at, words) = found.unwrap_or_else(|| panic!("the walker left the tables: {pa:#x}"));
        &mut words[((pa - *at) / 8) as usize]
    }
}

fn bits(x: u64, high: u32, low: u32) -> u64 {
    x >> low & ((1 << (high - low + 1)) - 1)
}

fn bit(x: u64, at: u32) -> bool {
    bits(x, at, at) == 1
}

impl Mmu {
    /// An access by user mode: the physical address, or `None` for a fault. `updates`: whether the CPU sets accessed and
    /// dirty by itself (x86 always does).
    fn access(&self, memory: &mut Memory, root: u64, va: u64, access: Access, updates: bool) -> Option<u64> {
        match *self {
            Mmu::X86(levels, nxe) => walk_x86(memory, root, va, access, levels, nxe),
            Mmu::Arm(tcr, pa_bits) => walk_arm(memory, root, va, access, tcr, pa_bits, updates),
            Mmu::Riscv(levels, rsw) => walk_riscv(memory, root, va, access, levels, rsw, updates),
        }
    }
}

/// Intel SDM vol. 3A, 5.5 (walk, reserved bits), 5.6 (access rights), 5.8 (accessed and dirty).
fn walk_x86(memory: &mut Memory, root: u64, va: u64, access: Access, levels: u32, nxe: bool) -> Option<u64> {
    let top = 12 + 9 * levels;
    if va != ((va << (64 - top)) as i64 >> (64 - top)) as u64 {
        return None;
    }
    let (mut table, mut user, mut write, mut no_exec) = (root, true, true, false);
    let mut level = levels;
    let mut path = vec![];
    loop {
        let low = 12 + 9 * (level - 1);
        let at = table + bits(va, low + 8, low) * 8;
        let entry = *memory.word(at);
        path.push(at);
        if !bit(entry, 0) || (bit(entry, 63) && !nxe) {
            return None;
        }
        write &= bit(entry, 1);
        user &= bit(entry, 2);
        no_exec |= bit(entry, 63);
        let large = level > 1 && bit(entry, 7);
        let addr = bits(entry, 51, 12) << 12;
        if large && (level > 3 || bits(addr, low - 1, 13) != 0) {
            return None;
        }
        if level > 1 && !large {
            table = addr;
            level -= 1;
            continue;
        }
        // PAT (12 in a large page, 7 in a small one), cache disable and write-through: all memory is write-back.
        assert!(!bit(entry, 3) && !bit(entry, 4) && !bit(entry, if large { 12 } else { 7 }));
        // A global translation would survive the switch to another space.
        assert!(!bit(entry, 8));
        let allowed = match access {
            Access::Read => user,
            Access::Write => user && write,
            Access::Exec => user && !no_exec,
        };
        if !allowed {
            return None;
        }
        for at in path {
            *memory.word(at) |= 1 << 5;
        }
        if access == Access::Write {
            *memory.word(at) |= 1 << 6;
        }
        return Some(addr | bits(va, low - 1, 0));
    }
}

/// Arm ARM, D8.2.8 to D8.2.10 (walk), D8.3.1 (descriptors), D8.4.1.2 (direct permissions), D8.5 (hardware updates).
fn walk_arm(
    memory: &mut Memory,
    root: u64,
    va: u64,
    access: Access,
    tcr: u64,
    pa_bits: u32,
    updates: bool,
) -> Option<u64> {
    let granule = match bits(tcr, 15, 14) {
        0b00 => 12,
        0b10 => 14,
        0b01 => 16,
        _ => return None,
    };
    let ds = bit(tcr, 59);
    let lpa_64k = granule == 16 && pa_bits == 52;
    let input = 64 - bits(tcr, 5, 0) as u32;
    if va >> input != 0 {
        return None;
    }
    let stride = granule - 3;
    // Arm's levels: the last is 3, and each one before it resolves `stride` bits more.
    let mut level = 4 - (input - granule).div_ceil(stride) as i32;
    let mut table = root;
    loop {
        let low = granule + stride * (3 - level) as u32;
        let at = table + bits(va, (low + stride).min(input) - 1, low) * 8;
        let entry = *memory.word(at);
        if !bit(entry, 0) || (level == 3 && !bit(entry, 1)) {
            return None;
        }
        let mut addr = bits(entry, 47, granule) << granule;
        if ds {
            addr |= bits(entry, 49, 48) << 48 | bits(entry, 9, 8) << 50;
        } else if lpa_64k {
            addr |= bits(entry, 15, 12) << 48;
        }
        // RES0: address bits that there are not.
        assert!(ds || bits(entry, 49, 48) == 0);
        assert!(granule == 12 || lpa_64k || bits(entry, granule - 1, 12) == 0);
        if level < 3 && bit(entry, 1) {
            // Nothing but the address, or it would restrict or reinterpret what is below.
            assert_eq!((bits(entry, 63, 50), bits(entry, 7, 2)), (0, 0));
            table = addr;
            level += 1;
            continue;
        }
        if level < 3 {
            let block = match granule {
                12 => level == 2 || level == 1 || (level == 0 && ds),
                14 => level == 2 || (level == 1 && ds),
                _ => level == 2 || (level == 1 && lpa_64k),
            };
            if !block {
                return None;
            }
            // RES0 below the address, nT among it.
            assert_eq!(bits(entry, low - 1, 16), 0);
        }
        // User memory: attribute 0 of MAIR_EL1, inner shareable, nG, PXN; not contiguous, not guarded.
        assert_eq!(bits(entry, 4, 2), 0);
        assert_eq!(if ds { bits(tcr, 13, 12) } else { bits(entry, 9, 8) }, 0b11);
        assert!(bit(entry, 11) && bit(entry, 53) && !bit(entry, 52) && !bit(entry, 50));
        // Of the rest only 55 to 58 are free whatever the CPU has.
        assert_eq!((bits(entry, 63, 59), bit(entry, 5)), (0, false));
        let mut updated = entry;
        if !bit(entry, 10) {
            if !updates {
                return None;
            }
            updated |= 1 << 10;
        }
        let el0 = bit(entry, 6);
        let allowed = match access {
            Access::Read => el0,
            Access::Write if bit(entry, 7) => {
                updated &= !(1 << 7);
                el0 && updates && bit(entry, 51)
            }
            Access::Write => el0,
            Access::Exec => !bit(entry, 54),
        };
        if !allowed {
            return None;
        }
        *memory.word(at) = updated;
        return Some(addr | bits(va, low - 1, 0));
    }
}

/// RISC-V privileged specification, "Virtual Address Translation Process", with the constants of Sv39, Sv48 and Sv57.
fn walk_riscv(
    memory: &mut Memory,
    root: u64,
    va: u64,
    access: Access,
    levels: u32,
    rsw60t59b: bool,
    updates: bool,
) -> Option<u64> {
    let top = 12 + 9 * levels;
    if va != ((va << (64 - top)) as i64 >> (64 - top)) as u64 {
        return None;
    }
    let mut a = root;
    for i in (0..levels).rev() {
        let low = 12 + 9 * i;
        let at = a + bits(va, low + 8, low) * 8;
        let pte = *memory.word(at);
        let (r, w, x) = (bit(pte, 1), bit(pte, 2), bit(pte, 3));
        if !bit(pte, 0) || (w && !r) {
            return None;
        }
        let reserved = bits(pte, 63, 61) != 0
            || bits(pte, 58, 54) != 0
            || (bits(pte, 60, 59) != 0 && !rsw60t59b)
            || (!r && !x && (bit(pte, 4) || bit(pte, 6) || bit(pte, 7)));
        assert!(!reserved, "a page fault by a reserved bit: {pte:#x}");
        let ppn = bits(pte, 53, 10);
        if !r && !x {
            a = ppn << 12;
            continue;
        }
        if i > 0 && bits(ppn, 9 * i - 1, 0) != 0 {
            return None;
        }
        // A global translation would survive the switch to another space.
        assert!(!bit(pte, 5));
        let allowed = match access {
            Access::Read => r,
            Access::Write => w,
            Access::Exec => x,
        };
        if !allowed || !bit(pte, 4) {
            return None;
        }
        let store = access == Access::Write;
        if !bit(pte, 6) || (store && !bit(pte, 7)) {
            if !updates {
                return None;
            }
            *memory.word(at) |= 1 << 6 | (store as u64) << 7;
        }
        return Some(ppn << 12 | bits(va, low - 1, 0));
    }
    None
}

// ---- What there is to try -----------------------------------------------------------------------------------------

impl<A: Arch> Case<A> {
    fn leaf_levels(&self) -> impl Iterator<Item = u8> + use<A> {
        1..=self.leaf_levels
    }

    fn all_levels(&self) -> impl Iterator<Item = u8> + use<A> {
        1..=self.level_shifts.len() as u8
    }

    fn level_size(&self, level: u8) -> u64 {
        1 << self.level_shifts[level as usize - 1]
    }

    /// Physical addresses for a leaf of this level: the ends, each bit alone, and bits mixed.
    fn frames(&self, level: u8) -> Vec<u64> {
        let all = (1 << self.pa_bits) - self.level_size(level);
        let bit = |b: u32| 1 << b & all;
        let mut frames: Vec<u64> = (0..self.pa_bits).map(bit).collect();
        frames.extend([all, 0x5555_5555_5555_5555 & all, 0xaaaa_aaaa_aaaa_aaaa & all, 0x000b_1e55_edbe_ef00 & all]);
        frames.sort_unstable();
        frames.dedup();
        frames
    }

    /// Addresses of user mode, the last one among them: the ends, each bit alone, and bits mixed.
    fn addresses(&self) -> Vec<u64> {
        let mask = (1 << self.va_bits) - 1;
        let mut addresses: Vec<u64> = (0..self.va_bits).map(|b| 1 << b).collect();
        addresses.extend([0, self.arch.user_end() - 1]);
        let mut random = 1u64;
        addresses.extend((0..64).map(|_| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 7 & mask).min(self.arch.user_end() - 1)
        }));
        addresses
    }

    /// What a leaf remembers of these.
    fn stored(&self, attrs: Attrs) -> Attrs {
        let implied = if attrs.intersects(Attrs::PROT) { self.implied } else { Attrs::empty() };
        (attrs | implied) & self.supported
    }

    fn leaf(&self, pa: u64, attrs: Attrs, level: u8) -> u64 {
        self.arch.leaf(PhysAddr(pa), attrs, level)
    }

    fn swaps(&self) -> Vec<Swapped> {
        let mut slots = vec![0, self.max_slot, self.max_slot - 1, self.max_slot / 3, self.max_slot / 3 * 2];
        slots.extend((0..self.max_slot.count_ones()).map(|b| 1 << b));
        let mut swaps = vec![];
        for slot in slots {
            for device in 0..32 {
                swaps.extend(SOFTWARE.map(|attrs| Swapped { device, slot, attrs }));
            }
        }
        swaps
    }
}

fn all_attrs() -> impl Iterator<Item = Attrs> {
    (0..=Attrs::all().bits()).map(Attrs::from_bits_retain)
}

/// Every combination of what a swap entry remembers.
const SOFTWARE: [Attrs; 8] = {
    let mut all = [Attrs::empty(); 8];
    let mut i = 0;
    while i < 8 {
        let exclusive = if i & 1 == 0 { Attrs::empty() } else { Attrs::EXCLUSIVE };
        let watched = if i & 2 == 0 { Attrs::empty() } else { Attrs::WATCHED };
        let soft_dirty = if i & 4 == 0 { Attrs::empty() } else { Attrs::SOFT_DIRTY };
        all[i] = exclusive.union(watched).union(soft_dirty);
        i += 1;
    }
    all
};

const MARKERS: [Marker; 3] = [Marker::Watched, Marker::Guard, Marker::Poison];

/// Every combination of the bits of `mask`.
fn subsets(mask: u64) -> impl Iterator<Item = u64> {
    let mut next = Some(0u64);
    std::iter::from_fn(move || {
        let this = next?;
        next = (this != mask).then(|| (this | !mask).wrapping_add(1) & mask);
        Some(this)
    })
}

// ---- The questions ------------------------------------------------------------------------------------------------

fn geometry<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    assert_eq!(arch.page_shift(), case.page_shift);
    assert_eq!(arch.page_order() as u32, case.page_shift - 12);
    assert_eq!(arch.levels() as usize, case.level_shifts.len());
    assert!(arch.user_end() <= 1 << case.va_bits && arch.user_end() > 1 << (case.va_bits - 1));
    assert_eq!(arch.user_end() % (1 << case.page_shift), 0);
    for level in case.all_levels() {
        assert_eq!(arch.level_shift(level), case.level_shifts[level as usize - 1]);
        assert_eq!(arch.leaf_at(level), level <= case.leaf_levels, "level {level}");
    }
}

fn indices_split_an_address<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    for bit in 0..case.va_bits {
        // Each bit is the page's offset or belongs to exactly one level.
        let users = case.all_levels().filter(|l| arch.index(1 << bit, *l) != 0).count();
        assert_eq!(users, (bit >= case.page_shift) as usize, "bit {bit}");
    }
    for va in case.addresses() {
        let mut sum = va % (1 << case.page_shift);
        for level in case.all_levels() {
            let index = arch.index(va, level);
            assert!(index < 1 << (case.page_shift - 3), "{va:#x} level {level}");
            sum += index as u64 * case.level_size(level);
        }
        assert_eq!(sum, va);
    }
}

fn attributes_round_trip<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    for level in case.leaf_levels() {
        for pa in case.frames(level) {
            for attrs in all_attrs() {
                let raw = case.leaf(pa, attrs, level);
                assert_eq!(arch.attrs(raw, level), case.stored(attrs), "{attrs:?} level {level} {raw:#x}");
                assert_eq!(arch.leaf_addr(raw, level), PhysAddr(pa), "{attrs:?} level {level} {raw:#x}");
                // What was read can be written back.
                assert_eq!(case.leaf(pa, arch.attrs(raw, level), level), raw);
            }
        }
    }
    for pa in case.frames(1) {
        assert_eq!(arch.table_addr(arch.table(PhysAddr(pa))), PhysAddr(pa));
    }
    let pfn = Pfn(0xdead_bee0);
    assert_eq!(arch.leaf_pfn(arch.leaf(pfn.addr(), Attrs::READ, 1), 1), pfn);
}

fn kinds_exclude_each_other<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    for level in case.all_levels() {
        assert_eq!(arch.kind(0, level), Kind::None);
    }
    let expect = |raw: u64, level: u8, kind: Kind| {
        assert_ne!(raw, 0, "{kind:?}");
        assert_eq!(arch.kind(raw, level), kind, "{raw:#x} level {level}");
    };
    for level in case.leaf_levels() {
        for pa in case.frames(level) {
            for attrs in all_attrs() {
                expect(case.leaf(pa, attrs, level), level, Kind::Leaf);
            }
        }
    }
    for level in case.all_levels() {
        if level > 1 {
            for pa in case.frames(1) {
                expect(arch.table(PhysAddr(pa)), level, Kind::Table);
            }
        }
        for swapped in case.swaps() {
            expect(arch.swap(swapped), level, Kind::Swap);
        }
        for marker in MARKERS {
            expect(arch.marker(marker), level, Kind::Marker);
        }
        expect(arch.busy(), level, Kind::Busy);
    }
    for marker in MARKERS {
        assert_eq!(arch.marked(arch.marker(marker)), Some(marker));
    }
    for other in [0, arch.busy(), arch.swap(case.swaps()[0]), case.leaf(0, Attrs::empty(), 1)] {
        assert_eq!(arch.marked(other), None, "{other:#x}");
    }
}

fn swap_round_trips<A: Arch>(case: &Case<A>) {
    for swapped in case.swaps() {
        assert_eq!(case.arch.swapped(case.arch.swap(swapped)), swapped);
    }
}

fn hardware_bits_are_accessed_and_dirty<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    for level in case.leaf_levels() {
        let pa = case.frames(level).pop().unwrap();
        for attrs in all_attrs() {
            let raw = case.leaf(pa, attrs, level);
            for flipped in subsets(A::HARDWARE).map(|f| raw ^ f) {
                assert_eq!(arch.kind(flipped, level), Kind::Leaf);
                assert_eq!(arch.leaf_addr(flipped, level), PhysAddr(pa));
                let changed = arch.attrs(flipped, level) ^ case.stored(attrs);
                assert_eq!(changed - Attrs::HARDWARE, Attrs::empty(), "{attrs:?} {raw:#x} {flipped:#x}");
            }
            // And the other way: accessed and dirty are nowhere else.
            for seen in [Attrs::empty(), Attrs::ACCESSED, Attrs::DIRTY, Attrs::HARDWARE] {
                let other = case.leaf(pa, (attrs - Attrs::HARDWARE) | seen, level);
                assert_eq!((raw ^ other) & !A::HARDWARE, 0, "{attrs:?} {seen:?}");
            }
        }
    }
}

fn runs_compare_without_hardware_bits<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    let same = |a: u64, b: u64| (a ^ b) & !A::HARDWARE == 0;
    for level in case.leaf_levels() {
        let (pa, next) = (0, case.level_size(level));
        for one in all_attrs() {
            let raw = case.leaf(pa, one, level);
            let expected = raw.wrapping_add(arch.step(raw, level));
            for two in all_attrs() {
                let alike = case.stored(one) - Attrs::HARDWARE == case.stored(two) - Attrs::HARDWARE;
                assert_eq!(same(expected, case.leaf(next, two, level)), alike, "{one:?} {two:?} level {level}");
            }
            assert!(!same(expected, case.leaf(2 * next, one, level)), "{one:?}");
        }
    }
    // Slots are compared to the last bit.
    for attrs in SOFTWARE {
        let entry = |device, slot, attrs| arch.swap(Swapped { device, slot, attrs });
        let raw = entry(3, 7, attrs);
        let expected = raw.wrapping_add(arch.step(raw, 1));
        for other in SOFTWARE {
            assert_eq!(expected == entry(3, 8, other), attrs == other, "{attrs:?} {other:?}");
        }
        assert_ne!(expected, entry(4, 8, attrs));
        assert_ne!(expected, entry(3, 9, attrs));
    }
}

/// Accessed and dirty of a run can be collected without decoding: flip the inverted bits, OR, flip back.
fn hardware_bits_collect<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    assert_eq!(A::HARDWARE_INVERTED & !A::HARDWARE, 0);
    for one in all_attrs() {
        for two in subsets(Attrs::HARDWARE.bits() as u64).map(|h| Attrs::from_bits_retain(h as u16)) {
            let two = (one - Attrs::HARDWARE) | two;
            let (a, b) = (case.leaf(0, one, 1), case.leaf(0, two, 1));
            let collected = ((a ^ A::HARDWARE_INVERTED) | (b ^ A::HARDWARE_INVERTED)) ^ A::HARDWARE_INVERTED;
            assert_eq!(arch.attrs(collected, 1), case.stored(one | two));
            assert_eq!(collected, case.leaf(0, one | two, 1));
        }
    }
}

/// A leaf takes over accessed and dirty from the one that it replaces, with whatever else changed between the two.
fn hardware_bits_are_carried<A: Arch>(case: &Case<A>) {
    for old in all_attrs() {
        for new in all_attrs() {
            let got = case.arch.carry(case.leaf(0, new, 1), case.leaf(0, old, 1));
            let expected = (new - Attrs::HARDWARE) | (old & Attrs::HARDWARE);
            assert_eq!(got, case.leaf(0, expected, 1), "{old:?} {new:?}");
        }
    }
}

/// "Idle" is what the walker says by not changing the entry, whatever user mode does.
fn hardware_is_idle_when_it_has_nothing_to_set<A: Arch>(case: &Case<A>) {
    for level in case.leaf_levels() {
        let mut memory = Memory::default();
        let (root, place) = build(case, &mut memory, 0, level);
        for attrs in all_attrs() {
            let raw = case.leaf(0, attrs, level);
            let mut idle = true;
            for access in [Access::Read, Access::Write, Access::Exec] {
                *memory.word(place) = raw;
                case.mmu.access(&mut memory, root, 0, access, true);
                idle &= *memory.word(place) == raw;
            }
            assert_eq!(case.arch.hardware_idle(raw), idle, "{attrs:?} {raw:#x}");
        }
    }
}

/// Through whole naturally aligned folios, up to the largest, wherever the address of a folio changes many bits at once
/// or bits that an entry keeps apart.
fn steps_walk_a_run<A: Arch>(case: &Case<A>) {
    const FOLIO: u64 = 1 << 30;
    let end = 1u64 << case.pa_bits;
    let borders = [0, 1 << 36, 1 << 44, 1 << 47, 1 << 48, 1 << 49, 1 << 50, 1 << 51, end];
    let folios: Vec<u64> = borders.iter().flat_map(|b| [b.wrapping_sub(FOLIO), *b]).filter(|f| *f < end).collect();
    let some_attrs = [Attrs::PROT, Attrs::all(), Attrs::empty(), Attrs::all() - Attrs::PROT];
    for level in case.leaf_levels() {
        let size = case.level_size(level);
        for folio in &folios {
            for attrs in some_attrs {
                let mut raw = case.leaf(*folio, attrs, level);
                let step = case.arch.step(raw, level);
                for n in 0..FOLIO / size {
                    let pa = folio + n * size;
                    assert_eq!(raw, case.leaf(pa, attrs, level), "{pa:#x} {attrs:?} level {level}");
                    assert_eq!(case.arch.step(raw, level), step);
                    raw = raw.wrapping_add(step);
                }
            }
        }
    }
    for level in case.all_levels() {
        for first in [0, 0xffff, (1 << 32) - 512, case.max_slot / 3, case.max_slot - 1023] {
            for attrs in SOFTWARE {
                let mut raw = case.arch.swap(Swapped { device: 21, slot: first, attrs });
                let step = case.arch.step(raw, level);
                for slot in first..first + 1024 {
                    assert_eq!(raw, case.arch.swap(Swapped { device: 21, slot, attrs }));
                    assert_eq!(case.arch.step(raw, level), step);
                    raw = raw.wrapping_add(step);
                }
            }
        }
    }
}

/// Tables of every level down to one for entries of `level`, on the way to `va`; the place of that entry.
fn build<A: Arch>(case: &Case<A>, memory: &mut Memory, va: u64, level: u8) -> (u64, u64) {
    let entries = 1 << (case.page_shift - 3);
    let mut place = None;
    let mut root = 0;
    for l in (level..=case.arch.levels()).rev() {
        // Far apart, with most bits of an address in use.
        let scatter = 0x0009_e377_9b97_f4a7u64.wrapping_mul(2 * l as u64 + 1);
        let table = align_down(scatter & ((1 << case.pa_bits) - 1), case.page_shift);
        assert!(memory.tables.iter().all(|(at, _)| at.abs_diff(table) >= 1 << case.page_shift));
        memory.tables.push((table, vec![0; entries]));
        match place {
            None => root = table,
            Some(place) => *memory.word(place) = case.arch.table(PhysAddr(table)),
        }
        place = Some(table + case.arch.index(va, l) as u64 * 8);
    }
    (root, place.unwrap())
}

fn mmu_agrees<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    for level in case.leaf_levels() {
        let frames = case.frames(level);
        for (n, va) in case.addresses().into_iter().enumerate() {
            let mut memory = Memory::default();
            let (root, place) = build(case, &mut memory, va, level);
            let pa = frames[n % frames.len()];
            for attrs in all_attrs() {
                for access in [Access::Read, Access::Write, Access::Exec] {
                    for updates in [true, false] {
                        *memory.word(place) = arch.leaf(PhysAddr(pa), attrs, level);
                        let got = case.mmu.access(&mut memory, root, va, access, updates);
                        let (needs, leaves) = match access {
                            Access::Read => (Attrs::READ, Attrs::ACCESSED),
                            Access::Exec => (Attrs::EXEC, Attrs::ACCESSED),
                            Access::Write => (Attrs::WRITE, Attrs::HARDWARE),
                        };
                        let updates = updates || matches!(case.mmu, Mmu::X86(..));
                        let stored = case.stored(attrs);
                        let allowed = stored.contains(needs) && (updates || stored.contains(leaves));
                        let what = (level, va, attrs, access, updates);
                        let offset = va % case.level_size(level);
                        assert_eq!(got, allowed.then_some(pa + offset), "{what:x?}");
                        // What the CPU leaves behind is what the engine would have written.
                        let after = if allowed { stored | leaves } else { stored };
                        assert_eq!(arch.attrs(*memory.word(place), level), after, "{what:x?}");
                        assert_eq!(*memory.word(place), case.leaf(pa, after, level), "{what:x?}");
                    }
                }
            }
        }
    }
}

fn mmu_faults_on_all_else<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    let mut others = vec![0, arch.busy()];
    others.extend(MARKERS.map(|m| arch.marker(m)));
    others.extend(case.swaps().into_iter().map(|s| arch.swap(s)));
    for level in case.all_levels() {
        let va = case.addresses().pop().unwrap();
        let mut memory = Memory::default();
        let (root, place) = build(case, &mut memory, va, level);
        for other in &others {
            *memory.word(place) = *other;
            for access in [Access::Read, Access::Write, Access::Exec] {
                assert_eq!(case.mmu.access(&mut memory, root, va, access, true), None, "{other:#x} level {level}");
                assert_eq!(*memory.word(place), *other);
            }
        }
    }
}

/// User mode has the lower half; what lies above never reaches its tables, not even by cutting off bits.
fn user_half_ends_where_it_says<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    let page = 1 << case.page_shift;
    let mut reached = 0;
    for va in [arch.user_end() - page, arch.user_end() - 1, 1 << case.va_bits, 1 << (case.va_bits + 1), 1 << 63] {
        let mut memory = Memory::default();
        let (root, place) = build(case, &mut memory, va % (1 << case.va_bits), 1);
        *memory.word(place) = arch.leaf(PhysAddr(FRAME_SIZE * 16), Attrs::all(), 1);
        // The kernel's half of a shared root (x86-64, RISC-V) is empty here.
        let got = case.mmu.access(&mut memory, root, va, Access::Read, true);
        assert_eq!(got.is_some(), va < arch.user_end(), "{va:#x}");
        reached += got.is_some() as u32;
    }
    assert_eq!(reached, 2);
}

// ---- The formats --------------------------------------------------------------------------------------------------

macro_rules! formats {
    ($($name:ident: $case:expr;)*) => { $(
        mod $name {
            use super::*;

            formats!(@tests $case;
                geometry, indices_split_an_address, attributes_round_trip, kinds_exclude_each_other, swap_round_trips,
                hardware_bits_are_accessed_and_dirty, runs_compare_without_hardware_bits, hardware_bits_collect,
                hardware_bits_are_carried, hardware_is_idle_when_it_has_nothing_to_set, steps_walk_a_run, mmu_agrees,
                mmu_faults_on_all_else, user_half_ends_where_it_says);
        }
    )* };
    (@tests $case:expr; $($test:ident),*) => { $(
        #[test]
        fn $test() {
            super::$test(&$case);
        }
    )* };
}

const X86_LEVELS: [u32; 5] = [12, 21, 30, 39, 48];

fn x86_64(arch: X86_64, levels: usize, nxe: bool) -> Case<X86_64> {
    Case {
        arch,
        mmu: Mmu::X86(levels as u32, nxe),
        page_shift: 12,
        va_bits: 12 + 9 * levels as u32 - 1,
        pa_bits: 52,
        level_shifts: &X86_LEVELS[..levels],
        leaf_levels: 3,
        supported: Attrs::all(),
        implied: if nxe { Attrs::READ } else { Attrs::READ.union(Attrs::EXEC) },
        max_slot: (1 << 50) - 1,
    }
}

fn aarch64(arch: Aarch64, bits: u32, level_shifts: &'static [u32], leaf_levels: u8) -> Case<Aarch64> {
    Case {
        arch,
        mmu: Mmu::Arm(arch.tcr_el1(), bits),
        page_shift: level_shifts[0],
        va_bits: bits,
        pa_bits: bits,
        level_shifts,
        leaf_levels,
        supported: Attrs::all(),
        implied: Attrs::READ,
        max_slot: Aarch64::MAX_SLOT,
    }
}

fn riscv64(arch: Riscv64, levels: usize, rsw60t59b: bool) -> Case<Riscv64> {
    Case {
        arch,
        mmu: Mmu::Riscv(levels as u32, rsw60t59b),
        page_shift: 12,
        va_bits: 12 + 9 * levels as u32 - 1,
        pa_bits: 56,
        level_shifts: &X86_LEVELS[..levels],
        leaf_levels: 3,
        supported: arch.supported(),
        implied: Attrs::READ,
        max_slot: Riscv64::MAX_SLOT,
    }
}

formats! {
    x86_64_four_levels: x86_64(X86_64::four_levels(), 4, true);
    x86_64_five_levels: x86_64(X86_64::five_levels(), 5, true);
    x86_64_without_no_exec: x86_64(X86_64::four_levels().without_no_exec(), 4, false);
    aarch64_4k: aarch64(Aarch64::granule_4k(), 48, &[12, 21, 30, 39], 3);
    aarch64_16k: aarch64(Aarch64::granule_16k(), 48, &[14, 25, 36, 47], 2);
    aarch64_64k: aarch64(Aarch64::granule_64k(), 48, &[16, 29, 42], 2);
    aarch64_4k_wide: aarch64(Aarch64::granule_4k().wide(), 52, &[12, 21, 30, 39, 48], 3);
    aarch64_16k_wide: aarch64(Aarch64::granule_16k().wide(), 52, &[14, 25, 36, 47], 2);
    aarch64_64k_wide: aarch64(Aarch64::granule_64k().wide(), 52, &[16, 29, 42], 2);
    riscv64_sv39: riscv64(Riscv64::sv39(), 3, false);
    riscv64_sv48: riscv64(Riscv64::sv48(), 4, false);
    riscv64_sv57: riscv64(Riscv64::sv57(), 5, false);
    riscv64_sv57_rsw60t59b: riscv64(Riscv64::sv57().with_rsw60t59b(), 5, true);
}

// ---- What single formats add --------------------------------------------------------------------------------------

#[test]
fn aarch64_control_register() {
    // T0SZ; write-back, inner shareable tables (0x3500); TG0 at 14; DS at 59.
    assert_eq!(Aarch64::granule_4k().tcr_el1(), 16 | 0x3500);
    assert_eq!(Aarch64::granule_16k().tcr_el1(), 16 | 0x3500 | 0b10 << 14);
    assert_eq!(Aarch64::granule_64k().tcr_el1(), 16 | 0x3500 | 0b01 << 14);
    assert_eq!(Aarch64::granule_4k().wide().tcr_el1(), 12 | 0x3500 | 1 << 59);
    assert_eq!(Aarch64::granule_16k().wide().tcr_el1(), 12 | 0x3500 | 0b10 << 14 | 1 << 59);
    assert_eq!(Aarch64::granule_64k().wide().tcr_el1(), 12 | 0x3500 | 0b01 << 14);
}

/// Where 52-bit addresses keep their top: in the 64 KiB format below the rest, in the others instead of shareability.
#[test]
fn aarch64_keeps_the_top_of_an_address_apart() {
    let top = PhysAddr(0b1010 << 48);
    let moved = |arch: Aarch64, level| arch.leaf(top, Attrs::READ, level) ^ arch.leaf(PhysAddr(0), Attrs::READ, level);
    for level in 1..=2 {
        assert_eq!(moved(Aarch64::granule_64k().wide(), level), 0b1010 << 12);
        assert_eq!(moved(Aarch64::granule_4k().wide(), level), 0b10 << 8 | 0b10 << 48);
        assert_eq!(moved(Aarch64::granule_16k().wide(), level), 0b10 << 8 | 0b10 << 48);
    }
}

/// A dirty leaf that loses write permission stays dirty, and does not become writable by the CPU's rules.
#[test]
fn aarch64_write_protection_keeps_dirty() {
    let arch = Aarch64::granule_4k();
    let written = arch.leaf(PhysAddr(0), Attrs::READ | Attrs::WRITE | Attrs::HARDWARE, 1);
    let protected = arch.leaf(PhysAddr(0), arch.attrs(written, 1) - Attrs::WRITE, 1);
    assert_eq!(arch.attrs(protected, 1), Attrs::READ | Attrs::HARDWARE);
    assert!(bit(protected, 7) && !bit(protected, 51) && !bit(written, 7) && bit(written, 51));
}

/// A leaf that joins its block differs by the mark, and on RISC-V by where its address is to be found; as if it stood for
/// itself, it is what it was.
#[test]
fn leaves_join_and_part() {
    fn check<A: Arch>(arch: A, pa: u64) {
        for (attrs, index) in all_attrs().zip(0..) {
            let index = index % ((1 << arch.block_bits(1)) - 1);
            let leaf = arch.leaf(PhysAddr(pa + ((index as u64) << arch.page_shift())), attrs, 1);
            assert_eq!(leaf & A::JOINED, 0);
            let joined = arch.join(leaf);
            assert_ne!(joined & A::JOINED, 0);
            assert_eq!(arch.attrs(joined, 1), arch.attrs(leaf, 1));
            assert_eq!((arch.single(joined, index), arch.single(leaf, index)), (leaf, leaf));
            assert_eq!(arch.placed(joined, index), leaf | A::JOINED);
            let next = arch.join(arch.leaf(PhysAddr(pa + ((index as u64 + 1) << arch.page_shift())), attrs, 1));
            assert_eq!(joined.wrapping_add(arch.joined_step(leaf, 1)), next);
        }
    }
    check(Aarch64::granule_4k(), 0xffff_0000_0000);
    check(Aarch64::granule_16k(), 0xffff_0000_0000);
    check(Aarch64::granule_64k().wide(), 0xffff_0000_0000);
    check(Riscv64::sv57().with_napot(), 0xff_ffff_0000_0000);
    let napot = Riscv64::sv39().with_napot();
    let leaf = napot.leaf(PhysAddr(0x1_2345_0000), Attrs::READ, 1);
    assert_eq!(napot.join(leaf), leaf | 1 << 63 | 0b1000 << 10, "PPN[3:0] = 1000 says 64 KiB (Svnapot)");
}

/// Entries of a block, by the manuals: D8.7.1 for AArch64, Svnapot for RISC-V.
#[test]
fn sizes_of_blocks() {
    let bits = |arch: Aarch64| [1, 2, 3].map(|level| arch.block_bits(level));
    assert_eq!(bits(Aarch64::granule_4k()), [4, 4, 0]);
    assert_eq!(bits(Aarch64::granule_16k()), [7, 5, 0]);
    assert_eq!(bits(Aarch64::granule_64k()), [5, 5, 0]);
    assert_eq!([1, 2].map(|level| Riscv64::sv48().with_napot().block_bits(level)), [4, 0]);
    assert_eq!((Riscv64::sv48().block_bits(1), X86_64::four_levels().block_bits(1)), (0, 0));
    assert_eq!((Aarch64::CONTIGUOUS, Riscv64::NAPOT), (1 << 52, 1 << 63));
}

#[test]
fn riscv64_has_soft_dirty_only_with_more_software_bits() {
    assert_eq!(Riscv64::sv39().supported(), Attrs::all() - Attrs::SOFT_DIRTY);
    assert_eq!(Riscv64::sv39().with_rsw60t59b().supported(), Attrs::all());
}
