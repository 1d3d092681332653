//! Imports point one way: toward the hardware.
//!
//! If the documentation of a module states that each of its modules imports only from those above
//! it in a table, this test checks the imports against the table.

use regex::Regex;
use vellum_policy::{Source, Tree, imports, module};

use crate::none;

/// The sentence that makes a table a rule.
const PROMISE: &str = "imports only from modules above it in this table";

#[test]
fn modules_import_only_from_those_above_them() {
    let tree = Tree::of_this_project();
    let mut promises = 0;
    let mut upward = Vec::new();
    for source in tree.rust("crates/") {
        let Some(order) = promised(source) else { continue };
        promises += 1;
        upward.extend(breaches(&tree, source, &order));
    }
    assert!(promises >= 1, "no table of modules says that a module {PROMISE}");
    none("import from a module further down the table", upward);
}

#[test]
fn tables_of_modules_name_every_module() {
    let tree = Tree::of_this_project();
    let module = Regex::new(r"(?m)^(?:pub(?:\([a-z]+\))? )?mod (\w+);").unwrap();
    let mut missing = Vec::new();
    for source in tree.rust("crates/") {
        let Some(order) = promised(source) else { continue };
        for name in module.captures_iter(&source.text).map(|found| found[1].to_owned()) {
            if !order.contains(&name) && !["tests", "testing", "fuzz"].contains(&name.as_str()) {
                missing.push(format!("{}: {name}", source.path));
            }
        }
    }
    none("module that the table leaves out", missing);
}

/// Returns the modules in the table of `source`, or `None` if its documentation does not have the
/// sentence [`PROMISE`].
fn promised(source: &Source) -> Option<Vec<String>> {
    let docs: Vec<&str> = source.text.lines().filter_map(|line| line.strip_prefix("//!")).map(str::trim).collect();
    let at = docs.iter().position(|line| line.contains(PROMISE))?;
    let name = Regex::new(r"`(\w+)(?:/|::\w+)?`").unwrap();
    let rows = docs[at..].iter().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let names = rows
        .filter_map(|row| row.split('|').nth(1))
        .flat_map(|cell| name.captures_iter(cell).map(|name| name[1].to_owned()).collect::<Vec<_>>());
    Some(names.collect())
}

/// Returns the imports in the folder of `root` that break the rule: those from a module further
/// down in `order`.
fn breaches(tree: &Tree, root: &Source, order: &[String]) -> Vec<String> {
    let folder = root.path.rsplit_once('/').expect("a file in a folder").0;
    let top = tree.crate_root(&root.path);
    let base = module(root, top);
    let mut found = Vec::new();
    for source in tree.rust(folder).filter(|source| !source.is_test()) {
        let own = module(source, top);
        let Some(place) = own.get(base.len()).and_then(|name| order.iter().position(|other| other == name)) else {
            continue;
        };
        for import in imports(source, &own) {
            if import.path.len() <= base.len() || import.path[..base.len()] != base[..] {
                continue;
            }
            let to = &import.path[base.len()];
            if order.iter().position(|other| other == to).is_some_and(|target| target > place) {
                found.push(format!("{}:{}: {}", source.path, import.line, import.path.join("::")));
            }
        }
    }
    found
}
