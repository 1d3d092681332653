//! Files whose pages programs and the host change: dirty pages, their way to the storage, and
//! writes that fail (INV-22).

use vellum::page_cache::{ObjectError, PageCounts, WriteErrors, Writeback, take_mapped_write};
use vellum::space::{FaultError, MapFlags, MapRequest, unmap_removed, write_back};
use vellum::stats::Counter;
use vellum::vma::Prot;
use vellum_sim::{Fault, Refusal, Silicon};

use super::fixture::{File, PAGES, RW, TAG, map, with_shared_file};
use crate::fixtures::bench::{BASE, Space, in_every_format};

in_every_format! {
    the_first_write_to_a_page_marks_it_and_the_next_does_not_fault => marks,
    a_write_through_a_mapping_is_told_once => told,
    a_stream_of_writes_takes_few_faults => stream,
    a_page_is_written_once_and_again_after_the_next_write => again,
    a_pass_that_completes_waits_for_all_writes => completes,
    each_space_faults_after_its_page_was_written => shared,
    what_the_host_marks_is_written => host,
    nothing_beyond_the_end_is_written => end,
    growth_writes_zeros_where_the_storage_has_other_bytes => grown,
    an_error_of_a_write_is_reported_once_to_each_opener => errors,
    reclaim_writes_dirty_pages_and_drops_them_later => reclaimed,
    truncation_waits_for_writes => truncated,
    truncation_forgets_dirty_pages => forgotten,
    a_write_to_a_page_that_was_removed_ends => removed,
    a_file_that_is_only_read_has_no_dirty_pages => clean,
    protection_does_not_make_a_clean_page_writable => protected,
    a_write_outlives_the_last_handle => outlives,
}

impl<'m, A: Silicon> File<'_, 'm, A> {
    /// Stores a word in a page as a program of a space, after the page was read if necessary.
    fn store_in(&self, space: &Space<'m, A>, page: u64, word: u64) {
        let at = BASE + page * self.on.page;
        loop {
            match self.on.cpu.enter(space).store_u64(at, word) {
                Ok(()) => return,
                Err(Fault::Handler(FaultError::Pending(page))) => {
                    self.files.finish_with(self.on.machine, page).expect("the page is being read");
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    /// Loads the first word of a page as a program of the space, after it was read if necessary.
    pub(super) fn read_word(&self, page: u64) -> u64 {
        loop {
            match self.on.cpu.enter(&self.space).load_u64(BASE + page * self.on.page) {
                Ok(word) => return word,
                Err(Fault::Handler(FaultError::Pending(page))) => {
                    self.files.finish_with(self.on.machine, page).expect("the page is being read");
                }
                Err(error) => panic!("{error:?}"),
            }
        }
    }

    pub(super) fn store(&self, page: u64, word: u64) {
        self.store_in(&self.space, page, word);
    }

    /// Starts the writes of all dirty pages.
    fn start(&self) {
        self.write_back(&mut Writeback::start(0..u64::MAX)).unwrap();
    }

    pub(super) fn write_back(&self, pass: &mut Writeback) -> Result<(), ObjectError> {
        write_back(&[&self.space][..], &self.object, pass)
    }

    /// Ends all writes under way. Returns the numbers of pages and of requests.
    fn finish_writes(&self) -> (u64, usize) {
        let mut ended = (0, 0);
        while let Some(write) = self.files.finish_any_write(self.on.machine) {
            ended = (ended.0 + write.done, ended.1 + 1);
        }
        ended
    }

    /// Returns the first word of a page in the storage.
    fn stored(&self, page: u64) -> u64 {
        self.files.word(TAG, page * self.on.page)
    }

    /// Returns the numbers of dirty pages, and of pages that are being written.
    pub(super) fn dirty(&self) -> (u64, u64) {
        let counts = self.object.page_counts();
        (counts.dirty, counts.writing)
    }

    fn faults(&self) -> u64 {
        self.on.count(Counter::Faults)
    }
}

/// The first write to a page marks it as dirty, and no page beside it. Further writes to it do not
/// fault, and the page is counted once.
fn marks<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        file.store(5, 1);
        assert_eq!(file.dirty(), (1, 0));
        let faults = file.faults();
        file.store(5, 2);
        assert_eq!((file.faults(), file.dirty()), (faults, (1, 0)));
        file.store(6, 3);
        file.store(20, 4);
        assert_eq!(file.dirty(), (3, 0));
        let in_range = |pages| {
            let counts = PageCounts::of(&file.object, pages);
            (counts.resident, counts.dirty, counts.writing)
        };
        assert_eq!([in_range(5..7), in_range(6..20), in_range(7..10)], [(2, 2, 0), (14, 1, 0), (3, 0, 0)]);
        file.start();
        assert_eq!(file.dirty(), (0, 3));
        assert_eq!((in_range(0..u64::MAX).2, in_range(6..u64::MAX).2, in_range(20..20)), (3, 2, (0, 0, 0)));
        assert_eq!(file.finish_writes(), (3, 2), "pages 5 and 6 are one request");
        assert_eq!([5, 6, 20].map(|page| file.stored(page)), [2, 3, 4]);
    });
}

