//! Files in memory: what both kernels are asked about them. There is one, the last that was opened.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use vellum::addr::VirtRange;
use vellum::memcg::MemcgId;
use vellum::page_cache::Object;
use vellum::space::{Access, MapFlags, MapRequest, discard};
use vellum::vma::Prot;
use vellum_sim::Fast;

use super::engine::{Engine, answer};
use super::kernel::PAGE;
use super::linux::{bits, errno, pointer, protection};

/// A call that is about a file.
#[derive(Clone, Debug)]
pub enum Call {
    /// A new one, of so many bytes (`memfd_create`).
    Open(u64),
    /// `mmap` from an offset on. With [`MapFlags::READ_ONLY`], of the file opened to be read.
    Map { addr: u64, len: u64, prot: Prot, flags: MapFlags, offset: u64 },
    /// `ftruncate`.
    Resize(u64),
    /// `fallocate` with `FALLOC_FL_PUNCH_HOLE`.
    Punch(Range<u64>),
    /// A byte of the file is written to 1, not through a mapping (`pwrite`).
    Write(u64),
    /// `F_SEAL_WRITE`; of a file that some map shared the engine need not be asked twice.
    Seal,
    /// `madvise` with `MADV_REMOVE`.
    Remove { addr: u64, len: u64 },
    /// `msync`, with `MS_INVALIDATE` or without.
    Sync { addr: u64, len: u64, invalidate: bool },
    /// Whether the kernel can read a byte that a program gives it.
    Reach(u64),
}

fn number<T>(result: Result<T, vellum::errno::Errno>, value: impl FnOnce(T) -> i64) -> i64 {
    result.map_or_else(|errno| -i64::from(errno.number()), value)
}

impl Engine<'_> {
    /// The engine's answer.
    pub fn file(&self, call: Call) -> i64 {
        let file: &RefCell<Option<Object<'_, Fast>>> = &self.file;
        if let Call::Open(size) = call {
            let opened = Object::new(self.space.machine(), self.space.arch(), MemcgId::ROOT, 1, size);
            return number(opened.map_err(|error| error.errno()), |object| {
                *file.borrow_mut() = Some(object);
                0
            });
        }
        let object = file.borrow().clone();
        let object = || object.as_ref().expect("a row opens the file first");
        match call {
            Call::Open(_) => unreachable!("answered above"),
            Call::Map { addr, len, prot, flags, offset } => {
                let request = MapRequest { addr, len, prot, flags };
                let mapped = self.space.map_object(request, object(), offset);
                number(mapped.map_err(|error| error.errno()), |at| at as i64)
            }
            Call::Resize(size) => number(object().set_size(size).map_err(|error| error.errno()), |gone| {
                discard(&[self.space][..], object(), &gone);
                0
            }),
            Call::Punch(bytes) => {
                discard(&[self.space][..], object(), &object().punch_hole(bytes).expect("memory"));
                0
            }
            Call::Write(at) => {
                let page = object().page_or_new(at / PAGE, MemcgId::ROOT).expect("memory");
                page.write((at % PAGE) as usize, &[1]) as i64
            }
            Call::Seal => number(object().deny_shared_write().map_err(|error| error.errno()), |()| 0),
            Call::Remove { addr, len } => {
                let removed = self.space.remove(addr, len, |object, bytes| {
                    discard(&[self.space][..], object, &object.punch_hole(bytes)?);
                    Ok(())
                });
                answer(removed, |error| error.errno())
            }
            Call::Sync { addr, len, invalidate } => {
                answer(self.space.sync(addr, len, invalidate), |error| error.errno())
            }
            Call::Reach(addr) => number(self.space.fault(addr, Access::Read).map_err(|error| error.errno()), |_| 1),
        }
    }
}

thread_local! {
    static FILE: Cell<libc::c_int> = const { Cell::new(-1) };
}

fn told(result: libc::c_int) -> i64 {
    if result < 0 { errno() } else { i64::from(result) }
}

/// Linux's answer.
pub fn linux(call: Call) -> i64 {
    let fd = FILE.get();
    match call {
        Call::Open(size) => {
            // SAFETY: a name that ends; the descriptor lives as long as the process.
            let fd = unsafe { libc::memfd_create(c"asked".as_ptr(), libc::MFD_ALLOW_SEALING) };
            FILE.set(fd);
            // SAFETY: no memory is involved.
            if fd < 0 { errno() } else { told(unsafe { libc::ftruncate(fd, size as i64) }) }
        }
        Call::Map { addr, len, prot, flags, offset } => {
            let mut from = fd;
            if flags.contains(MapFlags::READ_ONLY) {
                let path = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).expect("a path");
                // SAFETY: a path that ends; the descriptor lives as long as the process.
                from = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) };
                assert!(from >= 0);
            }
            let sharing = if flags.contains(MapFlags::SHARED) { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
            // SAFETY: what a row replaces lies between `BASE` and `END`, where nothing of this process is.
            let at = unsafe {
                libc::mmap(pointer(addr), len as usize, protection(prot), bits(flags) | sharing, from, offset as i64)
            };
            if at == libc::MAP_FAILED { errno() } else { at.addr() as i64 }
        }
        // SAFETY: no memory is involved but the file's, which only rows look at.
        Call::Resize(size) => told(unsafe { libc::ftruncate(fd, size as i64) }),
        Call::Punch(bytes) => {
            let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: as above.
            told(unsafe { libc::fallocate(fd, how, bytes.start as i64, (bytes.end - bytes.start) as i64) })
        }
        // SAFETY: a byte of this program's.
        Call::Write(at) => unsafe { libc::pwrite(fd, (&raw const ONE).cast(), 1, at as i64) as i64 },
        // SAFETY: no memory is involved.
        Call::Seal => told(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_WRITE) }),
        Call::Remove { addr, len } => {
            // SAFETY: as in `Map`.
            told(unsafe { libc::madvise(pointer(addr), len as usize, libc::MADV_REMOVE) })
        }
        Call::Sync { addr, len, invalidate } => {
            let flags = if invalidate { libc::MS_SYNC | libc::MS_INVALIDATE } else { libc::MS_SYNC };
            // SAFETY: no memory changes by it.
            told(unsafe { libc::msync(pointer(addr), len as usize, flags) })
        }
        Call::Reach(addr) => {
            let mut ends = [0; 2];
            // SAFETY: room for two descriptors; and the kernel reads one byte, or answers that it can't.
            unsafe {
                assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
                let written = libc::write(ends[1], pointer(addr), 1) as i64;
                if written < 0 { errno() } else { written }
            }
        }
    }
}

static ONE: u8 = 1;

/// Where something is, for [`Call::Map`].
pub fn map(range: VirtRange, prot: Prot, flags: MapFlags, offset: u64) -> Call {
    Call::Map { addr: range.start, len: range.len(), prot, flags: flags | MapFlags::FIXED, offset }
}
