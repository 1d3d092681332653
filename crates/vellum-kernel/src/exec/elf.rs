//! An ELF file, read with suspicion: every number in it is somebody's claim.
//!
//! What comes out is a plan of mappings that any kernel can carry out: page-aligned, ascending, without overlap.

use crate::errno::Errno;
use alloc::vec::Vec;
use elf::ElfBytes;
use elf::abi;
use elf::endian::LittleEndian;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// More headers than this are no program.
const MOST_HEADERS: usize = 64;
/// Where a position-independent program goes (Linux, without randomization: two thirds of the address space).
pub const DYNAMIC_BASE: u64 = 0x5555_5555_4000;

/// The machine that programs must be for.
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = abi::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = abi::EM_AARCH64;

/// One mapping of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First address, on a page border.
    pub start: u64,
    /// Bytes, in whole pages.
    pub len: u64,
    /// Where the file's bytes begin.
    pub data_start: u64,
    /// Where in the file they are.
    pub file_offset: u64,
    /// How many there are; the rest is zero.
    pub data_len: u64,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub execute: bool,
}

/// A program: what to map, and where it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Ascending, without overlap.
    pub segments: Vec<Segment>,
    /// The first instruction.
    pub entry: u64,
    /// Where the program headers are in memory (`AT_PHDR`), 0 if nowhere.
    pub headers: u64,
    /// How many there are (`AT_PHNUM`).
    pub header_count: u64,
    /// How long one is (`AT_PHENT`).
    pub header_size: u64,
    /// The first address after the last segment: where the heap may begin.
    pub end: u64,
    /// Whether the stack is to be executable.
    pub stack_executable: bool,
}

/// Reads a program's file. Addresses lie in `lowest..user_end`.
///
/// # Errors
///
/// `ENOEXEC`: not a program for this machine, or not one that says what it wants.
pub fn read(file: &[u8], lowest: u64, user_end: u64) -> Result<Program, Errno> {
    let elf = ElfBytes::<LittleEndian>::minimal_parse(file).map_err(|_| Errno::ENOEXEC)?;
    let header = elf.ehdr;
    let headers = elf.segments().ok_or(Errno::ENOEXEC)?;
    if header.e_machine != MACHINE || header.class != elf::file::Class::ELF64 || headers.len() > MOST_HEADERS {
        return Err(Errno::ENOEXEC);
    }
    let base = match header.e_type {
        abi::ET_EXEC => 0,
        abi::ET_DYN => DYNAMIC_BASE,
        _ => return Err(Errno::ENOEXEC),
    };
    let mut segments = Vec::new();
    segments.try_reserve(headers.len()).map_err(|_| Errno::ENOMEM)?;
    let (mut phdr, mut stack_executable) = (0, false);
    for h in headers.iter() {
        match h.p_type {
            // No loader to hand it to yet.
            abi::PT_INTERP => return Err(Errno::ENOEXEC),
            abi::PT_GNU_STACK => stack_executable = h.p_flags & abi::PF_X != 0,
            abi::PT_LOAD if h.p_memsz > 0 => {
                let start = base.checked_add(h.p_vaddr).ok_or(Errno::ENOEXEC)?;
                let segment = segment(&h, start, file.len() as u64, lowest, user_end).ok_or(Errno::ENOEXEC)?;
                if (h.p_offset..h.p_offset + h.p_filesz).contains(&header.e_phoff) {
                    phdr = start + (header.e_phoff - h.p_offset);
                }
                segments.push(segment);
            }
            _ => {}
        }
    }
    if segments.is_empty() || segments.windows(2).any(|pair| pair[0].start + pair[0].len > pair[1].start) {
        return Err(Errno::ENOEXEC);
    }
    let entry = base.checked_add(header.e_entry).filter(|entry| *entry < user_end).ok_or(Errno::ENOEXEC)?;
    let end = segments.last().map_or(0, |last| last.start + last.len);
    let (header_count, header_size) = (headers.len() as u64, u64::from(header.e_phentsize));
    Ok(Program { segments, entry, headers: phdr, header_count, header_size, end, stack_executable })
}

fn segment(h: &elf::segment::ProgramHeader, start: u64, file: u64, lowest: u64, user_end: u64) -> Option<Segment> {
    let end = start.checked_add(h.p_memsz).filter(|end| *end <= user_end)?;
    let data_end = h.p_offset.checked_add(h.p_filesz)?;
    if h.p_filesz > h.p_memsz || data_end > file || start % PAGE != h.p_offset % PAGE {
        return None;
    }
    let first = start & !(PAGE - 1);
    if first < lowest {
        return None;
    }
    let len = end.checked_next_multiple_of(PAGE)? - first;
    Some(Segment {
        start: first,
        len,
        data_start: start,
        file_offset: h.p_offset,
        data_len: h.p_filesz,
        read: h.p_flags & abi::PF_R != 0,
        write: h.p_flags & abi::PF_W != 0,
        execute: h.p_flags & abi::PF_X != 0,
    })
}
