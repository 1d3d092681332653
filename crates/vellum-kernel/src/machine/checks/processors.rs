//! Checks TLB shootdowns: after one CPU unmaps or protects memory, no CPU can access it any more.
//!
//! All CPUs run [`part`] in one address space, and meet at a barrier between its steps.

use super::lab::{Checked, expect, must};
use super::memory::{
    BASE, HUGE, RW, expect_no_load, expect_no_store, expect_written, map, pages, protect, unmap, write,
};
use super::user::{self, Space, load, run_in};
use crate::arch::cpu::{relax, store_load_barrier};
use crate::arch::exit::{Outcome, exit};
use crate::arch::percpu;
use crate::arch::serial::println;
use crate::arch::{hooks, interrupts};
use crate::mem::shootdown::MOST_PAGES;
use crate::mem::{Machine, now_ns};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use spin::Once;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, VirtRange};
use vellum::memcg::MemcgId;
use vellum::space::FaultError::{Denied, Unmapped};
use vellum::stats::Counter;
use vellum::vma::Prot;

/// The number of times that memory is unmapped while other CPUs read it.
const RACES: u64 = 20;
/// The number of times that each CPU maps and unmaps its own memory beside the others.
const ROUNDS: u64 = 20;
/// The limits of the store-then-load test, by count and by time. On a host with too few CPUs each
/// round takes a time slice.
const HANDSHAKES: u64 = 200_000;
const HANDSHAKES_NS: u64 = 10_000_000_000;

static SPACE: Once<Space> = Once::new();
static CPUS: AtomicUsize = AtomicUsize::new(0);
/// The number of arrivals at all barriers.
static ARRIVED: AtomicUsize = AtomicUsize::new(0);
/// The last race whose memory was unmapped.
static GONE: AtomicU64 = AtomicU64::new(0);
/// The number of the last round. The first CPU sets it before it reaches that round.
static LAST: AtomicU64 = AtomicU64::new(HANDSHAKES);
/// The round that each of the two CPUs has reached, in a cache line for each.
static SAID: [Apart; 2] = [const { Apart(AtomicU64::new(0)) }; 2];
/// The last round in which each of the two CPUs read the other's word of [`SAID`], shifted left by
/// one. Bit 0 is set if it found there that the other had reached the round.
static SEEN: [Apart; 2] = [const { Apart(AtomicU64::new(0)) }; 2];

#[repr(align(128))]
struct Apart(AtomicU64);

/// Prepares the check, which all CPUs then run by [`part`].
pub fn prepare(machine: &'static Machine, cpus: usize) -> Checked {
    hooks::set_page_fault(user::resolve);
    let space = must("create an address space", user::new_space(machine, MemcgId::ROOT))?;
    SPACE.call_once(|| space);
    CPUS.store(cpus, SeqCst);
    Ok(())
}

/// Runs one CPU's part of the check, and stops the machine at its end.
pub fn part() -> ! {
    let space = SPACE.wait();
    let me = percpu::current().index;
    let outcome = run_in(space, || {
        in_turn(space, me)?;
        while_it_goes(space, me)?;
        side_by_side(space, me)?;
        meet();
        if me < 2 && CPUS.load(SeqCst) > 1 { handshake(me) } else { Ok(()) }
    });
    if outcome.is_err() {
        exit(Outcome::Failure);
    }
    if me < 2 {
        meet();
    } else {
        arrive();
    }
    if me == 0 {
        let stats = space.stats();
        if expect("memory still mapped", (stats.mapped, stats.anon), (0, 0)).is_err() {
            exit(Outcome::Failure);
        }
        let flushes = space.machine().counter(Counter::Flushes);
        println!("{} CPUs in one space, {flushes} invalidations", CPUS.load(SeqCst));
        println!("vellum-kernel: success");
        exit(Outcome::Success);
    }
    // The other CPUs sleep, so that the two tested run at the same time on a host with two CPUs
    // too.
    loop {
        interrupts::halt();
    }
}

/// Counts this CPU's arrival at a barrier. Returns the earlier arrivals, at all barriers.
fn arrive() -> usize {
    ARRIVED.fetch_add(1, SeqCst)
}

