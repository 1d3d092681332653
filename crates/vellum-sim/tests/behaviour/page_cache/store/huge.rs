//! Files that are read in huge folios, where a VMA has advice for them, or whose pages collapse
//! into such, and that are written to through huge PTEs (INV-22, INV-23).

use std::ops::Range;

use vellum::frame::HUGE_ORDER;
use vellum::frame::policy::Knob;
use vellum::page_cache::{Changes, Object, ObjectError, Writeback, drop_clean};
use vellum::space::{Advise, CollapseLimits, FaultError, MapFlags, MapRequest, collapse_object, write_back};
use vellum::stats::Counter;
use vellum::vma::Prot;
use vellum_sim::{Fault, Hostility, Refusal, Silicon, Simulated, Strict};

use super::fixture::{File, RW, TAG};
use crate::fixtures::bench::{BASE, HUGE, Setup, USUAL, in_every_format, range};

in_every_format! {
    advice_reads_a_huge_folio => read,
    a_write_through_a_huge_pte_marks_one_page => written,
    without_memory_for_a_huge_folio_less_is_read => refused,
    clean_pages_collapse => collapsed,
    pages_that_differ_from_the_storage_do_not_collapse => kept,
    a_collapse_of_pages_that_cant_be_read_changes_nothing => unread,
    text_collapses_in_time => scanned,
}

/// Runs a test with a file of two huge folios and a few bytes, all of which a space maps, with
/// advice for huge folios in all but the second.
fn with_long_file<A: Silicon>(arch: A, flags: MapFlags, test: impl FnOnce(&File<'_, '_, A>)) {
    let setup = Setup { hostility: Hostility::NONE, ..USUAL };
    crate::fixtures::bench::on(arch, setup, |on| {
        let object = Object::with_store(on.machine, &on.arch, on.memcg, TAG, 2 * HUGE + 100, Changes::ToStore).unwrap();
        let space = on.space();
        let request = MapRequest { addr: BASE, len: 3 * HUGE, prot: RW, flags: MapFlags::FIXED | flags };
        space.map_object(request, &object, 0).unwrap();
        [0, 2].iter().for_each(|nth| space.advise(BASE + nth * HUGE, HUGE, Advise::Huge).unwrap());
        let file = File { on, files: on.sim.hardware().files(), object, space };
        test(&file);
        assert_eq!((file.files.under_way(), file.files.writes_under_way()), (0, 0));
    });
}

impl<A: Silicon> File<'_, '_, A> {
    /// Loads the first word of a page as a program, and checks it.
    fn loads(&self, page: u64) -> Result<(), Fault<FaultError>> {
        let found = self.on.cpu.enter(&self.space).load_u64(BASE + page * self.on.page)?;
        assert_eq!(found, self.files.word(TAG, page * self.on.page), "page {page}");
        Ok(())
    }

    /// Has a page read by a program's access. Returns the number of pages that were read with it,
    /// and of their folios.
    fn read_with(&self, page: u64) -> (u64, usize) {
        assert_eq!(self.loads(page), Err(Fault::Handler(FaultError::Pending(self.pending(page)))));
        let done = self.files.finish_any(self.on.machine).expect("a request");
        assert_eq!(self.loads(page), Ok(()));
        (done.done, done.folios)
    }

    /// Collapses the pages around one, once those that are missing have been read.
    fn collapse(&self, page: u64) -> Result<bool, ObjectError> {
        loop {
            let got = collapse_object(&[&self.space][..], &self.object, page, self.on.memcg);
            let Err(ObjectError::Pending(_)) = got else { return got };
            self.files.finish_any(self.on.machine).expect("a request");
        }
    }

    /// Has missing ones of these pages read, without advice.
    fn read_singly(&self, pages: Range<u64>) {
        for page in pages {
            if matches!(self.object.page(page), Err(ObjectError::Pending(_))) {
                self.files.finish_any(self.on.machine).expect("a request");
            }
        }
    }

    /// Has all dirty pages written.
    fn sync(&self) {
        let mut pass = Writeback::complete(0..u64::MAX);
        while write_back(&[&self.space][..], &self.object, &mut pass).is_err() {
            self.files.finish_any_write(self.on.machine).expect("a write");
        }
    }

