//! Results of one measurement: its figures, or the reason why there are none.

use std::path::PathBuf;

use crate::time::Time;

/// Figures of one run on Linux.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The time to touch every page of the fresh region.
    pub touch: Option<Time>,
    /// The time of what comes after the operation ([`Op::back`](crate::workload::case::Op::back)),
    /// such as swap-in after swap-out; `None` if nothing does.
    pub back: Option<Time>,
    /// The time of the operation itself.
    pub op: Time,
    /// Share of the region, 0 to 1, that is not mapped as the case asks: the kernel falls back to
    /// small folios when it finds no contiguous memory.
    pub fallback: f64,
    /// The bytes that the faults after the operation copied (copy-on-write) or swapped in, if there
    /// are any.
    pub moved: Option<u64>,
    /// The spread in nanoseconds of the runs whose median is subtracted from the time of the
    /// operation; `None` if nothing is.
    pub noise: Option<u64>,
}

/// The reason for a missing figure. A report shows the reason, and the benchmark goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Skip {
    /// This user may not change a setting.
    #[error("needs root, to change the huge-page settings")]
    Denied,
    /// A setting can't be read or written for another reason.
    #[error("cannot use {}: {error}", path.display())]
    Setting {
        /// The file of the setting.
        path: PathBuf,
        /// The error.
        error: String,
    },
    /// Another process holds the lock on the settings.
    #[error("another benchmark is using the huge-page settings")]
    Busy,
    /// The kernel has no transparent huge pages.
    #[error("this kernel has no transparent huge pages")]
    NoThp,
    /// The kernel has no folios of this size.
    #[error("this kernel has no anonymous folios of {0} KiB")]
    NoFolio(u32),
    /// The kernel has no folios of this size for files in memory.
    #[error("this kernel has no folios of {0} KiB for files in memory")]
    NoFileFolio(u32),
    /// The machine has too little free memory.
    #[error("needs {needed} MiB of memory, {available} MiB are available")]
    Memory {
        /// MiB that the case needs.
        needed: u64,
        /// MiB that are available.
        available: u64,
    },
    /// A system call failed.
    #[error("{call}: {error}")]
    System {
        /// The system call.
        call: &'static str,
        /// The error.
        error: String,
    },
    /// The operation needs root.
    #[error("needs root, to {0}")]
    NotRoot(&'static str),
    /// The kernel lacks a feature, or its module is not loaded.
    #[error("this kernel has no {0}")]
    Missing(&'static str),
    /// A program that the benchmark runs is not installed.
    #[error("needs {program}, which the package {package} has")]
    NotInstalled {
        /// The program.
        program: &'static str,
        /// Debian's package.
        package: &'static str,
    },
    /// Pages stayed in memory that should have been swapped out.
    #[error("{0} pages could not be swapped out")]
    NotSwappedOut(u64),
    /// Pages stayed in memory that should have been reclaimed.
    #[error("{0} pages were not reclaimed")]
    NotReclaimed(u64),
    /// Pages changed their contents.
    #[error("{0} pages came back with something else in them")]
    Lost(u64),
    /// The helper process failed.
    #[error("the measured child process failed: {0}")]
    Child(String),
}

impl Skip {
    /// A system call failed.
    pub fn system(call: &'static str, error: impl ToString) -> Skip {
        Skip::System { call, error: error.to_string() }
    }
}
