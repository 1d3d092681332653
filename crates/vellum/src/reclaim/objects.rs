//! Reclaims folios of page-cache objects.
//!
//! The descriptor of such a folio names its object and the index of its first page in the object
//! ([`crate::page_cache`]). So reclaim groups the victims by object, and searches the spaces that
//! map an object once for all of its victims. It first checks the PTEs of the victims for accessed
//! bits, and then unmaps the victims that are not young from every space. At last the object writes
//! them to swap, or drops them ([`Object::evict`]). At that point they must have no mapping, and no
//! references except the object's and the reclaimer's (INV-16). A folio stays in memory if a locked
//! VMA maps it, or if it has another reference.

use core::ops::Range;

use arrayvec::ArrayVec;

use crate::addr::VirtRange;
use crate::frame::flag;
use crate::page_cache::{self, Object};
use crate::platform::Platform;
use crate::space::{AddressSpace, ISOLATION_BATCH, IsolationBatch, Rmap, Spaces, each_mapper};
use crate::vma::Vma;

use super::{Reclaim, Spares, Victim};

impl Victim<'_> {
    /// Records for a folio of a file that reclaim has scanned it: decides whether it is active from
    /// now on. The caller has isolated the folio, and puts it on the list that follows from this.
    fn age(&self, spares: Spares) {
        let frame = self.frame;
        match spares {
            Spares::None => {}
            // The first time that it is found young is its first use, or the second if it was read.
            Spares::Young if !self.young => {}
            Spares::Young => {
                if frame.set_flag(flag::REFERENCED) {
                    frame.clear_flag(flag::REFERENCED);
                    frame.set_flag(flag::ACTIVE);
                }
            }
            Spares::Active => {
                if !self.young && !frame.has(flag::REFERENCED) {
                    frame.clear_flag(flag::ACTIVE);
                }
                frame.clear_flag(flag::REFERENCED);
            }
        }
    }
}

impl<'m, P: Platform, S: Spaces<'m, P> + ?Sized> Reclaim<'_, 'm, P, S> {
    /// Reclaims victims of page-cache objects, one object at a time. Skips victims that another CPU
    /// has removed from their object meanwhile: [`IsolationBatch::putback`] frees those that are
    /// not in use any more.
    pub(super) fn reclaim_objects(&self, victims: &mut [Victim<'m>], isolated: IsolationBatch, spares: Spares) {
        victims.sort_unstable_by_key(|victim| victim.rmap_key);
        let mut rest = victims;
        while let Some(first) = rest.first() {
            let object = Object::from_folio(self.machine, first.frame);
            let same = |victim: &&Victim<'m>| object.as_ref().is_some_and(|object| object.owns(victim.frame));
            let count = rest.iter().take_while(same).count().max(1);
            let (same_object, others) = rest.split_at_mut(count);
            if let Some(object) = object {
                self.reclaim_object(&object, same_object, isolated, spares);
            }
            rest = others;
        }
    }

    /// Reclaims victims of one object, in the order of their pages: unmaps them in every space, and
    /// has the object write them to swap. If it spares young ones, it first checks the accessed
    /// bits of all PTEs that map the victims.
    fn reclaim_object(
        &self,
        object: &Object<'m, P>,
        victims: &mut [Victim<'m>],
        isolated: IsolationBatch,
        spares: Spares,
    ) {
        if spares != Spares::None {
            self.object_rmap_walk(object, victims, |space, vma, victims| {
                for victim in victims {
                    let range = Rmap::of(space).mapped_part(vma, object, &pages_of(object, victim));
                    victim.young |= range.is_some_and(|range| Rmap::of(space).clear_young(*range, victim.head).young);
                }
            });
        }
        victims.iter().filter(|victim| victim.frame.has(flag::FILE)).for_each(|victim| victim.age(spares));
        if spares == Spares::Active {
            return;
        }
        victims.sort_unstable_by_key(|victim| (victim.young, victim.rmap_key));
        let old = victims.partition_point(|victim| !victim.young);
        let old = &mut victims[..old];
        self.object_rmap_walk(object, old, |space, vma, victims| {
            let mut ranges = ArrayVec::<VirtRange, ISOLATION_BATCH>::new();
            for range in
                victims.iter().filter_map(|victim| Rmap::of(space).mapped_part(vma, object, &pages_of(object, victim)))
            {
                if !ranges.last_mut().is_some_and(|last| last.merge(&range)) {
                    ranges.push(*range);
                }
            }
            Rmap::of(space).unmap_isolated(&ranges, isolated);
        });
        let unmapped = old.iter().filter(|victim| !isolated.is_locked(victim.frame));
        // The last round ends what spares a page for which an access waits: an access that gave up
        // waiting does not keep it. If this reference to the object is the only one, the object and
        // its pages are about to be freed, so a write would be wasted. If swap has no room for one
        // folio, it has none for the next.
        if !object.is_sole_reference() {
            let _ = object.evict(unmapped.map(|victim| (victim.head, victim.frame)), spares == Spares::None);
        }
    }

    /// Calls `visit` for each VMA that maps a page of an object between the first and the last page
    /// of the victims (Linux: `rmap_walk_file`). Calls it for no VMA if no PTE maps any victim. No
    /// lock is held while `visit` runs.
    fn object_rmap_walk(
        &self,
        object: &Object<'m, P>,
        victims: &mut [Victim<'m>],
        mut visit: impl FnMut(&AddressSpace<'m, P>, &Vma, &mut [Victim<'m>]),
    ) {
        let pages = || victims.iter().map(|victim| pages_of(object, victim));
        let (Some(start), Some(end)) = (pages().map(|pages| pages.start).min(), pages().map(|pages| pages.end).max())
        else {
            return;
        };
        if victims.iter().all(|victim| victim.frame.counts().maps == 0) {
            return;
        }
        each_mapper(self.spaces, object, &mut |space| {
            let mut at = 0;
            while let Some(vma) = Rmap::of(space).next_mapping(object, &(start..end), at) {
                visit(space, &vma, victims);
                at = vma.range.end;
            }
            self.machine.platform().resched();
        });
    }
}

/// Returns the range of an object's pages that a victim holds. The victim is one folio of the
/// object.
fn pages_of<P: Platform>(object: &Object<'_, P>, victim: &Victim<'_>) -> Range<u64> {
    let first = page_cache::folio_index(victim.rmap_key);
    first..first + (1 << (victim.frame.order() - object.page_order()))
}
