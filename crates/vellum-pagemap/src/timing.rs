//! Tables told by the time that it takes to look where they are.
//!
//! Where Linux won't tell an empty table (from 7.3 on), it still has to read all its entries to say
//! that there is nothing; where there is no table, it has nothing to read. That is 0.8 µs against
//! 0.3 µs on the machine where this was written. What is measured is compared with what the same
//! call takes on memory of our own, just before.

use std::time::{Duration, Instant};

use crate::calibrate::Own;
use crate::pace::Stopped;
use crate::{Categories, Pace, Pagemap, Query, ScanError};

/// Looks at memory of our own, to know how long they take.
const TRIALS: usize = 64;
/// Looks at each place, the shortest of which counts. Whatever disturbs one makes it longer, so one
/// that is short settles it.
const LOOKS: usize = 4;

/// How long a look takes, where there is no table and where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Shorter than this: there is none of the lowest level.
    table: Duration,
    /// Shorter than this: there is none of the second level.
    upper: Duration,
}

impl Timing {
    /// Find out. None: the two can't be told apart here.
    ///
    /// # Errors
    /// [`ScanError`]: no `PAGEMAP_SCAN`, or no memory.
    pub fn calibrate() -> Result<Option<Self>, ScanError> {
        let mut pagemap = Pagemap::own()?;
        if !pagemap.scans() {
            return Err(ScanError::NoScan);
        }
        let table = pagemap.page_size() * pagemap.page_size() / 8;
        let upper = table * (pagemap.page_size() / 8);
        let vma = Own::new(4 * upper as usize)?;
        let first = (vma.start() as u64).next_multiple_of(upper);
        // The table stays, for its last page does; and we look at what lies before that.
        vma.touch(first + table - pagemap.page_size());
        let half = table / 2;
        // Whatever disturbs a look makes it longer.
        let mut shortest = |at: u64, len: u64| {
            let times = (0..TRIALS).filter_map(|_| look(&mut pagemap, at, len));
            times.min().unwrap_or_default()
        };
        // Half a table takes half the time, so a whole one is told all the better.
        let (with, without) = (shortest(first, half), shortest(first + 4 * table, half));
        let (upper_with, upper_without) =
            (shortest(first + table, upper - table), shortest(first + upper, upper - table));
        let apart = |with: Duration, without: Duration| (with > without * 5 / 4).then(|| (with + without) / 2);
        Ok(apart(with, without).zip(apart(upper_with, upper_without)).map(|(table, upper)| Timing { table, upper }))
    }
}

/// How long it takes to say that nothing is there. None: something is.
fn look(pagemap: &mut Pagemap, start: u64, len: u64) -> Option<Duration> {
    let began = Instant::now();
    let found = pagemap.one((start, start + len), &Query::there(Categories::PRESENT));
    let time = began.elapsed();
    (found != Ok(1)).then_some(time)
}

impl Pagemap {
    /// Tell of the tables of the lowest level that a range seems to have, as [`Pagemap::tables`]
    /// does, but by the time that it takes. Where there are pages, what is told means nothing:
    /// those tables are known to be there.
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
        let mut least = |start: u64, end: u64, enough: Duration| -> Result<bool, Stopped> {
            for _ in 0..LOOKS {
                match pace.step(|| look(self, start, end - start))? {
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
            // A part of it takes a part of the time, and is looked at table by table.
            let whole = to - at == upper;
            if !whole || least(at, to, timing.upper)? {
                while at < to {
                    let next = to.min((at / table + 1) * table);
                    // Of a VMA's last table, a half or more.
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
