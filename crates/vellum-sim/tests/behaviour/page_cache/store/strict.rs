//! Files whose pages come from the host's storage: reads under way, reads that fail, and reclaim.

use vellum::memcg::{LruList, MemcgId, Refused};
use vellum::page_cache::{Changes, Object, ObjectError, Readahead};
use vellum::space::{Advise, FaultError, MapError, MapFlags, MapRequest};
use vellum::stats::Counter;
use vellum::vma::Prot;
use vellum_sim::{Fault, Finished, Refusal, Silicon};

use super::fixture::{File, RW, TAG};
use crate::fixtures::bench::{BASE, in_every_format};

in_every_format! {
    an_access_waits_for_one_read_of_the_pages_around_it => waits,
    a_read_that_fails_leaves_no_page_behind => fails,
    a_private_write_copies_a_page_that_was_read => copies,
    truncation_takes_pages_that_are_being_read => truncated,
    a_read_outlives_the_last_handle => outlives,
    a_read_makes_do_with_little_memory => short,
    clean_pages_are_dropped_and_read_again => dropped,
    a_page_that_an_access_waits_for_survives_one_reclaim => wanted,
    pages_with_references_are_not_dropped => held,
    pages_in_use_survive_madv_pageout => paged_out,
    no_page_is_added_behind_the_end_of_a_file => refused,
    a_stream_waits_for_its_first_page_alone => ahead,
    reads_ahead_use_large_folios_and_stop_at_the_end => folios,
}

fn with_file<A: Silicon>(arch: A, test: impl FnOnce(File<'_, '_, A>)) {
    super::fixture::with_file(arch, MapFlags::empty(), test);
}

impl<A: Silicon> File<'_, '_, A> {
    /// Loads the word at byte `at` of a page as a program.
    fn load(&self, page: u64, at: u64) -> Result<u64, Fault<FaultError>> {
        self.on.cpu.enter(&self.space).load_u64(BASE + page * self.on.page + at)
    }

    /// Loads a word of a page, for which no read may be necessary any more.
    fn expect(&self, page: u64, at: u64) {
        assert_eq!(self.load(page, at), Ok(self.files.word(TAG, page * self.on.page + at)), "page {page}");
    }

    /// Loads a word of a page, for which a read must be necessary.
    fn expect_pending(&self, page: u64) {
        assert_eq!(self.load(page, 0), Err(Fault::Handler(FaultError::Pending(self.pending(page)))));
    }

    /// Ends one of the reads that are under way.
    fn finish(&self) -> Finished {
        self.files.finish_any(self.on.machine).expect("a read is under way")
    }

    /// Reads the first word of a page through the object.
    fn word(&self, page: u64) -> Result<Option<u64>, ObjectError> {
        let mut word = [0; 8];
        Ok(self.object.page(page)?.map(|page| {
            page.read(0, &mut word);
            u64::from_ne_bytes(word)
        }))
    }

    fn reclaim_all(&self) -> u64 {
        self.on.reclaim_all(&[&self.space]) / (self.on.page >> 12)
    }
}

/// An access to a missing page starts one read of the pages around it and waits; so do further
/// accesses to these, without another read. Then one fault maps all of them with the file's
/// contents. Pages beyond the end are not read.
fn waits<A: Silicon>(arch: A) {
    with_file(arch, |file| {
        for page in [5, 5, 0, 15] {
            file.expect_pending(page);
            assert_eq!(file.files.under_way(), 1);
        }
        assert_eq!(file.word(9), Err(ObjectError::Pending(file.pending(9))));
        let mut resident = [true; 16];
        file.space.mincore(BASE, 16 * file.on.page, &mut resident).unwrap();
        assert_eq!(resident, [false; 16], "a page that is being read is not in memory");

        let done = file.files.finish_with(file.on.machine, file.pending(15));
        assert_eq!(done.map(Finished::pages), Some((16, 16)));
        let folios = done.map_or(0, |done| done.folios as u64);
        file.expect(5, 8);
        let faults = file.on.count(Counter::Faults);
        (0..16).for_each(|page| file.expect(page, file.on.page - 8));
        assert!(file.on.count(Counter::Faults) - faults < folios, "a fault maps at least a folio");
        let stats = file.space.stats();
        assert_eq!((stats.file, stats.shmem, stats.anon), (16 * file.on.page, 0, 0));
        assert_eq!(file.on.count(Counter::FilePages) << 12, 16 * file.on.page);

        file.expect_pending(40);
        assert_eq!(file.finish().pages(), (9, 9));
        file.expect(40, 64);
        let beyond = BASE + 41 * file.on.page;
        assert_eq!(file.load(41, 0), Err(Fault::Handler(FaultError::BeyondEnd(beyond))));
        assert_eq!((file.object.resident(), file.files.under_way()), (25, 0));
        file.space.unmap(BASE, 64 * file.on.page).unwrap();
        assert_eq!((file.space.stats().file, file.space.stats().anon), (0, 0));
    });
}

