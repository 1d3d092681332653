//! The pages around the accessed one that a fault on a file's mapping maps with it.

use vellum::addr::VirtRange;
use vellum::arch::X86_64;
use vellum::memcg::MemcgId;
use vellum::page_cache::Object;
use vellum::space::{Limits, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Strictness};

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
        let mapped = |pages: std::ops::Range<u64>| {
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
