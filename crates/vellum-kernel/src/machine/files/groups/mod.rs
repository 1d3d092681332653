//! Control groups: the engine's groups, their names, and the processes in them. The memory controller is the only one.
//!
//! A group that is removed may still be charged for memory, as of files in memory or of a process that has moved on. The engine
//! keeps it until it is charged for nothing; nobody finds it by then.
//!
//! | file | story |
//! |---|---|
//! | `statistics` | what groups have, by kind |

mod statistics;

pub use statistics::{listed, listed_on};

use crate::mem::payer::Shared;
use crate::mem::reclaim::{self, Who};
use crate::mem::{machine, oom, spaces};
use crate::task::hindrance::failed;
use crate::task::life::Life;
use crate::task::process as processes;
use crate::task::{Process, Thread};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use linux_raw_sys::general::{CGROUP2_SUPER_MAGIC, SIGKILL};
use spin::Once;
use vellum::addr::FRAME_SIZE;
use vellum::memcg::{MAX_MEMCGS, MemcgCounters, MemcgError, MemcgId, MemcgUsage};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Inode;
use vellum_kernel::fs::cgroup::{self, Control, amount, said};
use vellum_kernel::fs::folder::Folder;
use vellum_kernel::fs::meta::Device;
use vellum_kernel::fs::text::System;
use vellum_kernel::proc::Text as Words;
use vellum_kernel::written;

/// The group that every other is below.
pub const ROOT: u32 = 0;

/// A group.
struct Group {
    engine: MemcgId,
    parent: u32,
    name: Box<[u8]>,
    events: Events,
    /// With so many bytes in swap, it and those below it get no more there when they are at their limit.
    swap: u64,
}

/// What has happened to a group, and those below it.
#[derive(Clone, Copy, Default)]
struct Events {
    /// It was to have more than it may.
    max: u64,
    /// Memory could not be found.
    oom: u64,
    /// A process of it was killed for that.
    kills: u64,
}

#[derive(Default)]
struct Table {
    /// By number; the root is not in it.
    groups: BTreeMap<u32, Group>,
    /// Removed, and still charged.
    leaving: Vec<MemcgId>,
}

/// Held while a process changes its group, so that none moves into one that is being removed.
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

/// Whether a process is in a group or below it.
pub fn is_below(process: &Process, group: u32) -> bool {
    TABLE.lock().ancestors(process.cgroup.load(Relaxed)).any(|above| above == group)
}

/// The engine's group of a number, if there is such a group.
pub fn engine(group: u32) -> Option<MemcgId> {
    TABLE.lock().engine(group).ok()
}

/// How many pages a group has more than it may have.
pub fn excess(group: u32) -> u64 {
    let counters = engine(group).and_then(|group| counters(group).ok());
    counters.map_or(0, |counters| counters.charged.saturating_sub(counters.limit))
}

/// Bytes that a group and those below it have in swap; what several have, each of them has.
fn swapped(group: u32) -> u64 {
    let mut below = [false; MAX_MEMCGS];
    statistics::below(&TABLE.lock(), group).for_each(|id| below[usize::from(id.number())] = true);
    let objects =
        engine(group).and_then(|group| counters(group).ok()).map_or(0, |counters| counters.swapped * FRAME_SIZE);
    let spaces = spaces::all().filter(|space| below[usize::from(space.engine.memcg().number())]);
    spaces.map(|space| space.engine.stats().swap).sum::<u64>() + objects
}

/// Tells the engine how much more those groups may have in swap that may not have as much as there is. To be called before memory
/// goes there.
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
    TABLE.lock().engine(group).ok().and_then(|group| counters(group).ok()).map_or(u64::MAX, |counters| counters.limit)
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

