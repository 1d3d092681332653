//! What the checker knows of each frame, table and CPU. All of it was learned from events, none from the engine's own
//! records, so that the two can disagree.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use vellum::addr::Pfn;
use vellum::arch::Arch;
use vellum::platform::{Event, SpaceId};

use super::blocks::Changed;
use super::history::{History, Record, Told};
use super::violation::{Rule, Violation};

/// Whose a frame is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Use {
    /// Never heard of: the engine's since it booted, or the allocator's.
    #[default]
    Unknown,
    /// Given out.
    Used,
    /// Given back.
    Free,
}

/// A frame.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    pub state: Use,
    /// When that changed last.
    pub since: u64,
    /// The first frame of the block that it was given out with.
    pub head: Pfn0,
    /// References and mappings, in the head of a folio.
    pub counts: Option<(i64, i64)>,
    /// When the mappings last became fewer.
    pub fell: u64,
    /// When an entry was last made to map or point to it, and which.
    pub target_since: u64,
    pub target_of: Option<(Pfn, u16)>,
    pub table: Option<Box<Table>>,
    /// Allocation, freeing, birth and death: kept apart, so that they are not crowded out.
    pub life: History,
    /// Everything else.
    pub recent: History,
}

/// All frames of a machine. Those that nothing has happened to take no memory.
#[derive(Debug)]
pub(crate) struct Frames {
    chunks: Vec<Option<Box<[Frame]>>>,
    len: usize,
    /// The record that each frame begins with.
    unknown: Frame,
}

/// Frames that are made room for at once.
const CHUNK: usize = 64;

impl Frames {
    fn new(len: usize) -> Self {
        let chunks = (0..len.div_ceil(CHUNK)).map(|_| None).collect();
        Frames { chunks, len, unknown: Frame::default() }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn get(&self, pfn: Pfn) -> Option<&Frame> {
        let at = pfn.0 as usize;
        let chunk = self.chunks.get(at / CHUNK).filter(|_| at < self.len)?;
        Some(chunk.as_ref().map_or(&self.unknown, |chunk| &chunk[at % CHUNK]))
    }

    fn get_mut(&mut self, pfn: Pfn) -> Option<&mut Frame> {
        let at = pfn.0 as usize;
        let chunk = self.chunks.get_mut(at / CHUNK).filter(|_| at < self.len)?;
        // A chunk is made on the heap: the stacks of simulated schedules have no room for it.
        let new = || (0..CHUNK).map(|_| Frame::default()).collect();
        Some(&mut chunk.get_or_insert_with(new)[at % CHUNK])
    }

    /// Those that something has happened to, and some others.
    pub fn known(&self) -> impl Iterator<Item = (Pfn, &Frame)> {
        let chunks = self.chunks.iter().enumerate().filter_map(|(n, chunk)| Some((n, chunk.as_ref()?)));
        chunks.flat_map(|(n, chunk)| (0..).zip(&**chunk).map(move |(at, frame)| (Pfn((n * CHUNK) as u32 + at), frame)))
    }
}

/// A frame number that is 0 by default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pfn0(pub Pfn);

impl Default for Pfn0 {
    fn default() -> Self {
        Pfn0(Pfn(0))
    }
}

/// A frame that is a table.
#[derive(Debug)]
pub(crate) struct Table {
    pub level: u8,
    pub space: SpaceId,
    /// The entry that points here.
    pub hook: Option<(Pfn, u16)>,
    /// When that was last undone.
    pub unhooked: u64,
    /// Announced as dead.
    pub dead: bool,
    /// The CPU that holds its lock.
    pub owner: Option<usize>,
    /// Its entries as announced; known from the moment that others could see it.
    pub values: Option<Box<[u64]>>,
    /// What an entry may still hold, because an exchange may have failed.
    pub contended: HashMap<u16, u64>,
    pub entries: HashMap<u16, History>,
    /// Blocks that were changed since the table was last given back, by the first of their entries.
    pub blocks: BTreeMap<u16, Changed>,
}

/// A lockless walk.
#[derive(Debug)]
pub(crate) struct Walk {
    pub since: u64,
    /// Tables that it has come to, or is about to.
    pub visited: Vec<Pfn>,
}

/// The work that a CPU has done since it disabled preemption.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Entries written.
    pub entries: u32,
    /// Changes of the counts of folios.
    pub folios: u32,
    /// Bytes zeroed or copied.
    pub bytes: u32,
}

/// What a CPU is in the middle of.
#[derive(Debug, Default)]
pub(crate) struct CpuState {
    /// Tables whose locks it holds, in the order it took them.
    pub held: Vec<Pfn>,
    /// The lock that it waits for, or is about to try.
    pub waiting: Option<Pfn>,
    pub walk: Option<Walk>,
    /// Depth of `preempt_disable`.
    pub preempt: u32,
    pub work: Work,
    pub irqs_masked: bool,
    pub label: Option<std::sync::Arc<str>>,
}

/// An upper-level entry that became empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Emptied {
    /// What it mapped or pointed to.
    pub target: Pfn,
    /// If that was a table, the first frame mapped there.
    pub first: Option<Pfn>,
    pub when: u64,
}

