//! A pseudoterminal: the line discipline, both ends' state, and the queues of their waiters.

use super::Jobs;
use super::discipline::Discipline;
use super::output::Stopped;
use super::termios::Termios;
use crate::errno::Errno;
use crate::fs::bytes::Bytes;
use crate::fs::io::{Sink, Source, in_pieces};
use crate::fs::meta::Device;
use crate::wait::Queue;
use alloc::sync::Arc;
use linux_raw_sys::general::{
    POLLERR, POLLHUP, POLLIN, POLLOUT, POLLPRI, POLLRDNORM, POLLWRNORM, SIGTTIN, SIGTTOU, SIGWINCH, TOSTOP, VSTART,
    VSTOP,
};
use spin::Mutex;

/// The major number of slaves.
const MAJOR: u32 = 136;
/// The most bytes of the master's that wait until the line discipline takes them.
const CAPACITY: usize = 16 << 10;
/// The least room with which a write of the master does not wait.
const LEAST_ROOM: usize = 256;
/// The most bytes that are moved while the terminal is locked.
const PIECE: usize = 512;

/// The events of a slave that was hung up.
const HUNG_UP: u32 = POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDNORM | POLLWRNORM;

/// The size of a terminal's window: rows, columns, and both in pixels (`struct winsize`).
pub type Window = [u16; 4];

/// One of the two ends of a pseudoterminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Side {
    Master,
    Slave,
}

/// A pseudoterminal.
pub struct Terminal {
    /// The number, by which the slave is named.
    pub number: u32,
    jobs: Arc<dyn Jobs>,
    state: Mutex<State>,
    /// Notified when the slave may be ready, or is hung up.
    slave_changed: Queue,
    /// Notified when the master may be ready.
    master_changed: Queue,
}

struct State {
    discipline: Discipline,
    /// The bytes that the master wrote and the line discipline has not taken.
    incoming: Bytes,
    window: Window,
    has_master: bool,
    /// The number of open files of the slave.
    slaves: u32,
    /// True once the last file of the slave was closed, until it is opened again.
    is_slave_closed: bool,
    /// The number of times that the slave was hung up. Files opened before the last of them are.
    hang_ups: u32,
    /// True until a program unlocks the slave (`unlockpt`).
    is_locked: bool,
    /// True if the slave may not be opened again (`TIOCEXCL`).
    is_exclusive: bool,
    /// True if each read of the master begins with a status byte (`TIOCPKT`).
    has_packets: bool,
    /// The session that the terminal controls; 0: none.
    session: u32,
    /// The foreground process group; 0: none.
    foreground: u32,
}

impl State {
    /// Gives the line discipline what it takes now.
    fn advance(&mut self) {
        while self.discipline.takes_input()
            && let Some(byte) = self.incoming.first().first().copied()
        {
            self.incoming.drop_first(1);
            self.discipline.receive(byte);
        }
    }
}

