//! Core files: ELF files with the memory and the registers of a process that a signal has ended.

use crate::errno::Errno;
use alloc::vec::Vec;
use core::ops::Range;
use elf::abi;

const HEADER_SIZE: usize = 64;
const SEGMENT_SIZE: usize = 56;
/// Segments begin at multiples of this in the file.
const PAGE: u64 = 4096;
/// The most segments that the header can count.
const MOST_SEGMENTS: usize = 0xfffe;

/// The kinds of notes.
pub mod note {
    /// A thread's registers (`struct elf_prstatus`).
    pub const STATUS: u32 = 1;
    /// A thread's floating-point registers.
    pub const FLOATING: u32 = 2;
    /// The process (`struct elf_prpsinfo`).
    pub const PROCESS: u32 = 3;
    /// The auxiliary vector.
    pub const AUX: u32 = 6;
    /// The signal's information.
    pub const SIGNAL: u32 = 0x5349_4749;
    /// The mapped files.
    pub const FILES: u32 = 0x4649_4c45;
}

/// A range of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The addresses.
    pub range: Range<u64>,
    /// The rights of the process to it: to read, write and execute.
    pub rights: [bool; 3],
    /// The number of its bytes, from the first on, that the file has.
    pub dumped: u64,
}

/// A file that is mapped.
pub struct MappedPart<'a> {
    /// The addresses.
    pub range: Range<u64>,
    /// The offset in the file of the first byte.
    pub offset: u64,
    /// The file's path.
    pub path: &'a [u8],
}

/// A process, for [`process_note`].
pub struct Described<'a> {
    /// The user and group IDs, and the numbers of the process, its parent, group and session.
    pub numbers: [u32; 6],
    /// The nice value.
    pub nice: i8,
    /// The name.
    pub name: &'a [u8],
    /// The arguments, each with a NUL.
    pub arguments: &'a [u8],
}

/// Appends a note.
///
/// # Errors
/// `ENOMEM`.
pub fn push_note(notes: &mut Vec<u8>, owner: &[u8], kind: u32, contents: &[u8]) -> Result<(), Errno> {
    let name_len = owner.len() + 1;
    notes.try_reserve(12 + name_len.next_multiple_of(4) + contents.len().next_multiple_of(4))?;
    for word in [name_len as u32, contents.len() as u32, kind] {
        notes.extend_from_slice(&word.to_le_bytes());
    }
    notes.extend_from_slice(owner);
    notes.push(0);
    notes.resize(notes.len().next_multiple_of(4), 0);
    notes.extend_from_slice(contents);
    notes.resize(notes.len().next_multiple_of(4), 0);
    Ok(())
}

/// Returns the note of a thread's registers, of a thread that took `signal`, with the pending and
/// the blocked signals, and the numbers of thread, parent, group and session.
pub fn status_note(signal: u32, code: i32, sets: [u64; 2], numbers: [u32; 4], general: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [signal, code as u32, 0, signal & 0xffff] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    sets.iter().for_each(|set| bytes.extend_from_slice(&set.to_le_bytes()));
    numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    // Four times, which are not kept apart.
    bytes.resize(112, 0);
    general.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    // The floating-point registers have a note.
    bytes.extend_from_slice(&1u64.to_le_bytes());
    bytes
}

/// Returns the note of the process.
pub fn process_note(process: &Described<'_>) -> Vec<u8> {
    const NAME: usize = 16;
    const ARGUMENTS: usize = 80;
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&[0, b'R', 0, process.nice as u8, 0, 0, 0, 0]);
    bytes.resize(16, 0);
    process.numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
    for (text, room) in [(process.name, NAME), (process.arguments, ARGUMENTS)] {
        let end = bytes.len() + room;
        let text = text.strip_suffix(&[0]).unwrap_or(text);
        bytes.extend(text.iter().take(room - 1).map(|byte| if *byte == 0 { b' ' } else { *byte }));
        bytes.resize(end, 0);
    }
    bytes
}

/// Returns the note of the mapped files.
///
/// # Errors
/// `ENOMEM`.
pub fn files_note(files: &[MappedPart<'_>]) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    bytes.try_reserve(16 + files.iter().map(|file| 25 + file.path.len()).sum::<usize>())?;
    let mut put = |word: u64| bytes.extend_from_slice(&word.to_le_bytes());
    put(files.len() as u64);
    put(PAGE);
    for file in files {
        [file.range.start, file.range.end, file.offset / PAGE].into_iter().for_each(&mut put);
    }
    for file in files {
        bytes.extend_from_slice(file.path);
        bytes.push(0);
    }
    Ok(bytes)
}

/// Returns the beginning of the file, with the notes, and the offset at which each segment's bytes
/// begin. Segments beyond the most that a file can have are left out.
///
/// # Errors
/// `ENOMEM`.
pub fn head(machine: u16, segments: &[Segment], notes: &[u8]) -> Result<(Vec<u8>, Vec<u64>), Errno> {
    let segments = &segments[..segments.len().min(MOST_SEGMENTS)];
    let count = segments.len() + 1;
    let notes_at = HEADER_SIZE + count * SEGMENT_SIZE;
    let mut at = ((notes_at + notes.len()) as u64).next_multiple_of(PAGE);
    let (mut bytes, mut offsets) = (Vec::new(), Vec::new());
    bytes.try_reserve(at as usize)?;
    offsets.try_reserve(segments.len())?;
    bytes.extend_from_slice(&[0x7f, b'E', b'L', b'F', abi::ELFCLASS64, abi::ELFDATA2LSB, abi::EV_CURRENT, 0]);
    bytes.resize(16, 0);
    for half in [abi::ET_CORE, machine] {
        bytes.extend_from_slice(&half.to_le_bytes());
    }
    bytes.extend_from_slice(&u32::from(abi::EV_CURRENT).to_le_bytes());
    for word in [0, HEADER_SIZE as u64, 0] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&0u32.to_le_bytes());
    for half in [HEADER_SIZE, SEGMENT_SIZE, count, 0, 0, 0] {
        bytes.extend_from_slice(&(half as u16).to_le_bytes());
    }
    let mut put = |kind: u32, flags: u32, words: [u64; 6]| {
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&flags.to_le_bytes());
        words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
    };
    put(abi::PT_NOTE, 0, [notes_at as u64, 0, 0, notes.len() as u64, 0, 4]);
    for Segment { range, rights: [read, write, execute], dumped } in segments {
        let flag = |is_set: &bool, flag: u32| if *is_set { flag } else { 0 };
        let flags = flag(read, abi::PF_R) | flag(write, abi::PF_W) | flag(execute, abi::PF_X);
        put(abi::PT_LOAD, flags, [at, range.start, 0, *dumped, range.end - range.start, PAGE]);
        offsets.push(at);
        at += dumped;
    }
    bytes.extend_from_slice(notes);
    bytes.resize(bytes.len().next_multiple_of(PAGE as usize), 0);
    Ok((bytes, offsets))
}

