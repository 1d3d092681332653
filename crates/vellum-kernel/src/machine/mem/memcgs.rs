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
struct Memcg {
    engine: MemcgId,
    parent: u32,
    name: Box<[u8]>,
    events: Events,
    /// The most bytes that it and its descendants may have in swap.
    swap: u64,
}

/// The events of a memcg and its descendants (`memory.events`).
#[derive(Clone, Copy, Default)]
pub struct Events {
    /// The number of times that usage would have exceeded the limit.
    pub max: u64,
    /// The number of times that reclaim found nothing to free.
    pub oom: u64,
    /// The number of processes that the OOM killer ended.
    pub kills: u64,
}

/// The memcgs by number.
#[derive(Default)]
pub struct Table {
    /// The memcgs by number, without the root.
    by_number: BTreeMap<u32, Memcg>,
    /// The memcgs that are removed but still charged.
    removed: Vec<MemcgId>,
}

/// Locked while a process changes its memcg, so that none moves into one that is being removed.
static TABLE: Shared<Table> = Shared::new(Table { by_number: BTreeMap::new(), removed: Vec::new() });
/// The next memcg number. Numbers are not reused.
static NUMBERS: AtomicU32 = AtomicU32::new(ROOT + 1);

impl Table {
    /// Returns the engine's memcg of a number, or `ENODEV`.
    fn engine(&self, memcg: u32) -> Result<MemcgId, Errno> {
        match memcg {
            ROOT => Ok(MemcgId::ROOT),
            _ => self.by_number.get(&memcg).map(|memcg| memcg.engine).ok_or(Errno::ENODEV),
        }
    }

    /// Iterates over a memcg, its parent and so on, with the root last.
    fn ancestors(&self, memcg: u32) -> impl Iterator<Item = u32> + '_ {
        core::iter::successors(Some(memcg), |memcg| self.by_number.get(memcg).map(|memcg| memcg.parent))
    }

    /// Returns a memcg and its descendants; for the root also the removed memcgs.
    pub fn below(&self, memcg: u32) -> impl Iterator<Item = MemcgId> {
        let below =
            self.by_number.iter().filter(move |(number, _)| self.ancestors(**number).any(|above| above == memcg));
        let removed = self.removed.iter().copied().filter(move |_| memcg == ROOT);
        below.map(|(_, memcg)| memcg.engine).chain(removed).chain((memcg == ROOT).then_some(MemcgId::ROOT))
    }

    /// Returns an upper bound of the number of memcgs that [`Self::below`] returns.
    pub fn most(&self) -> usize {
        self.by_number.len() + self.removed.len() + 1
    }

    /// Calls `visit` with each memcg but the root that has a number, and with its descendants.
    pub fn each_numbered(&self, mut visit: impl FnMut(MemcgId, &mut dyn Iterator<Item = MemcgId>)) {
        self.by_number.iter().for_each(|(number, memcg)| visit(memcg.engine, &mut self.below(*number)));
    }

    /// Removes from the engine every removed memcg to which nothing is charged any more.
    fn sweep(&mut self) {
        let frames = machine().frames();
        // The list is in the order of removal, so children come before their parents. The engine
        // refuses to remove a memcg that still has children.
        self.removed.retain(|memcg| machine().memcgs().remove(frames, *memcg).is_err());
    }
}

/// Returns the number of the engine's memcg, or `ROOT` if the memcg is removed or is the root.
pub fn number_of(engine: MemcgId) -> u32 {
    TABLE.lock().by_number.iter().find(|(_, memcg)| memcg.engine == engine).map_or(ROOT, |(number, _)| *number)
}

/// Locks the table.
pub fn table() -> SharedGuard<'static, Table> {
    TABLE.lock()
}

/// Returns whether `own` is `memcg` or one of its descendants.
pub fn is_below(own: u32, memcg: u32) -> bool {
    TABLE.lock().ancestors(own).any(|above| above == memcg)
}

/// Returns the engine's memcg of a number.
///
/// # Errors
///
/// `ENODEV`: there is no such memcg.
pub fn engine(memcg: u32) -> Result<MemcgId, Errno> {
    TABLE.lock().engine(memcg)
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
    let memcg = Memcg { engine, parent, name: name.into(), events: Events::default(), swap: u64::MAX };
    table.by_number.insert(number, memcg);
    Ok(number)
}

