//! `bench holds`: the longest non-preemptible sections of the reference kernel.
//!
//! A reference kernel with the feature `holds` runs `programs/holds.c` in a machine whose clock
//! counts instructions, so that figures repeat, and records the longest sections. The report has
//! the length of each, and the calls at its end, named from the kernel's image.

use std::io::{empty, stderr};
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde::Serialize;

use super::report::{Part, Section, Table, Value, show};
use crate::run::{Arch, Kernel, Names, Outcome, Task, built};

/// The most instructions of a non-preemptible section; the report counts longer ones as too long.
pub const LIMIT: u64 = 60_000;
/// The most calls that the report shows for a section.
const SHOWN: usize = 3;

/// The options of the benchmark.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The machine's architecture
    #[arg(long, value_enum, default_value_t = Arch::X86_64)]
    arch: Arch,

    /// A recording reference kernel, instead of the one that `./x build --holds` leaves
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,

    /// Measure only operations whose names begin with this
    #[arg(default_value = "")]
    operation: String,
}

/// The kinds of non-preemptible sections: the kernel's name, and the title in the report.
const KINDS: [(&str, &str); 3] = [
    ("lock", "with a spin lock held"),
    ("masked", "with interrupts masked"),
    ("work", "between two preemption points"),
];

/// The longest non-preemptible section of a kind ([`KINDS`]) in an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct LongSection {
    instructions: u64,
    /// The call stack at the section's beginning, innermost call first; empty if not recorded.
    since: Vec<String>,
    /// The call stack at the section's end, innermost call first.
    calls: Vec<String>,
}

/// An operation, and its longest section of each kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) operation: String,
    sections: [LongSection; 3],
}

/// Runs the benchmark and returns its section of the report.
///
/// # Errors
/// There is no such kernel or program, or it failed.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    let kernel = match &args.kernel {
        Some(image) => Kernel::at(image)?,
        None => Kernel::recording(args.arch)?,
    };
    let program = built(args.arch.programs())?.join("holds");
    let task = Task::counted(args.arch, 4 << 30, Some(1 << 30), program, vec![args.operation.clone()]);
    let mut output = Vec::new();
    let end = task.run(&kernel, task.accel(&[&kernel]).into(), empty(), &mut output, stderr())?;
    if !matches!(end.outcome, Outcome::Exited(0)) {
        bail!("the program failed");
    }
    let names = Names::of(&kernel.image).context("the functions of the kernel")?;
    let rows = rows(&String::from_utf8_lossy(&output), |address| engine_call(&names, address))?;
    Ok(section_of(args.arch, &rows))
}

/// Returns the innermost function of the engine or the kernel at an address, except functions that
/// are on the stack of every lock or every measurement.
fn engine_call(names: &Names, address: u64) -> Option<String> {
    const EVERYWHERE: [&str; 7] = [
        "/library/",
        "/src/sync/",
        "/src/holds.rs",
        "/src/platform.rs",
        "/mem/platform.rs",
        "/table/lock.rs",
        "/.cargo/",
    ];
    names.at(address).into_iter().find_map(|call| {
        let file = call.file.filter(|file| !EVERYWHERE.iter().any(|part| file.contains(part)))?;
        let short = file.split_once("/src/").map_or(&*file, |(_, short)| short);
        // Cut off the function's generic arguments.
        let function = call.function.split('<').next().unwrap_or_default();
        Some(format!("{function} ({short}:{})", call.line))
    })
}

/// Parses the program's output into rows.
///
/// # Errors
/// A line is not in the program's format.
pub(crate) fn rows(output: &str, name: impl Fn(u64) -> Option<String>) -> anyhow::Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    let mut kind = 0;
    for line in output.lines() {
        if let Some(operation) = line.strip_prefix("operation ") {
            rows.push(Row { operation: operation.into(), sections: Default::default() });
            continue;
        }
        let row = rows.last_mut().with_context(|| format!("a line before the first operation: {line}"))?;
        if let Some((word, address)) = line.strip_prefix("  ").and_then(|call| call.split_once(" 0x")) {
            let address = u64::from_str_radix(address, 16).with_context(|| format!("not an address: {line}"))?;
            let section = &mut row.sections[kind];
            if word == "since" { &mut section.since } else { &mut section.calls }.extend(name(address));
            continue;
        }
        let (name, length) = line.split_once(' ').with_context(|| format!("not a section: {line}"))?;
        kind = KINDS.iter().position(|(kind, _)| *kind == name).with_context(|| format!("not a section: {line}"))?;
        row.sections[kind].instructions = length.parse().with_context(|| format!("not a length: {line}"))?;
    }
    Ok(rows)
}

