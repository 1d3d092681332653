//! `./x figures`: measures every figure of the documents, and makes their tables.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use vellum_figures::{Compared, Plan, changed_pages, measure, missing_statements, root};

/// A repetition fails if more than one figure in this many lies outside its range.
const MAY_LIE_OUTSIDE: usize = 20;

/// Measures the figures of the documents on this machine, and makes the documents' tables from
/// them. Takes about two hours, on a machine that does nothing else; goes on where it was
/// interrupted.
#[derive(Parser)]
#[command(name = "x figures", arg_required_else_help = false)]
struct Arguments {
    /// Measure only these experiments of docs/figures/figures.toml. The other results must be of
    /// the same sources and machine; until there are some, the documents stay as they are.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Measure nothing: make the tables from the results in docs/figures.
    #[arg(long, conflicts_with_all = ["again", "names"])]
    tables: bool,
    /// Measure once more, and say which figures lie outside the ranges in the documents. Fails if
    /// these are more than one in twenty. Changes no document.
    #[arg(long)]
    again: bool,
    /// Measure nothing: print the architectures whose kernels the experiments boot.
    #[arg(long, hide = true)]
    architectures: bool,
    /// The program that measures.
    #[arg(long, value_name = "FILE", default_value = "target/release/vellum")]
    vellum: PathBuf,
}

fn main() -> anyhow::Result<ExitCode> {
    let (arguments, root) = (Arguments::parse(), root());
    if arguments.architectures {
        let plan = Plan::read(&root)?;
        let experiments = plan.named(&arguments.names)?;
        let booted: BTreeSet<&str> = experiments.values().filter_map(|experiment| experiment.boots()).collect();
        booted.iter().for_each(|arch| println!("{arch}"));
        return Ok(ExitCode::SUCCESS);
    }
    if !arguments.tables {
        let measured = measure(&root, &root.join(&arguments.vellum), &arguments.names, arguments.again)?;
        if arguments.again {
            let Compared { figures, outside } = measured.again;
            outside.iter().for_each(|line| println!("{line}"));
            println!("{} of {figures} figures lie outside the ranges in the documents", outside.len());
            return Ok(if outside.len() * MAY_LIE_OUTSIDE <= figures { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        if !measured.missing.is_empty() {
            let missing = measured.missing.join(" ");
            println!("kept in target/figures; the documents change once these are measured too: {missing}");
            return Ok(ExitCode::SUCCESS);
        }
    }
    for (page, text) in changed_pages(&root)? {
        std::fs::write(&page, text)?;
        println!("made the tables of {}", page.strip_prefix(&root).unwrap_or(&page).display());
    }
    let missing = missing_statements(&root)?;
    if !missing.is_empty() {
        println!("sentences of the plan that a page lacks, with their figures; change the page, or the plan:");
        missing.iter().for_each(|statement| println!("{statement}"));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
