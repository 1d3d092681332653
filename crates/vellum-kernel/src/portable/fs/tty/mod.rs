//! Terminals: pseudoterminals, each with a line discipline between its master and its slave.
//!
//! A program that shows a terminal to a user, such as `tmux`, has the master. What it writes there
//! the user typed. The line discipline echoes and edits that, and makes lines of it that programs
//! read from the slave, or signals. What programs write to the slave it processes, for the master
//! to read. Each end has a buffer of some pages, and one lock protects all of a terminal.
//!
//! Jobs are the kernel's: it implements [`Jobs`], which the terminal calls with no lock held.
//!
//! Terminals differ from Linux's in that IXOFF, PARMRK, ECHOPRT and EXTPROC have no effect, and a
//! read that waits while the terminal is hung up returns the end of file, not `EIO`.
//!
//! | file | subject |
//! |---|---|
//! | [`termios`] | the settings |
//! | `lines` | input that was not read: complete lines, and the line being edited |
//! | `output` | output and echo, on their way to the master |
//! | `discipline` | the line discipline (Linux: `N_TTY`) |
//! | [`terminal`] | a pseudoterminal |
//! | [`ends`] | the open files of its ends |
//! | [`devpts`] | the file system that names the slaves |

pub mod devpts;
mod discipline;
pub mod ends;
mod lines;
mod output;
pub mod terminal;
pub mod termios;
#[cfg(test)]
mod tests;

use crate::errno::Errno;
use alloc::sync::Arc;
use terminal::Terminal;

/// The services that terminals need from the kernel's processes. "The caller" is the process whose
/// system call the terminal carries out.
pub trait Jobs: Send + Sync {
    /// Sends a signal to all processes of a group.
    fn signal(&self, group: u32, signal: u32);

    /// Checks whether the caller may read from its terminal (`SIGTTIN`) or change it (`SIGTTOU`).
    /// Sends the signal to the caller's group if that is in the background (Linux:
    /// `tty_check_change`).
    ///
    /// # Errors
    /// `EINTR`: the signal was sent. `EIO`: the caller's group is orphaned, or the caller wants to
    /// read and ignores the signal.
    fn check(&self, terminal: &Terminal, signal: u32) -> Result<(), Errno>;

    /// Makes the terminal the controlling terminal of the caller's session if the caller has opened
    /// it with these `flags`, leads a session, and has no controlling terminal.
    fn opened(&self, terminal: &Arc<Terminal>, flags: u32);

    /// Takes the terminal away from its session, because no file of the slave is open any more.
    fn closed(&self, terminal: &Arc<Terminal>);

    /// Takes the terminal away from its session, and sends `SIGHUP` and `SIGCONT` to the leader.
    fn hung_up(&self, terminal: &Arc<Terminal>);

    /// Returns the user to which a terminal belongs that the caller creates.
    fn user(&self) -> u32;

    /// Returns whether the caller may open a terminal that another program has for itself.
    fn is_privileged(&self) -> bool;
}
