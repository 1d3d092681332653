//! The command `vellum`: what a memory manager that works by the run costs, beside the kernel of this machine.
//!
//! One module a subcommand. [`mod@bench`] measures; each further subcommand joins [`cli::Command`] and gets a
//! module of its own.

mod bench;
mod cli;
mod size;

use clap::Parser;

fn main() -> anyhow::Result<()> {
    match cli::Cli::parse().command {
        cli::Command::Bench { what } => bench::run(what),
        cli::Command::LinuxChild { role } => bench::linux::child::run(role),
    }
}
