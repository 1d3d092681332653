//! What a Linux process has mapped, read from outside: which pages, and which page tables, empty
//! ones too. Without root, for processes of one's own.
//!
//! Linux can be asked for a process's pages by range (`PAGEMAP_SCAN`, from 6.7 on). That is a
//! system call with some traps: it holds the process's lock for as long as it walks, it may say
//! that it has ended where it has not, and it is not to be had everywhere. [`Pagemap`] goes in
//! steps that stay within a budget ([`Pace`]), goes on from what was told, and reads entry by entry
//! where the call is missing.
//!
//! From what is told follows how many page tables a process needs; Linux says how many it has; and
//! the difference are empty ones ([`survey`]). Each of the lowest level is found as well
//! ([`Pagemap::tables`]; where that does not work, [`Pagemap::tables_by_time`]). Root can have the
//! tables themselves, of all levels ([`Walker`]).
//!
//! ```
//! use std::time::Duration;
//! use vellum_pagemap::{Kernel, Options, Pace, Pagemap, Target, survey};
//!
//! let target = Target::open(std::process::id() as i32)?;
//! let mut pagemap = Pagemap::open(&target.process)?;
//! let mut pace = Pace::new(Duration::from_millis(1));
//! let options = Options { tells: Kernel::probe(&mut pace)?.tells, sample: None };
//! let survey = survey(&target, &mut pagemap, &mut pace, &options, &mut ())?;
//! println!("{} tables, {} of them empty", survey.after.tables / survey.geometry.page(), survey.empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | story |
//! |---|---|
//! | `category` | what a page is, and how to ask for it |
//! | `ioctl` | the system calls |
//! | `pace` | steps within a budget |
//! | `scan` | pages and tables of a range |
//! | `calibrate` | what this kernel does with empty tables |
//! | `timing` | tables told by the time that looking takes |
//! | `process` | what `/proc` says, and why not |
//! | `frames` | where pages lie in memory, for root |
//! | `tables` | counting |
//! | `survey` | all together |
//! | `bpf` | tables themselves, for root |

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

pub use bpf::{Refused, Table, Walked, Walker};
pub use calibrate::{Kernel, Tells};
pub use category::{Categories, Query, Region};
pub use frames::{BLOCKS, Frames, Lies, ORDERS};
pub use pace::{Holds, Pace, Stopped};
pub use process::{Memory, Target, Unreadable, Vma, parent};
pub use scan::{Pagemap, ScanError};
pub use survey::{Options, Sample, Survey, SurveyError, Surveyed, Watcher, survey};
pub use tables::{Geometry, LEVELS, Occupancy, Tables};
pub use timing::Timing;
