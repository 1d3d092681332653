//! Reads and writes traces of memory accesses.
//!
//! `tools/trace` makes them; its README describes the format. A trace leaves out accesses that hit
//! every TLB of interest; [`super::filter`] reconstructs them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use integer_encoding::{VarIntReader, VarIntWriter};
use vellum_sim::Access;

/// The magic number of a trace.
const MAGIC: &[u8; 12] = b"VELLUM TRACE";
const VERSION: u8 = 1;
/// log2 of the page size in a trace.
pub const PAGE_SHIFT: u32 = 12;
/// The largest size of a filter.
pub const MOST: usize = 16;

/// log2 of the limit of addresses and lengths, which is that of five-level page tables. The sum of
/// two of them cannot overflow.
const ADDRESS_BITS: u32 = 57;
/// log2 of the limit of file offsets.
const OFFSET_BITS: u32 = 62;
/// log2 of the limit of page numbers, whose addresses fit 64 bits.
const PAGE_BITS: u32 = u64::BITS - PAGE_SHIFT;

const DIRTY: u64 = 3;
const VMA: u64 = 4;
const END: u64 = 5;

/// The reason why a trace can't be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file can't be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is not a trace.
    #[error("not a trace")]
    NoTrace,
    /// The trace is of another version of the format.
    #[error("the trace has version {0}, but only version {VERSION} is supported")]
    Version(u8),
    /// The header is damaged.
    #[error("the header is damaged")]
    Header,
    /// A record is damaged.
    #[error("record {0} is damaged")]
    Record(u64),
}

/// The header of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Pages in each of the filters for fetches and for data.
    pub filter: usize,
}

/// The number of all accesses, omitted ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Instructions.
    pub instructions: u64,
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
}

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// An access to a page that the filter doesn't hold; the page takes this slot.
    Access {
        /// The slot.
        slot: usize,
        /// The page number.
        page: u64,
        /// The kind of access.
        access: Access,
    },
    /// The first store to the page in this slot of the data filter. A load had put the page into
    /// the filter.
    Dirty {
        /// The slot.
        slot: usize,
    },
    /// A change of the mappings.
    Vma(Change),
    /// The end of the program.
    End(Totals),
}

/// A change of the mappings. Addresses and lengths are in bytes; files are numbers, 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Change {
    /// Mapped before the first instruction.
    Existing { at: u64, len: u64, rights: u64, file: u64, offset: u64 },
    /// `mmap`.
    Map { at: u64, len: u64, rights: u64, flags: u64, file: u64, offset: u64 },
    /// `munmap`.
    Unmap { at: u64, len: u64 },
    /// `mprotect`.
    Protect { at: u64, len: u64, rights: u64 },
    /// `brk`: the new end of the heap.
    Break { end: u64 },
    /// `mremap`.
    Remap { at: u64, len: u64, to: u64, to_len: u64 },
    /// `madvise`.
    Advise { at: u64, len: u64, advice: u64 },
}

/// A reader of a trace.
pub struct Reader<R> {
    from: R,
    header: Header,
    last: [u64; 2],
    records: u64,
}

impl Reader<Box<dyn Read>> {
    /// Opens a compressed trace.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        Self::decompress(BufReader::new(File::open(path)?))
    }

    /// Reads a compressed trace.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn decompress(from: impl BufRead + 'static) -> Result<Self, TraceError> {
        let plain: Box<dyn Read> = Box::new(zstd::Decoder::with_buffer(from)?);
        Reader::new(Box::new(BufReader::with_capacity(1 << 16, plain)))
    }
}

