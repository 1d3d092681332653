//! The initramfs: a cpio archive in the "newc" format, which the boot loader hands to the kernel.
//!
//! Each entry is a header of 110 bytes of text, the name with a NUL, and the contents, padded to
//! multiples of four bytes; the last entry has the name `TRAILER!!!`
//! (Linux: `Documentation/driver-api/early-userspace/buffer-format.rst`).

use super::inode::{Change, File, Inode};
use super::meta::{Device, FileCredentials, Kind, MODE, Time};
use super::names::{Namespace, View};
use crate::errno::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The length of a header.
const HEADER: usize = 110;
const MAGIC: &[u8] = b"070701";
/// The magic of headers with a checksum, which [`entries`] does not verify.
const MAGIC_SUM: &[u8] = b"070702";
const TRAILER: &[u8] = b"TRAILER!!!";

/// A file in the archive.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Entry<'a> {
    pub name: &'a [u8],
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// The inode number. Entries with the same number and more than one link are names of one file;
    /// the last of them has the contents.
    pub inode: u32,
    pub links: u32,
    pub modified: u32,
    pub special: Device,
    pub contents: &'a [u8],
}

/// An iterator over the entries of an archive. It ends after an error.
pub struct Entries<'a> {
    archive: &'a [u8],
    /// The offset of the next header; `None` at the end.
    at: Option<usize>,
}

/// Returns an iterator over the entries of an archive.
pub fn entries(archive: &[u8]) -> Entries<'_> {
    Entries { archive, at: Some(0) }
}

impl<'a> Entries<'a> {
    /// Returns `count` bytes from an offset on, or `None` beyond the end.
    fn bytes(&self, at: usize, count: usize) -> Option<&'a [u8]> {
        self.archive.get(at..at.checked_add(count)?)
    }

    /// Parses the entry at an offset. Returns it, and the offset of the next one.
    fn entry(&self, at: usize) -> Option<(Entry<'a>, usize)> {
        let header = self.bytes(at, HEADER)?;
        if !matches!(&header[..6], MAGIC | MAGIC_SUM) {
            return None;
        }
        let mut fields = [0; 13];
        for (field, digits) in fields.iter_mut().zip(header[6..].chunks(8)) {
            let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
            *field = u32::from_str_radix(core::str::from_utf8(digits).ok().filter(|_| is_hex)?, 16).ok()?;
        }
        let [inode, mode, uid, gid, links, modified, size, _, _, major, minor, name_size, _] = fields;
        let name = self.bytes(at + HEADER, name_size as usize)?.strip_suffix(&[0])?;
        // No system call can name a file with a NUL in its name.
        if name.contains(&0) {
            return None;
        }
        let from = (at + HEADER + name_size as usize).next_multiple_of(4);
        let contents = self.bytes(from, size as usize)?;
        let special = Device { major, minor };
        let entry = Entry { name, mode, uid, gid, inode, links, modified, special, contents };
        Some((entry, (from + size as usize).next_multiple_of(4)))
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, Errno>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at.take()?;
        match self.entry(at) {
            Some((entry, _)) if entry.name == TRAILER => None,
            Some((entry, next)) => {
                self.at = Some(next);
                Some(Ok(entry))
            }
            None => Some(Err(Errno::EINVAL)),
        }
    }
}

/// Creates the files of an archive below a root directory, which may have files already: a
/// directory stays as it is, also where a link leads to one, and any other file makes way for one
/// of the archive (Linux: `clean_path`).
///
/// # Errors
/// `EINVAL`: the bytes are not an archive in the "newc" format, or are truncated. The errors of
/// creating and removing files. The files created before the error remain.
pub fn unpack(archive: &[u8], root: &Arc<dyn Inode>) -> Result<(), Errno> {
    let (names, cred) = (Namespace::default(), FileCredentials::root());
    let view = View { names: &names, root, current: root, cred: &cred };
    let mut linked: Vec<(u32, Arc<dyn Inode>)> = Vec::new();
    for entry in entries(archive) {
        let entry = entry?;
        let path = entry.name.strip_prefix(b"./").unwrap_or(entry.name);
        let kind = Kind::of(entry.mode)?;
        let is_root = matches!(path, b"" | b"." | b"/");
        if !is_root && view.find(path, false)?.inode.is_some() {
            if kind == Kind::Directory && view.get(path, true).is_ok_and(|inode| inode.kind() == kind) {
                continue;
            }
            view.remove(path, false)?;
        }
        match linked.iter().find(|(number, _)| *number == entry.inode && entry.links > 1) {
            _ if is_root => {}
            Some((_, inode)) => view.link(inode, path)?,
            None => {
                let target = if kind == Kind::Link { entry.contents } else { &[] };
                view.make(path, kind, entry.mode & MODE, entry.special, target)?;
            }
        }
        let inode = view.get(if path.is_empty() { b"/" } else { path }, false)?;
        if kind == Kind::Regular {
            if entry.links > 1 {
                linked.try_reserve(1)?;
                linked.push((entry.inode, inode.clone()));
            }
            fill(&*inode.clone().open(0)?, entry.contents)?;
        }
        let modified = Some(Time { seconds: entry.modified.into(), nanoseconds: 0 });
        let (uid, gid) = (Some(entry.uid), Some(entry.gid));
        inode.change(&Change { mode: Some(entry.mode & MODE), uid, gid, modified, ..Change::default() })?;
    }
    Ok(())
}

