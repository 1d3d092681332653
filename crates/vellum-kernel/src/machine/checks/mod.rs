//! The checks: the engine on a real page table, one story after the other.
//!
//! A story gets an empty group and makes its spaces in it. It touches their memory through the processor's MMU, looks
//! at the same frames through the direct map, and compares every counter with what it must be. A check that fails says
//! what was expected and what was found, and ends the run. After each story everything must be back where it was: every
//! frame free, and merged with its neighbours as before.
//!
//! | file | story |
//! |---|---|
//! | [`copies`] | bytes of any number, from anywhere to anywhere |
//! | [`boot`] | from the memory map to an allocator |
//! | [`sizes`] | 64 MiB in folios of each size: mapped, touched, unmapped |
//! | [`zeros`] | memory that was only read; contents that are not needed any more |
//! | [`rights`] | read-only, nothing at all, no execution |
//! | [`bits`] | accessed and dirty, as the processor sets them |
//! | [`pieces`] | parts of huge mappings |
//! | [`stack`] | growing downward |
//! | [`limits`] | a group's limit; no memory left |
//! | [`edges`] | the first and the last addresses of user mode |
//! | [`switch`] | two spaces, and the same addresses in both |
//!
//! [`lab`], [`memory`] and [`user`] are what they have in common.

mod bits;
mod boot;
mod copies;
mod edges;
mod lab;
mod limits;
mod memory;
mod pieces;
pub mod processors;
mod rights;
mod sizes;
mod stack;
mod switch;
pub mod user;
mod zeros;

use crate::arch::hooks;
use crate::mem::{self, Machine};
use crate::println;
use lab::{Checked, Lab, expect, must};
use vellum::frame::MAX_ORDER;
use vellum::memcg::MemcgId;
use vellum::stats::Counter;

/// A name, and what is checked.
type Story = (&'static str, fn(&Lab) -> Checked);

const STORIES: [Story; 11] = [
    ("copies", copies::story),
    ("boot", boot::story),
    ("sizes", sizes::story),
    ("zeros", zeros::story),
    ("rights", rights::story),
    ("bits", bits::story),
    ("pieces", pieces::story),
    ("stack", stack::story),
    ("limits", limits::story),
    ("edges", edges::story),
    ("switch", switch::story),
];

/// Checks all stories, or those whose name is given. `counted`: time is instructions, and they are told.
pub fn run(machine: &'static Machine, only: &str, counted: bool) -> Checked {
    hooks::set_page_fault(user::resolve);
    let groups = machine.memcgs();
    let stories = || STORIES.iter().filter(|(name, _)| only.is_empty() || *name == only);
    expect("there is such a story", stories().count() > 0, true)?;
    for (name, story) in stories() {
        let before = Baseline::of(machine);
        let group = must("create a group", groups.create(machine.frames(), MemcgId::ROOT, u64::MAX))?;
        println!("{name}");
        story(&Lab { machine, group, counted })?;
        // Refused if anything is still charged to it.
        must("remove the group", groups.remove(machine.frames(), group))?;
        expect("memory after the story", Baseline::of(machine), before)?;
    }
    let counts = |counter| machine.counter(counter);
    expect("tables freed", counts(Counter::TablesFreed), counts(Counter::TablesAllocated))?;
    println!("all is back: {} frames free; {}", machine.frames().free_frames(), mem::Tally);
    Ok(())
}

/// How free memory lies: with nothing in the processor's cache, and so each block merged as far as it goes.
#[derive(Debug, PartialEq)]
struct Baseline {
    free: u64,
    blocks: [u64; MAX_ORDER as usize + 1],
    charged: u64,
}

impl Baseline {
    fn of(machine: &Machine) -> Self {
        let frames = machine.frames();
        frames.drain();
        let usage = machine.memcgs().usage(frames, MemcgId::ROOT);
        Self {
            free: frames.free_frames(),
            blocks: frames.free_blocks_on(0),
            charged: usage.map_or(u64::MAX, |usage| usage.charged),
        }
    }
}
