//! `vellum run`: a Linux program on the reference kernel, in a virtual machine that lives as long as the program.
//!
//! | file | story |
//! |---|---|
//! | [`archive`] | the program and its files, packed for the kernel |
//! | [`machine`] | the virtual machine: started, watched, ended |
//! | [`symbols`] | names for the addresses of a kernel's backtrace |
//! | [`wire`] | the program's streams, in frames over a serial port |

mod archive;
mod machine;
mod symbols;
mod wire;

use crate::size;
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The status that says that not the program failed, but the kernel.
const KERNEL_FAILED: u8 = 125;

/// What to run, and in what machine.
#[derive(clap::Args)]
pub struct Args {
    /// CPUs of the machine
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    smp: u8,

    /// Memory of the machine
    #[arg(long, default_value = "256MiB", value_parser = size::parse)]
    mem: u64,

    /// Make the machine's clock count instructions: one a nanosecond, the same in every run. With one CPU only
    #[arg(long)]
    icount: bool,

    /// A variable of the program's environment
    #[arg(long = "env", value_name = "KEY=VALUE", value_parser = variable)]
    environment: Vec<String>,

    /// A file of this machine that the program finds under another path
    #[arg(long = "file", value_name = "HOST:GUEST", value_parser = pair)]
    files: Vec<(PathBuf, String)>,

    /// End the machine if the program takes longer
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,

    /// Show the kernel's console on standard error, even if all goes well
    #[arg(long)]
    console: bool,

    /// The kernel's image. Without this, the one that `./x build --kernel` leaves beside this command
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,

    /// A static Linux program: a file of this machine, or the GUEST path of a `--file`
    program: PathBuf,

    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

fn variable(text: &str) -> Result<String, String> {
    if text.contains('=') && !text.starts_with('=') { Ok(text.into()) } else { Err("not of the form KEY=VALUE".into()) }
}

fn pair(text: &str) -> Result<(PathBuf, String), String> {
    match text.rsplit_once(':') {
        Some((host, guest)) if !host.is_empty() && guest.starts_with('/') => Ok((host.into(), guest.into())),
        _ => Err("not of the form HOST:GUEST, with an absolute path for GUEST".into()),
    }
}

/// Runs the program; the status is its own.
///
/// # Errors
/// There is no such file, kernel or QEMU, or the host refuses something.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.icount && args.smp > 1 {
        bail!("--icount counts the instructions of one CPU: leave out --smp");
    }
    let kernel = match &args.kernel {
        Some(kernel) => kernel.clone(),
        None => default_kernel()?,
    };
    if !kernel.is_file() {
        bail!("there is no kernel at {}: build it by `./x build --kernel`", kernel.display());
    }
    let packed = archive::pack(&args.program, &args.arguments, &args.environment, &args.files)?;
    let machine = machine::Machine {
        kernel: &kernel,
        archive: &packed,
        cpus: args.smp,
        memory: args.mem,
        counts: args.icount,
        timeout: args.timeout.map(Duration::from_secs),
    };
    let end = machine.run()?;
    if args.console || end.status.is_none() {
        eprint!("{}", symbols::named(&kernel, &end.console));
    }
    Ok(match end.status {
        Some(status) => ExitCode::from(status),
        None => {
            eprintln!("vellum: {}", end.reason);
            ExitCode::from(KERNEL_FAILED)
        }
    })
}

/// Where `./x` leaves the kernel: in `target/kernel`, which is beside the folder of this command.
fn default_kernel() -> anyhow::Result<PathBuf> {
    let command = std::env::current_exe().context("where this command is")?;
    let target = command.parent().and_then(Path::parent).context("this command is in no folder")?;
    Ok(target.join("kernel/x86_64-unknown-none/release/vellum-kernel"))
}
