//! The virtual machine: started, watched, ended.
//!
//! QEMU's standard input and output are the wire to the program; the kernel's console goes to a file. QEMU ends with the
//! program, with this command (it asked the host for that), and on every error.

use super::wire;
use anyhow::{Context, bail};
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const QEMU: &str = "qemu-system-x86_64";
/// QEMU's status after the kernel has said that all is well (`vellum-kernel`, `arch/x86_64/exit.rs`).
const SUCCESS: i32 = 33;

/// A machine to be started.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Machine<'a> {
    pub kernel: &'a Path,
    pub archive: &'a [u8],
    pub cpus: u8,
    /// Bytes of memory.
    pub memory: u64,
    /// Whether its clock counts instructions.
    pub counts: bool,
    pub timeout: Option<Duration>,
}

/// How it went.
pub struct End {
    /// The program's status; none if the kernel failed.
    pub status: Option<u8>,
    /// What the kernel said on its console.
    pub console: String,
    /// Why there is no status.
    pub reason: String,
}

/// QEMU, which ends when this is dropped.
struct Running(Arc<Mutex<Child>>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(mut child) = self.0.lock() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Machine<'_> {
    fn command(&self, archive: &Path, console: &Path) -> Command {
        let mut qemu = Command::new(QEMU);
        let memory = format!("{}M", self.memory.div_ceil(1 << 20));
        qemu.args(["-machine", "q35", "-cpu", "max", "-nodefaults", "-display", "none", "-no-reboot"]);
        qemu.args(["-m", &memory, "-smp", &self.cpus.to_string()]);
        // A CPU that waits for another, as in a shootdown, spins. With more of them than the host has, each such wait lasts
        // until the host's scheduler has had them all run, for milliseconds; one thread in turns takes the next at once.
        let host = thread::available_parallelism().map_or(1, usize::from);
        let shares = self.cpus == 1 || usize::from(self.cpus) > host;
        qemu.args(["-accel", if shares { "tcg,thread=single" } else { "tcg,thread=multi" }]);
        if self.counts {
            qemu.args(["-icount", "shift=0,sleep=off"]);
        }
        qemu.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"]);
        qemu.arg("-serial").arg(format!("file:{}", console.display()));
        qemu.args(["-chardev", "stdio,id=wire,signal=off", "-serial", "chardev:wire"]);
        qemu.arg("-kernel").arg(self.kernel).arg("-initrd").arg(archive).args(["-append", "run"]);
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: between fork and exec only this system call is made.
        unsafe { qemu.pre_exec(|| set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)) };
        qemu
    }

    /// Runs the machine until the program ends.
    ///
    /// # Errors
    /// QEMU is missing, or the host refuses something.
    pub fn run(&self) -> anyhow::Result<End> {
        let folder = tempfile::tempdir().context("making a folder for the machine")?;
        let (archive, console) = (folder.path().join("archive"), folder.path().join("console"));
        fs::write(&archive, self.archive).context("writing the archive")?;
        let mut child = match self.command(&archive, &console).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                bail!("{QEMU} is missing: install it (on Debian and Ubuntu the package qemu-system-x86)")
            }
            Err(error) => return Err(error).context("starting QEMU"),
        };
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (Some(to), Some(from), Some(complaints)) = (to, from, child.stderr.take()) else {
            bail!("QEMU was started without pipes");
        };
        let running = Running(Arc::new(Mutex::new(child)));
        let (why, ended) = (Arc::new(Mutex::new(String::new())), running.0.clone());
        self.end_on_signals(&running, &why)?;
        // Ends with this process: it may wait for input that never comes.
        let feed = move || {
            thread::spawn(move || wire::feed(io::stdin().lock(), to));
        };
        let listened = wire::listen(from, io::stdout().lock(), io::stderr().lock(), feed);
        let code = ended.lock().map_or(None, |mut child| child.wait().ok()).and_then(|status| status.code());
        drop(running);
        let mut reason = why.lock().map_or_else(|_| String::new(), |why| why.clone());
        let status = match listened {
            Ok(Some(status)) if code == Some(SUCCESS) => Some(status as u8),
            Ok(_) => None,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(error).context("writing the output"),
            Err(error) => {
                reason = error.to_string();
                None
            }
        };
        if reason.is_empty() {
            let complaint = io::read_to_string(complaints).unwrap_or_default();
            reason = format!("the kernel failed (QEMU ended with {code:?}) {complaint}");
        }
        let console = fs::read(&console).map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into());
        Ok(End { status, console, reason })
    }

    /// Ends QEMU when this command is told to end, or has waited long enough.
    fn end_on_signals(&self, running: &Running, why: &Arc<Mutex<String>>) -> anyhow::Result<()> {
        let end = |child: &Arc<Mutex<Child>>, why: &Arc<Mutex<String>>, reason: String| {
            if let Ok(mut why) = why.lock() {
                *why = reason;
            }
            // Not by the lock, which whoever waits for QEMU holds.
            if let Ok(mut child) = child.try_lock() {
                let _ = child.kill();
            }
        };
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("listening for signals")?;
        let (child, reason) = (running.0.clone(), why.clone());
        thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                end(&child, &reason, format!("ended by signal {signal}"));
            }
        });
        if let Some(timeout) = self.timeout {
            let (child, reason) = (running.0.clone(), why.clone());
            thread::spawn(move || {
                thread::sleep(timeout);
                end(&child, &reason, format!("the program took longer than {timeout:?}"));
            });
        }
        Ok(())
    }
}