/// Waits at a barrier for all CPUs.
fn meet() {
    let (cpus, number) = (CPUS.load(SeqCst), arrive());
    while ARRIVED.load(SeqCst) / cpus <= number / cpus {
        relax();
    }
}

/// Checks that pages that all CPUs have in their TLBs can't be written by any CPU after one CPU has
/// write-protected them, nor accessed after it has unmapped them.
fn in_turn(space: &Space, me: usize) -> Checked {
    let first = |what: &dyn Fn() -> Checked| {
        meet();
        let outcome = if me == 0 { what() } else { Ok(()) };
        meet();
        outcome
    };
    for pages in [1, MOST_PAGES, MOST_PAGES + 1, 700, HUGE >> FRAME_SHIFT] {
        let range = VirtRange { start: BASE, end: BASE + (pages << FRAME_SHIFT) };
        first(&|| {
            map(space, range, RW)?;
            write(range)
        })?;
        expect_written(range)?;
        first(&|| protect(space, range, Prot::READ))?;
        expect_written(range)?;
        expect_no_store(range, Denied)?;
        first(&|| unmap(space, range))?;
        expect_no_load(range, Unmapped)?;
    }
    meet();
    Ok(())
}

/// Checks that no CPU reads memory that another CPU has unmapped and reuses at once.
fn while_it_goes(space: &Space, me: usize) -> Checked {
    const PAGES: u64 = 8;
    let range = VirtRange { start: BASE, end: BASE + PAGES * FRAME_SIZE };
    let other = VirtRange { start: BASE + HUGE, end: BASE + HUGE + PAGES * FRAME_SIZE };
    for race in 1..=RACES {
        if me == 0 {
            map(space, range, RW)?;
            for page in pages(range) {
                must("write", user::store(page, race))?;
            }
        }
        meet();
        if me == 0 {
            unmap(space, range)?;
            GONE.store(race, SeqCst);
            map(space, other, RW)?;
            write(other)?;
            unmap(space, other)?;
        } else {
            for page in pages(range) {
                loop {
                    let gone = GONE.load(SeqCst) == race;
                    match load(page) {
                        Ok(value) => expect("contents while mapped", (value, gone), (race, false))?,
                        Err(error) => break expect("the error of the refused access", error, Unmapped(page))?,
                    }
                }
            }
        }
        meet();
    }
    Ok(())
}

/// Lets each CPU map, protect and unmap its own memory in the shared space, all at the same time,
/// so that many shootdowns wait for CPUs that wait for shootdowns themselves.
fn side_by_side(space: &Space, me: usize) -> Checked {
    let start = BASE + me as u64 * 4 * HUGE;
    for round in 0..ROUNDS {
        let range = VirtRange { start, end: start + ((round % 50 + 1) << FRAME_SHIFT) };
        map(space, range, RW)?;
        write(range)?;
        protect(space, range, Prot::READ)?;
        expect_written(range)?;
        expect_no_store(range, Denied)?;
        unmap(space, range)?;
        expect_no_load(range, Unmapped)?;
    }
    Ok(())
}

/// Checks that of two CPUs that each store and then load, at least one sees the other's store, in
/// each of many rounds. The protocol between a CPU that loads an address space and one that changes
/// its page tables relies on this.
fn handshake(me: usize) -> Checked {
    let other = 1 - me;
    let mut missed = 0u64;
    let start = now_ns();
    for round in 1.. {
        if me == 0 && now_ns() - start > HANDSHAKES_NS {
            LAST.fetch_min(round, SeqCst);
        }
        SAID[me].0.store(round, SeqCst);
        store_load_barrier();
        let saw = SAID[other].0.load(SeqCst) >= round;
        SEEN[me].0.store(round << 1 | u64::from(saw), SeqCst);
        let others = loop {
            let seen = SEEN[other].0.load(SeqCst);
            if seen >> 1 >= round {
                break seen;
            }
            relax();
        };
        // A CPU that is one round ahead has seen this CPU's store, or it would still wait.
        missed += u64::from(!saw && others == round << 1);
        // The first CPU has set the last round before the other can see it here.
        if round >= LAST.load(SeqCst) {
            break;
        }
    }
    expect("rounds in which neither CPU saw the other's store", missed, 0)
}
