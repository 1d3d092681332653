//! Limits of dirty pages by memcg, and the turns of the programs that make more.

use std::collections::BTreeMap;

use vellum::memcg::{DirtyLimits, MemcgId, Turns};
use vellum::page_cache::{Changes, Object, Overwrite, Writeback, drop_clean};
use vellum::space::unmap_removed;
use vellum_sim::{Silicon, Strict};

use super::fixture::{File, PAGES, with_shared_file};
use crate::fixtures::bench::in_every_format;
use crate::fixtures::random::dice::Dice;

in_every_format! {
    dirty_pages_count_for_the_memcg_that_they_are_charged_to => counted,
    a_program_waits_for_as_many_writes_as_it_made_pages_dirty => waits,
    turns_end_in_the_order_in_which_they_began => order,
    a_turn_ends_when_few_dirty_pages_are_left => early,
    a_program_waits_for_its_memcg_and_for_the_machine => nested,
    a_limited_pass_writes_pages_of_its_memcg_alone => limited,
    programs_share_the_storage_and_keep_the_limit => shares,
}

impl<'m, A: Silicon> File<'_, 'm, A> {
    /// The number of frames of a page.
    fn frames(&self) -> u64 {
        self.on.page >> 12
    }

    /// Makes a memcg below the test's.
    fn group(&self) -> MemcgId {
        self.on.machine.memcgs().create(self.on.machine.frames(), self.on.memcg, u64::MAX).unwrap()
    }

    /// Removes the file's pages, which are clean, and then memcgs.
    fn remove(&self, groups: [MemcgId; 2]) {
        let gone = self.object.set_size(0).unwrap();
        unmap_removed(&[&self.space][..], &self.object, &gone);
        groups.iter().for_each(|memcg| self.on.machine.memcgs().remove(self.on.machine.frames(), *memcg).unwrap());
    }

    /// Writes whole pages that are missing, and are charged to `memcg`, as the host.
    fn fill(&self, object: &Object<'m, Strict<A>>, pages: core::ops::Range<u64>, memcg: MemcgId) {
        let mut at = pages.start;
        while at < pages.end {
            let over = Overwrite::begin(object, at..pages.end, memcg).unwrap().expect("the page is missing");
            let filled = over.pages();
            at = filled.end;
            over.finish(filled.end - filled.start, 0);
        }
    }

    /// Returns the numbers of pages of a memcg that are dirty, and that are being written.
    fn counts(&self, memcg: MemcgId) -> (u64, u64) {
        let counters = self.on.machine.memcgs().counters(memcg).unwrap();
        (counters.dirty / self.frames(), counters.writing / self.frames())
    }

    /// Sets the limits of a memcg, in pages.
    fn limit(&self, memcg: MemcgId, background: u64, limit: u64) {
        let limits = DirtyLimits { background: background * self.frames(), limit: limit * self.frames() };
        self.on.machine.memcgs().throttle().set_limits(memcg, limits).unwrap();
    }

    fn throttle(&self, memcg: MemcgId, pages: u64) -> Option<Turns> {
        self.on.machine.memcgs().throttle().turn(memcg, pages * self.frames())
    }

    fn is_over(&self, turns: &Turns) -> bool {
        self.on.machine.memcgs().throttle().is_over(turns)
    }

    /// Has pages written, and ends the writes.
    fn write_all(&self, pages: core::ops::Range<u64>) {
        self.write_back(&mut Writeback::start(pages)).unwrap();
        while self.files.finish_any_write(self.on.machine).is_some() {}
    }
}

/// A dirty page counts for the memcg that it is charged to and for all above it, and for no other,
/// until it is written or truncated. The host learns whose pages a program made dirty.
fn counted<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let (a, b) = (file.group(), file.group());
        let all = || [a, b, file.on.memcg, MemcgId::ROOT].map(|memcg| file.counts(memcg));
        file.fill(&file.object, 0..4, a);
        file.fill(&file.object, 4..10, b);
        file.store(20, 1);
        assert_eq!(all(), [(4, 0), (6, 0), (11, 0), (11, 0)]);
        let dirtied = [(a, 4), (b, 6), (file.on.memcg, 1)];
        assert_eq!(file.files.take_dirtied(), dirtied.map(|(of, pages)| (of.number(), pages * file.frames())).into());
        file.object.mark_dirty(0..10);
        assert_eq!(file.files.take_dirtied(), BTreeMap::new(), "they are dirty already");
        file.write_back(&mut Writeback::start(2..6)).unwrap();
        file.object.mark_dirty(5..6);
        assert_eq!(all(), [(2, 2), (5, 2), (8, 4), (8, 4)]);
        while file.files.finish_any_write(file.on.machine).is_some() {}
        assert_eq!(all(), [(2, 0), (5, 0), (8, 0), (8, 0)]);
        let gone = file.object.set_size(6 * file.on.page).unwrap();
        unmap_removed(&[&file.space][..], &file.object, &gone);
        assert_eq!(all(), [(2, 0), (1, 0), (3, 0), (3, 0)]);
        file.write_all(0..6);
        assert_eq!(all(), [(0, 0); 4]);
        file.remove([a, b]);
    });
}

