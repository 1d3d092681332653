//! `bench contpte`: the gain of larger translations for a program, from a trace of its accesses.
//!
//! | module | contents |
//! |---|---|
//! | [`trace`] | the format of a trace |
//! | [`filter`] | the accesses that a trace leaves out, and their reconstruction |
//! | [`generate`] | a synthetic trace |
//! | [`world`] | the address space of the traced program |
//! | [`mod@replay`] | the replay of a trace on one machine |
//! | [`policies`] | mapping policies, and the cores that support them |
//! | [`mod@section`] | the section of the report |

pub(crate) mod filter;
mod generate;
mod policies;
pub(crate) mod replay;
mod section;
pub(crate) mod trace;
mod world;

use std::io::{self, BufWriter, Cursor, Read, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use replay::{Counts, Policy, replay};
use sha2::{Digest, Sha256};
use trace::{Change, Reader, Record, TraceError, Writer};
use vellum_sim::TlbModel;

use super::contender::Skip;
use super::progress::Progress;
use super::report::Section;
use policies::{POLICIES, fits};

/// The options of the benchmark.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// A trace of memory accesses, made by `tools/trace`. Without one, a synthetic trace is
    /// generated.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// The cores whose TLBs are simulated. [default: all]
    #[arg(long, value_delimiter = ',', value_parser = parse_model)]
    pub tlb: Vec<&'static TlbModel>,
}

fn parse_model(name: &str) -> Result<&'static TlbModel, String> {
    TlbModel::core(name).ok_or_else(|| {
        let names: Vec<&str> = TlbModel::CORES.iter().map(|model| &*model.name).collect();
        format!("known cores: {}", names.join(", "))
    })
}

/// Function calls in a synthetic trace.
const CALLS: u64 = 400_000;
/// Pages in the filter of a synthetic trace: no more than the smallest TLB set of any core.
const FILTER: usize = 4;

/// The source of the accesses.
enum Source {
    File(PathBuf),
    Synthetic(Vec<u8>),
}

impl Source {
    /// Returns the SHA-256 of the uncompressed trace without the mappings that existed before the
    /// first instruction. Most of these are the emulator's, which differ from one trace of a
    /// program to the next, and are never accessed.
    ///
    /// # Errors
    /// The trace can't be read.
    fn checksum(&self) -> Result<String, TraceError> {
        let mut reader = self.open()?;
        let mut writer = Writer::new(BufWriter::with_capacity(1 << 16, Summed(Sha256::new())), reader.header())?;
        loop {
            match reader.next()? {
                Record::Vma(Change::Existing { .. }) => {}
                record => {
                    writer.put(record)?;
                    if matches!(record, Record::End(_)) {
                        break;
                    }
                }
            }
        }
        let Summed(sum) = writer.into_inner().into_inner().map_err(|error| error.into_error())?;
        Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn open(&self) -> Result<Reader<Box<dyn Read>>, TraceError> {
        match self {
            Source::File(path) => Reader::open(path),
            Source::Synthetic(bytes) => Reader::decompress(Cursor::new(bytes.clone())),
        }
    }
}

/// The program whose accesses are replayed.
pub struct Program {
    /// True if it is none, and the trace was generated.
    synthetic: bool,
    /// The checksum of its trace.
    checksum: String,
}

/// Hashes what is written to it.
struct Summed(Sha256);

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The result of one policy on one core.
pub struct Row {
    model: &'static TlbModel,
    policy: &'static Policy,
    /// The counts, or the reason why the replay has none.
    counts: Result<Counts, Skip>,
}

/// Runs the benchmark and returns its section.
///
/// # Errors
/// The trace can't be read.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    let source = match &args.trace {
        Some(path) => Source::File(path.clone()),
        None => Source::Synthetic(generate::generate(CALLS, FILTER)?),
    };
    source.open()?;
    let models = if args.tlb.is_empty() { TlbModel::CORES.iter().collect() } else { args.tlb.clone() };
    let program = Program { synthetic: args.trace.is_none(), checksum: source.checksum()? };
    Ok(section::of(&measure(&source, &models), &program))
}

