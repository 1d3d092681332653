//! ext4: the file system on a disk, by the crate `rsext4`, which `patches/README.md` corrects.
//!
//! [`Ext4`] is the [`Disk`] of a tree, which is its cache of names and attributes. The contents of
//! files do not pass through the crate: the page cache finds where they are
//! ([`contents::Contents::read`]), and has room made for them when it writes them
//! ([`contents::Contents::write`]).
//!
//! Operations are atomic, and survive a loss of power from the next [`Disk::sync`] on. They are
//! serialized by a spin lock, and the CPU waits for the device.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | mounting, and the names and attributes of inodes |
//! | `cache` | the blocks of metadata that are in memory |
//! | [`contents`] | the contents of files |
//! | `host` | the services that the crate needs: blocks, time, random numbers |

mod cache;
pub mod contents;
mod host;
mod room;
#[cfg(test)]
mod tests;

use super::inode::{NewInode, Space};
use super::meta::{Device, Kind, MODE, Time};
use super::tree::disk::{Attributes, Disk, EachEntry, Kept};
use crate::errno::Errno;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};
pub use host::{BlockDevice, Host, SECTOR};
use host::{Blocks, Clock, Entropy, Works};
use linux_raw_sys::general::EXT4_SUPER_MAGIC;
use rsext4::{
    DeviceNumber, DirectoryCursor, DirectoryEntryType, Ext4Error, Ext4ErrorKind, Ext4Timestamp, FileName,
    FilePermissions, InodeInfo, InodeMetadataUpdate, InodeNumber, MountOptions, MountServices, MountedServices,
    MutationContext, NoopObserver, RenameOptions, SpecialInodeKind,
};
use spin::{Mutex, MutexGuard};

type Mounted = rsext4::Ext4<Blocks, MountedServices<Entropy, NoopObserver>>;

/// The number of syncs after which the journal's transactions are checkpointed, as they take memory
/// until then.
const SYNCS_PER_CHECKPOINT: u32 = 4;
/// The bytes of the largest block that the crate mounts: a page.
pub const LARGEST_BLOCK: usize = rsext4::MAX_BLOCK_SIZE as usize;
/// The number of entries of a directory that are read at a time.
const ENTRIES_AT_ONCE: usize = 64;

/// A mounted ext4 file system.
pub struct Ext4 {
    state: Mutex<State>,
    host: &'static dyn Host,
    cache: Arc<cache::Cache>,
    /// The bytes of a block.
    block: u64,
}

/// The state that the lock protects.
struct State {
    mounted: Mounted,
    /// The files whose contents are in use, by their inode numbers: true if the file is to be freed
    /// with its last use.
    in_use: BTreeMap<u64, bool>,
    syncs: u32,
    room: room::Room,
}

/// The locked state.
struct Locked<'a>(MutexGuard<'a, State>, #[expect(dead_code, reason = "a guard")] Works);

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

impl State {
    /// Returns the number of free bytes.
    fn free(&self, block: u64) -> u64 {
        self.mounted.statfs().free_blocks * block
    }
}

impl Ext4 {
    /// Mounts a file system. An unfinished journal is replayed, for `read_only` too, as on Linux.
    ///
    /// # Errors
    /// `EINVAL`: there is no ext4 file system on the device, or one with features that the crate
    /// does not know. `EIO`. `EUCLEAN`: it is damaged.
    pub fn mount(device: Arc<dyn BlockDevice>, host: &'static dyn Host, read_only: bool) -> Result<Arc<Self>, Errno> {
        let services = MountServices::new(Clock(host), Entropy(host), NoopObserver);
        let options = MountOptions { readonly: read_only, ..MountOptions::read_write() };
        let (works, cache) = (Works::begin(host), Arc::<cache::Cache>::default());
        let mounted =
            Mounted::mount(Blocks(device, cache.clone()), services, options).map_err(|error| match error.kind() {
                Ext4ErrorKind::Io | Ext4ErrorKind::NoMemory | Ext4ErrorKind::ReadOnly => errno(error),
                Ext4ErrorKind::Corrupted | Ext4ErrorKind::ChecksumMismatch => Errno::EUCLEAN,
                _ => Errno::EINVAL,
            })?;
        drop(works);
        let block = mounted.statfs().block_size;
        cache.start(block);
        let state = Mutex::new(State { mounted, in_use: BTreeMap::new(), syncs: 0, room: room::Room::default() });
        Ok(Arc::new(Ext4 { state, host, cache, block }))
    }

