//! The model: a map from page numbers to what a program is promised of each page. No VMAs, no
//! tables: VMAs are what neighbouring pages that agree make. Pages of which all is the same are
//! kept as one, and that is all it knows of runs.

use std::collections::BTreeMap;
use std::ops::Range;

use vellum::addr::PhysAddr;
use vellum::arch::Attrs;
use vellum::frame::policy::Advice;
use vellum::vma::{Prot, VmaFlags};

use super::contents::{Contents, NOTHING, Words};
use super::dice::Dice;
use super::presence::Presence;
use super::walk::Place;

/// Where in a page words are written and looked at: at its ends, and around places where small folios of other page sizes
/// would begin.
pub const SLOTS: [u64; 8] = [0, 1, 63, 64, 255, 256, 510, 511];

/// What a VMA says of its pages. Neighbours that agree in it are one VMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub prot: Prot,
    pub flags: VmaFlags,
    pub advice: Advice,
    /// How many pages above where it is it was mapped first (wrapping around).
    pub moved: u64,
}

/// A mapped page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    pub kind: Kind,
    pub contents: Contents,
    pub presence: Presence,
    /// What hardware has to have recorded of the page: what programs did there since it was last forgotten.
    pub recorded: Attrs,
    /// Whether a program has written to it since somebody was told of that.
    pub untold: bool,
}

impl Page {
    /// It was forgotten, or not; where its contents are tells. (Those of a slot others may bring back meanwhile.)
    /// A guard outlives that.
    pub fn look_again(&mut self, at: u64, place: Place, words: impl Fn(PhysAddr) -> Words) {
        match place {
            Place::Nowhere => self.clear(),
            Place::Memory(pa) => {
                let found = words(pa);
                if !self.contents.see(|words| *words == found) {
                    assert_eq!(found, NOTHING, "page {at:#x}, not {:x?}", self.contents);
                    self.clear();
                }
            }
            Place::Swap(_) => {}
        }
        self.know_nothing_but_guards();
    }

    /// Where its contents are, and what is recorded of them, is not known any more. A guard stays one.
    pub fn know_nothing_but_guards(&mut self) {
        if self.presence != Presence::Guard {
            self.presence = Presence::Unknown;
        }
        (self.recorded, self.untold) = (Attrs::empty(), false);
    }

    /// What is in it is forgotten.
    pub fn clear(&mut self) {
        (self.contents, self.recorded, self.untold) = (Contents::NOTHING, Attrs::empty(), false);
    }
}

/// A VMA: pages, by number.
pub type ModelVma = (Range<u64>, Kind);

/// Pages next to each other, by number, of which the model says the same.
#[derive(Clone, Debug)]
struct Run {
    end: u64,
    page: Page,
}

/// Mapped pages by number: kept as runs, of which no two that touch say the same.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// By the first page of each.
    runs: BTreeMap<u64, Run>,
    /// How what is mapped from now on is locked.
    pub future: VmaFlags,
}

impl Model {
    pub fn get(&self, page: u64) -> Option<&Page> {
        self.run_at(page).map(|(_, page)| page)
    }

    /// Returns the run that a mapped page is in, in full.
    pub fn run_at(&self, page: u64) -> Option<(Range<u64>, &Page)> {
        let (start, run) = self.runs.range(..=page).next_back()?;
        (page < run.end).then_some((*start..run.end, &run.page))
    }

    /// How many pages are mapped.
    pub fn len(&self) -> u64 {
        self.count(0..u64::MAX, |_| true)
    }

    /// Counts the mapped pages of a range that are like this.
    pub fn count(&self, range: Range<u64>, like: impl Fn(&Page) -> bool) -> u64 {
        self.runs(range).filter(|(_, page)| like(page)).map(|(pages, _)| pages.end - pages.start).sum()
    }

    /// The mapped pages of a range, by runs, cut at its ends.
    pub fn runs(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, &Page)> {
        let first = self.run_at(range.start).map_or(range.start, |(pages, _)| pages.start);
        let first = if range.is_empty() { range.start } else { first };
        let inside = self.runs.range(first..range.end.max(first));
        inside.map(move |(start, run)| ((*start).max(range.start)..run.end.min(range.end), &run.page))
    }

