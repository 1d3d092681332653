//! The figures of Vellum's documents, and where they come from.
//!
//! `docs/figures/figures.toml` lists experiments, commands of `vellum` that measure, and tables.
//! `./x figures` runs all experiments on one commit and one quiet machine, and writes the results
//! to `docs/figures/NAME.json`. The tables in the documents are made from these files and from
//! nothing else, and the plan lists the sentences that state figures: a test of this crate fails if
//! a page shows anything else.
//!
//! | module | does |
//! |---|---|
//! | `plan` | reads `figures.toml` |
//! | `results` | reads and writes the results of an experiment, and compares two |
//! | `table` | makes a Markdown table of results |
//! | `aims` | makes a Markdown table of the bounds that results must keep |
//! | `passes` | joins the results of several runs of an experiment |
//! | `page` | finds the tables in a page, and replaces them |
//! | `prose` | checks the figures in the sentences of a page |
//! | `measure` | runs the experiments |

mod aims;
mod measure;
mod page;
mod passes;
mod plan;
mod prose;
mod results;
mod table;

use std::path::{Path, PathBuf};

pub use measure::{Measured, measure};
pub use page::fill;
pub use plan::Plan;
pub use prose::Statement;
pub use results::{Compared, Results};

/// The folder with the plan and the results, from the root of the repository.
pub const FOLDER: &str = "docs/figures";

/// Returns the root of the repository that this crate was compiled in.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new(".")).to_owned()
}

/// Makes the tables of all pages anew. Returns the pages whose text changes, with the new text.
///
/// # Errors
/// The plan, a result or a page cannot be read, or a page names a table that the plan or the
/// results cannot give.
pub fn changed_pages(root: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let plan = Plan::read(root)?;
    let results = plan.results(root)?;
    let mut changed = Vec::new();
    for page in page::all(root)? {
        let text = std::fs::read_to_string(&page)?;
        let filled = fill(&text, &plan, &results).map_err(|error| error.context(page.display().to_string()))?;
        if filled != text {
            changed.push((page, filled));
        }
    }
    Ok(changed)
}

/// Returns the statements of the plan that the pages lack, with the figures of the results.
///
/// # Errors
/// The plan, a result or a page cannot be read, or a statement names a figure that the results
/// cannot give.
pub fn missing_statements(root: &Path) -> anyhow::Result<Vec<String>> {
    let plan = Plan::read(root)?;
    prose::missing(root, &plan.prose, &plan.results(root)?)
}
