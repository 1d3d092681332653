//! Contiguous blocks: aligned groups of leaves that are one translation together.
//!
//! Both architectures leave what happens to the hardware if one of these rules is broken (Arm ARM DDI 0487, D8.7.1 on what
//! the entries of a block must say, D8.17.1 on break-before-make; RISC-V privileged, chapter Svnapot):
//! - whoever finds one entry of a block marked finds all of it there, marked and alike, consecutive in memory, aligned in
//!   both address spaces; and in one folio, because a record of one access speaks for all of it;
//! - a live entry joins a block, leaves it, or maps something else only after it was taken out and no TLB holds it;
//! - accessed and dirty of a block may stand in any of its entries, so what leaves it takes along what any of them says.
//!
//! The first is checked whenever nobody is at work there: where the lock of the table is given back, and where somebody comes
//! to a space whose only user needs no locks.

use std::sync::atomic::Ordering;

use vellum::addr::{FRAME_SHIFT, Pfn};
use vellum::arch::{Attrs, Kind};
use vellum::platform::SpaceId;

use super::shadow::Checker;
use super::violation::Rule;
use super::writes::How;
use crate::hardware::Hardware;
use crate::tlb::{Conflict, Tag};
use crate::walker::{Leaf, Silicon, block_bits};

/// A leaf that was taken out.
#[derive(Debug)]
struct Taken {
    index: u16,
    mapped: Pfn,
    /// What hardware had recorded in its entry.
    said: Attrs,
    /// Whether it was joined to its block, and any of that may have spoken for it.
    joined: bool,
}

/// What happened to the entries of a block, or of what may be one, since nobody was at work there.
#[derive(Debug)]
pub(crate) struct Changed {
    out: Vec<Taken>,
    /// What hardware had recorded in entries that left the block.
    recorded: Attrs,
    /// What it had of those that came back joined: one entry of the block must say so.
    owed: Attrs,
}

impl Default for Changed {
    fn default() -> Self {
        Changed { out: Vec::new(), recorded: Attrs::empty(), owed: Attrs::empty() }
    }
}

impl<A: Silicon> Checker<A> {
    /// The address that the entry with this index maps.
    pub fn leaf_pfn(&self, raw: u64, index: u16, level: u8) -> Pfn {
        self.arch.leaf_pfn(self.arch.single(raw, index as usize), level)
    }

    fn is_joined(&self, raw: u64, level: u8) -> bool {
        self.arch.kind(raw, level) == Kind::Leaf && block_bits(&self.arch, raw, level) > 0
    }

    /// A leaf that hardware can use.
    fn is_live(&self, raw: u64, level: u8) -> bool {
        self.arch.kind(raw, level) == Kind::Leaf && self.arch.attrs(raw, level).intersects(Attrs::PROT)
    }

