//! The section of `bench contpte`: first-level TLB misses, page walks and their cost relative to
//! 4 KiB pages, by policy and core, beside published results for Linux.

use serde_json::json;
use vellum_sim::TlbModel;

use super::policies::{BASE, NAMES, PUBLISHED};
use super::replay::Counts;
use super::{Program, Row};
use crate::bench::report::{Chart, Ink, Part, Scale, Section, Series, Table, Value, show};

/// The cycles by which a second-level TLB hit is slower than a first-level hit: Arm's figure for
/// the Neoverse V2 (TRM 102375).
const REFILL: f64 = 6.0;
/// Cycles of a page walk that hits the caches: Apple's cores were measured at 32 to 35; no others
/// are published.
const WALK: f64 = 30.0;
/// Cycles of an instruction, everything but translation included: an assumption. A compiler on a
/// core of today takes between half a cycle and one and a half.
const INSTRUCTION: f64 = 1.0;

/// A figure of a replay.
struct Figure {
    title: &'static str,
    text: &'static str,
    of: fn(&Counts) -> f64,
}

const FIGURES: [Figure; 5] = [
    Figure {
        title: "first-level TLB misses",
        text: "Accesses that missed the first-level TLB. The row 4K has their number; the others, the change. An \
               access that faults is repeated, and counts twice if it misses twice.",
        of: |counts| counts.refills as f64,
    },
    Figure {
        title: "first-level TLB misses of fetches",
        text: "The instruction fetches among them, which text in large folios reduces.",
        of: |counts| counts.fetches as f64,
    },
    Figure { title: "page walks", text: "Accesses that missed all TLB levels.", of: |counts| counts.walks as f64 },
    Figure {
        title: "cycles of translation",
        text: "6 cycles a TLB miss, 30 more a walk: an estimate, to weigh the two. A program spends about one cycle an \
               instruction.",
        of: |counts| (counts.refills as f64) * REFILL + counts.walks as f64 * WALK,
    },
    Figure {
        title: "page faults",
        text: "The gain of larger folios for the kernel. Faults of the program's own accesses; those of the kernel on \
               its behalf are not in a trace.",
        of: |counts| counts.faults as f64,
    },
];

/// Returns the section of these rows.
pub fn of(rows: &[Row], program: &Program) -> Section {
    let totals = rows.iter().find_map(|row| row.counts.as_ref().ok()).map(|counts| counts.totals).unwrap_or_default();
    let what = if program.synthetic { "a synthetic program" } else { "a program" };
    let mut parts: Vec<Part> = FIGURES.iter().map(|figure| part(rows, figure)).collect();
    parts.push(running_time(rows));
    parts.push(published());
    Section {
        id: "contpte",
        title: format!(
            "Translations of {what}: {} instructions, {} loads, {} stores",
            show::grouped(totals.instructions),
            show::grouped(totals.loads),
            show::grouped(totals.stores)
        ),
        method: method(),
        parts,
        notes: notes(rows, program),
        loaded: 0,
        json: rows.iter().map(|row| json(row, program)).collect(),
    }
}

fn method() -> Vec<(&'static str, String)> {
    [
        (
            "",
            "The accesses of a traced program are repeated on a simulated machine, page faults included; the engine \
             makes the page tables. TLBs follow a model of a core; its sources are below. Nothing else runs, and only \
             translations are cached.",
        ),
        (
            "4K",
            "has single pages of 4 KiB. File pages lie in memory in random order, as on a machine that has run a \
                while.",
        ),
        ("anonfolio", "has anonymous memory in 64 KiB folios where they fit."),
        ("contpte", "also sets the contiguous bit in a folio's PTEs (on RISC-V: Svnapot)."),
        ("exefolio", "also has text in 64 KiB folios."),
        (
            "16K granule, 64K granule",
            "have single pages of that size. The program's mappings are put at multiples of it, as that kernel would \
             have.",
        ),
    ]
    .map(|(term, text)| (term, text.to_owned()))
    .into()
}

fn models(rows: &[Row]) -> Vec<&'static TlbModel> {
    let mut models: Vec<&TlbModel> = rows.iter().map(|row| row.model).collect();
    models.dedup_by_key(|model| std::ptr::from_ref(*model));
    models
}

fn counts<'r>(rows: &'r [Row], model: &TlbModel, policy: &str) -> Option<&'r Counts> {
    let row = rows.iter().find(|row| std::ptr::eq(row.model, model) && row.policy.name == policy)?;
    row.counts.as_ref().ok()
}

/// Returns `figure` relative to its value with 4 KiB pages.
fn relative(rows: &[Row], model: &TlbModel, policy: &str, figure: &Figure) -> Option<f64> {
    let base = (figure.of)(counts(rows, model, BASE)?);
    (base > 0.0).then_some((figure.of)(counts(rows, model, policy)?) / base)
}

