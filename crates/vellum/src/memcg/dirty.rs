//! Dirty pages of memcgs: their numbers, their limits, and the turns of the tasks that make more.
//!
//! Pages of files that differ from the storage count for the memcg that they are charged to, and
//! for its ancestors, so the root's numbers are the machine's. Two limits apply to them. Beyond the
//! *background* limit the host has pages written. Beyond the middle between it and the *limit*, a
//! task that made pages dirty takes a turn ([`Throttle::turn`]; Linux: `balance_dirty_pages`,
//! which begins there too): it waits until the storage has taken as many pages as it made dirty,
//! and before that as many as the tasks made dirty that wait already. So all tasks together make
//! pages dirty as fast as the storage takes them, each of them gets the share that it asks for, in
//! the order of asking, and no pause is longer than the turns before it. The number of dirty pages
//! passes the middle by no more than what each task makes dirty between two turns.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;

use super::tree::Memcg;
use super::{MemcgError, MemcgId, Memcgs};

/// The largest number of memcgs of which a task waits at once: of more nested ones, those nearest
/// to the root do not hold it up.
const MAX_TURNS: usize = 8;

/// The dirty pages of a memcg and its descendants, in its head, in a cache line of their own.
#[repr(C, align(64))]
pub(super) struct DirtyPages {
    /// Pages that differ from the storage. Counts of one page may arrive in any order, so the
    /// number may be below zero for a moment.
    dirty: AtomicU64,
    /// Pages that are being written. A page that became dirty again counts twice.
    writing: AtomicU64,
    /// The clock of turns: it advances by each page of which a write ends, or which is dropped
    /// while dirty, and to the end of the last turn when few dirty pages are left.
    served: AtomicU64,
    /// The time of the clock at which the last turn ends.
    promised: AtomicU64,
    /// The limits of `dirty`.
    background: AtomicU64,
    limit: AtomicU64,
}

/// Limits of the dirty pages of a memcg and its descendants, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLimits {
    /// The number beyond which the host has pages written (Linux: `dirty_background_ratio`).
    pub background: u64,
    /// The number that tasks do not pass, but for what each makes dirty at once (Linux:
    /// `dirty_ratio`).
    pub limit: u64,
}

impl Default for DirtyLimits {
    fn default() -> Self {
        Self::NONE
    }
}

impl DirtyLimits {
    /// No limits.
    pub const NONE: DirtyLimits = DirtyLimits { background: u64::MAX, limit: u64::MAX };
}

/// A change of pages with respect to the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirtyChange {
    /// Clean pages became dirty.
    Dirtied,
    /// Dirty pages are clean, and being written, from now on.
    WriteBegan,
    /// Pages are not being written any more.
    WriteEnded,
    /// Dirty pages were removed from their object.
    Dropped,
}

/// The turns of a task, which waits until the last of them ends ([`Throttle::is_over`]).
#[derive(Clone, Debug)]
#[must_use = "the task is to wait"]
pub struct Turns(ArrayVec<Turn, MAX_TURNS>);

#[derive(Clone, Debug)]
struct Turn {
    memcg: MemcgId,
    /// The time of [`DirtyPages::served`] at which the turn ends.
    end: u64,
}

impl DirtyPages {
    /// Sets the limits.
    pub(super) fn set_limits(&self, limits: DirtyLimits) {
        self.background.store(limits.background, Relaxed);
        self.limit.store(limits.limit, Relaxed);
    }

    /// Returns the limits.
    pub(super) fn limits(&self) -> DirtyLimits {
        DirtyLimits { background: self.background.load(Relaxed), limit: self.limit.load(Relaxed) }
    }

    /// Returns the numbers of dirty pages and of pages that are being written.
    pub(super) fn counts(&self) -> [u64; 2] {
        [&self.dirty, &self.writing].map(|pages| (pages.load(Relaxed) as i64).max(0) as u64)
    }

    /// Returns true if tasks that make pages dirty wait. If they do not, all turns are over, so
    /// that none of the tasks waits on because another makes pages dirty first.
    fn makes_wait(&self) -> bool {
        let DirtyLimits { background, limit } = self.limits();
        let waits = self.counts().iter().sum::<u64>() > background / 2 + limit / 2;
        if !waits {
            self.served.fetch_max(self.promised.load(Relaxed), Relaxed);
        }
        waits
    }

    /// Takes a turn of `pages` after the last one, and returns its end.
    fn promise(&self, pages: u64) -> u64 {
        let served = self.served.load(Relaxed);
        let end = |promised: u64| promised.max(served).saturating_add(pages);
        let last = self.promised.fetch_update(Relaxed, Relaxed, |promised| Some(end(promised)));
        end(last.unwrap_or_else(|promised| promised))
    }

