//! Where the members of the kernel's structures are, as it says itself (BTF, `Documentation/bpf/btf.rst`).

use std::fs;

use btfparse::{Error, ErrorKind, Offset, Readable, TypeInformation};

use super::Refused;

/// Bytes from the beginning of a structure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// `task_struct`: its files.
    pub(super) files: u64,
    /// `files_struct`: their table.
    pub(super) table: u64,
    /// `fdtable`: an array of them, by number.
    pub(super) array: u64,
    /// `file`: what it is a file of. Of `/proc/PID/pagemap`, it is the address space (`mm_struct`).
    pub(super) private: u64,
    /// `mm_struct`: its highest table.
    pub(super) root: u64,
    /// `mm_struct`: bytes of its tables but that one, as Linux counts them.
    pub(super) counted: u64,
}

impl Layout {
    /// That of the running kernel.
    pub(super) fn read() -> Result<Self, Refused> {
        Self::of(fs::read("/sys/kernel/btf/vmlinux").map_err(|error| Refused::NoTypes(error.to_string()))?)
    }

    /// That of a kernel whose types are these.
    pub(super) fn of(bytes: Vec<u8>) -> Result<Self, Refused> {
        let types = TypeInformation::new(&Bytes(bytes)).map_err(|error| Refused::NoTypes(format!("{error:?}")))?;
        let offset =
            |name: &'static str, member: &'static str| match types.id_of(name).map(|id| types.offset_of(id, member)) {
                Some(Ok((_, Offset::ByteOffset(offset)))) => Ok(offset.into()),
                _ => Err(Refused::NoTypes(format!("there is no {name}.{member}"))),
            };
        Ok(Layout {
            files: offset("task_struct", "files")?,
            table: offset("files_struct", "fdt")?,
            array: offset("fdtable", "fd")?,
            private: offset("file", "private_data")?,
            root: offset("mm_struct", "pgd")?,
            counted: offset("mm_struct", "pgtables_bytes")?,
        })
    }
}

/// Types in memory, where they are read fastest.
struct Bytes(Vec<u8>);

impl Readable for Bytes {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> btfparse::Result<()> {
        let from = self.0.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
        from.map(|bytes| buffer.copy_from_slice(bytes)).ok_or_else(|| Error::new(ErrorKind::IOError, "it ends early"))
    }
}
