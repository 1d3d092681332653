//! Reclaims folios of page-cache objects.
//!
//! A folio names its object and its page there ([`crate::page_cache`]), so all folios of one object
//! are reclaimed together. Every space that maps the object there is first searched for young PTEs,
//! and then unmaps the folios that are not young; the object writes those to swap
//! ([`Object::swap_out`]), with no mapping and no other reference left (INV-16). A folio stays if a
//! locked VMA maps it, or if it has another reference.

use core::ops::Range;

use arrayvec::ArrayVec;

use crate::addr::VirtRange;
use crate::page_cache::{self, Object};
use crate::platform::Platform;
use crate::space::{AddressSpace, ISOLATION_BATCH, IsolationBatch, Rmap, Spaces, each_mapper};
use crate::vma::Vma;

use super::{Reclaim, Victim};

impl<'m, P: Platform, S: Spaces<'m, P> + ?Sized> Reclaim<'_, 'm, P, S> {
    /// Reclaims victims of page-cache objects, one object at a time. A victim whose object is gone
    /// by now is left to [`IsolationBatch::putback`].
    pub(super) fn reclaim_objects(&self, victims: &mut [Victim<'m>], isolated: IsolationBatch, spare_young: bool) {
        victims.sort_unstable_by_key(|victim| victim.rmap_key);
        let mut rest = victims;
        while let Some(first) = rest.first() {
            let object = Object::from_folio(self.machine, first.frame);
            let same = |victim: &&Victim<'m>| object.as_ref().is_some_and(|object| object.owns(victim.frame));
            let count = rest.iter().take_while(same).count().max(1);
            let (same_object, others) = rest.split_at_mut(count);
            if let Some(object) = object {
                self.reclaim_object(&object, same_object, isolated, spare_young);
            }
            rest = others;
        }
    }

    /// Reclaims victims of one object, in the order of their pages: unmaps them in every space, and
    /// has the object write them to swap. With `spare_young`, first checks every mapping, and
    /// leaves the victims that are young.
    fn reclaim_object(
        &self,
        object: &Object<'m, P>,
        victims: &mut [Victim<'m>],
        isolated: IsolationBatch,
        spare_young: bool,
    ) {
        if spare_young {
            self.object_rmap_walk(object, victims, |space, vma, victims| {
                for victim in victims {
                    let range = Rmap::of(space).mapped_part(vma, object, &pages_of(object, victim));
                    victim.young |= range.is_some_and(|range| Rmap::of(space).clear_young(*range, victim.head).young);
                }
            });
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
        for victim in old.iter().filter(|victim| !isolated.is_locked(victim.frame)) {
            // An object without other users is about to free its pages anyway. And without room in
            // swap for one folio there is none for the next.
            if object.is_sole_reference() || object.swap_out(victim.head, victim.frame).is_err() {
                break;
            }
        }
    }

    /// Calls `visit` for each VMA that maps pages of an object between the victims' first and last
    /// one (Linux: `rmap_walk_file`), unless no victim is mapped at all. No lock is held while
    /// `visit` runs.
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

/// Returns the pages of an object that are in a victim, which is one folio of the object.
fn pages_of<P: Platform>(object: &Object<'_, P>, victim: &Victim<'_>) -> Range<u64> {
    let first = page_cache::folio_index(victim.rmap_key);
    first..first + (1 << (victim.frame.order() - object.page_order()))
}