fn section_of(arch: Arch, rows: &[Row]) -> Section {
    let parts = KINDS.iter().enumerate().map(|(kind, (_, title))| part(title, rows, kind)).collect();
    let long = rows.iter().flat_map(|row| &row.sections).filter(|section| section.instructions > LIMIT).count();
    Section {
        id: "holds",
        title: format!("The longest non-preemptible sections, on {}", arch.name()),
        method: vec![
            (
                "",
                "The reference kernel runs a program that does each operation at its worst size, in a machine of one \
                 CPU whose clock counts instructions. The time of the measurement itself is left out."
                    .into(),
            ),
            ("with a spin lock held", "from the first lock, or the start of a walk, until none is held.".into()),
            ("with interrupts masked", "from where the engine masks interrupts to where it unmasks them.".into()),
            (
                "between two preemption points",
                "from where a task starts, enters from user mode or calls Platform::resched to the next such point, or \
                 its exit."
                    .into(),
            ),
        ],
        parts,
        notes: vec![format!("{long} sections are longer than {} instructions.", show::grouped(LIMIT))],
        loaded: 0,
        json: rows.iter().map(|row| json(arch, row)).collect(),
    }
}

/// Returns the operations with the longest sections of a kind, the longest first.
fn part(title: &str, rows: &[Row], kind: usize) -> Part {
    const MOST: usize = 40;
    let mut longest: Vec<(&str, &LongSection)> =
        rows.iter().map(|row| (row.operation.as_str(), &row.sections[kind])).collect();
    longest.sort_by_key(|(_, section)| std::cmp::Reverse(section.instructions));
    let line = |(operation, section): &(&str, &LongSection)| {
        let calls = section.calls.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(" < ");
        let length = Value::Text(show::grouped(section.instructions));
        vec![Value::Text((*operation).into()), length, Value::Text(calls)]
    };
    Part {
        title: title.into(),
        text: String::new(),
        chart: None,
        table: Table {
            head: ["operation", "instructions", "ends in"].map(str::to_owned).to_vec(),
            rows: longest.iter().take(MOST).map(line).collect(),
        },
    }
}

fn json(arch: Arch, row: &Row) -> serde_json::Value {
    let [lock, masked, work] = &row.sections;
    serde_json::json!({
        "bench": "holds", "arch": arch.name(), "operation": row.operation, "lock": lock, "masked": masked, "work": work,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_its_longest_sections() {
        let output = "operation munmap, huge\nlock 7\n  since 0x40\n  at 0x10\n  at 0x20\nmasked 0\nwork 70001\n  at \
                      0x30\noperation fork\nlock 1\n";
        let rows = rows(output, |address| (address != 0x20).then(|| format!("f{address:x}"))).unwrap();
        assert_eq!((rows.len(), rows[0].operation.as_str()), (2, "munmap, huge"));
        assert_eq!(
            rows[0].sections[0],
            LongSection { instructions: 7, since: vec!["f40".into()], calls: vec!["f10".into()] }
        );
        assert_eq!(rows[0].sections[2].instructions, 70_001);
        let section = section_of(Arch::X86_64, &rows);
        assert!(section.notes[0].starts_with("1 sections"), "{:?}", section.notes);
        assert_eq!(section.parts[0].table.rows.len(), 2);
    }

    #[test]
    fn malformed_output_is_an_error() {
        for output in [
            "lock 7",
            "operation a\nlock",
            "operation a\nother 7",
            "operation a\nlock x",
            "operation a\nlock 1\n  at 0xg",
        ] {
            assert!(rows(output, |_| None).is_err(), "{output}");
        }
    }
}
