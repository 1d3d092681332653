//! The machines themselves, under the smallest memory manager there is.

mod tiny;

mod cores;
mod fast;
mod planted;
mod planted_blocks;
#[cfg(feature = "shuttle")]
mod schedules;
mod stale;
