//! Explains why a process has empty page tables, and what would free them on this kernel.

use vellum_pagemap::Kernel;

use super::inspection::Inspection;
use crate::size::about;

/// Returns paragraphs, each with a heading, about a process's needless page tables (those that are
/// empty or lead only to empty ones). Returns none if there are few such tables.
pub fn of(inspection: &Inspection, kernel: &Kernel) -> Vec<(&'static str, String)> {
    let survey = &inspection.survey;
    let page = survey.geometry.page();
    // Fewer than 64 needless page tables, or less than a tenth of all, are not worth mentioning.
    if inspection.empty() < 64 * page || inspection.empty() * 10 < survey.after.tables {
        return Vec::new();
    }
    let span = about(survey.geometry.span(0));
    let mut paragraphs = vec![(
        "WHY",
        format!(
            "Linux frees a page table when its addresses are unmapped, not when its pages are freed (MADV_DONTNEED, \
             MADV_FREE and then reclaim, fallocate): the {span} that a table spans stay mapped, and so the table \
             stays."
        ),
    )];
    paragraphs.push(match kernel.frees_tables {
        Some(true) => (
            "HERE",
            format!(
                "This kernel does free tables (PT_RECLAIM), but only in MADV_DONTNEED calls of {span} or more. These \
                 pages were freed in smaller pieces."
            ),
        ),
        Some(false) => (
            "HERE",
            "This kernel never frees a table before its addresses are unmapped (from Linux 6.14 on, CONFIG_PT_RECLAIM \
             frees some)."
                .into(),
        ),
        None => {
            ("HERE", "Whether this kernel ever frees such a table could not be probed: it has no PAGEMAP_SCAN.".into())
        }
    });
    let most = survey.vmas.iter().max_by_key(|one| one.empty).filter(|one| one.empty > 0);
    let heap = most.is_some_and(|one| !one.vma.file);
    let mut helps = vec![format!(
        "munmap of unneeded memory, instead of MADV_DONTNEED; or MADV_DONTNEED in pieces of {span} and more"
    )];
    if heap {
        helps.push("an allocator that does so (larger extents, or memory returned by unmapping it)".into());
    }
    helps.push(format!("huge pages ({span}), which need no last-level table"));
    helps.push("a restart of the process, for now".into());
    paragraphs.push(("HELPS", helps.join("; ") + "."));
    paragraphs
}
