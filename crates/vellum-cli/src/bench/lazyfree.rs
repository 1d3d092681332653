//! `bench lazyfree`: reclaim of lazyfree memory, by folio size.

use vellum_linux::workload::case::Op;
use vellum_linux::workload::data::Rewrites;
use vellum_linux::workload::mapping::Mapping;

use super::contender::Column::{Linux, Vellum};
use super::regions::{self, Args, Row, Subject};
use super::report::{Part, Section, Table, Value};

/// Runs the benchmark and returns its section.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    let ops = [Rewrites::None, Rewrites::EveryTenth].map(Op::Reclaim);
    let subject =
        Subject { name: "lazyfree", title: "Reclaiming lazyfree memory:", method: METHOD, beside: Some(published) };
    regions::section(args, &[Mapping::Anonymous], &ops, &subject)
}

const METHOD: &[(&str, &str)] = &[
    (
        "floor",
        "checks the dirty bits of a folio's entries; if none is set, it clears the entries and frees the folio, in the \
         order of entries.",
    ),
    (
        "linux",
        "has the memory in a process of its own. If a call leaves lazyfree pages, it is repeated for them, at most \
         seven times, which is in its figure.",
    ),
    ("all", "are checked afterwards: pages written again must be in memory with their contents, and no other pages."),
];

/// Returns a table with a published result for Linux, and the result of this run.
fn published(rows: &[Row]) -> Part {
    let row = rows.iter().find(|row| row.case.huge && row.op == Op::Reclaim(Rewrites::None));
    let line = |name: &str, old: Option<f64>, new: Option<f64>| {
        let seconds = |s: Option<f64>| s.map_or(Value::None, |s| Value::Text(format!("{s:.6} s")));
        let change = old.zip(new).map_or(Value::None, |(old, new)| {
            Value::Text(format!("{:+.2} %", (new / old - 1.0) * 100.0).replace('-', "−"))
        });
        vec![Value::Text(name.to_owned()), seconds(old), seconds(new), change]
    };
    let seconds = |column| Some(row?.figure(column)? as f64 / 1e9);
    Part {
        title: "compared with a patch for Linux".to_owned(),
        text: "Reclaiming 1 GiB of huge pages through mem_cgroup_force_empty() on an Intel i5, with a patch that \
               unmaps each in one piece (Lance Yang, [PATCH v2 1/1] mm/vmscan: avoid split PMD-mapped THP during \
               shrink_folio_list(), linux-mm, 22 April 2024); and such pages here by MADV_PAGEOUT, Linux against the \
               engine. Linux 6.11 \
               merged the patch (commit 735ecdfaf4e8); since 7.3.2, and in 6.18.44, Linux no longer calls that code, \
               and splits each PMD first."
            .to_owned(),
        chart: None,
        table: Table {
            head: ["2 MiB huge", "before", "after", "change"].map(str::to_owned).to_vec(),
            rows: vec![
                line("the patch", Some(0.683426), Some(0.049197)),
                line("linux, vellum", seconds(Linux), seconds(Vellum)),
            ],
        },
    }
}
