//! The working set of files: which pages reclaim keeps, beside pages that are read once.

use core::ops::Range;

use vellum::memcg::LruList;
use vellum::page_cache::{Changes, Object, Readahead, drop_clean};
use vellum::space::{Advise, unmap_removed};
use vellum::stats::Counter;
use vellum::vma::Expected;
use vellum_sim::{Silicon, Strict};

use super::fixture::{File, with_shared_file};
use crate::fixtures::bench::{BASE, in_every_format};

in_every_format! {
    pages_that_are_read_twice_outlive_those_that_are_read_once => read,
    reading_on_in_a_folio_is_one_use => continued,
    pages_that_a_program_uses_again_become_active => mapped,
    use_by_reads_with_a_known_pattern_keeps_no_page => advised,
    active_pages_that_are_not_used_leave_in_the_end => aged,
    a_page_that_is_read_again_soon_after_reclaim_is_active => refault,
    a_page_that_is_read_again_late_or_was_not_reclaimed_is_not => late,
    pages_in_the_gap_of_a_folio_are_dropped_too => gap,
}

impl<'m, A: Silicon> File<'_, 'm, A> {
    /// Reads pages by calls, as an opener of its own, and ends the reads.
    fn read(&self, pages: Range<u64>) {
        self.read_as(&mut Readahead::new(0), pages);
    }

    fn read_as(&self, opener: &mut Readahead, pages: Range<u64>) {
        self.read_from(&self.object, opener, pages);
    }

    fn read_from(&self, object: &Object<'m, Strict<A>>, opener: &mut Readahead, pages: Range<u64>) {
        object.read_ahead(opener, pages, self.on.memcg).unwrap();
        while self.files.finish_any(self.on.machine).is_some() {}
    }

    /// Returns the numbers of pages that are not active, and that are.
    fn listed(&self) -> (u64, u64) {
        let lru = self.on.machine.memcgs().usage(self.on.machine.frames(), self.on.memcg).unwrap().lru;
        let pages = |list| lru[list as usize] / (self.on.page >> 12);
        (pages(LruList::File), pages(LruList::ActiveFile))
    }

    /// Reclaims a number of pages.
    fn shrink(&self, pages: u64) {
        self.on.reclaim(&[&self.space], self.on.memcg, pages * (self.on.page >> 12));
    }

    /// Reads a number of times 32 pages of another file, once, and reclaims as many.
    fn stream(&self, times: u64) {
        let size = 32 * times * self.on.page;
        let stream =
            Object::with_store(self.on.machine, &self.on.arch, self.on.memcg, 1, size, Changes::ToStore).unwrap();
        for time in 0..times {
            self.read_from(&stream, &mut Readahead::new(0), 32 * time..32 * (time + 1));
            self.shrink(32);
        }
    }

    fn in_memory(&self, pages: Range<u64>) -> u64 {
        pages.filter(|page| self.object.has_page(*page)).count() as u64
    }
}

/// Pages that were read twice are active. Reclaim takes all that were read once before it takes one
/// of them.
fn read<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        file.read(0..16);
        assert_eq!(file.listed(), (16, 0), "read once");
        file.read(0..16);
        assert_eq!(file.listed(), (0, 16));
        file.read(16..40);
        file.stream(8);
        assert_eq!((file.in_memory(0..16), file.in_memory(16..40)), (16, 0));
    });
}

/// An opener that reads a folio piece by piece uses it once, and so does one that reads the same
/// page again and again. Another opener's reads are another use.
fn continued<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let mut opener = Readahead::new(0);
        file.read(0..16);
        let (first, second) = file.listed();
        assert_eq!((first, second), (16, 0));
        let folio = file.object.pages(0..16).unwrap().unwrap().len() as u64 / file.on.page;
        file.read_as(&mut opener, folio / 2..folio / 2 + 1);
        assert_eq!(file.listed(), (16 - folio, folio), "a second use, in the middle");
        let mut opener = Readahead::new(0);
        drop_clean(&file.object, 0..40);
        // A fault of a program brings the folio, and is no use by calls.
        file.read_word(0);
        (0..16).for_each(|page| file.read_as(&mut opener, page..page + 1));
        (0..3).for_each(|_| file.read_as(&mut opener, 15..16));
        assert_eq!(file.listed().1, 0, "one use");
    });
}

