//! Where the members of the kernel's structures are, as it says itself (BTF,
//! `Documentation/bpf/btf.rst`).

use std::collections::BTreeSet;
use std::fs;

use btfparse::{Error, ErrorKind, Member, Offset, Readable, TypeInformation, TypeVariant};

use super::Refused;

/// The most types that are looked at for one member, one inside the other at worst. Linux has less
/// than a tenth.
const MOST_TYPES: usize = 1000;

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
        let offset = |name: &'static str, member: &'static str| {
            let found = types.id_of(name).and_then(|id| offset_of(&types, id, member, &mut BTreeSet::new()));
            found.map(u64::from).ok_or_else(|| Refused::NoTypes(format!("there is no {name}.{member}")))
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

/// Returns where in a structure the member of a name is: its own, or one of a structure in it
/// without a name. No type is looked at twice (`seen`): a type that is damaged may be a part of
/// itself, which `TypeInformation::offset_of` follows for ever.
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

/// Types in memory, where they are read fastest.
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

    fn layout(name: &str) -> Result<Layout, Refused> {
        let path = format!("{}/../../fuzz/corpus/btf/{name}", env!("CARGO_MANIFEST_DIR"));
        Layout::of(fs::read(path).unwrap())
    }

    /// As of `mm_struct`, which has nearly all of its members in a structure without a name.
    #[test]
    fn members_of_members_without_a_name_are_found() {
        let plain = layout("vmlinux").unwrap();
        assert_eq!((plain.files, plain.root, plain.counted), (8, 8, 16));
        let inner = layout("members-without-a-name").unwrap();
        assert_eq!((inner.files, inner.root, inner.counted), (8, 8, 16));
    }
}
