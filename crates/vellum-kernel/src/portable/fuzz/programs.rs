//! Fuzz targets for executable files and for the initramfs.

use crate::exec::elf::{self as program, Contents, Limits, Mapping, Plan};
use crate::exec::script::{self as text, HEAD};
use crate::fs::Inode;
use crate::fs::archive::{Entry, entries, unpack};
use crate::fs::meta::{FileCredentials, Kind};
use crate::fs::names::{Namespace, View};
use crate::fs::tree::Tree;
use crate::testing::Machine;
use alloc::sync::Arc;
use elf::abi;
use elf::endian::LittleEndian;
use elf::file::Class;
use elf::segment::{ProgramHeader, SegmentTable};
use std::format;
use std::vec::Vec;

const LIMITS: Limits = Limits { addresses: 0x1_0000..0x7fff_ffff_f000, page_size: 4096, machine: abi::EM_X86_64 };
const PAGE: u64 = LIMITS.page_size;

/// Plans an ELF file, and checks that the plan lies within the limits and maps each byte of a
/// segment to the byte of the file that the segment names.
pub fn elf(bytes: &[u8]) {
    let Ok(header) = program::header(bytes, LIMITS.machine) else { return };
    let range = (usize::try_from(header.phdrs.start), usize::try_from(header.phdrs.end));
    let (Ok(start), Ok(end)) = range else { return };
    let Some(table) = bytes.get(start..end) else {
        // The program header table ends beyond the file, so the kernel reads fewer bytes than the
        // table has, and `plan` must fail.
        assert!(program::plan(&header, &[], bytes.len() as u64, &LIMITS).is_err());
        return;
    };
    let Ok(plan) = program::plan(&header, table, bytes.len() as u64, &LIMITS) else { return };
    assert!(plan.span.contains(&plan.entry) && plan.align.is_power_of_two() && plan.align >= PAGE);
    assert!(plan.mappings.len() <= 2 * table.len() / 56);
    let mut starts = if plan.relocatable { 0 } else { LIMITS.addresses.start };
    for Mapping { range, contents, .. } in &plan.mappings {
        assert!(starts <= range.start && range.start < range.end && range.end <= LIMITS.addresses.end);
        assert!(range.start % PAGE == 0 && range.end % PAGE == 0);
        starts = range.start;
        if let Contents::File { offset, clear } = contents {
            assert!(offset % PAGE == 0 && clear.end == range.end && clear.start > range.end - PAGE);
            assert!(
                offset + (range.end - range.start) - PAGE < bytes.len() as u64,
                "the last page has bytes of the file"
            );
        }
    }
    if let Some(path) = &plan.interpreter {
        assert!(path.start < path.end && path.end <= bytes.len() as u64 && path.end - path.start <= 4096);
    }
    let loaded = SegmentTable::new(LittleEndian, Class::ELF64, table).iter();
    let loaded: Vec<_> = loaded.filter(|one| one.p_type == abi::PT_LOAD && one.p_memsz > 0).collect();
    for (n, segment) in loaded.iter().enumerate() {
        // A segment that begins on the last page of the one before it replaces that page, as on
        // Linux.
        let next = loaded.get(n + 1).map_or(u64::MAX, |next| next.p_vaddr / PAGE * PAGE);
        check_segment(&plan, segment, next, bytes);
    }
}

