//! Cont blocks: aligned groups of leaf PTEs that are one translation together (contpte blocks,
//! Svnapot's NAPOT blocks).
//!
//! Both architectures leave the hardware's behaviour open if one of these rules is broken (Arm ARM
//! DDI 0487, D8.7.1 on what the entries of a block must say, D8.17.1 on break-before-make; RISC-V
//! privileged, chapter Svnapot):
//! - If one entry of a block is marked, all are: present, alike, consecutive in memory, aligned in
//!   both address spaces; and of one folio, because an accessed or dirty bit in any of them counts
//!   for all.
//! - A live PTE joins a block, leaves it, or maps something else only after it was cleared and no
//!   TLB holds it.
//! - Accessed and dirty of a block may stand in any of its entries, so a page that leaves the block
//!   takes the union along.
//!
//! The first rule is checked whenever no CPU is at work in the block: when the page table's lock is
//! released; and, in a space that one CPU has changed without locks because no other CPU used the
//! space, when a second CPU begins to use it.

use std::sync::atomic::Ordering;

use vellum::addr::{FRAME_SHIFT, Pfn};
use vellum::arch::{Attrs, Kind};
use vellum::platform::SpaceId;

use super::ptes::DecodePtes as _;
use super::shadow::Checker;
use super::violation::Rule;
use super::writes::How;
use crate::hardware::Hardware;
use crate::tlb::{Conflict, Tag};
use crate::walker::{Leaf, Silicon};

/// A leaf that was cleared.
#[derive(Debug)]
struct Taken {
    index: u16,
    mapped: Pfn,
    /// The accessed and dirty bits of the leaf when it was cleared.
    said: Attrs,
    /// True if it was part of a block, so that any entry of the block may have held its accessed
    /// and dirty bits.
    joined: bool,
}

/// Changes to the entries of a block, or of an aligned group that may become one, since its page
/// table was last unlocked.
#[derive(Debug)]
pub(crate) struct Changed {
    out: Vec<Taken>,
    /// Accessed and dirty bits of entries that left the block.
    recorded: Attrs,
    /// Accessed and dirty bits of pages that came back as part of the block: one of its entries
    /// must have them.
    owed: Attrs,
}

impl Default for Changed {
    fn default() -> Self {
        Changed { out: Vec::new(), recorded: Attrs::empty(), owed: Attrs::empty() }
    }
}

impl<A: Silicon> Checker<A> {
    /// Checks a change of an entry that other CPUs can see, before it happens.
    pub fn change_in_block(
        &mut self,
        (pfn, index): (Pfn, u16),
        level: u8,
        (old, new): (u64, u64),
        how: How,
        hardware: &Hardware<A>,
    ) {
        let bits = self.arch.cont_bits(level);
        if bits == 0 {
            return;
        }
        self.check_break(pfn, index, level, (old, new));
        let first = index >> bits << bits;
        let leaf =
            |raw: u64| (self.arch.kind(raw, level) == Kind::Leaf).then(|| self.arch.leaf_pfn_at(raw, index, level));
        let said = |raw: u64| self.arch.attrs(raw, level) & Attrs::HARDWARE;
        let (before, after) = (leaf(old), leaf(new));
        let (was_joined, is_joined) = (self.arch.is_cont(old, level), self.arch.is_cont(new, level));
        let (old_said, new_said) = (said(old), said(new));
        // The accessed and dirty bits of the entries that are still part of the block, this one
        // included.
        let block = usize::from(first)..usize::from(first) + (1 << bits);
        let standing = super::entries(hardware, pfn)
            .get(block)
            .into_iter()
            .flatten()
            .map(|entry| entry.load(Ordering::Acquire))
            .filter(|raw| self.arch.is_cont(*raw, level))
            .fold(Attrs::empty(), |all, raw| all | said(raw));
        let Some(table) = self.table_mut(pfn) else { return };
        let changed = table.blocks.entry(first).or_default();
        let in_place = before == after && before.is_some();
        if let Some(mapped) = before
            && (!in_place || was_joined != is_joined)
            && !matches!(how, How::Discard(_))
        {
            changed.out.retain(|taken| taken.index != index);
            changed.out.push(Taken { index, mapped, said: old_said, joined: was_joined });
            if was_joined {
                changed.recorded |= old_said;
            }
        }
        let back = changed.out.iter().position(|taken| taken.index == index && Some(taken.mapped) == after);
        let Some(back) = back else { return };
        let Taken { mapped, said, joined, .. } = changed.out.swap_remove(back);
        let known = if joined { said | changed.recorded | standing } else { said };
        let lost = known - new_said;
        if is_joined {
            changed.owed |= known;
        } else if !lost.is_empty() && (!in_place || how != How::Exchange) {
            let text =
                format!("entry {index} of {pfn:?} comes back as {new:#x}, without {lost:?}, which hardware had set");
            self.fail(Rule::LostBit, text, &[mapped], &[(pfn, index)]);
        }
    }

    /// Checks break-before-make: a live entry must not map something else without being cleared
    /// first, nor join or leave a cont block unless the format permits that in place.
    fn check_break(&mut self, pfn: Pfn, index: u16, level: u8, (old, new): (u64, u64)) {
        if !self.arch.is_live(old, level) || !self.arch.is_live(new, level) {
            return;
        }
        let sizes = self.arch.is_cont(old, level) != self.arch.is_cont(new, level) && !self.arch.cont_in_place();
        let (from, to) = (self.arch.leaf_pfn_at(old, index, level), self.arch.leaf_pfn_at(new, index, level));
        if sizes || from != to {
            let what = if sizes { "joins a block or leaves it" } else { "maps something else" };
            let text = format!("entry {index} of {pfn:?} {what} while it is live: {old:#x} -> {new:#x}");
            self.fail(Rule::BreakBeforeMake, text, &[from, to], &[(pfn, index)]);
        }
    }

