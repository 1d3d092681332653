//! Pages of page-cache objects are swapped out and in.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use vellum::addr::VirtRange;
use vellum::arch::Attrs;
use vellum::frame::policy::ShmemKnob;
use vellum::memcg::{LruList, MemcgId, Refused};
use vellum::page_cache::{Object, ObjectError};
use vellum::space::{Access, Advise, FaultError, MapFlags, MapRequest, unmap_removed};
use vellum::stats::Counter;
use vellum::vma::Prot;
use vellum_sim::{Hostility, Silicon, Strict};

use crate::fixtures::bench::{BASE, Bench, Setup, Space, USUAL, in_every_format, resident};

/// Runs a test on a machine with this many swap slots. No CPU speculates, so accessed bits are set
/// by programs only.
fn on<A: Silicon>(arch: A, slots: u32, test: impl FnOnce(&Bench<'_, A>)) {
    crate::fixtures::bench::on(arch, Setup { slots, cpus: 2, hostility: Hostility::NONE, ..USUAL }, test);
}

in_every_format! {
    unmapped_object_pages_are_swapped_out_and_in => unmapped,
    mapped_object_pages_are_unmapped_and_swapped_out => mapped,
    large_folios_of_an_object_are_swapped_out_whole => large,
    referenced_and_locked_object_pages_are_not_reclaimed => stays,
    truncated_pages_free_their_slots => truncated,
    swapoff_returns_pages_to_objects => swap_off,
    objects_respect_the_swap_limit_of_their_memcg => room,
    used_object_pages_are_reclaimed_later => ages,
    pageout_takes_folios_that_only_this_space_maps => paged_out,
    pageout_takes_objects_and_private_copies_of_many_page_tables => many_tables,
    pages_that_outlive_their_object_are_not_swapped_out => ended,
    pages_removed_during_reclaim_are_skipped => meanwhile,
}

fn object<'m, A: Silicon>(on: &Bench<'m, A>, pages: u64) -> Object<'m, Strict<A>> {
    Object::new(on.machine, &on.arch, MemcgId::ROOT, 0, pages * on.page).unwrap()
}

/// Writes its number plus 7 to each page.
fn fill<A: Silicon>(object: &Object<'_, Strict<A>>, pages: u64) {
    for page in 0..pages {
        object.page_or_new(page, MemcgId::ROOT).unwrap().write(8, &(page + 7).to_ne_bytes());
    }
}

fn word<A: Silicon>(object: &Object<'_, Strict<A>>, page: u64) -> Option<u64> {
    let mut word = [0; 8];
    let held = object.page(page).unwrap()?;
    held.read(8, &mut word);
    Some(u64::from_ne_bytes(word))
}

fn share<'m, A: Silicon>(
    on: &Bench<'m, A>,
    object: &Object<'m, Strict<A>>,
    pages: u64,
    flags: MapFlags,
) -> Space<'m, A> {
    let space = on.space_of(MemcgId::ROOT);
    let prot = Prot::READ | Prot::WRITE;
    let request = MapRequest { addr: BASE, len: pages * on.page, prot, flags: MapFlags::FIXED | flags };
    space.map_object(request, object, 0).unwrap();
    space
}

fn unmapped<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let frames = on.page >> 12;
        let object = object(on, 64);
        fill(&object, 64);
        assert_eq!(on.machine.counter(Counter::ShmemPages), 64 * frames);
        assert_eq!(on.reclaim(&[], MemcgId::ROOT, u64::MAX), 64 * frames);
        assert_eq!((object.resident(), object.swapped(), u64::from(on.used())), (0, 64, 64 * frames));
        assert_eq!(on.machine.counter(Counter::ShmemPages), 0);
        assert_eq!(on.machine.memcgs().usage(on.machine.frames(), MemcgId::ROOT).unwrap().swapped, 64 * frames);
        assert_eq!((object.next_data(3), object.next_hole(3), object.has_page(63)), (Some(3), 64, true), "no holes");
        (0..64).for_each(|page| assert_eq!(word(&object, page), Some(page + 7)));
        assert_eq!((object.resident(), object.swapped(), u64::from(on.used())), (64, 0, 0));
        assert_eq!(on.machine.counter(Counter::ShmemPages), 64 * frames);
        assert_eq!(on.machine.memcgs().usage(on.machine.frames(), MemcgId::ROOT).unwrap().swapped, 0);
        let counts = [Counter::SwapOut, Counter::SwapIn].map(|counter| on.machine.counter(counter));
        assert_eq!(counts, [64 * frames; 2]);
    });
}

