//! The command line: what can be asked for, in words that teach it.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};

use crate::{bench, compare, estimate, run};

/// Memory management by the run: measure it, beside the kernel you are running on.
///
/// Vellum is the memory manager of an operating-system kernel as a library. It works on runs:
/// stretches of consecutive page-table entries that say the same thing. This command shows what
/// that is worth.
#[derive(Parser)]
#[command(name = "vellum", version, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand)]
pub enum Command {
    /// Measure memory operations: the least they can be, the engine, and the Linux kernel below.
    ///
    /// All contenders take turns in one process (A B A B …), so that a noisy machine is noisy for
    /// all of them. A figure is the median of the runs; the smallest and the largest stand beside
    /// it. What compares between machines is a ratio of two columns, not a time.
    #[command(after_help = AFTER_BENCH)]
    Bench {
        /// Which benchmark.
        #[command(subcommand)]
        what: bench::Bench,
    },
    /// What page tables live processes have, and which of them hold nothing. Without root, for
    /// processes of one's own.
    ///
    /// A process that reserves much and gives most of it back keeps page tables that hold nothing,
    /// and no other tool shows them. This one counts them exactly, says where they are, and what
    /// would free them here. It reads, and changes nothing.
    #[command(after_help = AFTER_INSPECT)]
    Inspect(vellum_inspect::Args<estimate::Args>),
    /// Run a static Linux program on the reference kernel, or on Linux, in a virtual machine.
    ///
    /// The program's standard input, output, error and status are this command's. If the kernel
    /// fails instead, the status is 125 and its console is on standard error.
    #[command(after_help = AFTER_RUN)]
    Run(run::Args),
    /// Run a static Linux program on the reference kernel, then on Linux, and show both outputs
    /// side by side.
    ///
    /// Lines that are JSON objects with the same keys on both become a table: a line for each
    /// figure that differs, with its ratio. The status is the program's; 1 if the two differ; 125
    /// if a kernel, or this command, failed.
    #[command(after_help = AFTER_COMPARE)]
    Compare(compare::Args),
    /// Write what a shell needs to complete this command's words.
    ///
    /// For bash: vellum completions bash > ~/.local/share/bash-completion/completions/vellum
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
    /// Write manual pages, one for each subcommand, into a folder.
    Man {
        /// Where to; `man -l FOLDER/vellum-inspect.1` shows one.
        folder: PathBuf,
    },
    /// Runs as a helper process of a benchmark. Not for people.
    #[command(hide = true)]
    LinuxChild {
        /// What the helper does.
        #[command(subcommand)]
        role: vellum_linux::child::Role,
    },
}

const AFTER_INSPECT: &str = "\
Examples:
  vellum inspect 4711                                   one process, in full
  vellum inspect --map 4711                             its address space, drawn
  vellum inspect --all                                  who wastes most?
  vellum inspect --cgroup system.slice/redis.service    the processes of a control group
  vellum inspect --json - 4711 | jq .processes[].tables_needless

What Linux counts as page tables (VmPTE) is compared with what the process's pages need, as the kernel itself tells it \
(PAGEMAP_SCAN, from Linux 6.7 on; on older kernels every entry is read, and less is known). The process goes on meanwhile: its memory \
lock is held for no longer than --max-hold at a time, and pauses are made if it needs the lock itself.

Status: 1 if a process that was named could not be looked at.";

const AFTER_RUN: &str = "\
Examples:
  vellum run -- ./hello world                           what it prints, and its status
  vellum run --icount -- ./measure 256                  the clock counts instructions: the same figures every time
  vellum run --file data.txt:/tmp/data.txt -- ./count /tmp/data.txt
  vellum run --file busybox:/bin/sh -- /bin/sh -c 'echo $0 | wc -c'
  vellum run --mem 256MiB --swap 1GiB -- ./large        with more memory than the machine has
  vellum run --mem 256MiB --swap 64MiB --swap-disk 1GiB -- ./large
                                                        with a disk for what does not fit in compressed memory
  vellum run --smp 4 --numa 2 -- ./team 4               with memory near two CPUs each
  vellum run --kernel target/linux/vmlinuz -- ./hello   the same on Linux

The program must be static (gcc -static). On Linux a small init mounts /proc, /sys, /dev and /sys/fs/cgroup, turns swap on, \
and runs the program; mitigations against flaws of hardware are off.

Statuses: the program's; 128 + N if signal N ended it, or this command; 125 if the kernel, or this command, failed.";

const AFTER_COMPARE: &str = "\
Examples:
  vellum compare --icount -- target/programs/unmap 256
                                                        instructions a page, of the reference kernel and of Linux
  vellum compare --kernel vmlinuz -- ./program          against another Linux than the one `./x linux` fetched

With --icount a nanosecond is an instruction, and a figure is the same in every run. Without, times are of an emulated machine: \
compare nothing but ratios.";

const AFTER_BENCH: &str = "\
Examples:
  vellum bench unmap                                    every operation, every folio size, 1 GiB
  vellum bench unmap --ops munmap --folios 4,64,2048    the short version
  vellum bench fork                                     a child, of a process with so much memory
  vellum bench pageout                                  to compressed memory, and back
  vellum bench lazyfree                                 memory that nobody needs is reclaimed
  vellum bench threads                                  do threads that unmap wait for each other?
  vellum bench contpte --trace cc1.trace                what are larger translations worth to a program?
  vellum bench holds                                    how long can a CPU do nothing else? (instructions)
  vellum bench tables --span 2GiB                       who frees empty page tables?
  vellum bench all --html report.html                   one page to look at and to send
  vellum bench unmap --json - | jq .linux_ns            one object a row; the table goes elsewhere

Linux is compared at a folio size by setting /sys/kernel/mm/transparent_hugepage, which needs root. The settings \
are changed only while a region is being touched and are put back on every way out, kill -9 included; so is what a benchmark \
sets up for itself: swap in compressed memory (zram), a control group. That needs root too. \
Without root the rows that need no change are still compared, and the others say why they are not.";

/// Write what a shell needs.
pub fn completions(shell: clap_complete::Shell, out: &mut impl Write) {
    clap_complete::generate(shell, &mut Cli::command(), "vellum", out);
}

/// Write manual pages.
pub fn man(folder: &Path) -> anyhow::Result<()> {
    let say = || format!("can't write manual pages into {}", folder.display());
    std::fs::create_dir_all(folder).with_context(say)?;
    clap_mangen::generate_to(Cli::command(), folder).with_context(say)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn there_is_a_manual_page_for_each_subcommand() {
        let folder = tempfile::tempdir().unwrap();
        super::man(folder.path()).unwrap();
        for page in ["vellum.1", "vellum-inspect.1", "vellum-bench-unmap.1"] {
            let text = std::fs::read_to_string(folder.path().join(page)).unwrap();
            assert!(text.contains(".TH"), "{page}");
        }
        let mut words = Vec::new();
        super::completions(clap_complete::Shell::Bash, &mut words);
        assert!(String::from_utf8(words).unwrap().contains("--max-hold"));
    }

    #[test]
    fn the_command_line_is_one_that_can_be_parsed() {
        super::Cli::command().debug_assert();
    }
}
