//! Builds a layout of limited size from the survey of a process.

use std::collections::{BTreeMap, BTreeSet};

use vellum_linux::workload::case::{PAGE, TABLE_SPAN};
use vellum_linux::workload::layout::{self, Backing, Layout, PageKind, Run};
use vellum_pagemap::{Categories, Region, Vma, VmaSurvey};

/// The number of last-level page tables to which one page table of the next level leads.
const TABLES: u64 = 512;

/// The layout as far as it is built.
#[derive(Debug)]
pub struct Import {
    sample: Sample,
    /// The number of the last page table that pages were added for, and true if the sample keeps
    /// it.
    last: Option<(u64, bool)>,
    dropped: BTreeSet<u64>,
    kept: BTreeSet<u64>,
    /// Bytes of memory and page tables together: of all that were added, and of those kept.
    weight: [u64; 2],
    runs: Vec<Run>,
    /// Bytes that can't be copied: swapped out, huge pages of files, or the kernel's own.
    left_out: u64,
}

/// A sampler of a sequence. It chooses one item at random among each `1 / share` consecutive ones:
/// a fixed step could coincide with a regular pattern in memory.
#[derive(Clone, Debug)]
struct Sample {
    /// The share of items to choose, 0 to 1.
    share: f64,
    random: fastrand::Rng,
    met: u64,
    chosen: u64,
    /// The item number after which the next item is chosen.
    next: f64,
}

impl Sample {
    fn of(share: f64) -> Sample {
        let mut random = fastrand::Rng::new();
        let next = random.f64() / share;
        Sample { share, random, met: 0, chosen: 0, next }
    }

    /// Returns whether the next item is chosen.
    fn takes(&mut self) -> bool {
        self.met += 1;
        let takes = self.share >= 1.0 || self.met as f64 > self.next;
        while takes && self.met as f64 > self.next {
            self.chosen += 1;
            self.next = (self.chosen as f64 + self.random.f64()) / self.share;
        }
        takes
    }
}

/// A layout, and how it relates to the process.
#[derive(Debug)]
pub struct Imported {
    /// The layout.
    pub layout: Layout,
    /// The share of the process that it contains, 0 to 1.
    pub share: f64,
    /// Bytes that can't be in a layout.
    pub left_out: u64,
}

impl Import {
    /// Returns an import that keeps about `limit` bytes of a process whose memory and page tables
    /// together have `bytes`, or all if they have fewer.
    pub fn within(bytes: u64, limit: u64) -> Import {
        Import {
            sample: Sample::of((limit as f64 / bytes.max(1) as f64).min(1.0)),
            last: None,
            dropped: BTreeSet::new(),
            kept: BTreeSet::new(),
            weight: [0; 2],
            runs: Vec::new(),
            left_out: 0,
        }
    }

    /// Adds a region of pages with equal categories. The caller adds regions in ascending order.
    /// `order` is the order of the folios of anonymous pages; 0 if unknown.
    pub fn pages(&mut self, region: &Region, vma: &Vma, order: usize) {
        let categories = region.categories;
        let [present, huge, zero, file] = [Categories::PRESENT, Categories::HUGE, Categories::ZERO, Categories::FILE]
            .map(|one| categories.contains(one));
        // File pages in an anonymous VMA are the kernel's own (vdso).
        if !present || vma.page > PAGE || file && (huge || !vma.file) {
            self.left_out += region.len();
            return;
        }
        let what = match (zero, file, huge) {
            (true, ..) => PageKind::Zero,
            (_, true, _) => PageKind::File,
            (.., true) => PageKind::Huge,
            _ => PageKind::Folios(4 << order.min(9)),
        };
        self.add(region.start, region.end, what);
    }

    /// Adds an empty last-level page table.
    pub fn empty_table(&mut self, start: u64) {
        self.add(start, start + TABLE_SPAN, PageKind::Table);
    }

    fn add(&mut self, start: u64, end: u64, kind: PageKind) {
        let mut at = start;
        while at < end {
            let to = ((at / TABLE_SPAN + 1) * TABLE_SPAN).min(end);
            let keeps = self.keeps(at / TABLE_SPAN);
            self.weigh(if kind == PageKind::Table { 0 } else { to - at }, keeps);
            if keeps {
                match self.runs.last_mut() {
                    Some(run) if run.end == at && run.kind == kind && kind != PageKind::Table => run.end = to,
                    _ => self.runs.push(Run { start: at, end: to, kind }),
                }
            }
            at = to;
        }
    }

