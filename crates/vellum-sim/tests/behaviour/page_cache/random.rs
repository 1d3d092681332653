//! Random operations on page-cache objects and the spaces that map them, against a model of plain
//! maps.

use crate::fixtures::object_model;
use crate::fixtures::random::dice;

/// Programs find in shared VMAs the last write of any program, in private ones that or their own.
/// Each operation answers as a model of plain maps predicts, and one that fails for lack of memory
/// has changed nothing. At rest a page's refcount is its mapcount and the object's reference
/// (INV-2), counts and lists agree, and VMAs merge where they can. In the end all memory is free.
/// (The strict machine checks INV-1, 3, 4, 5 and 6.)
#[test]
fn single_operations_against_the_model() {
    let first = std::env::var("VELLUM_SEED").ok().and_then(|seed| seed.parse().ok());
    for nth in 0..first.map_or(300, |_| 1) {
        let seed = first.unwrap_or_else(|| dice::derive(0x0b1ec7, nth));
        println!("VELLUM_SEED={seed}");
        object_model::run(seed, 400);
    }
}
