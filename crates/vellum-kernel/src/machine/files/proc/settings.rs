//! Implements `/proc/sys`.
//!
//! A setting that is fixed here accepts only its present value. A program that saves and restores
//! it succeeds; a program that changes it gets an error.

use crate::files::{contents, shm, writeback};
use crate::mem::reclaim;
use crate::task::limits::count;
use crate::task::process as processes;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use spin::Mutex;
use vellum::addr::FRAME_SIZE;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::notify::limits;
use vellum_kernel::fs::pipe::limits as pipes;
use vellum_kernel::fs::pseudo::PseudoDirectory;
use vellum_kernel::fs::text::{Show, Store, Text};
use vellum_kernel::parse;
use vellum_kernel::uname;

/// A number within bounds. If the kernel does not use it, it is stored only.
struct Setting {
    name: &'static str,
    value: AtomicU64,
    least: u64,
    most: u64,
}

const fn setting(name: &'static str, value: u64, least: u64, most: u64) -> Setting {
    Setting { name, value: AtomicU64::new(value), least, most }
}

/// The lowest address where a program without `CAP_SYS_RAWIO` maps memory (`vm.mmap_min_addr`), so
/// that an access by a null pointer faults.
pub const LOWEST: u64 = 65536;

/// The numbers of `vm`.
static MEMORY: [Setting; 21] = [
    setting("compaction_proactiveness", 20, 0, 100),
    setting("dirty_background_bytes", 0, 1, u64::MAX),
    setting("dirty_background_ratio", writeback::Settings::USUAL.ratios[0], 0, 100),
    setting("dirty_bytes", 0, 2 * FRAME_SIZE, u64::MAX),
    setting("dirty_ratio", writeback::Settings::USUAL.ratios[1], 0, 100),
    setting("dirty_writeback_centisecs", writeback::Settings::USUAL.interval, 0, i32::MAX as u64),
    setting("drop_caches", 0, 1, 4),
    setting("max_map_count", 65530, 0, i32::MAX as u64),
    setting("min_free_kbytes", 0, 0, u64::MAX),
    setting("hugetlb_shm_group", 0, 0, i32::MAX as u64),
    setting("mmap_min_addr", LOWEST, LOWEST, LOWEST),
    setting("oom_kill_allocating_task", 0, 0, 0),
    setting("overcommit_kbytes", 0, 0, 0),
    // The kernel always overcommits.
    setting("overcommit_memory", 1, 0, 1),
    setting("overcommit_ratio", 50, 0, u64::MAX),
    setting("page-cluster", 3, 0, 31),
    setting("panic_on_oom", 0, 0, 0),
    setting("swappiness", 60, 60, 60),
    setting("unprivileged_userfaultfd", 0, 0, 1),
    setting("vfs_cache_pressure", 100, 0, u64::MAX),
    setting("watermark_scale_factor", 10, 1, 3000),
];

/// Files of `vm` whose value stays when they are written: orders.
const STAYS: [&str; 1] = ["drop_caches"];

static KERNEL: [Setting; 13] = [
    setting("core_uses_pid", 0, 0, 1),
    setting("dmesg_restrict", 0, 0, 1),
    setting("kptr_restrict", 0, 0, 2),
    setting("msgmax", 8192, 8192, 8192),
    setting("msgmnb", 16384, 16384, 16384),
    setting("msgmni", 0, 0, 0),
    setting("ngroups_max", 65536, 65536, 65536),
    setting("panic", 0, 0, u64::MAX),
    setting("panic_on_oops", 1, 1, 1),
    // PIDs are not reused.
    setting("pid_max", 4_194_304, 4_194_304, 4_194_304),
    setting("randomize_va_space", 0, 0, 0),
    setting("sched_rr_timeslice_ms", 10, 10, 10),
    setting("tainted", 0, 0, 0),
];

const WORDS: [(&str, &str); 5] = [
    ("domainname", uname::DOMAIN),
    ("hostname", uname::HOST),
    ("osrelease", uname::RELEASE),
    ("ostype", uname::SYSTEM),
    ("version", uname::VERSION),
];

/// The limits of System V shared memory: total pages, bytes per segment, segments.
static SHARED_MEMORY: [Setting; 3] = [
    setting("shmall", u64::MAX - (1 << 24), 0, u64::MAX),
    setting("shmmax", u64::MAX - (1 << 24), 0, u64::MAX),
    setting("shmmni", 4096, 0, 32768),
];

