//! The section of `bench entry`: a table of costs, and one of what they would add.

use vellum_linux::stats::Summary;

use super::rows::{Added, Cost, Costs};
use crate::bench::load::Load;
use crate::bench::report::{Part, Section, Table, Value, show};

/// The mark of a row that was measured beside other work.
const LOADED: &str = "†";

/// Returns the section of these rows.
pub fn of(costs: &Costs, added: &[Added], runs: u32) -> Section {
    let loads = || costs.0.iter().map(|cost| cost.load).chain(added.iter().map(|row| row.load));
    Section {
        id: "entry",
        title: "What the engine's column leaves out".into(),
        method: method(runs),
        parts: vec![
            Part { title: "costs on linux".into(), text: String::new(), chart: None, table: table_of_costs(costs) },
            Part {
                title: "what they would add".into(),
                text: "The events of one operation of the engine, times their costs; alone, and with another CPU that \
                       runs a thread of the same address space, to which each flush sends an interrupt."
                    .into(),
                chart: None,
                table: table_of_added(added),
            },
        ],
        notes: notes(costs, added),
        loaded: loads().filter(Load::is_notable).count(),
        json: costs.0.iter().map(Cost::json).chain(added.iter().map(Added::json)).collect(),
    }
}

fn method(runs: u32) -> Vec<(&'static str, String)> {
    let texts = [
        (
            "exception",
            "is a page fault with the least work: a read of untouched private memory maps the zero page, with no \
             folio, rmap, LRU list or count. So it is an upper bound of the exception's entry and exit. The same reads \
             once the pages are mapped are subtracted.",
        ),
        (
            "flush",
            "is mprotect to read-only of a writable page, less the same of a zero page: there the kernel visits the \
             PTE too, finds it unchanged, and does not flush. It includes what the kernel's next steps lose to the \
             flush; in a virtual machine a flush of one page may empty the TLB.",
        ),
        (
            "ipi",
            "is what the same mprotect takes longer while another CPU runs a thread of the process than while it runs \
             another process.",
        ),
        (
            "vellum",
            "is the engine on a simulated machine, which counts its system calls (one for each operation but page \
             faults), page faults and TLB flushes, and pays for none of them.",
        ),
        (
            "added",
            "is an estimate: counts times costs of one event. The costs are measured hot: the same event happens \
             thousands of times in a row, with all that it needs in the caches. The operations begin with nothing of \
             theirs in the caches, so there an event may cost more. A flush of a whole address space costs more than \
             one of a page, mostly afterwards, as its user refills the TLB.",
        ),
    ];
    let all = format!(
        "Each figure is the time for which a thread ran, the median of {runs} runs. The costs are those of this \
         machine's Linux, of its mitigations and its hypervisor."
    );
    let texts = texts.into_iter().map(|(term, text)| (term, text.to_owned()));
    std::iter::once(("", all)).chain(texts).collect()
}

fn table_of_costs(costs: &Costs) -> Table {
    let line = |cost: &Cost| {
        let name = format!("{}{}", cost.event.name(), mark(cost.load));
        vec![Value::Text(name), Value::Text(cost.event.description().into()), figure(cost.ns.clone().ok())]
    };
    Table {
        head: ["event", "measured as", "linux"].map(str::to_owned).to_vec(),
        rows: costs.0.iter().map(line).collect(),
    }
}

fn table_of_added(added: &[Added]) -> Table {
    let head = ["operation", "folio", "calls", "exceptions", "flushes", "vellum", "added", "added with ipi"];
    let line = |row: &Added| {
        let figures = row.figures.as_ref().ok();
        let count = |count: Option<u64>| count.map_or(Value::None, |count| Value::Text(show::grouped(count)));
        vec![
            Value::Text(format!("{}{}", row.op.title(), mark(row.load))),
            Value::Text(row.case.label()),
            count(figures.map(|figures| figures.entries.calls)),
            count(figures.map(|figures| figures.entries.exceptions)),
            count(figures.map(|figures| figures.entries.flushes)),
            figure(figures.map(|figures| figures.vellum)),
            figure(figures.and_then(|figures| figures.added)),
            figure(figures.and_then(|figures| figures.added_ipi)),
        ]
    };
    Table { head: head.map(str::to_owned).to_vec(), rows: added.iter().map(line).collect() }
}

fn mark(load: Load) -> &'static str {
    if load.is_notable() { LOADED } else { "" }
}

fn figure(summary: Option<Summary>) -> Value {
    summary.map_or(Value::None, |summary| {
        let (main, range) = show::nanoseconds(summary);
        Value::Figure { main, range }
    })
}

/// Returns notes on missing and doubtful figures: each reason once, with the rows it applies to.
fn notes(costs: &Costs, added: &[Added]) -> Vec<String> {
    let costs = costs.0.iter().map(|cost| (cost.event.name().to_owned(), cost.ns.as_ref().err(), cost.load));
    let added = added.iter().map(|row| {
        let name = format!("{} {}", row.op.title(), row.case.label());
        (name, row.figures.as_ref().err(), row.load)
    });
    let rows: Vec<_> = costs.chain(added).collect();
    let missing = rows.iter().filter_map(|(name, skip, _)| Some(format!("{name} not measured: {}.", (*skip)?)));
    let loaded: Vec<_> = rows.iter().filter(|(_, _, load)| load.is_notable()).collect();
    let most = loaded.iter().fold(Load::default(), |most, (_, _, load)| most.max(*load));
    let names: Vec<&str> = loaded.iter().map(|(name, ..)| name.as_str()).collect();
    let beside = (!loaded.is_empty()).then(|| {
        let Load { others, stolen } = most;
        format!(
            "{LOADED} measured beside other work, of at most {others:.2} CPUs and {:.0} % of the time stolen: {}.",
            stolen * 100.0,
            names.join(", ")
        )
    });
    missing.chain(beside).collect()
}

#[cfg(test)]
mod tests {
    use vellum_linux::workload::case::{Case, Op};

    use super::super::rows::tests::{costs, entries};
    use super::*;

    #[test]
    fn rows_beside_other_work_and_rows_without_a_figure_are_noted() {
        let costs = costs();
        let load = Load { others: 0.5, stolen: 0.0 };
        let row = |load| Added::new(Op::Munmap, Case::of(2 << 20, 64), Ok(vec![entries(5)]), &costs, load);
        let section = of(&costs, &[row(load), row(Load::default())], 1);
        assert_eq!(section.loaded, 1);
        assert!(section.notes.iter().any(|note| note.starts_with("ipi not measured")), "{:?}", section.notes);
        assert!(section.notes.iter().any(|note| note.ends_with("stolen: munmap 64 KiB.")), "{:?}", section.notes);
        assert_eq!(section.json.len(), 7);
        for Part { table, .. } in &section.parts {
            assert!(table.rows.iter().all(|row| row.len() == table.head.len()));
        }
    }
}
