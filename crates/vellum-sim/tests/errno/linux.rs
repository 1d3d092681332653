//! The kernel of this machine. Each question is asked by a process of its own, so that limits, and addresses that are
//! given up, are nobody else's.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::FromRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use vellum::space::{Advise, LockAll, MapFlags, RemapFlags};
use vellum::vma::Prot;

use super::file::{self, Call};
use super::kernel::{Answers, BASE, END, Given, Kernel, PAGE, Vma};

struct Linux;

/// Nobody: a user without privileges, to whom limits apply.
const NOBODY: libc::uid_t = 65534;
/// Seconds after which a child that hangs is ended. It shares nothing with others but what `fork` copied, locks included.
const PATIENCE: u32 = 60;

/// A number from a file of the kernel.
pub fn setting(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The lowest address that anything is mapped at by chance or hint. (What `vm.mmap_min_addr` says may be less: a security
/// module may have its own.)
pub fn lowest() -> u64 {
    static LOWEST: OnceLock<u64> = OnceLock::new();
    *LOWEST.get_or_init(|| {
        let given = Given::default();
        ask(given, |kernel| vec![kernel.map(PAGE, PAGE, Prot::READ, MapFlags::empty())])[0] as u64
    })
}

/// `vm.max_map_count`.
pub fn most_vmas() -> usize {
    setting("/proc/sys/vm/max_map_count").unwrap_or(65530) as usize
}

/// Have a child process ask Linux.
pub fn ask(given: Given, calls: impl FnOnce(&dyn Kernel) -> Answers) -> Answers {
    let answers = in_child(|| {
        limit(given);
        calls(&Linux).iter().flat_map(|answer| answer.to_le_bytes()).collect()
    });
    answers.chunks_exact(8).map(|eight| i64::from_le_bytes(eight.try_into().expect("eight bytes"))).collect()
}

/// Run something in a child process, and have its bytes.
pub fn in_child(f: impl FnOnce() -> Vec<u8>) -> Vec<u8> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    let piped = unsafe { libc::pipe(ends.as_mut_ptr()) };
    assert_eq!(piped, 0, "{}", io::Error::last_os_error());
    // SAFETY: both descriptors are new, and each gets one owner in each process.
    let [mut reader, mut writer] = ends.map(|end| unsafe { fs::File::from_raw_fd(end) });
    // SAFETY: the child is alone with copies of everything. It calls the allocator, whose locks glibc puts in order, takes
    // no other lock, and never returns from this function.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", io::Error::last_os_error());
    if child == 0 {
        // SAFETY: only ends this process if it hangs.
        unsafe { libc::alarm(PATIENCE) };
        let done = catch_unwind(AssertUnwindSafe(|| writer.write_all(&f()).is_ok()));
        // SAFETY: ends the child at once, with nothing of the parent's run or flushed twice.
        unsafe { libc::_exit(i32::from(done.ok() != Some(true))) };
    }
    drop(writer);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).expect("what the child has to say");
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0, "the child failed");
    bytes
}

fn limit(given: Given) {
    // SAFETY: privileges of this process only, which has but one thread. Who has none anyway keeps what it has.
    unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) };
    let set = |what, bytes: u64| {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: reads a limit from the stack.
        let set = unsafe { libc::setrlimit(what, &limit) };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
    };
    if given.no_exec_gain {
        // SAFETY: forbids this process something.
        let set =
            unsafe { libc::prctl(libc::PR_SET_MDWE, u64::from(libc::PR_MDWE_REFUSE_EXEC_GAIN), 0u64, 0u64, 0u64) };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
    }
    if let Some(bytes) = given.locked {
        set(libc::RLIMIT_MEMLOCK, bytes);
    }
    if let Some(bytes) = given.address_space {
        let pages = fs::read_to_string("/proc/self/statm").expect("/proc");
        let pages: u64 = pages.split(' ').next().and_then(|n| n.parse().ok()).expect("a number of pages");
        set(libc::RLIMIT_AS, pages * PAGE + bytes);
    }
}

pub fn errno() -> i64 {
    -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

fn answer(result: libc::c_int) -> i64 {
    if result == 0 { 0 } else { errno() }
}

pub fn pointer(addr: u64) -> *mut libc::c_void {
    std::ptr::without_provenance_mut(addr as usize)
}

pub fn protection(prot: Prot) -> libc::c_int {
    let bits = [(Prot::READ, libc::PROT_READ), (Prot::WRITE, libc::PROT_WRITE), (Prot::EXEC, libc::PROT_EXEC)];
    bits.iter().filter(|(bit, _)| prot.contains(*bit)).map(|(_, bit)| bit).sum()
}

/// Flags of `mmap`, but for what is mapped.
pub fn bits(flags: MapFlags) -> libc::c_int {
    let names = [
        (MapFlags::FIXED, libc::MAP_FIXED),
        (MapFlags::FIXED_NOREPLACE, libc::MAP_FIXED_NOREPLACE),
        (MapFlags::POPULATE, libc::MAP_POPULATE),
        (MapFlags::NORESERVE, libc::MAP_NORESERVE),
        (MapFlags::GROWSDOWN, libc::MAP_GROWSDOWN),
        (MapFlags::LOCKED, libc::MAP_LOCKED),
    ];
    names.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, bit)| bit).sum()
}

