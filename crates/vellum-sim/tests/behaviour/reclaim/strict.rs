//! Reclaim of anonymous memory: the choice of pages, pages that stay, and swap-in of their
//! contents.

use std::cell::Cell;

use vellum::addr::VirtRange;
use vellum::arch::{Attrs, X86_64};
use vellum::frame::LARGEST_FOLIO;
use vellum::frame::policy::Knob;
use vellum::memcg::{LruList, MemcgId};
use vellum::page_cache::Object;
use vellum::reclaim::reclaim;
use vellum::space::Spaces;
use vellum::space::{Access, Advise, AdviseError, MapFlags, MapRequest, RemapFlags, RemapRequest};
use vellum::stats::Counter;
use vellum::vma::Prot;
use vellum_sim::{Hostility, Silicon, Strict};

use crate::fixtures::bench::{BASE, Bench, HUGE, Setup, Space, USUAL, in_every_format, map, resident};

/// Runs a test on a machine with this many swap slots. No CPU speculates, so accessed bits are set
/// by programs only.
fn on<A: Silicon>(arch: A, slots: u32, test: impl FnOnce(&Bench<'_, A>)) {
    crate::fixtures::bench::on(arch, Setup { slots, cpus: 2, hostility: Hostility::NONE, ..USUAL }, test);
}

in_every_format! {
    memcg_reclaim_takes_pages_of_that_memcg => memcgs,
    reclaim_is_proportional_to_lru_sizes => in_proportion,
    recently_used_pages_are_reclaimed_later => ages,
    shared_pages_of_a_fork_family_are_reclaimed => family,
    folios_isolated_by_another_reclaimer_are_skipped => beside,
    isolated_folios_are_not_paged_out => not_paged_out,
    memcg_swap_limit_is_respected => swap_room,
    locked_pages_are_not_reclaimed => locked,
    cold_pages_are_reclaimed_first => cold,
    lazyfree_pages_are_reclaimed_without_swap => lazily,
    lazyfree_folios_of_several_huge_ptes => huge_leaves,
    lazyfree_pages_written_through_a_pin_are_kept => pinned,
    lazyfree_by_one_space_keeps_memory_that_the_other_has => freed_by_one,
    one_written_page_keeps_its_lazyfree_folio => written_anywhere,
    rmap_finds_moved_pages => moved,
    rmap_finds_memory_that_a_child_moved => moved_in_a_child,
    moved_pages_age => moved_ages,
    rmap_finds_private_copies => copies,
}

fn memcgs<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        on.machine.policy().set(4, Knob::Always);
        let page = on.page;
        let memcgs = [0, 1].map(|_| on.machine.memcgs().create(on.machine.frames(), MemcgId::ROOT, u64::MAX).unwrap());
        let child = on.machine.memcgs().create(on.machine.frames(), memcgs[0], u64::MAX).unwrap();
        let spaces = [memcgs[0], memcgs[1], child].map(|memcg| on.space_of(memcg));
        for (n, space) in spaces.iter().enumerate() {
            map(space, BASE, 64 * page);
            (0..64).for_each(|i| on.store(space, BASE + i * page, n as u64 * 100 + i));
        }
        let all = [&spaces[0], &spaces[1], &spaces[2]];
        let frames = 64 * (page >> 12);
        assert_eq!(on.reclaim(&all, memcgs[0], u64::MAX), 2 * frames);
        assert_eq!(all.map(|space| resident(space, BASE, 64 * page)), [0, 64 * page, 0]);
        let usage = on.machine.memcgs().usage(on.machine.frames(), memcgs[0]).unwrap();
        assert_eq!(
            usage.charged,
            usage.lruvecs + all.iter().step_by(2).map(|s| (s.stats().tables + s.stats().kernel) >> 12).sum::<u64>()
        );
        // Reclaim frees little more than it is asked for.
        let got = on.reclaim(&all, MemcgId::ROOT, 20);
        assert!((20..20 + 16.max(frames / 64)).contains(&got), "{got}");
        for (n, space) in spaces.iter().enumerate() {
            (0..64).for_each(|i| assert_eq!(on.load(space, BASE + i * page), n as u64 * 100 + i));
        }
        drop(spaces);
        [child, memcgs[0], memcgs[1]].iter().for_each(|g| on.machine.memcgs().remove(on.machine.frames(), *g).unwrap());
    });
}

