//! The model: a map from page numbers to what a program is promised of each page. No runs, no areas, no tables: areas are
//! what neighbouring pages that agree make.

use std::collections::BTreeMap;
use std::ops::Range;

use vellum::addr::PhysAddr;
use vellum::arch::Attrs;
use vellum::frame::policy::Advice;
use vellum::vma::{AreaFlags, Prot};

use super::contents::{Contents, NOTHING, Words};
use super::presence::Presence;
use super::walk::Place;

/// Where in a page words are written and looked at: at its ends, and around places where small folios of other page sizes
/// would begin.
pub const SLOTS: [u64; 8] = [0, 1, 63, 64, 255, 256, 510, 511];

/// What an area says of its pages. Neighbours that agree in it are one area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    pub prot: Prot,
    pub flags: AreaFlags,
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
        (self.presence, self.recorded, self.untold) = (Presence::Unknown, Attrs::empty(), false);
    }

    /// What is in it is forgotten.
    pub fn clear(&mut self) {
        (self.contents, self.recorded, self.untold) = (Contents::NOTHING, Attrs::empty(), false);
    }
}

/// An area: pages, by number.
pub type Area = (Range<u64>, Kind);

/// Mapped pages by number.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pages: BTreeMap<u64, Page>,
    /// How what is mapped from now on is locked.
    pub future: AreaFlags,
}

impl Model {
    pub fn get(&self, page: u64) -> Option<&Page> {
        self.pages.get(&page)
    }

    pub fn get_mut(&mut self, page: u64) -> Option<&mut Page> {
        self.pages.get_mut(&page)
    }

    /// How many pages are mapped.
    pub fn len(&self) -> u64 {
        self.pages.len() as u64
    }

    /// The pages of a range that are mapped.
    pub fn iter(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Page)> {
        self.pages.range(range).map(|(at, page)| (*at, page))
    }

    /// The same, to change.
    pub fn iter_mut(&mut self, range: Range<u64>) -> impl Iterator<Item = (u64, &mut Page)> {
        self.pages.range_mut(range).map(|(at, page)| (*at, page))
    }

    /// All pages.
    pub fn all(&self) -> impl Iterator<Item = (u64, &Page)> {
        self.iter(0..u64::MAX)
    }

    /// Map new pages, in place of what is there.
    pub fn map(&mut self, range: Range<u64>, kind: Kind, presence: Presence) {
        let page = Page { kind, contents: Contents::NOTHING, presence, recorded: Attrs::empty(), untold: false };
        self.pages.extend(range.map(|at| (at, page)));
    }

    pub fn unmap(&mut self, range: Range<u64>) {
        let gone: Vec<u64> = self.iter(range).map(|(at, _)| at).collect();
        for at in gone {
            self.pages.remove(&at);
        }
    }

    /// Take the pages of a range, by number.
    pub fn take(&mut self, range: Range<u64>) -> Vec<(u64, Page)> {
        let taken = self.iter(range.clone()).map(|(at, page)| (at, *page)).collect();
        self.unmap(range);
        taken
    }

    /// Put a page somewhere.
    pub fn put(&mut self, at: u64, page: Page) {
        self.pages.insert(at, page);
    }

    /// Forget what is in the pages of a range.
    pub fn forget(&mut self, range: Range<u64>, presence: Presence) {
        for (_, page) in self.iter_mut(range) {
            page.clear();
            if page.presence != Presence::Guard {
                page.presence = presence;
            }
        }
    }

    /// A program has used a page. Of what is not surely its own no record is kept: zeros may go, and the record with them.
    pub fn record(&mut self, at: u64, write: bool) {
        if let Some(page) = self.get_mut(at).filter(|page| page.presence == Presence::Own) {
            page.recorded |= if write { Attrs::HARDWARE } else { Attrs::ACCESSED };
        }
    }

    /// What these pages hold may go as long as nobody writes to it, and what was swapped out is gone.
    pub fn free(&mut self, range: Range<u64>) {
        for (_, page) in self.iter_mut(range).filter(|(_, page)| page.presence != Presence::Guard) {
            page.contents.let_go();
            (page.recorded, page.untold) = (Attrs::empty(), false);
            if page.presence == Presence::Away {
                page.presence = Presence::Unknown;
            }
        }
    }

    /// Whether every page of the range is mapped.
    pub fn covers(&self, range: Range<u64>) -> bool {
        let pages = range.end - range.start;
        self.pages.range(range).count() as u64 == pages
    }

    /// Whether `range` lies in one area.
    pub fn in_one_area(&self, range: Range<u64>) -> bool {
        let Some(first) = self.get(range.start) else {
            return false;
        };
        let alike = self.iter(range.clone()).take_while(|(_, page)| page.kind == first.kind);
        alike.count() as u64 == range.end - range.start
    }

    /// The areas of a range, cut at its ends.
    pub fn areas(&self, range: Range<u64>) -> Vec<Area> {
        areas_of(self.iter(range))
    }

    /// The area that holds this mapped page, in full.
    pub fn area_at(&self, page: u64) -> Option<Area> {
        let kind = self.get(page)?.kind;
        let alike = |at: &u64| self.get(*at).is_some_and(|p| p.kind == kind);
        let start = (0..page).rev().take_while(alike).last().unwrap_or(page);
        let end = (page..).take_while(alike).last().map_or(page, |last| last + 1);
        Some((start..end, kind))
    }

    /// What a child has of it.
    pub fn child(&self, fresh: Presence) -> Model {
        let mut child = Model { future: AreaFlags::empty(), ..self.clone() };
        child.pages.retain(|_, page| !page.kind.flags.contains(AreaFlags::DONTFORK));
        for page in child.pages.values_mut() {
            page.kind.flags -= AreaFlags::LOCKS | AreaFlags::WATCHES;
            if page.kind.flags.contains(AreaFlags::WIPEONFORK) {
                page.clear();
                page.presence = fresh;
            }
        }
        child
    }

    /// The first mapped page from here on.
    pub fn next(&self, page: u64) -> Option<u64> {
        self.pages.range(page..).next().map(|(at, _)| *at)
    }

    /// The last mapped page before this one.
    pub fn prev(&self, page: u64) -> Option<(u64, &Page)> {
        self.pages.range(..page).next_back().map(|(at, page)| (*at, page))
    }
}

/// The areas that pages in ascending order make.
pub fn areas_of<'a>(pages: impl Iterator<Item = (u64, &'a Page)>) -> Vec<Area> {
    let mut areas: Vec<Area> = Vec::new();
    for (at, page) in pages {
        match areas.last_mut() {
            Some((range, kind)) if range.end == at && *kind == page.kind => range.end += 1,
            _ => areas.push((at..at + 1, page.kind)),
        }
    }
    areas
}
