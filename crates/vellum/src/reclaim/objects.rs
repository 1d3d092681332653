//! What memory objects have: a folio says whose it is and where, every space that maps the object there is asked whether it was used and
//! lets go of it, and then the object has it written ([`crate::page_cache`]'s `swap_out`). What is locked somewhere stays, as does what somebody
//! has in hand.

use core::ops::Range;

use arrayvec::ArrayVec;

use crate::addr::VirtRange;
use crate::arch::Arch;
use crate::page_cache::{self, Object};
use crate::platform::Platform;
use crate::space::{AddressSpace, BATCH, Isolated, Rmap, Spaces, each_mapper};
use crate::vma::Vma;

use super::{Reclaim, Victim};

impl<'m, P: Platform, A: Arch, S: Spaces<'m, P, A> + ?Sized> Reclaim<'_, 'm, P, A, S> {
    /// Folios of objects.
    pub(super) fn objects(&self, victims: &mut [Victim<'m>], isolated: Isolated, ages: bool) {
        victims.sort_unstable_by_key(|victim| victim.owner);
        let mut rest = victims;
        while let Some(first) = rest.first() {
            let object = Object::of(self.machine, first.frame);
            let same = |victim: &&Victim<'m>| object.as_ref().is_some_and(|object| object.is_of(victim.frame));
            let count = rest.iter().take_while(same).count().max(1);
            let (its, others) = rest.split_at_mut(count);
            if let Some(object) = object {
                self.object(&object, its, isolated, ages);
            }
            rest = others;
        }
    }

    /// Folios of one object, in the order in which it has them.
    fn object(&self, object: &Object<'m, P>, victims: &mut [Victim<'m>], isolated: Isolated, ages: bool) {
        if ages {
            self.each_mapping(object, victims, |space, vma, victims| {
                for victim in victims {
                    let places = Rmap::of(space).mapped_part(vma, object, &pages_of(object, victim));
                    victim.young |= places.is_some_and(|range| Rmap::of(space).clear_young(*range, victim.head).young);
                }
            });
        }
        victims.sort_unstable_by_key(|victim| (victim.young, victim.owner));
        let old = victims.partition_point(|victim| !victim.young);
        let old = &mut victims[..old];
        self.each_mapping(object, old, |space, vma, victims| {
            let mut ranges = ArrayVec::<VirtRange, BATCH>::new();
            for range in
                victims.iter().filter_map(|victim| Rmap::of(space).mapped_part(vma, object, &pages_of(object, victim)))
            {
                if !ranges.last_mut().is_some_and(|last| last.join(&range)) {
                    ranges.push(*range);
                }
            }
            Rmap::of(space).unmap_isolated(&ranges, isolated);
        });
        for victim in old.iter().filter(|victim| !isolated.is_locked(victim.frame)) {
            // What nobody else has any more is about to be free without that.
            if object.is_last() || object.swap_out(victim.head, victim.frame).is_err() {
                break;
            }
        }
    }

    /// Show every VMA that has some of these folios of an object behind it, if anybody maps any.
    fn each_mapping(
        &self,
        object: &Object<'m, P>,
        victims: &mut [Victim<'m>],
        mut visit: impl FnMut(&AddressSpace<'m, P, A>, &Vma, &mut [Victim<'m>]),
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

/// The pages of an object that a folio of it has.
fn pages_of<P: Platform>(object: &Object<'_, P>, victim: &Victim<'_>) -> Range<u64> {
    let first = page_cache::page_of(victim.owner);
    first..first + (1 << (victim.frame.order() - object.page_order()))
}