/// Of a read that fails in the middle, the pages before the failure are in memory. The others are
/// missing, and an access to one of them reads it again, without the one that could not be read.
fn fails<A: Silicon>(arch: A) {
    with_file(arch, |file| {
        file.files.refuse_reads(Refusal::Nth(7));
        file.expect_pending(9);
        assert_eq!(file.finish().pages(), (16, 6));
        assert_eq!((file.object.resident(), file.object.next_hole(0)), (6, 6));
        file.expect(5, 0);
        assert_eq!(file.files.under_way(), 0);

        file.expect_pending(9);
        assert_eq!(file.finish().pages(), (1, 1));
        file.expect(9, 0);
        file.expect_pending(6);
        assert_eq!(file.finish().pages(), (1, 1), "pages 7 and 8 may fail in turn");
        file.expect_pending(7);
        assert_eq!(file.finish().pages(), (2, 2), "page 6 was read");
        file.expect_pending(10);
        assert_eq!(file.finish().pages(), (6, 6));
        file.files.refuse_reads(Refusal::From(1));
        file.expect_pending(20);
        assert_eq!(file.finish().pages(), (16, 0));
        assert_eq!(file.object.resident(), 16);
    });
}

/// A private write copies the file's page, and leaves the file as it is.
fn copies<A: Silicon>(arch: A) {
    with_file(arch, |file| {
        let at = BASE + 3 * file.on.page;
        let store = || file.on.cpu.enter(&file.space).store_u64(at, 1);
        assert_eq!(store(), Err(Fault::Handler(FaultError::Pending(file.pending(3)))));
        file.finish();
        assert_eq!(store(), Ok(()));
        assert_eq!(file.load(3, 0), Ok(1));
        file.expect(3, 8);
        assert_eq!(file.word(3), Ok(Some(file.files.word(TAG, 3 * file.on.page))));
    });
}

/// A page that is truncated while it is being read is not in the object when the read ends, and can
/// be read anew meanwhile, into another frame. The late read changes nothing.
fn truncated<A: Silicon>(arch: A) {
    for first in [0, 1] {
        with_file(arch, |file| {
            assert!(file.word(20).is_err());
            let cut = file.object.set_size(18 * file.on.page).unwrap();
            assert_eq!((cut.first, file.object.resident()), (18, 2));
            assert!(file.object.set_size(40 * file.on.page).unwrap().is_empty());
            assert!(file.word(20).is_err());
            assert_eq!(file.files.under_way(), 2, "a new read");
            // Only the end of the new read brings the page.
            let ended = file.files.finish_nth(file.on.machine, first).map(|done| done.wanted);
            assert_eq!(ended, Some([16, 14][first]));
            assert_eq!(file.word(20).is_ok(), first == 1);
            file.finish();
            for page in 16..32 {
                assert_eq!(file.word(page), Ok(Some(file.files.word(TAG, page * file.on.page))));
            }
        });
    }
}

/// An object whose last handle is dropped lives until its last mapping and its last read have
/// ended, and only then does the storage forget it.
fn outlives<A: Silicon>(arch: A) {
    with_file(arch, |file| {
        assert!(file.word(0).is_err());
        let File { on, files, object, space } = file;
        drop(object);
        assert_eq!(files.forgotten(), [], "a mapping is left");
        drop(space);
        assert_eq!(files.forgotten(), [], "a read is left");
        assert_eq!(on.count(Counter::FilePages) << 12, 16 * on.page);
        files.finish_any(on.machine).expect("a read is under way");
        assert_eq!(files.forgotten(), [TAG]);
    });
}

