//! `/proc/PID/status`, `stat` and `statm`.

use super::{Text, kib, processors};
use core::fmt::{self, Write};

/// The state of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum State {
    #[default]
    Running,
    Sleeping,
    Uninterruptible,
    Stopped,
    Traced,
    Zombie,
}

impl State {
    fn letter(self) -> char {
        match self {
            State::Running => 'R',
            State::Sleeping => 'S',
            State::Uninterruptible => 'D',
            State::Stopped => 'T',
            State::Traced => 't',
            State::Zombie => 'Z',
        }
    }

    fn words(self) -> &'static str {
        match self {
            State::Running => "R (running)",
            State::Sleeping => "S (sleeping)",
            State::Uninterruptible => "D (disk sleep)",
            State::Stopped => "T (stopped)",
            State::Traced => "t (tracing stop)",
            State::Zombie => "Z (zombie)",
        }
    }
}

/// The memory of a process. A zombie has none.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Memory {
    pub peak: u64,
    pub size: u64,
    pub locked: u64,
    pub pinned: u64,
    /// There are no large folios (`PR_SET_THP_DISABLE`).
    pub denies_huge: bool,
    /// The peak resident size.
    pub peak_resident: u64,
    pub anonymous: u64,
    pub file: u64,
    pub shmem: u64,
    pub data: u64,
    pub stack: u64,
    pub code: u64,
    pub libraries: u64,
    pub page_tables: u64,
    pub swap: u64,
    /// Huge pages of the pool.
    pub hugetlb: u64,
    /// The start and end of code, data, arguments and environment; the starts of heap and stack.
    pub code_range: [u64; 2],
    pub data_range: [u64; 2],
    pub heap_start: u64,
    pub stack_start: u64,
    pub argument_range: [u64; 2],
    pub environment_range: [u64; 2],
}

impl Memory {
    /// Returns the resident size.
    pub fn resident(&self) -> u64 {
        self.anonymous + self.file + self.shmem
    }
}

/// A process, or a thread of one.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Process<'a> {
    /// The name, of at most 15 bytes.
    pub name: &'a str,
    pub umask: u32,
    pub state: State,
    /// The process's PID and the thread's.
    pub tgid: u32,
    pub tid: u32,
    pub parent: u32,
    /// The process that traces it; 0: none.
    pub tracer: u32,
    pub process_group: u32,
    pub session: u32,
    /// The device number of the controlling terminal, and its foreground process group.
    pub terminal: Option<(u32, i32)>,
    /// Real, effective, saved and file-system ID.
    pub uids: [u32; 4],
    pub gids: [u32; 4],
    pub groups: &'a [u32],
    /// The number of slots of the file descriptor table.
    pub descriptors: u32,
    pub memory: Option<Memory>,
    pub threads: u32,
    /// The number of queued signals, and the limit of that number.
    pub queued: [u64; 2],
    /// The pending signals, and below further sets of signals: bit `n` is signal `n + 1`.
    pub pending: u64,
    pub shared_pending: u64,
    pub blocked: u64,
    pub ignored: u64,
    pub caught: u64,
    pub capabilities: u64,
    pub no_new_privileges: bool,
    /// The mode of `seccomp`, and the number of filters.
    pub seccomp: [u32; 2],
    /// The number of CPUs.
    pub cpus: u32,
    /// Context switches: voluntary, involuntary.
    pub switches: [u64; 2],
    /// Page faults: minor, minor of waited-for children, major, major of waited-for children.
    pub faults: [u64; 4],
    /// CPU time in hundredths of a second: in user mode, in the kernel, and both for waited-for
    /// children.
    pub times: [u64; 4],
    /// The time of its start, in hundredths of a second since boot.
    pub started: u64,
    pub exit_signal: i32,
    pub cpu: u32,
    pub limit_resident: u64,
    pub exit_code: u32,
}

