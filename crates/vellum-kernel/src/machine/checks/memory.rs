//! Maps and accesses memory for the checks: mapped by the engine, accessed through the MMU,
//! compared with the PTEs.

use super::lab::{Checked, expect, must};
use super::user::{self, Space};
use vellum::Run;
use vellum::addr::{FRAME_SIZE, VirtRange};
use vellum::arch::{Attrs, Kind};
use vellum::frame::HUGE_ORDER;
use vellum::space::{FaultError, MapFlags, MapRequest, SpaceStats};
use vellum::vma::Prot;

/// The size of a huge page in bytes.
pub const HUGE: u64 = FRAME_SIZE << HUGE_ORDER;
/// The address at which checks map memory. It begins a table of the third level, so all that a
/// check maps shares its page tables above the last level.
pub const BASE: u64 = 0x1234_4000_0000;
/// Readable and writable.
pub const RW: Prot = Prot::READ.union(Prot::WRITE);

/// Maps memory at an address.
#[track_caller]
pub fn map(space: &Space, range: VirtRange, prot: Prot) -> Checked {
    map_with(space, range, prot, MapFlags::empty())
}

/// Maps memory at an address, with extra flags.
#[track_caller]
pub fn map_with(space: &Space, range: VirtRange, prot: Prot, flags: MapFlags) -> Checked {
    let flags = flags | MapFlags::FIXED_NOREPLACE;
    let request = MapRequest { addr: range.start, len: range.len(), prot, flags };
    expect(format_args!("map {range:?}"), space.map(request), Ok(range.start))
}

/// Unmaps a range.
#[track_caller]
pub fn unmap(space: &Space, range: VirtRange) -> Checked {
    must(format_args!("unmap {range:?}"), space.unmap(range.start, range.len()))
}

/// Changes the protection of a range.
#[track_caller]
pub fn protect(space: &Space, range: VirtRange, prot: Prot) -> Checked {
    must(format_args!("protect {range:?}"), space.protect(range.start, range.len(), prot))
}

/// Returns the range of `bytes` bytes from [`BASE`].
pub fn first(bytes: u64) -> VirtRange {
    VirtRange { start: BASE, end: BASE + bytes }
}

/// Returns the addresses of a range's pages.
pub fn pages(range: VirtRange) -> impl Iterator<Item = u64> {
    (range.start..range.end).step_by(FRAME_SIZE as usize)
}

/// Returns the value that is written to a page; it is different for each page.
pub fn pattern(page: u64) -> u64 {
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

/// Returns the address within a page at which the value is written; the offset differs per page.
pub fn word_of(page: u64) -> u64 {
    8 + (pattern(page) >> 32) % (FRAME_SIZE - 16) / 8 * 8
}

/// Writes each page's value.
#[track_caller]
pub fn write(range: VirtRange) -> Checked {
    for page in pages(range) {
        let stored = user::store(page + word_of(page), pattern(page));
        must(format_args!("write to {page:#x}"), stored)?;
    }
    Ok(())
}

/// Checks that each page has its value.
#[track_caller]
pub fn expect_written(range: VirtRange) -> Checked {
    for page in pages(range) {
        let found = user::load(page + word_of(page));
        expect(format_args!("contents of {page:#x}"), found, Ok(pattern(page)))?;
    }
    Ok(())
}

/// Checks that each page has zeros where its value would be.
#[track_caller]
pub fn expect_zeros(range: VirtRange) -> Checked {
    for page in pages(range) {
        let found = user::load(page + word_of(page));
        expect(format_args!("contents of {page:#x}"), found, Ok(0))?;
    }
    Ok(())
}

/// Checks that a read of each page is refused with this error.
#[track_caller]
pub fn expect_no_load(range: VirtRange, error: fn(u64) -> FaultError) -> Checked {
    for page in pages(range) {
        let found = user::load(page);
        expect(format_args!("read of {page:#x}"), found, Err(error(page)))?;
    }
    Ok(())
}

/// Checks that a write to each page is refused with this error.
#[track_caller]
pub fn expect_no_store(range: VirtRange, error: fn(u64) -> FaultError) -> Checked {
    for page in pages(range) {
        let found = user::store(page, 1);
        expect(format_args!("write to {page:#x}"), found, Err(error(page)))?;
    }
    Ok(())
}

/// Calls `check` for each run of leaf PTEs in a range, and returns the number of runs. The rest of
/// the range must be empty.
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

/// Returns the attributes of a PTE for written memory.
pub fn written() -> Attrs {
    Attrs::READ | Attrs::WRITE | Attrs::HARDWARE | Attrs::EXCLUSIVE | Attrs::SOFT_DIRTY
}

/// Returns the expected counts of a space with one VMA that is mapped either by single pages or by
/// huge ones.
pub fn stats(mapped: u64, resident: u64, tables: u64) -> SpaceStats {
    SpaceStats {
        mapped,
        peak_mapped: mapped,
        anon: resident,
        peak_rss: resident,
        tables: tables * FRAME_SIZE,
        // The per-CPU counts, and a node for the VMA.
        kernel: (1 + u64::from(mapped > 0)) * FRAME_SIZE,
        vmas: usize::from(mapped > 0),
        ..SpaceStats::default()
    }
}
