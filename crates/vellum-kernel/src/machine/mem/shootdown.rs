//! Invalidating translations, here and on other processors.
//!
//! Who wants others to drop something writes down what, in a place of its own, notes for each of them that it has asked, and
//! waits until all have struck themselves off. Only the first who asks a processor sends it an interrupt: it looks who else has
//! asked. Who waits answers meanwhile, even with interrupts off: so processors never wait for each other in a circle.
//!
//! Only processors that have the space loaded are asked; one with nothing to do has none loaded. One whose TLB may hold
//! translations of it all the same sees that they are old when it loads the space again ([`vellum_kernel::tags`]).

use crate::arch::cpu::relax;
use crate::arch::paging::{flush_pages, flush_user, publish};
use crate::arch::percpu::{self, MAX_CPUS};
use crate::arch::{interrupts, irq};
use crate::mem::machine;
use crate::mem::space::{self, Change};
use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU64, fence};
use vellum::addr::VirtRange;
use vellum::platform::{CpuSet, Cpus, Invalidation};

/// An invalidation of more pages than this drops the whole user half: to fill the TLB again costs less than to ask
/// about every page. The number is Linux's (`tlb_single_page_flush_ceiling`).
pub const MOST_PAGES: u64 = 33;

/// What is to be done.
enum Work<'a> {
    /// To drop translations.
    Drop { ranges: &'a [VirtRange], stride_shift: u32, change: Change },
    /// Nothing: to be asked is a barrier.
    Barrier,
}

/// What a processor asks others to do.
struct Request {
    /// Lent by the one who asks, until all have answered.
    work: AtomicPtr<Work<'static>>,
    /// Who has not answered yet, a bit each.
    unanswered: AtomicU64,
}

static REQUESTS: [Request; MAX_CPUS] =
    [const { Request { work: AtomicPtr::new(ptr::null_mut()), unanswered: AtomicU64::new(0) } }; MAX_CPUS];
/// For each processor, who has asked it, a bit each.
static ASKED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

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
    publish();
    ask(others, concerned, &Work::Drop { ranges: what.ranges, stride_shift: what.stride_shift, change });
}

/// Invalidates on this processor alone, if it has the space loaded, so that what faulted there sees
/// what the tables allow now. If it has not, it may go on holding old translations of the space,
/// and whatever faults by one comes here again.
pub fn invalidate_local(what: &Invalidation<'_>) {
    if space::is_loaded(what.space, percpu::current().index) {
        drop_translations(what.ranges, what.stride_shift);
    }
}

/// Returns when every processor has had a barrier since this was called.
pub fn barrier() {
    let all = (1 << machine().platform().count()) - 1;
    ask(all & !(1 << percpu::current().index), true, &Work::Barrier);
}

fn ask(others: u64, myself: bool, work: &Work<'_>) {
    let here = percpu::current().index;
    let request = &REQUESTS[here];
    request.work.store(ptr::from_ref(work).cast_mut().cast(), Relaxed);
    request.unanswered.store(others, Relaxed);
    for cpu in bits(others) {
        if ASKED[cpu].fetch_or(1 << here, AcqRel) == 0 {
            irq::send(cpu, irq::SHOOTDOWN);
        }
    }
    if myself {
        work.carry_out();
    }
    while request.unanswered.load(Acquire) != 0 {
        relax();
        interrupts::without(answer);
    }
}

/// Does what others have asked of this processor: the interrupt's handler. Interrupts are off, as whoever has answered must
/// not look at the request any more.
pub fn answer() {
    let here = percpu::current().index;
    if ASKED[here].load(Relaxed) == 0 {
        return;
    }
    for cpu in bits(ASKED[here].swap(0, AcqRel)) {
        let request = &REQUESTS[cpu];
        // SAFETY: written before this processor was asked, and lent until it has answered, which it has not.
        unsafe { &*request.work.load(Relaxed) }.carry_out();
        request.unanswered.fetch_and(!(1 << here), Release);
    }
}

/// The numbers of the bits that are set.
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let first = set.checked_ilog2()?;
        set &= !(1 << first);
        Some(first as usize)
    })
}

impl Work<'_> {
    /// This processor's part. A page's translation goes with all that is cached of the tables that lead to it, so that
    /// [`Invalidation::tables`] is served too.
    fn carry_out(&self) {
        let Work::Drop { ranges, stride_shift, change } = *self else { return fence(SeqCst) };
        let all = drop_translations(ranges, stride_shift);
        change.heard(all);
    }
}

/// Drops this processor's translations of some ranges of the space that it has loaded; whether all
/// of that space's, as that is less work.
fn drop_translations(ranges: &[VirtRange], stride_shift: u32) -> bool {
    let stride = 1 << stride_shift;
    let pages: u64 = ranges.iter().map(|range| range.len().div_ceil(stride)).sum();
    let all = ranges.is_empty() || pages > MOST_PAGES;
    if all {
        flush_user();
    } else {
        flush_pages(ranges.iter().flat_map(|range| (range.start..range.end).step_by(stride as usize)));
    }
    all
}
