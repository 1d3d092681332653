//! Who is measured, and what a contender must supply.

use std::ops::{Index, IndexMut};

use serde::Serialize;
use vellum_linux::Linux;
pub use vellum_linux::Skip;
use vellum_linux::workload::case::{Case, Op};

/// From this share on, a figure is marked as not being what its row says.
pub const NOTABLE_FALLBACK: f64 = 0.01;

/// The columns of every comparison, in the order they are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    /// The least work the operation can be.
    Floor,
    /// The engine, everything on.
    Vellum,
    /// The engine with runs capped at one entry.
    Page,
    /// The kernel of this machine.
    Linux,
}

impl Column {
    /// All of them, in order.
    pub const ALL: [Column; 4] = [Column::Floor, Column::Vellum, Column::Page, Column::Linux];

    /// The heading.
    pub fn name(self) -> &'static str {
        match self {
            Column::Floor => "floor",
            Column::Vellum => "vellum",
            Column::Page => "page",
            Column::Linux => "linux",
        }
    }
}

/// One value a column. In JSON, an object with the keys `floor_ns`, `vellum_ns`, `page_ns`,
/// `linux_ns`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Columns<T> {
    /// Of [`Column::Floor`].
    #[serde(rename = "floor_ns")]
    pub floor: T,
    /// Of [`Column::Vellum`].
    #[serde(rename = "vellum_ns")]
    pub vellum: T,
    /// Of [`Column::Page`].
    #[serde(rename = "page_ns")]
    pub page: T,
    /// Of [`Column::Linux`].
    #[serde(rename = "linux_ns")]
    pub linux: T,
}

impl<T> Columns<T> {
    /// Each column's value, changed by `f`.
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

/// What one run found out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Nanoseconds to touch every page of the fresh region; `None` where that is not this
    /// contender's work.
    pub touch_ns: Option<u64>,
    /// Nanoseconds to bring back what the operation took away; `None` where nothing comes back.
    pub back_ns: Option<u64>,
    /// Nanoseconds of the operation itself. For [`Op::Touch`], any operation may be behind it.
    pub op_ns: u64,
    /// Share of the region, 0 to 1, that is not mapped the way the case says. Other than zero only
    /// where the contender cannot force it: Linux falls back to small folios when it finds no
    /// contiguous memory.
    pub fallback: f64,
    /// What was counted of the operation; `None` where nobody counts.
    pub work: Option<Work>,
}

/// What an operation did that costs something once a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Calls of the TLB's invalidation.
    pub flushes: u64,
    /// Runs taken out of page tables.
    pub runs: u64,
}

/// Somebody who can do the operations.
///
/// To add one: implement this, and add it to the list in
/// [`regions::contenders`](super::regions::contenders). Its column then fills in every table, chart
/// and JSON row; nothing else has to know about it.
pub trait Contender {
    /// The column it fills.
    fn column(&self) -> Column;

    /// Called once before the runs of a case, outside of all measurement.
    fn prepare(&mut self, _case: &Case) -> Result<(), Skip> {
        Ok(())
    }

    /// One run: map and touch a fresh region, measure `op` on it, tear everything down.
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
        let vellum_linux::Sample { touch_ns, back_ns, op_ns, fallback } = self.run(case, op)?;
        Ok(Sample { touch_ns, back_ns, op_ns, fallback, work: None })
    }
}
