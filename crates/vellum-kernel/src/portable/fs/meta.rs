//! The attributes of inodes that `stat` shows, and the check of file permissions.

use crate::capabilities::{ALL, Caps, cap};
use crate::errno::Errno;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general::{self, statx_timestamp};

/// A file type. The numbers are those of `st_mode >> 12` and of `d_type`.
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
    /// Returns the file type in a mode (`S_IFMT`). No type bits mean a regular file, as for
    /// `mknod`.
    ///
    /// # Errors
    /// `EINVAL`: there is no such type.
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

/// The bits of a mode that are not the file type (Linux: `S_IALLUGO`).
pub const MODE: u32 = 0o7777;
/// `S_ISVTX`: only the owners of an entry and of the directory may remove the entry.
pub const STICKY: u32 = 0o1000;
/// `S_ISGID`.
pub const SET_GID: u32 = 0o2000;
/// `S_ISUID`.
pub const SET_UID: u32 = 0o4000;

/// A device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Device {
    pub major: u32,
    pub minor: u32,
}

impl Device {
    /// Returns the encoding of `st_dev` and `st_rdev`.
    pub const fn number(self) -> u64 {
        ((self.minor & 0xff) | (self.major & 0xfff) << 8 | (self.minor & !0xff) << 12) as u64
    }

    /// Decodes the `dev` argument of `mknod`.
    pub const fn of(number: u32) -> Device {
        Device { major: number >> 8 & 0xfff, minor: number & 0xff | number >> 12 & 0xfff00 }
    }
}

/// A time since the epoch (1970-01-01 UTC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub struct Time {
    pub seconds: i64,
    pub nanoseconds: u32,
}

impl Time {
    /// Returns the time this number of nanoseconds before.
    pub fn before(self, nanoseconds: u64) -> Time {
        const SECOND: u64 = 1_000_000_000;
        let borrowed = SECOND + u64::from(self.nanoseconds) - nanoseconds % SECOND;
        let seconds = self.seconds - (nanoseconds / SECOND) as i64 - i64::from(borrowed < SECOND);
        Time { seconds, nanoseconds: (borrowed % SECOND) as u32 }
    }
}

/// The attributes of an inode (Linux: `struct kstat`).
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Meta {
    /// The device of the file system (`st_dev`).
    pub device: Device,
    pub inode: u64,
    pub kind: Kind,
    /// The mode without the file type: the bits of [`MODE`].
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// The device that a device file stands for (`st_rdev`).
    pub special: Device,
    /// The size in bytes.
    pub size: u64,
    /// The memory or disk in use, in bytes (`st_blocks`).
    pub used: u64,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
    pub born: Time,
}

impl Meta {
    /// Returns the attributes of an empty inode that root owns, with one link and all times zero.
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

    /// Returns the attributes on which permissions depend.
    pub fn rights(&self) -> Rights {
        Rights { kind: self.kind, mode: self.mode, uid: self.uid, gid: self.gid }
    }

    /// Returns the numbers of device and inode, which together identify a file.
    pub fn identity(&self) -> (u64, u64) {
        (self.device.number(), self.inode)
    }

    /// Converts the attributes for `statx`.
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

    /// Returns the file type and the mode as `st_mode` combines them.
    pub fn st_mode(&self) -> u32 {
        (self.kind as u32) << 12 | self.mode
    }
}

/// The attributes on which permissions depend.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Rights {
    pub kind: Kind,
    /// As in [`Meta`].
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// The kinds of access that a caller needs, as the lowest three bits of a mode (Linux: `MAY_READ`,
/// `MAY_WRITE`, `MAY_EXEC`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(pub u32);

#[allow(missing_docs)]
impl Access {
    pub const READ: Access = Access(4);
    pub const WRITE: Access = Access(2);
    /// To execute a file, or to search a directory.
    pub const EXECUTE: Access = Access(1);
}

/// The part of a thread's credentials that file permissions depend on (Linux: `fsuid`, `fsgid`).
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct FileCredentials {
    pub uid: u32,
    pub gid: u32,
    /// The supplementary groups.
    pub groups: Arc<Vec<u32>>,
    /// The effective capabilities.
    pub caps: Caps,
}

