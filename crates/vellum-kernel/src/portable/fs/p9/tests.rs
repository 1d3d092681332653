//! The client against a server in this process, which may reply with anything.

use super::message::Reader as Request;
use super::*;
use crate::fs::inode::Inode;
use crate::fs::io::NeverWaits;
use crate::fs::meta::FileCredentials;
use crate::fs::names::{Namespace, View};
use crate::fs::pages::{OnHeap, Pages};
use crate::fs::tree::{Capacity, FIRST_OVER_DISK, Host, Tree};
use crate::testing::{self, block_on};
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general::{O_CREAT, O_RDWR, O_TRUNC};
use std::sync::{LazyLock, Mutex as Lock};
use std::vec;

/// A file of the server: its number is its index.
struct Served {
    mode: u32,
    contents: &'static [u8],
    entries: Vec<(&'static str, usize)>,
}

/// A way to spoil a reply.
type Spoil = dyn Fn(u8, &mut Vec<u8>) + Send + Sync;

struct Server {
    files: Vec<Served>,
    /// The fids in use, with their files.
    fids: Lock<BTreeMap<u32, usize>>,
    spoil: Box<Spoil>,
}

const FILE: usize = 2;

fn server(spoil: Box<Spoil>) -> Server {
    static LARGE: LazyLock<Vec<u8>> = LazyLock::new(|| (0..200_000u32).map(|i| (i / 7) as u8).collect());
    let file = |mode, contents| Served { mode, contents, entries: Vec::new() };
    let folder = |entries| Served { mode: 0o040_755, contents: b"", entries };
    Server {
        files: vec![
            folder(vec![("folder", 1), ("file", FILE), ("link", 3), ("same", FILE)]),
            folder(vec![("large", 4)]),
            file(0o100_644, b"contents"),
            file(0o120_777, b"folder/large"),
            file(0o100_600, LARGE.as_slice()),
        ],
        fids: Lock::default(),
        spoil,
    }
}

impl Server {
    fn node(&self, file: usize) -> Vec<u8> {
        let kind = match self.files[file].mode >> 12 {
            4 => DIRECTORY,
            10 => LINK,
            _ => 0,
        };
        [&[kind][..], &[0; 4], &(file as u64).to_le_bytes()].concat()
    }

    fn reply(&self, kind: u8, request: &mut Request<'_>) -> Result<Vec<u8>, i32> {
        let mut fids = self.fids.lock().unwrap();
        if kind == 100 {
            return Ok(request.take(4).unwrap().iter().chain(request.take(10).unwrap()).copied().collect());
        }
        let fid = request.u32().unwrap();
        if kind == 104 {
            fids.insert(fid, 0);
            return Ok(self.node(0));
        }
        let file = *fids.get(&fid).ok_or(9)?;
        let served = &self.files[file];
        Ok(match kind {
            110 => {
                let (new, names) = (request.u32().unwrap(), request.u16().unwrap());
                let mut at = file;
                let mut walked = names.to_le_bytes().to_vec();
                for _ in 0..names {
                    let name = request.text().unwrap();
                    at = served.entries.iter().find(|entry| entry.0.as_bytes() == name).ok_or(2)?.1;
                    walked.extend(self.node(at));
                }
                assert!(fids.insert(new, at).is_none(), "fid {new} is in use");
                walked
            }
            12 => [self.node(file), vec![0; 4]].concat(),
            22 => [&(served.contents.len() as u16).to_le_bytes()[..], served.contents].concat(),
            24 => {
                let links = if file == FILE { 2 } else { 1 };
                let numbers = [links, 0, served.contents.len() as u64, 4096, 8, 7, 0, 8, 0, 9, 0, 0, 0, 0, 0];
                let owner = [served.mode, 1000, 1001].map(u32::to_le_bytes).concat();
                let numbers = numbers.map(u64::to_le_bytes).concat();
                [vec![0; 8], self.node(file), owner, numbers].concat()
            }
            40 => {
                // One entry at a time.
                let at = request.u64().unwrap() as usize;
                let mut entries = Vec::new();
                if let Some((name, file)) = served.entries.get(at) {
                    entries = self.node(*file);
                    entries.extend((at as u64 + 1).to_le_bytes());
                    entries.push((self.files[*file].mode >> 12) as u8);
                    entries.extend((name.len() as u16).to_le_bytes());
                    entries.extend(name.as_bytes());
                }
                [(entries.len() as u32).to_le_bytes().to_vec(), entries].concat()
            }
            116 => {
                let (at, most) = (request.u64().unwrap() as usize, request.u32().unwrap() as usize);
                let bytes = served.contents.get(at..).unwrap_or_default();
                let bytes = &bytes[..bytes.len().min(most)];
                [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat()
            }
            120 => {
                fids.remove(&fid);
                Vec::new()
            }
            8 => {
                let numbers = [100u64, 50, 40, 30, 20, 1];
                [vec![0; 4], 8192u32.to_le_bytes().to_vec(), numbers.map(u64::to_le_bytes).concat()].concat()
            }
            _ => return Err(38),
        })
    }
}

impl Transport for Arc<Server> {
    fn exchange(&self, request: &[u8], reply: &mut [u8]) -> Result<usize, Errno> {
        assert_eq!(u32::from_le_bytes(request[..4].try_into().unwrap()) as usize, request.len());
        let kind = request[4];
        let (code, body) = match self.reply(kind, &mut Request::of(&request[7..])) {
            Ok(body) => (kind + 1, body),
            Err(number) => (7, number.to_le_bytes().to_vec()),
        };
        let len = 7 + body.len() as u32;
        let mut bytes = [&len.to_le_bytes()[..], &[code, 0, 0], &body].concat();
        (self.spoil)(kind, &mut bytes);
        let len = bytes.len().min(reply.len());
        reply[..len].copy_from_slice(&bytes[..len]);
        Ok(len)
    }
}

fn attach(spoil: Box<Spoil>) -> (Arc<Server>, Result<Folder, Errno>) {
    let server = Arc::new(server(spoil));
    let folder = Folder::attach(Box::new(server.clone()));
    (server, folder)
}

/// A tree over the folder, whose contents are copied when a file is looked up.
struct Over(Arc<Folder>);

impl Host for Over {
    fn now(&self) -> Time {
        Host::now(&testing::Machine)
    }

