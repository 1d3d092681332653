//! No circle of files crosses a folder.
//!
//! Files of one folder may use each other in both directions. A `mod.rs`, `lib.rs` or `main.rs`
//! belongs to its folder, and names that it only hands on lead to the file that defines them.

use std::collections::{BTreeMap, BTreeSet};

use vellum_policy::{Source, Tree, imports, module};

use crate::none;

/// The trees of modules: the folder of each crate root that the rule holds for.
const ROOTS: [&str; 3] =
    ["crates/vellum/src/", "crates/vellum-kernel/src/portable/", "crates/vellum-kernel/src/machine/"];

#[test]
fn no_circle_of_files_crosses_a_folder() {
    let tree = Tree::of_this_project();
    for root in ROOTS {
        let edges = edges(&tree, root);
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

/// Returns, for each file below `root`, the files that its imports lead to.
fn edges<'t>(tree: &'t Tree, root: &'t str) -> BTreeMap<&'t str, BTreeSet<&'t str>> {
    let sources: Vec<&Source> = tree.rust(root).filter(|source| !source.is_test()).collect();
    let files: BTreeMap<Vec<String>, &Source> = sources.iter().map(|source| (module(source, root), *source)).collect();
    let target = |path: &[String]| {
        // The longest prefix that is a module; the names behind it are its items.
        (0..=path.len()).rev().find_map(|len| files.get(&path[..len])).map(|source| source.path.as_str())
    };
    let mut edges = BTreeMap::new();
    for source in &sources {
        let own = module(source, root);
        let to = imports(source, &own).into_iter().filter_map(|import| target(&import.path));
        let to: BTreeSet<&str> = to.filter(|file| *file != source.path).collect();
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
