//! Writes core files: the memory and the registers of a process that a signal ends.
//!
//! The file has what `coredump_filter` selects, without memory of `MADV_DONTDUMP`, and ends where
//! it would have more bytes than `RLIMIT_CORE`. Pages that the process never touched are holes.
//! Other threads end first, so the file has the registers of the thread that took the signal.

use super::path;
use crate::arch::abi::ELF_MACHINE;
use crate::arch::regset::Stopped;
use crate::files::from_root;
use crate::files::proc::memory::{present, vmas};
use crate::files::proc::settings::core_pattern;
use crate::mem::{UserSpace, forced, now_ns, payer, started_at, uaccess, vdso};
use crate::task::Thread;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as abi;
use vellum::addr::FRAME_SIZE;
use vellum::vma::{Prot, Vma, VmaFlags};
use vellum_kernel::credentials::id_index::{EFFECTIVE, REAL};
use vellum_kernel::errno::Errno;
use vellum_kernel::exec::dump::{self, Described, MappedPart, Segment, note};
use vellum_kernel::fs::{File, Kind};
use vellum_kernel::siginfo::Info;
use vellum_kernel::uname;
use vellum_kernel::wait::yield_now;

/// The bits of `coredump_filter`: private and shared memory without a file, private and shared
/// mappings of files, and the first pages of ELF files.
mod filter {
    pub const ANONYMOUS: u32 = 1;
    pub const SHARED: u32 = 1 << 1;
    pub const PRIVATE_FILE: u32 = 1 << 2;
    pub const SHARED_FILE: u32 = 1 << 3;
    pub const ELF_HEADERS: u32 = 1 << 4;
}

/// The number of pages of which it is found out at once whether they were touched.
const PAGES_AT_ONCE: usize = 512;

/// The register sets that have notes, and the owner of each.
#[cfg(target_arch = "x86_64")]
const SETS: [(&[u8], u32); 2] = [(b"CORE", note::FLOATING), (b"LINUX", 0x202)];
#[cfg(target_arch = "aarch64")]
const SETS: [(&[u8], u32); 2] = [(b"CORE", note::FLOATING), (b"LINUX", 0x401)];

/// Writes the core of the thread's process to a file, unless its limit or its user forbid that.
/// Returns whether there is a core, which the limit may have cut off. Ends the other threads.
pub async fn dump_core(thread: &Arc<Thread>, info: &Info) -> bool {
    let process = &thread.process;
    let limit = process.limits.lock()[abi::RLIMIT_CORE as usize][0];
    if limit < FRAME_SIZE || process.dumpable.load(Relaxed) != 1 {
        return false;
    }
    process.end_others(thread).await.is_ok() && matches!(write(thread, info, limit).await, Ok(()) | Err(Errno::EFBIG))
}

/// Returns the path of the file.
fn path_of_core(thread: &Thread, signal: u32) -> Result<Vec<u8>, Errno> {
    let (pattern, adds_pid) = core_pattern();
    let own = thread.credentials();
    let pid = thread.process.pid;
    let mut path = dump::path(&pattern, |letter, path| match letter {
        b'e' => path.extend(thread.name().iter().map(|byte| if *byte == b'/' { b'!' } else { *byte })),
        b'h' => path.extend_from_slice(uname::HOST.as_bytes()),
        _ => {
            let number = match letter {
                b'p' | b'P' => u64::from(pid),
                b'i' | b'I' => thread.tid.into(),
                b'u' => own.uids[REAL].into(),
                b'g' => own.gids[REAL].into(),
                b's' => signal.into(),
                b't' => (started_at() + now_ns()) / 1_000_000_000,
                b'd' => thread.process.dumpable.load(Relaxed).into(),
                _ => return,
            };
            path.extend_from_slice(format!("{number}").as_bytes());
        }
    })?;
    if adds_pid && !pattern.windows(2).any(|pair| pair == b"%p") {
        path.extend_from_slice(format!(".{pid}").as_bytes());
    }
    Ok(path)
}

