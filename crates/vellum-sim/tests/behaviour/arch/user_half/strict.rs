//! Addresses above the user half: every call refuses them, in every format, and the host's half of
//! the root, which the strict machine has poisoned, is neither read nor written.

use crate::fixtures::bench::{ADVICE, Setup, USUAL, on};
use vellum::addr::VirtRange;
use vellum::arch::{Aarch64, Arch, Attrs, Riscv64, X86_64};
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::page_cache::{MAX_SIZE, Object};
use vellum::space::{Access, Categories, CollapseLimits, Limits, MapFlags, MapRequest, RemapFlags, RemapRequest, Scan};
use vellum::vma::{Prot, UffdId, VmaFlags};
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Silicon, Strict, Strictness};

const RW: Prot = Prot::READ.union(Prot::WRITE);

type Space<'m, A> = AddressSpace<'m, Strict<A>>;

fn with_space<A: Silicon>(arch: A, run: impl FnOnce(&Machine<'_, Strict<A>>, &Space<'_, A>)) {
    let sim = Config::with_arch(arch, (32 << 20) << arch.page_order()).cpus(1).strict(Strictness::new(3)).unwrap();
    let boot = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    machine.policy().set_global(Knob::Always);
    sim.baseline();
    let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).unwrap();
    run(&machine, &space);
    drop(space);
    drop(boot);
    sim.finish();
}

/// Returns addresses and lengths of which no part, or only the first page, lies in the user half.
fn places<A: Arch>(arch: &A) -> Vec<(u64, u64)> {
    let (end, page) = (arch.user_end(), 1u64 << arch.page_shift());
    let huge = 1u64 << arch.level_shift(2);
    let mut all = Vec::new();
    for len in [page, huge, 1 << 40, end, 1 << 62] {
        all.extend([(end, len), (end - page, len + page), (end + page, len), (1 << 63, len)]);
        // A masked index turns these into the address of a user page.
        all.extend([((1 << 57) | (end - page), len), ((1 << 63) | huge, len)]);
        // A kernel's direct map, and its image.
        all.extend([(0xffff_8880_0000_0000 + page, len), (0xffff_ffff_8000_0000, len)]);
        all.push((0u64.wrapping_sub(2 * page), len));
    }
    all.retain(|(addr, _)| addr.is_multiple_of(page));
    all
}

fn every_call_refuses<A: Silicon>(arch: A) {
    with_space(arch, |_, space| {
        let (end, page) = (arch.user_end(), 1u64 << arch.page_shift());
        let last = end - page;
        let request = |addr, len| MapRequest { addr, len, prot: RW, flags: MapFlags::FIXED | MapFlags::NORESERVE };
        let written = |space: &Space<'_, A>| {
            let mut seen = Vec::new();
            space.runs(VirtRange { start: last, end }, |run| seen.push((run.va, run.kind, run.len)));
            seen
        };
        for (addr, len) in places(&arch) {
            let label = format!("{addr:#x} + {len:#x} of {end:#x}");
            let range = VirtRange { start: addr, end: addr.saturating_add(len) & !(page - 1) };
            space.map(request(last, page)).unwrap();
            space.fault(last, Access::Write).unwrap();
            let before = written(space);
            assert!(space.map(request(addr, len)).is_err(), "map {label}");
            assert!(space.unmap(addr, len).is_err(), "unmap {label}");
            assert!(space.protect(addr, len, Prot::READ).is_err(), "protect {label}");
            assert!(space.seal(addr, len).is_err(), "seal {label}");
            assert!(space.lock(addr, len, false).is_err(), "lock {label}");
            assert!(space.unlock(addr, len).is_err(), "unlock {label}");
            assert!(space.sync(addr, len, true).is_err(), "sync {label}");
            assert!(space.mincore(addr, len, &mut [false; 4]).is_err(), "resident {label}");
            assert!(space.remove(addr, len, |_, _| Ok(())).is_err(), "remove {label}");
            for flags in [RemapFlags::empty(), RemapFlags::MAYMOVE] {
                let smaller = RemapRequest { addr, old_len: len, new_len: page, flags, new_addr: 0 };
                // A length of one mapped page is no change.
                assert!(space.remap(smaller).is_err(), "remap {label}");
            }
            let to = RemapRequest {
                addr: last,
                old_len: page,
                new_len: page.max(len),
                flags: RemapFlags::MAYMOVE | RemapFlags::FIXED,
                new_addr: addr,
            };
            assert!(space.remap(to).is_err(), "remap to {label}");
            let by = UffdId(1.try_into().unwrap());
            assert!(space.uffd_register(range, by, VmaFlags::UFFD_WP).is_err(), "watch {label}");
            assert!(space.uffd_unregister(range, by).is_err(), "unwatch {label}");
            assert!(space.uffd_write_protect(range, true).is_err(), "write-protect {label}");
            assert!(space.uffd_write_unprotect(range).is_err(), "write-unprotect {label}");
            assert!(space.uffd_copy(range, false, |_, _| Ok(())).is_err(), "fill {label}");
            assert!(space.uffd_zeropage(range).is_err(), "fill zeros {label}");
            assert!(space.uffd_poison(range).is_err(), "poison {label}");
            let scan =
                Scan { select: |is: Categories| Some(is), max_pages: u64::MAX, write_protect: true, only_async: false };
            assert!(space.scan(range, scan, None).is_err(), "scan {label}");
            assert_eq!(written(space), before, "{label}");
            // Queries find nothing, or the last page.
            space.clear_accessed_dirty(range, Attrs::HARDWARE, |_, _| ());
            assert!(space.usage(range).resident <= page, "usage {label}");
            assert!(
                space.collapse_some(addr, 1 << 9, &CollapseLimits::default(), |_, _| Ok(false)).is_ok(),
                "collapse {label}"
            );
            if addr >= end {
                assert!(space.fault(addr, Access::Write).is_err(), "fault {label}");
                assert!(space.pin(addr, Access::Write).is_err(), "pin {label}");
                assert!(space.object_at(addr).is_none() && space.shared_key(addr).is_none(), "{label}");
            }
            for advice in ADVICE {
                assert!(space.advise(addr, len, advice).is_err(), "{advice:?} {label}");
            }
            space.unmap(last, page).unwrap();
        }
    });
}

