//! Reads the offsets of kernel structure members from BTF (`Documentation/bpf/btf.rst`).

use std::collections::BTreeSet;
use std::fs;

use btfparse::{Error, ErrorKind, Member, Offset, Readable, TypeInformation, TypeVariant};

use super::WalkerError;

/// The most types that the search for one member visits. Linux needs less than a tenth.
const MOST_TYPES: usize = 1000;

/// Member offsets in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct StructOffsets {
    /// `task_struct.files`.
    pub(super) files: u64,
    /// `files_struct.fdt`.
    pub(super) table: u64,
    /// `fdtable.fd`, the array of files by number.
    pub(super) array: u64,
    /// `file.private_data`: for `/proc/PID/pagemap`, the `mm_struct`.
    pub(super) private: u64,
    /// `mm_struct.pgd`, the root page table.
    pub(super) root: u64,
    /// `mm_struct.pgtables_bytes`: the bytes of all page tables but the root.
    pub(super) counted: u64,
}

impl StructOffsets {
    /// Reads the offsets of the running kernel.
    pub(super) fn read() -> Result<Self, WalkerError> {
        Self::of(fs::read("/sys/kernel/btf/vmlinux").map_err(|error| WalkerError::NoTypes(error.to_string()))?)
    }

    /// Returns the offsets that this BTF describes.
    pub(super) fn of(bytes: Vec<u8>) -> Result<Self, WalkerError> {
        let types = TypeInformation::new(&Bytes(bytes)).map_err(|error| WalkerError::NoTypes(format!("{error:?}")))?;
        let offset = |name: &'static str, member: &'static str| {
            let found = types.id_of(name).and_then(|id| offset_of(&types, id, member, &mut BTreeSet::new()));
            found.map(u64::from).ok_or_else(|| WalkerError::NoTypes(format!("{name}.{member} is missing")))
        };
        Ok(StructOffsets {
            files: offset("task_struct", "files")?,
            table: offset("files_struct", "fdt")?,
            array: offset("fdtable", "fd")?,
            private: offset("file", "private_data")?,
            root: offset("mm_struct", "pgd")?,
            counted: offset("mm_struct", "pgtables_bytes")?,
        })
    }
}

/// Returns the offset of the member `name` of a structure: its own, or one of an anonymous
/// structure in it. No type is visited twice (`seen`), because a damaged type may contain itself.
/// `TypeInformation::offset_of` would never return for such a type.
fn offset_of(types: &TypeInformation, id: u32, name: &str, seen: &mut BTreeSet<u32>) -> Option<u32> {
    if !seen.insert(id) || seen.len() > MOST_TYPES {
        return None;
    }
    let members = match types.get().get(&id)? {
        TypeVariant::Struct(all) => all.member_list(),
        TypeVariant::Union(all) => all.member_list(),
        TypeVariant::Const(one) => return offset_of(types, *one.tid(), name, seen),
        TypeVariant::Volatile(one) => return offset_of(types, *one.tid(), name, seen),
        _ => return None,
    };
    let place = |member: &Member| if let Offset::ByteOffset(offset) = member.offset() { Some(offset) } else { None };
    if let Some(member) = members.iter().find(|member| member.name().as_deref() == Some(name)) {
        return place(member);
    }
    members.iter().filter(|member| member.name().is_none()).find_map(|member| {
        let inside = offset_of(types, member.tid(), name, seen)?;
        place(member)?.checked_add(inside)
    })
}

/// BTF in memory.
struct Bytes(Vec<u8>);

impl Readable for Bytes {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> btfparse::Result<()> {
        let from = self.0.get(offset as usize..).and_then(|rest| rest.get(..buffer.len()));
        from.map(|bytes| buffer.copy_from_slice(bytes)).ok_or_else(|| Error::new(ErrorKind::IOError, "it ends early"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(name: &str) -> Result<StructOffsets, WalkerError> {
        let path = format!("{}/../../fuzz/corpus/btf/{name}", env!("CARGO_MANIFEST_DIR"));
        StructOffsets::of(fs::read(path).unwrap())
    }

    /// `mm_struct` has nearly all its members in an anonymous structure.
    #[test]
    fn members_of_anonymous_structures_are_found() {
        let plain = layout("vmlinux").unwrap();
        assert_eq!((plain.files, plain.root, plain.counted), (8, 8, 16));
        let inner = layout("members-without-a-name").unwrap();
        assert_eq!((inner.files, inner.root, inner.counted), (8, 8, 16));
    }
}
