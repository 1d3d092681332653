//! Implements `mmap`, `madvise` and the other memory calls on top of the engine.

use super::pieces::{by_pieces, may_go_on};
use super::{Answer, keys, poison, sync};
use crate::arch::abi::MAP_LOW;
use crate::files::proc::settings::LOWEST;
use crate::files::user::UserBytes;
use crate::files::{contents, proc};
use crate::mem::memcgs;
use crate::mem::spaces::All;
use crate::mem::thread::{BlockedOn, failed, fault_failed};
use crate::mem::uffd::Notices;
use crate::mem::{Object, UserSpace, uaccess, vdso};
use crate::task::blocked::notify;
use crate::task::{Thread, deliver};
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as abi;
use vellum::addr::{FRAME_SHIFT, FRAME_SIZE, VirtRange, align_up};
use vellum::frame::HUGE_ORDER;
use vellum::memcg::MayBeRefused;
use vellum::page_cache::{Hugetlb, ObjectError};
use vellum::space::{
    self, Advise, AdviseError, CollapseError, Limits, LockAll, LockError, MapFlags, MapRequest, Populating, RemapFlags,
    RemapRequest,
};
use vellum::vma::{Expected, Prot};
use vellum_kernel::credentials::Credentials;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::inode::Mappable;
use vellum_kernel::fs::names::MappedFile;
use vellum_kernel::wait::yield_now;

/// The flags that `MAP_SHARED_VALIDATE` accepts.
const KNOWN: u32 = abi::MAP_TYPE
    | abi::MAP_FIXED
    | abi::MAP_FIXED_NOREPLACE
    | abi::MAP_ANONYMOUS
    | abi::MAP_POPULATE
    | abi::MAP_NORESERVE
    | abi::MAP_GROWSDOWN
    | abi::MAP_LOCKED
    | abi::MAP_NONBLOCK
    | abi::MAP_STACK
    | MAP_LOW
    | abi::MAP_HUGETLB
    | abi::MAP_HUGE_MASK << abi::MAP_HUGE_SHIFT;

/// The `MAP_` flags that have an engine flag of the same meaning.
const FLAGS: [(u32, MapFlags); 7] = [
    (abi::MAP_FIXED, MapFlags::FIXED),
    (abi::MAP_FIXED_NOREPLACE, MapFlags::FIXED_NOREPLACE),
    (abi::MAP_POPULATE, MapFlags::POPULATE),
    (abi::MAP_NORESERVE, MapFlags::NORESERVE),
    (abi::MAP_GROWSDOWN, MapFlags::GROWSDOWN),
    (abi::MAP_LOCKED, MapFlags::LOCKED),
    (MAP_LOW, MapFlags::LOW),
];

