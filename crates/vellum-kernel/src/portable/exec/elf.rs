//! From an ELF file to a [`Plan`]: the mappings that the kernel makes, in order.
//!
//! The file is read in two steps, because the program header table may be anywhere in it:
//! [`header`] finds the table, and [`plan`] checks it. A plan is consistent whatever the file
//! contains: it lies within the given limits, its mappings are whole pages in ascending order, and
//! the file has all bytes that they map.

use crate::errno::Errno;
use alloc::vec::Vec;
use core::ops::Range;
use elf::abi;
use elf::endian::LittleEndian;
use elf::file::{Class, FileHeader, parse_ident};
use elf::segment::{ProgramHeader, SegmentTable};

/// The number of bytes at the start of a file that [`header`] needs.
pub const HEADER_SIZE: usize = 64;
/// The size in bytes of a program header.
pub const PHDR_SIZE: u64 = 56;
/// The largest program header table in bytes, as in Linux.
const MAX_PHDRS_SIZE: u64 = 65536;
/// The longest path of an interpreter, with its NUL.
const MAX_PATH: u64 = 4096;

/// The part of the ELF header that the kernel uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// True if the program can be loaded at any base (`ET_DYN`), to which its addresses are
    /// relative.
    pub relocatable: bool,
    entry: u64,
    /// The range of the program header table in the file; [`plan`] takes its bytes.
    pub phdrs: Range<u64>,
}

/// The initial contents of a mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Zeros.
    Zero,
    /// A private mapping of the file from `offset`.
    File {
        /// The offset in the file, a multiple of the page size.
        offset: u64,
        /// The addresses in the last page that the kernel overwrites with zeros; may be empty.
        clear: Range<u64>,
    },
}

/// The access rights of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Rights {
    pub read: bool,
    pub write: bool,
    pub execute: bool,
}

/// A mapping of a [`Plan`]. Where it overlaps an earlier mapping of the plan, it replaces that
/// one's pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The addresses: whole pages, relative to the base of a relocatable program.
    pub range: Range<u64>,
    /// The access rights.
    pub rights: Rights,
    /// The initial contents.
    pub contents: Contents,
}

/// The way to load a program. Addresses are relative to the base of a relocatable program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// True if the kernel chooses a base, a multiple of `align`, and adds it to all addresses.
    pub relocatable: bool,
    /// The largest alignment of a segment: a power of two, at least a page.
    pub align: u64,
    /// The range from the first mapping's start to the last one's end.
    pub span: Range<u64>,
    /// The mappings, in the order in which to make them.
    pub mappings: Vec<Mapping>,
    /// The entry point, within `span`.
    pub entry: u64,
    /// The address of the program header table (`AT_PHDR`), if it is mapped.
    pub phdr_addr: Option<u64>,
    /// The number of program headers (`AT_PHNUM`).
    pub phnum: u64,
    /// The end of the program's data, not rounded: the heap (`brk`) begins there.
    pub data_end: u64,
    /// True if the program asks for an executable stack.
    pub executable_stack: bool,
    /// The range in the file of the interpreter's path, with its NUL, if the program has an
    /// interpreter.
    pub interpreter: Option<Range<u64>>,
}

/// The limits that a [`Plan`] must keep.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The usable addresses: whole pages.
    pub addresses: Range<u64>,
    /// The page size in bytes, a power of two.
    pub page_size: u64,
    /// ELF's number of the machine, such as [`elf::abi::EM_X86_64`].
    pub machine: u16,
}

/// Checks the ELF header. `first` is the start of the file: at least [`HEADER_SIZE`] bytes, unless
/// the file has fewer.
///
/// # Errors
/// `ENOEXEC`: the file is not a 64-bit program for `machine`.
pub fn header(first: &[u8], machine: u16) -> Result<Header, Errno> {
    let first = first.get(..HEADER_SIZE).ok_or(Errno::ENOEXEC)?;
    let ident = parse_ident::<LittleEndian>(first).map_err(|_| Errno::ENOEXEC)?;
    let header = FileHeader::parse_tail(ident, &first[abi::EI_NIDENT..]).map_err(|_| Errno::ENOEXEC)?;
    let relocatable = match header.e_type {
        abi::ET_EXEC => false,
        abi::ET_DYN => true,
        _ => return Err(Errno::ENOEXEC),
    };
    let bytes = u64::from(header.e_phnum) * PHDR_SIZE;
    let fits = header.class == Class::ELF64
        && header.e_machine == machine
        && u64::from(header.e_phentsize) == PHDR_SIZE
        && (1..=MAX_PHDRS_SIZE).contains(&bytes);
    let end = header.e_phoff.checked_add(bytes).filter(|_| fits).ok_or(Errno::ENOEXEC)?;
    Ok(Header { relocatable, entry: header.e_entry, phdrs: header.e_phoff..end })
}

