//! Connects the portable half's file systems to this machine.
//!
//! | file | subject |
//! |---|---|
//! | [`contents`] | contents of files: the engine's page-cache objects |
//! | [`block`] | the files of block devices |
//! | [`ext4`] | ext4 on a block device |
//! | [`huge`] | the size of the pool of huge pages, in `/sys` and `/proc/sys` |
//! | [`writeback`] | the tasks that read, and that write dirty pages |
//! | [`user`] | user buffers of reads and writes |
//! | [`terminals`] | terminals: their devices, and the terminal of the host's user |
//! | [`stream`] | the first program's standard streams, over the serial port |
//! | [`root`] | the root file system |
//! | [`kinds`] | file-system types, and mounting them |
//! | [`mount`] | the mount table |
//! | [`proc`] | `/proc` |
//! | [`mod@sys`] | `/sys` |
//! | [`cgroupfs`] | the cgroup2 file system |
//! | [`descriptors`] | adds open files to a thread's table |
//! | [`uffd`] | userfaultfd files |
//! | [`shm`] | System V shared memory segments |

pub mod block;
pub mod cgroupfs;
pub mod contents;
pub mod descriptors;
pub mod ext4;
pub mod huge;
pub mod kinds;
pub mod mount;
pub mod proc;
pub mod root;
pub mod shm;
pub mod stream;
pub mod sys;
pub mod terminals;
pub mod uffd;
pub mod user;
pub mod writeback;

use crate::mem::{now_ns, started_at};
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general::{HUGETLBFS_MAGIC, O_RDONLY, O_WRONLY, TMPFS_MAGIC};
use root::Roots;
use spin::Once;
use stream::Stream;
use vellum::HugePages;
use vellum::frame::policy::ShmemFolios;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::device;
use vellum_kernel::fs::lock::{Locks, Owner};
use vellum_kernel::fs::meta::{Device, Time};
use vellum_kernel::fs::names::{Driver, MappedFile, View};
use vellum_kernel::fs::open::Open;
use vellum_kernel::fs::table::Slot;
use vellum_kernel::fs::tree::{self, Capacity, Node, Tree};
use vellum_kernel::fs::{FileCredentials, Files, Inode, Kind, Namespace, Pages, Table};

/// The mount namespace, the file locks and the root file system.
struct World {
    names: Namespace,
    locks: Arc<Locks>,
    root: Arc<Node>,
    /// The type of the root file system.
    root_kind: &'static str,
    /// A tmpfs for files without a name.
    memory: Arc<Node>,
    /// A hugetlbfs for files without a name.
    huge: Arc<Node>,
}

static WORLD: Once<World> = Once::new();

/// Returns the time of day.
fn time_of_day() -> Time {
    let now = started_at() + now_ns();
    Time { seconds: (now / 1_000_000_000) as i64, nanoseconds: (now % 1_000_000_000) as u32 }
}

/// The services that a tmpfs needs from this machine.
struct Host {
    /// The settings of the folios of files; `None` for a hugetlbfs, whose files have huge pages of
    /// the machine's pool.
    folios: Option<ShmemFolios>,
}

/// Those of a file system that names no folios of its own.
const MEMORY: Host = Host { folios: Some(ShmemFolios::Sizes) };
/// Those of a hugetlbfs.
const HUGE: Host = Host { folios: None };

impl tree::Host for Host {
    fn now(&self) -> Time {
        time_of_day()
    }

    fn pages(&self) -> Result<Arc<dyn Pages>, Errno> {
        Ok(match self.folios {
            Some(folios) => Arc::new(contents::ObjectContents::new(folios)?),
            None => Arc::new(contents::HugeContents::new()?),
        })
    }

    fn kind(&self) -> (u32, u32) {
        match self.folios {
            Some(_) => (TMPFS_MAGIC, 4096),
            None => (HUGETLBFS_MAGIC, contents::HUGE_PAGE as u32),
        }
    }

    fn space(&self) -> Capacity {
        if self.folios.is_none() {
            let HugePages { total, free, .. } = contents::HugeContents::pool();
            return Capacity { total, free };
        }
        let frames = crate::mem::machine().frames();
        Capacity { total: frames.total(), free: frames.free_frames() }
    }
}

/// Installs the mount namespace. Called once.
fn begin(names: Namespace, Roots { memory, root, kind }: Roots) {
    let huge = Tree::root(Arc::new(HUGE), 2, 0o755);
    WORLD.call_once(|| World { names, locks: Arc::default(), root, root_kind: kind, memory, huge });
}

