//! Writes the report of an inspection as a self-contained web page.

use maud::{Markup, html};
use vellum_pagemap::{BLOCKS, FolioStats, Kernel, VmaSurvey};

use super::map::{LEGEND, Section, WIDTH, sections};
use super::page::document;
use super::table::grouped;
use super::text::{letters, name_of};
use crate::inspection::Inspection;
use crate::size::about;
use crate::tlb::Core;
use crate::{advice, totals};

/// The style sheet of this page only: a colour for each kind of cell in [`LEGEND`], in the legend's
/// order.
const OWN: &str = "
:root { --k0: color-mix(in srgb, var(--soft) 15%, var(--paper)); --k1: var(--linux);
  --k2: color-mix(in srgb, var(--vellum) 25%, var(--paper));
  --k3: color-mix(in srgb, var(--vellum) 45%, var(--paper)); --k4: color-mix(in srgb, var(--vellum) 70%, var(--paper));
  --k5: var(--vellum); --k6: var(--line-2); --k7: var(--line-3); --k8: var(--line-6); }
.scroll + .scroll { margin-top: 1.5rem; }
.map rect { stroke: var(--paper); stroke-width: .06; }
.map { max-width: 44rem; }
figure.map svg { width: 100%; }
td.name { text-align: left; white-space: normal; overflow-wrap: anywhere; }
.bars { display: flex; align-items: flex-end; gap: 2px; height: 5rem; max-width: 20rem; }
.bars span { flex: 1; background: var(--vellum); min-height: 1px; }
@media print { .bars span, .map rect { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
";

/// The number of VMAs that are listed.
const VMAS: usize = 40;

/// Returns the web page about these processes. With `group`, the page lists all of them and shows
/// the first `group` in full; without, it shows all in full.
pub fn page(inspections: &[Inspection], group: Option<usize>, kernel: &Kernel, cores: &[Core]) -> String {
    let order = if group.is_some() { totals::by_waste(inspections) } else { inspections.iter().collect() };
    let body = html! {
        header {
            p.brand { "Vellum" }
            h1 { "Page tables of live processes" }
            p.lead { "What Linux counts as page tables, what the pages in them need, and the difference." }
        }
        main {
            @if let Some(top) = group { (together(inspections, &order, top)) }
            @for inspection in order.iter().take(group.unwrap_or(inspections.len())) {
                (process(inspection, kernel, cores))
            }
        }
    };
    document("Vellum: page tables of live processes", OWN, &body)
}

/// Returns the section about all processes together.
fn together(inspections: &[Inspection], order: &[&Inspection], top: usize) -> Markup {
    let shared = totals::shared(inspections, top);
    html! {
        section {
            h2 { "All together" }
            p { (totals::sum(inspections)) "." }
            div.scroll { table {
                thead { tr {
                    th { "process" } th { "" } th { "addresses" } th { "in memory" } th { "page tables" }
                    th { "needless" } th { "" }
                } }
                tbody { @for (n, inspection) in order.iter().enumerate() {
                    @let memory = &inspection.survey.after;
                    tr {
                        td {
                            @if n < top { a href=(format!("#p{}", inspection.pid)) { (inspection.pid) } }
                            @else { (inspection.pid) }
                        }
                        td.name { (inspection.name) }
                        td { (about(memory.reserved)) }
                        td { (about(memory.resident)) }
                        td { (about(memory.tables)) }
                        td { (about(inspection.empty())) }
                        td { (totals::percent(inspection.empty(), memory.tables)) }
                    }
                } }
            } }
            @if !shared.is_empty() {
                article {
                    h3 { "Shared mappings" }
                    p { "Each process has its own page tables for shared memory. " (totals::SHARED) }
                    div.scroll { table {
                        thead { tr {
                            th { "mapping" } th { "size" } th { "in memory" } th { "processes" }
                            th { "tables together" }
                        } }
                        tbody { @for one in &shared {
                            tr {
                                td.name { (one.name) }
                                td { (about(one.len)) }
                                td { (about(one.resident)) }
                                td { (grouped(one.processes)) }
                                td { (about(one.tables)) }
                            }
                        } }
                    } }
                }
            }
        }
    }
}

fn process(inspection: &Inspection, kernel: &Kernel, cores: &[Core]) -> Markup {
    let memory = &inspection.survey.after;
    let facts = [
        ("addresses", about(memory.reserved)),
        ("in memory", about(memory.resident)),
        ("swapped out", about(memory.swapped)),
        ("page tables", about(memory.tables)),
        ("needless", about(inspection.empty())),
        (
            "inspected in",
            format!(
                "{:.1?}, its mmap lock held {:.1?} at the longest",
                inspection.took, inspection.survey.lock_times.longest
            ),
        ),
    ];
    html! {
        section id=(format!("p{}", inspection.pid)) {
            h2 { (inspection.name) " " (inspection.pid) }
            dl.machine { @for (name, value) in &facts { div { dt { (name) } dd { (value) } } } }
            @if inspection.survey.changed() { p.note { "The process changed during the inspection: figures may be off \
                                                        by that." } }
            article { h3 { "Page tables" } (tables(inspection)) }
            @for (head, text) in advice::of(inspection, kernel) { p { strong { (head) } " " (text) } }
            article { h3 { "VMAs" } (vmas(inspection)) }
            @let drawn = sections(inspection);
            @if !drawn.is_empty() {
                article {
                    h3 { "Where they are" }
                    p { "A cell is a last-level page table, or several; a cell of several shows an empty one among \
                         them." }
                    figcaption { span.legend {
                        @for (kind, (_, _, text)) in LEGEND.iter().enumerate() {
                            span.key style=(format!("--key: var(--k{kind})")) { (text) }
                        }
                    } }
                    @for section in &drawn { (map(section)) }
                }
            }
            @if let Some(stats) = &inspection.stats { article { h3 { "Folios" } (folios(stats, cores)) } }
            @if let Some(part) = &inspection.part { (part.html()) }
        }
    }
}

fn tables(inspection: &Inspection) -> Markup {
    let (survey, tables) = (&inspection.survey, &inspection.survey.tables);
    let page = survey.geometry.page();
    let mut rows = vec![
        ("last level, in use", Some(tables.used[0])),
        ("last level, empty", tables.empty),
        ("upper levels, in use", Some(tables.used[1..].iter().sum())),
        ("upper levels, leading only to empty ones", tables.leading_nowhere()),
        ("deposited for huge pages", Some(tables.deposited)),
        ("needless, together", Some(inspection.empty() / page)),
        ("the least that its pages need", Some(survey.least())),
    ];
    rows.retain(|(_, count)| count.is_some());
    let most = tables.occupancy.iter().copied().max().unwrap_or(0).max(1);
    html! {
        div.scroll { table {
            thead { tr { th { "" } th { "tables" } th { "size" } } }
            tbody { @for (name, count) in &rows {
                @let count = count.unwrap_or(0);
                tr { th { (name) } td { (grouped(count)) } td { (about(count * page)) } }
            } }
        } }
        figure {
            div.bars role="img" aria-label="How full the tables in use are" {
                @for (n, count) in tables.occupancy.iter().enumerate() {
                    span
                        style=(format!("height: {}%", count * 100 / most))
                        title=(format!("up to {}/8 full: {}", n + 1, grouped(*count))) {}
                }
            }
            figcaption { "How full the tables in use are: up to an eighth, on the left, to full." }
        }
    }
}

fn vmas(inspection: &Inspection) -> Markup {
    let mut vmas: Vec<&VmaSurvey> =
        inspection.survey.vmas.iter().filter(|one| one.used + one.empty + one.huge > 0).collect();
    vmas.sort_by_key(|one| (std::cmp::Reverse(one.empty), std::cmp::Reverse(one.used)));
    let hidden = vmas.len().saturating_sub(VMAS);
    vmas.truncate(VMAS);
    html! {
        div.scroll { table {
            thead { tr {
                th { "VMA" } th { "" } th { "addresses" } th { "in memory" } th { "tables" } th { "empty" }
                th { "huge" }
            } }
            tbody { @for one in vmas {
                tr {
                    td { (format!("{:x}", one.vma.start)) }
                    td.name { (letters(&one.vma)) " " (name_of(&one.vma)) }
                    td { (about(one.vma.len())) }
                    td { (about(one.resident)) }
                    td { (grouped(one.used)) }
                    td { @if inspection.survey.tables.empty.is_some() { (grouped(one.empty)) } @else { "?" } }
                    td { (about(one.huge)) }
                }
            } }
        } }
        @if hidden > 0 { p.note { "and " (hidden) " more" } }
    }
}

fn map(section: &Section) -> Markup {
    let height = section.rows().count();
    html! {
        figure.map {
            svg viewBox=(format!("0 0 {WIDTH} {height}")) role="img"
                aria-label=(format!(
                    "Page tables from {:x} on, {} together", section.start, about(section.end - section.start)
                )) {
                @for (y, (row, kinds)) in section.rows().enumerate() {
                    @for cells in alike(kinds) {
                        rect x=(cells.0) y=(y) width=(cells.1) height="1" fill=(format!("var(--k{})", cells.2)) {
                            title { (format!("{:x}: {}", row + cells.0 as u64 * section.cell, LEGEND[cells.2].2)) }
                        }
                    }
                }
            }
            figcaption { (format!(
                "from {:x} on, {}; a cell is {}", section.start, about(section.end - section.start), about(section.cell)
            )) }
        }
    }
}

/// Returns the runs of equal cells in a row of the map: the index of the first cell, the number of
/// cells, and their kind.
fn alike(kinds: &[usize]) -> Vec<(usize, usize, usize)> {
    let mut at = 0;
    let run = |cells: &[usize]| {
        at += cells.len();
        (at - cells.len(), cells.len(), cells[0])
    };
    kinds.chunk_by(|a, b| a == b).map(run).collect()
}

fn folios(stats: &FolioStats, cores: &[Core]) -> Markup {
    let percent = |pages: u64| format!("{:.1} %", pages as f64 * 100.0 / stats.pages.max(1) as f64);
    let huge = stats.huge * BLOCKS[2];
    html! {
        div.scroll { table {
            thead { tr { th { "folios of" } th { "in memory" } th { "share" } } }
            tbody { @for (order, pages) in stats.by_order.iter().enumerate().filter(|(_, pages)| **pages > 0) {
                tr { th { (about(4096 << order)) } td { (about(pages * 4096)) } td { (percent(*pages)) } }
            } }
        } }
        div.scroll { table {
            thead { tr { th { "blocks of" } th { "contiguous" } th { "and aligned" } th { "and in one folio" } } }
            tbody { @for (n, size) in BLOCKS.iter().enumerate() {
                tr {
                    th { (about(size * 4096)) }
                    td { (percent(stats.contiguous[n])) }
                    td { (percent(stats.aligned[n] * size + huge)) }
                    td { (percent(stats.in_folio[n] * size + huge)) }
                }
            } }
        } }
        div.scroll { table {
            thead { tr {
                th { "TLB entries for all of it, on" } th { "as it lies" } th { "in 64 KiB folios" }
                th { "in 2 MiB" }
            } }
            tbody { @for core in cores {
                tr {
                    th title=(format!("{} ({:?})", core.source, core.confidence)) { (core.name) }
                    td { (grouped(core.entries(stats))) }
                    td { (grouped(core.in_large_folios(stats))) }
                    td { (grouped(core.in_huge_pages(stats))) }
                }
            } }
        } }
    }
}