/// Implements `mmap`.
pub async fn mmap(thread: &Arc<Thread>, [addr, len, prot_bits, flags, fd, offset]: [u64; 6]) -> Answer {
    if !offset.is_multiple_of(FRAME_SIZE) {
        return Err(Errno::EINVAL);
    }
    let flags = flags as u32;
    let shared = match flags & abi::MAP_TYPE {
        abi::MAP_PRIVATE => false,
        abi::MAP_DROPPABLE if flags & (abi::MAP_ANONYMOUS | abi::MAP_HUGETLB) == abi::MAP_ANONYMOUS => false,
        abi::MAP_SHARED => true,
        abi::MAP_SHARED_VALIDATE if flags & !KNOWN == 0 => true,
        abi::MAP_SHARED_VALIDATE => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    };
    let prot = Prot::from_bits_truncate(prot_bits as u8);
    let prot = prot.with_key(keys::execute_only(thread, prot).unwrap_or_default());
    let mut wanted = MapFlags::NO_POPULATE;
    for (bit, flag) in FLAGS {
        wanted.set(flag, flags & bit != 0);
    }
    wanted.set(MapFlags::SHARED, shared);
    wanted.set(MapFlags::DROPPABLE, flags & abi::MAP_TYPE == abi::MAP_DROPPABLE);
    let huge = flags & abi::MAP_HUGETLB != 0;
    if huge && flags & abi::MAP_ANONYMOUS != 0 {
        if !is_huge_size(flags >> abi::MAP_HUGE_SHIFT) {
            return Err(Errno::EINVAL);
        }
        wanted |= MapFlags::HUGETLB;
    }
    let memory = thread.memory();
    let mut notices = Notices::default();
    if flags & abi::MAP_FIXED != 0 {
        notices.unmap(&memory, addr, len)?;
    }
    let mut has_huge_pages = wanted.contains(MapFlags::HUGETLB);
    let mut request = MapRequest { addr, len, prot, flags: wanted };
    let mapped = if flags & abi::MAP_ANONYMOUS != 0 {
        memory.engine.map(request)
    } else {
        let open = super::file::open_of(thread, fd & 0xffff_ffff)?;
        if open.flags() & abi::O_PATH != 0 {
            return Err(Errno::EBADF);
        }
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let writes = open.flags() & abi::O_ACCMODE;
        if writes == abi::O_WRONLY || (shared && prot.contains(Prot::WRITE) && writes != abi::O_RDWR) {
            return Err(Errno::EACCES);
        }
        if shared && writes != abi::O_RDWR {
            request.flags |= MapFlags::READ_ONLY;
        }
        let file = open.file().map_err(|_| Errno::ENODEV)?;
        match file.mappable() {
            Mappable::No => return Err(Errno::ENODEV),
            Mappable::Zeros if huge => return Err(Errno::EINVAL),
            Mappable::Zeros => memory.engine.map(request),
            Mappable::Pages(pages) => {
                let object = contents::object_of(&pages).ok_or(Errno::ENODEV)?;
                has_huge_pages = Hugetlb(object).has_pages();
                if huge && !has_huge_pages {
                    return Err(Errno::EINVAL);
                }
                // Mapping a file counts as an access, so its access time is updated.
                file.read(0, &mut UserBytes::one(thread, 0, 0))?;
                memory.note_mapped_file(object.tag(), MappedFile::from_open(&open));
                let mapped = memory.engine.map_object(request, object, offset);
                // A mapping that may be written makes a file of huge pages as long as itself, also
                // if it is private (Linux: `hugetlbfs_file_mmap`).
                let end = offset.saturating_add(len);
                if has_huge_pages && prot.contains(Prot::WRITE) && mapped.is_ok() && pages.size() < end {
                    pages.set_size(align_up(end, FRAME_SHIFT + u32::from(HUGE_ORDER)).unwrap_or(end))?;
                }
                mapped
            }
        }
    };
    let to = mapped.map_err(|error| failed(error.refused(), error.errno()))?;
    notify(thread, notices).await;
    // Huge pages are not locked, but a request to lock them faults them in.
    let (unlocked, shift) = match has_huge_pages {
        true => (flags & (abi::MAP_POPULATE | abi::MAP_LOCKED) != 0, FRAME_SHIFT + u32::from(HUGE_ORDER)),
        false => (flags & abi::MAP_POPULATE != 0, FRAME_SHIFT),
    };
    populate(thread, to, align_up(len, shift).unwrap_or(len), unlocked).await?;
    Ok(to)
}

/// Returns whether the pool has huge pages of a size that a flag encodes, in its low six bits: log2
/// of the size, or 0 for the default size.
pub fn is_huge_size(encoded: u32) -> bool {
    matches!(encoded & abi::MAP_HUGE_MASK, 0) || encoded & abi::MAP_HUGE_MASK == FRAME_SHIFT + u32::from(HUGE_ORDER)
}

/// Populates a new mapping: the pages of locked VMAs, or with `unlocked` all pages. Pages that
/// cannot be allocated even after reclaim are skipped without an error (as for `MAP_POPULATE` on
/// Linux). A signal ends the work without an error too, because the call cannot be restarted.
///
/// # Errors
///
/// `EINTR`: the thread is being killed.
pub async fn populate(thread: &Arc<Thread>, addr: u64, len: u64, unlocked: bool) -> Result<(), Errno> {
    let memory = thread.memory();
    let rest = memory.engine.begin_populate(addr, len, unlocked);
    let populated = populate_rest(thread, &memory, rest).await;
    populated.or_else(|error| if error == Errno::EINTR { Err(error) } else { Ok(()) })
}

