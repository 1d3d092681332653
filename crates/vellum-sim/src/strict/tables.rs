//! The tree of page tables, which the checker rebuilds from the engine's stores to entries.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

use vellum::addr::{FRAME_SHIFT, Pfn, PhysAddr};
use vellum::arch::Kind;
use vellum::platform::SpaceId;

use super::ptes::DecodePtes as _;
use super::shadow::{Checker, Table};
use super::violation::Rule;
use crate::hardware::Hardware;
use crate::walker::Silicon;

impl<A: Silicon> Checker<A> {
    pub fn born(&mut self, pfn: Pfn, level: u8, space: SpaceId, hardware: &Hardware<A>) {
        let root = level == self.arch.levels();
        let (table, roots) = (self.table(pfn).is_some(), self.roots.get(&space).copied());
        if table || root && roots.is_some() || level == 0 || level > self.arch.levels() {
            let text = format!("{pfn:?} can't become a page table of level {level} of space {}", space.0);
            self.fail(Rule::WrongTarget, text, &[pfn], &[]);
        }
        if root {
            self.roots.insert(space, pfn);
            self.poison_host_half(pfn, hardware);
        }
        let table = Table {
            level,
            space,
            hook: None,
            unhooked: 0,
            dead: false,
            owner: None,
            values: None,
            contended: HashMap::new(),
            entries: HashMap::new(),
            blocks: BTreeMap::new(),
        };
        if let Some(frame) = self.frame(pfn) {
            frame.table = Some(Box::new(table));
            self.tables.insert(pfn);
        }
        self.record_frame(pfn, true);
    }

    /// Fills the host's half of a root, as a kernel does that maps itself there: with entries that
    /// look like pointers to page tables and lead to a bus error.
    fn poison_host_half(&mut self, root: Pfn, hardware: &Hardware<A>) {
        let poison = self.arch.table_pte(PhysAddr((self.frames.len() as u64) << FRAME_SHIFT));
        for index in self.arch.user_entries(self.arch.levels())..1 << self.arch.index_bits() {
            if let Some(entry) = super::entry(hardware, root, index as u16) {
                entry.store(poison, Ordering::Release);
            }
        }
    }

    /// Checks that an entry is not the host's.
    pub fn check_user_half(&mut self, pfn: Pfn, index: u16, what: &str) {
        let Some(level) = self.table(pfn).map(|t| t.level) else { return };
        if u32::from(index) >= self.arch.user_entries(level) {
            let text = format!("CPU {} {what} entry {index} of the root {pfn:?}, which is the host's", self.cpu);
            self.fail(Rule::HostHalf, text, &[pfn], &[(pfn, index)]);
        }
    }

    pub fn dead(&mut self, pfn: Pfn) {
        if self.table(pfn).is_none() {
            return self.fail(
                Rule::WrongTarget,
                format!("{pfn:?} is announced as dead, but is not a page table"),
                &[pfn],
                &[],
            );
        }
        self.check_unhooked(pfn, false);
        if let Some(table) = self.table_mut(pfn) {
            table.dead = true;
        }
        self.record_frame(pfn, true);
    }

    /// Checks that a page table that is announced as dead, or is freed, is not hooked. A root is
    /// hooked nowhere. For a root, checks instead that no CPU has it loaded; `loaded`: one has.
    fn check_unhooked(&mut self, pfn: Pfn, loaded: bool) {
        let root = self.table(pfn).is_some_and(|t| t.level == self.arch.levels());
        if self.visible(pfn) && (!root || loaded) {
            let hook = self.table(pfn).and_then(|t| t.hook);
            let text = format!("the page table {pfn:?} is freed while it is still hooked");
            self.fail(Rule::StillHooked, text, &[pfn], hook.as_slice());
        }
    }

