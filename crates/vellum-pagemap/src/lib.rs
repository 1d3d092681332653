//! Reads which pages and page tables a Linux process has, empty page tables included, from outside
//! and without root for one's own processes.
//!
//! Linux reports a process's pages by range (`PAGEMAP_SCAN`, 6.7 and later). The ioctl holds the
//! target's mmap lock for as long as it walks, may report a wrong address as the end of its walk
//! (`walk_end`), and is not available everywhere. So [`Pagemap`] scans in steps within a time
//! budget ([`Pace`]), continues after a step that stopped early at the end of the last region that
//! the step reported, and reads `/proc/PID/pagemap` entry by entry where the ioctl is missing.
//!
//! The pages determine how many page tables a process needs. Linux reports how many it has, and the
//! difference is empty ([`survey()`]). Empty last-level page tables are also found one by one
//! ([`Pagemap::tables`]; where that doesn't work, [`Pagemap::tables_by_time`]). Root can read the
//! page tables of all levels from kernel memory ([`Walker`]).
//!
//! ```
//! use std::time::Duration;
//! use vellum_pagemap::{Kernel, Options, Pace, Pagemap, Target, survey};
//!
//! let target = Target::open(std::process::id() as i32)?;
//! let mut pagemap = Pagemap::open(&target.process)?;
//! let mut pace = Pace::new(Duration::from_millis(1));
//! let options = Options { detection: Kernel::probe(&mut pace)?.detection, sample: None };
//! let survey = survey(&target, &mut pagemap, &mut pace, &options, &mut ())?;
//! let tables = survey.after.tables / survey.geometry.page();
//! println!("{tables} tables, {} of them empty", survey.empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `category` | page categories and queries |
//! | `ioctl` | the ioctls |
//! | `pace` | steps within a budget of lock-hold time |
//! | `scan` | the pages and page tables of a range |
//! | `calibrate` | a probe of how this kernel treats empty page tables |
//! | `timing` | empty page tables found by scan time |
//! | `process` | processes and their VMAs from `/proc`, and why they can't be read |
//! | `frames` | frames and folios, for root |
//! | `tables` | counts of page tables |
//! | `survey` | a whole process: VMAs, pages and page tables |
//! | `bpf` | page tables read from kernel memory, for root |

mod bpf;
mod calibrate;
mod category;
mod frames;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod ioctl;
mod pace;
mod process;
mod scan;
mod survey;
mod tables;
mod timing;

pub use bpf::{Table, WalkedTables, Walker, WalkerError};
pub use calibrate::{Detection, Kernel};
pub use category::{Categories, Query, Region};
pub use frames::{BLOCKS, FolioStats, Frames, ORDERS};
pub use pace::{Interrupted, LockTimes, Pace};
pub use process::{Memory, Target, Unreadable, Vma, parent};
pub use scan::{Pagemap, ScanError};
pub use survey::{Options, Sample, Survey, SurveyError, Visitor, VmaSurvey, survey};
pub use tables::{Geometry, LEVELS, Occupancy, Tables};
pub use timing::Timing;