/// Populates the rest and skips pages that cannot be allocated.
///
/// # Errors
///
/// `EINTR`: the thread is being killed. Others: a signal arrived, after which the call is
/// restarted.
async fn populate_rest(thread: &Arc<Thread>, memory: &Arc<UserSpace>, mut rest: Populating) -> Result<(), Errno> {
    loop {
        let piece = || {
            let populated = memory.engine.populate_some(&mut rest, || may_go_on(thread));
            populated.map_err(|error| fault_failed(error, memory))
        };
        match by_pieces(thread, piece).await {
            Err(error) if error != Errno::EINTR && !thread.mem.is_blocked() => rest.skip_vma(),
            populated => return populated,
        }
    }
}

/// Implements `munmap`.
pub async fn munmap(thread: &Thread, addr: u64, len: u64) -> Answer {
    let memory = thread.memory();
    let mut notices = Notices::default();
    notices.unmap(&memory, addr, len)?;
    memory.engine.unmap(addr, len).map_err(|error| failed(error.refused(), error.errno()))?;
    notify(thread, notices).await;
    Ok(0)
}

/// Implements `mremap`.
pub async fn mremap(thread: &Thread, [addr, old_len, new_len, flags, new_addr, _]: [u64; 6]) -> Answer {
    let flags = u8::try_from(flags).ok().and_then(RemapFlags::from_bits).ok_or(Errno::EINVAL)?;
    let request = RemapRequest { addr, old_len, new_len, flags, new_addr };
    let memory = thread.memory();
    let (mut early, mut notices) = (Notices::default(), Notices::default());
    if flags.contains(RemapFlags::FIXED) {
        early.unmap(&memory, new_addr, new_len)?;
    }
    notices.remap(&memory, addr, old_len)?;
    if !flags.contains(RemapFlags::DONTUNMAP) {
        notices.unmap(&memory, addr, old_len)?;
    }
    let mut shrinks = Notices::default();
    if new_len < old_len {
        let kept = align_up(new_len, FRAME_SHIFT).unwrap_or(new_len);
        shrinks.unmap(&memory, addr.wrapping_add(kept), old_len.saturating_sub(kept))?;
    }
    let to = memory.engine.remap(request).map_err(|error| failed(error.refused(), error.errno()))?;
    if to != addr {
        if !notices.has_remap() {
            memory.unregister_uffds(to, new_len);
        }
        // A thread of the program that moves the same VMA meanwhile has no right answer.
        memory.vdso.store(vdso::moved(memory.vdso.load(Relaxed), addr, old_len.max(1), to), Relaxed);
        notices.moved(to);
        drop(shrinks);
        notify(thread, early).await;
        notify(thread, notices).await;
    } else {
        drop((early, notices));
        notify(thread, shrinks).await;
    }
    Ok(to)
}

/// Implements `madvise` for the calling process.
pub async fn madvise(thread: &Arc<Thread>, addr: u64, len: u64, advice: u64) -> Answer {
    advise(thread, &thread.memory(), addr, len, advice).await
}