    fn lock(&self) -> Locked<'_> {
        let works = Works::begin(self.host);
        Locked(self.state.lock(), works)
    }

    /// Does an operation. Blocks that were freed can be used again only once the journal has that
    /// they were: so an operation without room for it is tried again after a sync.
    fn with<T>(&self, act: impl Fn(&mut Mounted) -> Result<T, Ext4Error>) -> Result<T, Errno> {
        let mut state = self.lock();
        match act(&mut state.mounted) {
            Err(error) if error.kind() == Ext4ErrorKind::NoSpace => {
                state.sync()?;
                act(&mut state.mounted).map_err(errno)
            }
            result => result.map_err(errno),
        }
    }
}

impl State {
    fn sync(&mut self) -> Result<(), Errno> {
        self.syncs += 1;
        if self.syncs.is_multiple_of(SYNCS_PER_CHECKPOINT) {
            self.mounted.checkpoint().map_err(errno)
        } else {
            self.mounted.sync().map_err(errno)
        }
    }
}

/// Converts an error of the crate.
fn errno(error: Ext4Error) -> Errno {
    match error.kind() {
        Ext4ErrorKind::NoSpace | Ext4ErrorKind::QuotaExceeded => Errno::ENOSPC,
        Ext4ErrorKind::NoMemory => Errno::ENOMEM,
        Ext4ErrorKind::Busy => Errno::EBUSY,
        Ext4ErrorKind::ReadOnly | Ext4ErrorKind::JournalAborted => Errno::EROFS,
        Ext4ErrorKind::TooManyLinks => Errno::EMLINK,
        Ext4ErrorKind::NotFound => Errno::ENOENT,
        Ext4ErrorKind::AlreadyExists => Errno::EEXIST,
        Ext4ErrorKind::NotEmpty => Errno::ENOTEMPTY,
        Ext4ErrorKind::FileTooLarge => Errno::EFBIG,
        Ext4ErrorKind::Unsupported | Ext4ErrorKind::UnsupportedFeature => Errno::EOPNOTSUPP,
        Ext4ErrorKind::Corrupted | Ext4ErrorKind::ChecksumMismatch => Errno::EUCLEAN,
        _ => Errno::EIO,
    }
}

/// Returns the crate's form of an inode number.
fn number(inode: u64) -> Result<InodeNumber, Ext4Error> {
    InodeNumber::from_u64(inode)
}

fn kind(kind: DirectoryEntryType) -> Option<Kind> {
    Some(match kind {
        DirectoryEntryType::RegularFile => Kind::Regular,
        DirectoryEntryType::Directory => Kind::Directory,
        DirectoryEntryType::CharacterDevice => Kind::Char,
        DirectoryEntryType::BlockDevice => Kind::Block,
        DirectoryEntryType::Fifo => Kind::Fifo,
        DirectoryEntryType::Socket => Kind::Socket,
        DirectoryEntryType::Symlink => Kind::Link,
        _ => return None,
    })
}

/// Converts a time, of which the crate has the seconds alone, as an unsigned number.
fn time(seconds: u32) -> Time {
    Time { seconds: seconds.into(), nanoseconds: 0 }
}

fn made(made: Result<InodeInfo, Ext4Error>) -> Result<u64, Ext4Error> {
    made.map(|info| info.number.as_u64())
}

fn kept(info: &InodeInfo) -> Result<Kept, Errno> {
    let special = info.device_number;
    Ok(Kept {
        kind: kind(info.file_type()).ok_or(Errno::EUCLEAN)?,
        mode: u32::from(info.mode) & MODE,
        uid: info.uid,
        gid: info.gid,
        links: u32::from(info.links),
        size: info.size,
        special: special.map_or(Device::default(), |of| Device { major: of.major(), minor: of.minor() }),
        accessed: time(info.atime),
        modified: time(info.mtime),
        changed: time(info.ctime),
        born: time(info.btime),
    })
}

impl Disk for Ext4 {
    fn root(&self) -> u64 {
        self.lock().mounted.root_inode().as_u64()
    }

    fn list(&self, directory: u64, each: &mut EachEntry<'_>) -> Result<(), Errno> {
        let open = |fs: &mut Mounted| fs.open_directory_reader(number(directory)?);
        let mut reader = open(&mut self.lock().mounted).map_err(errno)?;
        let mut cursor = DirectoryCursor::Start;
        loop {
            let read = self.lock().mounted.read_directory_with_reader(&mut reader, cursor, ENTRIES_AT_ONCE);
            let entries = read.map_err(errno)?;
            let Some(last) = entries.last() else { return Ok(()) };
            cursor = last.next_cursor;
            for entry in entries {
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                // Without the feature `filetype`, the inode has the kind.
                let kind = match kind(entry.file_type) {
                    Some(kind) => kind,
                    None => self.inode(entry.inode.as_u64(), None)?.kind,
                };
                each(&entry.name, entry.inode.as_u64(), kind)?;
            }
        }
    }

