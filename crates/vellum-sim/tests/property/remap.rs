//! VMAs that change their size or their place, and what is in them with them.

use std::ops::Range;

use vellum::space::{RemapError, RemapFlags, RemapRequest};
use vellum::vma::{Prot, VmaFlags};

use super::change::ELSEWHERE;
use super::expect::{self, Where};
use super::host::Host;
use super::look::vmas_in;
use super::model::Page;
use super::op::{Span, Spot, Window};
use super::plot::{Plot, Scene};
use super::presence::Presence;

impl Plot {
    /// `remap`.
    pub fn remap<H: Host>(&mut self, on: &Scene<'_, '_, H>, from: Span, pages: u64, flags: RemapFlags, to: u64) {
        if self.elsewhere.len() >= ELSEWHERE {
            self.unmap_whole(on, 0);
        }
        // A part of what the engine placed could leave a hole that another actor's goes to: so that is remapped as a whole.
        let (old, pages) = match from.at {
            Spot::At(page) => (page..page + from.pages, pages),
            Spot::Elsewhere(nth, _) => match self.elsewhere.get(nth as usize % self.elsewhere.len().max(1)) {
                Some(all) if flags.contains(RemapFlags::DONTUNMAP) => (all.clone(), all.end - all.start),
                Some(all) => (all.clone(), pages),
                None => return,
            },
        };
        if flags.contains(RemapFlags::FIXED) {
            // What was meant to fit may not, where more of it is to move than was thought; and stacks stay away from others.
            let stack = self.model.runs(old.clone()).any(|(_, page)| page.kind.flags.contains(VmaFlags::GROWSDOWN));
            let new = to..to + pages;
            let fits = |w: &Window| w.pages.start <= new.start && new.end <= w.pages.end && (w.stacks || !stack);
            if !self.windows.iter().any(fits) {
                return;
            }
        }
        let expected = expect::remap(&self.model, &self.bounds, &old, pages, flags, to);
        let (addr, old_len) = self.bytes(&old);
        let (new_addr, new_len) = self.bytes(&(to..to + pages));
        match (on.space.remap(RemapRequest { addr, old_len, new_len, flags, new_addr }), expected) {
            (Ok(addr), Ok(wanted)) => {
                let start = addr >> self.bounds.page_shift;
                // What lies behind VMAs that the engine placed may be others'.
                let may_move = flags.contains(RemapFlags::MAYMOVE) && !self.bounds.alone && !self.is_mine(&old);
                if let Where::Page(wanted) = wanted {
                    assert!(start == wanted || may_move, "remapped to page {start:#x} and not to {wanted:#x}");
                }
                self.remapped(on, &old, start..start + pages, flags);
            }
            (Err(error), Err(wanted)) if error == wanted => self.check(on, &old),
            (Err(RemapError::Sealed(_)), Err(RemapError::Sealed(_))) if !self.bounds.alone => self.check(on, &old),
            (Err(RemapError::NoMemory(_)), Ok(_)) if on.tight => self.check(on, &old),
            (Err(RemapError::TooManyVmas), Ok(_)) if self.few() => self.check(on, &old),
            (Err(RemapError::NoRoom), Ok(_)) if !self.bounds.alone && !self.is_mine(&old) => self.check(on, &old),
            (got, expected) => panic!("remap answers {got:x?}, not {expected:x?}"),
        }
    }

    /// Pages that have moved so far: a VMA that had nothing is a new one, and others still know where they were mapped first.
    fn at_new_places<H: Host>(
        &self,
        on: &Scene<'_, '_, H>,
        moved: Vec<(Range<u64>, Page)>,
        far: u64,
    ) -> Vec<(Range<u64>, Page)> {
        let mut there: Vec<_> =
            moved.into_iter().map(|(at, page)| (at.start.wrapping_add(far)..at.end.wrapping_add(far), page)).collect();
        let alike = |a: &(Range<u64>, Page), b: &(Range<u64>, Page)| a.0.end == b.0.start && a.1.kind == b.1.kind;
        for vma in there.chunk_by_mut(alike) {
            let has = |(_, page): &(Range<u64>, Page)| match page.presence {
                Presence::Absent => Some(false),
                Presence::Unknown => None,
                Presence::Own | Presence::Away if page.contents.may_go() => None,
                Presence::Zeros | Presence::Own | Presence::Away | Presence::Guard => Some(true),
            };
            let (mut new, mut kept) = (true, true);
            match vma.iter().map(has).max_by_key(|has| has.map_or(1, |has| 2 * u8::from(has))) {
                Some(Some(true)) => new = false,
                Some(Some(false)) => kept = false,
                _ => {}
            }
            let (first, page) = (vma[0].0.start, vma[0].1);
            let moved = page.kind.moved.wrapping_sub(far);
            let seen = vmas_in(on.space, self.bounds.page_shift, &(first..first + 1));
            let found = seen.first().map_or(0, |(_, kind)| kind.moved);
            assert!(new && found == 0 || kept && found == moved, "moved {found:#x}; new: {new}, or {moved:#x}: {kept}");
            vma.iter_mut().for_each(|(_, page)| page.kind.moved = found);
        }
        there
    }

    fn remapped<H: Host>(&mut self, on: &Scene<'_, '_, H>, old: &Range<u64>, new: Range<u64>, flags: RemapFlags) {
        let rules = on.rules(self.exact);
        let kept = old.start..old.end.min(old.start + (new.end - new.start));
        self.elsewhere.retain(|all| all != old || flags.contains(RemapFlags::DONTUNMAP));
        if new.start == old.start {
            self.model.unmap(kept.end..old.end);
        } else {
            let moved = self.model.take(kept.clone());
            if flags.contains(RemapFlags::DONTUNMAP) {
                for (at, page) in &moved {
                    let mut kind = page.kind;
                    kind.flags -= VmaFlags::LOCKS;
                    kind.moved = 0;
                    self.model.map(at.clone(), kind, rules.fresh());
                }
            } else {
                self.model.unmap(old.clone());
            }
            let there = self.at_new_places(on, moved, new.start.wrapping_sub(old.start));
            let alone = self.is_mine(&new) || there.iter().all(|(at, _)| self.model.count(at.clone(), |_| true) == 0);
            assert!(alone, "the engine chose {new:x?}, where something is");
            there.into_iter().for_each(|(at, page)| self.model.put(at, page));
        }
        if !self.is_mine(&new) {
            self.elsewhere.push(new.clone());
        }
        let grown = new.start + (kept.end - kept.start)..new.end;
        let kind = self.model.get(grown.start - 1).map(|page| page.kind);
        if let Some(kind) = kind.filter(|_| !grown.is_empty()) {
            self.model.map(grown.clone(), kind, rules.fresh());
            if kind.flags & VmaFlags::LOCKS == VmaFlags::LOCKED && !kind.prot.is_empty() {
                match on.tight {
                    true => self.model.blur_around(&grown),
                    false => self.model.touch_all(grown, kind.prot.contains(Prot::WRITE), &rules),
                }
            }
        }
        if self.bounds.alone || self.is_mine(old) {
            self.check(on, old);
        }
        self.check(on, &new);
    }
}
