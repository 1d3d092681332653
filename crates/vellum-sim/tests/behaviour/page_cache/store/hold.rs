//! Pages on hold, while the host moves their bytes.

use vellum::page_cache::{Held, ObjectError, Overwrite, Readahead};
use vellum::space::{FaultError, MapFlags, MapRequest, unmap_removed};
use vellum_sim::{Fault, Silicon};

use super::fixture::{File, RW, TAG, with_shared_file};
use crate::fixtures::bench::{BASE, Space, in_every_format};

in_every_format! {
    pages_on_hold_wait => waits,
    pages_before_them_do_not => before,
    pages_on_hold_get_out_of_use => unused,
}

/// Runs a test with a file of two blocks of a huge folio, and the first page of the second one.
fn with_blocks<A: Silicon>(arch: A, test: impl FnOnce(&File<'_, '_, A>, u64)) {
    with_shared_file(arch, |file| {
        let block = (2 << 20) / file.on.page;
        for size in [0, 2 * block * file.on.page] {
            let gone = file.object.set_size(size).unwrap();
            unmap_removed(&[&file.space][..], &file.object, &gone);
        }
        file.map_blocks(&file.space);
        test(&file, block);
        file.write();
    });
}

impl<'m, A: Silicon> File<'_, 'm, A> {
    fn map_blocks(&self, space: &Space<'m, A>) {
        let request = MapRequest { addr: BASE, len: 4 << 20, prot: RW, flags: MapFlags::FIXED | MapFlags::SHARED };
        assert_eq!(space.map_object(request, &self.object, 0), Ok(BASE));
    }

    /// Stores to a page, and loads from it. Returns true if a program waits for the page.
    fn is_pending(&self, space: &Space<'m, A>, page: u64) -> bool {
        let (space, at) = (self.on.cpu.enter(space), BASE + page * self.on.page);
        let waits = Fault::Handler(FaultError::Pending(self.pending(page)));
        let (stored, loaded) = (space.store_u64(at, page), space.load_u64(at));
        let is_pending = stored == Err(waits);
        assert_eq!((stored.is_err(), loaded.err()), (is_pending, is_pending.then_some(waits)), "page {page}");
        is_pending
    }

    fn are_pending<const COUNT: usize>(&self, pages: [u64; COUNT]) -> [bool; COUNT] {
        pages.map(|page| self.is_pending(&self.space, page))
    }
}

/// Nothing gets a page on hold, or begins to read one, whether it was in memory or not. Once the
/// hold has ended, all is as before.
fn waits<A: Silicon>(arch: A) {
    with_blocks(arch, |file, block| {
        let (object, memcg, other) = (&file.object, file.on.memcg, file.on.space());
        file.map_blocks(&other);
        file.read_word(block + 1);
        let held = Held::begin(object, block + 9).expect("no page is on hold");
        assert!(Held::begin(object, 0).is_none());
        assert_eq!(held.pages(), block..u64::MAX);
        assert!(held.has(file.pending(block)) && !held.has(file.pending(block - 1)));
        let resident = object.resident();
        for page in [block, block + 1, block + 20, 2 * block - 1] {
            assert!(file.is_pending(&other, page));
            let waits = Some(ObjectError::Pending(file.pending(page)));
            assert_eq!((object.page(page).err(), object.page_or_new(page, memcg).err()), (waits, waits));
        }
        object.read_ahead(&mut Readahead::new(64), block + 16..block + 32, memcg).expect("nothing is read");
        assert!(Overwrite::begin(object, block + 20..block + 22, memcg).is_ok_and(|over| over.is_none()));
        assert_eq!((object.resident(), file.files.under_way()), (resident, 0));
        drop(held);
        assert_eq!(file.read_word(block + 20), file.files.word(TAG, (block + 20) * file.on.page));
        assert_eq!(file.are_pending([block, block + 20]), [false; 2]);
        assert!(Held::begin(object, 0).is_some());
    });
}

/// A page before those on hold is read, and mapped, with none of these.
fn before<A: Silicon>(arch: A) {
    with_blocks(arch, |file, block| {
        let held = Held::begin(&file.object, block).expect("no page is on hold");
        file.read_word(block - 1);
        assert_eq!(file.object.next_data(block), None);
        drop(held);
        file.read_word(block);
        // The pages around page 16 are those around the first one on hold.
        let other = file.on.space();
        let (addr, len) = (BASE, 64 * file.on.page);
        let request = MapRequest { addr, len, prot: RW, flags: MapFlags::FIXED | MapFlags::SHARED };
        other.map_object(request, &file.object, (block - 17) * file.on.page).unwrap();
        let held = Held::begin(&file.object, block).expect("no page is on hold");
        let load = |page: u64| file.on.cpu.enter(&other).load_u64(BASE + page * file.on.page);
        assert_eq!(load(16), Ok(file.files.word(TAG, (block - 1) * file.on.page)));
        assert_eq!(load(17), Err(Fault::Handler(FaultError::Pending(file.pending(block)))));
        drop(held);
    });
}

/// A program that stores to pages on hold without a pause stores until they are unmapped. Once what
/// it has stored is written, none is left in memory, and the storage has it.
fn unused<A: Silicon>(arch: A) {
    with_blocks(arch, |file, block| {
        let pages = [block - 1, block, block + 9];
        let words = pages.map(|page| file.read_word(page));
        assert_ne!(words, pages);
        assert_eq!(file.are_pending(pages), [false; 3]);
        let held = Held::begin(&file.object, block + 9).expect("no page is on hold");
        assert_eq!(file.are_pending(pages), [false; 3], "what is mapped stays mapped");
        file.invalidate(held.pages());
        assert_eq!(file.are_pending(pages), [false, true, true]);
        assert_eq!(file.object.next_data(block), Some(block), "dirty pages stay");
        file.write();
        file.invalidate(held.pages());
        assert_eq!(file.object.next_data(block), None);
        assert_eq!(file.are_pending(pages), [false, true, true]);
        drop(held);
        assert_eq!(pages.map(|page| file.read_word(page)), pages);
    });
}