/// Applies `madvise` advice to a range of an address space.
///
/// # Errors
///
/// Those of `madvise`.
pub async fn advise(thread: &Arc<Thread>, memory: &Arc<UserSpace>, addr: u64, len: u64, advice: u64) -> Answer {
    const DROPS: [u32; 4] = [abi::MADV_REMOVE, abi::MADV_DONTNEED, abi::MADV_DONTNEED_LOCKED, abi::MADV_FREE];
    if DROPS.contains(&(advice as u32)) && memory.has_uffd_events.load(Relaxed) && addr.is_multiple_of(FRAME_SIZE) {
        notify_of_removal(thread, memory, addr, len).await?;
    }
    let advice = match advice as u32 {
        abi::MADV_REMOVE => return remove(memory, addr, len),
        abi::MADV_HWPOISON | abi::MADV_SOFT_OFFLINE => {
            return poison::inject(thread, memory, [addr, len], advice as u32 == abi::MADV_HWPOISON).await;
        }
        abi::MADV_NORMAL => Advise::Reads(Expected::Unknown),
        abi::MADV_RANDOM => Advise::Reads(Expected::Random),
        abi::MADV_SEQUENTIAL => Advise::Reads(Expected::Sequential),
        abi::MADV_WILLNEED => Advise::WillNeed,
        abi::MADV_DONTNEED => Advise::DontNeed,
        abi::MADV_DONTNEED_LOCKED => Advise::DontNeedLocked,
        abi::MADV_FREE => Advise::Free,
        abi::MADV_DONTFORK => Advise::DontFork,
        abi::MADV_DOFORK => Advise::DoFork,
        abi::MADV_WIPEONFORK => Advise::WipeOnFork,
        abi::MADV_KEEPONFORK => Advise::KeepOnFork,
        abi::MADV_MERGEABLE => Advise::Mergeable,
        abi::MADV_UNMERGEABLE => Advise::Unmergeable,
        abi::MADV_DONTDUMP => Advise::DontDump,
        abi::MADV_DODUMP => Advise::DoDump,
        abi::MADV_HUGEPAGE => Advise::Huge,
        abi::MADV_NOHUGEPAGE => Advise::NoHuge,
        abi::MADV_COLD => Advise::Cold,
        abi::MADV_PAGEOUT => Advise::PageOut,
        abi::MADV_COLLAPSE => Advise::Collapse,
        abi::MADV_POPULATE_READ => Advise::PopulateRead,
        abi::MADV_POPULATE_WRITE => Advise::PopulateWrite,
        abi::MADV_GUARD_INSTALL => Advise::GuardInstall,
        abi::MADV_GUARD_REMOVE => Advise::GuardRemove,
        _ => return Err(Errno::EINVAL),
    };
    let told = |error: AdviseError| {
        if let AdviseError::Fault(error) = error {
            fault_failed(error, memory);
        }
        failed(error.refused(), error.errno())
    };
    let mut rest = memory.engine.begin_advice(addr, len, advice).map_err(told)?;
    let piece = || {
        if advice == Advise::PageOut {
            memcgs::update_swap_room();
        }
        memory.engine.advise_some(&mut rest, || may_go_on(thread)).map_err(told)
    };
    let advised = by_pieces(thread, piece).await;
    let objects = if advice == Advise::Collapse { collapse_objects(thread, memory, addr, len).await } else { Ok(0) };
    advised.and(objects)
}

/// Notifies userfaultfds that contents are about to be dropped, VMA by VMA.
///
/// # Errors
///
/// `ENOMEM`.
async fn notify_of_removal(thread: &Thread, memory: &UserSpace, addr: u64, len: u64) -> Result<(), Errno> {
    let end = align_up(len, FRAME_SHIFT).and_then(|len| addr.checked_add(len)).unwrap_or(addr);
    let mut at = addr;
    loop {
        let mut notices = Notices::default();
        let Some(next) = notices.remove(memory, at, end)? else { return Ok(()) };
        notify(thread, notices).await;
        at = next;
    }
}

/// Collapses the pages of files in a range whose private memory `MADV_COLLAPSE` has collapsed.
/// Blocks that can't be collapsed are left out; the error is that of the last.
async fn collapse_objects(thread: &Arc<Thread>, memory: &Arc<UserSpace>, addr: u64, len: u64) -> Answer {
    let mut rest = VirtRange { start: addr, end: addr.saturating_add(len) };
    let mut answer = Ok(0);
    let piece = || {
        while rest.start < rest.end {
            let (before, mut pending) = (rest, None);
            let collapse = |object: &Object, page| {
                let collapsed = space::collapse_object(&All, object, page, memory.engine.memcg());
                if let Err(ObjectError::Pending(page)) = collapsed {
                    pending = Some(page);
                }
                collapsed
            };
            match (memory.engine.collapse_next(&mut rest, collapse), pending) {
                (Ok(()), _) => {}
                (Err(error @ CollapseError::NoMemory(_)), _) => return Err(failed(error.refused(), error.errno())),
                (Err(_), Some(page)) => {
                    // Tries the block again once it is read. If it can't be read, the call fails.
                    rest = before;
                    thread.mem.block(BlockedOn::Pending(page));
                    return Err(Errno::EIO);
                }
                (Err(error), None) => answer = Err(error.errno().into()),
            }
            if !may_go_on(thread) {
                break;
            }
        }
        Ok(rest.start >= rest.end)
    };
    by_pieces(thread, piece).await?;
    answer
}