    /// Returns whether the sample keeps page table number `table`. Decides at the first call for
    /// the table.
    fn keeps(&mut self, table: u64) -> bool {
        if let Some((last, keeps)) = self.last
            && last == table
        {
            return keeps;
        }
        let keeps = self.sample.takes();
        self.last = Some((table, keeps));
        if keeps {
            self.kept.insert(table)
        } else {
            self.dropped.insert(table)
        };
        self.weigh(PAGE, keeps);
        keeps
    }

    fn weigh(&mut self, bytes: u64, keeps: bool) {
        self.weight[0] += bytes;
        self.weight[1] += if keeps { bytes } else { 0 };
    }

    /// Completes the layout with the surveyed VMAs.
    pub fn finish(mut self, vmas: &[VmaSurvey]) -> Imported {
        self.runs.sort_by_key(|run| run.start);
        // Keep the same share of the VMAs without pages, as these cost something, too.
        let mut bare = self.sample.clone();
        for one in vmas {
            let tables = one.vma.start / TABLE_SPAN..=(one.vma.end - 1) / TABLE_SPAN;
            let met = |seen: &BTreeSet<u64>| seen.range(tables.clone()).next().is_some();
            if !met(&self.kept) && !met(&self.dropped) && bare.takes() {
                self.kept.insert(*tables.start());
            }
        }
        let places = self.places();
        let mut next = 0;
        let mut layout = Layout::default();
        for one in vmas {
            let (first, last) = (one.vma.start / TABLE_SPAN, (one.vma.end - 1) / TABLE_SPAN);
            let mut own = Vec::new();
            while let Some(run) = self.runs.get(next).filter(|run| run.start < one.vma.end) {
                // Adjacent VMAs may share a run, and an empty page table may span addresses before
                // the VMA.
                let (start, end) = (run.start.max(one.vma.start), run.end.min(one.vma.end));
                own.extend(places.get(&(start / TABLE_SPAN)).filter(|_| start < end).map(|place| {
                    let shifted = place * TABLE_SPAN + start % TABLE_SPAN;
                    Run { start: shifted, end: shifted + (end - start), ..*run }
                }));
                if run.end > one.vma.end && run.kind != PageKind::Table {
                    break;
                }
                next += 1;
            }
            let mut there = places.range(first..=last);
            let Some((begin, start)) = there.next() else { continue };
            let (stop, end) = there.next_back().unwrap_or((begin, start));
            let inside =
                |whole: bool, address: u64, otherwise: u64| if whole { address % TABLE_SPAN } else { otherwise };
            let end_inside = match inside(*stop == last, one.vma.end, TABLE_SPAN) {
                0 => TABLE_SPAN,
                some => some,
            };
            layout.vmas.push(layout::Vma {
                start: start * TABLE_SPAN + inside(*begin == first, one.vma.start, 0),
                end: end * TABLE_SPAN + end_inside,
                backing: match (one.vma.file, one.vma.is_shared()) {
                    (false, _) => Backing::Anonymous,
                    (true, false) => Backing::Private,
                    (true, true) => Backing::Shared,
                },
                runs: own,
            });
        }
        let [met, kept] = self.weight.map(|bytes| bytes as f64);
        let share = if self.sample.share >= 1.0 || kept == 0.0 { 1.0 } else { kept / met };
        Imported { layout, share, left_out: self.left_out }
    }

    /// Returns the number in the layout of each kept page table. If all are kept, those that shared
    /// an upper page table still do. Otherwise they get consecutive numbers, so that a sample of
    /// scattered tables does not need an upper page table for each.
    fn places(&self) -> BTreeMap<u64, u64> {
        let mut upper = BTreeMap::new();
        let place = |(n, table): (usize, &u64)| match self.sample.share {
            1.0.. => {
                let next = upper.len() as u64;
                (*table, *upper.entry(table / TABLES).or_insert(next) * TABLES + table % TABLES)
            }
            _ => (*table, n as u64),
        };
        self.kept.iter().enumerate().map(place).collect()
    }
}

#[cfg(test)]
mod tests {
    use procfs::process::MMPermissions;

    use super::*;
    use vellum_linux::workload::layout::Folios;

    const GIB: u64 = 1 << 30;

    fn vma(start: u64, end: u64) -> VmaSurvey {
        let permissions = MMPermissions::READ | MMPermissions::WRITE | MMPermissions::PRIVATE;
        let vma = Vma { start, end, permissions, name: String::new(), file: false, inode: (0, 0, 0), page: PAGE };
        VmaSurvey { vma, resident: 0, swapped: 0, huge: 0, zero: 0, used: 0, empty: 0 }
    }

