//! Families: which spaces may have anonymous memory together, so that reclaim asks these and no
//! others where a folio is mapped.
//!
//! A folio names the family of the space whose it was first. That family is the space and what was
//! forked from it, directly or not: nobody else can have got the folio. So memory of a server's
//! child is the child's own to be asked about, however many siblings it has; and the server's is
//! asked about at the server first.
//!
//! A space knows the families that it is in: its own, and those of the spaces that it comes from.
//! Below a depth that programs reach no more, children have no family of their own, and count as
//! their parent: so the list is short, whatever a program forks. A program that is started anew has
//! a new space, which comes from none.
//!
//! What several spaces have in one slot of a swap device and one of them brings back is of the
//! family of their first common forebear: more than may have it, but all of those.

use arrayvec::ArrayVec;

use crate::frame::Family;
use crate::platform::SpaceId;

/// Spaces in a row, each forked from the one before, that have families of their own.
const DEPTH: usize = 4;

/// The families that a space is in, its own last.
#[derive(Clone, Debug)]
pub struct Families(ArrayVec<Family, DEPTH>);

impl Families {
    /// Those of a space that was not forked.
    pub(in crate::space) fn new(space: SpaceId) -> Self {
        Families(ArrayVec::from_iter([Family::of(space.0)]))
    }

    /// Those of a child.
    pub(in crate::space) fn of_child(&self, child: SpaceId) -> Self {
        let mut families = self.clone();
        // Where there is no room the child counts as its parent.
        let _ = families.0.try_push(Family::of(child.0));
        families
    }

    /// What new folios name.
    pub(in crate::space) fn own(&self) -> Family {
        self.0[self.0.len() - 1]
    }

    /// The family of all that have a forebear in common with the space.
    pub(in crate::space) fn first(&self) -> Family {
        self.0[0]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Family> {
        self.0.iter()
    }

    /// Whether a space may have memory that was first a space's of this family.
    pub fn contains(&self, family: Family) -> bool {
        self.0.contains(&family)
    }
}
