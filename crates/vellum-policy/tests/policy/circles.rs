//! No circle of files crosses a folder.
//!
//! Files of one folder may use each other in both directions. A `mod.rs`, `lib.rs` or `main.rs`
//! belongs to its folder. An import of a name that it only re-exports counts as an import of the
//! file that defines the name.

use std::collections::{BTreeMap, BTreeSet};

use vellum_policy::{Export, Source, Tree, exports, imports, module};

use crate::none;

/// The module trees for which the rule holds: the folder of each crate root, and the folder of the
/// architecture that is left out, if there are two, since a build has only one of them.
const ROOTS: [(&str, Option<&str>); 4] = [
    ("crates/vellum/src/", None),
    ("crates/vellum-kernel/src/portable/", None),
    ("crates/vellum-kernel/src/machine/", Some("/aarch64/")),
    ("crates/vellum-kernel/src/machine/", Some("/x86_64/")),
];

#[test]
fn no_circle_of_files_crosses_a_folder() {
    let tree = Tree::of_this_project();
    for (root, left_out) in ROOTS {
        let edges = edges(&tree, root, left_out);
        assert!(edges.len() > 10, "{root} has {} files with imports", edges.len());
        let crossing = circles(&edges).into_iter().filter(|circle| {
            let folders: BTreeSet<&str> = circle.iter().map(|file| folder(file)).collect();
            folders.len() > 1
        });
        none("circle of files across folders", crossing.map(|circle| circle.join(", ")).collect());
    }
}

fn folder(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The modules below one crate root.
struct Modules<'t> {
    sources: BTreeMap<Vec<String>, &'t Source>,
    exports: BTreeMap<Vec<String>, Vec<Export>>,
}

impl<'t> Modules<'t> {
    fn new(tree: &'t Tree, root: &'t str, left_out: Option<&str>) -> Self {
        let is_left_out = |source: &Source| left_out.is_some_and(|folder| source.path.contains(folder));
        let sources = tree.rust(root).filter(|source| !source.is_test() && !is_left_out(source));
        let sources: BTreeMap<_, _> = sources.map(|source| (module(source, root), source)).collect();
        let exports = sources.iter().map(|(own, source)| (own.clone(), exports(source, own))).collect();
        Modules { sources, exports }
    }

    /// Adds the files that define what `path` names to `found`. Follows re-exports. Adds nothing
    /// for a path that ends with a folder's module, as it names no item.
    ///
    /// `depth` is the most re-exports to follow.
    fn resolve(&self, path: &[String], depth: usize, found: &mut BTreeSet<&'t str>) {
        // The longest prefix that is a module; the names behind it are its items.
        let Some(len) = (0..=path.len()).rev().find(|len| self.sources.contains_key(&path[..*len])) else { return };
        let (source, is_folder) = (self.sources[&path[..len]], self.is_folder(&path[..len]));
        let Some(name) = path.get(len).filter(|name| *name != "self") else {
            if !is_folder {
                found.insert(&source.path);
            }
            return;
        };
        let before = found.len();
        for export in self.exports[&path[..len]].iter().filter(|_| depth > 0) {
            match &export.name {
                Some(other) if other == name => {
                    self.resolve(&[&export.path, &path[len + 1..]].concat(), depth - 1, found);
                    return;
                }
                // A glob re-export of a module that has a child module of this name, or re-exports
                // one.
                None if self.has(&export.path, name, depth) => {
                    self.resolve(&[&export.path, &path[len..]].concat(), depth - 1, found);
                }
                _ => {}
            }
        }
        if found.len() == before {
            found.insert(&source.path);
        }
    }

    fn is_folder(&self, module: &[String]) -> bool {
        self.sources.keys().any(|other| other.len() > module.len() && other.starts_with(module))
    }

    /// Returns true if the module at `path` has a child module `name`, or re-exports one.
    fn has(&self, path: &[String], name: &String, depth: usize) -> bool {
        let child = [path, std::slice::from_ref(name)].concat();
        self.sources.contains_key(&child)
            || depth > 0
                && self.exports.get(path).is_some_and(|exports| {
                    exports.iter().any(|export| match &export.name {
                        Some(other) => other == name,
                        None => self.has(&export.path, name, depth - 1),
                    })
                })
    }
}

/// Returns, for each file below `root`, the files that its imports lead to.
fn edges<'t>(tree: &'t Tree, root: &'t str, left_out: Option<&str>) -> BTreeMap<&'t str, BTreeSet<&'t str>> {
    const DEPTH: usize = 4;
    let modules = Modules::new(tree, root, left_out);
    let mut edges = BTreeMap::new();
    for (own, source) in &modules.sources {
        let mut to = BTreeSet::new();
        for import in imports(source, own) {
            modules.resolve(&import.path, DEPTH, &mut to);
        }
        to.remove(source.path.as_str());
        edges.insert(source.path.as_str(), to);
    }
    edges
}

/// Returns the strongly connected components with more than one file (Tarjan's algorithm).
fn circles<'t>(edges: &BTreeMap<&'t str, BTreeSet<&'t str>>) -> Vec<Vec<&'t str>> {
    struct Search<'e, 't> {
        edges: &'e BTreeMap<&'t str, BTreeSet<&'t str>>,
        seen: BTreeMap<&'t str, (usize, usize)>,
        open: Vec<&'t str>,
        found: Vec<Vec<&'t str>>,
    }
    impl<'t> Search<'_, 't> {
        fn visit(&mut self, file: &'t str) {
            let number = self.seen.len();
            self.seen.insert(file, (number, number));
            self.open.push(file);
            for next in &self.edges[file] {
                if !self.seen.contains_key(next) {
                    self.visit(next);
                    let low = self.seen[next].1;
                    self.lower(file, low);
                } else if self.open.contains(next) {
                    let low = self.seen[next].0;
                    self.lower(file, low);
                }
            }
            if self.seen[file].1 == number {
                let at = self.open.iter().position(|other| *other == file).expect("it is open");
                let circle = self.open.split_off(at);
                if circle.len() > 1 {
                    self.found.push(circle);
                }
            }
        }

        fn lower(&mut self, file: &'t str, low: usize) {
            let entry = self.seen.get_mut(file).expect("it was seen");
            entry.1 = entry.1.min(low);
        }
    }
    let mut search = Search { edges, seen: BTreeMap::new(), open: Vec::new(), found: Vec::new() };
    for file in edges.keys() {
        if !search.seen.contains_key(file) {
            search.visit(file);
        }
    }
    search.found
}