fn world() -> &'static World {
    WORLD.get().expect("files are set up")
}

/// Returns the type of the root file system, as the mount table shows it.
fn root_kind() -> &'static str {
    world().root_kind
}

/// Returns the table of file locks.
pub fn locks() -> &'static Arc<Locks> {
    &world().locks
}

/// Releases a process's locks on a file, because the process has closed a descriptor of it (POSIX).
pub fn closed(process: u32, open: &Open) {
    if world().locks.any() {
        world().locks.release_all(Owner::Process(process), Some(open.inode().identity()));
    }
}

/// Returns the file table of the first program: its three standard streams, or the terminal of the
/// host's user in their place, and the root as current directory.
///
/// # Errors
///
/// `ENOMEM`.
pub fn first(terminal: Option<Open>) -> Result<Files, Errno> {
    let mut table = Table::default();
    if let Some(open) = terminal.map(Arc::new) {
        for _ in 0..3 {
            table.add(Slot { open: open.clone(), close_on_exec: false }, 0, 1024)?;
        }
        return Ok(Files::new(table, world().root.clone(), 0o022));
    }
    let streams = [(Stream::Input, O_RDONLY), (Stream::Output, O_WRONLY), (Stream::Errors, O_WRONLY)];
    for (stream, flags) in streams {
        table.add(Slot { open: device::open(Arc::new(stream), flags), close_on_exec: false }, 0, 1024)?;
    }
    Ok(Files::new(table, world().root.clone(), 0o022))
}

/// Returns an empty file table, for a thread that has released its own.
pub fn none() -> Arc<Files> {
    static NONE: Once<Arc<Files>> = Once::new();
    NONE.call_once(|| Arc::new(Files::new(Table::default(), world().root.clone(), 0))).clone()
}

/// Calls `look` with the file system as a process sees it ([`Files::view`]).
///
/// # Errors
///
/// `EBADF`, `ENOTDIR`; those of `look`.
pub fn view<T>(
    files: &Files,
    who: &FileCredentials,
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
/// `ENOENT`: the directory was removed.
pub fn current_path(files: &Files) -> Result<Vec<u8>, Errno> {
    let root: Arc<dyn Inode> = world().root.clone();
    files.current_path(&world().names, &root)
}

/// An executable's inode, and the name and identity under which its mappings are shown.
pub type Executable = (Arc<dyn Inode>, MappedFile);

/// Returns the executable file at a path. With `follow`, a link at its end is followed.
///
/// # Errors
///
/// Those of resolving the path.
pub fn executable(view: &View, path: &[u8], follow: bool) -> Result<Executable, Errno> {
    let found = view.find(path, follow)?;
    let mapped = MappedFile::from_lookup(&found).ok_or(Errno::ENOENT)?;
    Ok((found.inode.ok_or(Errno::ENOENT)?, mapped))
}

/// Returns the inode at an absolute path.
///
/// # Errors
///
/// Those of resolving the path.
pub fn find(path: &[u8]) -> Result<Arc<dyn Inode>, Errno> {
    from_root(|view| view.get(path, true))
}

/// Calls `look` with a view from the root that has all access rights.
pub fn from_root<T>(look: impl FnOnce(View) -> T) -> T {
    let root: Arc<dyn Inode> = world().root.clone();
    look(View { names: &world().names, root: &root, current: &root, cred: &FileCredentials::root() })
}

/// Creates the special file of a block device, accessible to root only.
///
/// # Errors
///
/// Those of creating a file.
pub fn make_block_device(path: &str, number: Device) -> Result<(), Errno> {
    from_root(|view| view.make(path.as_bytes(), Kind::Block, 0o600, number, &[]))
}

/// Registers the driver of a block device, and creates its special file.
///
/// # Errors
///
/// `ENOMEM`; those of creating a file.
fn add_block_device(path: &str, number: Device, driver: Driver) -> Result<(), Errno> {
    world().names.add_driver(Kind::Block, number, driver)?;
    make_block_device(path, number)
}

/// Creates an unlinked file in memory, or in `huge` pages of the machine's pool.
///
/// # Errors
///
/// `ENOMEM`.
pub fn memfd(who: &FileCredentials, sealable: bool, huge: bool) -> Result<Arc<Node>, Errno> {
    tree::memfd(if huge { &world().huge } else { &world().memory }, who.uid, who.gid, sealable)
}
