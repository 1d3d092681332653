//! The address spaces that a host has, as far as an operation concerns several of them.

use crate::arch::Arch;
use crate::frame::Family;
use crate::page_cache::{Object, RemovedPages};
use crate::platform::{Platform, SpaceId};

use super::AddressSpace;
use crate::space::vma_ops::VmaOps;

/// The address spaces that a host has. Each that is shown stays until `visit` returns.
pub trait Spaces<'m, P: Platform, A: Arch> {
    /// Shows all spaces, those that are ending included.
    fn each(&self, visit: &mut dyn FnMut(&AddressSpace<'m, P, A>));

    /// Shows the space with this number, unless it has begun to end. Returns `false` if the host
    /// does not know it yet: a child that [`AddressSpace::fork`] is about to return.
    fn find(&self, id: SpaceId, visit: &mut dyn FnMut(&AddressSpace<'m, P, A>)) -> bool {
        let mut known = false;
        self.each(&mut |space| {
            if space.id() == id {
                known = true;
                visit(space);
            }
        });
        known
    }

    /// Shows all spaces that are in a family ([`AddressSpace::families`]), until `visit` returns
    /// `false`; best in the order of their numbers, in which parents come first.
    fn each_in_family(&self, family: Family, visit: &mut dyn FnMut(&AddressSpace<'m, P, A>) -> bool) {
        let mut goes_on = true;
        self.each(&mut |space| {
            if goes_on && space.families().contains(family) {
                goes_on = visit(space);
            }
        });
    }
}

impl<'m, P: Platform, A: Arch> Spaces<'m, P, A> for [&AddressSpace<'m, P, A>] {
    fn each(&self, visit: &mut dyn FnMut(&AddressSpace<'m, P, A>)) {
        self.iter().for_each(|space| visit(space));
    }
}

/// Shows the spaces that map an object and that the host knows, in the order of their numbers; none
/// that came after this began, so that no stream of forks keeps it from ending.
pub(crate) fn each_mapper<'m, P: Platform, A: Arch>(
    spaces: &(impl Spaces<'m, P, A> + ?Sized),
    object: &Object<'m, P>,
    visit: &mut dyn FnMut(&AddressSpace<'m, P, A>),
) {
    let mut from = SpaceId(0);
    let end = object.machine().spaces_end();
    while let Some(id) = object.next_mapper(from).filter(|id| id.0 < end.0) {
        spaces.find(id, visit);
        from = SpaceId(id.0 + 1);
    }
}

/// Unmaps pages that an object has lost from all spaces that map it. When this returns, no CPU
/// reaches them through any space. Costs what these spaces are, however many others there are.
///
/// A child that was being forked when this began has what its parent had: it counts among those
/// that map the object by then, and its number is higher, so it comes after its parent here. One
/// that is forked later finds that the pages are gone, and does not get its parent's copies of what
/// lies beyond the object's end; so it is not visited, and no stream of forks keeps this from
/// ending. The caller sees to it that the object does not grow meanwhile.
///
/// Waits for changes of these spaces that are under way, and until the host knows a child that is
/// being forked. The caller holds no lock that a fork takes.
pub fn unmap_removed<'m, P: Platform, A: Arch>(
    spaces: &(impl Spaces<'m, P, A> + ?Sized),
    object: &Object<'m, P>,
    gone: &RemovedPages,
) {
    if gone.is_empty() {
        return;
    }
    let mut from = SpaceId(0);
    let end = object.machine().spaces_end();
    while let Some(id) = object.next_mapper(from).filter(|id| id.0 < end.0) {
        if spaces.find(id, &mut |space| VmaOps::of(space).unmap_removed(object, gone)) {
            from = SpaceId(id.0 + 1);
        } else {
            // Known soon; or gone, and then not among those that map the object.
            from = id;
            object.machine().platform().wait();
        }
    }
}