/// Where memory is short, a read has smaller folios and fewer pages, but always the wanted one;
/// with no memory for that, nothing changes.
fn short<A: Silicon>(arch: A) {
    with_file(arch, |mut file| {
        let (on, memcgs) = (file.on, file.on.machine.memcgs());
        let group = memcgs.create(on.machine.frames(), MemcgId::ROOT, u64::MAX).unwrap();
        file.object = Object::with_store(on.machine, &on.arch, group, TAG, 64 * on.page, Changes::ToStore).unwrap();
        assert!(file.word(0).is_err());
        file.finish();
        memcgs.drain(on.machine.frames(), group).unwrap();
        let used = memcgs.usage(on.machine.frames(), group).unwrap().charged;
        let set_room = |pages: u64| memcgs.set_limit(group, used + pages * (on.page >> 12)).unwrap();
        set_room(3);
        assert!(file.word(29).is_err());
        assert_eq!(file.finish().wanted, 3, "pages 29 to 31");
        set_room(4);
        assert!(file.word(40).is_err());
        assert_eq!(file.finish().wanted, 1);
        assert_eq!(file.word(48), Err(ObjectError::NoMemory(Refused::OverLimit(group))));
        assert_eq!((file.object.resident(), file.files.under_way()), (20, 0));
        let File { object, .. } = file;
        drop(object);
        memcgs.remove(on.machine.frames(), group).unwrap();
    });
}

/// Reclaim drops clean pages, mapped or not, on a machine without swap, and they are read again
/// when an access needs them.
fn dropped<A: Silicon>(arch: A) {
    with_file(arch, |file| {
        let child = {
            file.expect_pending(2);
            file.expect_pending(30);
            file.finish();
            file.finish();
            [2, 30].into_iter().for_each(|page| file.expect(page, 0));
            file.space.fork().unwrap()
        };
        let lru = || file.on.machine.memcgs().usage(file.on.machine.frames(), file.on.memcg).unwrap().lru;
        assert_eq!(lru()[LruList::File as usize] << 12, 32 * file.on.page);
        let freed = file.on.reclaim_all(&[&file.space, &child]) << 12;
        assert_eq!((freed, file.object.resident()), (32 * file.on.page, 0));
        assert_eq!((file.space.stats().file, lru()[LruList::File as usize]), (0, 0));
        file.expect_pending(2);
        file.finish();
        file.expect(2, 0);

        (0..16).for_each(|page| file.expect(page, 0));
        let length = 16 * file.on.page;
        file.space.advise(BASE, length, Advise::PageOut).unwrap();
        assert_eq!(file.object.resident(), 0, "MADV_PAGEOUT drops them too");
        file.expect_pending(2);
        file.finish();
    });
}

/// A page for which an access waits is not dropped before the access has been tried again, if
/// reclaim meets the page once.
fn wanted<A: Silicon>(arch: A) {
    with_file(arch, |file| {
        file.expect_pending(2);
        file.finish();
        file.reclaim_all();
        assert!(file.object.has_page(2), "the folio of the page that is wanted stays");
        file.expect(2, 0);
        file.reclaim_all();
        assert_eq!(file.object.resident(), 0);
        // An access that gave up waiting keeps its page from one reclaim only.
        file.expect_pending(2);
        file.finish();
        file.reclaim_all();
        file.reclaim_all();
        assert_eq!(file.object.resident(), 0);
    });
}

/// A page with a reference of the host, or one that is being read, stays in the object.
fn held<A: Silicon>(arch: A) {
    with_file(arch, |file| {
        assert!(file.word(2).is_err());
        assert_eq!(file.reclaim_all(), 0);
        assert_eq!(file.object.resident(), 16);
        file.finish();
        let page = file.object.page(2).unwrap();
        (0..3).for_each(|_| _ = file.reclaim_all());
        assert!(file.object.has_page(2));
        assert_eq!(file.word(2), Ok(Some(file.files.word(TAG, 2 * file.on.page))));
        drop(page);
        file.reclaim_all();
        assert_eq!(file.object.resident(), 0);
    });
}

