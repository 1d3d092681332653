//! Checks the engine on real page tables, without user programs.
//!
//! A check gets an empty memcg and creates its address spaces in it. It accesses their memory
//! through the MMU, reads the same frames through the direct map, and compares every counter with
//! its expected value. A failed check prints what was expected and what was found, and ends the
//! run. After each check all memory must be as before: every frame free, and merged with its
//! neighbours.
//!
//! | file | checks |
//! |---|---|
//! | [`copies`] | `memcpy` and `memset` at every length and alignment |
//! | [`boot`] | from the memory map to the allocator |
//! | [`sizes`] | 64 MiB in folios of each size: mapped, touched, unmapped |
//! | [`zeros`] | the zero folio, and `MADV_DONTNEED` |
//! | [`rights`] | read-only, inaccessible and executable memory |
//! | [`bits`] | accessed and dirty bits, as the CPU sets them |
//! | [`pieces`] | unmapping and protecting parts of huge pages |
//! | [`stack`] | VMAs that grow downward |
//! | [`limits`] | a memcg's limit; a machine out of memory |
//! | [`heap`] | blocks of the heap while free memory is in pieces |
//! | [`edges`] | the lowest and highest user addresses |
//! | [`switch`] | switches between two spaces with the same addresses |
//!
//! [`lab`], [`memory`] and [`user`] are shared by the checks.

mod bits;
mod boot;
mod copies;
mod edges;
mod heap;
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
use crate::arch::serial::println;
use crate::mem::{self, Machine};
use lab::{Checked, Lab, expect, must};
use vellum::frame::MAX_ORDER;
use vellum::memcg::MemcgId;
use vellum::stats::Counter;

/// A check's name and function.
type Check = (&'static str, fn(&Lab) -> Checked);

const CHECKS: [Check; 12] = [
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
    ("heap", heap::story),
    ("switch", switch::story),
];

/// Runs all checks, or those with the name `only`. With `counted`, time is counted in instructions,
/// and the counts are printed.
pub fn run(machine: &'static Machine, only: &str, counted: bool) -> Checked {
    hooks::set_page_fault(user::resolve);
    let groups = machine.memcgs();
    let selected = || CHECKS.iter().filter(|(name, _)| only.is_empty() || *name == only);
    expect("a check has the given name", selected().count() > 0, true)?;
    for (name, story) in selected() {
        let before = Baseline::of(machine);
        let group = must("create a memcg", groups.create(machine.frames(), MemcgId::ROOT, u64::MAX))?;
        println!("{name}");
        story(&Lab { machine, group, counted })?;
        // The engine refuses to remove a memcg that still has a charge.
        must("remove the memcg", groups.remove(machine.frames(), group))?;
        expect("free memory after the check", Baseline::of(machine), before)?;
    }
    let counts = |counter| machine.counter(counter);
    expect("tables freed", counts(Counter::TablesFreed), counts(Counter::TablesAllocated))?;
    println!("all memory is freed: {} frames free; {}", machine.frames().free_frames(), mem::CounterSummary);
    Ok(())
}

/// The state of free memory, with the per-CPU caches drained, so that every block is fully merged.
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
