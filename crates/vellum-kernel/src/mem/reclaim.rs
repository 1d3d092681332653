//! Memory is short: some of it goes to swap, or, where its owner said that it may, for good.

use crate::arch::paging::Format;
use crate::mem::platform::Host;
use crate::mem::{Space, UserSpace, machine};
use crate::task::Process;
use crate::task::process as processes;
use alloc::sync::Arc;
use alloc::vec::Vec;
use vellum::frame::Family;
use vellum::group::GroupId;
use vellum::reclaim::Spaces;

/// The address spaces that processes have. (A child that comes later keeps what it has.)
struct All(Vec<Arc<UserSpace>>);

impl Spaces<'static, Host, Format> for All {
    fn each(&self, family: Family, visit: &mut dyn FnMut(&Space)) {
        self.0.iter().filter(|space| space.engine.family() == family).for_each(|space| visit(&space.engine));
    }
}

/// The address spaces that these processes have, each once.
pub fn spaces_of(processes: impl IntoIterator<Item = Arc<Process>>) -> Vec<Arc<UserSpace>> {
    let mut spaces: Vec<_> = processes.into_iter().filter_map(|process| process.memory.lock().clone()).collect();
    spaces.sort_unstable_by_key(Arc::as_ptr);
    spaces.dedup_by(|a, b| Arc::ptr_eq(a, b));
    spaces
}

/// Frees about so many pages of what a group and those below it have, as far as that can be; how many that were.
pub fn reclaim(group: GroupId, pages: u64) -> u64 {
    vellum::reclaim::reclaim(machine(), &All(spaces_of(processes::all())), group, pages).unwrap_or(0)
}
