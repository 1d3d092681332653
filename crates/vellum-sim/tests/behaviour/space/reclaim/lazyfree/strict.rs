//! Droppable memory (`MAP_DROPPABLE`): reclaim drops written pages, without a swap device and never
//! to one.

use vellum::errno::Errno;
use vellum::frame::policy::Knob;
use vellum::space::{Advise, AdviseError, LockAll, MapError, MapFlags, MapRequest};
use vellum::vma::{Prot, VmaFlags};
use vellum_sim::Silicon;

use crate::fixtures::bench::{BASE, Bench, HUGE, Setup, Space, USUAL, in_every_format, on};

in_every_format! {
    written_droppable_pages_are_dropped => written,
    droppable_memory_is_never_locked => locked,
    a_child_gets_droppable_memory_without_pages => forked,
}

fn map_droppable<A: Silicon>(space: &Space<'_, A>, len: u64) {
    let (prot, flags) = (Prot::READ | Prot::WRITE, MapFlags::FIXED | MapFlags::DROPPABLE);
    space.map(MapRequest { addr: BASE, len, prot, flags }).unwrap();
}

/// Writes each page, and checks that `drop` drops all of them.
fn check<A: Silicon>(on: &Bench<'_, A>, space: &Space<'_, A>, len: u64, drop: impl FnOnce()) {
    let pages = || (BASE..BASE + len).step_by(on.page as usize);
    pages().for_each(|va| on.store(space, va, 1));
    drop();
    assert_eq!(space.stats().anon, 0);
    assert_eq!(on.used(), 0, "droppable pages are in swap");
    pages().for_each(|va| assert_eq!(on.load(space, va), 0));
}

/// Without swap and with it, by reclaim and by advice, in single pages and in a huge one.
fn written<A: Silicon>(arch: A) {
    for (slots, order) in [(0, 0), (4096, 0), (4096, 9)] {
        on(arch, Setup { slots: slots.max(1), ..USUAL }, |on| {
            on.machine.policy().set(order, Knob::Always);
            let space = on.space();
            map_droppable(&space, 2 * HUGE);
            check(on, &space, 2 * HUGE, || {
                on.reclaim(&[&space], on.memcg, u64::MAX);
            });
            check(on, &space, 2 * HUGE, || space.advise(BASE, 2 * HUGE, Advise::PageOut).unwrap());
            // A cleared dirty bit or soft-dirty bit makes no difference.
            space.advise(BASE, 2 * HUGE, Advise::Free).unwrap();
            check(on, &space, 2 * HUGE, || {
                let all = vellum::addr::VirtRange { start: BASE, end: BASE + 2 * HUGE };
                space.clear_accessed_dirty(all, vellum::arch::Attrs::HARDWARE, |_, _| ());
                on.reclaim(&[&space], on.memcg, u64::MAX);
            });
        });
    }
}

fn locked<A: Silicon>(arch: A) {
    on(arch, USUAL, |on| {
        let space = on.space();
        map_droppable(&space, HUGE);
        space.lock(BASE, HUGE, false).unwrap();
        space.lock_all(LockAll::CURRENT | LockAll::FUTURE).unwrap();
        map_droppable(&space, HUGE);
        space.vmas(0, |vma| {
            assert!(!vma.flags.intersects(VmaFlags::LOCKED_MASK), "{:?}", vma.flags);
            true
        });
        assert_eq!(space.stats().locked, 0);
        let (prot, droppable) = (Prot::READ, MapFlags::DROPPABLE);
        for flags in [MapFlags::LOCKED, MapFlags::GROWSDOWN, MapFlags::SHARED] {
            let mapped = space.map(MapRequest { addr: 0, len: HUGE, prot, flags: flags | droppable });
            assert_eq!(mapped, Err(MapError::NotDroppable), "{flags:?}");
        }
        for advice in [Advise::KeepOnFork, Advise::DoDump] {
            let advised = space.advise(BASE, HUGE, advice);
            assert!(matches!(advised, Err(AdviseError::Droppable(_))), "{advice:?}: {advised:?}");
            assert_eq!(advised.unwrap_err().errno(), Errno::EINVAL);
        }
        space.unlock_all();
    });
}

fn forked<A: Silicon>(arch: A) {
    on(arch, USUAL, |on| {
        let space = on.space();
        map_droppable(&space, HUGE);
        on.store(&space, BASE, 1);
        let child = space.fork().unwrap();
        assert_eq!((on.load(&child, BASE), on.load(&space, BASE)), (0, 1));
    });
}
