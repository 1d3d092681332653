//! The machine's memcgs: gives the engine's memcgs numbers and names, and keeps the events and swap
//! limits that the engine does not. The file layer shows them as cgroupfs.
//!
//! Memory may still be charged to a removed memcg, for example files in memory, or pages of a
//! process that moved to another memcg. The engine keeps such a memcg until nothing is charged to
//! it; it has no number or name by then.

use crate::mem::payer::{Shared, SharedGuard};
use crate::mem::thread::failed;
use crate::mem::{machine, spaces};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use vellum::addr::FRAME_SIZE;
use vellum::memcg::{MAX_MEMCGS, MemcgCounters, MemcgError, MemcgId, MemcgUsage};
use vellum_kernel::errno::Errno;

/// The number of the root memcg.
pub const ROOT: u32 = 0;

/// A memcg with a number.
struct Group {
    engine: MemcgId,
    parent: u32,
    name: Box<[u8]>,
    events: Events,
    /// The most bytes that it and the memcgs below it may have in swap.
    swap: u64,
}

/// The events of a memcg and its descendants (`memory.events`).
#[derive(Clone, Copy, Default)]
pub struct Events {
    /// How often usage was to exceed the limit.
    pub max: u64,
    /// How often reclaim found nothing to free.
    pub oom: u64,
    /// The number of processes that the OOM killer ended.
    pub kills: u64,
}

/// The memcgs by number.
#[derive(Default)]
pub struct Table {
    /// The memcgs by number, without the root.
    groups: BTreeMap<u32, Group>,
    /// The memcgs that are removed but still charged.
    leaving: Vec<MemcgId>,
}

/// Locked while a process changes its memcg, so that none moves into one that is being removed.
static TABLE: Shared<Table> = Shared::new(Table { groups: BTreeMap::new(), leaving: Vec::new() });
static NUMBERS: AtomicU32 = AtomicU32::new(ROOT + 1);

impl Table {
    fn engine(&self, group: u32) -> Result<MemcgId, Errno> {
        match group {
            ROOT => Ok(MemcgId::ROOT),
            _ => self.groups.get(&group).map(|group| group.engine).ok_or(Errno::ENODEV),
        }
    }

    /// Iterates over a memcg, its parent and so on, with the root last.
    fn ancestors(&self, group: u32) -> impl Iterator<Item = u32> + '_ {
        core::iter::successors(Some(group), |group| self.groups.get(group).map(|group| group.parent))
    }

    /// Returns a memcg and those below it; of the root, those that are leaving too.
    pub fn below(&self, group: u32) -> impl Iterator<Item = MemcgId> {
        let below = self.groups.iter().filter(move |(number, _)| self.ancestors(**number).any(|above| above == group));
        let leaving = self.leaving.iter().copied().filter(move |_| group == ROOT);
        below.map(|(_, group)| group.engine).chain(leaving).chain((group == ROOT).then_some(MemcgId::ROOT))
    }

    /// Returns the most memcgs that [`Self::below`] returns.
    pub fn most(&self) -> usize {
        self.groups.len() + self.leaving.len() + 1
    }

    /// Removes from the engine every removed memcg to which nothing is charged any more.
    fn sweep(&mut self) {
        let frames = machine().frames();
        // A child is removed before its parent, and so comes first in the list.
        self.leaving.retain(|group| machine().memcgs().remove(frames, *group).is_err());
    }
}

/// Returns the number of the engine's memcg, or `ROOT` if the memcg is removed or is the root.
pub fn number_of(engine: MemcgId) -> u32 {
    TABLE.lock().groups.iter().find(|(_, group)| group.engine == engine).map_or(ROOT, |(number, _)| *number)
}

/// Locks the table.
pub fn table() -> SharedGuard<'static, Table> {
    TABLE.lock()
}

/// Returns whether `own` is `group` or below it.
pub fn is_below(own: u32, group: u32) -> bool {
    TABLE.lock().ancestors(own).any(|above| above == group)
}

/// Returns the engine's memcg of a number.
///
/// # Errors
///
/// `ENODEV`: there is no such memcg.
pub fn engine(group: u32) -> Result<MemcgId, Errno> {
    TABLE.lock().engine(group)
}

/// Makes a memcg below `parent` and returns its number.
///
/// # Errors
///
/// `ENOENT`: the parent is gone. `EAGAIN`: there are too many. `ENOMEM`.
pub fn create(parent: u32, name: &[u8]) -> Result<u32, Errno> {
    let mut table = TABLE.lock();
    table.sweep();
    let above = table.engine(parent).map_err(|_| Errno::ENOENT)?;
    let made = machine().memcgs().create(machine().frames(), above, u64::MAX);
    let engine = made.map_err(|error| match error {
        MemcgError::TooMany => Errno::EAGAIN,
        MemcgError::NoMemory(why) => failed(Some(why), vellum::errno::Errno::ENOMEM),
        MemcgError::NoSuchMemcg(_) | MemcgError::Busy(_) => Errno::ENOENT,
    })?;
    let number = NUMBERS.fetch_add(1, Relaxed);
    let group = Group { engine, parent, name: name.into(), events: Events::default(), swap: u64::MAX };
    table.groups.insert(number, group);
    Ok(number)
}