fn mapped<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let page = on.page;
        let object = object(on, 64);
        fill(&object, 64);
        let spaces = [MapFlags::SHARED, MapFlags::SHARED, MapFlags::empty()].map(|flags| share(on, &object, 64, flags));
        let all = [&spaces[0], &spaces[1], &spaces[2]];
        for space in all {
            (0..64).for_each(|i| assert_eq!(on.load(space, BASE + i * page + 8), i + 7));
        }
        // A private copy of the third space.
        on.store(&spaces[2], BASE + 9 * page + 8, 1);
        let child = spaces[0].fork().unwrap();
        (0..64).for_each(|i| assert_eq!(on.load(&child, BASE + i * page + 8), i + 7));
        assert_eq!(
            on.reclaim(&all, MemcgId::ROOT, u64::MAX),
            65 * (page >> 12) - 64 * (page >> 12),
            "the child maps it"
        );
        assert_eq!(object.swapped(), 0);
        let all = [&spaces[0], &spaces[1], &spaces[2], &child];
        on.reclaim(&all, MemcgId::ROOT, u64::MAX);
        assert_eq!(all.map(|space| resident(space, BASE, 64 * page)), [0; 4]);
        assert_eq!(all.map(|space| space.stats().shmem), [0; 4]);
        assert_eq!((object.resident(), object.swapped()), (0, 64));
        let mut there = [true; 64];
        child.mincore(BASE, 64 * page, &mut there).unwrap();
        assert_eq!(there, [false; 64]);
        for i in 0..64 {
            assert_eq!(on.load(&spaces[2], BASE + i * page + 8), if i == 9 { 1 } else { i + 7 });
            on.store(&child, BASE + i * page + 16, i);
            assert_eq!(on.load(&spaces[1], BASE + i * page + 16), i);
        }
        assert_eq!(child.stats().shmem, 64 * page);
    });
}

fn large<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let page = on.page;
        let order = 4 + on.arch.page_order();
        on.machine.policy().shmem().set(order, ShmemKnob::WithinSize);
        let object = object(on, 32);
        let space = share(on, &object, 32, MapFlags::SHARED);
        (0..32).for_each(|i| on.store(&space, BASE + i * page + 8, i + 7));
        let orders = || [4, 16].map(|at| on.machine.frames().head(object.page(at).unwrap().unwrap().pfn()).1.order());
        assert_eq!(orders(), [order; 2]);
        // A part of one folio is punched out.
        let gone = object.punch_hole(0..3 * page).unwrap();
        unmap_removed(&[&space][..], &object, &gone);
        on.reclaim(&[&space], MemcgId::ROOT, u64::MAX);
        assert_eq!((object.resident(), object.swapped(), u64::from(on.used())), (0, 29, 29 * (page >> 12)));
        assert_eq!(on.load(&space, BASE + 20 * page + 8), 27);
        assert_eq!(object.resident(), 16, "swap-in restores the contents");
        (3..32).for_each(|i| assert_eq!(on.load(&space, BASE + i * page + 8), i + 7));
        assert_eq!((object.resident(), object.swapped(), u64::from(on.used())), (29, 0, 0));
        assert_eq!(orders()[1], order);
    });
}

fn stays<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let page = on.page;
        let object = object(on, 8);
        fill(&object, 8);
        let held = object.page(3).unwrap();
        let space = share(on, &object, 8, MapFlags::SHARED);
        space.lock(BASE + 5 * page, page, false).unwrap();
        let other = share(on, &object, 8, MapFlags::SHARED);
        (0..8).for_each(|i| assert_eq!(on.load(&other, BASE + i * page + 8), i + 7));
        let all = [&space, &other];
        on.reclaim(&all, MemcgId::ROOT, u64::MAX);
        assert_eq!((object.resident(), object.swapped()), (2, 6));
        let listed = |list: LruList| {
            on.machine.memcgs().usage(on.machine.frames(), MemcgId::ROOT).unwrap().lru[list as usize] / (page >> 12)
        };
        assert_eq!([listed(LruList::Shmem), listed(LruList::Unevictable)], [1, 1]);
        space.unlock(BASE, 8 * page).unwrap();
        assert_eq!([listed(LruList::Shmem), listed(LruList::Unevictable)], [2, 0]);
        drop(held);
        on.reclaim(&all, MemcgId::ROOT, u64::MAX);
        assert_eq!((object.resident(), object.swapped()), (0, 8));
    });
}

