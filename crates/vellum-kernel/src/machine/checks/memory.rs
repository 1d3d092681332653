//! Memory as the stories see it: mapped through the engine, touched through the MMU, looked up in the entries.

use super::lab::{Checked, expect, must};
use super::user::{self, Space};
use vellum::Run;
use vellum::addr::{FRAME_SIZE, VirtRange};
use vellum::arch::{Attrs, Kind};
use vellum::frame::HUGE_ORDER;
use vellum::space::{FaultError, MapFlags, MapRequest, SpaceStats};
use vellum::vma::Prot;

/// Bytes of a huge page.
pub const HUGE: u64 = FRAME_SIZE << HUGE_ORDER;
/// Where stories map memory: the beginning of a table of the third level, so that all a story maps has the tables above
/// the last in common.
pub const BASE: u64 = 0x1234_4000_0000;
/// Reading and writing.
pub const RW: Prot = Prot::READ.union(Prot::WRITE);

/// Maps memory at an address.
#[track_caller]
pub fn map(space: &Space, range: VirtRange, prot: Prot) -> Checked {
    map_with(space, range, prot, MapFlags::empty())
}

/// Maps memory at an address, in a particular way.
#[track_caller]
pub fn map_with(space: &Space, range: VirtRange, prot: Prot, flags: MapFlags) -> Checked {
    let flags = flags | MapFlags::FIXED_NOREPLACE;
    let request = MapRequest { addr: range.start, len: range.len(), prot, flags };
    expect(format_args!("map {range:?}"), space.map(request), Ok(range.start))
}

/// Unmaps what is there.
#[track_caller]
pub fn unmap(space: &Space, range: VirtRange) -> Checked {
    must(format_args!("unmap {range:?}"), space.unmap(range.start, range.len()))
}

/// Changes what may be done there.
#[track_caller]
pub fn protect(space: &Space, range: VirtRange, prot: Prot) -> Checked {
    must(format_args!("protect {range:?}"), space.protect(range.start, range.len(), prot))
}

/// The addresses from [`BASE`] on.
pub fn first(bytes: u64) -> VirtRange {
    VirtRange { start: BASE, end: BASE + bytes }
}

/// The pages of a range.
pub fn pages(range: VirtRange) -> impl Iterator<Item = u64> {
    (range.start..range.end).step_by(FRAME_SIZE as usize)
}

/// What is written to the page at an address: something that no other page has.
pub fn pattern(page: u64) -> u64 {
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Where in a page the pattern is written: somewhere else in each.
pub fn word_of(page: u64) -> u64 {
    8 + (pattern(page) >> 32) % (FRAME_SIZE - 16) / 8 * 8
}

/// Writes each page's pattern.
#[track_caller]
pub fn write(range: VirtRange) -> Checked {
    for page in pages(range) {
        let stored = user::store(page + word_of(page), pattern(page));
        must(format_args!("write to {page:#x}"), stored)?;
    }
    Ok(())
}

/// Reads each page's pattern back.
#[track_caller]
pub fn expect_written(range: VirtRange) -> Checked {
    for page in pages(range) {
        let found = user::load(page + word_of(page));
        expect(format_args!("contents of {page:#x}"), found, Ok(pattern(page)))?;
    }
    Ok(())
}

/// Reads zeros where the patterns would be.
#[track_caller]
pub fn expect_zeros(range: VirtRange) -> Checked {
    for page in pages(range) {
        let found = user::load(page + word_of(page));
        expect(format_args!("contents of {page:#x}"), found, Ok(0))?;
    }
    Ok(())
}

/// Is refused each page, for reading, for this reason.
#[track_caller]
pub fn expect_no_load(range: VirtRange, error: fn(u64) -> FaultError) -> Checked {
    for page in pages(range) {
        let found = user::load(page);
        expect(format_args!("read of {page:#x}"), found, Err(error(page)))?;
    }
    Ok(())
}

/// Is refused each page, for writing, for this reason.
#[track_caller]
pub fn expect_no_store(range: VirtRange, error: fn(u64) -> FaultError) -> Checked {
    for page in pages(range) {
        let found = user::store(page, 1);
        expect(format_args!("write to {page:#x}"), found, Err(error(page)))?;
    }
    Ok(())
}

/// Checks each run of leaves in the range and says how many there are; the rest of the range is empty.
#[track_caller]
pub fn each_run(space: &Space, range: VirtRange, mut check: impl FnMut(&Run) -> Checked) -> Checked<u64> {
    let (mut count, mut outcome) = (0, Ok(()));
    space.runs(range, |run| match run.kind {
        _ if outcome.is_err() => {}
        Kind::Leaf => {
            count += 1;
            outcome = check(run);
        }
        kind => outcome = expect(format_args!("entries at {:#x}", run.va), kind, Kind::None),
    });
    outcome.map(|()| count)
}

/// What an entry for written memory says.
pub fn written() -> Attrs {
    Attrs::READ | Attrs::WRITE | Attrs::HARDWARE | Attrs::EXCLUSIVE | Attrs::SOFT_DIRTY
}

/// A space with one VMA, all of it in single pages or all of it in huge ones, has these numbers.
pub fn stats(mapped: u64, resident: u64, tables: u64) -> SpaceStats {
    SpaceStats {
        mapped,
        peak_mapped: mapped,
        anon: resident,
        peak_rss: resident,
        tables: tables * FRAME_SIZE,
        // The counts of its CPUs, and a node for its VMAs.
        kernel: (1 + u64::from(mapped > 0)) * FRAME_SIZE,
        vmas: usize::from(mapped > 0),
        ..SpaceStats::default()
    }
}
