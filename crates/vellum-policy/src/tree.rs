//! The files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// One file of the repository.
#[derive(Clone, Debug)]
pub struct Source {
    /// The path, relative to the repository's root, with `/` between names.
    pub path: String,
    /// The contents.
    pub text: String,
}

impl Source {
    /// Returns true for a file that holds tests and nothing else, by its path.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("tests.rs") || self.path.ends_with("testing.rs")
    }

    /// Returns true for a Rust file.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Returns the name of the file's crate, or `docs` for a file outside `crates/`.
    pub fn crate_name(&self) -> &str {
        self.path.strip_prefix("crates/").and_then(|rest| rest.split('/').next()).unwrap_or("docs")
    }
}

/// The Rust and Markdown files of a repository, sorted by path.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The files.
    pub sources: Vec<Source>,
    /// The repository's root.
    pub root: PathBuf,
}

impl Tree {
    /// Reads the repository that this crate was compiled in. Skips what is built (`target`) and
    /// hidden folders.
    ///
    /// # Panics
    ///
    /// If a file cannot be read, or is not UTF-8.
    pub fn of_this_project() -> Tree {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/vellum-policy has a root");
        let mut sources = Vec::new();
        read(root, root, &mut sources);
        sources.sort_by(|a, b| a.path.cmp(&b.path));
        Tree { sources, root: root.to_owned() }
    }

    /// Returns the Rust files whose paths begin with `prefix`.
    pub fn rust<'t>(&'t self, prefix: &'t str) -> impl Iterator<Item = &'t Source> {
        self.sources.iter().filter(move |source| source.is_rust() && source.path.starts_with(prefix))
    }

    /// Returns the folder, with a `/` at its end, of the nearest `lib.rs` or `main.rs` at or above
    /// `path`.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn crate_root<'p>(&self, path: &'p str) -> &'p str {
        let folders = path.match_indices('/').rev().map(|(at, _)| &path[..=at]);
        let has = |folder: &str, name: &str| self.sources.iter().any(|source| source.path == format!("{folder}{name}"));
        let mut roots = folders.filter(|folder| has(folder, "lib.rs") || has(folder, "main.rs"));
        roots.next().unwrap_or_else(|| panic!("{path} is below no crate root"))
    }

    /// Returns the file at `path`.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn file(&self, path: &str) -> &Source {
        self.sources.iter().find(|source| source.path == path).unwrap_or_else(|| panic!("no file {path}"))
    }
}

/// Returns the path of the module in `source`, from the crate root whose folder is `root`.
pub fn module(source: &Source, root: &str) -> Vec<String> {
    let inside = source.path.strip_prefix(root).unwrap_or_default();
    let mut names: Vec<String> = inside.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if matches!(names.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        names.pop();
    }
    names
}

fn read(root: &Path, folder: &Path, sources: &mut Vec<Source>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("a directory entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') || name == "target" || name == "corpus" || path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            read(root, &path, sources);
        } else if name.ends_with(".rs") || name.ends_with(".md") {
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let path = path.strip_prefix(root).expect("below the root").to_string_lossy().replace('\\', "/");
            sources.push(Source { path, text });
        }
    }
}
