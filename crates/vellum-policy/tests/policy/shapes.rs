//! Folders and types stay small enough to be read.

use std::collections::BTreeMap;

use syn::{ImplItem, Item, Type};
use vellum_policy::{Tree, without_tests};

use crate::none;

const FILES: usize = 20;
const METHODS: usize = 60;

/// The folders that may have more than 20 files: each file has one subject, and a table in `mod.rs`
/// names all.
const A_FILE_A_SUBJECT: [&str; 1] = ["crates/vellum-kernel/src/machine/sys"];

#[test]
fn no_folder_has_more_than_20_source_files() {
    let tree = Tree::of_this_project();
    let mut files: BTreeMap<&str, usize> = BTreeMap::new();
    for source in tree.rust("crates/") {
        *files.entry(source.path.rsplit_once('/').expect("a file in a folder").0).or_default() += 1;
    }
    let large = files.iter().filter(|(folder, files)| **files > FILES && !A_FILE_A_SUBJECT.contains(folder));
    none("folder with more than 20 files", large.map(|(folder, files)| format!("{folder}: {files}")).collect());
}

#[test]
fn no_type_has_more_than_60_methods() {
    let tree = Tree::of_this_project();
    let mut methods: BTreeMap<(String, String), usize> = BTreeMap::new();
    for source in tree.rust("crates/").filter(|source| !source.is_test()) {
        for item in without_tests(source).items {
            let Item::Impl(block) = item else { continue };
            let (None, Type::Path(of)) = (&block.trait_, &*block.self_ty) else { continue };
            let name = of.path.segments.last().expect("a name").ident.to_string();
            let count = block.items.iter().filter(|item| matches!(item, ImplItem::Fn(_))).count();
            *methods.entry((source.crate_name().to_owned(), name)).or_default() += count;
        }
    }
    let large = methods.iter().filter(|(_, count)| **count > METHODS);
    none("type with more than 60 methods", large.map(|((of, name), count)| format!("{of}: {name}: {count}")).collect());
}
