//! The checker's own state of each frame, page table and CPU. It is derived from events alone, not
//! from the engine's records, so that the two can disagree.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use vellum::addr::Pfn;
use vellum::arch::Arch;
use vellum::platform::{Event, SpaceId};

use super::blocks::Changed;
use super::history::{EventText, History, Record};
use super::violation::{Rule, Violation};

/// The user of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Use {
    /// No event has named the frame yet: since boot it is in use by the engine, or free in the
    /// engine's allocator.
    #[default]
    Unknown,
    /// Allocated.
    Used,
    /// Freed.
    Free,
}

/// A frame.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    pub state: Use,
    /// The event of the last change of `state`.
    pub since: u64,
    /// The first frame of the last allocation that this frame was part of.
    pub head: Pfn0,
    /// Refcount and mapcount, in the head of a folio.
    pub counts: Option<(i64, i64)>,
    /// The event of the last decrease of the mapcount.
    pub fell: u64,
    /// The event that last made an entry map or point to the frame; the entry is `target_of`.
    pub target_since: u64,
    pub target_of: Option<(Pfn, u16)>,
    pub table: Option<Box<Table>>,
    /// Events that allocated or freed the frame, or began or ended its use as a page table. They
    /// have a history of their own, so that other events don't push them out.
    pub life: History,
    /// All other events.
    pub recent: History,
}

/// All frames of a machine. Chunks without events take no memory.
#[derive(Debug)]
pub(crate) struct Frames {
    chunks: Vec<Option<Box<[Frame]>>>,
    len: usize,
    /// The record that each frame begins with.
    unknown: Frame,
}

/// Frames of a chunk.
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
        // The chunk is built on the heap, because the stacks of coroutines have no room for it.
        let new = || (0..CHUNK).map(|_| Frame::default()).collect();
        Some(&mut chunk.get_or_insert_with(new)[at % CHUNK])
    }

    /// Returns the frames of all chunks with events.
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

/// A frame that is a page table.
#[derive(Debug)]
pub(crate) struct Table {
    pub level: u8,
    pub space: SpaceId,
    /// The entry that points here, if the page table is hooked.
    pub hook: Option<(Pfn, u16)>,
    /// The event that last unhooked it.
    pub unhooked: u64,
    /// True if its death was announced.
    pub dead: bool,
    /// The CPU that holds its lock.
    pub owner: Option<usize>,
    /// Its entries as announced, from the moment that other CPUs can see the page table.
    pub values: Option<Box<[u64]>>,
    /// The previous value of an entry whose exchange may have failed.
    pub contended: HashMap<u16, u64>,
    pub entries: HashMap<u16, History>,
    /// Blocks that were changed since the page table was last unlocked, by the index of their first
    /// entry.
    pub blocks: BTreeMap<u16, Changed>,
}

/// A lockless walk.
#[derive(Debug)]
pub(crate) struct Walk {
    pub since: u64,
    /// Page tables that it has come to, or is about to.
    pub visited: Vec<Pfn>,
}

/// The work that a CPU has done since it disabled preemption.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Entries written.
    pub entries: u32,
    /// Changes of folios' counts.
    pub folios: u32,
    /// Bytes zeroed or copied.
    pub bytes: u32,
}

/// The locks, lockless walk and sections with preemption disabled of a CPU.
#[derive(Debug, Default)]
pub(crate) struct CpuState {
    /// Page tables whose locks it holds, in the order it took them.
    pub locks: Vec<Pfn>,
    /// The lock that it waits for, or is about to try.
    pub waiting: Option<Pfn>,
    pub walk: Option<Walk>,
    /// Nesting depth of `preempt_disable`.
    pub preempt: u32,
    pub work: Work,
    pub irqs_masked: bool,
    pub label: Option<std::sync::Arc<str>>,
}

/// An upper-level entry that became empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Emptied {
    /// The frame that it mapped or pointed to.
    pub target: Pfn,
    /// The first frame mapped by the page table that it pointed to.
    pub first: Option<Pfn>,
    pub when: u64,
}

/// The checker: its state, and the event that is being checked.
#[derive(Debug)]
pub(crate) struct Checker<A> {
    pub arch: A,
    pub seq: u64,
    pub cpu: usize,
    pub event: Event,
    pub frames: Frames,
    /// The frames that are page tables.
    pub tables: BTreeSet<Pfn>,
    pub roots: HashMap<SpaceId, Pfn>,
    pub emptied: HashMap<(Pfn, u16), Emptied>,
    /// Spaces that one CPU changes without locks, because no other uses them.
    pub lockless: HashMap<SpaceId, usize>,
    pub cpus: Vec<CpuState>,
    pub found: Vec<Violation>,
    /// The event at which the baseline was taken: frames that are allocated after it must be freed
    /// before the test ends.
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
            lockless: HashMap::new(),
            cpus: (0..cpus).map(|_| CpuState::default()).collect(),
            found: Vec::new(),
            baseline: None,
        }
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

    /// Returns whether a walk from a root can come to this page table.
    pub fn visible(&self, mut pfn: Pfn) -> bool {
        // Bounded, in case the engine made a cycle.
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

    /// Returns the space, first address and level of an entry that other CPUs can see.
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

    /// Records the current event in the history of a frame.
    pub fn record_frame(&mut self, pfn: Pfn, life: bool) {
        let record = self.record();
        if let Some(frame) = self.frame(pfn) {
            if life { &mut frame.life } else { &mut frame.recent }.push(record);
        }
    }

    /// Records the current event in the history of an entry.
    pub fn record_entry(&mut self, table: Pfn, index: u16) {
        let record = self.record();
        if let Some(table) = self.table_mut(table) {
            table.entries.entry(index).or_default().push(record);
        }
    }

    fn record(&self) -> Record {
        Record { seq: self.seq, cpu: self.cpu, event: self.event, label: self.cpus[self.cpu].label.clone() }
    }

    /// Reports a broken rule, with the histories of these frames and entries.
    pub fn fail(&mut self, rule: Rule, what: String, frames: &[Pfn], entries: &[(Pfn, u16)]) {
        let mut report = format!("{what}\n  while: {}", EventText(&self.event));
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
                report += &format!(" (allocated with {head:?})");
            }
            let life = if head == *pfn { None } else { self.frames.get(head).map(|h| &h.life) };
            let all = life.into_iter().flat_map(History::iter).chain(frame.life.iter()).chain(frame.recent.iter());
            report += &lines(all);
        }
        for (pfn, index) in entries {
            report += &format!("\n  entry {index} of page table {pfn:?}");
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
        return "\n    no event".into();
    }
    records.iter().map(|r| format!("\n    {r}")).collect()
}
