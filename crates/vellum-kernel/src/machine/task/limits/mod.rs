//! Limits of processes and users that the task layer enforces.
//!
//! | file | contents |
//! |---|---|
//! | [`allowance`] | the CPU time limit of a process (`RLIMIT_CPU`) |
//! | [`count`] | the number of threads, in all and by user |

pub mod allowance;
pub mod count;
