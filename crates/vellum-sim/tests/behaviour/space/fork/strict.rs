//! Fork: memory that parent and child share, and copies of pinned pages.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use vellum::arch::{Aarch64, Riscv64, X86_64};
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::memcg::Refused;
use vellum::page_cache::Object;
use vellum::platform::Event;
use vellum::space::{Access, Advise, ForkError, MapFlags, MapRequest, RemapFlags, RemapRequest};
use vellum::stats::Counter;
use vellum::vma::Prot;
use vellum_sim::{Hostility, Refusal, Silicon};

use crate::fixtures::root_memcg::{BASE, HUGE, PAGE, Space, map, on, x86};

fn each_keeps_its_own<A: Silicon>(arch: A) {
    on(arch, 32 << 20, Hostility::USUAL, |on| {
        on.machine.policy().set(4, Knob::Always);
        let page = 1 << arch.page_shift();
        let at = |i: u64| BASE + i * page;
        let parent = on.space();
        map(&parent, BASE, 60 * page, MapFlags::empty());
        (0..50).for_each(|i| on.store(&parent, at(i), 1000 + i));
        let child = parent.fork().unwrap();
        let grandchild = child.fork().unwrap();
        let spaces = [&parent, &child, &grandchild];
        for (n, space) in spaces.into_iter().enumerate() {
            (0..50).filter(|i| i % 3 == n as u64).for_each(|i| on.store(space, at(i), n as u64));
        }
        for (n, space) in spaces.into_iter().enumerate() {
            for i in 0..60 {
                let held = if i % 3 == n as u64 { n as u64 } else { 1000 + i };
                assert_eq!(on.load(space, at(i)), if i < 50 { held } else { 0 }, "page {i} of space {n}");
            }
        }
    });
}

/// A write by one of a fork family is seen by no other, in every format.
#[test]
fn parent_and_child_do_not_see_each_others_writes() {
    each_keeps_its_own(X86_64::four_levels());
    each_keeps_its_own(Aarch64::granule_4k());
    each_keeps_its_own(Aarch64::granule_16k());
    each_keeps_its_own(Riscv64::sv39());
}

/// A page table of the child that was not zeroed before the fork filled most of it has no entry but
/// those of the fork.
fn only_copies_are_in_its_tables<A: Silicon>(arch: A) {
    on(arch, 8 << 20, Hostility::USUAL, |on| {
        let page = 1 << arch.page_shift();
        let entries = 1 << arch.index_bits();
        let (first, most) = (entries / 8, entries / 8 * 6);
        let program = on.space();
        let all = on.machine.frames().free_frames() * 4096 / page * 3 / 4;
        map(&program, BASE, all * page, MapFlags::empty());
        // As an entry of a page table, each such word would be one.
        (0..all).for_each(|i| on.store(&program, BASE + i * page + page - 8, !0));
        drop(program);
        let parent = on.space();
        map(&parent, BASE, entries * page, MapFlags::empty());
        let at = |i: u64| BASE + i * page;
        (first..first + most).for_each(|i| on.store(&parent, at(i), i));
        let child = parent.fork().unwrap();
        assert_eq!(child.stats().anon, most * page);
        for i in 0..entries {
            let held = if (first..first + most).contains(&i) { i } else { 0 };
            assert_eq!(on.load(&child, at(i)), held, "page {i}");
        }
    });
}

/// As above, in every format.
#[test]
fn a_child_has_only_copies_in_its_page_tables() {
    only_copies_are_in_its_tables(X86_64::four_levels());
    only_copies_are_in_its_tables(Aarch64::granule_4k());
    only_copies_are_in_its_tables(Riscv64::sv39());
}