impl<R: Read> Reader<R> {
    /// Reads an uncompressed trace.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn new(mut from: R) -> Result<Self, TraceError> {
        let mut head = [0; 16];
        from.read_exact(&mut head).map_err(|_| TraceError::NoTrace)?;
        let (magic, [version, page_shift, filter, 0]) = head.split_at(12) else { return Err(TraceError::NoTrace) };
        match (magic == MAGIC, *version) {
            (false, _) => return Err(TraceError::NoTrace),
            (true, VERSION) => {}
            (true, other) => return Err(TraceError::Version(other)),
        }
        let filter = usize::from(*filter);
        if u32::from(*page_shift) != PAGE_SHIFT || filter == 0 || filter > MOST {
            return Err(TraceError::Header);
        }
        Ok(Reader { from, header: Header { filter }, last: [0; 2], records: 0 })
    }

    /// Returns the header.
    pub fn header(&self) -> Header {
        self.header
    }

    /// Returns the next record. A trace without [`Record::End`] is damaged.
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn next(&mut self) -> Result<Record, TraceError> {
        self.records += 1;
        let head = self.number()?;
        let rest = head >> 3;
        let slot = (rest & 15) as usize;
        let damaged = TraceError::Record(self.records);
        let record = match head & 7 {
            kind @ 0..DIRTY => {
                let access = [Access::Execute, Access::Read, Access::Write][kind as usize];
                let last = &mut self.last[usize::from(access != Access::Execute)];
                *last = last.wrapping_add(unfold(rest >> 4) as u64);
                Record::Access { slot, page: *last, access }
            }
            DIRTY => Record::Dirty { slot },
            VMA => Record::Vma(self.change(rest).map_err(|_| TraceError::Record(self.records))?),
            END => Record::End(Totals { instructions: self.number()?, loads: self.number()?, stores: self.number()? }),
            _ => return Err(damaged),
        };
        match record {
            Record::Access { slot, .. } | Record::Dirty { slot } if slot >= self.header.filter => Err(damaged),
            Record::Access { page, .. } if page >> PAGE_BITS != 0 => Err(damaged),
            record => Ok(record),
        }
    }

    fn change(&mut self, op: u64) -> Result<Change, TraceError> {
        let mut below = |bits| match self.number()? {
            number if bits < u64::BITS && number >> bits != 0 => Err(TraceError::Record(self.records)),
            number => Ok(number),
        };
        const A: u32 = ADDRESS_BITS;
        const ANY: u32 = u64::BITS;
        Ok(match op {
            0 => Change::Existing {
                at: below(A)?,
                len: below(A)?,
                rights: below(ANY)?,
                file: below(ANY)?,
                offset: below(OFFSET_BITS)?,
            },
            1 => Change::Map {
                at: below(A)?,
                len: below(A)?,
                rights: below(ANY)?,
                flags: below(ANY)?,
                file: below(ANY)?,
                offset: below(OFFSET_BITS)?,
            },
            2 => Change::Unmap { at: below(A)?, len: below(A)? },
            3 => Change::Protect { at: below(A)?, len: below(A)?, rights: below(ANY)? },
            4 => Change::Break { end: below(A)? },
            5 => Change::Remap { at: below(A)?, len: below(A)?, to: below(A)?, to_len: below(A)? },
            6 => Change::Advise { at: below(A)?, len: below(A)?, advice: below(ANY)? },
            _ => return Err(TraceError::Record(self.records)),
        })
    }

    fn number(&mut self) -> Result<u64, TraceError> {
        self.from.read_varint().map_err(|_| TraceError::Record(self.records))
    }
}

/// A writer of a trace.
pub struct Writer<W: Write> {
    to: W,
    last: [u64; 2],
}

impl<W: Write> Writer<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// Returns the error of `to`.
    pub fn new(mut to: W, header: Header) -> io::Result<Self> {
        to.write_all(MAGIC)?;
        to.write_all(&[VERSION, PAGE_SHIFT as u8, header.filter as u8, 0])?;
        Ok(Writer { to, last: [0; 2] })
    }

    /// Writes a record; [`Record::End`] is the last.
    ///
    /// # Errors
    /// Returns the error of `to`.
    pub fn put(&mut self, record: Record) -> io::Result<()> {
        match record {
            Record::Access { slot, page, access } => {
                let kind = match access {
                    Access::Execute => 0,
                    Access::Read => 1,
                    Access::Write => 2,
                };
                let last = &mut self.last[usize::from(access != Access::Execute)];
                let step = page.wrapping_sub(*last) as i64;
                *last = page;
                self.numbers(&[kind | (slot as u64) << 3 | fold(step) << 7])
            }
            Record::Dirty { slot } => self.numbers(&[DIRTY | (slot as u64) << 3]),
            Record::Vma(change) => {
                let op = |n: u64| VMA | n << 3;
                match change {
                    Change::Existing { at, len, rights, file, offset } => {
                        self.numbers(&[op(0), at, len, rights, file, offset])
                    }
                    Change::Map { at, len, rights, flags, file, offset } => {
                        self.numbers(&[op(1), at, len, rights, flags, file, offset])
                    }
                    Change::Unmap { at, len } => self.numbers(&[op(2), at, len]),
                    Change::Protect { at, len, rights } => self.numbers(&[op(3), at, len, rights]),
                    Change::Break { end } => self.numbers(&[op(4), end]),
                    Change::Remap { at, len, to, to_len } => self.numbers(&[op(5), at, len, to, to_len]),
                    Change::Advise { at, len, advice } => self.numbers(&[op(6), at, len, advice]),
                }
            }
            Record::End(Totals { instructions, loads, stores }) => self.numbers(&[END, instructions, loads, stores]),
        }
    }

    /// Returns the output.
    pub fn into_inner(self) -> W {
        self.to
    }

    fn numbers(&mut self, numbers: &[u64]) -> io::Result<()> {
        numbers.iter().try_for_each(|number| self.to.write_varint(*number).map(drop))
    }
}

