//! Reads a process's memory figures and VMAs from `/proc`.

use std::io::{self, Read};

use procfs::process::{MMPermissions, Process, StatFlags, Status};
use procfs::{FromBufRead, ProcError};

use crate::ioctl::page_size_at;

/// The smallest page size of any architecture.
const LEAST_PAGE: u64 = 4096;
/// User addresses are below this on every architecture.
const USER_END: u64 = 1 << 63;

/// The reason why a process's memory can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// There is no such process, or not any more.
    #[error("there is no process {0}")]
    Gone(i32),
    /// The process has exited and is a zombie.
    #[error("process {0} has ended and is a zombie: it has no memory")]
    Zombie(i32),
    /// The process is a kernel thread, which has no memory of its own.
    #[error("process {0} is a kernel thread, which has no memory of its own")]
    KernelThread(i32),
    /// This user may not read the process.
    #[error(
        "process {0} may not be read: run as its user, or as root (CAP_SYS_PTRACE); kernel.yama.ptrace_scope may \
         forbid it, too"
    )]
    Denied(i32),
    /// A file of the process can't be read or parsed.
    #[error("process {0}: {1}")]
    Other(i32, #[source] ProcError),
}

/// A process. It holds an open handle, so that a later process with the same PID is not mistaken
/// for it.
#[derive(Debug)]
pub struct Target {
    /// The handle of the crate `procfs`.
    pub process: Process,
    /// The name of the program, of which Linux keeps the first 15 bytes.
    pub name: String,
    /// The user's ID.
    pub user: u32,
    /// The parent's PID.
    pub parent: i32,
}

/// A process's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Mapped addresses (`VmSize`).
    pub reserved: u64,
    /// Present in memory, files' pages included (`VmRSS`).
    pub resident: u64,
    /// Swapped out (`VmSwap`).
    pub swapped: u64,
    /// Page tables of all levels but the root (`VmPTE`).
    pub tables: u64,
}

/// A VMA: a line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vma {
    /// The first address.
    pub start: u64,
    /// The end of the VMA, exclusive.
    pub end: u64,
    /// The access rights, and whether the mapping is shared.
    pub permissions: MMPermissions,
    /// The name, or an empty string.
    pub name: String,
    /// The VMA maps a file or shared memory; otherwise it is anonymous.
    pub file: bool,
    /// The file's device number and inode, or zeros. Shared mappings with equal numbers map the
    /// same memory.
    pub inode: (i32, i32, u64),
    /// The page size: that of the hugetlbfs if Linux reports it (6.11 and later), else the
    /// system's.
    pub page: u64,
}

impl Vma {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Returns whether the VMA has no addresses.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns whether the VMA can be of a hugetlbfs: it maps a file of no block device, in units
    /// of 64 KiB, the smallest hugetlbfs page of any architecture (AArch64's).
    fn may_be_hugetlb(&self) -> bool {
        self.file && self.inode.0 == 0 && (self.start | self.end).is_multiple_of(64 << 10)
    }

    /// Returns whether other processes see writes to the VMA.
    pub fn is_shared(&self) -> bool {
        self.permissions.contains(MMPermissions::SHARED)
    }
}

impl Target {
    /// Opens a process that has memory and may be read.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn open(pid: i32) -> Result<Self, Unreadable> {
        let process = Process::new(pid).map_err(|error| Unreadable::of(pid, error))?;
        let stat = read(&process, "stat").and_then(|bytes| Stat::of(&bytes));
        let stat = stat.map_err(|error| Unreadable::of(pid, error))?;
        if StatFlags::from_bits_truncate(stat.flags).contains(StatFlags::PF_KTHREAD) {
            return Err(Unreadable::KernelThread(pid));
        }
        if stat.state == 'Z' || stat.state == 'X' {
            return Err(Unreadable::Zombie(pid));
        }
        let user = process.uid().map_err(|error| Unreadable::of(pid, error))?;
        Ok(Target { process, name: stat.name, user, parent: stat.parent })
    }

    /// Returns the PID.
    pub fn pid(&self) -> i32 {
        self.process.pid
    }

    /// Returns the process's memory figures.
    ///
    /// # Errors
    /// [`Unreadable`]: the process has ended.
    pub fn memory(&self) -> Result<Memory, Unreadable> {
        let memory = read(&self.process, "status").and_then(|bytes| memory_of(&bytes));
        memory.map_err(|error| Unreadable::of(self.pid(), error))?.ok_or(Unreadable::Zombie(self.pid()))
    }

    /// Returns the VMAs in ascending order.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn vmas(&self) -> Result<Vec<Vma>, Unreadable> {
        let read = || {
            let mut maps = self.process.open_relative("maps")?;
            let mut bytes = Vec::new();
            maps.read_to_end(&mut bytes)?;
            let mut vmas = vmas_of(&bytes)?;
            for vma in vmas.iter_mut().filter(|vma| vma.may_be_hugetlb()) {
                vma.page = page_size_at(&maps, vma.start).unwrap_or(vma.page).max(vma.page);
            }
            Ok(vmas)
        };
        read().map_err(|error| Unreadable::of(self.pid(), error))
    }
}

