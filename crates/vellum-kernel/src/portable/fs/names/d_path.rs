//! From an inode back to its path (Linux: `d_path`): for `getcwd`, `/proc/PID/maps` and the links
//! in `/proc/PID`.

use super::{Found, Namespace, same_inode};
use crate::fs::inode::Inode;
use crate::fs::meta::{Device, Kind, Meta};
use crate::fs::open::{Name, Open};
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

/// The name of a file that a VMA maps. It holds weak references only, so that it does not keep the
/// inode alive.
#[derive(Clone)]
pub struct MappedFile {
    /// The file system's device.
    pub device: Device,
    /// The inode's number.
    pub inode: u64,
    name: MappedName,
}

/// The kinds of names of a mapped file.
#[derive(Clone)]
enum MappedName {
    /// An entry of a directory.
    Entry(Weak<dyn Inode>, Arc<[u8]>),
    /// Text that `/proc` shows for a file without an entry.
    Fixed(Arc<[u8]>),
    /// The file has no name.
    None,
}

impl MappedFile {
    /// Returns the name by which a file was opened.
    pub fn from_open(open: &Open) -> MappedFile {
        let meta = open.inode().meta();
        let name = match open.name() {
            Some(Name::Entry { directory, name }) => MappedName::Entry(Arc::downgrade(directory), name.clone()),
            Some(Name::Shown(shown)) => MappedName::Fixed(shown.clone()),
            None => MappedName::None,
        };
        MappedFile { device: meta.device, inode: meta.inode, name }
    }

    fn is_inode(&self, meta: &Meta) -> bool {
        (meta.device, meta.inode) == (self.device, self.inode)
    }

    /// Returns the name by which a lookup found an inode, or `None` if it found none.
    pub fn from_lookup(found: &Found<'_>) -> Option<MappedFile> {
        let meta = found.inode.as_ref()?.meta();
        let name = MappedName::Entry(Arc::downgrade(&found.parent), (&*found.name).into());
        Some(MappedFile { device: meta.device, inode: meta.inode, name })
    }

    /// Returns a name that `/proc` shows as it is, for memory that no directory entry names.
    pub fn with_fixed_name(device: Device, inode: u64, shown: Arc<[u8]>) -> MappedFile {
        MappedFile { device, inode, name: MappedName::Fixed(shown) }
    }
}

impl Namespace {
    /// Returns the absolute path of a directory as seen from `root`, or `None` if the directory is
    /// not below it, or was removed.
    pub fn path_of(&self, inode: &Arc<dyn Inode>, root: &Arc<dyn Inode>) -> Option<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = inode.clone();
        while !same_inode(&at, root) {
            let parent = self.parent_of(&at);
            if same_inode(&parent, &at) {
                return None;
            }
            // A mount's root is named by its mount point.
            let mut named = at;
            while let Some(on) = self.mounted_at(&named) {
                named = on;
            }
            names.push(parent.directory()?.name_of(&named)?);
            at = parent;
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Some(path)
    }

    /// Returns the path of an open file as `/proc` shows it: with ` (deleted)` if the name is gone,
    /// or stands for another inode by now. An inode that never had a name is shown by its kind and
    /// number. Returns `None` for a directory that is not below `root`.
    pub fn path_of_open(&self, open: &Open, root: &Arc<dyn Inode>) -> Option<Vec<u8>> {
        let inode = open.inode();
        if open.name().is_some() {
            return Some(self.path_of_mapped(&MappedFile::from_open(open), root));
        }
        let meta = inode.meta();
        match meta.kind {
            Kind::Directory => self.path_of(inode, root),
            Kind::Fifo => Some(format!("pipe:[{}]", meta.inode).into_bytes()),
            Kind::Socket => Some(format!("socket:[{}]", meta.inode).into_bytes()),
            Kind::Char => Some(b"/dev/console".to_vec()),
            _ => Some(format!("anon_inode:[{}]", meta.inode).into_bytes()),
        }
    }

    /// Returns the path of a mapped file as `/proc` shows it, with ` (deleted)` as for open files.
    pub fn path_of_mapped(&self, mapped: &MappedFile, root: &Arc<dyn Inode>) -> Vec<u8> {
        match &mapped.name {
            MappedName::Fixed(shown) => shown.to_vec(),
            MappedName::None => Vec::new(),
            MappedName::Entry(directory, name) => {
                let directory = directory.upgrade();
                let mut path = directory.as_ref().and_then(|parent| self.path_of(parent, root)).unwrap_or_default();
                if path.last() != Some(&b'/') {
                    path.push(b'/');
                }
                path.extend_from_slice(name);
                let current = directory.and_then(|directory| directory.directory()?.find(name).ok());
                if !current.is_some_and(|current| mapped.is_inode(&current.meta())) {
                    path.extend_from_slice(b" (deleted)");
                }
                path
            }
        }
    }
}
