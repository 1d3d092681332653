//! `bench memory`: the memory that a kernel takes to describe and to map memory.

use std::path::PathBuf;

use serde_json::{Map, Value as Json, json};
use vellum_linux::child::overhead::{self, RegionTables};
use vellum_linux::compact;
use vellum_linux::cpu::PinnedCpu;
use vellum_linux::settings::knobs::Knobs;
use vellum_linux::settings::mthp::Mthp;
use vellum_linux::workload::case::Case;

use super::contender::{NOTABLE_FALLBACK, Skip};
use super::engine::{Engine, Overhead};
use super::progress::Progress;
use super::regions::Sizes;
use super::report::{Part, Section, Table, Value, show};

/// The options of the benchmark.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// The region. The figures are scaled to 1 GiB.
    #[command(flatten)]
    pub sizes: Sizes,
    /// The directory of the huge-page settings.
    #[arg(long, hide = true, default_value = "/sys/kernel/mm/transparent_hugepage")]
    pub thp_root: PathBuf,
}

/// Linux's memory of the kinds that it reports, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Linux {
    /// Page descriptors (`struct page`) for a GiB of memory.
    descriptors_a_gib: u64,
    /// The page tables of the region.
    tables: RegionTables,
    /// The structures of one VMA, if this user may know their sizes.
    vma: Option<u64>,
}

/// The results for one case.
struct Row {
    case: Case,
    vellum: Result<Overhead, Skip>,
    linux: Result<Linux, Skip>,
}

