//! Operations on several of the host's address spaces.

use crate::frame::Family;
use crate::page_cache::{Object, RemovedPages};
use crate::platform::{Platform, SpaceId};

use super::AddressSpace;
use crate::space::vma_ops::VmaOps;

/// The address spaces of a host. A space that is passed to `visit` stays until `visit` returns.
pub trait Spaces<'m, P: Platform> {
    /// Calls `visit` for all spaces, including those that are ending.
    fn each(&self, visit: &mut dyn FnMut(&AddressSpace<'m, P>));

    /// Calls `visit` for the space with this number, unless it has begun to end. Returns false if
    /// the host does not know the space yet: a child that [`AddressSpace::fork`] is about to
    /// return.
    fn find(&self, id: SpaceId, visit: &mut dyn FnMut(&AddressSpace<'m, P>)) -> bool {
        let mut known = false;
        self.each(&mut |space| {
            if space.id() == id {
                known = true;
                visit(space);
            }
        });
        known
    }

    /// Calls `visit` for the spaces that are in a fork family ([`AddressSpace::families`]), until
    /// `visit` returns false; best in the order of their numbers, in which parents come first.
    fn each_in_family(&self, family: Family, visit: &mut dyn FnMut(&AddressSpace<'m, P>) -> bool) {
        let mut continues = true;
        self.each(&mut |space| {
            if continues && space.families().contains(family) {
                continues = visit(space);
            }
        });
    }
}

impl<'m, P: Platform> Spaces<'m, P> for [&AddressSpace<'m, P>] {
    fn each(&self, visit: &mut dyn FnMut(&AddressSpace<'m, P>)) {
        self.iter().for_each(|space| visit(space));
    }
}

/// Calls `visit` for the spaces that map an object and that the host knows, in the order of their
/// numbers, without those made after this began, so that no stream of forks keeps this from ending.
pub(crate) fn each_mapper<'m, P: Platform>(
    spaces: &(impl Spaces<'m, P> + ?Sized),
    object: &Object<'m, P>,
    visit: &mut dyn FnMut(&AddressSpace<'m, P>),
) {
    let mut from = SpaceId(0);
    let end = object.machine().spaces_end();
    while let Some(id) = object.next_mapper(from).filter(|id| id.0 < end.0) {
        spaces.find(id, visit);
        from = SpaceId(id.0 + 1);
    }
}

/// Unmaps pages that were removed from an object in all spaces that map the object. When this
/// returns, no CPU reaches the pages through any space. The cost depends on these spaces, not on
/// the number of other spaces.
///
/// A child that was being forked when this began may map the pages, like its parent. It is among
/// the spaces that map the object by then, and is visited after its parent, because its number is
/// higher. A child that is forked later finds the pages removed from the object, and does not get
/// its parent's private copies of pages beyond the object's end. So it is not visited, and no
/// stream of forks keeps this from ending. The caller ensures that the object does not grow
/// meanwhile.
///
/// Waits for changes of these spaces that are under way, and until the host knows a child that is
/// being forked. The caller holds no lock that a fork takes.
pub fn unmap_removed<'m, P: Platform>(
    spaces: &(impl Spaces<'m, P> + ?Sized),
    object: &Object<'m, P>,
    removed: &RemovedPages,
) {
    if removed.is_empty() {
        return;
    }
    let mut from = SpaceId(0);
    let end = object.machine().spaces_end();
    while let Some(id) = object.next_mapper(from).filter(|id| id.0 < end.0) {
        if spaces.find(id, &mut |space| VmaOps::of(space).unmap_removed(object, removed)) {
            from = SpaceId(id.0 + 1);
        } else {
            // The host will know the space soon; or the space ends, and then does not map the
            // object any more.
            from = id;
            object.machine().platform().wait();
        }
    }
}
