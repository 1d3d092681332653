//! Whole pages that the host writes without reading them first.

use std::sync::atomic::Ordering::Relaxed;

use vellum::page_cache::{ObjectError, Overwrite, Writeback};
use vellum::space::{FaultError, invalidate, write_back};
use vellum_sim::{Fault, Silicon, Strict};

use super::fixture::{File, PAGES, TAG, with_shared_file};
use crate::fixtures::bench::{BASE, in_every_format};

in_every_format! {
    an_overwritten_page_is_not_read_and_is_written => overwritten,
    no_access_finds_a_page_that_is_half_filled => unfilled,
    pages_that_exist_are_not_overwritten => present,
    an_overwrite_beyond_the_end_extends_the_file => extends,
    pages_come_in_the_largest_folios => folios,
    pages_that_the_host_has_stored_are_read_anew => left,
    clean_pages_are_invalidated => invalidated,
}

impl<'m, A: Silicon> File<'_, 'm, A> {
    fn begin(&self, pages: core::ops::Range<u64>) -> Option<Overwrite<'m, Strict<A>>> {
        Overwrite::begin(&self.object, pages, self.on.memcg).unwrap()
    }

    fn first_word(&self, page: u64) -> Result<u64, Fault<FaultError>> {
        self.on.cpu.enter(&self.space).load_u64(BASE + page * self.on.page)
    }

    pub(super) fn invalidate(&self, pages: core::ops::Range<u64>) {
        invalidate(&[&self.space][..], &self.object, pages);
    }

    /// Writes all dirty pages. Returns their number.
    pub(super) fn write(&self) -> u64 {
        write_back(&[&self.space][..], &self.object, &mut Writeback::start(0..u64::MAX)).unwrap();
        core::iter::from_fn(|| self.files.finish_any_write(self.on.machine)).map(|write| write.done).sum()
    }
}

/// Fills the folios with this byte.
fn fill<A: Silicon>(over: &Overwrite<'_, Strict<A>>, byte: u8) {
    over.folios().flatten().for_each(|to| to.store(byte, Relaxed));
}

/// A page that the host fills whole is never read from the storage. It is dirty from then on, and
/// what the host wrote is what programs and the storage get.
fn overwritten<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let over = file.begin(3..5).expect("the pages are missing");
        assert_eq!(over.pages(), 3..5);
        fill(&over, 7);
        over.finish(2, 0);
        let word = u64::from_ne_bytes([7; 8]);
        assert_eq!((file.first_word(3), file.first_word(4)), (Ok(word), Ok(word)));
        assert_eq!((file.object.page_counts().dirty, file.files.reads().0), (2, 0));
        assert_eq!(file.write(), 2);
        assert_eq!([3, 4].map(|page| file.files.word(TAG, page * file.on.page)), [word; 2]);
    });
}

/// While the host fills pages, and after it gave up, no program sees them: an access waits, and
/// reads the page from the storage in the end.
fn unfilled<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let over = file.begin(3..5).expect("the pages are missing");
        fill(&over, 7);
        let waits = Err(Fault::Handler(FaultError::Pending(file.pending(4))));
        assert_eq!(file.first_word(4), waits);
        assert!(over.has(file.pending(4)) && !over.has(file.pending(5)));
        assert_eq!(file.object.page(3).err(), Some(ObjectError::Pending(file.pending(3))));
        over.finish(1, 0);
        assert_eq!(file.first_word(3), Ok(u64::from_ne_bytes([7; 8])));
        assert_eq!(file.first_word(4), waits, "the second page is read");
        file.files.finish_with(file.on.machine, file.pending(4)).expect("it is being read");
        assert_eq!(file.first_word(4), Ok(file.files.word(TAG, 4 * file.on.page)));
        drop(file.begin(30..31).expect("the page is missing"));
        assert!(!file.object.has_page(30));
        assert_eq!(file.write(), 1);
    });
}

