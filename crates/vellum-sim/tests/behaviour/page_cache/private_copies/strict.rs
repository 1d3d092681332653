//! Private copies of an object's pages: one that is adjacent to a page of the object, in the VMA
//! and in memory, so that their PTEs form one run; and one of a hole.

use vellum::addr::{Pfn, VirtRange};
use vellum::arch::{Kind, X86_64};
use vellum::frame::Use;
use vellum::memcg::MemcgId;
use vellum::page_cache::{Object, take_mapped_write};
use vellum::space::{Limits, MapFlags, MapRequest, unmap_removed};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Strict, Strictness};

const PAGE: u64 = 4096;
const BASE: u64 = 0x5000_0000_0000;

/// Returns the frames that the first two pages map, and the number of their runs.
fn frames(space: &AddressSpace<'_, Strict>) -> (Vec<Pfn>, usize) {
    let (mut frames, mut runs) = (Vec::new(), 0);
    space.runs(VirtRange { start: BASE, end: BASE + 2 * PAGE }, |run| {
        if run.kind == Kind::Leaf {
            frames.extend((0..run.len as u32).map(|i| run.pfn(space.arch()).add(i)));
            runs += 1;
        }
    });
    (frames, runs)
}

/// A child of such a space inherits the copy and faults the object's page in; a hole unmaps the
/// object's page only; and the counters are right.
fn run() {
    let sim = Config::new(8 << 20).cpus(1).strict(Strictness::new(1)).expect("memory");
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).expect("enough memory to boot");
    sim.baseline();
    {
        let arch = X86_64::four_levels();
        let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).expect("memory");
        let object = Object::new(&machine, &arch, MemcgId::ROOT, 0, 2 * PAGE).expect("memory");
        // Nodes and page tables first, so that no allocation comes between the two pages.
        drop(object.page_or_new(0, MemcgId::ROOT).expect("memory"));
        // A frame without a free neighbour, so that the next two are adjacent.
        let odd = machine.frames().alloc(0, false, Use::Folio).expect("memory");
        let prot = Prot::READ | Prot::WRITE;
        let request = MapRequest { addr: BASE, len: 2 * PAGE, prot, flags: MapFlags::FIXED };
        space.map_object(request, &object, 0).expect("room");
        cpu.enter(&space).store_u64(BASE, 7).expect("memory");
        object.page_or_new(1, MemcgId::ROOT).expect("memory").write(0, &[9]);
        assert_eq!(cpu.enter(&space).load_u64(BASE + PAGE), Ok(9));
        let counted = |space: &AddressSpace<'_, Strict>| (space.stats().anon / PAGE, space.stats().shmem / PAGE);

        // Neither exclusive nor soft-dirty, the copy's PTE looks like that of the object's page.
        space.clear_soft_dirty().expect("x86-64 can tell");
        let first = space.fork().expect("memory");
        let (there, runs) = frames(&space);
        assert_eq!((there[1].0, runs), (there[0].0 + 1, 1), "the test needs adjacent frames: {there:?}");
        let second = space.fork().expect("memory");
        for child in [&first, &second] {
            assert_eq!(frames(child).0, there[..1]);
            assert_eq!(counted(child), (1, 0));
            assert_eq!(cpu.enter(child).load_u64(BASE), Ok(7));
            assert_eq!(cpu.enter(child).load_u64(BASE + PAGE), Ok(9));
            assert_eq!(counted(child), (1, 1));
        }

        let gone = object.punch_hole(0..2 * PAGE).expect("memory");
        let all = [&space, &first, &second];
        unmap_removed(&all[..], &object, &gone);
        for any in all {
            assert_eq!((frames(any).0, counted(any)), (there[..1].to_vec(), (1, 0)));
        }
        // SAFETY: allocated above, and never used.
        unsafe { machine.frames().free(odd, 1, false, Use::Folio) };
    }
    sim.finish();
}

/// Private copies and an object's pages may form one run, and are told apart.
#[test]
fn file_pages_and_private_copies_in_one_run_are_told_apart() {
    run();
}

/// A private write to a hole makes a page of zeros of it, which other spaces see. It is no write to
/// the object; one through a shared mapping is.
#[test]
fn a_private_write_to_a_hole_makes_a_page_of_it() {
    let sim = Config::new(8 << 20).cpus(1).strict(Strictness::new(1)).expect("memory");
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).expect("enough memory to boot");
    let arch = X86_64::four_levels();
    let object = Object::new(&machine, &arch, MemcgId::ROOT, 0, 4 * PAGE).expect("memory");
    let [private, shared] = [MapFlags::empty(), MapFlags::SHARED].map(|flags| {
        let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).expect("memory");
        let (prot, flags) = (Prot::READ | Prot::WRITE, MapFlags::FIXED | flags);
        space.map_object(MapRequest { addr: BASE, len: 5 * PAGE, prot, flags }, &object, 0).expect("room");
        space
    });
    cpu.enter(&private).store_u64(BASE + 2 * PAGE, 7).expect("memory");
    assert_eq!((object.resident(), object.next_data(0)), (1, Some(2)));
    assert_eq!((private.stats().anon, private.stats().shmem), (PAGE, 0));
    assert_eq!(cpu.enter(&shared).load_u64(BASE + 2 * PAGE), Ok(0));
    assert!(cpu.enter(&private).store_u64(BASE + 4 * PAGE, 7).is_err(), "beyond the end");
    assert_eq!((object.resident(), take_mapped_write(&object)), (1, None));
    cpu.enter(&shared).store_u64(BASE + PAGE, 8).expect("memory");
    assert_eq!([take_mapped_write(&object).is_some(), take_mapped_write(&object).is_some()], [true, false]);
    assert_eq!(cpu.enter(&private).load_u64(BASE + PAGE), Ok(8));
}