/// Implements `MADV_REMOVE`: punches a hole in the mapped file.
fn remove(memory: &UserSpace, addr: u64, len: u64) -> Answer {
    let removed = memory.engine.remove(addr, len, |object, bytes| {
        object.punch_hole(bytes).map(|gone| space::unmap_removed(&All, object, &gone))
    });
    removed.map_err(|error| failed(error.refused(), error.errno())).map(|()| 0)
}

/// Implements `mlock` and `mlock2`.
pub async fn mlock(thread: &Arc<Thread>, addr: u64, len: u64, flags: u64) -> Answer {
    if flags & !u64::from(abi::MLOCK_ONFAULT) != 0 {
        return Err(Errno::EINVAL);
    }
    let memory = thread.memory();
    let told = |error: LockError| {
        if let LockError::Fault(error) = error {
            fault_failed(error, &memory);
        }
        failed(error.refused(), error.errno())
    };
    let mut rest = memory.engine.begin_lock(addr, len, flags != 0).map_err(told)?;
    let piece = || {
        let populated = memory.engine.populate_some(&mut rest, || may_go_on(thread));
        populated.map_err(|error| told(LockError::Fault(error)))
    };
    by_pieces(thread, piece).await.map(|()| 0)
}

/// Implements `munlock`.
pub fn munlock(thread: &Thread, addr: u64, len: u64) -> Answer {
    thread.memory().engine.unlock(addr, len).map_err(|error| failed(error.refused(), error.errno())).map(|()| 0)
}

/// Implements `mlockall`.
pub async fn mlockall(thread: &Arc<Thread>, flags: u64) -> Answer {
    let flags = u8::try_from(flags as u32).ok().and_then(LockAll::from_bits).ok_or(Errno::EINVAL)?;
    let memory = thread.memory();
    let locked = memory.engine.begin_lock_all(flags);
    let rest = locked.map_err(|error| failed(error.refused(), error.errno()))?;
    populate_rest(thread, &memory, rest).await.map(|()| 0)
}

/// Implements `munlockall`.
pub fn munlockall(thread: &Thread) -> Answer {
    thread.memory().engine.unlock_all();
    Ok(0)
}

/// Implements `mseal`.
pub fn mseal(thread: &Thread, addr: u64, len: u64, flags: u64) -> Answer {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    thread.memory().engine.seal(addr, len).map_err(|error| failed(error.refused(), error.errno())).map(|()| 0)
}

/// Implements `remap_file_pages` by a shared mapping of other pages of the file mapped at `addr`.
pub async fn remap_file_pages(thread: &Arc<Thread>, [addr, len, prot, page, _, _]: [u64; 6]) -> Answer {
    let memory = thread.memory();
    let (addr, len) = (addr & !(FRAME_SIZE - 1), len & !(FRAME_SIZE - 1));
    let offset = page.checked_mul(FRAME_SIZE);
    let end = addr.checked_add(len).filter(|end| *end > addr);
    let (Some(offset), Some(end), 0) = (offset, end, prot) else { return Err(Errno::EINVAL) };
    // The VMAs must map one file without a break and with the same flags.
    let (mut at, mut first) = (addr, None);
    memory.engine.vmas(addr, |vma| {
        let seen = (vma.backing.tag(), vma.prot, vma.flags);
        let alike = vma.range.start <= at && vma.backing.may_write() && first.get_or_insert(seen) == &seen;
        at = if alike { vma.range.end } else { at };
        alike && at < end
    });
    let (Some((_, prot, _)), Some((object, _))) = (first.filter(|_| at >= end), memory.engine.object_at(addr)) else {
        return Err(Errno::EINVAL);
    };
    let flags = MapFlags::FIXED | MapFlags::SHARED | MapFlags::NO_POPULATE;
    let mapped = memory.engine.map_object(MapRequest { addr, len, prot, flags }, &object, offset);
    mapped.map_err(|error| failed(error.refused(), error.errno()))?;
    populate(thread, addr, len, true).await.map(|()| 0)
}

/// Sets an address space's limits from the process's resource limits and credentials.
pub fn set_limits(limits: &mut Limits, resources: &[[u64; 2]; 16], own: &Credentials) {
    let limit = |which: u32| resources[which as usize][0];
    limits.vmas = proc::most_vmas();
    limits.address_space = limit(abi::RLIMIT_AS);
    limits.data = limit(abi::RLIMIT_DATA);
    limits.stack = limit(abi::RLIMIT_STACK);
    limits.lowest_fixed = if own.has(abi::CAP_SYS_RAWIO) { 0 } else { LOWEST };
    limits.locked = if own.has(abi::CAP_IPC_LOCK) { u64::MAX } else { limit(abi::RLIMIT_MEMLOCK) };
}

