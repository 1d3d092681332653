//! Writes the folios, the contiguity and the TLB entries of a process's memory, for root.

use std::io::{self, Write};

use vellum_pagemap::{BLOCKS, FolioStats};

use super::table::{align, grouped, new_table, paragraph};
use crate::size::about;
use crate::tlb::Core;

/// Writes the tables of folio sizes, contiguity and TLB entries.
///
/// # Errors
/// Returns the error of `out`.
pub fn write(stats: &FolioStats, cores: &[Core], out: &mut impl Write) -> io::Result<()> {
    let percent = |pages: u64| format!("{:.1} %", pages as f64 * 100.0 / stats.pages.max(1) as f64);
    let mut sizes = new_table(["FOLIOS", "in memory", "share"]);
    for (order, pages) in stats.by_order.iter().enumerate().filter(|(_, pages)| **pages > 0) {
        sizes.add_row([about(4096 << order), about(pages * 4096), percent(*pages)]);
    }
    align(&mut sizes, [0, 1, 2]);
    writeln!(out, "\n{sizes}")?;
    let mut blocks = new_table(["BLOCKS of", "contiguous", "and aligned", "and in one folio"]);
    for (n, size) in BLOCKS.iter().enumerate() {
        let huge = stats.huge * BLOCKS[2];
        blocks.add_row([
            about(size * 4096),
            percent(stats.contiguous[n]),
            percent(stats.aligned[n] * size + huge),
            percent(stats.in_folio[n] * size + huge),
        ]);
    }
    align(&mut blocks, [0, 1, 2, 3]);
    writeln!(out, "\n{blocks}")?;
    let mut table =
        new_table(["TLB ENTRIES for all of it", "L1 / L2 has", "as it lies", "× L2", "in 64 KiB folios", "in 2 MiB"]);
    for core in cores {
        let entries = core.entries(stats);
        table.add_row([
            core.name.clone(),
            format!("{} / {}", core.l1, grouped(core.l2)),
            grouped(entries),
            format!("{:.1}", entries as f64 / core.l2 as f64),
            grouped(core.in_large_folios(stats)),
            grouped(core.in_huge_pages(stats)),
        ]);
    }
    align(&mut table, [1, 2, 3, 4, 5]);
    writeln!(out, "\n{table}")?;
    paragraph(
        "",
        "Arm and RISC-V cores hold 64 KiB in an entry where the kernel sets a bit in the PTEs, which Linux does within \
         a folio; AMD cores coalesce four contiguous pages by themselves. The sources of the figures: --tlb-sources.",
        out,
    )
}
