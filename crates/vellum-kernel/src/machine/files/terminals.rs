//! Terminals of this machine: the device files, the processes as terminals need them, and the
//! terminal of the host's user.

use super::stream::{self, Arrival};
use crate::arch::serial::stdio;
use crate::task::{Thread, executor, job};
use alloc::format;
use alloc::sync::Arc;
use linux_raw_sys::general::{CAP_SYS_ADMIN, O_ACCMODE, O_NOCTTY, O_RDWR, O_WRONLY, VEOF};
use spin::{Mutex, Once};
use vellum_kernel::credentials::id_index;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::device::number;
use vellum_kernel::fs::meta::Device;
use vellum_kernel::fs::names::Driver;
use vellum_kernel::fs::open::{Name, Open};
use vellum_kernel::fs::pseudo::PseudoDirectory;
use vellum_kernel::fs::tty::Jobs;
use vellum_kernel::fs::tty::devpts::Devpts;
use vellum_kernel::fs::tty::ends::{Master, Slave};
use vellum_kernel::fs::tty::terminal::{Side, Terminal, Window};
use vellum_kernel::fs::{File, Inode, Kind, Namespace};

/// The file system of the slaves. It exists once, however often it is mounted.
struct System {
    devpts: Arc<Devpts>,
    root: Arc<PseudoDirectory>,
}

static SYSTEM: Once<System> = Once::new();
/// The master of the terminal that the host's user sees.
static HOST: Once<Arc<Master>> = Once::new();

fn system() -> Result<&'static System, Errno> {
    SYSTEM.try_call_once(|| {
        let devpts = Devpts::new(Device { major: 0, minor: 13 }, Arc::new(Processes));
        Ok(System { root: devpts.root()?, devpts })
    })
}

/// Returns the root directory of `devpts`.
///
/// # Errors
///
/// `ENOMEM`.
pub fn root() -> Result<Arc<dyn Inode>, Errno> {
    Ok(system()?.root.clone())
}

/// Registers the drivers of `/dev/ptmx`, `/dev/tty` and `/dev/console`.
///
/// # Errors
///
/// `ENOMEM`.
pub fn add_drivers(names: &Namespace) -> Result<(), Errno> {
    let own = |flags| {
        let thread = Thread::current().ok_or(Errno::ENXIO)?;
        let terminal = thread.process.terminal.lock().clone().ok_or(Errno::ENXIO)?;
        Slave::open(&terminal, flags | O_NOCTTY)
    };
    let console = |flags| Slave::open(HOST.get().ok_or(Errno::ENODEV)?.terminal(), flags | O_NOCTTY);
    let drivers: [(Device, Driver); 3] = [
        (number::PTMX, Arc::new(|_| Ok(system()?.devpts.open_master()? as Arc<dyn File>))),
        (number::TTY, Arc::new(own)),
        (number::CONSOLE, Arc::new(console)),
    ];
    drivers.into_iter().try_for_each(|(number, driver)| names.add_driver(Kind::Char, number, driver))
}

/// Opens the slave of a terminal by its name in the file system.
///
/// # Errors
///
/// `EIO`: locked, or hung up for good. `EBUSY`, `ENOMEM`.
pub fn open_slave(terminal: &Terminal, flags: u32) -> Result<Open, Errno> {
    let System { devpts, root } = system()?;
    let inode: Arc<dyn Inode> = devpts.slave(terminal.number).ok_or(Errno::EIO)?;
    let file = inode.clone().open(flags)?;
    let name = Name::Entry { directory: root.clone(), name: format!("{}", terminal.number).into_bytes().into() };
    Ok(Open::new(inode, Some(file), flags, Some(name)))
}

/// Returns the terminal of an open file of a slave.
pub fn of(open: &Open) -> Option<Arc<Terminal>> {
    let slave = open.file().ok()?.as_any().downcast_ref::<Slave>()?;
    Some(slave.terminal().clone())
}

/// Processes, as terminals need them.
struct Processes;

impl Jobs for Processes {
    fn signal(&self, group: u32, signal: u32) {
        job::signal_foreground(group, signal);
    }

    fn check(&self, terminal: &Terminal, signal: u32) -> Result<(), Errno> {
        // A task of the kernel has no terminal.
        Thread::current().map_or(Ok(()), |thread| job::check(&thread, terminal, signal))
    }

    fn opened(&self, terminal: &Arc<Terminal>, flags: u32) {
        let reads = flags & O_ACCMODE != O_WRONLY;
        if let Some(thread) = Thread::current().filter(|_| reads && flags & O_NOCTTY == 0) {
            job::take_terminal(&thread.process, terminal, false);
        }
    }

    fn closed(&self, terminal: &Arc<Terminal>) {
        job::give_up(terminal);
    }

    fn hung_up(&self, terminal: &Arc<Terminal>) {
        job::hung_up(terminal);
    }

    fn user(&self) -> u32 {
        Thread::current().map_or(0, |thread| thread.credentials().uids[id_index::FS])
    }

    fn is_privileged(&self) -> bool {
        Thread::current().is_none_or(|thread| thread.credentials().has(CAP_SYS_ADMIN))
    }
}

/// Creates the terminal of the host's user, with a window of this size, and returns an open file of
/// its slave. From now on the stdio channel carries its bytes.
///
/// # Errors
///
/// `ENOMEM`.
pub fn begin_host(window: Window) -> Result<Open, Errno> {
    let master = system()?.devpts.open_master()?;
    let terminal = master.terminal();
    terminal.set_locked(false);
    terminal.set_window(window);
    HOST.call_once(|| master.clone());
    executor::spawn(type_input(master.clone()));
    executor::spawn(show_output(master.clone()));
    open_slave(terminal, O_RDWR | O_NOCTTY)
}

/// Has the terminal take what the host sends.
async fn type_input(master: Arc<Master>) {
    let terminal = master.terminal();
    loop {
        let mut buffer = [0; 256];
        match stream::arrivals().wait_until(|| stream::take(&mut buffer)).await {
            Arrival::Window(window) => terminal.set_window(window),
            Arrival::Bytes(count) => {
                let mut bytes = &buffer[..count];
                while !bytes.is_empty() {
                    let attempt = || master.write(0, &mut bytes).ok();
                    terminal.queue(Side::Master).wait_until(attempt).await;
                }
            }
            Arrival::End => return terminal.type_byte(terminal.termios().cc[VEOF as usize]),
        }
        executor::yield_now().await;
    }
}

/// Sends the terminal's output to the host.
async fn show_output(master: Arc<Master>) {
    loop {
        master.terminal().queue(Side::Master).wait_until(|| show_some(&master).then_some(())).await;
        executor::yield_now().await;
    }
}

/// Sends some output to the host. Returns false if there is none.
fn show_some(master: &Master) -> bool {
    /// Keeps output in its order, and [`flush_host`] from overtaking what was read and not sent.
    static SENDING: Mutex<()> = Mutex::new(());
    let mut buffer = [0; 1024];
    let _sending = SENDING.lock();
    let read = master.read(0, &mut &mut buffer[..]);
    if let Ok(count) = read {
        stdio::send(stdio::Frame::Output, &buffer[..count]);
    }
    read.is_ok()
}

/// Sends all output of the host's terminal, if there is one, before the machine ends.
pub fn flush_host() {
    while HOST.get().is_some_and(|master| show_some(master)) {}
}
