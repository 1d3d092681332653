//! How many entries of a translation cache memory takes, as it lies, by kind of core.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;
use vellum_pagemap::{BLOCKS, FolioStats};

/// What comes with the command.
pub const KNOWN: &str = include_str!("tlb.toml");

/// A core's translation caches. See `tlb.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Core {
    pub name: String,
    pub l1: u64,
    pub l2: u64,
    #[serde(default = "one")]
    pub coalesces: u64,
    #[serde(default)]
    pub contiguous: u64,
    pub source: String,
    pub confidence: Confidence,
}

/// How sure its figures are.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    Manual,
    Measured,
    Report,
}

#[derive(Deserialize)]
struct Cores {
    core: Vec<Core>,
}

fn one() -> u64 {
    1
}

/// The cores that are known, or those of a file instead.
pub fn cores(file: Option<&Path>) -> anyhow::Result<Vec<Core>> {
    let Some(path) = file else { return understood(KNOWN) };
    let text = fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    understood(&text).with_context(|| {
        format!("{} is no table of cores, as `vellum inspect --tlb-sources` writes one", path.display())
    })
}

/// Reads a table of cores.
pub fn understood(text: &str) -> anyhow::Result<Vec<Core>> {
    let cores = toml::from_str::<Cores>(text)?.core;
    for core in &cores {
        let name = &core.name;
        ensure!(core.l1 > 0 && core.l2 > 0, "{name}: a cache without entries");
        ensure!([1, 4].contains(&core.coalesces), "{name}: coalesces is 1 or 4 pages");
        ensure!([0, 65536].contains(&core.contiguous), "{name}: contiguous is 0 or 65536 bytes");
    }
    Ok(cores)
}

impl Core {
    /// Entries for all that is mapped, as it lies.
    pub fn entries(&self, stats: &FolioStats) -> u64 {
        let mut entries = stats.pages - stats.huge * BLOCKS[2] + stats.huge;
        if self.contiguous != 0 {
            entries -= stats.in_folio[1] * (BLOCKS[1] - 1);
        }
        if self.coalesces > 1 {
            let blocks = if self.contiguous != 0 { stats.aligned_outside_folios } else { stats.aligned[0] };
            entries -= blocks * (self.coalesces - 1);
        }
        entries
    }

    /// Entries if as much lay in folios of 64 KiB, mapped whole.
    pub fn in_large_folios(&self, stats: &FolioStats) -> u64 {
        let small = stats.pages - stats.huge * BLOCKS[2];
        let block = if self.contiguous != 0 { BLOCKS[1] } else { self.coalesces };
        small.div_ceil(block) + stats.huge
    }

    /// Entries if it lay in huge pages.
    pub fn in_huge_pages(&self, stats: &FolioStats) -> u64 {
        stats.pages.div_ceil(BLOCKS[2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_understood_and_every_core_has_a_source() {
        let cores = cores(None).unwrap();
        assert!(cores.len() >= 10 && cores.iter().all(|core| core.source.len() > 5));
    }

    #[test]
    fn an_entry_holds_what_the_core_can_put_into_it() {
        let cores = cores(None).unwrap();
        let entries =
            |name: &str, stats: &FolioStats| cores.iter().find(|core| core.name == name).unwrap().entries(stats);
        // 64 KiB in one folio, 16 KiB that lie well by chance, 3 pages that do not, and a huge page.
        let stats = FolioStats {
            pages: 16 + 4 + 3 + 512,
            huge: 1,
            aligned: [5, 1, 0],
            in_folio: [4, 1, 0],
            aligned_outside_folios: 1,
            ..FolioStats::default()
        };
        assert_eq!(entries("Skylake, Cascade Lake", &stats), 24);
        assert_eq!(entries("Zen 4", &stats), 4 + 1 + 3 + 1);
        assert_eq!(entries("Neoverse N1, Cortex-A76", &stats), 1 + 4 + 3 + 1);
    }

    #[test]
    fn a_file_that_is_wrong_says_where() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.toml");
        fs::write(&file, "[[core]]\nname = \"x\"\nl1 = 4\nl3 = 7\nsource = \"me\"\nconfidence = \"manual\"").unwrap();
        let error = format!("{:#}", cores(Some(&file)).unwrap_err());
        assert!(error.contains("mine.toml") && error.contains("l3"), "{error}");
        assert!(error.contains("--tlb-sources"), "{error}");
    }
}
