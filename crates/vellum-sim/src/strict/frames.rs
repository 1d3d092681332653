//! Frames: their users, the translations that still reach them, and their counts.

use vellum::addr::{Pfn, PhysAddr};
use vellum::arch::{Attrs, Kind};
use vellum::platform::SpaceId;

use super::ptes::DecodePtes as _;
use super::shadow::{Checker, Frame, Pfn0, Table, Use};
use super::violation::Rule;
use crate::hardware::Hardware;
use crate::tlb::Tag;
use crate::walker::{Leaf, Silicon};

impl<A: Silicon> Checker<A> {
    pub fn allocated(&mut self, pfn: Pfn, count: u32, hardware: &Hardware<A>) {
        self.give(pfn, count, Use::Used);
        self.check_caches(pfn, count, hardware);
    }

    pub fn freed(&mut self, pfn: Pfn, count: u32, hardware: &Hardware<A>) {
        for frame in (pfn.0..pfn.0.saturating_add(count)).map(Pfn) {
            if self.table(frame).is_some() {
                self.free_table(frame, hardware);
            }
            self.check_unmapped(frame, hardware);
            let mappings = self.frame(frame).and_then(|f| f.counts.take()).map_or(0, |(_, mappings)| mappings);
            if mappings > 0 {
                let text = format!("{frame:?} is freed with a mapcount of {mappings}");
                self.fail(Rule::References, text, &[frame], &[]);
            }
        }
        self.give(pfn, count, Use::Free);
        self.check_caches(pfn, count, hardware);
    }

    /// Changes the user of frames.
    fn give(&mut self, pfn: Pfn, count: u32, to: Use) {
        let (seq, baseline) = (self.seq, self.baseline.is_some());
        let mut wrong = None;
        for at in (pfn.0..pfn.0.saturating_add(count)).map(Pfn) {
            let Some(frame) = self.frame(at) else {
                let text = format!("{at:?} is allocated or freed, but there is no such frame");
                return self.fail(Rule::Allocator, text, &[], &[]);
            };
            // Before the baseline, frames may come to the allocator that it never gave out.
            if frame.state == to || to == Use::Free && frame.state == Use::Unknown && baseline {
                wrong = wrong.or(Some((at, frame.state)));
            }
            frame.state = to;
            frame.since = seq;
            frame.counts = None;
            if to == Use::Used {
                frame.head = Pfn0(pfn);
            }
        }
        if let Some((at, was)) = wrong {
            let text = format!("{at:?} becomes {to:?}, but is already {was:?}");
            self.fail(Rule::Allocator, text, &[at], &[]);
        }
        self.record_frame(pfn, true);
    }

    /// Checks that no CPU still translates to these frames, or caches a pointer to a page table
    /// among them.
    fn check_caches(&mut self, pfn: Pfn, count: u32, hardware: &Hardware<A>) {
        let (first, end) = (pfn.addr().0, pfn.addr().0 + ((count as u64) << vellum::addr::FRAME_SHIFT));
        let table_bytes = 1 << self.arch.page_shift();
        let inside = |start: u64, len: u64| start < end && first < start + len;
        for cpu in 0..self.cpus.len() {
            let mmu = hardware.mmu(cpu);
            let reaches = |(_, leaf): &(Tag, Leaf)| inside(leaf.base.0, 1 << leaf.shift);
            let leaf = mmu.tlb.translation(reaches).or(mmu.in_flight.filter(reaches));
            let pointer = mmu.tlb.pointers().find(|(_, table)| inside(table.addr().0, table_bytes));
            drop(mmu);
            if let Some((tag, leaf)) = leaf {
                let text = format!(
                    "{pfn:?} ({count} frames) is allocated or freed, but CPU {cpu} still translates {:?} of \
                     space {} to {:?}",
                    tag.range(),
                    tag.space.0,
                    leaf.base
                );
                self.fail(Rule::StaleTranslation, text, &[leaf.base.pfn()], &[]);
            }
            if let Some((tag, table)) = pointer {
                let text = format!(
                    "{table:?} is allocated or freed, but CPU {cpu} may still walk through it for {:?} of space {}",
                    tag.range(),
                    tag.space.0
                );
                self.fail(Rule::StalePointer, text, &[table], &[]);
            }
        }
    }