/// A page that a program has used when reclaim scans it, and again when reclaim scans it once more,
/// is active. One that it used once is dropped.
fn mapped<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        [0, 16].iter().for_each(|page| _ = file.read_word(*page));
        for _ in 0..8 {
            file.read_word(0);
            file.stream(1);
        }
        assert!(file.object.has_page(0) && !file.object.has_page(16));
        assert!(file.listed().1 > 0, "{:?}", file.listed());
    });
}

/// Reclaim keeps a page that a program has used since the last scan, unless the program told to
/// expect a stream of reads or random ones there: that a page was read then says nothing.
fn advised<A: Silicon>(arch: A) {
    for reads in [Expected::Unknown, Expected::Sequential, Expected::Random] {
        with_shared_file(arch, |file| {
            file.space.advise(BASE, 40 * file.on.page, Advise::Reads(reads)).unwrap();
            file.read_word(0);
            file.stream(1);
            assert_eq!(file.object.has_page(0), reads == Expected::Unknown, "{reads:?}");
        });
    }
}

/// While more than three quarters of the pages are active, reclaim makes those of them inactive
/// that are not used, and drops them when their turn comes.
fn aged<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        file.on.machine.policy().set_file_orders(1 << 4);
        (0..2).for_each(|_| file.read(0..32));
        assert_eq!(file.listed(), (0, 32));
        // The second half goes on being used.
        file.read(16..32);
        file.shrink(16);
        assert_eq!((file.in_memory(0..16), file.in_memory(16..32)), (0, 16));
    });
}

/// A page that is read again before as many pages were dropped as its memcg has belongs to a
/// working set: it is active at once, with those beside it.
fn refault<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        file.read(0..16);
        file.shrink(16);
        assert_eq!((file.in_memory(0..16), file.on.count(Counter::FileRefaults)), (0, 0));
        file.read(16..40);
        file.read(0..16);
        assert_eq!(file.listed(), (24, 16));
        assert_eq!(file.on.count(Counter::FileRefaults) << 12, 16 * file.on.page);
        file.shrink(24);
        assert_eq!((file.in_memory(0..16), file.in_memory(16..40)), (16, 0));
    });
}

/// A page that is read again after more pages were dropped than its memcg has is like any other. So
/// is one that was dropped because a program said that it does not need it.
fn late<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        file.read(0..16);
        file.shrink(16);
        // Reclaim could have kept the page instead of anything else that is charged to the memcg.
        let charged = file.on.machine.memcgs().counters(file.on.memcg).unwrap().charged / (file.on.page >> 12);
        file.stream(charged / 32 + 2);
        let before = file.on.count(Counter::FileRefaults);
        file.read(0..16);
        assert_eq!(file.on.count(Counter::FileRefaults), before);
        drop_clean(&file.object, 0..16);
        assert_eq!(file.in_memory(0..16), 0);
        file.read(0..16);
        assert_eq!(file.on.count(Counter::FileRefaults), before);
    });
}

/// A folio in whose middle a hole was punched does not hide the pages that were read there since.
fn gap<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        file.read(0..16);
        let hole = file.object.punch_hole(4 * file.on.page..12 * file.on.page).unwrap();
        unmap_removed(&[&file.space][..], &file.object, &hole);
        file.read(0..16);
        assert_eq!(file.in_memory(0..16), 16);
        drop_clean(&file.object, 0..16);
        assert_eq!(file.in_memory(0..16), 0);
    });
}