    /// Returns whether a page is in a huge folio.
    fn is_huge(&self, page: u64) -> bool {
        let held = self.object.page(page).unwrap().expect("a page in memory");
        self.on.machine.frames().head(held.pfn()).1.order() == HUGE_ORDER
    }

    /// Returns the huge folios that huge PTEs map, if the format's huge PTE has their size.
    fn huge_ptes(&self) -> u64 {
        let usage = self.space.usage(range(BASE, 2 * HUGE));
        assert_eq!((usage.huge, usage.huge_shmem), (usage.huge_file, 0));
        usage.huge / HUGE
    }

    /// Returns `count` if the format's huge PTE has the size of a huge folio, and 0 otherwise.
    fn if_huge(&self, count: u64) -> u64 {
        if self.on.arch.level_shift(2) == HUGE.ilog2() { count } else { 0 }
    }
}

fn read<A: Silicon>(arch: A) {
    with_long_file(arch, MapFlags::empty(), |file| {
        let pages = HUGE / file.on.page;
        let read = [pages / 2, pages + 20, 2 * pages].map(|page| file.read_with(page));
        assert_eq!((read[0], read[1].0, read[2]), ((pages, 1), 16, (1, 1)));
        assert_eq!(file.huge_ptes(), file.if_huge(1));
        assert_eq!(file.on.count(Counter::FileHugePages) << 12, HUGE);
        (0..pages).for_each(|page| assert_eq!(file.loads(page), Ok(())));
        // A private copy is one page.
        file.on.store(&file.space, BASE, 5);
        assert_eq!((file.huge_ptes(), file.space.stats().anon), (0, file.on.page));
        (1..pages).for_each(|page| assert_eq!(file.loads(page), Ok(())));
    });
}

fn written<A: Silicon>(arch: A) {
    with_long_file(arch, MapFlags::SHARED, |file| {
        assert_eq!(file.read_with(0).1, 1);
        assert_eq!(file.huge_ptes(), file.if_huge(1));
        file.on.store(&file.space, BASE + 3 * file.on.page, 7);
        assert_eq!((file.huge_ptes(), file.object.page_counts().dirty), (0, 1));
        file.sync();
        assert_eq!(file.files.word(TAG, 3 * file.on.page), 7);
        // Dropped whole, and read whole again.
        file.space.advise(BASE, HUGE, Advise::DontNeed).unwrap();
        drop_clean(&file.object, 0..u64::MAX);
        assert_eq!(file.object.resident(), 0);
        assert_eq!(file.read_with(3).1, 1);
        assert_eq!(file.huge_ptes(), file.if_huge(1));
    });
}

fn refused<A: Silicon>(arch: A) {
    with_long_file(arch, MapFlags::SHARED, |file| {
        // No huge folio is within the limit.
        file.on.machine.memcgs().set_limit(file.on.memcg, (HUGE >> 12) / 2).unwrap();
        let last = HUGE / file.on.page - 1;
        let (pages, folios) = file.read_with(last);
        assert!(pages < last && folios as u64 <= pages, "{pages} pages in {folios} folios");
        assert_eq!(file.huge_ptes(), 0);
    });
}

fn collapsed<A: Silicon>(arch: A) {
    with_long_file(arch, MapFlags::SHARED, |file| {
        let pages = HUGE / file.on.page;
        file.read_with(pages + 3);
        file.read_with(2 * pages - 1);
        assert_eq!((file.is_huge(pages + 3), file.collapse(2 * pages)), (false, Ok(false)), "beyond the end");
        assert_eq!((file.collapse(pages + 7), file.is_huge(pages + 3)), (Ok(true), true));
        (pages..2 * pages).for_each(|page| assert_eq!(file.loads(page), Ok(())));
        assert_eq!(file.huge_ptes(), file.if_huge(1));
        assert_eq!((file.collapse(pages), file.object.resident()), (Ok(true), pages), "it is one already");
        // Of the other block no page is in memory, and one request reads it into a huge folio.
        let wanted = collapse_object(&[&file.space][..], &file.object, 0, file.on.memcg);
        assert_eq!(wanted, Err(ObjectError::Pending(file.pending(0))));
        assert_eq!(file.files.finish_any(file.on.machine).map(|done| done.folios), Some(1));
        assert_eq!((file.collapse(0), file.object.resident()), (Ok(true), 2 * pages));
        (0..pages).for_each(|page| assert_eq!(file.loads(page), Ok(())));
    });
}

