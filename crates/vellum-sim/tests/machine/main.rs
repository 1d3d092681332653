//! Tests of the simulated machines, under the smallest memory manager.

mod fixtures {
    pub mod tiny;
}

mod cont_block_rules;
mod fast;
mod rules;
#[cfg(feature = "shuttle")]
mod schedules;
mod stale;
mod tlb_models;
