//! ext4 on a block device: the store of its files, and mounting it.

use super::block::{self, Block};
use super::contents::{ObjectContents, StoreOf};
use crate::arch::random::random;
use crate::mem::block::{BlockDevice, Sectors};
use crate::mem::payer::{self, Shared};
use crate::mem::store::Store;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use spin::Mutex;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::ext4::contents::{Contents, Place};
use vellum_kernel::fs::ext4::{BlockDevice as _, Ext4, Host, SECTOR};
use vellum_kernel::fs::meta::{Device, Time};
use vellum_kernel::fs::pages::Shift;
use vellum_kernel::fs::tree::disk::Disk;
use vellum_kernel::fs::tree::{self, Capacity, Node, Tree};
use vellum_kernel::fs::{Inode, Kind, Pages};

/// The services that the file system needs from this machine.
struct Machine;

impl Host for Machine {
    fn now(&self) -> Time {
        super::time_of_day()
    }

    fn random(&self, to: &mut [u8]) {
        to.fill_with(|| random() as u8);
    }

    fn enter(&self) {
        payer::enter_unrefused();
    }

    fn leave(&self) {
        payer::leave_unrefused();
    }
}

/// A mounted file system. The tree of its inodes goes through it to the page cache.
struct Mounted(StoreOf);

impl tree::Host for Mounted {
    fn now(&self) -> Time {
        super::time_of_day()
    }

    fn pages(&self) -> Result<Arc<dyn Pages>, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn kept_pages(&self, inode: u64, size: u64) -> Result<Arc<dyn Pages>, Errno> {
        Ok(ObjectContents::stored((self.0)(inode), size)?)
    }

    fn space(&self) -> Capacity {
        Capacity { total: 0, free: 0 }
    }
}

/// The store of a file.
struct FileStore {
    contents: Contents,
    device: Arc<dyn BlockDevice>,
}

impl FileStore {
    /// Writes some bytes to the file, past the page cache: whole blocks, but for the end of the
    /// file, behind which they may reach. Returns the number of bytes before the first that can't
    /// be written.
    fn write_blocks(&self, bytes: Range<u64>, from: &[u8]) -> Result<usize, Errno> {
        let (device, start, end) = (Sectors(self.device.clone()), bytes.start, bytes.end);
        let reached = self.contents.write(bytes, &mut |to, part| {
            let piece = &from[(part.start - start) as usize..(part.end - start) as usize];
            if device.write(to, piece) { part.end } else { part.start }
        })?;
        Ok((reached.min(end) - start) as usize)
    }

    /// Writes bytes to the block of the file that begins at `start`, from an offset in it on, up to
    /// its end, past the page cache. Returns their number; 0 if the block can't be read or written.
    fn write_in_block(&self, start: u64, offset: usize, from: &[u8]) -> Result<usize, Errno> {
        // The rest of the block stays. Nothing else writes to it: the caller has taken the place of
        // its page.
        let mut whole = payer::zeros(self.contents.block_size() as usize)?;
        if self.read_direct(start, &mut whole) < whole.len() {
            return Ok(0);
        }
        let count = from.len().min(whole.len() - offset);
        whole[offset..offset + count].copy_from_slice(&from[..count]);
        let written = self.write_blocks(start..start + (offset + count) as u64, &whole)?;
        Ok(written.saturating_sub(offset))
    }
}

impl Store for FileStore {
    fn device(&self) -> Option<&Arc<dyn BlockDevice>> {
        Some(&self.device)
    }

    fn place(&self, bytes: Range<u64>) -> Result<(Place, Range<u64>), Errno> {
        self.contents.place(bytes)
    }

    fn room_for(&self, bytes: Range<u64>) -> Result<(u64, Range<u64>), Errno> {
        self.contents.room_for(bytes)
    }

    fn written(&self, bytes: Range<u64>, reached: u64) -> Result<(), Errno> {
        self.contents.written(bytes, reached)
    }

    fn flush(&self) -> bool {
        self.contents.fs().sync().is_ok()
    }

    fn keep_size(&self, size: u64) -> bool {
        self.contents.grow(size).is_ok()
    }

    fn writes_at_once(&self) -> bool {
        // The file system's operations take long, and need much of a stack.
        false
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        self.contents.set_size(size)
    }

    fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno> {
        self.contents.allocate(bytes)
    }

    fn next_place(&self, bytes: Range<u64>, hole: bool) -> Option<u64> {
        let mut found = None;
        self.contents.read(bytes, &mut |place, part| {
            if (place == Place::Hole) != hole {
                return part.end;
            }
            found = Some(part.start);
            part.start
        });
        found
    }

    fn has_room(&self, bytes: Range<u64>, later: u64) -> bool {
        self.contents.has_room(bytes, later)
    }

    fn all_written(&self) {
        self.contents.fs().all_written();
    }

    fn reserve(&self, bytes: Range<u64>, later: u64) -> Result<(), Errno> {
        self.contents.reserve(bytes, later)
    }

    fn punch(&self, bytes: Range<u64>) -> Result<(), Errno> {
        self.contents.punch(bytes)
    }

    fn shift_unit(&self) -> Option<u64> {
        Some(self.contents.block_size())
    }

    fn shift(
        &self,
        bytes: Range<u64>,
        shift: Shift,
        is_unused: &mut dyn FnMut() -> bool,
        moved: &mut dyn FnMut(),
    ) -> Result<bool, Errno> {
        self.contents.shift(bytes, shift, is_unused, moved)
    }

