//! The character devices without hardware: `/dev/null`, `/dev/zero`, `/dev/full`, `/dev/random`;
//! and anonymous inodes.

use super::inode::{File, Inode, Mappable};
use super::io::{Sink, Source, in_pieces};
use super::meta::{Device, Kind, Meta};
use super::open::Open;
use crate::errno::Errno;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;

/// Device numbers, including those of devices whose drivers are not in this module (Linux:
/// `devices.txt`).
#[allow(missing_docs)]
pub mod number {
    use super::Device;

    pub const NULL: Device = Device { major: 1, minor: 3 };
    pub const ZERO: Device = Device { major: 1, minor: 5 };
    pub const FULL: Device = Device { major: 1, minor: 7 };
    pub const RANDOM: Device = Device { major: 1, minor: 8 };
    pub const URANDOM: Device = Device { major: 1, minor: 9 };
    pub const TTY: Device = Device { major: 5, minor: 0 };
    pub const USERFAULTFD: Device = Device { major: 10, minor: 126 };
    pub const CONSOLE: Device = Device { major: 5, minor: 1 };
    pub const PTMX: Device = Device { major: 5, minor: 2 };
}

/// The size of the buffer on the stack through which bytes are copied.
const PIECE: usize = 1024;

/// Reads all bytes of a write and discards them.
fn discard(from: &mut dyn Source) -> Result<usize, Errno> {
    in_pieces(|| {
        let mut piece = [0; PIECE];
        let count = from.left().min(PIECE);
        from.take(&mut piece[..count]).map(|count| (count, count > 0))
    })
}

/// Implements a read: copies bytes that `fill` produces, at most 1 MiB in one call.
fn read_filled(to: &mut dyn Sink, mut fill: impl FnMut(&mut [u8])) -> Result<usize, Errno> {
    let mut left = to.room().min(1 << 20);
    in_pieces(|| {
        let mut piece = [0; PIECE];
        let count = left.min(PIECE);
        fill(&mut piece[..count]);
        let put = to.put(&piece[..count])?;
        left -= put;
        Ok((put, left > 0))
    })
}

/// `/dev/null`: reads return end of file, and writes are discarded.
pub struct Null;
/// `/dev/zero`: reads return zeros, and writes are discarded.
pub struct Zero;
/// `/dev/full`: reads return zeros, and writes fail with `ENOSPC`.
pub struct Full;
/// `/dev/random` and `/dev/urandom`: reads return bytes of the kernel's generator.
pub struct Random(pub Fill);

/// Fills a buffer with random bytes.
pub type Fill = Box<dyn Fn(&mut [u8]) + Send + Sync>;

impl File for Null {
    fn read(&self, _at: u64, _to: &mut dyn Sink) -> Result<usize, Errno> {
        Ok(0)
    }

    fn write(&self, _at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        discard(from)
    }

    fn seekable(&self) -> bool {
        true
    }

    fn ignores_seeks(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl File for Zero {
    fn read(&self, _at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        read_filled(to, |_| ())
    }

    fn write(&self, _at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        discard(from)
    }

    fn seekable(&self) -> bool {
        true
    }

    fn ignores_seeks(&self) -> bool {
        true
    }

    fn mappable(&self) -> Mappable {
        Mappable::Zeros
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl File for Full {
    fn read(&self, _at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        read_filled(to, |_| ())
    }

    fn write(&self, _at: u64, _from: &mut dyn Source) -> Result<usize, Errno> {
        Err(Errno::ENOSPC)
    }

    fn seekable(&self) -> bool {
        true
    }

    fn ignores_seeks(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl File for Random {
    fn read(&self, _at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        read_filled(to, &self.0)
    }

    fn write(&self, _at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        discard(from)
    }

    fn seekable(&self) -> bool {
        true
    }

    fn ignores_seeks(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An anonymous inode: of a file that no file system has, such as an `eventfd`.
pub struct AnonInode(pub Meta);

impl Inode for AnonInode {
    fn meta(&self) -> Meta {
        self.0.clone()
    }

    fn open(self: Arc<Self>, _flags: u32) -> Result<Arc<dyn File>, Errno> {
        Err(Errno::ENXIO)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Returns an open file description with an anonymous inode (Linux: `anon_inode_getfile`).
pub fn open(file: Arc<dyn File>, flags: u32) -> Arc<Open> {
    let meta = Meta::new(Device { major: 0, minor: 11 }, 1, Kind::Regular, 0o600);
    Arc::new(Open::new(Arc::new(AnonInode(meta)), Some(file), flags, None))
}

#[cfg(test)]
mod tests {
    use super::super::io::testing::FaultsAfter;
    use super::*;
    use std::vec;

    #[test]
    fn devices_read_and_write_as_in_their_manual_pages() {
        let mut bytes = vec![1; 5000];
        assert_eq!(Null.read(0, &mut &mut bytes[..]), Ok(0));
        assert_eq!(Zero.read(0, &mut &mut bytes[..]), Ok(5000));
        assert!(bytes.iter().all(|&byte| byte == 0));
        assert_eq!(Zero.read(0, &mut FaultsAfter(&mut bytes[..], 1500)), Ok(1500));
        assert_eq!(Null.write(0, &mut &bytes[..]), Ok(5000));
        assert_eq!(Full.write(0, &mut &bytes[..]), Err(Errno::ENOSPC));
        let random = Random(Box::new(|to| to.fill(7)));
        assert_eq!(random.read(0, &mut &mut bytes[..]), Ok(5000));
        assert!(bytes.iter().all(|&byte| byte == 7));
    }
}
