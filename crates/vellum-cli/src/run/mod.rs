//! `vellum run`: runs a Linux program on the reference kernel, or on Linux, in a virtual machine
//! that lives as long as the program.
//!
//! | module | contents |
//! |---|---|
//! | [`accel`] | the choice between KVM and translation |
//! | [`arch`] | architectures, and their QEMU options |
//! | [`archive`] | the cpio archive with the program and its files |
//! | [`disk`] | disks: one to swap to, and one for the program |
//! | [`kernel`] | the kernel image, and what it needs |
//! | [`machine`] | the virtual machine: start, supervision, end |
//! | [`modules`] | modules of a Linux kernel, with their dependencies |
//! | [`plugin`] | QEMU's plugin that counts a kernel's instructions |
//! | [`root`] | the root file system |
//! | [`release`] | the release of a Linux image |
//! | [`symbols`] | function names for a kernel's backtrace |
//! | [`terminal`] | the host's terminal |
//! | [`stdio`] | the program's standard streams, in frames over a serial port |
//! | [`work`] | kernel work by cause: what the plugin needs to know, and its tables |

mod accel;
mod arch;
mod archive;
mod disk;
mod kernel;
mod machine;
pub(crate) mod modules;
mod plugin;
mod release;
mod root;
pub(crate) mod stdio;
mod symbols;
mod terminal;
pub(crate) mod work;

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{bail, ensure};
use vellum_inspect::size;

pub use accel::Accel;
pub use arch::Arch;
pub use kernel::{Kernel, built};
pub use machine::{End, Outcome};
pub use plugin::Plugin;
pub use symbols::Names;
use work::functions::Functions;

/// The exit code for a failure of the kernel or of this command, not of the program.
pub const FAILED: u8 = 125;

/// The program, and the machine to run it in.
#[derive(clap::Args)]
pub struct Task {
    /// The machine's architecture
    #[arg(long, value_enum, default_value_t = Arch::X86_64)]
    pub arch: Arch,

    /// CPUs of the machine
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    smp: u8,

    /// Memory of the machine
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size::parse)]
    mem: u64,

    /// NUMA nodes, each with its share of the memory and the CPUs
    #[arg(long, value_name = "NODES", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    numa: u8,

    /// Size of the swap in compressed memory
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    swap: Option<u64>,

    /// A disk to swap to once compressed memory is full: a new one of this size, or a file, whose
    /// contents are lost
    #[arg(long, value_name = "SIZE|FILE", value_parser = disk::parse)]
    swap_disk: Option<disk::Image>,

    /// Make that disk's reads or writes fail
    #[arg(long, value_name = "reads|writes", value_enum, hide_possible_values = true, requires = "swap_disk")]
    swap_disk_fails: Option<disk::Failing>,

    /// Make the reference kernel keep a checksum of each page on that disk, and treat a page that
    /// comes back changed as lost. No effect on Linux
    #[arg(long, requires = "swap_disk")]
    swap_disk_checksums: bool,

    /// A disk for the program: a new one of this size, or a file, which it may change. It is
    /// /dev/vda, or /dev/vdb beside a disk to swap to
    #[arg(long, value_name = "SIZE|FILE", value_parser = disk::parse)]
    disk: Option<disk::Image>,

    /// Make the reads or writes of the program's disk fail
    #[arg(long, value_name = "reads|writes", value_enum, hide_possible_values = true, requires = "disk")]
    disk_fails: Option<disk::Failing>,

    /// Let the program's disk read and write at most this many bytes in a second
    #[arg(long, value_name = "SIZE", value_parser = disk::parse_rate, requires = "disk")]
    disk_rate: Option<u64>,

    /// A disk in the machine's memory of this size: /dev/ram0 (Linux: brd)
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    ram_disk: Option<u64>,

    /// The root file system: a folder of this machine, or a file with an ext4. What the program
    /// changes stays in the machine's memory, and is gone with it. PROGRAM is a path in it, or the
    /// name of a program in one of a folder's usual places
    #[arg(long, value_name = "DIR|IMAGE", value_parser = root::parse)]
    root: Option<root::Root>,

    /// Make the machine's clock count instructions: one a nanosecond, the same in every run; on the
    /// reference kernel it begins on the same day. With one CPU only
    #[arg(long)]
    icount: bool,

    /// Count the kernel's instructions by cause, from the program's first instruction to its end:
    /// system calls by name, page faults, interrupts; apart from the program's own and from idle
    /// loops. A plugin of QEMU counts, which the machine does not notice. docs/kernel.md has more
    #[arg(long)]
    kernel_work: bool,

    /// Make the reference kernel map each page by itself, without contpte blocks of 64 KiB and 32
    /// MiB that one TLB entry holds (AArch64's contiguous bit; x86-64 has none). No effect on Linux
    #[arg(long)]
    no_contiguous: bool,

    /// A variable of the program's environment
    #[arg(long = "env", value_name = "KEY=VALUE", value_parser = variable)]
    environment: Vec<String>,

    /// A file of this machine, and its path in the virtual machine
    #[arg(long = "file", value_name = "HOST:GUEST", value_parser = pair)]
    files: Vec<(PathBuf, String)>,

    /// Stop the machine if the program takes longer
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,

    /// Show the kernel's console on standard error, even on success
    #[arg(long)]
    console: bool,

    /// A Linux program: a static one of this machine, or the path of one in the virtual machine,
    /// which `--root` or `--file` put there. It may be a script (`#!`) whose interpreter is there
    program: PathBuf,

    /// The program's arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// The options of `vellum run`.
