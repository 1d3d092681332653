//! Fuzz targets of this crate's parsers.
//!
//! Each target is a function over any bytes. It panics if a parser does, or if the parsed value
//! breaks a promised property (`docs/fuzzing.md`). The test below runs the targets over the kept
//! corpus; `fuzz/fuzz_targets` runs them over the inputs that libFuzzer makes.

use std::collections::BTreeSet;

use linux_raw_sys::general::page_region;

use crate::bpf::layout_of;
use crate::frames::{BLOCKS, FolioStats, Run, folios_of};
use crate::ioctl::checked;
use crate::process::{Stat, memory_of, vmas_of};
use crate::tables::{Counter, Geometry, Mapped};
use crate::{Categories, Region};

const PAGE: u64 = 4096;
/// The range that a survey scans together ([`crate::survey()`]).
const STRETCH: u64 = 16 << 30;

/// Checks that VMAs from `/proc/PID/maps` are ascending, of whole pages, and in the user's half.
pub fn maps(bytes: &[u8]) {
    let Ok(vmas) = vmas_of(bytes) else { return };
    assert!(vmas.iter().all(|vma| vma.start < vma.end && (vma.start | vma.end) % PAGE == 0));
    assert!(vmas.windows(2).all(|pair| pair[0].end <= pair[1].start));
    assert!(vmas.last().is_none_or(|vma| vma.end <= 1 << 63));
    let levels = Geometry::of(PAGE, vmas.last().map_or(0, |vma| vma.end)).levels();
    assert!((1..=3).contains(&levels));
}

/// Checks figures from `/proc/PID/status` and `/proc/PID/stat` against the text.
pub fn status(bytes: &[u8]) {
    if let Ok(Some(memory)) = memory_of(bytes) {
        let text = String::from_utf8_lossy(bytes);
        let line = text.lines().filter_map(|line| line.strip_prefix("VmPTE:")).next_back();
        let number = line.and_then(|line| line.split(':').next()?.split_whitespace().next()?.parse::<u64>().ok());
        assert_eq!(number.map(|kib| kib.saturating_mul(1024)), Some(memory.tables), "{line:?}");
    }
    if let Ok(Stat { name, parent, flags, .. }) = Stat::of(bytes) {
        let again = format!("1 ({name}) S {parent} 0 0 0 0 {flags}");
        let again = Stat::of(again.as_bytes()).expect("a parsed stat parses again after it is written");
        assert_eq!((again.name, again.parent, again.flags), (name, parent, flags));
    }
}

/// Parses BTF.
pub fn btf(bytes: &[u8]) {
    let _ = layout_of(bytes);
}

/// Checks that accepted `PAGEMAP_SCAN` regions make progress, and that the page tables counted for
/// them are those that their pages are in.
pub fn regions(bytes: &[u8]) {
    let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let start = words.next().unwrap_or_default() % (1 << 47) / PAGE * PAGE;
    let range = (start, start + words.next().unwrap_or(STRETCH).min(STRETCH) / PAGE * PAGE);
    let words: Vec<u64> = words.collect();
    let page = |word: u64| word / PAGE * PAGE;
    let region = |[start, end, categories]: &[u64; 3]| page_region {
        start: page(*start),
        end: page(*end),
        categories: *categories,
    };
    let given: Vec<page_region> = words.as_chunks::<3>().0.iter().map(region).collect();
    let Ok(regions) = checked(&given, range) else { return };
    let regions: Vec<Region> = regions.collect();
    assert!(
        regions.first().is_none_or(|first| first.start >= range.0)
            && regions.last().is_none_or(|last| last.end <= range.1)
    );
    assert!(
        regions.iter().all(|region| !region.is_empty()) && regions.windows(2).all(|pair| pair[0].end <= pair[1].start)
    );
    let geometry = Geometry::of(PAGE, 1 << 47);
    let mut counter = Counter::new(geometry);
    for region in &regions {
        let huge = region.categories.contains(Categories::HUGE);
        counter.add(region, Mapped { level: usize::from(huge), deposits: huge });
    }
    let span = geometry.span(0);
    let ranges: BTreeSet<u64> =
        regions.iter().flat_map(|region| region.start / span..=(region.end - 1) / span).collect();
    let leaves = counter.take(Some(&[range.0 / span * span]));
    assert!(
        leaves.iter().map(|leaf| leaf.start / span).eq(ranges
            .iter()
            .copied()
            .chain([range.0 / span])
            .collect::<BTreeSet<_>>())
    );
    assert_eq!(
        leaves.iter().map(|leaf| leaf.entries).sum::<u64>(),
        regions.iter().map(Region::len).sum::<u64>() / PAGE
    );
    assert_eq!(counter.tables.used[2], ranges.iter().map(|table| table >> 18).collect::<BTreeSet<_>>().len() as u64);
}

/// Checks folios and blocks counted from `/proc/kpageflags`.
pub fn pages(bytes: &[u8]) {
    let Some((head, flags)) = bytes.split_first_chunk::<4>() else { return };
    let [first, frame] = [0, 2].map(|at| u64::from(u16::from_le_bytes([head[at], head[at + 1]])));
    let flags = flags.as_chunks().0;
    let folios = folios_of(flags);
    assert_eq!(folios.iter().map(|folio| folio.pages).sum::<u64>(), flags.len() as u64);
    assert!(folios.windows(2).all(|pair| pair[0].at + pair[0].pages == pair[1].at));
    let run = Run { at: first * PAGE, frame, pages: flags.len() as u64 };
    let mut stats = FolioStats::default();
    stats.add_blocks(first, &run, &folios);
    for (n, size) in BLOCKS.into_iter().enumerate() {
        let fits =
            |page: &u64| (page | (page - first + frame)).is_multiple_of(size) && page + size <= first + run.pages;
        let blocks: Vec<u64> = (first..first + run.pages).filter(fits).collect();
        let inside = |page: &&u64| {
            let at = **page - first;
            folios.iter().any(|folio| folio.at <= at && at + size <= folio.at + folio.pages)
        };
        assert_eq!(
            (stats.aligned[n], stats.in_folio[n]),
            (blocks.len() as u64, blocks.iter().filter(inside).count() as u64)
        );
    }
    assert_eq!(stats.aligned_outside_folios, stats.aligned[0] - stats.in_folio[1] * (BLOCKS[1] / BLOCKS[0]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsers_keep_their_properties_on_the_corpus_and_its_mutations() {
        let targets: &[vellum_corpus::Target] =
            &[("btf", btf), ("maps", maps), ("pages", pages), ("regions", regions), ("status", status)];
        vellum_corpus::check("vellum_pagemap", targets);
    }

    /// 4 GiB of contiguous single frames. A linear search for each block takes minutes: 29 s for 1
    /// GiB.
    #[test]
    fn blocks_of_many_small_folios_are_counted_in_one_pass() {
        let flags = vec![[0; 8]; 1 << 20];
        let run = Run { at: 0, frame: 0, pages: 1 << 20 };
        let mut stats = FolioStats::default();
        stats.add_blocks(0, &run, &folios_of(&flags));
        assert_eq!((stats.aligned, stats.in_folio), ([1 << 18, 1 << 16, 1 << 11], [0; 3]));
    }
}