/// Checks the program header table and plans the mappings. `table` is what the file has at
/// [`Header::phdrs`].
///
/// # Errors
/// `ENOEXEC`: the program is malformed, exceeds the limits, or maps bytes that the file does not
/// have. `ENOMEM`: the kernel's heap is exhausted.
pub fn plan(header: &Header, table: &[u8], file_size: u64, limits: &Limits) -> Result<Plan, Errno> {
    if table.len() as u64 != header.phdrs.end - header.phdrs.start || header.phdrs.end > file_size {
        return Err(Errno::ENOEXEC);
    }
    let page = limits.page_size;
    let mut plan = Plan {
        relocatable: header.relocatable,
        align: page,
        span: 0..0,
        mappings: Vec::new(),
        entry: header.entry,
        phdr_addr: None,
        phnum: table.len() as u64 / PHDR_SIZE,
        data_end: 0,
        executable_stack: false,
        interpreter: None,
    };
    for segment in SegmentTable::new(LittleEndian, Class::ELF64, table).iter() {
        match segment.p_type {
            abi::PT_LOAD => plan.add_segment(&segment, header, file_size, limits)?,
            abi::PT_GNU_STACK => plan.executable_stack = segment.p_flags & abi::PF_X != 0,
            abi::PT_INTERP if plan.interpreter.is_none() => {
                let end = segment.p_offset.checked_add(segment.p_filesz).filter(|&end| end <= file_size);
                if !(2..=MAX_PATH).contains(&segment.p_filesz) {
                    return Err(Errno::ENOEXEC);
                }
                plan.interpreter = Some(segment.p_offset..end.ok_or(Errno::ENOEXEC)?);
            }
            _ => {}
        }
    }
    let (Some(first), Some(last)) = (plan.mappings.first(), plan.mappings.last()) else { return Err(Errno::ENOEXEC) };
    plan.span = first.range.start..last.range.end;
    if !plan.span.contains(&plan.entry) {
        return Err(Errno::ENOEXEC);
    }
    Ok(plan)
}

impl Plan {
    /// Plans a segment, which must lie above all segments before it.
    fn add_segment(
        &mut self,
        segment: &ProgramHeader,
        header: &Header,
        file_size: u64,
        limits: &Limits,
    ) -> Result<(), Errno> {
        let bad = Errno::ENOEXEC;
        let page = limits.page_size;
        let lowest = if self.relocatable { 0 } else { limits.addresses.start };
        let start = segment.p_vaddr;
        let end = start.checked_add(segment.p_memsz).ok_or(bad)?;
        let from_file = segment.p_offset.checked_add(segment.p_filesz).ok_or(bad)?;
        let valid = start >= lowest.max(self.data_end)
            && end <= limits.addresses.end
            && segment.p_filesz <= segment.p_memsz
            && from_file <= file_size
            && (segment.p_filesz == 0 || start % page == segment.p_offset % page);
        if !valid {
            return Err(bad);
        }
        if segment.p_memsz == 0 {
            return Ok(());
        }
        if segment.p_align.is_power_of_two() && segment.p_align <= limits.addresses.end {
            self.align = self.align.max(segment.p_align);
        }
        // Nothing overflows: no end, rounded up or not, exceeds `limits.addresses.end`, which is
        // page-aligned.
        let file_end = start + segment.p_filesz;
        let first_page = start & !(page - 1);
        let file_pages = if segment.p_filesz == 0 { first_page } else { file_end.next_multiple_of(page) };
        let pages = end.next_multiple_of(page);
        let flag = |flag| segment.p_flags & flag != 0;
        let rights = Rights { read: flag(abi::PF_R), write: flag(abi::PF_W), execute: flag(abi::PF_X) };
        self.mappings.try_reserve(2)?;
        if file_pages > first_page {
            // Linux does not zero the rest of a page that the program cannot write to.
            let clear = if rights.write { file_end..file_pages } else { file_pages..file_pages };
            let offset = segment.p_offset & !(page - 1);
            let contents = Contents::File { offset, clear };
            self.mappings.push(Mapping { range: first_page..file_pages, rights, contents });
        }
        if pages > file_pages {
            self.mappings.push(Mapping { range: file_pages..pages, rights, contents: Contents::Zero });
        }
        if self.phdr_addr.is_none() && (segment.p_offset..from_file).contains(&header.phdrs.start) {
            self.phdr_addr = Some(start + (header.phdrs.start - segment.p_offset));
        }
        self.data_end = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    const LIMITS: Limits = Limits { addresses: 0x1_0000..0x7fff_ffff_f000, page_size: 4096, machine: abi::EM_X86_64 };

    #[derive(Clone, Copy, Default)]
    struct Segment {
        kind: u32,
        flags: u32,
        offset: u64,
        address: u64,
        in_file: u64,
        in_memory: u64,
        align: u64,
    }

    const TEXT: Segment = Segment {
        kind: abi::PT_LOAD,
        flags: abi::PF_R | abi::PF_X,
        offset: 0,
        address: 0x40_0000,
        in_file: 0x1234,
        in_memory: 0x1234,
        align: 0x1000,
    };
    const DATA: Segment = Segment {
        kind: abi::PT_LOAD,
        flags: abi::PF_R | abi::PF_W,
        offset: 0x1234,
        address: 0x40_2234,
        in_file: 0x100,
        in_memory: 0x5000,
        align: 0x1000,
    };

    fn file(kind: u16, entry: u64, segments: &[Segment]) -> vec::Vec<u8> {
        let mut file = vec![0; 0x2000];
        let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"\x7fELF\x02\x01\x01");
        put(16, &kind.to_le_bytes());
        put(18, &abi::EM_X86_64.to_le_bytes());
        put(20, &1u32.to_le_bytes());
        put(24, &entry.to_le_bytes());
        put(32, &64u64.to_le_bytes());
        put(52, &64u16.to_le_bytes());
        put(54, &56u16.to_le_bytes());
        put(56, &(segments.len() as u16).to_le_bytes());
        for (index, segment) in segments.iter().enumerate() {
            let at = 64 + index * 56;
            put(at, &segment.kind.to_le_bytes());
            put(at + 4, &segment.flags.to_le_bytes());
            let words = [segment.offset, segment.address, 0, segment.in_file, segment.in_memory, segment.align];
            words.iter().enumerate().for_each(|(n, word)| put(at + 8 + n * 8, &word.to_le_bytes()));
        }
        file
    }