/// The host learns once that a fault let a program write to a page, and again when it has to fault
/// after writeback.
fn told<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let told = || take_mapped_write(&file.object).is_some();
        file.read_word(5);
        assert!(!told(), "it was read");
        file.store(5, 1);
        assert_eq!([told(), told()], [true, false]);
        file.store(5, 2);
        assert!(!told(), "no fault");
        file.start();
        file.finish_writes();
        file.store(5, 3);
        assert!(told());
    });
}

/// A stream of writes through a mapping makes as many pages writable at each fault as it has
/// written to before, so that no more than twice as many are dirty. Writes that are no stream, and
/// pages behind the end of the file, are not made writable.
fn stream<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        (0..PAGES).for_each(|page| assert_eq!(file.read_word(page), file.stored(page)));
        let faults = file.faults();
        for page in 0..16 {
            file.store(page, page);
            assert!(file.dirty().0 <= 2 * (page + 1), "{} dirty after page {page}", file.dirty().0);
        }
        assert!(file.faults() - faults <= 6, "{} faults", file.faults() - faults);
        file.start();
        file.finish_writes();
        let faults = file.faults();
        [39, 21, 30, 25].into_iter().for_each(|page| file.store(page, 1));
        assert_eq!((file.dirty().0, file.faults() - faults), (4, 4));
        (36..41).for_each(|page| file.store(page, 1));
        assert!(file.dirty().0 <= 9, "nothing behind the end");
        file.start();
        file.finish_writes();
    });
}

/// A page that was written is clean, and stays so until a program writes to it again, also while
/// the write is under way. Then it is written once more.
fn again<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        file.store(5, 1);
        file.start();
        file.store(5, 2);
        assert_eq!(file.dirty(), (1, 1));
        file.start();
        assert_eq!((file.files.writes_under_way(), file.dirty()), (1, (1, 1)), "one write at a time");
        [6, 4].into_iter().for_each(|page| file.store(page, 9));
        file.start();
        assert_eq!((file.files.writes_under_way(), file.dirty()), (3, (1, 3)), "also beside others");
        file.finish_writes();
        file.start();
        file.finish_writes();
        assert_eq!((file.stored(5), file.dirty()), (2, (0, 0)));
        file.start();
        assert_eq!(file.files.writes_under_way(), 0);
        file.store(5, 3);
        file.start();
        file.finish_writes();
        assert_eq!(file.stored(5), 3);
    });
}

/// A pass that completes returns when all that was dirty as it began is in the storage, even if an
/// earlier write of the same page is under way.
fn completes<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        file.store(5, 1);
        file.start();
        file.store(5, 2);
        file.store(30, 3);
        let mut pass = Writeback::complete(0..u64::MAX);
        let mut waits = 0;
        while let Err(error) = file.write_back(&mut pass) {
            let ObjectError::Pending(page) = error else { panic!("{error}") };
            assert!(file.files.finish_write_with(file.on.machine, page).is_some(), "it waits for a write");
            waits += 1;
        }
        assert_eq!(([file.stored(5), file.stored(30)], waits), ([2, 3], 3));
        assert_eq!(file.dirty(), (0, 0));
        let mut part = Writeback::complete(0..5);
        file.store(5, 4);
        assert_eq!(file.write_back(&mut part), Ok(()), "no page of the range is dirty");
        assert_eq!(file.dirty(), (1, 0));
    });
}

/// Writeback takes the right to write from every space that maps the page.
fn shared<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let other = file.on.space();
        map(file.on, &other, &file.object, MapFlags::SHARED);
        let child = file.space.fork().unwrap();
        file.store(5, 1);
        file.store_in(&other, 5, 2);
        file.store_in(&child, 5, 3);
        let mut pass = Writeback::start(0..u64::MAX);
        write_back(&[&file.space, &other, &child][..], &file.object, &mut pass).unwrap();
        file.finish_writes();
        for (space, word) in [(&file.space, 4), (&other, 5), (&child, 6)] {
            assert_eq!(file.dirty(), (0, 0));
            file.store_in(space, 5, word);
            assert_eq!(file.dirty(), (1, 0));
            write_back(&[&file.space, &other, &child][..], &file.object, &mut Writeback::start(0..8)).unwrap();
            file.finish_writes();
            assert_eq!(file.stored(5), word);
        }
    });
}

