//! Memory: the engine, and what the kernel is to it.
//!
//! | file | story |
//! |---|---|
//! | [`platform`] | the machine as the engine sees it |
//! | [`heap`] | the kernel's own memory, from the engine's frames |
//! | [`payer`] | which group pays for that |
//! | [`shootdown`] | invalidating translations, here and on other processors |
//! | [`space`] | the address spaces of processes, and which one a processor has loaded |
//! | [`spaces`] | all address spaces, by number |
//! | [`swap`] | where memory goes that nobody has used for a while |
//! | [`disk`] | the disk among these |
//! | [`reclaim`] | memory is short |
//! | [`memcgs`] | the machine's memcgs: names, events, swap limits |
//! | [`thread`] | the memory layer's part of a thread: what it is blocked on, its faults |
//! | [`percpu`] | the memory layer's part of a CPU's record |
//! | [`uffd`] | userfaultfds, as address spaces know them |
//! | [`uaccess`] | the kernel's accesses to user memory |

pub mod disk;
pub mod heap;
#[cfg(feature = "holds")]
pub mod holds;
pub mod memcgs;
pub mod payer;
pub mod percpu;
pub mod platform;
pub mod reclaim;
pub mod shootdown;
pub mod space;
pub mod spaces;
pub mod swap;
pub mod thread;
pub mod uaccess;
pub mod uffd;

use crate::arch::clock::Clock;
use crate::arch::paging::{Format, copy_kernel_half, format};
use core::fmt;
use platform::Host;
pub use space::UserSpace;
use spin::Once;
use vellum::addr::FRAME_SIZE;
use vellum::frame::BootOptions;
use vellum::memcg::MemcgId;
use vellum::memcg::Refused;
use vellum::space::Limits;
use vellum::stats::Counter;
use vellum_kernel::boot::MemoryMap;
use vellum_kernel::nodes::Nodes;

/// The machine's memory.
pub type Machine = vellum::Machine<'static, Host>;
/// An address space. Made by [`new_space`], or else without the kernel in it.
pub type Space = vellum::AddressSpace<'static, Host, Format>;

/// A memory object: the contents of a file.
pub type Object = vellum::page_cache::Object<'static, Host>;

/// This part of all memory is kept for the kernel, and at most [`MOST_KEPT`].
const KEPT_PART: u64 = 64;
/// In bytes.
const MOST_KEPT: u64 = 16 << 20;

static HOST: Once<Host> = Once::new();
static MACHINE: Once<Machine> = Once::new();

/// Hands the memory of a machine with so many processors to the engine.
pub fn init(
    map: &MemoryMap,
    nodes: &Nodes,
    clock: Clock,
    cpus: usize,
) -> Result<&'static Machine, vellum::frame::BootError> {
    let host = HOST.call_once(|| Host::new(map, nodes, clock, cpus));
    let bytes: u64 = map.usable().map(|region| region.size).sum();
    let kept = (bytes / KEPT_PART).min(MOST_KEPT) / FRAME_SIZE;
    MACHINE.try_call_once(|| Machine::boot(host, BootOptions { min_free: kept, ..BootOptions::default() }))
}

/// The machine's memory.
///
/// # Panics
///
/// Before [`init`].
#[inline]
pub fn machine() -> &'static Machine {
    MACHINE.get().expect("the engine has booted")
}

/// The wall clock when the machine starts, in nanoseconds since 1970: a fixed day, as the kernel
/// reads no real-time clock.
pub const EPOCH: u64 = 1_767_225_600_000_000_000;

/// Nanoseconds since the machine started.
#[inline]
pub fn now_ns() -> u64 {
    HOST.get().map_or(0, vellum::platform::Clock::now_ns)
}

/// What the engine has done since the start, in a line.
pub struct Tally;

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |counter| machine().counter(counter);
        write!(
            f,
            "{} faults, {} pages unmapped in {} runs, {} invalidations, {} tables came and {} went",
            count(Counter::Faults),
            count(Counter::PagesCleared),
            count(Counter::RunsCleared),
            count(Counter::Flushes),
            count(Counter::TablesAllocated),
            count(Counter::TablesFreed),
        )
    }
}

/// An empty memory object.
///
/// # Errors
///
/// No memory.
pub fn new_object(group: MemcgId, tag: u64) -> Result<Object, vellum::page_cache::ObjectError> {
    Object::new(machine(), &format(), group, tag, 0)
}

/// An empty space, with the kernel in its upper half.
pub fn new_space(machine: &'static Machine, group: MemcgId, limits: Limits) -> Result<Space, Refused> {
    let space = Space::new(machine, format(), group, limits)?;
    adopt(&space);
    Ok(space)
}

/// Puts the kernel into the upper half of a space that the engine has just made.
pub fn adopt(space: &Space) {
    // SAFETY: a root table that is not loaded anywhere yet, and the engine leaves the upper half of
    // it to the host (`AddressSpace::root`).
    unsafe { copy_kernel_half(space.root().addr().0) };
}
