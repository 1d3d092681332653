//! `vellum compare`: runs a program on the reference kernel and on Linux, and shows its outputs
//! side by side.
//!
//! | module | contents |
//! |---|---|
//! | [`pair`] | one figure for several runs, and their spread; matching lines and rows of outputs |
//! | [`show`] | these as tables and as JSON |

pub(crate) mod pair;
pub(crate) mod show;

use crate::run::work::show as work;
use crate::run::{Accel, FAILED, Host, Kernel, Outcome, Plugin, Task};
use anyhow::{Context, bail};
use std::fs::File;
use std::io::{self, Cursor, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use vellum_count::tally::Tally;

/// The options of `vellum compare`.
#[derive(clap::Args)]
pub struct Args {
    /// The Linux image to compare with. Default: the one that `./x linux` fetched
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,

    /// An image of a minimal Linux, for a third column. Default: the one that `./x linux --minimal`
    /// built, if it is there
    #[arg(long, value_name = "PATH")]
    minimal: Option<PathBuf>,

    /// Run on that Linux once more, with zswap before the swap, for a further column: swapped-out
    /// pages then stay in zswap (lz4) instead of zram
    #[arg(long, requires = "swap")]
    zswap: bool,

    /// Measure times: all kernels run in virtual machines of KVM, and a figure is the median of its
    /// runs. Fails where the kernels don't run under KVM, as emulation has no times worth comparing
    #[arg(long, conflicts_with_all = ["icount", "kernel_work"])]
    time: bool,

    /// Runs on each kernel, which take turns. A figure is the least of its runs; with `--time` the
    /// median. Below the tables stands by how much the runs of each kernel differed at most
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// Write the rows of figures to FILE too, a JSON object a line; with `-`, to standard output,
    /// and the tables go to standard error
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    #[command(flatten)]
    task: Task,
}

/// The program's outputs and outcomes on one kernel.
struct Side {
    name: &'static str,
    kernel: Kernel,
    plugin: Option<Plugin>,
    tallies: Vec<Tally>,
    outputs: Vec<String>,
    errors: String,
    status: u8,
}

/// Runs the program on all kernels. The exit code is the program's if it is the same in all runs.
///
/// # Errors
/// There is no such file, kernel or QEMU, a system call fails, or the program prints other rows in
/// another run.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut sides: Vec<_> = kernels(args)?
        .into_iter()
        .map(|(name, kernel)| Side {
            name,
            plugin: args.task.plugin(&kernel),
            kernel,
            tallies: Vec::new(),
            outputs: Vec::new(),
            errors: String::new(),
            status: 0,
        })
        .collect();
    // Open the file before minutes of measurement.
    let open = |path: &PathBuf| File::create(path).with_context(|| format!("cannot write {}", path.display()));
    let json = args.json.as_ref().filter(|path| path.as_os_str() != "-").map(open).transpose()?;
    // Read all of standard input first, so that the program gets the same input in each run. A
    // terminal is not read: the user would have to end the input before the first kernel starts.
    let mut input = Vec::new();
    if !io::stdin().is_terminal() {
        io::stdin().read_to_end(&mut input)?;
    }
    let accel = args.task.accel(&sides.iter().map(|side| &side.kernel).collect::<Vec<_>>());
    if args.time && accel != Accel::Kvm {
        bail!(
            "no times here: /dev/kvm is missing or can't be opened, or one of the kernels does not boot under KVM. \
             Compare instructions instead (--icount), or run this on a machine with hardware virtualization"
        );
    }
    let mut differing = false;
    for nth in 0..args.runs {
        for side in &mut sides {
            let outcome = side.run(&args.task, accel, &input)?;
            let status = outcome.status();
            match outcome {
                Outcome::Interrupted(_) => return Ok(ExitCode::from(status)),
                Outcome::Failed(_) => {
                    // The failed run may lack rows, so no figure is of all runs.
                    for side in &mut sides {
                        side.outputs = side.outputs.pop().into_iter().collect();
                    }
                    show(args, &sides, &mut io::stdout().lock())?;
                    return Ok(ExitCode::from(FAILED));
                }
                Outcome::Exited(_) => {}
            }
            differing |= nth > 0 && side.status != status;
            side.status = status;
        }
    }
    if args.json.as_deref() == Some(Path::new("-")) {
        show(args, &sides, &mut io::stderr().lock())?;
        write_json(args, &sides, &mut io::stdout().lock())?;
    } else {
        show(args, &sides, &mut io::stdout().lock())?;
    }
    if let Some(mut file) = json {
        write_json(args, &sides, &mut file)?;
    }
    if differing || sides.iter().any(|side| side.status != sides[0].status) {
        let statuses: Vec<_> = sides.iter().map(|side| format!("{} {}", side.name, side.status)).collect();
        eprintln!("\nStatuses of the last run: {}", statuses.join(", "));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::from(sides[0].status))
}