/// A page in memory, or one that is being read, is not overwritten, and ends what is begun before
/// it.
fn present<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        assert!(file.first_word(20).is_err());
        assert!(file.begin(20..22).is_none(), "the page is being read");
        while file.files.finish_any(file.on.machine).is_some() {}
        assert!(file.begin(20..22).is_none(), "the page is in memory");
        let before = file.begin(0..20).expect("pages are missing").pages();
        assert!(before.start == 0 && before.end <= 16, "{before:?}: the block of page 20 was read");
        assert!(file.begin(5..5).is_none());
        let last = vellum::page_cache::MAX_SIZE / file.on.page;
        assert_eq!(Overwrite::begin(&file.object, last..last + 2, file.on.memcg).err(), Some(ObjectError::TooLarge));
    });
}

/// Pages beyond the end make the file larger when they are finished, and not before.
fn extends<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let (size, new) = (file.object.size(), (PAGES + 4) * file.on.page + 9);
        let over = file.begin(PAGES + 2..PAGES + 5).expect("the pages are missing");
        fill(&over, 3);
        assert_eq!(file.object.size(), size);
        over.finish(3, new);
        assert_eq!((file.object.size(), file.first_word(PAGES + 4)), (new, Ok(u64::from_ne_bytes([3; 8]))));
        file.write();
        let stored = |at: u64| file.files.word(TAG, (PAGES + 4) * file.on.page + at).to_ne_bytes();
        assert_eq!((stored(0), stored(8)[0]), ([3; 8], 3));
        assert_ne!(stored(16), [3; 8], "nothing beyond the end is written");
    });
}

/// Pages whose bytes the host has written past the page cache stay missing, and the file is larger
/// before they can be read.
fn left<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let (size, new) = (file.object.size(), (PAGES + 4) * file.on.page + 9);
        file.begin(PAGES + 2..PAGES + 5).expect("the pages are missing").leave(new);
        assert_eq!((file.object.size(), file.object.resident()), (new, 0));
        let last = PAGES + 4;
        assert_eq!(file.read_word(last), file.files.word(TAG, last * file.on.page));
        file.begin(1..2).expect("the page is missing").leave(size);
        assert_eq!(file.object.size(), new, "the file does not get smaller");
        assert_eq!(file.object.page_counts().dirty, 0);
    });
}

/// Clean pages go, mapped ones too, and are read anew. Those before and behind them stay, and so do
/// a dirty page, and one that the host uses.
fn invalidated<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        for page in 0..PAGES {
            file.read_word(page);
        }
        file.on.store(&file.space, BASE + 20 * file.on.page, 5);
        let has = |page| file.object.has_page(page);
        let used = file.object.page(35).unwrap().expect("it is in memory");
        file.invalidate(3..36);
        assert_eq!([2, 3, 15, 20, 35, 36].map(has), [true, false, false, true, true, true]);
        assert!(matches!(file.first_word(3), Err(Fault::Handler(FaultError::Pending(_)))), "it is mapped no more");
        assert_eq!((file.read_word(3), file.read_word(20)), (file.files.word(TAG, 3 * file.on.page), 5));
        assert_eq!(file.write(), 1);
        drop(used);
        file.invalidate(20..21);
        assert_eq!((has(20), file.read_word(20)), (false, 5));
        file.invalidate(0..u64::MAX);
        assert_eq!(file.object.resident(), 0);
    });
}

/// Pages in an aligned block of the largest folio that policy permits come as one folio, and can be
/// referenced together.
fn folios<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        file.on.machine.policy().set_file_orders(1 << 4);
        let (page, block) = (file.on.page, (64 << 10) / file.on.page);
        let over = file.begin(0..2 * block).expect("the pages are missing");
        assert_eq!(over.folios().map(|folio| folio.len() as u64).max(), Some(block * page));
        fill(&over, 1);
        let pages = over.pages();
        over.finish(pages.end, 0);
        let len = |from: u64, to: u64| file.object.pages(from..to).unwrap().map_or(0, |pages| pages.len() as u64);
        let middle = block / 2;
        assert_eq!((len(0, 1), len(middle, middle + 1)), (page, page));
        assert_eq!((len(0, block), len(middle, block)), (block * page, (block - middle) * page));
        assert_eq!(len(middle, 2 * block), (block - middle) * page, "no reference is to two folios");
        file.write();
    });
}
