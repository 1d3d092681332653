//! A folder of another machine by the protocol 9P2000.L, read-only: the client.
//!
//! [`Folder`] is the [`Disk`] of a tree. A file of the server is known by a *fid*, a number that
//! the client chooses: one that names the file for as long as the folder is in use, and another
//! while its contents are read. The server may change the folder meanwhile. Names and attributes
//! are asked for once, and contents whenever the page cache needs them.
//!
//! Requests are serialized by a spin lock, and wait for the reply by polling.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | names, attributes and contents of files |
//! | `message` | the messages |

mod message;
#[cfg(test)]
mod tests;

use super::inode::{NewInode, Space};
use super::meta::{Device, Kind, MODE, Time};
use super::tree::disk::{Attributes, Disk, EachEntry, Kept};
use crate::errno::Errno;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU8;
use linux_raw_sys::general::{O_DIRECTORY, O_RDONLY, V9FS_MAGIC};
use message::{DIRECTORY, LINK, Node, Reader, Request, Writer};
use spin::Mutex;
use vellum::platform::bytes as page;

/// The largest message in bytes.
pub const LARGEST_MESSAGE: usize = 64 << 10;
/// The most bytes of a file, or of a directory's entries, that are read at a time. The rest of the
/// reply's room is for its head.
const LARGEST_READ: u32 = 60 << 10;
/// The room of a request: names are the largest part of one.
const LARGEST_REQUEST: usize = 1024;
/// The name of the protocol.
const VERSION: &[u8] = b"9P2000.L";
/// A fid that no file has.
const NO_FID: u32 = u32::MAX;
/// The attributes asked for: all that `stat` shows (`P9_GETATTR_BASIC`).
const BASIC: u64 = 0x7ff;
/// The largest number of a file: a tree has larger numbers for its own.
const LARGEST_NUMBER: u64 = i64::MAX as u64;

/// The way to the server.
pub trait Transport: Send + Sync {
    /// Sends a request, waits for the reply, and returns the reply's length.
    ///
    /// # Errors
    /// `EIO`.
    fn exchange(&self, request: &[u8], reply: &mut [u8]) -> Result<usize, Errno>;
}

/// The folder, as the server's root directory.
pub struct Folder {
    transport: Box<dyn Transport>,
    root: u64,
    messages: Mutex<Messages>,
    fids: Mutex<Fids>,
}

/// The messages of one exchange.
struct Messages {
    request: Vec<u8>,
    reply: Vec<u8>,
}

/// The fids in use.
struct Fids {
    next: u32,
    /// Those that name files, by the files' numbers.
    named: BTreeMap<u64, u32>,
    /// Those by which contents are read, by the files' numbers.
    open: BTreeMap<u64, u32>,
}

/// Returns a vector of this capacity.
fn with_capacity(bytes: usize) -> Result<Vec<u8>, Errno> {
    let mut vec = Vec::new();
    vec.try_reserve_exact(bytes)?;
    Ok(vec)
}

