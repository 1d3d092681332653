//! The pages name files that exist: in links, and in the table of ARCHITECTURE.md that leads from
//! the field's words to the engine's files.

use std::path::Path;

use regex::Regex;
use vellum_policy::Tree;

use crate::none;

/// The page with the table, under the heading [`HEADING`].
const MAP: &str = "ARCHITECTURE.md";
const HEADING: &str = "## Where it is";

#[test]
fn links_lead_to_files() {
    let tree = Tree::of_this_project();
    let link = Regex::new(r"\]\(([^)#]+)(#[^)]*)?\)").unwrap();
    let dead = tree.sources.iter().filter(|source| !source.is_rust()).flat_map(|page| {
        let folder = tree.root.join(&page.path).parent().map(Path::to_owned).unwrap_or_default();
        let targets = link.captures_iter(&page.text).map(|link| link.get(1).unwrap().as_str());
        let dead = targets.filter(|target| !target.contains("://") && !folder.join(target).exists());
        dead.map(|target| format!("{}: {target}", page.path)).collect::<Vec<_>>()
    });
    none("link to no file", dead.collect());
}

#[test]
fn the_map_leads_to_files_of_the_engine() {
    let tree = Tree::of_this_project();
    let (_, section) = tree.file(MAP).text.split_once(HEADING).expect("a section with the table");
    let rows: Vec<&str> = section.lines().skip(1).take_while(|line| !line.starts_with("## ")).collect();
    let path = Regex::new(r"`([a-z_]+/[a-z_/.]*)`").unwrap();
    let named: Vec<&str> = rows
        .iter()
        .filter(|row| row.starts_with('|'))
        .flat_map(|row| path.captures_iter(row))
        .map(|path| path.get(1).unwrap().as_str())
        .collect();
    assert!(named.len() >= 20, "the table of {MAP} names files: found {}", named.len());
    let engine = tree.root.join("crates/vellum/src");
    let missing = named.into_iter().filter(|path| !engine.join(path).exists()).map(str::to_owned);
    none("path that the engine does not have", missing.collect());
}