    /// An entry that others can see is about to change.
    pub fn change_in_block(
        &mut self,
        (pfn, index): (Pfn, u16),
        level: u8,
        (old, new): (u64, u64),
        how: How,
        hardware: &Hardware<A>,
    ) {
        let bits = self.arch.block_bits(level);
        if bits == 0 {
            return;
        }
        self.check_break(pfn, index, level, (old, new));
        let first = index >> bits << bits;
        let leaf = |raw: u64| (self.arch.kind(raw, level) == Kind::Leaf).then(|| self.leaf_pfn(raw, index, level));
        let said = |raw: u64| self.arch.attrs(raw, level) & Attrs::HARDWARE;
        let (before, after) = (leaf(old), leaf(new));
        let (was_joined, is_joined) = (self.is_joined(old, level), self.is_joined(new, level));
        let (old_said, new_said) = (said(old), said(new));
        // What those say that still stand, this one included.
        let block = usize::from(first)..usize::from(first) + (1 << bits);
        let standing = super::entries(hardware, pfn)
            .get(block)
            .into_iter()
            .flatten()
            .map(|entry| entry.load(Ordering::Acquire))
            .filter(|raw| self.is_joined(*raw, level))
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
                format!("entry {index} of {pfn:?} comes back as {new:#x}, without {lost:?}, which hardware recorded");
            self.fail(Rule::LostBit, text, &[mapped], &[(pfn, index)]);
        }
    }

    /// A live entry is not one of another block, or of none, a moment later; nor does it map something else.
    fn check_break(&mut self, pfn: Pfn, index: u16, level: u8, (old, new): (u64, u64)) {
        if !self.is_live(old, level) || !self.is_live(new, level) {
            return;
        }
        let sizes = self.is_joined(old, level) != self.is_joined(new, level) && !self.arch.joins_in_place();
        let (from, to) = (self.leaf_pfn(old, index, level), self.leaf_pfn(new, index, level));
        if sizes || from != to {
            let what = if sizes { "joins a block or leaves it" } else { "maps something else" };
            let text = format!("entry {index} of {pfn:?} {what} while it is live: {old:#x} -> {new:#x}");
            self.fail(Rule::BreakBeforeMake, text, &[from, to], &[(pfn, index)]);
        }
    }

    /// Nobody is at work in this table any more.
    pub fn settle(&mut self, pfn: Pfn, hardware: &Hardware<A>) {
        let Some(table) = self.table_mut(pfn) else { return };
        let level = table.level;
        for (first, changed) in std::mem::take(&mut table.blocks) {
            self.check_block(pfn, first, level, changed.owed, hardware);
        }
    }

    /// The same for all tables of a space that was one CPU's alone.
    pub fn settle_space(&mut self, space: SpaceId, hardware: &Hardware<A>) {
        if A::JOINED == 0 {
            return;
        }
        let there = |pfn: &Pfn| self.table(*pfn).is_some_and(|t| t.space == space && !t.blocks.is_empty());
        let tables: Vec<Pfn> = self.tables.iter().copied().filter(there).collect();
        for pfn in tables {
            if self.table(pfn).is_some_and(|t| t.owner.is_none()) && self.visible(pfn) {
                self.settle(pfn, hardware);
            }
        }
    }

    /// All blocks of a table that others can see from now on.
    pub fn check_blocks(&mut self, pfn: Pfn, level: u8, hardware: &Hardware<A>) {
        let bits = self.arch.block_bits(level);
        if bits > 0 {
            let entries = 1u32 << self.arch.index_bits();
            (0..entries)
                .step_by(1 << bits)
                .for_each(|first| self.check_block(pfn, first as u16, level, Attrs::empty(), hardware));
        }
    }

    /// A block is whole, or none of it is marked.
    fn check_block(&mut self, pfn: Pfn, first: u16, level: u8, owed: Attrs, hardware: &Hardware<A>) {
        let arch = self.arch;
        let n = 1u16 << arch.block_bits(level);
        let raw: Vec<u64> = (first..first + n)
            .map(|i| super::entry(hardware, pfn, i).map_or(0, |e| e.load(Ordering::Acquire)))
            .collect();
        let Some(one) = raw.iter().position(|raw| self.is_joined(*raw, level)) else {
            return;
        };
        let size = arch.level_shift(level) + arch.block_bits(level);
        let expected = |i: usize| {
            let steps = (i as u64).wrapping_sub(one as u64);
            arch.placed(raw[one], first as usize + one).wrapping_add(arch.step(raw[one], level).wrapping_mul(steps))
        };
        let differs = |i: &usize| (arch.placed(raw[*i], first as usize + *i) ^ expected(*i)) & !A::HARDWARE != 0;
        let odd = (0..n as usize).find(|i| !self.is_live(raw[*i], level) || differs(i));
        let start = self.leaf_pfn(raw[0], first, level);
        let frames = 1u32 << (size - FRAME_SHIFT);
        let head = |pfn: Pfn| self.frames.get(pfn).map(|f| f.head.0);
        // A folio may have been split since it was allocated: then a part of it has counts of its own.
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
            border.map(|pfn| (0, format!("the folio that it begins in ends before {pfn:?}")))
        };
        if let Some((i, why)) = wrong {
            let text = format!("the block of {n} entries from {first} of {pfn:?} can't be one translation: {why}");
            return self.fail(Rule::Block, text, &[start], &[(pfn, first + i as u16), (pfn, first + one as u16)]);
        }
        let said = raw.iter().fold(Attrs::empty(), |all, raw| all | arch.attrs(*raw, level));
        if !said.contains(owed) {
            let text = format!(
                "no entry of the block from {first} of {pfn:?} says {:?}, which hardware recorded",
                owed - said
            );
            self.fail(Rule::LostBit, text, &[start], &[(pfn, first)]);
        }
    }

    /// Which level translates so many bytes at once, in a page or a block.
    fn level_of(&self, shift: u32) -> u8 {
        (1..=self.arch.levels()).rev().find(|level| self.arch.level_shift(*level) <= shift).unwrap_or(1)
    }

    /// Whether TLBs get along with translations of these two sizes for one address.
    pub fn get_along(&self, one: u32, other: u32) -> bool {
        one == other || self.arch.joins_in_place() && self.level_of(one) == self.level_of(other)
    }

    /// A CPU found two translations for one address.
    pub fn conflict(&mut self, cpu: usize, Conflict { held, new }: Conflict) {
        if held.1.block != new.1.block && self.get_along(held.1.block, new.1.block) {
            return;
        }
        let told = |(tag, leaf): (Tag, Leaf)| {
            format!("{:?} at {:?} in a translation of {} bytes", tag.range(), leaf.base, 1u64 << leaf.block)
        };
        let text = format!(
            "CPU {cpu} still holds {} of space {}, and has found {}: a conflict abort, or a mixture of the two",
            told(held),
            held.0.space.0,
            told(new)
        );
        self.fail(Rule::Conflict, text, &[held.1.base.pfn(), new.1.base.pfn()], &[]);
    }
}