/// Returns the path of a core file by a pattern (`/proc/sys/kernel/core_pattern`). `of` appends
/// what stands for the letter behind a `%`, or nothing if the letter has no meaning.
///
/// # Errors
/// `ENOMEM`.
pub fn path(pattern: &[u8], of: impl Fn(u8, &mut Vec<u8>)) -> Result<Vec<u8>, Errno> {
    let mut path = Vec::new();
    path.try_reserve(pattern.len() + 256)?;
    let mut bytes = pattern.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => match bytes.next() {
                Some(b'%') => path.push(b'%'),
                Some(letter) => of(*letter, &mut path),
                None => {}
            },
            byte => path.push(*byte),
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use elf::ElfBytes;
    use elf::endian::LittleEndian;
    use std::vec;

    #[test]
    fn a_core_file_is_read_back() {
        let mut notes = Vec::new();
        let status = status_note(11, 1, [0, 2], [7, 6, 5, 4], &[9; 27]);
        assert_eq!(status.len(), 336);
        push_note(&mut notes, b"CORE", note::STATUS, &status).unwrap();
        push_note(&mut notes, b"LINUX", 0x202, &[1, 2, 3]).unwrap();
        let segments = [
            Segment { range: 0x1000..0x3000, rights: [true, false, true], dumped: 0x1000 },
            Segment { range: 0x5000..0x8000, rights: [true, true, false], dumped: 0x3000 },
        ];
        let (mut file, offsets) = head(abi::EM_X86_64, &segments, &notes).unwrap();
        assert_eq!(offsets, [4096, 8192]);
        assert_eq!(file.len(), 4096);
        file.resize(8192 + 0x3000, 0);
        let core = ElfBytes::<LittleEndian>::minimal_parse(&file).unwrap();
        assert_eq!((core.ehdr.e_type, core.ehdr.e_machine), (abi::ET_CORE, abi::EM_X86_64));
        let parts: Vec<_> = core.segments().unwrap().iter().collect();
        assert_eq!(parts.len(), 3);
        let load = |index: usize| {
            let part: &elf::segment::ProgramHeader = &parts[index];
            (part.p_vaddr, part.p_offset, part.p_filesz, part.p_memsz, part.p_flags)
        };
        assert_eq!(load(1), (0x1000, 4096, 0x1000, 0x2000, 5));
        assert_eq!(load(2), (0x5000, 8192, 0x3000, 0x3000, 6));
        let found: Vec<_> = core.segment_data_as_notes(&parts[0]).unwrap().collect();
        assert_eq!(found.len(), 2);
        let elf::note::Note::Unknown(first) = &found[0] else { panic!("{:?}", found[0]) };
        assert_eq!((first.n_type, first.desc), (1, &status[..]));
        let elf::note::Note::Unknown(second) = &found[1] else { panic!("{:?}", found[1]) };
        assert_eq!((second.n_type, second.desc), (0x202, &[1, 2, 3][..]));
    }

    #[test]
    fn a_process_is_described_in_its_note() {
        let arguments = [b"prog\0-x\0".as_slice(), &[b'a'; 100], b"\0"].concat();
        let note =
            process_note(&Described { numbers: [1, 2, 3, 4, 5, 6], nice: -3, name: b"prog", arguments: &arguments });
        assert_eq!(note.len(), 136);
        assert_eq!((note[3] as i8, note[16], note[24], note[36]), (-3, 1, 3, 6));
        assert_eq!(note[40..45], *b"prog\0");
        assert_eq!(note[56..65], *b"prog -x a");
        assert_eq!(note[135], 0);
    }

    #[test]
    fn files_are_listed_with_their_pages() {
        let file = MappedPart { range: 0x1000..0x2000, offset: 0x3000, path: b"/lib/x" };
        let note = files_note(&[file]).unwrap();
        let words: Vec<u64> = note[..40].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        assert_eq!(words, [1, 4096, 0x1000, 0x2000, 3]);
        assert_eq!(note[40..], *b"/lib/x\0");
    }

    #[test]
    fn a_pattern_names_the_file() {
        let of = |letter: u8, path: &mut Vec<u8>| {
            if letter == b'p' {
                path.extend_from_slice(b"42");
            }
        };
        assert_eq!(path(b"/tmp/core.%p.%%.%z%", of), Ok(b"/tmp/core.42.%.".to_vec()));
        assert_eq!(path(b"core", of), Ok(vec![b'c', b'o', b'r', b'e']));
    }
}
