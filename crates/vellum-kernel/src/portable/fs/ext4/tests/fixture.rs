//! A disk in memory, a page cache of one file, and images that Linux's tools make and check.

use super::super::contents::{Contents, Place};
use super::super::host::SECTOR;
use super::super::{BlockDevice, Ext4, Host};
use crate::errno::Errno;
use crate::fs::inode::{Inode, NewInode};
use crate::fs::io::{Sink, Source};
use crate::fs::meta::{Device, Kind, Time};
use crate::fs::pages::{OnHeap, Pages, Shift};
use crate::fs::tree::disk::Disk;
use crate::fs::tree::{self, Capacity, Node, Tree};
use alloc::sync::{Arc, Weak};
use core::any::Any;
use core::ops::Range;
use linux_raw_sys::general::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE, O_RDWR};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::string::{String, ToString};
use std::sync::Mutex;
use std::vec::Vec;
use std::{format, fs, vec};

/// The size of the images, in MiB.
pub(super) const SIZE: usize = 16;

/// A disk in memory that records its writes and flushes.
pub(super) struct Recorder(pub(super) Mutex<Recorded>);

#[derive(Default)]
pub(super) struct Recorded {
    pub(super) bytes: Vec<u8>,
    pub(super) log: Vec<Event>,
    /// The number of writes that still succeed.
    pub(super) writes_left: u64,
}

#[derive(Clone)]
pub(super) enum Event {
    Write(usize, Vec<u8>),
    Flush,
}

impl Recorder {
    pub(super) fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Recorder(Mutex::new(Recorded { bytes, log: vec![], writes_left: u64::MAX })))
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().bytes.clone()
    }
}

impl BlockDevice for Recorder {
    fn size(&self) -> u64 {
        self.0.lock().unwrap().bytes.len() as u64
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        assert!(at.is_multiple_of(SECTOR) && (to.len() as u64).is_multiple_of(SECTOR));
        let from = &self.0.lock().unwrap().bytes;
        from.get(at as usize..at as usize + to.len()).map(|from| to.copy_from_slice(from)).is_some()
    }

    fn write(&self, at: u64, from: &[u8]) -> bool {
        assert!(at.is_multiple_of(SECTOR) && (from.len() as u64).is_multiple_of(SECTOR));
        let mut recorded = self.0.lock().unwrap();
        if recorded.writes_left == 0 {
            return false;
        }
        recorded.writes_left -= 1;
        recorded.log.push(Event::Write(at as usize, from.to_vec()));
        recorded.bytes[at as usize..at as usize + from.len()].copy_from_slice(from);
        true
    }

    fn flush(&self) -> bool {
        self.0.lock().unwrap().log.push(Event::Flush);
        true
    }
}

pub(super) struct Clocks;

impl Host for Clocks {
    fn now(&self) -> Time {
        Time { seconds: 1_700_000_000, nanoseconds: 0 }
    }

    fn random(&self, to: &mut [u8]) {
        to.fill(7);
    }
}

/// The page cache of a file: all of its pages are read at once, and written at once.
pub(super) struct Cached {
    pub(super) contents: Contents,
    pub(super) pages: OnHeap,
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) dirty: Mutex<bool>,
}

impl Cached {
    pub(super) fn new(
        device: &Arc<dyn BlockDevice>,
        fs: &Arc<Ext4>,
        inode: u64,
        size: u64,
    ) -> Result<Arc<Self>, Errno> {
        let (pages, contents) = (OnHeap::default(), Contents::new(fs, inode));
        let cached = Arc::new(Cached { contents, pages, device: device.clone(), dirty: Mutex::new(false) });
        cached.load(size)?;
        Ok(cached)
    }

    /// Reads all pages.
    pub(super) fn load(&self, size: u64) -> Result<(), Errno> {
        self.pages.set_size(0)?;
        self.contents.read(0..size, &mut |place, part| {
            if let Place::At(at) = place {
                let mut bytes = vec![0; (part.end - part.start).next_multiple_of(SECTOR) as usize];
                assert!(self.device.read(at, &mut bytes));
                self.pages.write(part.start, &mut &bytes[..(part.end - part.start) as usize]).unwrap();
            }
            part.end
        });
        self.pages.set_size(size)
    }

