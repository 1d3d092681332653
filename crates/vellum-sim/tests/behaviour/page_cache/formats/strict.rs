//! Page-cache objects with pages of other sizes, and page tables of other formats.

use vellum::addr::FRAME_SHIFT;
use vellum::arch::{Aarch64, Riscv64, X86_64};
use vellum::memcg::MemcgId;
use vellum::page_cache::Object;
use vellum::space::{FaultError, Limits, MapError, MapFlags, MapRequest, unmap_removed};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Fault, Hostility, Silicon, Strictness};

const RW: Prot = Prot::READ.union(Prot::WRITE);
/// Below the end of the smallest user half, Sv39's.
const BASE: u64 = 0x20_0000_0000;

/// Maps one object shared and private, truncates it inside of a page, and unmaps it. A format with
/// another page size can't map it.
fn run<A: Silicon>(arch: A, other: impl Silicon) {
    let strictness = Strictness::new(5).hostility(Hostility::WORST);
    let sim = Config::with_arch(arch, (24 << 20) << arch.page_order()).cpus(2).strict(strictness).expect("memory");
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).expect("enough memory to boot");
    sim.baseline();
    {
        let page = 1 << arch.page_shift();
        let [a, b] =
            [(); 2].map(|()| AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).expect("memory"));
        let object = Object::new(&machine, &arch, MemcgId::ROOT, 0, 5 * page).expect("memory");
        assert_eq!(object.page_shift(), arch.page_shift());
        let request = |addr, flags| MapRequest { addr, len: 8 * page, prot: RW, flags: flags | MapFlags::FIXED };
        a.map_object(request(BASE, MapFlags::SHARED), &object, 0).expect("room");
        b.map_object(request(BASE, MapFlags::SHARED), &object, 0).expect("room");
        b.map_object(request(BASE + 8 * page, MapFlags::empty()), &object, 0).expect("room");
        if other.page_shift() != arch.page_shift() {
            let foreign = Object::new(&machine, &other, MemcgId::ROOT, 0, page).expect("memory");
            let refused = a.map_object(request(BASE, MapFlags::SHARED), &foreign, 0);
            assert_eq!(refused, Err(MapError::PageSizeMismatch));
        }
        for nth in 0..5 {
            cpu.enter(&a).store_u64(BASE + nth * page + page / 2, nth + 1).expect("in the object");
            let at = BASE + 8 * page + nth * page + page / 2;
            assert_eq!(cpu.enter(&b).load_u64(at), Ok(nth + 1));
            cpu.enter(&b).store_u64(at, 100 + nth).expect("in the object");
            assert_eq!(cpu.enter(&a).load_u64(BASE + nth * page + page / 2), Ok(nth + 1));
        }
        let frames = 5u64 << (arch.page_shift() - FRAME_SHIFT);
        assert_eq!((b.stats().anon, b.stats().shmem), (frames << FRAME_SHIFT, 0));
        assert_eq!((a.stats().anon, a.stats().shmem), (0, frames << FRAME_SHIFT));
        let gone = object.set_size(2 * page + page / 2).expect("not too large");
        unmap_removed(&[&a, &b][..], &object, &gone);
        assert_eq!(cpu.enter(&b).load_u64(BASE + 2 * page + page / 2), Ok(0));
        assert_eq!(
            cpu.enter(&b).load_u64(BASE + 10 * page + page / 2),
            Ok(102),
            "copies keep the contents of their last page"
        );
        for beyond in [BASE + 3 * page, BASE + 11 * page] {
            assert_eq!(cpu.enter(&b).load_u64(beyond), Err(Fault::Handler(FaultError::BeyondEnd(beyond))));
        }
    }
    sim.finish();
}

/// The same in every format, for each page size.
#[test]
fn objects_work_in_every_format() {
    run(X86_64::five_levels(), Aarch64::granule_16k());
    run(Aarch64::granule_4k(), Riscv64::sv39());
    run(Aarch64::granule_16k(), Aarch64::granule_64k());
    run(Aarch64::granule_64k(), X86_64::four_levels());
    run(Riscv64::sv39(), Aarch64::granule_64k());
}
