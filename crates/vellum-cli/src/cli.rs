//! The command line: subcommands, options and help texts.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};

use crate::{bench, compare, estimate, run};

/// Measure memory management by runs, beside the kernel you are running on.
///
/// Vellum is the memory manager of an operating-system kernel as a library. It works on runs:
/// ranges of consecutive page-table entries that map consecutive frames with the same attributes.
/// This command shows what that is worth.
#[derive(Parser)]
#[command(name = "vellum", version, max_term_width = 110)]
pub struct Cli {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand)]
pub enum Command {
    /// Measure memory operations: a lower bound, the engine, and the running Linux kernel.
    ///
    /// All contenders take turns in one process (A B A B …), so that noise affects all of them
    /// alike. A figure is the median of the runs, with the smallest and the largest beside it. Only
    /// ratios of two columns carry over to another machine.
    #[command(after_help = AFTER_BENCH)]
    Bench {
        /// The benchmark.
        #[command(subcommand)]
        what: bench::Bench,
    },
    /// Show the page tables of live processes, and which of them are empty. Without root, for your
    /// own processes.
    ///
    /// A process that reserves much memory and gives most of it back keeps page tables that hold
    /// nothing, which no other tool shows. This one counts them exactly, shows their addresses, and
    /// explains what would free them on this kernel. It reads, and changes nothing.
    #[command(after_help = AFTER_INSPECT)]
    Inspect(vellum_inspect::Args<estimate::Args>),
    /// Run a static Linux program on the reference kernel, or on Linux, in a virtual machine.
    ///
    /// The program's standard input, output, error and status are this command's. If the kernel
    /// fails instead, the status is 125 and its console is on standard error.
    #[command(after_help = AFTER_RUN)]
    Run(run::Args),
    /// Run a static Linux program on the reference kernel and on Linux, and show the outputs side
    /// by side.
    ///
    /// Lines that are JSON objects with the same keys on all kernels become a table: a line for
    /// each figure that differs, the least of all runs, with its ratio. The status is the
    /// program's; 1 if it differs between kernels or runs; 125 if a kernel, or this command,
    /// failed.
    #[command(after_help = AFTER_COMPARE)]
    Compare(compare::Args),
    /// Write a shell's completion script for this command.
    ///
    /// For bash: vellum completions bash > ~/.local/share/bash-completion/completions/vellum
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write manual pages, one for each subcommand, into a folder.
    Man {
        /// The folder; `man -l FOLDER/vellum-inspect.1` shows a page.
        folder: PathBuf,
    },
    /// Run as a helper process of a benchmark. Not for users.
    #[command(hide = true)]
    LinuxChild {
        /// The helper's task.
        #[command(subcommand)]
        role: vellum_linux::child::Role,
    },
}

const AFTER_INSPECT: &str = "\
Examples:
  vellum inspect 4711                                   one process, in full
  vellum inspect --map 4711                             a map of its page tables
  vellum inspect --all                                  which processes waste most?
  vellum inspect --cgroup system.slice/redis.service    the processes of a cgroup
  vellum inspect --json - 4711 | jq .processes[].tables_needless

The page tables that Linux counts (VmPTE) are compared with those that the process's pages need, as PAGEMAP_SCAN \
reports them (Linux 6.7 and later; on older kernels every entry is read, and less is known). The process runs on \
meanwhile: its mmap lock is held for no longer than --max-hold at a time, with pauses while the process contends for it.

Status: 1 if a process given by PID could not be inspected.";