/// Writeback takes to the storage the pages that the host has written to and marked.
fn host<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        assert!(file.object.page(3).is_err());
        file.files.finish_with(file.on.machine, file.pending(3)).unwrap();
        let page = file.object.page(3).unwrap().unwrap();
        page.write(0, &77u64.to_ne_bytes());
        file.object.mark_dirty(3..4);
        drop(page);
        file.object.mark_dirty(30..31);
        assert_eq!(file.dirty(), (1, 0), "a page that is not in memory is not dirty");
        file.start();
        file.finish_writes();
        assert_eq!(file.stored(3), 77);
    });
}

/// Writeback leaves out bytes that a program wrote behind the end of the file, in its last page.
/// They read as zeros once the file is longer.
fn end<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        file.store(PAGES, 1);
        let at = BASE + PAGES * file.on.page;
        for word in [88, 96, 104] {
            file.on.cpu.enter(&file.space).store_u64(at + word, !0).unwrap();
        }
        let old = |word| TAG.rotate_left(32) ^ (PAGES * file.on.page + word);
        file.start();
        file.finish_writes();
        let stored = |word| file.files.word(TAG, PAGES * file.on.page + word);
        assert_eq!((stored(0), stored(88)), (1, !0));
        assert_eq!(stored(96), old(96) & !0xffff_ffff | 0xffff_ffff, "four bytes lie before the end");
        assert_eq!(stored(104), old(104));
        assert!(file.object.set_size((PAGES + 1) * file.on.page).is_ok_and(|gone| gone.is_empty()));
        assert_eq!(file.on.cpu.enter(&file.space).load_u64(at + 104), Ok(0));
        assert_eq!(file.on.cpu.enter(&file.space).load_u64(at + 88), Ok(!0));
    });
}

/// Growth writes zeros behind the old end in its page, whatever the storage has there: it is read
/// first if it is not in memory, and growth changes nothing before that. The size that a file has
/// already changes nothing.
fn grown<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let (old, new) = (PAGES * file.on.page + 100, (PAGES + 3) * file.on.page);
        let word = |at| file.files.word(TAG, PAGES * file.on.page + at);
        assert!(word(104) != 0 && word(400) != 0);
        assert_eq!(file.object.set_size(new), Err(ObjectError::Pending(file.pending(PAGES))));
        assert_eq!(file.object.size(), old);
        file.files.finish_with(file.on.machine, file.pending(PAGES)).unwrap();
        assert!(file.object.set_size(new).is_ok_and(|gone| gone.is_empty()));
        assert_eq!(file.dirty(), (1, 0));
        assert!(file.object.set_size(new).is_ok());
        assert_eq!(file.dirty(), (1, 0), "the same size again");
        file.start();
        file.finish_writes();
        assert_eq!((word(104), word(400)), (0, 0));
        assert_ne!(word(88), 0, "before the end");
        let cut = file.object.set_size(4 * file.on.page).unwrap();
        unmap_removed(&[&file.space][..], &file.object, &cut);
        assert!(file.object.set_size(new).is_ok_and(|gone| gone.is_empty()));
        assert_eq!(file.dirty(), (0, 0), "no page has the end in its middle");
    });
}

/// A write that fails is reported once to each opener that was there, and, if none of them has
/// asked, to the next one.
fn errors<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let object = &file.object;
        let [mut one, mut two] = [WriteErrors::of(object); 2];
        let check = |opener: &mut WriteErrors| opener.check(object);
        assert_eq!(check(&mut one), Ok(()));
        file.files.refuse_writes(Refusal::Nth(2));
        (5..8).for_each(|page| file.store(page, 1));
        file.start();
        assert_eq!(file.finish_writes().0, 1);
        assert_eq!(file.dirty(), (0, 0), "pages that could not be written are clean");
        assert_eq!((file.stored(5), file.stored(6) == 1), (1, false));
        let mut late = WriteErrors::of(object);
        assert_eq!(check(&mut late), Err(ObjectError::NotWritten), "no opener has seen it");
        let mut later = WriteErrors::of(object);
        for (opener, expected) in [(&mut one, true), (&mut two, true), (&mut late, false), (&mut later, false)] {
            assert_eq!(check(opener).is_err(), expected);
            assert_eq!(check(opener), Ok(()), "once");
        }
    });
}

/// Reclaim does not drop a dirty page. It has the host write the page, and drops it after that. The
/// page is read again with what was written.
fn reclaimed<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        file.store(5, 1);
        let reclaim = || file.on.reclaim_all(&[&file.space]);
        for _ in 0..4 {
            assert!(file.object.has_page(5));
            reclaim();
        }
        assert_eq!(file.files.writes_under_way(), 1, "reclaim unmaps the page, and has it written");
        assert_eq!((file.object.has_page(5), file.dirty()), (true, (0, 1)));
        reclaim();
        assert!(file.object.has_page(5), "a page that is being written stays");
        file.finish_writes();
        reclaim();
        reclaim();
        assert_eq!(file.object.resident(), 0);
        assert_eq!(file.stored(5), 1);
        file.store(6, 2);
        assert_eq!(file.on.cpu.enter(&file.space).load_u64(BASE + 5 * file.on.page), Ok(1));
        file.start();
        file.finish_writes();
    });
}