/// `MADV_PAGEOUT` unmaps pages of a file and drops them, but for those with a reference of the
/// host, those that another space maps and those that are dirty: these stay, with their contents
/// and with all counts as before.
fn paged_out<A: Silicon>(arch: A) {
    with_file(arch, |file| {
        let (page, all) = (file.on.page, 41 * file.on.page);
        let read = |of: u64| {
            while let Err(Fault::Handler(FaultError::Pending(_))) = file.load(of, 0) {
                file.finish();
            }
        };
        (0..41).for_each(read);
        let held = file.object.page(2).unwrap();
        let other = file.on.space();
        super::fixture::map(file.on, &other, &file.object, MapFlags::empty());
        assert!(file.on.cpu.enter(&other).load_u64(BASE + 18 * page).is_ok());
        file.object.page(34).unwrap().iter().for_each(|page| _ = page.write(0, &7u64.to_ne_bytes()));
        file.object.mark_dirty(34..35);
        let pageout = || file.space.advise(BASE, all, Advise::PageOut).unwrap();
        pageout();
        assert!(file.space.stats().peak_rss >= all, "the most memory that was mapped");
        let stays = |of: u64| file.object.has_page(of);
        assert!(stays(2) && stays(18) && stays(34), "{:?}", [2, 18, 34].map(stays));
        assert_eq!((file.files.writes_under_way(), file.word(34)), (1, Ok(Some(7))), "the dirty page is written");
        drop(held);
        file.files.finish_any_write(file.on.machine);
        drop(other);
        for _ in 0..2 {
            (0..41).for_each(read);
            pageout();
        }
        assert_eq!((file.object.resident(), file.space.stats().file), (0, 0));
        let usage = file.on.machine.memcgs().usage(file.on.machine.frames(), file.on.memcg).unwrap();
        assert_eq!(usage.lru.iter().sum::<u64>(), 0, "no list counts a page");
        read(34);
        assert_eq!(file.word(34), Ok(Some(7)));
    });
}

/// No page can be added behind the end of a file with a store, as the storage would not have it. No
/// shared VMA may write to a file if the host forbids that.
fn refused<A: Silicon>(arch: A) {
    with_file(arch, |file| {
        file.object.deny_shared_write().unwrap();
        let at = BASE + 64 * file.on.page;
        let map = |prot| {
            let request = MapRequest { addr: at, len: file.on.page, prot, flags: MapFlags::FIXED | MapFlags::SHARED };
            file.space.map_object(request, &file.object, 0)
        };
        assert_eq!(map(RW), Err(MapError::Sealed));
        assert_eq!(map(Prot::READ), Ok(at));
        assert!(file.space.protect(at, file.on.page, RW).is_err());
        assert_eq!(file.object.page_or_new(41, file.on.memcg).err(), Some(ObjectError::TooLarge));
        assert_eq!(
            file.object.allocate(41 * file.on.page..42 * file.on.page, file.on.memcg),
            Err(ObjectError::TooLarge)
        );
        assert_eq!((file.object.resident(), file.files.under_way()), (0, 0));
    });
}

/// A stream of reads waits for its first page and for no other, if the device is fast, and no page
/// is read twice or beyond the end.
fn ahead<A: Silicon>(arch: A) {
    with_file(arch, |file| {
        let mut opener = Readahead::new(8);
        let (mut waits, mut read) = (0, 0);
        for page in 0..41 {
            file.object.read_ahead(&mut opener, page..page + 1, file.on.memcg).unwrap();
            waits += u64::from(file.word(page).is_err());
            while let Some(done) = file.files.finish_any(file.on.machine) {
                read += done.done;
            }
            assert_eq!(file.word(page), Ok(Some(file.files.word(TAG, page * file.on.page))));
        }
        assert_eq!((waits, read, file.object.resident()), (1, 41, 41));
    });
}

/// Readahead fills the largest folios that policy permits, as far as the file reaches.
fn folios<A: Silicon>(arch: A) {
    with_file(arch, |file| {
        let order = 2 + (file.on.arch.page_shift() - 12);
        file.on.machine.policy().set_file_orders(1 << order);
        file.object.read_ahead(&mut Readahead::new(64), 4..20, file.on.memcg).unwrap();
        file.object.read_ahead(&mut Readahead::new(64), 20..60, file.on.memcg).unwrap();
        let (mut pages, mut folios) = (0, 0);
        while let Some(done) = file.files.finish_any(file.on.machine) {
            (pages, folios) = (pages + done.done, folios + done.folios);
        }
        // Nine of four pages, and the last page of the file.
        assert_eq!((pages, folios, file.object.resident()), (37, 10, 37));
    });
}
