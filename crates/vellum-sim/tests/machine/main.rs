//! The machines themselves, under the smallest memory manager there is.

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