    fn direct_alignment(&self) -> Option<u64> {
        Some(SECTOR)
    }

    fn read_direct(&self, at: u64, to: &mut [u8]) -> usize {
        let device = Sectors(self.device.clone());
        let reached = self.contents.read_direct(at..at + to.len() as u64, &mut |place, part| {
            let to = &mut to[(part.start - at) as usize..(part.end - at) as usize];
            match place {
                Place::At(from) if !device.read(from, to) => return part.start,
                Place::At(_) => {}
                Place::Hole => to.fill(0),
            }
            part.end
        });
        (reached - at) as usize
    }

    fn write_direct(&self, at: u64, from: &[u8]) -> Result<usize, Errno> {
        let (block, end) = (self.contents.block_size(), at + from.len() as u64);
        let start = at / block * block;
        if start < at || end < start + block {
            return self.write_in_block(start, (at - start) as usize, from);
        }
        // A part of a block at the end is for the next call.
        self.write_blocks(start..end / block * block, from)
    }

    fn used(&self) -> u64 {
        self.contents.used()
    }
}

/// The mounted file systems, by the numbers of their devices.
static MOUNTED: Shared<Vec<(Device, Arc<Tree>)>> = Shared::new(Vec::new());

/// Held by a thread that mounts a device, so that no other mounts it too.
static MOUNTING: Mutex<()> = Mutex::new(());

/// Returns the block device of a device file. The caller holds [`MOUNTING`].
///
/// # Errors
///
/// `ENOTBLK`; `ENXIO`: there is no such device; `EBUSY`: it is mounted.
fn device(of: &Arc<dyn Inode>) -> Result<(Device, Arc<Block>), Errno> {
    let meta = of.meta();
    if meta.kind != Kind::Block {
        return Err(Errno::ENOTBLK);
    }
    if MOUNTED.lock().iter().any(|(device, _)| *device == meta.special) {
        return Err(Errno::EBUSY);
    }
    Ok((meta.special, block::find(meta.special).ok_or(Errno::ENXIO)?))
}

/// Opens the file system on a device. Returns it with the stores of its files.
///
/// # Errors
///
/// `EINVAL`: there is no ext4 file system that the kernel knows; `EIO`, `EUCLEAN`, `ENOMEM`.
pub fn open(device: Arc<dyn BlockDevice>, read_only: bool) -> Result<(Arc<Ext4>, StoreOf), Errno> {
    let fs = Ext4::mount(Arc::new(Sectors(device.clone())), &Machine, read_only)?;
    let of = fs.clone();
    let store = move |inode| {
        Arc::new(FileStore { contents: Contents::new(&of, inode), device: device.clone() }) as Arc<dyn Store>
    };
    Ok((fs, Box::new(store)))
}

/// Mounts the file system on the device of a device file, and returns its root. What programs wrote
/// to the device file has been written.
///
/// # Errors
///
/// `ENOTBLK`, `ENXIO`, `EBUSY`; `EINVAL`: there is no ext4 file system that the kernel knows;
/// `EIO`, `EUCLEAN`, `ENOMEM`.
pub fn mount(file: &Arc<dyn Inode>, read_only: bool) -> Result<Arc<Node>, Errno> {
    let _mounting = MOUNTING.lock();
    let (number, block) = device(file)?;
    let (fs, store) = open(block.device.clone(), read_only)?;
    let root = Tree::of_disk(Arc::new(Mounted(store)), number, fs)?;
    let mut mounted = MOUNTED.lock();
    mounted.try_reserve(1)?;
    mounted.push((number, root.tree().clone()));
    drop(mounted);
    // The page cache of the device file would show what was there before.
    block.contents.drop_clean(0..u64::MAX);
    Ok(root)
}

/// Returns whether an ext4 file system on this device is in use.
pub fn is_mounted(device: Device) -> bool {
    MOUNTED.lock().iter().any(|(other, _)| *other == device)
}

/// Has the disks of all mounted file systems keep what they were told.
///
/// # Errors
///
/// `EIO`, `ENOSPC`, for the first that failed. The others are done.
pub fn sync_all() -> Result<(), Errno> {
    let (mounted, mut result) = (MOUNTED.lock().clone(), Ok(()));
    for (_, tree) in mounted {
        result = result.and(tree.write_attributes()).and(tree.on_disk(|disk| disk.sync()));
    }
    result
}

/// Ends the use of the file system on a device, which is unmounted, and all of whose contents were
/// written.
///
/// # Errors
///
/// `EBUSY`: a file without a name is still in use, by a request for its pages or by a process that
/// is ending; the caller tries again. `EIO`.
pub fn end(device: Device) -> Result<(), Errno> {
    let found = MOUNTED.lock().iter().find(|(other, _)| *other == device).cloned();
    let Some((_, tree)) = found else { return Ok(()) };
    let ended = tree.write_attributes().and(tree.on_disk(|disk| disk.unmount()));
    if ended != Err(Errno::EBUSY) {
        MOUNTED.lock().retain(|(other, _)| *other != device);
    }
    ended
}

/// Ends the use of all file systems: the machine is about to stop.
pub fn end_all() {
    let mounted = MOUNTED.lock().clone();
    for (_, tree) in mounted {
        // A file without a name that is in use is freed by the next mount.
        let kept = tree.write_attributes().and(tree.on_disk(|disk| disk.sync()));
        let _ = kept.and(tree.on_disk(|disk| disk.unmount()));
    }
}
