//! The command `vellum`: what a memory manager that works by the run costs, beside the kernel of this machine.
//!
//! One module a subcommand. [`mod@bench`] measures; [`mod@run`] runs a program on the reference kernel; each further subcommand joins [`cli::Command`] and gets a
//! module of its own.

mod bench;
mod cli;
mod run;
mod size;

use clap::Parser;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    match cli::Cli::parse().command {
        cli::Command::Bench { what } => bench::run(what)?,
        cli::Command::LinuxChild { role } => bench::linux::child::run(role)?,
        cli::Command::Run(args) => return run::run(&args),
    }
    Ok(ExitCode::SUCCESS)
}
