//! Compares the engine's answers to bad input, at edges and at limits with those of this machine's
//! Linux to the same calls, and the VMAs of both afterwards.
//!
//! The reference is Linux on x86-64, so elsewhere there is nothing to compare with.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod fixtures {
    pub mod engine;
    pub mod file;
    pub mod kernel;
    pub mod linux;
}
mod geometry;
mod rows;

use fixtures::kernel::{Answers, Expect, PAGE, Row, Vma};
use fixtures::linux::{lowest, most_vmas};
use fixtures::{engine, linux};

/// Makes the calls of each row on both kernels, and fails if the answers are not as expected.
fn compare(rows: &[Row]) {
    // In this process, because the answer of a child process would be lost with it.
    lowest();
    let mut wrong = Vec::new();
    for row in rows {
        if let Some(why) = skipped(row) {
            println!("{}: skipped: {why}", row.name);
            continue;
        }
        let engine = engine::ask(row.given, |kernel| (row.calls)(kernel));
        let linux = linux::ask(row.given, |kernel| (row.calls)(kernel));
        let in_pieces = engine::ask_in_pieces(row.given, |kernel| (row.calls)(kernel));
        assert_eq!(in_pieces, engine, "{}: split operations give other results than whole ones", row.name);
        let right = match &row.expect {
            Expect::Same => engine == linux,
            Expect::Differ { engine: e, linux: l, .. } => engine == *e && linux == *l,
        };
        if !right {
            wrong.push(format!(
                "{}\n    engine: {}\n    Linux:  {}{}",
                row.name,
                show(&engine),
                show(&linux),
                reason(row)
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "the engine and Linux differ in {} of {} rows:\n{}",
        wrong.len(),
        rows.len(),
        wrong.join("\n")
    );
}

/// Returns why the row can't be run on this machine's Linux.
fn skipped(row: &Row) -> Option<&'static str> {
    let promises = row.name.contains("more than the machine's memory");
    if promises && linux::setting("/proc/sys/vm/overcommit_memory") != Some(0) {
        return Some("vm.overcommit_memory of this Linux is not 0");
    }
    if row.name.contains("lowest") && !(2 * PAGE..1 << 20).contains(&lowest()) {
        return Some("this Linux has no minimum address, or a VMA lies there");
    }
    if row.name.contains("fixed at 0") && linux::setting("/proc/sys/vm/mmap_min_addr") == Some(0) {
        return Some("this Linux allows that");
    }
    (row.name.starts_with("many VMAs") && most_vmas() > 200_000).then_some("this Linux allows too many VMAs to test")
}

fn reason(row: &Row) -> String {
    match &row.expect {
        Expect::Same => String::new(),
        Expect::Differ { engine, linux, why } => {
            format!("\n    expected of the engine: {}, of Linux: {}\n    because {why}", show(engine), show(linux))
        }
    }
}

fn show(answers: &[i64]) -> String {
    let names = [
        (1i32, "EPERM"),
        (11, "EAGAIN"),
        (12, "ENOMEM"),
        (13, "EACCES"),
        (14, "EFAULT"),
        (16, "EBUSY"),
        (17, "EEXIST"),
        (22, "EINVAL"),
    ];
    let one = |answer: &i64| match names.iter().find(|(number, _)| -i64::from(*number) == *answer) {
        Some((_, name)) => (*name).to_string(),
        None => format!("{answer:#x}"),
    };
    answers.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[test]
fn map_answers_as_linux_does() {
    compare(&rows::MAP);
}

#[test]
fn unmap_answers_as_linux_does() {
    compare(&rows::UNMAP);
}

#[test]
fn protect_answers_as_linux_does() {
    compare(&rows::PROTECT);
}

#[test]
fn remap_answers_as_linux_does() {
    compare(&rows::REMAP);
}

#[test]
fn locks_answer_as_in_linux() {
    compare(&rows::LOCK);
}

#[test]
fn seals_answer_as_in_linux() {
    compare(&rows::SEAL);
}

#[test]
fn advise_answers_as_linux_does() {
    compare(&rows::ADVISE);
    compare(&rows::MORE_ADVICE);
}

#[test]
fn mincore_answers_as_linux_does() {
    compare(&rows::RESIDENT);
}

#[test]
fn files_answer_as_in_linux() {
    compare(&rows::FILE);
}

#[test]
fn addresses_above_the_user_half_are_answered_as_linux_does() {
    compare(&rows::BEYOND);
}

#[test]
fn as_many_vmas_as_linux_allows() {
    compare(&rows::MANY);
}

#[test]
fn vmas_split_and_merge_as_in_linux() {
    for seed in 0..40 {
        let calls = geometry::calls(seed, 120);
        let engine: Vec<Vec<Vma>> =
            engine::ask(Default::default(), |kernel| calls.iter().map(|call| geometry::vmas(kernel, *call)).collect());
        // Answers are numbers: the number of VMAs, and three for each.
        let linux = linux::ask(Default::default(), |kernel| {
            calls.iter().flat_map(|call| numbers(&geometry::vmas(kernel, *call))).collect()
        });
        let mut rest = &linux[..];
        for (nth, (call, expected)) in calls.iter().zip(&engine).enumerate() {
            let expected = numbers(expected);
            assert!(
                rest.starts_with(&expected),
                "seed {seed}, after call {nth}, {call:?}:\n    engine: {expected:x?}\n    Linux:  {:x?}",
                &rest[..(1 + 3 * rest[0] as usize).min(rest.len())]
            );
            rest = &rest[expected.len()..];
        }
    }
}

fn numbers(vmas: &[Vma]) -> Answers {
    let three = vmas.iter().flat_map(|(start, end, prot)| [*start as i64, *end as i64, i64::from(*prot)]);
    [vmas.len() as i64].into_iter().chain(three).collect()
}