const AFTER_RUN: &str = "\
Examples:
  vellum run -- ./hello world                           what it prints, and its status
  vellum run --icount -- ./measure 256                  the clock counts instructions: the same figures every time
  vellum run --icount --kernel-work -- ./hello          what the kernel executes for it, by system call
  vellum run --file data.txt:/tmp/data.txt -- ./count /tmp/data.txt
  vellum run --file busybox:/bin/sh -- /bin/sh -c 'echo $0 | wc -c'
  vellum run -t --root / -- bash                        a shell in this terminal, with the files of this machine
  vellum run --mem 256MiB --swap 1GiB -- ./large        uses more memory than the machine has
  vellum run --mem 256MiB --swap 64MiB --swap-disk 1GiB -- ./large
                                                        also swaps to a disk, once compressed memory is full
  vellum run --disk image -- ./check /dev/vda           with a disk, whose contents are the file `image`
  vellum run --smp 4 --numa 2 -- ./team 4               with two NUMA nodes, two CPUs each
  vellum run --kernel target/linux/vmlinuz -- ./hello   the same on Linux

The program must be static (gcc -static). On Linux a small init mounts /proc, /sys, /dev and /sys/fs/cgroup, turns \
swap on, and runs the program; mitigations of CPU vulnerabilities and the zeroing of every allocation are off.

Statuses: the program's; 128 + N if signal N ended it, or this command; 125 if the kernel, or this command, failed.";

const AFTER_COMPARE: &str = "\
Examples:
  vellum compare --icount -- target/programs/unmap 256
                                                        instructions a page, of the reference kernel and of Linux
  vellum compare --icount --kernel-work -- ./program    where the kernels' instructions go: calls, faults, interrupts
  vellum compare --kernel vmlinuz -- ./program          against another Linux than the one `./x linux` fetched
  vellum compare --runs 1 -- ./program                  one run on each kernel
  vellum compare --icount --json - -- target/programs/unmap 64 | jq .minimal_munmap

The columns: vellum, the reference kernel; linux, a distribution's kernel; minimal, if `./x linux --minimal` built it, \
Linux with the least configuration that runs the programs.

With --icount a nanosecond is an instruction, and runs differ by about 0.1 %, more where Linux works in the \
background. Without, times are of an emulated machine: compare ratios only.";

const AFTER_BENCH: &str = "\
Examples:
  vellum bench unmap                                    every operation, every folio size, 1 GiB
  vellum bench unmap --ops munmap --folios 4,64,2048    the short version
  vellum bench fork                                     fork of a process with this much memory
  vellum bench pageout                                  to compressed memory, and back
  vellum bench lazyfree                                 reclaim of lazyfree memory
  vellum bench small                                    munmap of small regions, and of parts of a region
  vellum bench threads                                  does munmap scale with threads?
  vellum bench contpte --trace cc1.trace                what do larger translations gain a program?
  vellum bench holds                                    longest non-preemptible sections (instructions)
  vellum bench tails                                    faults, munmap and fork while memory is reclaimed
  vellum bench memory                                   how much memory do descriptors and page tables take?
  vellum bench entry                                    what do system calls, exceptions and TLB flushes cost?
  vellum bench tables --span 2GiB                       which kernel frees empty page tables?
  vellum bench all --html report.html                   all results on one web page
  vellum bench unmap --json - | jq .linux_ns            one object a row; the table goes elsewhere

Linux is compared at a folio size by setting /sys/kernel/mm/transparent_hugepage, which needs root. The settings \
are changed only while a region is being touched, and are restored on every way out, kill -9 included. Some \
benchmarks also set up zram swap, removed in the same way, which needs root, too. \
Without root the rows that need no change are still compared, and the others give the reason.";

/// Writes the completion script of a shell.
pub fn completions(shell: clap_complete::Shell, out: &mut impl Write) {
    clap_complete::generate(shell, &mut Cli::command(), "vellum", out);
}

/// Writes the manual pages.
///
/// # Errors
/// The folder can't be written.
pub fn man(folder: &Path) -> anyhow::Result<()> {
    let context = || format!("can't write manual pages into {}", folder.display());
    std::fs::create_dir_all(folder).with_context(context)?;
    clap_mangen::generate_to(Cli::command(), folder).with_context(context)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn each_subcommand_has_a_manual_page() {
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
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