/// Writes `status`.
///
/// # Errors
/// Fails if there is no memory for the text.
pub fn status(text: &mut Text, process: &Process<'_>) -> fmt::Result {
    writeln!(text, "Name:\t{}", process.name)?;
    writeln!(text, "Umask:\t{:04o}", process.umask)?;
    writeln!(text, "State:\t{}", process.state.words())?;
    writeln!(text, "Tgid:\t{}\nNgid:\t0\nPid:\t{}", process.tgid, process.tid)?;
    writeln!(text, "PPid:\t{}\nTracerPid:\t{}", process.parent, process.tracer)?;
    for (name, [real, effective, saved, files]) in [("Uid", process.uids), ("Gid", process.gids)] {
        writeln!(text, "{name}:\t{real}\t{effective}\t{saved}\t{files}")?;
    }
    write!(text, "FDSize:\t{}\nGroups:\t", process.descriptors)?;
    for group in process.groups {
        write!(text, "{group} ")?;
    }
    // Linux ends the line with a space even if there are no groups.
    writeln!(text, "{}", if process.groups.is_empty() { " " } else { "" })?;
    writeln!(text, "NStgid:\t{}\nNSpid:\t{}", process.tgid, process.tid)?;
    writeln!(text, "NSpgid:\t{}\nNSsid:\t{}\nKthread:\t0", process.process_group, process.session)?;
    if let Some(memory) = &process.memory {
        let sizes = [
            ("VmPeak", memory.peak),
            ("VmSize", memory.size),
            ("VmLck", memory.locked),
            ("VmPin", memory.pinned),
            ("VmHWM", memory.peak_resident),
            ("VmRSS", memory.resident()),
            ("RssAnon", memory.anonymous),
            ("RssFile", memory.file),
            ("RssShmem", memory.shmem),
            ("VmData", memory.data),
            ("VmStk", memory.stack),
            ("VmExe", memory.code),
            ("VmLib", memory.libraries),
            ("VmPTE", memory.page_tables),
            ("VmSwap", memory.swap),
            ("HugetlbPages", memory.hugetlb),
        ];
        for (name, bytes) in sizes {
            writeln!(text, "{name}:\t{:>8} kB", kib(bytes))?;
        }
        writeln!(text, "CoreDumping:\t0\nTHP_enabled:\t{}", u32::from(!memory.denies_huge))?;
    }
    writeln!(text, "Threads:\t{}\nSigQ:\t{}/{}", process.threads, process.queued[0], process.queued[1])?;
    let capabilities = process.capabilities;
    let sets = [
        ("SigPnd", process.pending),
        ("ShdPnd", process.shared_pending),
        ("SigBlk", process.blocked),
        ("SigIgn", process.ignored),
        ("SigCgt", process.caught),
        ("CapInh", 0),
        ("CapPrm", capabilities),
        ("CapEff", capabilities),
        ("CapBnd", capabilities),
        ("CapAmb", 0),
    ];
    for (name, set) in sets {
        writeln!(text, "{name}:\t{set:016x}")?;
    }
    writeln!(text, "NoNewPrivs:\t{}", u32::from(process.no_new_privileges))?;
    writeln!(text, "Seccomp:\t{}\nSeccomp_filters:\t{}", process.seccomp[0], process.seccomp[1])?;
    let cpus = process.cpus as usize;
    text.write_str("Cpus_allowed:\t")?;
    processors::mask(text, 0..cpus, cpus)?;
    text.write_str("Cpus_allowed_list:\t")?;
    processors::list(text, 0..cpus)?;
    // A mask for 64 possible nodes; the width depends on Linux's configuration.
    writeln!(text, "Mems_allowed:\t00000000,00000001\nMems_allowed_list:\t0")?;
    writeln!(text, "voluntary_ctxt_switches:\t{}", process.switches[0])?;
    writeln!(text, "nonvoluntary_ctxt_switches:\t{}", process.switches[1])
}

