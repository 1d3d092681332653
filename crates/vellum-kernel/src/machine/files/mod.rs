//! Files: what ties the library's file systems to this machine.
//!
//! | file | story |
//! |---|---|
//! | [`contents`] | the contents of files in memory, which are the engine's objects |
//! | [`user`] | bytes in a program's memory, to read to and write from |
//! | [`stream`] | the streams of the first program, over the wire |
//! | [`kinds`] | the file systems that there are, and mounting them |
//! | [`mount`] | what is mounted where |
//! | [`proc`] | `/proc` |
//! | [`mod@sys`] | `/sys` |
//! | [`cgroupfs`] | control groups |
//! | [`uffd`] | the files of `userfaultfd` |
//! | [`shm`] | the segments of System V shared memory |

pub mod cgroupfs;
pub mod contents;
pub mod kinds;
pub mod mount;
pub mod proc;
pub mod shm;
pub mod stream;
pub mod sys;
pub mod uffd;
pub mod user;

use crate::mem::{EPOCH, now_ns};
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general::{O_RDONLY, O_WRONLY};
use spin::Once;
use stream::Stream;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::device;
use vellum_kernel::fs::lock::{Locks, Owner};
use vellum_kernel::fs::meta::{Device, Time};
use vellum_kernel::fs::names::{Mapped, View};
use vellum_kernel::fs::open::Open;
use vellum_kernel::fs::table::Slot;
use vellum_kernel::fs::tmpfs::{self, Node};
use vellum_kernel::fs::{Files, Inode, Kind, Namespace, Pages, Table, Who};

/// All there is.
struct World {
    names: Namespace,
    locks: Arc<Locks>,
    root: Arc<Node>,
}

static WORLD: Once<World> = Once::new();

/// What the file system in memory gets from this machine.
struct Host;

impl tmpfs::Host for Host {
    fn now(&self) -> Time {
        let now = EPOCH + now_ns();
        Time { seconds: (now / 1_000_000_000) as i64, nanoseconds: (now % 1_000_000_000) as u32 }
    }

    fn pages(&self) -> Result<Arc<dyn Pages>, Errno> {
        Ok(Arc::new(contents::InObject::new()?))
    }

    fn space(&self) -> (u64, u64) {
        let frames = crate::mem::machine().frames();
        (frames.total(), frames.free_frames())
    }
}

/// Makes these the files that there are.
fn begin(names: Namespace, root: Arc<Node>) {
    WORLD.call_once(|| World { names, locks: Arc::default(), root });
}

fn world() -> &'static World {
    WORLD.get().expect("files are set up")
}

/// The locks on files.
pub fn locks() -> &'static Arc<Locks> {
    &world().locks
}

/// A process has closed a descriptor: with it go the process's locks on the file.
pub fn closed(process: u32, open: &Open) {
    if world().locks.any() {
        world().locks.release_all(Owner::Process(process), Some(open.inode().meta().identity()));
    }
}

/// Returns the files of the first program: its three streams, and the root as its current directory.
///
/// # Errors
///
/// `ENOMEM`.
pub fn first() -> Result<Files, Errno> {
    let mut table = Table::default();
    let streams = [(Stream::Input, O_RDONLY), (Stream::Output, O_WRONLY), (Stream::Errors, O_WRONLY)];
    for (stream, flags) in streams {
        table.add(Slot { open: device::open(Arc::new(stream), flags), close_on_exec: false }, 0, 1024)?;
    }
    Ok(Files::new(table, world().root.clone(), 0o022))
}

/// Returns the files of a thread that has given up its own: no descriptor.
pub fn none() -> Arc<Files> {
    static NONE: Once<Arc<Files>> = Once::new();
    NONE.call_once(|| Arc::new(Files::new(Table::default(), world().root.clone(), 0))).clone()
}

/// Calls `look` with the names as a process sees them ([`Files::view`]).
///
/// # Errors
///
/// `EBADF`, `ENOTDIR`, and those of `look`.
pub fn view<T>(
    files: &Files,
    who: &Who,
    at: i32,
    absolute: bool,
    look: impl FnOnce(View) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let root: Arc<dyn Inode> = world().root.clone();
    files.view((&world().names, &root), who, at, absolute, look)
}

/// Returns the path of a process's current directory.
///
/// # Errors
///
/// `ENOENT`: it was removed.
pub fn current_path(files: &Files) -> Result<Vec<u8>, Errno> {
    let root: Arc<dyn Inode> = world().root.clone();
    files.current_path(&world().names, &root)
}

/// A program's file, and what is remembered of it.
pub type Executable = (Arc<dyn Inode>, Mapped);

/// What a path leads to that is to be executed; `follow`: if it is a link, then to what it leads to.
///
/// # Errors
///
/// Those of looking for it.
pub fn executable(view: &View, path: &[u8], follow: bool) -> Result<Executable, Errno> {
    let found = view.find(path, follow)?;
    let mapped = Mapped::found(&found).ok_or(Errno::ENOENT)?;
    Ok((found.inode.ok_or(Errno::ENOENT)?, mapped))
}

/// The inode of a path from the root on.
///
/// # Errors
///
/// Those of looking for it.
pub fn find(path: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
    from_root(|view| view.get(path, true))
}

/// Looks at names from the root on, with all rights.
pub fn from_root<T>(look: impl FnOnce(View) -> T) -> T {
    let root: Arc<dyn Inode> = world().root.clone();
    look(View { names: &world().names, root: &root, current: &root, who: &Who::root() })
}

/// Makes the file of a block device, for root alone.
///
/// # Errors
///
/// Those of making it.
pub fn make_block_device(path: &str, number: Device) -> Result<(), Errno> {
    from_root(|view| view.make(path.as_bytes(), Kind::Block, 0o600, number, &[]))
}

/// A file in memory without a name.
///
/// # Errors
///
/// `ENOMEM`.
pub fn memfd(who: &Who, sealable: bool) -> Result<Arc<Node>, Errno> {
    tmpfs::memfd(&world().root, who.uid, who.gid, sealable)
}
