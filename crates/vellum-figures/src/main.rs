//! `./x figures`: measures every figure of the documents, and makes their tables.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use vellum_figures::{changed_pages, measure, root};

/// Measures all figures of the documents on this machine, and makes the documents' tables from
/// them. Takes an hour or more, on a machine that does nothing else; goes on where it was
/// interrupted.
#[derive(Parser)]
#[command(name = "x figures", arg_required_else_help = false)]
struct Arguments {
    /// Measure nothing: make the tables from the results in docs/figures.
    #[arg(long, conflicts_with = "again")]
    tables: bool,
    /// Measure everything once more, and say which figures lie outside the ranges in the documents.
    /// Changes no document.
    #[arg(long)]
    again: bool,
    /// The program that measures.
    #[arg(long, value_name = "FILE", default_value = "target/release/vellum")]
    vellum: PathBuf,
}

fn main() -> anyhow::Result<ExitCode> {
    let (arguments, root) = (Arguments::parse(), root());
    if !arguments.tables {
        let outside = measure(&root, &root.join(&arguments.vellum), arguments.again)?;
        outside.iter().for_each(|line| println!("{line}"));
        if arguments.again {
            println!("{} figures lie outside the ranges in the documents", outside.len());
            return Ok(if outside.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
    }
    for (page, text) in changed_pages(&root)? {
        std::fs::write(&page, text)?;
        println!("made the tables of {}", page.strip_prefix(&root).unwrap_or(&page).display());
    }
    Ok(ExitCode::SUCCESS)
}
