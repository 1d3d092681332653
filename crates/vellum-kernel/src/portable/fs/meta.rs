//! What `stat` says of a file, and who may do what with it.

use crate::capabilities::{ALL, Caps, cap};
use crate::errno::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general::{self, statx_timestamp};

/// What a file is; the numbers are those of `st_mode >> 12` and `d_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Kind {
    Fifo = 1,
    Char = 2,
    Directory = 4,
    Block = 6,
    Regular = 8,
    Link = 10,
    Socket = 12,
}

impl Kind {
    /// What a mode says (`S_IFMT`); nothing means a regular file, as for `mknod`.
    ///
    /// # Errors
    /// `EINVAL`: no kind that is.
    pub fn of(mode: u32) -> Result<Kind, Errno> {
        Ok(match mode >> 12 & 15 {
            1 => Kind::Fifo,
            2 => Kind::Char,
            4 => Kind::Directory,
            6 => Kind::Block,
            0 | 8 => Kind::Regular,
            10 => Kind::Link,
            12 => Kind::Socket,
            _ => return Err(Errno::EINVAL),
        })
    }
}

/// The bits of a mode that are not its kind.
pub const MODE: u32 = 0o7777;
/// Only owners may remove entries (`S_ISVTX`).
pub const STICKY: u32 = 0o1000;
/// `S_ISGID`.
pub const SET_GID: u32 = 0o2000;
/// `S_ISUID`.
pub const SET_UID: u32 = 0o4000;

/// A device's number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

impl Device {
    /// As `st_dev` and `st_rdev` have it.
    pub const fn number(self) -> u64 {
        ((self.minor & 0xff) | (self.major & 0xfff) << 8 | (self.minor & !0xff) << 12) as u64
    }

    /// From the argument of `mknod`.
    pub const fn of(number: u32) -> Device {
        Device { major: number >> 8 & 0xfff, minor: number & 0xff | number >> 12 & 0xfff00 }
    }
}

/// A time since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct Time {
    pub seconds: i64,
    pub nanoseconds: u32,
}

/// What there is to know about an inode.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Meta {
    /// Of the file system.
    pub device: Device,
    pub inode: u64,
    pub kind: Kind,
    /// [`MODE`] of it.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// What a device file stands for.
    pub special: Device,
    /// In bytes.
    pub size: u64,
    /// Memory or disk in use, in bytes.
    pub used: u64,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
    pub born: Time,
}

impl Meta {
    /// An inode of mode `mode` that is owned by root, without times.
    pub fn new(device: Device, inode: u64, kind: Kind, mode: u32) -> Meta {
        let zero = Time::default();
        Meta {
            device,
            inode,
            kind,
            mode,
            links: 1,
            uid: 0,
            gid: 0,
            special: Device::default(),
            size: 0,
            used: 0,
            accessed: zero,
            modified: zero,
            changed: zero,
            born: zero,
        }
    }

    /// What tells it from any other.
    pub fn identity(&self) -> (u64, u64) {
        (self.device.number(), self.inode)
    }

    /// For `statx`.
    pub fn statx(&self) -> general::statx {
        let time = |time: Time| statx_timestamp { tv_sec: time.seconds, tv_nsec: time.nanoseconds, __reserved: 0 };
        general::statx {
            stx_mask: general::STATX_BASIC_STATS | general::STATX_BTIME,
            stx_blksize: 4096,
            stx_attributes: 0,
            stx_nlink: self.links,
            stx_uid: self.uid,
            stx_gid: self.gid,
            stx_mode: self.st_mode() as u16,
            __spare0: [0],
            stx_ino: self.inode,
            stx_size: self.size,
            stx_blocks: self.used.div_ceil(512),
            stx_attributes_mask: 0,
            stx_atime: time(self.accessed),
            stx_btime: time(self.born),
            stx_ctime: time(self.changed),
            stx_mtime: time(self.modified),
            stx_rdev_major: self.special.major,
            stx_rdev_minor: self.special.minor,
            stx_dev_major: self.device.major,
            stx_dev_minor: self.device.minor,
            stx_mnt_id: 0,
            stx_dio_mem_align: 0,
            stx_dio_offset_align: 0,
            stx_subvol: 0,
            stx_atomic_write_unit_min: 0,
            stx_atomic_write_unit_max: 0,
            stx_atomic_write_segments_max: 0,
            stx_dio_read_offset_align: 0,
            stx_atomic_write_unit_max_opt: 0,
            __spare2: [0],
            __spare3: [0; 8],
        }
    }

