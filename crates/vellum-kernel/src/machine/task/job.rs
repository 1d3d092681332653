//! Job control: process groups, sessions, and their controlling terminals.
//!
//! A session has one controlling terminal at most, and of its groups the terminal has one in the
//! foreground, which gets the signals that the user types. A process keeps its controlling terminal
//! ([`Process::terminal`]), and the terminal the numbers of the session and of the group. Numbers
//! are not reused, so those of a session or a group that has ended mean no other.
//!
//! The lock of a process's terminal is taken after all locks of `process`, and
//! before those of the terminal.

use crate::task::process::{self, TasklistLock, is_any_stopped};
use crate::task::signal::{self, Info};
use crate::task::{Process, Thread};
use alloc::sync::Arc;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use linux_raw_sys::general::{self as abi, SIGCONT, SIGHUP, SIGSTOP, SIGTTIN};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::tty::terminal::Terminal;

fn number(of: &AtomicU32) -> u32 {
    of.load(Relaxed)
}

/// Returns whether the process leads its session.
pub fn leads_session(process: &Process) -> bool {
    number(&process.session) == process.pid
}

/// Returns whether the terminal controls the process's session, as the process sees it.
pub fn is_controlled(process: &Process, terminal: &Terminal) -> bool {
    process.terminal.lock().as_ref().is_some_and(|own| ptr::eq(&**own, terminal))
}

/// Iterates over the processes of a group that have not been reaped.
pub fn members(group: u32) -> impl Iterator<Item = Arc<Process>> {
    process::all().filter(move |process| number(&process.group) == group)
}

/// Sends a signal of the kernel to all processes of a group.
pub fn signal_group(tasklist: &TasklistLock, group: u32, signal: u32) {
    let info = Info { signal, code: abi::SI_KERNEL as i32, ..Info::default() };
    members(group).for_each(|process| signal::send_locked(tasklist, &process, info));
}

/// Returns true if a group is orphaned: no process of it has a parent in another group of the same
/// session, which could continue it. `leaving`, which is about to end, counts as gone.
fn is_orphaned(tasklist: &TasklistLock, group: u32, leaving: Option<&Process>) -> bool {
    let is_leaving = |process: &Process| leaving.is_some_and(|leaving| ptr::eq(leaving, process));
    members(group).filter(|member| !is_leaving(member) && !member.has_ended(tasklist)).all(|member| {
        let parent = member.parent.lock().upgrade();
        let parent = match parent {
            Some(parent) if is_leaving(&parent) => parent.reaper(),
            parent => parent,
        };
        !parent.is_some_and(|parent| parent.pid != process::FIRST && connects(&parent, &member))
    })
}

/// Returns true if `parent` keeps the group of `child` from being orphaned.
fn connects(parent: &Process, child: &Process) -> bool {
    number(&parent.group) != number(&child.group) && number(&parent.session) == number(&child.session)
}

/// Stops a process that took this signal, unless its group is orphaned, so that nothing would
/// continue it, or a `SIGCONT` was sent since the process took the signal: after it had been sent
/// `continues` of them.
pub fn stop(process: &Arc<Process>, signal: u32, continues: u32) {
    let tasklist = TasklistLock::lock();
    let is_outdated = number(&process.continues) != continues;
    if is_outdated || signal != SIGSTOP && is_orphaned(&tasklist, number(&process.group), None) {
        return;
    }
    process.stop(&tasklist, signal);
}

/// Checks whether a thread may read from a terminal (`SIGTTIN`) or change it (`SIGTTOU`). If the
/// terminal controls its session, and its group is in the background, sends the signal to that.
///
/// # Errors
///
/// `EINTR`: the signal was sent. `EIO`: the group is orphaned, or the thread wants to read and
/// ignores or blocks the signal.
pub fn check(thread: &Arc<Thread>, terminal: &Terminal, signal: u32) -> Result<(), Errno> {
    let process = &thread.process;
    let (group, foreground) = (number(&process.group), terminal.foreground());
    if foreground == 0 || foreground == group || !is_controlled(process, terminal) {
        return Ok(());
    }
    let is_blocked = thread.mask.load(Relaxed) & signal::bit(signal) != 0;
    if is_blocked || process.signals.lock().action(signal).handler == 1 {
        return if signal == SIGTTIN { Err(Errno::EIO) } else { Ok(()) };
    }
    let tasklist = TasklistLock::lock();
    if is_orphaned(&tasklist, group, None) {
        return Err(Errno::EIO);
    }
    signal_group(&tasklist, group, signal);
    drop(tasklist);
    // Another thread may take the signal: this one has its call repeated all the same.
    thread.alert();
    Err(Errno::EINTR)
}