#[derive(clap::Args)]
pub struct Args {
    /// The kernel: `vellum`, which `./x build --kernel` leaves beside this command, or an image of
    /// Linux
    #[arg(long, value_name = "vellum|PATH", default_value = "vellum")]
    kernel: PathBuf,

    /// Make the program's standard streams a terminal, which this one shows: with job control,
    /// editing of lines, and the window's size. On the reference kernel only
    #[arg(short = 't', long)]
    tty: bool,

    /// With `--kernel-work`, write the kernel's instructions to FILE by cause, function, and the
    /// functions inlined into it, as folded stacks, of which tools draw flame graphs. The kernel's
    /// image must have symbols
    #[arg(long, value_name = "FILE", requires = "kernel_work")]
    kernel_functions: Option<PathBuf>,

    #[command(flatten)]
    task: Task,
}

fn variable(text: &str) -> Result<String, String> {
    if text.contains('=') && !text.starts_with('=') {
        Ok(text.into())
    } else {
        Err("must have the form KEY=VALUE".into())
    }
}

fn pair(text: &str) -> Result<(PathBuf, String), String> {
    match text.rsplit_once(':') {
        Some((host, guest)) if !host.is_empty() && guest.starts_with('/') => Ok((host.into(), guest.into())),
        _ => Err("must have the form HOST:GUEST, with an absolute path for GUEST".into()),
    }
}

impl Task {
    /// Returns the task of running `program` on a machine with one CPU, whose clock counts
    /// instructions.
    pub fn counted(arch: Arch, mem: u64, swap: Option<u64>, program: PathBuf, arguments: Vec<String>) -> Self {
        Task {
            arch,
            smp: 1,
            mem,
            numa: 1,
            swap,
            swap_disk: None,
            swap_disk_fails: None,
            swap_disk_checksums: false,
            disk: None,
            disk_fails: None,
            disk_rate: None,
            ram_disk: None,
            root: None,
            icount: true,
            kernel_work: false,
            no_contiguous: false,
            environment: Vec::new(),
            files: Vec::new(),
            timeout: None,
            console: false,
            program,
            arguments,
        }
    }

    /// Returns the accelerator for this task on these kernels.
    pub fn accel(&self, kernels: &[&Kernel]) -> Accel {
        // Only translation can count instructions.
        if self.icount || self.kernel_work { Accel::Tcg } else { accel::best(kernels) }
    }

    /// Returns the plugin that counts this kernel's work, if the task is to count it. Prints the
    /// reason if it can't be counted.
    pub fn plugin(&self, kernel: &Kernel) -> Option<Plugin> {
        let plugin = self.kernel_work.then(|| work::plugin(kernel))?;
        plugin.inspect_err(|error| eprintln!("vellum: kernel work is not counted: {error:#}")).ok()
    }

