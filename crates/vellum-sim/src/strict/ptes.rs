//! Decodes PTEs for the checker: the frame, the size, and if two values are the same to hardware.

use std::sync::atomic::Ordering;

use vellum::addr::Pfn;
use vellum::arch::{Attrs, Kind};

use crate::hardware::Hardware;
use crate::walker::{Silicon, block_bits};

/// Decodes raw PTEs for the checker, beyond the format's own functions.
pub(crate) trait DecodePtes: Silicon {
    /// Returns the number of entries of a page table of this level that the engine may touch. The
    /// entries of a root that translate no user address are the host's.
    fn user_entries(&self, level: u8) -> u32 {
        let all = 1u64 << self.index_bits();
        let user = self.user_end().div_ceil(1 << self.level_shift(level));
        if level == self.levels() { user.min(all) as u32 } else { all as u32 }
    }

    /// Returns the page tables that a table's entries point to, read from memory.
    fn children(&self, pfn: Pfn, level: u8, hardware: &Hardware<Self>) -> Vec<(u16, Pfn)> {
        if level == 1 {
            return Vec::new();
        }
        let entries = self.user_entries(level);
        let child = |index: u16| {
            let raw = super::entry(hardware, pfn, index)?.load(Ordering::Acquire);
            (self.kind(raw, level) == Kind::Table).then(|| (index, self.table_addr(raw).pfn()))
        };
        (0..entries).filter_map(|index| child(index as u16)).collect()
    }

    /// Returns the frame that the leaf at `index` maps.
    fn leaf_pfn_at(&self, raw: u64, index: u16, level: u8) -> Pfn {
        self.leaf_pfn(self.without_cont(raw, index as usize), level)
    }

    /// Returns the frame that an entry maps or points to.
    fn target(&self, raw: u64, index: u16, level: u8) -> Option<Pfn> {
        match self.kind(raw, level) {
            Kind::Leaf => Some(self.leaf_pfn_at(raw, index, level)),
            Kind::Table => Some(self.table_addr(raw).pfn()),
            _ => None,
        }
    }

    /// Returns the first leaf in a page table, and its index.
    fn first_leaf(&self, table: Pfn, level: u8, hardware: &Hardware<Self>) -> Option<(u16, u64)> {
        let entries = 1u32 << self.index_bits();
        (0..entries).find_map(|index| {
            let raw = super::entry(hardware, table, index as u16)?.load(Ordering::Acquire);
            (self.kind(raw, level) == Kind::Leaf).then_some((index as u16, raw))
        })
    }

    /// Returns the frame that an entry maps or points to, and the first frame mapped by the page
    /// table that it points to.
    fn targets(&self, raw: u64, index: u16, level: u8, hardware: &Hardware<Self>) -> Option<(Pfn, Option<Pfn>)> {
        let target = self.target(raw, index, level)?;
        if self.kind(raw, level) == Kind::Leaf {
            return Some((target, None));
        }
        let first = self.first_leaf(target, level - 1, hardware);
        Some((target, first.map(|(index, raw)| self.leaf_pfn_at(raw, index, level - 1))))
    }

    /// Returns true for a leaf of a cont block.
    fn is_cont(&self, raw: u64, level: u8) -> bool {
        self.kind(raw, level) == Kind::Leaf && block_bits(self, raw, level) > 0
    }

    /// Returns true for a leaf that hardware can use.
    fn is_live(&self, raw: u64, level: u8) -> bool {
        self.kind(raw, level) == Kind::Leaf && self.attrs(raw, level).intersects(Attrs::PROT)
    }

    /// Returns log2 of the size of a leaf, or of its cont block.
    fn mapped_shift(&self, raw: u64, level: u8) -> u32 {
        self.level_shift(level) + block_bits(self, raw, level)
    }

    /// Returns the level of leaves, or cont blocks of leaves, of this size.
    fn level_of(&self, shift: u32) -> u8 {
        (1..=self.levels()).rev().find(|level| self.level_shift(*level) <= shift).unwrap_or(1)
    }

    /// Returns true if TLBs may hold translations of these two sizes for one address at once.
    fn sizes_may_coexist(&self, one: u32, other: u32) -> bool {
        one == other || self.cont_in_place() && self.level_of(one) == self.level_of(other)
    }

    /// Returns true if two values of an entry differ in bits that hardware does not set.
    fn differ(&self, a: u64, b: u64, level: u8) -> bool {
        let mask = match self.kind(a, level) {
            Kind::Leaf => !Self::HARDWARE,
            Kind::Table => !self.table_accessed(),
            _ => !0,
        };
        (a ^ b) & mask != 0
    }
}

impl<A: Silicon> DecodePtes for A {}
