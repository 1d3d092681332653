//! Tests of address spaces on a host without an MMU. All other tests of address spaces run on the
//! strict simulated machine.

use crate::arch::UserRange;
use crate::machine::Machine;
use crate::memcg::MemcgId;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::addr::VirtRange;
use crate::arch::X86_64;
use crate::frame::{BootOptions, Counts, Frame};
use crate::page_cache::{Object, ObjectError};
use crate::testing::Host;
use crate::vma::Prot;
use ground::Change;

const PAGE: u64 = 4096;
const READ_EXEC: Prot = Prot::READ.union(Prot::EXEC);

/// The engine calls the host's `sync_icache` for each frame that becomes executable, by whatever
/// operation, and for no other frame.
#[test]
fn frames_that_become_executable_are_published() {
    let host = Host::with_frames(6_000, 1);
    let machine = Machine::boot(&host, BootOptions::default()).unwrap();
    let space = AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default()).unwrap();
    let published = || host.published.swap(0, Relaxed) as u64 / PAGE;
    let vma = |prot, pages| MapRequest { addr: 0, len: pages * PAGE, prot, flags: MapFlags::empty() };

    let data = space.map(vma(Prot::READ | Prot::WRITE, 4)).unwrap();
    for page in 0..3 {
        space.fault(data + page * PAGE, Access::Write).unwrap();
    }
    assert_eq!(published(), 0, "data");
    space.protect(data, 4 * PAGE, READ_EXEC).unwrap();
    assert_eq!(published(), 3, "data made executable");
    space.protect(data, 4 * PAGE, READ_EXEC | Prot::WRITE).unwrap();
    assert_eq!(published(), 0, "they were executable before");

    let child = space.fork().unwrap();
    assert_eq!(published(), 0, "shared as it is");
    child.fault(data, Access::Write).unwrap();
    assert_eq!(published(), 1, "a copy");
    space.fault(data + 3 * PAGE, Access::Write).unwrap();
    assert_eq!(published(), 1, "new memory");

    let object = Object::new(&machine, &X86_64::four_levels(), MemcgId::ROOT, 0, 8 * PAGE).unwrap();
    for page in 0..2 {
        object.page_or_new(page, MemcgId::ROOT).unwrap();
    }
    let text = space.map_object(vma(READ_EXEC, 8), &object, 0).unwrap();
    space.fault(text, Access::Exec).unwrap();
    let mapped = space.stats().shmem / PAGE;
    assert_eq!(published(), mapped, "text");
    assert_ne!(mapped, 0);
    let again = space.map_object(vma(READ_EXEC, 8), &object, 0).unwrap();
    space.fault(again, Access::Exec).unwrap();
    assert_eq!(published(), 0, "the same text once more");
    space.unmap(again, 8 * PAGE).unwrap();
    object.page(0).unwrap().unwrap().write(8, &[0; 4]);
    let again = space.map_object(vma(READ_EXEC, 8), &object, 0).unwrap();
    space.fault(again, Access::Exec).unwrap();
    assert_ne!(published(), 0, "the host wrote to the text");
    let patched = space.map_object(vma(READ_EXEC | Prot::WRITE, 8), &object, 0).unwrap();
    space.fault(patched, Access::Write).unwrap();
    assert_eq!(published(), 1, "a private copy of text");
}

/// A change that splits a VMA and leaves the parts equal merges them when it ends, even while
/// another change is at work elsewhere in the VMA. It does not merge VMAs at the ends of the other
/// change's range: the other change does that when it ends.
#[test]
fn vmas_are_merged_beside_changes_elsewhere_in_them() {
    let host = Host::with_frames(6_000, 1);
    let machine = Machine::boot(&host, BootOptions::default()).unwrap();
    let space = AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default()).unwrap();
    let vma = |pages| MapRequest { addr: 0, len: pages * PAGE, prot: Prot::READ, flags: MapFlags::empty() };
    let at = space.map(vma(8)).unwrap();
    let pages = |from: u64, to: u64| UserRange::new(space.arch(), at + from * PAGE, (to - from) * PAGE).unwrap();
    let changed_and_back = |from: u64, to: u64| {
        for prot in [Prot::empty(), Prot::READ] {
            space.protect(at + from * PAGE, (to - from) * PAGE, prot).unwrap();
        }
        space.stats().vmas
    };
    for (first, second) in [((1, 2), (5, 6)), ((5, 6), (1, 2))] {
        let other = Change::claim_unlocked(&space, pages(first.0, first.1));
        assert_eq!(changed_and_back(second.0, second.1), 1, "beside a change of {first:?}");
        drop(other);
    }
    let mut other = Change::begin(&space, pages(4, 5));
    other.unlock();
    assert_eq!(changed_and_back(2, 4), 2, "up to where another change begins");
    drop(other);
    assert_eq!(space.stats().vmas, 1);
    let claim = Change::claim_unlocked(&space, pages(4, 5));
    assert_eq!(changed_and_back(2, 4), 1, "across a range that a fault has claimed");
    drop(claim);
}