    pub(super) fn write_back(&self) -> Result<(), Errno> {
        let mut dirty = self.dirty.lock().unwrap();
        if !core::mem::take(&mut *dirty) {
            return Ok(());
        }
        let size = self.pages.size();
        let mut at = 0;
        while let Some(data) = self.pages.next_data(at).filter(|data| *data < size) {
            at = self.pages.next_hole(data).min(size);
            self.contents.write(data / 4096 * 4096..at, &mut |place, part| {
                let mut bytes = vec![0; (part.end - part.start) as usize];
                let _ = self.pages.read(part.start, &mut &mut bytes[..]);
                if self.device.write(place, &bytes) { part.end } else { part.start }
            })?;
        }
        self.contents.grow(size)
    }
}

/// The pages of a file in the cache.
pub(super) struct Shared(Arc<Cached>);

impl Pages for Shared {
    fn size(&self) -> u64 {
        self.0.pages.size()
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        let cuts = size < self.size() && !size.is_multiple_of(4096);
        self.0.pages.set_size(size)?;
        // The zeros behind the new end come first.
        if cuts {
            *self.0.dirty.lock().unwrap() = true;
            self.0.write_back()?;
        }
        self.0.contents.set_size(size)
    }

    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        self.0.pages.read(at, to)
    }

    fn write(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        *self.0.dirty.lock().unwrap() = true;
        self.0.pages.write(at, from)
    }

    fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno> {
        self.0.contents.allocate(bytes)
    }

    fn punch(&self, bytes: Range<u64>) -> Result<(), Errno> {
        *self.0.dirty.lock().unwrap() = true;
        self.0.pages.punch(bytes.clone())?;
        let bytes = bytes.start.next_multiple_of(4096)..bytes.end / 4096 * 4096;
        self.0.contents.punch(bytes)
    }

    fn shift(&self, bytes: Range<u64>, shift: Shift) -> Result<bool, Errno> {
        let (size, len) = (self.size(), bytes.end - bytes.start);
        if if shift == Shift::Collapse { bytes.end } else { bytes.start } >= size {
            return Err(Errno::EINVAL);
        }
        self.0.write_back()?;
        self.0.contents.grow(size)?;
        assert_eq!(self.0.contents.shift(bytes.clone(), shift, || false, || panic!("nothing moves")), Ok(false));
        let moved = self.0.contents.shift(bytes, shift, || true, || ())?;
        self.0.load(if shift == Shift::Collapse { size - len } else { size + len })?;
        Ok(moved)
    }

    fn next_data(&self, at: u64) -> Option<u64> {
        self.0.pages.next_data(at)
    }

    fn next_hole(&self, at: u64) -> u64 {
        self.0.pages.next_hole(at)
    }

    fn resident(&self) -> u64 {
        self.0.contents.used()
    }

    fn deny_shared_write(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A mounted image.
pub(super) struct Mounted {
    pub(super) device: Arc<dyn BlockDevice>,
    pub(super) fs: Arc<Ext4>,
    pub(super) files: Mutex<BTreeMap<u64, Weak<Cached>>>,
}

impl tree::Host for Mounted {
    fn now(&self) -> Time {
        Clocks.now()
    }

    fn pages(&self) -> Result<Arc<dyn Pages>, Errno> {
        Err(Errno::EIO)
    }

    fn kept_pages(&self, inode: u64, size: u64) -> Result<Arc<dyn Pages>, Errno> {
        let cached = Cached::new(&self.device, &self.fs, inode, size)?;
        self.files.lock().unwrap().insert(inode, Arc::downgrade(&cached));
        Ok(Arc::new(Shared(cached)))
    }

    fn space(&self) -> Capacity {
        Capacity { total: 0, free: 0 }
    }
}

impl Mounted {
    pub(super) fn mount(device: &Arc<Recorder>) -> Result<(Arc<Self>, Arc<Node>), Errno> {
        let device: Arc<dyn BlockDevice> = device.clone();
        let fs = Ext4::mount(device.clone(), &Clocks, false)?;
        let mounted = Arc::new(Mounted { device, fs: fs.clone(), files: Mutex::default() });
        let root = Tree::of_disk(mounted.clone(), Device { major: 1, minor: 0 }, fs)?;
        Ok((mounted, root))
    }

    pub(super) fn sync(&self, root: &Node) -> Result<(), Errno> {
        let files = self.files.lock().unwrap().clone();
        files.values().filter_map(Weak::upgrade).try_for_each(|file| file.write_back())?;
        root.tree().write_attributes()?;
        self.fs.sync()
    }

    pub(super) fn unmount(&self, root: Arc<Node>) {
        self.sync(&root).unwrap();
        drop(root);
        Disk::unmount(&*self.fs).unwrap();
    }
}

pub(super) const PUNCH: u32 = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
pub(super) const ZERO: u32 = FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE;

/// Returns a path of this process for a test's image.
pub(super) fn path(name: &str) -> String {
    let path = std::env::temp_dir().join(format!("vellum-ext4-{}-{name}", std::process::id()));
    path.to_str().unwrap().to_string()
}

/// Returns an image that `mke2fs` made with some options.
pub(super) fn image(name: &str, options: &[&str]) -> Vec<u8> {
    let path = path(name);
    fs::write(&path, vec![0; SIZE << 20]).unwrap();
    let mut mke2fs = Command::new("/sbin/mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0"]).args(options).arg(&path);
    assert!(mke2fs.status().expect("mke2fs of e2fsprogs").success());
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(path).unwrap();
    bytes
}