fn truncated<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let page = on.page;
        let object = object(on, 16);
        fill(&object, 16);
        on.reclaim(&[], MemcgId::ROOT, u64::MAX);
        let _ = object.punch_hole(2 * page..4 * page).unwrap();
        assert_eq!((object.swapped(), u64::from(on.used()), word(&object, 3)), (14, 14 * (page >> 12), None));
        // A part of a page is truncated: the rest keeps its contents.
        let _ = object.set_size(9 * page + 12).unwrap();
        assert_eq!((object.swapped() + object.resident(), u64::from(on.used()) / (page >> 12)), (8, object.swapped()));
        assert_eq!(word(&object, 9), Some(16 & 0xffff_ffff));
        assert_eq!(word(&object, 10), None);
        let _ = object.set_size(9 * page + 8).unwrap();
        assert_eq!(word(&object, 9), Some(0));
        on.reclaim(&[], MemcgId::ROOT, u64::MAX);
        assert_eq!(object.swapped(), 8);
        drop(object);
        assert_eq!(u64::from(on.used()), 0);
    });
}

fn swap_off<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let frames = on.page >> 12;
        let objects = [0; 3].map(|_| object(on, 8));
        objects.iter().for_each(|object| fill(object, 8));
        on.reclaim(&[], MemcgId::ROOT, u64::MAX);
        // An object that has ended is not visited.
        let [first, second, third] = objects;
        drop(second);
        assert_eq!(u64::from(on.used()), 16 * frames);
        let swaps = on.machine.swaps();
        swaps.close(on.machine.platform(), 0).unwrap();
        assert_eq!(Object::swap_off(on.machine, 0), Ok(()));
        assert_eq!((first.swapped(), third.swapped(), u64::from(on.used())), (0, 0, 0));
        for object in [&first, &third] {
            (0..8).for_each(|page| assert_eq!(word(object, page), Some(page + 7)));
        }
        swaps.open(on.machine.platform(), 0).unwrap();
    });
}

fn room<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let frames = on.page >> 12;
        let memcg = on.machine.memcgs().create(on.machine.frames(), MemcgId::ROOT, u64::MAX).unwrap();
        let object = Object::new(on.machine, &on.arch, memcg, 0, 16 * on.page).unwrap();
        fill(&object, 16);
        on.machine.memcgs().set_swap_room(memcg, 5 * frames).unwrap();
        on.reclaim(&[], MemcgId::ROOT, u64::MAX);
        assert_eq!((object.resident(), object.swapped()), (11, 5));
        on.machine.memcgs().set_swap_room(memcg, u64::MAX).unwrap();
        on.reclaim(&[], MemcgId::ROOT, u64::MAX);
        assert_eq!(object.swapped(), 16);
        assert_eq!(on.machine.memcgs().usage(on.machine.frames(), memcg).unwrap().swapped, 16 * frames);
        // A swapped-in page is charged to the memcg that wants it, which may be full.
        let user = on.machine.memcgs().create(on.machine.frames(), MemcgId::ROOT, 0).unwrap();
        assert_eq!(object.page_or_new(0, user).err(), Some(ObjectError::NoMemory(Refused::OverLimit(user))));
        on.machine.memcgs().set_limit(user, u64::MAX).unwrap();
        assert!(object.page_or_new(0, user).is_ok());
        drop(object);
        [user, memcg].iter().for_each(|g| on.machine.memcgs().remove(on.machine.frames(), *g).unwrap());
    });
}

fn ages<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let page = on.page;
        let object = object(on, 64);
        fill(&object, 64);
        let space = share(on, &object, 64, MapFlags::SHARED);
        (0..64).for_each(|i| _ = on.load(&space, BASE + i * page));
        space.clear_accessed_dirty(VirtRange { start: BASE, end: BASE + 64 * page }, Attrs::ACCESSED, |_, _| ());
        (0..16).for_each(|i| assert_eq!(on.load(&space, BASE + 4 * i * page + 8), 4 * i + 7));
        assert_eq!(on.reclaim(&[&space], MemcgId::ROOT, 48 * (page >> 12)), 48 * (page >> 12));
        let stays: Vec<u64> = (0..64).filter(|i| resident(&space, BASE + i * page, page) > 0).collect();
        assert_eq!(stays, (0..16).map(|i| 4 * i).collect::<Vec<_>>());
    });
}

