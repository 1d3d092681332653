//! Implements the cgroup2 file system: the memcgs, and the processes in them. The memory controller
//! is the only one.
//!
//! | file | subject |
//! |---|---|
//! | `statistics` | `memory.stat` and `memory.numa_stat` |

mod statistics;

pub use statistics::{listed, listed_on};

use crate::files::writeback;
use crate::mem::machine;
use crate::mem::memcgs::{self, Events, ROOT, counters, excess, path, swapped};
use crate::mem::reclaim::{self, Reason};
use crate::task::life::Life;
use crate::task::process as processes;
use crate::task::{Process, Thread, oom};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::Write;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general::{CGROUP2_SUPER_MAGIC, SIGKILL};
use spin::Once;
use vellum::addr::FRAME_SIZE;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Inode;
use vellum_kernel::fs::cgroup::{self, Control, format_amount, parse_amount};
use vellum_kernel::fs::meta::Device;
use vellum_kernel::fs::pseudo::PseudoDirectory;
use vellum_kernel::fs::text::PseudoFs;
use vellum_kernel::parse;
use vellum_kernel::proc::Text as Words;

/// Returns the contents of `/proc/PID/cgroup`.
pub fn line(process: &Process) -> Result<Vec<u8>, Errno> {
    Ok([b"0::", &path(process.cgroup.load(Relaxed))[..], b"\n"].concat())
}

/// Returns the root directory.
///
/// # Errors
///
/// `ENOMEM`.
pub fn root() -> Result<Arc<PseudoDirectory>, Errno> {
    /// The one root directory, shared by all mounts.
    static ROOT_DIRECTORY: Once<Arc<PseudoDirectory>> = Once::new();
    let system =
        PseudoFs { device: Device { major: 0, minor: 22 }, magic: CGROUP2_SUPER_MAGIC, owner: None, number: None };
    ROOT_DIRECTORY.try_call_once(|| cgroup::root(system, Arc::new(Memory), ROOT)).cloned()
}

/// The memcgs, as the portable half's cgroup file system sees them.
struct Memory;

impl cgroup::Groups for Memory {
    fn make(&self, parent: u32, name: &[u8]) -> Result<u32, Errno> {
        memcgs::create(parent, name)
    }

    fn remove(&self, group: u32) -> Result<(), Errno> {
        memcgs::remove(group, || members(group).next().is_some())
    }

    fn read(&self, group: u32, control: Control) -> Result<Vec<u8>, Errno> {
        let bytes = |pages: u64| format_amount(Some(pages.saturating_mul(FRAME_SIZE)));
        let engine = memcgs::engine(group)?;
        match control {
            Control::Procs => {
                Words::of(|text| members(group).try_for_each(|process| writeln!(text, "{}", process.pid)))
            }
            Control::Current => Ok(bytes(counters(engine)?.charged)),
            Control::SwapCurrent => Ok(format_amount(Some(swapped(group)))),
            Control::SwapMax => {
                let most = memcgs::swap_max(group);
                Ok(format_amount((most < u64::MAX).then_some(most)))
            }
            Control::Peak => counters(engine).map(|counters| bytes(counters.peak.max(counters.charged))),
            Control::Max => match counters(engine)?.limit {
                u64::MAX => Ok(format_amount(None)),
                pages => Ok(bytes(pages)),
            },
            Control::Stat => statistics::of(group, engine),
            Control::NodeStat => statistics::by_node(group),
            Control::Events => {
                let Events { max, oom, kills } = memcgs::events(group);
                let text = format!("low 0\nhigh 0\nmax {max}\noom {oom}\noom_kill {kills}\noom_group_kill 0\n");
                Ok(text.into_bytes())
            }
            Control::Populated => {
                let populated = u32::from(processes::all().any(|p| lives(&p) && is_in(&p, group)));
                Ok(format!("populated {populated}\nfrozen 0\n").into_bytes())
            }
            Control::Reclaim | Control::Kill => Err(Errno::EINVAL),
        }
    }

    fn write(&self, group: u32, control: Control, value: &[u8]) -> Result<(), Errno> {
        match control {
            Control::Procs => {
                let process = match parse::number(value)? {
                    0 => Thread::current().ok_or(Errno::ESRCH)?.process.clone(),
                    number => processes::find(number).filter(|process| lives(process)).ok_or(Errno::ESRCH)?,
                };
                enter(&process, group)
            }
            Control::Max => {
                let limit = parse_amount(value)?.map_or(u64::MAX, |bytes| bytes / FRAME_SIZE);
                let engine = memcgs::engine(group)?;
                let groups = machine().memcgs();
                groups.set_limit(engine, limit).map_err(|_| Errno::ENODEV)?;
                groups.drain(machine().frames(), engine).map_err(|_| Errno::ENODEV)?;
                if excess(group) > 0 {
                    oom::enforce(group);
                }
                writeback::update_limits();
                Ok(())
            }
            Control::Reclaim => {
                let wanted = parse_amount(value)?.ok_or(Errno::EINVAL)? / FRAME_SIZE;
                let engine = memcgs::engine(group)?;
                if reclaim::reclaim(Reason::Requested, engine, wanted) < wanted { Err(Errno::EAGAIN) } else { Ok(()) }
            }
            Control::SwapMax => memcgs::set_swap_max(group, parse_amount(value)?.unwrap_or(u64::MAX)),
            Control::Kill => {
                if value.trim_ascii() != b"1" {
                    return Err(Errno::EINVAL);
                }
                let below = processes::all().filter(|process| is_in(process, group));
                below.for_each(|process| process.end(Life::Killed(SIGKILL)));
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }
}

fn is_in(process: &Process, group: u32) -> bool {
    memcgs::is_below(process.cgroup.load(Relaxed), group)
}

fn lives(process: &Process) -> bool {
    process.memory.lock().is_some()
}

fn members(group: u32) -> impl Iterator<Item = Arc<Process>> {
    processes::all().filter(move |process| lives(process) && process.cgroup.load(Relaxed) == group)
}

/// Puts a process that does not run yet into the cgroup of an open directory.
///
/// # Errors
///
/// `EBADF`: not a cgroup's directory. `ENODEV`: the cgroup was removed.
pub fn begin_in(process: &Process, directory: &dyn Inode) -> Result<(), Errno> {
    enter(process, cgroup::group_of(directory).ok_or(Errno::EBADF)?)
}

/// Moves a process to a cgroup. Its memory is charged to that group from then on.
fn enter(process: &Process, group: u32) -> Result<(), Errno> {
    memcgs::enter(group, |engine| {
        process.cgroup.store(group, Relaxed);
        process.payer.store(engine.number(), Relaxed);
        let memory = process.memory();
        memory.map_or(Ok(()), |memory| memory.engine.set_memcg(engine).map_err(|_| Errno::ENODEV))
    })
}
