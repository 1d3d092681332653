//! The command `vellum`.
//!
//! It measures a memory manager that works by runs of page-table entries, beside the kernel of this
//! machine, and runs programs on either kernel in a virtual machine. Each subcommand is a module:
//! `bench` measures; `run` runs a program on the reference kernel or on Linux;
//! `compare` runs it on both. `vellum inspect` is the crate `vellum-inspect`, to which
//! `estimate` adds options. A further subcommand joins `cli::Command`.

mod bench;
mod cli;
mod compare;
mod estimate;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod run;

/// How numbers are shown, in reports and in the documents' tables.
pub use bench::report::show as numbers;

use clap::Parser;
use std::process::ExitCode;

/// Runs the subcommand that this process's arguments select, and returns the exit code.
///
/// # Errors
/// The subcommand failed; the message is for users.
pub fn main() -> anyhow::Result<ExitCode> {
    match cli::Cli::parse().command {
        cli::Command::Bench { what } => bench::run(what)?,
        cli::Command::LinuxChild { role } => vellum_linux::child::run(role)?,
        cli::Command::Completions { shell } => cli::completions(shell, &mut std::io::stdout()),
        cli::Command::Man { folder } => cli::man(&folder)?,
        cli::Command::Inspect(args) => return vellum_inspect::run(&args),
        cli::Command::Compare(args) => return Ok(or_failed(compare::run(&args))),
        cli::Command::Run(args) => return Ok(or_failed(run::run(&args))),
    }
    Ok(ExitCode::SUCCESS)
}

/// Maps a failure of this command to [`run::FAILED`], which no program's own status resembles.
fn or_failed(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("vellum: {error:#}");
        ExitCode::from(run::FAILED)
    })
}