/// Everything, and the event that is being looked at.
#[derive(Debug)]
pub(crate) struct Checker<A> {
    pub arch: A,
    pub seq: u64,
    pub cpu: usize,
    pub event: Event,
    pub frames: Frames,
    /// The frames that are tables.
    pub tables: BTreeSet<Pfn>,
    pub roots: HashMap<SpaceId, Pfn>,
    pub emptied: HashMap<(Pfn, u16), Emptied>,
    /// Spaces that one CPU changes without locks, because it is alone there.
    pub alone: HashMap<SpaceId, usize>,
    pub cpus: Vec<CpuState>,
    pub found: Vec<Violation>,
    /// When the baseline was taken.
    pub baseline: Option<u64>,
}

impl<A: Arch> Checker<A> {
    pub fn new(arch: A, frames: usize, cpus: usize) -> Self {
        Checker {
            arch,
            seq: 0,
            cpu: 0,
            event: Event::Step,
            frames: Frames::new(frames),
            tables: BTreeSet::new(),
            roots: HashMap::new(),
            emptied: HashMap::new(),
            alone: HashMap::new(),
            cpus: (0..cpus).map(|_| CpuState::default()).collect(),
            found: Vec::new(),
            baseline: None,
        }
    }

    /// Returns how many entries of a table of this level the engine may touch: those of a root that
    /// translate no user address are the host's.
    pub fn user_entries(&self, level: u8) -> u32 {
        let all = 1u64 << self.arch.index_bits();
        let user = self.arch.user_end().div_ceil(1 << self.arch.level_shift(level));
        if level == self.arch.levels() { user.min(all) as u32 } else { all as u32 }
    }

    pub fn frame(&mut self, pfn: Pfn) -> Option<&mut Frame> {
        self.frames.get_mut(pfn)
    }

    pub fn table(&self, pfn: Pfn) -> Option<&Table> {
        self.frames.get(pfn)?.table.as_deref()
    }

    pub fn table_mut(&mut self, pfn: Pfn) -> Option<&mut Table> {
        self.frames.get_mut(pfn)?.table.as_deref_mut()
    }

    /// Whether a walk from some root comes to this table.
    pub fn visible(&self, mut pfn: Pfn) -> bool {
        // Bounded, in case that the engine made a ring.
        for _ in 0..=self.arch.levels() {
            match self.table(pfn) {
                None => return false,
                Some(table) if table.dead => return false,
                Some(table) if table.level == self.arch.levels() => return true,
                Some(Table { hook: None, .. }) => return false,
                Some(Table { hook: Some((parent, _)), .. }) => pfn = *parent,
            }
        }
        false
    }

    /// Where an entry that others can see stands: its space, the first address that it translates, and its level.
    pub fn locate(&self, table: Pfn, index: u16) -> Option<(SpaceId, u64, u8)> {
        let (space, level) = self.table(table).map(|t| (t.space, t.level))?;
        let (mut at, mut index, mut va) = (table, index, 0);
        for _ in 0..=self.arch.levels() {
            let table = self.table(at).filter(|t| !t.dead)?;
            va += (index as u64) << self.arch.level_shift(table.level);
            if table.level == self.arch.levels() {
                return Some((space, va, level));
            }
            (at, index) = table.hook?;
        }
        None
    }

    /// Keep a record of an event with a frame.
    pub fn record_frame(&mut self, pfn: Pfn, life: bool) {
        let record = self.record();
        if let Some(frame) = self.frame(pfn) {
            if life { &mut frame.life } else { &mut frame.recent }.push(record);
        }
    }

    /// Keep a record of an event with an entry.
    pub fn record_entry(&mut self, table: Pfn, index: u16) {
        let record = self.record();
        if let Some(table) = self.table_mut(table) {
            table.entries.entry(index).or_default().push(record);
        }
    }

    fn record(&self) -> Record {
        Record { seq: self.seq, cpu: self.cpu, event: self.event, label: self.cpus[self.cpu].label.clone() }
    }

    /// A rule is broken. The report ends with what happened to these frames and entries.
    pub fn fail(&mut self, rule: Rule, what: String, frames: &[Pfn], entries: &[(Pfn, u16)]) {
        let mut report = format!("{what}\n  while: {}", Told(&self.event));
        if let Some(label) = &self.cpus[self.cpu].label {
            report += &format!(" [{label}]");
        }
        for pfn in frames {
            let Some(frame) = self.frames.get(*pfn) else {
                continue;
            };
            let head = frame.head.0;
            report += &format!("\n  {pfn:?}");
            if head != *pfn && frame.state != Use::Unknown {
                report += &format!(" (given out with {head:?})");
            }
            let life = if head == *pfn { None } else { self.frames.get(head).map(|h| &h.life) };
            let all = life.into_iter().flat_map(History::iter).chain(frame.life.iter()).chain(frame.recent.iter());
            report += &lines(all);
        }
        for (pfn, index) in entries {
            report += &format!("\n  entry {index} of table {pfn:?}");
            if let Some((space, va, level)) = self.locate(*pfn, *index) {
                report += &format!(" (level {level}, {va:#x} of space {})", space.0);
            }
            let history = self.table(*pfn).and_then(|t| t.entries.get(index));
            report += &lines(history.into_iter().flat_map(History::iter));
        }
        self.found.push(Violation { rule, cpu: self.cpu, event: self.seq, report });
    }
}

fn lines<'a>(records: impl Iterator<Item = &'a Record>) -> String {
    let mut records: Vec<_> = records.collect();
    records.sort_by_key(|r| r.seq);
    records.dedup_by_key(|r| r.seq);
    if records.is_empty() {
        return "\n    nothing known".into();
    }
    records.iter().map(|r| format!("\n    {r}")).collect()
}