/// The longest pattern of the paths of core files, in bytes.
const LONGEST_PATTERN: usize = 127;

/// The pattern of the paths of core files, and its length.
static CORE_PATTERN: Mutex<([u8; LONGEST_PATTERN], usize)> = Mutex::new(([0; LONGEST_PATTERN], 0));

/// Returns the pattern of the paths of core files (`core_pattern`), and whether the number of the
/// process is added to a path that lacks it (`core_uses_pid`).
pub fn core_pattern() -> (Vec<u8>, bool) {
    let (pattern, len) = *CORE_PATTERN.lock();
    let pattern = if len == 0 { b"core".to_vec() } else { pattern[..len].to_vec() };
    (pattern, KERNEL[0].value.load(Relaxed) != 0)
}

/// Sets the pattern of the paths of core files. An empty one stands for the usual one.
fn set_core_pattern(value: &[u8]) -> Result<(), Errno> {
    let value = value.strip_suffix(b"\n").unwrap_or(value);
    // No program takes a core by a pipe.
    if value.len() > LONGEST_PATTERN || value.first() == Some(&b'|') {
        return Err(Errno::EINVAL);
    }
    let mut own = CORE_PATTERN.lock();
    own.0[..value.len()].copy_from_slice(value);
    own.1 = value.len();
    Ok(())
}

/// Returns the limits of System V shared memory: total pages, bytes per segment, segments.
pub fn shared_memory() -> [u64; 3] {
    [0, 1, 2].map(|which: usize| SHARED_MEMORY[which].value.load(Relaxed))
}