impl FileCredentials {
    /// Returns the superuser's credentials.
    pub fn root() -> FileCredentials {
        FileCredentials { uid: 0, gid: 0, groups: Arc::default(), caps: ALL }
    }

    /// Returns true if `gid` is the group or one of the supplementary groups.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Returns true if the credentials include a capability (`CAP_CHOWN` and others).
    pub fn has(&self, capability: u32) -> bool {
        self.caps & cap(capability) != 0
    }

    /// Returns true for the file's owner, and with `CAP_FOWNER` (Linux: `inode_owner_or_capable`).
    pub fn owns(&self, meta: &Meta) -> bool {
        self.uid == meta.uid || self.has(general::CAP_FOWNER)
    }

    /// Checks the mode bits for `wanted` (Linux: `generic_permission`). Capabilities override them,
    /// except that a file without any execute bit cannot be executed.
    ///
    /// # Errors
    /// `EACCES`.
    pub fn may(&self, to: Rights, wanted: Access) -> Result<(), Errno> {
        // Most directories grant it to the owner, the group and others, so that the caller's
        // identity does not matter.
        if wanted.0 & !(to.mode >> 6 & to.mode >> 3 & to.mode) == 0 {
            return Ok(());
        }
        let shift = match () {
            () if self.uid == to.uid => 6,
            () if self.in_group(to.gid) => 3,
            () => 0,
        };
        let missing = wanted.0 & !(to.mode >> shift);
        let directory = to.kind == Kind::Directory;
        let executes = missing & Access::EXECUTE.0 != 0;
        let overrides = self.has(general::CAP_DAC_OVERRIDE) && (directory || !executes || to.mode & 0o111 != 0);
        let reads = if directory { Access::READ.0 | Access::EXECUTE.0 } else { Access::READ.0 };
        let searches = self.has(general::CAP_DAC_READ_SEARCH) && missing & !reads == 0;
        if missing == 0 || overrides || searches { Ok(()) } else { Err(Errno::EACCES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_encoded_as_on_linux() {
        // As `stat` shows them on Linux: /dev/null is 1:3, and 259:65537 needs all bits.
        assert_eq!(Device { major: 1, minor: 3 }.number(), 0x103);
        for device in [Device { major: 259, minor: 65537 }, Device { major: 0xfff, minor: 0xfffff }] {
            assert_eq!(Device::of(device.number() as u32), device);
        }
    }

    #[test]
    fn the_first_class_that_matches_decides_and_capabilities_override() {
        let mut meta = Meta::new(Device::default(), 1, Kind::Regular, 0o640);
        (meta.uid, meta.gid) = (10, 20);
        let user = |uid, gid, more: &[u32]| FileCredentials { uid, gid, groups: Arc::new(more.to_vec()), caps: 0 };
        assert!(user(10, 1, &[]).may(meta.rights(), Access(6)).is_ok());
        assert!(user(11, 20, &[]).may(meta.rights(), Access::READ).is_ok());
        assert!(user(11, 1, &[20]).may(meta.rights(), Access::READ).is_ok());
        assert_eq!(user(11, 20, &[]).may(meta.rights(), Access::WRITE), Err(Errno::EACCES));
        assert_eq!(user(11, 1, &[]).may(meta.rights(), Access::READ), Err(Errno::EACCES));
        // For the owner only the owner's bits count.
        meta.mode = 0o077;
        assert_eq!(user(10, 20, &[]).may(meta.rights(), Access::READ), Err(Errno::EACCES));
        assert!(FileCredentials::root().may(meta.rights(), Access::EXECUTE).is_ok());
        meta.mode = 0o666;
        assert_eq!(FileCredentials::root().may(meta.rights(), Access::EXECUTE), Err(Errno::EACCES));
    }

    /// A time before another one may lie in an earlier second, and before the epoch.
    #[test]
    fn times_are_subtracted() {
        let time = |seconds, nanoseconds| Time { seconds, nanoseconds };
        assert_eq!(time(5, 100).before(100), time(5, 0));
        assert_eq!(time(5, 100).before(101), time(4, 999_999_999));
        assert_eq!(time(5, 100).before(3_000_000_000), time(2, 100));
        assert_eq!(time(0, 5).before(2_000_000_006), time(-3, 999_999_999));
    }
}