/// `/proc/PID/cgroup`.
pub fn line(process: &Process) -> Result<Vec<u8>, Errno> {
    Ok([b"0::", &path(process.cgroup.load(Relaxed))[..], b"\n"].concat())
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

fn counters(group: MemcgId) -> Result<MemcgCounters, Errno> {
    machine().memcgs().counters(group).map_err(|_| Errno::ENODEV)
}

fn usage(group: MemcgId) -> Result<MemcgUsage, Errno> {
    machine().memcgs().usage(machine().frames(), group).map_err(|_| Errno::ENODEV)
}

/// The root directory.
///
/// # Errors
///
/// `ENOMEM`.
pub fn root() -> Result<Arc<Folder>, Errno> {
    /// There is one, wherever it is mounted.
    static FOLDER: Once<Arc<Folder>> = Once::new();
    let system = System { device: Device { major: 0, minor: 22 }, magic: CGROUP2_SUPER_MAGIC, owner: None };
    FOLDER.try_call_once(|| cgroup::root(system, Arc::new(Memory), ROOT)).cloned()
}

/// The groups, for their file system.
struct Memory;

impl cgroup::Groups for Memory {
    fn make(&self, parent: u32, name: &[u8]) -> Result<u32, Errno> {
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
        table
            .groups
            .insert(number, Group { engine, parent, name: name.into(), events: Events::default(), swap: u64::MAX });
        Ok(number)
    }

    fn remove(&self, group: u32) -> Result<(), Errno> {
        let mut table = TABLE.lock();
        let has_child = table.groups.values().any(|other| other.parent == group);
        if has_child || members(group).next().is_some() {
            return Err(Errno::EBUSY);
        }
        table.leaving.try_reserve(1)?;
        if let Some(group) = table.groups.remove(&group) {
            // The groups above limit the memory that it leaves behind: no process could lift the
            // limit of a group without a name.
            let _ = machine().memcgs().set_limit(group.engine, u64::MAX);
            table.leaving.push(group.engine);
        }
        table.sweep();
        Ok(())
    }

    fn read(&self, group: u32, control: Control) -> Result<Vec<u8>, Errno> {
        let bytes = |pages: u64| said(Some(pages.saturating_mul(FRAME_SIZE)));
        let engine = TABLE.lock().engine(group)?;
        match control {
            Control::Procs => {
                Words::of(|text| members(group).try_for_each(|process| writeln!(text, "{}", process.pid)))
            }
            Control::Current => Ok(bytes(counters(engine)?.charged)),
            Control::SwapCurrent => Ok(said(Some(swapped(group)))),
            Control::SwapMax => {
                let most = TABLE.lock().groups.get(&group).map_or(u64::MAX, |group| group.swap);
                Ok(said((most < u64::MAX).then_some(most)))
            }
            Control::Peak => counters(engine).map(|counters| bytes(counters.peak.max(counters.charged))),
            Control::Max => match counters(engine)?.limit {
                u64::MAX => Ok(said(None)),
                pages => Ok(bytes(pages)),
            },
            Control::Stat => statistics::of(group, engine),
            Control::NodeStat => statistics::by_node(group),
            Control::Events => {
                let events = TABLE.lock().groups.get(&group).map(|group| group.events).unwrap_or_default();
                let Events { max, oom, kills } = events;
                let text = format!("low 0\nhigh 0\nmax {max}\noom {oom}\noom_kill {kills}\noom_group_kill 0\n");
                Ok(text.into_bytes())
            }
            Control::Populated => {
                let populated = u32::from(processes::all().any(|p| lives(&p) && is_below(&p, group)));
                Ok(format!("populated {populated}\nfrozen 0\n").into_bytes())
            }
            Control::Reclaim | Control::Kill => Err(Errno::EINVAL),
        }
    }

    fn write(&self, group: u32, control: Control, value: &[u8]) -> Result<(), Errno> {
        match control {
            Control::Procs => {
                let process = match written::number(value)? {
                    0 => Thread::current().ok_or(Errno::ESRCH)?.process.clone(),
                    number => processes::find(number).filter(|process| lives(process)).ok_or(Errno::ESRCH)?,
                };
                enter(&process, group)
            }
            Control::Max => {
                let limit = amount(value)?.map_or(u64::MAX, |bytes| bytes / FRAME_SIZE);
                let engine = TABLE.lock().engine(group)?;
                let groups = machine().memcgs();
                groups.set_limit(engine, limit).map_err(|_| Errno::ENODEV)?;
                groups.drain(machine().frames(), engine).map_err(|_| Errno::ENODEV)?;
                if excess(group) > 0 {
                    oom::enforce(group);
                }
                Ok(())
            }
            Control::Reclaim => {
                let wanted = amount(value)?.ok_or(Errno::EINVAL)? / FRAME_SIZE;
                let engine = TABLE.lock().engine(group)?;
                if reclaim::reclaim(Who::Asked, engine, wanted) < wanted { Err(Errno::EAGAIN) } else { Ok(()) }
            }
            Control::SwapMax => {
                let most = amount(value)?.unwrap_or(u64::MAX);
                let mut table = TABLE.lock();
                let found = table.groups.get_mut(&group).ok_or(Errno::ENODEV)?;
                found.swap = most;
                // Without a limit it is not told again.
                machine().memcgs().set_swap_room(found.engine, u64::MAX).map_err(|_| Errno::ENODEV)?;
                drop(table);
                tell_swap_room();
                Ok(())
            }
            Control::Kill => {
                if value.trim_ascii() != b"1" {
                    return Err(Errno::EINVAL);
                }
                let below = processes::all().filter(|process| is_below(process, group));
                below.for_each(|process| process.end(Life::Killed(SIGKILL)));
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }
}

fn lives(process: &Process) -> bool {
    process.memory.lock().is_some()
}

fn members(group: u32) -> impl Iterator<Item = Arc<Process>> {
    processes::all().filter(move |process| lives(process) && process.cgroup.load(Relaxed) == group)
}

/// A process that does not run yet begins in the group of an open directory.
///
/// # Errors
///
/// `EBADF`: it is no group's. `ENODEV`: the group is gone.
pub fn begin_in(process: &Process, directory: &dyn Inode) -> Result<(), Errno> {
    enter(process, cgroup::group_of(directory).ok_or(Errno::EBADF)?)
}

/// A process moves to a group, and what its memory is charged to with it.
fn enter(process: &Process, group: u32) -> Result<(), Errno> {
    let table = TABLE.lock();
    let engine = table.engine(group)?;
    process.cgroup.store(group, Relaxed);
    process.payer.store(engine.number(), Relaxed);
    let memory = process.memory();
    memory.map_or(Ok(()), |memory| memory.engine.set_memcg(engine).map_err(|_| Errno::ENODEV))
}