fn in_proportion<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let page = on.page;
        let memcgs = [0; 3].map(|_| on.machine.memcgs().create(on.machine.frames(), MemcgId::ROOT, u64::MAX).unwrap());
        let spaces = memcgs.map(|memcg| on.space_of(memcg));
        let pages = [96, 32, 64];
        for (space, pages) in spaces.iter().zip(pages) {
            map(space, BASE, pages * page);
            (0..pages).for_each(|i| on.store(space, BASE + i * page, i));
            let all = VirtRange { start: BASE, end: BASE + pages * page };
            space.clear_accessed_dirty(all, Attrs::ACCESSED, |_, _| ());
        }
        // Recently accessed pages are scanned with the rest, and others are reclaimed instead.
        (0..64).for_each(|i| _ = on.load(&spaces[2], BASE + i * page));
        let all = [&spaces[0], &spaces[1], &spaces[2]];
        let each = page >> 12;
        assert!((32 * each..=36 * each).contains(&on.reclaim(&all, MemcgId::ROOT, 32 * each)));
        let gone = [0, 1, 2].map(|n| pages[n] - resident(all[n], BASE, pages[n] * page) / page);
        assert!((23..=27).contains(&gone[0]) && (7..=12).contains(&gone[1]) && gone[2] == 0, "{gone:?}");
        drop(spaces);
        memcgs.iter().for_each(|g| on.machine.memcgs().remove(on.machine.frames(), *g).unwrap());
    });
}

fn ages<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let page = on.page;
        let space = on.space_of(MemcgId::ROOT);
        map(&space, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
        // Clears all accessed bits.
        space.clear_accessed_dirty(VirtRange { start: BASE, end: BASE + 64 * page }, Attrs::ACCESSED, |_, _| ());
        (0..16).for_each(|i| assert_eq!(on.load(&space, BASE + 4 * i * page), 4 * i));
        let frames = 48 * (page >> 12);
        let done = reclaim(on.machine, &[&space][..], MemcgId::ROOT, frames).unwrap();
        assert_eq!(done.freed, frames);
        assert!(
            frames < done.scanned && done.scanned <= 64 * (page >> 12),
            "some that were used, and none twice: {done:?}"
        );
        let stays: Vec<u64> = (0..64).filter(|i| resident(&space, BASE + i * page, page) > 0).collect();
        assert_eq!(stays, (0..16).map(|i| 4 * i).collect::<Vec<_>>());
        (0..64).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), i));
    });
}

fn family<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        on.machine.policy().set(4, Knob::Always);
        let page = on.page;
        let parent = on.space_of(MemcgId::ROOT);
        map(&parent, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&parent, BASE + i * page, i));
        let child = parent.fork().unwrap();
        (0..8).for_each(|i| on.store(&child, BASE + i * page, 100 + i));
        let mut own = 0;
        child.runs(VirtRange { start: BASE, end: BASE + 64 * page }, |run| {
            own += if run.attrs(&on.arch).contains(Attrs::EXCLUSIVE) { run.range(&on.arch).len() } else { 0 };
        });
        let both = [&parent, &child];
        on.reclaim(&both, MemcgId::ROOT, u64::MAX);
        assert_eq!(both.map(|space| resident(space, BASE, 64 * page)), [0, 0]);
        // Shared memory is written once.
        let written = (64 * page + own) >> 12;
        assert_eq!(u64::from(on.used()), written);
        assert_eq!(on.machine.counter(Counter::SwapOut), written);
        for i in 0..64 {
            assert_eq!(on.load(&parent, BASE + i * page), i);
            assert_eq!(on.load(&child, BASE + i * page), if i < 8 { 100 + i } else { i });
        }
    });
}