/// A page that is being written is not cut off before the write has ended.
fn truncated<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        (3..9).for_each(|page| file.store(page, 1));
        file.write_back(&mut Writeback::start(5..7)).unwrap();
        let cut = file.object.set_size(2 * file.on.page + 8);
        assert_eq!(cut, Err(ObjectError::Pending(file.pending(5))));
        assert_eq!(file.object.size(), 2 * file.on.page + 8);
        file.finish_writes();
        let cut = file.object.set_size(2 * file.on.page + 8).unwrap();
        unmap_removed(&[&file.space][..], &file.object, &cut);
        assert_eq!((file.object.next_data(3), file.dirty()), (None, (1, 0)), "the cut page is dirty");
        file.start();
        file.finish_writes();
        let hole = file.object.punch_hole(0..file.on.page).unwrap();
        unmap_removed(&[&file.space][..], &file.object, &hole);
    });
}

/// A dirty page that is cut off is not dirty any more, and not written.
fn forgotten<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        (3..9).for_each(|page| file.store(page, 1));
        let cut = file.object.set_size(4 * file.on.page).unwrap();
        unmap_removed(&[&file.space][..], &file.object, &cut);
        assert_eq!(file.dirty(), (1, 0));
        file.start();
        assert_eq!(file.finish_writes(), (1, 1));
    });
}

/// A write to a clean page that was removed from the file, and that the space still maps, finds
/// that the page is gone, and does not wait until the space has unmapped it.
fn removed<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let store = |page: u64| file.on.cpu.enter(&file.space).store_u64(BASE + page * file.on.page, 1);
        assert!(store(4).is_err());
        file.files.finish_with(file.on.machine, file.pending(4)).unwrap();
        for page in [4, 9] {
            file.on.cpu.enter(&file.space).load_u64(BASE + page * file.on.page).unwrap();
        }
        let hole = file.object.punch_hole(4 * file.on.page..5 * file.on.page).unwrap();
        assert_eq!(store(4), Err(Fault::Handler(FaultError::Pending(file.pending(4)))));
        let cut = file.object.set_size(8 * file.on.page).unwrap();
        let beyond = BASE + 9 * file.on.page;
        assert_eq!(store(9), Err(Fault::Handler(FaultError::BeyondEnd(beyond))));
        assert_eq!(file.dirty(), (0, 0));
        for gone in [hole, cut] {
            unmap_removed(&[&file.space][..], &file.object, &gone);
        }
        file.files.finish_with(file.on.machine, file.pending(4)).unwrap();
        assert_eq!(store(4), Ok(()));
        assert_eq!(file.dirty(), (1, 0));
    });
}

/// Reads and private writes make no page of a file dirty.
fn clean<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let private = file.on.space();
        let request = MapRequest { addr: BASE, len: file.on.page, prot: RW, flags: MapFlags::FIXED };
        private.map_object(request, &file.object, 0).unwrap();
        file.store_in(&private, 0, 1);
        assert!(file.on.cpu.enter(&file.space).load_u64(BASE).is_ok());
        assert_eq!(file.dirty(), (0, 0));
    });
}

/// `mprotect` to read-only and back does not let a write to a clean page pass unmarked.
fn protected<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let length = PAGES * file.on.page;
        for page in [4, 5] {
            assert!(file.on.cpu.enter(&file.space).load_u64(BASE + page * file.on.page).is_err() == (page == 4));
            file.files.finish_with(file.on.machine, file.pending(page));
        }
        file.store(4, 1);
        file.space.protect(BASE, length, Prot::READ).unwrap();
        file.space.protect(BASE, length, RW).unwrap();
        file.store(5, 1);
        assert_eq!(file.dirty(), (2, 0));
        file.start();
        file.space.protect(BASE, length, Prot::READ).unwrap();
        file.space.protect(BASE, length, RW).unwrap();
        file.finish_writes();
        file.store(4, 2);
        assert_eq!(file.dirty(), (1, 0));
    });
}

/// An object whose last handle is dropped while its pages are being written lives until the write
/// ends.
fn outlives<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        file.store(5, 1);
        file.start();
        let File { on, files, object, space } = file;
        drop(object);
        drop(space);
        assert_eq!(files.finish_any_write(on.machine).map(|done| done.done), Some(1));
        assert_eq!(files.word(TAG, 5 * on.page), 1);
    });
}