/// Below the middle between the limits a program goes on. Beyond it, it waits until as many pages
/// were written as it made dirty.
fn waits<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        file.limit(MemcgId::ROOT, 10, 20);
        assert!(!file.on.machine.memcgs().throttle().wants_writeback(file.on.memcg));
        file.fill(&file.object, 0..15, file.on.memcg);
        assert!(file.on.machine.memcgs().throttle().wants_writeback(file.on.memcg));
        assert!(file.throttle(file.on.memcg, 15).is_none());
        file.fill(&file.object, 16..18, file.on.memcg);
        let turns = file.throttle(file.on.memcg, 2).expect("17 pages are dirty");
        file.write_all(0..1);
        assert!(!file.is_over(&turns));
        file.write_back(&mut Writeback::start(1..2)).unwrap();
        assert!(!file.is_over(&turns), "the second write is under way");
        while file.files.finish_any_write(file.on.machine).is_some() {}
        assert!(file.is_over(&turns));
        file.write_all(0..PAGES);
    });
}

/// No turn ends before one that began earlier, and each ends with the write of its last page.
fn order<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        file.limit(MemcgId::ROOT, 0, 2);
        file.fill(&file.object, 0..30, file.on.memcg);
        let turns = [3, 1, 2].map(|pages| file.throttle(file.on.memcg, pages).expect("30 pages are dirty"));
        let over: Vec<_> = (0..6)
            .map(|page| {
                file.write_all(page..page + 1);
                turns.each_ref().map(|turns| file.is_over(turns))
            })
            .collect();
        let expected =
            [[false; 3], [false; 3], [true, false, false], [true, true, false], [true, true, false], [true; 3]];
        assert_eq!(over, expected);
        let late = file.throttle(file.on.memcg, 1).expect("24 pages are dirty");
        file.write_all(6..7);
        assert!(file.is_over(&late), "no turn before it is left");
        file.write_all(0..PAGES);
    });
}

/// A program does not wait for pages that nothing writes any more: its turn ends when few are
/// dirty, because they were truncated or the limit was raised, and so do all before it. What was
/// promised then does not hold up the next program.
fn early<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        file.limit(MemcgId::ROOT, 0, 4);
        file.fill(&file.object, 0..10, file.on.memcg);
        let turns = file.throttle(file.on.memcg, 100).expect("10 pages are dirty");
        file.limit(MemcgId::ROOT, 10, 10);
        assert!(file.is_over(&turns));
        file.limit(MemcgId::ROOT, 0, 4);
        let turns = file.throttle(file.on.memcg, 1).expect("10 pages are dirty");
        file.write_all(0..1);
        assert!(file.is_over(&turns), "100 pages were promised to none that waits");
        let turns = file.throttle(file.on.memcg, 9).expect("9 pages are dirty");
        let gone = file.object.set_size(3 * file.on.page).unwrap();
        unmap_removed(&[&file.space][..], &file.object, &gone);
        assert!(file.is_over(&turns));
        file.write_all(0..PAGES);
    });
}

/// A memcg's limit holds up those that make its own pages dirty, and the machine's limit all. One
/// that passes both waits for both at once.
fn nested<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let (a, b) = (file.group(), file.group());
        file.limit(a, 0, 4);
        file.fill(&file.object, 0..5, a);
        file.fill(&file.object, 10..15, b);
        assert!(file.throttle(b, 5).is_none());
        assert!(!file.on.machine.memcgs().throttle().wants_writeback(b));
        assert_eq!(file.on.machine.memcgs().throttle().next_wanting_writeback(None), Some(a));
        assert_eq!(file.on.machine.memcgs().throttle().next_wanting_writeback(Some(a)), None);
        let own = file.throttle(a, 1).expect("5 of 4 are dirty");
        file.write_all(10..11);
        assert!(!file.is_over(&own), "another memcg's page was written");
        file.write_all(0..1);
        assert!(file.is_over(&own));
        file.limit(MemcgId::ROOT, 0, 4);
        let (other, both) = (file.throttle(b, 1).expect("8 of 4"), file.throttle(a, 1).expect("4 of 4, 8 of 4"));
        file.write_all(1..2);
        assert!(file.is_over(&other) && !file.is_over(&both), "the machine's first turn is the other's");
        file.write_all(11..12);
        assert!(file.is_over(&both));
        file.write_all(0..PAGES);
        file.remove([a, b]);
    });
}

