//! Devices that need no hardware. The kernel adds its console.

use super::inode::{File, Inode, Mappable};
use super::io::{Sink, Source, in_pieces};
use super::meta::{Device, Kind, Meta};
use super::open::Open;
use crate::errno::Errno;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;

/// The numbers of those here, and of the kernel's.
#[allow(missing_docs)]
pub mod number {
    use super::Device;

    pub const NULL: Device = Device { major: 1, minor: 3 };
    pub const ZERO: Device = Device { major: 1, minor: 5 };
    pub const FULL: Device = Device { major: 1, minor: 7 };
    pub const RANDOM: Device = Device { major: 1, minor: 8 };
    pub const URANDOM: Device = Device { major: 1, minor: 9 };
    pub const TTY: Device = Device { major: 5, minor: 0 };
    pub const CONSOLE: Device = Device { major: 5, minor: 1 };
}

/// How many bytes are moved at once.
const PIECE: usize = 1024;

/// Throws all away.
fn swallow(from: &mut dyn Source) -> Result<usize, Errno> {
    in_pieces(|| {
        let mut piece = [0; PIECE];
        let count = from.left().min(PIECE);
        from.take(&mut piece[..count]).map(|count| (count, count > 0))
    })
}

/// Reads what `fill` makes, up to a megabyte at once.
fn produce(to: &mut dyn Sink, mut fill: impl FnMut(&mut [u8])) -> Result<usize, Errno> {
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

/// `/dev/null`: empty, and takes all.
pub struct Null;
/// `/dev/zero`: endless zeros.
pub struct Zero;
/// `/dev/full`: endless zeros, and no room.
pub struct Full;
/// `/dev/random` and `/dev/urandom`: what the kernel's function fills in.
pub struct Random(pub Fill);

/// Fills bytes with random ones.
pub type Fill = Box<dyn Fn(&mut [u8]) + Send + Sync>;

impl File for Null {
    fn read(&self, _at: u64, _to: &mut dyn Sink) -> Result<usize, Errno> {
        Ok(0)
    }

    fn write(&self, _at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        swallow(from)
    }

    fn seekable(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl File for Zero {
    fn read(&self, _at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        produce(to, |_| ())
    }

    fn write(&self, _at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        swallow(from)
    }

    fn seekable(&self) -> bool {
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
        produce(to, |_| ())
    }

    fn write(&self, _at: u64, _from: &mut dyn Source) -> Result<usize, Errno> {
        Err(Errno::ENOSPC)
    }

    fn seekable(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl File for Random {
    fn read(&self, _at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        produce(to, &self.0)
    }

    fn write(&self, _at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        swallow(from)
    }

    fn seekable(&self) -> bool {
        true
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// An inode of a file that has none: what the kernel opens by itself, such as an event counter.
pub struct Nameless(pub Meta);

impl Inode for Nameless {
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

/// A file that has no inode, opened with `flags`.
pub fn open(file: Arc<dyn File>, flags: u32) -> Arc<Open> {
    let meta = Meta::new(Device { major: 0, minor: 11 }, 1, Kind::Regular, 0o600);
    Arc::new(Open::new(Arc::new(Nameless(meta)), Some(file), flags, None))
}

#[cfg(test)]
mod tests {
    use super::super::io::testing::FaultsAfter;
    use super::*;
    use std::vec;

    #[test]
    fn endless_and_empty() {
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
