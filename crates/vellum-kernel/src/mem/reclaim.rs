//! Memory is short: some of it goes to swap, or, where its owner said that it may, for good.

use crate::arch::paging::Format;
use crate::files::groups;
use crate::mem::platform::Host;
use crate::mem::{Space, UserSpace, machine};
use crate::task::Process;
use crate::task::process as processes;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vellum::reclaim::{Part, Reclaimed, Spaces};

/// The address spaces that processes have. (A child that comes later keeps what it has.)
struct All(Vec<Arc<UserSpace>>);

impl Spaces<'static, Host, Format> for All {
    fn each(&self, visit: &mut dyn FnMut(&Space)) {
        self.0.iter().for_each(|space| visit(&space.engine));
    }
}

/// The address spaces that these processes have, each once.
pub fn spaces_of(processes: impl IntoIterator<Item = Arc<Process>>) -> Vec<Arc<UserSpace>> {
    let mut spaces: Vec<_> = processes.into_iter().filter_map(|process| process.memory()).collect();
    spaces.sort_unstable_by_key(Arc::as_ptr);
    spaces.dedup_by(|a, b| Arc::ptr_eq(a, b));
    spaces
}

/// Why memory is reclaimed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Little of it is free.
    Background,
    /// Somebody waits for some.
    Direct,
    /// A group has as much as it may have.
    Limit,
    /// A program asks for it.
    Asked,
}

/// Pages that were looked at and freed, for each of these reasons.
static DONE: [[AtomicU64; 2]; 4] = [const { [const { AtomicU64::new(0) }; 2] }; 4];

/// What was done for a reason.
pub fn done(why: Who) -> Reclaimed {
    let [looked, freed] = &DONE[why as usize];
    Reclaimed { looked: looked.load(Relaxed), freed: freed.load(Relaxed) }
}

/// Frees about so many pages of what a group and those below it have, on one node or all, as far as that can be; how many that were.
pub fn reclaim(why: Who, part: impl Into<Part>, pages: u64) -> u64 {
    groups::tell_swap_room();
    let reclaimed = vellum::reclaim::reclaim(machine(), &All(spaces_of(processes::all())), part, pages);
    let Reclaimed { looked, freed } = reclaimed.unwrap_or_default();
    DONE[why as usize].iter().zip([looked, freed]).for_each(|(sum, pages)| _ = sum.fetch_add(pages, Relaxed));
    freed
}
