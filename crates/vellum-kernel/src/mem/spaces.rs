//! The address spaces that there are, by number: for what concerns those that map an object, or all of them.

use crate::arch::paging::Format;
use crate::mem::platform::Host;
use crate::mem::{Space, UserSpace};
use crate::task::Process;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use spin::Mutex;
use vellum::platform::SpaceId;
use vellum::space::Spaces;

static SPACES: Mutex<BTreeMap<u64, Weak<UserSpace>>> = Mutex::new(BTreeMap::new());

/// The place of a space among all. It goes when this is dropped: last of all, so that a number whose
/// space can't be had any more is that of a space that ends.
pub struct Place(SpaceId);

impl Place {
    /// The place that the space of this number will have.
    pub const fn of(id: SpaceId) -> Self {
        Self(id)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        SPACES.lock().remove(&self.0.0);
    }
}

/// Makes a space known.
pub fn publish(space: UserSpace) -> Arc<UserSpace> {
    let space = Arc::new(space);
    SPACES.lock().insert(space.engine.id().0, Arc::downgrade(&space));
    space
}

/// Returns the first space from this number on.
pub fn next(from: SpaceId) -> Option<Arc<UserSpace>> {
    SPACES.lock().range(from.0..).find_map(|(_, space)| space.upgrade())
}

/// All spaces, in the order of their numbers: a child that is forked meanwhile comes after its parent.
pub fn all() -> impl Iterator<Item = Arc<UserSpace>> {
    let mut from = SpaceId(0);
    core::iter::from_fn(move || {
        let space = next(from)?;
        from = SpaceId(space.engine.id().0 + 1);
        Some(space)
    })
}

/// The spaces that these processes have, each once.
pub fn of(processes: impl IntoIterator<Item = Arc<Process>>) -> Vec<Arc<UserSpace>> {
    let mut spaces: Vec<_> = processes.into_iter().filter_map(|process| process.memory()).collect();
    spaces.sort_unstable_by_key(Arc::as_ptr);
    spaces.dedup_by(|a, b| Arc::ptr_eq(a, b));
    spaces
}

/// What the engine is shown of them.
pub struct All;

impl Spaces<'static, Host, Format> for All {
    fn each(&self, visit: &mut dyn FnMut(&Space)) {
        all().for_each(|space| visit(&space.engine));
    }

    fn find(&self, id: SpaceId, visit: &mut dyn FnMut(&Space)) -> bool {
        let Some(known) = SPACES.lock().get(&id.0).map(Weak::upgrade) else { return false };
        known.inspect(|space| visit(&space.engine));
        true
    }
}