/// Removes a memcg, unless `is_populated`, which is called with the table locked.
///
/// # Errors
///
/// `EBUSY`: it has a child, or it is populated. `ENOMEM`.
pub fn remove(memcg: u32, is_populated: impl FnOnce() -> bool) -> Result<(), Errno> {
    let mut table = TABLE.lock();
    let has_child = table.by_number.values().any(|other| other.parent == memcg);
    if has_child || is_populated() {
        return Err(Errno::EBUSY);
    }
    table.removed.try_reserve(1)?;
    if let Some(memcg) = table.by_number.remove(&memcg) {
        // Lift the removed memcg's own limit, which no process can lift any more. The limits of its
        // ancestors still apply to the memory that it leaves behind.
        let _ = machine().memcgs().set_limit(memcg.engine, u64::MAX);
        table.removed.push(memcg.engine);
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
pub fn enter(memcg: u32, enter: impl FnOnce(MemcgId) -> Result<(), Errno>) -> Result<(), Errno> {
    let table = TABLE.lock();
    enter(table.engine(memcg)?)
}

/// Returns the events of a memcg and its descendants.
pub fn events(memcg: u32) -> Events {
    TABLE.lock().by_number.get(&memcg).map(|memcg| memcg.events).unwrap_or_default()
}

/// Returns the most bytes that a memcg may have in swap; `u64::MAX`: no limit.
pub fn swap_max(memcg: u32) -> u64 {
    TABLE.lock().by_number.get(&memcg).map_or(u64::MAX, |memcg| memcg.swap)
}

/// Sets the most bytes that a memcg may have in swap.
///
/// # Errors
///
/// `ENODEV`: there is no such memcg, or it is the root.
pub fn set_swap_max(memcg: u32, most: u64) -> Result<(), Errno> {
    let mut table = TABLE.lock();
    let found = table.by_number.get_mut(&memcg).ok_or(Errno::ENODEV)?;
    found.swap = most;
    // `update_swap_room` skips a memcg without a limit, so its old limit is lifted here.
    machine().memcgs().set_swap_room(found.engine, u64::MAX).map_err(|_| Errno::ENODEV)?;
    drop(table);
    update_swap_room();
    Ok(())
}

/// Returns the number of pages by which a memcg exceeds its limit.
pub fn excess(memcg: u32) -> u64 {
    let counters = engine(memcg).and_then(counters).ok();
    counters.map_or(0, |counters| counters.charged.saturating_sub(counters.limit))
}

/// Returns the bytes that a memcg and its descendants have in swap. A swapped page that several
/// spaces share counts once for each of them.
pub fn swapped(memcg: u32) -> u64 {
    let mut below = [false; MAX_MEMCGS];
    TABLE.lock().below(memcg).for_each(|id| below[usize::from(id.number())] = true);
    let objects = engine(memcg).and_then(counters).map_or(0, |counters| counters.swapped * FRAME_SIZE);
    let spaces = spaces::all().filter(|space| below[usize::from(space.engine.memcg().number())]);
    spaces.map(|space| space.engine.stats().swap).sum::<u64>() + objects
}

/// Passes the remaining swap allowance of each memcg with a swap limit to the engine. Must be
/// called before pageout.
pub fn update_swap_room() {
    let mut from = ROOT;
    let next = |from| {
        let table = TABLE.lock();
        let (number, memcg) = table.by_number.range(from..).find(|(_, memcg)| memcg.swap < u64::MAX)?;
        Some((*number, memcg.engine, memcg.swap))
    };
    while let Some((number, engine, most)) = next(from) {
        from = number + 1;
        let room = most.saturating_sub(swapped(number)) / FRAME_SIZE;
        // A failure is ignored: the memcg may have been removed since the table was unlocked.
        let _ = machine().memcgs().set_swap_room(engine, room);
    }
}

/// Returns a memcg's limit, in pages.
pub fn limit(memcg: u32) -> u64 {
    engine(memcg).and_then(counters).map_or(u64::MAX, |counters| counters.limit)
}

/// Returns the path of a memcg from the root.
pub fn path(memcg: u32) -> Vec<u8> {
    let table = TABLE.lock();
    let names: Vec<_> = table.ancestors(memcg).filter_map(|number| table.by_number.get(&number)).collect();
    let mut path = Vec::new();
    for memcg in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(&memcg.name);
    }
    if path.is_empty() { b"/".to_vec() } else { path }
}

/// An event of a memcg or of one of its descendants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Usage would have exceeded the limit.
    Max,
    /// Reclaim found nothing to free.
    OutOfMemory,
    /// The OOM killer ended a process.
    Killed,
}

/// Counts an event for a memcg and its ancestors.
pub fn note(memcg: u32, event: Event) {
    let mut table = TABLE.lock();
    let above: Vec<u32> = table.ancestors(memcg).collect();
    for number in above {
        if let Some(memcg) = table.by_number.get_mut(&number) {
            let Events { max, oom, kills } = &mut memcg.events;
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
pub fn counters(memcg: MemcgId) -> Result<MemcgCounters, Errno> {
    machine().memcgs().counters(memcg).map_err(|_| Errno::ENODEV)
}

/// Returns the memory of a memcg, by kind.
///
/// # Errors
///
/// `ENODEV`: it is gone.
pub fn usage(memcg: MemcgId) -> Result<MemcgUsage, Errno> {
    machine().memcgs().usage(machine().frames(), memcg).map_err(|_| Errno::ENODEV)
}