    fn plan_of(file: &[u8]) -> Result<Plan, Errno> {
        let header = header(file, LIMITS.machine)?;
        let table = file.get(header.phdrs.start as usize..header.phdrs.end as usize).ok_or(Errno::ENOEXEC)?;
        plan(&header, table, file.len() as u64, &LIMITS)
    }

    #[test]
    fn a_static_program_is_planned() {
        let plan = plan_of(&file(abi::ET_EXEC, 0x40_1000, &[TEXT, DATA])).unwrap();
        let code = Rights { read: true, write: false, execute: true };
        let data = Rights { read: true, write: true, execute: false };
        let expected = [
            Mapping {
                range: 0x40_0000..0x40_2000,
                rights: code,
                contents: Contents::File { offset: 0, clear: 0x40_2000..0x40_2000 },
            },
            Mapping {
                range: 0x40_2000..0x40_3000,
                rights: data,
                contents: Contents::File { offset: 0x1000, clear: 0x40_2334..0x40_3000 },
            },
            Mapping { range: 0x40_3000..0x40_8000, rights: data, contents: Contents::Zero },
        ];
        assert_eq!(plan.mappings, expected);
        assert_eq!((plan.data_end, plan.span), (0x40_7234, 0x40_0000..0x40_8000));
        assert_eq!((plan.phdr_addr, plan.phnum), (Some(0x40_0040), 2));
        assert!(!plan.relocatable && !plan.executable_stack && plan.interpreter.is_none());
    }

    #[test]
    fn malformed_programs_are_refused() {
        let good = file(abi::ET_EXEC, 0x40_1000, &[TEXT, DATA]);
        let refuse = |reason: &str, segments: &[Segment]| {
            assert_eq!(plan_of(&file(abi::ET_EXEC, 0x40_1000, segments)), Err(Errno::ENOEXEC), "{reason}");
        };
        refuse("no segments", &[]);
        refuse("no PT_LOAD", &[Segment { kind: abi::PT_NOTE, ..TEXT }]);
        refuse("descending", &[DATA, TEXT]);
        refuse("overlap", &[TEXT, Segment { address: 0x40_1233, offset: 0x233, ..DATA }]);
        refuse("more in the file than in memory", &[TEXT, Segment { in_memory: 0xff, ..DATA }]);
        refuse("beyond the file", &[TEXT, Segment { in_file: 0x1000, ..DATA }]);
        refuse("misaligned", &[TEXT, Segment { address: 0x40_3000, ..DATA }]);
        refuse("below the lowest address", &[Segment { address: 0x1000, ..TEXT }]);
        refuse("beyond the last", &[TEXT, Segment { in_memory: 0x7fff_ffff_f000, ..DATA }]);
        refuse("address overflow", &[TEXT, Segment { in_memory: u64::MAX, ..DATA }]);
        refuse("offset overflow", &[TEXT, Segment { offset: u64::MAX - 0xdcb, ..DATA }]);
        assert_eq!(plan_of(&file(abi::ET_EXEC, 0x3f_ffff, &[TEXT])), Err(Errno::ENOEXEC), "entry");
        assert_eq!(plan_of(&file(abi::ET_REL, 0x40_1000, &[TEXT])), Err(Errno::ENOEXEC), "object file");
        for cut in [0, 3, 63, 64, 100, 0x1233] {
            assert_eq!(plan_of(&good[..cut]), Err(Errno::ENOEXEC), "cut at {cut}");
        }
    }

