//! The machine's memcgs: the engine's, under numbers and names, with the events and swap limits
//! that the engine does not keep. The file layer shows them as control groups.
//!
//! A memcg that was removed may still be charged for memory, as of files in memory or of a process
//! that has moved on. The engine keeps it until nothing is charged to it; by then it has no name.

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

/// The group that every other is below.
pub const ROOT: u32 = 0;

/// A memcg.
struct Group {
    engine: MemcgId,
    parent: u32,
    name: Box<[u8]>,
    events: Events,
    /// The most bytes that it and the memcgs below it may have in swap.
    swap: u64,
}

/// What has happened to a group, and those below it.
#[derive(Clone, Copy, Default)]
pub struct Events {
    /// It was to have more than its limit.
    pub max: u64,
    /// Nothing was found to reclaim.
    pub oom: u64,
    /// A process of it was killed for that.
    pub kills: u64,
}

/// The memcgs by number.
#[derive(Default)]
pub struct Table {
    /// By number; the root is not in it.
    groups: BTreeMap<u32, Group>,
    /// Removed, and still charged.
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

    /// The group itself, its parent, and so on, the root last.
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

    /// Gives back to the engine what has nothing charged any more.
    fn sweep(&mut self) {
        let frames = machine().frames();
        // A group goes only after those below it, which were removed before it.
        self.leaving.retain(|group| machine().memcgs().remove(frames, *group).is_err());
    }
}

/// The number of the engine's group, or of the nearest above it that has one.
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
    // Without a limit `tell_swap_room` passes it over.
    machine().memcgs().set_swap_room(found.engine, u64::MAX).map_err(|_| Errno::ENODEV)?;
    drop(table);
    tell_swap_room();
    Ok(())
}

/// How many pages a group has more than it may have.
pub fn excess(group: u32) -> u64 {
    let counters = engine(group).and_then(counters).ok();
    counters.map_or(0, |counters| counters.charged.saturating_sub(counters.limit))
}

/// Bytes that a group and those below it have in swap; what several have, each of them has.
pub fn swapped(group: u32) -> u64 {
    let mut below = [false; MAX_MEMCGS];
    TABLE.lock().below(group).for_each(|id| below[usize::from(id.number())] = true);
    let objects = engine(group).and_then(counters).map_or(0, |counters| counters.swapped * FRAME_SIZE);
    let spaces = spaces::all().filter(|space| below[usize::from(space.engine.memcg().number())]);
    spaces.map(|space| space.engine.stats().swap).sum::<u64>() + objects
}

/// Tells the engine how much more those groups may have in swap that may not have as much as there
/// is. To be called before memory goes there.
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
        // It may be gone by now.
        let _ = machine().memcgs().set_swap_room(engine, room);
    }
}

/// How many pages a group may have.
pub fn limit(group: u32) -> u64 {
    engine(group).and_then(counters).map_or(u64::MAX, |counters| counters.limit)
}

/// The path of a group, from the root on.
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

/// What a group, or one below it, has come to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It wanted more than it may have.
    Max,
    /// There was nothing to reclaim.
    OutOfMemory,
    /// A process of it was killed for memory.
    Killed,
}

/// Notes an event for a group and those above it.
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

/// Returns the memory of a memcg, by kind; as [`counters`].
///
/// # Errors
///
/// `ENODEV`: it is gone.
pub fn usage(group: MemcgId) -> Result<MemcgUsage, Errno> {
    machine().memcgs().usage(machine().frames(), group).map_err(|_| Errno::ENODEV)
}
