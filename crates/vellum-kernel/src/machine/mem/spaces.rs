//! The registry of all address spaces, by number and by fork family (the spaces that descend by
//! `fork` from one space, and may share its anonymous folios): the engine visits through it the
//! spaces that map a folio or an object, or all spaces.

use crate::mem::payer::Shared;
use crate::mem::platform::Host;
use crate::mem::{Space, UserSpace};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::{Arc, Weak};
use vellum::frame::Family;
use vellum::platform::SpaceId;
use vellum::space::{Families, Spaces};

static SPACES: Shared<Registry> = Shared::new(Registry { all: BTreeMap::new(), families: BTreeSet::new() });

/// The registry's contents, under its lock.
struct Registry {
    all: BTreeMap<u64, Weak<UserSpace>>,
    /// Each fork family with the number of each space in it.
    families: BTreeSet<(Family, u64)>,
}

impl Registry {
    /// Returns the first space of a family whose number is `from` or higher.
    fn next_of(&self, family: Family, from: u64) -> Option<Arc<UserSpace>> {
        let mut members = self.families.range((family, from)..=(family, u64::MAX));
        members.find_map(|(_, id)| self.all.get(id)?.upgrade())
    }
}

/// A space's entry in the registry, removed on drop. A `UserSpace` drops it last, so that a
/// registered number whose space is gone belongs to a space that is ending.
pub struct Registration {
    id: u64,
    families: Families,
}

impl Registration {
    /// Describes the entry that [`register`] will make for a space.
    pub fn of(space: &Space) -> Self {
        Self { id: space.id().0, families: space.families().clone() }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut registry = SPACES.lock();
        registry.all.remove(&self.id);
        for family in self.families.iter() {
            registry.families.remove(&(*family, self.id));
        }
    }
}

/// Registers a space.
pub fn register(space: UserSpace) -> Arc<UserSpace> {
    let space = Arc::new(space);
    let (id, mut registry) = (space.engine.id().0, SPACES.lock());
    registry.all.insert(id, Arc::downgrade(&space));
    registry.families.extend(space.engine.families().iter().map(|family| (*family, id)));
    drop(registry);
    space
}

/// Returns the first space whose number is `from` or higher.
pub fn next(from: SpaceId) -> Option<Arc<UserSpace>> {
    SPACES.lock().all.range(from.0..).find_map(|(_, space)| space.upgrade())
}

/// Iterates over all spaces by ascending number, so that a child that is forked meanwhile comes
/// after its parent. Holds no lock between spaces.
pub fn all() -> impl Iterator<Item = Arc<UserSpace>> {
    let mut from = SpaceId(0);
    core::iter::from_fn(move || {
        let space = next(from)?;
        from = SpaceId(space.engine.id().0 + 1);
        Some(space)
    })
}

/// The registry as the engine's reclaim and rmap walks see it.
pub struct All;

impl Spaces<'static, Host> for All {
    fn each(&self, visit: &mut dyn FnMut(&Space)) {
        all().for_each(|space| visit(&space.engine));
    }

    fn find(&self, id: SpaceId, visit: &mut dyn FnMut(&Space)) -> bool {
        let Some(registry) = SPACES.lock().all.get(&id.0).map(Weak::upgrade) else { return false };
        registry.inspect(|space| visit(&space.engine));
        true
    }

    fn each_in_family(&self, family: Family, visit: &mut dyn FnMut(&Space) -> bool) {
        let mut from = 0;
        loop {
            let next = SPACES.lock().next_of(family, from);
            let Some(space) = next.filter(|space| visit(&space.engine)) else { return };
            from = space.engine.id().0 + 1;
        }
    }
}