    fn pages(&self) -> Result<Arc<dyn Pages>, Errno> {
        testing::Machine.pages()
    }

    fn kept_pages(&self, inode: u64, size: u64) -> Result<Arc<dyn Pages>, Errno> {
        let (pages, bytes) = (OnHeap::default(), read(&self.0, inode, 0, size as usize)?);
        pages.write(0, &mut &bytes[..])?;
        Ok(Arc::new(pages))
    }

    fn space(&self) -> Capacity {
        testing::Machine.space()
    }
}

fn read(folder: &Folder, file: u64, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let bytes: Vec<AtomicU8> = (0..len).map(|_| AtomicU8::new(0xaa)).collect();
    let count = folder.read(file, at, &bytes)?;
    Ok(bytes[..count].iter().map(|byte| byte.load(Relaxed)).collect())
}

fn names(folder: &Folder, directory: u64) -> Result<Vec<(String, u64, Kind)>, Errno> {
    let mut names = Vec::new();
    folder.list(directory, &mut |name, number, kind| {
        names.push((String::from_utf8_lossy(name).into(), number, kind));
        Ok(())
    })?;
    Ok(names)
}

#[test]
fn names_attributes_and_contents_come_from_the_server() {
    let (server, folder) = attach(Box::new(|_, _| ()));
    let folder = folder.unwrap();
    let entry = |name: &str, number, kind| (String::from(name), number, kind);
    assert_eq!(
        names(&folder, 0).unwrap(),
        [
            entry("folder", 1, Kind::Directory),
            entry("file", 2, Kind::Regular),
            entry("link", 3, Kind::Link),
            entry("same", 2, Kind::Regular)
        ]
    );
    let file = folder.inode(2, Some((0, b"file"))).unwrap();
    assert_eq!((file.kind, file.mode, file.uid, file.gid, file.size), (Kind::Regular, 0o644, 1000, 1001, 8));
    assert_eq!((file.accessed.seconds, file.modified.seconds, file.changed.seconds), (7, 8, 9));
    assert_eq!(folder.inode(3, Some((0, b"link"))).unwrap().kind, Kind::Link);
    assert_eq!(&*folder.target(3).unwrap(), b"folder/large");
    folder.inode(1, Some((0, b"folder"))).unwrap();
    assert_eq!(folder.inode(4, Some((1, b"large"))).unwrap().size, 200_000);
    assert_eq!(read(&folder, 4, 3, 150_000).unwrap(), server.files[4].contents[3..150_003], "in several messages");
    assert_eq!(read(&folder, 2, 4, 100).unwrap(), b"ents");
    let space = folder.space();
    assert_eq!((space.pages, space.free_pages, space.inodes), (200, 80, 30));
    [2, 4].iter().for_each(|file| folder.close(*file));
    assert_eq!(server.fids.lock().unwrap().len(), 5, "those that name files");
}

/// A name that leads to another file by now is no more what was listed.
#[test]
fn a_file_that_the_server_replaced_is_gone() {
    let (server, folder) = attach(Box::new(|_, _| ()));
    let folder = folder.unwrap();
    assert_eq!(folder.inode(4, Some((0, b"file"))).err(), Some(Errno::ENOENT));
    assert_eq!(folder.inode(4, Some((0, b"none"))).err(), Some(Errno::ENOENT));
    assert_eq!(folder.inode(4, None).err(), Some(Errno::EIO));
    assert_eq!(server.fids.lock().unwrap().len(), 1);
}

/// Whatever the server replies, the client neither panics nor hangs, nor takes a file that it can't
/// be.
#[test]
fn malformed_replies_are_errors() {
    let use_it = |folder: &Folder| {
        let _ = names(folder, 0);
        for (name, number) in [(&b"file"[..], 2), (b"link", 3), (b"folder", 1)] {
            let _ = folder.inode(number, Some((0, name)));
        }
        let _ = (folder.target(3), folder.space(), read(folder, 2, 0, 100));
    };
    for kind in [100, 104, 110, 12, 22, 24, 40, 116, 8] {
        // Each prefix, and each byte changed.
        for at in 0..170 {
            let short = move |of: u8, bytes: &mut Vec<u8>| {
                if of == kind {
                    bytes.truncate(at)
                }
            };
            attach(Box::new(short)).1.iter().for_each(use_it);
            for value in [0, 1, 0x7f, 0xff] {
                let changed = move |of: u8, bytes: &mut Vec<u8>| {
                    if of == kind && at < bytes.len() {
                        bytes[at] = value;
                    }
                };
                attach(Box::new(changed)).1.iter().for_each(use_it);
            }
        }
    }
    let renamed = |of: u8, bytes: &mut Vec<u8>| {
        if of == 40 && bytes.len() > 35 {
            bytes[35] = b'/';
        }
    };
    assert_eq!(names(&attach(Box::new(renamed)).1.unwrap(), 0), Err(Errno::EIO), "a name with a slash");
    let version = |of: u8, bytes: &mut Vec<u8>| {
        if of == 100 {
            *bytes.last_mut().unwrap() = b'u'
        }
    };
    assert_eq!(attach(Box::new(version)).1.err(), Some(Errno::EPROTONOSUPPORT));
    let endless = |of: u8, bytes: &mut Vec<u8>| {
        if of == 40 && bytes.len() > 31 {
            bytes[24..32].fill(0);
        }
    };
    assert_eq!(names(&attach(Box::new(endless)).1.unwrap(), 0).unwrap().len(), 1, "an offset that does not advance");
}

/// Programs change the names, attributes and contents of a tree over the folder, and the server
/// learns of nothing.
#[test]
fn changes_stay_in_memory() {
    let (server, folder) =
        attach(Box::new(|of, _| assert!([100, 104, 110, 12, 22, 24, 40, 116, 120, 8].contains(&of))));
    let folder = Arc::new(folder.unwrap());
    let root: Arc<dyn Inode> =
        Tree::over_disk(Arc::new(Over(folder.clone())), Device { major: 0, minor: 9 }, folder).unwrap();
    let (mount, cred) = (Namespace::default(), FileCredentials::root());
    let view = View { names: &mount, root: &root, current: &root, cred: &cred };
    let open = |path: &str, flags| view.open(path.as_bytes(), flags, 0o600).unwrap();
    let write = |path: &str, flags, bytes: &[u8]| {
        assert_eq!(block_on(open(path, flags).write(&mut &bytes[..], &NeverWaits)), Ok(bytes.len()));
    };
    let read = |path: &str| {
        let mut bytes = [0; 20];
        let count = block_on(open(path, 0).read(&mut &mut bytes[..], &NeverWaits)).unwrap();
        bytes[..count].to_vec()
    };
    write("/file", O_RDWR, b"C");
    assert_eq!(read("/file"), b"Contents");
    view.remove(b"/file", false).unwrap();
    assert!(view.get(b"/file", true).is_err());
    assert_eq!(read("/same"), b"Contents", "the file under its other name");
    write("/folder/new", O_RDWR | O_CREAT, b"new");
    assert!(view.get(b"/folder/new", true).unwrap().meta().inode >= FIRST_OVER_DISK);
    view.rename(b"/folder/new", &view, b"/link", 0).unwrap();
    assert_eq!(read("/link"), b"new", "the new file took the link's place");
    write("/folder/large", O_RDWR | O_TRUNC, b"small");
    assert_eq!(view.get(b"/folder/large", true).unwrap().meta().size, 5);
    view.set_mode(&*view.get(b"/folder/large", true).unwrap(), 0o444).unwrap();
    view.remove(b"/folder/large", false).unwrap();
    let removed = Arc::downgrade(&view.get(b"/folder", true).unwrap());
    view.remove(b"/folder", true).unwrap();
    assert_eq!(removed.strong_count(), 0, "a removed directory is freed");
    view.make(b"/folder", Kind::Directory, 0o700, Device::default(), &[]).unwrap();
    assert!(view.get(b"/folder/large", true).is_err());
    assert_eq!(server.files[4].contents.len(), 200_000);
}