    /// All pages, by runs.
    pub fn all(&self) -> impl Iterator<Item = (Range<u64>, &Page)> {
        self.runs(0..u64::MAX)
    }

    /// Changes each mapped page of a range.
    pub fn each(&mut self, range: Range<u64>, change: impl Fn(&mut Page)) {
        let changed = |(pages, page): (Range<u64>, &Page)| {
            let mut new = *page;
            change(&mut new);
            (new != *page).then_some((pages, new))
        };
        let changed: Vec<_> = self.runs(range.clone()).filter_map(changed).collect();
        if !changed.is_empty() {
            changed.into_iter().for_each(|(pages, page)| self.insert(pages, page));
            self.join(range);
        }
    }

    /// Changes each mapped page of a range as its number decides.
    pub fn each_at(&mut self, range: Range<u64>, mut change: impl FnMut(u64, &mut Page)) {
        let pages: Vec<(u64, Page)> =
            self.runs(range.clone()).flat_map(|(pages, page)| pages.map(|at| (at, *page))).collect();
        for (at, mut page) in pages {
            change(at, &mut page);
            if self.get(at) != Some(&page) {
                self.insert(at..at + 1, page);
            }
        }
        self.join(range);
    }

    /// Changes one page, if it is mapped; `change` answers whether that could be. Returns its answer,
    /// and the page as it was.
    pub fn change(&mut self, at: u64, change: impl FnOnce(&mut Page) -> bool) -> Option<(bool, Page)> {
        let page = *self.get(at)?;
        let mut new = page;
        let could = change(&mut new);
        if new != page {
            self.put(at..at + 1, new);
        }
        Some((could, page))
    }

    /// Map new pages, in place of what is there.
    pub fn map(&mut self, range: Range<u64>, kind: Kind, presence: Presence) {
        self.put(range, Page { kind, contents: Contents::NOTHING, presence, recorded: Attrs::empty(), untold: false });
    }

    pub fn unmap(&mut self, range: Range<u64>) {
        self.take(range);
    }

    /// Take the pages of a range, by runs.
    pub fn take(&mut self, range: Range<u64>) -> Vec<(Range<u64>, Page)> {
        if range.is_empty() {
            return Vec::new();
        }
        self.split(range.start);
        self.split(range.end);
        let starts: Vec<u64> = self.runs.range(range).map(|(start, _)| *start).collect();
        let taken = |start| self.runs.remove(&start).map(|run| (start..run.end, run.page));
        starts.into_iter().filter_map(taken).collect()
    }

    /// Put the same page at each of these places.
    pub fn put(&mut self, pages: Range<u64>, page: Page) {
        if !pages.is_empty() {
            self.insert(pages.clone(), page);
            self.join(pages);
        }
    }

    fn insert(&mut self, pages: Range<u64>, page: Page) {
        match self.runs.get_mut(&pages.start) {
            Some(run) if run.end == pages.end => run.page = page,
            _ => {
                self.unmap(pages.clone());
                self.runs.insert(pages.start, Run { end: pages.end, page });
            }
        }
    }

    /// No run goes across the beginning of this page any more.
    fn split(&mut self, at: u64) {
        if let Some((start, run)) = self.runs.range_mut(..at).next_back().filter(|(_, run)| at < run.end) {
            assert!(*start < at);
            let rest = Run { ..*run };
            run.end = at;
            self.runs.insert(at, rest);
        }
    }

    /// Runs in this range, and next to it, that continue each other become one.
    fn join(&mut self, range: Range<u64>) {
        let first = self.runs.range(..range.start).next_back().map_or(range.start, |(start, _)| *start);
        // By the first page of each: those that continue the one before, and those that are longer for it.
        let (mut gone, mut longer) = (Vec::new(), Vec::new());
        let mut last: Option<(u64, &Run)> = None;
        for (start, run) in self.runs.range(first..=range.end) {
            match last {
                Some((head, before)) if before.end == *start && before.page == run.page => {
                    gone.push(*start);
                    longer.push((head, run.end));
                    last = Some((head, run));
                }
                _ => last = Some((*start, run)),
            }
        }
        for start in gone {
            self.runs.remove(&start);
        }
        for (head, end) in longer {
            self.runs.get_mut(&head).expect("the head stays").end = end;
        }
    }