/// A host that does something first when reclaim visits its spaces.
struct First<'s, 'm, A: Silicon, F> {
    spaces: [&'s Space<'m, A>; 2],
    first: F,
}

impl<'m, A: Silicon, F: Fn()> Spaces<'m, Strict<A>> for First<'_, 'm, A, F> {
    fn each(&self, visit: &mut dyn FnMut(&Space<'m, A>)) {
        (self.first)();
        self.spaces.each(visit);
    }
}

fn beside<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let page = on.page;
        let parent = on.space_of(MemcgId::ROOT);
        map(&parent, BASE, page);
        on.store(&parent, BASE, 1);
        let child = parent.fork().unwrap();
        on.store(&child, BASE, 2);
        let both = [&parent, &child];
        for space in both {
            space.clear_accessed_dirty(VirtRange { start: BASE, end: BASE + page }, Attrs::ACCESSED, |_, _| ());
        }
        // The parent's folio has been isolated when the child's is.
        let first = || {
            if on.used() == 0 {
                on.reclaim(&both, MemcgId::ROOT, 1);
                assert_eq!(both.map(|space| resident(space, BASE, page)), [page, 0]);
            }
        };
        let spaces = First { spaces: both, first };
        assert_eq!(reclaim(on.machine, &spaces, MemcgId::ROOT, 1).map(|done| done.freed), Ok(page >> 12));
        assert_eq!(both.map(|space| resident(space, BASE, page)), [0, 0]);
        assert_eq!(both.map(|space| on.load(space, BASE)), [1, 2]);
    });
}

/// An isolated folio has a reference that can't be told from that of a writer.
fn not_paged_out<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let page = on.page;
        let space = on.space_of(MemcgId::ROOT);
        map(&space, BASE, page);
        on.store(&space, BASE, 1);
        let asked = Cell::new(0);
        let first = || {
            asked.set(asked.get() + 1);
            if asked.get() == 1 {
                space.advise(BASE, page, Advise::PageOut).unwrap();
                assert_eq!(resident(&space, BASE, page), page);
            }
        };
        let spaces = First { spaces: [&space, &space], first };
        assert_eq!(reclaim(on.machine, &spaces, MemcgId::ROOT, 1).map(|done| done.freed), Ok(page >> 12));
        assert!(asked.get() > 0);
        assert_eq!(resident(&space, BASE, page), 0);
        assert_eq!(on.load(&space, BASE), 1);
    });
}

fn locked<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let page = on.page;
        let space = on.space_of(MemcgId::ROOT);
        map(&space, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
        space.lock(BASE + 16 * page, 16 * page, false).unwrap();
        let pin = space.pin(BASE + 40 * page, Access::Write).unwrap();
        on.reclaim(&[&space], MemcgId::ROOT, u64::MAX);
        assert_eq!(resident(&space, BASE, 64 * page), 17 * page);
        assert_eq!(resident(&space, BASE + 16 * page, 16 * page), 16 * page);
        drop(pin);
        // Locked pages are on the unevictable list, until they are unlocked.
        let listed =
            |list: LruList| on.machine.memcgs().usage(on.machine.frames(), MemcgId::ROOT).unwrap().lru[list as usize];
        let locked = 16 * (page >> 12);
        assert_eq!(listed(LruList::Unevictable), locked);
        space.unlock(BASE + 16 * page, 4 * page).unwrap();
        assert_eq!(listed(LruList::Unevictable), locked / 4 * 3);
        space.unlock_all();
        assert_eq!(listed(LruList::Unevictable), 0);
        on.reclaim(&[&space], MemcgId::ROOT, u64::MAX);
        assert_eq!(resident(&space, BASE, 64 * page), 0);
        (0..64).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), i));
        // A child inherits no lock, and when its parent has exited, the pages are evictable.
        space.lock(BASE, 16 * page, false).unwrap();
        on.reclaim(&[&space], MemcgId::ROOT, u64::MAX);
        let child = space.fork().unwrap();
        assert_eq!(on.reclaim(&[&space, &child], MemcgId::ROOT, u64::MAX), 0);
        drop(space);
        assert_eq!(listed(LruList::Unevictable), locked);
        on.reclaim(&[&child], MemcgId::ROOT, u64::MAX);
        assert_eq!((listed(LruList::Unevictable), resident(&child, BASE, 64 * page)), (0, 0));
        (0..64).for_each(|i| assert_eq!(on.load(&child, BASE + i * page), i));
    });
}

