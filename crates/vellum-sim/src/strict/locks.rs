//! Locks of page tables, lockless walks, and places where a CPU may be rescheduled.

use vellum::addr::Pfn;
use vellum::arch::Kind;
use vellum::platform::SpaceId;

use super::shadow::{Checker, CpuState, Table, Walk, Work};
use super::violation::Rule;
use crate::hardware::Hardware;
use crate::walker::Silicon;

/// The most work that a CPU may do with preemption disabled, in instructions. `vellum bench holds`
/// counts the instructions; the checker estimates them from the entries, folios and bytes on which
/// most of them are spent.
const MOST_WORK: u32 = 60_000;
/// Instructions for writing an entry.
const ENTRY: u32 = 8;
/// Instructions for a change of a folio's counts.
const FOLIO: u32 = 100;
/// Bytes that one instruction zeroes or copies.
const BYTES: u32 = 8;
/// The most memory that is zeroed or copied at once.
const MOST_BYTES: usize = 64 << 10;

impl<A: Silicon> Checker<A> {
    pub fn locking(&mut self, pfn: Pfn) {
        let cpu = self.cpu;
        self.cpus[cpu].waiting = Some(pfn);
        if self.cpus[cpu].locks.contains(&pfn) {
            return self.fail(Rule::Deadlock, format!("CPU {cpu} waits for a lock that it holds"), &[pfn], &[]);
        }
        // During a walk a CPU only queues for the lock. It waits after the walk has ended, and the
        // order is checked when it has the lock.
        if self.cpus[cpu].walk.is_none() {
            self.check_nesting(pfn);
            self.check_ring(pfn);
        }
    }

    pub fn locked(&mut self, pfn: Pfn, hardware: &Hardware<A>) {
        let cpu = self.cpu;
        if self.cpus[cpu].waiting.take() != Some(pfn) || self.cpus[cpu].walk.is_some() {
            self.check_nesting(pfn);
        }
        let Some(table) = self.table_mut(pfn) else {
            let text = format!("CPU {cpu} locks {pfn:?}, which is not a page table");
            return self.fail(Rule::TableUnderWalker, text, &[pfn], &[]);
        };
        let (before, space) = (table.owner.replace(cpu), table.space);
        if let Some(other) = before {
            let text = format!("CPU {cpu} takes the lock of {pfn:?}, which CPU {other} holds");
            self.fail(Rule::LockOrder, text, &[pfn], &[]);
        }
        self.check_lockless(pfn, space, hardware);
        self.cpus[cpu].locks.push(pfn);
    }

    pub fn unlocking(&mut self, pfn: Pfn, hardware: &Hardware<A>) {
        let cpu = self.cpu;
        if self.table(pfn).and_then(|t| t.owner) != Some(cpu) {
            let text = format!("CPU {cpu} releases the lock of {pfn:?}, which it does not hold");
            self.fail(Rule::LockOrder, text, &[pfn], &[]);
        }
        if let Some(table) = self.table_mut(pfn) {
            table.owner = None;
        }
        self.cpus[cpu].locks.retain(|held| *held != pfn);
        self.check_changed_blocks(pfn, hardware);
        self.check_not_empty(pfn, hardware);
    }

    /// Checks the lock order: while a page table is locked, only the one above it may be locked. A
    /// table that no other CPU can see may be locked at any time.
    fn check_nesting(&mut self, pfn: Pfn) {
        let Some(last) = self.cpus[self.cpu].locks.last().copied() else {
            return;
        };
        let above = self.table(last).is_some_and(|t| t.hook.is_none_or(|(parent, _)| parent == pfn));
        let higher = match (self.table(last), self.table(pfn)) {
            (Some(held), Some(new)) => held.space == new.space && held.level < new.level,
            _ => false,
        };
        if !(above && higher) && self.visible(pfn) {
            let text = format!(
                "CPU {} holds the lock of {last:?} and takes that of {pfn:?}, which is not the page table above",
                self.cpu
            );
            self.fail(Rule::LockOrder, text, &[last, pfn], &[]);
        }
    }

    /// Checks for a cycle of CPUs that wait for each other's locks.
    fn check_ring(&mut self, mut pfn: Pfn) {
        let mut ring = vec![pfn];
        for _ in 0..self.cpus.len() {
            let Some(owner) = self.table(pfn).and_then(|t| t.owner) else {
                return;
            };
            if owner == self.cpu {
                let text = format!("CPU {owner} waits for itself, in a cycle of the locks of {ring:?}");
                return self.fail(Rule::Deadlock, text, &ring, &[]);
            }
            match self.cpus[owner] {
                CpuState { waiting: Some(next), walk: None, .. } => pfn = next,
                _ => return,
            }
            ring.push(pfn);
        }
    }

    /// Checks that a visible page table is not empty when it is unlocked: it would never be freed
    /// (INV-3).
    fn check_not_empty(&mut self, pfn: Pfn, hardware: &Hardware<A>) {
        let Some(&Table { level, .. }) = self.table(pfn) else {
            return;
        };
        if level == self.arch.levels() || !self.visible(pfn) {
            return;
        }
        let entries = super::entries(hardware, pfn);
        if !entries.is_empty() && entries.iter().all(|entry| read(entry) == 0) {
            let text = format!("{pfn:?} is unlocked, hooked and empty, and so will never be freed");
            self.fail(Rule::EmptyTable, text, &[pfn], &[]);
        }
    }

