//! Each invariant of docs/invariants.md is cited in the code that keeps it and in a test that
//! attacks it.

use regex::Regex;
use vellum_policy::{Source, Tree};

use crate::none;

/// The page that has the table of invariants.
const PAGE: &str = "docs/invariants.md";

#[test]
fn every_invariant_is_cited_by_its_keeper_and_by_an_attacker() {
    let tree = Tree::of_this_project();
    let row = Regex::new(r"(?m)^\| (INV-\d+) ").unwrap();
    let names: Vec<&str> = row.captures_iter(&tree.file(PAGE).text).map(|row| row.get(1).unwrap().as_str()).collect();
    assert!(names.len() >= 21, "{PAGE} has a table of invariants, one a row: found {}", names.len());
    let kept = text(tree.rust("crates/vellum/src").filter(|source| !source.is_test()));
    let attacked =
        text(tree.rust("crates/vellum").filter(|source| source.is_test())) + &text(tree.rust("crates/vellum-sim"));
    let missing = names.iter().flat_map(|name| {
        let cited = Regex::new(&format!(r"\b{name}\b")).unwrap();
        let places = [("the engine, crates/vellum/src", &kept), ("a test, or the strict machine", &attacked)];
        places
            .into_iter()
            .filter(move |(_, text)| !cited.is_match(text))
            .map(move |(place, _)| format!("{name}: {place}"))
    });
    none("invariant that is not cited", missing.collect());
}

#[test]
fn every_cited_invariant_is_in_the_table() {
    let tree = Tree::of_this_project();
    let page = &tree.file(PAGE).text;
    let name = Regex::new(r"\bINV-\d+\b").unwrap();
    let unknown = tree.sources.iter().flat_map(|source| {
        let cited = name.find_iter(&source.text).map(|name| name.as_str());
        let unknown = cited.filter(|name| !page.contains(&format!("| {name} ")));
        unknown.map(|name| format!("{}: {name}", source.path)).collect::<Vec<_>>()
    });
    none("invariant that docs/invariants.md does not have", unknown.collect());
}

fn text<'t>(sources: impl Iterator<Item = &'t Source>) -> String {
    sources.map(|source| source.text.as_str()).collect()
}