    /// Checks the changed blocks of a page table that no CPU is at work in any more.
    pub fn check_changed_blocks(&mut self, pfn: Pfn, hardware: &Hardware<A>) {
        let Some(table) = self.table_mut(pfn) else { return };
        let level = table.level;
        for (first, changed) in std::mem::take(&mut table.blocks) {
            self.check_block(pfn, first, level, changed.owed, hardware);
        }
    }

    /// Checks the changed blocks of a space that one CPU has changed without locks.
    pub fn check_changed_blocks_of(&mut self, space: SpaceId, hardware: &Hardware<A>) {
        if A::CONT == 0 {
            return;
        }
        let there = |pfn: &Pfn| self.table(*pfn).is_some_and(|t| t.space == space && !t.blocks.is_empty());
        let tables: Vec<Pfn> = self.tables.iter().copied().filter(there).collect();
        for pfn in tables {
            if self.table(pfn).is_some_and(|t| t.owner.is_none()) && self.visible(pfn) {
                self.check_changed_blocks(pfn, hardware);
            }
        }
    }

    /// Checks all blocks of a page table that becomes visible to other CPUs.
    pub fn check_blocks(&mut self, pfn: Pfn, level: u8, hardware: &Hardware<A>) {
        let bits = self.arch.cont_bits(level);
        if bits > 0 {
            let entries = 1u32 << self.arch.index_bits();
            (0..entries)
                .step_by(1 << bits)
                .for_each(|first| self.check_block(pfn, first as u16, level, Attrs::empty(), hardware));
        }
    }

    /// Checks that either all entries of an aligned group form a valid cont block, or none is
    /// marked as part of one.
    fn check_block(&mut self, pfn: Pfn, first: u16, level: u8, owed: Attrs, hardware: &Hardware<A>) {
        let arch = self.arch;
        let n = 1u16 << arch.cont_bits(level);
        let raw: Vec<u64> = (first..first + n)
            .map(|i| super::entry(hardware, pfn, i).map_or(0, |e| e.load(Ordering::Acquire)))
            .collect();
        let Some(one) = raw.iter().position(|raw| self.arch.is_cont(*raw, level)) else {
            return;
        };
        let size = arch.level_shift(level) + arch.cont_bits(level);
        let expected = |i: usize| {
            let steps = (i as u64).wrapping_sub(one as u64);
            arch.at_index(raw[one], first as usize + one).wrapping_add(arch.step(raw[one], level).wrapping_mul(steps))
        };
        let differs = |i: &usize| (arch.at_index(raw[*i], first as usize + *i) ^ expected(*i)) & !A::HARDWARE != 0;
        let odd = (0..n as usize).find(|i| !self.arch.is_live(raw[*i], level) || differs(i));
        let start = self.arch.leaf_pfn_at(raw[0], first, level);
        let frames = 1u32 << (size - FRAME_SHIFT);
        let head = |pfn: Pfn| self.frames.get(pfn).map(|f| f.head.0);
        // A folio may have been split since it was allocated: then a part of it has counts of its
        // own.
        let border = (1..frames)
            .map(|i| start.add(i))
            .find(|pfn| head(*pfn) != head(start) || self.frames.get(*pfn).is_some_and(|f| f.counts.is_some()));
        let wrong = if let Some(i) = odd {
            Some((
                i,
                format!(
                    "its entry {} is {:#x}, entry {} is {:#x}",
                    first as usize + i,
                    raw[i],
                    first as usize + one,
                    raw[one]
                ),
            ))
        } else if !start.is_aligned((size - FRAME_SHIFT) as u8) {
            Some((0, format!("it begins at {start:?}, which is not aligned")))
        } else {
            border.map(|pfn| (0, format!("its first folio ends before {pfn:?}")))
        };
        if let Some((i, why)) = wrong {
            let text = format!("the block of {n} entries from {first} of {pfn:?} can't be one translation: {why}");
            return self.fail(Rule::Block, text, &[start], &[(pfn, first + i as u16), (pfn, first + one as u16)]);
        }
        let said = raw.iter().fold(Attrs::empty(), |all, raw| all | arch.attrs(*raw, level));
        if !said.contains(owed) {
            let text =
                format!("no entry of the block from {first} of {pfn:?} has {:?}, which hardware had set", owed - said);
            self.fail(Rule::LostBit, text, &[start], &[(pfn, first)]);
        }
    }

    /// Reports that a CPU has found two translations for one address.
    pub fn conflict(&mut self, cpu: usize, Conflict { held, new }: Conflict) {
        if held.1.block != new.1.block && self.arch.sizes_may_coexist(held.1.block, new.1.block) {
            return;
        }
        let describe = |(tag, leaf): (Tag, Leaf)| {
            format!("{:?} at {:?} in a translation of {} bytes", tag.range(), leaf.base, 1u64 << leaf.block)
        };
        let text = format!(
            "CPU {cpu} still holds {} of space {}, and a walk found {}: a TLB conflict",
            describe(held),
            held.0.space.0,
            describe(new)
        );
        self.fail(Rule::Conflict, text, &[held.1.base.pfn(), new.1.base.pfn()], &[]);
    }
}
