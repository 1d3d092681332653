//! The kernel's memory, some pages at a time: read by a small BPF program.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// What is read at once.
pub(super) type Page = [u64; 512];
/// Its size in bytes.
pub(super) const PAGE: u64 = size_of::<Page>() as u64;
/// Pages that are read by one call.
const TOGETHER: usize = 16;

/// What can be read by address.
pub(super) trait Memory {
    /// The pages at these addresses, which are multiples of its size: each, or why there is nothing
    /// to be read.
    ///
    /// # Errors
    /// Nothing can be read at all.
    fn pages(&mut self, at: &[u64]) -> io::Result<Vec<io::Result<Page>>>;

    /// The page at an address.
    ///
    /// # Errors
    /// There is none.
    fn page(&mut self, at: u64) -> io::Result<Page> {
        self.pages(&[at])?.remove(0)
    }

    /// The word so many bytes behind an address, together a multiple of 8.
    ///
    /// # Errors
    /// There is none.
    fn word(&mut self, base: u64, offset: u64) -> io::Result<u64> {
        let at = base.wrapping_add(offset);
        Ok(self.page(at / PAGE * PAGE)?[(at % PAGE / 8) as usize])
    }
}

/// What the program is given, and gives back.
#[repr(C)]
struct Context {
    /// Where to read; and what came of that.
    at: [u64; TOGETHER],
    /// Who runs the program: the address of its `task_struct`.
    task: u64,
}

/// The program, and where it puts what it reads.
pub(super) struct Program {
    program: OwnedFd,
    /// One value, of so many pages.
    map: OwnedFd,
    pages: Vec<Page>,
}

impl Program {
    /// Load it.
    ///
    /// # Errors
    /// What `bpf(2)` says: it is not permitted (`EPERM`), or this kernel has no such programs.
    pub(super) fn open() -> io::Result<Self> {
        let pages = vec![[0; 512]; TOGETHER];
        let size = size_of_val(&pages[..]) as u32;
        // BPF_MAP_TYPE_ARRAY, whose keys are of four bytes, with one value.
        let mut create = Create { kind: 2, key: 4, value: size, count: 1 };
        // SAFETY: there are no pointers in it.
        let map = unsafe { make(0, &mut create) }?;
        let instructions = program(map.as_raw_fd());
        let mut load = Load {
            // BPF_PROG_TYPE_SYSCALL: it runs when it is told to.
            kind: 31,
            count: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            // What it calls is only for programs of such a licence.
            licence: c"Dual MIT/GPL".as_ptr() as u64,
            unused: [0; 5],
            // BPF_F_SLEEPABLE: all programs of this type are said to be.
            flags: 1 << 4,
        };
        // SAFETY: Linux reads the instructions, as many as told, and the licence up to its end;
        // both live until it returns. It writes nothing.
        let program = unsafe { make(5, &mut load) }?;
        Ok(Program { program, map, pages })
    }

    /// The `task_struct` of this thread.
    ///
    /// # Errors
    /// What `bpf(2)` says.
    pub(super) fn task(&mut self) -> io::Result<u64> {
        Ok(self.run(&[])?.task)
    }

    fn run(&mut self, at: &[u64]) -> io::Result<Context> {
        let mut context = Context { at: [0; TOGETHER], task: 0 };
        context.at[..at.len()].copy_from_slice(at);
        let mut run = Run {
            program: self.program.as_raw_fd(),
            unused: [0; 9],
            size: size_of::<Context>() as u32,
            unused_too: 0,
            context: (&raw mut context) as u64,
        };
        // SAFETY: Linux reads and writes the context, which is of the size that is told and nobody
        // else's until it returns. Linux has verified that the program writes to that and to the
        // map.
        unsafe { bpf(10, &mut run) }?;
        let key = 0u32;
        let mut look = LookUp {
            map: self.map.as_raw_fd(),
            unused: 0,
            key: (&raw const key) as u64,
            value: self.pages.as_mut_ptr() as u64,
        };
        // SAFETY: Linux reads the key and writes the value; both are of the sizes that the map was
        // made with, and nobody else's until it returns.
        unsafe { bpf(1, &mut look) }?;
        Ok(context)
    }
}

impl Memory for Program {
    fn pages(&mut self, at: &[u64]) -> io::Result<Vec<io::Result<Page>>> {
        let mut pages = Vec::new();
        for some in at.chunks(TOGETHER) {
            let results = self.run(some)?.at.map(|result| result as i32);
            let read = |(page, result): (&Page, i32)| match result {
                0 => Ok(*page),
                error => Err(io::Error::from_raw_os_error(error.wrapping_neg())),
            };
            pages.extend(self.pages.iter().zip(results).take(some.len()).map(read));
        }
        Ok(pages)
    }
}

/// `BPF_MAP_CREATE` (Linux, `include/uapi/linux/bpf.h`). Of each command's attributes, what is left
/// out at the end is zero.
#[repr(C)]
struct Create {
    kind: u32,
    key: u32,
    value: u32,
    count: u32,
}

/// `BPF_MAP_LOOKUP_ELEM`.
#[repr(C)]
struct LookUp {
    map: RawFd,
    unused: u32,
    key: u64,
    value: u64,
}

/// `BPF_PROG_LOAD`.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    licence: u64,
    unused: [u32; 5],
    flags: u32,
}

/// `BPF_PROG_RUN`.
#[repr(C)]
struct Run {
    program: RawFd,
    unused: [u32; 9],
    size: u32,
    unused_too: u32,
    context: u64,
}

/// The system call.
///
/// # Safety
/// The attributes are the command's, and what they point to is as it says.
unsafe fn bpf<T>(command: u32, attributes: &mut T) -> io::Result<RawFd> {
    // SAFETY: by the caller; the size is that of the attributes.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

/// A command that makes a file.
///
/// # Safety
/// The same.
unsafe fn make<T>(command: u32, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: by the caller.
    let file = unsafe { bpf(command, attributes) }?;
    // SAFETY: it has just been made, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// The program, which reads into a map's value (Linux,
/// `Documentation/bpf/standardization/instruction-set.rst`). Registers: 0 is a result; 1, 2 and 3
/// are what functions are given, and they overwrite them; 6 is kept. At first, 1 is where the
/// context is.
fn program(map: RawFd) -> Vec<u64> {
    /// `bpf_get_current_task` and `bpf_probe_read_kernel`.
    const CURRENT_TASK: u64 = 35;
    const READ_KERNEL: u64 = 113;
    let code = |code: u64, to: u64, from: u64| code | to << 8 | from << 12;
    let call = |function: u64| code(0x85, 0, 0) | function << 32;
    let result_to = |offset: usize| code(0x7b, 6, 0) | (offset as u64) << 16;
    let mut program = vec![code(0xbf, 6, 1), call(CURRENT_TASK), result_to(offset_of!(Context, task))];
    for n in 0..TOGETHER {
        let at = offset_of!(Context, at) + n * size_of::<u64>();
        program.extend([
            // The address of a part of the map's value: two instructions long.
            code(0x18, 1, 2) | (map as u64) << 32,
            (n as u64 * PAGE) << 32,
            code(0xb7, 2, 0) | PAGE << 32,
            code(0x79, 3, 6) | (at as u64) << 16,
            call(READ_KERNEL),
            result_to(at),
        ]);
    }
    program.extend([code(0xb7, 0, 0), code(0x95, 0, 0)]);
    program
}