/// Whichever allocation of a fork fails, there is no child, and the parent is unchanged.
#[test]
fn failed_forks_leave_the_parent_unchanged() {
    x86(24 << 20, |on| {
        on.machine.policy().set(2, Knob::Always);
        let parent = on.space();
        for i in 0..6 {
            map(&parent, BASE + i * (1 << 30), 40 * PAGE, MapFlags::POPULATE);
        }
        let (before, free) = (parent.stats(), on.machine.frames().free_frames());
        let mut failed = 0;
        let child = loop {
            on.sim.refuse(Refusal::From(failed + 1));
            match parent.fork() {
                Ok(child) => break child,
                Err(error) => assert_eq!(error, ForkError::NoMemory(Refused::OutOfMemory)),
            }
            on.sim.refuse(Refusal::Never);
            failed += 1;
            assert_eq!((parent.stats(), on.machine.frames().free_frames()), (before, free), "refusal {failed}");
            on.store(&parent, BASE + failed % 240 * PAGE % (40 * PAGE), failed);
            assert_eq!(on.machine.frames().free_frames(), free, "the parent is alone, and copies nothing");
        };
        on.sim.refuse(Refusal::Never);
        assert!(failed > 10, "{failed} allocations");
        assert_eq!(child.stats().anon, before.anon);
    });
}

/// A child lacks MADV_DONTFORK memory and has zeros for MADV_WIPEONFORK memory; guards are
/// inherited.
#[test]
fn fork_respects_dontfork_wipeonfork_and_guards() {
    x86(16 << 20, |on| {
        let parent = on.space();
        map(&parent, BASE, 6 * PAGE, MapFlags::POPULATE);
        (0..6).for_each(|i| on.store(&parent, BASE + i * PAGE, 1 + i));
        let advise = |page: u64, advise| parent.advise(BASE + page * PAGE, PAGE, advise).unwrap();
        advise(1, Advise::DontFork);
        advise(2, Advise::WipeOnFork);
        advise(3, Advise::GuardInstall);
        let child = parent.fork().unwrap();
        let found = |space: &Space<'_, _>| {
            (0..6).map(|i| on.cpu.enter(space).load_u64(BASE + i * PAGE).ok()).collect::<Vec<_>>()
        };
        assert_eq!(found(&parent), [Some(1), Some(2), Some(3), None, Some(5), Some(6)]);
        assert_eq!(found(&child), [Some(1), None, Some(0), None, Some(5), Some(6)]);
        child.advise(BASE + 3 * PAGE, PAGE, Advise::GuardRemove).unwrap();
        assert_eq!((found(&child)[3], found(&parent)[3]), (Some(0), None));
    });
}

/// Whatever of its own a private mapping has among an object's pages, the child has too: copies,
/// guards, and copies that were moved there. It has none of the object's pages.
#[test]
fn a_child_gets_what_is_private_among_an_objects_pages() {
    x86(32 << 20, |on| {
        let object = Object::new(on.machine, &on.arch, MemcgId::ROOT, 0, 6 * HUGE).unwrap();
        let parent = on.space();
        let prot = Prot::READ | Prot::WRITE;
        let request = MapRequest { addr: BASE, len: 6 * HUGE, prot, flags: MapFlags::FIXED };
        parent.map_object(request, &object, 0).unwrap();
        // A page table for each huge page, which maps pages of the object first.
        let at = |table: u64, page: u64| BASE + table * HUGE + page * PAGE;
        (0..6).for_each(|table| assert_eq!(on.load(&parent, at(table, 0)), 0));
        on.store(&parent, at(1, 0), 11);
        on.store(&parent, at(2, 100), 12);
        parent.advise(at(3, 100), PAGE, Advise::GuardInstall).unwrap();
        on.store(&parent, at(4, 100), 14);
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let (addr, new_addr) = (at(4, 100), at(5, 100));
        parent.remap(RemapRequest { addr, old_len: PAGE, new_len: PAGE, flags, new_addr }).unwrap();
        let child = parent.fork().unwrap();
        let words = [at(0, 0), at(1, 0), at(2, 100), at(5, 100)].map(|at| on.load(&child, at));
        assert_eq!(words, [0, 11, 12, 14]);
        assert_eq!(child.stats().anon, 3 * PAGE);
        assert!(on.cpu.enter(&child).load_u64(at(3, 100)).is_err(), "the guard");
    });
}

