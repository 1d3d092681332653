//! Writes the report of an inspection for a terminal.

use std::io::{self, Write};

use comfy_table::Table;
use procfs::process::MMPermissions;
use vellum_pagemap::{Detection, Kernel, Occupancy, Vma, VmaSurvey};

use super::table::{align, grouped, new_table, paragraph};
use super::{folios, map};
use crate::extension::Extension;
use crate::inspection::Inspection;
use crate::size::about;
use crate::tlb::Core;
use crate::{Args, advice, locate, totals};

/// Writes the report of one process.
///
/// # Errors
/// Returns the error of `out`.
pub(crate) fn one<X: Extension>(
    inspection: &Inspection,
    args: &Args<X>,
    kernel: &Kernel,
    cores: &[Core],
    terminal: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let survey = &inspection.survey;
    let memory = &survey.after;
    writeln!(
        out,
        "{} {}   VIRT {}   RES {}   swap {}   page tables {}",
        inspection.name,
        inspection.pid,
        about(memory.reserved),
        about(memory.resident),
        about(memory.swapped),
        about(memory.tables),
    )?;
    if let Some(sample) = survey.sample.filter(|sample| sample.seen > 0) {
        writeln!(
            out,
            "By a sample: {} of {} GiB of large VMAs. Tables in use: ± {} (95 %).",
            grouped(sample.seen),
            grouped(sample.stretches),
            grouped(sample.error)
        )?;
    }
    if survey.changed() {
        writeln!(out, "The process changed during the inspection: figures may be off by that.")?;
    }
    writeln!(out, "\n{}", tables(inspection))?;
    let advice = advice::of(inspection, kernel);
    if !advice.is_empty() {
        writeln!(out)?;
    }
    for (head, text) in advice {
        paragraph(head, &text, out)?;
    }
    let mut vmas: Vec<&VmaSurvey> = survey.vmas.iter().filter(|one| one.used + one.empty + one.huge > 0).collect();
    vmas.sort_by_key(|one| (std::cmp::Reverse(one.empty), std::cmp::Reverse(one.used)));
    writeln!(out, "\n{}", list(&vmas[..vmas.len().min(args.top)], survey.scanned))?;
    if vmas.len() > args.top {
        writeln!(out, "… and {} more of {} VMAs (--top)", vmas.len() - args.top, survey.vmas.len())?;
    }
    match &inspection.stats {
        Some(stats) => folios::write(stats, cores, out)?,
        None if survey.after.resident == 0 => {}
        None => writeln!(
            out,
            "\nFolios are visible to root only (CAP_SYS_ADMIN); with more than 16 GiB in memory, use --folios."
        )?,
    }
    if let Some(part) = &inspection.part {
        part.write(out)?;
    }
    if args.locate {
        locate::write(inspection, kernel, out)?;
    }
    if args.map {
        map::draw(inspection, terminal, out)?;
    }
    let lock_times = survey.lock_times;
    write!(
        out,
        "\nInspected in {:.1?}: its mmap lock was held {:.1?} at the longest, {:.1?} in all, in {} steps",
        inspection.took, lock_times.longest, lock_times.total, lock_times.steps
    )?;
    match lock_times.waited {
        0 => writeln!(out, "."),
        waited => writeln!(out, ", of which {waited} had to wait for it."),
    }?;
    if !survey.scanned {
        paragraph(
            "NOTE",
            "This kernel has no PAGEMAP_SCAN (Linux 6.7 and later), so every entry was read: huge pages look like \
             small ones, the tables deposited for them look empty, and only the number of empty tables is \
             known.",
            out,
        )?;
    }
    Ok(())
}

