//! Files whose contents are made when they are read (`/proc`, `/sys`, control files): a function
//! says what is in them, another takes what is written. They are in folders ([`super::pseudo`]).
//!
//! | what | contents |
//! |---|---|
//! | [`Text`] | made whole, of one moment |
//! | [`Window`] | read and written at an offset, each time anew |
//! | [`Link`] | where it leads |

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

/// The most that is taken in one write.
const LONGEST: usize = 4096;

/// Says what is in a file.
pub type Make = Box<dyn Fn() -> Result<Vec<u8>, Errno> + Send + Sync>;
/// Takes what is written.
pub type Take = Box<dyn Fn(&[u8]) -> Result<(), Errno> + Send + Sync>;

/// A file system of such files.
#[derive(Clone, Copy, Debug, Default)]
pub struct System {
    /// The device that tells it from others.
    pub device: Device,
    /// What `statfs` calls it.
    pub magic: u32,
    /// Whose the files are, if not root's: a function that knows, and what it is asked.
    pub owner: Option<(Knows, u32)>,
}

/// The numbers of a user and of a group.
pub type Owner = (u32, u32);
/// Says whose something is.
pub type Knows = fn(u32) -> Owner;

impl System {
    /// What there is to know about a new inode of this file system, which has a number of its own.
    pub(super) fn meta(self, kind: Kind, mode: u32) -> Meta {
        static NEXT: AtomicU64 = AtomicU64::new(2);
        Meta::new(self.device, NEXT.fetch_add(1, Relaxed), kind, mode)
    }

    /// The same, with whose it is now.
    pub(super) fn owned(self, meta: &Meta) -> Meta {
        let (uid, gid) = self.owner.map_or((meta.uid, meta.gid), |(owner, of)| owner(of));
        Meta { uid, gid, ..meta.clone() }
    }

    /// It takes no memory worth mentioning.
    pub(super) fn space(self) -> Space {
        Space { magic: self.magic, ..Space::default() }
    }
}

/// A file of text.
pub struct Text {
    system: System,
    meta: Meta,
    make: Option<Make>,
    take: Option<Take>,
}

impl Text {
    /// A file of this mode.
    pub fn new(system: System, mode: u32, make: Option<Make>, take: Option<Take>) -> Arc<Text> {
        Arc::new(Text { system, meta: system.meta(Kind::Regular, mode), make, take })
    }

    /// A file that can be read only.
    pub fn read_only(system: System, make: impl Fn() -> Result<Vec<u8>, Errno> + Send + Sync + 'static) -> Arc<Text> {
        Text::new(system, 0o444, Some(Box::new(make)), None)
    }
}

