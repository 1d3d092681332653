//! Memory management: boots the engine, provides what it needs from the host, and uses it for
//! processes and for the kernel itself.
//!
//! | file | contents |
//! |---|---|
//! | [`platform`] | the machine as the engine sees it: the implementation of `vellum::platform` |
//! | [`heap`] | the kernel's allocator, on top of the engine's frames |
//! | [`vmalloc`] | the heap's blocks of frames that are not contiguous |
//! | [`payer`] | the memcg that is charged for kernel memory |
//! | [`shootdown`] | TLB invalidation on this CPU and on other CPUs |
//! | [`space`] | the address spaces of processes, and the space that each CPU has loaded |
//! | [`spaces`] | the registry of all address spaces, by number and by fork family |
//! | [`swap`] | the swap devices: compressed memory and a disk |
//! | [`virtio`] | virtio devices on PCI, their memory, and the driver of QEMU's folder of the host |
//! | [`block`] | block devices: disks and a disk in memory |
//! | [`storage`] | the page cache's requests, and the tasks that wait for their ends |
//! | [`store`] | the storage of a file, as its page cache uses it |
//! | [`transfers`] | a request, as transfers of a block device |
//! | [`storage_task`] | the task that carries out requests |
//! | [`throttle`] | the waits of threads that make many pages dirty |
//! | [`reclaim`] | calls the engine's reclaim and counts its work by reason |
//! | [`memcgs`] | the machine's memcgs: names, events, swap limits |
//! | [`thread`] | the memory layer's part of a thread: the reason it is blocked, its faults |
//! | [`percpu`] | the memory layer's part of a CPU's record |
//! | [`vdso`] | the page of clocks and the shared object in every program |
//! | [`uffd`] | userfaultfds, as address spaces know them |
//! | [`uaccess`] | the kernel's accesses to user memory |
//! | [`forced`] | accesses to memory whatever its protection |

pub mod block;
pub mod forced;
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
pub mod storage;
pub mod storage_task;
pub mod store;
pub mod swap;
pub mod thread;
pub mod throttle;
pub mod transfers;
pub mod uaccess;
pub mod uffd;
pub mod vdso;
pub mod virtio;
pub mod vmalloc;

use crate::arch::clock::Clock;
use crate::arch::paging::{copy_kernel_half, format};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use platform::Host;
pub use space::UserSpace;
use spin::Once;
use vellum::addr::FRAME_SIZE;
use vellum::frame::BootOptions;
use vellum::memcg::MemcgId;
use vellum::memcg::Refused;
use vellum::page_cache::Changes;
use vellum::space::Limits;
use vellum::stats::Counter;
use vellum_kernel::boot::MemoryMap;
use vellum_kernel::nodes::Nodes;

/// The engine's machine: all memory that it manages.
pub type Machine = vellum::Machine<'static, Host>;
/// The engine's address space. [`new_space`] creates one with the kernel half mapped; the engine's
/// own constructor leaves the kernel half empty.
pub type Space = vellum::AddressSpace<'static, Host>;

/// A page-cache object: the contents of a file (Linux: `address_space`).
pub type Object = vellum::page_cache::Object<'static, Host>;

/// The share of memory that is reserved for the kernel is one in `KEPT_PART`, at most
/// [`MOST_KEPT`].
const KEPT_PART: u64 = 64;
/// The largest kernel reserve, in bytes.
const MOST_KEPT: u64 = 16 << 20;

static HOST: Once<Host> = Once::new();
static MACHINE: Once<Machine> = Once::new();

/// Boots the engine with the memory of `map`, for a machine with `cpus` CPUs.
///
/// # Errors
///
/// The engine's `BootError`.
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

/// Returns the engine's machine.
///
/// # Panics
///
/// Before [`init`].
#[inline]
pub fn machine() -> &'static Machine {
    MACHINE.get().expect("mem::init must be called before mem::machine")
}

/// The wall clock when the machine started, in nanoseconds since 1970: a fixed day, unless the host
/// tells the time.
static STARTED_AT: AtomicU64 = AtomicU64::new(1_767_225_600_000_000_000);

/// Returns the wall clock when the machine started, in nanoseconds since 1970.
pub fn started_at() -> u64 {
    STARTED_AT.load(Relaxed)
}

/// Sets the wall clock, in nanoseconds since 1970.
pub fn set_wall_clock(now: u64) {
    STARTED_AT.store(now.saturating_sub(now_ns()), Relaxed);
}

/// Returns the nanoseconds since the machine started; 0 before [`init`].
#[inline]
pub fn now_ns() -> u64 {
    HOST.get().map_or(0, vellum::platform::Clock::now_ns)
}

/// One line of engine counters since the start, for the console.
pub struct CounterSummary;

impl fmt::Display for CounterSummary {
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

/// Creates an empty page-cache object that is charged to `memcg`. `tag` identifies the file in the
/// VMAs that map the object.
///
/// # Errors
///
/// Memory is short, or the memcg's limit is reached.
pub fn new_object(memcg: MemcgId, tag: u64) -> Result<Object, vellum::page_cache::ObjectError> {
    Object::new(machine(), &format(), memcg, tag, 0)
}

/// Creates a page-cache object of `size` bytes whose contents a store has ([`storage::add`]), as
/// [`new_object`] does.
///
/// # Errors
///
/// Those of [`new_object`].
pub fn new_stored_object(
    memcg: MemcgId,
    tag: u64,
    size: u64,
    changes: Changes,
) -> Result<Object, vellum::page_cache::ObjectError> {
    Object::with_store(machine(), &format(), memcg, tag, size, changes)
}

/// Creates an empty address space with the kernel in its upper half.
///
/// # Errors
///
/// Memory is short, or the memcg's limit is reached.
pub fn new_space(machine: &'static Machine, memcg: MemcgId, limits: Limits) -> Result<Space, Refused> {
    let space = Space::new(machine, format(), memcg, limits)?;
    map_kernel(&space);
    Ok(space)
}

/// Copies the kernel's root entries into the upper half of a new address space's root page table.
pub fn map_kernel(space: &Space) {
    // SAFETY: the root page table is not loaded on any CPU yet, and the engine leaves its upper
    // half to the host (`AddressSpace::root`).
    unsafe { copy_kernel_half(space.root().addr().0) };
}