    /// Runs the program on a kernel, with these standard streams; if the host has a terminal for
    /// it, with one of the kernel's terminals, whose input and output they are.
    ///
    /// # Errors
    /// There is no such file or QEMU, or a system call fails.
    pub fn run(
        &self,
        kernel: &Kernel,
        host: Host<'_>,
        input: impl Read + Send + 'static,
        output: impl Write,
        errors: impl Write,
    ) -> anyhow::Result<End> {
        let Host { accel, plugin, terminal } = host;
        ensure!(
            kernel.arch == self.arch,
            "{} is a kernel for {}, but the machine is {}: use --arch",
            kernel.image.display(),
            kernel.arch.name(),
            self.arch.name()
        );
        if self.icount && self.smp > 1 {
            bail!("--icount counts the instructions of one CPU: leave out --smp");
        }
        let of = |image, failing, rate, role| disk::Disk { image, failing, rate, role };
        let swap = disk::Role::Swap { checked: self.swap_disk_checksums };
        let swap_disk = self.swap_disk.as_ref().map(|image| of(image, self.swap_disk_fails, None, swap));
        let disk = self.disk.as_ref().map(|image| of(image, self.disk_fails, self.disk_rate, disk::Role::Program));
        let disks: Vec<_> = swap_disk.into_iter().chain(disk).collect();
        // Counts of instructions repeat, so the day may not change.
        let time = if self.icount { None } else { SystemTime::now().duration_since(UNIX_EPOCH).ok() };
        let (extras, mut options) = kernel.needs(self.swap, &disks, self.ram_disk, self.root.as_ref(), time)?;
        let path = self.root.as_ref().and_then(|root| root.find(&self.program));
        let mut environment = self.environment.clone();
        if terminal {
            ensure!(kernel.kind == kernel::Kind::Vellum, "only the reference kernel has a terminal: leave out --tty");
            let [rows, columns, ..] = terminal::window();
            options += &format!("terminal={rows},{columns}\n");
            if !environment.iter().any(|variable| variable.starts_with("TERM=")) {
                environment.push(format!("TERM={}", std::env::var("TERM").unwrap_or_else(|_| "dumb".into())));
            }
        }
        let program = archive::Program {
            path: path.as_deref().unwrap_or(&self.program),
            arguments: &self.arguments,
            environment: &environment,
            files: &self.files,
            root: self.root.as_ref().map(|_| kernel.kind.files_over_root()),
        };
        let machine = machine::Machine {
            kernel,
            archive: &archive::pack(program, &extras, &options)?,
            accel,
            cpus: self.smp,
            nodes: self.numa,
            memory: self.mem,
            disks: &disks,
            root: self.root.as_ref(),
            icount: self.icount,
            cont_blocks: !self.no_contiguous,
            ram_disk: self.ram_disk,
            plugin,
            timeout: self.timeout.map(Duration::from_secs),
            terminal,
        };
        let end = machine.run(input, output, errors)?;
        if self.console || matches!(end.outcome, Outcome::Failed(_)) {
            eprint!("{}", symbols::named(&kernel.image, &end.console));
        }
        if let Outcome::Failed(reason) = &end.outcome {
            eprintln!("vellum: {reason}");
        }
        Ok(end)
    }
}

/// The host's means for running a machine.
#[derive(Clone, Copy)]
pub struct Host<'a> {
    /// The accelerator with which QEMU runs it.
    pub accel: Accel,
    /// The plugin that counts kernel work.
    pub plugin: Option<&'a Plugin>,
    /// The program's standard streams are a terminal.
    pub terminal: bool,
}

impl From<Accel> for Host<'_> {
    fn from(accel: Accel) -> Self {
        Self { accel, plugin: None, terminal: false }
    }
}

impl Outcome {
    /// Returns the exit code for this outcome.
    pub fn status(&self) -> u8 {
        match self {
            Outcome::Exited(status) => *status,
            Outcome::Interrupted(signal) => 128 + *signal as u8,
            Outcome::Failed(_) => FAILED,
        }
    }
}

/// Runs `vellum run`. The exit code is the program's.
///
/// # Errors
/// There is no such file, kernel or QEMU, or a system call fails.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let arch = args.task.arch;
    let kernel = if args.kernel == Path::new("vellum") { Kernel::reference(arch)? } else { Kernel::at(&args.kernel)? };
    let accel = args.task.accel(&[&kernel]);
    let plugin = args.task.plugin(&kernel).map(|plugin| plugin.profiling(args.kernel_functions.is_some()));
    let functions = args.kernel_functions.as_deref().map(|path| Functions::open(&kernel, path)).transpose()?;
    let host = Host { accel, plugin: plugin.as_ref(), terminal: args.tty };
    let end = args.task.run(&kernel, host, io::stdin(), io::stdout().lock(), io::stderr())?;
    if let Some(tally) = &end.tally {
        match tally {
            Ok(tally) => eprintln!("{}", work::show::table(&[("instructions", tally)])),
            Err(error) => eprintln!("vellum: kernel work is not counted: {error:#}"),
        }
    }
    if let Some((functions, profile)) = functions.zip(end.profile) {
        functions.write(&profile)?;
    }
    Ok(ExitCode::from(end.outcome.status()))
}
