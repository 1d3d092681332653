//! Fuzz targets of the command's readers of files, and of what programs and machines write:
//! functions over any bytes, which panic if a reader does, or if what it returns breaks its
//! promises (`docs/fuzzing.md`). The test below runs them over the kept corpus;
//! `fuzz/fuzz_targets`, over what libFuzzer makes.

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
use crate::run::{modules as packages, wire};

/// A trace of accesses, compressed or not. Its records are the same when they are written anew.
pub fn trace(bytes: &[u8]) {
    /// A compressed one may be a thousand times as long.
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

/// The records up to an error or the end, and what a cache is told of them.
fn records<R: Read>(mut reader: Reader<R>, most: usize) -> Vec<Record> {
    let mut mirror = Mirror::new(reader.header().filter, 16).expect("a cache of 16 ways");
    let mut all = Vec::new();
    while all.len() < most {
        let Ok(record) = reader.next() else { break };
        all.push(record);
        match record {
            Record::Access { slot, page, access } => {
                let mut last = None;
                let told = mirror.enter(slot, page, access, |page, access| {
                    last = Some((page, access));
                    Ok::<_, ()>(())
                });
                assert_eq!((told, last), (Ok(()), Some((page, access))));
            }
            Record::End(_) => break,
            _ => {}
        }
    }
    all
}

/// A trace on a small machine: it is replayed, or an error says why not.
pub fn replay(bytes: &[u8]) {
    const MEMORY: u64 = 16 << 20;
    let Ok(reader) = Reader::new(bytes) else { return };
    let Some(model) = TlbModel::CORES.first() else { return };
    let policy = Policy { name: "", format: Format::Aarch64(16), folios: true, joins: true, text: true };
    let _ = replaying::on(Aarch64::granule_16k(), MEMORY, reader, &policy, model);
}

/// `vellum bench holds` reads the longest stretches that the reference kernel reports.
pub fn stretches(bytes: &[u8]) {
    let said = String::from_utf8_lossy(bytes);
    let Ok(rows) = holds::rows(&said, |address| Some(format!("{address:x}"))) else { return };
    let operations = said.lines().filter_map(|line| line.strip_prefix("operation "));
    assert!(rows.iter().map(|row| row.operation.as_str()).eq(operations));
}

/// Outputs of a program on two kernels, with a zero byte between them.
pub fn outputs(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (a, b) = text.split_once('\0').unwrap_or((&text, &text));
    let lines = |parts: &[pair::Part]| {
        let count = |part: &pair::Part| match part {
            pair::Part::Lines(lines) => lines.iter().filter(|(a, _)| a.is_some()).count(),
            pair::Part::Rows(rows) => rows.len(),
        };
        parts.iter().map(count).sum::<usize>()
    };
    let parts = pair::parts(a, b);
    assert_eq!(lines(&parts), a.lines().count(), "each line of one output is in one part");
    show::write(&mut sink(), &parts).expect("nothing can fail here");
}

/// A module of Linux: what it depends on.
pub fn modules(bytes: &[u8]) {
    let Ok(names) = packages::dependencies(bytes) else { return };
    assert!(names.iter().all(|name| !name.is_empty() && !name.contains([',', '\0'])));
}

/// The command reads the frames of streams that a machine sends over the wire.
pub fn streams(bytes: &[u8]) {
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let status = wire::listen(bytes, &mut output, &mut errors, || ());
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

/// Sizes and shares, as people write them.
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
    fn readers_hold_their_properties_on_the_corpus_and_its_mutations() {
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
