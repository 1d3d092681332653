//! Fork families: the spaces that can map an anonymous folio. The rmap searches these and no
//! others.
//!
//! The rmap key of a folio names the fork family of the space that allocated it: that space, and
//! those forked from it, directly or not. No other space can map the folio. So the rmap of a folio
//! that a server's child allocated searches that child alone, however many siblings the child has;
//! and the rmap of the server's folios searches the server first.
//!
//! A space is in its own family and in those of its ancestors. A child that has as many ancestors
//! as [`DEPTH`] or more, which is rare in practice, has no family of its own, and its folios name
//! the family of its parent. So the list of a space's families is short, however often a program
//! forks. `exec` makes a new space, which has no ancestors.
//!
//! A folio that is read back from a swap slot which several spaces refer to gets the family of
//! their first common ancestor: it includes every space that can map the folio, and perhaps more.

use arrayvec::ArrayVec;

use crate::frame::Family;
use crate::platform::SpaceId;

/// The largest number of families that a space is in. A space with as many ancestors, or more, has
/// no family of its own.
const DEPTH: usize = 4;

/// The fork families that a space is in, its own last.
#[derive(Clone, Debug)]
pub struct Families(ArrayVec<Family, DEPTH>);

impl Families {
    /// Returns the families of a space that was not forked: its own.
    pub(in crate::space) fn new(space: SpaceId) -> Self {
        Families(ArrayVec::from_iter([Family::of(space.0)]))
    }

    /// Returns the families of a child of this space.
    pub(in crate::space) fn of_child(&self, child: SpaceId) -> Self {
        let mut families = self.clone();
        // If the list is full, the child gets no family of its own, and its folios name its
        // parent's.
        let _ = families.0.try_push(Family::of(child.0));
        families
    }

    /// Returns the family that the rmap keys of new folios name.
    pub(in crate::space) fn own(&self) -> Family {
        self.0[self.0.len() - 1]
    }

    /// Returns the family of the oldest ancestor, or of this space if it was not forked. All spaces
    /// that have an ancestor in common with this one are in that family.
    pub(in crate::space) fn first(&self) -> Family {
        self.0[0]
    }

    /// Iterates over the families, those of older ancestors first.
    pub fn iter(&self) -> impl Iterator<Item = &Family> {
        self.0.iter()
    }

    /// Returns whether the space is in `family`, and so can map folios with that family in their
    /// rmap keys.
    pub fn contains(&self, family: Family) -> bool {
        self.0.contains(&family)
    }
}