impl Inode for Text {
    fn meta(&self) -> Meta {
        self.system.owned(&self.meta)
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<Arc<dyn File>, Errno> {
        Ok(Arc::new(Opened { text: self, made: Mutex::new(None) }))
    }

    fn truncate(&self, _size: u64) -> Result<(), Errno> {
        // `echo > file` truncates first.
        Ok(())
    }

    fn space(&self) -> Space {
        self.system.space()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct Opened {
    text: Arc<Text>,
    /// What is read from here on is of one moment: that of the last read from the start.
    made: Mutex<Option<Arc<Vec<u8>>>>,
}

impl File for Opened {
    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        let kept = self.made.lock().clone().filter(|_| at > 0);
        let made = match kept {
            Some(made) => made,
            None => {
                let make = self.text.make.as_ref().ok_or(Errno::EINVAL)?;
                // Not copied: that would take as much memory once more, and there may be none.
                let made = Arc::new(make()?);
                *self.made.lock() = Some(made.clone());
                made
            }
        };
        let rest = usize::try_from(at).ok().and_then(|at| made.get(at..)).unwrap_or_default();
        if rest.is_empty() || to.room() == 0 { Ok(0) } else { to.put(rest) }
    }

    fn write(&self, _at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        let take = self.text.take.as_ref().ok_or(Errno::EINVAL)?;
        let wanted = from.left();
        if wanted > LONGEST {
            return Err(Errno::EINVAL);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(wanted)?;
        bytes.resize(wanted, 0);
        let mut taken = 0;
        while taken < wanted {
            taken += from.take(&mut bytes[taken..])?;
        }
        take(&bytes)?;
        Ok(wanted)
    }

    fn append(&self, from: &mut dyn Source) -> Result<(usize, u64), Errno> {
        self.write(0, from).map(|count| (count, count as u64))
    }

    fn seekable(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Reads at an offset; zero bytes are the end.
pub type ReadAt = Box<dyn Fn(u64, &mut dyn Sink) -> Result<usize, Errno> + Send + Sync>;
/// Writes at an offset.
pub type WriteAt = Box<dyn Fn(u64, &mut dyn Source) -> Result<usize, Errno> + Send + Sync>;

/// Carries out a request (`ioctl`), with its argument.
pub type Asked = Box<dyn Fn(u32, u64) -> Result<u64, Errno> + Send + Sync>;

/// A file that shows something at an offset, which may be large (`/proc/PID/mem`).
pub struct Window {
    system: System,
    meta: Meta,
    read: ReadAt,
    write: Option<WriteAt>,
    asked: Option<Asked>,
}

impl Window {
    /// A file of this mode.
    pub fn new(system: System, mode: u32, read: ReadAt, write: Option<WriteAt>) -> Window {
        Window { system, meta: system.meta(Kind::Regular, mode), read, write, asked: None }
    }

    /// The same, with requests of its own.
    pub fn asked(self, asked: Asked) -> Window {
        Window { asked: Some(asked), ..self }
    }
}

impl Inode for Window {
    fn meta(&self) -> Meta {
        self.system.owned(&self.meta)
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

impl File for Window {
    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        (self.read)(at, to)
    }

    fn write(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        self.write.as_ref().ok_or(Errno::EINVAL)?(at, from)
    }

    fn request(&self, request: u32, argument: u64) -> Result<u64, Errno> {
        self.asked.as_ref().ok_or(Errno::ENOTTY)?(request, argument)
    }

    fn seekable(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A symbolic link whose target a function says, and that may lead to an inode whatever the
/// target's name says.
pub struct Link {
    system: System,
    meta: Meta,
    target: Make,
    jump: Option<Jump>,
}

/// Says where a link leads.
pub type Jump = Box<dyn Fn() -> Option<Arc<dyn Inode>> + Send + Sync>;

impl Link {
    /// A link.
    pub fn new(system: System, target: Make, jump: Option<Jump>) -> Arc<Link> {
        Arc::new(Link { system, meta: system.meta(Kind::Link, 0o777), target, jump })
    }
}

impl Inode for Link {
    fn meta(&self) -> Meta {
        self.system.owned(&self.meta)
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

    const SYSTEM: System = System { device: Device { major: 0, minor: 5 }, magic: 7, owner: None };

    #[test]
    fn text_is_of_one_moment() {
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
        let heard = Arc::new(Mutex::new(vec![]));
        let hears = heard.clone();
        let take: Take = Box::new(move |bytes| {
            hears.lock().push(bytes.to_vec());
            if bytes == b"bad" { Err(Errno::EINVAL) } else { Ok(()) }
        });
        let file = Text::new(SYSTEM, 0o200, None, Some(take)).open(0).unwrap();
        assert_eq!(file.write(0, &mut &b"max\n"[..]), Ok(4));
        assert_eq!(file.write(0, &mut &b"bad"[..]), Err(Errno::EINVAL));
        assert_eq!(*heard.lock(), [b"max\n".to_vec(), b"bad".to_vec()]);
        assert_eq!(file.read(0, &mut &mut [0][..]), Err(Errno::EINVAL));
    }

    #[test]
    fn windows() {
        let read: ReadAt = Box::new(|at, to| if at < 8 { to.put(&at.to_le_bytes()[..1]) } else { Ok(0) });
        let window = Arc::new(Window::new(SYSTEM, 0o400, read, None).asked(Box::new(|_, argument| Ok(argument))));
        assert_eq!(window.space().magic, 7);
        let file = window.open(0).unwrap();
        let mut byte = [0];
        assert_eq!((file.read(5, &mut &mut byte[..]), byte), (Ok(1), [5]));
        assert_eq!(file.read(8, &mut &mut byte[..]), Ok(0));
        assert_eq!(file.request(1, 2), Ok(2));
        assert_eq!(file.write(0, &mut &b"x"[..]), Err(Errno::EINVAL));
    }
}
