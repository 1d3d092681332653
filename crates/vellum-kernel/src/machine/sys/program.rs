//! Loads programs into new address spaces, by mapping their files, and implements `execve`.

use super::Answer;
use super::path::{HERE, executable};
use crate::arch::abi as machine;
use crate::arch::entry::Registers;
use crate::arch::paging::user_end;
use crate::arch::random::random;
use crate::files::Executable;
use crate::files::contents::object_of;
use crate::mem::space::Image;
use crate::mem::spaces;
use crate::mem::thread::failed;
use crate::mem::{self, Object, UserSpace, payer, uaccess, vdso};
use crate::task::Thread;
use crate::task::trace;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as abi;
use vellum::addr::FRAME_SIZE;
use vellum::memcg::MayBeRefused;
use vellum::space::{Limits, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum_kernel::credentials::Credentials;
use vellum_kernel::credentials::id_index::{EFFECTIVE, REAL};
use vellum_kernel::errno::Errno;
use vellum_kernel::exec::elf::{self, Contents, Mapping, Plan};
use vellum_kernel::exec::script;
use vellum_kernel::exec::stack::{self, Aux};
use vellum_kernel::fs::inode::Mappable;
use vellum_kernel::fs::names::{LONGEST_PATH, MappedFile};
use vellum_kernel::fs::write_access::WriteDenial;
use vellum_kernel::fs::{File, Kind};

/// The initial size of the stack mapping in bytes; the stack grows from there.
const STACK: u64 = 132 << 10;
/// An executable file, to which no program can write while this value exists.
pub struct Program {
    /// The denial of writes, which has the inode.
    denial: WriteDenial,
    /// The name of the file in mappings.
    name: MappedFile,
    file: Arc<dyn File>,
    /// The page-cache object with the file's contents.
    object: Object,
    size: u64,
}

impl Program {
    /// Opens a file for execution.
    ///
    /// # Errors
    ///
    /// `EACCES`: the file is not executable. `ETXTBSY`: it is open for writing, or mapped so that a
    /// program may write to it. Those of the file.
    pub fn open((inode, name): Executable) -> Result<Self, Errno> {
        let meta = inode.meta();
        if meta.kind != Kind::Regular || meta.mode & 0o111 == 0 {
            return Err(Errno::EACCES);
        }
        let denial = WriteDenial::begin(&inode)?.ok_or(Errno::EACCES)?;
        let file = inode.open(abi::O_RDONLY)?;
        let Mappable::Pages(pages) = file.mappable() else { return Err(Errno::EACCES) };
        let object = object_of(&pages).ok_or(Errno::EACCES)?.clone();
        // Such a mapping may have outlived the descriptor, and with it the descriptor's access.
        if object.has_shared_writers() {
            return Err(Errno::ETXTBSY);
        }
        Ok(Self { denial, name, file, object, size: meta.size })
    }

    /// Reads a range of the file; fewer bytes at its end.
    fn part(&self, range: Range<u64>) -> Result<Vec<u8>, Errno> {
        let len = range.end.min(self.size).saturating_sub(range.start) as usize;
        let mut bytes = payer::zeros(len)?;
        let read = self.file.read(range.start, &mut &mut bytes[..])?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// Reads the file's headers and plans its mappings.
    ///
    /// # Errors
    ///
    /// `ENOEXEC`, `ENOMEM`; those of the file.
    fn plan(&self, known: &elf::Limits) -> Result<Plan, Errno> {
        let header = elf::header(&self.part(0..elf::HEADER_SIZE as u64)?, known.machine)?;
        let table = self.part(header.phdrs.clone())?;
        elf::plan(&header, &table, self.size, known)
    }

    /// Maps what a plan says, at `base` if the program is relocatable. The file's pages are mapped,
    /// and not copied: programs that run from one file share its text, and have private copies only
    /// of the pages that they write to.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there is no memory, or the addresses are too high.
    fn map(&self, space: &Arc<UserSpace>, plan: &Plan, base: u64, top: u64) -> Result<(), Errno> {
        if base.checked_add(plan.span.end).is_none_or(|end| end > top) {
            return Err(Errno::ENOMEM);
        }
        space.note_mapped_file(self.object.tag(), self.name.clone());
        for Mapping { range, rights, contents } in &plan.mappings {
            let mut prot = Prot::empty();
            prot.set(Prot::READ, rights.read);
            prot.set(Prot::WRITE, rights.write);
            prot.set(Prot::EXEC, rights.execute);
            let (addr, len) = (base + range.start, range.end - range.start);
            let request = MapRequest { addr, len, prot, flags: MapFlags::FIXED };
            let mapped = match contents {
                Contents::Zero => space.engine.map(request),
                Contents::File { offset, .. } => space.engine.map_object(request, &self.object, *offset),
            };
            mapped.map_err(|error| failed(error.refused(), error.errno()))?;
            if let Contents::File { clear, .. } = contents {
                uaccess::write(space, base + clear.start, &[0; 4096][..(clear.end - clear.start) as usize])?;
            }
        }
        Ok(())
    }
}

/// The strings that a program gets from its caller.
pub struct Strings<'a> {
    /// The path by which the program was found.
    pub path: &'a [u8],
    /// The arguments.
    pub arguments: &'a [Vec<u8>],
    /// The environment.
    pub environment: &'a [Vec<u8>],
}

/// Returns the program that is to be loaded for `file`: the interpreter that a script names in its
/// first line, which may be a script too, and any other file itself. `path` and `arguments` become
/// the interpreter's. `open` opens an interpreter by its path.
///
/// # Errors
///
/// `ELOOP`: too many scripts name each other. Those of `execve`.
pub fn interpret(
    mut file: Program,
    path: &mut Vec<u8>,
    arguments: &mut Vec<Vec<u8>>,
    open: impl Fn(&[u8]) -> Result<Program, Errno>,
) -> Result<Program, Errno> {
    for depth in 0.. {
        let first = file.part(0..script::HEAD as u64)?;
        let Some(script) = script::parse(&first) else { break };
        let script = script?;
        if depth == script::MAX_DEPTH {
            return Err(Errno::ELOOP);
        }
        *arguments = script.arguments(path, core::mem::take(arguments))?;
        *path = script.interpreter.to_vec();
        file = open(path)?;
    }
    Ok(file)
}

/// Loads a program into a new address space, with its interpreter (the dynamic loader), which
/// `open` opens by its path. Returns the space and the initial registers. `own` are the credentials
/// that the program gets; `gained` is true if they exceed the caller's (`AT_SECURE`).
///
/// # Errors
///
/// Those of `execve`.
pub fn load(
    file: &Program,
    strings: &Strings<'_>,
    resources: &[[u64; 2]; 16],
    own: &Credentials,
    gained: bool,
    open: impl FnOnce(&[u8]) -> Result<Program, Errno>,
) -> Result<(Arc<UserSpace>, Registers), Errno> {
    // The last page stays unmapped, as on Linux: an instruction at the very end would run beyond
    // it.
    let top = user_end().min(machine::ADDRESSES_END - 4096);
    let known =
        elf::Limits { addresses: Limits::default().lowest..top, page_size: 4096, machine: machine::ELF_MACHINE };
    let plan = file.plan(&known)?;
    let interpreter = match &plan.interpreter {
        None => None,
        Some(path) => {
            let path = file.part(path.clone())?;
            let program = open(path.strip_suffix(&[0]).ok_or(Errno::ENOEXEC)?)?;
            let plan = program.plan(&known).map_err(|error| match error {
                Errno::ENOEXEC => Errno::ELIBBAD,
                other => other,
            })?;
            Some((program, plan))
        }
    };
    let stack_limit = resources[abi::RLIMIT_STACK as usize][0].min(1 << 30);
    let mmap_base = top - stack_limit.max(128 << 20) - (1 << 20);
    let mut limits = Limits { mmap_base, ..Limits::default() };
    super::memory::set_limits(&mut limits, resources, own);
    let space = mem::new_space(mem::machine(), payer::payer(), limits)
        .map_err(|why| failed(Some(why), vellum::errno::Errno::ENOMEM))?;
    let space = spaces::register(UserSpace::new(space));
    // A position-independent program lies where Linux loads it without randomization: at two thirds
    // of the address space. Its interpreter lies below the first address of `mmap`.
    let base = if plan.relocatable { ((top / 3 * 2) & !4095).next_multiple_of(plan.align) } else { 0 };
    file.map(&space, &plan, base, top)?;
    let mut interpreter_base = 0;
    let mut entry = base + plan.entry;
    if let Some((program, plan)) = interpreter {
        if plan.relocatable {
            let lowest = mmap_base.checked_sub(plan.span.end).ok_or(Errno::ENOMEM)?;
            interpreter_base = lowest & !(plan.align - 1);
        }
        program.map(&space, &plan, interpreter_base, top)?;
        entry = interpreter_base + plan.entry;
    }
    let mut image = Image { program: Some((file.denial.clone(), file.name.clone())), ..Image::default() };
    for mapping in &plan.mappings {
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
    // Beside the first address of `mmap`, in the gap below the stack.
    let vdso = vdso::map(&space.engine, mmap_base & !4095);
    let vdso = vdso.map_err(|error| failed(error.refused(), error.errno()))?;
    space.vdso.store(vdso, Relaxed);
    let [hwcap, hwcap2] = machine::hwcap();
    let aux = Aux {
        platform: machine::NAME,
        hwcap,
        hwcap2,
        page_size: 4096,
        phdr: plan.phdr_addr.map_or(0, |phdr| base + phdr),
        phnum: plan.phnum,
        interpreter: interpreter_base,
        vdso,
        entry: base + plan.entry,
        random: core::array::from_fn(|_| random() as u8),
        min_signal_stack: machine::LEAST_SIGNAL_STACK,
        ids: [own.uids[REAL], own.uids[EFFECTIVE], own.gids[REAL], own.gids[EFFECTIVE]],
        secure: gained,
    };
    let Strings { path, arguments, environment } = *strings;
    let stack = stack::build(top, stack::arg_limit(stack_limit), path, arguments, environment, &aux)?;
    uaccess::write(&space, stack.start, &stack.bytes)?;
    let ends = |range: &core::ops::Range<u64>| [range.start, range.end];
    (image.arguments, image.environment, image.aux) =
        (ends(&stack.arguments), ends(&stack.environment), ends(&stack.aux));
    image.stack = stack.start;
    *space.image.lock() = image;
    Ok((space, Registers::start(entry, stack.start)))
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
    let found = executable(thread, at, &name, follow)?;
    let file = Program::open(found)?;
    // The path under which a script's interpreter and the program itself find the file.
    let mut path = match at as i32 {
        abi::AT_FDCWD => name,
        _ if name.first() == Some(&b'/') => name,
        fd if name.is_empty() => format!("/dev/fd/{fd}").into_bytes(),
        fd => [format!("/dev/fd/{fd}/").as_bytes(), &name].concat(),
    };
    let called = path.clone();
    let open = |path: &[u8]| Program::open(executable(thread, HERE, path, true)?);
    let file = interpret(file, &mut path, &mut arguments, open)?;
    let limits = *thread.process.limits.lock();
    let before = thread.credentials();
    let gains = !thread.traits.lock().no_new_privileges;
    let own = before.after_exec(&file.denial.inode().meta(), gains);
    let gained = own.uids != before.uids || own.gids != before.gids;
    let strings = Strings { path: &path, arguments: &arguments, environment: &environment };
    let (space, registers) = load(&file, &strings, &limits, &own, gained, open)?;
    drop((file, arguments, environment));
    space.inherit(&memory);
    let process = &thread.process;
    process.end_others(thread).await?;
    super::process::let_go_of_memory(thread);
    process.signals.lock().reset_for_exec();
    process.has_executed.store(true, Relaxed);
    process.timers.lock().remove_posix();
    thread.traits.lock().credentials = Arc::new(own);
    crate::mem::space::unload();
    process.change_memory(Some(space.clone()));
    thread.unload_extended();
    // SAFETY: a system call runs in the thread's own future.
    let context = unsafe { thread.context() };
    let (files, denies_tsc) = (context.files.clone(), context.extended.denies_tsc());
    *context = crate::task::context::Context::new(space, files.clone(), registers);
    context.extended.deny_tsc(denies_tsc);
    loop {
        let closed = files.table.lock().remove_next((0, u32::MAX), true);
        let Some(slot) = closed else { break };
        crate::files::closed(process.pid, &slot.open);
    }
    thread.set_name(called.rsplit(|byte| *byte == b'/').next().unwrap_or_default());
    thread.unblock_creator();
    trace::executed(thread).await;
    // No program uses the value of RAX at its entry.
    Ok(0)
}

/// Reads a NUL-terminated string of at most `most` bytes from a program.
pub fn read_string(memory: &Arc<UserSpace>, address: u64, most: usize) -> Result<Vec<u8>, Errno> {
    let mut string = Vec::new();
    let mut at = address;
    loop {
        // A read ends at the page boundary: the next page may be unmapped. Most strings are short.
        let mut piece = [0; 64];
        let room = (4096 - at % 4096).min(piece.len() as u64) as usize;
        let copied = uaccess::read_some(memory, at, &mut piece[..room]);
        let end = CStr::from_bytes_until_nul(&piece[..copied]).ok().map(CStr::count_bytes);
        let found = &piece[..end.unwrap_or(copied)];
        string.try_reserve(found.len())?;
        string.extend_from_slice(found);
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
