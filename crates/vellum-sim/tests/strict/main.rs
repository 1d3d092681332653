//! The engine on the strict machine, which checks at every step that memory management keeps its rules.
//!
//! One program of all of them: the engine is compiled for each machine and each format of page tables once, not for every story.

mod bench;
mod beyond;

mod added;
mod audit;
mod blocks;
mod charges;
mod collapse;
mod engine;
#[cfg(feature = "shuttle")]
mod fair;
mod families;
mod fork;
mod full;
#[cfg(feature = "shuttle")]
mod lazyfree_fork;
#[cfg(feature = "shuttle")]
mod live;
mod nodes;
mod objects;
mod paged_out;
mod reclaim;
mod remap;
mod sharers;
mod sparse;
mod split;
mod stays;
#[cfg(feature = "shuttle")]
mod swap;
mod swap_cache;
mod swap_faults;
mod watched;
