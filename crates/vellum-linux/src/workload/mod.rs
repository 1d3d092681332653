//! Workloads: what is mapped, what is in it, and the operation on it.
//!
//! The same workloads run on Linux and on every other memory manager that a benchmark compares with
//! it.
//!
//! | module | contents |
//! |---|---|
//! | [`arm`] | the order in which a region's folios are touched |
//! | [`calls`] | the `munmap` calls that take a region away piece by piece |
//! | [`case`] | a region of folios of one size, and the operations on it |
//! | [`churn`] | other programs' work that leaves free memory in pieces |
//! | [`contended`] | one thread's operations while another one reclaims memory |
//! | [`data`] | the contents of its pages, and the check that they survive |
//! | [`files`] | operations on a file of a disk |
//! | [`layout`] | the VMAs of a process, as something to copy and measure |
//! | [`mapping`] | the kind of a region's mapping |
//! | [`shuffle`] | fixed pseudo-random numbers and orders |

pub mod arm;
pub mod calls;
pub mod case;
pub mod churn;
pub mod contended;
pub mod data;
pub mod files;
pub mod layout;
pub mod mapping;
pub mod shuffle;
