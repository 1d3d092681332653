//! `bench fork`: fork of an address space, by folio size.

use vellum_linux::workload::case::Op;

use super::regions::{self, Args, Subject};
use super::report::Section;

/// Runs the benchmark and returns its section.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    regions::section(args, &[Op::Fork], &Subject { name: "fork", title: "Forking", ..Subject::default() })
}
