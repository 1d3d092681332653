//! TLB shootdown: invalidates translations on this CPU and on other CPUs.
//!
//! Each CPU has one request slot. The initiator writes its request there, sets its bit in the
//! pending mask of every target CPU, and spins until every target has cleared its bit in the
//! request. Only the initiator that finds a target's mask empty sends it an interrupt; the handler
//! then serves all initiators in the mask. A spinning initiator serves the requests of others
//! meanwhile, even with interrupts off, so that CPUs never wait for each other in a circle.
//!
//! Only CPUs that have the space loaded are interrupted; an idle CPU has none loaded. A CPU whose
//! TLB may still hold translations of a space that it has not loaded finds by the space's
//! generation that they are stale when it loads the space again ([`vellum_kernel::tags`]).

use crate::arch::cpu::relax;
use crate::arch::paging::{flush_pages, flush_user, publish};
use crate::arch::percpu::{self, MAX_CPUS};
use crate::arch::{interrupts, irq};
use crate::mem::machine;
use crate::mem::space::{self, Change};
use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU64, fence};
use vellum::addr::{FRAME_SIZE, VirtRange};
use vellum::platform::{CpuSet, Cpus, Invalidation};

/// An invalidation of more pages than this flushes the whole user half: refilling the TLB costs
/// less than invalidating page by page. The value is Linux's `tlb_single_page_flush_ceiling`.
pub const MOST_PAGES: u64 = 33;

/// The work that a target CPU does for a request.
enum Work<'a> {
    /// Invalidate translations.
    Flush { ranges: &'a [VirtRange], stride_shift: u32, change: Change },
    /// Invalidate translations of the kernel half, which all spaces share.
    FlushKernel(VirtRange),
    /// Nothing: receiving the request is a memory barrier.
    Barrier,
}

/// The request of one initiating CPU to others.
struct Request {
    /// The initiator's work, on its stack; valid until all targets have answered.
    work: AtomicPtr<Work<'static>>,
    /// A bit for each target CPU that has not answered yet.
    unanswered: AtomicU64,
}

static REQUESTS: [Request; MAX_CPUS] =
    [const { Request { work: AtomicPtr::new(ptr::null_mut()), unanswered: AtomicU64::new(0) } }; MAX_CPUS];
/// For each target CPU, a bit for each CPU whose request is pending there.
static PENDING: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// Invalidates translations on each CPU of the set that has the space loaded. Returns when all have
/// done so, after which the engine may free what was mapped (INV-1). Interrupts may be off.
pub fn invalidate(what: &Invalidation<'_>, cpus: &CpuSet) {
    let here = percpu::current().index;
    let change = Change::of(what.space);
    let (mut others, mut concerned) = (0u64, false);
    for cpu in cpus.iter().filter(|cpu| change.is_loaded_on(*cpu)) {
        match cpu == here {
            true => concerned = true,
            false => others |= 1 << cpu,
        }
    }
    publish();
    request(others, concerned, &Work::Flush { ranges: what.ranges, stride_shift: what.stride_shift, change });
}

/// Invalidates on this CPU alone, if it has the space loaded, so that a retried access sees the
/// present PTEs (INV-20; Linux: `flush_tlb_fix_spurious_fault`). A CPU that has not loaded the
/// space may keep stale translations; an access that faults by one of them comes here again.
pub fn invalidate_local(what: &Invalidation<'_>) {
    if space::is_loaded(what.space, percpu::current().index) {
        drop_translations(what.ranges, what.stride_shift);
    }
}

/// Returns when every CPU has invalidated its translations of a range of the kernel half's pages.
pub fn invalidate_kernel(range: VirtRange) {
    publish();
    request_all(&Work::FlushKernel(range));
}

/// Returns when every CPU has executed a memory barrier since the call (`membarrier`).
pub fn barrier() {
    request_all(&Work::Barrier);
}

/// Sends a request to all CPUs, and waits until all have answered.
fn request_all(work: &Work<'_>) {
    let all = (1 << machine().platform().count()) - 1;
    request(all & !(1 << percpu::current().index), true, work);
}

/// Sends a request to the CPUs in the bit set `others`, does the work on this CPU too if `myself`
/// is true, and waits until all have answered.
fn request(others: u64, myself: bool, work: &Work<'_>) {
    let here = percpu::current().index;
    let request = &REQUESTS[here];
    request.work.store(ptr::from_ref(work).cast_mut().cast(), Relaxed);
    request.unanswered.store(others, Relaxed);
    for cpu in bits(others) {
        if PENDING[cpu].fetch_or(1 << here, AcqRel) == 0 {
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

/// Serves the requests that are pending for this CPU; the interrupt's handler. Interrupts are off:
/// after answering, the CPU must not access the request any more, because the initiator's stack
/// frame may be gone.
pub fn answer() {
    let here = percpu::current().index;
    if PENDING[here].load(Relaxed) == 0 {
        return;
    }
    for cpu in bits(PENDING[here].swap(0, AcqRel)) {
        let request = &REQUESTS[cpu];
        // SAFETY: the initiator wrote the work before it set this CPU's pending bit, and keeps it
        // until this CPU answers below.
        unsafe { &*request.work.load(Relaxed) }.carry_out();
        request.unanswered.fetch_and(!(1 << here), Release);
    }
}

/// Iterates over the numbers of the set bits, highest first.
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let first = set.checked_ilog2()?;
        set &= !(1 << first);
        Some(first as usize)
    })
}

impl Work<'_> {
    /// Does this CPU's share of the work. Invalidating a page's translation also drops the
    /// paging-structure caches that lead to it, which serves [`Invalidation::tables`] too.
    fn carry_out(&self) {
        match *self {
            Work::Flush { ranges, stride_shift, change } => {
                change.record_flush(drop_translations(ranges, stride_shift));
            }
            Work::FlushKernel(range) => flush_pages((range.start..range.end).step_by(FRAME_SIZE as usize)),
            Work::Barrier => fence(SeqCst),
        }
    }
}

/// Invalidates this CPU's translations of `ranges` in the space that it has loaded. Returns whether
/// it flushed the whole user half, which is cheaper for many pages.
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
