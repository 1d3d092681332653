//! Measures the entries to this kernel, and its TLB flushes: the costs that a simulated machine
//! does not have.
//!
//! A helper measures them, so that no other thread and no large mapping of the benchmark is in the
//! address space. Each cost is the difference of two sequences of calls that differ in the event
//! alone, divided by the number of events. All times are those for which the helper's thread ran,
//! in which the wait for another CPU's flush is included: the kernel spins.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{MprotectFlags, mprotect, munmap};
use rustix::process::getppid;
use serde::{Deserialize, Serialize};

use super::{Helper, Message, send, spin};
use crate::Skip;
use crate::cpu::pin_to;
use crate::region::{Region, minor_faults};
use crate::time::{Stopwatch, Time};
use crate::workload::case::{PAGE, TABLE_SPAN};

/// Nanoseconds of one event of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Costs {
    /// A system call that does nothing: `getppid`.
    pub call_ns: u64,
    /// A `munmap` of a page where nothing is mapped: the call, the lock of the address space and
    /// the search for a VMA.
    pub unmap_empty_ns: u64,
    /// The page fault with the least work, a read of untouched private memory, which maps the zero
    /// page: no folio, no rmap, no LRU list, no count. An upper bound of an exception's entry and
    /// exit.
    pub exception_ns: u64,
    /// A TLB flush of one page on the calling CPU: an `mprotect` to read-only of a writable page,
    /// less the same of a zero page, whose PTE the kernel visits, finds unchanged, and so does not
    /// flush.
    pub flush_ns: u64,
    /// The addition for another CPU that runs a thread of the same address space; `None` without
    /// another CPU.
    pub ipi_ns: Option<u64>,
}

/// The arguments of the helper.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The CPU to measure on.
    #[arg(long)]
    cpu: usize,
    /// Another CPU.
    #[arg(long)]
    other: Option<usize>,
    /// The number of rounds of each measurement.
    #[arg(long)]
    rounds: u32,
}

/// Measures the costs once, on `cpu`; those of an interrupt by interrupting the CPU `other`.
/// `rounds` is the number of repetitions of some hundred events.
///
/// # Errors
/// The helper failed.
pub fn measure(cpu: usize, other: Option<usize>, rounds: u32) -> Result<Costs, Skip> {
    let mut args = vec!["entry".to_owned(), format!("--cpu={cpu}"), format!("--rounds={rounds}")];
    args.extend(other.map(|other| format!("--other={other}")));
    match Helper::answer(&args)? {
        Message::Costs(costs) => Ok(costs),
        other => Err(Skip::Child(format!("unexpected message {other:?}"))),
    }
}

/// Runs the helper.
///
/// # Errors
/// A system call failed, or a fault was not taken.
pub fn run(args: &Args) -> anyhow::Result<()> {
    anyhow::ensure!(args.rounds > 0, "--rounds must be at least 1");
    // Base pages only, whatever the machine's settings are. This needs no privilege.
    rustix::thread::disable_transparent_huge_pages(true)?;
    pin_to(args.cpu);
    let call_ns = calls(args.rounds, || {
        std::hint::black_box(getppid());
        Ok(())
    })?;
    // SAFETY: nothing is ever mapped at page 0, below the least address that mmap returns.
    let unmap_empty_ns = calls(args.rounds, || unsafe { munmap(null_mut(), PAGE as usize) })?;
    let exception_ns = exception(args.rounds)?;
    let (pages, zero) = (Pages::new(PageKind::Writable)?, Pages::new(PageKind::Zero)?);
    let (flushes, none) = (pages.revoke(args.rounds)?, zero.revoke(args.rounds)?);
    let flush_ns = each(flushes.less(none), args.rounds);
    let ipi_ns = args.other.map(|other| interrupt(&pages, other, args.rounds)).transpose()?;
    send(Message::Costs(Costs { call_ns, unmap_empty_ns, exception_ns, flush_ns, ipi_ns }))
}

/// The number of events in a round, but for faults.
const EVENTS: u64 = 512;

/// Returns the nanoseconds of one of `rounds` times [`EVENTS`] events.
fn each(all: Time, rounds: u32) -> u64 {
    all.cpu_ns / (EVENTS * u64::from(rounds))
}

/// Times a system call.
fn calls(rounds: u32, mut call: impl FnMut() -> rustix::io::Result<()>) -> anyhow::Result<u64> {
    let mut all = Time::default();
    for round in 0..=rounds {
        let watch = Stopwatch::start();
        for _ in 0..EVENTS {
            call()?;
        }
        if round > 0 {
            all += watch.time();
        }
    }
    Ok(each(all, rounds))
}