    /// Counts a change.
    fn count(&self, change: DirtyChange, pages: u64) {
        let less = pages.wrapping_neg();
        match change {
            DirtyChange::Dirtied => _ = self.dirty.fetch_add(pages, Relaxed),
            DirtyChange::WriteBegan => {
                self.writing.fetch_add(pages, Relaxed);
                self.dirty.fetch_add(less, Relaxed);
            }
            DirtyChange::WriteEnded => {
                self.writing.fetch_add(less, Relaxed);
                self.served.fetch_add(pages, Relaxed);
            }
            DirtyChange::Dropped => {
                self.dirty.fetch_add(less, Relaxed);
                self.served.fetch_add(pages, Relaxed);
            }
        }
    }
}

/// The dirty pages of a machine's memcgs ([`Memcgs::throttle`]).
pub struct Throttle<'g, 'p>(&'g Memcgs<'p>);

impl<'p> Memcgs<'p> {
    /// Returns the part that has the numbers and limits of dirty pages.
    pub fn throttle(&self) -> Throttle<'_, 'p> {
        Throttle(self)
    }
}

impl<'g> Throttle<'g, '_> {
    /// Sets the limits of the dirty pages of a memcg and its descendants; those of the root are the
    /// machine's. A new memcg has none. The host derives them from the memory that may hold dirty
    /// pages, which is what is free or has pages of files, and sets them again when that changes.
    ///
    /// # Errors
    /// There is no such memcg.
    pub fn set_limits(&self, id: MemcgId, limits: DirtyLimits) -> Result<(), MemcgError> {
        self.0.find(id).ok_or(MemcgError::NoSuchMemcg(id))?.dirty.set_limits(limits);
        Ok(())
    }

    /// Returns true if a memcg or an ancestor has more dirty pages than its background limit, so
    /// that the host should have pages written. Takes no lock.
    pub fn wants_writeback(&self, id: MemcgId) -> bool {
        self.heads_from(id).any(|memcg| memcg.1.is_over_background())
    }

    /// Returns the first memcg after `last`, or of all, that itself has more dirty pages than its
    /// background limit. The order is that of numbers, which begin with the root's.
    pub fn next_wanting_writeback(&self, last: Option<MemcgId>) -> Option<MemcgId> {
        let is_later = |id: &MemcgId| last.is_none_or(|last| id.0 > last.0);
        self.0.all().filter(is_later).find(|id| self.0.memcg(*id).is_over_background())
    }

    /// Lets a task go on that made `pages` of a memcg dirty
    /// ([`Storage::dirtied`](crate::platform::Storage::dirtied)), or has it wait until the turns
    /// that this returns are over. The host calls it between two steps of a write, and after a
    /// fault or a system call, where the task holds nothing that writing pages needs. Takes no
    /// lock.
    pub fn turn(&self, id: MemcgId, pages: u64) -> Option<Turns> {
        let waits = self.heads_from(id).filter(|(_, memcg)| memcg.dirty.makes_wait());
        let turns: ArrayVec<_, _> =
            waits.map(|(memcg, head)| Turn { memcg, end: head.dirty.promise(pages) }).take(MAX_TURNS).collect();
        (!turns.is_empty()).then_some(Turns(turns))
    }

    /// Returns true if a task that waits for these turns is to go on: the storage has taken the
    /// pages, or few dirty pages are left. A host asks when a write has ended
    /// ([`finish_write`](crate::page_cache::finish_write)), and from time to time, as pages also
    /// stop being dirty when they are truncated.
    pub fn is_over(&self, turns: &Turns) -> bool {
        // A memcg that was removed has no dirty pages. One that has its number by now ends the turn
        // when few of its pages are dirty, if not before.
        let is_over = |turn: &Turn| match self.0.find(turn.memcg) {
            Some(memcg) => memcg.dirty.served.load(Relaxed) >= turn.end || !memcg.dirty.makes_wait(),
            None => true,
        };
        turns.0.iter().all(is_over)
    }

    /// Counts a change of pages that are or were charged to a memcg.
    pub(crate) fn count(&self, id: MemcgId, change: DirtyChange, pages: u64) {
        self.0.ancestors(id).for_each(|at| self.0.memcg(at).dirty.count(change, pages));
    }

    /// Returns the heads of a memcg and its ancestors; none if there is no such memcg.
    fn heads_from(&self, id: MemcgId) -> impl Iterator<Item = (MemcgId, &'g Memcg)> {
        self.0.find(id).into_iter().flat_map(move |_| self.0.ancestors(id)).map(|id| (id, self.0.memcg(id)))
    }
}

impl Memcg {
    fn is_over_background(&self) -> bool {
        self.dirty.counts()[0] > self.dirty.limits().background
    }
}
