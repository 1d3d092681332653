//! Files that are read in huge folios, where a VMA has advice for them, and written to through huge
//! PTEs (INV-22, INV-23).

use vellum::page_cache::{Changes, Object, Writeback, drop_clean};
use vellum::space::{Advise, FaultError, MapFlags, MapRequest, write_back};
use vellum_sim::{Fault, Hostility, Silicon, Simulated};

use super::fixture::{File, RW, TAG};
use crate::fixtures::bench::{BASE, HUGE, Setup, USUAL, in_every_format, range};

in_every_format! {
    advice_reads_a_huge_folio => read,
    a_write_through_a_huge_pte_marks_one_page => written,
    without_memory_for_a_huge_folio_less_is_read => refused,
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
        let read = [pages / 2, pages, 2 * pages].map(|page| file.read_with(page));
        assert_eq!((read[0], read[1].0, read[2]), ((pages, 1), 16, (1, 1)));
        assert_eq!(file.huge_ptes(), file.if_huge(1));
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
        let mut pass = Writeback::complete(0..u64::MAX);
        while write_back(&[&file.space][..], &file.object, &mut pass).is_err() {
            file.files.finish_any_write(file.on.machine).expect("a write");
        }
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
