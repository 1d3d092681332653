//! Implements the system calls of terminals: their `ioctl` requests, reads by `VMIN` and `VTIME`,
//! and `vhangup`.

use super::process::is_group_of;
use super::{Answer, file};
use crate::files::terminals;
use crate::mem::{now_ns, uaccess};
use crate::task::{Thread, job};
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general::{self as abi, CAP_SYS_ADMIN, CAP_SYS_TTY_CONFIG, SIGTTOU};
use linux_raw_sys::ioctl;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::tty::ends::{Master, Slave};
use vellum_kernel::fs::tty::terminal::{Side, Terminal};
use vellum_kernel::fs::tty::termios::{SIZE, SIZE2, Termios};
use vellum_kernel::fs::{File, Open, Sink};

/// An end of a terminal that a program has open.
pub struct End<'a> {
    terminal: &'a Arc<Terminal>,
    side: Side,
    is_hung_up: bool,
}

/// Returns the end of a terminal, if the open file is one.
pub fn end_of(open: &Open) -> Option<End<'_>> {
    let file = open.file().ok()?.as_any();
    if let Some(slave) = file.downcast_ref::<Slave>() {
        return Some(End { terminal: slave.terminal(), side: Side::Slave, is_hung_up: slave.is_hung_up() });
    }
    let master = file.downcast_ref::<Master>()?;
    Some(End { terminal: master.terminal(), side: Side::Master, is_hung_up: false })
}

fn put(thread: &Thread, to: u64, bytes: &[u8]) -> Answer {
    uaccess::write(&thread.memory(), to, bytes).map(|()| 0)
}

fn put_word(thread: &Thread, to: u64, word: u32) -> Answer {
    put(thread, to, &word.to_le_bytes())
}

fn get<const N: usize>(thread: &Thread, from: u64) -> Result<[u8; N], Errno> {
    let mut bytes = [0; N];
    uaccess::read(&thread.memory(), from, &mut bytes)?;
    Ok(bytes)
}

fn get_word(thread: &Thread, from: u64) -> Result<u32, Errno> {
    get(thread, from).map(u32::from_le_bytes)
}

/// Implements the `ioctl` requests of terminals.
pub fn ioctl(thread: &Arc<Thread>, end: &End<'_>, request: u32, argument: u64) -> Answer {
    if end.is_hung_up {
        return Err(if request == ioctl::TIOCSPGRP { Errno::ENOTTY } else { Errno::EIO });
    }
    let of_side = match end.side {
        Side::Master => of_master(thread, end.terminal, request, argument),
        Side::Slave => None,
    };
    let found = of_side.or_else(|| of_settings(thread, end, request, argument));
    found.unwrap_or_else(|| of_jobs(thread, end, request, argument))
}

/// Executes the requests that only a master has; `None`: it is another request.
fn of_master(thread: &Arc<Thread>, terminal: &Arc<Terminal>, request: u32, argument: u64) -> Option<Answer> {
    let set = |set: fn(&Terminal, bool)| {
        set(terminal, get_word(thread, argument)? != 0);
        Ok(0)
    };
    Some(match request {
        ioctl::TIOCGPTN => put_word(thread, argument, terminal.number),
        ioctl::TIOCSPTLCK => set(Terminal::set_locked),
        ioctl::TIOCGPTLCK => put_word(thread, argument, terminal.is_locked().into()),
        ioctl::TIOCPKT => set(Terminal::set_packets),
        ioctl::TIOCGPKT => put_word(thread, argument, terminal.has_packets().into()),
        ioctl::TIOCGPTPEER => {
            let flags = argument as u32;
            terminals::open_slave(terminal, flags).and_then(|open| file::add(thread, Arc::new(open), flags))
        }
        ioctl::TIOCSIG => match argument as u32 {
            signal @ (abi::SIGINT | abi::SIGQUIT | abi::SIGTSTP) => {
                job::signal_foreground(terminal.foreground(), signal);
                Ok(0)
            }
            _ => Err(Errno::EINVAL),
        },
        _ => return None,
    })
}

