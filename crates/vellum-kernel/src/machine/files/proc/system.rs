//! Formats the files of `/proc` that describe the machine: `meminfo`, `vmstat`, `stat` and the
//! like.

use super::frames;
use crate::arch::cpuinfo;
use crate::files::mount;
use crate::files::shm;
use crate::mem::reclaim::{self, Reason};
use crate::mem::started_at;
use crate::mem::{Machine, heap, machine, now_ns, swap};
use crate::task::Thread;
use crate::task::process as processes;
use crate::task::process::last_number;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{self, Write};
use vellum::addr::FRAME_SIZE;
use vellum::frame::HUGE_ORDER;
use vellum::memcg::{MemcgCounters, MemcgId};
use vellum::platform::Cpus;
use vellum::stats::{Counter, SizeCounter};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::meta::Device;
use vellum_kernel::fs::pseudo::PseudoDirectory;
use vellum_kernel::fs::text::{Binary, Text};
use vellum_kernel::proc::{Text as Words, system as words};
use vellum_kernel::uname;

/// A file's name, and the function that produces its contents.
type File = (&'static str, fn() -> Result<Vec<u8>, Errno>);

const FILES: [File; 15] = [
    ("buddyinfo", buddies),
    ("cgroups", || Ok(b"#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t0\t1\t1\n".to_vec())),
    ("cmdline", || Ok(b"vellum\n".to_vec())),
    ("cpuinfo", processors),
    ("devices", || Ok(b"Character devices:\n  1 mem\n\nBlock devices:\n".to_vec())),
    ("filesystems", || Ok(b"nodev\tsysfs\nnodev\ttmpfs\nnodev\tproc\nnodev\tcgroup2\n\text4\n".to_vec())),
    ("loadavg", load),
    ("meminfo", meminfo),
    ("mounts", mounts),
    ("modules", || Ok(Vec::new())),
    ("stat", stat),
    ("swaps", swaps),
    ("uptime", uptime),
    ("version", version),
    ("vmstat", vmstat),
];

/// Adds the machine's files.
///
/// # Errors
///
/// `ENOMEM`.
pub fn fill(root: &Arc<PseudoDirectory>) -> Result<(), Errno> {
    FILES.iter().try_for_each(|(name, make)| root.add(name, Text::read_only(root.system(), *make)))?;
    root.add("kpageflags", Arc::new(Binary::new(root.system(), 0o400, Box::new(frames::flags), None)))?;
    root.add("kpagecount", Arc::new(Binary::new(root.system(), 0o400, Box::new(frames::counts), None)))?;
    let shared = root.add_directory("sysvipc")?;
    shared.add("shm", Text::read_only(root.system(), shm::list))
}

/// Sums over all address spaces, in bytes.
struct Spaces {
    tables: u64,
    mapped: u64,
}

fn spaces() -> Spaces {
    let mut sum = Spaces { tables: 0, mapped: 0 };
    for space in crate::mem::spaces::all() {
        let stats = space.engine.stats();
        sum.tables += stats.tables;
        sum.mapped += stats.file + stats.shmem;
    }
    sum
}

/// Returns what the engine counts for the root memcg: the machine's dirty pages, and their limits.
fn root_counters() -> MemcgCounters {
    machine().memcgs().counters(MemcgId::ROOT).unwrap_or_default()
}

/// Returns the machine's memory counts in bytes. Mapped shared pages are summed over all address
/// spaces, which counts a page once per mapping, so the sum is capped at the pages in use.
fn memory(machine: &Machine) -> words::Memory {
    let frames = machine.frames();
    let (spaces, pool) = (spaces(), machine.huge_pool().counts());
    let groups = crate::files::cgroupfs::listed();
    let free = frames.free_frames() * FRAME_SIZE;
    let count = |counter| machine.counter(counter) * FRAME_SIZE;
    let (shmem, files) = (count(Counter::ShmemPages), count(Counter::FilePages));
    let [swap_total, swap_free, swap_cached] = swap::bytes();
    let root = root_counters();
    let [anonymous, unevictable] = [groups.anonymous, groups.unevictable].map(|pages| pages * FRAME_SIZE);
    words::Memory {
        total: frames.total() * FRAME_SIZE,
        free,
        available: free + files,
        cached: shmem + files,
        swap_cached,
        active_anonymous: anonymous,
        inactive_file: groups.inactive_files * FRAME_SIZE,
        active_file: groups.active_files * FRAME_SIZE,
        dirty: root.dirty * FRAME_SIZE,
        writeback: root.writing * FRAME_SIZE,
        unevictable,
        locked: unevictable,
        anonymous: anonymous + unevictable,
        mapped: spaces.mapped.min(shmem + files),
        shmem,
        shmem_huge: count(Counter::ShmemHugePages),
        file_huge: count(Counter::FileHugePages),
        slab_unreclaimable: heap::used(),
        kernel_stack: (machine.platform().count() * crate::arch::stack::MAIN_STACK_SIZE) as u64,
        page_tables: spaces.tables,
        swap_total,
        swap_free,
        commit_limit: frames.total() * FRAME_SIZE + swap_total,
        huge_page: FRAME_SIZE << HUGE_ORDER,
        huge_pool: [pool.total, pool.free, pool.reserved, pool.surplus],
        ..words::Memory::default()
    }
}

/// Returns the contents of `swaps`.
fn swaps() -> Result<Vec<u8>, Errno> {
    let in_use = swap::stores().filter_map(|store| store.usage().map(|usage| (store.path, usage)));
    let devices = in_use.map(|(path, usage)| words::Swap {
        path,
        size: u64::from(usage.slots) * FRAME_SIZE,
        used: u64::from(usage.used) * FRAME_SIZE,
        priority: usage.priority,
    });
    Words::of(|text| words::swaps(text, devices))
}

/// Returns the contents of `meminfo`.
fn meminfo() -> Result<Vec<u8>, Errno> {
    let memory = memory(machine());
    Words::of(|text| words::meminfo(text, &memory))
}

/// Writes the `meminfo` of a NUMA node.
pub fn meminfo_of_node(text: &mut Words, node: usize) -> fmt::Result {
    let (frames, lists) = (machine().frames(), crate::files::cgroupfs::listed_on(node));
    let (total, free) = (frames.total_on(node), frames.free_on(node));
    let rows = [
        ("MemTotal:", total),
        ("MemFree:", free),
        ("MemUsed:", total - free),
        ("Active(anon):", lists.anonymous),
        ("Unevictable:", lists.unevictable),
        ("Mlocked:", lists.unevictable),
        ("FilePages:", lists.objects()),
        ("AnonPages:", lists.anonymous + lists.unevictable),
        ("Shmem:", lists.shared),
    ];
    let kib = |pages: u64| pages * FRAME_SIZE / 1024;
    rows.iter().try_for_each(|(name, pages)| writeln!(text, "Node {node} {name:<15}{:>8} kB", kib(*pages)))
}

fn vmstat() -> Result<Vec<u8>, Errno> {
    let machine = machine();
    let memory = memory(machine);
    let pages = |bytes: u64| bytes / FRAME_SIZE;
    let root = root_counters();
    let counter = |counter| machine.counter(counter);
    let huge = |counter| machine.size_counter(counter, HUGE_ORDER);
    let rows = [
        ("nr_free_pages", pages(memory.free)),
        ("nr_inactive_anon", 0),
        ("nr_active_anon", pages(memory.active_anonymous)),
        ("nr_inactive_file", pages(memory.inactive_file)),
        ("nr_active_file", pages(memory.active_file)),
        ("nr_unevictable", pages(memory.unevictable)),
        ("nr_slab_unreclaimable", pages(memory.slab_unreclaimable)),
        ("nr_anon_pages", pages(memory.anonymous)),
        ("nr_mapped", pages(memory.mapped)),
        ("nr_file_pages", pages(memory.cached)),
        ("nr_dirty", root.dirty),
        ("nr_writeback", root.writing),
        ("nr_shmem", pages(memory.shmem)),
        ("nr_kernel_stack", memory.kernel_stack / 1024),
        ("nr_page_table_pages", pages(memory.page_tables)),
        ("pswpin", counter(Counter::SwapIn)),
        ("pswpout", counter(Counter::SwapOut)),
        ("pgfault", counter(Counter::Faults)),
        ("pgmajfault", crate::mem::thread::major_faults()),
        ("pgsteal_kswapd", reclaim::done(Reason::Background).freed),
        ("pgsteal_direct", reclaim::done(Reason::Direct).freed),
        ("pgsteal_proactive", reclaim::done(Reason::Requested).freed),
        ("pgscan_kswapd", reclaim::done(Reason::Background).scanned),
        ("pgscan_direct", reclaim::done(Reason::Direct).scanned),
        ("pgscan_proactive", reclaim::done(Reason::Requested).scanned),
        ("workingset_activate_file", counter(Counter::FileRefaults)),
        ("pglazyfree", counter(Counter::LazyFree)),
        ("pglazyfreed", counter(Counter::LazyFreed)),
        ("compact_stall", counter(Counter::CompactStalls)),
        ("compact_fail", counter(Counter::CompactFailures)),
        ("compact_success", counter(Counter::CompactSuccesses)),
        ("pgmigrate_success", counter(Counter::PagesMigrated)),
        ("oom_kill", crate::task::oom::killed()),
        ("thp_split_pmd", counter(Counter::HugeSplits)),
        ("thp_collapse_alloc", huge(SizeCounter::Collapsed)),
        ("thp_collapse_alloc_failed", huge(SizeCounter::CollapseFailed)),
        ("thp_split_page", huge(SizeCounter::Split)),
        ("thp_split_page_failed", huge(SizeCounter::SplitFailed)),
        ("thp_deferred_split_page", counter(Counter::SplitDeferred)),
        ("nr_dirty_threshold", root.dirty_limits.limit),
        ("nr_dirty_background_threshold", root.dirty_limits.background),
    ];
    Words::of(|text| words::vmstat(text, rows))
}

fn stat() -> Result<Vec<u8>, Errno> {
    let running = processes::threads().filter(|thread| !thread.sleeps());
    let counts = words::Counts {
        booted: started_at() / 1_000_000_000,
        started: last_number().into(),
        running: running.count() as u64,
        ..words::Counts::default()
    };
    let mut times = Vec::new();
    let cpus = machine().platform().count();
    times.try_reserve_exact(cpus)?;
    times.resize(cpus, words::Times::default());
    Words::of(|text| words::stat(text, &times, &counts))
}

fn uptime() -> Result<Vec<u8>, Errno> {
    let hundredths = now_ns() / 10_000_000;
    Ok(format!("{}.{:02} 0.00\n", hundredths / 100, hundredths % 100).into_bytes())
}

fn load() -> Result<Vec<u8>, Errno> {
    let count = |(running, all), thread: Arc<Thread>| (running + u64::from(!thread.sleeps()), all + 1);
    let (running, all) = processes::threads().fold((0, 0), count);
    Ok(format!("0.00 0.00 0.00 {running}/{all} {}\n", last_number()).into_bytes())
}

fn version() -> Result<Vec<u8>, Errno> {
    Ok(format!("{} version {} ({})\n", uname::SYSTEM, uname::RELEASE, uname::VERSION).into_bytes())
}

fn processors() -> Result<Vec<u8>, Errno> {
    let cpus = machine().platform().count();
    Words::of(|text| (0..cpus).try_for_each(|cpu| cpuinfo::describe(text, cpu, cpus)))
}

fn buddies() -> Result<Vec<u8>, Errno> {
    Words::of(|text| {
        let frames = machine().frames();
        (0..frames.nodes()).try_for_each(|node| {
            write!(text, "Node {node}, zone   Normal ")?;
            frames.free_blocks_on(node).iter().try_for_each(|count| write!(text, "{count:>6} "))?;
            text.write_str("\n")
        })
    })
}

/// Returns the contents of `mounts`, the root's first.
pub fn mounts() -> Result<Vec<u8>, Errno> {
    Words::of(|text| {
        mount::each(|source, path, kind, _, rights| writeln!(text, "{source} {path} {kind} {rights},relatime 0 0"))
    })
}

/// Returns the contents of `mountinfo`.
pub fn mountinfo() -> Result<Vec<u8>, Errno> {
    Words::of(|text| {
        let mut number = 0;
        mount::each(|source, path, kind, device, rights| {
            number += 1;
            let Device { major, minor } = device;
            writeln!(text, "{number} 1 {major}:{minor} / {path} {rights},relatime - {kind} {source} {rights}")
        })
    })
}
