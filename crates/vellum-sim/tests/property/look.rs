//! Looking at a space through the engine's own questions, while others are at work there: what is said of a plot is the
//! model's, at any time.

use std::ops::Range;

use vellum::addr::VirtRange;
use vellum::arch::Attrs;
use vellum::space::QueryError;
use vellum::vma::Vma;

use super::expect;
use super::host::Host;
use super::model::{Kind, ModelVma};
use super::plot::{Plot, Scene};
use super::presence::Presence;
use super::walk::Space;

impl Plot {
    /// The engine's VMAs and resident pages of this range are the model's.
    pub fn check<H: Host>(&self, on: &Scene<'_, '_, H>, pages: &Range<u64>) {
        let vmas = self.model.vmas(pages.clone());
        assert_eq!(vmas_in(on.space, self.bounds.page_shift, pages), vmas, "the VMAs of {pages:x?}");
        let mut answer = vec![false; vmas.iter().map(|(a, _)| (a.end - a.start) as usize).max().unwrap_or(0)];
        let mut end = pages.start;
        for (vma, _) in &vmas {
            let (addr, len) = self.bytes(vma);
            assert_eq!(on.space.resident(addr, len, &mut answer), Ok(()));
            for (pages, page) in self.model.runs(vma.clone()) {
                let known = match page.presence {
                    Presence::Own if on.may_be_away(page) => None,
                    Presence::Own | Presence::Zeros => Some(true),
                    Presence::Absent | Presence::Guard => Some(false),
                    Presence::Away | Presence::Unknown => None,
                };
                let Some(known) = known else { continue };
                let answers = &answer[(pages.start - vma.start) as usize..(pages.end - vma.start) as usize];
                let wrong = answers.iter().zip(pages).find(|(resident, _)| **resident != known);
                assert_eq!(wrong, None, "whether a page is resident, and which, that is {:?}", page.presence);
            }
            if vma.start > end {
                let (addr, len) = self.bytes(&(end..vma.start));
                let hole = on.space.resident(addr, len, &mut vec![false; (vma.start - end) as usize]);
                assert_eq!(hole, Err(QueryError::NotMapped), "{end:#x} to {:#x}", vma.start);
            }
            end = vma.end;
        }
    }

    /// What programs did is what hardware has recorded, and it is told once.
    pub fn recorded<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>, what: Attrs) {
        let mut told = Vec::new();
        on.space.forget_recorded(self.bounds.range(&pages), what, |range, attrs| told.push((range, attrs)));
        let mut last = 0;
        for (range, attrs) in told {
            assert!(range.start >= last && what.contains(attrs) && !attrs.is_empty(), "{range:?}, {attrs:?}");
            last = range.end;
            let told = range.start >> self.bounds.page_shift..range.end >> self.bounds.page_shift;
            assert!(pages.start <= told.start && told.end <= pages.end, "{told:x?} were not asked for");
            for (at, page) in self.model.runs(told.clone()) {
                assert!(attrs.contains(page.recorded & what), "pages {at:x?}: {:?}, not {attrs:?}", page.recorded);
            }
            self.model.each(told, |page| page.recorded -= what);
        }
        self.check(on, &pages);
    }

    /// All questions about the whole space; where nobody else has a plot there, with exact answers.
    pub fn query<H: Host>(&self, on: &Scene<'_, '_, H>) {
        for window in &self.windows {
            self.check(on, &window.pages);
        }
        self.elsewhere.iter().for_each(|vma| self.check(on, vma));
        let stats = on.space.stats();
        let page = 1 << self.bounds.page_shift;
        assert!(stats.mapped >= self.model.len() * page && stats.locked <= stats.mapped, "{stats:?}");
        let everything = VirtRange { start: 0, end: self.bounds.user_end };
        // Nothing may fail while runs are shown: a table is locked then.
        let (mut at, mut astray) = (0, None);
        on.space.runs(everything, |run| {
            let end = run.range(on.space.arch()).end;
            if run.va > at || end <= at {
                astray = Some((at, *run));
            }
            at = end;
        });
        assert_eq!(astray, None, "a run that does not begin where the one before it ends");
        assert!(at >= everything.end);
        if self.bounds.alone {
            let vmas = self.model.vmas(0..u64::MAX);
            assert_eq!(vmas_in(on.space, self.bounds.page_shift, &(0..u64::MAX >> self.bounds.page_shift)), vmas);
            assert_eq!((stats.mapped, stats.vmas), (self.model.len() * page, vmas.len()));
            assert_eq!(stats.locked, expect::locked(&self.model) * page);
            assert!(stats.peak >= stats.anon, "{stats:?}");
        }
        let known = || self.model.all().all(|(_, page)| page.presence != Presence::Unknown);
        if self.bounds.alone && self.exact && !on.uncertain() && known() {
            let count = |wanted| self.model.count(0..u64::MAX, |page| page.presence == wanted) * page;
            let (own, away) = (count(Presence::Own), count(Presence::Away));
            let usage = on.space.usage(everything);
            assert_eq!((usage.resident, usage.swap), (stats.anon, stats.swap));
            assert_eq!(stats.anon + stats.swap, own + away);
            assert!(stats.anon >= own, "{own} of {stats:?}");
        }
    }
}

/// The engine's VMAs, in pages, cut at the ends of a range.
pub fn vmas_in<H: Host>(space: &Space<'_, H>, page_shift: u32, pages: &Range<u64>) -> Vec<ModelVma> {
    let mut vmas = Vec::new();
    let mut last = 0;
    space.vmas(pages.start << page_shift, |&Vma { range, prot, flags, advice, backing, .. }| {
        assert!(range.start >= last && range.end > range.start, "{range:?} after a VMA that ends at {last:#x}");
        last = range.end;
        let (start, end) = ((range.start >> page_shift).max(pages.start), (range.end >> page_shift).min(pages.end));
        if start < end {
            let moved = backing.offset(range.start).wrapping_sub(range.start) as i64 >> page_shift;
            vmas.push((start..end, Kind { prot, flags, advice, moved: moved as u64 }));
        }
        range.end >> page_shift < pages.end
    });
    vmas
}