    /// Checks that a CPU that enters a space does not find another CPU changing it without locks.
    pub fn check_lockless(&mut self, pfn: Pfn, space: SpaceId, hardware: &Hardware<A>) {
        match self.lockless.get(&space) {
            Some(claimant) if *claimant == self.cpu => {
                self.lockless.remove(&space);
                self.check_changed_blocks_of(space, hardware);
            }
            Some(claimant) if self.visible(pfn) => {
                let text =
                    format!("CPU {claimant} changes space {} without locks, and CPU {} uses it too", space.0, self.cpu);
                self.fail(Rule::Unlocked, text, &[pfn], &[]);
            }
            _ => {}
        }
    }

    pub fn walk_begin(&mut self) {
        let (cpu, since) = (self.cpu, self.seq);
        if self.cpus[cpu].walk.replace(Walk { since, visited: Vec::new() }).is_some() {
            self.fail(Rule::Walk, format!("CPU {cpu} begins a walk inside a walk"), &[], &[]);
        }
    }

    pub fn walk_end(&mut self) {
        let cpu = self.cpu;
        if self.cpus[cpu].walk.take().is_none() {
            self.fail(Rule::Walk, format!("CPU {cpu} ends a walk that it has not begun"), &[], &[]);
        }
    }

    pub fn descend(&mut self, pfn: Pfn, index: u16, hardware: &Hardware<A>) {
        let cpu = self.cpu;
        let Some((level, space)) = self.table(pfn).map(|t| (t.level, t.space)) else {
            let text = format!("CPU {cpu} reads entry {index} of {pfn:?}, which is not a page table");
            return self.fail(Rule::TableUnderWalker, text, &[pfn], &[]);
        };
        self.check_user_half(pfn, index, "reads");
        let holds_one = self.cpus[cpu].locks.iter().any(|h| self.table(*h).is_some_and(|t| t.space == space));
        let child =
            super::entry(hardware, pfn, index).map(read).filter(|raw| self.arch.kind(*raw, level) == Kind::Table);
        let child = child.map(|raw| self.arch.table_addr(raw).pfn());
        match &mut self.cpus[cpu].walk {
            // The page table of this step, and the one that the walk comes to next.
            Some(walk) => walk.visited.extend([pfn].into_iter().chain(child)),
            None if holds_one || self.lockless.get(&space) == Some(&cpu) => {}
            None => {
                let text = format!("CPU {cpu} reads entry {index} of {pfn:?} with neither a walk nor a lock");
                self.fail(Rule::Walk, text, &[pfn], &[(pfn, index)]);
            }
        }
        self.check_lockless(pfn, space, hardware);
    }

    /// Checks that the CPU may sleep here, or wait for other CPUs. With `with_locks` it may hold
    /// locks of page tables, and so have preemption disabled.
    pub fn check_free_to(&mut self, what: &str, with_locks: bool) {
        let state = &self.cpus[self.cpu];
        let mut blockers = Vec::new();
        if !with_locks && !state.locks.is_empty() {
            blockers.push(format!("holds the locks of {:?}", state.locks));
        }
        if state.walk.is_some() {
            blockers.push("is in a walk".into());
        }
        if !with_locks && state.preempt > 0 {
            blockers.push(format!("has disabled preemption {} times", state.preempt));
        }
        if state.irqs_masked {
            blockers.push("has masked interrupts".into());
        }
        if !blockers.is_empty() {
            let held = state.locks.clone();
            let text = format!("CPU {} {what}, but {}", self.cpu, blockers.join(" and "));
            self.fail(Rule::Atomic, text, &held, &[]);
        }
    }

    /// Adds work that is about to be done, and checks its limit while preemption is disabled.
    pub fn work(&mut self, more: Work) {
        let state = &mut self.cpus[self.cpu];
        if state.preempt == 0 {
            return;
        }
        let work = &mut state.work;
        work.entries += more.entries;
        work.folios += more.folios;
        work.bytes += more.bytes;
        let instructions = work.entries * ENTRY + work.folios * FOLIO + work.bytes / BYTES;
        if instructions > MOST_WORK {
            let (work, held) = (core::mem::take(work), state.locks.clone());
            let text =
                format!("CPU {} executes {instructions} instructions with preemption disabled: {work:?}", self.cpu);
            self.fail(Rule::Long, text, &held, &[]);
        }
    }

    /// Checks a zeroing or copy of memory.
    pub fn touch(&mut self, bytes: usize) {
        // At boot nothing else runs.
        if bytes > MOST_BYTES && self.seq > 0 {
            let text = format!("CPU {} touches {bytes} bytes of memory at once", self.cpu);
            self.fail(Rule::Long, text, &[], &[]);
        }
        self.work(Work { bytes: bytes as u32, ..Work::default() });
    }

    pub fn preempt_enable(&mut self) {
        let state = &mut self.cpus[self.cpu];
        match state.preempt.checked_sub(1) {
            Some(0) => (state.preempt, state.work) = (0, Work::default()),
            Some(depth) => state.preempt = depth,
            None => self.fail(
                Rule::Atomic,
                format!("CPU {} enables preemption that it has not disabled", self.cpu),
                &[],
                &[],
            ),
        }
    }
}

fn read(entry: &std::sync::atomic::AtomicU64) -> u64 {
    entry.load(std::sync::atomic::Ordering::Acquire)
}
