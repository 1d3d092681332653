//! The files of pseudo file systems (`/proc`, `/sys`, cgroupfs). A function produces a file's
//! contents when the file is read, another handles what is written, like `show` and `store` of a
//! sysfs attribute. The directories are in [`super::pseudo`].
//!
//! | type | contents |
//! |---|---|
//! | [`Text`] | a snapshot, produced whole by a read from the start (Linux: a `seq_file`) |
//! | [`Binary`] | read and written at an offset, with no snapshot (Linux: a binary attribute) |
//! | [`Link`] | a symbolic link's target |

use super::inode::{File, Inode, Space};
use super::io::{Sink, Source};
use super::meta::{Device, Kind, Meta};
use crate::errno::Errno;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use spin::Mutex;

/// The most bytes that one write to a [`Text`] may have.
const MAX_WRITE: usize = 4096;

/// A function that produces the contents of a file, or the target of a link.
pub type Show = Box<dyn Fn() -> Result<Vec<u8>, Errno> + Send + Sync>;
/// A function that handles the bytes of one write.
pub type Store = Box<dyn Fn(&[u8]) -> Result<(), Errno> + Send + Sync>;

/// A pseudo file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct PseudoFs {
    /// Its device number, different from that of any other file system.
    pub device: Device,
    /// The magic number that `statfs` returns.
    pub magic: u32,
    /// A function that returns the owner of the files, and its argument. Root owns the files if
    /// this is `None`.
    pub owner: Option<(OwnerOf, u32)>,
    /// The number of the next inode, at least 2³²; `None`: the next of the ascending numbers below.
    pub number: Option<u64>,
}

/// A user ID and a group ID.
pub type Owner = (u32, u32);
/// A function that returns the current owner of files, for example of a process by its PID.
pub type OwnerOf = fn(u32) -> Owner;

impl PseudoFs {
    /// Returns the attributes of a new inode of this file system.
    pub(super) fn meta(self, kind: Kind, mode: u32) -> Meta {
        static NEXT: AtomicU64 = AtomicU64::new(2);
        Meta::new(self.device, self.number.unwrap_or_else(|| NEXT.fetch_add(1, Relaxed)), kind, mode)
    }

    /// Returns `meta` with the current owner.
    pub(super) fn with_owner(self, meta: &Meta) -> Meta {
        let (uid, gid) = self.owner.map_or((meta.uid, meta.gid), |(owner, of)| owner(of));
        Meta { uid, gid, ..meta.clone() }
    }

    /// Returns the statistics for `statfs`: the magic number, and zero for all sizes.
    pub(super) fn space(self) -> Space {
        Space { magic: self.magic, ..Space::default() }
    }
}

/// A file whose contents are a snapshot.
pub struct Text {
    system: PseudoFs,
    meta: Meta,
    show: Option<Show>,
    store: Option<Store>,
    ioctl: Option<Ioctl>,
}

impl Text {
    /// Creates a file of this mode. Reads fail with `EINVAL` without `show`, writes without
    /// `store`.
    pub fn new(system: PseudoFs, mode: u32, show: Option<Show>, store: Option<Store>) -> Arc<Text> {
        Arc::new(Text { system, meta: system.meta(Kind::Regular, mode), show, store, ioctl: None })
    }

    /// Creates a file of this mode that can only be read, and that has `ioctl`s.
    pub fn with_ioctl(system: PseudoFs, mode: u32, show: Show, ioctl: Ioctl) -> Arc<Text> {
        let meta = system.meta(Kind::Regular, mode);
        Arc::new(Text { system, meta, show: Some(show), store: None, ioctl: Some(ioctl) })
    }

    /// Creates a file of mode 0444 that can only be read.
    pub fn read_only(system: PseudoFs, show: impl Fn() -> Result<Vec<u8>, Errno> + Send + Sync + 'static) -> Arc<Text> {
        Text::new(system, 0o444, Some(Box::new(show)), None)
    }
}

impl Inode for Text {
    fn meta(&self) -> Meta {
        self.system.with_owner(&self.meta)
    }

    fn identity(&self) -> (u64, u64) {
        self.meta.identity()
    }

