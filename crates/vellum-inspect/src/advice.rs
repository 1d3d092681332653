//! Why a process has empty tables, and what would free them on this kernel.

use vellum_pagemap::Kernel;

use super::look::Look;
use crate::size::about;

/// What is worth saying of a process; nothing if it has no waste to speak of.
pub fn of(look: &Look, kernel: &Kernel) -> Vec<(&'static str, String)> {
    let survey = &look.survey;
    let page = survey.geometry.page();
    // Less than that nobody will ever notice.
    if look.empty() < 64 * page || look.empty() * 10 < survey.after.tables {
        return Vec::new();
    }
    let span = about(survey.geometry.span(0));
    let mut said = vec![(
        "WHY",
        format!(
            "Linux frees a page table when its addresses are unmapped, not when its pages are given up (MADV_DONTNEED, MADV_FREE and \
             then reclaim, fallocate): the {span} that a table serves stay reserved, and so does the table."
        ),
    )];
    said.push(match kernel.frees_tables {
        Some(true) => (
            "HERE",
            format!(
                "This kernel does free tables (PT_RECLAIM), but only of MADV_DONTNEED calls that give up {span} or more in one \
                 piece. These were given up in smaller ones."
            ),
        ),
        Some(false) => (
            "HERE",
            "This kernel never frees a table before its addresses are unmapped (from Linux 6.14 on, CONFIG_PT_RECLAIM frees some)."
                .into(),
        ),
        None => ("HERE", "Whether this kernel ever frees such a table could not be tried: it has no PAGEMAP_SCAN.".into()),
    });
    let most = survey.vmas.iter().max_by_key(|one| one.empty).filter(|one| one.empty > 0);
    let heap = most.is_some_and(|one| !one.vma.file);
    let mut helps = vec![format!(
        "munmap of what is not needed, instead of MADV_DONTNEED; or giving it up in pieces of {span} and more"
    )];
    if heap {
        helps.push("an allocator that does so (larger extents, or memory returned by unmapping it)".into());
    }
    helps.push(format!("huge pages ({span}), which need no table of the lowest level to be filled"));
    helps.push("a restart of the process, for now".into());
    said.push(("HELPS", helps.join("; ") + "."));
    said
}
