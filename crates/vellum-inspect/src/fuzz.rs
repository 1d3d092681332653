//! Fuzz targets of this crate's parsers.
//!
//! Each target is a function over any bytes. It panics if a parser does, or if the parsed value
//! breaks a promised property (`docs/fuzzing.md`). The test below runs the targets over the kept
//! corpus; `fuzz/fuzz_targets` runs them over the inputs that libFuzzer makes.

use vellum_pagemap::FolioStats;

use crate::report::json;
use crate::{tlb, watch};

/// Checks that a saved report that `--diff` accepts can be compared and written again.
pub fn saved(bytes: &[u8]) {
    let Ok(read) = json::read(bytes) else { return };
    let mut shown = Vec::new();
    watch::compare(&read, &read, &mut shown).expect("memory can be written to");
    assert!(String::from_utf8_lossy(&shown).contains("PROCESS"));
    let again = serde_json::to_vec(&read).expect("a parsed report can be written");
    assert_eq!(json::read(&again).map(|again| again.processes.len()).ok(), Some(read.processes.len()));
}

/// Checks that TLB entries can be counted for each core of an accepted table.
pub fn cores(bytes: &[u8]) {
    let Ok(cores) = tlb::parse(&String::from_utf8_lossy(bytes)) else { return };
    // A process with 64 KiB in one folio and a huge page.
    let stats =
        FolioStats { pages: 16 + 512, huge: 1, in_folio: [4, 1, 0], aligned: [4, 1, 0], ..FolioStats::default() };
    assert!(
        cores.iter().all(|core| [4 + 1, 1 + 1, 16 + 1].contains(&core.entries(&stats)) && core.l1 > 0 && core.l2 > 0)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsers_keep_their_properties_on_the_corpus_and_its_mutations() {
        vellum_corpus::check("vellum_inspect", &[("cores", cores), ("saved", saved)]);
    }
}
