//! Describes the machine that a report is about.

use std::time::SystemTime;

use procfs::Current;

/// The facts about the machine that a reader of the report needs. None identifies the owner.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Names and values, in order.
    pub facts: Vec<(&'static str, String)>,
    /// A note that other work was running on the machine.
    pub busy: Option<String>,
}

impl Machine {
    /// Describes this machine now.
    pub fn of_this() -> Machine {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let load = procfs::LoadAverage::current().ok().map(|load| load.one);
        let facts = vec![
            ("CPU", cpu_model()),
            ("CPUs", cores.to_string()),
            ("memory", memory()),
            ("kernel", kernel()),
            ("its command line", parameters()),
            ("its configuration", configuration()),
            ("its mitigations", mitigations()),
            ("virtual machine", virtual_machine()),
            ("cgroups", cgroups()),
            ("DAMON", damon()),
            ("large folios", large_folios()),
            ("date", humantime::format_rfc3339_seconds(SystemTime::now()).to_string()),
            ("command", command()),
            ("version", format!("vellum {}", env!("CARGO_PKG_VERSION"))),
        ];
        // A load of half a CPU by other work already changes the figures.
        let busy = load.filter(|load| *load > 0.5).map(|load| {
            format!(
                "The load average was {load:.1} on {cores} CPUs before the start. Noise does not cancel out of \
                 ratios: a long call is preempted where a short one is not."
            )
        });
        Machine { facts, busy }
    }

    /// Returns the facts as a JSON object with the key `machine`.
    pub fn json(&self) -> serde_json::Value {
        let facts = self.facts.iter().map(|(name, value)| ((*name).to_owned(), value.as_str().into()));
        serde_json::json!({ "machine": facts.collect::<serde_json::Map<_, _>>() })
    }
}

/// Returns the CPU's name. A name like "AMD EPYC" is that of several generations, so the numbers of
/// an x86-64 CPU are added that tell them apart.
fn cpu_model() -> String {
    let model = procfs::CpuInfo::current().ok().and_then(|info| {
        let cpu = info.get_info(0)?;
        let names = ["model name", "uarch", "Processor", "cpu model"];
        let name = names.iter().find_map(|name| cpu.get(name))?;
        let numbers = cpu.get("cpu family").zip(cpu.get("model"));
        Some(numbers.map_or((*name).to_owned(), |(family, model)| format!("{name} (family {family}, model {model})")))
    });
    model.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn memory() -> String {
    let total = procfs::Meminfo::current().map(|info| info.mem_total);
    total.map_or_else(|_| "unknown".to_owned(), |bytes| format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64))
}

fn kernel() -> String {
    let uname = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    format!("{} {} ({})", text(uname.sysname()), text(uname.release()), text(uname.machine()))
}

/// The kernel's parameters that change the cost of memory operations. Others may identify the
/// owner.
const PARAMETERS: [&str; 16] = [
    "mitigations",
    "spectre_v2",
    "retbleed",
    "spec_rstack_overflow",
    "pti",
    "nopti",
    "kpti",
    "init_on_alloc",
    "init_on_free",
    "page_poison",
    "page_alloc.shuffle",
    "preempt",
    "transparent_hugepage",
    "thp_anon",
    "zswap.enabled",
    "nohz_full",
];

fn parameters() -> String {
    let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let name = |parameter: &str| parameter.split('=').next().unwrap_or_default().to_owned();
    let kept: Vec<&str> = line.split_whitespace().filter(|p| PARAMETERS.contains(&name(p).as_str())).collect();
    if kept.is_empty() { "nothing that matters here".to_owned() } else { kept.join(" ") }
}

/// The options of the kernel's configuration that change the cost of memory operations.
const OPTIONS: [&str; 16] = [
    "PREEMPT_NONE",
    "PREEMPT_VOLUNTARY",
    "PREEMPT",
    "PREEMPT_LAZY",
    "PREEMPT_RT",
    "INIT_ON_ALLOC_DEFAULT_ON",
    "INIT_ON_FREE_DEFAULT_ON",
    "HARDENED_USERCOPY",
    "PAGE_TABLE_CHECK",
    "DEBUG_VM",
    "KASAN",
    "LOCKDEP",
    "MEMCG",
    "LRU_GEN_ENABLED",
    "PT_RECLAIM",
    "PARAVIRT",
];

fn configuration() -> String {
    let Ok(config) = procfs::kernel_config() else { return "not readable".to_owned() };
    let is_on = |name: &&str| config.contains_key(&format!("CONFIG_{name}"));
    let on: Vec<&str> = OPTIONS.into_iter().filter(is_on).collect();
    format!(
        "{}; not: {}",
        on.join(" "),
        OPTIONS.into_iter().filter(|name| !on.contains(name)).collect::<Vec<_>>().join(" ")
    )
}

/// Returns what the kernel says of each weakness of the CPU that has any (Linux:
/// Documentation/ABI/testing/sysfs-devices-system-cpu). Its mitigations are in the kernel's times,
/// and in none of the engine's.
fn mitigations() -> String {
    let Ok(files) = std::fs::read_dir("/sys/devices/system/cpu/vulnerabilities") else {
        return "not readable".to_owned();
    };
    let state = |path: std::path::PathBuf| {
        let state = std::fs::read_to_string(&path).ok()?;
        let name = path.file_name()?.to_str()?;
        (state.trim() != "Not affected").then(|| format!("{name}: {}", state.trim()))
    };
    let mut states: Vec<String> = files.flatten().filter_map(|file| state(file.path())).collect();
    states.sort_unstable();
    if states.is_empty() { "none".to_owned() } else { states.join("; ") }
}

fn virtual_machine() -> String {
    let flags =
        procfs::CpuInfo::current().ok().and_then(|info| info.flags(0).map(|flags| flags.contains(&"hypervisor")));
    match flags {
        Some(true) => "yes",
        Some(false) => "no",
        None => "unknown",
    }
    .to_owned()
}

fn cgroups() -> String {
    let exists = |path: &str| std::path::Path::new(path).exists();
    let version = match (exists("/sys/fs/cgroup/cgroup.controllers"), exists("/sys/fs/cgroup/memory")) {
        (true, _) => "version 2",
        (false, true) => "memory: version 1",
        (false, false) => "none mounted",
    };
    version.to_owned()
}

/// Returns whether the kernel's data access monitor clears accessed bits meanwhile.
fn damon() -> String {
    let running = |text: std::io::Result<String>| text.is_ok_and(|text| !matches!(text.trim(), "0" | "N" | "off" | ""));
    let started = std::fs::read_to_string("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds");
    let modules = ["reclaim", "lru_sort", "stat"]
        .map(|module| std::fs::read_to_string(format!("/sys/module/damon_{module}/parameters/enabled")));
    if running(started) || modules.into_iter().any(running) { "running" } else { "not running" }.to_owned()
}

/// Returns the huge-page settings as they were before the benchmark.
fn large_folios() -> String {
    let setting = |file: &str| {
        vellum_linux::settings::knobs::read(&std::path::Path::new("/sys/kernel/mm/transparent_hugepage").join(file))
            .ok()
    };
    match (setting("enabled"), setting("defrag")) {
        (Some(enabled), Some(defrag)) => format!("enabled={enabled}, defrag={defrag}"),
        _ => "none".to_owned(),
    }
}

/// Returns the command line, with `vellum` instead of the program's path, which may identify the
/// user.
fn command() -> String {
    let args = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned());
    std::iter::once("vellum".to_owned()).chain(args).collect::<Vec<_>>().join(" ")
}
