//! The layers of both halves, as a test that reads the sources: no import points up, no circle of
//! files crosses a folder, and no folder grows too large.
//!
//! A file belongs to the layer that its top folder names; a file beside `main.rs` or `lib.rs` is
//! a layer of its own. It may import from its own layer and from those below it. A lower layer
//! reaches a higher one by a hook or a trait that the lower one defines.

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
    "sleeplock",
    "stdio",
    "nodes",
    "boot",
    "acpi",
    "devicetree",
    "pvh",
    "fs",
    "parse",
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

/// Appends the path, or the paths in braces, that `text` begins with, each after `base`, to
/// `found`. Returns the rest of `text`.
fn paths<'a>(mut text: &'a str, base: &[&'a str], found: &mut Vec<Vec<&'a str>>) -> &'a str {
    let mut path = base.to_vec();
    loop {
        if let Some(list) = text.strip_prefix('{') {
            text = list;
            loop {
                text = paths(text.trim_start(), &path, found);
                let end = text.find([',', '}']).unwrap_or(text.len());
                let is_last = !text[end..].starts_with(',');
                text = text.get(end + 1..).unwrap_or_default();
                if is_last {
                    return text;
                }
            }
        }
        let name = identifier(text);
        path.extend((!name.is_empty()).then_some(name));
        text = &text[name.len()..];
        match text.strip_prefix("::") {
            Some(rest) if !name.is_empty() => text = rest,
            _ => break,
        }
    }
    found.push(path);
    text
}

/// Returns what a file names by `crate::` or `super::`, as paths from the crate's root, with the
/// lines.
fn names<'a>(file: &'a str, source: &'a str) -> Vec<(usize, Vec<&'a str>)> {
    let own = module(file);
    let mut found = Vec::new();
    for (at, _) in source.match_indices("crate::").chain(source.match_indices("super::")) {
        let before = source[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let (mut rest, mut base) = (&source[at..], &own[..]);
        while let Some(more) = rest.strip_prefix("super::") {
            rest = more;
            base = base.split_last().map_or(base, |(_, above)| above);
        }
        if let Some(more) = rest.strip_prefix("crate::") {
            (rest, base) = (more, &[]);
        }
        let line = source[..at].matches('\n').count() + 1;
        let mut here = Vec::new();
        paths(rest, base, &mut here);
        found.extend(here.into_iter().map(|path| (line, path)));
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
        for (line, path) in names(&file, &without_comments(&source)) {
            if let Some(name) = path.first().filter(|name| rank(name).is_some_and(|rank| rank > own_rank)) {
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
    let source = without_comments(source);
    let found: Vec<String> =
        names("arch/x86_64.rs", &source).iter().map(|(line, path)| format!("{line} {}", path.join("::"))).collect();
    assert_eq!(found, ["1 task::Thread", "1 mem::self", "1 mem::sys", "3 files::init"]);
}

/// Returns whether a source defines an item of this name.
fn defines(source: &str, name: &str) -> bool {
    let kinds = ["fn", "struct", "enum", "trait", "const", "static", "type", "union"];
    kinds.iter().any(|kind| {
        let start = format!("{kind} {name}");
        source.match_indices(&start).any(|(at, _)| identifier(&source[at + kind.len() + 1..]) == name)
    })
}

/// The files of a half, and which of them names an item of which.
fn edges(files: &[(String, String)], arch: &str) -> Vec<Vec<usize>> {
    let other = if arch == "x86_64" { "aarch64" } else { "x86_64" };
    let find = |path: &[&str]| files.iter().position(|(file, _)| !file.contains(other) && module(file) == path);
    let resolve = |path: &[&str]| {
        // What `arch` passes on of an architecture's.
        let specific = path.strip_prefix(&["arch"]).filter(|rest| !rest.is_empty()).and_then(|rest| {
            let at = |folder: &[&str]| find(&[&["arch", arch], folder, &rest[..1]].concat());
            at(&[]).or_else(|| at(&["user"])).or_else(|| at(&["boot"]))
        });
        let (found, len) = match specific {
            Some(found) => (found, 2),
            None => (1..=path.len()).rev().find_map(|len| Some((find(&path[..len])?, len)))?,
        };
        let Some(name) = path.get(len).filter(|_| files[found].0.ends_with("mod.rs")) else {
            return (!files[found].0.ends_with("mod.rs")).then_some(found);
        };
        // A folder's `mod.rs` passes on what its files define.
        let own = module(&files[found].0);
        let is_child = |file: &str| module(file).split_last().is_some_and(|(_, above)| above == own);
        let child = || files.iter().position(|(file, source)| is_child(file) && defines(source, name));
        if defines(&files[found].1, name) { Some(found) } else { child() }
    };
    let of = |(index, (file, source)): (usize, &(String, String))| {
        let mut found: Vec<usize> = names(file, source).iter().filter_map(|(_, path)| resolve(path)).collect();
        let own = module(file);
        let children = files.iter().enumerate().filter(|(_, (child, _))| {
            let child = module(child);
            child.len() == own.len() + 1
                && child.starts_with(&own)
                && source.match_indices(&format!("{}::", child[own.len()])).any(|(at, _)| {
                    source[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':')
                })
        });
        found.extend(children.map(|(child, _)| child).filter(|_| own != ["arch"]));
        found.retain(|other| *other != index);
        found
    };
    files.iter().enumerate().map(of).collect()
}

#[test]
fn no_circle_of_files_crosses_a_folder() {
    let folder = |file: &str| file.rsplit_once('/').map_or("", |(folder, _)| folder).to_string();
    for (half_name, arch) in [("machine", "x86_64"), ("machine", "aarch64"), ("portable", "x86_64")] {
        let mut files = sources(&half(half_name));
        files.retain(|(file, _)| !FOR_TESTS.contains(&module(file)[0]) && !file.ends_with("tests.rs"));
        for (_, source) in &mut files {
            let plain = without_comments(source);
            *source = plain.split("#[cfg(test)]\nmod ").next().unwrap_or_default().to_string();
        }
        let edges = edges(&files, arch);
        let reaches = |from: usize, to: usize| {
            let (mut left, mut seen) = (Vec::from([from]), Vec::from([from]));
            while let Some(at) = left.pop() {
                if at == to {
                    return true;
                }
                let new: Vec<usize> = edges[at].iter().copied().filter(|next| !seen.contains(next)).collect();
                seen.extend(&new);
                left.extend(&new);
            }
            false
        };
        for (from, (file, _)) in files.iter().enumerate() {
            for to in edges[from].iter().copied().filter(|to| folder(&files[*to].0) != folder(file)) {
                let other = &files[to].0;
                assert!(!reaches(to, from), "src/{half_name}: {file} imports from {other}, which leads back to it");
            }
        }
    }
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
