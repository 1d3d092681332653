//! Which pages are resident: what the engine's rules for folio sizes say of each fault, page by page.
//!
//! * A write to a page that was never touched brings the largest folio that policy allows for the VMA, whose naturally
//!   aligned block lies in the VMA and is empty.
//! * A read maps zeros: the largest such block of any size up to the largest allowed, but no larger than the machine's
//!   folio of zeros.
//! * A write where zeros are mapped takes away all zeros of the largest block that policy allows in the VMA, empty or not,
//!   and goes on as if the page had never been touched.
//!
//! That is exact where nobody else has faults in the same VMA, memory does not run out, and none is reclaimed. Elsewhere a page is
//! sure to be resident once it was written, until it is unmapped or forgotten, or swapped out; of others nothing is known.

use std::ops::Range;

use vellum::arch::Attrs;
use vellum::frame::LARGEST_FOLIO;
use vellum::frame::policy::Advice;
use vellum::vma::VmaFlags;

use super::model::Model;

/// What is known of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Not resident.
    Absent,
    /// The folio of zeros is mapped.
    Zeros,
    /// Memory of the space's own.
    Own,
    /// The same, or swapped out.
    Away,
    /// One of these.
    Unknown,
    /// Nothing, and it may not be touched: a guard.
    Guard,
}

/// What decides which pages a fault brings.
pub struct Rules {
    /// Whether presence can be foretold.
    pub exact: bool,
    /// Folio sizes allowed, as bit sets of log2 of pages, by advice.
    pub orders: [u32; 3],
    /// log2 of the pages of the folio of zeros.
    pub zeros: u32,
}

impl Rules {
    /// The sizes that a write in a VMA with this advice may bring.
    fn folios(&self, advice: Advice) -> u32 {
        self.orders[advice as usize] | 1
    }

    /// The sizes of blocks of zeros that a read there may map.
    fn blocks(&self, advice: Advice) -> u32 {
        (2 << self.folios(advice).ilog2().min(self.zeros)) - 1
    }

    /// What a page is when it was just mapped.
    pub fn fresh(&self) -> Presence {
        if self.exact { Presence::Absent } else { Presence::Unknown }
    }
}

/// The sizes of a set, the largest first.
fn sizes(set: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS).rev().filter(move |order| set >> order & 1 == 1)
}

/// The naturally aligned block of `1 << order` pages around a page.
fn block(page: u64, order: u32) -> Range<u64> {
    let start = page >> order << order;
    start..start + (1 << order)
}

impl Model {
    /// A mapped page was read (or executed) or written, and that was allowed.
    pub fn touch(&mut self, page: u64, write: bool, rules: &Rules) {
        let Some(&super::model::Page { kind, presence, .. }) = self.get(page) else {
            return;
        };
        if presence == Presence::Guard {
            return;
        }
        if presence == Presence::Away {
            return self.set(page..page + 1, Presence::Own);
        }
        if !rules.exact || kind.flags.contains(VmaFlags::WRITES) {
            if rules.exact {
                // Of what is protected, a part may come alone.
                self.blur_around(&(page..page + 1));
            }
            if write {
                self.set(page..page + 1, Presence::Own);
            }
            return;
        }
        match presence {
            Presence::Own | Presence::Away | Presence::Guard => return,
            Presence::Unknown => {
                let sizes = sizes(if write { rules.folios(kind.advice) } else { rules.blocks(kind.advice) });
                let largest = { sizes }.map(|order| block(page, order)).find(|b| self.in_one_vma(b.clone()));
                self.blur(largest.unwrap_or(page..page + 1));
                return self.set(page..page + 1, if write { Presence::Own } else { Presence::Unknown });
            }
            Presence::Zeros if !write => return,
            Presence::Absent => {}
            Presence::Zeros => {
                let all = sizes(rules.folios(kind.advice)).map(|order| block(page, order));
                let largest = { all }.find(|b| self.in_one_vma(b.clone()));
                self.each(largest.unwrap_or(page..page + 1), |near| {
                    if near.presence == Presence::Zeros {
                        near.presence = Presence::Absent;
                    }
                });
                self.set(page..page + 1, Presence::Absent);
            }
        }
        let (sizes, brought) = if write {
            (rules.folios(kind.advice), Presence::Own)
        } else {
            (rules.blocks(kind.advice), Presence::Zeros)
        };
        let (order, certain) = self.room(page, sizes);
        if certain {
            self.set(block(page, order), brought);
        } else {
            self.blur(block(page, order));
            self.set(page..page + 1, if write { Presence::Own } else { Presence::Unknown });
        }
    }

