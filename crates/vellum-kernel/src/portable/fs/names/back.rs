//! From an inode back to a path: for `getcwd`, and for what `/proc` shows.

use super::{Found, Namespace, same};
use crate::fs::inode::{FIRST, Inode};
use crate::fs::meta::{Device, Kind, Meta};
use crate::fs::open::{Name, Open};
use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

/// What memory remembers of the file that it maps: enough to name it, and nothing that would keep
/// it.
#[derive(Clone)]
pub struct Mapped {
    /// Of the file system.
    pub device: Device,
    /// The inode's number.
    pub inode: u64,
    name: Remembered,
}

#[derive(Clone)]
enum Remembered {
    Entry(Weak<dyn Inode>, Arc<[u8]>),
    Shown(Arc<[u8]>),
    Nothing,
}

impl Mapped {
    /// Of an open file.
    pub fn of(open: &Open) -> Mapped {
        let meta = open.inode().meta();
        let name = match open.name() {
            Some(Name::Entry { directory, name }) => Remembered::Entry(Arc::downgrade(directory), name.clone()),
            Some(Name::Shown(shown)) => Remembered::Shown(shown.clone()),
            None => Remembered::Nothing,
        };
        Mapped { device: meta.device, inode: meta.inode, name }
    }

    fn is(&self, meta: &Meta) -> bool {
        (meta.device, meta.inode) == (self.device, self.inode)
    }

    /// Of what a path led to.
    pub fn found(found: &Found) -> Option<Mapped> {
        let meta = found.inode.as_ref()?.meta();
        let name = Remembered::Entry(Arc::downgrade(&found.parent), found.name.as_slice().into());
        Some(Mapped { device: meta.device, inode: meta.inode, name })
    }

    /// Of something that has no file, by what `/proc` shows for it.
    pub fn shown(device: Device, inode: u64, shown: Arc<[u8]>) -> Mapped {
        Mapped { device, inode, name: Remembered::Shown(shown) }
    }
}

impl Namespace {
    /// The absolute path of a directory, as seen from `root`; none if it is not below it (any
    /// more).
    pub fn path_of(&self, inode: &Arc<dyn Inode>, root: &Arc<dyn Inode>) -> Option<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = inode.clone();
        while !same(&at, root) {
            let above = self.above(&at);
            if same(&above, &at) {
                return None;
            }
            // The name is that of the directory underneath, if it is a mount's root.
            let mounts = self.mounts.lock();
            let mut named = &at;
            while let Some(mount) = mounts.iter().find(|mount| same(&mount.root, named)) {
                named = &mount.on;
            }
            let number = named.meta().inode;
            drop(mounts);
            let mut name = None;
            let listed = above.directory()?.list(FIRST, &mut |entry| {
                if entry.inode == number && entry.kind == Kind::Directory {
                    name = Some(entry.name.to_vec());
                }
                name.is_none()
            });
            listed.ok()?;
            names.push(name?);
            at = above;
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

    /// The path of an open file, as `/proc` shows it: with ` (deleted)` if the name means something
    /// else by now. What never had a name has one of its kind and number.
    pub fn path_of_open(&self, open: &Open, root: &Arc<dyn Inode>) -> Option<Vec<u8>> {
        let inode = open.inode();
        if open.name().is_some() {
            return Some(self.path_of_mapped(&Mapped::of(open), root));
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

    /// The path of a file that memory maps, as `/proc` shows it.
    pub fn path_of_mapped(&self, mapped: &Mapped, root: &Arc<dyn Inode>) -> Vec<u8> {
        match &mapped.name {
            Remembered::Shown(shown) => shown.to_vec(),
            Remembered::Nothing => Vec::new(),
            Remembered::Entry(directory, name) => {
                let directory = directory.upgrade();
                let mut path = directory.as_ref().and_then(|above| self.path_of(above, root)).unwrap_or_default();
                if path.last() != Some(&b'/') {
                    path.push(b'/');
                }
                path.extend_from_slice(name);
                let there = directory.and_then(|directory| directory.directory()?.find(name).ok());
                if !there.is_some_and(|there| mapped.is(&there.meta())) {
                    path.extend_from_slice(b" (deleted)");
                }
                path
            }
        }
    }
}
