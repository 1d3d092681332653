//! What was seen, on a terminal.

use std::io::{self, Write};

use comfy_table::Table;
use procfs::process::MMPermissions;
use vellum_pagemap::{Detection, Kernel, Occupancy, Vma, VmaSurvey};

use super::table::{align, grouped, new_table, paragraph};
use super::{folios, map};
use crate::extension::Extension;
use crate::look::Look;
use crate::size::about;
use crate::tlb::Core;
use crate::{Args, advice, groups, locate};

/// One process, in full.
pub(crate) fn one<X: Extension>(
    look: &Look,
    args: &Args<X>,
    kernel: &Kernel,
    cores: &[Core],
    terminal: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let survey = &look.survey;
    let memory = &survey.after;
    writeln!(
        out,
        "{} {}   VIRT {}   RES {}   swap {}   page tables {}",
        look.name,
        look.pid,
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
        writeln!(out, "It has changed while this looked at it: figures may be off by that.")?;
    }
    writeln!(out, "\n{}", tables(look))?;
    let advice = advice::of(look, kernel);
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
    match &look.stats {
        Some(stats) => folios::write(stats, cores, out)?,
        None if survey.after.resident == 0 => {}
        None => writeln!(
            out,
            "\nWhich folios its memory is in: only root is told (CAP_SYS_ADMIN); of more than 16 GiB, with --folios."
        )?,
    }
    if let Some(part) = &look.part {
        part.write(out)?;
    }
    if args.locate {
        locate::write(look, kernel, out)?;
    }
    if args.map {
        map::draw(look, terminal, out)?;
    }
    let lock_times = survey.lock_times;
    write!(
        out,
        "\nLooked at in {:.1?}: its memory lock held {:.1?} at the longest, {:.1?} in all, in {} steps",
        look.took, lock_times.longest, lock_times.total, lock_times.steps
    )?;
    match lock_times.waited {
        0 => writeln!(out, "."),
        waited => writeln!(out, ", of which {waited} had to wait for it."),
    }?;
    if !survey.scanned {
        paragraph(
            "NOTE",
            "This kernel has no PAGEMAP_SCAN (Linux has it from 6.7 on), so every entry was read: huge pages look like small ones, whose \
             tables put by for them look empty; and empty tables are known by their number only.",
            out,
        )?;
    }
    Ok(())
}

fn tables(look: &Look) -> Table {
    let survey = &look.survey;
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
    row("lowest level, in use", Some(tables.used[0]), note);
    row("lowest level, EMPTY", tables.empty, String::new());
    row("upper levels, in use", Some(tables.used[1..].iter().sum()), String::new());
    if let (Some(empty), Some(nowhere)) = (tables.empty, tables.leading_nowhere()) {
        row("upper levels, leading only to empty ones", Some(nowhere), String::new());
        let rest = survey.empty() - (empty + nowhere) as i64;
        row("upper levels, EMPTY", Some(rest.max(0) as u64), "or of devices' memory, which is not told".into());
    }
    if tables.deposited > 0 {
        row("put by for huge pages", Some(tables.deposited), "for the day when one is taken apart".into());
    }
    let share = look.empty() as f64 / survey.after.tables.max(1) as f64;
    row("needed for nothing, together", Some(look.empty() / page), format!("{:.0} % of all", share * 100.0));
    let least = survey.least();
    let times = survey.after.tables as f64 / (least * page).max(1) as f64;
    let entries = format!("what {} pages need at least: it has {times:.1} times that", grouped(tables.entries));
    row("the least", Some(least), entries);
    align(&mut shown, [1, 2]);
    shown
}

fn list(vmas: &[&VmaSurvey], exact: bool) -> Table {
    let mut shown = new_table(["AREA", "", "addresses", "in memory", "tables", "empty", "huge"]);
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

/// Many processes, a line each.
pub(crate) fn several<X: Extension>(
    looks: &[Look],
    args: &Args<X>,
    kernel: &Kernel,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut shown = new_table(["PROCESS", "", "VIRT", "RES", "page tables", "needed for nothing", ""]);
    for look in groups::by_waste(looks).iter().take(args.top) {
        let memory = &look.survey.after;
        shown.add_row([
            look.pid.to_string(),
            look.name.clone(),
            about(memory.reserved),
            about(memory.resident),
            about(memory.tables),
            about(look.empty()),
            groups::percent(look.empty(), memory.tables),
        ]);
    }
    align(&mut shown, [0, 2, 3, 4, 5, 6]);
    writeln!(out, "{shown}")?;
    if looks.len() > args.top {
        writeln!(out, "… and {} more (--top)", looks.len() - args.top)?;
    }
    writeln!(out, "\n{}", groups::sum(looks))?;
    groups::write(looks, args.top, out)?;
    let longest = looks.iter().map(|look| look.survey.lock_times.longest).max().unwrap_or_default();
    let took = looks.iter().map(|look| look.took).sum::<std::time::Duration>();
    writeln!(out, "Looked at in {took:.1?}: no memory lock was held for longer than {longest:.1?}.")?;
    if kernel.detection == Detection::None {
        writeln!(out, "(This kernel doesn't tell empty tables one by one; their number is known all the same.)")?;
    }
    Ok(())
}

/// As `/proc/PID/maps` writes it.
pub fn letters(vma: &Vma) -> String {
    let letters = [(MMPermissions::READ, 'r'), (MMPermissions::WRITE, 'w'), (MMPermissions::EXECUTE, 'x')];
    let mut text: String =
        letters.iter().map(|(right, letter)| if vma.permissions.contains(*right) { *letter } else { '-' }).collect();
    text.push(if vma.is_shared() { 's' } else { 'p' });
    text
}

pub fn name_of(vma: &Vma) -> &str {
    if vma.name.is_empty() { "anonymous" } else { &vma.name }
}

/// A bar for each eighth.
fn bars(occupancy: &Occupancy) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = occupancy.iter().copied().max().unwrap_or(0).max(1);
    occupancy.iter().map(|count| if *count == 0 { '·' } else { BARS[(count * 7 / most) as usize] }).collect()
}