    /// As [`Model::touch`], of each of these pages in turn.
    pub fn touch_all(&mut self, pages: Range<u64>, write: bool, rules: &Rules) {
        let mut at = pages.start;
        while at < pages.end {
            self.touch(at, write, rules);
            at = self.touched(at, write, rules).min(pages.end);
        }
    }

    /// A page was touched: from there to the end that this returns, pages are like it, and to touch
    /// them so too changes nothing more.
    pub fn touched(&self, at: u64, write: bool, rules: &Rules) -> u64 {
        let Some((run, page)) = self.run_at(at) else { return at + 1 };
        let stays = match page.presence {
            _ if rules.exact && page.kind.flags.contains(VmaFlags::WRITES) => false,
            Presence::Own | Presence::Guard => true,
            Presence::Zeros => !write,
            Presence::Absent | Presence::Unknown => !write && !rules.exact,
            Presence::Away => false,
        };
        if stays { run.end } else { at + 1 }
    }

    /// The size of what a fault brings, and whether that is certain: a larger block may be empty or not.
    fn room(&self, page: u64, set: u32) -> (u32, bool) {
        for order in sizes(set) {
            let block = block(page, order);
            if !self.in_one_vma(block.clone()) {
                continue;
            }
            let has = |wanted: &[Presence]| self.runs(block.clone()).any(|(_, p)| wanted.contains(&p.presence));
            if !has(&[Presence::Own, Presence::Away, Presence::Zeros, Presence::Guard]) {
                return (order, !has(&[Presence::Unknown]));
            }
        }
        (0, true)
    }

    /// Something ended halfway: nothing but what is the space's own for sure is known of these pages any more.
    pub fn blur(&mut self, pages: Range<u64>) {
        self.each(pages, |page| {
            if !matches!(page.presence, Presence::Own | Presence::Away | Presence::Guard) {
                page.presence = Presence::Unknown;
            }
        });
    }

    /// What these pages hold may have been swapped out, and what hardware has recorded with it.
    pub fn page_out(&mut self, pages: Range<u64>) {
        self.each(pages, |page| {
            if page.presence == Presence::Own {
                let stays = !page.contents.may_go();
                page.presence = if stays { Presence::Away } else { Presence::Unknown };
                page.recorded = Attrs::empty();
            }
        });
    }

    /// That these pages were used may be forgotten.
    pub fn cool(&mut self, pages: Range<u64>) {
        self.each(pages, |page| page.recorded -= Attrs::ACCESSED);
    }

    /// All of these pages are the space's own, whatever they were.
    pub fn own(&mut self, pages: Range<u64>) {
        self.set(pages, Presence::Own);
    }

    /// All that was swapped out is back.
    pub fn swap_in(&mut self) {
        self.each(0..u64::MAX, |page| {
            if page.presence == Presence::Away {
                page.presence = Presence::Own;
            }
        });
    }

    /// As [`Model::blur`], of what faults there may have brought.
    pub fn blur_around(&mut self, pages: &Range<u64>) {
        let reach = 1 << LARGEST_FOLIO;
        self.blur(pages.start.saturating_sub(reach)..pages.end + reach);
    }

    fn set(&mut self, pages: Range<u64>, presence: Presence) {
        self.each(pages, |page| page.presence = presence);
    }
}
