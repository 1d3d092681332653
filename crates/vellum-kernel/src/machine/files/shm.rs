//! Keeps the System V shared memory segments: page-cache objects under keys and IDs.
//!
//! Attachments are not counted: the VMAs of all address spaces are searched instead. A removed
//! segment lives as long as a VMA maps it; its entry is dropped when the table is next locked.

use crate::mem::{Object, now_ns, spaces, started_at};
use alloc::vec::Vec;
use core::fmt::Write;
use spin::Mutex;
use vellum::addr::FRAME_SIZE;
use vellum::page_cache::PageCounts;
use vellum_kernel::errno::Errno;
use vellum_kernel::ipc::{IpcObject, IpcTable};
use vellum_kernel::proc::Text;

/// `SHM_DEST`, a mode bit: the segment was removed and is freed when it is last detached.
const REMOVED: u32 = 0o1000;

/// A shared memory segment.
pub struct Segment {
    /// The page-cache object; `None` once the segment is removed.
    pub object: Option<Object>,
    /// The tag of the page-cache object, by which VMAs that map it are found.
    pub tag: u64,
    /// The requested size in bytes.
    pub size: u64,
    /// The times of the last attach, detach and change, in seconds.
    pub times: [u64; 3],
    /// The PIDs of the creator and of the last user.
    pub pids: [u32; 2],
}

static SEGMENTS: Mutex<Option<IpcTable<Segment>>> = Mutex::new(None);

/// Returns the wall clock in seconds.
pub fn now() -> u64 {
    (started_at() + now_ns()) / 1_000_000_000
}

/// Returns the number of VMAs that map a segment.
pub fn attached(tag: u64) -> u64 {
    let mut count = 0;
    for space in spaces::all() {
        space.engine.vmas(0, |vma| {
            count += u64::from(vma.backing.tag() == tag);
            true
        });
    }
    count
}

/// Locks the segments, drops removed ones that no VMA maps any more, and calls `work`.
pub fn with<T>(work: impl FnOnce(&mut IpcTable<Segment>) -> Result<T, Errno>) -> Result<T, Errno> {
    let mut segments = SEGMENTS.lock();
    let segments = segments.get_or_insert_default();
    segments.retain(|segment| segment.data.object.is_some() || attached(segment.data.tag) > 0);
    work(segments)
}

/// Returns the ID requested for the next segment (`/proc/sys/kernel/shm_next_id`), if one is set.
pub fn wanted() -> Result<Option<u32>, Errno> {
    with(|segments| Ok(segments.next_id))
}

/// Requests an ID for the next segment.
pub fn want(id: u32) -> Result<(), Errno> {
    with(|segments| {
        segments.next_id = Some(id);
        Ok(())
    })
}

/// Returns a segment's mode as programs see it.
pub fn mode(segment: &IpcObject<Segment>) -> u32 {
    segment.perm.mode | if segment.data.object.is_none() { REMOVED } else { 0 }
}

/// Returns the contents of `/proc/sysvipc/shm`.
pub fn list() -> Result<Vec<u8>, Errno> {
    with(|segments| {
        Text::of(|text| {
            write!(text, "{:>10} {:>10} {:>4} {:>21} ", "key", "shmid", "perms", "size")?;
            ["cpid", "lpid", "nattch", "uid", "gid", "cuid", "cgid"]
                .iter()
                .try_for_each(|name| write!(text, "{name:>5} "))?;
            ["atime", "dtime", "ctime"].iter().try_for_each(|name| write!(text, "{name:>10} "))?;
            writeln!(text, "{:>21} {:>21}", "rss", "swap")?;
            segments.iter().try_for_each(|segment| {
                let (perm, Segment { object, tag, size, times, pids }) = (&segment.perm, &segment.data);
                let PageCounts { resident, swapped, .. } = object.as_ref().map(Object::page_counts).unwrap_or_default();
                let [resident, swapped] = [resident, swapped]
                    .map(|pages| pages * object.as_ref().map_or(FRAME_SIZE, |object| 1 << object.page_shift()));
                let [creator, creator_group] = perm.creator;
                write!(text, "{:10} {:10} {:5o} {size:21} ", perm.key, segment.id, mode(segment))?;
                let count = attached(*tag) as u32;
                let small = [pids[0], pids[1], count, perm.uid, perm.gid, creator, creator_group];
                small.iter().try_for_each(|word| write!(text, "{word:5} "))?;
                times.iter().try_for_each(|time| write!(text, "{time:10} "))?;
                writeln!(text, "{resident:21} {swapped:21}")
            })
        })
    })
}