fn kept<A: Silicon>(arch: A) {
    with_long_file(arch, MapFlags::SHARED, |file| {
        let pages = HUGE / file.on.page;
        file.read_with(pages + 3);
        file.on.store(&file.space, BASE + (pages + 3) * file.on.page, 9);
        assert_eq!((file.collapse(pages), file.is_huge(pages + 3)), (Err(ObjectError::InUse), false));
        // The write that is under way is of the small folio.
        let mut pass = Writeback::start(0..u64::MAX);
        write_back(&[&file.space][..], &file.object, &mut pass).unwrap();
        assert_eq!(file.collapse(pages), Err(ObjectError::InUse));
        file.files.finish_any_write(file.on.machine).expect("a write");
        assert_eq!((file.collapse(pages), file.is_huge(pages + 3)), (Ok(true), true));
        (pages..2 * pages).for_each(|page| assert_eq!(file.loads(page), Ok(())));
        // A page of the huge folio is written, and stays in it.
        file.on.store(&file.space, BASE + (pages + 4) * file.on.page, 10);
        file.sync();
        assert_eq!((file.files.word(TAG, (pages + 4) * file.on.page), file.is_huge(pages)), (10, true));
    });
}

fn unread<A: Silicon>(arch: A) {
    with_long_file(arch, MapFlags::SHARED, |file| {
        let pages = HUGE / file.on.page;
        file.read_with(pages + 3);
        file.files.refuse_reads(Refusal::Percent(100));
        let collapse = || collapse_object(&[&file.space][..], &file.object, pages, file.on.memcg);
        for _ in 0..2 {
            assert!(matches!(collapse(), Err(ObjectError::Pending(_))));
            while file.files.finish_any(file.on.machine).is_some() {}
            assert_eq!((file.object.resident(), file.loads(pages + 3)), (16, Ok(())));
        }
        file.files.refuse_reads(Refusal::Never);
        file.on.machine.memcgs().set_limit(file.on.memcg, (HUGE >> 12) / 2).unwrap();
        assert!(matches!(file.collapse(pages), Err(ObjectError::NoMemory(_))));
        while file.files.finish_any(file.on.machine).is_some() {}
        assert_eq!((file.loads(pages + 3), file.is_huge(pages + 3)), (Ok(()), false));
    });
}

fn scanned<A: Silicon>(arch: A) {
    with_long_file(arch, MapFlags::SHARED, |file| {
        let (on, pages, policy) = (file.on, HUGE / file.on.page, file.on.machine.policy());
        let scan = || {
            let collapse =
                |object: &Object<'_, Strict<A>>, page| collapse_object(&[&file.space][..], object, page, on.memcg);
            file.space.collapse_some(0, u64::MAX, &CollapseLimits::default(), collapse).unwrap().collapsed
        };
        policy.set(HUGE_ORDER, Knob::Always);
        file.read_with(pages + 3);
        assert_eq!(scan(), 0, "the program has no text there");
        file.space.protect(BASE + HUGE, HUGE, Prot::READ | Prot::EXEC).unwrap();
        assert_eq!((scan(), file.object.resident()), (0, 16), "it reads nothing");
        file.read_singly(pages..2 * pages);
        policy.set(HUGE_ORDER, Knob::Never);
        assert_eq!(scan(), 0, "policy wants none");
        policy.set(HUGE_ORDER, Knob::Always);
        assert_eq!((scan(), scan(), file.is_huge(pages)), (1, 0, true));
        // Advice counts like text.
        policy.set(HUGE_ORDER, Knob::Madvise);
        file.read_singly(0..pages);
        assert_eq!((file.is_huge(0), scan(), file.is_huge(0)), (false, 1, true));
    });
}