/// A page that outlives its object, because it is mapped or referenced, is not swapped out; and no
/// object is mistaken for another.
fn ended<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let page = on.page;
        let gone = object(on, 4);
        fill(&gone, 4);
        let held: Vec<_> = (0..4).map(|page| gone.page(page).unwrap().unwrap()).collect();
        drop(gone);
        let object = object(on, 4);
        fill(&object, 4);
        let cut = object.page(1).unwrap();
        let _ = object.set_size(page).unwrap();
        on.reclaim(&[], MemcgId::ROOT, u64::MAX);
        assert_eq!((object.resident(), object.swapped(), u64::from(on.used())), (0, 1, page >> 12));
        let mut bytes = [0; 8];
        held[3].read(8, &mut bytes);
        assert_eq!(u64::from_ne_bytes(bytes), 10);
        cut.unwrap().read(8, &mut bytes);
        assert_eq!(u64::from_ne_bytes(bytes), 8);
        assert_eq!(on.space_of(MemcgId::ROOT).fault(BASE, Access::Read).err(), Some(FaultError::Unmapped(BASE)));
    });
}

/// `MADV_PAGEOUT` takes folios that only this space maps, and that it maps in full.
fn paged_out<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let page = on.page;
        let order = 2 + on.arch.page_order();
        on.machine.policy().shmem().set(order, ShmemKnob::WithinSize);
        let object = object(on, 32);
        let [space, other] = [0; 2].map(|_| share(on, &object, 32, MapFlags::SHARED));
        (0..32).for_each(|i| on.store(&space, BASE + i * page + 8, i + 7));
        assert_eq!(on.load(&other, BASE + 9 * page + 8), 16);
        let others: Vec<u64> = (0..8).filter(|i| resident(&other, BASE + 4 * i * page, 4 * page) > 0).collect();
        assert!(others.contains(&2) && others.len() < 6, "the test needs adjacent frames: {others:?}");
        // The range has a part of the folios at its ends.
        space.advise(BASE + 2 * page, 27 * page, Advise::PageOut).unwrap();
        let stays: Vec<u64> = (0..8).filter(|i| resident(&space, BASE + 4 * i * page, 4 * page) > 0).collect();
        let expected: Vec<u64> = (0..8).filter(|i| [0, 7].contains(i) || others.contains(i)).collect();
        assert_eq!((stays, object.resident()), (expected.clone(), 4 * expected.len() as u64));
        (0..32).for_each(|i| assert_eq!(on.load(&other, BASE + i * page + 8), i + 7));
        assert_eq!(object.swapped(), 0);
    });
}

/// `MADV_PAGEOUT` passes over no page at the borders of page tables, wherever the range begins, and
/// none between private copies of pages.
fn many_tables<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let (page, table) = (on.page, 1 << on.arch.level_shift(2));
        let pages = 11 * table / page;
        let object = object(on, pages);
        let space = share(on, &object, pages, MapFlags::NORESERVE);
        let touched = |from: u64| [0, 2 * page, table - page].map(|at| BASE + from * table + at);
        for addr in (0..11).flat_map(touched) {
            object.page_or_new((addr - BASE) / page, MemcgId::ROOT).unwrap();
            on.load(&space, addr);
            if addr % (2 * table) == 2 * page {
                on.store(&space, addr, 3);
            }
        }
        let copies = space.stats().anon / page;
        assert!(copies > 4, "{copies}");
        space.advise(BASE + page, 11 * table - 2 * page, Advise::PageOut).unwrap();
        let stays: Vec<u64> = (0..11).flat_map(touched).filter(|addr| resident(&space, *addr, page) > 0).collect();
        assert_eq!((stays, object.resident()), (vec![BASE, BASE + 11 * table - page], 2 + copies));
        (0..11).flat_map(touched).for_each(|addr| {
            let is_copy = addr % (2 * table) == 2 * page;
            assert_eq!(on.load(&space, addr), if is_copy { 3 } else { 0 });
        });
    });
}

/// Another CPU removes pages of the object and adds new ones during reclaim.
fn meanwhile<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        const PAGES: u64 = 256;
        let object = object(on, PAGES);
        let done = AtomicBool::new(false);
        let (sim, bytes, object, done) = (on.sim, PAGES * on.page, &object, &done);
        std::thread::scope(|threads| {
            threads.spawn(move || {
                let _cpu = sim.cpu(1);
                for _ in 0..60 {
                    fill(object, PAGES);
                    // The object is not mapped.
                    let _ = object.punch_hole(0..bytes).unwrap();
                }
                fill(object, PAGES);
                done.store(true, SeqCst);
            });
            while !done.load(SeqCst) {
                on.reclaim(&[], MemcgId::ROOT, u64::MAX);
            }
        });
        (0..PAGES).for_each(|page| assert_eq!(word(object, page), Some(page + 7)));
    });
}
