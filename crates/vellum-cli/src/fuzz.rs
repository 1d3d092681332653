//! Fuzz targets of this crate's parsers.
//!
//! Each target is a function over any bytes. It panics if a parser does, or if the parsed value
//! breaks a promised property (`docs/fuzzing.md`). The test below runs the targets over the kept
//! corpus; `fuzz/fuzz_targets` runs them over the inputs that libFuzzer makes.

use std::io::{Cursor, Read, sink};

use vellum::arch::Aarch64;
use vellum_inspect::size;
use vellum_linux::workload::case;
use vellum_sim::TlbModel;

use crate::bench::contpte::filter::Mirror;
use crate::bench::contpte::replay::{self as replaying, Format, Policy};
use crate::bench::contpte::trace::{Reader, Record, Writer};
use crate::bench::holds;
use crate::compare::{pair, show};
use crate::run::{modules as packages, stdio};

/// Checks that the records of a trace, compressed or not, are the same after they are written
/// again.
pub fn trace(bytes: &[u8]) {
    /// The most records that are read: a compressed trace may expand a thousandfold.
    const MOST: usize = 1 << 16;
    if let Ok(reader) = Reader::decompress(Cursor::new(bytes.to_vec())) {
        records(reader, MOST);
    }
    let Ok(reader) = Reader::new(bytes) else { return };
    let header = reader.header();
    let all = records(reader, usize::MAX);
    assert!(all.len() < bytes.len(), "a record takes a byte");
    let mut writer = Writer::new(Vec::new(), header).expect("memory can be written to");
    all.iter().for_each(|record| writer.put(*record).expect("memory can be written to"));
    let written = writer.into_inner();
    assert_eq!(records(Reader::new(&written[..]).expect("a header"), usize::MAX), all);
}

/// Returns the records up to an error or the end, at most `most`, and applies them to a [`Mirror`].
fn records<R: Read>(mut reader: Reader<R>, most: usize) -> Vec<Record> {
    let mut mirror = Mirror::new(reader.header().filter, 16).expect("a cache of 16 ways");
    let mut all = Vec::new();
    while all.len() < most {
        let Ok(record) = reader.next() else { break };
        all.push(record);
        match record {
            Record::Access { slot, page, access } => {
                let mut last = None;
                let entered = mirror.insert(slot, page, access, |page, access| {
                    last = Some((page, access));
                    Ok::<_, ()>(())
                });
                assert_eq!((entered, last), (Ok(()), Some((page, access))));
            }
            Record::End(_) => break,
            _ => {}
        }
    }
    all
}

/// Replays a trace on a small machine. The replay may fail, but not panic.
pub fn replay(bytes: &[u8]) {
    const MEMORY: u64 = 16 << 20;
    let Ok(reader) = Reader::new(bytes) else { return };
    let Some(model) = TlbModel::CORES.first() else { return };
    let policy = Policy { name: "", format: Format::Aarch64(16), folios: true, cont_blocks: true, text: true };
    let _ = replaying::on(Aarch64::granule_16k(), MEMORY, reader, &policy, model);
}

/// Parses the reference kernel's report of its longest non-preemptible sections.
pub fn stretches(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(rows) = holds::rows(&text, |address| Some(format!("{address:x}"))) else { return };
    let operations = text.lines().filter_map(|line| line.strip_prefix("operation "));
    assert!(rows.iter().map(|row| row.operation.as_str()).eq(operations));
}

/// Matches the outputs of a program on up to three kernels, which zero bytes separate in the input.
/// Without one, the second kernel's output equals the first's.
pub fn outputs(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut outputs: Vec<String> = text.split('\0').take(3).map(String::from).collect();
    outputs.resize_with(outputs.len().max(2), || text.to_string());
    let names = &["vellum", "linux", "minimal"][..outputs.len()];
    let lines = |parts: &[pair::Part]| {
        let count = |part: &pair::Part| match part {
            pair::Part::Lines(lines) => lines.iter().filter(|line| line[0].is_some()).count(),
            pair::Part::Rows(rows) => rows.len(),
        };
        parts.iter().map(count).sum::<usize>()
    };
    let parts = pair::parts(&outputs);
    let expected = outputs[0].lines().count();
    assert_eq!(lines(&parts), expected, "each line of one output is in one part");
    show::write(&mut sink(), names, &parts).expect("nothing can fail here");
    show::write_json(&mut sink(), names, &parts).expect("nothing can fail here");
    if let Ok(least) = pair::chosen(&outputs, pair::Choice::Least) {
        assert_eq!(least.lines().count(), expected, "the least of several runs has the lines of each");
    }
}

/// Reads the dependencies of a Linux kernel module.
pub fn modules(bytes: &[u8]) {
    let Ok(names) = packages::dependencies(bytes) else { return };
    assert!(names.iter().all(|name| !name.is_empty() && !name.contains([',', '\0'])));
}

/// Decodes the frames of a program's standard streams.
pub fn streams(bytes: &[u8]) {
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let status = stdio::receive(bytes, &mut output, &mut errors, || ());
    assert!(output.len() + errors.len() <= bytes.len());
    let (mut rest, mut expected) = (bytes.get(1..).unwrap_or_default(), [Vec::new(), Vec::new()]);
    let mut ended = None;
    while let Some(([kind, low, high], after)) = rest.split_first_chunk().filter(|_| bytes[0] == b'V') {
        let Some((payload, after)) = after.split_at_checked(usize::from(u16::from_le_bytes([*low, *high]))) else {
            break;
        };
        match kind {
            1 | 2 => expected[usize::from(*kind) - 1].extend(payload),
            3 => ended = payload.first_chunk().map(|status| u32::from_le_bytes(*status)),
            _ => {}
        }
        if !matches!(kind, 1 | 2) {
            break;
        }
        rest = after;
    }
    assert_eq!((output, errors), expected.into());
    assert!(status.is_err() || status.is_ok_and(|status| status == ended));
}

/// Checks that parsed sizes format to themselves, and that shares are in range.
pub fn sizes(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(bytes) = size::parse(&text) {
        assert_eq!(size::parse(&size::show(bytes)), Ok(bytes));
        assert!(!size::about(bytes).is_empty());
    }
    let share = size::parse_share(&text);
    assert!(share.as_ref().is_ok_and(|share| *share > 0.0 && *share <= 1.0) || share.is_err());
    let _ = case::parse_folio(&text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsers_keep_their_properties_on_the_corpus_and_its_mutations() {
        let targets: &[vellum_corpus::Target] = &[
            ("modules", modules),
            ("outputs", outputs),
            ("replay", replay),
            ("sizes", sizes),
            ("streams", streams),
            ("stretches", stretches),
            ("trace", trace),
        ];
        vellum_corpus::check("vellum_cli", targets);
    }
}