/// Replays every policy on every core that supports it, in parallel.
fn measure(source: &Source, models: &[&'static TlbModel]) -> Vec<Row> {
    let cells: Vec<(&'static TlbModel, &'static Policy)> =
        models.iter().flat_map(|&model| POLICIES.iter().filter(|p| fits(model, p)).map(move |p| (model, p))).collect();
    let progress = Progress::new(cells.len() as u64);
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let worker = || {
        while let Some(&(model, policy)) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
            let counts = replay(|| source.open(), policy, model);
            let mut rows = rows.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            progress.set_text(format!("{} {}", model.name, policy.name));
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
    use vellum_sim::Access;

    use super::trace::{Header, Totals};
    use super::*;
    use crate::bench::report::Value;

    fn replayed(source: &Source, name: &str, model: &TlbModel) -> Counts {
        let policy = POLICIES.iter().find(|policy| policy.name == name && fits(model, policy)).unwrap();
        replay(|| source.open(), policy, model).unwrap()
    }

    #[test]
    fn filtered_accesses_change_no_count() {
        let traces = [1, 2, 4].map(|filter| generate::generate(20_000, filter).unwrap());
        let lengths = traces.each_ref().map(|trace| zstd::decode_all(&trace[..]).unwrap().len());
        assert!(lengths.is_sorted_by(|more, fewer| more > fewer), "{lengths:?}");
        let sources = traces.map(Source::Synthetic);
        // The first-level TLB of one is fully associative, that of the other has four ways.
        for model in [&TlbModel::NEOVERSE_N1, &TlbModel::SKYLAKE] {
            for policy in ["4K", "exefolio"] {
                let [whole, two, four] = sources.each_ref().map(|source| replayed(source, policy, model));
                assert!(whole.refills > 1000 && whole.faults > 100, "{policy} on {}: {whole:?}", model.name);
                assert_eq!((whole, whole), (two, four), "{policy} on {}", model.name);
            }
        }
    }

    /// The figures of a run without `--trace` can be compared with those of other machines.
    #[test]
    fn the_synthetic_trace_is_always_the_same() {
        let source = Source::Synthetic(generate::generate(2_000, FILTER).unwrap());
        assert_eq!(source.checksum().unwrap(), "2e21cb4574376871a3c6de46f0e4b5f16729c09d1d94dc8f48e403a6ebca6098");
        let other = Source::Synthetic(generate::generate(2_001, FILTER).unwrap());
        assert_ne!(other.checksum().unwrap(), source.checksum().unwrap());
    }

    #[test]
    fn the_checksum_leaves_out_mappings_that_existed_before() {
        let checksum = |at, page| {
            let mut writer = Writer::new(Vec::new(), Header { filter: FILTER }).unwrap();
            let existing = Change::Existing { at, len: 0x2000, rights: 3, file: 0, offset: 0 };
            let access = Record::Access { slot: 0, page, access: Access::Read };
            for record in [Record::Vma(existing), access, Record::End(Totals::default())] {
                writer.put(record).unwrap();
            }
            Source::Synthetic(zstd::encode_all(&writer.into_inner()[..], 1).unwrap()).checksum().unwrap()
        };
        assert_eq!(checksum(0x1000, 1), checksum(0x3000, 1));
        assert_ne!(checksum(0x1000, 1), checksum(0x1000, 2));
    }

    #[test]
    fn each_policy_from_single_pages_to_contiguous_text_saves_walks() {
        let source = Source::Synthetic(generate::generate(40_000, FILTER).unwrap());
        let model = &TlbModel::CORTEX_A76;
        let [base, folios, joined, text] =
            ["4K", "anonfolio", "contpte", "exefolio"].map(|policy| replayed(&source, policy, model));
        assert!(folios.faults < base.faults, "a fault brings a folio");
        assert_eq!(joined.faults, folios.faults);
        // A fault costs a walk, too: the rest is compared.
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
    fn the_section_has_each_policy_a_core_supports() {
        let source = Source::Synthetic(generate::generate(2_000, FILTER).unwrap());
        let models = ["skylake", "xiangshan-kunminghu"].map(|name| TlbModel::core(name).unwrap());
        let program = Program { synthetic: true, checksum: source.checksum().unwrap() };
        let section = section::of(&measure(&source, &models), &program);
        let text = |key: &str| section.json.iter().map(|row| row[key].as_str().unwrap().to_owned()).collect::<Vec<_>>();
        assert_eq!(text("policy"), ["4K", "anonfolio", "exefolio", "4K", "anonfolio", "contpte", "exefolio"]);
        assert_eq!(text("tlb")[2..4], models.map(|model| &*model.name));
        for row in &section.json {
            let [misses, walks, faults] = ["misses", "walks", "faults"].map(|key| row[key].as_u64().unwrap());
            assert!(misses >= walks && walks >= faults && faults > 0, "{row}");
            assert_eq!(row["trace_sha256"], *program.checksum);
        }
        assert!(section.notes.iter().any(|note| note.contains(&program.checksum)));
        assert_eq!(section.parts[0].title, "first-level TLB misses");
        // Unsupported policies are empty cells in every table but the published one.
        for part in section.parts.iter().filter(|part| part.chart.is_some()) {
            let empty = part.table.rows.iter().flatten().filter(|value| matches!(value, Value::None)).count();
            assert_eq!((part.table.rows.len(), empty), (6, 3 + 2), "{}", part.title);
        }
    }
}