    fn imported(vmas: &[(u64, u64)], pages: &[(u64, u64)], share: f64) -> Imported {
        let mut import = Import::within(1000, (share * 1000.0) as u64);
        for (start, end) in pages {
            let region = Region { start: *start, end: *end, categories: Categories::PRESENT };
            import.pages(&region, &vma(*start, *end).vma, 0);
        }
        import.finish(&vmas.iter().map(|(start, end)| vma(*start, *end)).collect::<Vec<_>>())
    }

    /// Asserts that VMAs and runs are disjoint and ordered, and keep their offsets in page tables.
    fn assert_sound(layout: &Layout) {
        assert!(layout.vmas.windows(2).all(|pair| pair[0].end <= pair[1].start), "{layout:x?}");
        for vma in &layout.vmas {
            assert!(vma.start < vma.end);
            assert!(
                vma.runs.iter().all(|run| vma.start <= run.start && run.start < run.end && run.end <= vma.end),
                "{vma:x?}"
            );
            assert!(vma.runs.windows(2).all(|pair| pair[0].end <= pair[1].start), "{vma:x?}");
        }
    }

    #[test]
    fn pages_that_share_a_page_table_still_share_it() {
        let at = 0x7f12_3450_0000;
        let vmas = [(at, at + 4 * PAGE), (at + 6 * PAGE, at + 8 * PAGE), (at + 5 * GIB, at + 6 * GIB)];
        let pages =
            [(at, at + PAGE), (at + 7 * PAGE, at + 8 * PAGE), (at + 5 * GIB + 3 * PAGE, at + 5 * GIB + 4 * PAGE)];
        let Imported { layout, left_out, .. } = imported(&vmas, &pages, 1.0);
        assert_sound(&layout);
        assert_eq!((layout.vmas.len(), left_out), (3, 0));
        // Two of the last level, and one above each, under one.
        assert_eq!(layout.tables(), 2 + 2 + 1);
        assert_eq!(layout.bytes(Folios::AsIs), 3 * PAGE);
    }

    #[test]
    fn a_share_of_the_page_tables_of_a_large_process_is_kept() {
        let vmas: Vec<(u64, u64)> = (0..1000).map(|n| (n * GIB, n * GIB + 4 * TABLE_SPAN)).collect();
        let pages: Vec<(u64, u64)> = vmas[..500].iter().map(|(start, _)| (*start, start + TABLE_SPAN + PAGE)).collect();
        let Imported { layout, share, .. } = imported(&vmas, &pages, 0.25);
        assert_sound(&layout);
        let bytes = layout.bytes(Folios::AsIs) + layout.runs().count() as u64 * PAGE;
        let all = pages.iter().map(|(start, end)| end - start + 2 * PAGE).sum::<u64>();
        assert_eq!(share, bytes as f64 / all as f64);
        // Full page tables alternate with others, and neither may be preferred.
        assert!((0.2..0.3).contains(&share), "{share}");
        // VMAs without pages too: a process with many VMAs pays for each.
        let bare = layout.vmas.iter().filter(|vma| vma.runs.is_empty()).count();
        assert!((124..=126).contains(&bare), "{bare}");
    }

    #[test]
    fn an_empty_page_table_is_copied_with_its_vma() {
        let at = 3 * GIB + 100 * PAGE;
        let mut import = Import::within(1, 1);
        import.empty_table(3 * GIB);
        let Imported { layout, .. } = import.finish(&[vma(at, at + GIB)]);
        assert_sound(&layout);
        assert_eq!(layout.vmas[0].runs.iter().map(|run| run.kind).collect::<Vec<_>>(), [PageKind::Table]);
        assert_eq!((layout.tables(), layout.bytes(Folios::AsIs)), (3, 0));
    }

    #[test]
    fn layouts_of_random_processes_are_sound() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..500 {
            let (mut vmas, mut pages, mut at) = (Vec::new(), Vec::new(), GIB);
            for _ in 0..random.u64(1..40) {
                at += random.choice(&[0, PAGE, 300 * PAGE, TABLE_SPAN, 3 * GIB]).unwrap();
                let len = random.choice(&[1, 3, 511, 512, 700, 5000]).unwrap() * PAGE;
                vmas.push((at, at + len));
                let mut within = at;
                while within < at + len {
                    let end = (within + random.u64(1..600) * PAGE).min(at + len);
                    if random.bool() {
                        pages.push((within, end));
                    }
                    within = end;
                }
                at += len;
            }
            let share = *random.choice(&[1.0, 0.5, 0.1]).unwrap();
            let layout = imported(&vmas, &pages, share).layout;
            assert_sound(&layout);
            if share == 1.0 {
                let seen: u64 = pages.iter().map(|(start, end)| end - start).sum();
                assert_eq!(layout.bytes(Folios::AsIs), seen);
                assert_eq!(layout.vmas.len(), vmas.len());
            }
        }
    }
}
