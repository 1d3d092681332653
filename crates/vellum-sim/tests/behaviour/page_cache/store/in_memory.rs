//! Files whose changes stay in memory: the storage is never written, and changed pages go to swap.

use vellum::memcg::MemcgId;
use vellum::page_cache::{Changes, Writeback};
use vellum::space::{MapFlags, unmap_removed};
use vellum::stats::Counter;
use vellum_sim::Silicon;

use super::fixture::{File, TAG};
use crate::fixtures::bench::in_every_format;

in_every_format! {
    changes_go_to_swap_and_come_back => swapped,
    without_swap_changed_pages_stay_and_clean_ones_go => stays,
    truncation_takes_changed_pages_out_of_memory_and_swap => truncated,
}

/// Runs a test with a file whose changes stay in memory, with or without swap.
fn with_file<A: Silicon>(arch: A, has_swap: bool, test: impl FnOnce(&File<'_, '_, A>)) {
    let slots = if has_swap { 4096 } else { 0 };
    super::fixture::with_file_on(arch, slots, (MapFlags::SHARED, Changes::InMemory), |file| {
        let before: Vec<u64> = (0..8).map(|page| file.files.word(TAG, page * file.on.page)).collect();
        test(&file);
        let after: Vec<u64> = (0..8).map(|page| file.files.word(TAG, page * file.on.page)).collect();
        assert_eq!(before, after, "the storage was written");
    });
}

impl<A: Silicon> File<'_, '_, A> {
    /// Reclaims until nothing more can be.
    fn reclaim_often(&self) {
        (0..6).for_each(|_| _ = self.on.reclaim_all(&[&self.space]));
    }
}

/// Changed pages are not written to the storage, neither by a pass of writeback nor by reclaim,
/// which writes them to swap. They come back from there as often as they are needed, and clean
/// pages from the storage.
fn swapped<A: Silicon>(arch: A) {
    with_file(arch, true, |file| {
        file.store(5, 1);
        file.store(6, 2);
        let clean = file.read_word(30);
        assert_eq!(file.dirty(), (2, 0));
        file.write_back(&mut Writeback::complete(0..u64::MAX)).unwrap();
        assert_eq!((file.files.writes_under_way(), file.dirty()), (0, (2, 0)));
        let counters = file.on.machine.memcgs().counters(MemcgId::ROOT).unwrap();
        assert_eq!(counters.dirty, 0, "no writeback makes them clean");
        for round in 0..3 {
            file.reclaim_often();
            let counts = file.object.page_counts();
            assert_eq!((counts.resident, counts.dirty, file.on.count(Counter::FilePages)), (0, 0, 0), "{round}");
            assert!(counts.swapped >= 2, "{round}: {counts:?}");
            assert_eq!([5, 6, 30].map(|page| file.read_word(page)), [1, 2, clean], "{round}");
            assert!(file.dirty().0 >= 2, "{round}");
        }
        file.reclaim_often();
        assert_eq!(file.files.writes_under_way(), 0);
    });
}

/// Where there is no swap, reclaim drops the pages that the storage has, and no other.
fn stays<A: Silicon>(arch: A) {
    with_file(arch, false, |file| {
        file.store(5, 1);
        file.read_word(30);
        file.reclaim_often();
        assert!(file.object.has_page(5) && !file.object.has_page(30));
        assert_eq!(file.read_word(5), 1);
        let gone = file.object.set_size(0).unwrap();
        unmap_removed(&[&file.space][..], &file.object, &gone);
    });
}

/// Truncation takes changed pages out of memory and out of swap.
fn truncated<A: Silicon>(arch: A) {
    with_file(arch, true, |file| {
        (3..9).for_each(|page| file.store(page, 1));
        file.reclaim_often();
        file.store(8, 2);
        let gone = file.object.set_size(4 * file.on.page).unwrap();
        unmap_removed(&[&file.space][..], &file.object, &gone);
        assert_eq!(file.object.next_data(4), None);
        assert_eq!(file.read_word(3), 1);
    });
}
