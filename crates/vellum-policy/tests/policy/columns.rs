//! Lines keep the limits on their length.

use vellum_policy::{Source, Tree, comments};

use crate::none;

const COMMENT: usize = 100;
const CODE: usize = 120;

#[test]
fn comments_wrap_at_100_columns_and_code_at_120() {
    let tree = Tree::of_this_project();
    none(
        "line too long (code 120 columns, comments 100; rustfmt does not wrap comments)",
        tree.rust("").flat_map(too_long).collect(),
    );
}

#[test]
fn prose_wraps_at_120_columns() {
    let tree = Tree::of_this_project();
    let pages = tree.sources.iter().filter(|source| !source.is_rust());
    let long = pages.flat_map(|page| {
        comments(page)
            .into_iter()
            .filter(|prose| length(&prose.text) > CODE && !is_a_link(&prose.text))
            .map(|prose| format!("{}:{}: {} columns", page.path, prose.line, length(&prose.text)))
    });
    none("line of prose longer than 120 columns", long.collect());
}

fn too_long(source: &Source) -> Vec<String> {
    let lines = source.text.lines().enumerate();
    let long = lines.filter(|(_, line)| length(line) > limit(line));
    long.map(|(at, line)| format!("{}:{}: {} columns", source.path, at + 1, length(line))).collect()
}

/// Returns the number of columns that `line` may have. Rows of tables and links can't be wrapped.
fn limit(line: &str) -> usize {
    let text = line.trim_start();
    if !text.starts_with("//") || is_a_link(text) || text.trim_start_matches(['/', '!', ' ']).starts_with('|') {
        CODE
    } else {
        COMMENT
    }
}

fn is_a_link(text: &str) -> bool {
    text.contains("://") || text.contains("]: ")
}

fn length(line: &str) -> usize {
    line.chars().count()
}
