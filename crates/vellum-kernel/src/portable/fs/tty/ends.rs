//! The open files of a pseudoterminal.

use super::devpts::Devpts;
use super::terminal::{Side, Terminal};
use crate::errno::Errno;
use crate::fs::inode::File;
use crate::fs::io::{Sink, Source};
use crate::wait::Queue;
use alloc::sync::Arc;
use core::any::Any;

/// An open file of a slave: the terminal of programs.
pub struct Slave {
    terminal: Arc<Terminal>,
    /// The number of hang-ups before the file was opened.
    hang_ups: u32,
}

/// The open file of a master.
pub struct Master {
    terminal: Arc<Terminal>,
    system: Arc<Devpts>,
}

impl Slave {
    /// Opens the slave of a terminal. With `flags` the processes decide whether the terminal
    /// controls the caller's session from now on.
    ///
    /// # Errors
    /// `EIO`: the slave is locked, or the master was closed. `EBUSY`: a program has the terminal
    /// for itself.
    pub fn open(terminal: &Arc<Terminal>, flags: u32) -> Result<Arc<dyn File>, Errno> {
        let hang_ups = terminal.add_slave(terminal.jobs().is_privileged())?;
        let slave = Arc::new(Slave { terminal: terminal.clone(), hang_ups });
        terminal.jobs().opened(terminal, flags);
        Ok(slave)
    }

    /// Returns the terminal.
    pub fn terminal(&self) -> &Arc<Terminal> {
        &self.terminal
    }

    /// Returns whether the file was hung up.
    pub fn is_hung_up(&self) -> bool {
        self.terminal.is_hung_up(self.hang_ups)
    }
}

impl Drop for Slave {
    fn drop(&mut self) {
        if self.terminal.remove_slave() {
            self.terminal.jobs().closed(&self.terminal);
        }
    }
}

impl File for Slave {
    fn read(&self, _at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        self.terminal.read_slave(self.hang_ups, to)
    }

    fn write(&self, _at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        self.terminal.write_slave(self.hang_ups, from)
    }

    fn ready(&self) -> u32 {
        self.terminal.ready_slave(self.hang_ups)
    }

    fn queue(&self) -> Option<&Queue> {
        Some(self.terminal.queue(Side::Slave))
    }

    fn unread(&self, _at: u64) -> Result<u64, Errno> {
        if self.is_hung_up() {
            return Err(Errno::EIO);
        }
        Ok(self.terminal.unread(Side::Slave) as u64)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Master {
    /// Returns the file of a new terminal's master. Dropping it hangs up the slave, and removes its
    /// name from the file system.
    pub(super) fn new(terminal: Arc<Terminal>, system: Arc<Devpts>) -> Self {
        Master { terminal, system }
    }

    /// Returns the terminal.
    pub fn terminal(&self) -> &Arc<Terminal> {
        &self.terminal
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.system.remove(self.terminal.number);
        self.terminal.close_master();
    }
}

impl File for Master {
    fn read(&self, _at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        self.terminal.read_master(to)
    }

    fn write(&self, _at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        self.terminal.write_master(from)
    }

    fn ready(&self) -> u32 {
        self.terminal.ready_master()
    }

    fn queue(&self) -> Option<&Queue> {
        Some(self.terminal.queue(Side::Master))
    }

    fn unread(&self, _at: u64) -> Result<u64, Errno> {
        Ok(self.terminal.unread(Side::Master) as u64)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
