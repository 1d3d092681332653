//! Loads programs into new address spaces, and implements `execve`.

use super::Answer;
use super::path::{HERE, executable};
use crate::arch::abi as machine;
use crate::arch::entry::Registers;
use crate::arch::paging::user_end;
use crate::arch::random::random;
use crate::mem::space::Image;
use crate::mem::spaces;
use crate::mem::thread::failed;
use crate::mem::{self, UserSpace, payer, uaccess};
use crate::task::Thread;
use crate::task::timer;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use linux_raw_sys::general as abi;
use vellum::addr::FRAME_SIZE;
use vellum::memcg::MayBeRefused;
use vellum::space::{Limits, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum_kernel::credentials::Credentials;
use vellum_kernel::credentials::id_index::{EFFECTIVE, REAL};
use vellum_kernel::errno::Errno;
use vellum_kernel::exec::elf::{self, Contents, Mapping};
use vellum_kernel::exec::script;
use vellum_kernel::exec::stack::{self, Aux};
use vellum_kernel::fs::names::LONGEST_PATH;
use vellum_kernel::fs::{File, Inode, Kind};

/// The initial size of the stack mapping in bytes; the stack grows from there.
const STACK: u64 = 132 << 10;
/// The number of bytes of a file read at a time.
const PIECE: u64 = 64 << 10;

/// An executable file. It is read in chunks, so that loading needs no buffer for the whole file.
pub struct Program {
    file: Arc<dyn File>,
    size: u64,
}

impl Program {
    /// Opens a file for execution.
    ///
    /// # Errors
    ///
    /// `EACCES`: the file is not executable. Those of the file.
    pub fn open(inode: &Arc<dyn Inode>) -> Result<Self, Errno> {
        let meta = inode.meta();
        if meta.kind != Kind::Regular || meta.mode & 0o111 == 0 {
            return Err(Errno::EACCES);
        }
        Ok(Self { file: inode.clone().open(abi::O_RDONLY)?, size: meta.size })
    }

    /// Reads a range of the file; fewer bytes at its end.
    fn part(&self, range: Range<u64>) -> Result<Vec<u8>, Errno> {
        let len = range.end.min(self.size).saturating_sub(range.start) as usize;
        let mut bytes = payer::zeros(len)?;
        let read = self.file.read(range.start, &mut &mut bytes[..])?;
        bytes.truncate(read);
        Ok(bytes)
    }
}

/// Loads a program into a new address space. Returns the space and the initial registers. `own` are
/// the credentials that the program gets; `gained` is true if they exceed the caller's
/// (`AT_SECURE`).
///
/// # Errors
///
/// Those of `execve`.
pub fn load(
    file: &Program,
    path: &[u8],
    arguments: &[Vec<u8>],
    environment: &[Vec<u8>],
    resources: &[[u64; 2]; 16],
    own: &Credentials,
    gained: bool,
) -> Result<(Arc<UserSpace>, Registers), Errno> {
    // The last page stays unmapped, as on Linux: an instruction at the very end would run beyond
    // it.
    let top = user_end().min(machine::ADDRESSES_END - 4096);
    let known =
        elf::Limits { addresses: Limits::default().lowest..top, page_size: 4096, machine: machine::ELF_MACHINE };
    let header = elf::header(&file.part(0..elf::HEADER_SIZE as u64)?, known.machine)?;
    let table = file.part(header.phdrs.clone())?;
    if (table.len() as u64) < header.phdrs.end - header.phdrs.start {
        return Err(Errno::ENOEXEC);
    }
    let plan = elf::plan(&header, &table, file.size, &known)?;
    if plan.interpreter.is_some() {
        // Programs with a dynamic loader are not supported.
        return Err(Errno::ENOEXEC);
    }
    // A position-independent program lies where Linux loads it without randomization: at two thirds
    // of the address space.
    let base = if plan.relocatable { ((top / 3 * 2) & !4095).next_multiple_of(plan.align) } else { 0 };
    if base.checked_add(plan.span.end).is_none_or(|end| end > top) {
        return Err(Errno::ENOMEM);
    }
    let stack_limit = resources[abi::RLIMIT_STACK as usize][0].min(1 << 30);
    let mmap_base = top - stack_limit.max(128 << 20) - (1 << 20);
    let mut limits = Limits { mmap_base, ..Limits::default() };
    super::memory::set_limits(&mut limits, resources, own);
    let space = mem::new_space(mem::machine(), payer::payer(), limits)
        .map_err(|why| failed(Some(why), vellum::errno::Errno::ENOMEM))?;
    let space = spaces::register(UserSpace::new(space));
    let mut image = Image::default();
    for mapping in &plan.mappings {
        map(&space, base, mapping, file)?;
        let part = match (mapping.rights.execute, mapping.rights.write) {
            (true, _) => &mut image.code,
            (false, true) => &mut image.data,
            (false, false) => continue,
        };
        if part[1] == 0 {
            part[0] = base + mapping.range.start;
        }
        part[1] = base + mapping.range.end;
    }
    let end = (base + plan.data_end).next_multiple_of(4096);
    *space.heap.lock() = mem::space::Heap { start: end, end };
    let request = MapRequest {
        addr: top - STACK,
        len: STACK,
        prot: Prot::READ | Prot::WRITE,
        flags: MapFlags::FIXED | MapFlags::GROWSDOWN,
    };
    space.engine.map(request).map_err(|error| failed(error.refused(), error.errno()))?;
    if let Some((address, code)) = machine::trampoline() {
        map_code(&space, address, code)?;
    }
    let [hwcap, hwcap2] = machine::hwcap();
    let aux = Aux {
        platform: machine::NAME,
        hwcap,
        hwcap2,
        page_size: 4096,
        phdr: plan.phdr_addr.map_or(0, |phdr| base + phdr),
        phnum: plan.phnum,
        entry: base + plan.entry,
        random: core::array::from_fn(|_| random() as u8),
        min_signal_stack: machine::LEAST_SIGNAL_STACK,
        ids: [own.uids[REAL], own.uids[EFFECTIVE], own.gids[REAL], own.gids[EFFECTIVE]],
        secure: gained,
        ..Aux::default()
    };
    let stack = stack::build(top, stack::arg_limit(stack_limit), path, arguments, environment, &aux)?;
    uaccess::write(&space, stack.start, &stack.bytes)?;
    let ends = |range: &core::ops::Range<u64>| [range.start, range.end];
    (image.arguments, image.environment, image.aux) =
        (ends(&stack.arguments), ends(&stack.environment), ends(&stack.aux));
    image.stack = stack.start;
    *space.image.lock() = image;
    Ok((space, Registers::start(aux.entry, stack.start)))
}

fn map(space: &Arc<UserSpace>, base: u64, mapping: &Mapping, file: &Program) -> Result<(), Errno> {
    let (start, len) = (base + mapping.range.start, mapping.range.end - mapping.range.start);
    let request = MapRequest { addr: start, len, prot: Prot::READ | Prot::WRITE, flags: MapFlags::FIXED };
    space.engine.map(request).map_err(|error| failed(error.refused(), error.errno()))?;
    if let Contents::File { offset, clear } = &mapping.contents {
        let bytes = len - (clear.end - clear.start);
        let end = (offset + bytes).min(file.size);
        for at in (*offset..end).step_by(PIECE as usize) {
            uaccess::write(space, start + (at - offset), &file.part(at..end.min(at + PIECE))?)?;
        }
    }
    let mut prot = Prot::empty();
    prot.set(Prot::READ, mapping.rights.read);
    prot.set(Prot::WRITE, mapping.rights.write);
    prot.set(Prot::EXEC, mapping.rights.execute);
    space.engine.protect(start, len, prot).map_err(|error| failed(error.refused(), error.errno()))
}

/// Implements `execve` and `execveat`.
pub async fn execve(thread: &Arc<Thread>, [at, path, arguments, environment, flags]: [u64; 5]) -> Answer {
    let flags = flags as u32;
    if flags & !(abi::AT_EMPTY_PATH | abi::AT_SYMLINK_NOFOLLOW) != 0 {
        return Err(Errno::EINVAL);
    }
    let memory = thread.memory();
    let name = read_string(&memory, path, LONGEST_PATH)?;
    if name.is_empty() && flags & abi::AT_EMPTY_PATH == 0 {
        return Err(Errno::ENOENT);
    }
    let mut arguments = read_strings(&memory, arguments)?;
    let environment = read_strings(&memory, environment)?;
    let follow = flags & abi::AT_SYMLINK_NOFOLLOW == 0;
    let mut found = executable(thread, at, &name, follow)?;
    let mut file = Program::open(&found.0)?;
    // The path under which a script's interpreter and the program itself find the file.
    let mut path = match at as i32 {
        abi::AT_FDCWD => name,
        _ if name.first() == Some(&b'/') => name,
        fd if name.is_empty() => format!("/dev/fd/{fd}").into_bytes(),
        fd => [format!("/dev/fd/{fd}/").as_bytes(), &name].concat(),
    };
    let called = path.clone();
    for depth in 0.. {
        let first = file.part(0..script::HEAD as u64)?;
        let Some(script) = script::parse(&first) else { break };
        let script = script?;
        if depth == script::MAX_DEPTH {
            return Err(Errno::ELOOP);
        }
        arguments = script.arguments(&path, arguments)?;
        path = script.interpreter.to_vec();
        found = executable(thread, HERE, &path, true)?;
        file = Program::open(&found.0)?;
    }
    let limits = *thread.process.limits.lock();
    let before = thread.credentials();
    let gains = !thread.traits.lock().no_new_privileges;
    let own = before.after_exec(&found.0.meta(), gains);
    let gained = own.uids != before.uids || own.gids != before.gids;
    let (space, registers) = load(&file, &path, &arguments, &environment, &limits, &own, gained)?;
    drop((file, arguments, environment));
    space.image.lock().file = Some(found);
    space.inherit(&memory);
    let process = &thread.process;
    process.end_others(thread).await?;
    super::process::let_go_of_memory(thread);
    process.signals.lock().reset_for_exec();
    process.timers.lock().retain(|number, _| *number == timer::REAL);
    thread.traits.lock().credentials = Arc::new(own);
    crate::mem::space::unload();
    process.change_memory(Some(space.clone()));
    thread.unload_extended();
    // SAFETY: a system call runs in the thread's own future.
    let context = unsafe { thread.context() };
    let files = context.files.clone();
    *context = crate::task::context::Context::new(space, files.clone(), registers);
    loop {
        let closed = files.table.lock().remove_next((0, u32::MAX), true);
        let Some(slot) = closed else { break };
        crate::files::closed(process.pid, &slot.open);
    }
    thread.set_name(called.rsplit(|byte| *byte == b'/').next().unwrap_or_default());
    thread.unblock_creator();
    // No program uses the value of RAX at its entry.
    Ok(0)
}

/// Maps a page of code into a program's address space.
fn map_code(space: &Arc<UserSpace>, addr: u64, code: &[u8]) -> Result<(), Errno> {
    let request = MapRequest { addr, len: FRAME_SIZE, prot: Prot::READ | Prot::WRITE, flags: MapFlags::FIXED };
    space.engine.map(request).map_err(|error| failed(error.refused(), error.errno()))?;
    uaccess::write(space, addr, code)?;
    let executable = Prot::READ | Prot::EXEC;
    space.engine.protect(addr, FRAME_SIZE, executable).map_err(|error| failed(error.refused(), error.errno()))
}

/// Reads a NUL-terminated string of at most `most` bytes from a program.
pub fn read_string(memory: &Arc<UserSpace>, address: u64, most: usize) -> Result<Vec<u8>, Errno> {
    let mut string = Vec::new();
    let mut at = address;
    loop {
        // A read ends at the page boundary: the next page may be unmapped.
        let mut piece = [0; 256];
        let room = (4096 - at % 4096).min(piece.len() as u64) as usize;
        let copied = uaccess::read_some(memory, at, &mut piece[..room]);
        let end = piece[..copied].iter().position(|byte| *byte == 0);
        string.try_reserve(copied)?;
        string.extend_from_slice(&piece[..end.unwrap_or(copied)]);
        if string.len() >= most {
            return Err(Errno::ENAMETOOLONG);
        }
        match end {
            Some(_) => return Ok(string),
            None if copied < room => return Err(Errno::EFAULT),
            None => at += copied as u64,
        }
    }
}

fn read_strings(memory: &Arc<UserSpace>, address: u64) -> Result<Vec<Vec<u8>>, Errno> {
    let mut strings = Vec::new();
    let mut bytes = 0;
    if address == 0 {
        return Ok(strings);
    }
    for index in 0.. {
        let mut word = [0; 8];
        uaccess::read(memory, address.wrapping_add(8 * index), &mut word)?;
        let word = u64::from_le_bytes(word);
        if word == 0 {
            break;
        }
        // The strings are small but may be many, so the memcg's limit is checked before each.
        payer::afford(FRAME_SIZE)?;
        let string = read_string(memory, word, 128 << 10).map_err(|error| match error {
            Errno::ENAMETOOLONG => Errno::E2BIG,
            other => other,
        })?;
        bytes += string.len() + 9;
        if bytes > 2 << 20 {
            return Err(Errno::E2BIG);
        }
        strings.try_reserve(1)?;
        strings.push(string);
    }
    Ok(strings)
}
