//! `/proc/meminfo`, `/proc/vmstat`, `/proc/swaps` and `/proc/stat`.

use super::{Text, kib};
use core::fmt::{self, Write};

/// The machine's memory.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Memory {
    pub total: u64,
    pub free: u64,
    pub available: u64,
    pub buffers: u64,
    pub cached: u64,
    pub swap_cached: u64,
    pub active_anonymous: u64,
    pub inactive_anonymous: u64,
    pub active_file: u64,
    pub inactive_file: u64,
    pub unevictable: u64,
    pub locked: u64,
    pub swap_total: u64,
    pub swap_free: u64,
    pub dirty: u64,
    pub writeback: u64,
    pub anonymous: u64,
    pub mapped: u64,
    pub shmem: u64,
    pub slab_reclaimable: u64,
    pub slab_unreclaimable: u64,
    pub kernel_stack: u64,
    pub page_tables: u64,
    pub commit_limit: u64,
    pub committed: u64,
    pub per_cpu: u64,
    pub anonymous_huge: u64,
    pub shmem_huge: u64,
    pub shmem_mapped_huge: u64,
    pub file_huge: u64,
    pub file_mapped_huge: u64,
    /// The size of a huge page.
    pub huge_page: u64,
    /// The pages of the pool of huge pages: all, free, reserved and surplus ones.
    pub huge_pool: [u64; 4],
    /// The kernel's direct map, by pages of 4 KiB, 2 MiB and 1 GiB.
    pub direct_map: [u64; 3],
}

/// Writes `meminfo`.
///
/// # Errors
/// Fails if there is no memory for the text.
pub fn meminfo(text: &mut Text, memory: &Memory) -> fmt::Result {
    let slab = memory.slab_reclaimable + memory.slab_unreclaimable;
    let rows = [
        ("MemTotal", memory.total),
        ("MemFree", memory.free),
        ("MemAvailable", memory.available),
        ("Buffers", memory.buffers),
        ("Cached", memory.cached),
        ("SwapCached", memory.swap_cached),
        ("Active", memory.active_anonymous + memory.active_file),
        ("Inactive", memory.inactive_anonymous + memory.inactive_file),
        ("Active(anon)", memory.active_anonymous),
        ("Inactive(anon)", memory.inactive_anonymous),
        ("Active(file)", memory.active_file),
        ("Inactive(file)", memory.inactive_file),
        ("Unevictable", memory.unevictable),
        ("Mlocked", memory.locked),
        ("SwapTotal", memory.swap_total),
        ("SwapFree", memory.swap_free),
        ("Dirty", memory.dirty),
        ("Writeback", memory.writeback),
        ("AnonPages", memory.anonymous),
        ("Mapped", memory.mapped),
        ("Shmem", memory.shmem),
        ("KReclaimable", memory.slab_reclaimable),
        ("Slab", slab),
        ("SReclaimable", memory.slab_reclaimable),
        ("SUnreclaim", memory.slab_unreclaimable),
        ("KernelStack", memory.kernel_stack),
        ("PageTables", memory.page_tables),
        ("SecPageTables", 0),
        ("NFS_Unstable", 0),
        ("Bounce", 0),
        ("WritebackTmp", 0),
        ("CommitLimit", memory.commit_limit),
        ("Committed_AS", memory.committed),
        ("VmallocTotal", 0),
        ("VmallocUsed", 0),
        ("VmallocChunk", 0),
        ("Percpu", memory.per_cpu),
        ("AnonHugePages", memory.anonymous_huge),
        ("ShmemHugePages", memory.shmem_huge),
        ("ShmemPmdMapped", memory.shmem_mapped_huge),
        ("FileHugePages", memory.file_huge),
        ("FilePmdMapped", memory.file_mapped_huge),
    ];
    for (name, bytes) in rows {
        row(text, name, bytes)?;
    }
    let pool = ["HugePages_Total:", "HugePages_Free:", "HugePages_Rsvd:", "HugePages_Surp:"];
    for (name, pages) in pool.into_iter().zip(memory.huge_pool) {
        text.amount(name, pages, "")?;
    }
    row(text, "Hugepagesize", memory.huge_page)?;
    row(text, "Hugetlb", memory.huge_pool[0] * memory.huge_page)?;
    for (name, bytes) in ["DirectMap4k", "DirectMap2M", "DirectMap1G"].into_iter().zip(memory.direct_map) {
        row(text, name, bytes)?;
    }
    Ok(())
}

fn row(text: &mut Text, name: &str, bytes: u64) -> fmt::Result {
    let colon = 15usize.saturating_sub(name.len());
    writeln!(text, "{name}:{:colon$}{:>8} kB", "", kib(bytes))
}

/// Writes `vmstat`: counters by name, such as `pgfault`.
///
/// # Errors
/// Fails if there is no memory for the text.
pub fn vmstat<'a>(text: &mut Text, counters: impl IntoIterator<Item = (&'a str, u64)>) -> fmt::Result {
    counters.into_iter().try_for_each(|(name, count)| writeln!(text, "{name} {count}"))
}

/// A swap device in use.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Swap<'a> {
    /// The path of its device file.
    pub path: &'a str,
    pub size: u64,
    pub used: u64,
    pub priority: i16,
}

