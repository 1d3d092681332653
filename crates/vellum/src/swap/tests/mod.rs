//! Swap against what it promises. Several CPUs at once are in `vellum-sim`'s `tests/behaviour/swap/devices/schedules.rs`.

mod compressed;
mod slots;
mod swaps;