/// Returns the PID of a process's parent. The process may be one without memory.
///
/// # Errors
/// [`Unreadable`]: the process has ended.
pub fn parent(process: &Process) -> Result<i32, Unreadable> {
    let stat = read(process, "stat").and_then(|bytes| Stat::of(&bytes));
    stat.map(|stat| stat.parent).map_err(|error| Unreadable::of(process.pid, error))
}

/// The fields of `/proc/PID/stat` that are used here. The parser of `procfs` panics if anything but
/// a space follows the name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) name: String,
    pub(crate) state: char,
    pub(crate) parent: i32,
    pub(crate) flags: u32,
}

impl Stat {
    /// Parses the file. The name in it is any bytes, parentheses included.
    pub(crate) fn of(bytes: &[u8]) -> Result<Self, ProcError> {
        let text = String::from_utf8_lossy(bytes);
        let read = || {
            let (name, rest) = text.split_once('(')?.1.rsplit_once(')')?;
            let mut fields = rest.split_ascii_whitespace();
            let state = fields.next()?.chars().next()?;
            let parent = fields.next()?.parse().ok()?;
            // The flags follow the process group, session, terminal, and the terminal's process
            // group.
            let flags = fields.nth(4)?.parse().ok()?;
            Some(Stat { name: name.to_owned(), state, parent, flags })
        };
        read().ok_or_else(|| ProcError::Other(format!("'{}' is not the stat of a process", text.trim_end())))
    }
}