/// Executes the requests about settings, buffers and the window; `None`: it is another request.
fn of_settings(thread: &Arc<Thread>, end: &End<'_>, request: u32, argument: u64) -> Option<Answer> {
    let (terminal, side) = (end.terminal, end.side);
    let change = |change: &dyn Fn() -> Answer| job::check(thread, terminal, SIGTTOU).and_then(|()| change());
    let set_termios = |has_speeds: bool, flush: bool| {
        change(&|| {
            let mut bytes = [0; SIZE2];
            let len = if has_speeds { SIZE2 } else { SIZE };
            uaccess::read(&thread.memory(), argument, &mut bytes[..len])?;
            terminal.set_termios(Termios::of(&bytes, has_speeds), flush);
            Ok(0)
        })
    };
    Some(match request {
        ioctl::TCGETS => put(thread, argument, &terminal.termios().bytes()[..SIZE]),
        ioctl::TCGETS2 => put(thread, argument, &terminal.termios().bytes()),
        // Output goes to the master at once, so there is nothing to drain.
        ioctl::TCSETS | ioctl::TCSETSW => set_termios(false, false),
        ioctl::TCSETSF => set_termios(false, true),
        ioctl::TCSETS2 | ioctl::TCSETSW2 => set_termios(true, false),
        ioctl::TCSETSF2 => set_termios(true, true),
        ioctl::TCSBRK | ioctl::TCSBRKP => change(&|| Ok(0)),
        ioctl::TIOCSBRK | ioctl::TIOCCBRK => Ok(0),
        ioctl::TCXONC => change(&|| {
            match argument {
                0 | 1 => terminal.set_stopped(side, argument == 0),
                2 | 3 if side == Side::Slave => terminal.send_flow(argument == 2)?,
                2 | 3 => {}
                _ => return Err(Errno::EINVAL),
            }
            Ok(0)
        }),
        ioctl::TCFLSH => change(&|| match argument {
            0..=2 => {
                terminal.flush(side, argument != 1, argument != 0);
                Ok(0)
            }
            _ => Err(Errno::EINVAL),
        }),
        ioctl::TIOCOUTQ => put_word(thread, argument, 0),
        ioctl::TIOCGWINSZ => {
            let window = terminal.window();
            let bytes: [u8; 8] = core::array::from_fn(|i| window[i / 2].to_le_bytes()[i % 2]);
            put(thread, argument, &bytes)
        }
        ioctl::TIOCSWINSZ => get::<8>(thread, argument).map(|bytes| {
            terminal.set_window(core::array::from_fn(|i| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])));
            0
        }),
        ioctl::TIOCGETD => put_word(thread, argument, 0),
        ioctl::TIOCSETD => match get_word(thread, argument) {
            Ok(0) => Ok(0),
            Ok(_) => Err(Errno::EINVAL),
            Err(error) => Err(error),
        },
        ioctl::TIOCEXCL => {
            terminal.set_exclusive(true);
            Ok(0)
        }
        ioctl::TIOCNXCL => {
            terminal.set_exclusive(false);
            Ok(0)
        }
        ioctl::TIOCGEXCL => put_word(thread, argument, terminal.is_exclusive().into()),
        ioctl::TIOCGDEV => put_word(thread, argument, terminal.device().number() as u32),
        _ => return None,
    })
}

/// Executes the requests of job control.
fn of_jobs(thread: &Arc<Thread>, end: &End<'_>, request: u32, argument: u64) -> Answer {
    let (terminal, process) = (end.terminal, &thread.process);
    let is_own = || job::is_controlled(process, terminal);
    // A master has the numbers of its slave, whatever terminal the caller has.
    let shows = || end.side == Side::Master || is_own();
    let is_privileged = || thread.credentials().has(CAP_SYS_ADMIN);
    match request {
        ioctl::TIOCGPGRP if shows() => put_word(thread, argument, terminal.foreground()),
        ioctl::TIOCGSID if shows() && terminal.session() != 0 => put_word(thread, argument, terminal.session()),
        ioctl::TIOCSPGRP => set_foreground(thread, terminal, argument),
        ioctl::TIOCSCTTY => take(thread, terminal, argument),
        ioctl::TIOCNOTTY if end.side == Side::Slave && is_own() => {
            job::leave_terminal(process);
            Ok(0)
        }
        ioctl::TIOCSTI if is_own() || is_privileged() => {
            let [byte] = get(thread, argument)?;
            terminal.type_byte(byte);
            Ok(0)
        }
        ioctl::TIOCSTI => Err(Errno::EPERM),
        ioctl::TIOCVHANGUP => {
            thread.credentials().needs(CAP_SYS_ADMIN)?;
            terminal.hang_up();
            Ok(0)
        }
        _ => Err(Errno::ENOTTY),
    }
}

