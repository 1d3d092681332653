//! Counts the TLB entries that memory takes, by kind of core.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;
use vellum_pagemap::{BLOCKS, FolioStats};

/// The built-in table of cores.
pub const KNOWN: &str = include_str!("tlb.toml");

/// The TLBs of a core. See `tlb.toml` for the fields.
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

/// The reliability of a core's figures.
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

/// Returns the built-in table of cores, or that of a file.
///
/// # Errors
/// The file can't be read or parsed.
pub fn load(file: Option<&Path>) -> anyhow::Result<Vec<Core>> {
    let Some(path) = file else { return parse(KNOWN) };
    let text = fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    parse(&text).with_context(|| {
        format!("{} is not a table of cores such as `vellum inspect --tlb-sources` writes", path.display())
    })
}

/// Parses a table of cores.
///
/// # Errors
/// The text is not a TOML table of cores, or a value is out of range.
pub fn parse(text: &str) -> anyhow::Result<Vec<Core>> {
    let cores = toml::from_str::<Cores>(text)?.core;
    for core in &cores {
        let name = &core.name;
        ensure!(core.l1 > 0 && core.l2 > 0, "{name}: l1 and l2 must be more than 0");
        ensure!([1, 4].contains(&core.coalesces), "{name}: coalesces must be 1 or 4 pages");
        ensure!([0, 65536].contains(&core.contiguous), "{name}: contiguous must be 0 or 65536 bytes");
    }
    Ok(cores)
}

impl Core {
    /// Returns the number of TLB entries that all present memory takes with its current frames and
    /// folios.
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

    /// Returns the number of TLB entries that the memory would take in fully mapped 64 KiB folios.
    pub fn in_large_folios(&self, stats: &FolioStats) -> u64 {
        let small = stats.pages - stats.huge * BLOCKS[2];
        let block = if self.contiguous != 0 { BLOCKS[1] } else { self.coalesces };
        small.div_ceil(block) + stats.huge
    }

    /// Returns the number of TLB entries that the memory would take in huge pages.
    pub fn in_huge_pages(&self, stats: &FolioStats) -> u64 {
        stats.pages.div_ceil(BLOCKS[2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_table_parses_and_every_core_has_a_source() {
        let cores = load(None).unwrap();
        assert!(cores.len() >= 10 && cores.iter().all(|core| core.source.len() > 5));
    }

    #[test]
    fn entries_depend_on_a_cores_coalescing() {
        let cores = load(None).unwrap();
        let entries =
            |name: &str, stats: &FolioStats| cores.iter().find(|core| core.name == name).unwrap().entries(stats);
        // 64 KiB in one folio, 16 KiB aligned by chance, 3 single pages, and a huge page.
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
    fn an_error_in_a_file_names_the_file_and_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.toml");
        fs::write(&file, "[[core]]\nname = \"x\"\nl1 = 4\nl3 = 7\nsource = \"me\"\nconfidence = \"manual\"").unwrap();
        let error = format!("{:#}", load(Some(&file)).unwrap_err());
        assert!(error.contains("mine.toml") && error.contains("l3"), "{error}");
        assert!(error.contains("--tlb-sources"), "{error}");
    }
}