impl Kernel for Linux {
    fn map(&self, addr: u64, len: u64, prot: Prot, flags: MapFlags) -> i64 {
        let sharing = if flags.contains(MapFlags::SHARED) { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let bits = bits(flags) | sharing | libc::MAP_ANONYMOUS;
        // SAFETY: what a row replaces lies between `BASE` and `END`, where nothing of this process is.
        let at = unsafe { libc::mmap(pointer(addr), len as usize, protection(prot), bits, -1, 0) };
        if at == libc::MAP_FAILED { errno() } else { at.addr() as i64 }
    }

    fn unmap(&self, addr: u64, len: u64) -> i64 {
        // SAFETY: as in `map`.
        answer(unsafe { libc::munmap(pointer(addr), len as usize) })
    }

    fn protect(&self, addr: u64, len: u64, prot: Prot) -> i64 {
        // SAFETY: as in `map`.
        answer(unsafe { libc::mprotect(pointer(addr), len as usize, protection(prot)) })
    }

    fn advise(&self, addr: u64, len: u64, advise: Advise) -> i64 {
        let advice = match advise {
            Advise::DontNeed => libc::MADV_DONTNEED,
            Advise::Huge => libc::MADV_HUGEPAGE,
            Advise::NoHuge => libc::MADV_NOHUGEPAGE,
            Advise::DontNeedLocked => 24,
            Advise::Free => libc::MADV_FREE,
            Advise::DontFork => libc::MADV_DONTFORK,
            Advise::DoFork => libc::MADV_DOFORK,
            Advise::WipeOnFork => libc::MADV_WIPEONFORK,
            Advise::KeepOnFork => libc::MADV_KEEPONFORK,
            Advise::DontDump => libc::MADV_DONTDUMP,
            Advise::DoDump => libc::MADV_DODUMP,
            Advise::Reading => libc::MADV_SEQUENTIAL,
            Advise::WillNeed => libc::MADV_WILLNEED,
            Advise::Cold => libc::MADV_COLD,
            Advise::PageOut => libc::MADV_PAGEOUT,
            Advise::Collapse => 25,
            Advise::PopulateRead => libc::MADV_POPULATE_READ,
            Advise::PopulateWrite => libc::MADV_POPULATE_WRITE,
            Advise::GuardInstall => 102,
            Advise::GuardRemove => 103,
        };
        // SAFETY: as in `map`.
        answer(unsafe { libc::madvise(pointer(addr), len as usize, advice) })
    }

    fn remap(&self, addr: u64, old_len: u64, new_len: u64, flags: RemapFlags, new_addr: u64) -> i64 {
        let (flags, to) = (libc::c_int::from(flags.bits()), pointer(new_addr));
        // SAFETY: as in `map`.
        let at = unsafe { libc::mremap(pointer(addr), old_len as usize, new_len as usize, flags, to) };
        if at == libc::MAP_FAILED { errno() } else { at.addr() as i64 }
    }

    fn lock(&self, addr: u64, len: u64, on_fault: bool) -> i64 {
        // SAFETY: changes nothing that this process can see.
        answer(unsafe { libc::syscall(libc::SYS_mlock2, addr, len, libc::c_long::from(on_fault)) } as libc::c_int)
    }

    fn unlock(&self, addr: u64, len: u64) -> i64 {
        // SAFETY: as in `lock`.
        answer(unsafe { libc::munlock(pointer(addr), len as usize) })
    }

    fn lock_all(&self, flags: LockAll) -> i64 {
        // SAFETY: as in `lock`.
        answer(unsafe { libc::mlockall(flags.bits().into()) })
    }

    fn unlock_all(&self) -> i64 {
        // SAFETY: as in `lock`.
        answer(unsafe { libc::munlockall() })
    }

    fn seal(&self, addr: u64, len: u64) -> i64 {
        /// `mseal`, in every architecture.
        const SYS_MSEAL: libc::c_long = 462;
        // SAFETY: what a row seals nobody else of this process uses.
        answer(unsafe { libc::syscall(SYS_MSEAL, addr, len, 0) } as libc::c_int)
    }

    fn resident(&self, addr: u64, len: u64, room: usize) -> i64 {
        let pages = len.div_ceil(PAGE);
        // Where the answer does not fit, it is to go to where nothing is.
        let mut bits = vec![0u8; room];
        let to = if pages <= room as u64 { bits.as_mut_ptr() } else { pointer(END).cast() };
        // SAFETY: the answer is a byte for each page, for which there is room, or fails.
        match answer(unsafe { libc::mincore(pointer(addr), len as usize, to) }) {
            0 => bits.iter().take(pages.min(62) as usize).enumerate().map(|(at, bit)| i64::from(bit & 1) << at).sum(),
            error => error,
        }
    }

    fn file(&self, call: Call) -> i64 {
        file::linux(call)
    }

    fn store(&self, addr: u64) {
        // SAFETY: the row has mapped this, to be written.
        unsafe { pointer(addr).cast::<u8>().write_volatile(1) };
    }

    fn load(&self, addr: u64) -> i64 {
        // SAFETY: the row has mapped this, to be read.
        unsafe { pointer(addr).cast::<u8>().read_volatile() }.into()
    }

    fn vmas(&self) -> Vec<Vma> {
        let maps = fs::read_to_string("/proc/self/maps").expect("/proc");
        let vma = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).ok());
            let names = [("r", Prot::READ), ("w", Prot::WRITE), ("x", Prot::EXEC)];
            let has = |name: &str| rest.get(..3).is_some_and(|perms| perms.contains(name));
            let prot = names.iter().filter(|(name, _)| has(name)).fold(Prot::empty(), |all, (_, bit)| all | *bit);
            Some((start?, end?, prot.bits()))
        };
        let all = maps.lines().filter_map(vma);
        all.filter(|(start, end, _)| *end > BASE && *start < END).collect()
    }
}