/// Makes a terminal the controlling terminal of the session that a process leads, unless it has
/// one, or the terminal controls another session. Returns whether it does. `steals`: the other
/// session loses the terminal.
pub fn take_terminal(process: &Process, terminal: &Arc<Terminal>, steals: bool) -> bool {
    let session = terminal.session();
    if steals && session != 0 && session != process.pid {
        give_up(terminal);
    }
    let mut own = process.terminal.lock();
    let takes = leads_session(process) && own.is_none() && terminal.control(process.pid, number(&process.group));
    if takes {
        *own = Some(terminal.clone());
    }
    takes
}

/// Takes a terminal away from its session.
pub fn give_up(terminal: &Terminal) {
    terminal.set_controlled(0, 0);
    for process in process::all() {
        let mut own = process.terminal.lock();
        let taken = own.take_if(|own| ptr::eq(&**own, terminal));
        drop(own);
        drop(taken);
    }
}

/// Takes a terminal that was hung up away from its session, and notifies the leader.
pub fn hung_up(terminal: &Terminal) {
    let (session, foreground) = (terminal.session(), terminal.foreground());
    let leader = process::find(session).filter(|leader| is_controlled(leader, terminal));
    give_up(terminal);
    let Some(leader) = leader else { return };
    leader.hung_up_group.store(foreground, Relaxed);
    let tasklist = TasklistLock::lock();
    for signal in [SIGHUP, SIGCONT] {
        let info = Info { signal, code: abi::SI_KERNEL as i32, ..Info::default() };
        signal::send_locked(&tasklist, &leader, info);
    }
}

/// Implements `TIOCNOTTY`: takes the controlling terminal away from a process; if that leads the
/// session, from the whole session, whose foreground group is notified (Linux:
/// `disassociate_ctty`).
pub fn leave_terminal(process: &Process) {
    let Some(terminal) = process.terminal.lock().take() else { return };
    if leads_session(process) {
        let foreground = terminal.foreground();
        give_up(&terminal);
        signal_nonzero(foreground, &[SIGHUP, SIGCONT]);
    }
}

/// Sends a signal of the kernel to a group, if there is one.
pub fn signal_foreground(group: u32, signal: u32) {
    signal_nonzero(group, &[signal]);
}

fn signal_nonzero(group: u32, signals: &[u32]) {
    if group != 0 {
        let tasklist = TasklistLock::lock();
        signals.iter().for_each(|signal| signal_group(&tasklist, group, *signal));
    }
}

/// Does what job control does at the end of a process, before its parent is notified: if it leads a
/// session, its terminal loses the session, and groups that are orphaned without it and stopped are
/// hung up and continued.
pub fn process_ends(process: &Arc<Process>) {
    if leads_session(process) {
        let terminal = process.terminal.lock().take();
        if let Some(terminal) = terminal {
            let foreground = terminal.foreground();
            give_up(&terminal);
            signal_nonzero(foreground, &[SIGHUP]);
        } else {
            signal_nonzero(number(&process.hung_up_group), &[SIGHUP, SIGCONT]);
        }
    }
    if !is_any_stopped() {
        return;
    }
    let parent = process.parent.lock().upgrade();
    if parent.is_some_and(|parent| connects(&parent, process)) {
        hang_up_if_orphaned(number(&process.group), process);
    }
    for child in process::walk(0, |from| process::first(&process.children.lock(), from)) {
        if connects(process, &child) {
            hang_up_if_orphaned(number(&child.group), process);
        }
    }
}

/// Hangs up and continues a group that has stopped processes, and is orphaned without `leaving`.
fn hang_up_if_orphaned(group: u32, leaving: &Process) {
    let tasklist = TasklistLock::lock();
    if members(group).any(|member| member.is_stopped()) && is_orphaned(&tasklist, group, Some(leaving)) {
        signal_group(&tasklist, group, SIGHUP);
        signal_group(&tasklist, group, SIGCONT);
    }
}
