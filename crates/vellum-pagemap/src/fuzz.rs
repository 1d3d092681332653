//! Fuzz targets of the readers: functions over any bytes, which panic if a reader does, or if what
//! it returns breaks its promises (`docs/fuzzing.md`). The test below runs them over the kept
//! corpus; `fuzz/fuzz_targets`, over what libFuzzer makes.

use std::collections::BTreeSet;

use linux_raw_sys::general::page_region;

use crate::bpf::layout_of;
use crate::frames::{BLOCKS, Lies, Run, folios_of};
use crate::ioctl::told;
use crate::process::{Stat, memory_of, vmas_of};
use crate::tables::{Counter, Geometry, Mapped};
use crate::{Categories, Region};

const PAGE: u64 = 4096;
/// What is gone through together ([`crate::survey()`]).
const STRETCH: u64 = 16 << 30;

/// `/proc/PID/maps`: VMAs are in order, of whole pages, and a program's.
pub fn maps(bytes: &[u8]) {
    let Ok(vmas) = vmas_of(bytes) else { return };
    assert!(vmas.iter().all(|vma| vma.start < vma.end && (vma.start | vma.end) % PAGE == 0));
    assert!(vmas.windows(2).all(|pair| pair[0].end <= pair[1].start));
    assert!(vmas.last().is_none_or(|vma| vma.end <= 1 << 63));
    let levels = Geometry::of(PAGE, vmas.last().map_or(0, |vma| vma.end)).levels();
    assert!((1..=3).contains(&levels));
}

/// `/proc/PID/status` and `/proc/PID/stat`.
pub fn status(bytes: &[u8]) {
    if let Ok(Some(memory)) = memory_of(bytes) {
        let text = String::from_utf8_lossy(bytes);
        let line = text.lines().filter_map(|line| line.strip_prefix("VmPTE:")).next_back();
        let number = line.and_then(|line| line.split(':').next()?.split_whitespace().next()?.parse::<u64>().ok());
        assert_eq!(number.map(|kib| kib.saturating_mul(1024)), Some(memory.tables), "{line:?}");
    }
    if let Ok(Stat { name, parent, flags, .. }) = Stat::of(bytes) {
        let again = format!("1 ({name}) S {parent} 0 0 0 0 {flags}");
        let again = Stat::of(again.as_bytes()).expect("what was read, written anew");
        assert_eq!((again.name, again.parent, again.flags), (name, parent, flags));
    }
}

/// What the kernel says of its types: BTF.
pub fn btf(bytes: &[u8]) {
    let _ = layout_of(bytes);
}

/// Regions of `PAGEMAP_SCAN`: those that are accepted get the scan further, and the tables that are
/// counted for them are those that their pages are in.
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
    let Ok(told) = told(&given, range) else { return };
    let told: Vec<Region> = told.collect();
    assert!(
        told.first().is_none_or(|first| first.start >= range.0) && told.last().is_none_or(|last| last.end <= range.1)
    );
    assert!(told.iter().all(|region| !region.is_empty()) && told.windows(2).all(|pair| pair[0].end <= pair[1].start));
    let geometry = Geometry::of(PAGE, 1 << 47);
    let mut counter = Counter::new(geometry);
    for region in &told {
        let huge = region.categories.contains(Categories::HUGE);
        counter.add(region, Mapped { level: usize::from(huge), deposits: huge });
    }
    let span = geometry.span(0);
    let ranges: BTreeSet<u64> = told.iter().flat_map(|region| region.start / span..=(region.end - 1) / span).collect();
    let leaves = counter.take(Some(&[range.0 / span * span]));
    assert!(
        leaves.iter().map(|leaf| leaf.start / span).eq(ranges
            .iter()
            .copied()
            .chain([range.0 / span])
            .collect::<BTreeSet<_>>())
    );
    assert_eq!(leaves.iter().map(|leaf| leaf.entries).sum::<u64>(), told.iter().map(Region::len).sum::<u64>() / PAGE);
    assert_eq!(counter.tables.used[2], ranges.iter().map(|table| table >> 18).collect::<BTreeSet<_>>().len() as u64);
}

/// Flags of frames in a row (`/proc/kpageflags`), and the blocks that translations may be of.
pub fn pages(bytes: &[u8]) {
    let Some((head, flags)) = bytes.split_first_chunk::<4>() else { return };
    let [first, frame] = [0, 2].map(|at| u64::from(u16::from_le_bytes([head[at], head[at + 1]])));
    let flags = flags.as_chunks().0;
    let folios = folios_of(flags);
    assert_eq!(folios.iter().map(|folio| folio.pages).sum::<u64>(), flags.len() as u64);
    assert!(folios.windows(2).all(|pair| pair[0].at + pair[0].pages == pair[1].at));
    let run = Run { at: first * PAGE, frame, pages: flags.len() as u64 };
    let mut lies = Lies::default();
    lies.add_blocks(first, &run, &folios);
    for (n, size) in BLOCKS.into_iter().enumerate() {
        let fits =
            |page: &u64| (page | (page - first + frame)).is_multiple_of(size) && page + size <= first + run.pages;
        let blocks: Vec<u64> = (first..first + run.pages).filter(fits).collect();
        let inside = |page: &&u64| {
            let at = **page - first;
            folios.iter().any(|folio| folio.at <= at && at + size <= folio.at + folio.pages)
        };
        assert_eq!(
            (lies.congruent[n], lies.in_folio[n]),
            (blocks.len() as u64, blocks.iter().filter(inside).count() as u64)
        );
    }
    assert_eq!(lies.small_apart, lies.congruent[0] - lies.in_folio[1] * (BLOCKS[1] / BLOCKS[0]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_hold_their_properties_on_the_corpus_and_its_mutations() {
        let targets: &[vellum_corpus::Target] =
            &[("btf", btf), ("maps", maps), ("pages", pages), ("regions", regions), ("status", status)];
        vellum_corpus::check("vellum_pagemap", targets);
    }

    /// 4 GiB of single frames that lie in a row. With a look at each of them for each block, this
    /// takes minutes: for 1 GiB, 29 s.
    #[test]
    fn blocks_of_many_small_folios_are_counted_in_one_pass() {
        let flags = vec![[0; 8]; 1 << 20];
        let run = Run { at: 0, frame: 0, pages: 1 << 20 };
        let mut lies = Lies::default();
        lies.add_blocks(0, &run, &folios_of(&flags));
        assert_eq!((lies.congruent, lies.in_folio), ([1 << 18, 1 << 16, 1 << 11], [0; 3]));
    }
}