/// Returns the kernels, each with the name of its column.
fn kernels(args: &Args) -> anyhow::Result<Vec<(&'static str, Kernel)>> {
    let arch = args.task.arch;
    let linux = || args.kernel.as_ref().map_or_else(|| Kernel::linux(arch), |image| Kernel::at(image));
    let minimal = match &args.minimal {
        Some(image) => Some(Kernel::at(image)?),
        None => Kernel::minimal(arch)?,
    };
    let mut kernels = vec![("vellum", Kernel::reference(arch)?), ("linux", linux()?)];
    if args.zswap {
        kernels.push(("zswap", Kernel { zswap: true, ..linux()? }));
    }
    kernels.extend(minimal.map(|kernel| ("minimal", kernel)));
    Ok(kernels)
}

impl Side {
    /// Returns the counts of the run with the least kernel work.
    fn tally(&self) -> Option<&Tally> {
        self.tallies.iter().min_by_key(|tally| work::all(tally))
    }

    /// Runs the program once. Keeps its output, and its standard error if it is the first run's.
    fn run(&mut self, task: &Task, accel: Accel, input: &[u8]) -> anyhow::Result<Outcome> {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let host = Host { plugin: self.plugin.as_ref(), ..accel.into() };
        let end = task.run(&self.kernel, host, Cursor::new(input.to_vec()), &mut output, &mut errors)?;
        if self.outputs.is_empty() {
            self.errors = String::from_utf8_lossy(&errors).into();
        }
        self.outputs.push(String::from_utf8_lossy(&output).into());
        match end.tally {
            Some(Ok(tally)) => self.tallies.push(tally),
            Some(Err(error)) => eprintln!("vellum: {}: kernel work is not counted: {error:#}", self.name),
            None => {}
        }
        Ok(end.outcome)
    }
}

fn names(sides: &[Side]) -> Vec<&'static str> {
    sides.iter().map(|side| side.name).collect()
}

fn parts(args: &Args, sides: &[Side]) -> anyhow::Result<Vec<pair::Part>> {
    let choice = if args.time { pair::Choice::Median } else { pair::Choice::Least };
    let chosen = |side: &Side| match pair::chosen(&side.outputs, choice) {
        Ok(output) => Ok(output),
        Err(row) => bail!("{}: a row is not in every run: {row}", side.name),
    };
    Ok(pair::parts(&sides.iter().map(chosen).collect::<anyhow::Result<Vec<_>>>()?))
}

fn show(args: &Args, sides: &[Side], out: &mut impl Write) -> anyhow::Result<()> {
    let names = names(sides);
    show::write(out, &names, &parts(args, sides)?)?;
    show::write_spreads(out, &spreads(sides))?;
    let columns = columns(sides);
    if !columns.is_empty() {
        writeln!(out, "\nInstructions\n{}", work::table(&columns))?;
        for Side { name, tallies, .. } in sides.iter().filter(|side| side.tallies.len() > 1) {
            let sums = tallies.iter().map(work::all);
            let (least, most) = (sums.clone().min().unwrap_or(0), sums.max().unwrap_or(0));
            let percent = (most - least) as f64 * 100.0 / least.max(1) as f64;
            writeln!(out, "  {name}: all kernel work of its runs differs by {percent:.2} %")?;
        }
    }
    if sides.iter().any(|side| !side.errors.is_empty()) {
        writeln!(out, "\nStandard error")?;
        let errors: Vec<_> = sides.iter().map(|side| side.errors.clone()).collect();
        show::write(out, &names, &pair::parts(&errors))?;
    }
    Ok(())
}

/// Returns the kernel work of the kernels where it was counted.
fn columns(sides: &[Side]) -> Vec<work::Column<'_>> {
    sides.iter().filter_map(|side| Some((side.name, side.tally()?))).collect()
}

/// Returns the figure of each kernel of which its runs differ most.
fn spreads(sides: &[Side]) -> Vec<(&'static str, pair::Spread)> {
    sides.iter().filter_map(|side| Some((side.name, pair::spread(&side.outputs)?))).collect()
}

/// Writes an object for the machine, the releases of its Linux kernels, and the shares by which the
/// runs differed at most; and one for each row.
fn write_json(args: &Args, sides: &[Side], out: &mut impl Write) -> anyhow::Result<()> {
    let release = |side: &Side| Some((side.name.to_string(), side.kernel.release()?.into()));
    let kernels: pair::Object = sides.iter().filter_map(release).collect();
    let mut head = serde_json::json!({
        "arch": args.task.arch.name(), "runs": args.runs, "kernels": kernels, "time": args.time,
    });
    let spreads = spreads(sides);
    if !spreads.is_empty() {
        head["spread"] = show::json_of(&spreads);
    }
    writeln!(out, "{}", serde_json::json!({ "compare": head }))?;
    show::write_json(out, &names(sides), &parts(args, sides)?)?;
    work::json(&columns(sides)).iter().try_for_each(|row| Ok(writeln!(out, "{row}")?))
}