impl Folder {
    /// Agrees with the server on the protocol, and opens its root directory.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT`: the server has no 9P2000.L, or smaller messages. `EIO`, `ENOMEM`; those
    /// of the server.
    pub fn attach(transport: Box<dyn Transport>) -> Result<Self, Errno> {
        let mut reply = with_capacity(LARGEST_MESSAGE)?;
        reply.resize(LARGEST_MESSAGE, 0);
        let messages = Mutex::new(Messages { request: with_capacity(LARGEST_REQUEST)?, reply });
        let fids = Fids { next: 0, named: BTreeMap::new(), open: BTreeMap::new() };
        let mut folder = Folder { transport, root: 0, messages, fids: Mutex::new(fids) };
        let version = |to: Writer<'_>| to.u32(LARGEST_MESSAGE as u32).text(VERSION).end();
        let agreed = folder.ask(Request::Version, version, |reply| {
            let (size, version) = (reply.u32()?, reply.text()?);
            Some(size as usize == LARGEST_MESSAGE && version == VERSION)
        })?;
        if !agreed {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let fid = folder.fids.lock().new_fid()?;
        let attach = |to: Writer<'_>| to.u32(fid).u32(NO_FID).text(b"root").text(b"").u32(0).end();
        let root = folder.ask(Request::Attach, attach, |reply| reply.node())?;
        folder.root = number(root)?;
        folder.fids.lock().named.insert(folder.root, fid);
        Ok(folder)
    }

    /// Makes a request, and reads the reply, which `read` finds malformed by returning `None`.
    fn ask<T>(
        &self,
        kind: Request,
        write: impl FnOnce(Writer<'_>) -> Result<(), Errno>,
        read: impl FnOnce(&mut Reader<'_>) -> Option<T>,
    ) -> Result<T, Errno> {
        let mut messages = self.messages.lock();
        let Messages { request, reply } = &mut *messages;
        write(Writer::new(request, kind))?;
        let len = self.transport.exchange(request, reply)?;
        let mut reader = Reader::new(reply.get(..len).ok_or(Errno::EIO)?, kind)?;
        read(&mut reader).ok_or(Errno::EIO)
    }

    /// Returns the fid that names a file which was looked up.
    fn named(&self, number: u64) -> Result<u32, Errno> {
        self.fids.lock().named.get(&number).copied().ok_or(Errno::EIO)
    }

    /// Returns a new fid for the file at a name in a directory, or, without a name, for the file of
    /// the fid `from` itself, and the file's identity.
    fn walk(&self, from: u32, name: Option<&[u8]>) -> Result<(u32, Option<Node>), Errno> {
        let fid = self.fids.lock().new_fid()?;
        let write = |to: Writer<'_>| {
            let to = to.u32(from).u32(fid).u16(name.is_some().into());
            if let Some(name) = name { to.text(name).end() } else { to.end() }
        };
        let node = self.ask(Request::Walk, write, |reply| {
            let found = reply.u16()?;
            (found == u16::from(name.is_some()))
                .then(|| if found == 1 { reply.node().map(Some) } else { Some(None) })?
        })?;
        Ok((fid, node))
    }

    /// Opens the file of a fid for reading.
    fn open(&self, fid: u32, flags: u32) -> Result<(), Errno> {
        self.ask(Request::Open, |to| to.u32(fid).u32(flags).end(), |reply| reply.node().map(|_| ()))
    }

    /// Ends the use of a fid.
    fn clunk(&self, fid: u32) {
        // A server that refuses keeps a file open, which harms nothing here.
        let _ = self.ask(Request::Clunk, |to| to.u32(fid).end(), |_| Some(()));
    }

    /// Reads entries of the directory of an open fid from an offset on. Returns the offset of the
    /// next ones; `None`: there are no more.
    fn entries_from(&self, fid: u32, offset: u64, each: &mut EachEntry<'_>) -> Result<Option<u64>, Errno> {
        let write = |to: Writer<'_>| to.u32(fid).u64(offset).u32(LARGEST_READ).end();
        let (mut next, mut failed) = (None, Ok(()));
        self.ask(Request::ReadDirectory, write, |reply| {
            let len = reply.u32()?;
            let mut entries = Reader::of(reply.take(len as usize)?);
            while !entries.is_empty() && failed.is_ok() {
                let (node, offset) = (entries.node()?, entries.u64()?);
                let (kind, name) = (entries.u8()?, entries.text()?);
                next = Some(offset);
                if name != b"." && name != b".." {
                    failed = entry(node, kind, name).and_then(|(number, kind)| each(name, number, kind));
                }
            }
            Some(())
        })?;
        failed?;
        Ok(next)
    }

    /// Reads bytes of a file, which was looked up, from `at` on. Returns the number of bytes read,
    /// which is smaller only at the end of the file.
    ///
    /// # Errors
    /// `EIO`; those of the server, such as `EACCES`.
    pub fn read(&self, file: u64, mut at: u64, mut to: &[AtomicU8]) -> Result<usize, Errno> {
        let (fid, len) = (self.open_fid(file)?, to.len());
        while !to.is_empty() {
            let most = to.len().min(LARGEST_READ as usize);
            let write = |message: Writer<'_>| message.u32(fid).u64(at).u32(most as u32).end();
            let read = self.ask(Request::Read, write, |reply| {
                let count = reply.u32()?;
                let bytes = reply.take(count as usize).filter(|bytes| bytes.len() <= most)?;
                page::store(to, bytes);
                Some(bytes.len())
            })?;
            if read == 0 {
                break;
            }
            (at, to) = (at + read as u64, &to[read..]);
        }
        Ok(len - to.len())
    }

    /// Returns the fid by which a file's contents are read.
    fn open_fid(&self, file: u64) -> Result<u32, Errno> {
        if let Some(fid) = self.fids.lock().open.get(&file) {
            return Ok(*fid);
        }
        let (fid, _) = self.walk(self.named(file)?, None)?;
        self.open(fid, O_RDONLY).inspect_err(|_| self.clunk(fid))?;
        let mut fids = self.fids.lock();
        // Another thread may have opened the file meanwhile.
        let used = *fids.open.entry(file).or_insert(fid);
        drop(fids);
        if used != fid {
            self.clunk(fid);
        }
        Ok(used)
    }

    /// Closes a file whose contents nothing reads any more.
    pub fn close(&self, file: u64) {
        let open = self.fids.lock().open.remove(&file);
        open.into_iter().for_each(|fid| self.clunk(fid));
    }
}

impl Fids {
    /// Returns a fid that was never used.
    fn new_fid(&mut self) -> Result<u32, Errno> {
        let fid = self.next;
        self.next = fid.checked_add(1).filter(|next| *next != NO_FID).ok_or(Errno::ENFILE)?;
        Ok(fid)
    }
}

/// Returns a file's number.
fn number(node: Node) -> Result<u64, Errno> {
    if node.number <= LARGEST_NUMBER { Ok(node.number) } else { Err(Errno::EOVERFLOW) }
}

/// Returns the number and kind of a directory's entry, from its `d_type`, or else from what all
/// servers know.
fn entry(node: Node, kind: u8, name: &[u8]) -> Result<(u64, Kind), Errno> {
    if name.is_empty() || name.len() > 255 || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        return Err(Errno::EIO);
    }
    let known = match node.kind {
        kind if kind & DIRECTORY != 0 => Kind::Directory,
        kind if kind & LINK != 0 => Kind::Link,
        _ if kind == 0 || kind > 15 => Kind::Regular,
        _ => Kind::of(u32::from(kind) << 12)?,
    };
    Ok((number(node)?, known))
}

impl Disk for Folder {
    fn root(&self) -> u64 {
        self.root
    }