/// Checks that `e2fsck` finds nothing to correct in an image, after it has replayed the journal if
/// `replayed`.
pub(super) fn check(name: &str, bytes: &[u8], replayed: bool) {
    let path = path(name);
    fs::write(&path, bytes).unwrap();
    let fsck =
        |option| Command::new("/sbin/e2fsck").args(["-f", option, &path]).stderr(Stdio::null()).output().unwrap();
    if replayed {
        let replay = Command::new("/sbin/e2fsck").args(["-y", "-E", "journal_only", &path]).output().unwrap();
        assert!(replay.status.code().unwrap() <= 1, "{}", String::from_utf8_lossy(&replay.stdout));
    }
    let found = fsck("-n");
    fs::remove_file(path).unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stdout));
}

pub(super) fn new(kind: Kind, target: &[u8]) -> NewInode<'_> {
    NewInode { kind, mode: 0o640, uid: 1000, gid: 70_000, special: Device { major: 1, minor: 3 }, target }
}

pub(super) fn make(directory: &Arc<dyn Inode>, name: &str, kind: Kind) -> Result<Arc<dyn Inode>, Errno> {
    directory.directory().unwrap().make(name.as_bytes(), &new(kind, b"target/of/a/link"))
}

pub(super) fn write(file: &Arc<dyn Inode>, at: u64, mut bytes: &[u8]) -> Result<(), Errno> {
    let (open, mut at) = (file.clone().open(O_RDWR)?, at);
    while !bytes.is_empty() {
        at += open.write(at, &mut bytes)? as u64;
    }
    Ok(())
}

pub(super) fn read(file: &Arc<dyn Inode>) -> Vec<u8> {
    let mut bytes = vec![0; file.meta().size as usize];
    let count = file.clone().open(O_RDWR).unwrap().read(0, &mut &mut bytes[..]).unwrap();
    assert_eq!(count, bytes.len());
    bytes
}

/// A path's kind, mode, owner, inode and contents.
pub(super) type Entry = (Kind, u32, u32, u64, Vec<u8>);

/// Returns all that lies below a directory.
pub(super) fn all(directory: &Arc<dyn Inode>, prefix: &str, to: &mut BTreeMap<String, Entry>) {
    let mut names = vec![];
    let listing = directory.directory().unwrap();
    let mut note = |entry: crate::fs::inode::Entry<'_>| {
        names.push((String::from_utf8(entry.name.to_vec()).unwrap(), entry.inode, entry.kind));
        true
    };
    listing.list(crate::fs::inode::FIRST, &mut note).unwrap();
    for (name, number, kind) in names {
        let inode = listing.find(name.as_bytes()).unwrap();
        let meta = inode.meta();
        assert_eq!((meta.inode, meta.kind), (number, kind));
        let contents = match kind {
            Kind::Regular => read(&inode),
            Kind::Link => inode.target().unwrap(),
            _ => vec![],
        };
        let path = format!("{prefix}/{name}");
        if kind == Kind::Directory {
            all(&inode, &path, to);
        }
        to.insert(path, (kind, meta.mode, meta.uid, meta.inode, contents));
    }
}

pub(super) fn everything(root: &Arc<Node>) -> BTreeMap<String, Entry> {
    let mut found = BTreeMap::new();
    all(&(root.clone() as Arc<dyn Inode>), "", &mut found);
    found
}
