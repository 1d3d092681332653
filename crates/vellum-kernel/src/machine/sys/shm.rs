//! Implements System V shared memory.

use super::Answer;
use super::memory::{is_huge_size, populate};
use crate::files::contents::{HUGE_PAGE, HugeContents, ObjectContents};
use crate::files::proc::settings;
use crate::files::shm::{Segment, attached, mode, now, with};
use crate::mem::thread::failed;
use crate::mem::{Object, machine, spaces, uaccess};
use crate::task::Thread;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general::{CAP_IPC_LOCK, MAP_HUGE_SHIFT};
use vellum::addr::FRAME_SIZE;
use vellum::frame::policy::ShmemFolios;
use vellum::memcg::MayBeRefused;
use vellum::page_cache::Hugetlb;
use vellum::space::{MapError, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::meta::Device;
use vellum_kernel::fs::names::MappedFile;
use vellum_kernel::fs::{FileCredentials, Pages};
use vellum_kernel::ipc::{IpcObject, READ, WRITE};

/// Flags of `shmat`.
const READ_ONLY: u32 = 0o10000;
const ROUND: u32 = 0o20000;
const REPLACE: u32 = 0o40000;
const EXECUTE: u32 = 0o100000;
/// `SHM_HUGETLB`, a flag of `shmget`.
const HUGE: u32 = 0o4000;
/// `SHM_NORESERVE`, a flag of `shmget`.
const NORESERVE: u32 = 0o10000;
/// `SHM_LOCKED`, a mode bit: the segment must not be paged out.
const LOCKED: u32 = 0o2000;

/// Implements `shmget`.
pub fn get(thread: &Thread, key: u64, size: u64, flags: u64) -> Answer {
    let (key, flags) = (key as i32, flags as u32);
    let [_, most_bytes, most] = settings::shared_memory();
    let who = thread.credentials().file_credentials();
    let pid = thread.process.pid;
    let fits = |segment: &Segment| if size > segment.size { Err(Errno::EINVAL) } else { Ok(()) };
    let make = || {
        if size == 0 || size > most_bytes {
            return Err(Errno::EINVAL);
        }
        if flags & HUGE != 0 {
            return huge_segment(&who, size, flags, pid);
        }
        if size.div_ceil(FRAME_SIZE) > machine().frames().total() {
            return Err(Errno::ENOMEM);
        }
        let contents = ObjectContents::new(ShmemFolios::Sizes)?;
        contents.set_size(size.next_multiple_of(FRAME_SIZE))?;
        let (object, times, pids) = (Some(contents.object.clone()), [0, 0, now()], [pid, 0]);
        Ok(Segment { tag: object.as_ref().map_or(0, Object::tag), object, size, times, pids })
    };
    with(|segments| segments.get_or_create(key, flags, &who, most, fits, make)).map(u64::from)
}

/// Makes a segment of huge pages of the machine's pool, and reserves them unless `SHM_NORESERVE` is
/// set.
///
/// # Errors
///
/// `EPERM`: the caller may not, having neither `CAP_IPC_LOCK` nor the group `hugetlb_shm_group`.
/// `EINVAL`: there is no pool of such pages. `ENOMEM`: the pool can't have as many.
fn huge_segment(who: &FileCredentials, size: u64, flags: u32, pid: u32) -> Result<Segment, Errno> {
    if !who.has(CAP_IPC_LOCK) && !who.in_group(settings::huge_group()) {
        return Err(Errno::EPERM);
    }
    if !is_huge_size(flags >> MAP_HUGE_SHIFT) {
        return Err(Errno::EINVAL);
    }
    let contents = HugeContents::new()?;
    contents.set_size(size.checked_next_multiple_of(HUGE_PAGE).ok_or(Errno::EINVAL)?)?;
    if flags & NORESERVE == 0 {
        Hugetlb(&contents.object).reserve_all().map_err(|_| Errno::ENOMEM)?;
    }
    let object = contents.object;
    Ok(Segment { tag: object.tag(), object: Some(object), size, times: [0, 0, now()], pids: [pid, 0] })
}

/// Finds the page-cache object of a removed segment through a VMA that still maps it.
fn object_of_vma(tag: u64) -> Option<Object> {
    spaces::all().find_map(|space| {
        let mut at = None;
        space.engine.vmas(0, |vma| {
            at = at.or((vma.backing.tag() == tag).then_some(vma.range.start));
            at.is_none()
        });
        space.engine.object_at(at?).map(|(object, _)| object).filter(|object| object.tag() == tag)
    })
}

/// Implements `shmat`.
pub async fn attach(thread: &Arc<Thread>, id: u64, addr: u64, flags: u64) -> Answer {
    let flags = flags as u32;
    let mut addr = addr;
    if flags & ROUND != 0 {
        addr &= !(FRAME_SIZE - 1);
    }
    if (id as i32) < 0 || !addr.is_multiple_of(FRAME_SIZE) || (addr == 0 && flags & REPLACE != 0) {
        return Err(Errno::EINVAL);
    }
    let mut prot = Prot::READ;
    prot.set(Prot::WRITE, flags & READ_ONLY == 0);
    prot.set(Prot::EXEC, flags & EXECUTE != 0);
    let mut how = MapFlags::SHARED | MapFlags::NO_POPULATE;
    how.set(MapFlags::READ_ONLY, flags & READ_ONLY != 0);
    how.set(MapFlags::FIXED, flags & REPLACE != 0);
    how.set(MapFlags::FIXED_NOREPLACE, addr != 0 && flags & REPLACE == 0);
    let who = thread.credentials().file_credentials();
    let memory = thread.memory();
    let (mapped, len) = with(|segments| {
        let IpcObject { id, perm, data: segment } = segments.get(id as u32)?;
        let executes = if flags & EXECUTE != 0 { 1 } else { 0 };
        perm.check_access(&who, executes | if flags & READ_ONLY != 0 { READ } else { READ | WRITE })?;
        let object = segment.object.clone().or_else(|| object_of_vma(segment.tag)).ok_or(Errno::EINVAL)?;
        let name = format!("/SYSV{:08x} (deleted)", perm.key).into_bytes();
        memory.note_mapped_file(
            segment.tag,
            MappedFile::with_fixed_name(Device { major: 0, minor: 1 }, u64::from(*id), name.into()),
        );
        let request = MapRequest { addr, len: segment.size, prot, flags: how };
        let mapped = memory.engine.map_object(request, &object, 0).map_err(|error| match error {
            MapError::Exists(_) => Errno::EINVAL,
            other => failed(other.refused(), other.errno()),
        })?;
        segment.times[0] = now();
        segment.pids[1] = thread.process.pid;
        Ok((mapped, segment.size))
    })?;
    populate(thread, mapped, len, false).await?;
    Ok(mapped)
}

/// Implements `shmdt`: unmaps what is left of the attachment that began at `addr`.
pub fn detach(thread: &Thread, addr: u64) -> Answer {
    if !addr.is_multiple_of(FRAME_SIZE) {
        return Err(Errno::EINVAL);
    }
    let memory = thread.memory();
    with(|segments| {
        let size_of = |tag| segments.iter().find(|segment| segment.data.tag == tag).map(|segment| segment.data.size);
        let mut first = None;
        let (mut parts, mut full) = (Vec::new(), false);
        memory.engine.vmas(addr, |vma| {
            let (start, tag) = (vma.range.start, vma.backing.tag());
            let belongs = start >= addr && tag != 0 && vma.backing.offset(start) == start - addr;
            if belongs && first.is_none() {
                first = size_of(tag).map(|size| (tag, addr.saturating_add(size)));
            }
            if belongs && first.is_some_and(|(own, _)| own == tag) {
                full = parts.try_reserve(1).is_err();
                parts.extend((!full).then_some(vma.range));
            }
            // No VMA of the attachment lies beyond the segment's size.
            !full && first.is_none_or(|(_, end)| start < end)
        });
        if full {
            return Err(Errno::ENOMEM);
        }
        let (tag, _) = first.ok_or(Errno::EINVAL)?;
        for part in parts {
            memory.engine.unmap(part.start, part.end - part.start).map_err(|error| Errno::from(error.errno()))?;
        }
        if let Some(segment) = segments.iter_mut().find(|segment| segment.data.tag == tag) {
            segment.data.times[1] = now();
            segment.data.pids[1] = thread.process.pid;
        }
        Ok(0)
    })
}

/// Builds a `struct shmid64_ds`.
fn described(segment: &IpcObject<Segment>) -> [u8; 112] {
    let mut bytes = [0; 112];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let perm = &segment.perm;
    let [creator, creator_group] = perm.creator;
    let words = [perm.key as u32, perm.uid, perm.gid, creator, creator_group, mode(segment)];
    words.iter().enumerate().for_each(|(i, word)| put(4 * i, &word.to_le_bytes()));
    put(24, &((segment.id >> 15) as u16).to_le_bytes());
    let Segment { tag, size, times, pids, .. } = &segment.data;
    put(48, &size.to_le_bytes());
    times.iter().enumerate().for_each(|(i, time)| put(56 + 8 * i, &time.to_le_bytes()));
    pids.iter().enumerate().for_each(|(i, pid)| put(80 + 4 * i, &pid.to_le_bytes()));
    put(88, &attached(*tag).to_le_bytes());
    bytes
}

/// Implements `shmctl`.
pub fn control(thread: &Thread, id: u64, command: u64, at: u64) -> Answer {
    const REMOVE: u32 = 0;
    const SET: u32 = 1;
    const STAT: u32 = 2;
    const INFO: u32 = 3;
    const LOCK: u32 = 11;
    const UNLOCK: u32 = 12;
    const STAT_PLACE: u32 = 13;
    const ALL: u32 = 14;
    const STAT_ANY: u32 = 15;
    let (id, command) = (id as u32, command as u32);
    let (memory, who) = (thread.memory(), thread.credentials().file_credentials());
    if (id as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    match command {
        INFO => {
            let [all, bytes, most] = settings::shared_memory();
            let highest = with(|segments| Ok(segments.max_index()))?;
            uaccess::write(&memory, at, &words(&[bytes, 1, most, most, all, 0, 0, 0, 0]))?;
            Ok(highest as u64)
        }
        ALL => {
            let (highest, count, pages, (resident, swapped)) = with(|segments| {
                let pages = segments.iter().map(|segment| segment.data.size.div_ceil(FRAME_SIZE)).sum();
                let objects = segments.iter().filter_map(|segment| segment.data.object.as_ref());
                let has = objects
                    .map(Object::page_counts)
                    .fold((0, 0), |(resident, swapped), counts| (resident + counts.resident, swapped + counts.swapped));
                Ok((segments.max_index(), segments.iter().count() as u64, pages, has))
            })?;
            uaccess::write(&memory, at, &words(&[count, pages, resident, swapped, 0, 0]))?;
            Ok(highest as u64)
        }
        STAT | STAT_PLACE | STAT_ANY => {
            let (bytes, id) = with(|segments| {
                let segment = if command == STAT { segments.get(id)? } else { segments.get_by_index(id)? };
                if command != STAT_ANY {
                    segment.perm.check_access(&who, READ)?;
                }
                Ok((described(segment), if command == STAT { 0 } else { segment.id }))
            })?;
            uaccess::write(&memory, at, &bytes)?;
            Ok(id.into())
        }
        SET => {
            let mut bytes = [0; 24];
            uaccess::read(&memory, at, &mut bytes)?;
            let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
            with(|segments| {
                let segment = segments.get(id)?;
                segment.perm.check_owner(&who)?;
                (segment.perm.uid, segment.perm.gid) = (word(4), word(8));
                segment.perm.mode = segment.perm.mode & !0o777 | word(20) & 0o777;
                segment.data.times[2] = now();
                Ok(0)
            })
        }
        REMOVE => {
            let removed = with(|segments| {
                let segment = segments.get(id)?;
                segment.perm.check_owner(&who)?;
                // A removed segment is no longer found by its key.
                segment.perm.key = 0;
                Ok(segment.data.object.take())
            })?;
            drop(removed);
            Ok(0)
        }
        LOCK | UNLOCK => with(|segments| {
            let segment = segments.get(id)?;
            if !who.has(CAP_IPC_LOCK) {
                segment.perm.check_owner(&who)?;
                let allowed = thread.process.limits.lock()[linux_raw_sys::general::RLIMIT_MEMLOCK as usize][0];
                if command == LOCK && allowed == 0 {
                    return Err(Errno::EPERM);
                }
            }
            // Segments are not paged out, so the mode bit is all that changes.
            segment.perm.mode = segment.perm.mode & !LOCKED | if command == LOCK { LOCKED } else { 0 };
            Ok(0)
        }),
        _ => Err(Errno::EINVAL),
    }
}
