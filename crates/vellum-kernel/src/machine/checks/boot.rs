//! Checks the way from the memory map to the allocator: every frame is accounted for, and freed
//! blocks are merged.

use super::lab::{Checked, Lab, expect, tables_between};
use super::memory::{HUGE, RW, expect_written, first, map, pages, write};
use super::user::{Machine, run_in};
use crate::arch::serial::println;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, Pfn, VirtRange};
use vellum::frame::{FrameKind, MAX_ORDER};
use vellum::platform::Memory;

pub fn story(lab: &Lab) -> Checked {
    let frames = lab.machine.frames();
    let audit = audit(lab.machine)?;
    println!(
        "  {} frames: {} of metadata, {} used by the engine, {} free in {} blocks",
        audit.usable, audit.metadata, audit.used, audit.free, audit.blocks
    );
    expect("usable frames without metadata", audit.usable - audit.metadata, frames.total())?;
    expect("metadata is less than 1 % of memory", audit.metadata * 100 < audit.usable, true)?;
    // The times of refaults take at most a 4,096th of memory.
    let most = zeros(lab.machine) + audit.usable / 4096 + 16;
    expect(format_args!("the engine uses fewer than {most} frames"), audit.used < most, true)?;
    churn(lab)
}

/// Lets two address spaces allocate single pages in turn and drops one of them, whose frames lie
/// between the other's.
fn churn(lab: &Lab) -> Checked {
    const BYTES: u64 = 4 << 20;
    lab.use_folios(0);
    let spaces = [lab.space()?, lab.space()?];
    for space in &spaces {
        map(space, first(BYTES), RW)?;
    }
    for page in pages(first(BYTES)) {
        for space in &spaces {
            run_in(space, || write(VirtRange { start: page, end: page + FRAME_SIZE }))?;
        }
    }
    let full = audit(lab.machine)?;
    let [stays, goes] = spaces;
    let tables = tables_between(&goes) + 1 + BYTES.div_ceil(HUGE);
    // A space also has a page of per-CPU counts and one page for its VMAs.
    let freed = (BYTES >> FRAME_SHIFT) + tables + 2;
    drop(goes);
    let half = audit(lab.machine)?;
    expect("frames freed", half.free - full.free, freed)?;
    run_in(&stays, || expect_written(first(BYTES)))?;
    println!("  two interleaved spaces, one dropped: {freed} frames freed, {} free blocks", half.blocks);
    drop(stays);
    expect("frames freed by both spaces", audit(lab.machine)?.free - full.free, 2 * freed)?;
    Ok(())
}

/// Returns the number of frames of the zero folio, by the rule in the engine's documentation.
fn zeros(machine: &Machine) -> u64 {
    1 << super::zeros::order(machine)
}

/// The numbers of frames by state, from the frame descriptors.
#[derive(Default)]
struct Audit {
    usable: u64,
    /// Frames of the engine's metadata, which the allocator never returns.
    metadata: u64,
    /// Allocated frames.
    used: u64,
    free: u64,
    blocks: u64,
}

/// Counts frames by their descriptors, and compares the sums with the allocator's.
fn audit(machine: &Machine) -> Checked<Audit> {
    let frames = machine.frames();
    frames.drain();
    let (mut audit, mut blocks) = (Audit::default(), [0; MAX_ORDER as usize + 1]);
    for region in machine.platform().regions() {
        let (mut pfn, end) = (region.base.pfn().0, ((region.base.0 + region.len) >> FRAME_SHIFT) as u32);
        audit.usable += u64::from(end - pfn);
        while pfn < end {
            let Some((_, _, state)) = frames.block(Pfn(pfn)) else { break };
            let order = state.order();
            match state.kind() {
                FrameKind::Reserved => audit.metadata += 1,
                FrameKind::Free => {
                    blocks[order as usize] += 1;
                    audit.free += 1 << order;
                    audit.blocks += 1;
                    let buddy = frames.block(Pfn(pfn ^ 1 << order));
                    let merged = order == MAX_ORDER
                        || buddy.is_none_or(|(.., buddy)| (buddy.kind(), buddy.order()) != (FrameKind::Free, order));
                    expect(format_args!("block {pfn:#x} of order {order} is merged"), merged, true)?;
                }
                _ => audit.used += 1 << order,
            }
            pfn += 1 << order;
        }
    }
    expect("free blocks", frames.free_blocks_on(0), blocks)?;
    expect("free frames", frames.free_frames(), audit.free)?;
    Ok(audit)
}