    /// Forget what is in the pages of a range.
    pub fn forget(&mut self, range: Range<u64>, presence: Presence) {
        self.each(range, |page| {
            page.clear();
            if page.presence != Presence::Guard {
                page.presence = presence;
            }
        });
    }

    /// A program has used these pages. The model keeps no record of what is not surely its own: zeros
    /// may go, and the record with them.
    pub fn record(&mut self, pages: Range<u64>, write: bool) {
        let used = if write { Attrs::HARDWARE } else { Attrs::ACCESSED };
        self.each(pages, |page| {
            if page.presence == Presence::Own {
                page.recorded |= used;
            }
        });
    }

    /// What these pages hold may go as long as nobody writes to it, and what was swapped out is gone.
    pub fn free(&mut self, range: Range<u64>) {
        self.each(range, |page| {
            if page.presence == Presence::Guard {
                return;
            }
            page.contents.let_go();
            (page.recorded, page.untold) = (Attrs::empty(), false);
            if page.presence == Presence::Away {
                page.presence = Presence::Unknown;
            }
        });
    }

    /// Whether every page of the range is mapped.
    pub fn covers(&self, range: Range<u64>) -> bool {
        self.hole(range).is_none()
    }

    /// Returns the first page of the range that is not mapped.
    pub fn hole(&self, range: Range<u64>) -> Option<u64> {
        let after = |end, (pages, _): (Range<u64>, _)| if pages.start == end { Ok(pages.end) } else { Err(end) };
        let end = self.runs(range.clone()).try_fold(range.start, after).unwrap_or_else(|end| end);
        (end < range.end).then_some(end)
    }

    /// Whether `range` lies in one VMA.
    pub fn in_one_vma(&self, range: Range<u64>) -> bool {
        let Some(first) = self.get(range.start) else {
            return false;
        };
        let mut end = range.start;
        for (pages, page) in self.runs(range.clone()) {
            if pages.start != end || page.kind != first.kind {
                return false;
            }
            end = pages.end;
        }
        end == range.end
    }

    /// The VMAs of a range, cut at its ends.
    pub fn vmas(&self, range: Range<u64>) -> Vec<ModelVma> {
        vmas_of(self.runs(range))
    }

    /// The VMA that holds this mapped page, in full.
    pub fn vma_at(&self, page: u64) -> Option<ModelVma> {
        let (mut vma, Page { kind, .. }) = self.run_at(page)?;
        for (start, run) in self.runs.range(..vma.start).rev() {
            if run.end != vma.start || run.page.kind != *kind {
                break;
            }
            vma.start = *start;
        }
        for (start, run) in self.runs.range(vma.end..) {
            if *start != vma.end || run.page.kind != *kind {
                break;
            }
            vma.end = run.end;
        }
        Some((vma, *kind))
    }

    /// What a child has of it.
    pub fn child(&self, fresh: Presence) -> Model {
        let mut child = Model { future: VmaFlags::empty(), ..self.clone() };
        child.runs.retain(|_, run| !run.page.kind.flags.contains(VmaFlags::DONTFORK));
        child.each(0..u64::MAX, |page| {
            page.kind.flags -= VmaFlags::LOCKS | VmaFlags::WATCHES;
            if page.kind.flags.contains(VmaFlags::WIPEONFORK) {
                page.clear();
                page.presence = fresh;
            }
        });
        child
    }

    /// The first mapped page from here on.
    pub fn next(&self, page: u64) -> Option<u64> {
        match self.get(page) {
            Some(_) => Some(page),
            None => self.runs.range(page..).next().map(|(start, _)| *start),
        }
    }