    pub fn free_table(&mut self, pfn: Pfn, hardware: &Hardware<A>) {
        let Some(&Table { level, space, unhooked, owner, .. }) = self.table(pfn) else {
            return;
        };
        self.check_unhooked(pfn, hardware.loaded_anywhere(space));
        if let Some(owner) = owner {
            let text = format!("the page table {pfn:?} is freed while CPU {owner} holds its lock");
            self.fail(Rule::LockOrder, text, &[pfn], &[]);
        }
        let walking = self.cpus.iter().enumerate().find_map(|(cpu, state)| {
            let walk = state.walk.as_ref()?;
            (walk.since < unhooked || walk.visited.contains(&pfn)).then_some((cpu, walk.since))
        });
        if let Some((cpu, since)) = walking {
            let text = format!(
                "the page table {pfn:?} was unhooked at event {unhooked} and is freed while CPU {cpu} still \
                 walks, since event {since}"
            );
            self.fail(Rule::TableUnderWalker, text, &[pfn], &[]);
        }
        if self.roots.get(&space) == Some(&pfn) {
            self.roots.remove(&space);
            self.lockless.remove(&space);
        }
        // Unhooks the children of a freed table.
        for (index, child) in self.arch.children(pfn, level, hardware) {
            self.unhook(child, pfn, index);
        }
        if let Some(frame) = self.frame(pfn) {
            frame.table = None;
            self.tables.remove(&pfn);
        }
        self.emptied.retain(|(table, _), _| *table != pfn);
    }

    pub fn unhook(&mut self, child: Pfn, from: Pfn, index: u16) {
        let seq = self.seq;
        if let Some(table) = self.table_mut(child).filter(|t| t.hook == Some((from, index))) {
            table.hook = None;
            table.unhooked = seq;
            self.record_frame(child, false);
        }
    }

    /// Records that an entry now points to a page table.
    pub fn hook(&mut self, child: Pfn, parent: Pfn, index: u16, hardware: &Hardware<A>) {
        let Some(&Table { level, space, .. }) = self.table(parent) else {
            return;
        };
        let fits = self.table(child).is_some_and(|t| {
            t.level + 1 == level && t.space == space && !t.dead && t.hook.is_none_or(|h| h == (parent, index))
        });
        if !fits {
            let text = format!(
                "an entry of level {level} of space {} points to {child:?}, which is not an unhooked page table \
                 of the next level of this space",
                space.0
            );
            self.fail(Rule::WrongTarget, text, &[child], &[(parent, index)]);
        }
        if let Some(table) = self.table_mut(child) {
            table.hook = Some((parent, index));
        }
        self.record_frame(child, false);
        if self.visible(parent) {
            self.publish(child, hardware);
        }
    }

    /// Records that other CPUs can see this page table from now on. An entry that the engine has
    /// not written must be zero.
    fn publish(&mut self, pfn: Pfn, hardware: &Hardware<A>) {
        let Some(level) = self.table(pfn).map(|t| t.level) else {
            return;
        };
        self.learn(pfn, hardware);
        let unwritten = self.table(pfn).and_then(|table| {
            let values = (0..).zip(table.values.iter().flatten());
            values.filter(|(_, raw)| **raw != 0).map(|(index, _)| index).find(|at| !table.entries.contains_key(at))
        });
        if let Some(index) = unwritten {
            let text = format!("the page table {pfn:?} is published with entry {index}, which nothing wrote");
            self.fail(Rule::Unexpected, text, &[pfn], &[(pfn, index)]);
        }
        for (index, child) in self.arch.children(pfn, level, hardware) {
            self.hook(child, pfn, index, hardware);
        }
        for index in 0..self.arch.user_entries(level) {
            let raw = self.table(pfn).and_then(|t| t.values.as_ref()).map_or(0, |v| v[index as usize]);
            if self.arch.kind(raw, level) == Kind::Leaf {
                self.targeted(self.arch.leaf_pfn_at(raw, index as u16, level), pfn, index as u16);
            }
        }
        self.check_blocks(pfn, level, hardware);
    }

    /// Reads a page table's entries from memory.
    pub fn learn(&mut self, pfn: Pfn, hardware: &Hardware<A>) {
        let entries = super::entries(hardware, pfn);
        let values = (0..1 << self.arch.index_bits())
            .map(|index| entries.get(index).map_or(0, |entry| entry.load(Ordering::Acquire)))
            .collect();
        if let Some(table) = self.table_mut(pfn) {
            table.values = Some(values);
        }
    }

    /// Records that an entry maps or points to this frame from now on.
    pub fn targeted(&mut self, target: Pfn, table: Pfn, index: u16) {
        let seq = self.seq;
        if let Some(frame) = self.frame(target) {
            frame.target_since = seq;
            frame.target_of = Some((table, index));
        }
    }
}