    fn kind(&self) -> Kind {
        self.meta.kind
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<Arc<dyn File>, Errno> {
        Ok(Arc::new(OpenText { text: self, snapshot: Mutex::new(None) }))
    }

    fn truncate(&self, _size: u64) -> Result<(), Errno> {
        // Accept a new size and ignore it: a shell's `echo > file` opens the file with `O_TRUNC`.
        Ok(())
    }

    fn space(&self) -> Space {
        self.system.space()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct OpenText {
    text: Arc<Text>,
    /// The contents as of the last read from offset 0; reads at other offsets continue it.
    snapshot: Mutex<Option<Arc<Vec<u8>>>>,
}

impl File for OpenText {
    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        let kept = self.snapshot.lock().clone().filter(|_| at > 0);
        let snapshot = match kept {
            Some(snapshot) => snapshot,
            None => {
                let show = self.text.show.as_ref().ok_or(Errno::EINVAL)?;
                // Not an `Arc<[u8]>`: making one copies the bytes, into an allocation that panics
                // if it fails.
                let snapshot = Arc::new(show()?);
                *self.snapshot.lock() = Some(snapshot.clone());
                snapshot
            }
        };
        let rest = usize::try_from(at).ok().and_then(|at| snapshot.get(at..)).unwrap_or_default();
        if rest.is_empty() || to.room() == 0 { Ok(0) } else { to.put(rest) }
    }

    fn write(&self, _at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        let store = self.text.store.as_ref().ok_or(Errno::EINVAL)?;
        let wanted = from.left();
        if wanted > MAX_WRITE {
            return Err(Errno::EINVAL);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(wanted)?;
        bytes.resize(wanted, 0);
        let mut taken = 0;
        while taken < wanted {
            taken += from.take(&mut bytes[taken..])?;
        }
        store(&bytes)?;
        Ok(wanted)
    }

    fn append(&self, from: &mut dyn Source) -> Result<(usize, u64), Errno> {
        self.write(0, from).map(|count| (count, count as u64))
    }

    fn request(&self, request: u32, argument: u64) -> Result<u64, Errno> {
        self.text.ioctl.as_ref().ok_or(Errno::ENOTTY)?(request, argument)
    }

    fn seekable(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A function that reads at an offset, and returns the number of bytes: 0 at the end.
pub type ReadAt = Box<dyn Fn(u64, &mut dyn Sink) -> Result<usize, Errno> + Send + Sync>;
/// A function that writes at an offset, and returns the number of bytes.
pub type WriteAt = Box<dyn Fn(u64, &mut dyn Source) -> Result<usize, Errno> + Send + Sync>;

/// A function that implements the `ioctl`s of a file. It gets the request and its argument.
pub type Ioctl = Box<dyn Fn(u32, u64) -> Result<u64, Errno> + Send + Sync>;

/// A file that is read and written at an offset, which may be large (`/proc/PID/mem`).
pub struct Binary {
    system: PseudoFs,
    meta: Meta,
    read: ReadAt,
    write: Option<WriteAt>,
    ioctl: Option<Ioctl>,
}

impl Binary {
    /// Creates a file of this mode.
    pub fn new(system: PseudoFs, mode: u32, read: ReadAt, write: Option<WriteAt>) -> Binary {
        Binary { system, meta: system.meta(Kind::Regular, mode), read, write, ioctl: None }
    }

    /// Adds `ioctl`s to the file.
    pub fn with_ioctl(self, ioctl: Ioctl) -> Binary {
        Binary { ioctl: Some(ioctl), ..self }
    }
}

impl Inode for Binary {
    fn meta(&self) -> Meta {
        self.system.with_owner(&self.meta)
    }

    fn identity(&self) -> (u64, u64) {
        self.meta.identity()
    }

    fn kind(&self) -> Kind {
        self.meta.kind
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<Arc<dyn File>, Errno> {
        Ok(self)
    }

    fn truncate(&self, _size: u64) -> Result<(), Errno> {
        Ok(())
    }

    fn space(&self) -> Space {
        self.system.space()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl File for Binary {
    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        (self.read)(at, to)
    }

    fn write(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        self.write.as_ref().ok_or(Errno::EINVAL)?(at, from)
    }

    fn request(&self, request: u32, argument: u64) -> Result<u64, Errno> {
        self.ioctl.as_ref().ok_or(Errno::ENOTTY)?(request, argument)
    }

    fn seekable(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A symbolic link whose target a function produces. With a [`Jump`] it is a magic link, which
/// leads directly to an inode whatever the target's path is (symlink(7)).
pub struct Link {
    system: PseudoFs,
    meta: Meta,
    target: Show,
    jump: Option<Jump>,
}

/// A function that returns the inode that a magic link leads to.
pub type Jump = Box<dyn Fn() -> Option<Arc<dyn Inode>> + Send + Sync>;

impl Link {
    /// Creates a link; a magic link if there is a `jump`.
    pub fn new(system: PseudoFs, target: Show, jump: Option<Jump>) -> Arc<Link> {
        Arc::new(Link { system, meta: system.meta(Kind::Link, 0o777), target, jump })
    }
}

impl Inode for Link {
    fn meta(&self) -> Meta {
        self.system.with_owner(&self.meta)
    }

    fn identity(&self) -> (u64, u64) {
        self.meta.identity()
    }

    fn kind(&self) -> Kind {
        self.meta.kind
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<Arc<dyn File>, Errno> {
        Err(Errno::ELOOP)
    }

    fn target(&self) -> Result<Vec<u8>, Errno> {
        (self.target)()
    }

    fn jump(&self) -> Option<Arc<dyn Inode>> {
        self.jump.as_ref()?()
    }

    fn space(&self) -> Space {
        self.system.space()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use std::string::String;
    use std::vec;

    const SYSTEM: PseudoFs = PseudoFs { device: Device { major: 0, minor: 5 }, magic: 7, owner: None, number: None };

    #[test]
    fn reads_continue_the_snapshot_of_the_last_read_from_the_start() {
        let reads = AtomicU32::new(0);
        let text =
            Text::read_only(SYSTEM, move || Ok(std::format!("read {}\n", reads.fetch_add(1, Relaxed)).into_bytes()));
        let file = text.open(0).unwrap();
        let read = |at: u64| {
            let mut bytes = [0; 4];
            let count = file.read(at, &mut &mut bytes[..]).unwrap();
            String::from_utf8(bytes[..count].into()).unwrap()
        };
        assert_eq!((read(0), read(4), read(7)), ("read".into(), " 0\n".into(), "".into()));
        assert_eq!((read(0), read(4)), ("read".into(), " 1\n".into()));
        assert_eq!(file.write(0, &mut &b"x"[..]), Err(Errno::EINVAL));
    }

    #[test]
    fn writes_go_to_the_handler() {
        let written = Arc::new(Mutex::new(vec![]));
        let stored = written.clone();
        let store: Store = Box::new(move |bytes| {
            stored.lock().push(bytes.to_vec());
            if bytes == b"bad" { Err(Errno::EINVAL) } else { Ok(()) }
        });
        let file = Text::new(SYSTEM, 0o200, None, Some(store)).open(0).unwrap();
        assert_eq!(file.write(0, &mut &b"max\n"[..]), Ok(4));
        assert_eq!(file.write(0, &mut &b"bad"[..]), Err(Errno::EINVAL));
        assert_eq!(*written.lock(), [b"max\n".to_vec(), b"bad".to_vec()]);
        assert_eq!(file.read(0, &mut &mut [0][..]), Err(Errno::EINVAL));
    }

    #[test]
    fn binary_files_are_read_at_an_offset_and_have_ioctls() {
        let read: ReadAt = Box::new(|at, to| if at < 8 { to.put(&at.to_le_bytes()[..1]) } else { Ok(0) });
        let binary = Arc::new(Binary::new(SYSTEM, 0o400, read, None).with_ioctl(Box::new(|_, argument| Ok(argument))));
        assert_eq!(binary.space().magic, 7);
        let file = binary.open(0).unwrap();
        let mut byte = [0];
        assert_eq!((file.read(5, &mut &mut byte[..]), byte), (Ok(1), [5]));
        assert_eq!(file.read(8, &mut &mut byte[..]), Ok(0));
        assert_eq!(file.request(1, 2), Ok(2));
        assert_eq!(file.write(0, &mut &b"x"[..]), Err(Errno::EINVAL));
    }
}
