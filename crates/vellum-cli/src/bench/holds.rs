//! `bench holds`: the longest stretches in which a CPU could do nothing else.
//!
//! A reference kernel that records them (feature `holds`) runs `programs/holds.c` in a machine
//! whose clock counts instructions, so that figures repeat. What is told of a stretch is its
//! length, and the calls at its end, named from the kernel's image.

use std::io::{empty, stderr};
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde::Serialize;

use super::report::{Part, Section, Table, Value, show};
use crate::run::{Arch, Kernel, Names, Outcome, Task, built};

/// More instructions than this are too many.
pub const LIMIT: u64 = 60_000;
/// The calls of a stretch that are shown.
const SHOWN: usize = 3;

/// What to measure.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The machine's architecture
    #[arg(long, value_enum, default_value_t = Arch::X86_64)]
    arch: Arch,

    /// A reference kernel that records stretches, instead of the one that `./x build --holds`
    /// leaves
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,

    /// Only operations that begin so
    #[arg(default_value = "")]
    operation: String,
}

/// What keeps a CPU from other work, as the kernel calls it, and as it is called here.
const KINDS: [(&str, &str); 3] = [
    ("lock", "with a spin lock held"),
    ("masked", "with interrupts masked"),
    ("work", "between two places to give way"),
];

/// The longest stretch of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Stretch {
    instructions: u64,
    /// At its beginning, where that is known, innermost first.
    since: Vec<String>,
    /// At its end.
    calls: Vec<String>,
}

/// An operation, and what was longest of each kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) operation: String,
    stretches: [Stretch; 3],
}

/// Measures, and tells of it.
///
/// # Errors
/// There is no such kernel or program, or it fails.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    let kernel = match &args.kernel {
        Some(image) => Kernel::at(image)?,
        None => Kernel::that_records(args.arch)?,
    };
    let program = built(args.arch.programs())?.join("holds");
    let task = Task::counted(args.arch, 4 << 30, Some(1 << 30), program, vec![args.operation.clone()]);
    let mut said = Vec::new();
    let end = task.run(&kernel, task.accel(&[&kernel]), empty(), &mut said, stderr())?;
    if !matches!(end.outcome, Outcome::Exited(0)) {
        bail!("the program failed");
    }
    let names = Names::of(&kernel.image).context("the functions of the kernel")?;
    let rows = rows(&String::from_utf8_lossy(&said), |address| engine_call(&names, address))?;
    Ok(tell(args.arch, &rows))
}

/// The innermost function of the engine or the kernel that is at an address, but for those that
/// every lock and every measuring passes.
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
        // Without what it is generic over.
        let function = call.function.split('<').next().unwrap_or_default();
        Some(format!("{function} ({short}:{})", call.line))
    })
}

/// What the program says, by operation.
pub(crate) fn rows(said: &str, name: impl Fn(u64) -> Option<String>) -> anyhow::Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    let mut kind = 0;
    for line in said.lines() {
        if let Some(operation) = line.strip_prefix("operation ") {
            rows.push(Row { operation: operation.into(), stretches: Default::default() });
            continue;
        }
        let row = rows.last_mut().with_context(|| format!("not said of which operation: {line}"))?;
        if let Some((word, address)) = line.strip_prefix("  ").and_then(|call| call.split_once(" 0x")) {
            let address = u64::from_str_radix(address, 16).with_context(|| format!("no address: {line}"))?;
            let stretch = &mut row.stretches[kind];
            if word == "since" { &mut stretch.since } else { &mut stretch.calls }.extend(name(address));
            continue;
        }
        let (said, length) = line.split_once(' ').with_context(|| format!("no stretch: {line}"))?;
        kind = KINDS.iter().position(|(kind, _)| *kind == said).with_context(|| format!("no stretch: {line}"))?;
        row.stretches[kind].instructions = length.parse().with_context(|| format!("no length: {line}"))?;
    }
    Ok(rows)
}

fn tell(arch: Arch, rows: &[Row]) -> Section {
    let parts = KINDS.iter().enumerate().map(|(kind, (_, title))| part(title, rows, kind)).collect();
    let long = rows.iter().flat_map(|row| &row.stretches).filter(|stretch| stretch.instructions > LIMIT).count();
    Section {
        id: "holds",
        title: format!("The longest stretches in which a CPU could do nothing else, on {}", arch.name()),
        method: vec![
            (
                "",
                "The reference kernel runs a program that does each operation at its worst size, in a machine of one CPU \
                 whose clock counts instructions. What measuring takes is left out."
                    .into(),
            ),
            ("with a spin lock held", "from the first lock, or the beginning of a walk, until none is held.".into()),
            ("with interrupts masked", "from where the engine asks for that until it does no more.".into()),
            (
                "between two places to give way",
                "from where a task begins, comes from user mode or calls Platform::resched to where it does so next, or leaves."
                    .into(),
            ),
        ],
        parts,
        notes: vec![format!("{long} stretches are longer than {} instructions.", show::grouped(LIMIT))],
        json: rows.iter().map(|row| json(arch, row)).collect(),
    }
}

/// The operations whose stretches of a kind are longest, those first.
fn part(title: &str, rows: &[Row], kind: usize) -> Part {
    const MOST: usize = 40;
    let mut longest: Vec<(&str, &Stretch)> =
        rows.iter().map(|row| (row.operation.as_str(), &row.stretches[kind])).collect();
    longest.sort_by_key(|(_, stretch)| std::cmp::Reverse(stretch.instructions));
    let line = |(operation, stretch): &(&str, &Stretch)| {
        let calls = stretch.calls.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(" < ");
        let length = Value::Text(show::grouped(stretch.instructions));
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
    let [lock, masked, work] = &row.stretches;
    serde_json::json!({
        "bench": "holds", "arch": arch.name(), "operation": row.operation, "lock": lock, "masked": masked, "work": work,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_its_longest_stretches() {
        let said = "operation munmap, huge\nlock 7\n  since 0x40\n  at 0x10\n  at 0x20\nmasked 0\nwork 70001\n  at 0x30\noperation fork\nlock 1\n";
        let rows = rows(said, |address| (address != 0x20).then(|| format!("f{address:x}"))).unwrap();
        assert_eq!((rows.len(), rows[0].operation.as_str()), (2, "munmap, huge"));
        assert_eq!(
            rows[0].stretches[0],
            Stretch { instructions: 7, since: vec!["f40".into()], calls: vec!["f10".into()] }
        );
        assert_eq!(rows[0].stretches[2].instructions, 70_001);
        let told = tell(Arch::X86_64, &rows);
        assert!(told.notes[0].starts_with("1 stretches"), "{:?}", told.notes);
        assert_eq!(told.parts[0].table.rows.len(), 2);
    }

    #[test]
    fn what_is_no_stretch_is_an_error() {
        for said in [
            "lock 7",
            "operation a\nlock",
            "operation a\nother 7",
            "operation a\nlock x",
            "operation a\nlock 1\n  at 0xg",
        ] {
            assert!(rows(said, |_| None).is_err(), "{said}");
        }
    }
}