async fn write(thread: &Arc<Thread>, info: &Info, limit: u64) -> Result<(), Errno> {
    let memory = thread.memory();
    let filter = thread.process.core_filter.load(Relaxed);
    let all = vmas(&memory)?;
    let mut segments = Vec::new();
    segments.try_reserve(all.len())?;
    for vma in &all {
        let has = |right| vma.prot.contains(right);
        let rights = [has(Prot::READ), has(Prot::WRITE), has(Prot::EXEC)];
        segments.push(Segment { range: vma.range.start..vma.range.end, rights, dumped: dumped(&memory, vma, filter) });
    }
    let notes = notes(thread, &memory, &all, info)?;
    let (head, offsets) = dump::head(ELF_MACHINE, &segments, &notes)?;
    let path = path_of_core(thread, info.signal)?;
    let flags = abi::O_CREAT | abi::O_WRONLY | abi::O_TRUNC | abi::O_NOFOLLOW;
    let open = path::with(thread, path::HERE, &path, |view| view.open(&path, flags, 0o600))?;
    if open.inode().meta().kind != Kind::Regular {
        return Err(Errno::EACCES);
    }
    let file = open.file()?;
    let mut core = Core { thread, file: &**file, left: limit };
    core.put(0, &head).await?;
    for ((segment, vma), at) in segments.iter().zip(&all).zip(offsets) {
        core.put_segment(&memory, segment, !vma.backing.is_anonymous(), at).await?;
    }
    Ok(())
}

/// Returns how many bytes of a VMA the file has.
fn dumped(memory: &UserSpace, vma: &Vma, filter: u32) -> u64 {
    let (len, anonymous, shared) = (vma.range.len(), vma.backing.is_anonymous(), vma.backing.is_shared());
    let is_wanted = |bit: u32| filter & bit != 0;
    match vdso::name(vma) {
        Some(b"[vdso]") => return len,
        Some(_) => return 0,
        None if vma.flags.contains(VmaFlags::DONTDUMP) => return 0,
        None => {}
    }
    let has_file = !anonymous && memory.mapped(vma.backing.tag()).is_some();
    let is_whole = match (has_file, shared) {
        (false, false) => is_wanted(filter::ANONYMOUS),
        (false, true) => is_wanted(filter::SHARED),
        (true, true) => is_wanted(filter::SHARED_FILE),
        (true, false) => {
            // Copies that the process has written to, for example before it made them read-only.
            let has_copies = || {
                let found = memory.engine.usage(*vma.range);
                found.anonymous + found.swap > 0
            };
            is_wanted(filter::PRIVATE_FILE) || is_wanted(filter::ANONYMOUS) && has_copies()
        }
    };
    let begins_file = has_file && !shared && vma.backing.offset(vma.range.start) == 0;
    match is_whole {
        true => len,
        false if begins_file && is_wanted(filter::ELF_HEADERS) && vma.prot.contains(Prot::READ) => FRAME_SIZE,
        false => 0,
    }
}

