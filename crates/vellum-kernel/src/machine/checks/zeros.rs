//! Checks memory that was only read, and memory dropped by `MADV_DONTNEED`: both read as zeros and
//! have no frames.

use super::lab::{Checked, Lab, expect, kernel_pages, must, tables_between};
use super::memory::{BASE, HUGE, RW, each_run, expect_written, expect_zeros, first, map, stats, write, written};
use super::user::{Machine, Space, load, run_in, store};
use crate::arch::kernel_map::phys_to_virt;
use crate::arch::serial::println;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, Pfn, VirtRange};
use vellum::arch::Attrs;
use vellum::frame::{HUGE_ORDER, flag};
use vellum::space::{Advise, Usage};
use vellum::stats::Counter::*;

const BYTES: u64 = 2 * HUGE;
const PAGES: u64 = BYTES >> FRAME_SHIFT;

/// Returns the order of the zero folio: a huge page, or a thousandth of a small machine's memory.
pub fn order(machine: &Machine) -> u8 {
    (machine.frames().total() / 1024).ilog2().min(HUGE_ORDER.into()) as u8
}

pub fn story(lab: &Lab) -> Checked {
    for folios in [0, HUGE_ORDER] {
        lab.use_folios(folios);
        let space = lab.space()?;
        map(&space, first(BYTES), RW)?;
        run_in(&space, || {
            read_then_write(lab, &space, folios)?;
            dont_need(lab, &space, folios)
        })?;
    }
    Ok(())
}

/// Checks that read faults map the shared zero folio, and that a write allocates a page, which all
/// CPUs see at once.
fn read_then_write(lab: &Lab, space: &Space, folios: u8) -> Checked {
    let between = tables_between(space);
    let (piece, range) = (order(lab.machine).min(folios), first(BYTES));
    let huge_zeros = piece == HUGE_ORDER;
    let last_level = if huge_zeros { 0 } else { BYTES / HUGE };
    let mut tally = lab.tally();

    expect_zeros(range)?;
    // A read fault maps as much of the zero folio as fits.
    let faults = PAGES >> piece;
    tally.expect("read", &[(Faults, faults), (TablesAllocated, between + last_level)])?;
    expect("counts of the space", space.stats(), stats(BYTES, 0, 1 + between + last_level))?;
    expect("resident", space.usage(range), Usage::default())?;
    lab.expect_group(1 + between + last_level + kernel_pages(space), 0, 0)?;
    let mut zeros = Pfn::NONE;
    each_run(space, range, |run| {
        expect("attributes", run.attrs(space.arch()), Attrs::READ | Attrs::ACCESSED)?;
        let (head, folio) = lab.machine.frames().head(run.pfn(space.arch()));
        zeros = head;
        expect("the zero folio", (folio.has(flag::ZERO_FOLIO), folio.order()), (true, order(lab.machine)))
    })?;

    // The TLB has the zeros of this page and of its neighbour.
    must("write", store(BASE + 8, 1))?;
    expect("the written value", load(BASE + 8), Ok(1))?;
    // A huge folio replaced a whole table of zero PTEs, and the page table was freed, unless the
    // zeros were mapped by a huge PTE.
    let gone = u64::from(folios == HUGE_ORDER && !huge_zeros);
    let large = u64::from(folios == HUGE_ORDER);
    tally.expect(
        "written",
        &[
            (Faults, 1),
            (LargeFolios, large),
            // One flush before the written page is visible, and one for the freed page table.
            (Flushes, 1 + gone),
            (TablesFreed, gone),
        ],
    )?;
    behind_the_mmu(space, folios)?;
    write(range)?;
    let more = if folios == HUGE_ORDER { 1 } else { PAGES - 1 };
    tally.expect(
        "every page written",
        &[(Faults, more), (LargeFolios, large), (Flushes, more + gone), (TablesFreed, gone)],
    )?;
    expect_written(range)?;
    tally.expect("every page read", &[])?;
    expect("resident", space.stats().anon, BYTES)?;
    let frames = 1u64 << order(lab.machine);
    for word in 0..frames * FRAME_SIZE / 8 {
        // SAFETY: a word of the zero folio, which is never written.
        let found = unsafe { phys_to_virt::<u64>(zeros.addr().0).add(word as usize).read() };
        expect("contents of the zero folio", found, 0)?;
    }
    println!(
        "  folios of {} KiB: {PAGES} pages of zeros by {faults} faults; written by {}",
        FRAME_SIZE << folios >> 10,
        more + 1
    );
    Ok(())
}

/// Writes a word to the frame now mapped, through the direct map. The MMU must see it, also where a
/// huge page was not written yet and the TLB had the zeros.
fn behind_the_mmu(space: &Space, folios: u8) -> Checked {
    let page = if folios == HUGE_ORDER { BASE + 7 * FRAME_SIZE } else { BASE };
    let mut frame = Pfn::NONE;
    each_run(space, VirtRange { start: page, end: page + FRAME_SIZE }, |run| {
        let inside = (page - run.va) >> FRAME_SHIFT;
        frame = run.pfn(space.arch()).add(inside as u32);
        expect("attributes", run.attrs(space.arch()), written())
    })?;
    // SAFETY: a word of a frame that a user page is mapped to; no reference to it exists.
    unsafe { phys_to_virt::<u64>(frame.addr().0 + 16).write(0x5eed) };
    expect("the value written through the direct map", load(page + 16), Ok(0x5eed))
}

/// Drops a VMA's contents and keeps the VMA (`MADV_DONTNEED`).
fn dont_need(lab: &Lab, space: &Space, folios: u8) -> Checked {
    let (between, range) = (tables_between(space), first(BYTES));
    let runs = each_run(space, range, |_| Ok(()))?;
    let mut tally = lab.tally();
    // The TLB has writable translations of the last pages, which the call must flush.
    must("DONTNEED", space.advise(BASE, BYTES, Advise::DontNeed))?;
    let last_level = if folios == HUGE_ORDER { 0 } else { BYTES / HUGE };
    let freed = [
        (RunsCleared, runs),
        (PagesCleared, PAGES),
        (FoliosFreed, PAGES >> folios),
        (Flushes, 1),
        (TablesFreed, between + last_level),
    ];
    tally.expect("MADV_DONTNEED", &freed)?;
    expect("resident", (space.stats().anon, space.stats().mapped), (0, BYTES))?;
    lab.expect_group(1 + kernel_pages(space), 0, 0)?;
    // Reads backwards, because the TLB had the last pages: a missing flush would show there.
    for page in (0..PAGES).rev() {
        let page = BASE + page * FRAME_SIZE;
        expect_zeros(VirtRange { start: page, end: page + FRAME_SIZE })?;
    }
    write(range)?;
    expect_written(range)?;
    println!(
        "  folios of {} KiB: {PAGES} pages dropped by MADV_DONTNEED: {runs} runs, 1 invalidation",
        FRAME_SIZE << folios >> 10
    );
    Ok(())
}
