//! The interface of contenders, and the columns of a comparison.

use std::ops::{Index, IndexMut};

use serde::Serialize;
use vellum_linux::Linux;
pub use vellum_linux::Skip;
use vellum_linux::time::Time;
use vellum_linux::workload::case::{Case, Op};

/// The report marks a figure if [`Sample::fallback`] (the share of the region that is not mapped as
/// the case asks) is above this.
pub const NOTABLE_FALLBACK: f64 = 0.01;

/// The columns of each comparison, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// The lower bound of the operation: a bare loop over the same memory.
    Floor,
    /// The engine, with all features on.
    Vellum,
    /// The engine with runs capped at one PTE: an ablation of the run, and no model of Linux.
    Page,
    /// The kernel of this machine.
    Linux,
}

impl Column {
    /// All columns, in order.
    pub const ALL: [Column; 4] = [Column::Floor, Column::Vellum, Column::Page, Column::Linux];

    /// Returns the column's heading in tables.
    pub fn name(self) -> &'static str {
        match self {
            Column::Floor => "floor",
            Column::Vellum => "vellum",
            Column::Page => "page",
            Column::Linux => "linux",
        }
    }
}

/// One value for each column. In JSON, an object with the keys `floor_ns`, `vellum_ns`, `page_ns`,
/// `linux_ns`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Columns<T> {
    /// The value of [`Column::Floor`].
    #[serde(rename = "floor_ns")]
    pub floor: T,
    /// The value of [`Column::Vellum`].
    #[serde(rename = "vellum_ns")]
    pub vellum: T,
    /// The value of [`Column::Page`].
    #[serde(rename = "page_ns")]
    pub page: T,
    /// The value of [`Column::Linux`].
    #[serde(rename = "linux_ns")]
    pub linux: T,
}

impl<T> Columns<T> {
    /// Returns the results of `f` for the value of each column.
    pub fn map<U>(&self, f: impl Fn(&T) -> U) -> Columns<U> {
        Columns { floor: f(&self.floor), vellum: f(&self.vellum), page: f(&self.page), linux: f(&self.linux) }
    }
}

impl<T> Index<Column> for Columns<T> {
    type Output = T;

    fn index(&self, column: Column) -> &T {
        match column {
            Column::Floor => &self.floor,
            Column::Vellum => &self.vellum,
            Column::Page => &self.page,
            Column::Linux => &self.linux,
        }
    }
}

impl<T> IndexMut<Column> for Columns<T> {
    fn index_mut(&mut self, column: Column) -> &mut T {
        match column {
            Column::Floor => &mut self.floor,
            Column::Vellum => &mut self.vellum,
            Column::Page => &mut self.page,
            Column::Linux => &mut self.linux,
        }
    }
}

/// The result of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The time to touch every page of the fresh region; `None` if the contender has no page
    /// faults.
    pub touch: Option<Time>,
    /// The time of what comes after the operation ([`Op::back`]), such as swap-in after swap-out;
    /// `None` if nothing does.
    pub back: Option<Time>,
    /// The time of the operation itself. A run for [`Op::Touch`] may do any operation after the
    /// touch.
    pub op: Time,
    /// Share of the region, 0 to 1, that is not mapped as the case asks. Nonzero only for a
    /// contender that can't force it: Linux falls back to small folios without contiguous memory.
    pub fallback: f64,
    /// Counts of the operation; `None` if the contender doesn't count.
    pub work: Option<Work>,
    /// The bytes that the faults after the operation copied (copy-on-write) or swapped in, if there
    /// are any.
    pub moved: Option<u64>,
    /// The spread in nanoseconds of the runs whose median is subtracted from the time of the
    /// operation; `None` if nothing is.
    pub noise: Option<u64>,
}

/// Counts of the costly steps of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// TLB flushes.
    pub flushes: u64,
    /// Runs (ranges of consecutive PTEs) cleared in page tables.
    pub runs: u64,
}

/// A contender: does the operations that a benchmark times.
///
/// To add one, implement this trait, and add it to the list in
/// [`regions::contenders`](super::regions::contenders). Its column then appears in every table,
/// chart and JSON row.
pub trait Contender {
    /// Returns the column of the report that the contender fills.
    fn column(&self) -> Column;

    /// Returns whether the contender takes part in an operation on a case: if not, its column is
    /// empty.
    fn does(&self, _case: &Case, _op: Op) -> bool {
        true
    }

    /// Prepares the runs of a case, outside of all measurement.
    ///
    /// # Errors
    /// The contender can't measure the case.
    fn prepare(&mut self, _case: &Case) -> Result<(), Skip> {
        Ok(())
    }

    /// Does one run: maps and touches a fresh region, times `op` on it, and removes everything.
    ///
    /// # Errors
    /// The contender can't measure the case or the operation.
    fn run(&mut self, case: &Case, op: Op) -> Result<Sample, Skip>;
}

impl Contender for Linux {
    fn column(&self) -> Column {
        Column::Linux
    }

    fn prepare(&mut self, case: &Case) -> Result<(), Skip> {
        self.prepare(case)
    }

    fn run(&mut self, case: &Case, op: Op) -> Result<Sample, Skip> {
        let vellum_linux::Sample { touch, back, op, fallback, moved, noise } = self.run(case, op)?;
        Ok(Sample { touch, back, op, fallback, work: None, moved, noise })
    }
}
