//! All processors in one space: what one of them unmaps or forbids, none of them reaches any more.
//!
//! Every processor runs [`part`], and they meet between its steps.

use super::lab::{Checked, expect, must};
use super::memory::{
    BASE, HUGE, RW, expect_no_load, expect_no_store, expect_written, map, pages, protect, unmap, write,
};
use super::user::{self, Space, load, run_in};
use crate::arch::cpu::{after_store, relax};
use crate::arch::exit::{Outcome, exit};
use crate::arch::percpu;
use crate::arch::{hooks, interrupts};
use crate::mem::shootdown::MOST_PAGES;
use crate::mem::{Machine, now_ns};
use crate::println;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use spin::Once;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, VirtRange};
use vellum::memcg::MemcgId;
use vellum::space::FaultError::{Denied, Unmapped};
use vellum::stats::Counter;
use vellum::vma::Prot;

/// How often memory goes while others read it.
const RACES: u64 = 20;
/// How often each processor maps and unmaps memory of its own beside the others.
const ROUNDS: u64 = 20;
/// Two processors shake hands so often, or for so long: each handshake takes a time slice of the
/// host where both processors share one of its CPUs.
const HANDSHAKES: u64 = 200_000;
const HANDSHAKES_NS: u64 = 10_000_000_000;

static SPACE: Once<Space> = Once::new();
static CPUS: AtomicUsize = AtomicUsize::new(0);
/// How often processors have come to a meeting.
static ARRIVED: AtomicUsize = AtomicUsize::new(0);
/// The last race whose memory has gone.
static GONE: AtomicU64 = AtomicU64::new(0);
/// The last handshake; the first processor says so before it comes to it.
static LAST: AtomicU64 = AtomicU64::new(HANDSHAKES);
/// The handshake that each of two processors has come to, and the last of the other's that it saw.
/// Far apart, so that no cache line holds two.
static SAID: [Apart; 2] = [const { Apart(AtomicU64::new(0)) }; 2];
static SEEN: [Apart; 2] = [const { Apart(AtomicU64::new(0)) }; 2];

#[repr(align(128))]
struct Apart(AtomicU64);

/// Prepares the check, which all processors then do by [`part`].
pub fn prepare(machine: &'static Machine, cpus: usize) -> Checked {
    hooks::set_page_fault(user::resolve);
    let space = must("make a space", user::new_space(machine, MemcgId::ROOT))?;
    SPACE.call_once(|| space);
    CPUS.store(cpus, SeqCst);
    Ok(())
}

/// One processor's part; ends the machine.
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
        if expect("memory left", (stats.mapped, stats.anon), (0, 0)).is_err() {
            exit(Outcome::Failure);
        }
        let flushes = space.machine().counter(Counter::Flushes);
        println!("{} processors in one space, {flushes} invalidations", CPUS.load(SeqCst));
        println!("vellum-kernel: success");
        exit(Outcome::Success);
    }
    // Asleep, so that the two that shake hands run at the same time, on a host with two processors too.
    loop {
        interrupts::halt();
    }
}

/// Tells the others that this processor is here, and returns how many were before it, at all meetings.
fn arrive() -> usize {
    ARRIVED.fetch_add(1, SeqCst)
}

/// Waits until all processors are here.
fn meet() {
    let (cpus, number) = (CPUS.load(SeqCst), arrive());
    while ARRIVED.load(SeqCst) / cpus <= number / cpus {
        relax();
    }
}

/// Every processor has every page in its TLB; then one of them forbids writing, and then unmaps.
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

/// One processor unmaps what the others read, and uses the memory for something else at once.
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
                        Ok(value) => expect("contents, while it is there", (value, gone), (race, false))?,
                        Err(error) => break expect("why it is refused", error, Unmapped(page))?,
                    }
                }
            }
        }
        meet();
    }
    Ok(())
}

/// Each processor has memory of its own in the space, and all of them map, protect and unmap at once: so that many
/// shootdowns wait for processors that wait themselves.
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

/// Two processors store and then look, again and again: at least one of them sees the other each
/// time. What tells a processor that loads a space from one that changes its tables rests on that.
fn handshake(me: usize) -> Checked {
    let other = 1 - me;
    let mut missed = 0u64;
    let start = now_ns();
    for round in 1.. {
        if me == 0 && now_ns() - start > HANDSHAKES_NS {
            LAST.fetch_min(round, SeqCst);
        }
        SAID[me].0.store(round, SeqCst);
        after_store();
        let saw = SAID[other].0.load(SeqCst) >= round;
        SEEN[me].0.store(round << 1 | u64::from(saw), SeqCst);
        let others = loop {
            let seen = SEEN[other].0.load(SeqCst);
            if seen >> 1 >= round {
                break seen;
            }
            relax();
        };
        // One that is ahead has seen this one's store, or would wait.
        missed += u64::from(!saw && others == round << 1);
        // The first has said which is the last before the other one can have seen it here.
        if round >= LAST.load(SeqCst) {
            break;
        }
    }
    expect("handshakes that neither saw", missed, 0)
}