/// Returns the descriptor of the folio that is mapped at an address.
fn descriptor<'m>(space: &AddressSpace<'m, Host>, addr: u64) -> &'m Frame {
    let mut pfn = None;
    space.runs(VirtRange { start: addr, end: addr + PAGE }, |run| pfn = Some(run.pfn(space.arch())));
    space.machine().frames().head(pfn.unwrap()).1
}

/// Pinning and forking fail for a folio whose refcount is at the maximum. No count wraps, and a
/// failure changes no count.
#[test]
fn a_folio_with_the_maximum_refcount_is_not_shared() {
    let host = Host::with_frames(6_000, 1);
    let machine = Machine::boot(&host, BootOptions::default()).unwrap();
    let space = AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default()).unwrap();
    let vma = MapRequest { addr: 0, len: PAGE, prot: Prot::READ | Prot::WRITE, flags: MapFlags::empty() };
    let at = space.map(vma).unwrap();
    space.fault(at, Access::Write).unwrap();
    let frame = descriptor(&space, at);
    let [most, almost] = [Counts::MAX_REFS, Counts::MAX_REFS - 1].map(|refs| Counts { refs, maps: refs });

    let own = frame.counts();
    frame.set_counts(most);
    assert_eq!(space.pin(at, Access::Read).err(), Some(FaultError::TooManyReferences(at)));
    assert_eq!(frame.counts(), most);
    frame.set_counts(almost);
    drop(space.pin(at, Access::Read).unwrap());
    assert_eq!(frame.counts(), almost);

    // A folio that only one space maps can't have the maximum number of mappings: fork first.
    frame.set_counts(own);
    let child = space.fork().unwrap();
    let both = frame.counts();
    frame.set_counts(most);
    assert_eq!(space.fork().err(), Some(ForkError::TooManyReferences));
    assert_eq!(frame.counts(), most);
    frame.set_counts(almost);
    drop(space.fork().unwrap());
    assert_eq!(frame.counts(), almost);
    frame.set_counts(both);
    drop(child);
}

/// A fault on an object's page whose refcount is at the maximum fails, and so does
/// [`Object::page`].
#[test]
fn an_objects_page_with_the_maximum_refcount_is_not_mapped() {
    let host = Host::with_frames(6_000, 1);
    let machine = Machine::boot(&host, BootOptions::default()).unwrap();
    let space = AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default()).unwrap();
    let object = Object::new(&machine, &X86_64::four_levels(), MemcgId::ROOT, 0, PAGE).unwrap();
    let flags = MapFlags::SHARED;
    let vma = MapRequest { addr: 0, len: PAGE, prot: Prot::READ, flags };
    let [one, two] = [(); 2].map(|()| space.map_object(vma, &object, 0).unwrap());
    space.fault(one, Access::Read).unwrap();
    let frame = descriptor(&space, one);
    let own = frame.counts();

    let most = Counts { refs: Counts::MAX_REFS, maps: Counts::MAX_REFS - 1 };
    frame.set_counts(most);
    assert_eq!(space.fault(two, Access::Read), Err(FaultError::TooManyReferences(two)));
    assert_eq!(object.page(0).err(), Some(ObjectError::TooManyReferences));
    assert_eq!(frame.counts(), most);
    frame.set_counts(own);
    space.fault(two, Access::Read).unwrap();
}

/// An unmap collects pages that lie apart from each other in bitmaps, which need single free frames
/// only, and flushes once. Without a free frame it flushes more often.
#[test]
fn an_unmap_of_scattered_pages_takes_one_flush_where_memory_lies_in_pieces() {
    const PAGES: u64 = 8192;
    for free in [0, 64] {
        let host = Host::with_frames(40_000, 1);
        let machine = Machine::boot(&host, BootOptions::default()).unwrap();
        let space = || AddressSpace::new(&machine, X86_64::four_levels(), MemcgId::ROOT, Limits::default()).unwrap();
        let (space, other) = (space(), space());
        let vma = MapRequest { addr: 0, len: PAGES * PAGE, prot: Prot::READ | Prot::WRITE, flags: MapFlags::empty() };
        let (at, other_at) = (space.map(vma).unwrap(), other.map(vma).unwrap());
        // The frames of two spaces alternate.
        for page in 0..PAGES {
            space.fault(at + page * 5 % PAGES * PAGE, Access::Write).unwrap();
            other.fault(other_at + page * PAGE, Access::Write).unwrap();
        }
        let (memcgs, frames) = (machine.memcgs(), machine.frames());
        let all = || memcgs.alloc(frames, MemcgId::ROOT, 0, false).ok().map(|(pfn, _)| pfn);
        let blocks: std::vec::Vec<_> = core::iter::from_fn(all).collect();
        for pfn in blocks.iter().filter(|pfn| pfn.0 % 2 == 0).take(free) {
            // SAFETY: the frame was allocated above.
            unsafe { memcgs.free(frames, *pfn, 0, false) };
        }
        space.cpu_enter(0);
        let (before, had) = (host.flushes.load(Relaxed), frames.free_frames());
        space.unmap(at, PAGES * PAGE).unwrap();
        let flushes = host.flushes.load(Relaxed) - before;
        assert_eq!(flushes == 1, free != 0, "{flushes} flushes with {free} free frames");
        space.cpu_leave(0);
        assert!(frames.free_frames() >= had + PAGES, "the pages and their page tables are free");
    }
}
