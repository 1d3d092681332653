//! What the scheduler knows of the machine: what the victim is about to do, and in whose hands that
//! is.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vellum::addr::Pfn;
use vellum::arch::{Arch, Kind};
use vellum::platform::Event;

/// The CPU, and the task, of the one operation that is measured.
pub const VICTIM: usize = 0;

/// What goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// The case is set up, or taken down.
    #[default]
    Apart,
    /// The others run, and the victim does not, for so many steps.
    Warm(u64),
    /// The victim's operation is under way.
    Under,
}

/// How long the operation took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Steps of the victim that were not a look whether it still has to wait.
    pub work: u64,
    /// Looks of the victim whether it still has to wait.
    pub looks: u64,
    /// Steps of the others.
    pub others: u64,
    /// Operations of the others that ended.
    pub ended: u64,
    /// Whether it was stopped, because it took longer than it may.
    pub late: bool,
}

/// Reasons that make a moment a bad one for the victim, which is about to lock a table, or to read
/// the entry of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// Another CPU holds the lock.
    Held,
    /// An entry of the table is busy, and the lock is free.
    Busy,
    /// The table was unhooked.
    Dead,
    /// What the victim has read on its way there was changed.
    Changed,
    /// The entry of a page is empty or busy when the victim reads it, and neither when the victim
    /// locks its table.
    Filled,
}

#[derive(Default)]
pub struct Board {
    pub phase: Phase,
    pub taken: Taken,
    /// What the victim is about to do; none: it waits, or does something that is no event.
    pub about: Option<Event>,
    holders: HashMap<Pfn, usize>,
    /// The lock that each CPU is about to take, or waits for.
    queued: HashMap<usize, Pfn>,
    /// The lock that each CPU gives back when it goes on.
    leaving: HashMap<usize, Pfn>,
    busy: HashSet<(Pfn, u16)>,
    dead: HashSet<Pfn>,
    levels: HashMap<Pfn, u8>,
    /// Entries of last-level tables that are neither empty nor busy.
    full: HashSet<(Pfn, u16)>,
    /// Such an entry that each CPU writes when it goes on, and whether it is full then.
    writing: HashMap<usize, ((Pfn, u16), bool)>,
    /// The last such entry, full or not, that the victim has read.
    looked: Option<(Pfn, u16)>,
    /// Entries that the victim has read since it began its last walk, and whether another CPU has
    /// written one of them since.
    read: HashSet<(Pfn, u16)>,
    changed: bool,
}

/// A board that the machine, the case and the scheduler share. All are on one thread of the host.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Board>>);

impl Shared {
    pub fn get(&self) -> MutexGuard<'_, Board> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new machine.
    pub fn clear(&self) {
        *self.get() = Board::default();
    }
}

impl Board {
    /// A CPU is about to do this, when it is let go on.
    pub fn note(&mut self, arch: &impl Arch, cpu: usize, event: Event) {
        self.goes_on(cpu);
        if cpu == VICTIM {
            self.about = Some(event);
        }
        match event {
            Event::Locking(table) => _ = self.queued.insert(cpu, table),
            Event::Locked(table) => {
                self.queued.remove(&cpu);
                self.holders.insert(table, cpu);
            }
            Event::Unlocking(table) => _ = self.leaving.insert(cpu, table),
            Event::TableBorn(table, level, _) => {
                self.levels.insert(table, level);
                self.dead.remove(&table);
                self.busy.retain(|(of, _)| *of != table);
                self.full.retain(|(of, _)| *of != table);
            }
            Event::WalkBegin if cpu == VICTIM => {
                self.read.clear();
                self.changed = false;
            }
            Event::Descend(table, index) if cpu == VICTIM => {
                self.read.insert((table, index));
                if self.levels.get(&table) == Some(&1) {
                    self.looked = Some((table, index));
                }
            }
            Event::Store(table, index, old, new) => self.write(arch, cpu, (table, index), Some(old), new),
            Event::Discard(table, index, old) => self.write(arch, cpu, (table, index), Some(old), 0),
            Event::Exchange(table, index, new) => self.write(arch, cpu, (table, index), None, new),
            _ => {}
        }
    }

    /// A CPU goes on from where it was.
    pub fn goes_on(&mut self, cpu: usize) {
        if let Some(table) = self.leaving.remove(&cpu) {
            self.holders.remove(&table);
        }
        if let Some((at, full)) = self.writing.remove(&cpu) {
            if full {
                self.full.insert(at)
            } else {
                self.full.remove(&at)
            };
        }
        if cpu == VICTIM {
            self.about = None;
        }
    }

    fn write(&mut self, arch: &impl Arch, cpu: usize, at: (Pfn, u16), old: Option<u64>, new: u64) {
        let level = self.levels.get(&at.0).copied().unwrap_or(1);
        let kind = arch.kind(new, level);
        match kind {
            Kind::Busy => _ = self.busy.insert(at),
            _ => _ = self.busy.remove(&at),
        }
        if level == 1 {
            self.writing.insert(cpu, (at, !matches!(kind, Kind::None | Kind::Busy)));
        }
        if let Some(old) = old
            && new == 0
            && level > 1
            && arch.kind(old, level) == Kind::Table
        {
            self.dead.insert(arch.table_addr(old).pfn());
        }
        self.changed |= cpu != VICTIM && self.read.contains(&at);
    }

    /// Whether the victim is about to lock a table.
    pub fn is_locking(&self) -> bool {
        matches!(self.about, Some(Event::Locking(_)))
    }

    /// Returns whether the victim is about to read the entry of a page.
    pub fn is_looking(&self) -> bool {
        matches!((self.about, self.looked), (Some(Event::Descend(table, index)), Some(at)) if at == (table, index))
    }

    /// Whether now is such a moment.
    pub fn is(&self, bad: Bad) -> bool {
        let full = self.looked.is_some_and(|at| self.full.contains(&at));
        if bad == Bad::Filled && self.is_looking() {
            return !full;
        }
        let Some(Event::Locking(table)) = self.about else { return false };
        let free = !self.holders.contains_key(&table);
        match bad {
            Bad::Held => self.holders.get(&table).is_some_and(|holder| *holder != VICTIM),
            Bad::Busy => free && self.busy.iter().any(|(of, _)| *of == table),
            Bad::Dead => self.dead.contains(&table),
            Bad::Changed => free && self.changed,
            // The lock is free and no other CPU waits for it, so the entry stays full until the victim has it.
            Bad::Filled if self.looked.is_none_or(|(of, _)| of != table) => true,
            Bad::Filled => full && free && !self.queued.iter().any(|(cpu, of)| *cpu != VICTIM && *of == table),
        }
    }
}
