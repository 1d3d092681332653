//! Unit tests of the swap module on one CPU at a time. Tests with several CPUs are `vellum-sim`'s
//! `tests/behaviour/swap/devices/schedules.rs`.

mod compressed;
mod slots;
mod swaps;