    /// Kind and mode in one.
    pub fn st_mode(&self) -> u32 {
        (self.kind as u32) << 12 | self.mode
    }
}

/// What somebody wants to do; the bits of a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want(pub u32);

#[allow(missing_docs)]
impl Want {
    pub const READ: Want = Want(4);
    pub const WRITE: Want = Want(2);
    /// Or to search a directory.
    pub const EXECUTE: Want = Want(1);
}

/// Who asks: the identity that counts for files.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Who {
    pub uid: u32,
    pub gid: u32,
    pub groups: Arc<Vec<u32>>,
    /// What it may do whoever it is.
    pub caps: Caps,
}

impl Who {
    /// The superuser.
    pub fn root() -> Who {
        Who { uid: 0, gid: 0, groups: Arc::default(), caps: ALL }
    }

    /// Whether it belongs to a group.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether it has a power (`CAP_CHOWN` and its kin).
    pub fn has(&self, capability: u32) -> bool {
        self.caps & cap(capability) != 0
    }

    /// Whether it is the file's owner, or as good as.
    pub fn owns(&self, meta: &Meta) -> bool {
        self.uid == meta.uid || self.has(general::CAP_FOWNER)
    }

    /// Ask for a right. Root has all, but to execute what nobody may.
    ///
    /// # Errors
    /// `EACCES`.
    pub fn may(&self, meta: &Meta, want: Want) -> Result<(), Errno> {
        let shift = match () {
            () if self.uid == meta.uid => 6,
            () if self.in_group(meta.gid) => 3,
            () => 0,
        };
        let missing = want.0 & !(meta.mode >> shift);
        let directory = meta.kind == Kind::Directory;
        let executes = missing & Want::EXECUTE.0 != 0;
        let overrides = self.has(general::CAP_DAC_OVERRIDE) && (directory || !executes || meta.mode & 0o111 != 0);
        let reads = if directory { Want::READ.0 | Want::EXECUTE.0 } else { Want::READ.0 };
        let searches = self.has(general::CAP_DAC_READ_SEARCH) && missing & !reads == 0;
        if missing == 0 || overrides || searches { Ok(()) } else { Err(Errno::EACCES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers() {
        // As `stat` shows them on Linux: /dev/null is 1:3, and 259:65537 needs all bits.
        assert_eq!(Device { major: 1, minor: 3 }.number(), 0x103);
        for device in [Device { major: 259, minor: 65537 }, Device { major: 0xfff, minor: 0xfffff }] {
            assert_eq!(Device::of(device.number() as u32), device);
        }
    }

    #[test]
    fn rights() {
        let mut meta = Meta::new(Device::default(), 1, Kind::Regular, 0o640);
        (meta.uid, meta.gid) = (10, 20);
        let who = |uid, gid, more: &[u32]| Who { uid, gid, groups: Arc::new(more.to_vec()), caps: 0 };
        assert!(who(10, 1, &[]).may(&meta, Want(6)).is_ok());
        assert!(who(11, 20, &[]).may(&meta, Want::READ).is_ok());
        assert!(who(11, 1, &[20]).may(&meta, Want::READ).is_ok());
        assert_eq!(who(11, 20, &[]).may(&meta, Want::WRITE), Err(Errno::EACCES));
        assert_eq!(who(11, 1, &[]).may(&meta, Want::READ), Err(Errno::EACCES));
        // The owner's bits alone count for the owner.
        meta.mode = 0o077;
        assert_eq!(who(10, 20, &[]).may(&meta, Want::READ), Err(Errno::EACCES));
        assert!(Who::root().may(&meta, Want::EXECUTE).is_ok());
        meta.mode = 0o666;
        assert_eq!(Who::root().may(&meta, Want::EXECUTE), Err(Errno::EACCES));
    }
}
