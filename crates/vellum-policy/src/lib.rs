//! The project's own sources, as text and as syntax, for the tests in `tests/policy` that keep the
//! rules of CONTRIBUTING.md.
//!
//! A test reads the tree that it was compiled from: [`Tree::of_this_project`] lists the Rust and
//! Markdown files of the repository, [`comments()`] yields comment blocks with their first line's
//! number, and [`imports()`] yields the modules that a file names by paths, and [`exports`] the
//! names that it re-exports.

mod comments;
mod imports;
mod tree;

pub use comments::{Comment, comments};
pub use imports::{Export, Import, exports, imports, without_tests};
pub use tree::{Source, Tree, module};
