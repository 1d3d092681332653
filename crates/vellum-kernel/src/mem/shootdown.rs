//! Invalidating translations, here and on other processors.
//!
//! One shootdown is under way at a time. Who wants one writes down what is to be dropped and who is to drop it, sends each
//! of them an interrupt, and waits until all have struck themselves off. Who waits, for the others or for its turn, answers
//! meanwhile, even with interrupts off: so two processors never wait for each other.
//!
//! Only processors that have the space loaded are asked; one with nothing to do has none loaded. One whose TLB may hold
//! translations of it all the same sees that they are old when it loads the space again ([`vellum_kernel::tags`]).

use crate::arch::paging::{flush_page, flush_user};
use crate::arch::{apic, percpu};
use crate::mem::space::Change;
use core::ptr;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
use spin::Mutex;
use vellum::addr::VirtRange;
use vellum::platform::{CpuSet, Invalidation};
use x86_64::instructions::interrupts::without_interrupts;

/// An invalidation of more pages than this drops the whole user half: to fill the TLB again costs less than to ask
/// about every page. The number is Linux's (`tlb_single_page_flush_ceiling`).
pub const MOST_PAGES: u64 = 33;

/// Held by whose shootdown is under way.
static TURN: Mutex<()> = Mutex::new(());
/// What it is about: see [`Invalidation`].
static RANGES: AtomicPtr<VirtRange> = AtomicPtr::new(ptr::null_mut());
static RANGE_COUNT: AtomicUsize = AtomicUsize::new(0);
static STRIDE_SHIFT: AtomicU32 = AtomicU32::new(0);
static SPACE: AtomicU32 = AtomicU32::new(0);
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// The processors that have not answered yet, a bit each.
static UNANSWERED: AtomicU64 = AtomicU64::new(0);

/// Invalidates on each processor of the set, and returns when all have done so.
pub fn invalidate(what: &Invalidation<'_>, cpus: &CpuSet) {
    let here = percpu::current().index;
    let change = Change::of(what.space);
    let (mut others, mut concerned) = (0u64, false);
    for cpu in cpus.iter().filter(|cpu| change.concerns(*cpu)) {
        match cpu == here {
            true => concerned = true,
            false => others |= 1 << cpu,
        }
    }
    if others == 0 {
        if concerned {
            drop_here(what.ranges, what.stride_shift, change);
        }
        return;
    }
    let _turn = loop {
        if let Some(turn) = TURN.try_lock() {
            break turn;
        }
        answer_if_asked();
    };
    RANGES.store(what.ranges.as_ptr().cast_mut(), Relaxed);
    RANGE_COUNT.store(what.ranges.len(), Relaxed);
    STRIDE_SHIFT.store(what.stride_shift, Relaxed);
    SPACE.store(change.space, Relaxed);
    GENERATION.store(change.generation, Relaxed);
    UNANSWERED.store(others, SeqCst);
    (0..u64::BITS as usize).filter(|cpu| others >> cpu & 1 != 0).for_each(|cpu| apic::send(cpu, apic::SHOOTDOWN));
    if concerned {
        drop_here(what.ranges, what.stride_shift, change);
    }
    while UNANSWERED.load(Acquire) != 0 {
        core::hint::spin_loop();
    }
}

/// Does this processor's part of the shootdown that is under way, if it has one: the interrupt's handler. Interrupts are off,
/// as whoever has answered must not look at the ranges any more.
pub fn answer() {
    let me = 1u64 << percpu::current().index;
    if UNANSWERED.load(Acquire) & me == 0 {
        return;
    }
    // SAFETY: whoever began the shootdown lends the ranges until all have answered, and this processor has not.
    let ranges = unsafe { core::slice::from_raw_parts(RANGES.load(Relaxed), RANGE_COUNT.load(Relaxed)) };
    let change = Change { space: SPACE.load(Relaxed), generation: GENERATION.load(Relaxed) };
    drop_here(ranges, STRIDE_SHIFT.load(Relaxed), change);
    UNANSWERED.fetch_and(!me, Release);
}

fn answer_if_asked() {
    core::hint::spin_loop();
    without_interrupts(answer);
}

/// Drops this processor's translations.
///
/// Loading CR3 drops every translation of user memory, none of which is global, and all that is cached of tables. INVLPG
/// drops the translation of the page at its address, of whatever size, and all that is cached of the space's tables (Intel SDM, volume 3A, "Operations that Invalidate TLBs and Paging-Structure Caches"): so after the first of
/// them [`Invalidation::tables`] is served too, and no range is empty.
fn drop_here(ranges: &[VirtRange], stride_shift: u32, change: Change) {
    let stride = 1 << stride_shift;
    let pages: u64 = ranges.iter().map(|range| range.len().div_ceil(stride)).sum();
    let all = ranges.is_empty() || pages > MOST_PAGES;
    if all {
        flush_user();
    } else {
        for range in ranges {
            (range.start..range.end).step_by(stride as usize).for_each(flush_page);
        }
    }
    change.heard(all);
}