/// Writes `stat`: one line of 52 fields.
///
/// # Errors
/// Fails if there is no memory for the text.
pub fn stat(text: &mut Text, process: &Process<'_>) -> fmt::Result {
    let memory = process.memory.unwrap_or_default();
    let [user, system, child_user, child_system] = process.times;
    let [minor, child_minor, major, child_major] = process.faults;
    write!(text, "{} ({}) {} ", process.tid, process.name, process.state.letter())?;
    let (terminal, foreground) = process.terminal.unwrap_or((0, -1));
    write!(text, "{} {} {} ", process.parent, process.process_group, process.session)?;
    write!(text, "{terminal} {foreground} ")?;
    write!(text, "4194304 {minor} {child_minor} {major} {child_major} {user} {system} {child_user} {child_system} ")?;
    write!(text, "20 0 {} 0 {} {} ", process.threads, process.started, memory.size)?;
    let [code_start, code_end] = memory.code_range;
    write!(text, "{} {} ", memory.resident() / 4096, process.limit_resident)?;
    write!(text, "{code_start} {code_end} {} 0 0 ", memory.stack_start)?;
    // As on Linux, only signals 1 to 31 of each set, in decimal.
    let low = |set: u64| set & 0x7fff_ffff;
    let sets = [process.pending, process.blocked, process.ignored, process.caught].map(low);
    write!(text, "{} {} {} {} 0 0 0 ", sets[0], sets[1], sets[2], sets[3])?;
    write!(text, "{} {} 0 0 0 0 0 ", process.exit_signal, process.cpu)?;
    for value in memory.data_range.into_iter().chain([memory.heap_start]) {
        write!(text, "{value} ")?;
    }
    for value in memory.argument_range.into_iter().chain(memory.environment_range) {
        write!(text, "{value} ")?;
    }
    writeln!(text, "{}", process.exit_code)
}