    /// Checks that the entry that was last made to map this frame does not map the frame any more,
    /// if hardware can still reach that entry.
    fn check_unmapped(&mut self, pfn: Pfn, hardware: &Hardware<A>) {
        let Some((table, index)) = self.frame(pfn).and_then(|f| f.target_of.take()) else {
            return;
        };
        let Some(&Table { level, space, .. }) = self.table(table) else {
            return;
        };
        let Some(entry) = super::entry(hardware, table, index) else {
            return;
        };
        let raw = entry.load(std::sync::atomic::Ordering::Acquire);
        let maps = self.arch.kind(raw, level) == Kind::Leaf
            && self.arch.attrs(raw, level).intersects(Attrs::PROT)
            && self.arch.leaf_pfn_at(raw, index, level) == pfn;
        if maps && self.visible(table) && !self.may_skip_locks(space, hardware) {
            let text = format!("{pfn:?} is freed while an entry maps it");
            self.fail(Rule::StillMapped, text, &[pfn], &[(table, index)]);
        }
    }

    /// Returns whether only this CPU can use the space: no CPU has it loaded, and no other holds a
    /// lock or walks there.
    pub fn may_skip_locks(&self, space: SpaceId, hardware: &Hardware<A>) -> bool {
        let there = |pfn: &Pfn| self.table(*pfn).is_some_and(|t| t.space == space);
        !hardware.loaded_anywhere(space)
            && self.cpus.iter().enumerate().all(|(cpu, state)| {
                cpu == self.cpu
                    || !state.locks.iter().any(there)
                        && state.walk.as_ref().is_none_or(|walk| !walk.visited.iter().any(there))
            })
    }

    /// Records a change of a folio's counts. Only the difference of the engine's numbers is exact,
    /// because other CPUs may change the counts before this change is done.
    pub fn counts(&mut self, head: Pfn, before: (u32, u32), after: (u32, u32)) {
        let seq = self.seq;
        self.record_frame(head, false);
        let Some(frame) = self.frame(head) else {
            return self.fail(
                Rule::Allocator,
                format!("the counts of {head:?} change, but there is no such frame"),
                &[],
                &[],
            );
        };
        let signed = |n: u32| i64::from(n as i32);
        let now = match frame.counts {
            Some((references, mappings)) => {
                (references + signed(after.0) - signed(before.0), mappings + signed(after.1) - signed(before.1))
            }
            None => (signed(after.0), signed(after.1)),
        };
        frame.counts = Some(now);
        if after.1 < before.1 {
            frame.fell = seq;
        }
        let state = frame.state;
        let (references, mappings) = now;
        if references < mappings || mappings < 0 {
            let text = format!("{head:?} has refcount {references} and mapcount {mappings}");
            self.fail(Rule::References, text, &[head], &[]);
        }
        if state == Use::Free {
            self.fail(Rule::Allocator, format!("the counts of {head:?} change while it is free"), &[head], &[]);
        }
    }

    /// Checks an access of a program.
    pub fn used(&mut self, cpu: usize, space: SpaceId, va: u64, pa: PhysAddr) {
        if self.frame(pa.pfn()).is_some_and(|f| f.state == Use::Free) {
            self.cpu = cpu;
            let text = format!(
                "a program on CPU {cpu} reaches {:?}, which is free, through {va:#x} of space {}",
                pa.pfn(),
                space.0
            );
            self.fail(Rule::UseAfterFree, text, &[pa.pfn()], &[]);
        }
    }

    /// Takes the baseline: frames that are allocated after it have to be freed.
    pub fn take_baseline(&mut self) {
        self.baseline = Some(self.seq);
    }

    /// Checks that all frames allocated since the baseline were freed, and that no lock, walk,
    /// disabled preemption or masked interrupt is left.
    pub fn check_leaks(&mut self) {
        let baseline = self.baseline.unwrap_or(0);
        let leaks = |(_, frame): &(Pfn, &Frame)| frame.state == Use::Used && frame.since > baseline;
        let leaked: Vec<Pfn> = self.frames.known().filter(leaks).map(|(pfn, _)| pfn).collect();
        if !leaked.is_empty() {
            let text = format!(
                "{} frames were never freed, the first of them {:?}",
                leaked.len(),
                &leaked[..leaked.len().min(8)]
            );
            self.fail(Rule::Leak, text, &leaked[..leaked.len().min(3)], &[]);
        }
        for cpu in 0..self.cpus.len() {
            let state = &self.cpus[cpu];
            if !state.locks.is_empty() || state.walk.is_some() || state.preempt > 0 || state.irqs_masked {
                let text = format!("CPU {cpu} ends with a lock, a walk or a critical section: {state:?}");
                let held = state.locks.clone();
                self.fail(Rule::Atomic, text, &held, &[]);
            }
        }
    }
}