/// Checks that the bytes at both ends of a segment, and at both ends of its bytes from the file,
/// are mapped as the segment says. Ignores addresses from `next` on, which the next segment
/// replaces.
fn check_segment(plan: &Plan, segment: &ProgramHeader, next: u64, bytes: &[u8]) {
    let (start, in_file) = (segment.p_vaddr, segment.p_vaddr + segment.p_filesz);
    let end = start + segment.p_memsz;
    assert!(end <= plan.data_end);
    for at in [start, in_file.wrapping_sub(1), in_file, in_file.next_multiple_of(PAGE), end.wrapping_sub(1)] {
        if !(start..end.min(next)).contains(&at) {
            continue;
        }
        let mapping = plan.mappings.iter().rev().find(|mapping| mapping.range.contains(&at));
        let mapping = mapping.unwrap_or_else(|| panic!("{at:#x} is not mapped"));
        let expected = if at < in_file { bytes[(segment.p_offset + (at - start)) as usize] } else { 0 };
        let found = match &mapping.contents {
            Contents::Zero => 0,
            Contents::File { clear, .. } if clear.contains(&at) => 0,
            // A mapping that is not writable keeps the file's bytes in the rest of the page, as on
            // Linux.
            Contents::File { .. } if at >= in_file && !mapping.rights.write => expected,
            Contents::File { offset, .. } => {
                bytes.get((offset + (at - mapping.range.start)) as usize).copied().unwrap_or_default()
            }
        };
        assert_eq!(found, expected, "{at:#x}");
    }
}

/// Parses the first line of a script. Checks that a line written from the result parses to the same
/// result.
pub fn script(bytes: &[u8]) {
    let Some(Ok(script)) = text::parse(bytes) else { return };
    let space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | 0);
    let edges =
        |part: &[u8]| part.first().is_some_and(|byte| !space(byte)) && part.last().is_some_and(|byte| !space(byte));
    assert!(edges(script.interpreter) && !script.interpreter.iter().any(space));
    assert!(script.argument.is_none_or(edges));
    let line = [b"#!", script.interpreter, b" ", script.argument.unwrap_or_default(), b"\n"].concat();
    assert!(line.len() <= HEAD + 2, "only the head is parsed");
    if line.len() <= HEAD {
        assert_eq!(text::parse(&line), Some(Ok(text::Script { ..script })));
    }
    let arguments = text::parse(bytes).and_then(Result::ok).map(|again| again.arguments(b"./script", Vec::new()));
    assert_eq!(arguments.map(|all| all.map(|all| all.len())), Some(Ok(2 + usize::from(script.argument.is_some()))));
}

/// Reads an archive. Checks that entries written to a new archive read the same, and that each
/// unpacked file has the size that the archive states.
pub fn cpio(bytes: &[u8]) {
    let all: Vec<_> = entries(bytes).collect();
    let valid: Vec<&Entry> = all.iter().map_while(|entry| entry.as_ref().ok()).collect();
    assert!(all.len() - valid.len() <= 1, "nothing follows an error");
    let size: usize = valid.iter().map(|entry| 110 + entry.name.len() + 1 + entry.contents.len()).sum();
    assert!(size <= bytes.len());
    assert!(valid.iter().all(|entry| !entry.name.contains(&0)), "no path has a zero byte");
    let mut again = Vec::new();
    valid.iter().for_each(|entry| write(&mut again, entry));
    let read: Vec<_> = entries(&again).collect();
    assert!(read.iter().map_while(|entry| entry.as_ref().ok()).eq(valid.iter().copied()));
    let root: Arc<dyn Inode> = Tree::root(Arc::new(Machine), 1, 0o755);
    if unpack(bytes, &root).is_err() {
        return;
    }
    let (names, cred) = (Namespace::default(), FileCredentials::root());
    let view = View { names: &names, root: &root, current: &root, cred: &cred };
    for entry in valid.iter().filter(|entry| entry.links <= 1 && Kind::of(entry.mode) == Ok(Kind::Regular)) {
        let file = view.get(entry.name, false).expect("the file was unpacked");
        assert_eq!(file.meta().size, entry.contents.len() as u64);
    }
}

fn write(to: &mut Vec<u8>, entry: &Entry) {
    let Entry { inode, mode, uid, gid, links, modified, special, .. } = *entry;
    let [size, name] = [entry.contents.len(), entry.name.len() + 1].map(|len| len as u32);
    to.extend(b"070701");
    for field in [inode, mode, uid, gid, links, modified, size, 0, 0, special.major, special.minor, name, 0] {
        to.extend(format!("{field:08x}").as_bytes());
    }
    for part in [&[entry.name, &[0]].concat(), entry.contents] {
        to.extend(part);
        to.resize(to.len().next_multiple_of(4), 0);
    }
}
