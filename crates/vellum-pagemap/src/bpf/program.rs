//! Reads pages of kernel memory through a small BPF program.

use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A page of words.
pub(super) type Page = [u64; 512];
/// The page size in bytes.
pub(super) const PAGE: u64 = size_of::<Page>() as u64;
/// Pages that one run of the program reads.
const TOGETHER: usize = 16;

/// Kernel memory that can be read by address.
pub(super) trait KernelMemory {
    /// Reads the pages at these addresses, which are multiples of the page size. Returns for each
    /// the page or its error.
    ///
    /// # Errors
    /// The program can't run.
    fn pages(&mut self, at: &[u64]) -> io::Result<Vec<io::Result<Page>>>;

    /// Reads the page at an address.
    ///
    /// # Errors
    /// There is no memory.
    fn page(&mut self, at: u64) -> io::Result<Page> {
        self.pages(&[at])?.remove(0)
    }

    /// Reads the word at `base + offset`, a multiple of 8.
    ///
    /// # Errors
    /// There is no memory.
    fn word(&mut self, base: u64, offset: u64) -> io::Result<u64> {
        let at = base.wrapping_add(offset);
        Ok(self.page(at / PAGE * PAGE)?[(at % PAGE / 8) as usize])
    }
}

/// The program's context: its input and output.
#[repr(C)]
struct Context {
    /// The addresses to read. The program replaces each by the result of its read: 0, or a negative
    /// error number.
    at: [u64; TOGETHER],
    /// The address of the caller's `task_struct`, which the program writes.
    task: u64,
}

/// The loaded program and its output.
pub(super) struct Program {
    program: OwnedFd,
    /// An array map with one value, `TOGETHER` pages long.
    map: OwnedFd,
    pages: Vec<Page>,
}

impl Program {
    /// Loads the program.
    ///
    /// # Errors
    /// The error of `bpf(2)`: not permitted (`EPERM`), or this kernel has no such programs.
    pub(super) fn open() -> io::Result<Self> {
        let pages = vec![[0; 512]; TOGETHER];
        let size = size_of_val(&pages[..]) as u32;
        // BPF_MAP_TYPE_ARRAY, with four-byte keys and one value.
        let mut create = Create { kind: 2, key: 4, value: size, count: 1 };
        // SAFETY: the attributes contain no pointers.
        let map = unsafe { make(0, &mut create) }?;
        let instructions = program(map.as_raw_fd());
        let mut load = Load {
            // BPF_PROG_TYPE_SYSCALL: runs on `BPF_PROG_RUN`.
            kind: 31,
            count: instructions.len() as u32,
            instructions: instructions.as_ptr() as u64,
            // The helper functions it calls need a GPL-compatible licence.
            licence: c"Dual MIT/GPL".as_ptr() as u64,
            unused: [0; 5],
            // BPF_F_SLEEPABLE, which programs of this type require.
            flags: 1 << 4,
        };
        // SAFETY: Linux reads `count` instructions, and the licence up to its zero byte; both live
        // until the call returns. It writes nothing.
        let program = unsafe { make(5, &mut load) }?;
        Ok(Program { program, map, pages })
    }

    /// Returns the address of this thread's `task_struct`.
    ///
    /// # Errors
    /// The error of `bpf(2)`.
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
        // SAFETY: Linux reads and writes the context, of the given size, to which nothing else has
        // access until the call returns. The verifier has checked that the program writes to the
        // context and the map alone.
        unsafe { bpf(10, &mut run) }?;
        let key = 0u32;
        let mut look = LookUp {
            map: self.map.as_raw_fd(),
            unused: 0,
            key: (&raw const key) as u64,
            value: self.pages.as_mut_ptr() as u64,
        };
        // SAFETY: Linux reads the key and writes the value, both of the sizes that the map was
        // created with. Nothing else has access to them until the call returns.
        unsafe { bpf(1, &mut look) }?;
        Ok(context)
    }
}

impl KernelMemory for Program {
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

/// The attributes of `BPF_MAP_CREATE` (Linux, `include/uapi/linux/bpf.h`). Linux treats attributes
/// beyond the end of the structure as zero.
#[repr(C)]
struct Create {
    kind: u32,
    key: u32,
    value: u32,
    count: u32,
}

/// The attributes of `BPF_MAP_LOOKUP_ELEM`.
#[repr(C)]
struct LookUp {
    map: RawFd,
    unused: u32,
    key: u64,
    value: u64,
}

/// The attributes of `BPF_PROG_LOAD`.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    licence: u64,
    unused: [u32; 5],
    flags: u32,
}

/// The attributes of `BPF_PROG_RUN`.
#[repr(C)]
struct Run {
    program: RawFd,
    unused: [u32; 9],
    size: u32,
    unused_too: u32,
    context: u64,
}

/// Calls `bpf(2)`.
///
/// # Safety
/// `attributes` are the structure that `command` takes, and the memory at each pointer in it is
/// valid for the length that `command` accesses.
unsafe fn bpf<T>(command: u32, attributes: &mut T) -> io::Result<RawFd> {
    // SAFETY: the caller promises that the attributes belong to the command and that their pointers
    // are valid; the size is theirs.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

/// Calls `bpf(2)` with a command that returns a file descriptor.
///
/// # Safety
/// As for [`bpf`].
unsafe fn make<T>(command: u32, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller promises that the attributes belong to the command and that their pointers
    // are valid.
    let file = unsafe { bpf(command, attributes) }?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// Returns the instructions of the program, which reads pages into the value of `map` (Linux,
/// `Documentation/bpf/standardization/instruction-set.rst`).
///
/// Register 0 has the result of a call; 1, 2 and 3 are its arguments and are clobbered; 6 is
/// preserved. On entry, register 1 has the address of the context.
fn program(map: RawFd) -> Vec<u64> {
    /// The helper functions `bpf_get_current_task` and `bpf_probe_read_kernel`.
    const CURRENT_TASK: u64 = 35;
    const READ_KERNEL: u64 = 113;
    let code = |code: u64, to: u64, from: u64| code | to << 8 | from << 12;
    let call = |function: u64| code(0x85, 0, 0) | function << 32;
    let result_to = |offset: usize| code(0x7b, 6, 0) | (offset as u64) << 16;
    let mut program = vec![code(0xbf, 6, 1), call(CURRENT_TASK), result_to(offset_of!(Context, task))];
    for n in 0..TOGETHER {
        let at = offset_of!(Context, at) + n * size_of::<u64>();
        program.extend([
            // The address of a page in the map's value: an instruction of two words.
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
