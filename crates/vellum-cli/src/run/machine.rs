//! Starts, supervises and ends the virtual machine.
//!
//! QEMU's standard input and output carry the program's streams; the kernel's console goes to a
//! file. QEMU ends with the program, with this command (by a parent-death signal), and on every
//! error.

use super::accel::Accel;
use super::arch::Arch;
use super::disk::Disk;
use super::kernel::{Kernel, Kind};
use super::plugin::{self, Plugin};
use super::root::Root;
use super::{stdio, terminal};
use anyhow::{Context, bail, ensure};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use vellum_count::tally::Tally;

/// A machine to start.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Machine<'a> {
    pub kernel: &'a Kernel,
    pub archive: &'a [u8],
    pub accel: Accel,
    pub cpus: u8,
    pub nodes: u8,
    /// Memory in bytes.
    pub memory: u64,
    pub disks: &'a [Disk<'a>],
    pub root: Option<&'a Root>,
    /// True if the machine's clock counts instructions.
    pub icount: bool,
    /// True if the reference kernel may map memory in contpte blocks.
    pub cont_blocks: bool,
    /// Bytes of a disk in the machine's memory, if it has one.
    pub ram_disk: Option<u64>,
    /// Counts the kernel's instructions by cause.
    pub plugin: Option<&'a Plugin>,
    pub timeout: Option<Duration>,
    /// True if the program's streams are a terminal, which the host's terminal shows.
    pub terminal: bool,
}

impl<'a> Machine<'a> {
    /// Returns a machine with one CPU, 512 MiB of memory, and nothing else, that may run this long.
    pub fn plain(kernel: &'a Kernel, archive: &'a [u8], accel: Accel, limit: Duration) -> Self {
        Self {
            kernel,
            archive,
            accel,
            cpus: 1,
            nodes: 1,
            memory: 512 << 20,
            disks: &[],
            root: None,
            icount: false,
            cont_blocks: true,
            ram_disk: None,
            plugin: None,
            timeout: Some(limit),
            terminal: false,
        }
    }
}

/// The result of a run.
pub struct End {
    pub outcome: Outcome,
    /// The text of the kernel's console.
    pub console: String,
    /// The kernel's instructions by cause, if the machine had the plugin, and the program ended.
    pub tally: Option<anyhow::Result<Tally>>,
    /// The executions by instruction, if the plugin counted them.
    pub profile: Option<String>,
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The program exited with this status, as a shell reports it.
    Exited(u8),
    /// A signal to this command ended the run.
    Interrupted(i32),
    /// The kernel failed, or the time limit passed.
    Failed(String),
}

/// Guard. A running QEMU, killed when dropped.
struct Running {
    child: Child,
    killer: Killer,
}

/// A handle with which another thread kills QEMU, and records the reason.
#[derive(Clone)]
struct Killer {
    process: Arc<OwnedFd>,
    why: Arc<Mutex<Option<Outcome>>>,
}

impl Killer {
    fn kill(&self, outcome: Outcome) {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(outcome);
        // Ignore an error: QEMU may have ended already.
        let _ = pidfd_send_signal(&*self.process, Signal::KILL);
    }
}