/// Returns the notes: the thread, the process, the signal, the auxiliary vector and the files.
fn notes(thread: &Thread, memory: &Arc<UserSpace>, vmas: &[Vma], info: &Info) -> Result<Vec<u8>, Errno> {
    thread.save_extended();
    // SAFETY: runs in the thread's own future.
    let context = unsafe { thread.context() };
    let registers = Stopped::of(&context.registers, &context.extended);
    let (process, own) = (&thread.process, thread.credentials());
    let family = [process.parent_pid(), process.group.load(Relaxed), process.session.load(Relaxed)];
    let [parent, group, session] = family;
    let sets = [thread.pending.lock().set(), thread.mask.load(Relaxed)];
    let image = memory.image.lock().clone();
    let read = |range: [u64; 2], most: u64| -> Result<Vec<u8>, Errno> {
        let mut bytes = payer::zeros(range[1].saturating_sub(range[0]).min(most) as usize)?;
        let len = uaccess::read_some(memory, range[0], &mut bytes);
        bytes.truncate(len);
        Ok(bytes)
    };
    let (name, arguments) = (thread.name(), read(image.arguments, 80)?);
    let described = Described {
        numbers: [own.uids[EFFECTIVE], own.gids[EFFECTIVE], process.pid, parent, group, session],
        nice: thread.traits.lock().nice as i8,
        name: &name,
        arguments: &arguments,
    };
    let mut paths = Vec::new();
    for vma in vmas.iter().filter(|vma| !vma.backing.is_anonymous()) {
        if let Some(file) = memory.mapped(vma.backing.tag()) {
            paths.try_reserve(1)?;
            paths.push((vma, from_root(|view| view.names.path_of_mapped(&file, view.root))));
        }
    }
    let mut files = Vec::new();
    files.try_reserve(paths.len())?;
    files.extend(paths.iter().map(|(vma, path)| MappedPart {
        range: vma.range.start..vma.range.end,
        offset: vma.backing.offset(vma.range.start),
        path,
    }));
    let numbers = [thread.tid, parent, group, session];
    let status = dump::status_note(info.signal, info.code, sets, numbers, &registers.general());
    let mut notes = Vec::new();
    let mut push = |owner: &[u8], kind: u32, contents: &[u8]| dump::push_note(&mut notes, owner, kind, contents);
    push(b"CORE", note::STATUS, &status)?;
    push(b"CORE", note::PROCESS, &dump::process_note(&described))?;
    push(b"CORE", note::SIGNAL, &info.bytes())?;
    push(b"CORE", note::AUX, &read(image.aux, 4096)?)?;
    push(b"CORE", note::FILES, &dump::files_note(&files)?)?;
    for (owner, kind) in SETS {
        if let Some(set) = registers.set_of_kind(kind) {
            push(owner, kind, &set)?;
        }
    }
    Ok(notes)
}

/// A core file that is being written.
struct Core<'a> {
    thread: &'a Arc<Thread>,
    file: &'a dyn File,
    /// The number of bytes that may still be written. Holes don't count.
    left: u64,
}

impl Core<'_> {
    /// Writes bytes at an offset.
    ///
    /// # Errors
    ///
    /// `EFBIG`: the limit is reached. `EINTR`: the process is killed. Those of the file.
    async fn put(&mut self, at: u64, mut bytes: &[u8]) -> Result<(), Errno> {
        let mut at = at;
        // The first piece that does not fit whole ends the file.
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or(Errno::EFBIG)?;
        while !bytes.is_empty() {
            if self.thread.ending.load(Relaxed) {
                return Err(Errno::EINTR);
            }
            match self.file.write(at, &mut { bytes }) {
                Ok(0) => return Err(Errno::EIO),
                Ok(written) => {
                    at += written as u64;
                    bytes = &bytes[written..];
                }
                Err(error) if self.thread.may_repeat::<()>(Err(error)).await => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes a segment, whose bytes begin at an offset in the file. Of a segment that does not map
    /// a file, pages that were never touched are left out.
    async fn put_segment(
        &mut self,
        memory: &Arc<UserSpace>,
        segment: &Segment,
        has_object: bool,
        at: u64,
    ) -> Result<(), Errno> {
        let Segment { range, dumped, .. } = segment;
        let end = range.start + dumped;
        // Not parts of the future, which would take them for each thread.
        let mut bytes = payer::zeros(FRAME_SIZE as usize)?;
        let mut is_present = payer::zeros(PAGES_AT_ONCE)?;
        is_present.fill(1);
        let mut last = range.start;
        for (index, page) in (range.start..end).step_by(FRAME_SIZE as usize).enumerate() {
            if index % is_present.len() == 0 {
                yield_now().await;
                if self.thread.ending.load(Relaxed) {
                    return Err(Errno::EINTR);
                }
                if !has_object {
                    present(memory, page / FRAME_SIZE, &mut is_present)?;
                }
            }
            if is_present[index % is_present.len()] == 0 {
                continue;
            }
            bytes.fill(0);
            // A page that can't be read, as behind the end of a file, is zeros in the file.
            while forced::read(memory, page, &mut bytes) < bytes.len()
                && self.thread.may_repeat::<()>(Err(Errno::EFAULT)).await
            {}
            self.put(at + (page - range.start), &bytes).await?;
            last = page + FRAME_SIZE;
        }
        if last < end {
            self.put(at + (end - range.start) - 1, &[0]).await?;
        }
        Ok(())
    }
}
