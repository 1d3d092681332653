//! The layers of both halves, as a test that reads the sources: no import points up, and no folder
//! grows too large.
//!
//! A file belongs to the layer that its top folder, or for a file beside `main.rs` or `lib.rs` its
//! own name, says. It may import from its own layer and from those below it. What a layer needs of
//! one above comes by a hook or a trait that the lower one defines.

use std::fs;
use std::path::{Path, PathBuf};
use std::string::{String, ToString};
use std::vec::Vec;
use std::{format, println};

/// The layers of the machine half, the lowest first.
const MACHINE: &[&str] = &["arch", "mem", "task", "files", "sys", "checks", "main"];
/// The layers of the portable half, the lowest first.
const PORTABLE: &[&str] = &[
    "errno",
    "capabilities",
    "uname",
    "tags",
    "wait",
    "turns",
    "wire",
    "nodes",
    "boot",
    "acpi",
    "devicetree",
    "pvh",
    "fs",
    "written",
    "credentials",
    "ipc",
    "exec",
    "proc",
    "fuzz",
    "lib",
];
/// Files of the portable half that are compiled for tests alone, and used by every layer's.
const FOR_TESTS: &[&str] = &["testing", "layers"];
/// The most source files in a folder.
const MOST_FILES: usize = 20;

fn half(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name)
}

/// Returns the source files below a folder, with their paths from there.
fn sources(root: &Path) -> Vec<(String, String)> {
    let (mut folders, mut found) = (Vec::from([root.to_path_buf()]), Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder can be read").map(|entry| entry.expect("it is there")) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).expect("it lies there").to_str().expect("it is UTF-8").to_string();
                found.push((name, fs::read_to_string(&path).expect("it can be read")));
            }
        }
    }
    found.sort();
    found
}

/// Returns a file's module path.
fn module(file: &str) -> Vec<&str> {
    let mut path: Vec<&str> = file.strip_suffix(".rs").unwrap_or(file).split('/').collect();
    path.pop_if(|last| *last == "mod");
    path
}

/// Returns a source with its comments blanked, each line as long as before.
fn without_comments(source: &str) -> String {
    let line = |line: &str| match line.find("//") {
        Some(at) => format!("{}{}\n", &line[..at], " ".repeat(line.len() - at)),
        None => format!("{line}\n"),
    };
    source.lines().map(line).collect()
}

/// Returns the identifier that `text` begins with.
fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// Returns the first identifiers of the path, or of the paths in braces, that `text` begins with.
fn firsts(text: &str) -> Vec<&str> {
    let Some(list) = text.strip_prefix('{') else { return Vec::from([identifier(text)]) };
    let (mut depth, mut found, mut from) = (1, Vec::new(), 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 || (depth == 1 && c == ',') {
            found.push(identifier(list[from..at].trim_start()));
            from = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    found
}

/// Returns what a file names of the crate's root, by `crate::` or by enough `super::`, with the
/// lines.
fn names_of_root(file: &str, source: &str) -> Vec<(usize, String)> {
    let source = without_comments(source);
    let depth = module(file).len();
    let mut found = Vec::new();
    for (at, _) in source.match_indices("crate::").chain(source.match_indices("super::")) {
        let before = source[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let mut rest = &source[at..];
        let mut ups = 0;
        while let Some(more) = rest.strip_prefix("super::") {
            (rest, ups) = (more, ups + 1);
        }
        let rest = rest.strip_prefix("crate::").unwrap_or(rest);
        if ups == 0 || ups == depth {
            let line = source[..at].matches('\n').count() + 1;
            found.extend(firsts(rest).into_iter().map(|name| (line, name.to_string())));
        }
    }
    found
}

/// Returns the imports that point up, as `file:line: layer imports a layer above it`.
fn pointing_up(root: &Path, layers: &[&str]) -> Vec<String> {
    let rank = |name: &str| layers.iter().position(|layer| *layer == name);
    let mut wrong = Vec::new();
    for (file, source) in sources(root) {
        let own = module(&file)[0].to_string();
        if FOR_TESTS.contains(&&*own) {
            continue;
        }
        let Some(own_rank) = rank(&own) else {
            wrong.push(format!("{file}:1: '{own}' is no layer; give it a place in {layers:?}"));
            continue;
        };
        for (line, name) in names_of_root(&file, &source) {
            if rank(&name).is_some_and(|rank| rank > own_rank) {
                wrong.push(format!("{file}:{line}: {own} imports {name}, a layer above it"));
            }
        }
    }
    wrong
}

#[test]
fn no_import_points_up() {
    let wrong = [("machine", MACHINE), ("portable", PORTABLE)].map(|(name, layers)| pointing_up(&half(name), layers));
    let wrong = wrong.concat();
    wrong.iter().for_each(|line| println!("{line}"));
    assert!(wrong.is_empty(), "{} imports point up; the first is {}", wrong.len(), wrong[0]);
}

#[test]
fn imports_are_found_however_they_are_written() {
    let source =
        "use crate::{task::Thread, mem::{self, sys}};\n// crate::sys\nfn f() { super::super::files::init(); }\n";
    let found = names_of_root("arch/x86_64.rs", source);
    assert_eq!(found, [(1, "task".to_string()), (1, "mem".to_string()), (3, "files".to_string())]);
}

#[test]
fn no_folder_holds_more_than_20_files() {
    let folder = |file: &str| file.rsplit_once('/').map_or("", |(folder, _)| folder).to_string();
    for name in ["machine", "portable"] {
        let files = sources(&half(name));
        for (file, _) in &files {
            let own = folder(file);
            let count = files.iter().filter(|(other, _)| folder(other) == own).count();
            // Of the system calls there is a file for each subject.
            let is_allowed = count <= MOST_FILES || own == "sys";
            assert!(is_allowed, "src/{name}/{own} has {count} files, more than {MOST_FILES}: divide it");
        }
    }
}
