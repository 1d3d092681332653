//! Finds empty page tables by the time that a scan of their range takes.
//!
//! From Linux 7.3 on, `PAGEMAP_SCAN` does not report empty page tables. It still reads all PTEs of
//! an empty table before it returns nothing, and reads none where there is no table: 0.8 µs against
//! 0.3 µs on the machine where this was written. A scan is compared with times of scans of a
//! mapping of this process ([`Timing::calibrate`]), with and without page tables.

use std::time::{Duration, Instant};

use crate::calibrate::ScratchMapping;
use crate::pace::Interrupted;
use crate::{Categories, Pace, Pagemap, Query, ScanError};

/// Timed scans of the scratch mapping during calibration.
const TRIALS: usize = 64;
/// The number of timed scans of each range, of which the shortest counts. An interruption only
/// makes a scan longer, so one short scan proves that there is no page table.
const SCANS: usize = 4;

/// The scan times that separate an existing page table from a missing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A scan shorter than this found no last-level page table.
    table: Duration,
    /// A scan shorter than this found no page table of the second level.
    upper: Duration,
}

impl Timing {
    /// Calibrates on a mapping of this process. Returns `None` if the two times can't be told
    /// apart.
    ///
    /// # Errors
    /// There is no `PAGEMAP_SCAN`, or no memory.
    pub fn calibrate() -> Result<Option<Self>, ScanError> {
        let mut pagemap = Pagemap::own()?;
        if !pagemap.scans() {
            return Err(ScanError::NoScan);
        }
        let table = pagemap.page_size() * pagemap.page_size() / 8;
        let upper = table * (pagemap.page_size() / 8);
        let vma = ScratchMapping::new(4 * upper as usize)?;
        let first = (vma.start() as u64).next_multiple_of(upper);
        // The touched last page keeps the page table from being freed. The timed scans cover only
        // addresses before it, which are empty.
        vma.touch(first + table - pagemap.page_size());
        let half = table / 2;
        // Take the shortest of all times: an interruption only makes a scan longer.
        let mut shortest = |at: u64, len: u64| {
            let times = (0..TRIALS).filter_map(|_| timed_scan(&mut pagemap, at, len));
            times.min().unwrap_or_default()
        };
        // Calibrate with the half of a page table: a scan of a whole one differs even more from one
        // of no page table.
        let (with, without) = (shortest(first, half), shortest(first + 4 * table, half));
        let (upper_with, upper_without) =
            (shortest(first + table, upper - table), shortest(first + upper, upper - table));
        let apart = |with: Duration, without: Duration| (with > without * 5 / 4).then(|| (with + without) / 2);
        Ok(apart(with, without).zip(apart(upper_with, upper_without)).map(|(table, upper)| Timing { table, upper }))
    }
}

/// Returns how long a scan takes that finds nothing, or `None` if it found a page.
fn timed_scan(pagemap: &mut Pagemap, start: u64, len: u64) -> Option<Duration> {
    let began = Instant::now();
    let found = pagemap.scan_once((start, start + len), &Query::nonempty(Categories::PRESENT));
    let time = began.elapsed();
    (found != Ok(1)).then_some(time)
}

impl Pagemap {
    /// Calls `each` with the start of each last-level page table that `range` seems to have, in
    /// ascending order, like [`Pagemap::tables`], but judged by scan time. The result is
    /// meaningless for ranges with pages, whose page tables are known to exist.
    ///
    /// # Errors
    /// [`ScanError`].
    pub fn tables_by_time(
        &mut self,
        (start, end): (u64, u64),
        timing: &Timing,
        pace: &mut Pace<'_>,
        mut each: impl FnMut(u64),
    ) -> Result<(), ScanError> {
        let table = self.page_size() * self.page_size() / 8;
        let upper = table * (self.page_size() / 8);
        let mut least = |start: u64, end: u64, enough: Duration| -> Result<bool, Interrupted> {
            for _ in 0..SCANS {
                match pace.step(|| timed_scan(self, start, end - start))? {
                    None => return Ok(true),
                    Some(time) if time < enough => return Ok(false),
                    Some(_) => {}
                }
            }
            Ok(true)
        };
        let mut at = start;
        while at < end {
            let to = end.min((at / upper + 1) * upper);
            // A range shorter than a second-level page table's is scanned page table by page table:
            // `timing.upper` holds for a whole one only.
            let whole = to - at == upper;
            if !whole || least(at, to, timing.upper)? {
                while at < to {
                    let next = to.min((at / table + 1) * table);
                    // The range may cover the last page table only in part. If it covers half or
                    // more, the time limit of a whole one applies.
                    let enough = if next - at >= table / 2 {
                        timing.table
                    } else {
                        timing.table * ((next - at) as u32) / (table as u32)
                    };
                    if least(at, next, enough)? {
                        each(at / table * table);
                    }
                    at = next;
                }
            }
            at = to;
        }
        Ok(())
    }
}