/// The parts of a figure, with their bytes for a GiB of memory; the names are those in JSON.
type Parts<const N: usize> = [(&'static str, Option<u64>); N];

impl Row {
    /// Scales bytes that the whole region takes to a GiB of it.
    fn a_gib(&self, bytes: u64) -> u64 {
        scaled(bytes, self.case.bytes)
    }

    fn vellum(&self) -> Parts<4> {
        let of = |part: fn(&Row, &Overhead) -> u64| self.vellum.as_ref().ok().map(|overhead| part(self, overhead));
        [
            ("vellum_descriptors", of(|_, overhead| scaled(overhead.descriptors, overhead.machine))),
            ("vellum_boot", of(|_, overhead| scaled(overhead.boot, overhead.machine))),
            ("vellum_tables", of(|row, overhead| row.a_gib(overhead.tables))),
            ("vellum_space", of(|row, overhead| row.a_gib(overhead.space))),
        ]
    }

    fn linux(&self) -> Parts<3> {
        let linux = self.linux.as_ref().ok();
        [
            ("linux_descriptors", linux.map(|linux| linux.descriptors_a_gib)),
            ("linux_tables", linux.map(|linux| self.a_gib(linux.tables.bytes))),
            ("linux_vmas", linux.and_then(|linux| linux.vma).map(|vma| self.a_gib(vma))),
        ]
    }

    fn fallback(&self) -> Option<f64> {
        self.linux.as_ref().ok().map(|linux| linux.tables.fallback).filter(|share| *share > NOTABLE_FALLBACK)
    }

    /// Returns the row as one JSON object. `skipped` and `fallback` appear only where they apply.
    fn json(&self) -> Json {
        let mut json = Map::new();
        let mut put = |key: &str, value: Json| json.insert(key.into(), value);
        put("bench", "memory".into());
        put("folio_kib", self.case.folio_kib.into());
        put("huge", self.case.huge.into());
        put("bytes", self.case.bytes.into());
        put("machine_bytes", json!(self.vellum.as_ref().ok().map(|overhead| overhead.machine)));
        put("vellum_bytes_a_gib", json!(sum(&self.vellum())));
        put("linux_bytes_a_gib", json!(sum(&self.linux())));
        for (name, bytes) in self.vellum().into_iter().chain(self.linux()) {
            put(&format!("{name}_bytes_a_gib"), json!(bytes));
        }
        if let Some(share) = self.fallback() {
            put("fallback", json!({ "linux_tables_bytes_a_gib": share }));
        }
        let skips = [("vellum", self.vellum.as_ref().err()), ("linux", self.linux.as_ref().err())];
        let skipped: Map<String, Json> = skips
            .into_iter()
            .filter_map(|(name, skip)| Some((format!("{name}_bytes_a_gib"), skip?.to_string().into())))
            .collect();
        if !skipped.is_empty() {
            put("skipped", skipped.into());
        }
        json.into()
    }

    fn line(&self) -> Vec<Value> {
        let bytes = |bytes: Option<u64>| bytes.map_or(Value::None, |bytes| Value::Text(show::size(bytes)));
        let totals = [sum(&self.vellum()), sum(&self.linux())];
        let ratio = totals[0].zip(totals[1]).filter(|(vellum, _)| *vellum > 0);
        let mark = if self.fallback().is_some() { "*" } else { "" };
        std::iter::once(Value::Text(format!("{}{mark}", self.case.label())))
            .chain(totals.map(bytes))
            .chain([ratio.map_or(Value::None, |(v, l)| Value::Text(show::ratio(l as f64 / v as f64)))])
            .chain(self.vellum().map(|(_, part)| bytes(part)))
            .chain(self.linux().map(|(_, part)| bytes(part)))
            .collect()
    }
}

/// Scales `bytes` in `memory` bytes to a GiB.
fn scaled(bytes: u64, memory: u64) -> u64 {
    (bytes as f64 * (1u64 << 30) as f64 / memory as f64).round() as u64
}

/// Returns the sum of the parts that are known; `None` if none is.
fn sum(parts: &[(&str, Option<u64>)]) -> Option<u64> {
    parts.iter().filter_map(|(_, bytes)| *bytes).reduce(|a, b| a + b)
}

/// Runs the benchmark and returns its section.
///
/// # Errors
/// `--size` is not a multiple of 2 MiB.
pub fn section(args: &Args) -> anyhow::Result<Section> {
    let cases = args.sizes.cases()?;
    let _pinned = PinnedCpu::pin();
    let progress = Progress::new(2 * cases.len() as u64);
    let engine = Engine::of(args.sizes.size);
    let (mthp, mut knobs) = (Mthp::at(&args.thp_root), Knobs::guarded(&args.thp_root));
    let row = |case: Case| {
        progress.set_text(format!("memory {} vellum", case.label()));
        let vellum = engine.overhead(&case);
        progress.step();
        progress.set_text(format!("memory {} linux", case.label()));
        let linux = on_linux(&case, &mthp, &mut knobs);
        progress.step();
        Row { case, vellum, linux }
    };
    let rows: Vec<Row> = cases.into_iter().map(row).collect();
    drop(progress);
    Ok(section_of(&rows))
}

fn on_linux(case: &Case, mthp: &Mthp, knobs: &mut Knobs) -> Result<Linux, Skip> {
    let descriptors_a_gib = overhead::descriptors_a_gib()?;
    vellum_linux::memory::check_available(case.bytes + case.bytes / 8)?;
    compact();
    let settings = knobs.apply(&mthp.plan(case)?)?;
    let tables = overhead::page_tables(case, settings)?;
    Ok(Linux { descriptors_a_gib, tables, vma: overhead::vma_bytes() })
}

const METHOD: &[(&str, &str)] = &[
    (
        "",
        "A region is mapped as one VMA and touched in ascending order. The figures are bytes for a GiB: of descriptors \
         and boot for a GiB of the machine, of all else for a GiB of the region.",
    ),
    (
        "vellum",
        "is the sum of its parts. Descriptors are 32 bytes a frame, with the rmap key, the memcg and the LRU links in \
         them; boot is all else that the machine lacks after its boot: bitmaps of free frames, memcgs, per-CPU \
         structures, the zero folio, most of which do not grow with memory; tables are the page tables of all levels; \
         space is all else that an address space takes: nodes of the VMA tree and per-CPU counters, whole pages.",
    ),
    (
        "linux",
        "is the sum of what Linux reports. Descriptors are its struct pages (nr_memmap_boot_pages in /proc/vmstat); \
         tables are VmPTE of a process, with the tables that Linux keeps to split huge PTEs; vmas are the sizes of \
         vm_area_struct, anon_vma and anon_vma_chain, once. Its other structures, at boot and of a process, have no \
         counters and are not in its figure.",
    ),
];

fn section_of(rows: &[Row]) -> Section {
    let head = [
        "folio",
        "vellum",
        "linux",
        "linux / vellum",
        "vellum: descriptors",
        "boot",
        "tables",
        "space",
        "linux: descriptors",
        "tables",
        "vmas",
    ];
    Section {
        id: "memory",
        title: "Memory to describe and to map a GiB".into(),
        method: METHOD.iter().map(|&(term, text)| (term, text.to_owned())).collect(),
        parts: vec![Part {
            title: "bytes for a GiB".into(),
            text: String::new(),
            chart: None,
            table: Table { head: head.map(str::to_owned).to_vec(), rows: rows.iter().map(Row::line).collect() },
        }],
        notes: notes(rows),
        loaded: 0,
        json: rows.iter().map(Row::json).collect(),
    }
}

fn notes(rows: &[Row]) -> Vec<String> {
    let mut notes = Vec::new();
    for row in rows {
        let label = row.case.label();
        let skips = [("vellum", row.vellum.as_ref().err()), ("linux", row.linux.as_ref().err())];
        let skip = |(name, skip): (&str, Option<&Skip>)| Some(format!("{name} not measured for {label}: {}.", skip?));
        notes.extend(skips.into_iter().filter_map(skip));
        notes.extend(row.fallback().map(|share| {
            format!("* linux: {:.0} % of the region was not mapped as the row {label} says.", share * 100.0)
        }));
    }
    if rows.iter().any(|row| row.linux.as_ref().is_ok_and(|linux| linux.vma.is_none())) {
        notes.push("linux's VMAs are not in its figure: /proc/slabinfo needs root.".into());
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(linux: Result<Linux, Skip>) -> Row {
        let vellum = Overhead { machine: 2 << 30, descriptors: 16 << 20, boot: 4 << 20, tables: 1000, space: 10 };
        Row { case: Case::of(512 << 20, 64), vellum: Ok(vellum), linux }
    }

    #[test]
    fn the_json_of_a_row_has_these_keys_and_parts_that_sum_up() {
        let tables = RegionTables { bytes: 500, fallback: 0.25 };
        let json = row(Ok(Linux { descriptors_a_gib: 16 << 20, tables, vma: None })).json();
        let expected = json!({
            "bench": "memory", "folio_kib": 64, "huge": false, "bytes": 512 << 20, "machine_bytes": 2u64 << 30,
            "vellum_bytes_a_gib": (10 << 20) + 2020, "linux_bytes_a_gib": (16 << 20) + 1000,
            "vellum_descriptors_bytes_a_gib": 8 << 20, "vellum_boot_bytes_a_gib": 2 << 20,
            "vellum_tables_bytes_a_gib": 2000, "vellum_space_bytes_a_gib": 20,
            "linux_descriptors_bytes_a_gib": 16 << 20, "linux_tables_bytes_a_gib": 1000,
            "linux_vmas_bytes_a_gib": null,
            "fallback": { "linux_tables_bytes_a_gib": 0.25 },
        });
        assert_eq!(json, expected);
        let json = row(Err(Skip::NoThp)).json();
        assert_eq!(json["linux_bytes_a_gib"], Json::Null);
        assert_eq!(json["skipped"]["linux_bytes_a_gib"], Skip::NoThp.to_string());
    }

    #[test]
    fn missing_and_doubtful_figures_are_noted() {
        let tables = RegionTables { bytes: 500, fallback: 0.25 };
        let rows = [row(Ok(Linux { descriptors_a_gib: 1, tables, vma: None })), row(Err(Skip::NoThp))];
        let section = section_of(&rows);
        for part in ["25 % of the region", "linux not measured for 64 KiB", "/proc/slabinfo"] {
            assert!(section.notes.iter().any(|note| note.contains(part)), "{part}: {:?}", section.notes);
        }
        let table = &section.parts[0].table;
        assert!(table.rows.iter().all(|row| row.len() == table.head.len()));
    }
}