fn part(rows: &[Row], figure: &Figure) -> Part {
    let models = models(rows);
    let head = std::iter::once("policy".to_owned()).chain(models.iter().map(|model| model.name.to_string())).collect();
    let cell = |policy: &str, model: &TlbModel| match policy {
        BASE => counts(rows, model, BASE).map(|counts| show::grouped((figure.of)(counts) as u64)),
        _ => relative(rows, model, policy, figure).map(show::change),
    };
    let line = |policy: &&str| {
        let cells = models.iter().map(|model| cell(policy, model).map_or(Value::None, Value::Text));
        std::iter::once(Value::Text((*policy).to_owned())).chain(cells).collect()
    };
    let series = models.iter().enumerate().map(|(at, model)| Series {
        name: model.name.to_string(),
        ink: Ink::of(at),
        line: NAMES
            .iter()
            .enumerate()
            .filter_map(|(x, policy)| Some((x as f64, 100.0 * relative(rows, model, policy, figure)?)))
            .filter(|point| point.1 > 0.0)
            .collect(),
        lone: Vec::new(),
    });
    Part {
        title: figure.title.to_owned(),
        text: figure.text.to_owned(),
        chart: Some(Chart {
            label: format!("{}: percent of those with pages of 4 KiB, logarithmic", figure.title),
            y_name: "% of 4K".to_owned(),
            scale: Scale::Decades,
            ticks: NAMES.iter().enumerate().map(|(x, name)| (x as f64, (*name).to_owned())).collect(),
            series: series.collect(),
        }),
        table: Table { head, rows: NAMES.iter().map(line).collect() },
    }
}

/// Returns the share of the running time that page walks take, 0 to 1: an estimate.
fn walking(counts: &Counts) -> Option<f64> {
    let all = counts.totals.instructions as f64 * INSTRUCTION;
    (all > 0.0).then(|| counts.walks as f64 * WALK / all)
}

/// Returns the table with the share of running time that page walks take with 4 KiB pages, and that
/// each policy saves of it.
fn running_time(rows: &[Row]) -> Part {
    let models = models(rows);
    let head = std::iter::once("policy".to_owned()).chain(models.iter().map(|model| model.name.to_string())).collect();
    let cell = |policy: &str, model: &TlbModel| {
        let share = |policy| walking(counts(rows, model, policy)?);
        let (base, with) = (share(BASE)?, share(policy)?);
        Some(Value::Text(if policy == BASE {
            format!("{:.2} %", base * 100.0)
        } else {
            format!("{:+.2} %", (with - base) * 100.0).replace('-', "−")
        }))
    };
    let line = |policy: &&str| {
        let cells = models.iter().map(|model| cell(policy, model).unwrap_or(Value::None));
        std::iter::once(Value::Text((*policy).to_owned())).chain(cells).collect()
    };
    Part {
        title: "page walks, as a share of running time".to_owned(),
        text: format!(
            "The row 4K has the share of the program's running time that its page walks take; the others, by how many \
             percent of the running time that changes. An estimate: {WALK:.0} cycles a walk, whose reads hit the \
             caches, and {INSTRUCTION:.0} cycle an instruction. A core overlaps walks with other work, so they cost \
             less; walks that miss the caches cost more."
        ),
        chart: None,
        table: Table { head, rows: NAMES.iter().map(line).collect() },
    }
}

fn published() -> Part {
    let percent = |value: f64| Value::Text(format!("{value:.1} %").replace('-', "−"));
    let line = |(name, figures): &(&str, [f64; 3])| {
        std::iter::once(Value::Text((*name).to_owned())).chain(figures.map(percent)).collect()
    };
    Part {
        title: "what Linux gained".to_owned(),
        text: "Compiling a kernel on an Ampere Altra (Neoverse N1), as published with the patches that gave Linux \
               contiguous mappings (R. Roberts, linux-mm, 22 June 2023): change of time against 4K. Translations \
               affect the time in programs; the rest is mostly faults."
            .to_owned(),
        chart: None,
        table: Table {
            head: ["policy", "real time", "in the kernel", "in programs"].map(str::to_owned).to_vec(),
            rows: PUBLISHED.iter().map(line).collect(),
        },
    }
}

fn notes(rows: &[Row], program: &Program) -> Vec<String> {
    let mut notes = Vec::new();
    if program.synthetic {
        notes.push("There was no trace, so a synthetic one was generated, the same on every machine.".to_owned());
    }
    notes.push(format!(
        "SHA-256 of the trace, without the mappings before the program's start: {}. Two runs with the same one \
         replayed the same accesses.",
        program.checksum
    ));
    notes.extend(rows.iter().filter_map(|row| {
        let skip = row.counts.as_ref().err()?;
        Some(format!("{} on {}: {skip}.", row.policy.name, row.model.name))
    }));
    notes.extend(models(rows).iter().map(|model| format!("{}: {}", model.name, model.source)));
    notes
}

fn json(row: &Row, program: &Program) -> serde_json::Value {
    let mut json = json!({
        "bench": "contpte", "trace_sha256": program.checksum, "tlb": row.model.name, "policy": row.policy.name,
    });
    let more = match &row.counts {
        Ok(counts) => json!({
            "misses": counts.refills, "fetch_misses": counts.fetches,
            "walks": counts.walks, "walk_reads": counts.reads, "faults": counts.faults,
            "walk_share": walking(counts),
            "instructions": counts.totals.instructions, "loads": counts.totals.loads, "stores": counts.totals.stores,
        }),
        Err(skip) => json!({ "skipped": skip.to_string() }),
    };
    if let (Some(json), serde_json::Value::Object(more)) = (json.as_object_mut(), more) {
        json.extend(more);
    }
    json
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::contpte::trace::Totals;

    #[test]
    fn walks_take_their_cycles_of_those_of_all_instructions() {
        let totals = Totals { instructions: 1_000_000, loads: 300_000, stores: 200_000 };
        assert_eq!(walking(&Counts { walks: 100, totals, ..Counts::default() }), Some(0.003));
        assert_eq!(walking(&Counts { walks: 100, ..Counts::default() }), None);
    }
}