/// Times page faults that map the zero page, less the reads alone.
fn exception(rounds: u32) -> anyhow::Result<u64> {
    let region = Region::map(TABLE_SPAN)?;
    // One page stays, so that the page table does: a fault must not allocate one.
    region.write(0, 1, PAGE);
    let (mut first, mut again, mut faults) = (Time::default(), Time::default(), 0);
    for _ in 0..rounds {
        let before = minor_faults();
        first += region.read(PAGE);
        faults += minor_faults() - before;
        again += region.read(PAGE);
        region.discard_range(PAGE as usize, (TABLE_SPAN - PAGE) as usize)?;
    }
    anyhow::ensure!(faults > 0, "reads of untouched memory took no page fault");
    Ok(first.less(again).cpu_ns / faults)
}

/// Pages, each in a VMA of its own, because inaccessible pages lie between them.
struct Pages(Region);

/// The pages that are mapped in [`Pages`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum PageKind {
    /// Each a folio of its own, whose PTE allows writing.
    Writable,
    /// The zero page, whose PTE never does.
    Zero,
}

impl Pages {
    fn new(kind: PageKind) -> anyhow::Result<Pages> {
        let pages = Pages(Region::map(2 * EVENTS * PAGE)?);
        (0..EVENTS).try_for_each(|number| pages.set(2 * number + 1, MprotectFlags::empty()))?;
        for number in 0..EVENTS {
            let offset = (2 * number * PAGE) as usize;
            // Written, so that the VMAs of both kinds have an anonymous rmap key.
            pages.0.write(offset, 1, PAGE);
            if kind == PageKind::Zero {
                pages.0.discard_range(offset, PAGE as usize)?;
                pages.0.word(2 * number);
            }
        }
        Ok(pages)
    }

    /// Changes the protection of one page.
    fn set(&self, number: u64, protection: MprotectFlags) -> rustix::io::Result<()> {
        let page = (self.0.start() + number * PAGE) as *mut _;
        // SAFETY: a page of the region, to which no reference exists.
        unsafe { mprotect(page, PAGE as usize, protection) }
    }

    fn set_all(&self, protection: MprotectFlags) -> anyhow::Result<Time> {
        let watch = Stopwatch::start();
        (0..EVENTS).try_for_each(|number| self.set(2 * number, protection))?;
        Ok(watch.time())
    }

    /// Makes all pages read-only, and writable again, `rounds` times. Returns the time of the
    /// former, in which each call flushes the TLB if the pages are [`PageKind::Writable`].
    ///
    /// One more round comes first and is not in the time: it may still interrupt a CPU that an
    /// earlier thread used.
    fn revoke(&self, rounds: u32) -> anyhow::Result<Time> {
        let mut all = Time::default();
        for round in 0..=rounds {
            let time = self.set_all(MprotectFlags::READ)?;
            self.set_all(MprotectFlags::READ | MprotectFlags::WRITE)?;
            if round > 0 {
                all += time;
            }
        }
        Ok(all)
    }
}

/// Returns the nanoseconds that one TLB flush takes longer if a thread of this process keeps the
/// CPU `other` busy than if another process does.
fn interrupt(pages: &Pages, other: usize, rounds: u32) -> anyhow::Result<u64> {
    let spinner = spin::start(other)?;
    let apart = pages.revoke(rounds)?;
    drop(spinner);
    let (started, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let together = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin_to(other);
            started.store(true, Ordering::Release);
            while !done.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        while !started.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let together = pages.revoke(rounds);
        done.store(true, Ordering::Relaxed);
        together
    })?;
    Ok(each(together.less(apart), rounds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_has_a_vma_of_its_own_and_is_writable_in_the_end() {
        for kind in [PageKind::Writable, PageKind::Zero] {
            let pages = Pages::new(kind).unwrap();
            assert_eq!(pages.0.present().unwrap(), EVENTS);
            assert!(pages.revoke(1).unwrap().wall_ns > 0);
            let faults = minor_faults();
            (0..EVENTS).for_each(|number| pages.0.write((2 * number * PAGE) as usize, 1, PAGE));
            assert_eq!(minor_faults() - faults, if kind == PageKind::Zero { EVENTS } else { 0 });
            let (start, end) = (pages.0.start(), pages.0.start() + 2 * EVENTS * PAGE);
            let maps = procfs::process::Process::myself().unwrap().maps().unwrap();
            let inside = maps.iter().filter(|map| map.address.0 >= start && map.address.1 <= end);
            assert!(inside.count() as u64 >= 2 * EVENTS - 1);
        }
    }

    #[test]
    fn a_cost_is_that_of_one_event() {
        let all = Time { wall_ns: 0, cpu_ns: 3 * EVENTS * 70 };
        assert_eq!(each(all, 3), 70);
        let mut count = 0;
        calls(2, || {
            count += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(count, 3 * EVENTS, "one round is not counted");
        assert!(exception(1).unwrap() > 0);
    }
}