/// Implements `mincore`. Other tasks run after each 512 pages.
pub async fn mincore(thread: &Arc<Thread>, addr: u64, len: u64, to: u64) -> Answer {
    const AT_ONCE: usize = 512;
    let pages = align_up(len, FRAME_SIZE.ilog2()).ok_or(Errno::ENOMEM)? / FRAME_SIZE;
    for first in (0..pages).step_by(AT_ONCE) {
        if first > 0 {
            yield_now().await;
            if deliver::is_dying(thread) {
                return Err(Errno::EINTR);
            }
        }
        let count = (pages - first).min(AT_ONCE as u64) as usize;
        let mut answer = [false; AT_ONCE];
        let start = addr.checked_add(first * FRAME_SIZE).ok_or(Errno::ENOMEM)?;
        let resident = thread.memory().engine.mincore(start, count as u64 * FRAME_SIZE, &mut answer[..count]);
        resident.map_err(|error| Errno::from(error.errno()))?;
        let to = to.checked_add(first).ok_or(Errno::EFAULT)?;
        uaccess::write(&thread.memory(), to, &answer.map(u8::from)[..count])?;
    }
    Ok(0)
}

/// Implements `msync`.
pub async fn msync(thread: &Arc<Thread>, addr: u64, len: u64, flags: u64) -> Answer {
    let (sync, known) = (abi::MS_ASYNC | abi::MS_SYNC, abi::MS_ASYNC | abi::MS_SYNC | abi::MS_INVALIDATE);
    let flags = flags as u32;
    if flags & !known != 0 || flags & sync == sync {
        return Err(Errno::EINVAL);
    }
    let synced = thread.memory().engine.sync(addr, len, flags & abi::MS_INVALIDATE != 0);
    let all = synced.map_err(|error| error.errno().into()).map(|()| 0);
    // The VMAs are written even if there are holes between them.
    if flags & abi::MS_SYNC != 0 && matches!(all, Ok(_) | Err(Errno::ENOMEM)) && addr.is_multiple_of(FRAME_SIZE) {
        sync::mapped(thread, addr, addr.saturating_add(align_up(len, FRAME_SIZE.ilog2()).unwrap_or(0))).await?;
    }
    all
}

/// Implements `brk`: moves the end of the heap. Returns the end, unchanged if it cannot be moved.
pub async fn brk(thread: &Arc<Thread>, end: u64) -> Answer {
    let memory = thread.memory();
    let (old, kept) = (memory.heap.lock().end, end.checked_next_multiple_of(FRAME_SIZE).unwrap_or(end));
    let mut notices = Notices::default();
    if end < old {
        notices.unmap(&memory, kept, old.saturating_sub(kept))?;
    }
    let (end, grown) = move_end(&memory, end);
    if end < old {
        notify(thread, notices).await;
    }
    if let Some((from, len)) = grown {
        populate(thread, from, len, false).await?;
    }
    Ok(end)
}

/// Moves the end of the heap if possible. Returns the end, and the range newly mapped for the heap.
fn move_end(space: &UserSpace, end: u64) -> (u64, Option<(u64, u64)>) {
    let mut heap = space.heap.lock();
    let page = |at: u64| align_up(at, FRAME_SIZE.ilog2());
    let (Some(old), Some(new)) = (page(heap.end), page(end)) else { return (heap.end, None) };
    if end < heap.start {
        return (heap.end, None);
    }
    let mut grown = None;
    let moved = if new > old {
        let flags = MapFlags::FIXED_NOREPLACE | MapFlags::NO_POPULATE;
        grown = Some((old, new - old));
        let request = MapRequest { addr: old, len: new - old, prot: Prot::READ | Prot::WRITE, flags };
        space.engine.map(request).is_ok()
    } else {
        new == old || space.engine.unmap(new, old - new).is_ok()
    };
    if moved {
        heap.end = end;
    }
    (heap.end, grown.filter(|_| moved))
}