/// A child has the copies of a private mapping that is not writable any more, even if its VMA was
/// merged with one that never was.
#[test]
fn a_child_gets_the_copies_of_memory_that_was_writable() {
    x86(32 << 20, |on| {
        let object = Object::new(on.machine, &on.arch, MemcgId::ROOT, 0, 4 * HUGE).unwrap();
        let parent = on.space();
        let request = MapRequest { addr: BASE, len: 4 * HUGE, prot: Prot::READ, flags: MapFlags::FIXED };
        parent.map_object(request, &object, 0).unwrap();
        let at = |table: u64, page: u64| BASE + table * HUGE + page * PAGE;
        (0..4).for_each(|table| assert_eq!(on.load(&parent, at(table, 1)), 0));
        parent.protect(at(2, 0), HUGE, Prot::READ | Prot::WRITE).unwrap();
        on.store(&parent, at(2, 3), 7);
        parent.protect(at(2, 0), HUGE, Prot::READ).unwrap();
        let mut vmas = 0;
        parent.vmas(0, |_| {
            vmas += 1;
            true
        });
        assert_eq!(vmas, 1, "copies keep no VMAs apart");
        let child = parent.fork().unwrap();
        let grandchild = child.fork().unwrap();
        for space in [&parent, &child, &grandchild] {
            assert_eq!([at(2, 3), at(2, 1), at(1, 3)].map(|at| on.load(space, at)), [7, 0, 0]);
        }
        assert_eq!(grandchild.stats().anon, PAGE);
    });
}

/// A child and its child have the guards of shared memory, and nothing else of it, even if the VMA
/// was merged with one that has no guards.
#[test]
fn a_child_gets_the_guards_of_shared_memory() {
    x86(32 << 20, |on| {
        let object = Object::new(on.machine, &on.arch, MemcgId::ROOT, 0, 4 * HUGE).unwrap();
        let parent = on.space();
        let prot = Prot::READ | Prot::WRITE;
        let flags = MapFlags::FIXED | MapFlags::SHARED;
        parent.map_object(MapRequest { addr: BASE, len: 4 * HUGE, prot, flags }, &object, 0).unwrap();
        let at = |table: u64, page: u64| BASE + table * HUGE + page * PAGE;
        (0..4).for_each(|table| on.store(&parent, at(table, 0), table + 1));
        parent.protect(at(2, 0), HUGE, Prot::READ).unwrap();
        parent.advise(at(2, 100), 2 * PAGE, Advise::GuardInstall).unwrap();
        parent.protect(at(2, 0), HUGE, prot).unwrap();
        parent.advise(at(2, 101), PAGE, Advise::GuardRemove).unwrap();
        let mut vmas = 0;
        parent.vmas(0, |_| {
            vmas += 1;
            true
        });
        assert_eq!(vmas, 1, "guards keep no VMAs apart");
        let child = parent.fork().unwrap();
        assert_eq!(child.stats().shmem, 0);
        let grandchild = child.fork().unwrap();
        for space in [&parent, &child, &grandchild] {
            assert!(on.cpu.enter(space).load_u64(at(2, 100)).is_err(), "the guard");
            assert_eq!([at(1, 0), at(2, 0), at(2, 101), at(3, 0)].map(|at| on.load(space, at)), [2, 3, 0, 4]);
        }
    });
}

/// A page that is pinned during a fork stays the parent's: the parent sees all writes through the
/// pin, and writes without a copy; the child has a copy of its contents at the fork.
fn pinned_with_a_child(pages: u64, knob: Knob) {
    x86(32 << 20, |on| {
        on.machine.policy().set_global(knob);
        let parent = on.space();
        map(&parent, BASE, pages * PAGE, MapFlags::empty());
        (0..pages).for_each(|page| on.store(&parent, BASE + page * PAGE, page + 1));
        let pin = parent.pin(BASE + PAGE, Access::Write).unwrap();
        pin.write(8, &10u64.to_ne_bytes());
        let child = parent.fork().unwrap();
        pin.write(16, &11u64.to_ne_bytes());
        on.store(&parent, BASE + PAGE, 12);
        let words = |space: &Space<'_, X86_64>| [0, 8, 16].map(|word| on.load(space, BASE + PAGE + word));
        assert_eq!((words(&parent), words(&child)), ([12, 10, 11], [2, 10, 0]));
        assert_eq!(on.count(Counter::CowCopies), 0, "the parent keeps the pinned page");
        on.store(&child, BASE + PAGE, 13);
        assert_eq!((words(&parent), words(&child)), ([12, 10, 11], [13, 10, 0]));
        for page in (0..pages).filter(|page| *page != 1) {
            assert_eq!(
                (on.load(&parent, BASE + page * PAGE), on.load(&child, BASE + page * PAGE)),
                (page + 1, page + 1)
            );
        }
        drop(child);
        pin.write(16, &14u64.to_ne_bytes());
        assert_eq!(words(&parent), [12, 10, 14]);
    });
}

