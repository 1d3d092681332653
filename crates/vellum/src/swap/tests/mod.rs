//! Unit tests of the swap module on one CPU at a time. Tests with several CPUs are `vellum-sim`'s
//! `tests/strict/swap.rs`.

mod compressed;
mod slots;
mod swaps;
