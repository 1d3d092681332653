//! The memory that an operation has unmapped is free afterwards, whatever its number of pages.

use vellum::addr::VirtRange;
use vellum::arch::X86_64;
use vellum::memcg::MemcgId;
use vellum::space::{Advise, Limits, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Access, Config};

const PAGE: u64 = 4096;
/// The gather's list has room for this many pages of which no two are neighbours.
const LIST: u64 = 1020;

/// A gather moves a full list to its set: so after twice as many pages the list is empty, and all
/// frames are in the set.
#[test]
fn all_frames_are_freed_where_pages_lie_apart() {
    let sim = Config::new(64 << 20).fast().unwrap();
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    let space = AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default()).unwrap();
    for pages in 2 * LIST - 8..=2 * LIST + 8 {
        let len = pages * PAGE;
        let request = MapRequest { addr: 0, len, prot: Prot::READ | Prot::WRITE, flags: MapFlags::NORESERVE };
        let start = space.map(request).unwrap();
        let program = cpu.enter(&space);
        // In descending order, so that no page's frame follows that of the page before.
        let fill_and_discard = || {
            for page in (0..pages).rev() {
                let at = start + page * PAGE;
                program.touch(VirtRange { start: at, end: at + PAGE }, PAGE, Access::Write).unwrap();
            }
            space.advise(start, len, Advise::DontNeed).unwrap();
            machine.frames().free_frames()
        };
        let before = fill_and_discard();
        assert_eq!(fill_and_discard(), before, "free frames after {pages} pages");
        drop(program);
        space.unmap(start, len).unwrap();
    }
}