    /// The last mapped page before this one.
    pub fn prev(&self, page: u64) -> Option<(u64, &Page)> {
        let (_, run) = self.runs.range(..page).next_back()?;
        Some((run.end.min(page) - 1, &run.page))
    }
}

/// The VMAs that pages in ascending order make.
pub fn vmas_of<'a>(runs: impl Iterator<Item = (Range<u64>, &'a Page)>) -> Vec<ModelVma> {
    let mut vmas: Vec<ModelVma> = Vec::new();
    for (pages, page) in runs {
        match vmas.last_mut() {
            Some((range, kind)) if range.end == pages.start && *kind == page.kind => range.end = pages.end,
            _ => vmas.push((pages, page.kind)),
        }
    }
    vmas
}

/// Runs are a way to keep pages, and tell of each what was said of it.
#[test]
fn runs_are_what_their_pages_are() {
    let dice = &mut Dice::new(7);
    let (mut model, mut pages) = (Model::default(), BTreeMap::new());
    let kind = |moved| Kind { prot: Prot::READ, flags: VmaFlags::empty(), advice: Advice::None, moved };
    for _ in 0..20_000 {
        let start = dice.below(60);
        let range = start..start + dice.below(12);
        match dice.below(6) {
            0 => {
                let (moved, presence) = (dice.below(2), dice.one_of(&[Presence::Own, Presence::Absent]));
                model.map(range.clone(), kind(moved), presence);
                pages.extend(range.clone().filter_map(|at| Some((at, *model.get(at)?))));
            }
            1 => {
                model.unmap(range.clone());
                pages.retain(|at, _| !range.contains(at));
            }
            2 => {
                model.each(range.clone(), |page| page.untold |= page.presence == Presence::Own);
                let mut told = pages.range_mut(range.clone()).filter(|(_, page)| page.presence == Presence::Own);
                told.by_ref().for_each(|(_, page)| page.untold = true);
            }
            3 => {
                model.each_at(range.clone(), |at, page| page.kind.moved = at % 2);
                pages.range_mut(range.clone()).for_each(|(at, page)| page.kind.moved = at % 2);
            }
            4 => {
                let far = dice.below(60);
                let moved = model.take(range.clone());
                moved.into_iter().for_each(|(pages, page)| model.put(pages.start + far..pages.end + far, page));
                let moved: Vec<_> = range.clone().filter_map(|at| Some((at + far, pages.remove(&at)?))).collect();
                pages.extend(moved);
            }
            _ => {
                let told = |page: &mut Page| std::mem::replace(&mut page.untold, false);
                let before = model.change(start, told).map(|(untold, page)| (untold, page.untold));
                assert_eq!(before, pages.get_mut(&start).map(|page| [told(page); 2].into()));
            }
        }
        assert!(
            model
                .all()
                .flat_map(|(run, page)| run.map(move |at| (at, page)))
                .eq(pages.iter().map(|(at, page)| (*at, page)))
        );
        let runs: Vec<_> = model.all().collect();
        assert!(runs.windows(2).all(|pair| pair[0].0.end < pair[1].0.start || pair[0].1 != pair[1].1), "{runs:x?}");
        let of = |at: &u64| pages.get(at).map(|page| page.kind);
        let end = |from: u64| (from..).find(|at| of(at) != of(&from)).unwrap_or(from);
        let first = |from: u64| (0..from).rev().find(|at| of(at) != of(&from)).map_or(0, |at| at + 1);
        let vma = pages.contains_key(&start).then(|| (first(start)..end(start), pages[&start].kind));
        assert_eq!(model.vma_at(start), vma);
        assert_eq!(model.in_one_vma(start..start + 3), of(&start).is_some() && end(start) >= start + 3);
        assert_eq!(model.hole(range.clone()), range.clone().find(|at| !pages.contains_key(at)));
        assert_eq!(model.next(start), pages.range(start..).next().map(|(at, _)| *at));
        assert_eq!(model.prev(start), pages.range(..start).next_back().map(|(at, page)| (*at, page)));
        assert_eq!(model.len(), pages.len() as u64);
    }
}