    /// The test's own executable: a relocatable program from the system's linker, with an
    /// interpreter.
    #[test]
    fn a_linked_program_is_planned_as_linux_loaded_it() {
        let file = std::fs::read("/proc/self/exe").unwrap();
        let plan = plan_of(&file).unwrap();
        assert!(plan.relocatable && !plan.executable_stack);
        let path = plan.interpreter.unwrap();
        assert!(file[path.start as usize..path.end as usize].starts_with(b"/lib"));
        // Its program headers lie at the base plus the plan's address.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let base = u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap();
        let at = plan.phdr_addr.unwrap() + base;
        let auxv = std::fs::read("/proc/self/auxv").unwrap();
        let find = |key: u64| {
            let words: vec::Vec<u64> =
                auxv.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            words.chunks(2).find(|pair| pair[0] == key).unwrap()[1]
        };
        assert_eq!((find(3), find(5), find(9)), (at, plan.phnum, base + plan.entry));
    }

    /// For arbitrary bytes `plan_of` returns, and a plan is consistent.
    #[test]
    fn mutated_files_yield_consistent_plans_or_errors() {
        let mut random = oorandom::Rand64::new(0x5eed);
        let stack = Segment { kind: abi::PT_GNU_STACK, flags: abi::PF_X, ..Segment::default() };
        let path = Segment { kind: abi::PT_INTERP, offset: 0x300, in_file: 16, ..Segment::default() };
        let seeds =
            [file(abi::ET_EXEC, 0x40_1000, &[TEXT, DATA, stack]), file(abi::ET_DYN, 0x40_1000, &[path, TEXT, DATA])];
        let mut good = 0;
        for round in 0..300_000 {
            let mut file = seeds[round % 2].clone();
            for _ in 0..random.rand_range(1..5) {
                // Most mutations hit the headers: whole words near a limit, and single bytes.
                let at = random.rand_range(0..64 + 3 * 56) as usize;
                let near = [0, 1, 0xfff, 0x1000, 0x7fff_ffff_f000, 1 << 63, u64::MAX, 0x40_2000];
                if random.rand_range(0..2) == 0 {
                    let word = near[random.rand_range(0..8) as usize].wrapping_sub(random.rand_range(0..2));
                    file[at & !7..][..8].copy_from_slice(&word.to_le_bytes());
                } else {
                    file[at] = random.rand_u64() as u8;
                }
            }
            if random.rand_range(0..8) == 0 {
                file.truncate(random.rand_range(0..0x2000) as usize);
            }
            let Ok(plan) = plan_of(&file) else { continue };
            good += 1;
            assert!(plan.span.contains(&plan.entry) && plan.align.is_power_of_two());
            let lowest = if plan.relocatable { 0 } else { LIMITS.addresses.start };
            let mut starts = lowest;
            for mapping in &plan.mappings {
                assert!(mapping.range.start >= starts && mapping.range.start < mapping.range.end);
                assert!(mapping.range.end <= LIMITS.addresses.end);
                assert!(mapping.range.start % 4096 == 0 && mapping.range.end % 4096 == 0);
                starts = mapping.range.start;
                if let Contents::File { offset, clear } = &mapping.contents {
                    assert!(offset % 4096 == 0 && clear.end == mapping.range.end);
                    assert!(clear.start > mapping.range.end - 4096);
                    // The last page has bytes of the file.
                    assert!(offset + (mapping.range.end - mapping.range.start) - 4096 < file.len() as u64);
                }
            }
            if let Some(path) = plan.interpreter {
                assert!(path.end <= file.len() as u64 && path.end - path.start <= MAX_PATH);
            }
        }
        assert!(good > 1000, "the mutations are too coarse: {good}");
    }
}