fn cold<A: Silicon>(arch: A) {
    for used in [true, false] {
        on(arch, 4096, |on| {
            let page = on.page;
            let space = on.space_of(MemcgId::ROOT);
            map(&space, BASE, 64 * page);
            (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
            let all = VirtRange { start: BASE, end: BASE + 64 * page };
            if !used {
                space.clear_accessed_dirty(all, Attrs::ACCESSED, |_, _| ());
            }
            space.advise(BASE + 40 * page, 16 * page, Advise::Cold).unwrap();
            assert_eq!(resident(&space, BASE, 64 * page), 64 * page);
            let frames = 16 * (page >> 12);
            assert_eq!(on.reclaim(&[&space], MemcgId::ROOT, frames), frames);
            assert_eq!(resident(&space, BASE + 40 * page, 16 * page), 0);
            // An accessed page is as young as the others.
            (40..48).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), i));
            space.advise(BASE, 64 * page, Advise::Cold).unwrap();
            (0..64).filter(|i| *i != 13).for_each(|i| _ = on.load(&space, BASE + i * page));
            assert_eq!(on.reclaim(&[&space], MemcgId::ROOT, 1), page >> 12);
            assert_eq!(resident(&space, BASE + 13 * page, page), 0);
            // `MADV_COLD` skips shared pages, and fails for locked ones.
            let child = space.fork().unwrap();
            (0..8).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), i));
            space.advise(BASE, 64 * page, Advise::Cold).unwrap();
            let mut used = 0;
            space.runs(VirtRange { start: BASE, end: BASE + 8 * page }, |run| {
                used += if run.attrs(&on.arch).contains(Attrs::ACCESSED) { run.len } else { 0 };
            });
            assert_eq!(used, 8);
            space.lock(BASE, page, false).unwrap();
            assert!(matches!(space.advise(BASE, page, Advise::Cold), Err(AdviseError::Locked(_))));
            drop(child);
        });
    }
}

fn lazily<A: Silicon>(arch: A) {
    for order in [0, 4] {
        on(arch, 0, |on| {
            on.machine.policy().set(order, Knob::Always);
            let page = on.page.max(4096 << order);
            let space = on.space_of(MemcgId::ROOT);
            map(&space, BASE, 40 * page);
            (0..40).for_each(|i| on.store(&space, BASE + i * page, 1 + i));
            space.advise(BASE, 40 * page, Advise::Free).unwrap();
            // Pages that are only read are reclaimed all the same.
            (0..5).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), 1 + i));
            (0..40).step_by(10).for_each(|i| on.store(&space, BASE + i * page, 100 + i));
            assert_eq!(on.reclaim(&[&space], MemcgId::ROOT, u64::MAX), 36 * (page >> 12));
            assert_eq!(on.machine.counter(Counter::LazyFreed), 36 * (page >> 12));
            for i in 0..40 {
                assert_eq!(on.load(&space, BASE + i * page), if i % 10 == 0 { 100 + i } else { 0 });
            }
        });
    }
}

