//! Changes of entries: the lock that they need, the bits that they lose, and the values that are
//! allowed.

use std::sync::atomic::Ordering;

use vellum::addr::Pfn;
use vellum::arch::{Attrs, Kind};

use super::ptes::DecodePtes as _;
use super::shadow::{Checker, Table, Use};
use super::violation::Rule;
use crate::hardware::Hardware;
use crate::walker::Silicon;

/// The way an entry is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// A plain store. The engine expects this old value.
    Store(u64),
    /// A plain store of 0, where accessed and dirty don't matter. The engine expects this old
    /// value, except for these two bits.
    Discard(u64),
    /// An atomic exchange, which returns the old value to the engine. It may also fail, and change
    /// nothing.
    Exchange,
}

impl<A: Silicon> Checker<A> {
    pub fn write(&mut self, pfn: Pfn, index: u16, how: How, new: u64, hardware: &Hardware<A>) {
        let at = (pfn, index);
        let visible = self.visible(pfn);
        // The entries of a new page table may have any value until the engine writes them.
        let unwritten = !visible && self.table(pfn).is_some_and(|table| !table.entries.contains_key(&index));
        self.record_entry(pfn, index);
        let Some(&Table { level, dead, .. }) = self.table(pfn) else {
            return self.fail(
                Rule::WrongTarget,
                format!("an entry of {pfn:?} is written, which is not a page table"),
                &[pfn],
                &[],
            );
        };
        let Some(entry) = super::entry(hardware, pfn, index) else {
            return self.fail(Rule::WrongTarget, format!("{pfn:?} has no entry {index}"), &[pfn], &[]);
        };
        self.check_user_half(pfn, index, "writes");
        if dead {
            self.fail(Rule::Unlocked, format!("an entry of the dead page table {pfn:?} is written"), &[pfn], &[at]);
        }
        let old = if unwritten { 0 } else { entry.load(Ordering::Acquire) };
        if visible {
            self.check_may_write(pfn, index, hardware);
            self.check_announced(pfn, index, old, hardware);
        }
        if let How::Store(expected) | How::Discard(expected) = how {
            self.check_expected(pfn, index, level, (expected, old), new, how);
        }
        if visible && level > 1 {
            self.check_transient(pfn, index, level, (old, new), hardware);
        }
        if visible && (level > 1 || A::CONT != 0) {
            self.check_sizes(pfn, index, level, new, hardware);
        }
        if visible {
            self.change_in_block(at, level, (old, new), how, hardware);
        }
        self.change(pfn, index, level, (old, new), hardware);
        if let Some(table) = self.table_mut(pfn) {
            match how {
                How::Exchange => table.contended.insert(index, old),
                _ => table.contended.remove(&index),
            };
            if let Some(values) = &mut table.values {
                values[index as usize] = new;
            }
        }
    }

    /// Checks that the CPU holds the page table's lock, or is the only one that uses the space.
    fn check_may_write(&mut self, pfn: Pfn, index: u16, hardware: &Hardware<A>) {
        let Some(&Table { owner, space, .. }) = self.table(pfn) else {
            return;
        };
        let cpu = self.cpu;
        if owner == Some(cpu) {
            return;
        }
        match self.lockless.get(&space) {
            Some(claimant) if *claimant == cpu && !hardware.loaded_anywhere(space) => {}
            None if owner.is_none() && self.may_skip_locks(space, hardware) => {
                self.lockless.insert(space, cpu);
            }
            _ => {
                let text = format!(
                    "CPU {cpu} writes an entry of {pfn:?} without its lock (holder: {owner:?}) while other CPUs \
                     use the space"
                );
                self.fail(Rule::Unlocked, text, &[pfn], &[(pfn, index)]);
            }
        }
    }

    /// Checks that a visible entry holds the value that was last announced.
    fn check_announced(&mut self, pfn: Pfn, index: u16, old: u64, hardware: &Hardware<A>) {
        let Some(Table { values, contended, level, .. }) = self.table(pfn) else {
            return;
        };
        let Some(values) = values else {
            // Other CPUs can see a root from its beginning, so nothing published its entries. Its
            // first event comes after the engine has cleared it: read the entries now.
            return self.learn(pfn, hardware);
        };
        let last = values[index as usize];
        let failed = contended.get(&index).is_some_and(|before| !self.arch.differ(*before, old, *level));
        if !failed && self.arch.differ(last, old, *level) {
            let text = format!("entry {index} of {pfn:?} was last announced as {last:#x}, but memory holds {old:#x}");
            self.fail(Rule::Unexpected, text, &[pfn], &[(pfn, index)]);
        }
    }

    /// Checks a plain store, which overwrites the bits that hardware has set since the engine read
    /// the entry.
    fn check_expected(&mut self, pfn: Pfn, index: u16, level: u8, (expected, old): (u64, u64), new: u64, how: How) {
        let arch = self.arch;
        if self.arch.differ(expected, old, level) {
            let text =
                format!("the engine expects {expected:#x} in entry {index} of {pfn:?}, but memory holds {old:#x}");
            return self.fail(Rule::Unexpected, text, &[pfn], &[(pfn, index)]);
        }
        if arch.kind(old, level) != Kind::Leaf || matches!(how, How::Discard(_)) {
            return;
        }
        let unknown = (arch.attrs(old, level) - arch.attrs(expected, level)) & Attrs::HARDWARE;
        let same = arch.kind(new, level) == Kind::Leaf
            && self.arch.target(new, index, level) == self.arch.target(old, index, level);
        let kept = if same { arch.attrs(new, level) } else { Attrs::empty() };
        let lost = unknown - kept;
        if !lost.is_empty() {
            let target = self.arch.leaf_pfn_at(old, index, level);
            let text = format!("a store of {new:#x} over {old:#x} (the engine expects {expected:#x}) loses {lost:?}");
            self.fail(Rule::LostBit, text, &[target], &[(pfn, index)]);
        }
    }

    /// Updates the tree of page tables, and the frames.
    fn change(&mut self, pfn: Pfn, index: u16, level: u8, (old, new): (u64, u64), hardware: &Hardware<A>) {
        let (before, after) = (self.arch.target(old, index, level), self.arch.target(new, index, level));
        if let Some(child) = before
            && before != after
            && self.arch.kind(old, level) == Kind::Table
        {
            self.unhook(child, pfn, index);
        }
        if let Some(target) = before {
            self.record_frame(target, false);
        }
        let Some(target) = after else { return };
        if self.arch.kind(new, level) == Kind::Table {
            self.hook(target, pfn, index, hardware);
        } else {
            let frames = 1 << (self.arch.level_shift(level) - vellum::addr::FRAME_SHIFT);
            let wrong = [target, target.add(frames - 1)].into_iter().find(|pfn| match self.frame(*pfn) {
                Some(frame) => frame.state == Use::Free || frame.table.is_some(),
                None => true,
            });
            if let Some(wrong) = wrong {
                let text = format!(
                    "an entry of level {level} maps {wrong:?}, which is free, a page table, or no frame at all"
                );
                self.fail(Rule::WrongTarget, text, &[wrong], &[(pfn, index)]);
            }
            if before != after {
                self.record_frame(target, false);
            }
        }
        // Entries of a page table that is not visible map nothing yet.
        if self.visible(pfn) {
            self.targeted(target, pfn, index);
        }
    }
}
