//! Implements the calls on extended attributes, which no file system here has. They check their
//! arguments and the caller's rights as on a file system that has them.

use super::path::{HERE, inode_at};
use super::{Answer, file, program};
use crate::mem::{payer, uaccess};
use crate::task::Thread;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::{Inode, Kind};

/// The longest name, in bytes with its NUL.
const LONGEST_NAME: usize = 256;
/// The most bytes of a value.
const MOST: u64 = 65536;
/// `XATTR_CREATE` and `XATTR_REPLACE`.
const HOW: u32 = 3;
/// The size of `struct xattr_args`.
const ARGUMENTS: u64 = 16;

/// The file of a call.
#[derive(Clone, Copy)]
pub enum Of {
    /// The file of a path: the directory where it begins, the path's address, flags (`AT_…`).
    Path(u64, u64, u64),
    /// The file of a descriptor.
    Descriptor(u64),
}

impl Of {
    /// The file of a path from the working directory; with `is_link`, a symbolic link itself.
    pub fn path(name: u64, is_link: bool) -> Self {
        Of::Path(HERE, name, if is_link { abi::AT_SYMLINK_NOFOLLOW.into() } else { 0 })
    }

    /// Finds the file.
    ///
    /// # Errors
    ///
    /// `EBADF`: the descriptor is not open, or open with `O_PATH`. `EINVAL`: unknown flags. Those
    /// of resolving the path.
    fn find(self, thread: &Thread) -> Result<Arc<dyn Inode>, Errno> {
        let of = |fd| {
            let open = file::open_of(thread, fd)?;
            if open.flags() & abi::O_PATH != 0 { Err(Errno::EBADF) } else { Ok(open.inode().clone()) }
        };
        match self {
            Of::Descriptor(fd) => of(fd),
            Of::Path(at, name, flags) => {
                let is_empty = flags as u32 & abi::AT_EMPTY_PATH != 0
                    && (name == 0 || uaccess::are_zero(&thread.memory(), name, 1)?);
                match at as i32 {
                    abi::AT_FDCWD => inode_at(thread, at, name, flags, abi::AT_SYMLINK_NOFOLLOW),
                    _ if is_empty => of(at & 0xffff_ffff),
                    _ => inode_at(thread, at, name, flags, abi::AT_SYMLINK_NOFOLLOW),
                }
            }
        }
    }

    /// Checks the flags of a call that takes them.
    fn check(self) -> Result<(), Errno> {
        match self {
            Of::Path(_, _, flags) if flags as u32 & !(abi::AT_SYMLINK_NOFOLLOW | abi::AT_EMPTY_PATH) != 0 => {
                Err(Errno::EINVAL)
            }
            _ => Ok(()),
        }
    }
}

/// Reads the name of an attribute.
///
/// # Errors
///
/// `ERANGE`: it is empty or too long. `EFAULT`, `ENOMEM`.
fn read_name(thread: &Thread, at: u64) -> Result<Vec<u8>, Errno> {
    match program::read_string(&thread.memory(), at, LONGEST_NAME) {
        Ok(name) if name.is_empty() => Err(Errno::ERANGE),
        Err(Errno::ENAMETOOLONG) => Err(Errno::ERANGE),
        read => read,
    }
}

/// Returns the error of a use of an attribute: there are none, unless the caller lacks the right to
/// any of this name.
fn refusal(thread: &Thread, inode: &dyn Inode, name: &[u8], writes: bool) -> Errno {
    let lacks = if writes { Errno::EPERM } else { Errno::ENODATA };
    if name.starts_with(b"trusted.") && !thread.credentials().has(abi::CAP_SYS_ADMIN) {
        return lacks;
    }
    if name.starts_with(b"user.") && !matches!(inode.kind(), Kind::Regular | Kind::Directory) {
        return lacks;
    }
    Errno::EOPNOTSUPP
}

/// Implements `setxattr`, `lsetxattr` and `fsetxattr`.
pub fn set(thread: &Thread, of: Of, name: u64, value: u64, size: u64, flags: u64) -> Answer {
    of.check()?;
    if flags as u32 & !HOW != 0 {
        return Err(Errno::EINVAL);
    }
    // An open descriptor is checked first.
    let opened = if let Of::Descriptor(_) = of { Some(of.find(thread)?) } else { None };
    let name = read_name(thread, name)?;
    if size > MOST {
        return Err(Errno::E2BIG);
    }
    let mut bytes = payer::zeros(size as usize)?;
    uaccess::read(&thread.memory(), value, &mut bytes)?;
    let inode = opened.map_or_else(|| of.find(thread), Ok)?;
    Err(refusal(thread, &*inode, &name, true))
}

/// Implements `getxattr`, `lgetxattr` and `fgetxattr`.
pub fn get(thread: &Thread, of: Of, name: u64) -> Answer {
    of.check()?;
    let opened = if let Of::Descriptor(_) = of { Some(of.find(thread)?) } else { None };
    let name = read_name(thread, name)?;
    let inode = opened.map_or_else(|| of.find(thread), Ok)?;
    Err(refusal(thread, &*inode, &name, false))
}

/// Implements `listxattr`, `llistxattr` and `flistxattr`.
pub fn list(thread: &Thread, of: Of) -> Answer {
    of.check()?;
    of.find(thread).map(|_| 0)
}

/// Implements `removexattr`, `lremovexattr` and `fremovexattr`.
pub fn remove(thread: &Thread, of: Of, name: u64) -> Answer {
    of.check()?;
    let opened = if let Of::Descriptor(_) = of { Some(of.find(thread)?) } else { None };
    let name = read_name(thread, name)?;
    let inode = opened.map_or_else(|| of.find(thread), Ok)?;
    Err(refusal(thread, &*inode, &name, true))
}

/// Reads a `struct xattr_args`: the value's address, its size, and flags.
///
/// # Errors
///
/// `EINVAL`: it is too short. `E2BIG`: it is too long, or has unknown fields that are not zero.
/// `EFAULT`.
fn read_arguments(thread: &Thread, at: u64, size: u64) -> Result<[u64; 3], Errno> {
    if !(ARGUMENTS..=4096).contains(&size) {
        return Err(if size < ARGUMENTS { Errno::EINVAL } else { Errno::E2BIG });
    }
    let memory = thread.memory();
    let mut bytes = [0; ARGUMENTS as usize];
    uaccess::read(&memory, at, &mut bytes)?;
    if !uaccess::are_zero(&memory, at.wrapping_add(ARGUMENTS), size - ARGUMENTS)? {
        return Err(Errno::E2BIG);
    }
    let all = u128::from_le_bytes(bytes);
    Ok([all as u64, u64::from((all >> 64) as u32), (all >> 96) as u64])
}

/// Implements `setxattrat`.
pub fn set_at(thread: &Thread, [at, path, flags, name, arguments, size]: [u64; 6]) -> Answer {
    let [value, len, how] = read_arguments(thread, arguments, size)?;
    set(thread, Of::Path(at, path, flags), name, value, len, how)
}

/// Implements `getxattrat`.
pub fn get_at(thread: &Thread, [at, path, flags, name, arguments, size]: [u64; 6]) -> Answer {
    match read_arguments(thread, arguments, size)? {
        [_, _, 0] => get(thread, Of::Path(at, path, flags), name),
        _ => Err(Errno::EINVAL),
    }
}