impl Terminal {
    /// Creates a pseudoterminal with a master and no slave, which is locked.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn new(number: u32, jobs: Arc<dyn Jobs>) -> Result<Arc<Self>, Errno> {
        let state = State {
            discipline: Discipline::new()?,
            incoming: Bytes::default(),
            window: [0; 4],
            has_master: true,
            slaves: 0,
            is_slave_closed: false,
            hang_ups: 0,
            is_locked: true,
            is_exclusive: false,
            has_packets: false,
            session: 0,
            foreground: 0,
        };
        let (slave_changed, master_changed) = (Queue::new(), Queue::new());
        Ok(Arc::new(Terminal { number, jobs, state: Mutex::new(state), slave_changed, master_changed }))
    }

    /// Returns the device number of the slave.
    pub fn device(&self) -> Device {
        Device { major: MAJOR, minor: self.number }
    }

    /// Returns the processes.
    pub(super) fn jobs(&self) -> &dyn Jobs {
        &*self.jobs
    }

    /// Returns the queue in which an end waits.
    pub fn queue(&self, side: Side) -> &Queue {
        match side {
            Side::Master => &self.master_changed,
            Side::Slave => &self.slave_changed,
        }
    }

    fn wake(&self) {
        self.master_changed.wake_all();
        self.slave_changed.wake_all();
    }

    /// Changes the state. Unless that fails, gives the line discipline its input, sends the signals
    /// that this raises, and wakes both ends.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut state = self.state.lock();
        let done = change(&mut state)?;
        state.advance();
        let (raised, foreground) = (state.discipline.take_raised(), state.foreground);
        drop(state);
        self.wake();
        for signal in (1..=u64::BITS).filter(|signal| raised >> (signal - 1) & 1 != 0) {
            self.signal(foreground, signal);
        }
        Ok(done)
    }

    /// Makes a change that can't fail.
    fn set(&self, change: impl FnOnce(&mut State)) {
        let _ = self.change(|state| {
            change(state);
            Ok(())
        });
    }

    fn signal(&self, group: u32, signal: u32) {
        if group != 0 {
            self.jobs.signal(group, signal);
        }
    }

    /// Counts a file of the slave, and returns the number of hang-ups before it.
    ///
    /// # Errors
    /// `EIO`: the slave is locked, or the master was closed. `EBUSY`: a program has the terminal
    /// for itself, and the caller is not `privileged`.
    pub(super) fn add_slave(&self, privileged: bool) -> Result<u32, Errno> {
        self.change(|state| {
            if state.is_locked || !state.has_master {
                return Err(Errno::EIO);
            }
            if state.is_exclusive && !privileged {
                return Err(Errno::EBUSY);
            }
            state.slaves += 1;
            state.is_slave_closed = false;
            Ok(state.hang_ups)
        })
    }

    /// Uncounts a file of the slave. Returns true if it was the last one: the caller then takes the
    /// terminal away from its session.
    pub(super) fn remove_slave(&self) -> bool {
        let mut is_last = false;
        self.set(|state| {
            state.slaves -= 1;
            is_last = state.slaves == 0;
            if is_last {
                (state.is_slave_closed, state.is_exclusive) = (true, false);
            }
        });
        is_last
    }

    /// Closes the master: hangs up the slave, for good.
    pub(super) fn close_master(self: &Arc<Self>) {
        self.set(|state| state.has_master = false);
        self.hang_up();
    }

    /// Hangs up the slave: files of it that are open now read the end of file, and can't be written
    /// (Linux: `tty_vhangup`). Its session is notified.
    pub fn hang_up(self: &Arc<Self>) {
        self.set(|state| {
            state.hang_ups += 1;
            state.discipline.flush_input();
            state.incoming = Bytes::default();
        });
        self.jobs.hung_up(self);
        self.set_controlled(0, 0);
    }

    /// Returns true if a file of the slave, opened after this number of hang-ups, is hung up.
    pub(super) fn is_hung_up(&self, before: u32) -> bool {
        self.state.lock().hang_ups != before
    }

    /// Returns the session that the terminal controls; 0: none.
    pub fn session(&self) -> u32 {
        self.state.lock().session
    }

    /// Returns the foreground process group; 0: none.
    pub fn foreground(&self) -> u32 {
        self.state.lock().foreground
    }

    /// Sets the session that the terminal controls, and the foreground process group; 0: none.
    pub fn set_controlled(&self, session: u32, foreground: u32) {
        let mut state = self.state.lock();
        (state.session, state.foreground) = (session, foreground);
    }

    /// Makes the terminal control a session, unless it controls one already. Returns true if it
    /// did not.
    pub fn control(&self, session: u32, foreground: u32) -> bool {
        let mut state = self.state.lock();
        let is_free = state.session == 0;
        if is_free {
            (state.session, state.foreground) = (session, foreground);
        }
        is_free
    }

    /// Sets the foreground process group.
    pub fn set_foreground(&self, group: u32) {
        self.state.lock().foreground = group;
    }

    /// Reads from the slave.
    ///
    /// # Errors
    /// `EAGAIN`, `EIO`; `EINTR`: the caller is in the background, and was sent `SIGTTIN`.
    pub(super) fn read_slave(&self, before: u32, to: &mut dyn Sink) -> Result<usize, Errno> {
        if self.is_hung_up(before) {
            return Ok(0);
        }
        self.jobs.check(self, SIGTTIN)?;
        self.change(|state| state.discipline.read(to))
    }

    /// Writes to the slave.
    ///
    /// # Errors
    /// `EAGAIN`; `EIO`: hung up; `EINTR`: the caller is in the background, and was sent `SIGTTOU`.
    pub(super) fn write_slave(&self, before: u32, from: &mut dyn Source) -> Result<usize, Errno> {
        if self.is_hung_up(before) {
            return Err(Errno::EIO);
        }
        if self.termios().local(TOSTOP) {
            self.jobs.check(self, SIGTTOU)?;
        }
        if from.left() == 0 {
            return Ok(0);
        }
        self.change(|state| {
            let room = state.discipline.room();
            if room == 0 {
                return Err(Errno::EAGAIN);
            }
            let mut piece = [0; PIECE];
            let taken = from.take(&mut piece[..room.min(PIECE)])?;
            state.discipline.write(&piece[..taken])
        })
    }

    /// Reads from the master.
    ///
    /// # Errors
    /// `EAGAIN`; `EIO`: the slave was closed, and its output read.
    pub(super) fn read_master(&self, to: &mut dyn Sink) -> Result<usize, Errno> {
        if to.room() == 0 {
            return Ok(0);
        }
        self.change(|state| {
            let mut done = 0;
            if state.has_packets {
                let status = state.discipline.status();
                if status == 0 && state.discipline.output.len() == 0 {
                    return Err(if state.is_slave_closed { Errno::EIO } else { Errno::EAGAIN });
                }
                done = to.put(&[status as u8])?;
                if state.discipline.take_status() != 0 || to.room() == 0 {
                    return Ok(done);
                }
            }
            let output = &mut state.discipline.output;
            if output.len() == 0 {
                return Err(if state.is_slave_closed { Errno::EIO } else { Errno::EAGAIN });
            }
            let moved = in_pieces(|| {
                let first = output.first();
                if first.is_empty() || to.room() == 0 {
                    return Ok((0, false));
                }
                let put = to.put(first)?;
                output.drop_first(put);
                Ok((put, true))
            });
            match moved {
                Ok(moved) => Ok(done + moved),
                Err(_) if done > 0 => Ok(done),
                Err(error) => Err(error),
            }
        })
    }

    /// Writes to the master: the bytes are input of the slave.
    ///
    /// # Errors
    /// `EAGAIN`, `ENOMEM`, the source's.
    pub(super) fn write_master(&self, from: &mut dyn Source) -> Result<usize, Errno> {
        if from.left() == 0 {
            return Ok(0);
        }
        self.change(|state| {
            let mut room = CAPACITY.saturating_sub(state.incoming.len());
            if room < LEAST_ROOM {
                return Err(Errno::EAGAIN);
            }
            in_pieces(|| {
                if room == 0 || from.left() == 0 {
                    return Ok((0, false));
                }
                let place = state.incoming.room()?;
                let count = room.min(place.len());
                let taken = from.take(&mut place[..count]);
                let added = taken.unwrap_or(0);
                state.incoming.add(added);
                room -= added;
                taken.map(|taken| (taken, true))
            })
        })
    }

    /// Returns the ready events of the slave.
    pub(super) fn ready_slave(&self, before: u32) -> u32 {
        let state = self.state.lock();
        if state.hang_ups != before {
            return HUNG_UP;
        }
        let least = match state.discipline.termios().timing() {
            (least, 0) => least,
            _ => 1,
        };
        let reads = if state.discipline.has_input(least) { POLLIN | POLLRDNORM } else { 0 };
        reads | if state.discipline.room() > 0 { POLLOUT | POLLWRNORM } else { 0 }
    }

    /// Returns the ready events of the master.
    pub(super) fn ready_master(&self) -> u32 {
        let state = self.state.lock();
        let mut ready = 0;
        if state.discipline.output.len() > 0 {
            ready |= POLLIN | POLLRDNORM;
        }
        if state.has_packets && state.discipline.status() != 0 {
            ready |= POLLPRI | POLLIN | POLLRDNORM;
        }
        if CAPACITY - state.incoming.len() >= LEAST_ROOM {
            ready |= POLLOUT | POLLWRNORM;
        }
        ready | if state.is_slave_closed { POLLHUP } else { 0 }
    }

    /// Returns the number of bytes that an end can read (`FIONREAD`).
    pub fn unread(&self, side: Side) -> usize {
        let state = self.state.lock();
        match side {
            Side::Master => state.discipline.output.len(),
            Side::Slave => state.discipline.unread(),
        }
    }

    /// Returns the settings.
    pub fn termios(&self) -> Termios {
        *self.state.lock().discipline.termios()
    }

    /// Replaces the settings; with `flush`, drops the input that was not read first.
    pub fn set_termios(&self, termios: Termios, flush: bool) {
        self.set(|state| {
            if flush {
                state.incoming = Bytes::default();
                state.discipline.flush_input();
            }
            state.discipline.set_termios(termios);
        });
    }

    /// Drops an end's input that was not read, or its output that is on its way to the other end
    /// (`tcflush`).
    pub fn flush(&self, side: Side, input: bool, output: bool) {
        self.set(|state| match side {
            Side::Slave => {
                if input {
                    state.incoming = Bytes::default();
                    state.discipline.flush_input();
                }
                if output {
                    state.discipline.flush_output();
                }
            }
            Side::Master => {
                if input {
                    state.discipline.output.clear();
                }
                if output {
                    state.incoming = Bytes::default();
                }
            }
        });
    }

    /// Stops or starts the output of the slave (`tcflow`). Output of the master is never stopped.
    pub fn set_stopped(&self, side: Side, by_program: bool) {
        if side == Side::Slave {
            self.set(|state| {
                let stopped = Stopped { by_program, ..state.discipline.output.stopped };
                state.discipline.set_stopped(stopped);
            });
        }
    }

    /// Has the slave send `VSTOP` or `VSTART` to the master, if there is such a character
    /// (`tcflow`).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn send_flow(&self, stop: bool) -> Result<(), Errno> {
        self.change(|state| {
            let byte = state.discipline.termios().cc[if stop { VSTOP } else { VSTART } as usize];
            if byte != 0 { state.discipline.write(&[byte]).map(drop) } else { Ok(()) }
        })
    }

    /// Takes a byte as if the user typed it (`TIOCSTI`).
    pub fn type_byte(&self, byte: u8) {
        self.set(|state| state.discipline.receive(byte));
    }

    /// Returns the size of the window.
    pub fn window(&self) -> Window {
        self.state.lock().window
    }

    /// Sets the size of the window. Notifies the foreground process group if it changes.
    pub fn set_window(&self, window: Window) {
        let mut state = self.state.lock();
        let before = core::mem::replace(&mut state.window, window);
        let foreground = state.foreground;
        drop(state);
        if before != window {
            self.signal(foreground, SIGWINCH);
        }
    }

    /// Returns whether the slave is locked.
    pub fn is_locked(&self) -> bool {
        self.state.lock().is_locked
    }

    /// Locks or unlocks the slave.
    pub fn set_locked(&self, is_locked: bool) {
        self.state.lock().is_locked = is_locked;
    }

    /// Returns whether the slave may not be opened again.
    pub fn is_exclusive(&self) -> bool {
        self.state.lock().is_exclusive
    }

    /// Sets whether the slave may be opened again.
    pub fn set_exclusive(&self, is_exclusive: bool) {
        self.state.lock().is_exclusive = is_exclusive;
    }

    /// Returns whether the master reads packets.
    pub fn has_packets(&self) -> bool {
        self.state.lock().has_packets
    }

    /// Sets whether the master reads packets. The first one tells nothing of what happened before.
    pub fn set_packets(&self, has_packets: bool) {
        let mut state = self.state.lock();
        if has_packets && !state.has_packets {
            state.discipline.take_status();
        }
        state.has_packets = has_packets;
    }
}