fn read(process: &Process, file: &str) -> Result<Vec<u8>, ProcError> {
    let mut bytes = Vec::new();
    process.open_relative(file)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Parses `/proc/PID/status`. Returns `None` for a process that has ended and has no memory. The
/// name of a process is any bytes.
pub(crate) fn memory_of(bytes: &[u8]) -> Result<Option<Memory>, ProcError> {
    let status = Status::from_buf_read(String::from_utf8_lossy(bytes).as_bytes())?;
    let bytes = |kib: Option<u64>| kib.unwrap_or(0).saturating_mul(1 << 10);
    Ok(status.vmpte.map(|tables| Memory {
        reserved: bytes(status.vmsize),
        resident: bytes(status.vmrss),
        swapped: bytes(status.vmswap),
        tables: bytes(Some(tables)),
    }))
}

/// Parses `/proc/PID/maps`. Names of files are any bytes. The parser of the crate `procfs` is not
/// used: it panics at some file names that begin like the name of a System V segment, and any
/// process can map such a file.
pub(crate) fn vmas_of(bytes: &[u8]) -> Result<Vec<Vma>, ProcError> {
    let text = String::from_utf8_lossy(bytes);
    let mut end = 0;
    let mut vmas = Vec::new();
    for line in text.lines() {
        let vma = Vma::of_line(line);
        let mut vma = vma.ok_or_else(|| ProcError::Other(format!("'{line}' is not a VMA of whole pages")))?;
        // Linux writes the file in several pieces, and VMAs may merge between two of them. A VMA
        // may then begin before the end of the one before it.
        vma.start = vma.start.max(end);
        // Leave out VMAs in the upper half, such as `[vsyscall]`, which are the kernel's.
        if vma.start < vma.end && vma.end <= USER_END {
            end = vma.end;
            vmas.push(vma);
        }
    }
    Ok(vmas)
}

impl Vma {
    /// Parses a line of `/proc/PID/maps`.
    fn of_line(line: &str) -> Option<Self> {
        let mut rest = line;
        let mut field = || {
            let here = rest.trim_start_matches(' ');
            let (field, behind) = here.split_once(' ').unwrap_or((here, ""));
            rest = behind;
            (!field.is_empty()).then_some(field)
        };
        let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let (start, end) = field()?.split_once('-')?;
        let (start, end) = (hex(start)?, hex(end)?);
        let permissions = permissions_of(field()?)?;
        let _offset = hex(field()?)?;
        let (major, minor) = field()?.split_once(':')?;
        let device = |digits: &str| i32::from_str_radix(digits, 16).ok();
        let device = (device(major)?, device(minor)?);
        let inode: u64 = field()?.parse().ok()?;
        let name = rest.trim_start_matches(' ');
        // A private mapping of `/dev/zero` is anonymous memory, whatever its name.
        let anonymous = inode == 0 || permissions.contains(MMPermissions::PRIVATE) && name == "/dev/zero";
        let whole = (start | end) % LEAST_PAGE == 0 && start < end;
        whole.then(|| Vma {
            start,
            end,
            permissions,
            name: name.to_owned(),
            file: !anonymous,
            inode: (device.0, device.1, inode),
            page: rustix::param::page_size() as u64,
        })
    }
}

/// Parses access rights such as `rwxp`.
fn permissions_of(letters: &str) -> Option<MMPermissions> {
    letters.chars().try_fold(MMPermissions::empty(), |all, letter| {
        Some(
            all | match letter {
                'r' => MMPermissions::READ,
                'w' => MMPermissions::WRITE,
                'x' => MMPermissions::EXECUTE,
                's' => MMPermissions::SHARED,
                'p' => MMPermissions::PRIVATE,
                '-' => MMPermissions::empty(),
                _ => return None,
            },
        )
    })
}

impl Unreadable {
    /// Converts an error of reading a file in `/proc/PID`.
    pub fn of(pid: i32, error: ProcError) -> Self {
        match error {
            ProcError::NotFound(_) => Unreadable::Gone(pid),
            ProcError::PermissionDenied(_) => Unreadable::Denied(pid),
            ProcError::Io(error, _) if error.raw_os_error() == Some(libc::ESRCH) => Unreadable::Gone(pid),
            ProcError::Io(error, _) if error.kind() == io::ErrorKind::PermissionDenied => Unreadable::Denied(pid),
            error => Unreadable::Other(pid, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus daemon
00e03000-00e24000 rw-p 00000000 00:00 0           [heap]
7f1000000000-7f1000200000 rw-s 00001000 00:05 77          /dev/zero (deleted)
7f1000200000-7f1000201000 rw-p 00000000 00:05 77          /dev/zero
7f1000201000-7f1000202000 rw-p 00000000 00:00 0           [anon:it's \\012 mine]
7ffd1c3d7000-7ffd1c3f8000 rw-p 00000000 00:00 0           [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0   [vsyscall]
";

    #[test]
    fn maps_are_parsed_without_the_kernels_half() {
        let vmas = vmas_of(MAPS.as_bytes()).unwrap();
        let parsed: Vec<_> = vmas.iter().map(|vma| (vma.start, vma.len(), vma.file, vma.is_shared())).collect();
        let expected = [
            (0x400000, 0x52000, true, false),
            (0xe03000, 0x21000, false, false),
            (0x7f1000000000, 0x200000, true, true),
            (0x7f1000200000, 0x1000, false, false),
            (0x7f1000201000, 0x1000, false, false),
            (0x7ffd1c3d7000, 0x21000, false, false),
        ];
        assert_eq!(parsed, expected);
        assert_eq!(vmas[0].name, "/usr/bin/dbus daemon");
    }

    /// Any process can map a file of such a name. `/proc/PID/maps` shows it whole where the file's
    /// mount is out of the reader's sight.
    #[test]
    fn file_names_like_sysv_segments_are_parsed() {
        for name in ["/SYSV", "/SYSV0\u{e9}\u{e9}\u{e9}\u{e9}", "/SYSV0000162e (deleted)", "[stack:x]"] {
            let line = format!("1000-2000 rw-s 00000000 00:01 32          {name}\n");
            assert_eq!(vmas_of(line.as_bytes()).unwrap()[0].name, name);
        }
        assert_eq!(vmas_of(b"1000-2000 rw-p 00000000 00:00 0 \n").unwrap()[0].name, "");
    }

    #[test]
    fn vmas_that_merge_between_reads_do_not_overlap() {
        let vmas =
            vmas_of(b"1000-3000 rw-p 0 00:00 0 \n2000-5000 rw-p 0 00:00 0 \n3000-4000 rw-p 0 00:00 0 \n").unwrap();
        assert_eq!(
            vmas.iter().map(|vma| (vma.start, vma.end)).collect::<Vec<_>>(),
            [(0x1000, 0x3000), (0x3000, 0x5000)]
        );
    }

    #[test]
    fn malformed_vmas_are_refused_and_kernel_vmas_left_out() {
        assert!(vmas_of(b"1000-1fff rw-p 0 00:00 0 \n").is_err());
        let vmas = vmas_of(b"1000-2000 rw-p 0 00:00 0 \nfffffffffffff000-ffffffffffffffff rw-p 0 00:00 0 \n");
        assert!(vmas.is_err());
        let vmas = vmas_of(b"1000-2000 rw-p 0 00:00 0 \n8000000000000000-fffffffffffff000 rw-p 0 00:00 0 \n").unwrap();
        assert_eq!(vmas.len(), 1);
    }

    #[test]
    fn the_name_in_stat_may_contain_parentheses() {
        let stat = Stat::of(b"12 (a) (b) R 7 1 1 0 -1 4194560 99 0\n").unwrap();
        assert_eq!(stat, Stat { name: "a) (b".into(), state: 'R', parent: 7, flags: 4194560 });
        for wrong in ["", "(", ")(", "12 (a", "12 (a)", "12 (a)\u{fffd} R", "12 (a) R 7 1 1 0 -1"] {
            assert!(Stat::of(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_process_name_that_is_not_utf8_is_accepted() {
        let status = std::fs::read("/proc/self/status").unwrap();
        let end = status.iter().position(|byte| *byte == b'\n').unwrap();
        let named = [b"Name:\t\xff\xfe".as_slice(), &status[end..]].concat();
        assert!(memory_of(&named).unwrap().is_some_and(|memory| memory.tables > 0));
    }
}
