//! Describes a block of instructions when QEMU translates it.

use crate::roles::{Place, Role, Roles};
use crate::tally::{Cause, Tally};
use std::collections::HashMap;
use std::ops::Range;

/// Addresses with this bit are the kernel's, on x86-64 and on AArch64.
const KERNEL: u64 = 1 << 63;

/// A translated block, in a word that QEMU passes on with each execution: bit 0 is set for user
/// mode, bit 1 if the block ends with the return from an exception, and the bits above have one
/// more than the number of its mark, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block(pub usize);

impl Block {
    /// A block in user mode.
    pub const USER: Self = Self(1);
    /// A block in the kernel without a mark, which does not return from an exception.
    pub const KERNEL: Self = Self(0);

    /// Returns whether the block is in the user half of the address space.
    pub fn is_user(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns whether the block ends with the return from an exception.
    pub fn returns(self) -> bool {
        self.0 & 2 != 0
    }

    pub(super) fn mark(self) -> Option<usize> {
        (self.0 >> 2).checked_sub(1)
    }
}

/// The meaning of a place: a [`Role`], with causes for names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Entry(Cause),
    Unnamed(Cause),
    Names(Cause),
    Switch,
    Start,
    Idle,
}

/// The places of a kernel, for a search by address.
pub struct Marks {
    /// Ascending, without overlaps.
    places: Vec<(Range<u64>, Mark)>,
    returns: Vec<Range<u64>>,
    notes: Vec<Range<u64>>,
    noted: HashMap<u64, Cause>,
}

impl Marks {
    /// Returns the marks for these roles. Adds their causes to the tally.
    pub fn new(roles: &Roles, tally: &mut Tally) -> Self {
        let mut places = Vec::new();
        let mut notes = Vec::new();
        for Place { range, role } in &roles.places {
            let mark = match role {
                Role::Entry(name) => Mark::Entry(tally.cause(name)),
                Role::Unnamed(name) => Mark::Unnamed(tally.cause(name)),
                Role::Names(name) => Mark::Names(tally.cause(name)),
                Role::Switch => Mark::Switch,
                Role::Start => Mark::Start,
                Role::Idle => Mark::Idle,
                Role::Notes => {
                    notes.push(range.clone());
                    continue;
                }
            };
            places.push((range.clone(), mark));
        }
        places.sort_by_key(|(range, _)| range.start);
        let (table, causes) = roles.table.clone().unwrap_or_default();
        let noted = causes.iter().map(|(at, name)| (table + at, tally.cause(name))).collect();
        Self { places, returns: roles.returns.clone(), notes, noted }
    }

    fn at(&self, address: u64) -> Option<usize> {
        let next = self.places.partition_point(|(range, _)| range.start <= address);
        next.checked_sub(1).filter(|at| self.places[*at].0.contains(&address))
    }

    pub(super) fn get(&self, mark: usize) -> Option<Mark> {
        self.places.get(mark).map(|(_, mark)| *mark)
    }

    pub(super) fn noted(&self, address: u64) -> Option<Cause> {
        self.noted.get(&address).copied()
    }

    pub(super) fn describe(&self, start: u64, returns: bool) -> Block {
        if start & KERNEL == 0 {
            return Block::USER;
        }
        let returns = returns && (self.returns.is_empty() || self.returns.iter().any(|range| range.contains(&start)));
        // Inside the function that switches, only its beginning is the mark.
        let mark = self.at(start).filter(|at| self.places[*at].1 != Mark::Switch || self.places[*at].0.start == start);
        Block(mark.map_or(0, |mark| mark + 1) << 2 | usize::from(returns) << 1)
    }

    /// Returns whether the instruction belongs to the function that switches.
    pub fn is_in_switch(&self, address: u64) -> bool {
        self.at(address).is_some_and(|at| self.places[at].1 == Mark::Switch)
    }

    /// Returns whether the instruction belongs to the function that notes causes.
    pub fn is_in_notes(&self, address: u64) -> bool {
        self.notes.iter().any(|range| range.contains(&address))
    }
}
