//! Swap against what it promises. Several CPUs at once are in `vellum-sim`'s `tests/strict/swap.rs`.

mod compressed;
mod slots;
mod swaps;
