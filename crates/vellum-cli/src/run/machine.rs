//! The virtual machine: started, watched, ended.
//!
//! QEMU's standard input and output are the wire to the program; the kernel's console goes to a
//! file. QEMU ends with the program, with this command (it asked the host for that), and on every
//! error.

use super::accel::Accel;
use super::arch::Arch;
use super::disk::Disk;
use super::kernel::{Kernel, Kind};
use super::wire;
use anyhow::{Context, bail, ensure};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
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

/// A machine to be started.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Machine<'a> {
    pub kernel: &'a Kernel,
    pub archive: &'a [u8],
    pub accel: Accel,
    pub cpus: u8,
    pub nodes: u8,
    /// Bytes of memory.
    pub memory: u64,
    pub disk: Option<Disk<'a>>,
    /// Whether its clock counts instructions.
    pub counts: bool,
    /// Whether the reference kernel may map memory in contiguous blocks.
    pub joins: bool,
    pub timeout: Option<Duration>,
}

/// How it went.
pub struct End {
    pub outcome: Outcome,
    /// What the kernel said on its console.
    pub console: String,
}

/// How the program ended, or why it did not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With this status, as a shell would say it.
    Exited(u8),
    /// This command was told to end.
    Interrupted(i32),
    /// The kernel failed, or took too long.
    Failed(String),
}

/// QEMU, which ends when this is dropped.
struct Running {
    child: Child,
    stop: Stop,
}

/// What can end QEMU from elsewhere, once and for a reason.
#[derive(Clone)]
struct Stop {
    process: Arc<OwnedFd>,
    why: Arc<Mutex<Option<Outcome>>>,
}

impl Stop {
    fn now(&self, outcome: Outcome) {
        self.why.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(outcome);
        // It may have ended already.
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
            Ok(process) => Ok(Self { child, stop: Stop { process: Arc::new(process), why: Arc::default() } }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error).context("watching QEMU")
            }
        }
    }

    /// Waits until QEMU has ended. Why, if it was stopped.
    fn wait(mut self) -> io::Result<(ExitStatus, Option<Outcome>)> {
        let status = self.child.wait()?;
        Ok((status, self.stop.why.lock().unwrap_or_else(PoisonError::into_inner).take()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Machine<'_> {
    fn command(&self, archive: &Path, console: &Path, complaints: File) -> Command {
        let arch = self.kernel.arch;
        let mut qemu = Command::new(arch.qemu()[0]);
        let memory = format!("{}M", self.memory.div_ceil(1 << 20));
        qemu.args(["-nodefaults", "-display", "none", "-no-reboot"]);
        arch.machine(&mut qemu, self.accel, console);
        qemu.args(["-m", &memory, "-smp", &self.cpus.to_string()]);
        self.divide(&mut qemu);
        qemu.args(["-accel", self.accelerator()]);
        if self.counts {
            qemu.args(["-icount", "shift=0,sleep=off"]);
        }
        qemu.arg("-kernel").arg(&self.kernel.image);
        let command_line = self.kernel.command_line(self.joins, self.counts);
        let first = match self.kernel.kind {
            Kind::Vellum => arch.hand_over(&mut qemu, archive, self.archive.len()),
            Kind::Linux => {
                qemu.arg("-initrd").arg(archive);
                String::new()
            }
        };
        qemu.arg("-append").arg(first + &command_line);
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(complaints);
        // SAFETY: between fork and exec only this system call is made.
        unsafe { qemu.pre_exec(|| set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)) };
        qemu
    }

    /// Tells QEMU of the nodes, if there are several: the same part of memory for each, by the MiB,
    /// and CPUs in a row.
    fn divide(&self, qemu: &mut Command) {
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
        // A CPU that waits for another, as in a shootdown, spins. With more of them than the host
        // has, each such wait lasts until the host's scheduler has had them all run, for
        // milliseconds; one thread in turns takes the next at once.
        let host = thread::available_parallelism().map_or(1, usize::from);
        match self.accel {
            Accel::Kvm => "kvm",
            Accel::Tcg if self.cpus == 1 || usize::from(self.cpus) > host => "tcg,thread=single",
            Accel::Tcg => "tcg,thread=multi",
        }
    }

    /// Runs the machine until the program ends, with these for its standard input, output and
    /// error.
    ///
    /// # Errors
    /// QEMU is missing, the host refuses something, or the output can't be written.
    pub fn run(
        &self,
        input: impl Read + Send + 'static,
        output: impl Write,
        errors: impl Write,
    ) -> anyhow::Result<End> {
        let filled = self.kernel.arch.filled(self.archive.len());
        ensure!(
            self.kernel.kind == Kind::Linux || filled < self.memory,
            "the program and its files need a machine with more than {} MiB of memory: give --mem",
            filled.div_ceil(1 << 20)
        );
        let folder = tempfile::tempdir().context("making a folder for the machine")?;
        let path = |name| folder.path().join(name);
        fs::write(path("archive"), self.archive).context("writing the archive")?;
        let complaints = File::create(path("complaints"))?;
        let mut command = self.command(&path("archive"), &path("console"), complaints);
        if let Some(disk) = self.disk {
            disk.plug_in(&mut command, folder.path())?;
        }
        let mut running = Running::start(command, self.kernel.arch)?;
        let (Some(to), Some(from)) = (running.child.stdin.take(), running.child.stdout.take()) else {
            bail!("QEMU was started without pipes");
        };
        self.end_early(&running.stop)?;
        // Ends with this process: it may wait for input that never comes.
        let feed = move || {
            thread::spawn(move || wire::feed(input, to));
        };
        let listened = wire::listen(BufReader::new(from), output, errors, feed);
        if let Err(error) = &listened {
            running.stop.now(Outcome::Failed(error.to_string()));
        }
        let (ended, stopped) = running.wait()?;
        let outcome = match (listened, stopped) {
            (Err(error), _) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Err(error).context("writing the output");
            }
            (_, Some(outcome)) => outcome,
            (Ok(Some(status)), None) if ended.code() == Some(self.kernel.success()) => Outcome::Exited(status as u8),
            (_, None) => {
                let complaint = fs::read_to_string(path("complaints")).unwrap_or_default();
                Outcome::Failed(format!("the kernel failed (QEMU: {ended}) {}", complaint.trim_end()))
            }
        };
        let console = fs::read(path("console")).unwrap_or_default();
        Ok(End { outcome, console: String::from_utf8_lossy(&console).into() })
    }

    /// Ends QEMU when this command is told to end, or has waited long enough.
    fn end_early(&self, stop: &Stop) -> anyhow::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("listening for signals")?;
        let by_signal = stop.clone();
        thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                by_signal.now(Outcome::Interrupted(signal));
            }
        });
        if let Some(timeout) = self.timeout {
            let by_time = stop.clone();
            thread::spawn(move || {
                thread::sleep(timeout);
                by_time.now(Outcome::Failed(format!("the program took longer than {timeout:?}")));
            });
        }
        Ok(())
    }
}