/// Encodes a signed step as zigzag, so that small steps are small numbers.
fn fold(step: i64) -> u64 {
    (step << 1 ^ step >> 63) as u64
}

fn unfold(folded: u64) -> i64 {
    (folded >> 1) as i64 ^ -((folded & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header { filter: 2 };

    fn all() -> Vec<Record> {
        let access = |slot, page, access| Record::Access { slot, page, access };
        let changes = [
            Change::Existing { at: 1 << 46, len: 0x2000, rights: 3, file: 0, offset: 0 },
            Change::Map { at: 0x1000, len: 0x3000, rights: 5, flags: 0x12, file: 2, offset: 0x1000 },
            Change::Unmap { at: 0x1000, len: 0x1000 },
            Change::Protect { at: 0x1000, len: 0x1000, rights: 0 },
            Change::Break { end: 0x7000 },
            Change::Remap { at: 0x1000, len: 1, to: 0x9000, to_len: 2 },
            Change::Advise { at: 0x1000, len: 1, advice: 4 },
        ];
        let accesses = [
            access(0, (1 << 47) - 1, Access::Execute),
            access(1, 0, Access::Execute),
            access(1, 1 << 35, Access::Read),
            access(0, 3, Access::Write),
            Record::Dirty { slot: 1 },
        ];
        let end = Record::End(Totals { instructions: u64::MAX, loads: 0, stores: 127 });
        changes.map(Record::Vma).into_iter().chain(accesses).chain([end]).collect()
    }

    fn written(records: &[Record]) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), HEADER).unwrap();
        records.iter().for_each(|record| writer.put(*record).unwrap());
        writer.into_inner()
    }

    #[test]
    fn written_records_are_read_back() {
        let bytes = zstd::encode_all(&written(&all())[..], 1).unwrap();
        let mut reader = Reader::decompress(std::io::Cursor::new(bytes)).unwrap();
        assert_eq!(reader.header(), HEADER);
        for record in all() {
            assert_eq!(reader.next().unwrap(), record);
        }
    }

    /// The format of `tools/trace`: a change needs a new version.
    #[test]
    fn the_format_is_stable() {
        let records = [
            Record::Vma(Change::Break { end: 0x81 }),
            Record::Access { slot: 1, page: 1, access: Access::Execute },
            Record::Access { slot: 0, page: 2, access: Access::Write },
            Record::Access { slot: 1, page: 1, access: Access::Read },
            Record::Dirty { slot: 1 },
            Record::End(Totals { instructions: 1, loads: 1, stores: 2 }),
        ];
        let expected = [
            b"VELLUM TRACE\x01\x0c\x02\0".as_slice(),
            &[0x24, 0x81, 0x01, 0x88, 0x02, 0x82, 0x04, 0x89, 0x01, 0x0b, 0x05, 1, 1, 2],
        ];
        assert_eq!(written(&records), expected.concat());
    }

    #[test]
    fn truncated_and_damaged_traces_are_errors() {
        let whole = written(&all());
        let read = |bytes: &[u8]| {
            let mut reader = Reader::new(bytes)?;
            loop {
                if let Record::End(totals) = reader.next()? {
                    return Ok::<_, TraceError>(totals);
                }
            }
        };
        assert!(read(&whole).is_ok());
        for end in 0..whole.len() {
            assert!(read(&whole[..end]).is_err(), "cut off at {end}");
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            read(&bytes)
        };
        assert!(matches!(with(0, b'v'), Err(TraceError::NoTrace)));
        assert!(matches!(with(12, 2), Err(TraceError::Version(2))));
        assert!(matches!(with(14, 0), Err(TraceError::Header)));
        assert!(matches!(with(14, 1), Err(TraceError::Record(_))), "a slot beyond the filter");
        assert!(matches!(with(16, 7), Err(TraceError::Record(1))), "an unknown kind of record");
        let one = |record| read(&written(&[record, Record::End(Totals::default())]));
        for change in [
            Change::Unmap { at: 1 << 57, len: 1 },
            Change::Unmap { at: 0, len: u64::MAX },
            Change::Break { end: u64::MAX },
            Change::Map { at: 0, len: 1, rights: 0, flags: 0, file: 1, offset: 1 << 62 },
        ] {
            assert!(matches!(one(Record::Vma(change)), Err(TraceError::Record(1))), "{change:?}");
        }
        let beyond = Record::Access { slot: 0, page: 1 << 52, access: Access::Read };
        assert!(matches!(one(beyond), Err(TraceError::Record(1))));
    }
}
