//! Which pages are resident: what the engine's rules for folio sizes say of each fault, page by page.
//!
//! * A write to a page that was never touched brings the largest folio that policy allows for the area, whose naturally
//!   aligned block lies in the area and is empty.
//! * A read maps zeros: as large a block, but no larger than the machine's folio of zeros.
//! * A write where zeros are mapped takes away all zeros of the largest block that policy allows in the area, empty or not,
//!   and goes on as if the page had never been touched.
//!
//! That is exact where nobody else has faults in the same area and memory does not run out. Elsewhere a page is sure to be
//! resident once it was written, until it is unmapped or forgotten; of others nothing is known.

use std::ops::Range;

use vellum::frame::policy::Advice;

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
    /// One of these.
    Unknown,
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
    /// The sizes that an area with this advice may use, the largest first, and last of all a page.
    fn sizes(&self, advice: Advice) -> impl Iterator<Item = u32> + use<> {
        let set = self.orders[advice as usize] | 1;
        (0..u32::BITS).rev().filter(move |order| set >> order & 1 == 1)
    }

    /// What a page is when it was just mapped.
    pub fn fresh(&self) -> Presence {
        if self.exact { Presence::Absent } else { Presence::Unknown }
    }
}

/// The naturally aligned block of `1 << order` pages around a page.
fn block(page: u64, order: u32) -> Range<u64> {
    let start = page >> order << order;
    start..start + (1 << order)
}

impl Model {
    /// A mapped page was read (or executed) or written, and that was allowed.
    pub fn touch(&mut self, page: u64, write: bool, rules: &Rules) {
        let Some(&super::model::Page { kind, presence, .. }) = self.get(page) else { return };
        if !rules.exact {
            if write {
                self.set(page..page + 1, Presence::Own);
            }
            return;
        }
        match presence {
            Presence::Own => return,
            Presence::Zeros | Presence::Unknown if !write => return,
            Presence::Absent => {}
            Presence::Zeros | Presence::Unknown => {
                let sizes = rules.sizes(kind.advice);
                let largest = sizes.map(|order| block(page, order)).find(|b| self.in_one_area(b.clone()));
                for (_, near) in self.iter_mut(largest.unwrap_or(page..page + 1)) {
                    if near.presence == Presence::Zeros {
                        near.presence = Presence::Absent;
                    }
                }
                self.set(page..page + 1, Presence::Absent);
            }
        }
        let (order, certain) = self.room(page, kind.advice, rules);
        let (order, brought) =
            if write { (order, Presence::Own) } else { (order.min(rules.zeros), Presence::Zeros) };
        if certain {
            self.set(block(page, order), brought);
        } else {
            self.blur(block(page, order));
            self.set(page..page + 1, if write { Presence::Own } else { Presence::Unknown });
        }
    }

    /// The size of the folio that a fault brings, and whether that is certain: a larger block may be empty or not.
    fn room(&self, page: u64, advice: Advice, rules: &Rules) -> (u32, bool) {
        for order in rules.sizes(advice) {
            let block = block(page, order);
            if !self.in_one_area(block.clone()) {
                continue;
            }
            let has = |wanted: &[Presence]| self.iter(block.clone()).any(|(_, p)| wanted.contains(&p.presence));
            if !has(&[Presence::Own, Presence::Zeros]) {
                return (order, !has(&[Presence::Unknown]));
            }
        }
        (0, true)
    }

    /// Something ended halfway: nothing but what is the space's own for sure is known of these pages any more.
    pub fn blur(&mut self, pages: Range<u64>) {
        for (_, page) in self.iter_mut(pages) {
            if page.presence != Presence::Own {
                page.presence = Presence::Unknown;
            }
        }
    }

    fn set(&mut self, pages: Range<u64>, presence: Presence) {
        self.iter_mut(pages).for_each(|(_, page)| page.presence = presence);
    }
}
