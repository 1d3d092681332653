//! The segments of System V shared memory: objects of the engine under keys and numbers.
//!
//! No count is kept of attachments: the VMAs of all spaces are looked through. A segment that was
//! removed lives as long as a VMA maps it; its entry goes when the table is next locked.

use crate::mem::{EPOCH, Object, now_ns, spaces};
use alloc::vec::Vec;
use core::fmt::Write;
use spin::Mutex;
use vellum::addr::FRAME_SIZE;
use vellum_kernel::errno::Errno;
use vellum_kernel::ipc::{Named, Things};
use vellum_kernel::proc::Text;

/// In the mode of a segment: it was removed, and lives until it is detached.
const REMOVED: u32 = 0o1000;

/// A segment.
pub struct Segment {
    /// Its contents, until it is removed.
    pub object: Option<Object>,
    /// The tag of that object.
    pub tag: u64,
    /// Bytes, as they were asked for.
    pub size: u64,
    /// When it was attached, detached, and changed last, in seconds.
    pub times: [u64; 3],
    /// The processes that made it, and used it last.
    pub pids: [u32; 2],
}

static SEGMENTS: Mutex<Option<Things<Segment>>> = Mutex::new(None);

/// Returns the wall clock in seconds.
pub fn now() -> u64 {
    (EPOCH + now_ns()) / 1_000_000_000
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

/// Calls `work` with the segments locked, without those that were removed and that no VMA maps any
/// more.
pub fn with<T>(work: impl FnOnce(&mut Things<Segment>) -> Result<T, Errno>) -> Result<T, Errno> {
    let mut segments = SEGMENTS.lock();
    let segments = segments.get_or_insert_default();
    segments.retain(|segment| segment.what.object.is_some() || attached(segment.what.tag) > 0);
    work(segments)
}

/// Returns the number that the next segment is to have (`/proc/sys/kernel/shm_next_id`), if one is
/// set.
pub fn wanted() -> Result<Option<u32>, Errno> {
    with(|segments| Ok(segments.wanted))
}

/// Sets the number that the next segment is to have.
pub fn want(id: u32) -> Result<(), Errno> {
    with(|segments| {
        segments.wanted = Some(id);
        Ok(())
    })
}

/// Returns a segment's mode, as programs see it.
pub fn mode(segment: &Named<Segment>) -> u32 {
    segment.rights.mode | if segment.what.object.is_none() { REMOVED } else { 0 }
}

/// Returns the text of `/proc/sysvipc/shm`.
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
                let (rights, Segment { object, tag, size, times, pids }) = (&segment.rights, &segment.what);
                let bytes = |object: &Object| object.page_counts().map(|pages| pages * FRAME_SIZE);
                let [resident, swapped] = object.as_ref().map_or([0; 2], bytes);
                let [maker, makers] = rights.maker;
                write!(text, "{:10} {:10} {:5o} {size:21} ", rights.key, segment.id, mode(segment))?;
                let count = attached(*tag) as u32;
                let small = [pids[0], pids[1], count, rights.uid, rights.gid, maker, makers];
                small.iter().try_for_each(|word| write!(text, "{word:5} "))?;
                times.iter().try_for_each(|time| write!(text, "{time:10} "))?;
                writeln!(text, "{resident:21} {swapped:21}")
            })
        })
    })
}
