//! Random operations on page-cache objects and the spaces that map them, against a model of plain
//! maps.

use crate::fixtures::object_model;
use crate::fixtures::random::watch;

/// Programs find in shared VMAs the last write of any program, in private ones that or their own.
/// Each operation answers as a model of plain maps predicts, and one that fails for lack of memory
/// has changed nothing. At rest a page's refcount is its mapcount and the object's reference
/// (INV-2), counts and lists agree, and VMAs merge where they can. In the end all memory is free.
/// (The strict machine checks INV-1, 3, 4, 5 and 6.)
#[test]
fn single_operations_against_the_model() {
    let test = "page_cache::random::single_operations_against_the_model";
    watch::each(test, 300, |seed, case| object_model::run(seed, false, case));
}

/// The same with files of a storage whose requests end at once, or at random times in random order,
/// and some of which may fail. A read that fails is an error of the operation that needs the page,
/// and of no other. The storage has what was written when no page is dirty. A write that fails is
/// reported once to each opener, and its pages keep their contents until they are dropped (INV-22).
/// Reclaim drops all pages that no program maps.
#[test]
fn files_against_the_model() {
    let test = "page_cache::random::files_against_the_model";
    watch::each(test, 300, |seed, case| object_model::run(seed, true, case));
}