    fn list(&self, directory: u64, each: &mut EachEntry<'_>) -> Result<(), Errno> {
        let (fid, _) = self.walk(self.named(directory)?, None)?;
        let mut listed = self.open(fid, O_RDONLY | O_DIRECTORY);
        let mut offset = 0;
        while listed.is_ok() {
            match self.entries_from(fid, offset, each) {
                Ok(Some(next)) if next != offset => offset = next,
                Ok(_) => break,
                Err(error) => listed = Err(error),
            }
        }
        self.clunk(fid);
        listed
    }

    fn inode(&self, inode: u64, at: Option<(u64, &[u8])>) -> Result<Kept, Errno> {
        let known = self.fids.lock().named.get(&inode).copied();
        let fid = match (known, at) {
            (Some(fid), _) => fid,
            (None, None) => return Err(Errno::EIO),
            (None, Some((directory, name))) => {
                let (fid, node) = self.walk(self.named(directory)?, Some(name))?;
                if node.map(number) != Some(Ok(inode)) {
                    // Another file has the name by now.
                    self.clunk(fid);
                    return Err(Errno::ENOENT);
                }
                fid
            }
        };
        let kept = self.attributes(fid);
        match kept {
            Ok(_) => _ = self.fids.lock().named.insert(inode, fid),
            Err(_) if known.is_none() => self.clunk(fid),
            Err(_) => {}
        }
        kept
    }

    fn target(&self, link: u64) -> Result<Box<[u8]>, Errno> {
        let fid = self.named(link)?;
        self.ask(
            Request::ReadLink,
            |to| to.u32(fid).end(),
            |reply| {
                let target = reply.text()?;
                Some(with_capacity(target.len()).map(|mut copy| {
                    copy.extend_from_slice(target);
                    copy.into_boxed_slice()
                }))
            },
        )?
    }

    fn make(&self, _: u64, _: &[u8], _: &NewInode<'_>) -> Result<u64, Errno> {
        Err(Errno::EROFS)
    }

    fn link(&self, _: u64, _: &[u8], _: u64) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    fn remove(&self, _: u64, _: &[u8], _: bool) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    fn rename(&self, _: (u64, &[u8]), _: (u64, &[u8]), _: bool) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    fn forget(&self, _: u64) {}

    fn set(&self, _: u64, _: &Attributes) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }

    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn unmount(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn space(&self) -> Space {
        let asked = self.named(self.root).and_then(|fid| {
            self.ask(
                Request::Statfs,
                |to| to.u32(fid).end(),
                |reply| {
                    reply.u32()?;
                    let block = u64::from(reply.u32()?);
                    let (blocks, _, free) = (reply.u64()?, reply.u64()?, reply.u64()?);
                    let pages = |blocks: u64| (u128::from(blocks) * u128::from(block) / 4096) as u64;
                    let (inodes, free_inodes) = (reply.u64()?, reply.u64()?);
                    let (pages, free_pages) = (pages(blocks), pages(free));
                    Some(Space { magic: V9FS_MAGIC, block: 0, pages, free_pages, inodes, free_inodes })
                },
            )
        });
        asked.unwrap_or(Space { magic: V9FS_MAGIC, ..Space::default() })
    }
}

impl Folder {
    /// Asks for the attributes of the file of a fid.
    fn attributes(&self, fid: u32) -> Result<Kept, Errno> {
        let kept = self.ask(
            Request::GetAttributes,
            |to| to.u32(fid).u64(BASIC).end(),
            |reply| {
                reply.u64()?; // the attributes that are valid: a server has all that were asked for
                reply.node()?;
                let (mode, uid, gid) = (reply.u32()?, reply.u32()?, reply.u32()?);
                let (links, special, size) = (reply.u64()?, reply.u64()?, reply.u64()?);
                let (_block, _blocks) = (reply.u64()?, reply.u64()?);
                let mut time = || {
                    let (seconds, nanoseconds) = (reply.u64()?, reply.u64()?);
                    Some(Time { seconds: seconds as i64, nanoseconds: nanoseconds.min(999_999_999) as u32 })
                };
                let (accessed, modified, changed) = (time()?, time()?, time()?);
                Some(Kind::of(mode & 0o170_000).map(|kind| Kept {
                    kind,
                    mode: mode & MODE,
                    uid,
                    gid,
                    links: u32::try_from(links).unwrap_or(u32::MAX).max(1),
                    size: size.min(i64::MAX as u64),
                    special: Device::of(special as u32),
                    accessed,
                    modified,
                    changed,
                    born: changed,
                }))
            },
        )?;
        kept.map_err(|_| Errno::EIO)
    }
}