impl Running {
    fn start(mut command: Command, arch: Arch) -> anyhow::Result<Self> {
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let [qemu, package] = arch.qemu();
                bail!("{qemu} is missing: install it (on Debian and Ubuntu the package {package})")
            }
            Err(error) => return Err(error).context("starting QEMU"),
        };
        match pidfd_open(rustix::process::Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(process) => Ok(Self { child, killer: Killer { process: Arc::new(process), why: Arc::default() } }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error).context("opening a pidfd of QEMU")
            }
        }
    }

    /// Waits for QEMU's end. Returns its status, and the reason if it was killed.
    fn wait(mut self) -> io::Result<(ExitStatus, Option<Outcome>)> {
        let status = self.child.wait()?;
        Ok((status, self.killer.why.lock().unwrap_or_else(PoisonError::into_inner).take()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Machine<'_> {
    fn command(&self, archive: &Path, console: &Path, stderr: File) -> Command {
        let arch = self.kernel.arch;
        let mut qemu = Command::new(arch.qemu()[0]);
        let memory = format!("{}M", self.memory.div_ceil(1 << 20));
        qemu.args(["-nodefaults", "-display", "none", "-no-reboot"]);
        arch.machine(&mut qemu, self.accel, console);
        qemu.args(["-m", &memory, "-smp", &self.cpus.to_string()]);
        self.add_nodes(&mut qemu);
        qemu.args(["-accel", self.accelerator()]);
        if self.icount {
            qemu.args(["-icount", "shift=0,sleep=off"]);
        }
        qemu.arg("-kernel").arg(&self.kernel.image);
        let command_line = self.kernel.command_line(self.cont_blocks, self.icount, self.ram_disk);
        let first = match self.kernel.kind {
            Kind::Vellum => arch.hand_over(&mut qemu, archive, self.archive.len()),
            Kind::Linux => {
                qemu.arg("-initrd").arg(archive);
                String::new()
            }
        };
        qemu.arg("-append").arg(first + &command_line);
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        // SAFETY: the closure makes one system call between fork and exec.
        unsafe { qemu.pre_exec(|| set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)) };
        qemu
    }

    /// Adds the NUMA nodes, if there are several: equal shares of memory in MiB, and consecutive
    /// CPUs.
    fn add_nodes(&self, qemu: &mut Command) {
        let (nodes, mib, cpus) = (u64::from(self.nodes), self.memory.div_ceil(1 << 20), u64::from(self.cpus));
        for node in (0..nodes).filter(|_| nodes > 1) {
            let start = |whole: u64, node: u64| (whole * node).div_ceil(nodes);
            let part = |whole: u64| start(whole, node)..start(whole, node + 1);
            let (memory, cpus) = (part(mib), part(cpus));
            qemu.arg("-object").arg(format!("memory-backend-ram,id=node{node},size={}M", memory.end - memory.start));
            let own = if cpus.is_empty() { String::new() } else { format!(",cpus={}-{}", cpus.start, cpus.end - 1) };
            qemu.arg("-numa").arg(format!("node,nodeid={node},memdev=node{node}{own}"));
        }
    }

    fn accelerator(&self) -> &'static str {
        // A CPU that waits for another, as in a shootdown, spins. With more CPUs than the host has,
        // each wait lasts until the host's scheduler has run them all, for milliseconds; a single
        // thread switches to the next CPU at once.
        let host = thread::available_parallelism().map_or(1, usize::from);
        match self.accel {
            Accel::Kvm => "kvm",
            // The plugin, too, must see one CPU at a time.
            Accel::Tcg if self.plugin.is_some() || self.cpus == 1 || usize::from(self.cpus) > host => {
                "tcg,thread=single"
            }
            Accel::Tcg => "tcg,thread=multi",
        }
    }

    /// Runs the machine until the program ends, with these standard streams.
    ///
    /// # Errors
    /// QEMU is missing, a system call fails, or the output can't be written.
    pub fn run(
        &self,
        input: impl Read + Send + 'static,
        output: impl Write,
        errors: impl Write,
    ) -> anyhow::Result<End> {
        let filled = self.kernel.arch.filled(self.archive.len());
        ensure!(
            self.kernel.kind == Kind::Linux || filled < self.memory,
            "the program and its files need a machine with more than {} MiB of memory: use --mem",
            filled.div_ceil(1 << 20)
        );
        let folder = tempfile::tempdir().context("making a folder for the machine")?;
        let path = |name| folder.path().join(name);
        fs::write(path("archive"), self.archive).context("writing the archive")?;
        let stderr = File::create(path("stderr"))?;
        let mut command = self.command(&path("archive"), &path("console"), stderr);
        for disk in self.disks {
            disk.add_to(&mut command, folder.path())?;
        }
        if let Some(root) = self.root {
            root.add_to(&mut command)?;
        }
        if let Some(plugin) = self.plugin {
            plugin.add_to(&mut command, folder.path())?;
        }
        let mut running = Running::start(command, self.kernel.arch)?;
        let (Some(to), Some(from)) = (running.child.stdin.take(), running.child.stdout.take()) else {
            bail!("QEMU was started without pipes");
        };
        self.kill_on_signal_or_timeout(&running.killer)?;
        // Restored at the end of this function, also if that comes by an error.
        let mut raw = None;
        let to = Arc::new(Mutex::new(to));
        let send = || {
            if self.terminal {
                // Until now the host's terminal interrupts this command by Ctrl-C.
                raw = terminal::Raw::begin();
                // Without the signal the window keeps its size.
                let _ = terminal::follow_window(to.clone());
            }
            // Do not join this thread: it may wait for input that never comes. It ends with this
            // process.
            thread::spawn(move || stdio::send(input, &to));
        };
        let received = stdio::receive(BufReader::new(from), output, errors, send);
        if let Err(error) = &received {
            running.killer.kill(Outcome::Failed(error.to_string()));
        }
        let (ended, stopped) = running.wait()?;
        drop(raw);
        let outcome = match (received, stopped) {
            (Err(error), _) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Err(error).context("writing the output");
            }
            (_, Some(outcome)) => outcome,
            (Ok(Some(status)), None) if ended.code() == Some(self.kernel.success()) => Outcome::Exited(status as u8),
            (_, None) => {
                let message = fs::read_to_string(path("stderr")).unwrap_or_default();
                Outcome::Failed(format!("the kernel failed (QEMU: {ended}) {}", message.trim_end()))
            }
        };
        let console = fs::read(path("console")).unwrap_or_default();
        let counted = self.plugin.filter(|_| matches!(outcome, Outcome::Exited(_)));
        let tally = counted.map(|_| plugin::tally(folder.path()));
        let profile = plugin::profile(folder.path());
        Ok(End { outcome, console: String::from_utf8_lossy(&console).into(), tally, profile })
    }

    /// Kills QEMU on a signal to this command, or at the time limit.
    fn kill_on_signal_or_timeout(&self, killer: &Killer) -> anyhow::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT]).context("listening for signals")?;
        let by_signal = killer.clone();
        thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                by_signal.kill(Outcome::Interrupted(signal));
            }
        });
        if let Some(timeout) = self.timeout {
            let by_time = killer.clone();
            thread::spawn(move || {
                thread::sleep(timeout);
                by_time.kill(Outcome::Failed(format!("the program took longer than {timeout:?}")));
            });
        }
        Ok(())
    }
}