    fn inode(&self, inode: u64, _: Option<(u64, &[u8])>) -> Result<Kept, Errno> {
        kept(&self.with(|fs| fs.inode(number(inode)?))?)
    }

    fn target(&self, link: u64) -> Result<Box<[u8]>, Errno> {
        let size = self.with(|fs| fs.inode(number(link)?))?.size;
        let mut target = Vec::new();
        target.try_reserve_exact(size.min(4096) as usize)?;
        target.resize(size.min(4096) as usize, 0);
        let read = self.lock().mounted.read_inode(number(link).map_err(errno)?, 0, &mut target).map_err(errno)?;
        target.truncate(read);
        Ok(target.into_boxed_slice())
    }

    fn make(&self, directory: u64, name: &[u8], new: &NewInode<'_>) -> Result<u64, Errno> {
        let context = MutationContext::new(new.uid, new.gid, 0, 0);
        self.with(|fs| {
            let (parent, name) = (number(directory)?, FileName::new(name)?);
            let permissions = FilePermissions::new((new.mode & MODE) as u16)?;
            let special = || DeviceNumber::new(new.special.major, new.special.minor);
            let kind = match new.kind {
                Kind::Regular => return made(fs.create_regular_file(context, parent, name, permissions)),
                Kind::Directory => return made(fs.create_directory(context, parent, name, permissions)),
                Kind::Link => return made(fs.create_symlink(context, parent, name, new.target)),
                Kind::Fifo => SpecialInodeKind::Fifo,
                Kind::Socket => SpecialInodeKind::Socket,
                Kind::Char => SpecialInodeKind::CharacterDevice(special()?),
                Kind::Block => SpecialInodeKind::BlockDevice(special()?),
            };
            made(fs.create_special_inode(context, parent, name, permissions, kind))
        })
    }

    fn link(&self, directory: u64, name: &[u8], inode: u64) -> Result<(), Errno> {
        self.with(|fs| fs.hard_link(number(inode)?, number(directory)?, FileName::new(name)?).map(drop))
    }

    fn remove(&self, directory: u64, name: &[u8], is_directory: bool) -> Result<(), Errno> {
        self.with(|fs| {
            let (directory, name) = (number(directory)?, FileName::new(name)?);
            let removed =
                if is_directory { fs.remove_empty_directory(directory, name) } else { fs.unlink(directory, name) };
            removed.map(drop)
        })
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) -> Result<(), Errno> {
        let how = if exchange { RenameOptions::EXCHANGE } else { RenameOptions::REPLACE };
        self.with(|fs| {
            let (old, new) = ((number(from.0)?, FileName::new(from.1)?), (number(to.0)?, FileName::new(to.1)?));
            fs.rename(old.0, old.1, new.0, new.1, how).map(drop)
        })
    }

    fn forget(&self, inode: u64) {
        let mut state = self.lock();
        if let Some(doomed) = state.in_use.get_mut(&inode) {
            *doomed = true;
        } else {
            // An inode that can't be freed stays on the list of orphans, and the next mount frees
            // it.
            let _ = number(inode).and_then(|number| state.mounted.reap_unlinked_inode(number));
        }
    }

    fn set(&self, inode: u64, to: &Attributes) -> Result<(), Errno> {
        let at = |time: Time| Ext4Timestamp::new(time.seconds, time.nanoseconds);
        self.with(|fs| {
            let update = InodeMetadataUpdate {
                permissions: Some(FilePermissions::new((to.mode & MODE) as u16)?),
                owner: Some((to.uid, to.gid)),
                atime: Some(at(to.accessed)),
                mtime: Some(at(to.modified)),
                ..InodeMetadataUpdate::default()
            };
            fs.update_inode_metadata(number(inode)?, update).map(drop)
        })
    }

    fn sync(&self) -> Result<(), Errno> {
        self.lock().sync()
    }

    fn unmount(&self) -> Result<(), Errno> {
        self.lock().mounted.unmount().map_err(errno)
    }

    fn space(&self) -> Space {
        let stats = self.lock().mounted.statfs();
        let pages = |blocks: u64| blocks * self.block / 4096;
        Space {
            block: 0,
            magic: EXT4_SUPER_MAGIC,
            pages: pages(stats.total_blocks),
            free_pages: pages(stats.free_blocks),
            inodes: stats.total_inodes.into(),
            free_inodes: stats.free_inodes.into(),
        }
    }
}
