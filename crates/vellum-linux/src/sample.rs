//! Results of one measurement: its figures, or the reason why there are none.

use std::path::PathBuf;

/// Figures of one run on Linux.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Nanoseconds to touch every page of the fresh region.
    pub touch_ns: Option<u64>,
    /// Nanoseconds to bring back what the operation took away; `None` where nothing comes back.
    pub back_ns: Option<u64>,
    /// Nanoseconds of the operation itself.
    pub op_ns: u64,
    /// Share of the region, 0 to 1, that is not mapped as the case asks: the kernel falls back to
    /// small folios when it finds no contiguous memory.
    pub fallback: f64,
}

/// Why a contender has no figure for a row. The row says so, and the benchmark goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Skip {
    /// A setting would have to be changed, and this user may not.
    #[error("needs root, to change the huge-page settings")]
    Denied,
    /// A setting could not be read or written for another reason.
    #[error("cannot use {}: {error}", path.display())]
    Setting {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        error: String,
    },
    /// Somebody else is changing the settings.
    #[error("another benchmark is using the huge-page settings")]
    Busy,
    /// Not built with transparent huge pages.
    #[error("this kernel has no transparent huge pages")]
    NoThp,
    /// Built with them, but not of this size.
    #[error("this kernel has no anonymous folios of {0} KiB")]
    NoFolio(u32),
    /// The machine is too small.
    #[error("needs {needed} MiB of memory, {available} MiB are available")]
    Memory {
        /// MiB that the case takes.
        needed: u64,
        /// MiB that could be had.
        available: u64,
    },
    /// A system call failed.
    #[error("{call}: {error}")]
    System {
        /// Which.
        call: &'static str,
        /// What the kernel said.
        error: String,
    },
    /// Only the superuser may.
    #[error("needs root, to {0}")]
    NotRoot(&'static str),
    /// The kernel was built without, or nobody has loaded it.
    #[error("this kernel has no {0}")]
    Missing(&'static str),
    /// What was to go did not.
    #[error("{0} pages could not be swapped out")]
    Stayed(u64),
    /// What was to be taken was not.
    #[error("{0} pages were not reclaimed")]
    Kept(u64),
    /// The contents of memory are not what they were.
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