/// Removes a memcg, unless `is_populated`, which is called with the table locked.
///
/// # Errors
///
/// `EBUSY`: a memcg is below it, or it is populated. `ENOMEM`.
pub fn remove(group: u32, is_populated: impl FnOnce() -> bool) -> Result<(), Errno> {
    let mut table = TABLE.lock();
    let has_child = table.groups.values().any(|other| other.parent == group);
    if has_child || is_populated() {
        return Err(Errno::EBUSY);
    }
    table.leaving.try_reserve(1)?;
    if let Some(group) = table.groups.remove(&group) {
        // The memcgs above limit the memory that it leaves behind: no process could lift the limit
        // of a memcg without a name.
        let _ = machine().memcgs().set_limit(group.engine, u64::MAX);
        table.leaving.push(group.engine);
    }
    table.sweep();
    Ok(())
}

/// Calls `enter` with the engine's memcg of a number, with the table locked: meanwhile the memcg is
/// not removed.
///
/// # Errors
///
/// `ENODEV`: there is no such memcg. Those of `enter`.
pub fn enter(group: u32, enter: impl FnOnce(MemcgId) -> Result<(), Errno>) -> Result<(), Errno> {
    let table = TABLE.lock();
    enter(table.engine(group)?)
}

/// Returns what has happened to a memcg and those below it.
pub fn events(group: u32) -> Events {
    TABLE.lock().groups.get(&group).map(|group| group.events).unwrap_or_default()
}

/// Returns the most bytes that a memcg may have in swap; `u64::MAX`: no limit.
pub fn swap_max(group: u32) -> u64 {
    TABLE.lock().groups.get(&group).map_or(u64::MAX, |group| group.swap)
}

/// Sets the most bytes that a memcg may have in swap.
///
/// # Errors
///
/// `ENODEV`: there is no such memcg, or it is the root.
pub fn set_swap_max(group: u32, most: u64) -> Result<(), Errno> {
    let mut table = TABLE.lock();
    let found = table.groups.get_mut(&group).ok_or(Errno::ENODEV)?;
    found.swap = most;
    // `update_swap_room` skips a memcg without a limit, so its old limit is lifted here.
    machine().memcgs().set_swap_room(found.engine, u64::MAX).map_err(|_| Errno::ENODEV)?;
    drop(table);
    tell_swap_room();
    Ok(())
}

/// Returns the number of pages by which a memcg exceeds its limit.
pub fn excess(group: u32) -> u64 {
    let counters = engine(group).and_then(counters).ok();
    counters.map_or(0, |counters| counters.charged.saturating_sub(counters.limit))
}

/// Returns the bytes that a memcg and its descendants have in swap. A swapped page that several
/// spaces share counts once for each of them.
pub fn swapped(group: u32) -> u64 {
    let mut below = [false; MAX_MEMCGS];
    TABLE.lock().below(group).for_each(|id| below[usize::from(id.number())] = true);
    let objects = engine(group).and_then(counters).map_or(0, |counters| counters.swapped * FRAME_SIZE);
    let spaces = spaces::all().filter(|space| below[usize::from(space.engine.memcg().number())]);
    spaces.map(|space| space.engine.stats().swap).sum::<u64>() + objects
}

/// Passes the remaining swap allowance of each memcg with a swap limit to the engine. Must be
/// called before pageout.
pub fn tell_swap_room() {
    let mut from = ROOT;
    let next = |from| {
        let table = TABLE.lock();
        let (number, group) = table.groups.range(from..).find(|(_, group)| group.swap < u64::MAX)?;
        Some((*number, group.engine, group.swap))
    };
    while let Some((number, engine, most)) = next(from) {
        from = number + 1;
        let room = most.saturating_sub(swapped(number)) / FRAME_SIZE;
        // The memcg may have been removed meanwhile.
        let _ = machine().memcgs().set_swap_room(engine, room);
    }
}

/// Returns a memcg's limit, in pages.
pub fn limit(group: u32) -> u64 {
    engine(group).and_then(counters).map_or(u64::MAX, |counters| counters.limit)
}

/// Returns the path of a memcg from the root.
pub fn path(group: u32) -> Vec<u8> {
    let table = TABLE.lock();
    let names: Vec<_> = table.ancestors(group).filter_map(|number| table.groups.get(&number)).collect();
    let mut path = Vec::new();
    for group in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(&group.name);
    }
    if path.is_empty() { b"/".to_vec() } else { path }
}

/// An event of a memcg or of one of its descendants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Usage was to exceed the limit.
    Max,
    /// Reclaim found nothing to free.
    OutOfMemory,
    /// The OOM killer ended a process.
    Killed,
}

/// Counts an event for a memcg and its ancestors.
pub fn note(group: u32, event: Event) {
    let mut table = TABLE.lock();
    let above: Vec<u32> = table.ancestors(group).collect();
    for number in above {
        if let Some(group) = table.groups.get_mut(&number) {
            let Events { max, oom, kills } = &mut group.events;
            *match event {
                Event::Max => max,
                Event::OutOfMemory => oom,
                Event::Killed => kills,
            } += 1;
        }
    }
}

/// Returns what the engine counts for a memcg.
///
/// # Errors
///
/// `ENODEV`: it is gone.
pub fn counters(group: MemcgId) -> Result<MemcgCounters, Errno> {
    machine().memcgs().counters(group).map_err(|_| Errno::ENODEV)
}

/// Returns the memory of a memcg, by kind.
///
/// # Errors
///
/// `ENODEV`: it is gone.
pub fn usage(group: MemcgId) -> Result<MemcgUsage, Errno> {
    machine().memcgs().usage(machine().frames(), group).map_err(|_| Errno::ENODEV)
}