/// Of two folios of the largest size, which several huge PTEs may map, the written one stays.
fn huge_leaves<A: Silicon>(arch: A) {
    const FOLIO: u64 = 4096 << LARGEST_FOLIO;
    for written in [0, FOLIO / 2] {
        let setup = Setup { bytes: 5 * FOLIO, hostility: Hostility::NONE, ..USUAL };
        crate::fixtures::bench::on(arch, setup, |on| {
            on.machine.policy().set(LARGEST_FOLIO, Knob::Always);
            let space = on.space_of(MemcgId::ROOT);
            map(&space, BASE, 2 * FOLIO);
            [0, FOLIO].iter().for_each(|at| on.store(&space, BASE + at + written, 1));
            assert_eq!(resident(&space, BASE, 2 * FOLIO), 2 * FOLIO);
            space.advise(BASE, 2 * FOLIO, Advise::Free).unwrap();
            on.store(&space, BASE + written, 2);
            assert_eq!(on.reclaim(&[&space], MemcgId::ROOT, u64::MAX), FOLIO >> 12);
            assert_eq!([0, FOLIO].map(|at| on.load(&space, BASE + at + written)), [2, 0]);
        });
    }
}

/// A folio stays as it is if any of its pages was written, whether the dirty bit was read or not.
fn written_anywhere<A: Silicon>(arch: A) {
    for told in [false, true] {
        on(arch, 0, |on| {
            on.machine.policy().set(4, Knob::Always);
            let page = on.page;
            let each = (1 << 16) / page;
            let space = on.space_of(MemcgId::ROOT);
            map(&space, BASE, 16 << 16);
            let at = |folio, n| BASE + (folio << 16) + n * page;
            let all = || (0..16).flat_map(|folio| (0..each).map(move |n| (folio, n)));
            all().for_each(|(folio, n)| on.store(&space, at(folio, n), 1 + folio * 16 + n));
            space.advise(BASE, 16 << 16, Advise::Free).unwrap();
            (0..16).step_by(3).for_each(|folio| on.store(&space, at(folio, folio % each), 1000));
            if told {
                let mut written = 0;
                let all = VirtRange { start: BASE, end: at(16, 0) };
                space.clear_accessed_dirty(all, Attrs::HARDWARE, |_, attrs| {
                    written += u32::from(attrs.contains(Attrs::DIRTY))
                });
                assert!(written > 0);
            }
            assert_eq!(on.reclaim(&[&space], MemcgId::ROOT, u64::MAX), 10 * 16);
            for (folio, n) in all() {
                let value = match folio % 3 {
                    0 if n == folio % each => 1000,
                    0 => 1 + folio * 16 + n,
                    _ => 0,
                };
                assert_eq!(on.load(&space, at(folio, n)), value, "page {n} of folio {folio}");
            }
        });
    }
}

/// MADV_FREE by one space of a fork family does not make the memory lazyfree for the other, though
/// no PTE is dirty.
fn freed_by_one<A: Silicon>(arch: A) {
    for order in [0, 4] {
        on(arch, 0, |on| {
            on.machine.policy().set(order, Knob::Always);
            let page = on.page.max(4096 << order);
            let space = on.space_of(MemcgId::ROOT);
            map(&space, BASE, 8 * page);
            (0..8).for_each(|i| on.store(&space, BASE + i * page, 1 + i));
            space.clear_accessed_dirty(VirtRange { start: BASE, end: BASE + 8 * page }, Attrs::HARDWARE, |_, _| ());
            let child = space.fork().unwrap();
            space.advise(BASE, 8 * page, Advise::Free).unwrap();
            on.reclaim(&[&space, &child], MemcgId::ROOT, u64::MAX);
            (0..8).for_each(|i| assert_eq!(on.load(&child, BASE + i * page), 1 + i));
        });
    }
}

/// A write through a pin is kept.
fn pinned<A: Silicon>(arch: A) {
    on(arch, 0, |on| {
        on.machine.policy().set(4, Knob::Always);
        let page = on.page.max(4096 << 4);
        let space = on.space_of(MemcgId::ROOT);
        map(&space, BASE, 8 * page);
        (0..8).for_each(|i| on.store(&space, BASE + i * page, 1 + i));
        space.advise(BASE, 8 * page, Advise::Free).unwrap();
        space.pin(BASE + 3 * page, Access::Write).unwrap().write(0, &77u64.to_ne_bytes());
        drop(space.pin(BASE + 5 * page, Access::Read).unwrap());
        on.reclaim(&[&space], MemcgId::ROOT, u64::MAX);
        (0..8).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), if i == 3 { 77 } else { 0 }));
    });
}