/// Implements `TIOCSPGRP`.
fn set_foreground(thread: &Arc<Thread>, terminal: &Arc<Terminal>, argument: u64) -> Answer {
    match job::check(thread, terminal, SIGTTOU) {
        Err(Errno::EIO) => return Err(Errno::ENOTTY),
        checked => checked?,
    }
    let group = get_word(thread, argument)?;
    if (group as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let session = thread.process.session.load(Relaxed);
    if !job::is_controlled(&thread.process, terminal) || terminal.session() != session {
        return Err(Errno::ENOTTY);
    }
    if job::members(group).next().is_none() {
        return Err(Errno::ESRCH);
    }
    if !is_group_of(session, group) {
        return Err(Errno::EPERM);
    }
    terminal.set_foreground(group);
    Ok(0)
}

/// Implements `TIOCSCTTY`.
fn take(thread: &Arc<Thread>, terminal: &Arc<Terminal>, argument: u64) -> Answer {
    let process = &thread.process;
    if job::leads_session(process) && job::is_controlled(process, terminal) {
        return Ok(0);
    }
    let steals = argument == 1 && thread.credentials().has(CAP_SYS_ADMIN);
    if job::take_terminal(process, terminal, steals) { Ok(0) } else { Err(Errno::EPERM) }
}

/// Implements `vhangup`.
pub fn vhangup(thread: &Thread) -> Answer {
    thread.credentials().needs(CAP_SYS_TTY_CONFIG)?;
    let terminal = thread.process.terminal.lock().clone();
    if let Some(terminal) = terminal {
        terminal.hang_up();
    }
    Ok(0)
}

/// Reads from a slave in raw mode whose settings have reads wait for several bytes, or for a time
/// (`VMIN`, `VTIME`). Returns `None` for other files and settings.
///
/// # Errors
///
/// Those of a read; `EINTR`.
pub async fn read(thread: &Arc<Thread>, open: &Open, to: &mut dyn Sink) -> Option<Result<usize, Errno>> {
    let slave = open.file().ok()?.as_any().downcast_ref::<Slave>()?;
    let settings = slave.terminal().termios();
    let (least, time) = settings.timing();
    let is_timed = !settings.local(abi::ICANON) && (least > 1 || time > 0) && open.flags() & abi::O_NONBLOCK == 0;
    if !is_timed || to.room() == 0 || open.readable().is_err() {
        return None;
    }
    let terminal = slave.terminal();
    let wanted = least.min(to.room()).max(1);
    // A read without a least number of bytes waits for the first one for a time. Any other waits
    // for the first one for ever, and then for each next one for a time.
    let mut deadline = (least == 0).then(|| now_ns().saturating_add(time));
    let mut seen = 0;
    loop {
        let look = || {
            if let Err(error) = job::check(thread, terminal, abi::SIGTTIN) {
                return Some(Err(error));
            }
            let unread = terminal.unread(Side::Slave);
            (unread >= wanted || unread > seen && time > 0 || slave.is_hung_up()).then_some(Ok(unread))
        };
        match thread.interruptible(terminal.queue(Side::Slave).wait_until(look), deadline).await {
            Ok(Ok(unread)) if unread < wanted && !slave.is_hung_up() => {
                seen = unread;
                deadline = Some(now_ns().saturating_add(time));
            }
            Ok(Err(error)) => return Some(Err(error)),
            Err(Errno::EINTR) if terminal.unread(Side::Slave) == 0 => return Some(Err(Errno::EINTR)),
            _ => break,
        }
    }
    Some(match slave.read(0, to) {
        Err(Errno::EAGAIN) => Ok(0),
        read => read,
    })
}
