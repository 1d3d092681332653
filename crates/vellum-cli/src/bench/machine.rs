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
            ("large folios", large_folios()),
            ("date", humantime::format_rfc3339_seconds(SystemTime::now()).to_string()),
            ("command", command()),
            ("version", format!("vellum {}", env!("CARGO_PKG_VERSION"))),
        ];
        // A load of half a CPU by other work already changes the figures.
        let busy = load.filter(|load| *load > 0.5).map(|load| {
            format!(
                "The load average was {load:.1} on {cores} CPUs before the start: the ranges will be wide, and the \
                 ratios are what to read."
            )
        });
        Machine { facts, busy }
    }
}

fn cpu_model() -> String {
    let model = procfs::CpuInfo::current().ok().and_then(|info| {
        let names = ["model name", "uarch", "Processor", "cpu model"];
        names.iter().find_map(|name| info.get_info(0).and_then(|cpu| cpu.get(name).map(|model| (*model).to_owned())))
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
