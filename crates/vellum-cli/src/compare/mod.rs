//! `vellum compare`: runs a program on both kernels, and shows its outputs side by side.
//!
//! | module | contents |
//! |---|---|
//! | [`pair`] | pairs of lines and of rows of figures in two outputs |
//! | [`show`] | these pairs as tables |

pub(crate) mod pair;
pub(crate) mod show;

use crate::run::{FAILED, Kernel, Outcome, Task};
use std::io::{self, Cursor, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// The options of `vellum compare`.
#[derive(clap::Args)]
pub struct Args {
    /// The Linux image to compare with. Default: the one that `./x linux` fetched
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,

    #[command(flatten)]
    task: Task,
}

/// The program's output and outcome on one kernel.
struct Side {
    output: Vec<u8>,
    errors: Vec<u8>,
    outcome: Outcome,
}

/// Runs the program on both kernels. The exit code is the program's if it is the same on both
/// kernels.
///
/// # Errors
/// There is no such file, kernel or QEMU, or a system call fails.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let arch = args.task.arch;
    let linux = args.kernel.as_ref().map_or_else(|| Kernel::linux(arch), |image| Kernel::at(image))?;
    let kernels = [Kernel::reference(arch)?, linux];
    // Read all of standard input first, so that the program gets the same input on both kernels. A
    // terminal is not read: the user would have to end the input before the first kernel starts.
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
