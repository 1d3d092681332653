//! The address spaces that there are, by number: for what concerns those that map an object, or all
//! of them.

use crate::arch::paging::Format;
use crate::mem::payer::Shared;
use crate::mem::platform::Host;
use crate::mem::{Space, UserSpace};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use vellum::frame::Family;
use vellum::platform::SpaceId;
use vellum::space::{Families, Spaces};

static SPACES: Shared<Known> = Shared::new(Known { all: BTreeMap::new(), families: BTreeSet::new() });

struct Known {
    all: BTreeMap<u64, Weak<UserSpace>>,
    /// Each family with each space that is in it.
    families: BTreeSet<(Family, u64)>,
}

impl Known {
    /// The first space of a family from this number on.
    fn next_of(&self, family: Family, from: u64) -> Option<Arc<UserSpace>> {
        let mut members = self.families.range((family, from)..=(family, u64::MAX));
        members.find_map(|(_, id)| self.all.get(id)?.upgrade())
    }
}

/// The place of a space among all. It goes when this is dropped: last of all, so that a number
/// whose space can't be had any more is that of a space that ends.
pub struct Place {
    id: u64,
    families: Families,
}

impl Place {
    /// The place that a space will have.
    pub fn of(space: &Space) -> Self {
        Self { id: space.id().0, families: space.families().clone() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut known = SPACES.lock();
        known.all.remove(&self.id);
        for family in self.families.iter() {
            known.families.remove(&(*family, self.id));
        }
    }
}

/// Makes a space known.
pub fn publish(space: UserSpace) -> Arc<UserSpace> {
    let space = Arc::new(space);
    let (id, mut known) = (space.engine.id().0, SPACES.lock());
    known.all.insert(id, Arc::downgrade(&space));
    known.families.extend(space.engine.families().iter().map(|family| (*family, id)));
    drop(known);
    space
}

/// Returns the first space from this number on.
pub fn next(from: SpaceId) -> Option<Arc<UserSpace>> {
    SPACES.lock().all.range(from.0..).find_map(|(_, space)| space.upgrade())
}

/// All spaces, in the order of their numbers: a child that is forked meanwhile comes after its
/// parent.
pub fn all() -> impl Iterator<Item = Arc<UserSpace>> {
    let mut from = SpaceId(0);
    core::iter::from_fn(move || {
        let space = next(from)?;
        from = SpaceId(space.engine.id().0 + 1);
        Some(space)
    })
}

/// What the engine is shown of them.
pub struct All;

impl Spaces<'static, Host, Format> for All {
    fn each(&self, visit: &mut dyn FnMut(&Space)) {
        all().for_each(|space| visit(&space.engine));
    }

    fn find(&self, id: SpaceId, visit: &mut dyn FnMut(&Space)) -> bool {
        let Some(known) = SPACES.lock().all.get(&id.0).map(Weak::upgrade) else { return false };
        known.inspect(|space| visit(&space.engine));
        true
    }

    fn each_of(&self, family: Family, visit: &mut dyn FnMut(&Space) -> bool) {
        let mut from = 0;
        loop {
            let next = SPACES.lock().next_of(family, from);
            let Some(space) = next.filter(|space| visit(&space.engine)) else { return };
            from = space.engine.id().0 + 1;
        }
    }
}
