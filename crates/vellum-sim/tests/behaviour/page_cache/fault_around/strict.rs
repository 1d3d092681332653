//! The pages around the accessed one that a fault on a file's mapping maps with it.

use std::ops::Range;

use vellum::addr::VirtRange;
use vellum::arch::{Aarch64, Riscv64, X86_64};
use vellum::memcg::MemcgId;
use vellum::page_cache::Object;
use vellum::space::{Limits, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Silicon, Strictness};

const PAGE: u64 = 4096;
const BASE: u64 = 0x5000_0000_0000;

/// A fault maps all of the block of 16 pages around its address that the VMA has and where nothing
/// is mapped yet, up to what is: the VMA need not be aligned, nor the rest of the block be empty.
#[test]
fn a_fault_maps_what_is_empty_around_it() {
    let sim = Config::new(8 << 20).cpus(1).strict(Strictness::new(1)).expect("memory");
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).expect("enough memory to boot");
    sim.baseline();
    {
        let arch = X86_64::four_levels();
        let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).expect("memory");
        let object = Object::new(&machine, &arch, MemcgId::ROOT, 0, 64 * PAGE).expect("memory");
        object.allocate(0..64 * PAGE, MemcgId::ROOT).expect("memory");
        // 27 pages of the file from its fourth on, from the fourth page of a block on.
        let request = MapRequest {
            addr: BASE + 3 * PAGE,
            len: 27 * PAGE,
            prot: Prot::READ | Prot::WRITE,
            flags: MapFlags::FIXED,
        };
        space.map_object(request, &object, 3 * PAGE).expect("room");
        let mapped = |pages: Range<u64>| {
            space.usage(VirtRange { start: BASE + pages.start * PAGE, end: BASE + pages.end * PAGE }).resident / PAGE
        };

        // A private copy in the first block, and one in the second.
        [7, 20].into_iter().for_each(|page| cpu.enter(&space).store_u64(BASE + page * PAGE, page).expect("memory"));
        assert_eq!(mapped(0..64), 2);
        cpu.enter(&space).load_u64(BASE + 10 * PAGE).expect("memory");
        assert_eq!([3..7, 7..16, 16..32].map(mapped), [0, 9, 1], "from the copy to the end of the block");
        cpu.enter(&space).load_u64(BASE + 6 * PAGE).expect("memory");
        assert_eq!([3..16, 16..32].map(mapped), [13, 1], "from the VMA's start to the copy");
        cpu.enter(&space).load_u64(BASE + 29 * PAGE).expect("memory");
        assert_eq!([16..21, 21..30].map(mapped), [1, 9], "from the copy to the VMA's end");
    }
    sim.finish();
}

/// A fault maps the pages around it that are in memory without a gap, wherever their frames lie,
/// and each page is the right one.
#[test]
fn a_fault_maps_pages_whose_frames_lie_apart() {
    pages_apart_are_mapped(X86_64::four_levels());
    pages_apart_are_mapped(Aarch64::granule_4k());
    pages_apart_are_mapped(Aarch64::granule_16k());
    pages_apart_are_mapped(Riscv64::sv48());
}

fn pages_apart_are_mapped<A: Silicon>(arch: A) {
    let memory = (8 << 20) << arch.page_order();
    let sim = Config::with_arch(arch, memory).cpus(1).strict(Strictness::new(1)).expect("memory");
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).expect("enough memory to boot");
    sim.baseline();
    {
        let size = 1 << arch.page_shift();
        let object = Object::new(&machine, &arch, MemcgId::ROOT, 0, 64 * size).expect("memory");
        let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).expect("memory");
        let request = MapRequest { addr: BASE, len: 64 * size, prot: Prot::READ, flags: MapFlags::FIXED };
        space.map_object(request, &object, 0).expect("room");
        let mapped = |pages: Range<u64>| {
            space.usage(VirtRange { start: BASE + pages.start * size, end: BASE + pages.end * size }).resident / size
        };
        let load = |page: u64| cpu.enter(&space).load_u64(BASE + page * size).expect("a page");

        // The next frames are those of the fifth page from the last one. The second block of 16 has
        // a hole.
        for page in (0..32).map(|i| i * 5 % 32).filter(|page| *page != 21) {
            object.page_or_new(page, MemcgId::ROOT).expect("memory").write(0, &page.to_le_bytes());
        }
        assert_eq!((load(6), mapped(0..64)), (6, 16));
        assert_eq!((load(25), [16..22, 22..32].map(mapped)), (25, [0, 10]), "from the hole to the end of the block");
        assert_eq!((load(18), [16..22, 22..32].map(mapped)), (18, [5, 10]), "from the block's start to the hole");
        (0..32).filter(|page| *page != 21).for_each(|page| assert_eq!(load(page), page));
        assert_eq!(mapped(0..64), 31);
    }
    sim.finish();
}
