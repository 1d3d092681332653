//! `bench contpte`: what larger translations are worth to a program, by its own accesses.
//!
//! | module | its story |
//! |---|---|
//! | [`trace`] | the format of a trace |
//! | [`filter`] | what a trace leaves out, and how that is made up for |
//! | [`generate`] | a trace of a program that does not exist |
//! | [`world`] | the address space of the program, made anew |
//! | [`replay`] | a trace on one machine |
//! | [`policies`] | how memory is mapped, and on which cores |
//! | [`mod@section`] | what is told of it |

pub(crate) mod filter;
mod generate;
mod policies;
pub(crate) mod replay;
mod section;
pub(crate) mod trace;
mod world;

use std::io::{Cursor, Read};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use vellum_sim::TlbModel;

use super::contender::Skip;
use super::progress::Progress;
use super::report::Section;
use policies::{POLICIES, fits};
use replay::{Counts, Policy, replay};
use trace::{Reader, TraceError};

/// What to replay.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// A trace of memory accesses, made by `tools/trace`. Without, one of a program that does not
    /// exist is made up.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// The cores whose translation caches are simulated. [default: all]
    #[arg(long, value_delimiter = ',', value_parser = parse_model)]
    pub tlb: Vec<&'static TlbModel>,
}

fn parse_model(name: &str) -> Result<&'static TlbModel, String> {
    TlbModel::core(name).ok_or_else(|| {
        let names: Vec<&str> = TlbModel::CORES.iter().map(|model| &*model.name).collect();
        format!("there are {}", names.join(", "))
    })
}

/// Calls of functions in a trace that is made up.
const CALLS: u64 = 400_000;
/// Pages that its filter holds: no more than the smallest set of any core.
const FILTER: usize = 4;

/// Where the accesses come from.
enum Source {
    File(PathBuf),
    Made(Vec<u8>),
}

impl Source {
    fn open(&self) -> Result<Reader<Box<dyn Read>>, TraceError> {
        match self {
            Source::File(path) => Reader::open(path),
            Source::Made(bytes) => Reader::decompress(Cursor::new(bytes.clone())),
        }
    }
}

/// One policy on one core.
pub struct Row {
    model: &'static TlbModel,
    policy: &'static Policy,
    /// What came of it.
    counts: Result<Counts, Skip>,
}

/// Replays, and tells of it.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    let source = match &args.trace {
        Some(path) => Source::File(path.clone()),
        None => Source::Made(generate::generate(CALLS, FILTER)?),
    };
    source.open()?;
    let models = if args.tlb.is_empty() { TlbModel::CORES.iter().collect() } else { args.tlb.clone() };
    Ok(section::of(&measure(&source, &models), args.trace.is_none()))
}

/// Every policy on every core that has it; as many at a time as there are CPUs.
fn measure(source: &Source, models: &[&'static TlbModel]) -> Vec<Row> {
    let cells: Vec<(&'static TlbModel, &'static Policy)> =
        models.iter().flat_map(|&model| POLICIES.iter().filter(|p| fits(model, p)).map(move |p| (model, p))).collect();
    let progress = Progress::new(cells.len() as u64);
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        while let Some(&(model, policy)) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
            let counts = replay(|| source.open(), policy, model);
            let mut rows = rows.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            progress.say(format!("{} {}", model.name, policy.name));
            progress.step();
            rows.push(Row { model, policy, counts });
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(worker);
        }
    });
    let place = |row: &Row| cells.iter().position(|cell| std::ptr::eq(cell.0, row.model) && cell.1 == row.policy);
    let mut rows = rows.into_inner().unwrap_or_default();
    rows.sort_by_key(place);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::Value;

    fn replayed(source: &Source, name: &str, model: &TlbModel) -> Counts {
        let policy = POLICIES.iter().find(|policy| policy.name == name && fits(model, policy)).unwrap();
        replay(|| source.open(), policy, model).unwrap()
    }

    #[test]
    fn what_the_filter_leaves_out_changes_no_count() {
        let traces = [1, 2, 4].map(|filter| generate::generate(20_000, filter).unwrap());
        let lengths = traces.each_ref().map(|trace| zstd::decode_all(&trace[..]).unwrap().len());
        assert!(lengths.is_sorted_by(|more, fewer| more > fewer), "{lengths:?}");
        let sources = traces.map(Source::Made);
        // Of the first tier, one fully associative, one of four ways.
        for model in [&TlbModel::NEOVERSE_N1, &TlbModel::SKYLAKE] {
            for policy in ["4K", "exefolio"] {
                let [whole, two, four] = sources.each_ref().map(|source| replayed(source, policy, model));
                assert!(whole.refills > 1000 && whole.faults > 100, "{policy} on {}: {whole:?}", model.name);
                assert_eq!((whole, whole), (two, four), "{policy} on {}", model.name);
            }
        }
    }

    #[test]
    fn each_step_from_single_pages_to_contiguous_text_saves_walks() {
        let source = Source::Made(generate::generate(40_000, FILTER).unwrap());
        let model = &TlbModel::CORTEX_A76;
        let [base, folios, joined, text] =
            ["4K", "anonfolio", "contpte", "exefolio"].map(|policy| replayed(&source, policy, model));
        assert!(folios.faults < base.faults, "a fault brings a folio");
        assert_eq!(joined.faults, folios.faults);
        // A fault costs a walk too: what is meant is the rest.
        let saves = |more: Counts, fewer: Counts| {
            assert!(more.refills - more.faults > fewer.refills - fewer.faults);
            assert!(more.walks - more.faults > fewer.walks - fewer.faults);
        };
        saves(folios, joined);
        saves(joined, text);
        let [smaller, larger] = ["16K granule", "64K granule"].map(|policy| replayed(&source, policy, model));
        assert!(larger.walks < smaller.walks && smaller.walks < base.walks);
    }

    #[test]
    fn the_section_has_each_policy_that_a_core_can_have() {
        let source = Source::Made(generate::generate(2_000, FILTER).unwrap());
        let models = ["skylake", "xiangshan-kunminghu"].map(|name| TlbModel::core(name).unwrap());
        let section = section::of(&measure(&source, &models), true);
        let text = |key: &str| section.json.iter().map(|row| row[key].as_str().unwrap().to_owned()).collect::<Vec<_>>();
        assert_eq!(text("policy"), ["4K", "anonfolio", "exefolio", "4K", "anonfolio", "contpte", "exefolio"]);
        assert_eq!(text("tlb")[2..4], models.map(|model| &*model.name));
        for row in &section.json {
            let [misses, walks, faults] = ["misses", "walks", "faults"].map(|key| row[key].as_u64().unwrap());
            assert!(misses >= walks && walks >= faults && faults > 0, "{row}");
        }
        // What it can't have is left empty, in every table but the published one.
        for part in section.parts.iter().filter(|part| part.chart.is_some()) {
            let empty = part.table.rows.iter().flatten().filter(|value| matches!(value, Value::None)).count();
            assert_eq!((part.table.rows.len(), empty), (6, 3 + 2), "{}", part.title);
        }
    }
}