/// A limited pass has pages of a memcg and its descendants written, and stops after its number of
/// pages, to go on there later.
fn limited<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        let (a, b) = (file.group(), file.group());
        for page in (0..8).step_by(2) {
            file.fill(&file.object, page..page + 1, a);
            file.fill(&file.object, page + 1..page + 2, b);
        }
        let mut pass = Writeback::start(0..u64::MAX).limited(a, 3);
        file.write_back(&mut pass).unwrap();
        assert_eq!(((file.counts(a), file.counts(b)), pass.rest()), (((1, 3), (4, 0)), Some(5)));
        let mut rest = Writeback::start(5..u64::MAX).limited(a, 3);
        file.write_back(&mut rest).unwrap();
        assert_eq!((file.counts(a), file.counts(b), rest.rest()), ((0, 4), (4, 0), None));
        let mut above = Writeback::start(0..u64::MAX).limited(file.on.memcg, 100);
        file.write_back(&mut above).unwrap();
        assert_eq!((file.counts(b), above.rest()), ((0, 4), None));
        while file.files.finish_any_write(file.on.machine).is_some() {}
        file.remove([a, b]);
    });
}

/// Programs write as fast as they may, in pieces of different sizes and to files of their own, and
/// go on in the order in which they began to wait: the limit holds, and each writes as many pieces
/// as the others, in whatever order writes end.
fn shares<A: Silicon>(arch: A) {
    with_shared_file(arch, |file| {
        const BACKGROUND: u64 = 30;
        const LIMIT: u64 = 70;
        const PIECES: [u64; 4] = [1, 2, 4, 8];
        let dice = &mut Dice::new(5);
        file.limit(MemcgId::ROOT, BACKGROUND, LIMIT);
        let size = 4000 * file.on.page;
        let files = PIECES.map(|_| {
            Object::with_store(file.on.machine, &file.on.arch, file.on.memcg, 1, size, Changes::ToStore).unwrap()
        });
        // The programs that may write, and those that wait, in the order in which they began to.
        let (mut ready, mut waiting) = (Vec::from([0, 1, 2, 3]), Vec::new());
        let (mut next, mut most) = ([0; 4], 0);
        for _ in 0..150 {
            for program in ready.drain(..) {
                let pages = next[program]..next[program] + PIECES[program];
                next[program] = pages.end;
                file.fill(&files[program], pages, file.on.memcg);
                waiting.push((program, file.throttle(file.on.memcg, PIECES[program])));
            }
            let (dirty, writing) = file.counts(MemcgId::ROOT);
            most = most.max(dirty + writing);
            for (object, next) in files.iter().zip(next) {
                let start = dice.below(next + 1);
                write_back(&file, object, &mut Writeback::start(start..u64::MAX));
                write_back(&file, object, &mut Writeback::start(0..start).limited(MemcgId::ROOT, 4));
            }
            (0..1 + dice.below(3)).for_each(|_| _ = file.files.finish_any_write(file.on.machine));
            files.iter().for_each(|object| drop_clean(object, 0..u64::MAX));
            let over = waiting.extract_if(.., |(_, turns)| turns.as_ref().is_none_or(|turns| file.is_over(turns)));
            ready.extend(over.map(|(program, _)| program));
        }
        let pieces: Vec<u64> = next.iter().zip(PIECES).map(|(next, piece)| next / piece).collect();
        let (least, largest) = (pieces.iter().min().unwrap(), pieces.iter().max().unwrap());
        assert!(*least > 20 && largest - least <= 1, "pieces of the programs: {pieces:?}");
        let middle = (BACKGROUND + LIMIT) / 2;
        assert!(most > middle && most <= middle + PIECES.iter().sum::<u64>(), "{most} pages were dirty at once");
        files.iter().for_each(|object| write_back(&file, object, &mut Writeback::start(0..u64::MAX)));
        while file.files.finish_any_write(file.on.machine).is_some() {}
    });
}

/// Has pages of a file written that no space maps.
fn write_back<A: Silicon>(file: &File<'_, '_, A>, object: &Object<'_, Strict<A>>, pass: &mut Writeback) {
    vellum::space::write_back(&[&file.space][..], object, pass).unwrap();
}
