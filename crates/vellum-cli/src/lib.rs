//! The command `vellum`: what a memory manager that works by the run costs, beside the kernel of
//! this machine.
//!
//! One module a subcommand. [`mod@bench`] measures; [`mod@run`] runs a program on the reference
//! kernel or on Linux, [`mod@compare`] on both; each further subcommand joins [`cli::Command`] and
//! gets a module of its own.

mod bench;
mod cli;
mod compare;
mod estimate;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod run;

use clap::Parser;
use std::process::ExitCode;

/// Does what this process's arguments ask for, and returns the status to end with.
///
/// # Errors
/// It can't be done; the message is for people.
pub fn main() -> anyhow::Result<ExitCode> {
    match cli::Cli::parse().command {
        cli::Command::Bench { what } => bench::run(what)?,
        cli::Command::LinuxChild { role } => vellum_linux::child::run(role)?,
        cli::Command::Completions { shell } => cli::completions(shell, &mut std::io::stdout()),
        cli::Command::Man { folder } => cli::man(&folder)?,
        cli::Command::Inspect(args) => return vellum_inspect::run(&args),
        cli::Command::Compare(args) => return Ok(of_machine(compare::run(&args))),
        cli::Command::Run(args) => return Ok(of_machine(run::run(&args))),
    }
    Ok(ExitCode::SUCCESS)
}

/// This command's own failures must not look like the program's.
fn of_machine(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("vellum: {error:#}");
        ExitCode::from(run::FAILED)
    })
}