/// Adds the settings.
///
/// # Errors
///
/// `ENOMEM`.
pub fn fill(directory: &Arc<PseudoDirectory>) -> Result<(), Errno> {
    let (memory, kernel) = (directory.add_directory("vm")?, directory.add_directory("kernel")?);
    MEMORY.iter().try_for_each(|setting| number(&memory, setting))?;
    crate::files::huge::add_pool_settings(&memory, |pool| pool.total - pool.surplus)?;
    let compact: Store = Box::new(|value| match parse::number::<u64>(value)? {
        1 => {
            reclaim::compact(u64::MAX);
            Ok(())
        }
        _ => Err(Errno::EINVAL),
    });
    memory.add("compact_memory", Text::new(memory.system(), 0o200, None, Some(compact)))?;
    KERNEL.iter().chain(&SHARED_MEMORY).try_for_each(|setting| number(&kernel, setting))?;
    let wanted: Show = Box::new(|| {
        let id = shm::wanted()?.map_or(-1, i64::from);
        Ok(format!("{id}\n").into_bytes())
    });
    let want: Store = Box::new(|value| {
        let id = parse::number::<i32>(value)?;
        shm::want(u32::try_from(id).map_err(|_| Errno::EINVAL)?)
    });
    kernel.add("shm_next_id", Text::new(kernel.system(), 0o644, Some(wanted), Some(want)))?;
    let most_tasks = || Ok(format!("{}\n", count::most()).into_bytes());
    kernel.add("threads-max", Text::read_only(kernel.system(), most_tasks))?;
    for (name, value) in WORDS {
        let make: Show = Box::new(move || Ok(format!("{value}\n").into_bytes()));
        let take: Store = Box::new(move |new| match new.trim_ascii() == value.as_bytes() {
            true => Ok(()),
            false => Err(Errno::EINVAL),
        });
        kernel.add(name, Text::new(kernel.system(), 0o644, Some(make), Some(take)))?;
    }
    let pattern: Show = Box::new(|| Ok([core_pattern().0.as_slice(), b"\n"].concat()));
    let set_pattern: Store = Box::new(set_core_pattern);
    kernel.add("core_pattern", Text::new(kernel.system(), 0o644, Some(pattern), Some(set_pattern)))?;
    let files = directory.add_directory("fs")?;
    files.add("file-max", Text::read_only(files.system(), || Ok(b"9223372036854775807\n".to_vec())))?;
    files.add("nr_open", Text::read_only(files.system(), || Ok(b"1048576\n".to_vec())))?;
    let rounded: Show = Box::new(|| Ok(format!("{}\n", pipes::max_size()).into_bytes()));
    let round: Store = Box::new(|value| {
        let size = pipes::round(parse::number::<u64>(value)?)?;
        pipes::MAX_SIZE.store(size as u64, Relaxed);
        Ok(())
    });
    files.add("pipe-max-size", Text::new(files.system(), 0o644, Some(rounded), Some(round)))?;
    let pages: [(&str, &'static AtomicU64); 2] =
        [("pipe-user-pages-hard", &pipes::USER_PAGES_HARD), ("pipe-user-pages-soft", &pipes::USER_PAGES_SOFT)];
    for (name, limit) in pages {
        let show: Show = Box::new(|| Ok(format!("{}\n", limit.load(Relaxed)).into_bytes()));
        let store: Store = Box::new(|value| {
            limit.store(parse::number::<u64>(value)?, Relaxed);
            Ok(())
        });
        files.add(name, Text::new(files.system(), 0o644, Some(show), Some(store)))?;
    }
    let notify = files.add_directory("inotify")?;
    let limits: [(&str, &'static AtomicU32); 3] = [
        ("max_queued_events", &limits::MAX_QUEUED_EVENTS),
        ("max_user_instances", &limits::MAX_USER_INSTANCES),
        ("max_user_watches", &limits::MAX_USER_WATCHES),
    ];
    for (name, limit) in limits {
        let show: Show = Box::new(|| Ok(format!("{}\n", limit.load(Relaxed)).into_bytes()));
        let store: Store = Box::new(|value| {
            let value = parse::number::<i32>(value)?;
            limit.store(u32::try_from(value).map_err(|_| Errno::EINVAL)?, Relaxed);
            Ok(())
        });
        notify.add(name, Text::new(notify.system(), 0o644, Some(show), Some(store)))?;
    }
    Ok(())
}

/// Pairs of files of `vm` of which a write to one has the other read as 0.
const EITHER: [[&str; 2]; 2] = [["dirty_background_bytes", "dirty_background_ratio"], ["dirty_bytes", "dirty_ratio"]];

/// Returns a number of `vm`; 0 if there is no such file.
fn memory(name: &str) -> u64 {
    MEMORY.iter().find(|setting| setting.name == name).map_or(0, |setting| setting.value.load(Relaxed))
}

/// Returns the most VMAs that an address space may have (`max_map_count`).
pub fn most_vmas() -> usize {
    memory("max_map_count") as usize
}

/// Returns the group whose processes may make shared memory of huge pages (`hugetlb_shm_group`).
pub fn huge_group() -> u32 {
    memory("hugetlb_shm_group") as u32
}

/// Returns whether any process may create a userfaultfd for faults that the kernel takes
/// (`unprivileged_userfaultfd`).
pub fn permits_userfaultfd() -> bool {
    memory("unprivileged_userfaultfd") != 0
}

/// Applies the written limits to the address spaces of all running processes.
fn apply() {
    for process in processes::all() {
        let memory = process.memory();
        if let Some(memory) = memory {
            memory.engine.set_limits(|limits| limits.vmas = most_vmas());
        }
    }
}

fn number(directory: &Arc<PseudoDirectory>, setting: &'static Setting) -> Result<(), Errno> {
    let make: Show = Box::new(|| Ok(format!("{}\n", setting.value.load(Relaxed)).into_bytes()));
    let take: Store = Box::new(|value| {
        let value = parse::number::<u64>(value)?;
        if !(setting.least..=setting.most).contains(&value) {
            return Err(Errno::EINVAL);
        }
        if !STAYS.contains(&setting.name) {
            setting.value.store(value, Relaxed);
        }
        for pair in EITHER.iter().filter(|pair| pair.contains(&setting.name)) {
            let others = MEMORY.iter().filter(|other| pair.contains(&other.name) && other.name != setting.name);
            others.for_each(|other| other.value.store(0, Relaxed));
        }
        match setting.name {
            "max_map_count" => apply(),
            name if name.starts_with("dirty_") => {
                writeback::follow(writeback::Settings {
                    bytes: ["dirty_background_bytes", "dirty_bytes"].map(memory),
                    ratios: ["dirty_background_ratio", "dirty_ratio"].map(memory),
                    interval: memory("dirty_writeback_centisecs"),
                });
            }
            // Bit 1 would drop inodes and names, which stay as long as their file system is
            // mounted.
            "drop_caches" if value & 1 != 0 => {
                contents::all_stored().for_each(|contents| contents.drop_clean(0..u64::MAX));
            }
            _ => {}
        }
        Ok(())
    });
    directory.add(setting.name, Text::new(directory.system(), 0o644, Some(make), Some(take)))
}