/// Writes `swaps`.
///
/// # Errors
/// Fails if there is no memory for the text.
pub fn swaps<'a>(text: &mut Text, devices: impl IntoIterator<Item = Swap<'a>>) -> fmt::Result {
    /// The column at which the device type begins, and the smallest size or use in KiB after which
    /// Linux writes one tab instead of two.
    const COLUMN: usize = 40;
    const WIDE: u64 = 10_000_000;
    text.write_str("Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")?;
    for Swap { path, size, used, priority } in devices {
        write!(text, "{path:<width$}partition", width = COLUMN.max(path.len() + 1))?;
        for kib in [size, used].map(kib) {
            write!(text, "\t{kib}{}", if kib < WIDE { "\t" } else { "" })?;
        }
        writeln!(text, "\t{priority}")?;
    }
    Ok(())
}

/// A CPU's time, in hundredths of a second.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Times {
    pub user: u64,
    pub system: u64,
    pub idle: u64,
}

/// The counts in `stat` besides the CPUs' times.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Counts {
    pub interrupts: u64,
    pub switches: u64,
    /// The time of boot, in seconds since 1970.
    pub booted: u64,
    /// The number of processes and threads started so far.
    pub started: u64,
    pub running: u64,
    pub blocked: u64,
}

/// Writes `stat`.
///
/// # Errors
/// Fails if there is no memory for the text.
pub fn stat(text: &mut Text, cpus: &[Times], counts: &Counts) -> fmt::Result {
    let line = |text: &mut Text, times: &Times| {
        writeln!(text, " {} 0 {} {} 0 0 0 0 0 0", times.user, times.system, times.idle)
    };
    let sum = cpus.iter().fold(Times::default(), |sum, times| Times {
        user: sum.user + times.user,
        system: sum.system + times.system,
        idle: sum.idle + times.idle,
    });
    // Linux writes two spaces after the name of the line with the sum over all CPUs.
    text.write_str("cpu ")?;
    line(text, &sum)?;
    for (number, times) in cpus.iter().enumerate() {
        write!(text, "cpu{number}")?;
        line(text, times)?;
    }
    writeln!(text, "intr {}\nctxt {}\nbtime {}", counts.interrupts, counts.switches, counts.booted)?;
    writeln!(text, "processes {}\nprocs_running {}", counts.started, counts.running)?;
    writeln!(text, "procs_blocked {}\nsoftirq 0 0 0 0 0 0 0 0 0 0 0", counts.blocked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::ToOwned;
    use std::string::String;

    fn text(write: impl FnOnce(&mut Text) -> fmt::Result) -> String {
        String::from_utf8(Text::of(write).unwrap()).unwrap()
    }

    /// Formats the host's `meminfo`: the rows and the columns are those of the host's Linux, in the
    /// same order.
    #[test]
    fn meminfo_is_formatted_as_on_linux() {
        let real = std::fs::read_to_string("/proc/meminfo").unwrap();
        let number = |name: &str| {
            let line = real.lines().find(|line| line.split(':').next() == Some(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
        };
        let memory = Memory {
            total: number("MemTotal"),
            free: number("MemFree"),
            huge_page: number("Hugepagesize"),
            ..Memory::default()
        };
        let ours = text(|text| meminfo(text, &memory));
        let mut theirs = real.lines();
        for line in ours.lines() {
            let name = line.split(':').next().unwrap();
            // Not every kernel has all rows.
            if !real.contains(&std::format!("{name}:")) {
                continue;
            }
            let found = theirs.find(|real| real.split(':').next() == Some(name)).expect(name);
            // The digits end in the same column, and what follows them, the unit, is as long.
            let end = |line: &str| line.rfind(|letter: char| letter.is_ascii_digit());
            if found.len() == line.len() {
                assert_eq!(end(line), end(found), "{line}");
            }
            if ["MemTotal", "MemFree", "Hugepagesize", "HugePages_Total"].contains(&name) {
                assert_eq!(line, found);
            }
        }
    }

    #[test]
    fn stat_is_formatted_as_on_linux() {
        let times = Times { user: 1, system: 2, idle: 3 };
        let counts = Counts { interrupts: 4, switches: 5, booted: 6, started: 7, running: 8, blocked: 9 };
        let ours = text(|text| stat(text, &[times, times], &counts));
        assert!(ours.starts_with("cpu  2 0 4 6 0 0 0 0 0 0\ncpu0 1 0 2 3 0 0 0 0 0 0\ncpu1 "));
        let real = std::fs::read_to_string("/proc/stat").unwrap();
        let words = |line: &str| (line.split(' ').next().unwrap().to_owned(), line.split(' ').count());
        let theirs = |name: &str| real.lines().map(words).find(|(own, _)| own == name);
        for line in ours.lines().filter(|line| !line.starts_with("intr") && !line.starts_with("cpu1")) {
            let (name, count) = words(line);
            assert_eq!(theirs(&name), Some((name, count)));
        }
    }

    /// Exactly as Linux writes it.
    #[test]
    fn swaps_is_formatted_as_on_linux() {
        let small = Swap { path: "/dev/zram0", size: 65532 << 10, used: 0, priority: -1 };
        let large = Swap { path: "/dev/zram1", size: 10_000_000 << 10, used: 10_000_000 << 10, priority: 5 };
        let expected = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
            /dev/zram0                              partition\t65532\t\t0\t\t-1\n\
            /dev/zram1                              partition\t10000000\t10000000\t5\n";
        assert_eq!(text(|text| swaps(text, [small, large])), expected);
    }

    #[test]
    fn vmstat_lists_counters() {
        assert_eq!(text(|text| vmstat(text, [("pgfault", 1), ("pgmajfault", 0)])), "pgfault 1\npgmajfault 0\n");
    }
}
