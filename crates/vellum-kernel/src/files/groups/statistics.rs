//! What groups have, by kind.

use super::{ROOT, TABLE, Table, usage};
use alloc::vec::Vec;
use core::fmt::Write;
use vellum::addr::FRAME_SIZE;
use vellum::group::{GroupId, GroupUsage, LruList};
use vellum_kernel::errno::Errno;
use vellum_kernel::proc::Text as Words;

/// Pages on lists.
#[derive(Clone, Copy, Default)]
pub struct Listed {
    /// Anonymous ones that may be reclaimed.
    pub anonymous: u64,
    /// Those of objects.
    pub objects: u64,
    /// Those that may not be reclaimed.
    pub unevictable: u64,
}

impl Listed {
    fn add(&mut self, usage: &GroupUsage) {
        self.anonymous += usage.lru[LruList::Anon as usize] + usage.lru[LruList::Lazy as usize];
        self.objects += usage.lru[LruList::Shmem as usize];
        self.unevictable += usage.lru[LruList::Unevictable as usize];
    }
}

/// Pages on the lists of a group and those below it; of the root, with those that are leaving.
fn listed_below(table: &Table, group: u32) -> Listed {
    let mut sum = Listed::default();
    let below = table.groups.iter().filter(|(number, _)| table.ancestors(**number).any(|above| above == group));
    let leaving = table.leaving.iter().copied().filter(|_| group == ROOT);
    let own = (group == ROOT).then_some(GroupId::ROOT);
    for engine in below.map(|(_, group)| group.engine).chain(leaving).chain(own) {
        if let Ok(usage) = usage(engine) {
            sum.add(&usage);
        }
    }
    sum
}

/// Pages on the lists of all groups.
pub fn listed() -> Listed {
    listed_below(&TABLE.lock(), ROOT)
}

/// `memory.stat`. What a group is charged for is anonymous memory, objects', and the kernel's for it: page tables for the most
/// part.
pub fn of(group: u32, engine: GroupId) -> Result<Vec<u8>, Errno> {
    let listed = listed_below(&TABLE.lock(), group);
    let charged = usage(engine)?.charged;
    let anonymous = listed.anonymous + listed.unevictable;
    let rows = [
        ("anon", anonymous),
        ("file", listed.objects),
        ("kernel", charged.saturating_sub(anonymous + listed.objects)),
        ("shmem", listed.objects),
        ("inactive_anon", 0),
        ("active_anon", listed.anonymous),
        ("inactive_file", 0),
        ("active_file", 0),
        ("unevictable", listed.unevictable),
        ("swapcached", 0),
    ];
    Words::of(|text| rows.iter().try_for_each(|(name, pages)| writeln!(text, "{name} {}", pages * FRAME_SIZE)))
}