/// Another address, at the same offset in page tables, and one that is not.
const FAR: u64 = BASE + (1 << 36);
const ODD: u64 = FAR + (1 << 33) + 0x7_0000;

fn moves<A: Silicon>(space: &Space<'_, A>, addr: u64, len: u64, new_addr: u64, leave: bool) {
    let mut flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
    flags.set(RemapFlags::DONTUNMAP, leave);
    assert_eq!(space.remap(RemapRequest { addr, old_len: len, new_len: len, flags, new_addr }), Ok(new_addr));
}

/// Returns the resident pages of a space.
fn all_resident<A: Silicon>(space: &Space<'_, A>) -> u64 {
    resident(space, 0, space.arch().user_end()) >> space.arch().page_shift()
}

/// Parts of folios, twice, with their old address used again, and back.
fn moved<A: Silicon>(arch: A) {
    for order in [0, 6] {
        on(arch, 8192, |on| {
            on.machine.policy().set(order, Knob::Always);
            let page = on.page;
            let space = on.space_of(MemcgId::ROOT);
            map(&space, BASE, 64 * page);
            (0..64).for_each(|i| on.store(&space, BASE + i * page, 1 + i));
            moves(&space, BASE + 5 * page, 20 * page, ODD + page, false);
            moves(&space, ODD + 10 * page, 3 * page, FAR, false);
            moves(&space, BASE + 30 * page, 16 * page, FAR + 30 * page, true);
            (30..46).for_each(|i| on.store(&space, BASE + i * page, 100 + i));
            moves(&space, BASE + 60 * page, 4 * page, FAR + 60 * page, false);
            moves(&space, FAR + 60 * page, 4 * page, BASE + 60 * page, false);
            assert_eq!(all_resident(&space), 64 + 16);
            on.reclaim(&[&space], MemcgId::ROOT, u64::MAX);
            assert_eq!(all_resident(&space), 0);
            let at = |i: u64| match i {
                14..17 => FAR + (i - 14) * page,
                5..25 => ODD + (i - 4) * page,
                30..46 => FAR + i * page,
                _ => BASE + i * page,
            };
            (0..64).for_each(|i| assert_eq!(on.load(&space, at(i)), 1 + i));
            (30..46).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), 100 + i));
        });
    }
}

fn moved_in_a_child<A: Silicon>(arch: A) {
    on(arch, 8192, |on| {
        on.machine.policy().set(4, Knob::Always);
        let page = on.page;
        let parent = on.space_of(MemcgId::ROOT);
        map(&parent, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&parent, BASE + i * page, i));
        moves(&parent, BASE, 64 * page, FAR, false);
        let child = parent.fork().unwrap();
        moves(&child, FAR + 8 * page, 40 * page, ODD, false);
        moves(&parent, FAR, 64 * page, BASE, false);
        (0..8).for_each(|i| on.store(&child, ODD + i * page, 100 + i));
        let both = [&parent, &child];
        on.reclaim(&both, MemcgId::ROOT, u64::MAX);
        assert_eq!(both.map(all_resident), [0, 0]);
        for i in 0..64 {
            assert_eq!(on.load(&parent, BASE + i * page), i);
            let at = if (8..48).contains(&i) { ODD + (i - 8) * page } else { FAR + i * page };
            assert_eq!(on.load(&child, at), if (8..16).contains(&i) { 92 + i } else { i });
        }
    });
}

fn moved_ages<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let page = on.page;
        let space = on.space_of(MemcgId::ROOT);
        map(&space, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
        moves(&space, BASE, 64 * page, ODD, false);
        space.clear_accessed_dirty(VirtRange { start: ODD, end: ODD + 64 * page }, Attrs::ACCESSED, |_, _| ());
        (0..16).for_each(|i| assert_eq!(on.load(&space, ODD + 4 * i * page), 4 * i));
        let frames = 48 * (page >> 12);
        assert_eq!(on.reclaim(&[&space], MemcgId::ROOT, frames), frames);
        let stays: Vec<u64> = (0..64).filter(|i| resident(&space, ODD + i * page, page) > 0).collect();
        assert_eq!(stays, (0..16).map(|i| 4 * i).collect::<Vec<_>>());
    });
}