#[test]
fn pinned_pages_are_copied_for_the_child() {
    pinned_with_a_child(4, Knob::Never);
    pinned_with_a_child(4, Knob::Always);
    pinned_with_a_child(1024, Knob::Always);
}

/// Without memory for the copy of a pinned page there is no child, and the parent is unchanged.
#[test]
fn a_fork_without_memory_for_pinned_pages_fails() {
    x86(16 << 20, |on| {
        let parent = on.space();
        map(&parent, BASE, 2 * PAGE, MapFlags::empty());
        on.store(&parent, BASE, 1);
        let pin = parent.pin(BASE, Access::Write).unwrap();
        let mut failures = 0;
        for nth in 1.. {
            on.sim.refuse(Refusal::Nth(nth));
            let forked = parent.fork();
            on.sim.refuse(Refusal::Never);
            match forked {
                Err(ForkError::NoMemory(_)) => failures += 1,
                Err(ForkError::TooManyReferences) => panic!("nothing is swapped out"),
                Ok(_) => break,
            }
            pin.write(0, &nth.to_ne_bytes());
            assert_eq!(on.load(&parent, BASE), nth);
            on.store(&parent, BASE, nth + 1);
        }
        assert!(failures > 3, "the child allocates a root, page tables and the copy");
    });
}

/// A page table is held no longer if its pages are pinned, which a fork finds out only when it has
/// changed a page's counts (INV-11).
#[test]
fn a_fork_of_many_pinned_pages_holds_no_page_table_for_long() {
    x86(16 << 20, |on| {
        on.machine.policy().set_global(Knob::Never);
        let parent = on.space();
        map(&parent, BASE, 512 * PAGE, MapFlags::empty());
        let at = |page: u64| BASE + page * PAGE;
        // 3 times 171 is 1 modulo 512, so the frames of adjacent pages are 3 frames apart.
        (0..512).map(|n| n * 171 % 512).for_each(|page| on.store(&parent, at(page), page));
        let pins: Vec<_> = (0..512).map(|page| parent.pin(at(page), Access::Write).unwrap()).collect();
        let child = parent.fork().unwrap();
        (0..512).for_each(|page| assert_eq!(on.load(&child, at(page)), page));
        drop(pins);
    });
}

/// A fork of a space with capped runs changes the counts of a folio once for each `cap` PTEs.
#[test]
fn a_fork_respects_the_cap_on_runs() {
    x86(16 << 20, |on| {
        on.machine.policy().set(4, Knob::Always);
        let counts = Arc::new(AtomicU32::new(0));
        let counted = counts.clone();
        on.sim.observe(move |_, event| {
            counted.fetch_add(matches!(event, Event::Counts(..)).into(), Relaxed);
        });
        for (cap, changes) in [(usize::MAX, 32), (16, 32), (8, 64), (1, 512)] {
            let mut parent = on.space();
            parent.cap_runs(cap);
            map(&parent, BASE, 512 * PAGE, MapFlags::empty());
            // 3 times 11 is 1 modulo 32, so adjacent folios are 3 folios apart in memory.
            (0..32).map(|n| n * 11 % 32).for_each(|folio| on.store(&parent, BASE + folio * 16 * PAGE, folio));
            let before = counts.load(Relaxed);
            let child = parent.fork().unwrap();
            assert_eq!(counts.load(Relaxed) - before, changes, "cap {cap}");
            drop(child);
        }
    });
}
