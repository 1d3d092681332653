//! `vellum compare`: a program on both kernels, and what it prints, side by side.
//!
//! | file | story |
//! |---|---|
//! | [`pair`] | what two outputs have to do with each other: rows of figures, and lines |
//! | [`show`] | that as tables |

pub(crate) mod pair;
pub(crate) mod show;

use crate::run::{FAILED, Kernel, Outcome, Task};
use std::io::{self, Cursor, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// What to run on both kernels.
#[derive(clap::Args)]
pub struct Args {
    /// The image of Linux to compare with. Without this, the one that `./x linux` fetched
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,

    #[command(flatten)]
    task: Task,
}

/// What a kernel made of the program.
struct Side {
    output: Vec<u8>,
    errors: Vec<u8>,
    outcome: Outcome,
}

/// Runs the program on one kernel after the other. The status is the program's, if both have the
/// same.
///
/// # Errors
/// There is no such file, kernel or QEMU, or the host refuses something.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let arch = args.task.arch;
    let linux = args.kernel.as_ref().map_or_else(|| Kernel::linux(arch), |image| Kernel::at(image))?;
    let kernels = [Kernel::reference(arch)?, linux];
    // Both programs read the same. A terminal's lines are for one reader.
    let mut input = Vec::new();
    if !io::stdin().is_terminal() {
        io::stdin().read_to_end(&mut input)?;
    }
    let accel = args.task.accel(&[&kernels[0], &kernels[1]]);
    let mut sides = Vec::new();
    for kernel in &kernels {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let outcome = args.task.run(kernel, accel, Cursor::new(input.clone()), &mut output, &mut errors)?.outcome;
        if let Outcome::Interrupted(_) = outcome {
            return Ok(ExitCode::from(outcome.status()));
        }
        sides.push(Side { output, errors, outcome });
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut out = io::stdout().lock();
    show::write(&mut out, &pair::parts(&text(&sides[0].output), &text(&sides[1].output)))?;
    if sides.iter().any(|side| !side.errors.is_empty()) {
        writeln!(out, "\nStandard error")?;
        show::write(&mut out, &pair::parts(&text(&sides[0].errors), &text(&sides[1].errors)))?;
    }
    let statuses = [sides[0].outcome.status(), sides[1].outcome.status()];
    if sides.iter().any(|side| matches!(side.outcome, Outcome::Failed(_))) {
        return Ok(ExitCode::from(FAILED));
    }
    if statuses[0] != statuses[1] {
        writeln!(out, "\nStatuses: vellum {}, linux {}", statuses[0], statuses[1])?;
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::from(statuses[0]))
}
