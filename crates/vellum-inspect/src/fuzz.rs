//! Fuzz targets of this crate's readers of files: functions over any bytes, which panic if a reader
//! does, or if what it returns breaks its promises (`docs/fuzzing.md`).
//!
//! The test below runs them over the kept corpus; `fuzz/fuzz_targets` runs them over inputs that
//! libFuzzer makes.

use vellum_pagemap::FolioStats;

use crate::report::json;
use crate::{tlb, watch};

/// `vellum inspect --diff` reads reports that `vellum inspect --json` saved.
pub fn saved(bytes: &[u8]) {
    let Ok(read) = json::read(bytes) else { return };
    let mut shown = Vec::new();
    watch::compare(&read, &read, &mut shown).expect("memory can be written to");
    assert!(String::from_utf8_lossy(&shown).contains("PROCESS"));
    let again = serde_json::to_vec(&read).expect("what was read can be written");
    assert_eq!(json::read(&again).map(|again| again.processes.len()).ok(), Some(read.processes.len()));
}

/// A table of cores: what is understood can be counted with.
pub fn cores(bytes: &[u8]) {
    let Ok(cores) = tlb::understood(&String::from_utf8_lossy(bytes)) else { return };
    // 64 KiB in one folio, and a huge page.
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
    fn readers_hold_their_properties_on_the_corpus_and_its_mutations() {
        vellum_corpus::check("vellum_inspect", &[("cores", cores), ("saved", saved)]);
    }
}