/// Private copies are found at their first address, or where they were moved.
fn copies<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let page = on.page;
        let space = on.space_of(MemcgId::ROOT);
        let object = Object::new(on.machine, &on.arch, MemcgId::ROOT, 1, 64 * page).unwrap();
        let prot = Prot::READ | Prot::WRITE;
        let request = MapRequest { addr: BASE, len: 48 * page, prot, flags: MapFlags::FIXED };
        space.map_object(request, &object, 16 * page).unwrap();
        (0..48).for_each(|i| on.store(&space, BASE + i * page, 1 + i));
        moves(&space, BASE + 10 * page, 10 * page, ODD, false);
        on.reclaim(&[&space], MemcgId::ROOT, u64::MAX);
        assert_eq!(all_resident(&space), 0);
        for i in 0..48 {
            let at = if (10..20).contains(&i) { ODD + (i - 10) * page } else { BASE + i * page };
            assert_eq!(on.load(&space, at), 1 + i);
        }
    });
}

/// Huge PTEs are reclaimed whole, unless they were written.
#[test]
fn unwritten_huge_mappings_are_reclaimed_whole() {
    on(X86_64::four_levels(), 0, |on| {
        on.machine.policy().set(9, Knob::Always);
        let space = on.space_of(MemcgId::ROOT);
        map(&space, BASE, 10 * HUGE);
        (0..10).for_each(|i| on.store(&space, BASE + i * HUGE, 1 + i));
        space.advise(BASE, 10 * HUGE, Advise::Free).unwrap();
        on.store(&space, BASE + 7 * HUGE + 0x3000, 5);
        let child = space.fork().unwrap();
        assert_eq!(on.reclaim(&[&space, &child], MemcgId::ROOT, u64::MAX), 9 * 512);
        assert_eq!(on.machine.counter(Counter::HugeSplits), 0);
        for space in [&space, &child] {
            assert_eq!(resident(space, BASE, 10 * HUGE), HUGE);
            assert_eq!((on.load(space, BASE + 7 * HUGE), on.load(space, BASE + 7 * HUGE + 0x3000)), (8, 5));
        }
    });
}

fn swap_room<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let page = on.page;
        let (memcgs, frames) = (on.machine.memcgs(), on.machine.frames());
        let parent = memcgs.create(frames, MemcgId::ROOT, u64::MAX).unwrap();
        let child = memcgs.create(frames, parent, u64::MAX).unwrap();
        let spaces = [parent, child].map(|memcg| on.space_of(memcg));
        for space in &spaces {
            map(space, BASE, 16 * page);
            (0..16).for_each(|i| on.store(space, BASE + i * page, i));
        }
        let left = || spaces.each_ref().map(|space| resident(space, BASE, 16 * page) / page);
        // The swap limit of the parent memcg holds for both.
        memcgs.set_swap_room(parent, 5 * (page >> 12)).unwrap();
        spaces[1].advise(BASE, 16 * page, Advise::PageOut).unwrap();
        assert_eq!(left(), [16, 11]);
        on.reclaim(&spaces.each_ref(), MemcgId::ROOT, u64::MAX);
        assert_eq!(left(), [16, 11]);
        // The swap limit of the child memcg holds for the child only.
        memcgs.set_swap_room(parent, u64::MAX).unwrap();
        memcgs.set_swap_room(child, 2 * (page >> 12)).unwrap();
        on.reclaim(&spaces.each_ref(), MemcgId::ROOT, u64::MAX);
        assert_eq!(left(), [0, 9]);
        for space in &spaces {
            (0..16).for_each(|i| assert_eq!(on.load(space, BASE + i * page), i));
        }
        drop(spaces);
        [child, parent].into_iter().for_each(|memcg| memcgs.remove(frames, memcg).unwrap());
    });
}
