//! Tests on images that Linux's `mke2fs` made, checked by Linux's `e2fsck`.

use super::contents::{Contents, Place};
use super::host::SECTOR;
use super::{BlockDevice, Ext4, Host};
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
use linux_raw_sys::general::{
    FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE,
    O_RDWR, RENAME_EXCHANGE,
};
use oorandom::Rand64;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::string::{String, ToString};
use std::sync::Mutex;
use std::vec::Vec;
use std::{format, fs, vec};

/// The size of the images, in MiB.
const SIZE: usize = 16;

/// A disk in memory that records its writes and flushes.
struct Recorder(Mutex<Recorded>);

#[derive(Default)]
struct Recorded {
    bytes: Vec<u8>,
    log: Vec<Event>,
    /// The number of writes that still succeed.
    writes_left: u64,
}

#[derive(Clone)]
enum Event {
    Write(usize, Vec<u8>),
    Flush,
}

impl Recorder {
    fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Recorder(Mutex::new(Recorded { bytes, log: vec![], writes_left: u64::MAX })))
    }

    fn bytes(&self) -> Vec<u8> {
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

struct Clocks;

impl Host for Clocks {
    fn now(&self) -> Time {
        Time { seconds: 1_700_000_000, nanoseconds: 0 }
    }

    fn random(&self, to: &mut [u8]) {
        to.fill(7);
    }
}

/// The page cache of a file: all of its pages are read at once, and written at once.
struct Cached {
    contents: Contents,
    pages: OnHeap,
    device: Arc<dyn BlockDevice>,
    dirty: Mutex<bool>,
}

impl Cached {
    fn new(device: &Arc<dyn BlockDevice>, fs: &Arc<Ext4>, inode: u64, size: u64) -> Result<Arc<Self>, Errno> {
        let (pages, contents) = (OnHeap::default(), Contents::new(fs, inode));
        let cached = Arc::new(Cached { contents, pages, device: device.clone(), dirty: Mutex::new(false) });
        cached.load(size)?;
        Ok(cached)
    }

    /// Reads all pages.
    fn load(&self, size: u64) -> Result<(), Errno> {
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

    fn write_back(&self) -> Result<(), Errno> {
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
struct Shared(Arc<Cached>);

impl Pages for Shared {
    fn size(&self) -> u64 {
        self.0.pages.size()
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        self.0.pages.set_size(size)?;
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
struct Mounted {
    device: Arc<dyn BlockDevice>,
    fs: Arc<Ext4>,
    files: Mutex<BTreeMap<u64, Weak<Cached>>>,
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
    fn mount(device: &Arc<Recorder>) -> Result<(Arc<Self>, Arc<Node>), Errno> {
        let device: Arc<dyn BlockDevice> = device.clone();
        let fs = Ext4::mount(device.clone(), &Clocks, false)?;
        let mounted = Arc::new(Mounted { device, fs: fs.clone(), files: Mutex::default() });
        let root = Tree::of_disk(mounted.clone(), Device { major: 1, minor: 0 }, fs)?;
        Ok((mounted, root))
    }

    fn sync(&self, root: &Node) -> Result<(), Errno> {
        let files = self.files.lock().unwrap().clone();
        files.values().filter_map(Weak::upgrade).try_for_each(|file| file.write_back())?;
        root.tree().write_attributes()?;
        self.fs.sync()
    }

    fn unmount(&self, root: Arc<Node>) {
        self.sync(&root).unwrap();
        drop(root);
        Disk::unmount(&*self.fs).unwrap();
    }
}

const PUNCH: u32 = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
const ZERO: u32 = FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE;

/// Returns a path of this process for a test's image.
fn path(name: &str) -> String {
    let path = std::env::temp_dir().join(format!("vellum-ext4-{}-{name}", std::process::id()));
    path.to_str().unwrap().to_string()
}

/// Returns an image that `mke2fs` made with some options.
fn image(name: &str, options: &[&str]) -> Vec<u8> {
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
fn check(name: &str, bytes: &[u8], replayed: bool) {
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

fn new(kind: Kind, target: &[u8]) -> NewInode<'_> {
    NewInode { kind, mode: 0o640, uid: 1000, gid: 70_000, special: Device { major: 1, minor: 3 }, target }
}

fn make(directory: &Arc<dyn Inode>, name: &str, kind: Kind) -> Result<Arc<dyn Inode>, Errno> {
    directory.directory().unwrap().make(name.as_bytes(), &new(kind, b"target/of/a/link"))
}

fn write(file: &Arc<dyn Inode>, at: u64, mut bytes: &[u8]) -> Result<(), Errno> {
    let (open, mut at) = (file.clone().open(O_RDWR)?, at);
    while !bytes.is_empty() {
        at += open.write(at, &mut bytes)? as u64;
    }
    Ok(())
}

fn read(file: &Arc<dyn Inode>) -> Vec<u8> {
    let mut bytes = vec![0; file.meta().size as usize];
    let count = file.clone().open(O_RDWR).unwrap().read(0, &mut &mut bytes[..]).unwrap();
    assert_eq!(count, bytes.len());
    bytes
}

/// A path's kind, mode, owner, inode and contents.
type Entry = (Kind, u32, u32, u64, Vec<u8>);

/// Returns all that lies below a directory.
fn all(directory: &Arc<dyn Inode>, prefix: &str, to: &mut BTreeMap<String, Entry>) {
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

fn everything(root: &Arc<Node>) -> BTreeMap<String, Entry> {
    let mut found = BTreeMap::new();
    all(&(root.clone() as Arc<dyn Inode>), "", &mut found);
    found
}

/// Names, attributes and contents of all kinds are there after an unmount and a mount, for Linux
/// too, whatever the size of blocks.
#[test]
fn all_that_a_tree_has_survives_an_unmount() {
    for block in ["1024", "4096"] {
        let name = format!("survives-{block}");
        let device = Recorder::new(image(&name, &["-b", block]));
        let (mounted, root) = Mounted::mount(&device).unwrap();
        let above: Arc<dyn Inode> = root.clone();
        for kind in [Kind::Regular, Kind::Link, Kind::Fifo, Kind::Socket, Kind::Char, Kind::Block] {
            make(&above, &format!("{kind:?}"), kind).unwrap();
        }
        let inner = make(&above, "inner", Kind::Directory).unwrap();
        let file = make(&inner, "file", Kind::Regular).unwrap();
        write(&file, 3000, &[1; 10_000]).unwrap();
        write(&file, 100_000, b"behind a hole").unwrap();
        inner.directory().unwrap().link(b"other", &file).unwrap();
        assert_eq!(make(&inner, "file", Kind::Regular).err(), Some(Errno::EEXIST));
        assert_eq!(above.directory().unwrap().remove(b"inner", true), Err(Errno::ENOTEMPTY));
        let to = above.directory().unwrap();
        to.rename(b"Fifo", &*inner, b"pipe", 0).unwrap();
        to.rename(b"Regular", &*inner, b"other", RENAME_EXCHANGE).unwrap();
        let before = everything(&root);
        assert_eq!(before["/Regular"].4[3000..13_000], [1; 10_000]);
        drop((above, inner, file));
        mounted.unmount(root);
        drop(mounted);
        check(&name, &device.bytes(), false);
        let (mounted, root) = Mounted::mount(&device).unwrap();
        assert_eq!(everything(&root), before);
        let [a, b] =
            [b"Char", b"Sock"].map(|name| root.clone().directory().unwrap().find(name).map(|node| node.meta()));
        assert_eq!((a.unwrap().special, b.err()), (Device { major: 1, minor: 3 }, Some(Errno::ENOENT)));
        mounted.unmount(root);
        check(&name, &device.bytes(), false);
    }
}

/// Bytes of a file are written in any order, in the middle of what is there too, and read back
/// where they are.
#[test]
fn contents_are_written_in_any_order() {
    let device = Recorder::new(image("order", &[]));
    let (mounted, root) = Mounted::mount(&device).unwrap();
    let file = make(&(root.clone() as Arc<dyn Inode>), "file", Kind::Regular).unwrap();
    let cached = mounted.files.lock().unwrap().values().find_map(Weak::upgrade).unwrap();
    let contents = &cached.contents;
    let read_all = || {
        let mut found = vec![];
        let reached = contents.read(0..40 * 4096, &mut |place, part| {
            let mut bytes = vec![0; (part.end - part.start) as usize];
            if let Place::At(at) = place {
                assert!(device.read(at, &mut bytes));
            }
            found.append(&mut bytes);
            part.end
        });
        assert_eq!(reached, 40 * 4096);
        found
    };
    let mut expected = vec![0; 40 * 4096];
    for (round, pages) in [(1, 0..20), (2, 5..9), (3, 30..40), (4, 18..32), (5, 0..1), (6, 0..40), (7, 7..8)] {
        let bytes = pages.start * 4096..pages.end * 4096;
        expected[bytes.start as usize..bytes.end as usize].fill(round);
        let written = contents.write(bytes.clone(), &mut |to, part| {
            assert!(device.write(to, &vec![round; (part.end - part.start) as usize]));
            part.end
        });
        assert_eq!(written, Ok(bytes.end));
        assert_eq!(read_all(), expected, "round {round}");
        assert!(contents.used() >= 20 * 4096);
    }
    drop((cached, file));
    mounted.unmount(root);
    check("order", &device.bytes(), false);
}

/// If the device fails in the middle of a write, the file has the blocks before the failure, and
/// zeros in the others: not the bytes that the device had there.
#[test]
fn a_write_that_fails_leaves_whole_blocks() {
    let device = Recorder::new(image("fails", &[]));
    let (mounted, root) = Mounted::mount(&device).unwrap();
    let file = make(&(root.clone() as Arc<dyn Inode>), "file", Kind::Regular).unwrap();
    let cached = mounted.files.lock().unwrap().values().find_map(Weak::upgrade).unwrap();
    let written = cached.contents.write(0..8 * 4096, &mut |to, part| {
        assert!(device.write(to, &[7; 8 * 4096]), "the bytes behind the failure may get there too");
        part.start + 3 * 4096 + 512
    });
    assert_eq!((written, mounted.fs.inode(file.meta().inode, None).unwrap().size), (Ok(3 * 4096), 3 * 4096));
    let mut places = vec![];
    cached.contents.read(0..8 * 4096, &mut |place, part| {
        places.push((place == Place::Hole, part.clone()));
        part.end
    });
    assert_eq!(places, [(false, 0..3 * 4096), (true, 3 * 4096..8 * 4096)]);
    drop((cached, file));
    mounted.unmount(root);
    check("fails", &device.bytes(), false);
}

/// An image with blocks larger than a page, and one without a file system, are refused.
#[test]
fn what_can_not_be_mounted_is_refused() {
    let refusal = |bytes| Mounted::mount(&Recorder::new(bytes)).err();
    assert_eq!(refusal(vec![0; SIZE << 20]), Some(Errno::EINVAL));
    assert!(refusal(image("large", &["-b", "8192", "-O", "^has_journal"])).is_some());
}

/// A file that is open when its last name goes keeps its contents, and its blocks are free after
/// its last use.
#[test]
fn a_file_without_a_name_lives_until_its_last_use() {
    let device = Recorder::new(image("unnamed", &[]));
    let (mounted, root) = Mounted::mount(&device).unwrap();
    let above: Arc<dyn Inode> = root.clone();
    let free = mounted.fs.space();
    let file = make(&above, "file", Kind::Regular).unwrap();
    write(&file, 0, &[5; 300_000]).unwrap();
    mounted.sync(&root).unwrap();
    above.directory().unwrap().remove(b"file", false).unwrap();
    assert_eq!(read(&file), [5; 300_000]);
    assert!(mounted.fs.space().free_pages < free.free_pages);
    drop(file);
    assert_eq!(mounted.fs.space().free_pages, free.free_pages);
    assert_eq!(mounted.fs.space().free_inodes, free.free_inodes);
    drop(above);
    mounted.unmount(root);
    check("unnamed", &device.bytes(), false);
}

/// Zeros take the place of a range's contents, which keeps its blocks, and a file grows to its end
/// unless it is to keep its size.
#[test]
fn a_range_of_zeros_keeps_its_blocks() {
    let device = Recorder::new(image("zeros", &[]));
    let (mounted, root) = Mounted::mount(&device).unwrap();
    let above: Arc<dyn Inode> = root.clone();
    let file = make(&above, "f", Kind::Regular).unwrap();
    write(&file, 0, &[9; 100_000]).unwrap();
    let blocks = || file.meta().used;
    mounted.sync(&root).unwrap();
    let before = blocks();
    let open = file.clone().open(O_RDWR).unwrap();
    open.allocate(ZERO, 10_000..50_000, 0).unwrap();
    let mut expected = vec![9; 100_000];
    expected[10_000..50_000].fill(0);
    assert_eq!((read(&file), blocks()), (expected.clone(), before));
    open.allocate(ZERO, 90_000..200_000, 0).unwrap();
    expected[90_000..].fill(0);
    assert_eq!((read(&file), file.meta().size), (expected.clone(), 100_000));
    assert!(blocks() > before, "what lies behind the end has blocks, too");
    open.allocate(ZERO & !FALLOC_FL_KEEP_SIZE, 150_000..200_000, 0).unwrap();
    expected.resize(200_000, 0);
    mounted.sync(&root).unwrap();
    assert_eq!(read(&file), expected);
    drop((open, file, above));
    mounted.unmount(root);
    check("zeros", &device.bytes(), false);
}

/// Bytes move in a file of many extents as in a vector, and Linux finds them there.
#[test]
fn bytes_move_as_in_a_vector() {
    for block in [1024u64, 4096] {
        let name = format!("moves-{block}");
        let device = Recorder::new(image(&name, &["-b", &block.to_string()]));
        let (mounted, root) = Mounted::mount(&device).unwrap();
        let above: Arc<dyn Inode> = root.clone();
        let file = make(&above, "f", Kind::Regular).unwrap();
        let open = file.clone().open(O_RDWR).unwrap();
        let (mut random, mut model) = (Rand64::new(block.into()), Vec::<u8>::new());
        // Every other block is a hole, so that the extents fill several nodes.
        for number in 0..400 {
            model.resize((number * 2 * block) as usize, 0);
            model.resize(model.len() + block as usize, number as u8 | 1);
            write(&file, number * 2 * block, &model[model.len() - block as usize..]).unwrap();
        }
        mounted.sync(&root).unwrap();
        for step in 0..120 {
            let blocks = model.len() as u64 / block;
            let (at, count) = (random.rand_range(0..blocks), random.rand_range(1..20));
            let (bytes, vector) = (at * block..(at + count) * block, (at * block) as usize);
            let len = (count * block) as usize;
            if step % 2 == 0 {
                open.allocate(FALLOC_FL_INSERT_RANGE, bytes, 0).unwrap();
                model.splice(vector..vector, vec![0; len]);
            } else if vector + len < model.len() {
                open.allocate(FALLOC_FL_COLLAPSE_RANGE, bytes, 0).unwrap();
                model.drain(vector..vector + len);
            } else {
                assert_eq!(open.allocate(FALLOC_FL_COLLAPSE_RANGE, bytes, 0), Err(Errno::EINVAL));
            }
            assert_eq!(file.meta().size, model.len() as u64);
            if step % 10 == 0 {
                write(&file, vector as u64 + 7, &[step as u8 | 1; 5000]).unwrap();
                let end = vector + 7 + 5000;
                model.resize(model.len().max(end), 0);
                model[vector + 7..end].fill(step as u8 | 1);
            }
            assert!(read(&file) == model, "step {step}");
        }
        for mode in [FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE] {
            assert_eq!(open.allocate(mode | FALLOC_FL_KEEP_SIZE, 0..block, 0), Err(Errno::EOPNOTSUPP));
        }
        let end = (model.len() as u64).next_multiple_of(block);
        assert_eq!(open.allocate(FALLOC_FL_INSERT_RANGE, end..end + block, 0), Err(Errno::EINVAL));
        drop((open, file, above));
        mounted.unmount(root);
        drop(mounted);
        check(&name, &device.bytes(), false);
        let (mounted, root) = Mounted::mount(&device).unwrap();
        let file = root.clone().directory().unwrap().find(b"f").unwrap();
        assert!(read(&file) == model);
        drop(file);
        mounted.unmount(root);
        check(&name, &device.bytes(), false);
    }
}

/// A full disk refuses, loses nothing that it has, and has room again once files are removed.
#[test]
fn a_full_disk_refuses_and_recovers() {
    let device = Recorder::new(image("full", &[]));
    let (mounted, root) = Mounted::mount(&device).unwrap();
    let above: Arc<dyn Inode> = root.clone();
    let kept = make(&above, "kept", Kind::Regular).unwrap();
    write(&kept, 0, &[9; 100_000]).unwrap();
    mounted.sync(&root).unwrap();
    for round in 0..3 {
        let mut count = 0;
        let error = loop {
            let filled = make(&above, &format!("{count}"), Kind::Regular).and_then(|file| {
                count += 1;
                file.open(O_RDWR)?.allocate(0, 0..1 << 20, 0)
            });
            if let Err(error) = filled {
                break error;
            }
        };
        assert_eq!(error, Errno::ENOSPC, "round {round}");
        assert!(count > 8, "round {round}: {count} files");
        for number in 0..count {
            above.directory().unwrap().remove(format!("{number}").as_bytes(), false).unwrap();
        }
        assert_eq!(read(&kept), [9; 100_000]);
    }
    drop((above, kept));
    mounted.unmount(root);
    check("full", &device.bytes(), false);
}

/// Changes the tree at random, and notes the paths that were touched, and as `#` with its number
/// the inode of a file, which may have other paths.
fn change(root: &Arc<dyn Inode>, random: &mut Rand64, touched: &mut Vec<String>) {
    let name = |random: &mut Rand64| format!("{}", random.rand_range(0..24));
    let pick = |random: &mut Rand64, touched: &mut Vec<String>| {
        let own = format!("d{}", random.rand_range(0..3));
        match root.directory().unwrap().find(own.as_bytes()) {
            Ok(directory) if random.rand_range(0..3) > 0 => (directory, format!("/{own}")),
            _ => {
                let _ = make(root, &own, Kind::Directory).map(|_| touched.push(format!("/{own}")));
                (root.clone(), String::new())
            }
        }
    };
    let (directory, prefix) = pick(random, touched);
    let name_of = name(random);
    touched.push(format!("{prefix}/{name_of}"));
    let entries = directory.directory().unwrap();
    if let Ok(file) = entries.find(name_of.as_bytes()) {
        touched.push(format!("#{}", file.meta().inode));
    }
    match random.rand_range(0..10) {
        0..4 => {
            let file = match make(&directory, &name_of, Kind::Regular) {
                Ok(file) => file,
                Err(_) => entries.find(name_of.as_bytes()).unwrap(),
            };
            let (at, len) = (random.rand_range(0..200_000), random.rand_range(1..60_000) as usize);
            let byte = random.rand_range(1..256) as u8;
            let _ = write(&file, at, &vec![byte; len]);
        }
        4 => {
            let _ = entries.find(name_of.as_bytes()).map(|file| file.truncate(random.rand_range(0..100_000)));
        }
        5 => {
            let at = random.rand_range(0..100_000);
            let mode = [PUNCH, ZERO, FALLOC_FL_COLLAPSE_RANGE, FALLOC_FL_INSERT_RANGE][(at % 4) as usize];
            let bytes = if at % 4 < 2 { at..at + 50_000 } else { at / 4096 * 4096..(at / 4096 + 1 + at % 7) * 4096 };
            let _ = entries
                .find(name_of.as_bytes())
                .and_then(|file| file.open(O_RDWR))
                .and_then(|file| file.allocate(mode, bytes, 0));
        }
        6 | 7 => {
            let _ = entries.remove(name_of.as_bytes(), false);
        }
        8 => {
            let (to, to_prefix) = pick(random, touched);
            let to_name = name(random);
            touched.push(format!("{to_prefix}/{to_name}"));
            let _ = entries.rename(name_of.as_bytes(), &*to, to_name.as_bytes(), 0);
        }
        _ => {
            let (to, to_prefix) = pick(random, touched);
            let to_name = name(random);
            touched.push(format!("{to_prefix}/{to_name}"));
            let found = entries.find(name_of.as_bytes());
            let _ = found.and_then(|file| to.directory().unwrap().link(to_name.as_bytes(), &file));
        }
    }
}

/// After a loss of power at any moment, `e2fsck` and the next mount find an intact file system,
/// with all that was synchronised and not changed since. Of what the disk was told after its last
/// flush, any part may be lost.
#[test]
fn a_loss_of_power_loses_nothing_that_was_synchronised() {
    let points = std::env::var("VELLUM_CRASH_POINTS").ok().and_then(|points| points.parse().ok()).unwrap_or(30);
    let mut random = Rand64::new(std::env::var("VELLUM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1));
    for (block, points) in [("4096", points), ("1024", points / 3)] {
        let name = format!("power-{block}");
        let start = image(&name, &["-b", block, "-J", "size=4"]);
        let device = Recorder::new(start.clone());
        let (mounted, root) = Mounted::mount(&device).unwrap();
        let above: Arc<dyn Inode> = root.clone();
        // The tree at each synchronisation, with the position in the log.
        let mut synced = vec![(0, everything(&root))];
        let mut touched: Vec<(usize, String)> = vec![];
        let position = || device.0.lock().unwrap().log.len();
        for _ in 0..40 * points {
            let (before, mut paths) = (position(), vec![]);
            change(&above, &mut random, &mut paths);
            touched.extend(paths.into_iter().map(|path| (before, path)));
            if random.rand_range(0..20) == 0 {
                match mounted.sync(&root) {
                    Ok(()) => synced.push((position(), everything(&root))),
                    Err(error) => assert_eq!(error, Errno::ENOSPC),
                }
            }
        }
        let log = device.0.lock().unwrap().log.clone();
        drop((above, root, mounted));
        for point in 0..points {
            let cut = random.rand_range(synced[0].0 as u64..log.len() as u64) as usize;
            let mut bytes = start.clone();
            let flushed = log[..cut].iter().rposition(|event| matches!(event, Event::Flush)).unwrap_or(0);
            for (index, event) in log[..cut].iter().enumerate() {
                if let Event::Write(at, written) = event
                    && (index < flushed || random.rand_range(0..2) == 0)
                {
                    bytes[*at..*at + written.len()].copy_from_slice(written);
                }
            }
            check(&name, &bytes, true);
            fs::write("/tmp/crash.img", &bytes).unwrap();
            let device = Recorder::new(bytes);
            let (mounted, root) = Mounted::mount(&device).unwrap();
            let (at, expected) = synced.iter().rfind(|(at, _)| *at <= cut).unwrap();
            let found = everything(&root);
            let lost = expected.iter().filter(|(path, entry)| {
                let changed = |path: &str| {
                    touched.iter().any(|(when, other)| {
                        when >= at && *when <= cut && (other == path || path.starts_with(&format!("{other}/")))
                    })
                };
                !changed(path) && !changed(&format!("#{}", entry.3)) && found.get(*path) != Some(entry)
            });
            let lost: Vec<_> = lost.map(|(path, _)| path).collect();
            assert!(lost.is_empty(), "point {point}, cut at {cut} of {}: {lost:?}", log.len());
            mounted.unmount(root);
            check(&name, &device.bytes(), false);
        }
    }
}