/// Returns the table of page-table counts.
fn tables(inspection: &Inspection) -> Table {
    let survey = &inspection.survey;
    let (tables, page) = (&survey.tables, survey.geometry.page());
    let mut shown = new_table(["PAGE TABLES", "tables", "size", ""]);
    let mut row = |name: &str, count: Option<u64>, note: String| {
        let (count, size) = count.map_or(("?".into(), String::new()), |count| (grouped(count), about(count * page)));
        shown.add_row([name.to_owned(), count, size, note]);
    };
    let full = tables.entries as f64 / (tables.used[0] * survey.geometry.entries()).max(1) as f64;
    let note = match tables.used[0] {
        0 => String::new(),
        _ => format!("{:.0} % full   {}", full * 100.0, bars(&tables.occupancy)),
    };
    row("last level, in use", Some(tables.used[0]), note);
    row("last level, EMPTY", tables.empty, String::new());
    row("upper levels, in use", Some(tables.used[1..].iter().sum()), String::new());
    if let (Some(empty), Some(nowhere)) = (tables.empty, tables.leading_nowhere()) {
        row("upper levels, leading only to empty ones", Some(nowhere), String::new());
        let rest = survey.empty() - (empty + nowhere) as i64;
        row("upper levels, EMPTY", Some(rest.max(0) as u64), "or of device memory, which is not reported".into());
    }
    if tables.deposited > 0 {
        row("deposited for huge pages", Some(tables.deposited), "for the split of a huge page".into());
    }
    let share = inspection.empty() as f64 / survey.after.tables.max(1) as f64;
    row("needless, together", Some(inspection.empty() / page), format!("{:.0} % of all", share * 100.0));
    let least = survey.least();
    let times = survey.after.tables as f64 / (least * page).max(1) as f64;
    let entries = format!("the fewest that {} pages need: it has {times:.1} times that", grouped(tables.entries));
    row("the least", Some(least), entries);
    align(&mut shown, [1, 2]);
    shown
}

/// Returns the table of VMAs.
fn list(vmas: &[&VmaSurvey], exact: bool) -> Table {
    let mut shown = new_table(["VMA", "", "addresses", "in memory", "tables", "empty", "huge"]);
    for one in vmas {
        let vma = &one.vma;
        shown.add_row([
            format!("{:012x}-{:012x}", vma.start, vma.end),
            format!("{} {}", letters(vma), name_of(vma)),
            about(vma.len()),
            about(one.resident),
            grouped(one.used),
            if exact { grouped(one.empty) } else { "?".into() },
            if one.huge == 0 { String::new() } else { about(one.huge) },
        ]);
    }
    align(&mut shown, [2, 3, 4, 5, 6]);
    shown
}

/// Writes a list of processes and their sums.
///
/// # Errors
/// Returns the error of `out`.
pub(crate) fn several<X: Extension>(
    inspections: &[Inspection],
    args: &Args<X>,
    kernel: &Kernel,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut shown = new_table(["PROCESS", "", "VIRT", "RES", "page tables", "needless", ""]);
    for inspection in totals::by_waste(inspections).iter().take(args.top) {
        let memory = &inspection.survey.after;
        shown.add_row([
            inspection.pid.to_string(),
            inspection.name.clone(),
            about(memory.reserved),
            about(memory.resident),
            about(memory.tables),
            about(inspection.empty()),
            totals::percent(inspection.empty(), memory.tables),
        ]);
    }
    align(&mut shown, [0, 2, 3, 4, 5, 6]);
    writeln!(out, "{shown}")?;
    if inspections.len() > args.top {
        writeln!(out, "… and {} more (--top)", inspections.len() - args.top)?;
    }
    writeln!(out, "\n{}", totals::sum(inspections))?;
    totals::write(inspections, args.top, out)?;
    let longest = inspections.iter().map(|inspection| inspection.survey.lock_times.longest).max().unwrap_or_default();
    let took = inspections.iter().map(|inspection| inspection.took).sum::<std::time::Duration>();
    writeln!(out, "Inspected in {took:.1?}: no mmap lock was held for longer than {longest:.1?}.")?;
    if kernel.detection == Detection::None {
        writeln!(out, "(This kernel does not report empty tables one by one; their number is known all the same.)")?;
    }
    Ok(())
}

/// Returns the access rights as `/proc/PID/maps` writes them.
pub fn letters(vma: &Vma) -> String {
    let letters = [(MMPermissions::READ, 'r'), (MMPermissions::WRITE, 'w'), (MMPermissions::EXECUTE, 'x')];
    let mut text: String =
        letters.iter().map(|(right, letter)| if vma.permissions.contains(*right) { *letter } else { '-' }).collect();
    text.push(if vma.is_shared() { 's' } else { 'p' });
    text
}

/// Returns a VMA's name, or `anonymous`.
pub fn name_of(vma: &Vma) -> &str {
    if vma.name.is_empty() { "anonymous" } else { &vma.name }
}

/// Returns a character for each of the eight classes of occupancy, a bar as high as the number of
/// page tables in the class.
fn bars(occupancy: &Occupancy) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = occupancy.iter().copied().max().unwrap_or(0).max(1);
    occupancy.iter().map(|count| if *count == 0 { '·' } else { BARS[(count * 7 / most) as usize] }).collect()
}
