//! `devpts`: the file system that has a file for the slave of each pseudoterminal. The files of
//! `/dev/ptmx` create terminals.

use super::Jobs;
use super::ends::{Master, Slave};
use super::terminal::Terminal;
use crate::errno::Errno;
use crate::fs::device::number;
use crate::fs::inode::{Change, Entry, File, Inode};
use crate::fs::meta::{Device, Kind, Meta};
use crate::fs::pseudo::{DynamicEntries, PseudoDirectory};
use crate::fs::text::PseudoFs;
use alloc::boxed::Box;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use spin::Mutex;

/// The most terminals (`/proc/sys/kernel/pty/max`).
pub const MOST: usize = 4096;
/// The inode number of the slave with the number 0.
const FIRST_INODE: u64 = 1 << 32 | 3;
/// The usual group of terminals (`tty`), whose members may write to them.
const GROUP: u32 = 5;

/// The terminals, and the file system of their slaves.
pub struct Devpts {
    /// The files of the slaves, by number.
    slaves: Mutex<Vec<Option<Arc<SlaveInode>>>>,
    jobs: Arc<dyn Jobs>,
    system: PseudoFs,
}

/// The file of a slave in the file system.
pub struct SlaveInode {
    terminal: Arc<Terminal>,
    system: PseudoFs,
    meta: Mutex<Meta>,
}

/// The entries of the file system's root.
struct Slaves(Arc<Devpts>);

/// The file of the masters in the file system. Opening it creates a terminal.
struct Ptmx {
    devpts: Arc<Devpts>,
    meta: Meta,
}

impl Devpts {
    /// Creates the file system.
    pub fn new(device: Device, jobs: Arc<dyn Jobs>) -> Arc<Self> {
        const MAGIC: u32 = 0x1cd1;
        let system = PseudoFs { device, magic: MAGIC, owner: None, number: None };
        Arc::new(Devpts { slaves: Mutex::new(Vec::new()), jobs, system })
    }

    /// Creates the root directory.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn root(self: &Arc<Self>) -> Result<Arc<PseudoDirectory>, Errno> {
        let root = PseudoDirectory::new(self.system, None, Some(Box::new(Slaves(self.clone()))));
        let mut meta = self.system.meta(Kind::Char, 0o666);
        meta.special = number::PTMX;
        root.add("ptmx", Arc::new(Ptmx { devpts: self.clone(), meta }))?;
        Ok(root)
    }

    /// Creates a terminal, which belongs to the caller, and returns the file of its master.
    ///
    /// # Errors
    /// `ENOSPC`: there are too many. `ENOMEM`.
    pub fn open_master(self: &Arc<Self>) -> Result<Arc<Master>, Errno> {
        let mut slaves = self.slaves.lock();
        let at = slaves.iter().position(Option::is_none).unwrap_or(slaves.len());
        if at >= MOST {
            return Err(Errno::ENOSPC);
        }
        let terminal = Terminal::new(at as u32, self.jobs.clone())?;
        let mut meta = Meta::new(self.system.device, FIRST_INODE + at as u64, Kind::Char, 0o620);
        (meta.uid, meta.gid) = (self.jobs.user(), GROUP);
        meta.special = terminal.device();
        let inode = Arc::new(SlaveInode { terminal: terminal.clone(), system: self.system, meta: Mutex::new(meta) });
        if at == slaves.len() {
            slaves.try_reserve(1)?;
            slaves.push(None);
        }
        slaves[at] = Some(inode);
        drop(slaves);
        Ok(Arc::new(Master::new(terminal, self.clone())))
    }

    /// Returns the file of a slave.
    pub fn slave(&self, number: u32) -> Option<Arc<SlaveInode>> {
        self.slaves.lock().get(number as usize)?.clone()
    }

    /// Removes the file of a slave.
    pub(super) fn remove(&self, number: u32) {
        let mut slaves = self.slaves.lock();
        let removed = slaves.get_mut(number as usize).and_then(Option::take);
        drop(slaves);
        drop(removed);
    }
}

impl DynamicEntries for Slaves {
    fn find(&self, name: &[u8]) -> Option<Arc<dyn Inode>> {
        let number: u32 = core::str::from_utf8(name).ok()?.parse().ok()?;
        let is_canonical = name == b"0" || !name.starts_with(b"0") && !name.starts_with(b"+");
        self.0.slave(number).filter(|_| is_canonical).map(|slave| slave as Arc<dyn Inode>)
    }

    fn list(&self, from: u64, each: &mut dyn FnMut(Entry<'_>) -> bool) {
        let mut at = from;
        loop {
            let slaves = self.0.slaves.lock();
            let len = slaves.len() as u64;
            let Some(next) = (at..len).find(|at| slaves[*at as usize].is_some()) else { return };
            drop(slaves);
            let (name, inode) = (format!("{next}"), FIRST_INODE + next);
            if !each(Entry { name: name.as_bytes(), inode, kind: Kind::Char, next: next + 1 }) {
                return;
            }
            at = next + 1;
        }
    }

    fn mode(&self) -> u32 {
        0o755
    }
}

impl Inode for SlaveInode {
    fn meta(&self) -> Meta {
        self.meta.lock().clone()
    }

    fn change(&self, change: &Change) -> Result<(), Errno> {
        change.apply(&mut self.meta.lock());
        Ok(())
    }

    fn open(self: Arc<Self>, flags: u32) -> Result<Arc<dyn File>, Errno> {
        Slave::open(&self.terminal, flags)
    }

    fn space(&self) -> crate::fs::inode::Space {
        self.system.space()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Inode for Ptmx {
    fn meta(&self) -> Meta {
        self.meta.clone()
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<Arc<dyn File>, Errno> {
        self.devpts.open_master().map(|master| master as Arc<dyn File>)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