/// Writes `statm`, in pages.
///
/// # Errors
/// Fails if there is no memory for the text.
pub fn statm(text: &mut Text, memory: &Memory) -> fmt::Result {
    let pages = |bytes: u64| bytes / 4096;
    let shared = pages(memory.file + memory.shmem);
    let [size, resident, code] = [memory.size, memory.resident(), memory.code].map(pages);
    writeln!(text, "{size} {resident} {shared} {code} 0 {} 0", pages(memory.data + memory.stack))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    fn text(write: impl FnOnce(&mut Text) -> fmt::Result) -> String {
        String::from_utf8(Text::of(write).unwrap()).unwrap()
    }

    /// Formats this process's status: each line that this writes is among the lines of the host's
    /// Linux, in the same order.
    #[test]
    fn status_is_formatted_as_on_linux() {
        let real = std::fs::read_to_string("/proc/self/status").unwrap();
        let value = |name: &str| {
            let line = real.lines().find(|line| line.split(':').next() == Some(name));
            line.map_or("0", |line| line[name.len() + 1..].trim())
        };
        let number = |name: &str| value(name).split([' ', '/']).next().unwrap().parse::<u64>().unwrap();
        let small = |name: &str| number(name) as u32;
        let hex = |name: &str| u64::from_str_radix(value(name), 16).unwrap();
        let words = |name: &str| value(name).split_whitespace().map(|word| word.parse().unwrap()).collect::<Vec<u32>>();
        let size = |name: &str| number(name) * 1024;
        let groups = words("Groups");
        let process = Process {
            name: value("Name"),
            umask: u32::from_str_radix(value("Umask"), 8).unwrap(),
            state: if value("State").starts_with('R') { State::Running } else { State::Sleeping },
            tgid: small("Tgid"),
            tid: small("Pid"),
            parent: small("PPid"),
            process_group: small("NSpgid"),
            session: small("NSsid"),
            uids: words("Uid").try_into().unwrap(),
            gids: words("Gid").try_into().unwrap(),
            groups: &groups,
            descriptors: small("FDSize"),
            memory: Some(Memory {
                peak: size("VmPeak"),
                size: size("VmSize"),
                locked: size("VmLck"),
                peak_resident: size("VmHWM"),
                anonymous: size("RssAnon"),
                file: size("RssFile"),
                shmem: size("RssShmem"),
                data: size("VmData"),
                stack: size("VmStk"),
                code: size("VmExe"),
                libraries: size("VmLib"),
                page_tables: size("VmPTE"),
                ..Memory::default()
            }),
            threads: small("Threads"),
            queued: [number("SigQ"), value("SigQ").split('/').nth(1).unwrap().parse().unwrap()],
            blocked: hex("SigBlk"),
            ignored: hex("SigIgn"),
            caught: hex("SigCgt"),
            capabilities: hex("CapEff"),
            cpus: hex("Cpus_allowed").count_ones(),
            switches: [number("voluntary_ctxt_switches"), number("nonvoluntary_ctxt_switches")],
            ..Process::default()
        };
        let ours = text(|text| status(text, &process));
        let mut theirs = real.lines();
        let mut known = 0;
        // Sets and lists that depend on the user and the machine that run the tests.
        let varies =
            ["CapInh", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Cpus_allowed_list", "Mems_allowed"];
        let varies = |line: &str| varies.iter().any(|name| line.split(':').next().unwrap().starts_with(name));
        for line in ours.lines() {
            let key = &line[..line.find(':').unwrap() + 2];
            // Some keys exist only in kernels newer than the host's.
            if !real.contains(&std::format!("\n{key}")) && key != "Name:\t" {
                continue;
            }
            let found = theirs.find(|real| real.starts_with(key));
            assert!(found.is_some(), "'{key}' is out of order");
            known += 1;
            if !varies(line) {
                assert_eq!(Some(line), found);
            }
        }
        assert!(known > 45, "{known}");
    }

    #[test]
    fn stat_is_formatted_as_on_linux() {
        let real = std::fs::read_to_string("/proc/self/stat").unwrap();
        let words: Vec<_> = real.rsplit_once(") ").unwrap().1.split_whitespace().collect();
        let at = |field: usize| words[field - 3].parse::<u64>().unwrap();
        let process = Process {
            name: "a) b",
            state: State::Running,
            tid: 77,
            parent: at(4) as u32,
            process_group: at(5) as u32,
            session: at(6) as u32,
            faults: [at(10), at(11), at(12), at(13)],
            times: [at(14), at(15), at(16), at(17)],
            threads: at(20) as u32,
            started: at(22),
            limit_resident: at(25),
            ignored: at(33),
            caught: at(34),
            exit_signal: at(38) as i32,
            cpu: at(39) as u32,
            memory: Some(Memory {
                size: at(23),
                anonymous: at(24) * 4096,
                code_range: [at(26), at(27)],
                stack_start: at(28),
                data_range: [at(45), at(46)],
                heap_start: at(47),
                argument_range: [at(48), at(49)],
                environment_range: [at(50), at(51)],
                ..Memory::default()
            }),
            ..Process::default()
        };
        let ours = text(|text| stat(text, &process));
        assert!(ours.starts_with("77 (a) b) R ") && ours.ends_with(" 0\n"));
        let ours: Vec<_> = ours.rsplit_once(") ").unwrap().1.split_whitespace().collect();
        assert_eq!((ours.len(), words.len()), (50, 50));
        // Terminal, flags, priority, nice, signals' own fields and times of I/O may differ.
        for field in (4..=6).chain(10..=17).chain(20..=20).chain(22..=28).chain(33..=34).chain(38..=39).chain(45..=51) {
            assert_eq!(ours[field - 3], words[field - 3], "field {field}");
        }
    }

    #[test]
    fn statm_counts_pages() {
        let memory = Memory {
            size: 10 << 12,
            anonymous: 3 << 12,
            file: 2 << 12,
            shmem: 1 << 12,
            code: 4 << 12,
            data: 5 << 12,
            stack: 2 << 12,
            ..Memory::default()
        };
        assert_eq!(text(|text| statm(text, &memory)), "10 6 3 4 0 7 0\n");
    }
}
