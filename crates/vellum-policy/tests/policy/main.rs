//! The rules of structure and language that CONTRIBUTING.md states, each as a test over the
//! project's own files.

mod circles;
mod columns;
mod invariants;
mod layers;
mod licences;
mod pages;
mod shapes;
mod words;

/// Fails with a list, one entry a line, if there is any entry.
fn none(rule: &str, entries: Vec<String>) {
    assert!(entries.is_empty(), "{} × {rule}:\n{}", entries.len(), entries.join("\n"));
}