/// Writes the contents of a new file.
fn fill(file: &dyn File, mut contents: &[u8]) -> Result<(), Errno> {
    let mut at = 0;
    while !contents.is_empty() {
        at += file.write(at, &mut contents)? as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::*;
    use crate::testing::Machine;
    use std::format;
    use std::vec;

    fn add(to: &mut vec::Vec<u8>, name: &str, mode: u32, number: u32, links: u32, contents: &[u8]) {
        let fields = [number, mode, 5, 6, links, 77, contents.len() as u32, 0, 0, 1, 3, name.len() as u32 + 1, 0];
        to.extend_from_slice(MAGIC);
        fields.iter().for_each(|field| to.extend_from_slice(format!("{field:08X}").as_bytes()));
        for bytes in [format!("{name}\0").as_bytes(), contents] {
            to.extend_from_slice(bytes);
            to.resize(to.len().next_multiple_of(4), 0);
        }
    }

    fn archive() -> vec::Vec<u8> {
        let mut archive = vec![];
        add(&mut archive, ".", 0o40755, 1, 2, b"");
        add(&mut archive, "bin", 0o40711, 2, 2, b"");
        add(&mut archive, "bin/a", 0o100755, 3, 2, b"");
        add(&mut archive, "bin/b", 0o100755, 3, 2, b"shared contents");
        add(&mut archive, "link", 0o120777, 4, 1, b"bin/a");
        add(&mut archive, "null", 0o20666, 5, 1, b"");
        add(&mut archive, "TRAILER!!!", 0, 0, 1, b"");
        archive
    }

    #[test]
    fn unpacked_files_have_their_contents_links_and_attributes() {
        let root: Arc<dyn Inode> = Tree::root(Arc::new(Machine), 1, 0o755);
        unpack(&archive(), &root).unwrap();
        let (names, cred) = (Namespace::default(), FileCredentials::root());
        let view = View { names: &names, root: &root, current: &root, cred: &cred };
        let file = view.get(b"/link", true).unwrap();
        let meta = file.meta();
        assert_eq!((meta.links, meta.uid, meta.gid, meta.mode, meta.size), (2, 5, 6, 0o755, 15));
        assert_eq!(meta.modified.seconds, 77);
        let mut bytes = [0; 20];
        assert_eq!(file.open(0).unwrap().read(0, &mut &mut bytes[..]), Ok(15));
        assert_eq!(&bytes[..15], b"shared contents");
        assert_eq!(view.get(b"null", false).unwrap().meta().special, Device { major: 1, minor: 3 });
        assert_eq!(view.get(b"bin", false).unwrap().meta().mode, 0o711);
    }

    /// Over files that exist, directories stay, also behind links, and other files are replaced.
    #[test]
    fn an_archive_is_unpacked_over_files() {
        let root: Arc<dyn Inode> = Tree::root(Arc::new(Machine), 1, 0o755);
        let (names, cred) = (Namespace::default(), FileCredentials::root());
        let view = View { names: &names, root: &root, current: &root, cred: &cred };
        view.make(b"/usr", Kind::Directory, 0o700, Device::default(), &[]).unwrap();
        view.make(b"/bin", Kind::Link, 0o777, Device::default(), b"usr").unwrap();
        view.make(b"/usr/a", Kind::Regular, 0o600, Device::default(), &[]).unwrap();
        view.make(b"/usr/kept", Kind::Regular, 0o600, Device::default(), &[]).unwrap();
        view.make(b"/link", Kind::Link, 0o777, Device::default(), b"nowhere").unwrap();
        for _ in 0..2 {
            unpack(&archive(), &root).unwrap();
            let found = [&b"/usr/a"[..], b"/usr/b", b"/usr/kept", b"/usr"].map(|path| view.get(path, false).unwrap());
            assert_eq!(
                found.map(|inode| (inode.meta().mode, inode.meta().size.min(16))),
                [(0o755, 15), (0o755, 15), (0o600, 0), (0o700, 16)]
            );
            assert_eq!(view.get(b"/bin", false).unwrap().kind(), Kind::Link);
            assert_eq!(view.get(b"/link", true).unwrap().meta().size, 15, "the archive's link");
        }
    }

    /// A truncated or corrupt archive yields an error or fewer files, and never a panic.
    #[test]
    fn corrupt_archives_cause_no_panic() {
        let archive = archive();
        for cut in 0..archive.len() - 124 {
            let result: Result<vec::Vec<_>, _> = entries(&archive[..cut]).collect();
            assert_eq!(result.err(), Some(Errno::EINVAL), "truncated at {cut}");
        }
        let mut random = oorandom::Rand32::new(3);
        for _ in 0..5_000 {
            let mut archive = archive.clone();
            for _ in 0..random.rand_range(1..4) {
                let at = random.rand_range(0..archive.len() as u32) as usize;
                archive[at] = b"0127f/.\0\xff"[random.rand_range(0..9) as usize];
            }
            let root: Arc<dyn Inode> = Tree::root(Arc::new(Machine), 1, 0o755);
            let _ = unpack(&archive, &root);
        }
    }
}