#[test]
fn x86_64_calls_refuse_addresses_above_the_user_half() {
    every_call_refuses(X86_64::four_levels());
    every_call_refuses(X86_64::five_levels());
}

#[test]
fn aarch64_calls_refuse_addresses_above_the_user_half() {
    every_call_refuses(Aarch64::granule_4k());
    every_call_refuses(Aarch64::granule_16k());
    every_call_refuses(Aarch64::granule_64k());
}

#[test]
fn riscv64_calls_refuse_addresses_above_the_user_half() {
    every_call_refuses(Riscv64::sv39());
    every_call_refuses(Riscv64::sv48());
    every_call_refuses(Riscv64::sv57());
}

/// A move of all VMAs of a range that reaches above the user half moves the mapped pages, as Linux
/// does, and does not touch what lies above.
#[test]
fn mremap_from_beyond_the_user_half_moves_mapped_memory() {
    let arch = X86_64::four_levels();
    with_space(arch, |_, space| {
        let (end, page) = (arch.user_end(), 1u64 << arch.page_shift());
        let (from, len) = (end - 2 * page, (0x8880_0000_1000 - end) + 2 * page);
        let flags = MapFlags::FIXED | MapFlags::POPULATE;
        space.map(MapRequest { addr: from, len: page, prot: RW, flags }).unwrap();
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let request = RemapRequest { addr: from, old_len: len, new_len: len, flags, new_addr: 0x1000_0000 };
        assert_eq!(space.remap(request), Ok(0x1000_0000));
        assert_eq!(space.usage(VirtRange { start: 0x1000_0000, end: 0x1000_0000 + page }).resident, page);
        assert_eq!(space.stats().mapped, page);
    });
}

/// The rmap index of a private copy is an offset in its object, which may be larger than any
/// address.
#[test]
fn private_copies_at_offsets_above_the_user_half_are_found_by_vma() {
    fn case<A: Silicon>(arch: A) {
        on(arch, Setup { slots: 512, ..USUAL }, |on| {
            let space = on.space_of(MemcgId::ROOT);
            let object = Object::new(on.machine, &arch, MemcgId::ROOT, 1, MAX_SIZE).unwrap();
            for bit in 38..MAX_SIZE.ilog2() {
                let request = MapRequest { addr: 8 << 30, len: on.page, prot: RW, flags: MapFlags::FIXED };
                space.map_object(request, &object, 1 << bit).unwrap();
                on.store(&space, 8 << 30, 1);
                // Each reclaim looks the copy up by its rmap index.
                on.reclaim(&[&space], MemcgId::ROOT, u64::MAX);
                assert!(on.used() > 0, "the copy was found by the VMA");
                space.unmap(8 << 30, on.page).unwrap();
            }
        });
    }
    case(X86_64::four_levels());
    case(Aarch64::granule_4k());
    case(Riscv64::sv39());
}
