//! Describes the machine that a report is about.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use procfs::Current;
use vellum_linux::settings::page_reporting::PageReporting;

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
            ("caches", caches(Path::new("/sys/devices/system/cpu/cpu0/cache"))),
            ("memory", memory()),
            ("kernel", kernel()),
            ("its command line", parameters()),
            ("its configuration", configuration()),
            ("its preemption", preemption()),
            ("its mitigations", mitigations()),
            ("virtual machine", virtual_machine()),
            ("cgroups", cgroups()),
            ("DAMON", damon(Path::new("/sys"))),
            ("large folios", large_folios()),
            ("page reporting", PageReporting::at(Path::new("/sys")).state()),
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

/// Returns the level, the type and the size of each cache of a CPU, whose folder is `caches`
/// (Linux: Documentation/ABI/testing/sysfs-devices-system-cpu). A cache that several CPUs share is
/// listed with its whole size.
fn caches(caches: &Path) -> String {
    let cache = |index: usize| {
        let read = |file: &str| std::fs::read_to_string(caches.join(format!("index{index}")).join(file)).ok();
        let (level, size) = (read("level")?, read("size")?);
        let of = match read("type")?.trim() {
            "Data" => "d",
            "Instruction" => "i",
            _ => "",
        };
        Some(format!("L{}{of} {}", level.trim(), size.trim()))
    };
    let all: Vec<String> = (0..).map_while(cache).collect();
    if all.is_empty() { "not readable".to_owned() } else { all.join(", ") }
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
const OPTIONS: [&str; 26] = [
    "PREEMPT_NONE",
    "PREEMPT_VOLUNTARY",
    "PREEMPT",
    "PREEMPT_LAZY",
    "PREEMPT_RT",
    "PREEMPT_DYNAMIC",
    "PREEMPT_COUNT",
    "INIT_ON_ALLOC_DEFAULT_ON",
    "INIT_ON_FREE_DEFAULT_ON",
    "HARDENED_USERCOPY",
    "SLAB_FREELIST_HARDENED",
    "SHUFFLE_PAGE_ALLOCATOR",
    "RANDOMIZE_KSTACK_OFFSET_DEFAULT",
    "STACKPROTECTOR_STRONG",
    "FORTIFY_SOURCE",
    "LIST_HARDENED",
    "DEBUG_LIST",
    "PAGE_TABLE_CHECK",
    "DEBUG_VM",
    "KASAN",
    "LOCKDEP",
    "MEMCG",
    "LRU_GEN_ENABLED",
    "PT_RECLAIM",
    "PARAVIRT",
    "PARAVIRT_XXL",
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

/// Returns how the kernel preempts itself. A kernel with PREEMPT_DYNAMIC chooses the mode at boot
/// or later; only root can read it, and only where debugfs is mounted.
fn preemption() -> String {
    let mode = std::fs::read_to_string("/sys/kernel/debug/sched/preempt").ok();
    let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    preemption_of(mode.as_deref(), &rustix::system::uname().version().to_string_lossy(), &line)
}

/// Returns the preemption of a kernel with these modes, of which the chosen one is in parentheses,
/// this version, and this command line.
fn preemption_of(modes: Option<&str>, version: &str, line: &str) -> String {
    let is = |flag: &str| version.split_whitespace().any(|word| word == flag);
    let chosen = modes.and_then(|modes| modes.split_once('(')?.1.split_once(')')).map(|(chosen, _)| chosen);
    let at_boot = line.split_whitespace().rfind(|parameter| parameter.starts_with("preempt="));
    match (chosen, at_boot) {
        (Some(chosen), _) => format!("dynamic: {chosen}"),
        (None, Some(at_boot)) if is("PREEMPT_DYNAMIC") => format!("dynamic: {at_boot} at boot, not readable now"),
        (None, None) if is("PREEMPT_DYNAMIC") => {
            "dynamic: the configuration's default at boot, not readable now".into()
        }
        _ if is("PREEMPT_RT") => "real time".into(),
        _ if is("PREEMPT") => "full".into(),
        _ => "none or voluntary".into(),
    }
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

/// Returns whether the kernel's data access monitor clears accessed bits meanwhile, and what it
/// does with memory: the actions of its schemes, or the modules that started it. `sys` is `/sys`.
fn damon(sys: &Path) -> String {
    let is_on =
        |file: &Path| std::fs::read_to_string(file).is_ok_and(|text| !matches!(text.trim(), "0" | "N" | "off" | ""));
    let kdamonds = sys.join("kernel/mm/damon/admin/kdamonds");
    let mut running = numbered(&kdamonds);
    running.retain(|kdamond| is_on(&kdamond.join("state")));
    let contexts = running.iter().flat_map(|kdamond| numbered(&kdamond.join("contexts")));
    let schemes = contexts.flat_map(|context| numbered(&context.join("schemes")));
    let actions = schemes.filter_map(|scheme| std::fs::read_to_string(scheme.join("action")).ok());
    let modules = ["reclaim", "lru_sort", "stat"].map(|module| format!("damon_{module}"));
    let modules = modules.into_iter().filter(|name| is_on(&sys.join("module").join(name).join("parameters/enabled")));
    let mut does: Vec<String> = actions.map(|action| action.trim().to_owned()).chain(modules).collect();
    does.sort_unstable();
    does.dedup();
    match (running.is_empty(), does.is_empty()) {
        (_, false) => format!("running ({})", does.join(", ")),
        (false, true) => "running (no action)".to_owned(),
        // The state is for root only; the number is not.
        (true, true) if is_on(&kdamonds.join("nr_kdamonds")) => "set up; its state is off or not readable".to_owned(),
        (true, true) => "not running".to_owned(),
    }
}

/// Returns the paths of the folders `0`, `1`, … that are in `folder`.
fn numbered(folder: &Path) -> Vec<PathBuf> {
    (0..).map(|number: usize| folder.join(number.to_string())).take_while(|path| path.is_dir()).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a folder with these files.
    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = folder.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }
        folder
    }

    #[test]
    fn a_cache_has_its_level_type_and_size() {
        let files = [
            ("index0/level", "1"),
            ("index0/type", "Data"),
            ("index0/size", "48K"),
            ("index1/level", "1"),
            ("index1/type", "Instruction"),
            ("index1/size", "32K"),
            ("index2/level", "3"),
            ("index2/type", "Unified"),
            ("index2/size", "266240K"),
        ];
        assert_eq!(caches(folder(&files).path()), "L1d 48K, L1i 32K, L3 266240K");
        assert_eq!(caches(folder(&[]).path()), "not readable");
    }

    #[test]
    fn the_preemption_is_the_chosen_mode_or_what_is_known_of_it() {
        let dynamic = "#1 SMP PREEMPT_DYNAMIC @0";
        assert_eq!(preemption_of(Some("none voluntary (full) lazy"), dynamic, "preempt=none"), "dynamic: full");
        assert_eq!(
            preemption_of(None, dynamic, "quiet preempt=none"),
            "dynamic: preempt=none at boot, not readable now"
        );
        assert!(preemption_of(None, dynamic, "quiet").contains("default at boot"));
        assert_eq!(preemption_of(None, "#1 SMP PREEMPT_RT", "preempt=none"), "real time");
        assert_eq!(preemption_of(None, "#1 SMP PREEMPT @0", ""), "full");
        assert_eq!(preemption_of(None, "#1 SMP @0", ""), "none or voluntary");
    }

    #[test]
    fn the_monitor_is_named_with_its_actions() {
        const ADMIN: &str = "kernel/mm/damon/admin/kdamonds";
        let of = |files: &[(&str, &str)]| {
            let files: Vec<_> = files.iter().map(|(file, text)| (file.replace("ADMIN", ADMIN), *text)).collect();
            let files: Vec<_> = files.iter().map(|(file, text)| (file.as_str(), *text)).collect();
            damon(folder(&files).path())
        };
        assert_eq!(of(&[]), "not running");
        assert_eq!(of(&[("ADMIN/nr_kdamonds", "0")]), "not running");
        assert_eq!(of(&[("ADMIN/nr_kdamonds", "1")]), "set up; its state is off or not readable");
        let scheme = ("ADMIN/0/contexts/0/schemes/0/action", "pageout");
        assert_eq!(of(&[("ADMIN/0/state", "on"), scheme]), "running (pageout)");
        assert_eq!(of(&[("ADMIN/0/state", "on")]), "running (no action)");
        assert_eq!(of(&[("ADMIN/0/state", "off"), scheme]), "not running");
        assert_eq!(of(&[("module/damon_reclaim/parameters/enabled", "Y")]), "running (damon_reclaim)");
    }
}
